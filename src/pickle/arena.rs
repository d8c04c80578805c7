//! The arena that owns all values of a pickle: nodes of a fixed size, and shared pools for what the nodes contain.
//!
//! Strings and bytes are ranges of the pickle itself, or of a decode buffer where escapes or numbers had to be decoded. Lists,
//! tuples, dicts and sets are spans of shared pools, so an empty container owns no memory and dropping does not recurse. A span
//! that grows beyond its capacity moves to the pool's end with twice its length as capacity, unless it is the last one already.
//! An offset or a count is 32 bits: pickles of 4 GiB or more are refused, and pools are shorter.

use super::bounded_vec::BoundedVec;
use super::history::{Build, Container, History};
use super::ids::{CallId, CallKind, GlobalId, Handle, NameId, Snapshot};
use crate::error::{Code, Error, Result, bail, error};
use crate::limits::Limits;
use crate::num::{to_u32, to_u64, u32_to_usize};
use std::num::NonZeroU32;

/// A range of bytes in the pickle, or in the decode buffer.
#[derive(Clone, Copy, Debug)]
pub(super) struct ByteRange {
    pub(super) start: u32,
    pub(super) len: u32,
    /// Whether the range is in the decode buffer.
    pub(super) decoded: bool,
    /// Whether it is a `str` of Python 2 that is not ASCII: text for one reader and bytes for another.
    pub(super) is_byte_string: bool,
}

/// A growable range of a pool.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Span {
    start: u32,
    len: u32,
    capacity: u32,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Node {
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    BigInt(ByteRange),
    Str(ByteRange),
    Bytes(ByteRange),
    ByteArray(ByteRange),
    List(Span),
    /// `canon` is the first equal tuple (its canonical object) once this one was a dict key; `depth` and `nodes` are then its
    /// nesting depth and its size with every shared tuple counted each time.
    Tuple {
        depth: u8,
        nodes: u16,
        start: u32,
        len: u32,
        canon: Option<Handle>,
    },
    Dict(Span),
    Set(Span),
    FrozenSet(Span),
    Global(GlobalId),
    Call {
        kind: CallKind,
        id: CallId,
    },
    PersistentId(Handle),
}

#[derive(Clone, Copy)]
pub(super) struct CallRecord {
    pub(super) callable: Handle,
    pub(super) args: Handle,
    extra: Option<ExtraId>,
    pub(super) offset: u32,
    pub(super) handle: Handle,
}

/// The number of a [`CallExtra`], counted from 1.
#[derive(Clone, Copy)]
struct ExtraId(NonZeroU32);

/// The parts of a call that most calls lack: keyword arguments, BUILD states, items and appended values.
#[derive(Clone, Copy, Default)]
pub(super) struct CallExtra {
    pub(super) kwargs: Option<Handle>,
    pub(super) states: Span,
    pub(super) items: Span,
    pub(super) appended: Span,
}

#[derive(Clone, Copy)]
pub(super) struct GlobalRecord {
    pub(super) module: NameId,
    pub(super) name: NameId,
    /// Module and name as written in the pickle, before Python 2's names are mapped.
    pub(super) spelled: (NameId, NameId),
    pub(super) offset: u32,
    pub(super) handle: Handle,
}

/// An interned module or class name, and how many dotted parts it has.
#[derive(Clone, Copy)]
pub(super) struct NameRecord {
    pub(super) range: ByteRange,
    pub(super) parts: u32,
}

/// All values of one pickle, without its bytes.
pub(super) struct Arena {
    /// The decode buffer: strings with escapes, integers in text and names of the compatibility table, decoded.
    pub(super) decoded: Vec<u8>,
    pub(super) nodes: BoundedVec<Node>,
    pub(super) items: BoundedVec<Handle>,
    pub(super) pairs: BoundedVec<(Handle, Handle)>,
    pub(super) calls: BoundedVec<CallRecord>,
    pub(super) extras: BoundedVec<CallExtra>,
    /// The states of calls.
    pub(super) states: BoundedVec<Snapshot>,
    pub(super) history: History,
    pub(super) globals: BoundedVec<GlobalRecord>,
    pub(super) names: BoundedVec<NameRecord>,
    /// Long strings and integers that were dict keys or set items, each with the first equal one.
    pub(super) long_keys: std::collections::HashMap<Handle, Handle>,
}

impl Arena {
    /// An arena that contains None, the booleans, the empty tuple and the integers 0 to 255, with capacity for what a pickle of
    /// `bytes` typically needs.
    pub(super) fn new(limits: &Limits, bytes: usize) -> Result<Arena> {
        let unlimited = u64::from(u32::MAX);
        let mut arena = Arena {
            decoded: Vec::new(),
            nodes: BoundedVec::with_capacity_hint("nodes", limits.nodes.saturating_add(260), bytes >> 3),
            items: BoundedVec::with_capacity_hint("nodes", unlimited, bytes / 7),
            pairs: BoundedVec::new("nodes", unlimited),
            calls: BoundedVec::with_capacity_hint("nodes", unlimited, bytes / 50),
            extras: BoundedVec::new("nodes", unlimited),
            states: BoundedVec::new("nodes", unlimited),
            history: History::new(limits.nodes),
            globals: BoundedVec::new("nodes", unlimited),
            names: BoundedVec::new("nodes", unlimited),
            long_keys: std::collections::HashMap::new(),
        };
        let empty = Node::Tuple { depth: 0, nodes: 0, start: 0, len: 0, canon: None };
        for node in [Node::None, Node::Bool(false), Node::Bool(true), empty] {
            arena.nodes.push(node)?;
        }
        for value in 0..=u8::MAX {
            arena.nodes.push(Node::Int(i64::from(value)))?;
        }
        Ok(arena)
    }

    /// Adds a node; fails at the limit `nodes`.
    #[inline(always)]
    pub(super) fn add(&mut self, node: Node) -> Result<Handle> {
        let handle = Handle::at(self.nodes.len());
        self.nodes.push(node)?;
        Ok(handle)
    }

    /// The node of a handle; `Node::None` for a handle of another pickle that is out of range here.
    #[inline(always)]
    pub(super) fn node(&self, handle: Handle) -> Node {
        self.nodes.get(handle.index()).unwrap_or(Node::None)
    }

    pub(super) fn set_node(&mut self, handle: Handle, node: Node) {
        if let Some(slot) = self.nodes.get_mut(handle.index()) {
            *slot = node;
        }
    }

    /// A tuple of the given values.
    #[inline]
    pub(super) fn add_tuple(&mut self, values: &[Handle]) -> Result<Handle> {
        if values.is_empty() {
            return Ok(Handle::EMPTY_TUPLE);
        }
        let (start, len) = (to_u32(self.items.len()), to_u32(values.len()));
        self.items.extend(values.len(), values.iter().copied())?;
        self.add(Node::Tuple { depth: 0, nodes: 0, start, len, canon: None })
    }

    /// Records a call and returns the handle of its result.
    pub(super) fn add_call(
        &mut self,
        kind: CallKind,
        callable: Handle,
        args: Handle,
        kwargs: Option<Handle>,
        offset: usize,
    ) -> Result<Handle> {
        let id = CallId::at(self.calls.len());
        let handle = self.add(Node::Call { kind, id })?;
        self.history.read(offset);
        let offset = to_u32(offset);
        self.calls.push(CallRecord { callable, args, extra: None, offset, handle })?;
        if kwargs.is_some() {
            self.set_extra(id, CallExtra { kwargs, ..CallExtra::default() })?;
        }
        Ok(handle)
    }

    /// APPEND and APPENDS: extends a list; on the result of a call, records the values with the call.
    pub(super) fn append(&mut self, target: Handle, values: &[Handle], offset: usize) -> Result<()> {
        let add = values.iter().copied();
        match self.node(target) {
            Node::List(mut span) => {
                self.history.grow(Container::values(target), span.len, offset)?;
                span.append(&mut self.items, values.len(), Handle::NONE, add)?;
                self.set_node(target, Node::List(span));
                Ok(())
            }
            Node::Call { id, .. } => {
                let mut extra = self.extra_of(id);
                self.history.grow(Container::values(target), extra.appended.len, offset)?;
                extra.appended.append(&mut self.items, values.len(), Handle::NONE, add)?;
                self.set_extra(id, extra)
            }
            _ => Err(wrong_target("append to")),
        }
    }

    /// ADDITEMS: extends a set; on the result of a call, records the items with the call.
    pub(super) fn add_items(&mut self, target: Handle, values: &[Handle], offset: usize) -> Result<()> {
        match self.node(target) {
            Node::Set(mut span) => {
                self.history.grow(Container::values(target), span.len, offset)?;
                span.append(&mut self.items, values.len(), Handle::NONE, values.iter().copied())?;
                self.set_node(target, Node::Set(span));
                Ok(())
            }
            Node::Call { .. } => self.append(target, values, offset),
            _ => Err(wrong_target("add items to")),
        }
    }

    /// SETITEM and SETITEMS: extends a dict; on the result of a call, records the pairs with the call. `flat` alternates keys and
    /// values.
    #[inline]
    pub(super) fn set_items(&mut self, target: Handle, flat: &[Handle], offset: usize) -> Result<()> {
        let (chunks, odd) = flat.as_chunks::<2>();
        if !odd.is_empty() {
            bail!(Code::PickleType, "an odd number of keys and values: {}", flat.len());
        }
        let add = chunks.iter().map(|&[key, value]| (key, value));
        let none = (Handle::NONE, Handle::NONE);
        match self.node(target) {
            Node::Dict(mut span) => {
                self.history.grow(Container::pairs(target), span.len, offset)?;
                span.append(&mut self.pairs, chunks.len(), none, add)?;
                self.set_node(target, Node::Dict(span));
                Ok(())
            }
            Node::Call { id, .. } => {
                let mut extra = self.extra_of(id);
                self.history.grow(Container::pairs(target), extra.items.len, offset)?;
                extra.items.append(&mut self.pairs, chunks.len(), none, add)?;
                self.set_extra(id, extra)
            }
            _ => Err(wrong_target("set items of")),
        }
    }

    /// BUILD: records it, and the state with the call that made `target`.
    pub(super) fn build(&mut self, target: Handle, state: Handle, offset: usize) -> Result<()> {
        self.history.read(offset);
        let snapshot = Snapshot { value: state, offset: to_u64(offset) };
        let mut build = Build { offset: snapshot.offset, target, state, items: 0, appended: 0 };
        let Node::Call { id, .. } = self.node(target) else {
            self.history.builds.push(build)?;
            return Err(wrong_target("set the state of"));
        };
        let mut extra = self.extra_of(id);
        (build.items, build.appended) = (extra.items.len, extra.appended.len);
        self.history.builds.push(build)?;
        let none = Snapshot { value: Handle::NONE, offset: 0 };
        extra.states.append(&mut self.states, 1, none, [snapshot].into_iter())?;
        self.set_extra(id, extra)
    }

    /// The extra parts of a call; empty for most.
    #[inline]
    pub(super) fn extra(&self, call: &CallRecord) -> CallExtra {
        call.extra.and_then(|id| self.extras.get(id.index())).unwrap_or_default()
    }

    fn extra_of(&self, id: CallId) -> CallExtra {
        self.calls.get(id.index()).map(|call| self.extra(&call)).unwrap_or_default()
    }

    /// Replaces the extra parts of a call.
    fn set_extra(&mut self, id: CallId, extra: CallExtra) -> Result<()> {
        let Some(call) = self.calls.get_mut(id.index()) else { return Ok(()) };
        if let Some(slot) = call.extra.and_then(|id| self.extras.get_mut(id.index())) {
            *slot = extra;
            return Ok(());
        }
        call.extra = Some(ExtraId::at(self.extras.len()));
        self.extras.push(extra)
    }

    pub(super) fn states_in(&self, span: Span) -> &[Snapshot] {
        self.states.slice(u32_to_usize(span.start), u32_to_usize(span.len))
    }

    /// The values of a list, tuple or set.
    #[inline]
    pub(super) fn handles_in(&self, span: Span) -> &[Handle] {
        self.items.slice(u32_to_usize(span.start), u32_to_usize(span.len))
    }

    #[inline]
    pub(super) fn pairs_in(&self, span: Span) -> &[(Handle, Handle)] {
        self.pairs.slice(u32_to_usize(span.start), u32_to_usize(span.len))
    }

    pub(super) fn name<'a>(&'a self, data: &'a [u8], id: NameId) -> &'a [u8] {
        self.names.get(u32_to_usize(id)).map_or(&[], |record| self.bytes(data, record.range))
    }

    #[inline]
    pub(super) fn bytes<'a>(&'a self, data: &'a [u8], range: ByteRange) -> &'a [u8] {
        let buffer = if range.decoded { &self.decoded } else { data };
        let start = u32_to_usize(range.start);
        buffer.get(start..start.saturating_add(u32_to_usize(range.len))).unwrap_or_default()
    }
}

impl ExtraId {
    fn at(position: usize) -> ExtraId {
        ExtraId(NonZeroU32::MIN.saturating_add(to_u32(position)))
    }

    fn index(self) -> usize {
        u32_to_usize(self.0.get().wrapping_sub(1))
    }
}

impl Span {
    /// The span of `len` items that are already in the pool at `start`.
    pub(super) fn of(start: u32, len: u32) -> Span {
        Span { start, len, capacity: len }
    }

    fn append<T: Copy>(
        &mut self,
        pool: &mut BoundedVec<T>,
        count: usize,
        filler: T,
        add: impl Iterator<Item = T>,
    ) -> Result<()> {
        let (start, len) = (u32_to_usize(self.start), u32_to_usize(self.len));
        let used = len.saturating_add(count);
        if used <= u32_to_usize(self.capacity) {
            let free = pool.slice_mut(start.saturating_add(len), count);
            free.iter_mut().zip(add).for_each(|(slot, item)| *slot = item);
        } else if start.saturating_add(u32_to_usize(self.capacity)) == pool.len() {
            pool.truncate(start.saturating_add(len));
            pool.extend(count, add)?;
            self.capacity = to_u32(used);
        } else {
            let capacity = used.max(len.saturating_mul(2));
            self.start = to_u32(pool.len());
            pool.extend_from_within(start, len)?;
            pool.extend(count, add)?;
            pool.extend(capacity.saturating_sub(used), std::iter::repeat(filler))?;
            self.capacity = to_u32(capacity);
        }
        self.len = to_u32(used);
        Ok(())
    }
}

#[cold]
fn wrong_target(what: &str) -> Error {
    error!(Code::PickleType, "an opcode cannot {what} a value of this type")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_is_4_bytes_and_a_node_16_and_a_call_20_at_most() {
        assert_eq!((size_of::<Option<Handle>>(), size_of::<Node>()), (4, 16));
        assert!(size_of::<CallRecord>() <= 20);
    }

    #[test]
    fn spans_that_grow_in_turns_keep_their_items() {
        let mut pool = BoundedVec::new("nodes", 1 << 20);
        let mut spans = [Span::default(); 3];
        for round in 0..200u32 {
            for (at, span) in (0u32..).zip(&mut spans) {
                span.append(&mut pool, 1, 0, [round * 3 + at].into_iter()).unwrap();
            }
        }
        for (at, span) in (0u32..).zip(&spans) {
            let expected: Vec<u32> = (0..200).map(|round| round * 3 + at).collect();
            assert_eq!(pool.slice(u32_to_usize(span.start), u32_to_usize(span.len)), expected);
        }
        assert!(pool.len() <= 200 * 3 * 4);
    }
}
