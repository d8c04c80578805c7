//! The system calls for new files, on Linux: unnamed files, reserved space, and renames that do not replace.

use std::fs::File;
use std::io;
use std::num::NonZero;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{
    Advice, AtFlags, CWD, FallocateFlags, Mode, OFlags, RenameFlags, fadvise, fallocate, fstatvfs, linkat,
    open, renameat_with,
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

/// Identifies the boot of the machine (random(4)); empty if that is not known.
pub(super) fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default()
}

/// An existing file of this name, which is no symbolic link.
pub(super) fn existing_file(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(File::from(open(path, flags, Mode::empty())?))
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
    // Some file systems fill the disk before they report that it is too small.
    let disk = fstatvfs(file)?;
    let present = file.metadata()?.blocks().saturating_mul(512);
    let free = disk.f_bavail.saturating_mul(disk.f_frsize);
    if disk.f_blocks > 0 && len.saturating_sub(present) > free {
        return Err(rustix::io::Errno::NOSPC.into());
    }
    match fallocate(file, FallocateFlags::empty(), 0, len) {
        Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => file.set_len(len),
        done => Ok(done?),
    }
}

/// Drops the file's clean pages from the page cache, where the file system has one (`POSIX_FADV_DONTNEED`).
pub(super) fn drop_cache(file: &File) {
    // Advice only: without it, reads are answered from the cache.
    let _ = fadvise(file, 0, None, Advice::DontNeed);
}

/// Begins to write a range of the file to the disk, without waiting for it.
///
/// `POSIX_FADV_DONTNEED` starts the write-back of dirty pages, and drops those that are clean already.
pub(super) fn start_write_back(file: &File, offset: u64, len: u64) {
    // Advice only: without it, the kernel writes the pages later.
    let _ = fadvise(file, offset, NonZero::new(len), Advice::DontNeed);
}
