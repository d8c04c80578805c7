//! The object tree as Python objects. Only containers, numbers, texts and rustload's own inert classes are made.
//!
//! A loop with a stack of its own: mutable containers are made empty first and filled when their items are there, so cycles
//! through them come out as cycles; a cycle through tuples and frozen sets alone cannot exist in Python and is an error.
//!
//! Values in a pickle share parts (a list of arguments, a module's name, a text that is decoded), so that a small file can
//! say a lot. Each value is exported once, and all it copies is charged against the limit `export_nodes` beforehand: one node
//! for itself, for each item and pair, and for every [`TEXT`] bytes. What becomes of it in Python's memory (an empty dict is one
//! byte of pickle and 64 of CPython) is charged against `export_bytes` ([`super::cost`]), and keys that hash alike are paid for
//! by the comparisons they cause.

use std::collections::HashMap;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyComplex, PyDict, PyFrozenSet, PyList, PySet, PyString, PyTuple};

use super::cost::{self, Crowd};
use super::face::{Face, Torch};
use crate::error::{Code, Error};
use crate::index::{DictKind, Object, Scale, Tree};
use crate::limits::Limits;
use crate::pickle::{BigInt, Call, Handle, Text};

/// Bytes of text that cost as much as a value: the size of an empty Python dict.
const TEXT: u64 = 64;

/// Nodes after which a request to stop (Ctrl-C) is looked for.
const TICK: u64 = 1 << 16;

const PARAMETER: &str = "torch.nn.parameter.Parameter";

pub(super) struct Export<'a, 'py> {
    py: Python<'py>,
    tree: &'a Tree,
    limits: &'a Limits,
    face: Face<'a, 'py>,
    /// What was made; `None` for tuples and frozen sets whose items are not all there yet.
    done: HashMap<Handle, Option<Bound<'py, PyAny>>>,
    handles: HashMap<u32, Bound<'py, PyAny>>,
    /// Names of modules by address and length, so that those that share one in the pickle share it here.
    modules: HashMap<(usize, usize), Bound<'py, PyString>>,
    /// Names of opaque values' classes.
    classes: HashMap<String, Bound<'py, PyString>>,
    /// Mappings and what BUILD sets on them.
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

/// A container whose items are not all there yet.
struct Frame<'a, 'py> {
    handle: Handle,
    object: Object<'a>,
    /// The object itself, if it could be made empty.
    made: Option<Bound<'py, PyAny>>,
    children: Vec<Handle>,
    next: usize,
    /// Containers around it, and itself.
    depth: u64,
}

impl<'a, 'py> Export<'a, 'py> {
    pub(super) fn new(
        py: Python<'py>,
        tree: &'a Tree,
        limits: &'a Limits,
        face: Face<'a, 'py>,
    ) -> PyResult<Export<'a, 'py>> {
        let inert = py.import("rustload._tensor.inert")?;
        let class = |name| inert.getattr(name);
        let (opaque, global) = (class("Opaque")?, class("Global")?);
        Ok(Export {
            py,
            tree,
            limits,
            face,
            done: HashMap::new(),
            handles: HashMap::new(),
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

    pub(super) fn value(&mut self, root: Handle) -> PyResult<Bound<'py, PyAny>> {
        // Containers that can be made empty wait to be filled; only tuples and frozen sets are entered at once.
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
                    if frame.made.is_some() { waiting.push(frame) } else { open.push(frame) }
                }
            } else if let Some(frame) = open.pop() {
                self.leave(frame)?;
            }
        }
        for (made, state) in std::mem::take(&mut self.states) {
            self.set_metadata(&made, state)?;
        }
        self.get(root)
    }

    fn get(&self, handle: Handle) -> PyResult<Bound<'py, PyAny>> {
        let found = self.done.get(&handle).cloned().flatten();
        found.ok_or_else(|| Error::new(Code::InternalError, "a value was not exported").into())
    }

    /// Pays for nodes, and lets Ctrl-C through now and then.
    fn charge(&mut self, nodes: u64) -> PyResult<()> {
        let before = self.spent;
        self.spent = before.saturating_add(nodes);
        Limits::check("export_nodes", self.limits.export_nodes, self.spent)?;
        if before / TICK == self.spent / TICK { Ok(()) } else { self.py.check_signals() }
    }

    /// Makes a value that has no items, or the frame of one that has.
    fn enter(&mut self, handle: Handle, depth: u64) -> PyResult<Option<Frame<'a, 'py>>> {
        let py = self.py;
        let tree: &'a Tree = self.tree;
        self.charge(tree.weight(handle).saturating_add(1))?;
        let object = tree.get(handle)?;
        self.bytes = self.bytes.saturating_add(cost::bytes(&object));
        Limits::check("export_bytes", self.limits.export_bytes, self.bytes)?;
        let mut children: Vec<Handle> = Vec::new();
        let made = match &object {
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
                match self.face {
                    Face::Torch(_) => None,
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
                if let Face::Torch(torch) = &self.face {
                    torch.opaque(class)?;
                }
                children.push(call.args);
                children.extend(*function);
                children.extend(call.kwargs);
                children.extend_from_slice(call.states);
                children.extend(call.items.iter().flat_map(|&(key, value)| [key, value]));
                children.extend_from_slice(call.appended);
                self.charge(class.len() as u64 / TEXT)?;
                let class = self.classes.entry(class.clone()).or_insert_with(|| PyString::new(py, class));
                Some(self.opaque.call1((&*class,))?)
            }
            plain => {
                let made = self.plain(handle, plain)?;
                self.done.insert(handle, Some(made));
                return Ok(None);
            }
        };
        self.done.insert(handle, made.clone());
        if children.is_empty() && made.is_some() {
            return Ok(None);
        }
        Ok(Some(Frame { handle, object, made, children, next: 0, depth }))
    }

    /// Whether this is a value that torch has a class for, made like a tuple once its arguments are there.
    fn is_record(&self, class: &str, call: &Call<'_>) -> bool {
        matches!(self.face, Face::Torch(_)) && Torch::is_record(self.tree, class, call)
    }

    /// Whether a tensor of torch is made only once other values are there.
    fn has_parts(&self, tensor: u32) -> bool {
        matches!(self.face, Face::Torch(_))
            && self.tree.extra(tensor).is_some()
            && !self.handles.contains_key(&tensor)
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

    /// Fills a container whose items are all there.
    fn leave(&mut self, frame: Frame<'a, 'py>) -> PyResult<()> {
        let py = self.py;
        match (&frame.object, &frame.made) {
            (Object::List(items), Some(made)) => {
                let list = made.cast::<PyList>()?;
                for &item in &**items {
                    list.append(self.get(item)?)?;
                }
            }
            (Object::Set(items), Some(made)) => {
                let set = made.cast::<PySet>()?;
                let mut crowd = Crowd::of(items.len());
                for &item in items {
                    let item = self.get(item)?;
                    self.charge(crowd.met(&item)?)?;
                    set.add(item).map_err(|error| hashed(py, error))?;
                }
            }
            (Object::Deque(items, _), Some(made)) => {
                let items = items.iter().map(|&item| self.get(item)).collect::<PyResult<Vec<_>>>()?;
                made.call_method1("extend", (PyTuple::new(py, items)?,))?;
            }
            (Object::Sparse(sparse), Some(made)) => {
                let parts = made.getattr("parts")?;
                for &(part, tensor) in &sparse.components {
                    parts.set_item(part.name(), self.get(tensor)?)?;
                }
            }
            (Object::Dict { entries, states, factory, .. }, Some(made)) => {
                let mut crowd = Crowd::of(entries.len());
                for &(key, value) in entries {
                    let key = self.get(key)?;
                    self.charge(crowd.met(&key)?)?;
                    made.set_item(key, self.get(value)?).map_err(|error| hashed(py, error))?;
                }
                if let &Some(factory) = factory {
                    made.setattr("factory", self.get(factory)?)?;
                }
                // The state itself may still wait to be filled.
                self.states.extend(states.iter().map(|&state| (made.clone(), state)));
            }
            (Object::Opaque { call, function, .. }, Some(made)) => {
                if let &Some(function) = function {
                    made.setattr("function", self.get(function)?)?;
                }
                made.setattr("args", self.get(call.args)?)?;
                if let Some(kwargs) = call.kwargs {
                    made.setattr("kwargs", self.get(kwargs)?)?;
                }
                if let Some(&state) = call.states.last() {
                    made.setattr("state", self.get(state)?)?;
                }
                let items = PyList::empty(py);
                for &(key, value) in call.items {
                    items.append((self.get(key)?, self.get(value)?))?;
                }
                made.setattr("items", items)?;
                let appended = PyList::empty(py);
                for &item in call.appended {
                    appended.append(self.get(item)?)?;
                }
                made.setattr("appended", appended)?;
            }
            (Object::FrozenSet(items), _) => {
                let items = items.iter().map(|&item| self.get(item)).collect::<PyResult<Vec<_>>>()?;
                let mut crowd = Crowd::of(items.len());
                for item in &items {
                    self.charge(crowd.met(item)?)?;
                }
                let set = PyFrozenSet::new(py, items).map_err(|error| hashed(py, error))?;
                self.done.insert(frame.handle, Some(set.into_any()));
            }
            (Object::Tuple(items), _) => {
                let items = items.iter().map(|&item| self.get(item)).collect::<PyResult<Vec<_>>>()?;
                let tuple = PyTuple::new(py, items)?;
                let made = match &self.face {
                    Face::Torch(torch) if self.tree.is_size(frame.handle) => torch.size(tuple)?,
                    _ => tuple.into_any(),
                };
                self.done.insert(frame.handle, Some(made));
            }
            (Object::Tensor(tensor), None) => {
                let made = self.tensor_of_parts(frame.handle, *tensor)?;
                self.done.insert(frame.handle, Some(made));
            }
            (Object::Sparse(sparse), None) => {
                if let Face::Torch(torch) = &self.face {
                    let parts = sparse.components.iter().map(|&(_, part)| self.get(part));
                    let made = torch.sparse(py, sparse, parts.collect::<PyResult<_>>()?)?;
                    self.done.insert(frame.handle, Some(made));
                }
            }
            (Object::Opaque { class, call, .. }, None) => {
                if let Face::Torch(torch) = &self.face {
                    let made = torch.record(class, self.get(call.args)?)?;
                    self.done.insert(frame.handle, Some(made));
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// `_metadata` is the one attribute that state dicts carry (torch/nn/modules/module.py: `state_dict`); others are set only
    /// where all is wanted as torch has it.
    fn set_metadata(&self, made: &Bound<'py, PyAny>, state: Handle) -> PyResult<()> {
        let state = self.get(state)?;
        if let Face::Torch(torch) = &self.face {
            return torch.attributes(made, &state);
        }
        if let Ok(state) = state.cast::<PyDict>()
            && let Some(metadata) = state.get_item("_metadata")?
        {
            made.setattr("_metadata", metadata)?;
        }
        Ok(())
    }

    fn plain(&mut self, handle: Handle, object: &Object<'a>) -> PyResult<Bound<'py, PyAny>> {
        let py = self.py;
        self.charge(text_len(object) / TEXT)?;
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
                let made = match &self.face {
                    Face::Torch(torch) => torch.global(module, name)?,
                    _ => None,
                };
                match made {
                    Some(made) => made,
                    None => self.global.call1((&*module, *name))?,
                }
            }
            Object::Tensor(tensor) => self.tensor(handle, *tensor)?,
            _ => py.None().into_bound(py),
        })
    }

    fn tensor(&mut self, handle: Handle, tensor: u32) -> PyResult<Bound<'py, PyAny>> {
        let py = self.py;
        if let Some(made) = self.handles.get(&tensor) {
            return Ok(made.clone());
        }
        let made = match &self.face {
            Face::Keys => return Ok(py.None().into_bound(py)),
            Face::Lazy(lazy) => lazy.handle(py, tensor)?,
            Face::Torch(torch) => {
                let (is_storage, has_hooks) = (self.tree.is_storage(handle), self.tree.has_hooks(handle));
                torch.tensor(py, tensor, is_storage, has_hooks)?
            }
        };
        let made =
            made.ok_or_else(|| Error::new(Code::InternalError, "the tree names a tensor that there is not"))?;
        self.handles.insert(tensor, made.clone());
        Ok(made)
    }

    /// A tensor of torch whose scales are there; what is set on it waits until all else is.
    fn tensor_of_parts(&mut self, handle: Handle, tensor: u32) -> PyResult<Bound<'py, PyAny>> {
        let py = self.py;
        let tree: &'a Tree = self.tree;
        let gone = || Error::new(Code::InternalError, "the tree names a tensor that there is not");
        let (Face::Torch(torch), Some(extra)) = (&self.face, tree.extra(tensor)) else {
            return Err(gone().into());
        };
        let made = match extra.quantization.as_ref().map(|known| &known.scale) {
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
        let made = made.ok_or_else(gone)?;
        let class = extra.class.map(|class| tree.name_of(class));
        let made = if class.as_deref() == Some(PARAMETER) { torch.parameter(&made)? } else { made };
        self.states.extend(extra.states.iter().map(|&state| (made.clone(), state)));
        self.handles.insert(tensor, made.clone());
        Ok(made)
    }

    /// Scales or zero points: a tensor, or a list of plain numbers, which itself may still wait to be filled.
    fn channels(&self, part: Handle) -> PyResult<Bound<'py, PyAny>> {
        let py = self.py;
        let Object::List(items) = self.tree.get(part)? else { return self.get(part) };
        let numbers = PyList::empty(py);
        for &item in &*items {
            match self.tree.get(item)? {
                Object::Int(number) => numbers.append(number)?,
                Object::Float(number) => numbers.append(number)?,
                _ => return Err(Error::new(Code::InternalError, "a scale is no number").into()),
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

/// A key or item that Python cannot hash: only calls of `set`, `dict` and their like can have one, the machine checks all others.
fn hashed(py: Python<'_>, error: PyErr) -> PyErr {
    if !error.is_instance_of::<PyTypeError>(py) {
        return error;
    }
    let text = format!("a key or an item of a set cannot be one: {}", error.value(py));
    Error::new(Code::PickleType, text).into()
}

/// Bytes of the text or bytes that a value is.
fn text_len(object: &Object<'_>) -> u64 {
    let len = match object {
        Object::Str(text) => text.as_bytes().len(),
        Object::Bytes(bytes) | Object::ByteArray(bytes) => bytes.len(),
        Object::Global { module, name } => module.len() + name.len(),
        _ => 0,
    };
    len as u64
}

/// Text; lone surrogates come out as Python's unpickler gives them.
pub(super) fn text<'py>(py: Python<'py>, text: &Text<'_>) -> PyResult<Bound<'py, PyAny>> {
    match text.as_str() {
        Some(text) => Ok(text.into_pyobject(py)?.into_any()),
        None => PyBytes::new(py, text.as_bytes()).call_method1("decode", ("utf-8", "surrogatepass")),
    }
}
