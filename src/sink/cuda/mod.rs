//! GPUs of the maker of CUDA: the driver at run time, a device's context and memory, and the pinned ring that uploads go through.
//!
//! Nothing happens before a GPU is asked for. Where there is no driver or no GPU, each entry says so as an error; so does a child
//! of a process that has used one.

mod device;
mod driver;
mod memory;
mod ring;

pub use device::{Device, Info, info};
pub(crate) use device::{Event, Stream};
pub use driver::CallerStream;
pub use memory::DeviceMemory;
pub(crate) use ring::Ring;
