//! Whether new memory goes on huge pages: it does, unless touching one takes longer than touching all the small pages in its place.
//!
//! A virtual machine may have let its host take back the memory that lay idle, in blocks of a huge page; touching such a block
//! then waits for the host. Small pages come from fragments, which the host has not taken. Nothing tells this beforehand, so it is
//! tried: of every [`GROUP`] huge pages, and of more in a large range, one is touched as soon as it is mapped, and timed. Two slow
//! ones in a row, and the next group is left to small pages.
#![forbid(unsafe_code)]

use std::sync::{Mutex, TryLockError};
use std::time::Duration;

/// Huge pages for which one trial stands, at least: 64 MiB.
const GROUP: usize = 32;

/// Trials in one range, about: nobody can stop them.
const TRIALS: usize = 16;

/// What 512 small pages take at most where a fault is slow; a huge page that the host has backed takes a tenth of it.
const SLOW: Duration = Duration::from_micros(1500);

/// So many slow trials in a row are no accident.
const IN_A_ROW: u32 = 2;

/// What to do with the next pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// So many on huge pages.
    Huge(usize),
    /// So many on small ones.
    Small(usize),
    /// One on a huge page, to be touched and reported to [`saw`].
    Try,
}

/// What becomes of the next of `count` huge pages, as far as one answer goes.
pub(super) fn next(count: usize) -> Next {
    with(|trial| trial.next(count)).unwrap_or(Next::Huge(count))
}

/// Reports how long the processor was busy with touching a page that was to be tried, in a range of `count`.
pub(super) fn saw(took: Duration, count: usize) {
    with(|trial| trial.saw(took, GROUP.max(count / TRIALS)));
}

fn with<T>(work: impl FnOnce(&mut Trial) -> T) -> Option<T> {
    static TRIAL: Mutex<Trial> = Mutex::new(Trial { huge: 0, small: 0, slow: 0 });
    match TRIAL.try_lock() {
        Ok(mut trial) => Some(work(&mut trial)),
        Err(TryLockError::Poisoned(trial)) => Some(work(&mut trial.into_inner())),
        // Nobody waits; in a forked child the lock may stay taken.
        Err(TryLockError::WouldBlock) => None,
    }
}

/// The outcome of the trials so far.
#[derive(Debug)]
struct Trial {
    /// Huge pages that follow a good trial without one of their own.
    huge: usize,
    /// The same of those that are left to small pages.
    small: usize,
    slow: u32,
}

impl Trial {
    fn next(&mut self, count: usize) -> Next {
        let (huge, small) = (self.huge.min(count), self.small.min(count));
        self.huge -= huge;
        self.small -= small;
        match (huge, small) {
            (0, 0) => Next::Try,
            (0, small) => Next::Small(small),
            (huge, _) => Next::Huge(huge),
        }
    }

    /// One trial stands for `group` pages.
    fn saw(&mut self, took: Duration, group: usize) {
        *self = match self.slow + 1 {
            _ if took <= SLOW => Trial { huge: group - 1, small: 0, slow: 0 },
            IN_A_ROW.. => Trial { huge: 0, small: group, slow: 0 },
            slow => Trial { huge: 0, small: 0, slow },
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many of `count` huge pages become huge, where touching the page with a number takes so many microseconds.
    fn run(count: usize, micros: impl Fn(usize) -> u64) -> (usize, usize) {
        let mut trial = Trial { huge: 0, small: 0, slow: 0 };
        let (mut at, mut huge, mut tries) = (0, 0, 0);
        while at < count {
            match trial.next(count - at) {
                Next::Huge(pages) => (at, huge) = (at + pages, huge + pages),
                Next::Small(pages) => at += pages,
                Next::Try => {
                    trial.saw(Duration::from_micros(micros(at)), GROUP);
                    (at, huge, tries) = (at + 1, huge + 1, tries + 1);
                }
            }
        }
        assert_eq!(at, count);
        (huge, tries)
    }

    #[test]
    fn where_huge_pages_are_fast_all_are_huge_and_few_are_tried() {
        assert_eq!(run(1000, |_| 150), (1000, 1000_usize.div_ceil(GROUP)));
        assert_eq!(run(1, |_| 150), (1, 1));
    }

    #[test]
    fn where_huge_pages_are_slow_most_are_small() {
        let (huge, tries) = run(34 * 10, |_| 4000);
        assert_eq!((huge, tries), (20, 20));
    }

    #[test]
    fn one_slow_page_changes_nothing() {
        assert_eq!(run(1000, |at| if at % 5 == 0 { 4000 } else { 150 }).0, 1000);
    }

    #[test]
    fn small_pages_end_when_huge_ones_become_fast() {
        let (huge, _) = run(1000, |at| if at < 100 { 4000 } else { 150 });
        assert!(huge > 890, "{huge}");
    }
}
