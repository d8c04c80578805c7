//! Exports the object tree as Python objects: containers, numbers, strings and rustload's own inert classes, no others.
//!
//! The walk is a loop with an explicit stack. Mutable containers are made empty and filled once their items are made, so cycles
//! through them are kept. A cycle through tuples and frozen sets alone cannot exist in Python and is an error.
//!
//! Values in a pickle share parts (a list of arguments, a module's name, a string to decode), so a small file can describe a large
//! tree. Each value is exported once. Before it is made, its copies are charged against the limit `export_nodes`: one node for
//! itself, for each item and pair, and for every [`TEXT_NODE_BYTES`] of text. Its memory in Python (an empty dict is one byte of
//! pickle and 64 of CPython) is charged against `export_bytes` ([`super::cost`]), and keys whose hashes collide against
//! `export_nodes` by the comparisons they cause.

use std::collections::HashMap;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyComplex, PyDict, PyFrozenSet, PyList, PySet, PyString, PyTuple};

use super::cost::{self, HashCollisions};
use super::target::{Target, Torch};
use crate::error::{Code, Error};
use crate::index::{DictKind, Object, Scale, Tree};
use crate::limits::Limits;
use crate::pickle::{BigInt, Call, Handle, Text};

/// Bytes of text that cost as much as one node: the size of an empty Python dict.
const TEXT_NODE_BYTES: u64 = 64;

/// Nodes between two checks for signals (Ctrl-C).
const SIGNAL_CHECK_INTERVAL_NODES: u64 = 1 << 16;

const PARAMETER: &str = "torch.nn.parameter.Parameter";

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
    /// Class names of opaque values.
    classes: HashMap<String, Bound<'py, PyString>>,
    /// Mappings and tensors, each with the state to set on it at the end.
    states: Vec<(Bound<'py, PyAny>, Handle)>,
    /// Nodes charged so far.
    spent: u64,
    /// Bytes of Python objects charged so far.
    bytes: u64,
    opaque: Bound<'py, PyAny>,
    global: Bound<'py, PyAny>,
    sparse: Bound<'py, PyAny>,
    default_dict: Bound<'py, PyAny>,
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
        let inert = py.import("rustload._tensor.inert")?;
        let class = |name| inert.getattr(name);
        let (opaque, global) = (class("Opaque")?, class("Global")?);
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
            opaque,
            global,
            sparse: class("Sparse")?,
            default_dict: class("DefaultDict")?,
        })
    }

    /// Exports a value and all it refers to. Fails over the limits `export_nodes`, `export_bytes` and `depth`, and for values that
    /// Python cannot have (see the module).
    pub(super) fn value(&mut self, root: Handle) -> PyResult<Bound<'py, PyAny>> {
        // Containers that are made empty wait to be filled; tuples, frozen sets and the like are entered at once.
        let mut waiting: Vec<Frame<'a, 'py>> = Vec::new();
        let mut open: Vec<Frame<'a, 'py>> = Vec::new();
        waiting.extend(self.enter(root, 1)?);
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
                    Some(None) => {
                        let text = "a tuple or frozen set contains itself";
                        return Err(Error::new(Code::CyclicValue, text).into());
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
        for (py_object, state) in std::mem::take(&mut self.states) {
            self.set_metadata(&py_object, state)?;
        }
        self.get(root)
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

    /// Makes a value that has no items, or returns the frame of one that has.
    fn enter(&mut self, handle: Handle, depth: u64) -> PyResult<Option<Frame<'a, 'py>>> {
        let py = self.py;
        let tree: &'a Tree = self.tree;
        self.charge(tree.weight(handle).saturating_add(1))?;
        let object = tree.get(handle)?;
        self.bytes = self.bytes.saturating_add(cost::bytes(&object));
        Limits::check("export_bytes", self.limits.export_bytes, self.bytes)?;
        let mut children: Vec<Handle> = Vec::new();
        let py_object = match &object {
            Object::List(items) => {
                children.extend_from_slice(items);
                Some(PyList::empty(py).into_any())
            }
            Object::Tuple(items) => {
                children.extend_from_slice(items);
                None
            }
            Object::Set(items) => {
                children.extend_from_slice(items);
                Some(PySet::empty(py)?.into_any())
            }
            Object::FrozenSet(items) => {
                children.extend_from_slice(items);
                None
            }
            Object::Deque(items, maxlen) => {
                children.extend_from_slice(items);
                let maxlen = maxlen.filter(|&maxlen| maxlen >= 0);
                Some(py.import("collections")?.getattr("deque")?.call1(((), maxlen))?)
            }
            Object::Dict { kind, entries, states, factory } => {
                children.extend(entries.iter().flat_map(|&(key, value)| [key, value]));
                children.extend_from_slice(states);
                children.extend(*factory);
                Some(match factory {
                    Some(_) => self.default_dict.call0()?,
                    None => self.empty_dict(*kind)?,
                })
            }
            Object::Sparse(sparse) => {
                children.extend(sparse.components.iter().map(|&(_, part)| part));
                let shape = PyTuple::new(py, &sparse.shape)?;
                match self.target {
                    Target::Torch(_) => None,
                    _ => Some(self.sparse.call1((sparse.layout.name(), shape, sparse.is_coalesced))?),
                }
            }
            Object::Tensor(tensor) if self.has_parts(*tensor) => {
                children.extend(tree.extra(*tensor).map(Torch::parts).unwrap_or_default());
                None
            }
            Object::Opaque { class, call, .. } if self.is_record(class, call) => {
                children.push(call.args);
                None
            }
            Object::Opaque { class, call, function } => {
                if let Target::Torch(torch) = &self.target {
                    torch.opaque(class)?;
                }
                children.push(call.args);
                children.extend(*function);
                children.extend(call.kwargs);
                children.extend_from_slice(call.states);
                children.extend(call.items.iter().flat_map(|&(key, value)| [key, value]));
                children.extend_from_slice(call.appended);
                self.charge(class.len() as u64 / TEXT_NODE_BYTES)?;
                let class = self.classes.entry(class.clone()).or_insert_with(|| PyString::new(py, class));
                Some(self.opaque.call1((&*class,))?)
            }
            plain => {
                let py_object = self.plain(handle, plain)?;
                self.done.insert(handle, Some(py_object));
                return Ok(None);
            }
        };
        self.done.insert(handle, py_object.clone());
        if children.is_empty() && py_object.is_some() {
            return Ok(None);
        }
        Ok(Some(Frame { handle, object, py_object, children, next: 0, depth }))
    }

    /// Whether this is a value of a class of torch, which is made once its arguments are.
    fn is_record(&self, class: &str, call: &Call<'_>) -> bool {
        matches!(self.target, Target::Torch(_)) && Torch::is_record(self.tree, class, call)
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

    /// Fills, or makes, a container whose items are all made.
    fn leave(&mut self, frame: Frame<'a, 'py>) -> PyResult<()> {
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
                let items = items.iter().map(|&item| self.get(item)).collect::<PyResult<Vec<_>>>()?;
                py_object.call_method1("extend", (PyTuple::new(py, items)?,))?;
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
                // The state may not be filled yet, so it is set at the end.
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
                    py_object.setattr("state", self.get(state)?)?;
                }
                let items = PyList::empty(py);
                for &(key, value) in call.items {
                    items.append((self.get(key)?, self.get(value)?))?;
                }
                py_object.setattr("items", items)?;
                let appended = PyList::empty(py);
                for &item in call.appended {
                    appended.append(self.get(item)?)?;
                }
                py_object.setattr("appended", appended)?;
            }
            (Object::FrozenSet(items), _) => {
                let items = items.iter().map(|&item| self.get(item)).collect::<PyResult<Vec<_>>>()?;
                let mut collisions = HashCollisions::new(items.len());
                for item in &items {
                    self.charge(collisions.add(item)?)?;
                }
                let set = PyFrozenSet::new(py, items).map_err(|error| unhashable(py, error))?;
                self.done.insert(frame.handle, Some(set.into_any()));
            }
            (Object::Tuple(items), _) => {
                let items = items.iter().map(|&item| self.get(item)).collect::<PyResult<Vec<_>>>()?;
                let tuple = PyTuple::new(py, items)?;
                let py_object = match &self.target {
                    Target::Torch(torch) if self.tree.is_size(frame.handle) => torch.size(tuple)?,
                    _ => tuple.into_any(),
                };
                self.done.insert(frame.handle, Some(py_object));
            }
            (Object::Tensor(tensor), None) => {
                let py_object = self.tensor_of_parts(frame.handle, *tensor)?;
                self.done.insert(frame.handle, Some(py_object));
            }
            (Object::Sparse(sparse), None) => {
                if let Target::Torch(torch) = &self.target {
                    let parts = sparse.components.iter().map(|&(_, part)| self.get(part));
                    let py_object = torch.sparse(py, sparse, parts.collect::<PyResult<_>>()?)?;
                    self.done.insert(frame.handle, Some(py_object));
                }
            }
            (Object::Opaque { class, call, .. }, None) => {
                if let Target::Torch(torch) = &self.target {
                    let py_object = torch.record(class, self.get(call.args)?)?;
                    self.done.insert(frame.handle, Some(py_object));
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Sets the state of a mapping or tensor. With lazy handles that is `_metadata` alone, the attribute that state dicts have
    /// (torch/nn/modules/module.py: `state_dict`); the builder of torch's objects sets all of it.
    fn set_metadata(&self, py_object: &Bound<'py, PyAny>, state: Handle) -> PyResult<()> {
        let state = self.get(state)?;
        if let Target::Torch(torch) = &self.target {
            return torch.attributes(py_object, &state);
        }
        if let Ok(state) = state.cast::<PyDict>()
            && let Some(metadata) = state.get_item("_metadata")?
        {
            py_object.setattr("_metadata", metadata)?;
        }
        Ok(())
    }

    /// Makes a value without items.
    fn plain(&mut self, handle: Handle, object: &Object<'a>) -> PyResult<Bound<'py, PyAny>> {
        let py = self.py;
        self.charge(text_len(object) / TEXT_NODE_BYTES)?;
        Ok(match object {
            Object::Bool(value) => value.into_pyobject(py)?.to_owned().into_any(),
            Object::Int(value) => value.into_pyobject(py)?.into_any(),
            Object::Uint(value) => value.into_pyobject(py)?.into_any(),
            Object::BigInt(value) => self.integer(value)?,
            Object::Float(value) => value.into_pyobject(py)?.into_any(),
            Object::Complex(re, im) => PyComplex::from_doubles(py, *re, *im).into_any(),
            Object::Str(value) => text(py, value)?,
            Object::Bytes(bytes) => PyBytes::new(py, bytes).into_any(),
            Object::ByteArray(bytes) => PyByteArray::new(py, bytes).into_any(),
            Object::Global { module, name } => {
                let key = (module.as_ptr().addr(), module.len());
                let module = self.modules.entry(key).or_insert_with(|| PyString::new(py, module));
                let py_object = match &self.target {
                    Target::Torch(torch) => torch.global(module, name)?,
                    _ => None,
                };
                match py_object {
                    Some(py_object) => py_object,
                    None => self.global.call1((&*module, *name))?,
                }
            }
            Object::Tensor(tensor) => self.tensor(handle, *tensor)?,
            _ => py.None().into_bound(py),
        })
    }

    fn tensor(&mut self, handle: Handle, tensor: u32) -> PyResult<Bound<'py, PyAny>> {
        let py = self.py;
        if let Some(py_object) = self.tensors.get(&tensor) {
            return Ok(py_object.clone());
        }
        let py_object = match &self.target {
            Target::Keys => return Ok(py.None().into_bound(py)),
            Target::Lazy(lazy) => lazy.handle(py, tensor)?,
            Target::Torch(torch) => {
                let (is_storage, has_hooks) = (self.tree.is_storage(handle), self.tree.has_hooks(handle));
                torch.tensor(py, tensor, is_storage, has_hooks)?
            }
        };
        let py_object = py_object.ok_or_else(|| {
            Error::new(Code::InternalError, "the object tree refers to a tensor that does not exist")
        })?;
        self.tensors.insert(tensor, py_object.clone());
        Ok(py_object)
    }

    /// A tensor of torch whose scales are made. Its attributes are set at the end.
    fn tensor_of_parts(&mut self, handle: Handle, tensor: u32) -> PyResult<Bound<'py, PyAny>> {
        let py = self.py;
        let tree: &'a Tree = self.tree;
        let missing =
            || Error::new(Code::InternalError, "the object tree refers to a tensor that does not exist");
        let (Target::Torch(torch), Some(extra)) = (&self.target, tree.extra(tensor)) else {
            return Err(missing().into());
        };
        let py_object = match extra.quantization.as_ref().map(|quantization| &quantization.scale) {
            None => torch.tensor(py, tensor, false, self.tree.has_hooks(handle))?,
            Some(Scale::Tensor { scale, zero_point }) => {
                let (scale, zero_point) = (scale.into_pyobject(py)?, zero_point.into_pyobject(py)?);
                torch.quantized(py, tensor, extra, (scale.into_any(), zero_point.into_any(), None))?
            }
            Some(Scale::Channel { scales, zero_points, axis }) => {
                let scale = (self.channels(*scales)?, self.channels(*zero_points)?, Some(*axis));
                torch.quantized(py, tensor, extra, scale)?
            }
        };
        let py_object = py_object.ok_or_else(missing)?;
        let class = extra.class.map(|class| tree.name_of(class));
        let py_object =
            if class.as_deref() == Some(PARAMETER) { torch.parameter(&py_object)? } else { py_object };
        self.states.extend(extra.states.iter().map(|&state| (py_object.clone(), state)));
        self.tensors.insert(tensor, py_object.clone());
        Ok(py_object)
    }

    /// Scales or zero points: a tensor, or a list of numbers. The exported list may not be filled yet, so a new one is made.
    fn channels(&self, part: Handle) -> PyResult<Bound<'py, PyAny>> {
        let py = self.py;
        let Object::List(items) = self.tree.get(part)? else { return self.get(part) };
        let numbers = PyList::empty(py);
        for &item in &*items {
            match self.tree.get(item)? {
                Object::Int(number) => numbers.append(number)?,
                Object::Float(number) => numbers.append(number)?,
                _ => return Err(Error::new(Code::InternalError, "a scale is not a number").into()),
            }
        }
        Ok(numbers.into_any())
    }

    fn integer(&self, value: &BigInt<'_>) -> PyResult<Bound<'py, PyAny>> {
        let int = self.py.import("builtins")?.getattr("int")?;
        let signed = PyDict::new(self.py);
        signed.set_item("signed", true)?;
        int.getattr("from_bytes")?.call((PyBytes::new(self.py, value.as_le_bytes()), "little"), Some(&signed))
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

/// The length of a string, bytes or global in bytes; 0 for other values.
fn text_len(object: &Object<'_>) -> u64 {
    let len = match object {
        Object::Str(text) => text.as_bytes().len(),
        Object::Bytes(bytes) | Object::ByteArray(bytes) => bytes.len(),
        Object::Global { module, name } => module.len() + name.len(),
        _ => 0,
    };
    len as u64
}

/// A Python string. Lone surrogates are kept, as Python's unpickler does.
pub(super) fn text<'py>(py: Python<'py>, text: &Text<'_>) -> PyResult<Bound<'py, PyAny>> {
    match text.as_str() {
        Some(text) => Ok(text.into_pyobject(py)?.into_any()),
        None => PyBytes::new(py, text.as_bytes()).call_method1("decode", ("utf-8", "surrogatepass")),
    }
}
