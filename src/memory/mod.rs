//! Memory accounting: the process's usage, its cgroup's limit, and the memory window that fits the limit.
#![forbid(unsafe_code)]

mod os;

use std::path::PathBuf;

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

impl Cgroup {
    /// Bytes that may still be used.
    pub fn headroom(&self) -> u64 {
        self.limit.saturating_sub(self.used)
    }
}

impl Memory {
    /// Reads the current values.
    pub fn now() -> Memory {
        os::memory()
    }

    /// Bytes that may still be used, by the cgroup's limit and by the machine's available memory, as far as they are known.
    pub fn headroom(&self) -> u64 {
        let available = if self.total == 0 { u64::MAX } else { self.available };
        self.group.as_ref().map_or(u64::MAX, Cgroup::headroom).min(available)
    }
}

/// The memory window to use where `requested` bytes were requested: at most half of the headroom of the process's cgroup, so that the
/// other half is left for the results; at least 8 MiB, unless less was requested. Without a limit, `requested`.
pub fn window(requested: u64) -> u64 {
    window_in(requested, os::cgroup().as_ref())
}

/// The bytes of buffers to use where `requested` bytes were requested: at most a quarter of what the process's cgroup and its
/// RLIMIT_DATA leave, as buffers are not all that an operation allocates. Without limits, `requested`.
pub fn buffers(requested: u64) -> u64 {
    buffers_in(requested, os::cgroup().as_ref(), os::data_headroom())
}

fn buffers_in(requested: u64, group: Option<&Cgroup>, data: Option<u64>) -> u64 {
    let headroom = group.map(Cgroup::headroom).into_iter().chain(data).min();
    headroom.map_or(requested, |headroom| requested.min(headroom / 4))
}

fn window_in(requested: u64, group: Option<&Cgroup>) -> u64 {
    group.map_or(requested, |group| requested.min((group.headroom() / 2).max(WINDOW_MIN_BYTES)))
}
