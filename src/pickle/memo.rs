//! The memo table: handles by memo index. A dense vector while indices are contiguous, as writers make them; a hash map for the
//! others.
//!
//! An index is any 32-bit number; memory grows with the number of entries, never with the index.

use std::collections::HashMap;

use super::ids::Handle;
use crate::error::{Code, Error, Result, error};
use crate::num::{to_u32, to_u64, to_usize, u32_to_usize};

pub(super) struct Memo {
    dense: Vec<Option<Handle>>,
    sparse: HashMap<u32, Handle>,
    count: usize,
    limit: u64,
}

impl Memo {
    /// A memo of at most `limit` entries, with capacity for about `guess`, or less where memory is short: then `put_new` reserves entry
    /// by entry and reports the error.
    pub(super) fn with_capacity_hint(limit: u64, guess: usize) -> Memo {
        let mut dense = Vec::new();
        let _ = dense.try_reserve_exact(guess.min(to_usize(limit)));
        Memo { dense, sparse: HashMap::new(), count: 0, limit }
    }

    /// The index that MEMOIZE assigns: the number of entries.
    pub(super) fn next_index(&self) -> u32 {
        to_u32(self.count)
    }

    #[inline(always)]
    pub(super) fn put(&mut self, number: u32, handle: Handle) -> Result<()> {
        let at = u32_to_usize(number);
        // The common case: writers number the entries from 0 on, each once.
        let next = at == self.dense.len() && at == self.count;
        if next && at < self.dense.capacity() && to_u64(at) < self.limit {
            self.dense.push(Some(handle));
            self.count = self.dense.len();
            return Ok(());
        }
        match self.dense.get_mut(at) {
            Some(Some(slot)) => {
                *slot = handle;
                Ok(())
            }
            _ => self.put_new(number, handle),
        }
    }

    #[cold]
    fn put_new(&mut self, number: u32, handle: Handle) -> Result<()> {
        let known = !self.sparse.is_empty() && self.sparse.contains_key(&number);
        if !known {
            let count = self.count.saturating_add(1);
            crate::limits::Limits::check("memo", self.limit, to_u64(count))?;
            self.count = count;
        }
        let at = u32_to_usize(number);
        if at < self.count.saturating_mul(2).saturating_add(1024) {
            let len = at.saturating_add(1);
            if len > self.dense.len() {
                let extra = len.saturating_sub(self.dense.len());
                self.dense.try_reserve(extra).map_err(|_| no_memory())?;
                self.dense.resize(len, None);
            }
            if let Some(slot) = self.dense.get_mut(at) {
                *slot = Some(handle);
            }
        } else {
            self.sparse.try_reserve(1).map_err(|_| no_memory())?;
            self.sparse.insert(number, handle);
        }
        Ok(())
    }

    /// The newest entry with this index: one in the dense part is newer than one in the hash map. Fails where there is none.
    #[inline(always)]
    pub(super) fn get(&self, number: u32) -> Result<Handle> {
        match self.dense.get(u32_to_usize(number)) {
            Some(Some(handle)) => Ok(*handle),
            _ => self.sparse.get(&number).copied().ok_or_else(|| unset(number)),
        }
    }
}

#[cold]
fn unset(number: u32) -> Error {
    error!(Code::PickleMemo, "memo entry {number} is not set")
}

#[cold]
fn no_memory() -> Error {
    Error::new(Code::Memory, "no memory for the memo")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_memo_behaves_as_a_map(puts in proptest::collection::vec((0u32..6000, 0usize..100), 0..600)) {
            let (mut memo, mut model) = (Memo::with_capacity_hint(1 << 20, 100), HashMap::new());
            for (number, value) in puts {
                memo.put(number, Handle::at(value)).unwrap();
                model.insert(number, Handle::at(value));
                prop_assert_eq!(u32_to_usize(memo.next_index()), model.len());
            }
            for number in 0..6000 {
                prop_assert_eq!(memo.get(number).ok(), model.get(&number).copied());
            }
        }
    }

    #[test]
    fn the_highest_index_costs_one_entry() {
        let mut memo = Memo::with_capacity_hint(10, 0);
        memo.put(u32::MAX, Handle::NONE).unwrap();
        assert_eq!((memo.next_index(), memo.dense.capacity()), (1, 0));
        assert_eq!(memo.get(u32::MAX).unwrap(), Handle::NONE);
    }
}
