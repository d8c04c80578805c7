//! A system without files, processes and a clock: WebAssembly in a browser. Bytes come from `ReadRanges`, and every call here that
//! would need a file fails.

use std::fs::{File, Metadata};
use std::io;
use std::path::Path;
use std::time::Duration;

use super::FileId;

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

/// Functions that need a file, by their arguments and results: each fails.
macro_rules! without_files {
    ($($name:ident($($argument:ty),*) -> $result:ty;)*) => {
        $(
            pub(crate) fn $name($(_: $argument),*) -> io::Result<$result> {
                unsupported()
            }
        )*
    };
}

without_files! {
    file_id(&File, &Metadata) -> FileId;
    path_id(&Path, &Metadata) -> FileId;
    open_folder(&Path) -> File;
    sync_file(&File) -> ();
    sync_folder(&File) -> ();
    private_folder(&Path) -> ();
    is_private_folder(&Path) -> bool;
    append_private_file(&Path) -> File;
    private_file(&Path) -> File;
    lock_file(&Path, bool) -> File;
    named_file(&Path) -> File;
    existing_file(&Path) -> File;
    name_file(&File, &Path) -> ();
    rename_to_free_name(&Path, &Path) -> ();
    exchange(&Path, &Path) -> ();
    copy_attributes(&Path, &Path) -> ();
    symlink(std::path::PathBuf, &Path) -> ();
    reserve(&File, u64) -> ();
    flush(&File) -> ();
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

pub(crate) fn is_own_file(_path: &Path, _metadata: &Metadata) -> bool {
    false
}

pub(crate) fn boot_id() -> String {
    String::new()
}

pub(crate) fn unnamed_file(_folder: &Path) -> Option<File> {
    None
}

pub(crate) fn drop_cache(_file: &File) {}

pub(crate) fn start_write_back(_file: &File, _offset: u64, _len: u64) {}
