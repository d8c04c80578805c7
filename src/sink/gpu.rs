//! Memory of a GPU, as the owner of arrays. To the host an address there is a number: nothing here reads or writes.

use std::fmt::Debug;

/// A range of one GPU's memory. It stays allocated as long as the value lives; dropping it frees it, on any thread, with or
/// without the interpreter, and waits for nothing.
pub trait GpuMemory: Debug + Send + Sync {
    /// The GPU's ordinal in this process.
    fn device(&self) -> u32;

    /// The address of the first byte, as the driver counts.
    fn address(&self) -> u64;

    /// Bytes in the range.
    fn nbytes(&self) -> u64;
}
