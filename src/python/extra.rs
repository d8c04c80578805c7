//! Quantization parameters and sparse tensors as Python values.

use pyo3::prelude::*;
use pyo3::types::PyTuple;

use super::classes::Tensor;
use super::{objects, run};
use crate::checkpoint::Description;
use crate::error::{Code, Error};
use crate::index::{Along, Component, Object, Path, Scale, SparseLayout};
use crate::layout::Dims;
use crate::parallel::Cancel;
use crate::pickle::Snapshot;
use crate::tensor::Tensor as Core;

/// The quantization parameters, `(dtype, scheme, scale, zero_point, axis, packed)`; `packed` is `(shape, strides, offset)`. `None`
/// for a tensor that is not quantized.
pub(super) fn quantization<'py>(
    py: Python<'py>,
    tensor: &Core,
    wrap: &Bound<'py, PyAny>,
) -> PyResult<Option<Bound<'py, PyTuple>>> {
    let Some(quantization) = tensor.quantization() else { return Ok(None) };
    let (scale, zero_point, axis) = match &quantization.scale {
        Scale::Tensor { scale, zero_point } => {
            (scale.into_pyobject(py)?.into_any(), zero_point.into_pyobject(py)?.into_any(), None)
        }
        Scale::Channel { scales, zero_points, axis } => (
            channels(py, tensor, *scales, Component::Scale, wrap)?,
            channels(py, tensor, *zero_points, Component::ZeroPoint, wrap)?,
            Some(*axis),
        ),
    };
    let packed = match &quantization.packed {
        Some(packed) => {
            Some((PyTuple::new(py, &packed.shape)?, PyTuple::new(py, &packed.strides)?, packed.offset))
        }
        None => None,
    };
    (quantization.dtype, quantization.scheme, scale, zero_point, axis, packed).into_pyobject(py).map(Some)
}

/// What a weight is decoded from: the scheme, bits of a code, names of the codes and of what belongs to them, and their bytes.
pub(super) type SchemeOf = (&'static str, u32, Vec<String>, u64);

/// What a weight is decoded from.
pub(super) fn scheme(description: &Description) -> SchemeOf {
    let Description { scheme, bits, stored, stored_nbytes, .. } = description;
    (scheme, *bits, stored.iter().map(ToString::to_string).collect(), *stored_nbytes)
}

/// Which part of a larger tensor it is, `(shape, offsets, mesh, coordinate, placements)`; `None` for a whole one.
pub(super) fn part<'py>(py: Python<'py>, tensor: &Core) -> PyResult<Option<Bound<'py, PyTuple>>> {
    let Some(part) = tensor.part() else { return Ok(None) };
    let tuple = |sizes: Option<&Dims>| sizes.map(|sizes| PyTuple::new(py, sizes)).transpose();
    let placement = part.placement.as_ref();
    let along = placement.map(|placement| PyTuple::new(py, placement.along.iter().map(Along::to_string)));
    (
        tuple(part.shape.as_ref())?,
        tuple(part.offsets.as_ref())?,
        tuple(placement.map(|placement| &placement.mesh))?,
        tuple(placement.map(|placement| &placement.coordinate))?,
        along.transpose()?,
    )
        .into_pyobject(py)
        .map(Some)
}

/// Scales or zero points per channel: a tensor, by its own name where it has one, or a list.
fn channels<'py>(
    py: Python<'py>,
    tensor: &Core,
    part: Snapshot,
    name: Component,
    wrap: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    let (checkpoint, shard) = (tensor.checkpoint(), tensor.shard() as usize);
    let tree = checkpoint.trees().nth(shard).and_then(|(_, tree)| tree);
    if let Some(Object::Tensor(id)) = tree.map(|tree| tree.get(part.value)).transpose()? {
        let is_root = matches!(tensor.path(), Some(Path::Steps(steps)) if steps.is_empty());
        let prefix = if is_root && checkpoint.label(shard).is_none() {
            String::new()
        } else {
            format!("{}.", tensor.name())
        };
        let named_component = format!("{prefix}{}", name.name());
        let named_component =
            checkpoint.contains(&named_component).then(|| checkpoint.tensor(&named_component).ok()).flatten();
        let named_component =
            named_component.filter(|named_component| named_component.id() == (tensor.shard(), id));
        let missing = || Error::new(Code::InternalError, "a quantized tensor's scales are missing");
        let component =
            named_component.or_else(|| checkpoint.unnamed_tensor(shard, id)).ok_or_else(missing)?;
        return wrap.call1((Tensor(component),));
    }
    objects::list(py, tensor, part, wrap)
}

/// Validates the indices of a sparse tensor.
#[pyfunction]
#[pyo3(signature = (layout, shape, is_coalesced, parts))]
pub(crate) fn check_sparse(
    py: Python<'_>,
    layout: &str,
    shape: Vec<u64>,
    is_coalesced: Option<bool>,
    parts: Vec<PyRef<'_, Tensor>>,
) -> PyResult<()> {
    let unknown = || Error::new(Code::Value, format!("{layout:?} is not a sparse layout"));
    let layout = SparseLayout::ALL.into_iter().find(|known| known.name() == layout).ok_or_else(unknown)?;
    let parts: Vec<Core> = parts.iter().map(|part| part.0.clone()).collect();
    let nbytes = parts.iter().fold(0_u64, |sum, part| part.nbytes().saturating_add(sum));
    let cancel = Cancel::new();
    run::interruptible(py, nbytes, &cancel, || {
        Core::check_sparse(layout, &shape, is_coalesced, &parts, &cancel)
    })
}
