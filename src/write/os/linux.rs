//! What only Linux has for new files: files without a name, and advice on the page cache.

use std::fs::File;
use std::num::NonZero;
use std::path::Path;

use rustix::fs::{Advice, Mode, OFlags, fadvise, open};

use super::NEW_FILE_MODE;

/// A file without a name in this folder, which is gone with the process unless it is named (`O_TMPFILE`). `None` if the file system
/// has no such files.
pub(in crate::write) fn unnamed_file(folder: &Path) -> Option<File> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    open(folder, flags, Mode::from_raw_mode(NEW_FILE_MODE)).ok().map(File::from)
}

/// Drops the file's clean pages from the page cache, where the file system has one (`POSIX_FADV_DONTNEED`).
pub(in crate::write) fn drop_cache(file: &File) {
    // Advice only: without it, reads are answered from the cache.
    let _ = fadvise(file, 0, None, Advice::DontNeed);
}

/// Begins to write a range of the file to the disk, without waiting for it.
///
/// `POSIX_FADV_DONTNEED` starts the write-back of dirty pages, and drops those that are clean already.
pub(in crate::write) fn start_write_back(file: &File, offset: u64, len: u64) {
    // Advice only: without it, the kernel writes the pages later.
    let _ = fadvise(file, offset, NonZero::new(len), Advice::DontNeed);
}
