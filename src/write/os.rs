//! The system calls for new files, on Linux: unnamed files, reserved space, and renames that do not replace.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, FallocateFlags, Mode, OFlags, RenameFlags, fallocate, linkat, open, renameat_with,
};

/// The mode of a new file before the umask.
const NEW_FILE_MODE: u32 = 0o666;

/// A file without a name in this folder, which is gone with the process unless it is named (`O_TMPFILE`). `None` if the file system
/// has no such files.
pub(super) fn unnamed_file(folder: &Path) -> Option<File> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    open(folder, flags, Mode::from_raw_mode(NEW_FILE_MODE)).ok().map(File::from)
}

/// A new file of this name. Fails if there is one.
pub(super) fn named_file(path: &Path) -> io::Result<File> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
    Ok(File::from(open(path, flags, Mode::from_raw_mode(NEW_FILE_MODE))?))
}

/// Gives an unnamed file a name. Fails if there is a file of this name.
pub(super) fn name_file(file: &File, path: &Path) -> io::Result<()> {
    let own = format!("/proc/self/fd/{}", file.as_raw_fd());
    Ok(linkat(CWD, own, CWD, path, AtFlags::SYMLINK_FOLLOW)?)
}

/// Renames a file. Fails with `AlreadyExists` if there is a file of the new name.
pub(super) fn rename_to_free_name(from: &Path, to: &Path) -> io::Result<()> {
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // Not every file system can do this in one step.
        Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS) => {
            std::fs::hard_link(from, to)?;
            std::fs::remove_file(from)
        }
        done => Ok(done?),
    }
}

/// Exchanges two names in one step.
pub(super) fn exchange(one: &Path, two: &Path) -> io::Result<()> {
    Ok(renameat_with(CWD, one, CWD, two, RenameFlags::EXCHANGE)?)
}

/// Reserves the file's space, so that a full disk is an error before anything is written. Sets the size.
pub(super) fn reserve(file: &File, len: u64) -> io::Result<()> {
    if len == 0 {
        return Ok(());
    }
    match fallocate(file, FallocateFlags::empty(), 0, len) {
        Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => file.set_len(len),
        done => Ok(done?),
    }
}
