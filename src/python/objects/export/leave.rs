//! The second visit of a container, when all of its items are made: it is filled, or made.

use pyo3::exceptions::PyTypeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyFrozenSet, PyList, PySet, PyTuple};

use super::{Export, Frame};
use crate::error::{Code, Error};
use crate::index::Object;
use crate::pickle::Snapshot;
use crate::python::objects::cost::HashCollisions;
use crate::python::objects::target::Target;

impl<'a, 'py> Export<'a, 'py> {
    /// Fills, or makes, a container whose items are all made.
    pub(super) fn leave(&mut self, frame: Frame<'a, 'py>) -> PyResult<()> {
        let py = self.py;
        match (&frame.object, &frame.py_object) {
            (Object::List(items), Some(py_object)) => {
                let list = py_object.cast::<PyList>()?;
                for &item in &**items {
                    list.append(self.get(item)?)?;
                }
            }
            (Object::Set(items), Some(py_object)) => {
                let set = py_object.cast::<PySet>()?;
                let mut collisions = HashCollisions::new(items.len());
                for &item in items {
                    let item = self.get(item)?;
                    self.charge(collisions.add(&item)?)?;
                    set.add(item).map_err(|error| unhashable(py, error))?;
                }
            }
            (Object::Deque(items, _), Some(py_object)) => {
                py_object.call_method1("extend", (PyTuple::new(py, self.all(items)?)?,))?;
            }
            (Object::Sparse(sparse), Some(py_object)) => {
                let parts = py_object.getattr("parts")?;
                for &(part, tensor) in &sparse.components {
                    parts.set_item(part.name(), self.get(tensor)?)?;
                }
            }
            (Object::Dict { entries, states, factory, .. }, Some(py_object)) => {
                let mut collisions = HashCollisions::new(entries.len());
                for &(key, value) in entries {
                    let key = self.get(key)?;
                    self.charge(collisions.add(&key)?)?;
                    py_object.set_item(key, self.get(value)?).map_err(|error| unhashable(py, error))?;
                }
                if let &Some(factory) = factory {
                    py_object.setattr("factory", self.get(factory)?)?;
                }
                self.states.extend(states.iter().map(|&state| (py_object.clone(), state)));
            }
            (Object::Opaque { call, function, .. }, Some(py_object)) => {
                if let &Some(function) = function {
                    py_object.setattr("function", self.get(function)?)?;
                }
                py_object.setattr("args", self.get(call.args)?)?;
                if let Some(kwargs) = call.kwargs {
                    py_object.setattr("kwargs", self.get(kwargs)?)?;
                }
                if let Some(&state) = call.states.last() {
                    let state = match self.tree.has_grown(state) {
                        true => self.attributes(state)?.into_pyobject(py)?,
                        false => self.get(state.value)?,
                    };
                    py_object.setattr("state", state)?;
                }
                let items = PyList::empty(py);
                for &(key, value) in call.items {
                    items.append((self.get(key)?, self.get(value)?))?;
                }
                py_object.setattr("items", items)?;
                py_object.setattr("appended", PyList::new(py, self.all(call.appended)?)?)?;
            }
            (Object::FrozenSet(items), _) => {
                let items = self.all(items)?;
                let mut collisions = HashCollisions::new(items.len());
                for item in &items {
                    self.charge(collisions.add(item)?)?;
                }
                let set = PyFrozenSet::new(py, items).map_err(|error| unhashable(py, error))?;
                self.done.insert(frame.handle, Some(set.into_any()));
            }
            (Object::Tuple(items), _) => {
                let tuple = PyTuple::new(py, self.all(items)?)?;
                let py_object = match &self.target {
                    Target::Torch(torch) if self.tree.is_size(frame.handle) => {
                        torch.builder.call_method1(intern!(py, "size"), (tuple,))?
                    }
                    _ => tuple.into_any(),
                };
                self.done.insert(frame.handle, Some(py_object));
            }
            (Object::Tensor(tensor), None) => {
                let py_object = self.tensor_of_parts(frame.handle, *tensor)?;
                self.done.insert(frame.handle, Some(py_object));
            }
            (Object::Sparse(sparse), None) => {
                let parts = sparse.components.iter().map(|&(_, part)| self.get(part));
                let parts = parts.collect::<PyResult<_>>()?;
                if let Target::Torch(torch) = &mut self.target {
                    torch.check_sparse(py, self.tree, sparse)?;
                    let py_object = torch.sparse(py, sparse, parts)?;
                    self.done.insert(frame.handle, Some(py_object));
                }
            }
            (Object::Opaque { class, call, .. }, None) => {
                let (class, args) = (self.class_name(*class)?, self.get(call.args)?);
                if let Target::Torch(torch) = &self.target {
                    let py_object = torch.builder.call_method1(intern!(py, "record"), (&class, args))?;
                    self.done.insert(frame.handle, Some(py_object));
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Sets the attributes of a mapping or tensor. With lazy handles that is `_metadata` alone, the attribute that state dicts have
    /// (torch/nn/modules/module.py: `state_dict`); the builder of torch's objects sets all of them.
    pub(super) fn set_metadata(&mut self, py_object: &Bound<'py, PyAny>, state: Snapshot) -> PyResult<()> {
        let Some(attributes) = self.attributes(state)? else { return Ok(()) };
        if let Target::Torch(torch) = &self.target {
            let args = (py_object, attributes);
            return torch.builder.call_method1(intern!(self.py, "attributes"), args).map(|_| ());
        }
        if let Some(metadata) = attributes.get_item("_metadata")? {
            py_object.setattr("_metadata", metadata)?;
        }
        Ok(())
    }
}

/// The error of a key or set item that Python cannot hash. Only calls of `set`, `dict` and the like can have one: the pickle
/// machine checks all others.
fn unhashable(py: Python<'_>, error: PyErr) -> PyErr {
    if !error.is_instance_of::<PyTypeError>(py) {
        return error;
    }
    let text = format!("a dict key or set item is not hashable: {}", error.value(py));
    Error::new(Code::PickleType, text).into()
}
