//! The file system that a file is on, which decides how the file is best read.
#![forbid(unsafe_code)]

use std::fs::File;

use super::os;

/// A file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileSystem {
    /// Its name; its magic number in hexadecimal if the name is not known.
    pub name: String,
    /// Its kind.
    pub kind: FileSystemKind,
}

/// The kinds of file system that are read in different ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileSystemKind {
    /// On a disk of this machine.
    Local,
    /// In memory.
    Memory,
    /// On another machine or served by another process: each page fault is a request of its own, and they are answered one at a
    /// time.
    Network,
    /// Not known.
    Unknown,
}

/// Magic numbers, from statfs(2), linux/magic.h and the sources of the file systems that are not part of Linux.
const MAGIC_NUMBERS: &[(u32, &str, FileSystemKind)] = &[
    (0xEF53, "ext4", FileSystemKind::Local),
    (0x5846_5342, "xfs", FileSystemKind::Local),
    (0x9123_683E, "btrfs", FileSystemKind::Local),
    (0xF2F5_2010, "f2fs", FileSystemKind::Local),
    (0xCA45_1A4E, "bcachefs", FileSystemKind::Local),
    (0x2FC1_2FC1, "zfs", FileSystemKind::Local),
    (0x794C_7630, "overlayfs", FileSystemKind::Local),
    (0x0102_1994, "tmpfs", FileSystemKind::Memory),
    (0x8584_58F6, "ramfs", FileSystemKind::Memory),
    (0x9584_58F6, "hugetlbfs", FileSystemKind::Memory),
    (0x0000_6969, "nfs", FileSystemKind::Network),
    (0x6573_5546, "fuse", FileSystemKind::Network),
    (0x0102_1997, "9p", FileSystemKind::Network),
    (0xFF53_4D42, "cifs", FileSystemKind::Network),
    (0xFE53_4D42, "smb2", FileSystemKind::Network),
    (0x0000_517B, "smb", FileSystemKind::Network),
    (0x0BD0_0BD0, "lustre", FileSystemKind::Network),
    (0x00C3_6400, "ceph", FileSystemKind::Network),
    (0x4750_4653, "gpfs", FileSystemKind::Network),
    (0x1983_0326, "beegfs", FileSystemKind::Network),
    (0x5346_414F, "afs", FileSystemKind::Network),
    (0x7461_636F, "ocfs2", FileSystemKind::Network),
    (0x0116_1970, "gfs2", FileSystemKind::Network),
    (0x786F_4256, "vboxsf", FileSystemKind::Network),
];

impl FileSystem {
    /// The file system of an open file; the unknown one for none. `RUSTLOAD_FILESYSTEM=local|network` overrides the kind where it is detected wrongly.
    pub(super) fn of(file: Option<&File>) -> FileSystem {
        let override_kind = std::env::var("RUSTLOAD_FILESYSTEM").ok();
        FileSystem::classify(file.and_then(os::file_system_magic), override_kind.as_deref())
    }

    fn classify(magic: Option<u32>, override_kind: Option<&str>) -> FileSystem {
        let known = magic.and_then(|magic| MAGIC_NUMBERS.iter().find(|(known, ..)| *known == magic));
        let name = match (known, magic) {
            (Some((_, name, _)), _) => (*name).to_owned(),
            (None, Some(magic)) => format!("{magic:#x}"),
            (None, None) => "unknown".to_owned(),
        };
        let kind = match override_kind {
            Some("local") => FileSystemKind::Local,
            Some("network") => FileSystemKind::Network,
            _ => known.map_or(FileSystemKind::Unknown, |(_, _, kind)| *kind),
        };
        FileSystem { name, kind }
    }
}

impl FileSystemKind {
    /// The name that `rustload doctor` shows.
    pub fn name(self) -> &'static str {
        match self {
            FileSystemKind::Local => "local",
            FileSystemKind::Memory => "memory",
            FileSystemKind::Network => "network",
            FileSystemKind::Unknown => "unknown",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_systems_are_known_by_magic_number_and_can_be_overridden() {
        let kind = |magic, override_kind| FileSystem::classify(magic, override_kind).kind;
        assert_eq!(kind(Some(0xEF53), None), FileSystemKind::Local);
        assert_eq!(kind(Some(0x6969), None), FileSystemKind::Network);
        assert_eq!(kind(Some(0x0102_1994), Some("nonsense")), FileSystemKind::Memory);
        assert_eq!(kind(Some(0xEF53), Some("network")), FileSystemKind::Network);
        assert_eq!(kind(None, None), FileSystemKind::Unknown);
        assert_eq!(FileSystem::classify(Some(0x1234), None).name, "0x1234");
    }

    #[test]
    fn the_file_system_of_a_file_is_found() {
        let file = tempfile::tempfile().unwrap();
        let is_known = FileSystem::of(Some(&file)).name != "unknown";
        assert_eq!(is_known, cfg!(all(target_os = "linux", not(rustload_portable))));
    }
}
