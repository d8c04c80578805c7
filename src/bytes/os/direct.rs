//! The choice between buffered reads (through the page cache) and direct reads (`O_DIRECT`, which bypasses it).
//!
//! Direct reads run at the disk's own speed and leave nothing in memory, so the next load costs as much again. So `auto` chooses
//! them only if the file would not stay in the page cache anyway: it is cold, on a disk of this machine, and larger than half of
//! the available memory. If the system refuses a direct read, the same bytes are read through the page cache.
#![forbid(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::hash::{BuildHasher, RandomState};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use rustix::fs::{Advice, OFlags, fadvise};
use rustix::io::{Errno, ReadWriteFlags, preadv2};

use super::file_system::{FileSystem, FileSystemKind};
use crate::bytes::scratch::BounceBuffer;
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

/// Smaller files are not worth a second file descriptor.
const DIRECT_MIN_FILE_BYTES: u64 = 64 << 20;

/// If at least this share of a file is cached, the page cache is faster than the disk.
const WARM_SHARE: f64 = 0.25;

/// The number of positions that are tested for being in the page cache.
const CACHE_SAMPLES: u64 = 64;

impl IoChoice {
    /// How to read a file of `len` bytes for which the caller requested `requested`.
    pub(in crate::bytes) fn of(file: &File, len: u64, file_system: &FileSystem, requested: Io) -> IoChoice {
        let cached = || cached_share(file, len);
        IoChoice::from(requested, len, file_system, Memory::now().headroom(), cached)
    }

    /// Whether [`IoChoice::of`] may choose direct reads for a file of `len` bytes.
    pub(in crate::bytes) fn may_be_direct(requested: Io, len: u64) -> bool {
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

/// The share of a file that is in the page cache, from samples. Each sample reads one byte with `RWF_NOWAIT`.
pub(in crate::bytes) fn cached_share(file: &File, len: u64) -> Option<f64> {
    // Its own file descriptor, so that `POSIX_FADV_RANDOM` does not apply to the readers: for a byte that is not cached the kernel
    // then reads no more than its page.
    let probe = reopen(file, OFlags::empty())?;
    fadvise(&probe, 0, None, Advice::Random).ok()?;
    let count = CACHE_SAMPLES.min(len.div_ceil(DIRECT_ALIGNMENT)).max(1);
    let step = (len / count).max(1);
    let mut cached_samples = 0_u64;
    for sample in 0..count {
        // A random position in the sample's interval: a sample leaves its page in the cache, and the next call must not find it.
        let at = step.saturating_mul(sample).saturating_add(RandomState::new().hash_one(sample) % step);
        let mut byte = [0];
        let mut buffers = [std::io::IoSliceMut::new(&mut byte)];
        match preadv2(&probe, &mut buffers, at, ReadWriteFlags::NOWAIT) {
            Ok(_) => cached_samples += 1,
            Err(Errno::AGAIN) => {}
            Err(_) => return None,
        }
    }
    Some(cached_samples as f64 / count as f64)
}

/// Opens the file again with `O_DIRECT`; `None` if the file system has no direct I/O.
pub(in crate::bytes) fn open_direct(file: &File) -> Option<File> {
    let direct = reopen(file, OFlags::DIRECT)?;
    let mut memory = BounceBuffer::new(|_| None);
    // Some file systems accept the flag and refuse the reads.
    direct.read_at(memory.bytes(usize::try_from(DIRECT_ALIGNMENT).ok()?)?, 0).ok()?;
    Some(direct)
}

/// Opens the file again for one thread that reads in file order: the kernel's read-ahead is per file descriptor.
pub(in crate::bytes) fn open_sequential(file: &File) -> Option<File> {
    let sequential = reopen(file, OFlags::empty())?;
    fadvise(&sequential, 0, None, Advice::Sequential).ok()?;
    Some(sequential)
}

/// Opens the same file again, through `/proc/self/fd`, since another file may have its path by now.
fn reopen(file: &File, flags: OFlags) -> Option<File> {
    let flags = i32::try_from(flags.bits()).ok()?;
    OpenOptions::new().read(true).custom_flags(flags).open(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

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

    #[test]
    fn a_file_that_was_just_written_is_in_the_page_cache() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&vec![1; 1 << 20]).unwrap();
        // Some file systems do not tell what is cached.
        if let Some(share) = cached_share(file.as_file(), 1 << 20) {
            assert!(share > 0.9, "{share}");
        }
    }
}
