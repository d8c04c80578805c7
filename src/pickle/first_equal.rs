//! Finds the first of equal things, by a keyed hash of 32 bits. Unequal things of one hash are found by linear probing.

use std::collections::HashMap;
use std::collections::hash_map::{Entry, RandomState};

use crate::error::{Code, Error, Result};

pub(super) struct FirstEqual<T> {
    by_hash: HashMap<u32, T>,
    /// The key of the hashes.
    pub(super) state: RandomState,
}

impl<T: Copy> FirstEqual<T> {
    pub(super) fn new() -> FirstEqual<T> {
        FirstEqual { by_hash: HashMap::new(), state: RandomState::new() }
    }

    /// The first thing of this hash that is equal to `new`, which is `new` itself where there was none.
    pub(super) fn of(&mut self, hash: u64, new: T, is_equal: impl Fn(T) -> bool) -> Result<T> {
        let reserved = self.by_hash.try_reserve(1);
        reserved.map_err(|_| Error::new(Code::Memory, "no memory for keys and names"))?;
        let mut probe = u32::try_from(hash & 0xffff_ffff).unwrap_or_default();
        loop {
            match self.by_hash.entry(probe) {
                Entry::Vacant(slot) => return Ok(*slot.insert(new)),
                Entry::Occupied(slot) if is_equal(*slot.get()) => return Ok(*slot.get()),
                Entry::Occupied(_) => probe = probe.wrapping_add(1),
            }
        }
    }
}
