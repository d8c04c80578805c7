//! rustload opens PyTorch and safetensors checkpoints safely, lazily and fast.
//!
//! A restricted unpickler finds the storage, layout and dtype of each tensor and never calls anything that a file names. Opening
//! reads metadata only; a tensor's bytes are read when it is materialized, with the cast and the transpose fused into the read.
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
//! `ARCHITECTURE.md` describes the layers. A module imports only from layers below it, which a test enforces.

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
pub mod parallel;
pub mod pickle;
#[cfg(feature = "python")]
mod python;
pub mod scan;
pub mod sink;
pub mod stream;
mod tensor;

pub use checkpoint::{
    Checkpoint, Failed, Flow, Given, Made, OwnedStorages, Step, Stop, StorageInfo, Stream, Upload,
};
pub use dtype::DType;
pub use error::{Code, Error, Kind, Result};
pub use index::{Options, Unknown};
pub use kernel::Overflow;
pub use layout::{Layout, TensorIndex};
pub use limits::Limits;
pub use memory::Memory;
pub use sink::Array;
pub use stream::Taken;
pub use tensor::{Joined, Order, Request, Standing, Tensor};
