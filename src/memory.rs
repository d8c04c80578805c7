//! How much memory there is: what this process uses, what its cgroup allows, and how large a window may be inside that.
//!
//! Everything is read from `/proc` and the cgroup file systems, version 2 and version 1, by position in text that the kernel
//! writes. What cannot be read counts as absent: without a limit nothing is special.
#![forbid(unsafe_code)]

use std::fs;
use std::path::{Path, PathBuf};

/// A window is never made smaller than this: below it, system calls cost more than memory would.
const LEAST: u64 = 8 << 20;

/// Limits from here on mean "none": version 1 writes the largest multiple of a page that 63 bits hold.
const NONE: u64 = 1 << 60;

/// Memory of this process and of the group it is in, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Anonymous memory that is resident: results, Python's objects, edited pages of views.
    pub anon: u64,
    /// Resident pages of mapped files, such as views that were looked at. The system takes them back when it needs to.
    pub file: u64,
    /// Resident shared memory.
    pub shared: u64,
    /// The most that was ever resident at once, of all three kinds.
    pub peak: u64,
    /// All memory of the machine.
    pub total: u64,
    /// What the system says could be used without swapping.
    pub available: u64,
    /// The tightest limit on the process's group, if there is one.
    pub group: Option<Group>,
}

/// A memory limit on a group of processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Bytes that the group may use.
    pub limit: u64,
    /// Bytes that it uses and that cannot simply be dropped: without the page cache.
    pub used: u64,
    /// The folder that says so.
    pub path: PathBuf,
}

impl Group {
    /// Bytes that may still be used.
    pub fn room(&self) -> u64 {
        self.limit.saturating_sub(self.used)
    }
}

impl Memory {
    /// Reads what holds now.
    pub fn now() -> Memory {
        Memory::below(Path::new("/"))
    }

    /// As [`Memory::now`], from a tree that has `proc` and what it names below `root`.
    fn below(root: &Path) -> Memory {
        let status = text(&root.join("proc/self/status"));
        let machine = text(&root.join("proc/meminfo"));
        let kib = |text: &str, key: &str| field(text, key).unwrap_or(0).saturating_mul(1024);
        Memory {
            anon: kib(&status, "RssAnon:"),
            file: kib(&status, "RssFile:"),
            shared: kib(&status, "RssShmem:"),
            peak: kib(&status, "VmHWM:"),
            total: kib(&machine, "MemTotal:"),
            available: kib(&machine, "MemAvailable:"),
            group: group(root),
        }
    }

    /// Bytes that may still be used: what the group leaves, and the machine.
    pub fn room(&self) -> u64 {
        self.group.as_ref().map_or(u64::MAX, Group::room).min(self.available)
    }
}

/// The window to work in where `asked` bytes were asked for: at most half of what the process's group may still use, so that
/// the other half is left to what the window is read into; 8 MiB at least, unless less was asked for. Without a limit, what
/// was asked for.
pub fn window(asked: u64) -> u64 {
    window_in(asked, group(Path::new("/")).as_ref())
}

/// When the system gives huge pages: `always`, `madvise` or `never`; `None` where it does not say.
pub fn huge_pages() -> Option<String> {
    bracketed(&text(Path::new("/sys/kernel/mm/transparent_hugepage/enabled")))
}

/// The word in brackets.
fn bracketed(text: &str) -> Option<String> {
    Some(text.split_once('[')?.1.split_once(']')?.0.to_owned())
}

fn window_in(asked: u64, group: Option<&Group>) -> u64 {
    group.map_or(asked, |group| asked.min((group.room() / 2).max(LEAST)))
}

/// The tightest limit among the process's group and the groups around it, in either version.
fn group(root: &Path) -> Option<Group> {
    let membership = text(&root.join("proc/self/cgroup"));
    let mounts = text(&root.join("proc/self/mountinfo"));
    let mut found: Vec<Group> = Vec::new();
    for line in membership.lines() {
        // cgroups(7): hierarchy-ID:controller-list:cgroup-path; version 2 is 0 with an empty list.
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else {
            continue;
        };
        let version = match controllers {
            "" => Version::Two,
            list if list.split(',').any(|name| name == "memory") => Version::One,
            _ => continue,
        };
        for mount in mounts.lines().filter_map(|line| Mount::parse(line, version)) {
            found.extend(mount.groups(root, path, version));
        }
    }
    found.into_iter().min_by_key(Group::room)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

impl Version {
    /// Files with limits; the second of version 2 throttles before the first kills.
    fn limits(self) -> &'static [&'static str] {
        match self {
            Version::One => &["memory.limit_in_bytes"],
            Version::Two => &["memory.max", "memory.high"],
        }
    }

    fn used(self) -> &'static str {
        match self {
            Version::One => "memory.usage_in_bytes",
            Version::Two => "memory.current",
        }
    }

    /// Lines of `memory.stat` that count page cache, of the group and all below it.
    fn cache(self) -> [&'static str; 2] {
        match self {
            Version::One => ["total_inactive_file", "total_active_file"],
            Version::Two => ["inactive_file", "active_file"],
        }
    }
}

/// Where a hierarchy of groups is mounted.
struct Mount<'a> {
    /// The group that the mount shows as its root.
    shows: &'a str,
    /// The folder.
    at: &'a str,
}

impl<'a> Mount<'a> {
    /// proc_pid_mountinfo(5): id parent major:minor root mount-point options [fields...] - type source super-options.
    fn parse(line: &'a str, version: Version) -> Option<Mount<'a>> {
        let (front, back) = line.split_once(" - ")?;
        let mut back = back.split(' ');
        let (kind, options) = (back.next()?, back.nth(1)?);
        let fits = match version {
            Version::One => kind == "cgroup" && options.split(',').any(|option| option == "memory"),
            Version::Two => kind == "cgroup2",
        };
        let mut front = front.split(' ').skip(3);
        fits.then_some(Mount { shows: front.next()?, at: front.next()? })
    }

    /// The limits of the group at `path` and of each around it, as far as the mount shows them.
    fn groups(&self, root: &Path, path: &str, version: Version) -> Vec<Group> {
        let top = root.join(self.at.trim_start_matches('/'));
        // A container may see its own group as the root, while the path is that of the host.
        let inside = Path::new(path).strip_prefix(self.shows).unwrap_or(Path::new(""));
        let inside = inside.strip_prefix("/").unwrap_or(inside);
        inside.ancestors().filter_map(|part| limit_of(&top.join(part), version)).collect()
    }
}

fn limit_of(folder: &Path, version: Version) -> Option<Group> {
    let number = |name: &str| text(&folder.join(name)).trim().parse::<u64>().ok();
    let limit = version.limits().iter().filter_map(|name| number(name)).min()?;
    if limit >= NONE {
        return None;
    }
    let stat = text(&folder.join("memory.stat"));
    let cache = version.cache().iter().filter_map(|key| field(&stat, key)).fold(0, u64::saturating_add);
    let used = number(version.used())?.saturating_sub(cache);
    Some(Group { limit, used, path: folder.to_owned() })
}

/// The number after a key at the start of a line.
fn field(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| {
        let (first, rest) = line.split_once([' ', '\t'])?;
        (first == key).then_some(rest)
    })?;
    line.split_whitespace().next()?.parse().ok()
}

fn text(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tree with the given files below a folder.
    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        folder
    }

    const MIB: u64 = 1 << 20;
    const TWO: &str = "31 23 0:28 / /sys/fs/cgroup rw shared:9 - cgroup2 cgroup2 rw,nsdelegate\n";
    const ONE: &str = "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                       36 31 0:33 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n";

    #[test]
    fn version_two_takes_the_tightest_group_around_and_leaves_out_the_cache() {
        let root = tree(&[
            ("proc/self/cgroup", "0::/a.slice/b\n"),
            ("proc/self/mountinfo", TWO),
            ("sys/fs/cgroup/a.slice/memory.max", "1073741824\n"),
            ("sys/fs/cgroup/a.slice/memory.high", "max\n"),
            ("sys/fs/cgroup/a.slice/memory.current", "943718400\n"),
            ("sys/fs/cgroup/a.slice/memory.stat", "anon 1\ninactive_file 104857600\nactive_file 104857600\n"),
            ("sys/fs/cgroup/a.slice/b/memory.max", "max\n"),
            ("sys/fs/cgroup/a.slice/b/memory.high", "max\n"),
            ("sys/fs/cgroup/a.slice/b/memory.current", "5\n"),
        ]);
        let found = group(root.path()).unwrap();
        assert_eq!((found.limit, found.used), (1024 * MIB, 700 * MIB));
        assert!(found.path.ends_with("a.slice"));
        assert_eq!(window_in(256 * MIB, Some(&found)), 162 * MIB);
        assert_eq!(window_in(4 * MIB, Some(&found)), 4 * MIB);
    }

    #[test]
    fn version_one_reads_its_own_names_and_its_huge_number_means_none() {
        let files = |limit: &'static str| {
            tree(&[
                ("proc/self/cgroup", "4:cpu,memory:/box/inner\n0::/\n"),
                ("proc/self/mountinfo", ONE),
                ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
                ("sys/fs/cgroup/memory/memory.usage_in_bytes", "7\n"),
                ("sys/fs/cgroup/memory/box/inner/memory.limit_in_bytes", limit),
                ("sys/fs/cgroup/memory/box/inner/memory.usage_in_bytes", "1048576\n"),
            ])
        };
        let found = group(files("2097152\n").path()).unwrap();
        assert_eq!((found.limit, found.used), (2 * MIB, MIB));
        assert_eq!(window_in(256 * MIB, Some(&found)), LEAST);
        assert_eq!(group(files("9223372036854771712\n").path()), None);
    }

    #[test]
    fn a_container_that_sees_its_group_as_the_root_finds_its_limit() {
        let root = tree(&[
            ("proc/self/cgroup", "4:memory:/docker/abc\n"),
            ("proc/self/mountinfo", "35 31 0:32 /docker/abc /cg rw - cgroup cgroup rw,memory\n"),
            ("cg/memory.limit_in_bytes", "1000000\n"),
            ("cg/memory.usage_in_bytes", "1\n"),
        ]);
        assert_eq!(group(root.path()).map(|group| group.limit), Some(1_000_000));
    }

    #[test]
    fn without_files_there_is_no_limit_and_nothing_special() {
        let root = tree(&[("proc/self/cgroup", "nonsense\n0::/x\n"), ("proc/self/mountinfo", "a b - c\n")]);
        assert_eq!(Memory::below(root.path()), Memory::default());
        assert_eq!(window_in(256 * MIB, None), 256 * MIB);
    }

    #[test]
    fn the_word_in_brackets_is_the_choice() {
        assert_eq!(bracketed("always [madvise] never\n").as_deref(), Some("madvise"));
        assert_eq!(bracketed("always"), None);
    }
}
