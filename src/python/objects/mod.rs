//! The object tree as Python objects: whole trees, single values, and the paths of tensors.

mod cost;
mod export;
mod target;

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use self::export::{Export, text};
use self::target::{Lazy, Target, Torch};
use crate::checkpoint::Checkpoint;
use crate::index::{Object, Path, PathStep};
use crate::pickle::Snapshot;
use crate::tensor::Tensor as CoreTensor;

/// The object tree of every shard, in order: a dict of the tensors where the format has none, and inside a dict by the shard's label
/// where it has one.
pub(super) fn trees<'py>(
    py: Python<'py>,
    checkpoint: &Checkpoint,
    wrap: &Bound<'py, PyAny>,
) -> PyResult<Vec<Bound<'py, PyAny>>> {
    let tree = |shard| object_tree(py, checkpoint, shard, Target::Lazy(Lazy { checkpoint, shard, wrap }));
    (0..checkpoint.shards()).map(tree).collect()
}

/// The object tree of a shard, inside a dict by its label if it has one.
fn object_tree<'py>(
    py: Python<'py>,
    checkpoint: &Checkpoint,
    shard: usize,
    target: Target<'_, 'py>,
) -> PyResult<Bound<'py, PyAny>> {
    let value = match checkpoint.trees().nth(shard).and_then(|(_, tree)| tree) {
        Some(tree) => Export::new(py, tree, checkpoint.limits(), target)?.value(tree.root())?,
        None => {
            let dict = PyDict::new(py);
            for tensor in checkpoint.tensors_of(shard) {
                let name = within_label(checkpoint, shard, tensor.name()).to_owned();
                dict.set_item(name, target.whole_tensor(py, tensor)?)?;
            }
            dict.into_any()
        }
    };
    let Some(label) = checkpoint.label(shard) else { return Ok(value) };
    let dict = PyDict::new(py);
    dict.set_item(label, value)?;
    Ok(dict.into_any())
}

/// A tensor's name in its shard: without the label.
fn within_label<'a>(checkpoint: &Checkpoint, shard: usize, name: &'a str) -> &'a str {
    let rest = checkpoint.label(shard).and_then(|label| name.strip_prefix(label)?.strip_prefix('.'));
    rest.unwrap_or(name)
}

/// The object tree of one shard with torch's objects, as [`trees`] gives it.
pub(super) fn rebuild<'py>(
    py: Python<'py>,
    checkpoint: &Checkpoint,
    shard: usize,
    builder: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    object_tree(py, checkpoint, shard, Target::Torch(Torch::new(checkpoint, shard, builder)?))
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
    let label = checkpoint.label(shard);
    let tree = checkpoint.trees().nth(shard).and_then(|(_, tree)| tree);
    let (Path::Steps(steps), Some(tree)) = (path, tree) else {
        return PyTuple::new(
            py,
            label.into_iter().chain([within_label(checkpoint, shard, name)]).collect::<Vec<_>>(),
        );
    };
    // Made for the first key that is neither a string nor an integer.
    let mut export: Option<Export<'_, '_>> = None;
    let mut out: Vec<Bound<'_, PyAny>> = Vec::with_capacity(steps.len().saturating_add(1));
    if let Some(label) = label {
        out.push(label.into_pyobject(py)?.into_any());
    }
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
