//! Errors that a file system reports only when a file is closed.
//!
//! **Protocol.** A descriptor is closed once, by whom it belongs to.
#![expect(unsafe_code, reason = "the standard library closes files without saying whether that failed")]

use std::fs::File;
use std::io;
use std::os::fd::IntoRawFd;

use rustix::io::{Errno, try_close};

/// Does what closing the file does, and leaves it open: network file systems and FUSE send what they hold, and report errors, whenever
/// one of a file's descriptors is closed.
pub(crate) fn flush(file: &File) -> io::Result<()> {
    let descriptor = file.try_clone()?.into_raw_fd();
    // SAFETY: the clone has given its descriptor away, and nothing uses it afterwards.
    match unsafe { try_close(descriptor) } {
        // Linux closes the descriptor all the same.
        Err(Errno::INTR) => Ok(()),
        done => Ok(done?),
    }
}
