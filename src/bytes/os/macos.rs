//! What macOS has for reading files: descriptors whose reads leave nothing in the page cache.
#![forbid(unsafe_code)]

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;

use rustix::fs::{OFlags, fcntl_nocache, getpath};

use crate::sys;

/// Opens the file again with `F_NOCACHE`, which is a flag of one opened file, so that `/dev/fd` would set it for the other one too.
/// `None` if another file has its path by now, or the file system refuses the flag.
pub(in crate::bytes) fn open_direct(file: &File) -> Option<File> {
    let path = getpath(file).ok()?;
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let direct =
        OpenOptions::new().read(true).custom_flags(flags).open(OsStr::from_bytes(path.to_bytes())).ok()?;
    let id = |file: &File| file.metadata().and_then(|metadata| sys::file_id(file, &metadata)).ok();
    if id(&direct)? != id(file)? {
        return None;
    }
    fcntl_nocache(&direct, true).ok()?;
    Some(direct)
}
