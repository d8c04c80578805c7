//! The object tree as Python objects: whole trees, single values, and the paths of tensors.

mod cost;
mod export;
mod target;

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use self::export::{Export, text};
use self::target::{Lazy, Target, Torch};
use super::tensor::Tensor;
use crate::checkpoint::Checkpoint;
use crate::index::{Object, Path, PathStep};
use crate::pickle::Snapshot;
use crate::tensor::Tensor as CoreTensor;

/// Every file's object tree, in shard order. A file without one gives a dict of its tensors.
pub(super) fn trees<'py>(
    py: Python<'py>,
    checkpoint: &Checkpoint,
    wrap: &Bound<'py, PyAny>,
) -> PyResult<Vec<Bound<'py, PyAny>>> {
    let count = checkpoint.trees().count();
    let mut out = Vec::with_capacity(count);
    for (shard, (_, tree)) in checkpoint.trees().enumerate() {
        match tree {
            Some(tree) => {
                let target = Target::Lazy(Lazy { checkpoint, shard, wrap });
                let mut export = Export::new(py, tree, checkpoint.limits(), target)?;
                out.push(export.value(tree.root())?);
            }
            None => {
                let dict = PyDict::new(py);
                for tensor in checkpoint.tensors_of(shard) {
                    let name = tensor.name().to_owned();
                    dict.set_item(name, wrap.call1((Tensor(tensor),))?)?;
                }
                out.push(dict.into_any());
            }
        }
    }
    Ok(out)
}

/// One file's object tree with torch's objects. A file without one gives a dict of its tensors.
pub(super) fn rebuild<'py>(
    py: Python<'py>,
    checkpoint: &Checkpoint,
    shard: usize,
    builder: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    let torch = Torch::new(checkpoint, shard, builder)?;
    let tree = checkpoint.trees().nth(shard).and_then(|(_, tree)| tree);
    if let Some(tree) = tree {
        let mut export = Export::new(py, tree, checkpoint.limits(), Target::Torch(torch))?;
        return export.value(tree.root());
    }
    let dict = PyDict::new(py);
    for tensor in checkpoint.tensors_of(shard) {
        dict.set_item(tensor.name(), torch.tensor_on_storage(py, &tensor, false)?)?;
    }
    Ok(dict.into_any())
}

/// The attributes that a state sets on a tensor, as a dict; a state of another form as it is. `wrap` is called with each `Tensor` in
/// it.
pub(super) fn attributes<'py>(
    py: Python<'py>,
    tensor: &CoreTensor,
    state: Snapshot,
    wrap: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    with_export(py, tensor, wrap, |export| {
        for handle in export.state_children(state)? {
            export.value(handle)?;
        }
        match export.attributes(state)? {
            Some(attributes) => Ok(attributes.into_any()),
            None => export.value(state.value),
        }
    })
}

/// A list as a call found it.
pub(super) fn list<'py>(
    py: Python<'py>,
    tensor: &CoreTensor,
    list: Snapshot,
    wrap: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    with_export(py, tensor, wrap, |export| {
        export.value(list.value)?;
        export.list_at(list)
    })
}

/// Exports a part of the object tree that a tensor comes from; None where there is no tree.
fn with_export<'py>(
    py: Python<'py>,
    tensor: &CoreTensor,
    wrap: &Bound<'py, PyAny>,
    part: impl FnOnce(&mut Export<'_, 'py>) -> PyResult<Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let (checkpoint, shard) = (tensor.checkpoint(), tensor.shard() as usize);
    let Some(tree) = checkpoint.trees().nth(shard).and_then(|(_, tree)| tree) else {
        return Ok(py.None().into_bound(py));
    };
    let target = Target::Lazy(Lazy { checkpoint: &checkpoint, shard, wrap });
    part(&mut Export::new(py, tree, checkpoint.limits(), target)?)
}

/// A tensor's path as a tuple of keys and indices; empty for a tensor without a name.
pub(super) fn path<'py>(py: Python<'py>, tensor: &CoreTensor) -> PyResult<Bound<'py, PyTuple>> {
    match tensor.path() {
        Some(path) => path_of(py, &tensor.checkpoint(), tensor.path_file() as usize, path, tensor.name()),
        None => Ok(PyTuple::empty(py)),
    }
}

/// The path of a value of this file as a tuple of keys and indices.
pub(super) fn path_of<'py>(
    py: Python<'py>,
    checkpoint: &Checkpoint,
    shard: usize,
    path: &Path,
    name: &str,
) -> PyResult<Bound<'py, PyTuple>> {
    let Path::Steps(steps) = path else { return PyTuple::new(py, [name]) };
    let tree = checkpoint.trees().nth(shard).and_then(|(_, tree)| tree);
    let Some(tree) = tree else { return PyTuple::new(py, [name]) };
    // Made for the first key that is neither a string nor an integer.
    let mut export: Option<Export<'_, '_>> = None;
    let mut out: Vec<Bound<'_, PyAny>> = Vec::with_capacity(steps.len());
    for step in steps {
        match *step {
            PathStep::Key(key) => out.push(match tree.get(key)? {
                Object::Str(key) => text(py, &key)?,
                Object::Int(key) => key.into_pyobject(py)?.into_any(),
                _ => match &mut export {
                    Some(export) => export.value(key)?,
                    none => {
                        none.insert(Export::new(py, tree, checkpoint.limits(), Target::Keys)?).value(key)?
                    }
                },
            }),
            PathStep::Index(index) => out.push(index.into_pyobject(py)?.into_any()),
            PathStep::Component(component) => out.push(component.name().into_pyobject(py)?.into_any()),
            PathStep::Argument(index) => {
                out.push("args".into_pyobject(py)?.into_any());
                out.push(index.into_pyobject(py)?.into_any());
            }
        }
    }
    PyTuple::new(py, out)
}
