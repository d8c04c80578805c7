//! The choice between buffered reads (through the page cache) and direct reads (`O_DIRECT`, which bypasses it).
//!
//! Direct reads run at the disk's own speed and leave nothing in memory, so the next load costs as much again. So `auto` chooses
//! them only if the file would not stay in the page cache anyway: it is cold, on a disk of this machine, and larger than half of
//! the available memory. If the system refuses a direct read, the same bytes are read through the page cache.
#![forbid(unsafe_code)]

use super::file_system::{FileSystem, FileSystemKind};
use crate::memory::Memory;

/// How tensor data is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Io {
    /// Direct or buffered, decided from the file system and the page cache.
    #[default]
    Auto,
    /// Through the page cache.
    Buffered,
    /// With `O_DIRECT` if the file system supports it; reads of less than 256 KiB still go through the page cache.
    Direct,
}

/// How a file is read, and the reason.
#[derive(Clone, Debug, PartialEq)]
pub struct IoChoice {
    /// [`Io::Buffered`] or [`Io::Direct`].
    pub io: Io,
    /// The reason, in words.
    pub reason: &'static str,
}

/// Offsets, sizes and addresses of direct reads are multiples of this: enough for every disk whose blocks are at most a page.
pub const DIRECT_ALIGNMENT: u64 = 4096;

/// Longer direct reads are split.
pub(super) const DIRECT_READ_MAX_BYTES: u64 = 4 << 20;

/// Smaller files are not worth a second file descriptor.
const DIRECT_MIN_FILE_BYTES: u64 = 64 << 20;

/// If at least this share of a file is cached, the page cache is faster than the disk.
const WARM_SHARE: f64 = 0.25;

impl IoChoice {
    /// Whether [`IoChoice::of`] may choose direct reads for a file of `len` bytes.
    pub(super) fn may_be_direct(requested: Io, len: u64) -> bool {
        match requested {
            Io::Buffered => false,
            Io::Direct => true,
            Io::Auto => len >= DIRECT_MIN_FILE_BYTES && len > Memory::now().headroom() / 2,
        }
    }

    /// How to read a file of `len` bytes for which the caller requested `requested`, where so many bytes of memory are `available`.
    ///
    /// The share `cached` of it that is in the page cache is sampled only if that decides, because each sample leaves a page there, and
    /// many single pages there make the kernel's read-ahead slower.
    pub(super) fn of(
        requested: Io,
        len: u64,
        file_system: &FileSystem,
        available: u64,
        cached: impl FnOnce() -> Option<f64>,
    ) -> IoChoice {
        let buffered = |reason| IoChoice { io: Io::Buffered, reason };
        match (requested, file_system.kind) {
            (Io::Buffered, _) => buffered("buffered reads were requested"),
            (Io::Direct, _) => IoChoice { io: Io::Direct, reason: "direct reads were requested" },
            (Io::Auto, FileSystemKind::Memory) => buffered("the file is in memory"),
            (Io::Auto, FileSystemKind::Network) => buffered(
                "the file is not on a disk of this machine: it is read by many ranges at once, and not mapped",
            ),
            (Io::Auto, FileSystemKind::Unknown) => buffered("the file system is not known"),
            (Io::Auto, FileSystemKind::Local) if len < DIRECT_MIN_FILE_BYTES => buffered("the file is small"),
            (Io::Auto, FileSystemKind::Local) if len <= available / 2 => {
                buffered("the file fits in the page cache, for the next load")
            }
            (Io::Auto, FileSystemKind::Local) => match cached() {
                None => buffered("the system does not tell what is in the page cache"),
                Some(share) if share >= WARM_SHARE => buffered("enough of the file is in the page cache"),
                Some(_) => IoChoice {
                    io: Io::Direct,
                    reason: "the file is not in the page cache, and larger than half of the available memory",
                },
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn local() -> FileSystem {
        FileSystem { name: "ext4".to_owned(), kind: FileSystemKind::Local }
    }

    #[test]
    fn auto_uses_direct_reads_only_for_a_cold_local_file_larger_than_half_the_available_memory() {
        const GIB: u64 = 1 << 30;
        let io = |len, kind, available, cached| {
            let file_system = FileSystem { name: String::new(), kind };
            IoChoice::of(Io::Auto, len, &file_system, available, || cached).io
        };
        assert_eq!(io(16 * GIB, FileSystemKind::Local, 24 * GIB, Some(0.0)), Io::Direct);
        assert_eq!(io(16 * GIB, FileSystemKind::Local, 24 * GIB, Some(0.5)), Io::Buffered);
        assert_eq!(io(16 * GIB, FileSystemKind::Local, 64 * GIB, Some(0.0)), Io::Buffered);
        assert_eq!(io(16 * GIB, FileSystemKind::Local, 24 * GIB, None), Io::Buffered);
        assert_eq!(io(16 << 20, FileSystemKind::Local, 1 << 20, Some(0.0)), Io::Buffered);
        for kind in [FileSystemKind::Network, FileSystemKind::Memory, FileSystemKind::Unknown] {
            assert_eq!(io(16 * GIB, kind, GIB, Some(0.0)), Io::Buffered);
        }
    }

    #[test]
    fn the_page_cache_is_sampled_only_if_that_decides() {
        let never = || -> Option<f64> { panic!("the page cache was sampled") };
        assert_eq!(IoChoice::of(Io::Direct, 1, &local(), 1, never).io, Io::Direct);
        assert_eq!(IoChoice::of(Io::Buffered, 1 << 40, &local(), 1, never).io, Io::Buffered);
        // Nor does a choice that does not depend on it.
        assert_eq!(IoChoice::of(Io::Auto, 1 << 30, &local(), 2 << 30, never).io, Io::Buffered);
    }
}
