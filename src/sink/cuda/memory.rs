//! Device memory allocated by the driver, for callers that have no GPU allocator of their own.
//!
//! **Protocol.** The memory is one allocation of the driver, made by [`DeviceMemory::new`] and freed by the drop alone. Host code
//! does not access it: the only `unsafe` is the promise of [`GpuMemory`].

use super::device::Device;
use super::driver::Allocation;
use crate::error::{Code, Result, bail, error};
use crate::sink::GpuMemory;

/// Device memory, freed when it is dropped. The driver waits for work in flight before it frees.
#[derive(Debug)]
pub struct DeviceMemory {
    device: &'static Device,
    nbytes: u64,
    /// `None` for no bytes, and after the drop.
    memory: Option<Allocation>,
}

impl DeviceMemory {
    /// Allocates `nbytes` bytes; what they hold is not defined.
    pub fn new(device: &'static Device, nbytes: u64) -> Result<DeviceMemory> {
        device.check_process()?;
        let size = usize::try_from(nbytes);
        let size = size.map_err(|_| error!(Code::Memory, "{nbytes} byte(s) do not fit a GPU"))?;
        let memory = match size {
            0 => None,
            _ => Some(device.with_context(|driver| driver.allocate(size))?),
        };
        Ok(DeviceMemory { device, nbytes, memory })
    }

    /// Copies all bytes to the host. The caller has waited for the work that writes them. Fails if `to` has another size.
    pub fn memcpy_d2h(&self, to: &mut [u8]) -> Result<()> {
        if to.len() as u64 != self.nbytes {
            bail!(Code::Value, "the sizes differ");
        }
        match &self.memory {
            Some(memory) => self.device.with_context(|driver| driver.memcpy_d2h(to, memory.address())),
            None => Ok(()),
        }
    }
}

// SAFETY: an allocation of that size on that device, which only the drop frees and no other code owns.
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
            self.device.with_context_best_effort(|driver| driver.free(memory));
        }
    }
}
