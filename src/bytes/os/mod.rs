//! What only Linux has: `O_DIRECT`, probes of the page cache, read-ahead by descriptor, copies inside the kernel, the kind of file system.
#![forbid(unsafe_code)]

#[cfg(not(target_os = "linux"))]
compile_error!("rustload reads files with system calls of Linux; other systems are not supported");

pub(super) mod copy;
pub(super) mod direct;
pub(super) mod file_system;
#[cfg(feature = "cuda")]
pub(super) mod memory_file;
