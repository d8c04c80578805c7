//! A vector that asks its limit before it grows, and grows in steps that keep the memory law.
//!
//! Small pools double; from 1 MiB on they grow by an eighth, so that spare room never outweighs what the pickle paid for.

use super::wide;
use crate::error::{Code, Error, Result};

/// Items of one kind, at most `limit` of them; the limit's name goes into the error.
pub(super) struct Pool<T> {
    items: Vec<T>,
    /// Pushing is plain below this many items.
    room: usize,
    limit: usize,
    name: &'static str,
}

const DOUBLING_BYTES: usize = 1 << 20;

impl<T: Copy> Pool<T> {
    pub(super) fn new(name: &'static str, limit: u64) -> Pool<T> {
        // Indices are 32 bits; the topmost ones are spared for sentinels.
        let limit = usize::try_from(limit).unwrap_or(usize::MAX).min(0xffff_fff0);
        Pool { items: Vec::new(), room: 0, limit, name }
    }

    /// As `new`, in an empty buffer with room for about `guess` items, or less where memory is short.
    pub(super) fn with_room(name: &'static str, limit: u64, buffer: Vec<T>, guess: usize) -> Pool<T> {
        let mut pool = Pool::new(name, limit);
        pool.items = buffer;
        pool.items.clear();
        let room = guess.min(pool.limit);
        if room > pool.items.capacity() {
            // What the buffer has is not worth copying; where there is no more, growing finds out.
            pool.items = Vec::new();
            let _ = pool.items.try_reserve_exact(room);
        }
        pool.room = pool.items.capacity().min(pool.limit);
        pool
    }

    /// Takes the buffer away, and with it the items.
    pub(super) fn take(&mut self) -> Vec<T> {
        self.room = 0;
        std::mem::take(&mut self.items)
    }

    #[inline(always)]
    pub(super) fn push(&mut self, item: T) -> Result<()> {
        if self.items.len() >= self.room {
            self.grow(1)?;
        }
        self.items.push(item);
        Ok(())
    }

    /// Appends `count` items.
    #[inline]
    pub(super) fn extend(&mut self, count: usize, items: impl Iterator<Item = T>) -> Result<()> {
        if count > self.room.saturating_sub(self.items.len()) {
            self.grow(count)?;
        }
        self.items.extend(items.take(count));
        Ok(())
    }

    #[cold]
    #[inline(never)]
    fn grow(&mut self, extra: usize) -> Result<()> {
        let len = self.items.len();
        let need = len.saturating_add(extra);
        if need > self.limit {
            return Err(Error::limit(self.name, wide(self.limit), wide(need)));
        }
        let bytes = len.saturating_mul(size_of::<T>());
        let step = if bytes < DOUBLING_BYTES { len.max(64) } else { len >> 3 };
        let room = need.max(len.saturating_add(step)).min(self.limit);
        let reserved = self.items.try_reserve_exact(room.saturating_sub(len));
        reserved.map_err(|_| Error::new(Code::Memory, format!("no memory for {room} {}", self.name)))?;
        self.room = room;
        Ok(())
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.items.len()
    }

    #[inline]
    pub(super) fn last(&self) -> Option<T> {
        self.items.last().copied()
    }

    #[inline]
    pub(super) fn pop(&mut self) -> Option<T> {
        self.items.pop()
    }

    #[inline]
    pub(super) fn truncate(&mut self, len: usize) {
        self.items.truncate(len);
    }

    #[inline]
    pub(super) fn get(&self, index: usize) -> Option<T> {
        self.items.get(index).copied()
    }

    #[inline]
    pub(super) fn slot(&mut self, index: usize) -> Option<&mut T> {
        self.items.get_mut(index)
    }

    /// The items from `start` on.
    #[inline]
    pub(super) fn from(&self, start: usize) -> &[T] {
        self.items.get(start..).unwrap_or_default()
    }

    /// `len` items from `start` on.
    #[inline]
    pub(super) fn slice(&self, start: usize, len: usize) -> &[T] {
        self.items.get(start..start.saturating_add(len)).unwrap_or_default()
    }

    pub(super) fn slice_mut(&mut self, start: usize, len: usize) -> &mut [T] {
        self.items.get_mut(start..start.saturating_add(len)).unwrap_or_default()
    }

    /// Appends a copy of `len` of its own items.
    pub(super) fn repeat(&mut self, start: usize, len: usize) -> Result<()> {
        if len > self.room.saturating_sub(self.items.len()) {
            self.grow(len)?;
        }
        self.items.extend_from_within(start..start.saturating_add(len));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_holds_exactly_its_limit_and_then_names_it() {
        let mut pool = Pool::new("stack", 100);
        for item in 0..100 {
            pool.push(item).unwrap();
        }
        let error = pool.push(100).unwrap_err();
        assert_eq!((error.code(), pool.len()), (Code::Limit, 100));
        assert!(error.message().contains("stack"));
    }
}
