//! The first visit of a value: one without items is made, a mutable container is made empty, and the others wait for their items.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PySet, PyTuple};

use super::{Export, Frame, TEXT_NODE_BYTES};
use crate::index::{DictKind, Object, Tree};
use crate::limits::Limits;
use crate::num::to_u64;
use crate::pickle::{Call, GlobalId, Handle};
use crate::python::objects::cost;
use crate::python::objects::target::{Target, Torch};

impl<'a, 'py> Export<'a, 'py> {
    /// Makes a value that has no items, or returns the frame of one that has.
    pub(super) fn enter(&mut self, handle: Handle, depth: u64) -> PyResult<Option<Frame<'a, 'py>>> {
        let py = self.py;
        let tree: &'a Tree = self.tree;
        self.charge(tree.weight(handle).saturating_add(1))?;
        let object = tree.get(handle)?;
        self.bytes = self.bytes.saturating_add(cost::bytes(&object));
        Limits::check("export_bytes", self.limits.export_bytes, self.bytes)?;
        let mut children: Vec<Handle> = match &object {
            Object::List(items) => items.to_vec(),
            Object::Tuple(items) => items.to_vec(),
            Object::Set(items) | Object::FrozenSet(items) | Object::Deque(items, _) => items.to_vec(),
            _ => Vec::new(),
        };
        let py_object = match &object {
            Object::List(_) => Some(PyList::empty(py).into_any()),
            Object::Set(_) => Some(PySet::empty(py)?.into_any()),
            Object::Tuple(_) | Object::FrozenSet(_) => None,
            Object::Deque(_, maxlen) => {
                let maxlen = maxlen.filter(|&maxlen| maxlen >= 0);
                Some(py.import("collections")?.getattr("deque")?.call1(((), maxlen))?)
            }
            Object::Dict { kind, entries, factory, .. } => {
                children.extend(entries.iter().flat_map(|&(key, value)| [key, value]));
                children.extend(*factory);
                Some(match factory {
                    Some(_) => self.inert.call_method0(intern!(py, "DefaultDict"))?,
                    None => self.empty_dict(*kind)?,
                })
            }
            Object::Sparse(sparse) => {
                children.extend(sparse.components.iter().map(|&(_, part)| part));
                let shape = PyTuple::new(py, &sparse.shape)?;
                match self.target {
                    Target::Torch(_) => None,
                    _ => {
                        let args = (sparse.layout.name(), shape, sparse.is_coalesced);
                        Some(self.inert.call_method1(intern!(py, "Sparse"), args)?)
                    }
                }
            }
            Object::Tensor(tensor) if self.has_parts(*tensor) => {
                if let Some(extra) = tree.extra(*tensor).filter(|extra| extra.part.is_some()) {
                    let class = self.class_name(extra.class)?;
                    // torch makes it as a part of the mesh of running processes.
                    if let Target::Torch(torch) = &self.target {
                        torch.builder.call_method1(intern!(py, "opaque"), (&class,))?;
                    }
                }
                children.extend(tree.extra(*tensor).map(Torch::parts).unwrap_or_default());
                None
            }
            Object::Opaque { class, call, .. } if self.is_record(*class, call)? => {
                children.push(call.args);
                None
            }
            Object::Opaque { class, call, function } => {
                let class = self.class_name(*class)?;
                if let Target::Torch(torch) = &self.target {
                    torch.builder.call_method1(intern!(py, "opaque"), (&class,))?;
                }
                if let Some(&state) = call.states.last().filter(|&&state| tree.has_grown(state)) {
                    let copy = tree.weight(state.value).saturating_mul(64);
                    self.bytes = self.bytes.saturating_add(copy);
                    Limits::check("export_bytes", self.limits.export_bytes, self.bytes)?;
                    children.extend(self.state_children(state)?);
                }
                children.push(call.args);
                children.extend(*function);
                children.extend(call.kwargs);
                children.extend(call.states.iter().map(|state| state.value));
                children.extend(call.items.iter().flat_map(|&(key, value)| [key, value]));
                children.extend_from_slice(call.appended);
                self.charge(to_u64(class.to_str()?.len()) / TEXT_NODE_BYTES)?;
                Some(self.inert.call_method1(intern!(py, "Opaque"), (class,))?)
            }
            plain => {
                let py_object = self.plain(handle, plain)?;
                self.done.insert(handle, Some(py_object));
                return Ok(None);
            }
        };
        self.done.insert(handle, py_object.clone());
        let has_states = matches!(&object, Object::Dict { states, .. } if !states.is_empty());
        if children.is_empty() && py_object.is_some() && !has_states {
            return Ok(None);
        }
        Ok(Some(Frame { handle, object, py_object, children, next: 0, depth }))
    }

    /// Whether this is a value of a class of torch, which is made once its arguments are.
    fn is_record(&mut self, class: Option<GlobalId>, call: &Call<'_>) -> PyResult<bool> {
        if !matches!(self.target, Target::Torch(_)) {
            return Ok(false);
        }
        let class = self.class_name(class)?;
        Ok(Torch::is_record(self.tree, class.to_str()?, call))
    }

    /// Whether a tensor of torch is made only once other values are.
    fn has_parts(&self, tensor: u32) -> bool {
        matches!(self.target, Target::Torch(_))
            && self.tree.extra(tensor).is_some()
            && !self.tensors.contains_key(&tensor)
    }

    fn empty_dict(&self, kind: DictKind) -> PyResult<Bound<'py, PyAny>> {
        let name = match kind {
            DictKind::Dict => return Ok(PyDict::new(self.py).into_any()),
            DictKind::OrderedDict => "OrderedDict",
            DictKind::DefaultDict => "defaultdict",
            DictKind::Counter => "Counter",
        };
        self.py.import("collections")?.getattr(name)?.call0()
    }
}
