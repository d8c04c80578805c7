//! Exports the object tree as Python objects: containers, numbers, strings and rustload's own inert classes, no others.
//!
//! The walk is a loop with an explicit stack. Mutable containers are made empty and filled once their items are made, so cycles
//! through them are kept. There are no cycles through tuples and frozen sets alone, since these have what their calls read.
//!
//! Values in a pickle share parts (a list of arguments, a module's name, a string to decode), so a small file can describe a large
//! tree. Each value is exported once. Before it is made, its copies are charged against the limit `export_nodes`: one node for
//! itself, for each item and pair, and for every [`TEXT_NODE_BYTES`] of text. Its memory in Python (an empty dict is one byte of
//! pickle and 64 of CPython) is charged against `export_bytes` ([`super::cost`]), and keys whose hashes collide against
//! `export_nodes` by the comparisons they cause.

mod enter;
mod leaf;
mod leave;

use std::collections::HashMap;

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString};

pub(super) use self::leaf::text;
use super::cost::HashCollisions;
use super::target::Target;
use crate::error::{Code, Error};
use crate::index::{Object, Tree};
use crate::limits::Limits;
use crate::pickle::{GlobalId, Handle, Snapshot};

/// Bytes of text that cost as much as one node: the size of an empty Python dict.
const TEXT_NODE_BYTES: u64 = 64;

/// Nodes between two checks for signals (Ctrl-C).
const SIGNAL_CHECK_INTERVAL_NODES: u64 = 1 << 16;

/// An export of one file's tree, or of a part of it.
pub(super) struct Export<'a, 'py> {
    py: Python<'py>,
    tree: &'a Tree,
    limits: &'a Limits,
    target: Target<'a, 'py>,
    /// The objects so far; `None` for values that are made after their items, such as tuples, and are not made yet.
    done: HashMap<Handle, Option<Bound<'py, PyAny>>>,
    /// The Python object of each tensor, by tensor number.
    tensors: HashMap<u32, Bound<'py, PyAny>>,
    /// Module names by address and length in the pickle, so that globals that share a name there share a string here.
    modules: HashMap<(usize, usize), Bound<'py, PyString>>,
    /// Names of classes of opaque values: a pickle may call one of a long name many times.
    classes: HashMap<Option<GlobalId>, Bound<'py, PyString>>,
    /// Mappings and tensors, each with the state to set on it at the end.
    states: Vec<(Bound<'py, PyAny>, Snapshot)>,
    /// Nodes charged so far.
    spent: u64,
    /// Bytes of Python objects charged so far.
    bytes: u64,
    /// The module of rustload's own classes.
    inert: Bound<'py, PyModule>,
}

/// A container whose items are not all made yet.
struct Frame<'a, 'py> {
    handle: Handle,
    object: Object<'a>,
    /// The Python object, if it can be made before its items.
    py_object: Option<Bound<'py, PyAny>>,
    children: Vec<Handle>,
    next: usize,
    /// Nesting depth; 1 for the root.
    depth: u64,
}

impl<'a, 'py> Export<'a, 'py> {
    pub(super) fn new(
        py: Python<'py>,
        tree: &'a Tree,
        limits: &'a Limits,
        target: Target<'a, 'py>,
    ) -> PyResult<Export<'a, 'py>> {
        Ok(Export {
            py,
            tree,
            limits,
            target,
            done: HashMap::new(),
            tensors: HashMap::new(),
            modules: HashMap::new(),
            classes: HashMap::new(),
            states: Vec::new(),
            spent: 0,
            bytes: 0,
            inert: py.import("rustload._tensor.inert")?,
        })
    }

    /// Exports a value and all it refers to. Fails over the limits `export_nodes`, `export_bytes` and `depth`.
    pub(super) fn value(&mut self, root: Handle) -> PyResult<Bound<'py, PyAny>> {
        self.make(root)?;
        // The states of what was made; the values in them may have states of their own.
        while !self.states.is_empty() {
            for (py_object, state) in std::mem::take(&mut self.states) {
                for child in self.state_children(state)? {
                    self.make(child)?;
                }
                self.set_metadata(&py_object, state)?;
            }
        }
        self.get(root)
    }

    /// Makes a value and all that it contains, if it is not made yet.
    fn make(&mut self, root: Handle) -> PyResult<()> {
        // Containers that are made empty wait to be filled; tuples, frozen sets and the like are entered at once.
        let mut waiting: Vec<Frame<'a, 'py>> = Vec::new();
        let mut open: Vec<Frame<'a, 'py>> = Vec::new();
        if !self.done.contains_key(&root) {
            waiting.extend(self.enter(root, 1)?);
        }
        loop {
            let Some(frame) = open.last_mut() else {
                match waiting.pop() {
                    Some(frame) => open.push(frame),
                    None => break,
                }
                continue;
            };
            if let Some(&child) = frame.children.get(frame.next) {
                frame.next += 1;
                match self.done.get(&child) {
                    Some(Some(_)) => continue,
                    // Whatever a value is made of was made before it, and cannot contain it.
                    Some(None) => {
                        let text = "a tuple or frozen set contains itself";
                        return Err(Error::new(Code::InternalError, text).into());
                    }
                    None => {}
                }
                let depth = frame.depth.saturating_add(1);
                if let Some(frame) = self.enter(child, depth)? {
                    Limits::check("depth", self.limits.depth, depth)?;
                    if frame.py_object.is_some() { waiting.push(frame) } else { open.push(frame) }
                }
            } else if let Some(frame) = open.pop() {
                self.leave(frame)?;
            }
        }
        Ok(())
    }

    /// The values that a state refers to when it is set. The state itself may lack some of them later, where it is a dict.
    pub(super) fn state_children(&self, state: Snapshot) -> PyResult<Vec<Handle>> {
        Ok(match self.tree.attributes(state)? {
            Some(attributes) => attributes.into_iter().flat_map(|(key, value)| [key, value]).collect(),
            None => vec![state.value],
        })
    }

    /// A new dict of the attributes that a state sets, whose children are exported; `None` for a state of another form.
    pub(super) fn attributes(&mut self, state: Snapshot) -> PyResult<Option<Bound<'py, PyDict>>> {
        let Some(attributes) = self.tree.attributes(state)? else { return Ok(None) };
        let dict = PyDict::new(self.py);
        let mut collisions = HashCollisions::new(attributes.len());
        self.charge(attributes.len() as u64)?;
        for (key, value) in attributes {
            let key = self.get(key)?;
            self.charge(collisions.add(&key)?)?;
            dict.set_item(key, self.get(value)?)?;
        }
        Ok(Some(dict))
    }

    /// A new list of the items that an exported list had at an earlier time.
    pub(super) fn list_at(&self, list: Snapshot) -> PyResult<Bound<'py, PyAny>> {
        let items = self.tree.list_at(list).unwrap_or_default();
        PyList::new(self.py, self.all(items)?).map(Bound::into_any)
    }

    fn all(&self, handles: &[Handle]) -> PyResult<Vec<Bound<'py, PyAny>>> {
        handles.iter().map(|&handle| self.get(handle)).collect()
    }

    fn get(&self, handle: Handle) -> PyResult<Bound<'py, PyAny>> {
        let py_object = self.done.get(&handle).cloned().flatten();
        py_object.ok_or_else(|| Error::new(Code::InternalError, "a value was not exported").into())
    }

    /// Charges nodes against the limit, and checks for signals now and then.
    fn charge(&mut self, nodes: u64) -> PyResult<()> {
        let before = self.spent;
        self.spent = before.saturating_add(nodes);
        Limits::check("export_nodes", self.limits.export_nodes, self.spent)?;
        if before / SIGNAL_CHECK_INTERVAL_NODES == self.spent / SIGNAL_CHECK_INTERVAL_NODES {
            Ok(())
        } else {
            self.py.check_signals()
        }
    }
}
