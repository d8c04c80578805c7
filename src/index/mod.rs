//! The index of a checkpoint: its tensors, with name, dtype, shape, strides and storage.
//!
//! An index owns its data and borrows nothing: an [`Entry`] names a [`Tensor`], a tensor refers to a [`Storage`], and a storage to
//! a byte range of the file. Only the bounds check in `model/tensor.rs` constructs a [`Tensor`], so its range may be read without
//! another check.
//!
//! Three rooms, each of which imports only from those before it: `model` (what tensors are and where they lie), `pickled` (what a pickle
//! means) and `formats` (a reader for each).
#![forbid(unsafe_code)]
#![deny(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::unwrap_used,
    clippy::as_conversions
)]

mod formats;
mod model;
mod pickled;

#[cfg(feature = "scan")]
pub(crate) use self::formats::LEGACY_PICKLES;
pub use self::formats::{Contents, Objects, SavedValue, SavedValues, read, read_executed, read_pickle};
pub use self::formats::{
    Padding, Run, Wrong, ZeroInput, ZeroJoin, flat_partitions, join_zero, sharded_partitions,
};
#[cfg(feature = "scan")]
pub use self::formats::{imported_classes, storage_itemsize};
pub use self::model::*;
pub use self::pickled::globals;
pub use self::pickled::{DictKind, Object, Tree};
#[cfg(feature = "scan")]
pub use self::pickled::{PersistentIdForm, holds_storage};
pub(crate) use crate::container::safetensors::is_sharding_key;
