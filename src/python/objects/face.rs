//! What stands in an exported tree for tensors and for the values that torch has classes for: rustload's own handles and labels,
//! or what `rustload.torch.load` gives. This only calls the callables that it was handed; what they make is written in Python.

use pyo3::prelude::*;
use pyo3::types::{PyString, PyTuple};

use crate::checkpoint::Checkpoint;
use crate::index::{Extra, Object, Scale, Sparse, Tree};
use crate::pickle::{Call, Handle};
use crate::python::tensor::Tensor;
use crate::tensor::Tensor as CoreTensor;

/// Who makes what the export itself does not.
pub(super) enum Face<'a, 'py> {
    /// Nobody: of a key of a dict only what is no tensor counts.
    Keys,
    /// Lazy handles, inert labels.
    Lazy(Lazy<'a, 'py>),
    /// torch's own objects.
    Torch(Torch<'a, 'py>),
}

/// How to make handles of the tensors of one file.
pub(super) struct Lazy<'a, 'py> {
    pub(super) checkpoint: &'a Checkpoint,
    pub(super) shard: usize,
    pub(super) wrap: &'a Bound<'py, PyAny>,
}

/// How to make torch's objects: the methods of a builder (rustload/torch/_build.py: `Builder`).
pub(super) struct Torch<'a, 'py> {
    checkpoint: &'a Checkpoint,
    shard: usize,
    tensor: Bound<'py, PyAny>,
    quantized: Bound<'py, PyAny>,
    sparse: Bound<'py, PyAny>,
    parameter: Bound<'py, PyAny>,
    storage: Bound<'py, PyAny>,
    size: Bound<'py, PyAny>,
    global: Bound<'py, PyAny>,
    record: Bound<'py, PyAny>,
    opaque: Bound<'py, PyAny>,
    attributes: Bound<'py, PyAny>,
}

/// Classes whose few plain arguments say all: torch has values of them, and they are made once those are there.
const RECORDS: [&str; 2] = ["torch.device", "torch.serialization._get_layout"];

const PARAMETER: &str = "torch._utils._rebuild_parameter";

impl<'py> Lazy<'_, 'py> {
    pub(super) fn handle(&self, py: Python<'py>, tensor: u32) -> PyResult<Option<Bound<'py, PyAny>>> {
        let Some(found) = self.checkpoint.numbered(self.shard, tensor) else { return Ok(None) };
        self.wrap.call1((Tensor(found).into_pyobject(py)?,)).map(Some)
    }
}

impl<'a, 'py> Torch<'a, 'py> {
    pub(super) fn new(
        checkpoint: &'a Checkpoint,
        shard: usize,
        builder: &Bound<'py, PyAny>,
    ) -> PyResult<Torch<'a, 'py>> {
        Ok(Torch {
            checkpoint,
            shard,
            tensor: builder.getattr("tensor")?,
            quantized: builder.getattr("quantized")?,
            sparse: builder.getattr("sparse")?,
            parameter: builder.getattr("parameter")?,
            storage: builder.getattr("storage")?,
            size: builder.getattr("size")?,
            global: builder.getattr("label")?,
            record: builder.getattr("record")?,
            opaque: builder.getattr("opaque")?,
            attributes: builder.getattr("attributes")?,
        })
    }

    /// A tensor on its storage, or the storage itself where the tree has that.
    pub(super) fn tensor(
        &self,
        py: Python<'py>,
        tensor: u32,
        is_storage: bool,
        has_hooks: bool,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let Some(found) = self.checkpoint.unnamed(self.shard, tensor) else { return Ok(None) };
        if is_storage { self.bare(py, &found) } else { self.place(py, &found, has_hooks) }.map(Some)
    }

    fn bare(&self, py: Python<'py>, tensor: &CoreTensor) -> PyResult<Bound<'py, PyAny>> {
        self.storage.call1((tensor.storage().1, PyString::intern(py, tensor.dtype().name())))
    }

    pub(super) fn place(
        &self,
        py: Python<'py>,
        tensor: &CoreTensor,
        has_hooks: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let layout = tensor.layout();
        self.tensor.call1((
            tensor.storage().1,
            PyString::intern(py, tensor.dtype().name()),
            layout.offset,
            PyTuple::new(py, &layout.shape)?,
            PyTuple::new(py, &layout.strides)?,
            flags(tensor) | u32::from(has_hooks) << 5,
        ))
    }

    pub(super) fn size(&self, items: Bound<'py, PyTuple>) -> PyResult<Bound<'py, PyAny>> {
        self.size.call1((items,))
    }

    /// A tensor whose integers stand for numbers; `scale` is `(scale, zero_point, axis)`.
    pub(super) fn quantized(
        &self,
        py: Python<'py>,
        tensor: u32,
        extra: &Extra,
        scale: (Bound<'py, PyAny>, Bound<'py, PyAny>, Option<u64>),
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let Some(known) = &extra.quantization else { return self.tensor(py, tensor, false, true) };
        let Some(found) = self.checkpoint.unnamed(self.shard, tensor) else { return Ok(None) };
        let (shape, strides, offset) = match &known.packed {
            Some(packed) => (&packed.shape, &packed.strides, packed.offset),
            None => (&found.layout().shape, &found.layout().strides, found.layout().offset),
        };
        let (shape, strides) = (PyTuple::new(py, shape)?, PyTuple::new(py, strides)?);
        let place = (found.storage().1, known.dtype, offset, shape, strides);
        self.quantized.call1((place, flags(&found), known.scheme, scale)).map(Some)
    }

    /// A sparse tensor of its parts.
    pub(super) fn sparse(
        &self,
        py: Python<'py>,
        sparse: &Sparse,
        parts: Vec<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let shape = PyTuple::new(py, &sparse.shape)?;
        let form = (sparse.layout.name(), shape, sparse.is_coalesced);
        self.sparse.call1((form, PyTuple::new(py, parts)?))
    }

    /// Whether a call is made by [`Torch::record`] instead of being kept as data: one of a few classes, or a parameter around a
    /// sparse tensor, which is a tensor in torch alone.
    pub(super) fn is_record(tree: &Tree, class: &str, call: &Call<'_>) -> bool {
        let plain = call.states.is_empty() && call.items.is_empty() && call.appended.is_empty();
        let is_sparse = || match tree.get(call.args) {
            Ok(Object::Tuple(&[data, _, _])) => matches!(tree.get(data), Ok(Object::Sparse(_))),
            _ => false,
        };
        plain && (RECORDS.contains(&class) || (class == PARAMETER && is_sparse()))
    }

    /// What has to be there before a tensor can be made: scales that are tensors; and what is set on it afterwards.
    pub(super) fn parts(extra: &Extra) -> Vec<Handle> {
        let mut parts = extra.states.clone();
        if let Some(known) = &extra.quantization
            && let Scale::Channel { scales, zero_points, .. } = known.scale
        {
            parts.extend([scales, zero_points]);
        }
        parts
    }

    pub(super) fn record(&self, class: &str, args: Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        self.record.call1((class, args))
    }

    /// Asks whether a value of this class may be kept as data.
    pub(super) fn opaque(&self, class: &str) -> PyResult<()> {
        self.opaque.call1((class,)).map(|_| ())
    }

    pub(super) fn global(
        &self,
        module: &Bound<'py, PyString>,
        name: &str,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let found = self.global.call1((module, name))?;
        Ok(if found.is_none() { None } else { Some(found) })
    }

    /// The tensor as a parameter, where a file says so by the class alone.
    pub(super) fn parameter(&self, tensor: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        self.parameter.call1((tensor,))
    }

    /// Sets what BUILD sets on a mapping, or what is set on a tensor.
    pub(super) fn attributes(&self, made: &Bound<'py, PyAny>, state: &Bound<'py, PyAny>) -> PyResult<()> {
        self.attributes.call1((made, state)).map(|_| ())
    }
}

/// What else the file says of a tensor, a bit each.
fn flags(tensor: &CoreTensor) -> u32 {
    u32::from(tensor.requires_grad())
        | u32::from(tensor.is_parameter()) << 1
        | u32::from(tensor.is_conjugate()) << 2
        | u32::from(tensor.is_negative()) << 3
        | u32::from(tensor.is_meta()) << 4
}
