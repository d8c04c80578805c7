//! The classes that refer to each other; their methods are in the files of their names.

use pyo3::prelude::*;

use crate::{checkpoint, sink, tensor};

/// A tensor in host memory, owned or a view, or in GPU memory.
#[pyclass(frozen, module = "rustload")]
pub(crate) struct Buffer(pub(super) sink::Array);

/// A lazy handle on a tensor of a checkpoint, or on a slice of one.
#[pyclass(frozen, module = "rustload._rustload")]
pub(crate) struct Tensor(pub(super) tensor::Tensor);

/// An open checkpoint.
#[pyclass(frozen, module = "rustload._rustload")]
pub(crate) struct Checkpoint(pub(super) checkpoint::Checkpoint);
