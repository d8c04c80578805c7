//! A process-wide cache of the large buffers of the last recovering run, for the next one: a scan of many files, or of many
//! members, then allocates its memory once, without page faults for each of them.
//!
//! The cache keeps at most [`CACHED_BUFFER_MAX_BYTES`] per kind of buffer. It is only ever locked with `try_lock`: a caller that
//! finds it locked allocates its own buffers, so a forked child cannot wait for a lock that its parent held.

use std::sync::Mutex;

use super::arena::CallRecord;
use super::nodes::CompactNode;
use super::value::Handle;
use crate::parallel::try_lock;

/// The largest buffer that is kept.
const CACHED_BUFFER_MAX_BYTES: usize = 4 << 20;

static CACHE: Mutex<RecycledBuffers> =
    Mutex::new(RecycledBuffers { nodes: Vec::new(), items: Vec::new(), calls: Vec::new(), memo: Vec::new() });

/// Empty buffers with whatever capacity they have.
#[derive(Default)]
pub(super) struct RecycledBuffers {
    pub(super) nodes: Vec<CompactNode>,
    pub(super) items: Vec<Handle>,
    pub(super) calls: Vec<CallRecord>,
    pub(super) memo: Vec<Option<Handle>>,
}

/// Moves the cached buffers out; empty ones where there are none or the cache is locked.
pub(super) fn take() -> RecycledBuffers {
    let mut buffers = RecycledBuffers::default();
    try_with_cache(|cache| std::mem::swap(cache, &mut buffers));
    buffers
}

/// Caches each buffer that has more capacity than the cached one of its kind; drops the others.
pub(super) fn put(mut buffers: RecycledBuffers) {
    try_with_cache(|cache| {
        keep_larger(&mut cache.nodes, &mut buffers.nodes);
        keep_larger(&mut cache.items, &mut buffers.items);
        keep_larger(&mut cache.calls, &mut buffers.calls);
        keep_larger(&mut cache.memo, &mut buffers.memo);
    });
}

fn try_with_cache(with: impl FnOnce(&mut RecycledBuffers)) {
    if let Some(mut cache) = try_lock(&CACHE) {
        with(&mut cache);
    }
}

fn keep_larger<T>(kept: &mut Vec<T>, offered: &mut Vec<T>) {
    let fits = offered.capacity().saturating_mul(size_of::<T>()) <= CACHED_BUFFER_MAX_BYTES;
    if fits && offered.capacity() > kept.capacity() {
        offered.clear();
        std::mem::swap(kept, offered);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_larger_buffer_is_kept_empty_and_none_above_the_size_limit() {
        let (mut kept, mut offered) = (vec![1_u8], Vec::with_capacity(100));
        offered.push(7);
        keep_larger(&mut kept, &mut offered);
        assert_eq!((kept.len(), kept.capacity() >= 100, offered.as_slice()), (0, true, &[1][..]));
        keep_larger(&mut kept, &mut Vec::with_capacity(10));
        keep_larger(&mut kept, &mut Vec::with_capacity(CACHED_BUFFER_MAX_BYTES + 1));
        assert!((100..CACHED_BUFFER_MAX_BYTES).contains(&kept.capacity()));
    }
}
