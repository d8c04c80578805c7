//! The units of a folder's files that were verified last, for reads of parts of them.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::Result;
use crate::parallel::{self, lock};
use crate::sys::process_id;

/// The file and the offset of a unit.
pub(super) type Key = (u64, u64);

/// The units that were verified last, of all files of a folder. A unit that several threads want is read by one of them.
pub(super) struct UnitCache {
    slots: Mutex<VecDeque<Arc<Slot>>>,
    slots_max: usize,
    /// The process that made it. A forked child might wait for ever for a thread of its parent.
    process: u32,
}

struct Slot {
    key: Key,
    bytes: Mutex<Option<Arc<Vec<u8>>>>,
}

impl UnitCache {
    pub(super) fn new() -> UnitCache {
        let slots_max = parallel::cores().clamp(8, 16);
        UnitCache { slots: Mutex::default(), slots_max, process: process_id() }
    }

    /// Locks a mutex; `None` in a forked child, which shares nothing.
    pub(super) fn lock<'a, T>(&self, mutex: &'a Mutex<T>) -> Option<MutexGuard<'a, T>> {
        let is_own = self.process == process_id();
        is_own.then(|| lock(mutex))
    }

    /// The unit of this key: the one that is kept, or what `read` puts into the buffer that it gets.
    pub(super) fn get_or_read(
        &self,
        key: Key,
        read: impl FnOnce(&mut Vec<u8>) -> Result<()>,
    ) -> Result<Arc<Vec<u8>>> {
        let (slot, mut bytes) = self.slot(key);
        let mut kept = slot.as_ref().and_then(|slot| self.lock(&slot.bytes));
        if let Some(Some(found)) = kept.as_deref() {
            return Ok(found.clone());
        }
        read(&mut bytes)?;
        let bytes = Arc::new(bytes);
        if let Some(kept) = &mut kept {
            **kept = Some(bytes.clone());
        }
        Ok(bytes)
    }

    /// Whether the unit of this key is kept, or is being read.
    pub(super) fn has(&self, key: Key) -> bool {
        self.lock(&self.slots).is_some_and(|slots| slots.iter().any(|slot| slot.key == key))
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        lock(&self.slots).is_empty()
    }

    /// The slot of this key, and memory that a unit no longer needs.
    fn slot(&self, key: Key) -> (Option<Arc<Slot>>, Vec<u8>) {
        let Some(mut slots) = self.lock(&self.slots) else { return (None, Vec::new()) };
        if let Some(found) = slots.iter().find(|slot| slot.key == key) {
            return (Some(found.clone()), Vec::new());
        }
        let dropped = if slots.len() >= self.slots_max { slots.pop_front() } else { None };
        let slot = Arc::new(Slot { key, bytes: Mutex::new(None) });
        slots.push_back(slot.clone());
        drop(slots);
        let spare = dropped
            .and_then(Arc::into_inner)
            .and_then(|slot| slot.bytes.into_inner().unwrap_or_else(PoisonError::into_inner))
            .and_then(Arc::into_inner);
        (Some(slot), spare.unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_units_are_kept() {
        let cache = UnitCache::new();
        for number in 0..100 {
            let unit = cache.get_or_read((1, number), |bytes| {
                assert!(number < 17 || bytes.capacity() > 0, "memory is used again");
                *bytes = vec![1; 10];
                Ok(())
            });
            assert_eq!(unit.unwrap().len(), 10);
        }
        assert_eq!(cache.slots.lock().unwrap().len(), cache.slots_max);
    }
}
