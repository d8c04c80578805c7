//! The object tree of a pickle: abstract values seen as the Python objects they stand for, none of them built.

use std::collections::HashSet;

use super::Step;
use super::known::Known;
use super::meaning::{Ids, Meaning, Meanings, NumpyType, SHORT};
use crate::dtype::DType;
use crate::error::Result;
use crate::pickle::{BigInt, Call, CallId, GlobalId, Handle, Text, Value, Values};

/// The values of one pickle and what they mean.
#[derive(Debug)]
pub struct Tree {
    values: Values,
    meanings: Meanings,
    root: Handle,
}

/// A borrowed tree, also before it is complete.
#[derive(Clone, Copy)]
pub(super) struct View<'a> {
    pub(super) values: &'a Values,
    pub(super) meanings: &'a Meanings,
}

/// Which mapping a dict is.
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

/// One value, with handles to those inside it.
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
    List(&'a [Handle]),
    /// A tuple, or a `torch.Size`.
    Tuple(&'a [Handle]),
    /// A deque and its greatest length.
    Deque(Vec<Handle>, Option<i64>),
    /// A set.
    Set(Vec<Handle>),
    /// A frozen set.
    FrozenSet(Vec<Handle>),
    /// A mapping: entries as Python would have them, the last of equal keys winning.
    Dict {
        /// Which mapping.
        kind: DictKind,
        /// Keys and values.
        entries: Vec<(Handle, Handle)>,
        /// What BUILD set on it (`_metadata` on an OrderedDict).
        states: &'a [Handle],
    },
    /// The name of a class or function, never looked up.
    Global {
        /// The module.
        module: &'a str,
        /// The name.
        name: &'a str,
    },
    /// A tensor of the index.
    Tensor(u32),
    /// A value of a class that is kept as data.
    Opaque {
        /// `module.name`.
        class: String,
        /// The call as it was written.
        call: Call<'a>,
    },
}

/// What a `torch.nn.Module` keeps its state dict in, and which of its buffers are left out of it.
const MODULE: [&str; 4] = ["_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"];

impl Tree {
    pub(super) fn new(values: Values, meanings: Meanings, root: Handle) -> Tree {
        Tree { values, meanings, root }
    }

    /// The outermost value.
    pub fn root(&self) -> Handle {
        self.root
    }

    /// The number of values.
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Whether there is no value; a pickle always has one.
    pub fn is_empty(&self) -> bool {
        self.values.len() == 0
    }

    /// The value that a handle means.
    pub fn get(&self, handle: Handle) -> Result<Object<'_>> {
        View { values: &self.values, meanings: &self.meanings }.get(handle)
    }

    /// What it costs to list what is inside a value: its items and pairs as the file has them, before equal keys become one,
    /// and those of arguments that it shares with other values.
    pub fn weight(&self, handle: Handle) -> u64 {
        View { values: &self.values, meanings: &self.meanings }.weight(handle)
    }

    /// The bytes that a value stands for: bytes, a byte array, a byte string of Python 2, or text encoded as latin-1.
    pub fn bytes(&self, handle: Handle) -> Option<Vec<u8>> {
        match self.get(handle).ok()? {
            Object::Bytes(bytes) | Object::ByteArray(bytes) => Some(bytes),
            Object::Str(text) => Some(text.as_bytes().to_vec()),
            _ => None,
        }
    }

    /// Every distinct global that the pickle names, as `module.name`, in program order.
    pub fn globals(&self) -> impl Iterator<Item = String> + '_ {
        self.values.globals().map(|(id, _)| {
            let global = self.values.global(id);
            format!("{}.{}", global.module, global.name)
        })
    }
}

impl<'a> View<'a> {
    /// The value that a handle means.
    pub(super) fn get(self, handle: Handle) -> Result<Object<'a>> {
        Ok(match self.values.get(handle) {
            Value::None => Object::None,
            Value::Bool(value) => Object::Bool(value),
            Value::Int(value) => Object::Int(value),
            Value::BigInt(value) => Object::BigInt(value),
            Value::Float(value) => Object::Float(value),
            Value::Str(text) => Object::Str(text),
            Value::Bytes(bytes) => Object::Bytes(bytes.to_vec()),
            Value::ByteArray(bytes) => Object::ByteArray(bytes.to_vec()),
            Value::List(items) => Object::List(items),
            Value::Tuple(items) => Object::Tuple(items),
            Value::Set(items) => Object::Set(items.to_vec()),
            Value::FrozenSet(items) => Object::FrozenSet(items.to_vec()),
            Value::Dict(_) => {
                Object::Dict { kind: DictKind::Dict, entries: self.values.entries(handle)?, states: &[] }
            }
            Value::Global(id) => {
                let global = self.values.global(id);
                Object::Global { module: global.module, name: global.name }
            }
            Value::PersistentId(pid) => match (self.meanings.bare.get(&pid), self.module(pid)) {
                (Some(&tensor), _) => Object::Tensor(tensor),
                (None, Some(class)) => return self.get(class),
                (None, None) => Object::None,
            },
            Value::Call(id) => self.call(self.meaning(id), self.values.call(id))?,
        })
    }

    fn call(self, meaning: Meaning, call: Call<'a>) -> Result<Object<'a>> {
        let args = self.args(&call);
        Ok(match meaning {
            Meaning::Tensor(tensor) => Object::Tensor(tensor),
            Meaning::Dict(known) => {
                let (kind, from) = match known {
                    Known::Counter => (DictKind::Counter, args.first()),
                    Known::DefaultDict => (DictKind::DefaultDict, args.get(1)),
                    Known::OrderedDict => (DictKind::OrderedDict, args.first()),
                    _ => (DictKind::Dict, args.first()),
                };
                let mut pairs = from.map(|&from| self.pairs(from)).unwrap_or_default();
                pairs.extend_from_slice(call.items);
                Object::Dict { kind, entries: self.values.unique(&pairs)?, states: call.states }
            }
            Meaning::Sequence(known) => {
                let mut items = args.first().map(|&from| self.items(from).to_vec()).unwrap_or_default();
                items.extend_from_slice(call.appended);
                match known {
                    Known::Deque => Object::Deque(items, self.maxlen(args)),
                    Known::Set => Object::Set(items),
                    Known::FrozenSet => Object::FrozenSet(items),
                    _ => Object::Deque(items, None),
                }
            }
            Meaning::Size => Object::Tuple(args.first().map(|&from| self.items(from)).unwrap_or_default()),
            Meaning::Bytes => Object::Bytes(self.latin1(args)),
            Meaning::ByteArray => Object::ByteArray(self.latin1(args)),
            Meaning::Complex => match args {
                [re, im] => Object::Complex(self.real(*re), self.real(*im)),
                _ => Object::Complex(0.0, 0.0),
            },
            Meaning::Scalar(found, bytes) => self.scalar(found, bytes)?,
            Meaning::NumpyDtype(_) | Meaning::Record | Meaning::Opaque => {
                Object::Opaque { class: self.class(&call), call }
            }
        })
    }

    /// The class of `('module', class, file, source)`, a persistent id that stands for the class itself; always a global.
    pub(super) fn module(self, pid: Handle) -> Option<Handle> {
        if self.meanings.ids != Ids::Legacy {
            return None;
        }
        let Value::Tuple(&[tag, class, _, _]) = self.values.get(pid) else { return None };
        let is_tag = matches!(self.values.get(tag), Value::Str(tag) if tag.as_str() == Some("module"));
        (is_tag && matches!(self.values.get(class), Value::Global(_))).then_some(class)
    }

    /// A NumPy scalar as the number it is.
    fn scalar(self, found: NumpyType, bytes: Handle) -> Result<Object<'a>> {
        let mut bytes = match self.get(bytes)? {
            Object::Bytes(bytes) | Object::ByteArray(bytes) => bytes,
            Object::Str(text) => text.as_bytes().to_vec(),
            _ => Vec::new(),
        };
        if found.big_endian {
            for part in bytes.chunks_mut(usize::try_from(found.dtype.swap_unit()).unwrap_or(1)) {
                part.reverse();
            }
        }
        Ok(number(found.dtype, &bytes).unwrap_or(Object::None))
    }

    fn args(self, call: &Call<'a>) -> &'a [Handle] {
        self.items(call.args)
    }

    fn items(self, handle: Handle) -> &'a [Handle] {
        match self.values.get(handle) {
            Value::List(items) | Value::Tuple(items) | Value::Set(items) | Value::FrozenSet(items) => items,
            _ => &[],
        }
    }

    fn pairs(self, handle: Handle) -> Vec<(Handle, Handle)> {
        match self.values.get(handle) {
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
        match args.first().map(|&from| self.values.get(from)) {
            Some(Value::Str(text)) => {
                let text = text.as_str().unwrap_or_default();
                text.chars().filter_map(|c| u8::try_from(u32::from(c)).ok()).collect()
            }
            Some(Value::Bytes(bytes)) => bytes.to_vec(),
            // The one level of nesting that a byte array has: `bytearray(_codecs.encode(text, 'latin1'))`.
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

    /// The class behind a persistent id that stands for one; anything else is itself.
    fn named(self, handle: Handle) -> Handle {
        match self.values.get(handle) {
            Value::PersistentId(pid) => self.module(pid).unwrap_or(handle),
            _ => handle,
        }
    }

    /// The class that a call makes a value of; `None` where that is the result of another call.
    pub(super) fn class_id(self, call: &Call<'a>) -> Option<GlobalId> {
        let id = |handle| match self.values.get(self.named(handle)) {
            Value::Global(id) => Some(id),
            _ => None,
        };
        let callable = id(call.callable)?;
        let global = self.values.global(callable);
        // copyreg._reconstructor(cls, base, state) makes a `cls` (copyreg.py).
        let first = match (global.module, global.name) {
            ("copyreg", "_reconstructor") => self.args(call).first().and_then(|&class| id(class)),
            _ => None,
        };
        Some(first.unwrap_or(callable))
    }

    /// A class as `module.name`.
    pub(super) fn class_name(self, id: Option<GlobalId>) -> String {
        match id.map(|id| self.values.global(id)) {
            Some(global) => format!("{}.{}", global.module, global.name),
            None => "(result of a call)".to_owned(),
        }
    }

    fn class(self, call: &Call<'a>) -> String {
        self.class_name(self.class_id(call))
    }

    pub(super) fn meaning(self, id: CallId) -> Meaning {
        self.meanings.calls.get(id.index()).copied().unwrap_or(Meaning::Opaque)
    }

    /// What it costs to list a value's children: the items and pairs that are looked at, also where equal keys leave few.
    pub(super) fn weight(self, handle: Handle) -> u64 {
        let count = match self.values.get(handle) {
            Value::Dict(pairs) => pairs.len(),
            Value::Call(id) => {
                let call = self.values.call(id);
                let own = call.items.len().saturating_add(call.appended.len());
                let parts: &[Handle] = match self.meaning(id) {
                    Meaning::Dict(_) | Meaning::Sequence(_) | Meaning::Size => self.args(&call),
                    Meaning::Record | Meaning::Opaque | Meaning::NumpyDtype(_) => &[call.args],
                    _ => return 0,
                };
                let states = call.kwargs.iter().chain(call.states);
                let own = parts.iter().fold(own, |count, &part| count.saturating_add(self.width(part)));
                states.fold(own, |count, &state| count.saturating_add(self.state_width(state)))
            }
            _ => self.items(handle).len(),
        };
        u64::try_from(count).unwrap_or(u64::MAX)
    }

    /// The items or pairs of an argument or a state.
    fn width(self, handle: Handle) -> usize {
        let own = |handle| match self.values.get(handle) {
            Value::Dict(pairs) => pairs.len(),
            _ => self.items(handle).len(),
        };
        match self.values.get(handle) {
            Value::Tuple(&[one, two]) => own(one).saturating_add(own(two)).saturating_add(2),
            _ => own(handle),
        }
    }

    /// A state and the dicts of a module that are listed with it.
    fn state_width(self, state: Handle) -> usize {
        let of = |dict| match self.values.get(dict) {
            Value::Call(id) => {
                let call = self.values.call(id);
                let own = call.items.len().saturating_add(call.appended.len());
                self.args(&call).iter().fold(own, |count, &part| count.saturating_add(self.width(part)))
            }
            _ => self.width(dict),
        };
        let module = |state| match self.values.get(state) {
            Value::Dict(pairs) => {
                let named = MODULE.map(|name| self.attribute(pairs, name));
                named.into_iter().flatten().fold(0, |count: usize, dict| count.saturating_add(of(dict)))
            }
            _ => 0,
        };
        let halves: &[Handle] = match self.values.get(state) {
            Value::Tuple(halves @ [_, _]) => halves,
            _ => &[state],
        };
        halves.iter().fold(self.width(state), |count, &half| count.saturating_add(module(half)))
    }

    /// Every value that a value is made of, tensors excepted: a superset of its children, each as often as the file has it.
    pub(super) fn parts(self, handle: Handle, mut each: impl FnMut(Handle)) {
        match self.values.get(handle) {
            Value::Dict(pairs) => pairs.iter().for_each(|&(_, value)| each(value)),
            Value::Call(id) => {
                if let Meaning::Tensor(_) | Meaning::Bytes | Meaning::ByteArray | Meaning::Complex =
                    self.meaning(id)
                {
                    return;
                }
                let call = self.values.call(id);
                each(call.args);
                call.kwargs.iter().chain(call.states).chain(call.appended).for_each(|&part| each(part));
                call.items.iter().for_each(|&(_, value)| each(value));
            }
            _ => self.items(handle).iter().for_each(|&item| each(item)),
        }
    }

    /// The values inside a value, each with the step that leads to it; tensors have none.
    pub(super) fn children(self, handle: Handle) -> Result<Vec<(Step, Handle)>> {
        let mut out = Vec::new();
        match self.values.get(handle) {
            Value::Dict(pairs) => self.keyed(pairs, &mut out)?,
            Value::Call(id) => {
                let call = self.values.call(id);
                match self.meaning(id) {
                    Meaning::Dict(_) | Meaning::Sequence(_) | Meaning::Size => match self.get(handle)? {
                        Object::Tuple(items) => indexed(items, &mut out),
                        Object::Deque(items, _) | Object::Set(items) | Object::FrozenSet(items) => {
                            indexed(&items, &mut out);
                        }
                        Object::Dict { entries, states, .. } => {
                            out.extend(entries.into_iter().map(|(key, value)| (Step::Key(key), value)));
                            for &state in states {
                                self.state_children(state, &mut out)?;
                            }
                        }
                        _ => {}
                    },
                    Meaning::Record | Meaning::Opaque | Meaning::NumpyDtype(_) => {
                        out.extend((0..).map(Step::Argument).zip(self.args(&call).iter().copied()));
                        for &state in call.kwargs.iter().chain(call.states) {
                            self.state_children(state, &mut out)?;
                        }
                        self.keyed(call.items, &mut out)?;
                        indexed(call.appended, &mut out);
                    }
                    _ => {}
                }
            }
            _ => indexed(self.items(handle), &mut out),
        }
        Ok(out)
    }

    /// A state's attributes: a dict, or a pair of the dict and the slots (copyreg.py: `__reduce_ex__`).
    fn state_children(self, state: Handle, out: &mut Vec<(Step, Handle)>) -> Result<()> {
        match self.values.get(state) {
            Value::Dict(_) => self.attributes(state, out),
            Value::Tuple(&[attributes, slots])
                if [attributes, slots]
                    .iter()
                    .all(|&half| matches!(self.values.get(half), Value::Dict(_) | Value::None)) =>
            {
                self.attributes(attributes, out)?;
                self.attributes(slots, out)
            }
            _ => {
                out.push((Step::Argument(0), state));
                Ok(())
            }
        }
    }

    /// The attributes of a dict of them. Those of a `torch.nn.Module` come as `state_dict()` names them: parameters, then
    /// persistent buffers, then modules (torch/nn/modules/module.py: `_save_to_state_dict`), then whatever else there is.
    fn attributes(self, attributes: Handle, out: &mut Vec<(Step, Handle)>) -> Result<()> {
        let Value::Dict(pairs) = self.values.get(attributes) else { return Ok(()) };
        let [parameters, buffers, modules, hidden] = MODULE.map(|name| self.attribute(pairs, name));
        let (Some(parameters), Some(buffers), Some(modules)) = (parameters, buffers, modules) else {
            return self.keyed(pairs, out);
        };
        let own = [parameters, buffers, modules];
        let short = |name| self.text(name).filter(|name| name.as_bytes().len() <= SHORT);
        let hidden: HashSet<Text<'_>> = match hidden.map(|set| self.get(set)) {
            Some(Ok(Object::Set(names) | Object::FrozenSet(names))) => {
                names.into_iter().filter_map(short).collect()
            }
            _ => HashSet::new(),
        };
        for dict in own {
            if let Object::Dict { entries, .. } = self.get(dict)? {
                let is_hidden = |key| dict == buffers && short(key).is_some_and(|key| hidden.contains(&key));
                let shown = entries.into_iter().filter(|&(key, _)| !is_hidden(key));
                out.extend(shown.map(|(key, value)| (Step::Key(key), value)));
            }
        }
        let others = self.values.unique(pairs)?.into_iter().filter(|(_, value)| !own.contains(value));
        out.extend(others.map(|(key, value)| (Step::Key(key), value)));
        Ok(())
    }

    /// The value of a dict's last key that is this text.
    fn attribute(self, pairs: &[(Handle, Handle)], name: &str) -> Option<Handle> {
        let is_name = |key| self.text(key).is_some_and(|key| key.as_bytes() == name.as_bytes());
        pairs.iter().rev().find(|&&(key, _)| is_name(key)).map(|&(_, value)| value)
    }

    fn text(self, handle: Handle) -> Option<Text<'a>> {
        match self.values.get(handle) {
            Value::Str(text) => Some(text),
            _ => None,
        }
    }

    /// The values of a dict, the last of equal keys winning.
    fn keyed(self, pairs: &[(Handle, Handle)], out: &mut Vec<(Step, Handle)>) -> Result<()> {
        out.extend(self.values.unique(pairs)?.into_iter().map(|(key, value)| (Step::Key(key), value)));
        Ok(())
    }
}

/// The number that little-endian bytes are; `None` where there are not as many as the dtype has.
fn number(dtype: DType, bytes: &[u8]) -> Option<Object<'static>> {
    let float = |half: &[u8]| -> Option<f64> {
        Some(match half.len() {
            2 => half::f16::from_le_bytes(half.try_into().ok()?).to_f64(),
            4 => f64::from(f32::from_le_bytes(half.try_into().ok()?)),
            _ => f64::from_le_bytes(half.try_into().ok()?),
        })
    };
    Some(match dtype {
        DType::Bool => Object::Bool(*bytes.first()? != 0),
        DType::I8 => Object::Int(i8::from_le_bytes(bytes.try_into().ok()?).into()),
        DType::I16 => Object::Int(i16::from_le_bytes(bytes.try_into().ok()?).into()),
        DType::I32 => Object::Int(i32::from_le_bytes(bytes.try_into().ok()?).into()),
        DType::I64 => Object::Int(i64::from_le_bytes(bytes.try_into().ok()?)),
        DType::U8 => Object::Int(u8::from_le_bytes(bytes.try_into().ok()?).into()),
        DType::U16 => Object::Int(u16::from_le_bytes(bytes.try_into().ok()?).into()),
        DType::U32 => Object::Int(u32::from_le_bytes(bytes.try_into().ok()?).into()),
        DType::U64 => Object::Uint(u64::from_le_bytes(bytes.try_into().ok()?)),
        DType::F16 | DType::F32 | DType::F64 => Object::Float(float(bytes)?),
        DType::C64 | DType::C128 => {
            let (re, im) = bytes.split_at_checked(bytes.len().checked_div(2)?)?;
            Object::Complex(float(re)?, float(im)?)
        }
        _ => return None,
    })
}

fn indexed(items: &[Handle], out: &mut Vec<(Step, Handle)>) {
    out.extend((0..).map(Step::Index).zip(items.iter().copied()));
}
