//! What operating systems have for reading files besides positional reads. Callers work without it.
#![forbid(unsafe_code)]

#[cfg(all(target_os = "linux", not(rustload_portable)))]
mod linux;
#[cfg(any(not(target_os = "linux"), rustload_portable))]
mod portable;

#[cfg(all(target_os = "linux", not(rustload_portable)))]
use linux as system;
#[cfg(any(not(target_os = "linux"), rustload_portable))]
use portable as system;

#[cfg(feature = "cuda")]
pub(crate) use system::memory_file;
pub(super) use system::{cached_share, copy_range, file_system_magic, open_direct, open_sequential};
