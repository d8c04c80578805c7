//! Slabs: pages that many small results share. Each result starts on a cache line.
//!
//! A slab is filled from its start and never reused in parts; it returns to the pool when the last result in it is dropped. So one
//! small result that is kept alive keeps one slab at most. No thread waits for the lock: a thread that finds the current slab
//! locked allocates without it.
#![forbid(unsafe_code)]

use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

use super::pages::HUGE_PAGE_BYTES;
use super::pool::Pooled;
use crate::parallel::try_lock;
use crate::sys::process_id;

/// Larger results have an allocation of their own.
pub(super) const SLAB_RESULT_MAX_BYTES: usize = 64 << 10;

/// The size of a slab.
const SLAB_BYTES: usize = HUGE_PAGE_BYTES;

/// The size of a cache line.
const CACHE_LINE_BYTES: usize = 64;

/// The slab that is being filled.
#[derive(Debug)]
struct Current {
    slab: Arc<Pooled>,
    used: usize,
    process: u32,
}

static CURRENT: Mutex<Option<Current>> = Mutex::new(None);

/// Takes `len` bytes of a slab, at most [`SLAB_RESULT_MAX_BYTES`]; what they hold is not defined. `None` if another thread holds
/// the lock, `len` is too large, or there is no memory.
pub(super) fn take(len: usize) -> Option<(Arc<Pooled>, NonNull<u8>)> {
    let mut current = try_lock(&CURRENT)?;
    let size = len
        .max(1)
        .checked_next_multiple_of(CACHE_LINE_BYTES)
        .filter(|&size| size <= SLAB_RESULT_MAX_BYTES)?;
    // In a forked child every page of the parent's slab would be copied on write.
    let fits = |slab: &Current| slab.process == process_id() && slab.used.saturating_add(size) <= SLAB_BYTES;
    if !current.as_ref().is_some_and(fits) {
        // The first slab is on small pages, which are faulted in one by one: a process may need only a few small results.
        let slab =
            if current.is_some() { Pooled::take(SLAB_BYTES) } else { Pooled::fresh(SLAB_BYTES, false) }?;
        *current = Some(Current { slab: Arc::new(slab), used: 0, process: process_id() });
    }
    let current = current.as_mut()?;
    let slab_start = current.slab.pages()?.start();
    let start = NonNull::new(slab_start.as_ptr().wrapping_add(current.used))?;
    current.used += size;
    Some((current.slab.clone(), start))
}

/// Releases the slab that is being filled, unless another thread holds the lock. The slab stays as long as a result in it.
pub(super) fn trim() {
    if let Some(mut current) = try_lock(&CURRENT) {
        *current = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A slice; waits while another test holds the lock.
    fn taken(len: usize) -> (Arc<Pooled>, NonNull<u8>) {
        loop {
            if let Some(slice) = take(len) {
                return slice;
            }
            std::thread::yield_now();
        }
    }

    #[test]
    fn slices_start_on_cache_lines_and_do_not_overlap() {
        let mut slices: Vec<_> = (0..3000).map(|len| (taken(len), len)).collect();
        slices.sort_by_key(|((_, start), _)| *start);
        for pair in slices.windows(2) {
            let [((_, one), len), ((_, two), _)] = pair else { continue };
            assert!(one.addr().get() + (*len).max(1) <= two.addr().get());
        }
        assert!(slices.iter().all(|((_, start), _)| start.align_offset(CACHE_LINE_BYTES) == 0));
        assert!(take(SLAB_RESULT_MAX_BYTES + 1).is_none());
    }

    #[test]
    fn a_slice_keeps_its_slab_alive() {
        let (slab, _) = taken(1000);
        trim();
        let last = Arc::strong_count(&slab);
        assert!(last >= 1);
        assert_eq!(slab.pages().map(|pages| pages.len()), Some(SLAB_BYTES));
    }
}
