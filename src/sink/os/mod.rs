//! The system calls for ranges of anonymous memory: mmap(2), munmap(2), on Linux madvise(2); the clock
//! of a thread, and the CPUs that it runs on.
//!
//! **Protocol.** The functions map and unmap exactly the ranges that they are given. `sink/pages.rs` owns the ranges.

#[cfg(not(unix))]
mod allocator;
#[cfg(unix)]
mod unix;

use once_cell::race::OnceBox;

#[cfg(not(unix))]
use allocator as system;
#[cfg(feature = "cuda")]
pub(super) use system::CUDA_LIBRARY;
pub(super) use system::{HAS_PARTS, map, thread_cpu_time, unmap};
#[cfg(unix)]
use unix as system;

/// A multiple of the size of a small page; on architectures other than x86-64 the largest one in use.
pub(super) const PAGE_BYTES: usize = if cfg!(target_arch = "x86_64") { 4096 } else { 64 << 10 };

/// Advice on a range.
#[derive(Clone, Copy, Debug)]
pub(super) enum Advice {
    /// Put it on huge pages (`MADV_HUGEPAGE`).
    HugePages,
    /// Put it on small pages (`MADV_NOHUGEPAGE`).
    SmallPages,
    /// Fault its pages in, as a write would (`MADV_POPULATE_WRITE`).
    Populate,
    /// Take its pages when memory is needed, until they are written to again (`MADV_FREE`): any byte may become zero.
    MarkFree,
    /// Leave it out of forked children (`MADV_DONTFORK`), which must not access it.
    ExcludeFromFork,
}

/// Gives advice. It may be refused: if huge pages are switched off, or by an old kernel.
///
/// # Safety
/// The caller owns the range, and accepts what the [`Advice`] does to its bytes.
#[cfg(all(target_os = "linux", not(rustload_portable)))]
pub(super) unsafe fn advise(start: *mut u8, len: usize, advice: Advice) {
    use rustix::mm;

    let advice = match advice {
        Advice::HugePages => mm::Advice::LinuxHugepage,
        Advice::SmallPages => mm::Advice::LinuxNoHugepage,
        Advice::Populate => mm::Advice::LinuxPopulateWrite,
        Advice::MarkFree => mm::Advice::LinuxFree,
        Advice::ExcludeFromFork => mm::Advice::LinuxDontFork,
    };
    // SAFETY: promised by the caller.
    let _ = unsafe { mm::madvise(start.cast(), len, advice) };
}

/// Gives no advice: other systems have no such advice, or give it another meaning.
///
/// # Safety
/// As on Linux.
#[cfg(any(not(target_os = "linux"), rustload_portable))]
pub(super) unsafe fn advise(_start: *mut u8, _len: usize, _advice: Advice) {}

/// Faults in the whole pages of `memory`, as [`super::populate`] says.
pub(super) fn populate(memory: &mut [u8]) {
    let range = memory.as_mut_ptr_range();
    let start = range.start.addr().next_multiple_of(PAGE_BYTES);
    let end = range.end.addr() & !(PAGE_BYTES - 1);
    if let Some(len) = end.checked_sub(start).filter(|&len| len > PAGE_BYTES) {
        // SAFETY: the pages lie inside `memory`, which is borrowed mutably, and populating changes no byte.
        unsafe { advise(range.start.with_addr(start), len, Advice::Populate) };
    }
}

/// Whether the kernel tells the host of a virtual machine which pages are free, so that the host takes them back (free page reporting,
/// of virtio and of Hyper-V).
pub(super) fn free_pages_are_reported() -> bool {
    static REPORTED: OnceBox<bool> = OnceBox::new();
    *REPORTED.get_or_init(|| {
        // The order of the smallest blocks that are reported, which is set when a driver asks for reports.
        let order = std::fs::read_to_string("/sys/module/page_reporting/parameters/page_reporting_order");
        Box::new(order.is_ok_and(|text| text.trim().parse::<u8>().is_ok()))
    })
}

/// The size of the last-level cache in bytes, as Linux reports it ("32768K"); `None` on other systems.
#[cfg(feature = "cuda")]
pub(super) fn last_level_cache_bytes() -> Option<usize> {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/cpu0/cache/index3/size").ok()?;
    let kilobytes: usize = text.trim().strip_suffix('K')?.parse().ok()?;
    kilobytes.checked_mul(1 << 10)
}

/// The folder where Linux describes its devices.
#[cfg(feature = "cuda")]
pub(super) const SYSFS: &str = "/sys";

/// The CPUs that this thread may run on, as far as a set of CPUs goes (1,024); none if the system does not tell.
#[cfg(all(feature = "cuda", target_os = "linux", not(rustload_portable)))]
pub(super) fn allowed_cpus() -> Vec<usize> {
    let Ok(allowed) = rustix::thread::sched_getaffinity(None) else { return Vec::new() };
    (0..rustix::thread::CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu)).collect()
}

/// Keeps this thread, and those that it starts from now on, on these CPUs. It runs anywhere if the system refuses.
#[cfg(all(feature = "cuda", target_os = "linux", not(rustload_portable)))]
pub(super) fn stay_on(cpus: &[usize]) {
    let mut set = rustix::thread::CpuSet::new();
    for &cpu in cpus.iter().filter(|&&cpu| cpu < rustix::thread::CpuSet::MAX_CPU) {
        set.set(cpu);
    }
    let _ = rustix::thread::sched_setaffinity(None, &set);
}

/// None: other systems do not tell.
#[cfg(all(feature = "cuda", any(not(target_os = "linux"), rustload_portable)))]
pub(super) fn allowed_cpus() -> Vec<usize> {
    Vec::new()
}

/// Does nothing: other systems have no such call.
#[cfg(all(feature = "cuda", any(not(target_os = "linux"), rustload_portable)))]
pub(super) fn stay_on(_cpus: &[usize]) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn populating_changes_no_byte() {
        let mut bytes = vec![7_u8; 5 * PAGE_BYTES];
        for start in [0, 1, PAGE_BYTES] {
            for end in [start, start + 1, 3 * PAGE_BYTES, 5 * PAGE_BYTES - 1] {
                populate(&mut bytes[start..end.max(start)]);
            }
        }
        assert!(bytes.iter().all(|&byte| byte == 7));
    }

    #[test]
    fn populated_pages_are_resident() {
        let start = map(64 * PAGE_BYTES, PAGE_BYTES).unwrap();
        // SAFETY: the range was mapped just now, is zeroed, and nothing else uses it until it is unmapped below.
        populate(unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), 64 * PAGE_BYTES) });
        let resident = resident_pages(start.as_ptr().addr());
        // SAFETY: as above; the slice is not used any more.
        unsafe { unmap(start.as_ptr(), 64 * PAGE_BYTES, PAGE_BYTES) };
        if cfg!(all(target_os = "linux", not(rustload_portable))) {
            assert!(resident >= Some(64), "{resident:?}");
        }
    }

    /// The resident pages of the mapping that has this address; it may be larger than what was mapped.
    fn resident_pages(address: usize) -> Option<usize> {
        let text = std::fs::read_to_string("/proc/self/smaps").ok()?;
        let mut inside = false;
        for line in text.lines() {
            let range = line.split(' ').next().and_then(|range| range.split_once('-'));
            let parsed = range.and_then(|(from, to)| {
                Some((usize::from_str_radix(from, 16).ok()?, usize::from_str_radix(to, 16).ok()?))
            });
            match parsed {
                Some((from, to)) => inside = (from..to).contains(&address),
                None if inside && line.starts_with("Rss:") => {
                    let kilobytes: usize = line.split_whitespace().nth(1)?.parse().ok()?;
                    return Some(kilobytes * 1024 / PAGE_BYTES);
                }
                None => {}
            }
        }
        None
    }
}
