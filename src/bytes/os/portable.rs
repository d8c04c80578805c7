//! For systems that have no counterpart to what [`super::linux`] does: files are read through the page cache, at the offsets that are
//! needed, and nothing is known about it.
#![forbid(unsafe_code)]

use std::fs::File;
use std::io;

use crate::bytes::Region;

/// How much of a file is in the page cache is not known.
pub(in crate::bytes) fn cached_share(_file: &File, _len: u64) -> Option<f64> {
    None
}

/// There is no direct I/O.
pub(in crate::bytes) fn open_direct(_file: &File) -> Option<File> {
    None
}

/// All threads read through one file descriptor.
pub(in crate::bytes) fn open_sequential(_file: &File) -> Option<File> {
    None
}

/// Nothing is copied: the caller reads and writes.
pub(in crate::bytes) fn copy_range(
    _from: &File,
    _range: Region,
    _to: &File,
    _offset: u64,
) -> io::Result<bool> {
    Ok(false)
}

/// The file system is not known.
pub(in crate::bytes) fn file_system_magic(_file: &File) -> Option<u32> {
    None
}

/// There are no files in memory.
#[cfg(feature = "cuda")]
pub(crate) fn memory_file(_name: &str) -> Option<File> {
    None
}
