//! For systems that have no counterpart to what [`super::linux`] does.

use std::fs::File;
use std::path::Path;

/// There are no files without a name: a new file has a temporary one, and is removed if it is not completed.
pub(crate) fn unnamed_file(_folder: &Path) -> Option<File> {
    None
}

/// Nothing is dropped: later reads may be of the page cache.
pub(crate) fn drop_cache(_file: &File) {}

/// The system writes to the disk when it decides to.
pub(crate) fn start_write_back(_file: &File, _offset: u64, _len: u64) {}
