//! CUDA: the driver library loaded at run time, a device's context and memory, and the pinned ring that uploads go through.
//!
//! Nothing is loaded before a GPU is asked for. Without a driver or a GPU every entry point fails with an error, and so it does in
//! a forked child of a process that has used CUDA.

mod device;
mod driver;
mod memory;
mod numa;
mod ring;
mod workers;

pub use device::{Device, Info, info};
pub(crate) use device::{Event, Stream};
pub use driver::CallerStream;
pub use memory::DeviceMemory;
pub(crate) use ring::Ring;

/// What DLPack calls the devices of the driver that was opened; those of CUDA before.
pub fn device_type() -> i32 {
    driver::Driver::device_type()
}
