//! A system without files, processes and a clock: WebAssembly in a browser. Bytes come from `ReadRanges`, and every call here that
//! would need a file fails.

use std::fs::{File, Metadata};
use std::io;
use std::path::Path;
use std::time::Duration;

use super::FileId;

/// Whether the system's copy of a file has its bytes alone, and can be flushed although it is only to be read.
pub(crate) const COPIES_FILES: bool = false;

/// Whether a file can be mapped so that edits stay in this process, and only edited pages count as its memory.
pub(crate) const HAS_COPY_ON_WRITE: bool = false;

/// A clock that stands still: nothing is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Instant;

impl Instant {
    pub(crate) fn now() -> Instant {
        Instant
    }

    pub(crate) fn elapsed(&self) -> Duration {
        Duration::ZERO
    }

    pub(crate) fn duration_since(&self, _earlier: Instant) -> Duration {
        Duration::ZERO
    }

    pub(crate) fn saturating_duration_since(&self, _earlier: Instant) -> Duration {
        Duration::ZERO
    }

    pub(crate) fn checked_add(&self, _later: Duration) -> Option<Instant> {
        None
    }
}

/// There is one process, which has no number.
pub(crate) fn process_id() -> u32 {
    1
}

fn unsupported<T>() -> io::Result<T> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Reads and writes at offsets.
pub(crate) trait FileExt {
    fn read_at(&self, _out: &mut [u8], _offset: u64) -> io::Result<usize> {
        unsupported()
    }

    fn write_at(&self, _bytes: &[u8], _offset: u64) -> io::Result<usize> {
        unsupported()
    }

    fn read_exact_at(&self, _out: &mut [u8], _offset: u64) -> io::Result<()> {
        unsupported()
    }

    fn write_all_at(&self, _bytes: &[u8], _offset: u64) -> io::Result<()> {
        unsupported()
    }
}

impl FileExt for File {}

pub(crate) fn file_id(_file: &File, _metadata: &Metadata) -> io::Result<FileId> {
    unsupported()
}

pub(crate) fn path_id(_path: &Path, _metadata: &Metadata) -> io::Result<FileId> {
    unsupported()
}

pub(crate) fn modified(_metadata: &Metadata) -> (i64, i64) {
    (0, 0)
}

pub(crate) fn already_exists() -> io::Error {
    io::ErrorKind::AlreadyExists.into()
}

pub(crate) fn errno(error: &io::Error) -> Option<i32> {
    error.raw_os_error()
}

pub(crate) fn has_too_many_files(_error: &io::Error) -> bool {
    false
}

pub(crate) fn open_files_max() -> u64 {
    u64::MAX
}

pub(crate) fn is_special_name(_name: &str) -> bool {
    false
}

pub(crate) fn open_folder(_folder: &Path) -> io::Result<File> {
    unsupported()
}

pub(crate) fn sync_file(_file: &File) -> io::Result<()> {
    unsupported()
}

pub(crate) fn sync_folder(_folder: &File) -> io::Result<()> {
    unsupported()
}

pub(crate) fn private_folder(_path: &Path) -> io::Result<()> {
    unsupported()
}

pub(crate) fn is_private_folder(_folder: &Path) -> io::Result<bool> {
    unsupported()
}

pub(crate) fn is_own_file(_path: &Path, _metadata: &Metadata) -> bool {
    false
}

pub(crate) fn append_private_file(_path: &Path) -> io::Result<File> {
    unsupported()
}

pub(crate) fn private_file(_path: &Path) -> io::Result<File> {
    unsupported()
}

pub(crate) fn lock_file(_path: &Path, _writable: bool) -> io::Result<File> {
    unsupported()
}

pub(crate) fn named_file(_path: &Path) -> io::Result<File> {
    unsupported()
}

pub(crate) fn existing_file(_path: &Path) -> io::Result<File> {
    unsupported()
}

pub(crate) fn boot_id() -> String {
    String::new()
}

pub(crate) fn unnamed_file(_folder: &Path) -> Option<File> {
    None
}

pub(crate) fn name_file(_file: &File, _path: &Path) -> io::Result<()> {
    unsupported()
}

pub(crate) fn rename_to_free_name(_from: &Path, _to: &Path) -> io::Result<()> {
    unsupported()
}

pub(crate) fn exchange(_one: &Path, _two: &Path) -> io::Result<()> {
    unsupported()
}

pub(crate) fn copy_attributes(_from: &Path, _to: &Path) -> io::Result<()> {
    unsupported()
}

pub(crate) fn symlink(_target: std::path::PathBuf, _link: &Path) -> io::Result<()> {
    unsupported()
}

pub(crate) fn reserve(_file: &File, _len: u64) -> io::Result<()> {
    unsupported()
}

pub(crate) fn flush(_file: &File) -> io::Result<()> {
    unsupported()
}

pub(crate) fn drop_cache(_file: &File) {}

pub(crate) fn start_write_back(_file: &File, _offset: u64, _len: u64) {}
