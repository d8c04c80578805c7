//! A growable vector with a hard limit, and with growth steps that keep memory in proportion to the pickle's size.
//!
//! Small vectors double; from 1 MiB on they grow by an eighth, so that unused capacity stays small in proportion to the pickle.

use crate::error::{Code, Error, Result, error};
use crate::num::{to_u64, to_usize};

/// A vector of at most `limit` items; the error at the limit contains `name`.
pub(super) struct BoundedVec<T> {
    items: Vec<T>,
    /// Pushing needs neither a check nor an allocation below this many items.
    capacity: usize,
    limit: usize,
    name: &'static str,
}

/// Up to this size a vector doubles.
const DOUBLING_MAX_BYTES: usize = 1 << 20;

impl<T: Copy> BoundedVec<T> {
    pub(super) fn new(name: &'static str, limit: u64) -> BoundedVec<T> {
        // Indices are 32 bits; the highest ones are reserved for sentinels.
        let limit = to_usize(limit).min(0xffff_fff0);
        BoundedVec { items: Vec::new(), capacity: 0, limit, name }
    }

    /// As `new`, with capacity for about `guess` items, or less where memory is short: then `grow` reports the error.
    pub(super) fn with_capacity_hint(name: &'static str, limit: u64, guess: usize) -> BoundedVec<T> {
        let mut vec = BoundedVec::new(name, limit);
        let _ = vec.items.try_reserve_exact(guess.min(vec.limit));
        vec.capacity = vec.items.capacity().min(vec.limit);
        vec
    }

    #[inline(always)]
    pub(super) fn push(&mut self, item: T) -> Result<()> {
        if self.items.len() >= self.capacity {
            self.grow(1)?;
        }
        self.items.push(item);
        Ok(())
    }

    /// Appends `count` items.
    #[inline]
    pub(super) fn extend(&mut self, count: usize, items: impl Iterator<Item = T>) -> Result<()> {
        if count > self.capacity.saturating_sub(self.items.len()) {
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
            return Err(Error::limit(self.name, to_u64(self.limit), to_u64(need)));
        }
        let bytes = len.saturating_mul(size_of::<T>());
        let step = if bytes < DOUBLING_MAX_BYTES { len.max(64) } else { len >> 3 };
        let capacity = need.max(len.saturating_add(step)).min(self.limit);
        let reserved = self.items.try_reserve_exact(capacity.saturating_sub(len));
        reserved.map_err(|_| error!(Code::Memory, "no memory for {capacity} {}", self.name))?;
        self.capacity = capacity;
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
    pub(super) fn get_mut(&mut self, index: usize) -> Option<&mut T> {
        self.items.get_mut(index)
    }

    /// The items from `start` on.
    #[inline]
    pub(super) fn slice_from(&self, start: usize) -> &[T] {
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

    /// Appends a copy of the `len` items from `start` on.
    pub(super) fn extend_from_within(&mut self, start: usize, len: usize) -> Result<()> {
        if len > self.capacity.saturating_sub(self.items.len()) {
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
    fn the_limit_is_exact_and_named_in_the_error() {
        let mut vec = BoundedVec::new("stack", 100);
        for item in 0..100 {
            vec.push(item).unwrap();
        }
        let error = vec.push(100).unwrap_err();
        assert_eq!((error.code(), vec.len()), (Code::Limit, 100));
        assert!(error.message().contains("stack"));
    }
}
