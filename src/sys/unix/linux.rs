//! What only Linux has for new files: files without a name, and advice on the page cache.

use std::fs::{self, File};
use std::num::NonZero;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{Advice, Mode, OFlags, fadvise, open};

use super::{NEW_FILE_MODE, link_to};

/// A file without a name in this folder, which is gone with the process unless it is named (`O_TMPFILE`). `None` if the file system
/// has no such files, or if it could not be named later, as /proc is not mounted.
pub(crate) fn unnamed_file(folder: &Path) -> Option<File> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let file = File::from(open(folder, flags, Mode::from_raw_mode(NEW_FILE_MODE)).ok()?);
    let (own, linked) = (file.metadata().ok()?, fs::metadata(link_to(&file)).ok()?);
    ((own.dev(), own.ino()) == (linked.dev(), linked.ino())).then_some(file)
}

/// Drops the file's clean pages from the page cache, where the file system has one (`POSIX_FADV_DONTNEED`).
pub(crate) fn drop_cache(file: &File) {
    // Advice only: without it, reads are answered from the cache.
    let _ = fadvise(file, 0, None, Advice::DontNeed);
}

/// Begins to write a range of the file to the disk, without waiting for it.
///
/// `POSIX_FADV_DONTNEED` starts the write-back of dirty pages, and drops those that are clean already.
pub(crate) fn start_write_back(file: &File, offset: u64, len: u64) {
    // Advice only: without it, the kernel writes the pages later.
    let _ = fadvise(file, offset, NonZero::new(len), Advice::DontNeed);
}
