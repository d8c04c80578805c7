//! Reads the values of a tree, as descriptions of Python objects.

use std::borrow::Cow;

use super::object::{DictKind, Object, number};
use crate::error::Result;
use crate::index::model::{Extra, Sparse, SparseLayout};
use crate::index::pickled::known::{Known, Rebuild};
use crate::index::pickled::meanings::{Meaning, Meanings, NumpyType};
use crate::layout::Dims;
use crate::pickle::{Call, CallId, GlobalId, Handle, Snapshot, Text, Value, Values};

/// A borrowed tree, which may still be incomplete.
#[derive(Clone, Copy)]
pub(crate) struct View<'a> {
    pub(crate) values: &'a Values,
    pub(crate) meanings: &'a Meanings,
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
        let sizes = data.get(size_at).map_or(&[][..], |&sizes| size(sizes));
        let shape: Dims = sizes.iter().filter_map(|&size| self.values.count_at(size)).collect();
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

    pub(super) fn args(self, call: &Call<'a>) -> &'a [Handle] {
        self.items(call.args)
    }

    pub(super) fn items(self, handle: Handle) -> &'a [Handle] {
        items(self.values.get(handle))
    }

    pub(super) fn items_at(self, snapshot: Snapshot) -> &'a [Handle] {
        items(self.values.get_at(snapshot))
    }

    /// The attributes that a state sets, in a dict or in a pair of a dict and slots (copyreg.py: `__reduce_ex__`); `None` for any other
    /// state.
    pub(super) fn state_parts(self, state: Snapshot) -> Option<Vec<&'a [(Handle, Handle)]>> {
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

    pub(super) fn pairs(self, snapshot: Snapshot) -> Vec<(Handle, Handle)> {
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
    pub(super) fn resolve_class(self, handle: Handle) -> Handle {
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
pub(super) fn latin1(text: Text<'_>) -> Vec<u8> {
    let text = text.as_str().unwrap_or_default();
    text.chars().filter_map(|c| u8::try_from(u32::from(c)).ok()).collect()
}
