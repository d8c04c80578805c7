//! The stack and its marks: no opcode reaches below the topmost mark.

use super::{Machine, fail};
use crate::error::{Code, Error, Result};
use crate::pickle::arena::Node;
use crate::pickle::index;
use crate::pickle::value::Handle;

impl Machine<'_> {
    #[inline(always)]
    pub(super) fn push(&mut self, node: Node) -> Result<()> {
        let handle = self.arena.add(node)?;
        self.stack.push(handle)
    }

    /// Pushes a value that is there already.
    #[inline(always)]
    pub(super) fn push_again(&mut self, value: Handle) -> Result<()> {
        self.fetched |= self.arena.nodes.may_be_filled(value);
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

    /// Takes the topmost mark away; gives where its values begin.
    #[inline]
    pub(super) fn unmark(&mut self) -> Result<usize> {
        let mark = self.marks.pop().ok_or_else(|| fail(Code::PickleStack, "no MARK is on the stack"))?;
        self.fence = self.marks.last().map_or(0, index);
        Ok(index(mark))
    }

    /// The value below a mark that was just taken away.
    #[inline]
    pub(super) fn below(&self, mark: usize) -> Result<Handle> {
        if mark <= self.fence {
            return Err(underflow());
        }
        self.stack.get(mark.saturating_sub(1)).ok_or_else(underflow)
    }

    /// POP takes the mark when nothing stands on it (`_pickle.c: load_pop`).
    pub(super) fn pop_or_unmark(&mut self) -> Result<()> {
        if self.marks.last().map(index) == Some(self.stack.len()) {
            self.unmark().map(|_| ())
        } else {
            self.pop().map(|_| ())
        }
    }

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
