//! rustload opens PyTorch and safetensors checkpoints safely, lazily and fast.
//!
//! A restricted unpickler finds the dtype, layout and storage of each tensor; it never imports or calls anything that a file
//! names. Opening reads metadata only. A tensor's bytes are read when it is materialized, and cast and transposed as they are read.
//!
//! ```no_run
//! use rustload::{Checkpoint, DType, Order, Request};
//!
//! let checkpoint = Checkpoint::open(&["model.bin".into()], rustload::Options::default())?;
//! for name in checkpoint.names() {
//!     let tensor = checkpoint.tensor(name)?;
//!     println!("{name} {} {:?}", tensor.dtype(), tensor.layout().shape);
//! }
//! let request = Request { dtype: Some(DType::BF16), order: Order::Transpose, ..Request::default() };
//! let array = checkpoint.tensor("lm_head.weight")?.materialize(&request)?;
//! # Ok::<(), rustload::Error>(())
//! ```
//!
//! `ARCHITECTURE.md` describes the layers. Imports go down only, which a test enforces.

#![cfg_attr(
    not(all(feature = "internals", feature = "python")),
    allow(
        dead_code,
        unreachable_pub,
        reason = "some code is for the binding, the tests or one feature: a build with all features finds what nothing uses"
    )
)]

#[cfg(not(target_os = "linux"))]
compile_error!(
    "rustload supports Linux only: it maps and reads files with Linux system calls, and finds memory limits in /proc"
);

mod bytes;
mod checkpoint;
mod container;
mod dtype;
mod error;
mod index;
mod kernel;
mod layout;
mod limits;
mod memory;
mod num;
mod opened;
mod parallel;
mod pickle;
#[cfg(feature = "python")]
mod python;
mod sink;
mod stream;
mod tensor;

#[doc(hidden)]
#[cfg(feature = "internals")]
pub mod internals;
#[cfg(feature = "scan")]
pub mod scan;

pub use bytes::{Bytes, Io};
pub use checkpoint::{Checkpoint, Output, StopHandle, Stream, StreamItem, StreamOptions, TensorError};
pub use container::Format;
pub use dtype::{DType, Kind as NumberKind};
pub use error::{Code, Error, Kind, Result, Subject};
pub use half::{bf16, f16};
pub use index::{OpaqueClass, Options, Unknown};
pub use kernel::Overflow;
pub use layout::{Dims, Layout, TensorIndex};
pub use limits::Limits;
pub use parallel::Cancel;
pub use sink::{Array, Element};
pub use stream::Taken;
pub use tensor::{Joined, Order, Request, SharedStorage, Tensor};

/// Uploads to NVIDIA GPUs, through a ring of pinned host memory.
#[cfg(feature = "cuda")]
pub mod cuda {
    pub use crate::checkpoint::Upload;
    pub use crate::sink::GpuMemory;
    pub use crate::sink::cuda::{CallerStream, Device, DeviceMemory, Info, info};
    pub use crate::stream::upload::Waited;
}
