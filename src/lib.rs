//! rustload opens PyTorch and safetensors checkpoints safely, lazily and fast.
//!
//! A restricted unpickler finds the dtype, layout and storage of each tensor; it never imports or calls anything that a file
//! names. Opening reads metadata only. A tensor's bytes are read when it is materialized, and cast and transposed as they are read.
//!
//! ```
//! use rustload::{Checkpoint, DType, Request};
//!
//! # let folder = std::env::temp_dir().join(format!("rustload-lib-{}", std::process::id()));
//! # std::fs::create_dir_all(&folder)?;
//! # let path = folder.join("model.safetensors");
//! # let header = br#"{"head.weight":{"dtype":"F32","shape":[3,2],"data_offsets":[0,24]}}"#;
//! # let numbers = [1.0_f32, 2.0, 3.0, 4.0, 5.0, 6.0].map(f32::to_le_bytes).concat();
//! # std::fs::write(&path, [&(header.len() as u64).to_le_bytes()[..], header, &numbers].concat())?;
//! let checkpoint = Checkpoint::open(&path)?;
//! for name in checkpoint.names() {
//!     let tensor = checkpoint.tensor(name)?;
//!     println!("{name} {} {:?}", tensor.dtype(), tensor.shape());
//! }
//!
//! // Two rows of it, converted and transposed as they are read.
//! let rows = checkpoint.tensor("head.weight")?.index(&[(0..2).into()])?;
//! let array = rows.materialize(&Request::new().dtype(DType::F64).transpose())?;
//! assert_eq!(array.shape(), [2, 2]);
//! assert_eq!(array.as_slice::<f64>(), Some(&[1.0, 3.0, 2.0, 4.0][..]));
//! # std::fs::remove_dir_all(&folder)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Without a conversion a result may be a view of the file; [`Array::to_vec`] copies either. A file may come from anyone:
//! [`Limits`] bound what opening it costs, and [`scan`] says what a reader that unpickles it would execute.
//!
//! # Features
//!
//! - `cuda` (default): uploads to NVIDIA GPUs. The driver is loaded at run time.
//! - `scan` (default): the module [`scan`].
//! - `python`: the extension module of the Python package; `browser`: the WebAssembly module of the page for browsers.
//!
//! `ARCHITECTURE.md` describes the layers. Imports go down only, which a test enforces.

#![cfg_attr(
    not(all(feature = "internals", feature = "python")),
    allow(
        dead_code,
        unreachable_pub,
        unused_imports,
        reason = "some code is for the binding, the tests or one feature: a build with all features finds what nothing uses"
    )
)]
// The list below is complete: what a public function takes or gives can be named.
#![cfg_attr(all(feature = "cuda", feature = "scan", not(feature = "internals")), warn(unnameable_types))]

#[cfg(not(any(
    target_os = "linux",
    target_os = "macos",
    windows,
    all(target_arch = "wasm32", target_os = "unknown")
)))]
compile_error!("rustload supports Linux; macOS, Windows and WebAssembly in browsers are less tested");

#[cfg(all(feature = "browser", target_arch = "wasm32"))]
mod browser;
mod builder;
mod bytes;
mod checkpoint;
pub mod compare;
mod container;
#[cfg(any(feature = "browser", feature = "python"))]
mod document;
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
mod sha256;
mod sink;
pub mod statistics;
mod stream;
mod sys;
mod tensor;
mod text;
pub mod write;

/// The Rust code in README.md is compiled as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

#[doc(hidden)]
#[cfg(feature = "internals")]
pub mod internals;
#[cfg(feature = "scan")]
pub mod scan;

pub use bytes::{Access, Bytes, Io, RangeRead, ReadFolder, ReadRanges};
pub use checkpoint::{Checkpoint, Output, StopHandle, Stream, StreamItem, StreamOptions, TensorError};
pub use container::Format;
pub use dtype::{DType, Kind as NumberKind};
pub use error::{Code, Error, Kind, Remedy, Result, Subject, Value as RemedyValue};
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
