//! GPU memory as the owner of arrays. To the host a GPU address is only a number: nothing here reads or writes.

use std::fmt::Debug;

/// A range of one GPU's memory. Dropping it frees it, on any thread, with or without the Python interpreter. That may wait for
/// the GPU's work.
///
/// # Safety
/// H2D copies write to the range that the three functions return. So for as long as the value lives
/// - each function returns the same number at every call;
/// - `nbytes()` bytes from `address()` are memory of the GPU `device()` of the driver, allocated and writable;
/// - other users of that memory expect it to be written to, as with a tensor that was allocated to be filled.
pub unsafe trait GpuMemory: Debug + Send + Sync {
    /// The GPU's ordinal in this process.
    fn device(&self) -> u32;

    /// The device address of the first byte (`CUdeviceptr`).
    fn address(&self) -> u64;

    /// The bytes in the range.
    fn nbytes(&self) -> u64;
}
