//! What containers held earlier. CPython's callee reads a container at the moment of its call, and the pickle may fill it further
//! afterwards.
//!
//! Containers only grow, so an earlier version of one is a prefix, and its length suffices. A container that is on the stack once
//! and nowhere else has been read by nobody. So only the growth of a container that was fetched (from the memo, or by DUP) is
//! logged: an honest checkpoint logs next to nothing.

use super::bounded_vec::BoundedVec;
use super::ids::Handle;
use crate::error::{Code, Error, Result};
use crate::num::{to_u32, u32_to_usize};

/// A BUILD opcode, which sets a state on a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Build {
    /// The offset of the opcode.
    pub offset: u64,
    /// The value that it sets the state of: the result of a call; in error-recovering mode any value.
    pub target: Handle,
    /// The state.
    pub state: Handle,
    /// The number of pairs that SETITEM and SETITEMS had set on the target by then.
    pub items: u32,
    /// The number of values that APPEND, APPENDS and ADDITEMS had added to the target by then.
    pub appended: u32,
}

/// The growth of a fetched container by one opcode, or by several without a call or a BUILD between them.
#[derive(Clone, Copy)]
struct Growth {
    container: Container,
    offset: u32,
    /// The number of items or pairs before.
    len: u32,
}

/// What grows: a list, dict or set; or the items, or the appended values, of a call's result.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Container(Handle, Kind);

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Values,
    Pairs,
}

impl Container {
    /// The values of a list or set, or those appended to the result of a call.
    pub(super) fn values(handle: Handle) -> Container {
        Container(handle, Kind::Values)
    }

    /// The pairs of a dict, or those set on the result of a call.
    pub(super) fn pairs(handle: Handle) -> Container {
        Container(handle, Kind::Pairs)
    }
}

/// The BUILDs of a pickle, and the growth of its fetched containers.
pub(super) struct History {
    pub(super) builds: BoundedVec<Build>,
    /// In program order while the pickle runs, then by container and offset.
    growth: BoundedVec<Growth>,
    /// A bit per handle: whether the value was fetched.
    fetched: Vec<u64>,
    /// The offset of the newest call or BUILD. Nobody reads a container between two of these.
    last_read: u32,
}

impl History {
    /// A history of at most `limit` BUILDs, and as many logged changes.
    pub(super) fn new(limit: u64) -> History {
        History {
            builds: BoundedVec::new("nodes", limit),
            growth: BoundedVec::new("nodes", limit),
            fetched: Vec::new(),
            last_read: 0,
        }
    }

    /// Notes that a value is on the stack again, while another value may refer to it.
    #[cold]
    #[inline(never)]
    pub(super) fn fetch(&mut self, handle: Handle) -> Result<()> {
        let (word, bit) = (handle.index() >> 6, handle.index() & 63);
        if word >= self.fetched.len() {
            let more = word.saturating_add(1).saturating_sub(self.fetched.len());
            let reserved = self.fetched.try_reserve(more);
            reserved.map_err(|_| Error::new(Code::Memory, "no memory for the fetched values"))?;
            self.fetched.resize(word.saturating_add(1), 0);
        }
        if let Some(word) = self.fetched.get_mut(word) {
            *word |= 1 << bit;
        }
        Ok(())
    }

    /// Whether any value was fetched.
    pub(super) fn has_fetches(&self) -> bool {
        !self.fetched.is_empty()
    }

    #[inline(always)]
    fn is_fetched(&self, handle: Handle) -> bool {
        let word = self.fetched.get(handle.index() >> 6);
        word.is_some_and(|word| word >> (handle.index() & 63) & 1 == 1)
    }

    /// Notes a call, or a BUILD.
    #[inline(always)]
    pub(super) fn read(&mut self, offset: usize) {
        self.last_read = to_u32(offset);
    }

    /// Notes that the opcode at `offset` adds to a container of `len` items or pairs.
    #[inline(always)]
    pub(super) fn grow(&mut self, container: Container, len: u32, offset: usize) -> Result<()> {
        if self.is_fetched(container.0) { self.log(container, len, offset) } else { Ok(()) }
    }

    #[cold]
    #[inline(never)]
    fn log(&mut self, container: Container, len: u32, offset: usize) -> Result<()> {
        let is_unread = |last: &Growth| last.container == container && last.offset > self.last_read;
        if self.growth.last().as_ref().is_some_and(is_unread) {
            return Ok(());
        }
        self.growth.push(Growth { container, offset: to_u32(offset), len })
    }

    /// Prepares the log for [`len_at`](History::len_at), once the pickle has run.
    pub(super) fn finish(&mut self) {
        self.fetched = Vec::new();
        let len = self.growth.len();
        self.growth.slice_mut(0, len).sort_unstable_by_key(|growth| (growth.container, growth.offset));
    }

    /// Whether no fetched container grew, so that every container always had all of its items.
    #[inline(always)]
    pub(super) fn is_empty(&self) -> bool {
        self.growth.len() == 0
    }

    /// The length that a container had at `offset`; `None` where it has not grown since.
    pub(super) fn len_at(&self, container: Container, offset: u64) -> Option<usize> {
        let growth = self.growth.slice_from(0);
        let next = growth
            .partition_point(|growth| (growth.container, u64::from(growth.offset)) <= (container, offset));
        let next = growth.get(next).filter(|growth| growth.container == container)?;
        Some(u32_to_usize(next.len))
    }
}

#[cfg(test)]
mod tests {
    use crate::limits::Limits;
    use crate::num::to_u64;
    use crate::pickle::{self, Snapshot, Value};

    /// The lengths of memo 0's container at each offset, and its length at the end.
    fn lengths(data: &[u8], offsets: &[u64]) -> Vec<usize> {
        let found = pickle::run(data.to_vec(), &Limits::default()).unwrap();
        let is_container =
            |value: &Value<'_>| matches!(value, Value::List(_) | Value::Dict(_) | Value::Set(_));
        let at = found.values.iter().position(|value| is_container(&value)).unwrap();
        let value = found.values.handles().nth(at).unwrap();
        let len = |value: Value<'_>| match value {
            Value::List(items) | Value::Set(items) => items.len(),
            Value::Dict(pairs) => pairs.len(),
            _ => usize::MAX,
        };
        let at = |&offset: &u64| len(found.values.get_at(Snapshot { value, offset }));
        offsets.iter().map(at).chain([len(found.values.get(value))]).collect()
    }

    #[test]
    fn a_container_has_the_length_that_it_had_at_a_call() {
        // A list of one item, and then of two, four and five, with a call after each of the first two.
        let data = b"(]q\0Nacm\nC\nh\0Na\x85Rcm\nC\nh\0(NNe\x85Rh\0Nal.";
        let calls: Vec<u64> = (0..).zip(data).filter(|&(_, &byte)| byte == b'R').map(|(at, _)| at).collect();
        assert_eq!(lengths(data, &calls), [2, 4, 5]);
        let dict = b"(}q\0cm\nC\nh\0\x85Rh\0NNs0h\0l.";
        let call = to_u64(dict.iter().position(|&byte| byte == b'R').unwrap());
        assert_eq!(lengths(dict, &[call, 100]), [0, 1, 1]);
    }

    #[test]
    fn what_nobody_fetched_is_not_logged_and_growth_between_two_calls_is_logged_once() {
        let logged = |data: &[u8]| {
            let found = pickle::run(data.to_vec(), &Limits::default()).unwrap();
            found.values.arena.history.growth.len()
        };
        assert_eq!(logged(b"]q\0NaNacm\nC\n)Ra."), 0);
        assert_eq!(logged(b"(]q\0h\0NaNaNah\0(NNNel."), 1);
        assert_eq!(logged(b"(]q\0h\0Nacm\nC\n)Rh\0Nal."), 2);
    }

    #[test]
    fn builds_are_ordered_among_items_and_appended_values() {
        let data = b"cm\nC\n)\x81NNsNaNaNbNNsNb.";
        let found = pickle::run(data.to_vec(), &Limits::default()).unwrap();
        let counts: Vec<_> =
            found.values.builds().iter().map(|build| (build.items, build.appended)).collect();
        assert_eq!(counts, [(1, 2), (2, 2)]);
    }
}
