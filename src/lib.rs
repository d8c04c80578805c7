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
    not(all(feature = "cuda", feature = "scan")),
    allow(dead_code, reason = "code that only these features use; a build with both finds code that nothing uses")
)]

pub mod bytes;
mod checkpoint;
pub mod container;
pub mod dtype;
pub mod error;
pub mod index;
pub mod kernel;
pub mod layout;
pub mod limits;
pub mod memory;
pub mod num;
mod opened;
pub mod parallel;
pub mod pickle;
#[cfg(feature = "python")]
mod python;
#[cfg(feature = "scan")]
pub mod scan;
pub mod sink;
pub mod stream;
mod tensor;

pub use checkpoint::{
    Checkpoint, Output, OwnedStorages, StopHandle, StorageInfo, Stream, StreamItem, StreamOptions,
    StreamStep, TensorError,
};
#[cfg(feature = "cuda")]
pub use checkpoint::Upload;
pub use dtype::DType;
pub use error::{Code, Error, Kind, Result};
pub use index::{Options, Unknown};
pub use kernel::Overflow;
pub use layout::{Layout, TensorIndex};
pub use limits::Limits;
pub use memory::Memory;
pub use sink::Array;
pub use stream::Taken;
pub use tensor::{Joined, Order, Request, SharedStorage, Tensor};
