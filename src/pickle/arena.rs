//! Where values live: nodes of a fixed size, and what they hold in shared pools beside them.
//!
//! Strings and bytes are ranges of the pickle itself, or of a side buffer when they had to be decoded. Lists, tuples, dicts
//! and sets are runs of shared pools, so an empty container owns no memory and dropping is flat. A run that grows moves to
//! the pool's end with twice its room, unless it lies there already.

use super::globals::NameId;
use super::nodes::Nodes;
use super::pool::Pool;
use super::spare::{self, Spare};
use super::value::{CallId, CallKind, GlobalId, Handle};
use super::{index, narrow};
use crate::error::{Code, Error, Result};
use crate::limits::Limits;
use std::num::NonZeroU32;

/// Bytes of the pickle, or of the side buffer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    pub(super) start: u32,
    pub(super) len: u32,
    pub(super) side: bool,
}

/// A run of a pool that can grow.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Span {
    start: u32,
    len: u32,
    room: u32,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Node {
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    BigInt(Piece),
    Str(Piece),
    Bytes(Piece),
    ByteArray(Piece),
    List(Span),
    /// `canon` is the first equal tuple once this one is known as a key; `depth` and `nodes` are its measure.
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

/// The number of an [`Extra`], counted from 1.
#[derive(Clone, Copy)]
struct ExtraId(NonZeroU32);

/// What few calls have: keyword arguments, BUILD states and contents.
#[derive(Clone, Copy, Default)]
pub(super) struct Extra {
    pub(super) kwargs: Option<Handle>,
    pub(super) states: Span,
    pub(super) items: Span,
    pub(super) appended: Span,
}

#[derive(Clone, Copy)]
pub(super) struct GlobalRecord {
    pub(super) module: NameId,
    pub(super) name: NameId,
    /// As the pickle spells them.
    pub(super) spelled: (NameId, NameId),
    pub(super) offset: u32,
    pub(super) handle: Handle,
}

/// A distinct module or class name, and how many dotted parts it has.
#[derive(Clone, Copy)]
pub(super) struct NameRecord {
    pub(super) piece: Piece,
    pub(super) parts: u32,
}

/// All values of one pickle, without its bytes.
pub(super) struct Arena {
    pub(super) side: Vec<u8>,
    pub(super) nodes: Nodes,
    pub(super) items: Pool<Handle>,
    pub(super) pairs: Pool<(Handle, Handle)>,
    pub(super) calls: Pool<CallRecord>,
    pub(super) extras: Pool<Extra>,
    pub(super) globals: Pool<GlobalRecord>,
    pub(super) names: Pool<NameRecord>,
    /// Long strings and integers that serve as keys, each with the first equal one.
    pub(super) long_keys: std::collections::HashMap<Handle, Handle>,
    /// Whether the buffers are handed on to the next survey.
    recycled: bool,
}

impl Arena {
    /// An arena with None, the booleans, the empty tuple and the smallest integers in it, and room for what a pickle of `bytes`
    /// mostly holds. With `spare`, in those buffers, which are handed on in the end.
    pub(super) fn new(limits: &Limits, bytes: usize, spare: Option<Spare>) -> Result<Arena> {
        let all = u64::from(u32::MAX);
        let recycled = spare.is_some();
        let Spare { nodes, items, calls, .. } = spare.unwrap_or_default();
        let mut arena = Arena {
            side: Vec::new(),
            nodes: Nodes::with_room(limits.nodes.saturating_add(260), nodes, bytes >> 3),
            items: Pool::with_room("nodes", all, items, bytes / 7),
            pairs: Pool::new("nodes", all),
            calls: Pool::with_room("nodes", all, calls, bytes / 50),
            extras: Pool::new("nodes", all),
            globals: Pool::new("nodes", all),
            names: Pool::new("nodes", all),
            long_keys: std::collections::HashMap::new(),
            recycled,
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

    #[inline(always)]
    pub(super) fn add(&mut self, node: Node) -> Result<Handle> {
        let handle = Handle::at(self.nodes.len());
        self.nodes.push(node)?;
        Ok(handle)
    }

    #[inline]
    pub(super) fn node(&self, handle: Handle) -> Node {
        self.nodes.get(handle)
    }

    /// A tuple of the given values.
    #[inline]
    pub(super) fn add_tuple(&mut self, values: &[Handle]) -> Result<Handle> {
        if values.is_empty() {
            return Ok(Handle::EMPTY_TUPLE);
        }
        let (start, len) = (narrow(self.items.len()), narrow(values.len()));
        self.items.extend(values.len(), values.iter().copied())?;
        self.add(Node::Tuple { depth: 0, nodes: 0, start, len, canon: None })
    }

    /// The handle and number of a new call.
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
        let offset = narrow(offset);
        self.calls.push(CallRecord { callable, args, extra: None, offset, handle })?;
        if kwargs.is_some() {
            self.with_extra(id, |extra, _, _| {
                extra.kwargs = kwargs;
                Ok(())
            })?;
        }
        Ok(handle)
    }

    /// APPEND and APPENDS: on a list, or kept with a call.
    pub(super) fn append(&mut self, target: Handle, values: &[Handle]) -> Result<()> {
        let add = values.iter().copied();
        match self.node(target) {
            Node::List(mut span) => {
                span.append(&mut self.items, values.len(), Handle::NONE, add)?;
                self.nodes.set(target, Node::List(span))
            }
            Node::Call { id, .. } => self.with_extra(id, |extra, items, _| {
                extra.appended.append(items, values.len(), Handle::NONE, add)
            }),
            _ => Err(wrong_target("append to")),
        }
    }

    /// ADDITEMS: on a set, or kept with a call.
    pub(super) fn add_items(&mut self, target: Handle, values: &[Handle]) -> Result<()> {
        match self.node(target) {
            Node::Set(mut span) => {
                span.append(&mut self.items, values.len(), Handle::NONE, values.iter().copied())?;
                self.nodes.set(target, Node::Set(span))
            }
            Node::Call { .. } => self.append(target, values),
            _ => Err(wrong_target("add items to")),
        }
    }

    /// SETITEM and SETITEMS: on a dict, or kept with a call. `flat` alternates keys and values.
    #[inline]
    pub(super) fn set_items(&mut self, target: Handle, flat: &[Handle]) -> Result<()> {
        let (chunks, odd) = flat.as_chunks::<2>();
        if !odd.is_empty() {
            return Err(Error::new(
                Code::PickleType,
                format!("{} keys and values do not pair up", flat.len()),
            ));
        }
        let add = chunks.iter().map(|&[key, value]| (key, value));
        let none = (Handle::NONE, Handle::NONE);
        match self.node(target) {
            Node::Dict(mut span) => {
                span.append(&mut self.pairs, chunks.len(), none, add)?;
                self.nodes.set(target, Node::Dict(span))
            }
            Node::Call { id, .. } => {
                self.with_extra(id, |extra, _, pairs| extra.items.append(pairs, chunks.len(), none, add))
            }
            _ => Err(wrong_target("set items of")),
        }
    }

    /// BUILD: kept with a call.
    pub(super) fn build(&mut self, target: Handle, state: Handle) -> Result<()> {
        let Node::Call { id, .. } = self.node(target) else { return Err(wrong_target("set the state of")) };
        self.with_extra(id, |extra, items, _| {
            extra.states.append(items, 1, Handle::NONE, [state].into_iter())
        })
    }

    /// What a call has beside its record.
    #[inline]
    pub(super) fn extra(&self, call: &CallRecord) -> Extra {
        call.extra.and_then(|id| self.extras.get(id.index())).unwrap_or_default()
    }

    /// Changes what a call has beside its record, with the pools of items and of pairs at hand.
    fn with_extra(
        &mut self,
        id: CallId,
        change: impl FnOnce(&mut Extra, &mut Pool<Handle>, &mut Pool<(Handle, Handle)>) -> Result<()>,
    ) -> Result<()> {
        let Some(call) = self.calls.slot(id.index()) else { return Ok(()) };
        let at = match call.extra {
            Some(at) => at,
            None => {
                let at = ExtraId::at(self.extras.len());
                self.extras.push(Extra::default())?;
                *call.extra.insert(at)
            }
        };
        match self.extras.slot(at.index()) {
            Some(extra) => change(extra, &mut self.items, &mut self.pairs),
            None => Ok(()),
        }
    }

    /// The values of a list, tuple or set.
    #[inline]
    pub(super) fn run(&self, span: Span) -> &[Handle] {
        self.items.slice(index(span.start), index(span.len))
    }

    #[inline]
    pub(super) fn run_pairs(&self, span: Span) -> &[(Handle, Handle)] {
        self.pairs.slice(index(span.start), index(span.len))
    }

    pub(super) fn name<'a>(&'a self, data: &'a [u8], id: NameId) -> &'a [u8] {
        self.names.get(index(id)).map_or(&[], |record| self.bytes(data, record.piece))
    }

    #[inline]
    pub(super) fn bytes<'a>(&'a self, data: &'a [u8], piece: Piece) -> &'a [u8] {
        let home = if piece.side { &self.side } else { data };
        let start = index(piece.start);
        home.get(start..start.saturating_add(index(piece.len))).unwrap_or_default()
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        if self.recycled {
            let (nodes, items, calls) = (self.nodes.take(), self.items.take(), self.calls.take());
            spare::keep(Spare { nodes, items, calls, ..Spare::default() });
        }
    }
}

impl ExtraId {
    fn at(position: usize) -> ExtraId {
        ExtraId(NonZeroU32::MIN.saturating_add(narrow(position)))
    }

    fn index(self) -> usize {
        index(self.0.get().wrapping_sub(1))
    }
}

impl Span {
    /// The run that already lies at `start`.
    pub(super) fn of(start: u32, len: u32) -> Span {
        Span { start, len, room: len }
    }

    /// Whether it never held anything.
    pub(super) fn is_fresh(self) -> bool {
        self.start == 0 && self.room == 0
    }

    fn append<T: Copy>(
        &mut self,
        pool: &mut Pool<T>,
        count: usize,
        filler: T,
        add: impl Iterator<Item = T>,
    ) -> Result<()> {
        let (start, len) = (index(self.start), index(self.len));
        let used = len.saturating_add(count);
        if used <= index(self.room) {
            let free = pool.slice_mut(start.saturating_add(len), count);
            free.iter_mut().zip(add).for_each(|(slot, item)| *slot = item);
        } else if start.saturating_add(index(self.room)) == pool.len() {
            pool.truncate(start.saturating_add(len));
            pool.extend(count, add)?;
            self.room = narrow(used);
        } else {
            let room = used.max(len.saturating_mul(2));
            self.start = narrow(pool.len());
            pool.repeat(start, len)?;
            pool.extend(count, add)?;
            pool.extend(room.saturating_sub(used), std::iter::repeat(filler))?;
            self.room = narrow(room);
        }
        self.len = narrow(used);
        Ok(())
    }
}

#[cold]
fn wrong_target(what: &str) -> Error {
    Error::new(Code::PickleType, format!("an opcode wants to {what} a value of another type"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_is_4_bytes_and_a_call_20_at_most() {
        assert_eq!(size_of::<Option<Handle>>(), 4);
        assert!(size_of::<CallRecord>() <= 20);
    }

    #[test]
    fn runs_that_grow_in_turns_keep_their_items() {
        let mut pool = Pool::new("nodes", 1 << 20);
        let mut spans = [Span::default(); 3];
        for round in 0..200u32 {
            for (at, span) in (0u32..).zip(&mut spans) {
                span.append(&mut pool, 1, 0, [round * 3 + at].into_iter()).unwrap();
            }
        }
        for (at, span) in (0u32..).zip(&spans) {
            let expected: Vec<u32> = (0..200).map(|round| round * 3 + at).collect();
            assert_eq!(pool.slice(index(span.start), index(span.len)), expected);
        }
        assert!(pool.len() <= 200 * 3 * 4);
    }
}
