//! Windows: files are told apart by the numbers of volume and file, and have no modes.
//!
//! `std` opens files so that others may read, write, rename and remove them meanwhile, and renames as POSIX does where the file system
//! can: a file that is open can be replaced. One that another program has opened without that (`FILE_SHARE_DELETE`) cannot, which is
//! an error of the system. Long paths need nothing here but in [`names`]: `std` passes them on in their long form.

mod names;
mod owner;

use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::windows::fs::{FileExt as _, MetadataExt, OpenOptionsExt};
use std::path::Path;

use winapi_util::file::information;
use windows_sys::Win32::Foundation::{ERROR_FILE_EXISTS, ERROR_TOO_MANY_OPEN_FILES};
use windows_sys::Win32::Storage::FileSystem::{
    FILE_ADD_FILE, FILE_FLAG_BACKUP_SEMANTICS, FILE_FLAG_OPEN_REPARSE_POINT, READ_CONTROL, SYNCHRONIZE,
};

use super::FileId;

pub(crate) use names::{is_special_name, rename_to_free_name};

/// Whether a file can be mapped so that edits stay in this process, and only edited pages count as its memory: here all of the file
/// would count (`PAGE_WRITECOPY`).
pub(crate) const HAS_COPY_ON_WRITE: bool = false;

/// The unit of file times, and their epoch, 1601, before that of Unix.
const TICKS_PER_SECOND: u64 = 10_000_000;
const UNIX_EPOCH_SECONDS: i64 = 11_644_473_600;

/// Reads and writes at offsets, as on POSIX. No caller uses the file's own position, which these calls move.
pub(crate) trait FileExt {
    fn read_at(&self, out: &mut [u8], offset: u64) -> io::Result<usize>;

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize>;

    fn read_exact_at(&self, mut out: &mut [u8], mut offset: u64) -> io::Result<()> {
        while !out.is_empty() {
            match self.read_at(out, offset) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(read) => {
                    out = out.get_mut(read..).unwrap_or_default();
                    offset = offset.saturating_add(read as u64);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn write_all_at(&self, mut bytes: &[u8], mut offset: u64) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.write_at(bytes, offset) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => {
                    bytes = bytes.get(written..).unwrap_or_default();
                    offset = offset.saturating_add(written as u64);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

impl FileExt for File {
    fn read_at(&self, out: &mut [u8], offset: u64) -> io::Result<usize> {
        self.seek_read(out, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        self.seek_write(bytes, offset)
    }
}

/// The numbers of an open file or folder.
pub(crate) fn file_id(file: &File, _metadata: &Metadata) -> io::Result<FileId> {
    information(file).map(|found| (found.volume_serial_number(), found.file_index()))
}

/// The numbers of what is at a path, which has this metadata: of a link, if the metadata is that of a link.
pub(crate) fn path_id(path: &Path, metadata: &Metadata) -> io::Result<FileId> {
    let link = if metadata.is_symlink() { FILE_FLAG_OPEN_REPARSE_POINT } else { 0 };
    let opened =
        OpenOptions::new().access_mode(0).custom_flags(FILE_FLAG_BACKUP_SEMANTICS | link).open(path)?;
    file_id(&opened, metadata)
}

/// Seconds and nanoseconds of the last modification.
pub(crate) fn modified(metadata: &Metadata) -> (i64, i64) {
    let ticks = metadata.last_write_time();
    let seconds =
        i64::try_from(ticks / TICKS_PER_SECOND).unwrap_or(i64::MAX).saturating_sub(UNIX_EPOCH_SECONDS);
    (seconds, i64::try_from(ticks % TICKS_PER_SECOND * 100).unwrap_or(0))
}

/// The error for a name that is taken.
pub(crate) fn already_exists() -> io::Error {
    io::Error::from_raw_os_error(ERROR_FILE_EXISTS.cast_signed())
}

/// The error's number in C, for the kinds that callers tell apart.
pub(crate) fn errno(error: &io::Error) -> Option<i32> {
    Some(match error.kind() {
        io::ErrorKind::NotFound => 2,
        io::ErrorKind::Interrupted => 4,
        io::ErrorKind::OutOfMemory => 12,
        io::ErrorKind::PermissionDenied => 13,
        io::ErrorKind::AlreadyExists => 17,
        io::ErrorKind::CrossesDevices => 18,
        io::ErrorKind::NotADirectory => 20,
        io::ErrorKind::IsADirectory => 21,
        io::ErrorKind::InvalidInput => 22,
        io::ErrorKind::StorageFull => 28,
        io::ErrorKind::DirectoryNotEmpty => 41,
        _ if has_too_many_files(error) => 24,
        _ => return error.raw_os_error().map(|_| 5),
    })
}

/// Whether a file cannot be opened because too many are open.
pub(crate) fn has_too_many_files(error: &io::Error) -> bool {
    error.raw_os_error() == Some(ERROR_TOO_MANY_OPEN_FILES.cast_signed())
}

/// The most files that this process may have open: millions.
pub(crate) fn open_files_max() -> u64 {
    u64::MAX
}

/// Opens a folder for [`sync_folder`].
pub(crate) fn open_folder(folder: &Path) -> io::Result<File> {
    OpenOptions::new()
        .access_mode(FILE_ADD_FILE | SYNCHRONIZE)
        .custom_flags(FILE_FLAG_BACKUP_SEMANTICS)
        .open(folder)
}

/// Returns once an open file is on the disk.
pub(crate) fn sync_file(file: &File) -> io::Result<()> {
    file.sync_all()
}

/// Returns once the names in an open folder are on the disk, where the file system can tell.
pub(crate) fn sync_folder(folder: &File) -> io::Result<()> {
    match folder.sync_all() {
        Err(error)
            if matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::InvalidInput) =>
        {
            Ok(())
        }
        synced => synced,
    }
}

/// Makes a folder. It gets the rights of the folder that it is in: who may write there may write to it.
pub(crate) fn private_folder(path: &Path) -> io::Result<()> {
    std::fs::create_dir(path)
}

/// Whether a folder, which is not a link, belongs to this user.
pub(crate) fn is_private_folder(folder: &Path) -> io::Result<bool> {
    let opened = open_itself(folder)?;
    if !opened.metadata()?.is_dir() {
        return Err(io::ErrorKind::NotADirectory.into());
    }
    owner::is_own(&opened)
}

/// Whether what is at a path belongs to this user.
pub(crate) fn is_own_file(path: &Path, _metadata: &Metadata) -> bool {
    open_itself(path).and_then(|opened| owner::is_own(&opened)).unwrap_or(false)
}

/// Opens what has this name, also a link, to ask who owns it.
fn open_itself(path: &Path) -> io::Result<File> {
    let flags = FILE_FLAG_BACKUP_SEMANTICS | FILE_FLAG_OPEN_REPARSE_POINT;
    OpenOptions::new().access_mode(READ_CONTROL | SYNCHRONIZE).custom_flags(flags).open(path)
}

/// Opens a file to append to it, and makes it if there is none. Fails for a link.
pub(crate) fn append_private_file(path: &Path) -> io::Result<File> {
    no_link(
        OpenOptions::new().append(true).create(true).custom_flags(FILE_FLAG_OPEN_REPARSE_POINT).open(path)?,
    )
}

/// Opens a file to read and write it, and makes it if there is none. Fails for a link.
pub(crate) fn private_file(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).custom_flags(FILE_FLAG_OPEN_REPARSE_POINT);
    no_link(options.open(path)?)
}

/// Opens an existing lock file for reading, and for writing too if `writable`. Does not follow a link.
pub(crate) fn lock_file(path: &Path, writable: bool) -> io::Result<File> {
    OpenOptions::new().read(true).write(writable).custom_flags(FILE_FLAG_OPEN_REPARSE_POINT).open(path)
}

/// A new file of this name. Fails if there is one.
pub(crate) fn named_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create_new(true).open(path)
}

/// An existing file of this name, which is not a symbolic link.
pub(crate) fn existing_file(path: &Path) -> io::Result<File> {
    no_link(OpenOptions::new().read(true).write(true).custom_flags(FILE_FLAG_OPEN_REPARSE_POINT).open(path)?)
}

fn no_link(file: File) -> io::Result<File> {
    if file.metadata()?.is_symlink() { Err(io::ErrorKind::InvalidInput.into()) } else { Ok(file) }
}

/// Identifies the boot of the machine: not known.
pub(crate) fn boot_id() -> String {
    String::new()
}

/// There are no files without a name: a new file has a temporary one, and is removed if it is not completed.
pub(crate) fn unnamed_file(_folder: &Path) -> Option<File> {
    None
}

/// Fails: there are no files without a name.
pub(crate) fn name_file(_file: &File, _path: &Path) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Fails: two names cannot be exchanged in one step.
pub(crate) fn exchange(_one: &Path, _two: &Path) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Fails: only an exchange needs it.
pub(crate) fn copy_attributes(_from: &Path, _to: &Path) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Fails: only an exchange needs it.
pub(crate) fn symlink(_target: std::path::PathBuf, _link: &Path) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Reserves the file's space, so that a full disk is an error before anything is written: the size that a file is given is allocated.
pub(crate) fn reserve(file: &File, len: u64) -> io::Result<()> {
    file.set_len(len)
}

/// Does nothing: what is written is flushed by `sync_all`, which reports errors, and closing reports none.
pub(crate) fn flush(_file: &File) -> io::Result<()> {
    Ok(())
}

/// Nothing is dropped: later reads may be of the cache.
pub(crate) fn drop_cache(_file: &File) {}

/// The system writes to the disk when it decides to.
pub(crate) fn start_write_back(_file: &File, _offset: u64, _len: u64) {}
