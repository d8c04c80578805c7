//! Where a file lies: the kind of file system, which decides how its bytes are best read.
#![forbid(unsafe_code)]

use std::fs::File;

use rustix::fs::fstatfs;

/// A file system, by what it means for reading.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Its name, or its number where that is not known.
    pub name: String,
    /// What it means for reading.
    pub kind: PlaceKind,
}

/// What a file system means for reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlaceKind {
    /// On a disk of this machine.
    Local,
    /// In memory.
    Memory,
    /// On another machine, or behind another process: a page fault is a request that somebody answers, one at a time.
    Network,
    /// Not known.
    Unknown,
}

/// statfs(2), linux/magic.h and the sources of the file systems that are not part of Linux.
const KNOWN: &[(u32, &str, PlaceKind)] = &[
    (0xEF53, "ext4", PlaceKind::Local),
    (0x5846_5342, "xfs", PlaceKind::Local),
    (0x9123_683E, "btrfs", PlaceKind::Local),
    (0xF2F5_2010, "f2fs", PlaceKind::Local),
    (0xCA45_1A4E, "bcachefs", PlaceKind::Local),
    (0x2FC1_2FC1, "zfs", PlaceKind::Local),
    (0x794C_7630, "overlayfs", PlaceKind::Local),
    (0x0102_1994, "tmpfs", PlaceKind::Memory),
    (0x8584_58F6, "ramfs", PlaceKind::Memory),
    (0x9584_58F6, "hugetlbfs", PlaceKind::Memory),
    (0x0000_6969, "nfs", PlaceKind::Network),
    (0x6573_5546, "fuse", PlaceKind::Network),
    (0x0102_1997, "9p", PlaceKind::Network),
    (0xFF53_4D42, "cifs", PlaceKind::Network),
    (0xFE53_4D42, "smb2", PlaceKind::Network),
    (0x0000_517B, "smb", PlaceKind::Network),
    (0x0BD0_0BD0, "lustre", PlaceKind::Network),
    (0x00C3_6400, "ceph", PlaceKind::Network),
    (0x4750_4653, "gpfs", PlaceKind::Network),
    (0x1983_0326, "beegfs", PlaceKind::Network),
    (0x5346_414F, "afs", PlaceKind::Network),
    (0x7461_636F, "ocfs2", PlaceKind::Network),
    (0x0116_1970, "gfs2", PlaceKind::Network),
    (0x786F_4256, "vboxsf", PlaceKind::Network),
];

impl Place {
    /// The place of an open file. `RUSTLOAD_FILESYSTEM=local|network` says it for one that is not told right.
    pub(super) fn of(file: &File) -> Place {
        let said = std::env::var("RUSTLOAD_FILESYSTEM").ok();
        let found = fstatfs(file).ok().map(|found| found.f_type as u32);
        Place::named(found, said.as_deref())
    }

    fn named(magic: Option<u32>, said: Option<&str>) -> Place {
        let known = magic.and_then(|magic| KNOWN.iter().find(|(known, ..)| *known == magic));
        let name = match (known, magic) {
            (Some((_, name, _)), _) => (*name).to_owned(),
            (None, Some(magic)) => format!("{magic:#x}"),
            (None, None) => "unknown".to_owned(),
        };
        let kind = match said {
            Some("local") => PlaceKind::Local,
            Some("network") => PlaceKind::Network,
            _ => known.map_or(PlaceKind::Unknown, |(_, _, kind)| *kind),
        };
        Place { name, kind }
    }
}

impl PlaceKind {
    /// As `rustload doctor` shows it.
    pub fn name(self) -> &'static str {
        match self {
            PlaceKind::Local => "local",
            PlaceKind::Memory => "memory",
            PlaceKind::Network => "network",
            PlaceKind::Unknown => "unknown",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_systems_are_told_by_their_numbers_and_by_whom_knows_better() {
        let kind = |magic, said| Place::named(magic, said).kind;
        assert_eq!(kind(Some(0xEF53), None), PlaceKind::Local);
        assert_eq!(kind(Some(0x6969), None), PlaceKind::Network);
        assert_eq!(kind(Some(0x0102_1994), Some("nonsense")), PlaceKind::Memory);
        assert_eq!(kind(Some(0xEF53), Some("network")), PlaceKind::Network);
        assert_eq!(kind(None, None), PlaceKind::Unknown);
        assert_eq!(Place::named(Some(0x1234), None).name, "0x1234");
    }

    #[test]
    fn the_place_of_a_file_is_found() {
        let file = tempfile::tempfile().unwrap();
        assert_ne!(Place::of(&file).name, "unknown");
    }
}
