//! What only Linux has: `O_DIRECT`, probes of the page cache, read-ahead by descriptor, copies inside the kernel (copy_file_range(2)),
//! files in memory, numbers of file systems.
#![forbid(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use rustix::fs::{Advice, OFlags, copy_file_range, fadvise, fstatfs};
#[cfg(feature = "cuda")]
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::{Errno, ReadWriteFlags, preadv2};

use crate::bytes::Region;
use crate::bytes::io_choice::DIRECT_ALIGNMENT;
use crate::bytes::scratch::BounceBuffer;
use crate::num::to_usize;

/// The number of positions that are tested for being in the page cache.
const CACHE_SAMPLES: u64 = 64;

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

/// Copies a range of one file to an offset of another. False if the kernel cannot do that for these files, or the source ends early;
/// then some bytes may have been written.
pub(in crate::bytes) fn copy_range(from: &File, range: Region, to: &File, offset: u64) -> io::Result<bool> {
    let (mut source, mut target) = (range.start(), offset);
    while source < range.end() {
        let left = to_usize(range.end().saturating_sub(source));
        match copy_file_range(from, Some(&mut source), to, Some(&mut target), left) {
            Ok(0) => return Ok(false),
            Ok(_) | Err(Errno::INTR) => {}
            Err(Errno::XDEV | Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP | Errno::PERM | Errno::BADF) => {
                return Ok(false);
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(true)
}

/// The number of the file system that an open file is on.
pub(in crate::bytes) fn file_system_magic(file: &File) -> Option<u32> {
    fstatfs(file).ok().map(|stat| stat.f_type as u32)
}

/// An empty file in memory (`memfd_create`), which is gone once it is closed. Its pages are page cache: to read them costs what it costs
/// to read a file that is cached.
#[cfg(feature = "cuda")]
pub(crate) fn memory_file(name: &str) -> Option<File> {
    memfd_create(name, MemfdFlags::CLOEXEC).ok().map(File::from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

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
