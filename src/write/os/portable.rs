//! For systems that have no counterpart to what [`super::linux`] does.

use std::fs::File;
use std::path::Path;

/// There are no files without a name: a new file has a temporary one, and is removed if it is not completed.
pub(in crate::write) fn unnamed_file(_folder: &Path) -> Option<File> {
    None
}

/// Nothing is dropped: later reads may be of the page cache.
pub(in crate::write) fn drop_cache(_file: &File) {}

/// The system writes to the disk when it decides to.
pub(in crate::write) fn start_write_back(_file: &File, _offset: u64, _len: u64) {}
