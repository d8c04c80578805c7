//! The values of a pickle, as a later layer sees them: handles, values by handle, globals and calls in program order.
//!
//! Reading never recurses: a container shows the handles of what it holds. Sharing and cycles are exact, since memo and DUP
//! copy handles.

use std::borrow::Cow;
use std::fmt;
use std::num::NonZeroU32;

use super::arena::{Arena, Node, Piece, Span};
use super::index;
use crate::bytes::Chunk;

/// A value of one pickle; cheap to copy, and equal only for the very same object.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Handle(NonZeroU32);

impl Handle {
    pub(super) const NONE: Handle = Handle(NonZeroU32::MIN);
    pub(super) const FALSE: Handle = Handle(NonZeroU32::MIN.saturating_add(1));
    pub(super) const TRUE: Handle = Handle(NonZeroU32::MIN.saturating_add(2));
    pub(super) const EMPTY_TUPLE: Handle = Handle(NonZeroU32::MIN.saturating_add(3));

    /// A small integer; as in CPython, equal ones are one object.
    #[inline]
    pub(super) fn small(value: u8) -> Handle {
        Handle(Handle::EMPTY_TUPLE.0.saturating_add(1).saturating_add(u32::from(value)))
    }

    #[inline]
    pub(super) fn at(position: usize) -> Handle {
        Handle(NonZeroU32::MIN.saturating_add(super::narrow(position)))
    }

    /// The handle's number among the values of its pickle: 0 up to [`Values::len`].
    #[inline]
    pub fn index(self) -> usize {
        index(self.0.get().wrapping_sub(1))
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.index())
    }
}

macro_rules! id {
    ($name:ident, $what:literal) => {
        #[doc = $what]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(u32);

        impl $name {
            pub(super) fn at(position: usize) -> $name {
                $name(super::narrow(position))
            }

            /// The number, counted from 0 in program order.
            #[inline]
            pub fn index(self) -> usize {
                index(self.0)
            }
        }
    };
}

id!(GlobalId, "A global of one pickle: equal module and name have one id.");
id!(CallId, "A call of one pickle.");

/// A value, with what it holds as handles.
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
    /// A dict: its pairs in program order, equal keys included; [`Values::entries`] settles those.
    Dict(&'a [(Handle, Handle)]),
    /// A set: its items in program order, equal ones included.
    Set(&'a [Handle]),
    /// A frozen set: its items in program order, equal ones included.
    FrozenSet(&'a [Handle]),
    /// A class or function that the pickle names.
    Global(GlobalId),
    /// The result that a call would have had.
    Call(CallId),
    /// An object that the file keeps elsewhere, under this id.
    PersistentId(Handle),
}

/// A string: UTF-8 in which lone surrogates may stand (WTF-8, each surrogate by itself).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Text<'a>(&'a [u8]);

impl<'a> Text<'a> {
    /// The string, unless it holds surrogates.
    pub fn as_str(self) -> Option<&'a str> {
        std::str::from_utf8(self.0).ok()
    }

    /// Its bytes.
    pub fn as_bytes(self) -> &'a [u8] {
        self.0
    }

    /// The string, with surrogates replaced.
    pub fn to_string_lossy(self) -> Cow<'a, str> {
        String::from_utf8_lossy(self.0)
    }
}

impl fmt::Debug for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.to_string_lossy())
    }
}

/// A large integer as little-endian two's complement bytes, as few as carry it.
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
    /// The module, in Python 3's spelling where the protocol is below 3.
    pub module: &'a str,
    /// The name, in Python 3's spelling where the protocol is below 3; it may be dotted.
    pub name: &'a str,
    /// Module and name as the pickle spells them.
    pub spelled: (&'a str, &'a str),
    /// Where the pickle first names it.
    pub offset: u64,
}

/// Which opcode makes a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CallKind {
    /// REDUCE: `callable(*args)`.
    Reduce,
    /// NEWOBJ: `cls.__new__(cls, *args)`.
    NewObj,
    /// NEWOBJ_EX: `cls.__new__(cls, *args, **kwargs)`.
    NewObjEx,
    /// INST: `cls(*args)`.
    Inst,
    /// OBJ: `cls(*args)`.
    Obj,
}

/// A call that was recorded, never made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Call<'a> {
    /// Which opcode made it.
    pub kind: CallKind,
    /// What would be called.
    pub callable: Handle,
    /// The arguments, always a tuple.
    pub args: Handle,
    /// The keyword arguments of NEWOBJ_EX, always a dict.
    pub kwargs: Option<Handle>,
    /// What BUILD sets on the result, in program order.
    pub states: &'a [Handle],
    /// What SETITEM and SETITEMS set on the result, in program order.
    pub items: &'a [(Handle, Handle)],
    /// What APPEND, APPENDS and ADDITEMS give to the result, in program order.
    pub appended: &'a [Handle],
    /// Where the opcode lies.
    pub offset: u64,
}

/// All values of one pickle.
pub struct Values {
    pub(super) data: Chunk,
    pub(super) arena: Arena,
}

impl Values {
    /// The value behind a handle of this pickle.
    #[inline(always)]
    pub fn get(&self, handle: Handle) -> Value<'_> {
        self.value(self.arena.node(handle))
    }

    /// All values, in the order in which they were made.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Value<'_>> + '_ {
        self.arena.nodes.iter().map(|node| self.value(node))
    }

    #[inline(always)]
    fn value(&self, node: Node) -> Value<'_> {
        let arena = &self.arena;
        match node {
            Node::None => Value::None,
            Node::Bool(value) => Value::Bool(value),
            Node::Int(value) => Value::Int(value),
            Node::Float(value) => Value::Float(value),
            Node::BigInt(piece) => Value::BigInt(BigInt(self.bytes(piece))),
            Node::Str(piece) => Value::Str(Text(self.bytes(piece))),
            Node::Bytes(piece) => Value::Bytes(self.bytes(piece)),
            Node::ByteArray(piece) => Value::ByteArray(self.bytes(piece)),
            Node::List(span) => Value::List(arena.run(span)),
            Node::Tuple { start, len, .. } => Value::Tuple(arena.run(Span::of(start, len))),
            Node::Dict(span) => Value::Dict(arena.run_pairs(span)),
            Node::Set(span) => Value::Set(arena.run(span)),
            Node::FrozenSet(span) => Value::FrozenSet(arena.run(span)),
            Node::Global(id) => Value::Global(id),
            Node::Call { id, .. } => Value::Call(id),
            Node::PersistentId(id) => Value::PersistentId(id),
        }
    }

    /// The handles of all values.
    pub fn handles(&self) -> impl ExactSizeIterator<Item = Handle> + use<> {
        (0..self.len()).map(Handle::at)
    }

    /// The handle with this number, if there is such a value.
    pub fn handle(&self, index: usize) -> Option<Handle> {
        (index < self.len()).then(|| Handle::at(index))
    }

    /// How many values there are; handles count from 0 to this.
    pub fn len(&self) -> usize {
        self.arena.nodes.len()
    }

    /// Whether there is no value; never so.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes that the pickle was read from.
    pub fn data(&self) -> &[u8] {
        &self.data
    }

    /// A global by its id.
    pub fn global(&self, id: GlobalId) -> Global<'_> {
        let Some(record) = self.arena.globals.get(id.index()) else {
            return Global { module: "", name: "", spelled: ("", ""), offset: 0 };
        };
        let text = |id| std::str::from_utf8(self.arena.name(&self.data, id)).unwrap_or_default();
        Global {
            module: text(record.module),
            name: text(record.name),
            spelled: (text(record.spelled.0), text(record.spelled.1)),
            offset: u64::from(record.offset),
        }
    }

    /// The globals that the pickle names, each once, in program order.
    pub fn globals(&self) -> impl ExactSizeIterator<Item = (GlobalId, Handle)> + '_ {
        self.arena.globals.from(0).iter().enumerate().map(|(at, record)| (GlobalId::at(at), record.handle))
    }

    /// A call by its id.
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
            states: arena.run(extra.states),
            items: arena.run_pairs(extra.items),
            appended: arena.run(extra.appended),
            offset: u64::from(record.offset),
        }
    }

    /// The calls in program order. A call's callable and arguments come before it, except through mutable containers.
    pub fn calls(&self) -> impl ExactSizeIterator<Item = (CallId, Handle)> + '_ {
        self.arena.calls.from(0).iter().enumerate().map(|(at, record)| (CallId::at(at), record.handle))
    }

    fn bytes(&self, piece: Piece) -> &[u8] {
        self.arena.bytes(&self.data, piece)
    }
}

impl fmt::Debug for Values {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Values({} values, {} calls)", self.len(), self.arena.calls.len())
    }
}
