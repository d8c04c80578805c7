//! The object tree of a pickle: its values as descriptions of Python objects. No Python object is constructed.

mod children;
mod keys;
mod number;

pub(crate) use children::{Child, Naming};

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use self::number::number;
use crate::bytes::Bytes;
use crate::error::Result;
use crate::index::model::{Extra, Part, Sparse, SparseLayout, ValueBytes};
use crate::index::pickled::known::{Known, Rebuild, TensorClass};
use crate::index::pickled::meaning::{Meaning, Meanings, NumpyType};
use crate::layout::Dims;
use crate::limits::Limits;
use crate::num::to_u64;
use crate::pickle::{BigInt, Call, CallId, Disasm, GlobalId, Handle, Opcode, Snapshot, Text, Value, Values};

/// The values of one pickle and the interpretation of its calls.
#[derive(Debug)]
pub struct Tree {
    values: Values,
    meanings: Meanings,
    root: Handle,
}

/// A borrowed tree, which may still be incomplete.
#[derive(Clone, Copy)]
pub(crate) struct View<'a> {
    pub(crate) values: &'a Values,
    pub(crate) meanings: &'a Meanings,
}

/// The class of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DictKind {
    /// `dict`.
    Dict,
    /// `collections.OrderedDict`.
    OrderedDict,
    /// `collections.defaultdict`.
    DefaultDict,
    /// `collections.Counter`.
    Counter,
}

/// One value, with handles to its children.
#[derive(Clone, Debug)]
pub enum Object<'a> {
    /// `None`.
    None,
    /// `True` or `False`.
    Bool(bool),
    /// An integer of 64 bits.
    Int(i64),
    /// An unsigned integer of 64 bits.
    Uint(u64),
    /// A longer integer.
    BigInt(BigInt<'a>),
    /// A float.
    Float(f64),
    /// A complex number.
    Complex(f64, f64),
    /// Text.
    Str(Text<'a>),
    /// Bytes.
    Bytes(Vec<u8>),
    /// A byte array.
    ByteArray(Vec<u8>),
    /// A list.
    List(Cow<'a, [Handle]>),
    /// A tuple, or a `torch.Size`.
    Tuple(&'a [Handle]),
    /// A deque and its maximum length.
    Deque(Vec<Handle>, Option<i64>),
    /// A set.
    Set(Vec<Handle>),
    /// A frozen set.
    FrozenSet(Vec<Handle>),
    /// A mapping; of duplicate keys, the last one is kept, as in Python.
    Dict {
        /// Its class.
        kind: DictKind,
        /// Keys and values.
        entries: Vec<(Handle, Handle)>,
        /// The states that BUILD set on it (`_metadata` on an OrderedDict).
        states: &'a [Snapshot],
        /// The default factory of a defaultdict, usually a global.
        factory: Option<Handle>,
    },
    /// A class or function by name; it is never imported.
    Global {
        /// The module.
        module: &'a str,
        /// The name.
        name: &'a str,
    },
    /// A tensor of the index.
    Tensor(u32),
    /// A sparse tensor, which consists of other tensors.
    Sparse(Sparse),
    /// A value of an unknown class, kept as data.
    Opaque {
        /// Its class, for [`Tree::name_of`]; `None` where the callable is the result of another call.
        class: Option<GlobalId>,
        /// The call.
        call: Call<'a>,
        /// The callable, where it is the result of another call.
        function: Option<Handle>,
    },
}

impl Tree {
    pub(crate) fn new(values: Values, meanings: Meanings, root: Handle) -> Tree {
        Tree { values, meanings, root }
    }

    /// The root value.
    pub fn root(&self) -> Handle {
        self.root
    }

    /// The number of values.
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// The number of bytes of the pickle.
    pub(crate) fn pickle_bytes(&self) -> u64 {
        to_u64(self.values.data().len())
    }

    /// Whether there is no value. A pickle always has one.
    pub fn is_empty(&self) -> bool {
        self.values.len() == 0
    }

    /// The value of a handle.
    pub fn get(&self, handle: Handle) -> Result<Object<'_>> {
        View { values: &self.values, meanings: &self.meanings }.get(handle)
    }

    /// The items of a list as a call found them; `None` for other values.
    pub fn list_at(&self, list: Snapshot) -> Option<&[Handle]> {
        match self.values.get_at(list) {
            Value::List(items) => Some(items),
            _ => None,
        }
    }

    /// The attributes that a state sets, of which the last counts for a name; `None` for a state that is neither a dict nor a pair of a
    /// dict and slots.
    pub fn attributes(&self, state: Snapshot) -> Result<Option<Vec<(Handle, Handle)>>> {
        match (View { values: &self.values, meanings: &self.meanings }).state_parts(state) {
            Some(parts) => self.values.unique(&parts.concat()).map(Some),
            None => Ok(None),
        }
    }

    /// Whether a state was a dict with fewer attributes than it has at the end of the pickle.
    pub fn has_grown(&self, state: Snapshot) -> bool {
        match (self.values.get(state.value), self.values.get_at(state)) {
            (Value::Dict(pairs), Value::Dict(earlier)) => earlier.len() < pairs.len(),
            _ => false,
        }
    }

    /// The cost of listing a value's children: the number of its items and pairs before duplicate keys are merged, including those of
    /// arguments that it shares with other values.
    pub fn weight(&self, handle: Handle) -> u64 {
        View { values: &self.values, meanings: &self.meanings }.weight(handle)
    }

    /// Whether a value is a `torch.Size`, which [`get`](Tree::get) returns as a tuple.
    pub fn is_size(&self, handle: Handle) -> bool {
        match self.values.get(handle) {
            Value::Call(id) => self.meanings.calls.get(id.index()) == Some(&Meaning::Tuple),
            _ => false,
        }
    }

    /// Whether a call that rebuilds a tensor has an argument for hooks; the oldest forms have none.
    pub fn has_hooks(&self, handle: Handle) -> bool {
        let Value::Call(id) = self.values.get(handle) else { return false };
        let Value::Global(id) = self.values.get(self.values.call(id).callable) else { return false };
        match self.meanings.globals.get(id.index()).copied().flatten() {
            Some(Known::Rebuild(rebuild)) => {
                !matches!(rebuild, Rebuild::Tensor | Rebuild::Meta | Rebuild::FromDevice)
            }
            Some(Known::TensorClass(class)) => class == TensorClass::Parameter,
            _ => false,
        }
    }

    /// Whether a value is a storage itself, which [`get`](Tree::get) returns as a 1-D tensor.
    pub fn is_storage(&self, handle: Handle) -> bool {
        match self.values.get(handle) {
            Value::PersistentId(pid) => self.meanings.bare.contains_key(&pid),
            Value::Call(id) => matches!(self.meanings.calls.get(id.index()), Some(Meaning::Storage(_))),
            _ => false,
        }
    }

    /// The quantized dtype of a storage that is a value itself, by its 1-D tensor; `None` for any other storage.
    pub fn quantized_storage(&self, tensor: u32) -> Option<&'static str> {
        self.meanings.quantized_storages.get(&tensor).copied()
    }

    /// The offsets of all binary strings of Python 2, which are text or bytes as a reader chooses.
    pub fn byte_strings(&self, limits: &Limits) -> HashSet<usize> {
        let ops = Disasm::strict(self.values.data(), 0, limits).map_while(|op| op.ok());
        let strings = ops.filter(|op| matches!(op.opcode, Opcode::BinString | Opcode::ShortBinString));
        strings.map(|op| op.payload).collect()
    }

    /// The offset of the first byte of a string or of bytes, as in [`byte_strings`](Tree::byte_strings).
    pub fn text_offset(&self, handle: Handle) -> Option<usize> {
        self.values.text_offset(handle)
    }

    /// The further properties of a tensor; `None` where it has none.
    pub fn extra(&self, tensor: u32) -> Option<&Extra> {
        self.meanings.extras.get(&tensor)
    }

    /// The tensors that are parts of larger ones.
    pub(crate) fn parts(&self) -> HashMap<u32, Part> {
        let part = |(&tensor, extra): (&u32, &Extra)| Some((tensor, extra.part.as_deref()?.clone()));
        self.meanings.extras.iter().filter_map(part).collect()
    }

    /// A global as `module.name`; a remark for `None`, the class of a call's result.
    pub fn name_of(&self, global: Option<GlobalId>) -> String {
        View { values: &self.values, meanings: &self.meanings }.class_name(global)
    }

    /// Every distinct global that the pickle names, as `module.name`, in program order.
    pub fn globals(&self) -> impl Iterator<Item = String> + '_ {
        self.values.globals().map(|(id, _)| {
            let global = self.values.global(id);
            format!("{}.{}", global.module, global.name)
        })
    }
}

impl ValueBytes for Tree {
    fn bytes(self: Arc<Self>, handle: Handle) -> Option<Bytes> {
        let is_borrowed = match self.values.get(handle) {
            Value::Bytes(_) | Value::ByteArray(_) => true,
            Value::Str(text) => text.as_bytes().is_ascii() || self.values.is_byte_string(handle),
            _ => false,
        };
        if is_borrowed {
            return Some(Arc::new(TreeBytes { tree: self, value: handle }));
        }
        match self.get(handle).ok()? {
            Object::Bytes(bytes) | Object::ByteArray(bytes) => Some(Arc::new(bytes)),
            Object::Str(text) => Some(Arc::new(latin1(text))),
            _ => None,
        }
    }
}

/// The bytes of a value, borrowed from the tree.
struct TreeBytes {
    tree: Arc<Tree>,
    value: Handle,
}

impl AsRef<[u8]> for TreeBytes {
    fn as_ref(&self) -> &[u8] {
        match self.tree.values.get(self.value) {
            Value::Bytes(bytes) | Value::ByteArray(bytes) => bytes,
            Value::Str(text) => text.as_bytes(),
            _ => &[],
        }
    }
}

impl<'a> View<'a> {
    /// The value of a handle.
    pub(crate) fn get(self, handle: Handle) -> Result<Object<'a>> {
        Ok(match self.values.get(handle) {
            Value::None => Object::None,
            Value::Bool(value) => Object::Bool(value),
            Value::Int(value) => Object::Int(value),
            Value::BigInt(value) => Object::BigInt(value),
            Value::Float(value) => Object::Float(value),
            Value::Str(text) => Object::Str(text),
            Value::Bytes(bytes) => Object::Bytes(bytes.to_vec()),
            Value::ByteArray(bytes) => Object::ByteArray(bytes.to_vec()),
            Value::List(items) => Object::List(Cow::Borrowed(items)),
            Value::Tuple(items) => Object::Tuple(items),
            Value::Set(items) => Object::Set(items.to_vec()),
            Value::FrozenSet(items) => Object::FrozenSet(items.to_vec()),
            Value::Dict(pairs) => {
                let entries = self.unique(pairs)?;
                Object::Dict { kind: DictKind::Dict, entries, states: &[], factory: None }
            }
            Value::Global(id) => {
                let global = self.values.global(id);
                Object::Global { module: global.module, name: global.name }
            }
            Value::PersistentId(pid) => match (self.meanings.tensor_of(pid), self.module(pid)) {
                (Some(tensor), _) => Object::Tensor(tensor),
                (None, Some(class)) => return self.get(class),
                (None, None) => Object::None,
            },
            Value::Call(id) => self.call(self.meaning(id), self.values.call(id))?,
        })
    }

    fn call(self, meaning: Meaning, call: Call<'a>) -> Result<Object<'a>> {
        let args = self.args(&call);
        let at_call = |value| Snapshot { value, offset: call.offset };
        Ok(match meaning {
            Meaning::Tensor(tensor) | Meaning::Storage(tensor) => Object::Tensor(tensor),
            Meaning::Sparse(layout) => Object::Sparse(self.sparse(layout, args)),
            Meaning::Dict(known) => {
                let (kind, source) = match known {
                    Known::Counter => (DictKind::Counter, args.first()),
                    Known::DefaultDict => (DictKind::DefaultDict, args.get(1)),
                    Known::OrderedDict => (DictKind::OrderedDict, args.first()),
                    _ => (DictKind::Dict, args.first()),
                };
                let mut pairs = source.map(|&source| self.pairs(at_call(source))).unwrap_or_default();
                pairs.extend_from_slice(call.items);
                let factory = args.first().copied().filter(|&factory| {
                    kind == DictKind::DefaultDict && !matches!(self.values.get(factory), Value::None)
                });
                Object::Dict { kind, entries: self.unique(&pairs)?, states: call.states, factory }
            }
            Meaning::Sequence(known) => {
                let mut items =
                    args.first().map(|&source| self.items_at(at_call(source)).to_vec()).unwrap_or_default();
                items.extend_from_slice(call.appended);
                match known {
                    Known::Deque => Object::Deque(items, self.maxlen(args)),
                    Known::Set => Object::Set(items),
                    Known::FrozenSet => Object::FrozenSet(items),
                    _ => Object::List(Cow::Owned(items)),
                }
            }
            Meaning::Tuple => {
                Object::Tuple(args.first().map(|&source| self.items_at(at_call(source))).unwrap_or_default())
            }
            Meaning::Bytes => Object::Bytes(self.latin1(args)),
            Meaning::ByteArray => Object::ByteArray(self.latin1(args)),
            Meaning::Complex => match args {
                [re, im] => Object::Complex(self.real(*re), self.real(*im)),
                _ => Object::Complex(0.0, 0.0),
            },
            Meaning::Scalar(numpy_type, bytes) => self.scalar(numpy_type, bytes)?,
            Meaning::NumpyDtype(_) | Meaning::Record | Meaning::Opaque => {
                let function = Some(call.callable).filter(|&callable| self.is_call(callable));
                Object::Opaque { class: self.class_id(&call), call, function }
            }
        })
    }

    /// The sparse tensor of a call whose arguments are known to have the right form.
    fn sparse(self, layout: SparseLayout, args: &[Handle]) -> Sparse {
        let data = args.get(1).map_or(&[][..], |&data| self.items(data));
        let size_at = layout.components().len();
        let size = |handle| match self.get(handle) {
            Ok(Object::Tuple(sizes)) => sizes,
            _ => &[],
        };
        let count = |&n: &Handle| match self.values.get(n) {
            Value::Int(n) => u64::try_from(n).ok(),
            _ => None,
        };
        let shape: Dims =
            data.get(size_at).map_or(&[][..], |&sizes| size(sizes)).iter().filter_map(count).collect();
        let is_coalesced =
            data.get(size_at.saturating_add(1)).and_then(|&flag| match self.values.get(flag) {
                Value::Bool(flag) => Some(flag),
                _ => None,
            });
        let components = layout.components().iter().copied().zip(data.iter().copied()).collect();
        Sparse { layout, shape, is_coalesced, components }
    }

    /// The further properties of a tensor; `None` where it has none.
    pub(crate) fn extra(self, tensor: u32) -> Option<&'a Extra> {
        self.meanings.extras.get(&tensor)
    }

    /// The class that a persistent id of a legacy stream refers to; `None` for other ids.
    pub(crate) fn module(self, pid: Handle) -> Option<Handle> {
        self.meanings.module(self.values, pid)
    }

    /// A NumPy scalar as a number.
    fn scalar(self, numpy_type: NumpyType, handle: Handle) -> Result<Object<'a>> {
        let mut bytes = match self.get(handle)? {
            Object::Bytes(bytes) | Object::ByteArray(bytes) => bytes,
            Object::Str(text) if self.values.is_byte_string(handle) => text.as_bytes().to_vec(),
            Object::Str(text) => latin1(text),
            _ => Vec::new(),
        };
        if numpy_type.big_endian {
            for part in bytes.chunks_mut(usize::try_from(numpy_type.dtype.swap_unit()).unwrap_or(1)) {
                part.reverse();
            }
        }
        Ok(number(numpy_type.dtype, &bytes).unwrap_or(Object::None))
    }

    fn args(self, call: &Call<'a>) -> &'a [Handle] {
        self.items(call.args)
    }

    fn items(self, handle: Handle) -> &'a [Handle] {
        items(self.values.get(handle))
    }

    fn items_at(self, snapshot: Snapshot) -> &'a [Handle] {
        items(self.values.get_at(snapshot))
    }

    /// The attributes that a state sets, in a dict or in a pair of a dict and slots (copyreg.py: `__reduce_ex__`); `None` for any other
    /// state.
    fn state_parts(self, state: Snapshot) -> Option<Vec<&'a [(Handle, Handle)]>> {
        let part = |value| match self.values.get_at(Snapshot { value, ..state }) {
            Value::Dict(pairs) => Some(pairs),
            Value::None => Some(&[][..]),
            _ => None,
        };
        match self.values.get(state.value) {
            Value::Tuple(&[attributes, slots]) => Some(vec![part(attributes)?, part(slots)?]),
            _ => Some(vec![part(state.value)?]),
        }
    }

    fn pairs(self, snapshot: Snapshot) -> Vec<(Handle, Handle)> {
        match self.values.get_at(snapshot) {
            Value::Dict(pairs) => pairs.to_vec(),
            Value::List(pairs) | Value::Tuple(pairs) => {
                let pair = |&pair: &Handle| match self.items(pair) {
                    &[key, value] => Some((key, value)),
                    _ => None,
                };
                pairs.iter().filter_map(pair).collect()
            }
            _ => Vec::new(),
        }
    }

    fn maxlen(self, args: &[Handle]) -> Option<i64> {
        match args.get(1).map(|&limit| self.values.get(limit)) {
            Some(Value::Int(limit)) => Some(limit),
            _ => None,
        }
    }

    fn latin1(self, args: &[Handle]) -> Vec<u8> {
        match args.first().map(|&source| self.values.get(source)) {
            Some(Value::Str(text)) => latin1(text),
            Some(Value::Bytes(bytes)) => bytes.to_vec(),
            // A byte array nests one level: `bytearray(_codecs.encode(text, 'latin1'))`.
            Some(Value::Call(id)) if self.meaning(id) == Meaning::Bytes => {
                self.latin1(self.args(&self.values.call(id)))
            }
            _ => Vec::new(),
        }
    }

    #[expect(
        clippy::as_conversions,
        reason = "an i64 has no lossless conversion to f64; Python rounds the same way"
    )]
    fn real(self, handle: Handle) -> f64 {
        match self.values.get(handle) {
            Value::Float(value) => value,
            Value::Int(value) => value as f64,
            _ => 0.0,
        }
    }

    /// The class where a value is a persistent id of a class; otherwise the value itself.
    fn resolve_class(self, handle: Handle) -> Handle {
        match self.values.get(handle) {
            Value::PersistentId(pid) => self.module(pid).unwrap_or(handle),
            _ => handle,
        }
    }

    /// The class of the value that a call creates; `None` where the callable is the result of another call.
    pub(crate) fn class_id(self, call: &Call<'a>) -> Option<GlobalId> {
        let id = |handle| match self.values.get(self.resolve_class(handle)) {
            Value::Global(id) => Some(id),
            _ => None,
        };
        let callable = id(call.callable)?;
        let global = self.values.global(callable);
        // The argument of a function that is the class of its result (copyreg.py, torch/_utils.py, torch/_tensor.py).
        let position = match (global.module, global.name) {
            ("copyreg", "_reconstructor") | ("torch._utils", "_rebuild_wrapper_subclass") => Some(0),
            _ if self.is_from_type(call) => Some(1),
            _ => None,
        };
        let class = position.and_then(|at: usize| self.args(call).get(at)).and_then(|&class| id(class));
        Some(class.unwrap_or(callable))
    }

    /// Whether a call is `_rebuild_from_type_v2(rebuild, class, args, state)`.
    pub(crate) fn is_from_type(self, call: &Call<'a>) -> bool {
        let Value::Global(id) = self.values.get(call.callable) else { return false };
        let known = self.meanings.globals.get(id.index()).copied().flatten();
        known == Some(Known::Rebuild(Rebuild::FromType)) && self.args(call).len() == 4
    }

    /// A class as `module.name`.
    pub(crate) fn class_name(self, id: Option<GlobalId>) -> String {
        match id.map(|id| self.values.global(id)) {
            Some(global) => format!("{}.{}", global.module, global.name),
            None => "(result of a call)".to_owned(),
        }
    }

    pub(crate) fn meaning(self, id: CallId) -> Meaning {
        self.meanings.calls.get(id.index()).copied().unwrap_or(Meaning::Opaque)
    }
}

/// The items of a list, tuple or set; none for other values.
fn items(value: Value<'_>) -> &[Handle] {
    match value {
        Value::List(items) | Value::Tuple(items) | Value::Set(items) | Value::FrozenSet(items) => items,
        _ => &[],
    }
}

/// A string in latin-1, without characters that it lacks.
fn latin1(text: Text<'_>) -> Vec<u8> {
    let text = text.as_str().unwrap_or_default();
    text.chars().filter_map(|c| u8::try_from(u32::from(c)).ok()).collect()
}
