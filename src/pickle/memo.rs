//! The memo: handles by number. Dense while numbers are as contiguous as writers make them, a hash map otherwise.
//!
//! A number is any 32 bits; memory follows the count of entries, never the number.

use std::collections::HashMap;

use super::spare::{self, Spare};
use super::value::Handle;
use super::{index, wide};
use crate::error::{Code, Error, Result};

pub(super) struct Memo {
    dense: Vec<Option<Handle>>,
    sparse: HashMap<u32, Handle>,
    count: usize,
    limit: u64,
    /// Whether the buffer is handed on to the next survey.
    recycled: bool,
}

impl Memo {
    /// At most `limit` entries, with room for about `guess`, or less where memory is short. With `buffer`, in that one, which is
    /// handed on in the end.
    pub(super) fn with_room(limit: u64, buffer: Option<Vec<Option<Handle>>>, guess: usize) -> Memo {
        let recycled = buffer.is_some();
        let mut dense = buffer.unwrap_or_default();
        let guess = guess.min(usize::try_from(limit).unwrap_or(usize::MAX));
        if guess > dense.capacity() {
            dense = Vec::new();
            // Where this fails, entries find out.
            let _ = dense.try_reserve_exact(guess);
        }
        Memo { dense, sparse: HashMap::new(), count: 0, limit, recycled }
    }

    /// The number that MEMOIZE gives: how many entries there are.
    pub(super) fn count(&self) -> u32 {
        super::narrow(self.count)
    }

    #[inline(always)]
    pub(super) fn put(&mut self, number: u32, handle: Handle) -> Result<()> {
        let at = index(number);
        // What writers do: number the entries from 0 on, each once.
        let next = at == self.dense.len() && at == self.count;
        if next && at < self.dense.capacity() && wide(at) < self.limit {
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
            crate::limits::Limits::check("memo", self.limit, wide(count))?;
            self.count = count;
        }
        let at = index(number);
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

    /// The newest entry; one in the dense part is newer than a sparse one of the same number.
    #[inline(always)]
    pub(super) fn fetch(&self, number: u32) -> Result<Handle> {
        match self.dense.get(index(number)) {
            Some(Some(handle)) => Ok(*handle),
            _ => self.sparse.get(&number).copied().ok_or_else(|| unset(number)),
        }
    }
}

impl Drop for Memo {
    fn drop(&mut self) {
        if self.recycled {
            spare::keep(Spare { memo: std::mem::take(&mut self.dense), ..Spare::default() });
        }
    }
}

#[cold]
fn unset(number: u32) -> Error {
    Error::new(Code::PickleMemo, format!("memo entry {number} is not set"))
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
        fn a_memo_is_a_map(puts in proptest::collection::vec((0u32..6000, 0usize..100), 0..600)) {
            let (mut memo, mut model) = (Memo::with_room(1 << 20, None, 100), HashMap::new());
            for (number, value) in puts {
                memo.put(number, Handle::at(value)).unwrap();
                model.insert(number, Handle::at(value));
                prop_assert_eq!(index(memo.count()), model.len());
            }
            for number in 0..6000 {
                prop_assert_eq!(memo.fetch(number).ok(), model.get(&number).copied());
            }
        }
    }

    #[test]
    fn the_highest_number_costs_one_entry() {
        let mut memo = Memo::with_room(10, None, 0);
        memo.put(u32::MAX, Handle::NONE).unwrap();
        assert_eq!((memo.count(), memo.dense.capacity()), (1, 0));
        assert_eq!(memo.fetch(u32::MAX).unwrap(), Handle::NONE);
    }
}
