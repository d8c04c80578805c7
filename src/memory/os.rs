//! The memory of a Linux process and its limits, from text files of the kernel in `/proc` and the cgroup file systems (v2 and v1).
//!
//! A file that cannot be read counts as absent, and an absent limit as no limit. Systems other than Linux have none of these files.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use super::{Cgroup, Memory};

/// A limit from here on means "no limit": cgroup v1 writes the largest multiple of the page size below 2^63.
const UNLIMITED_MIN_BYTES: u64 = 1 << 60;

/// Most of the files fit.
const TEXT_BYTES: usize = 4 << 10;

/// The memory of this process and of its cgroup, now.
pub(super) fn memory() -> Memory {
    memory_under(Path::new("/"))
}

/// The mode of transparent huge pages: `always`, `madvise` or `never`; `None` where it is unknown.
pub fn huge_pages() -> Option<String> {
    bracketed(&text(Path::new("/sys/kernel/mm/transparent_hugepage/enabled")))
}

/// The word in brackets.
fn bracketed(text: &str) -> Option<String> {
    Some(text.split_once('[')?.1.split_once(']')?.0.to_owned())
}

/// As [`memory`], from a file tree at `root`, for tests.
fn memory_under(root: &Path) -> Memory {
    let status = text(&root.join("proc/self/status"));
    let machine = text(&root.join("proc/meminfo"));
    let limits = text(&root.join("proc/self/limits"));
    let kib = |text: &str, key: &str| field(text, key).unwrap_or(0).saturating_mul(1024);
    Memory {
        anon: kib(&status, "RssAnon:"),
        file: kib(&status, "RssFile:"),
        shared: kib(&status, "RssShmem:"),
        peak: kib(&status, "VmHWM:"),
        total: kib(&machine, "MemTotal:"),
        available: kib(&machine, "MemAvailable:"),
        group: tightest_cgroup(root),
        address_space: limit_headroom(&limits, "Max address space", &status, "VmSize:"),
        data: limit_headroom(&limits, "Max data size", &status, "VmData:"),
    }
}

/// What a resource limit leaves of which the process uses what `used` says in `/proc/self/status`; `None` without a limit.
fn limit_headroom(limits: &str, name: &str, status: &str, used: &str) -> Option<u64> {
    // proc_pid_limits(5): name, soft limit, hard limit, unit. The soft one is a number, or "unlimited".
    let line = limits.lines().find_map(|line| line.strip_prefix(name))?;
    let limit: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(limit.saturating_sub(field(status, used)?.saturating_mul(1024)))
}

/// The cgroup with the least headroom among the process's cgroup and its ancestors, in v1 and v2.
fn tightest_cgroup(root: &Path) -> Option<Cgroup> {
    let membership = text(&root.join("proc/self/cgroup"));
    let mounts = text(&root.join("proc/self/mountinfo"));
    let mut groups: Vec<Cgroup> = Vec::new();
    for line in membership.lines() {
        // cgroups(7): hierarchy-ID:controller-list:cgroup-path; v2 has ID 0 and an empty list.
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else {
            continue;
        };
        let version = match controllers {
            "" => &V2,
            list if list.split(',').any(|name| name == "memory") => &V1,
            _ => continue,
        };
        for (mount_root, mount_point) in mounts.lines().filter_map(|line| mount_of(line, version)) {
            let top = root.join(mount_point.trim_start_matches('/'));
            // In a container, the mount's root may be its own cgroup, while `path` is the path on the host.
            let inside = Path::new(path).strip_prefix(mount_root).unwrap_or(Path::new(""));
            let inside = inside.strip_prefix("/").unwrap_or(inside);
            groups.extend(inside.ancestors().filter_map(|group| read_cgroup(&top.join(group), version)));
        }
    }
    groups.into_iter().min_by_key(Cgroup::headroom)
}

/// A version of cgroups, and the names of its files and numbers.
struct CgroupVersion {
    /// The type of its file system, and an option that a mount has.
    mount: (&'static str, Option<&'static str>),
    /// The files with limits.
    limits: &'static [&'static str],
    /// The file with the usage, page cache included.
    usage: &'static str,
    /// The keys of `memory.stat` that count page cache, of the cgroup and all its descendants.
    page_cache: [&'static str; 2],
}

const V1: CgroupVersion = CgroupVersion {
    mount: ("cgroup", Some("memory")),
    limits: &["memory.limit_in_bytes"],
    usage: "memory.usage_in_bytes",
    page_cache: ["total_inactive_file", "total_active_file"],
};

/// `memory.high` throttles before `memory.max` invokes the OOM killer.
const V2: CgroupVersion = CgroupVersion {
    mount: ("cgroup2", None),
    limits: &["memory.max", "memory.high"],
    usage: "memory.current",
    page_cache: ["inactive_file", "active_file"],
};

/// The cgroup at the root of a mount of this version, and the mount point. proc_pid_mountinfo(5): id parent major:minor root mount-point
/// options [fields...] - type source super-options.
fn mount_of<'a>(line: &'a str, version: &CgroupVersion) -> Option<(&'a str, &'a str)> {
    let (front, back) = line.split_once(" - ")?;
    let mut back = back.split(' ');
    let (kind, options) = (back.next()?, back.nth(1)?);
    let has = |wanted| options.split(',').any(|option| option == wanted);
    let mut front = front.split(' ').skip(3);
    let found = (front.next()?, front.next()?);
    (kind == version.mount.0 && version.mount.1.is_none_or(has)).then_some(found)
}

/// The limit and usage in a cgroup's directory; `None` without a limit.
fn read_cgroup(folder: &Path, version: &CgroupVersion) -> Option<Cgroup> {
    let number = |name: &str| text(&folder.join(name)).trim().parse::<u64>().ok();
    let limit = version.limits.iter().filter_map(|name| number(name)).min()?;
    if limit >= UNLIMITED_MIN_BYTES {
        return None;
    }
    let stat = text(&folder.join("memory.stat"));
    let cache = version.page_cache.iter().filter_map(|key| field(&stat, key)).fold(0, u64::saturating_add);
    let used = number(version.usage)?.saturating_sub(cache);
    Some(Cgroup { limit, used, path: folder.to_owned() })
}

/// The number after a key at the start of a line (`/proc/self/status`, `memory.stat`).
fn field(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| {
        let (first, rest) = line.split_once([' ', '\t'])?;
        (first == key).then_some(rest)
    })?;
    line.split_whitespace().next()?.parse().ok()
}

/// The text of a file; empty where it cannot be read. Those of the system state no size, so they would be read in small pieces.
fn text(path: &Path) -> String {
    let mut text = String::with_capacity(TEXT_BYTES);
    let read = File::open(path).and_then(|mut file| file.read_to_string(&mut text));
    read.map_or_else(|_| String::new(), |_| text)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::{WINDOW_MIN_BYTES, buffers_in, window_in};
    use super::*;

    /// A temporary directory with the given files.
    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        folder
    }

    fn in_group(group: &Cgroup) -> Memory {
        Memory { group: Some(group.clone()), ..Memory::default() }
    }

    const MIB: u64 = 1 << 20;
    const TWO: &str = "31 23 0:28 / /sys/fs/cgroup rw shared:9 - cgroup2 cgroup2 rw,nsdelegate\n";
    const ONE: &str = "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                       36 31 0:33 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n";

    #[test]
    fn cgroup_v2_uses_the_tightest_ancestor_and_excludes_page_cache() {
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
        let found = tightest_cgroup(root.path()).unwrap();
        assert_eq!((found.limit, found.used), (1024 * MIB, 700 * MIB));
        assert!(found.path.ends_with("a.slice"));
        assert_eq!(window_in(256 * MIB, &in_group(&found)), 162 * MIB);
        assert_eq!(window_in(4 * MIB, &in_group(&found)), 4 * MIB);
    }

    #[test]
    fn cgroup_v1_reads_its_own_files_and_its_huge_limit_means_none() {
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
        let found = tightest_cgroup(files("2097152\n").path()).unwrap();
        assert_eq!((found.limit, found.used), (2 * MIB, MIB));
        assert_eq!(window_in(256 * MIB, &in_group(&found)), WINDOW_MIN_BYTES);
        assert_eq!(tightest_cgroup(files("9223372036854771712\n").path()), None);
    }

    #[test]
    fn a_container_whose_cgroup_is_the_mount_root_finds_its_limit() {
        let root = tree(&[
            ("proc/self/cgroup", "4:memory:/docker/abc\n"),
            ("proc/self/mountinfo", "35 31 0:32 /docker/abc /cg rw - cgroup cgroup rw,memory\n"),
            ("cg/memory.limit_in_bytes", "1000000\n"),
            ("cg/memory.usage_in_bytes", "1\n"),
        ]);
        assert_eq!(tightest_cgroup(root.path()).map(|group| group.limit), Some(1_000_000));
    }

    #[test]
    fn without_readable_files_there_is_no_limit() {
        let root = tree(&[("proc/self/cgroup", "nonsense\n0::/x\n"), ("proc/self/mountinfo", "a b - c\n")]);
        assert_eq!(memory_under(root.path()), Memory::default());
        assert_eq!(Memory::default().headroom(), u64::MAX);
        let full = Memory { total: 8 * MIB, ..Memory::default() };
        assert_eq!(full.headroom(), 0);
        assert_eq!(window_in(256 * MIB, &Memory::default()), 256 * MIB);
    }

    #[test]
    fn resource_limits_leave_what_the_process_does_not_use() {
        let left = |limit: &str| {
            let limits = format!(
                "Limit                     Soft Limit           Hard Limit           Units\n\
                 Max data size             {limit:20} unlimited            bytes\n\
                 Max address space         {limit:20} unlimited            bytes\n"
            );
            let status = "VmPeak:\t  900000 kB\nVmSize:\t  204800 kB\nVmData:\t  102400 kB\n";
            let root = tree(&[("proc/self/limits", &limits), ("proc/self/status", status)]);
            let memory = memory_under(root.path());
            (memory.data, memory.address_space)
        };
        assert_eq!(left("unlimited"), (None, None));
        assert_eq!(left("314572800"), (Some(200 * MIB), Some(100 * MIB)));
        assert_eq!(left("1024"), (Some(0), Some(0)));
    }

    #[test]
    fn buffers_take_a_quarter_of_what_may_still_be_taken() {
        let grouped = in_group(&Cgroup { limit: 256 * MIB, used: 96 * MIB, path: "/".into() });
        assert_eq!(buffers_in(256 * MIB, &Memory::default()), 256 * MIB);
        assert_eq!(buffers_in(256 * MIB, &grouped), 40 * MIB);
        assert_eq!(buffers_in(256 * MIB, &Memory { data: Some(100 * MIB), ..grouped.clone() }), 25 * MIB);
        assert_eq!(buffers_in(8 * MIB, &grouped), 8 * MIB);
    }

    #[test]
    fn the_word_in_brackets_is_the_active_mode() {
        assert_eq!(bracketed("always [madvise] never\n").as_deref(), Some("madvise"));
        assert_eq!(bracketed("always"), None);
    }
}
