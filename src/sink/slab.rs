//! Slabs: pages that many small results share, each from a cache line on.
//!
//! A slab is filled from its start and never reused in parts; it goes back to the pool when the last result in it goes. So one
//! small result that is kept keeps a slab at most. Nobody waits: whoever finds the current slab in use does without it.
#![forbid(unsafe_code)]

use std::process;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, TryLockError};

use super::pages::HUGE;
use super::pool::Pooled;

/// Results of more bytes than this have memory of their own.
pub(super) const LARGEST: usize = 64 << 10;

/// Bytes of a slab.
const SLAB: usize = HUGE;

/// A cache line.
const LINE: usize = 64;

/// A part of a slab that nobody else has.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) slab: Arc<Pooled>,
    pub(super) start: NonNull<u8>,
}

/// The slab that is being filled.
#[derive(Debug)]
struct Current {
    slab: Arc<Pooled>,
    used: usize,
    owner: u32,
}

static CURRENT: Mutex<Option<Current>> = Mutex::new(None);

/// `len` bytes of a slab, at most [`LARGEST`]; what they hold does not matter. `None` where another thread is at it, or there
/// is no memory.
pub(super) fn take(len: usize) -> Option<Part> {
    let mut current = match CURRENT.try_lock() {
        Ok(current) => current,
        Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
        Err(TryLockError::WouldBlock) => return None,
    };
    let size = len.max(1).checked_next_multiple_of(LINE).filter(|&size| size <= LARGEST)?;
    // In a forked child every page of the parent's slab would be copied.
    let fits = |found: &Current| found.owner == process::id() && found.used.saturating_add(size) <= SLAB;
    if !current.as_ref().is_some_and(fits) {
        // The first is of small pages, which come one by one: a process may want no more than a few small results.
        let slab = if current.is_some() { Pooled::take(SLAB) } else { Pooled::fresh(SLAB, false) }?;
        *current = Some(Current { slab: Arc::new(slab), used: 0, owner: process::id() });
    }
    let current = current.as_mut()?;
    let first = current.slab.pages()?.start();
    let start = NonNull::new(first.as_ptr().wrapping_add(current.used))?;
    current.used += size;
    Some(Part { slab: current.slab.clone(), start })
}

/// Lets go of the slab that is being filled, unless somebody is at it; it stays as long as a result in it.
pub(super) fn trim() {
    if let Ok(mut current) = CURRENT.try_lock() {
        *current = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_lines_that_do_not_overlap() {
        let mut parts: Vec<_> = (0..3000).filter_map(|n| Some((take(n)?, n))).collect();
        assert!(parts.len() > 1000, "other tests may hold the lock now and then, not always");
        parts.sort_by_key(|(part, _)| part.start);
        for pair in parts.windows(2) {
            let [(one, len), (two, _)] = pair else { continue };
            assert!(one.start.addr().get() + (*len).max(1) <= two.start.addr().get());
        }
        assert!(parts.iter().all(|(part, _)| part.start.align_offset(LINE) == 0));
        assert!(take(LARGEST + 1).is_none());
    }

    #[test]
    fn a_part_keeps_its_slab_and_no_more() {
        let Some(part) = std::iter::repeat_with(|| take(1000)).take(1000).flatten().next() else {
            panic!("a slab")
        };
        trim();
        let last = Arc::strong_count(&part.slab);
        assert!(last >= 1);
        assert_eq!(part.slab.pages().map(|pages| pages.len()), Some(SLAB));
    }
}
