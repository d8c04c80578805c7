//! The values of a pickle, as the modules above see them: handles, values by handle, globals and calls in program order.
//!
//! Access does not recurse: a container gives the handles of its items. Sharing and cycles are exact, since memo and DUP copy
//! handles.

use std::borrow::Cow;
use std::fmt;

use super::arena::{Arena, ByteRange, Node, Span};
use super::history::{Build, Container};
use super::ids::{CallId, CallKind, GlobalId, Handle, NameId, Snapshot};
use crate::bytes::Chunk;
use crate::num::u32_to_usize;

/// A value; containers give their items as handles.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value<'a> {
    /// None.
    None,
    /// A boolean.
    Bool(bool),
    /// An integer that fits 64 bits.
    Int(i64),
    /// An integer that does not.
    BigInt(BigInt<'a>),
    /// A float.
    Float(f64),
    /// A string.
    Str(Text<'a>),
    /// Bytes; also a string of Python 2 that is not UTF-8.
    Bytes(&'a [u8]),
    /// A bytearray.
    ByteArray(&'a [u8]),
    /// A list.
    List(&'a [Handle]),
    /// A tuple.
    Tuple(&'a [Handle]),
    /// A dict: its pairs in program order, duplicate keys included; [`Values::entries`] resolves those.
    Dict(&'a [(Handle, Handle)]),
    /// A set: its items in program order, duplicates included.
    Set(&'a [Handle]),
    /// A frozen set: its items in program order, duplicates included.
    FrozenSet(&'a [Handle]),
    /// A class or function that the pickle names.
    Global(GlobalId),
    /// The result of a recorded call.
    Call(CallId),
    /// An object stored outside the pickle, under this id.
    PersistentId(Handle),
}

/// A string as UTF-8 in which lone surrogates may occur (WTF-8; surrogates are never paired).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Text<'a>(&'a [u8]);

impl<'a> Text<'a> {
    /// The string; `None` if it contains surrogates.
    pub fn as_str(self) -> Option<&'a str> {
        std::str::from_utf8(self.0).ok()
    }

    /// Its bytes.
    pub fn as_bytes(self) -> &'a [u8] {
        self.0
    }

    /// The string, with surrogates replaced by U+FFFD.
    pub fn to_string_lossy(self) -> Cow<'a, str> {
        String::from_utf8_lossy(self.0)
    }
}

impl fmt::Debug for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.to_string_lossy())
    }
}

/// A large integer as little-endian two's complement, in the minimal number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BigInt<'a>(&'a [u8]);

impl<'a> BigInt<'a> {
    /// Little-endian two's complement, as Python's `int.from_bytes(..., "little", signed=True)` takes it.
    pub fn as_le_bytes(self) -> &'a [u8] {
        self.0
    }

    /// Whether it is below zero.
    pub fn is_negative(self) -> bool {
        self.0.last().is_some_and(|&top| top >= 0x80)
    }
}

/// A class or function that the pickle names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Global<'a> {
    /// The module; Python 2's name is mapped to Python 3's where the protocol is below 3.
    pub module: &'a str,
    /// The name; Python 2's name is mapped to Python 3's where the protocol is below 3; it may be dotted.
    pub name: &'a str,
    /// Module and name as written in the pickle.
    pub spelled: (&'a str, &'a str),
    /// The offset of the opcode that first names it.
    pub offset: u64,
}

/// A recorded call; it is never executed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Call<'a> {
    /// The kind of opcode that makes it.
    pub kind: CallKind,
    /// The class or function that would be called.
    pub callable: Handle,
    /// The arguments, always a tuple.
    pub args: Handle,
    /// The keyword arguments of NEWOBJ_EX, always a dict.
    pub kwargs: Option<Handle>,
    /// The states that BUILD sets on the result, in program order, each at the offset of its BUILD.
    pub states: &'a [Snapshot],
    /// The pairs that SETITEM and SETITEMS set on the result, in program order.
    pub items: &'a [(Handle, Handle)],
    /// The values that APPEND, APPENDS and ADDITEMS add to the result, in program order.
    pub appended: &'a [Handle],
    /// The offset of the opcode.
    pub offset: u64,
}

/// All values of one pickle.
pub struct Values {
    pub(super) data: Chunk,
    pub(super) arena: Arena,
}

impl Values {
    /// The values of a pickle that has run.
    pub(super) fn new(data: Chunk, mut arena: Arena) -> Values {
        arena.history.finish();
        Values { data, arena }
    }

    /// The value of a handle of this pickle.
    #[inline(always)]
    pub fn get(&self, handle: Handle) -> Value<'_> {
        self.value(self.arena.node(handle))
    }

    /// All values, in the order of their creation.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Value<'_>> + '_ {
        self.arena.nodes.slice_from(0).iter().map(|&node| self.value(node))
    }

    #[inline(always)]
    fn value(&self, node: Node) -> Value<'_> {
        let arena = &self.arena;
        match node {
            Node::None => Value::None,
            Node::Bool(value) => Value::Bool(value),
            Node::Int(value) => Value::Int(value),
            Node::Float(value) => Value::Float(value),
            Node::BigInt(range) => Value::BigInt(BigInt(self.bytes(range))),
            Node::Str(range) => Value::Str(Text(self.bytes(range))),
            Node::Bytes(range) => Value::Bytes(self.bytes(range)),
            Node::ByteArray(range) => Value::ByteArray(self.bytes(range)),
            Node::List(span) => Value::List(arena.handles_in(span)),
            Node::Tuple { start, len, .. } => Value::Tuple(arena.handles_in(Span::of(start, len))),
            Node::Dict(span) => Value::Dict(arena.pairs_in(span)),
            Node::Set(span) => Value::Set(arena.handles_in(span)),
            Node::FrozenSet(span) => Value::FrozenSet(arena.handles_in(span)),
            Node::Global(id) => Value::Global(id),
            Node::Call { id, .. } => Value::Call(id),
            Node::PersistentId(id) => Value::PersistentId(id),
        }
    }

    /// Whether a string is a `str` of Python 2, whose bytes are data where a reader expects bytes.
    pub fn is_byte_string(&self, handle: Handle) -> bool {
        matches!(self.arena.node(handle), Node::Str(range) if range.is_byte_string)
    }

    /// The offset in the pickle of the first byte of a string or of bytes; `None` for other values, and for text with escapes.
    pub fn text_offset(&self, handle: Handle) -> Option<usize> {
        match self.arena.node(handle) {
            Node::Str(range) | Node::Bytes(range) if !range.decoded => Some(u32_to_usize(range.start)),
            _ => None,
        }
    }

    /// The handles of all values.
    pub fn handles(&self) -> impl ExactSizeIterator<Item = Handle> + use<> {
        (0..self.len()).map(Handle::at)
    }

    /// The number of values; handles count from 0 to this.
    pub fn len(&self) -> usize {
        self.arena.nodes.len()
    }

    /// Whether there are no values: never, since an arena contains the constants.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes that the pickle was read from.
    pub fn data(&self) -> &[u8] {
        &self.data
    }

    /// A part of a name.
    fn text(&self, id: NameId) -> &str {
        std::str::from_utf8(self.arena.name(&self.data, id)).unwrap_or_default()
    }

    /// A global by its id.
    pub fn global(&self, id: GlobalId) -> Global<'_> {
        let Some(record) = self.arena.globals.get(id.index()) else {
            return Global { module: "", name: "", spelled: ("", ""), offset: 0 };
        };
        let (module, name) = (self.text(record.module), self.text(record.name));
        let spelled = match record.spelled {
            same if same == (record.module, record.name) => (module, name),
            (module, name) => (self.text(module), self.text(name)),
        };
        Global { module, name, spelled, offset: u64::from(record.offset) }
    }

    /// The module and name of the global that a value is; `None` for any other value.
    pub fn global_at(&self, handle: Handle) -> Option<(&str, &str)> {
        let Value::Global(id) = self.get(handle) else { return None };
        let record = self.arena.globals.get(id.index())?;
        Some((self.text(record.module), self.text(record.name)))
    }

    /// The call that a value is the result of; `None` for any other value.
    pub fn call_at(&self, handle: Handle) -> Option<Call<'_>> {
        let Value::Call(id) = self.get(handle) else { return None };
        Some(self.call(id))
    }

    /// Calls `visit` for each value in a container; for those that a call is made with or has set on its result, in no particular
    /// order, but not for what it calls; and for a persistent id.
    #[inline]
    pub fn for_each_part(&self, handle: Handle, mut visit: impl FnMut(Handle)) {
        let (items, pairs) = match self.get(handle) {
            Value::List(items) | Value::Tuple(items) | Value::Set(items) | Value::FrozenSet(items) => {
                (items, &[][..])
            }
            Value::Dict(pairs) => (&[][..], pairs),
            Value::PersistentId(id) => return visit(id),
            Value::Call(id) => {
                let call = self.call(id);
                visit(call.args);
                call.kwargs.into_iter().for_each(&mut visit);
                call.states.iter().for_each(|state| visit(state.value));
                (call.appended, call.items)
            }
            _ => return,
        };
        items.iter().for_each(|&item| visit(item));
        pairs.iter().for_each(|&(key, value)| {
            visit(key);
            visit(value);
        });
    }

    /// The number that a value is; `None` for any other value, and for one below zero.
    pub fn count_at(&self, handle: Handle) -> Option<u64> {
        let Value::Int(number) = self.get(handle) else { return None };
        u64::try_from(number).ok()
    }

    /// The globals that the pickle names, each once, in program order.
    pub fn globals(&self) -> impl ExactSizeIterator<Item = (GlobalId, Handle)> + '_ {
        self.arena
            .globals
            .slice_from(0)
            .iter()
            .enumerate()
            .map(|(at, record)| (GlobalId::at(at), record.handle))
    }

    /// A call by its id. Inlined, as most callers look at one or two of its parts.
    #[inline]
    pub fn call(&self, id: CallId) -> Call<'_> {
        let arena = &self.arena;
        let Some(record) = arena.calls.get(id.index()) else {
            let (callable, args) = (Handle::NONE, Handle::EMPTY_TUPLE);
            let (kind, kwargs, offset) = (CallKind::Reduce, None, 0);
            return Call { kind, callable, args, kwargs, states: &[], items: &[], appended: &[], offset };
        };
        let kind = match arena.node(record.handle) {
            Node::Call { kind, .. } => kind,
            _ => CallKind::Reduce,
        };
        let extra = arena.extra(&record);
        Call {
            kind,
            callable: record.callable,
            args: record.args,
            kwargs: extra.kwargs,
            states: arena.states_in(extra.states),
            items: arena.pairs_in(extra.items),
            appended: arena.handles_in(extra.appended),
            offset: u64::from(record.offset),
        }
    }

    /// The calls in program order. A call comes after its callable and its arguments, except for what was added to a mutable
    /// container later.
    pub fn calls(&self) -> impl ExactSizeIterator<Item = (CallId, Handle)> + '_ {
        self.arena.calls.slice_from(0).iter().enumerate().map(|(at, record)| (CallId::at(at), record.handle))
    }

    /// The BUILDs in program order.
    pub fn builds(&self) -> &[Build] {
        self.arena.history.builds.slice_from(0)
    }

    /// A value as it was at an offset: a list, dict or set without what was added later. What its items contain is not limited.
    #[inline]
    pub fn get_at(&self, snapshot: Snapshot) -> Value<'_> {
        let Snapshot { value: handle, offset } = snapshot;
        let (value, history) = (self.get(handle), &self.arena.history);
        if history.is_empty() {
            return value;
        }
        match value {
            Value::List(items) => {
                Value::List(prefix(items, history.len_at(Container::values(handle), offset)))
            }
            Value::Set(items) => Value::Set(prefix(items, history.len_at(Container::values(handle), offset))),
            Value::Dict(pairs) => {
                Value::Dict(prefix(pairs, history.len_at(Container::pairs(handle), offset)))
            }
            other => other,
        }
    }

    /// Whether a list, dict or set grew after it was fetched, so that its readers may have found different items.
    pub fn has_versions(&self, handle: Handle) -> bool {
        let container = match self.arena.node(handle) {
            Node::Dict(_) => Container::pairs(handle),
            _ => Container::values(handle),
        };
        self.arena.history.len_at(container, 0).is_some()
    }

    fn bytes(&self, range: ByteRange) -> &[u8] {
        self.arena.bytes(&self.data, range)
    }
}

fn prefix<T>(items: &[T], len: Option<usize>) -> &[T] {
    len.and_then(|len| items.get(..len)).unwrap_or(items)
}

impl fmt::Debug for Values {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Values({} values, {} calls)", self.len(), self.arena.calls.len())
    }
}
