//! The system calls for new files: unnamed files, reserved space, and renames that do not replace.

mod close;
#[cfg(all(target_os = "linux", not(rustload_portable)))]
mod linux;
#[cfg(any(not(target_os = "linux"), rustload_portable))]
mod portable;

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, FallocateFlags, Mode, OFlags, RawMode, RenameFlags, fallocate, fstatvfs, linkat, open,
    renameat_with,
};
use rustix::io::Errno;

#[cfg(all(target_os = "linux", not(rustload_portable)))]
use linux as system;
#[cfg(any(not(target_os = "linux"), rustload_portable))]
use portable as system;

pub(super) use close::flush;
pub(super) use system::{drop_cache, start_write_back, unnamed_file};

/// The mode of a new file before the umask.
const NEW_FILE_MODE: RawMode = 0o666;

/// A new file of this name. Fails if there is one.
pub(super) fn named_file(path: &Path) -> io::Result<File> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
    Ok(File::from(open(path, flags, Mode::from_raw_mode(NEW_FILE_MODE))?))
}

/// Identifies the boot of the machine (random(4)); empty if that is not known, as on systems other than Linux.
pub(super) fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default()
}

/// An existing file of this name, which is not a symbolic link.
pub(super) fn existing_file(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(File::from(open(path, flags, Mode::empty())?))
}

/// The effective user of this process, who owns the files that it makes.
pub(super) fn user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Gives an unnamed file a name. Fails if there is a file of this name.
pub(super) fn name_file(file: &File, path: &Path) -> io::Result<()> {
    Ok(linkat(CWD, link_to(file), CWD, path, AtFlags::SYMLINK_FOLLOW)?)
}

/// The link by which an open file can be named, if /proc is mounted.
fn link_to(file: &File) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

/// Renames a file. Fails with `AlreadyExists` if there is a file of the new name.
pub(super) fn rename_to_free_name(from: &Path, to: &Path) -> io::Result<()> {
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
pub(super) fn exchange(one: &Path, two: &Path) -> io::Result<()> {
    Ok(renameat_with(CWD, one, CWD, two, RenameFlags::EXCHANGE)?)
}

/// Reserves the file's space, so that a full disk is an error before anything is written. Sets the size.
pub(super) fn reserve(file: &File, len: u64) -> io::Result<()> {
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
