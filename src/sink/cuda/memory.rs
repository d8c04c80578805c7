//! Memory of a device, for callers that have no allocator of their own.
//!
//! **Protocol.** The memory is an allocation of the driver's, made by [`DeviceMemory::new`] and freed by the drop alone. Nothing here
//! reads or writes it: `unsafe` is the promise of [`GpuMemory`] only.

use super::device::Device;
use super::driver::Allocation;
use crate::error::{Code, Error, Result};
use crate::sink::GpuMemory;

/// Bytes on a device, freed when they are dropped. The driver waits for work in flight before it frees.
#[derive(Debug)]
pub struct DeviceMemory {
    device: &'static Device,
    nbytes: u64,
    /// `None` for no bytes, and after the drop.
    memory: Option<Allocation>,
}

impl DeviceMemory {
    /// `nbytes` bytes; what they hold is not defined.
    pub fn new(device: &'static Device, nbytes: u64) -> Result<DeviceMemory> {
        device.check_process()?;
        let size = usize::try_from(nbytes);
        let size =
            size.map_err(|_| Error::new(Code::Memory, format!("{nbytes} byte(s) do not fit a GPU")))?;
        let memory = if size == 0 { None } else { Some(device.allocate(size)?) };
        Ok(DeviceMemory { device, nbytes, memory })
    }

    /// Copies all bytes to the host. The caller has waited for what fills them.
    pub fn copy_out(&self, to: &mut [u8]) -> Result<()> {
        if to.len() as u64 != self.nbytes {
            return Err(Error::new(Code::Value, "the sizes differ"));
        }
        match &self.memory {
            Some(memory) => self.device.copy_out(to, memory.address()),
            None => Ok(()),
        }
    }
}

// SAFETY: an allocation of that size on that device, which is freed by the drop and was handed to nobody else.
unsafe impl GpuMemory for DeviceMemory {
    fn device(&self) -> u32 {
        self.device.ordinal()
    }

    fn address(&self) -> u64 {
        self.memory.as_ref().map_or(0, Allocation::address)
    }

    fn nbytes(&self) -> u64 {
        self.nbytes
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take() {
            self.device.free(memory);
        }
    }
}
