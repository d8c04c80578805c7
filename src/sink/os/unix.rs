//! POSIX: mappings, of which any part can be unmapped.

use std::ffi::c_void;
use std::ptr::{self, NonNull};
use std::time::Duration;

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use rustix::time::{ClockId, clock_gettime};

/// The CUDA driver's library, which is opened if `RUSTLOAD_LIBCUDA` is not set.
#[cfg(feature = "cuda")]
pub(in crate::sink) const CUDA_LIBRARY: &str = "libcuda.so.1";

/// Whether a part of a range can be unmapped.
pub(in crate::sink) const HAS_PARTS: bool = true;

/// Maps `len` zeroed bytes at a multiple of `align`, which is a power of two; `None` if that fails.
pub(in crate::sink) fn map(len: usize, align: usize) -> Option<NonNull<u8>> {
    let start = map_anywhere(len)?;
    if start.align_offset(align) == 0 {
        // Newer kernels align a large mapping by themselves, and adjacent ranges can then be joined.
        return Some(start);
    }
    unmap_part(start.as_ptr(), len);
    let start = map_anywhere(len.checked_add(align)?)?.as_ptr();
    let lead = start.align_offset(align);
    let inside = start.wrapping_add(lead);
    unmap_part(start, lead);
    unmap_part(inside.wrapping_add(len), align - lead);
    NonNull::new(inside)
}

fn map_anywhere(len: usize) -> Option<NonNull<u8>> {
    // SAFETY: a new private mapping at an address that the system chooses touches no other memory.
    let found = unsafe {
        mmap_anonymous(ptr::null_mut::<c_void>(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
    };
    found.ok().and_then(|start| NonNull::new(start.cast()))
}

/// Unmaps a part of what [`map`] has just mapped, and has given to nobody.
fn unmap_part(start: *mut u8, len: usize) {
    if len > 0 {
        // SAFETY: the range is a part of a new mapping whose addresses nothing else has.
        unsafe { unmap(start, len, 1) };
    }
}

/// Unmaps a range. If the process has too many mappings, the range stays, unused.
///
/// # Safety
/// The caller owns the range, and no code uses its addresses afterwards.
pub(in crate::sink) unsafe fn unmap(start: *mut u8, len: usize, _align: usize) {
    // SAFETY: promised by the caller.
    let _ = unsafe { munmap(start.cast(), len) };
}

/// The processor time of this thread: waiting while other threads run does not count.
pub(in crate::sink) fn thread_cpu_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}
