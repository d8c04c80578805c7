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
    pub reason: String,
    /// The share of the file that is in the page cache, from samples; `None` if it was not sampled or the system does not tell.
    pub cached: Option<f64>,
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
    /// How to read a file of `len` bytes for which the caller requested `requested`, and of which the page cache has the share `cached`.
    pub(super) fn of(
        len: u64,
        file_system: &FileSystem,
        requested: Io,
        cached: impl FnOnce() -> Option<f64>,
    ) -> IoChoice {
        IoChoice::from(requested, len, file_system, Memory::now().headroom(), cached)
    }

    /// Whether [`IoChoice::of`] may choose direct reads for a file of `len` bytes.
    pub(super) fn may_be_direct(requested: Io, len: u64) -> bool {
        match requested {
            Io::Buffered => false,
            Io::Direct => true,
            Io::Auto => len >= DIRECT_MIN_FILE_BYTES && len > Memory::now().headroom() / 2,
        }
    }

    fn from(
        requested: Io,
        len: u64,
        file_system: &FileSystem,
        available: u64,
        cached: impl FnOnce() -> Option<f64>,
    ) -> IoChoice {
        let choose = |io, reason: &str, cached| IoChoice { io, reason: reason.to_owned(), cached };
        match requested {
            Io::Buffered => return choose(Io::Buffered, "buffered reads were requested", None),
            Io::Direct => return choose(Io::Direct, "direct reads were requested", None),
            Io::Auto => {}
        }
        match file_system.kind {
            FileSystemKind::Local => {}
            FileSystemKind::Memory => return choose(Io::Buffered, "the file is in memory", cached()),
            FileSystemKind::Network => {
                let reason = "the file is not on a disk of this machine: it is read by many ranges at once, and not mapped";
                return choose(Io::Buffered, reason, cached());
            }
            FileSystemKind::Unknown => return choose(Io::Buffered, "the file system is not known", cached()),
        }
        if len < DIRECT_MIN_FILE_BYTES {
            return choose(Io::Buffered, "the file is small", cached());
        }
        match cached() {
            None => choose(Io::Buffered, "the system does not tell what is in the page cache", None),
            Some(share) if share >= WARM_SHARE => {
                choose(Io::Buffered, "enough of the file is in the page cache", Some(share))
            }
            Some(share) if len <= available / 2 => {
                let reason = "the file is not in the page cache yet, and fits there for the next load";
                choose(Io::Buffered, reason, Some(share))
            }
            Some(share) => {
                let reason =
                    "the file is not in the page cache, and larger than half of the available memory";
                choose(Io::Direct, reason, Some(share))
            }
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
            IoChoice::from(Io::Auto, len, &file_system, available, || cached).io
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
    fn an_explicit_request_does_not_sample_the_page_cache() {
        let never = || -> Option<f64> { panic!("the page cache was sampled") };
        assert_eq!(IoChoice::from(Io::Direct, 1, &local(), 1, never).io, Io::Direct);
        assert_eq!(IoChoice::from(Io::Buffered, 1 << 40, &local(), 1, never).io, Io::Buffered);
    }
}
