//! The large buffers of the last survey, kept for the next one: a scan of many files, or of many members, then asks the system
//! for its memory once, and not page by page for each.
//!
//! At most [`MOST`] bytes of each kind are kept, by the process as a whole. Who finds the store in use goes without: nobody waits,
//! in a forked child least of all.

use std::sync::{Mutex, TryLockError};

use super::arena::CallRecord;
use super::nodes::Small;
use super::value::Handle;

/// Bytes of one kind of buffer that are kept.
const MOST: usize = 4 << 20;

static STORE: Mutex<Spare> =
    Mutex::new(Spare { nodes: Vec::new(), items: Vec::new(), calls: Vec::new(), memo: Vec::new() });

/// Empty buffers with whatever room they have.
#[derive(Default)]
pub(super) struct Spare {
    pub(super) nodes: Vec<Small>,
    pub(super) items: Vec<Handle>,
    pub(super) calls: Vec<CallRecord>,
    pub(super) memo: Vec<Option<Handle>>,
}

/// Takes what is there.
pub(super) fn take() -> Spare {
    let mut spare = Spare::default();
    exchange(|store| std::mem::swap(store, &mut spare));
    spare
}

/// Keeps those of the buffers that have more room than the kept ones.
pub(super) fn keep(mut spare: Spare) {
    exchange(|store| {
        larger(&mut store.nodes, &mut spare.nodes);
        larger(&mut store.items, &mut spare.items);
        larger(&mut store.calls, &mut spare.calls);
        larger(&mut store.memo, &mut spare.memo);
    });
}

fn exchange(with: impl FnOnce(&mut Spare)) {
    match STORE.try_lock() {
        Ok(mut store) => with(&mut store),
        Err(TryLockError::Poisoned(store)) => with(&mut store.into_inner()),
        Err(TryLockError::WouldBlock) => {}
    }
}

fn larger<T>(kept: &mut Vec<T>, offered: &mut Vec<T>) {
    let fits = offered.capacity().saturating_mul(size_of::<T>()) <= MOST;
    if fits && offered.capacity() > kept.capacity() {
        offered.clear();
        std::mem::swap(kept, offered);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_larger_buffer_is_kept_empty_and_none_beyond_the_bound() {
        let (mut kept, mut offered) = (vec![1_u8], Vec::with_capacity(100));
        offered.push(7);
        larger(&mut kept, &mut offered);
        assert_eq!((kept.len(), kept.capacity() >= 100, offered.as_slice()), (0, true, &[1][..]));
        larger(&mut kept, &mut Vec::with_capacity(10));
        larger(&mut kept, &mut Vec::with_capacity(MOST + 1));
        assert!((100..MOST).contains(&kept.capacity()));
    }
}
