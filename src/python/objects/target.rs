//! The targets of an export: how tensors, and values that torch has classes for, become Python objects. They are rustload's own
//! lazy handles and inert labels, or torch's objects for `rustload.torch.load`. This calls only the callables that it is given;
//! what they return is made in Python.

use std::collections::HashSet;

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString, PyTuple};

use crate::checkpoint::Checkpoint;
use crate::dtype::DType;
use crate::error::{Code, Error};
use crate::index::{Extra, Object, Quantization, Scale, Sparse, Tree};
use crate::limits::Limits;
use crate::parallel::Cancel;
use crate::pickle::{Call, Handle};
use crate::python::classes::Tensor;
use crate::python::run;
use crate::tensor::Tensor as CoreTensor;

/// How an export makes tensors, and values of torch's classes.
pub(super) enum Target<'a, 'py> {
    /// A key of a dict, in which tensors become None.
    Keys,
    /// Lazy handles and inert labels.
    Lazy(Lazy<'a, 'py>),
    /// torch's objects.
    Torch(Torch<'a, 'py>),
}

impl<'py> Target<'_, 'py> {
    /// A tensor of a file that has no object tree.
    pub(super) fn whole_tensor(&self, py: Python<'py>, tensor: CoreTensor) -> PyResult<Bound<'py, PyAny>> {
        match self {
            Target::Keys => Ok(py.None().into_bound(py)),
            Target::Lazy(lazy) => lazy.wrap.call1((Tensor(tensor),)),
            Target::Torch(torch) => torch.tensor_on_storage(py, &tensor, false),
        }
    }
}

/// Makes lazy handles of the tensors of one file: `wrap` is called with each `Tensor`.
pub(super) struct Lazy<'a, 'py> {
    pub(super) checkpoint: &'a Checkpoint,
    pub(super) shard: usize,
    pub(super) wrap: &'a Bound<'py, PyAny>,
}

/// Makes torch's objects of one file, by the methods of a builder.
pub(super) struct Torch<'a, 'py> {
    checkpoint: &'a Checkpoint,
    shard: usize,
    /// See rustload/torch/_build.py: `Builder`.
    pub(super) builder: Bound<'py, PyAny>,
    /// What decodes binary strings of Python 2, and their offsets in the pickle; `None` where they are read as usual.
    byte_strings: Option<(Bound<'py, PyAny>, HashSet<usize>)>,
    /// Whether the storages hold the file's data.
    has_data: bool,
    /// Bytes that torch allocates for repeated elements, which the file does not have.
    repeated: u64,
}

/// Classes of torch whose values are made by their arguments alone. They are made once the arguments are.
const RECORDS: [&str; 2] = ["torch.device", "torch.serialization._get_layout"];

const PARAMETER: &str = "torch._utils._rebuild_parameter";

impl<'py> Lazy<'_, 'py> {
    /// A lazy handle on a tensor, by its first name if it has one; `None` where there is no such tensor.
    pub(super) fn handle(&self, py: Python<'py>, tensor: u32) -> PyResult<Option<Bound<'py, PyAny>>> {
        let Some(core_tensor) = self.checkpoint.tensor_by_id(self.shard, tensor) else { return Ok(None) };
        self.wrap.call1((Tensor(core_tensor).into_pyobject(py)?,)).map(Some)
    }
}

impl<'a, 'py> Torch<'a, 'py> {
    pub(super) fn new(
        checkpoint: &'a Checkpoint,
        shard: usize,
        builder: &Bound<'py, PyAny>,
    ) -> PyResult<Torch<'a, 'py>> {
        let decode = builder.getattr("byte_string")?;
        let tree = checkpoint.trees().nth(shard).and_then(|(_, tree)| tree).filter(|_| !decode.is_none());
        Ok(Torch {
            checkpoint,
            shard,
            builder: builder.clone(),
            byte_strings: tree.map(|tree| (decode, tree.byte_strings(checkpoint.limits()))),
            has_data: builder.getattr("has_data")?.extract()?,
            repeated: 0,
        })
    }

    /// A tensor; `None` where there is no such tensor.
    pub(super) fn tensor(
        &self,
        py: Python<'py>,
        tensor: u32,
        has_hooks: bool,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let Some(core_tensor) = self.checkpoint.unnamed_tensor(self.shard, tensor) else { return Ok(None) };
        self.tensor_on_storage(py, &core_tensor, has_hooks).map(Some)
    }

    /// The storage, or the part of one, that a 1-D tensor stands for; `None` where there is no such tensor.
    pub(super) fn storage(
        &self,
        py: Python<'py>,
        tensor: u32,
        quantized: Option<&str>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let Some(core_tensor) = self.checkpoint.unnamed_tensor(self.shard, tensor) else { return Ok(None) };
        let (dtype, layout) = (core_tensor.dtype(), core_tensor.layout());
        let (start, nbytes) = (layout.offset.saturating_mul(dtype.itemsize()), core_tensor.nbytes());
        let part = (nbytes < core_tensor.storage_nbytes()).then_some((start, nbytes));
        let name = PyString::intern(py, quantized.unwrap_or(dtype.name()));
        self.builder.call_method1(intern!(py, "storage"), (core_tensor.storage().1, name, part)).map(Some)
    }

    /// A tensor by its storage, dtype, layout and flags.
    pub(super) fn tensor_on_storage(
        &self,
        py: Python<'py>,
        tensor: &CoreTensor,
        has_hooks: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let layout = tensor.layout();
        self.builder.call_method1(
            intern!(py, "tensor"),
            (
                tensor.storage().1,
                PyString::intern(py, tensor.dtype().name()),
                layout.offset,
                PyTuple::new(py, &layout.shape)?,
                PyTuple::new(py, &layout.strides)?,
                flags(tensor) | u32::from(has_hooks) << 5,
            ),
        )
    }

    /// A quantized tensor; `scale` is `(scale, zero_point, axis)`. `None` where there is no such tensor.
    pub(super) fn quantized(
        &self,
        py: Python<'py>,
        tensor: u32,
        extra: &Extra,
        scale: (Bound<'py, PyAny>, Bound<'py, PyAny>, Option<u64>),
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let Some(quantization) = &extra.quantization else { return self.tensor(py, tensor, true) };
        let Some(core_tensor) = self.checkpoint.unnamed_tensor(self.shard, tensor) else { return Ok(None) };
        let (shape, strides, offset) = match &quantization.packed {
            Some(packed) => (&packed.shape, &packed.strides, packed.offset),
            None => (&core_tensor.layout().shape, &core_tensor.layout().strides, core_tensor.layout().offset),
        };
        let (shape, strides) = (PyTuple::new(py, shape)?, PyTuple::new(py, strides)?);
        let layout = (core_tensor.storage().1, quantization.dtype, offset, shape, strides);
        self.builder
            .call_method1(intern!(py, "quantized"), (layout, flags(&core_tensor), quantization.scheme, scale))
            .map(Some)
    }

    /// Checks the scales or zero points per channel of a quantized tensor, before torch copies them: repeated elements are charged.
    pub(super) fn check_channels(&mut self, tree: &Tree, part: Handle) -> PyResult<()> {
        match self.part(tree, part)? {
            Some(part) => self.charge(part.repeated_bytes(DType::F64)?),
            None => Ok(()),
        }
    }

    /// Checks a tensor that is quantized per channel, before torch creates it. It is created without elements, except along the
    /// channels (rustload/torch/_build.py: `quantized`).
    pub(super) fn check_quantized(&mut self, tensor: u32, quantization: &Quantization) -> PyResult<()> {
        let Some(core_tensor) = self.checkpoint.unnamed_tensor(self.shard, tensor) else { return Ok(()) };
        match &quantization.packed {
            None if core_tensor.layout().ndim() == 1 => {
                self.charge(core_tensor.repeated_bytes(core_tensor.dtype())?)
            }
            Some(packed) if packed.shape.len() == 1 && packed.strides[0] == 0 => self.charge(packed.shape[0]),
            _ => Ok(()),
        }
    }

    /// Checks the indices of a sparse tensor against the file, because torch's kernels do not check them, and its own check can
    /// neither be bounded nor interrupted.
    pub(super) fn check_sparse(&mut self, py: Python<'py>, tree: &Tree, sparse: &Sparse) -> PyResult<()> {
        // Without data (meta, skip_data), there are no indices to check, and no memory that they could reach.
        if !self.has_data {
            return Ok(());
        }
        let mut parts = Vec::with_capacity(sparse.components.len());
        for &(_, part) in &sparse.components {
            let text = "a part of a sparse tensor is not a tensor";
            parts.push(self.part(tree, part)?.ok_or_else(|| Error::new(Code::InternalError, text))?);
        }
        if parts.iter().any(CoreTensor::is_meta) {
            return Ok(());
        }
        self.charge(CoreTensor::expanded_index_bytes(&parts)?)?;
        let nbytes = parts.iter().fold(0_u64, |sum, part| part.nbytes().saturating_add(sum));
        let cancel = Cancel::new();
        py.check_signals()?;
        run::interruptible(py, nbytes, &cancel, || {
            CoreTensor::check_sparse(sparse.layout, &sparse.shape, sparse.is_coalesced, &parts, &cancel)
        })
    }

    /// A value that is a tensor; `None` for another one.
    fn part(&self, tree: &Tree, part: Handle) -> PyResult<Option<CoreTensor>> {
        Ok(match tree.get(part)? {
            Object::Tensor(tensor) => self.checkpoint.unnamed_tensor(self.shard, tensor),
            _ => None,
        })
    }

    /// Charges bytes that torch allocates against the limit `materialize_bytes`, which bounds their sum.
    fn charge(&mut self, nbytes: u64) -> PyResult<()> {
        self.repeated = self.repeated.saturating_add(nbytes);
        Ok(Limits::check("materialize_bytes", self.checkpoint.limits().materialize_bytes, self.repeated)?)
    }

    /// A sparse tensor of its parts, in the order of the layout. [`Torch::check_sparse`] has checked them.
    pub(super) fn sparse(
        &self,
        py: Python<'py>,
        sparse: &Sparse,
        parts: Vec<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let shape = PyTuple::new(py, &sparse.shape)?;
        let form = (sparse.layout.name(), shape, sparse.is_coalesced);
        self.builder.call_method1(intern!(py, "sparse"), (form, PyTuple::new(py, parts)?))
    }

    /// Whether a call is made by [`Torch::record`] instead of being kept as inert data: one of [`RECORDS`], or a parameter of a
    /// sparse tensor.
    pub(super) fn is_record(tree: &Tree, class: &str, call: &Call<'_>) -> bool {
        let plain = call.states.is_empty() && call.items.is_empty() && call.appended.is_empty();
        let is_sparse = || match tree.get(call.args) {
            Ok(Object::Tuple(&[data, _, _])) => matches!(tree.get(data), Ok(Object::Sparse(_))),
            _ => false,
        };
        plain && (RECORDS.contains(&class) || (class == PARAMETER && is_sparse()))
    }

    /// The values that a tensor is made of beside its elements: scales and zero points per channel.
    pub(super) fn parts(extra: &Extra) -> Vec<Handle> {
        match extra.quantization.as_ref().map(|quantization| &quantization.scale) {
            Some(Scale::Channel { scales, zero_points, .. }) => vec![scales.value, zero_points.value],
            _ => Vec::new(),
        }
    }

    /// The value of a global that the builder knows; `None` for one that stays a label.
    pub(super) fn global(
        &self,
        module: &Bound<'py, PyString>,
        name: &str,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let value = self.builder.call_method1(intern!(module.py(), "label"), (module, name))?;
        Ok(if value.is_none() { None } else { Some(value) })
    }

    /// A binary string of Python 2, decoded as the builder does; `None` for other values, and where they are read as usual.
    pub(super) fn byte_string(
        &self,
        py: Python<'py>,
        tree: &Tree,
        handle: Handle,
        bytes: &[u8],
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let Some((decode, offsets)) = &self.byte_strings else { return Ok(None) };
        match tree.text_offset(handle).is_some_and(|offset| offsets.contains(&offset)) {
            true => decode.call1((PyBytes::new(py, bytes),)).map(Some),
            false => Ok(None),
        }
    }
}

/// The flags of a tensor, a bit each.
fn flags(tensor: &CoreTensor) -> u32 {
    u32::from(tensor.requires_grad())
        | u32::from(tensor.is_parameter()) << 1
        | u32::from(tensor.is_conjugate()) << 2
        | u32::from(tensor.is_negative()) << 3
        | u32::from(tensor.is_meta()) << 4
}
