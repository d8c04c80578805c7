//! What bounds the pool while somebody works within a window of memory.
//!
//! A budget is a number that says what is left of a window, and may be kept. Memory that was kept before the window is resident
//! already: results that stay with their owner take nothing from anybody by being made of it, and would cost as much again on fresh
//! pages. So a budget carries over as much of it as the coming results can use. Each result takes from that; the first that is
//! dropped ends it, as the next ones can be made of what is dropped, and the window is enough.
#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// The budgets that hold now.
#[derive(Debug, Default)]
pub(super) struct Budgets(Vec<Budget>);

#[derive(Debug)]
struct Budget {
    /// What is left of the window; gone when nobody works within it any more.
    room: Weak<AtomicU64>,
    /// Bytes kept before that are still to become results.
    carried: usize,
}

impl Budgets {
    /// A budget from now on, with `carried` bytes that are kept already and of use.
    pub(super) fn add(&mut self, room: &Arc<AtomicU64>, carried: usize) {
        self.0.push(Budget { room: Arc::downgrade(room), carried });
    }

    /// The most that may be kept now; `most` without any budget.
    pub(super) fn bound(&mut self, mut most: usize) -> usize {
        self.0.retain(|budget| {
            let room = budget.room.upgrade();
            if let Some(room) = &room {
                most = most.min(to_usize(room.load(Ordering::Relaxed)).max(budget.carried));
            }
            room.is_some()
        });
        most
    }

    /// So many bytes of what was kept have become a result.
    pub(super) fn has_used(&mut self, bytes: usize) {
        for budget in &mut self.0 {
            budget.carried = budget.carried.saturating_sub(bytes);
        }
    }

    /// Carries nothing over any more: somebody drops results.
    pub(super) fn end_carrying(&mut self) {
        self.has_used(usize::MAX);
    }

    /// Carries nothing over any more for this room.
    pub(super) fn settle(&mut self, room: &Weak<AtomicU64>) {
        for budget in self.0.iter_mut().filter(|budget| budget.room.ptr_eq(room)) {
            budget.carried = 0;
        }
    }
}

/// A number of bytes of memory, which does not outgrow what memory there can be.
pub(super) fn to_usize(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tightest_budget_counts_and_goes_with_its_room() {
        let mut budgets = Budgets::default();
        let (wide, tight) = (Arc::new(AtomicU64::new(50)), Arc::new(AtomicU64::new(20)));
        budgets.add(&wide, 70);
        budgets.add(&tight, 30);
        assert_eq!(budgets.bound(100), 30);
        budgets.has_used(25);
        assert_eq!(budgets.bound(100), 20);
        drop(tight);
        assert_eq!((budgets.bound(100), budgets.0.len()), (50, 1));
        wide.store(10, Ordering::Relaxed);
        assert_eq!(budgets.bound(100), 45);
        budgets.settle(&Arc::downgrade(&wide));
        assert_eq!(budgets.bound(100), 10);
        drop(wide);
        assert_eq!((budgets.bound(100), budgets.0.len()), (100, 0));
    }
}
