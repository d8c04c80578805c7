//! Limits of the pool while streams work within a memory window.
//!
//! A budget is a shared number: the bytes left of a stream's window, which the pool may keep. Memory that the pool kept before the
//! stream began is resident already. Results made of it add nothing to the resident memory; on fresh pages they would cost as much
//! again. So a budget carries over as much of it as the coming results can use. Each result made of kept memory reduces what is
//! carried over. The first result that is dropped ends the carry-over: the next results can be made of the dropped memory, and the
//! window is enough.
#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use crate::num::to_usize;

/// The budgets in force.
#[derive(Debug, Default)]
pub(super) struct Budgets(Vec<Budget>);

#[derive(Debug)]
struct Budget {
    /// Bytes left of the window; dropped when its stream ends.
    window_left: Weak<AtomicU64>,
    /// Bytes kept from before the stream that results are still to be made of.
    carried_over: usize,
}

impl Budgets {
    /// Adds a budget, with `carried_over` bytes that are kept already and that its results can use.
    pub(super) fn add(&mut self, window_left: &Arc<AtomicU64>, carried_over: usize) {
        self.0.push(Budget { window_left: Arc::downgrade(window_left), carried_over });
    }

    /// The most bytes that the pool may keep now: the smallest budget, or `limit` without any. Removes budgets that have ended.
    pub(super) fn limit(&mut self, mut limit: usize) -> usize {
        self.0.retain(|budget| {
            let window_left = budget.window_left.upgrade();
            if let Some(window_left) = &window_left {
                limit = limit.min(to_usize(window_left.load(Ordering::Relaxed)).max(budget.carried_over));
            }
            window_left.is_some()
        });
        limit
    }

    /// Records that a result was made of so many kept bytes.
    pub(super) fn record_reuse(&mut self, bytes: usize) {
        for budget in &mut self.0 {
            budget.carried_over = budget.carried_over.saturating_sub(bytes);
        }
    }

    /// Ends the carry-over of all budgets: a result was dropped.
    pub(super) fn end_carry_over(&mut self) {
        self.record_reuse(usize::MAX);
    }

    /// Ends the carry-over of one budget.
    pub(super) fn end_carry_over_of(&mut self, window_left: &Weak<AtomicU64>) {
        for budget in self.0.iter_mut().filter(|budget| budget.window_left.ptr_eq(window_left)) {
            budget.carried_over = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_budget_applies_and_ends_with_its_owner() {
        let mut budgets = Budgets::default();
        let (wide, tight) = (Arc::new(AtomicU64::new(50)), Arc::new(AtomicU64::new(20)));
        budgets.add(&wide, 70);
        budgets.add(&tight, 30);
        assert_eq!(budgets.limit(100), 30);
        budgets.record_reuse(25);
        assert_eq!(budgets.limit(100), 20);
        drop(tight);
        assert_eq!((budgets.limit(100), budgets.0.len()), (50, 1));
        wide.store(10, Ordering::Relaxed);
        assert_eq!(budgets.limit(100), 45);
        budgets.end_carry_over_of(&Arc::downgrade(&wide));
        assert_eq!(budgets.limit(100), 10);
        drop(wide);
        assert_eq!((budgets.limit(100), budgets.0.len()), (100, 0));
    }
}
