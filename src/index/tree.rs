//! The object tree of a pickle: abstract values seen as the Python objects they stand for, none of them built.

use super::Step;
use super::known::Known;
use super::meaning::{Meaning, Meanings};
use crate::error::Result;
use crate::pickle::{BigInt, Call, Handle, Text, Value, Values};

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
            Value::Call(id) => {
                let call = self.values.call(id);
                match self.meanings.calls.get(id.index()) {
                    Some(&meaning) => self.call(meaning, call)?,
                    None => Object::Opaque { class: self.class(&call), call },
                }
            }
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
            Meaning::Record | Meaning::Opaque => Object::Opaque { class: self.class(&call), call },
        })
    }

    /// The class of `('module', class, file, source)`, a persistent id that stands for the class itself; always a global.
    pub(super) fn module(self, pid: Handle) -> Option<Handle> {
        let Value::Tuple(&[tag, class, ..]) = self.values.get(pid) else { return None };
        let is_tag = matches!(self.values.get(tag), Value::Str(tag) if tag.as_str() == Some("module"));
        (is_tag && matches!(self.values.get(class), Value::Global(_))).then_some(class)
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

    /// The class that a call makes a value of, as `module.name`.
    pub(super) fn class(self, call: &Call<'a>) -> String {
        let name = |handle| match self.values.get(self.named(handle)) {
            Value::Global(id) => {
                let global = self.values.global(id);
                Some(format!("{}.{}", global.module, global.name))
            }
            _ => None,
        };
        match name(call.callable) {
            // copyreg._reconstructor(cls, base, state) makes a `cls` (copyreg.py).
            Some(class) if class == "copyreg._reconstructor" => {
                self.args(call).first().and_then(|&class| name(class)).unwrap_or(class)
            }
            Some(class) => class,
            None => "(result of a call)".to_owned(),
        }
    }

    /// The values inside a value, each with the step that leads to it; tensors have none.
    pub(super) fn children(self, handle: Handle) -> Result<Vec<(Step, Handle)>> {
        let mut out = Vec::new();
        match self.get(handle)? {
            Object::List(items) | Object::Tuple(items) => indexed(items, &mut out),
            Object::Deque(items, _) | Object::Set(items) | Object::FrozenSet(items) => {
                indexed(&items, &mut out)
            }
            Object::Dict { entries, .. } => {
                out.extend(entries.into_iter().map(|(key, value)| (Step::Key(key), value)));
            }
            Object::Opaque { call, .. } => {
                out.extend((0..).map(Step::Argument).zip(self.args(&call).iter().copied()));
                let kwargs = call.kwargs.into_iter().chain(call.states.iter().copied());
                for state in kwargs {
                    self.state_children(state, &mut out)?;
                }
                out.extend(
                    self.values.unique(call.items)?.into_iter().map(|(key, value)| (Step::Key(key), value)),
                );
                indexed(call.appended, &mut out);
            }
            _ => {}
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
        let attribute = |wanted: &str| {
            let found = |&&(key, _): &&(Handle, Handle)| matches!(self.values.get(key), Value::Str(key) if key.as_str() == Some(wanted));
            pairs.iter().rev().find(found).map(|&(_, value)| value)
        };
        let own = ["_parameters", "_buffers", "_modules"].map(attribute);
        let [Some(parameters), Some(buffers), Some(modules)] = own else {
            out.extend(self.values.unique(pairs)?.into_iter().map(|(key, value)| (Step::Key(key), value)));
            return Ok(());
        };
        let hidden =
            attribute("_non_persistent_buffers_set").map(|set| self.members(set)).unwrap_or_default();
        let entries = |dict| -> Result<Vec<(Handle, Handle)>> {
            match self.get(dict)? {
                Object::Dict { entries, .. } => Ok(entries),
                _ => Ok(Vec::new()),
            }
        };
        let is_hidden = |key: Handle| hidden.iter().any(|&name| self.same_text(name, key));
        let keyed = |(key, value): (Handle, Handle)| (Step::Key(key), value);
        out.extend(entries(parameters)?.into_iter().map(keyed));
        out.extend(entries(buffers)?.into_iter().filter(|&(key, _)| !is_hidden(key)).map(keyed));
        out.extend(entries(modules)?.into_iter().map(keyed));
        let others = self.values.unique(pairs)?.into_iter().filter(|(_, value)| !own.contains(&Some(*value)));
        out.extend(others.map(keyed));
        Ok(())
    }

    /// The members of a set, however it was written.
    fn members(self, handle: Handle) -> Vec<Handle> {
        match self.get(handle) {
            Ok(Object::Set(items) | Object::FrozenSet(items)) => items,
            _ => Vec::new(),
        }
    }

    fn same_text(self, one: Handle, two: Handle) -> bool {
        match (self.values.get(one), self.values.get(two)) {
            (Value::Str(one), Value::Str(two)) => one == two,
            _ => false,
        }
    }
}

fn indexed(items: &[Handle], out: &mut Vec<(Step, Handle)>) {
    out.extend((0..).map(Step::Index).zip(items.iter().copied()));
}
