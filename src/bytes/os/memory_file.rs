//! Files in memory.

use std::fs::File;
use std::io;

use rustix::fs::{MemfdFlags, memfd_create};

/// An empty file in memory (`memfd_create`), which is gone once it is closed. Its pages are page cache: to read them costs what it costs
/// to read a file that is cached.
pub(crate) fn memory_file(name: &str) -> io::Result<File> {
    Ok(File::from(memfd_create(name, MemfdFlags::CLOEXEC)?))
}
