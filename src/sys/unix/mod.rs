//! POSIX: files are told apart by device and inode, and belong to users.

mod attributes;
mod close;
#[cfg(all(target_os = "linux", not(rustload_portable)))]
mod linux;
#[cfg(any(not(target_os = "linux"), rustload_portable))]
mod portable;

use std::fs::{DirBuilder, File, Metadata, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, FallocateFlags, Mode, OFlags, RawMode, RenameFlags, fallocate, fstatvfs, linkat, open,
    renameat_with,
};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use super::FileId;

#[cfg(all(target_os = "linux", not(rustload_portable)))]
use linux as system;
#[cfg(any(not(target_os = "linux"), rustload_portable))]
use portable as system;

pub(crate) use attributes::copy_attributes;
pub(crate) use close::flush;
pub(crate) use std::os::unix::fs::{FileExt, symlink};
pub(crate) use system::{drop_cache, start_write_back, unnamed_file};

/// Whether a file can be mapped so that edits stay in this process, and only edited pages count as its memory.
pub(crate) const HAS_COPY_ON_WRITE: bool = true;

/// The mode of a new file before the umask.
const NEW_FILE_MODE: RawMode = 0o666;

/// The numbers of an open file, which has this metadata.
pub(crate) fn file_id(_file: &File, metadata: &Metadata) -> io::Result<FileId> {
    Ok((metadata.dev(), metadata.ino()))
}

/// The numbers of what is at a path, which has this metadata: of a link, if the metadata is that of a link.
pub(crate) fn path_id(_path: &Path, metadata: &Metadata) -> io::Result<FileId> {
    Ok((metadata.dev(), metadata.ino()))
}

/// Seconds and nanoseconds of the last modification.
pub(crate) fn modified(metadata: &Metadata) -> (i64, i64) {
    (metadata.mtime(), metadata.mtime_nsec())
}

/// The error for a name that is taken.
pub(crate) fn already_exists() -> io::Error {
    Errno::EXIST.into()
}

/// The error's number in C.
pub(crate) fn errno(error: &io::Error) -> Option<i32> {
    error.raw_os_error()
}

/// Whether a file cannot be opened because too many are open.
pub(crate) fn has_too_many_files(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE))
}

/// The most files that this process may have open.
pub(crate) fn open_files_max() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Whether a name in a folder means something else than the file of this name: there are no such names.
pub(crate) fn is_special_name(_name: &str) -> bool {
    false
}

/// Opens a folder for [`sync_folder`].
pub(crate) fn open_folder(folder: &Path) -> io::Result<File> {
    File::open(folder)
}

/// Returns once an open file is on the disk.
pub(crate) fn sync_file(file: &File) -> io::Result<()> {
    match file.sync_all() {
        // The standard library has the disk write what it holds too (`F_FULLFSYNC`), which file systems of other machines do not know.
        #[cfg(target_os = "macos")]
        Err(error)
            if matches!(Errno::from_io_error(&error), Some(Errno::NOTSUP | Errno::NOTTY | Errno::INVAL)) =>
        {
            Ok(rustix::fs::fsync(file)?)
        }
        synced => synced,
    }
}

/// Returns once the names in an open folder are on the disk.
pub(crate) fn sync_folder(folder: &File) -> io::Result<()> {
    sync_file(folder)
}

/// Makes a folder for this user alone.
pub(crate) fn private_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().mode(0o700).create(path)
}

/// Whether a folder, which is not a link, belongs to this user, and no other one may write to it.
pub(crate) fn is_private_folder(folder: &Path) -> io::Result<bool> {
    let flags = (OFlags::DIRECTORY | OFlags::NOFOLLOW).bits().cast_signed();
    let found = OpenOptions::new().read(true).custom_flags(flags).open(folder)?.metadata()?;
    Ok(found.uid() == user() && found.mode() & 0o022 == 0)
}

/// Whether what is at a path, which has this metadata, belongs to this user.
pub(crate) fn is_own_file(_path: &Path, metadata: &Metadata) -> bool {
    metadata.uid() == user()
}

/// The effective user of this process, who owns the files that it makes.
fn user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Opens a file of this user alone to append to it, and makes it if there is none. Fails for a link.
pub(crate) fn append_private_file(path: &Path) -> io::Result<File> {
    let flags = OFlags::NOFOLLOW.bits().cast_signed();
    OpenOptions::new().append(true).create(true).mode(0o600).custom_flags(flags).open(path)
}

/// Opens a file of this user alone to read and write it, and makes it if there is none. Fails for a link.
pub(crate) fn private_file(path: &Path) -> io::Result<File> {
    let flags = OFlags::NOFOLLOW.bits().cast_signed();
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600).custom_flags(flags).open(path)
}

/// Opens an existing lock file for reading, and for writing too if `writable`. Neither follows a link nor waits for a FIFO.
pub(crate) fn lock_file(path: &Path, writable: bool) -> io::Result<File> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    OpenOptions::new().read(true).write(writable).custom_flags(flags).open(path)
}

/// A new file of this name. Fails if there is one.
pub(crate) fn named_file(path: &Path) -> io::Result<File> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
    Ok(File::from(open(path, flags, Mode::from_raw_mode(NEW_FILE_MODE))?))
}

/// Identifies the boot of the machine (random(4)); empty if that is not known, as on systems other than Linux.
pub(crate) fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default()
}

/// An existing file of this name, which is not a symbolic link.
pub(crate) fn existing_file(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(File::from(open(path, flags, Mode::empty())?))
}

/// Gives an unnamed file a name. Fails if there is a file of this name.
pub(crate) fn name_file(file: &File, path: &Path) -> io::Result<()> {
    Ok(linkat(CWD, link_to(file), CWD, path, AtFlags::SYMLINK_FOLLOW)?)
}

/// The link by which an open file can be named, if /proc is mounted.
fn link_to(file: &File) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

/// Renames a file. Fails with `AlreadyExists` if there is a file of the new name.
pub(crate) fn rename_to_free_name(from: &Path, to: &Path) -> io::Result<()> {
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // Not every file system can do this in one step, or has hard links.
        Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => match std::fs::hard_link(from, to) {
            Ok(()) => std::fs::remove_file(from),
            Err(_)
                if std::fs::symlink_metadata(to)
                    .is_err_and(|error| error.kind() == io::ErrorKind::NotFound) =>
            {
                std::fs::rename(from, to)
            }
            Err(error) => Err(error),
        },
        done => Ok(done?),
    }
}

/// Exchanges two names in one step.
pub(crate) fn exchange(one: &Path, two: &Path) -> io::Result<()> {
    Ok(renameat_with(CWD, one, CWD, two, RenameFlags::EXCHANGE)?)
}

/// Reserves the file's space, so that a full disk is an error before anything is written. Sets the size.
pub(crate) fn reserve(file: &File, len: u64) -> io::Result<()> {
    if len == 0 {
        return Ok(());
    }
    // Some file systems fill the disk before they report that it is too small.
    let disk = fstatvfs(file)?;
    let present = file.metadata()?.blocks().saturating_mul(512);
    let free = disk.f_bavail.saturating_mul(disk.f_frsize);
    if disk.f_blocks > 0 && len.saturating_sub(present) > free {
        return Err(Errno::NOSPC.into());
    }
    match fallocate(file, FallocateFlags::empty(), 0, len) {
        Err(Errno::NOTSUP | Errno::NOSYS) => file.set_len(len),
        done => Ok(done?),
    }
}
