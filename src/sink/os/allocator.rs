//! Windows and WebAssembly: a range is released as a whole, so ranges are neither split nor kept. They come from the allocator.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use std::time::Duration;

/// The CUDA driver's library, which is opened if `RUSTLOAD_LIBCUDA` is not set.
#[cfg(feature = "cuda")]
pub(in crate::sink) const CUDA_LIBRARY: &str = "nvcuda.dll";

/// Whether a part of a range can be unmapped.
pub(in crate::sink) const HAS_PARTS: bool = false;

/// Allocates `len` zeroed bytes at a multiple of `align`, which is a power of two; `None` if that fails.
pub(in crate::sink) fn map(len: usize, align: usize) -> Option<NonNull<u8>> {
    let layout = Layout::from_size_align(len, align).ok().filter(|layout| layout.size() > 0)?;
    // SAFETY: the size is not zero.
    NonNull::new(unsafe { alloc_zeroed(layout) })
}

/// Frees a range.
///
/// # Safety
/// [`map`] has returned it for this size and alignment, the caller owns it, and no code uses its addresses afterwards.
pub(in crate::sink) unsafe fn unmap(start: *mut u8, len: usize, align: usize) {
    if let Ok(layout) = Layout::from_size_align(len, align) {
        // SAFETY: promised by the caller.
        unsafe { dealloc(start, layout) };
    }
}

/// Not measured: no pages are huge.
pub(in crate::sink) fn thread_cpu_time() -> Duration {
    Duration::ZERO
}
