//! The operand stack and its marks: no opcode reaches below the topmost mark, and one that fails leaves both as they were.

use super::{Machine, fail};
use crate::error::{Code, Error, Result};
use crate::num::u32_to_usize;
use crate::pickle::Handle;
use crate::pickle::arena::Node;

impl Machine<'_> {
    #[inline(always)]
    pub(super) fn push(&mut self, node: Node) -> Result<()> {
        let handle = self.arena.add(node)?;
        self.stack.push(handle)
    }

    /// Pushes a value again (memo get, DUP), which aliases it.
    #[inline(always)]
    pub(super) fn push_existing(&mut self, value: Handle) -> Result<()> {
        if matches!(self.arena.node(value), Node::List(_) | Node::Dict(_) | Node::Set(_) | Node::Call { .. })
        {
            self.arena.history.fetch(value)?;
        }
        self.stack.push(value)
    }

    /// The topmost values, the top one last.
    #[inline(always)]
    pub(super) fn top_values<const N: usize>(&self) -> Result<[Handle; N]> {
        self.stack.slice_from(self.fence).last_chunk().copied().ok_or_else(underflow)
    }

    #[inline]
    pub(super) fn top(&self) -> Result<Handle> {
        self.top_values().map(|[top]| top)
    }

    /// Replaces the `count` topmost values by one.
    #[inline]
    pub(super) fn replace(&mut self, count: usize, value: Handle) -> Result<()> {
        self.stack.truncate(self.stack.len().saturating_sub(count));
        self.stack.push(value)
    }

    /// The stack index of the first value above the topmost mark.
    #[inline]
    pub(super) fn mark(&self) -> Result<usize> {
        let mark = self.marks.last().ok_or_else(|| fail(Code::PickleStack, "no MARK is on the stack"))?;
        Ok(u32_to_usize(mark))
    }

    /// The value below the topmost mark.
    #[inline]
    pub(super) fn below_mark(&self) -> Result<Handle> {
        let mark = self.mark()?;
        let next = self.marks.len().checked_sub(2).and_then(|at| self.marks.get(at));
        if mark <= next.map_or(0, u32_to_usize) {
            return Err(underflow());
        }
        self.stack.get(mark.saturating_sub(1)).ok_or_else(underflow)
    }

    /// Pops the topmost mark and the values above it.
    #[inline]
    pub(super) fn drop_to_mark(&mut self) {
        self.stack.truncate(self.fence);
        self.marks.pop();
        self.fence = self.marks.last().map_or(0, u32_to_usize);
    }

    /// POP: pops the mark where there is no value above it, else a value (`_pickle.c: load_pop`).
    pub(super) fn pop_value_or_mark(&mut self) -> Result<()> {
        if self.marks.last().map(u32_to_usize) == Some(self.stack.len()) {
            self.drop_to_mark();
        } else {
            self.top()?;
            self.stack.pop();
        }
        Ok(())
    }

    /// STOP: the root; fails where other values or marks are on the stack.
    pub(super) fn stop(&self) -> Result<Handle> {
        let root = self.top()?;
        let left = self.stack.len().saturating_sub(1);
        if left > 0 || self.marks.len() > 0 {
            return Err(fail(Code::PickleStack, format!("STOP leaves {left} value(s) on the stack")));
        }
        Ok(root)
    }
}

#[cold]
#[inline(never)]
pub(super) fn underflow() -> Error {
    Error::new(Code::PickleStack, "an opcode needs more values than the stack holds")
}
