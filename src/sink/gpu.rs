//! Memory of a GPU, as the owner of arrays. To the host an address there is a number: nothing here reads or writes.

use std::fmt::Debug;

/// A range of one GPU's memory. Dropping it frees it, on any thread, with or without the interpreter, and waits for nothing.
///
/// # Safety
/// Copies are written to what the three functions say, so for as long as the value lives
/// - each gives the same number at every call;
/// - `nbytes()` bytes from `address()` on are memory of the CUDA device `device()`, allocated and writable;
/// - whoever else may use that memory expects it to be written to, as a tensor that was allocated to be filled.
pub unsafe trait GpuMemory: Debug + Send + Sync {
    /// The GPU's ordinal in this process.
    fn device(&self) -> u32;

    /// The address of the first byte, as the driver counts.
    fn address(&self) -> u64;

    /// Bytes in the range.
    fn nbytes(&self) -> u64;
}
