//! Memory accounting: the process's usage, what its limits leave, and the windows and buffers that fit them.
#![forbid(unsafe_code)]

mod need;
mod os;

use std::path::PathBuf;

#[cfg(feature = "cuda")]
pub use need::check_gpu;
pub use need::{Bound, Usable, check, fits};
pub use os::huge_pages;

/// The smallest window, unless a smaller one is requested: below it, system calls cost more than the memory saved.
const WINDOW_MIN_BYTES: u64 = 8 << 20;

/// Memory of this process and of its cgroup, in bytes. What the system does not tell is 0; only Linux tells these.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Resident anonymous memory (RssAnon): results, Python's objects, copied-on-write pages of views.
    pub anon: u64,
    /// Resident pages of mapped files (RssFile), such as views that were read. The kernel reclaims them under memory pressure.
    pub file: u64,
    /// Resident shared memory (RssShmem).
    pub shared: u64,
    /// The peak resident set size (VmHWM), of all three kinds.
    pub peak: u64,
    /// The machine's memory (MemTotal).
    pub total: u64,
    /// The kernel's estimate of the memory that is available without swapping (MemAvailable).
    pub available: u64,
    /// The tightest memory limit of the process's cgroup and its ancestors, if there is one.
    pub group: Option<Cgroup>,
    /// What RLIMIT_AS, the limit of the address space, leaves; `None` without a limit.
    pub address_space: Option<u64>,
    /// What RLIMIT_DATA leaves; `None` without a limit.
    pub data: Option<u64>,
}

/// A cgroup with a memory limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cgroup {
    /// The limit in bytes.
    pub limit: u64,
    /// Bytes in use that the kernel cannot reclaim by dropping page cache.
    pub used: u64,
    /// The cgroup's directory.
    pub path: PathBuf,
}

impl Memory {
    /// Reads the current values.
    pub fn now() -> Memory {
        os::memory()
    }

    /// Bytes that page cache and results may still use, by the cgroup's limit and by the machine's available memory, as far as they
    /// are known.
    pub fn headroom(&self) -> u64 {
        let available = if self.total == 0 { u64::MAX } else { self.available };
        self.group.as_ref().map_or(u64::MAX, Cgroup::headroom).min(available)
    }
}

/// The memory window to use where `requested` bytes were requested: at most half of what the process may still take, so that the
/// other half is left for the results; at least 8 MiB, unless less was requested.
pub fn window(requested: u64) -> u64 {
    window_in(requested, &Memory::now())
}

/// The bytes of buffers to use where `requested` bytes were requested: at most a quarter of what the process may still take, as
/// buffers are not all that an operation allocates.
pub fn buffers(requested: u64) -> u64 {
    buffers_in(requested, &Memory::now())
}

fn buffers_in(requested: u64, memory: &Memory) -> u64 {
    memory.usable().map_or(requested, |usable| requested.min(usable.bytes / 4))
}

fn window_in(requested: u64, memory: &Memory) -> u64 {
    memory.usable().map_or(requested, |usable| requested.min((usable.bytes / 2).max(WINDOW_MIN_BYTES)))
}
