//! The operand stack and its marks: no opcode reaches below the topmost mark.

use super::{Machine, fail};
use crate::error::{Code, Error, Result};
use crate::num::u32_to_usize;
use crate::pickle::arena::Node;
use crate::pickle::value::Handle;

impl Machine<'_> {
    #[inline(always)]
    pub(super) fn push(&mut self, node: Node) -> Result<()> {
        let handle = self.arena.add(node)?;
        self.stack.push(handle)
    }

    /// Pushes a value again (memo get, DUP), which aliases it.
    #[inline(always)]
    pub(super) fn push_existing(&mut self, value: Handle) -> Result<()> {
        if self.arena.nodes.may_be_mutable(value) {
            self.arena.history.fetch(value)?;
        }
        self.stack.push(value)
    }

    #[inline]
    pub(super) fn pop(&mut self) -> Result<Handle> {
        if self.stack.len() <= self.fence {
            return Err(underflow());
        }
        self.stack.pop().ok_or_else(underflow)
    }

    #[inline]
    pub(super) fn top(&self) -> Result<Handle> {
        if self.stack.len() <= self.fence {
            return Err(underflow());
        }
        self.stack.last().ok_or_else(underflow)
    }

    /// Pops the topmost mark; returns the stack index of the first value above it.
    #[inline]
    pub(super) fn pop_mark(&mut self) -> Result<usize> {
        let mark = self.marks.pop().ok_or_else(|| fail(Code::PickleStack, "no MARK is on the stack"))?;
        self.fence = self.marks.last().map_or(0, u32_to_usize);
        Ok(u32_to_usize(mark))
    }

    /// The value below a mark that was just popped.
    #[inline]
    pub(super) fn below(&self, mark: usize) -> Result<Handle> {
        if mark <= self.fence {
            return Err(underflow());
        }
        self.stack.get(mark.saturating_sub(1)).ok_or_else(underflow)
    }

    /// POP: pops the mark where there is no value above it, else a value (`_pickle.c: load_pop`).
    pub(super) fn pop_value_or_mark(&mut self) -> Result<()> {
        if self.marks.last().map(u32_to_usize) == Some(self.stack.len()) {
            self.pop_mark().map(|_| ())
        } else {
            self.pop().map(|_| ())
        }
    }

    /// STOP: returns the root; fails where other values or marks are left on the stack.
    pub(super) fn stop(&mut self) -> Result<Handle> {
        let root = self.pop()?;
        if self.stack.len() > 0 || self.marks.len() > 0 {
            let left = self.stack.len();
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
