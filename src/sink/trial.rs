//! Whether new memory goes on huge pages: it does, unless touching one takes longer than touching all the small pages in its place.
//!
//! A virtual machine may have let its host take back the memory that lay idle, in blocks of a huge page; touching such a block
//! then waits for the host. Small pages come from fragments, which the host has not taken. Nothing tells this beforehand, so it is
//! tried: of every [`GROUP`] huge pages, and of more in a large range, one is touched as soon as it is mapped, and timed. What was in
//! use a moment ago comes first and is fast; then, mostly, all the rest is slow. So two slow ones in a row, and the next pages are
//! small; more of them with every slow one that follows.
#![forbid(unsafe_code)]

use std::sync::{Mutex, TryLockError};
use std::time::Duration;

/// Huge pages for which one good trial stands, at least: 16 MiB.
const GROUP: usize = 8;

/// Trials in one range, about: nobody can stop them.
const TRIALS: usize = 16;

/// Huge pages that are left to small ones after the trials that were slow first: 64 MiB. Doubled after each that follows.
const SMALL: usize = 32;

/// The most of them: 1 GiB.
const MOST_SMALL: usize = 512;

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
    static TRIAL: Mutex<Trial> = Mutex::new(Trial::NEW);
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
    /// Slow trials in a row.
    slow: u32,
    /// Pages that the next slow trial leaves to small ones.
    next_small: usize,
}

impl Trial {
    const NEW: Trial = Trial { huge: 0, small: 0, slow: 0, next_small: SMALL };

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
        let next_small = self.next_small;
        *self = match self.slow + 1 {
            _ if took <= SLOW => Trial { huge: group - 1, ..Trial::NEW },
            slow @ IN_A_ROW.. => {
                let small = next_small.max(group);
                Trial { huge: 0, small, slow, next_small: (2 * next_small).min(MOST_SMALL) }
            }
            slow => Trial { huge: 0, small: 0, slow, next_small },
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many of `count` huge pages become huge, where touching the page with a number takes so many microseconds.
    fn run(count: usize, micros: impl Fn(usize) -> u64) -> (usize, usize) {
        let mut trial = Trial::NEW;
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
        let (huge, tries) = run(2 + 32 + 1 + 64 + 1 + 128 + 1 + 256 + 1 + 512 + 1 + 512, |_| 4000);
        assert_eq!((huge, tries), (7, 7));
    }

    #[test]
    fn one_slow_page_changes_nothing() {
        assert_eq!(run(1000, |at| if at % 5 == 0 { 4000 } else { 150 }).0, 1000);
    }

    #[test]
    fn small_pages_end_when_huge_ones_become_fast() {
        let (huge, tries) = run(1000, |at| if at < 90 { 4000 } else { 150 });
        assert_eq!((huge, tries), (3 + 1000 - 99, 3 + (1000_usize - 99).div_ceil(GROUP)));
    }

    #[test]
    fn few_pages_are_slow_before_that_is_known() {
        for fast in 100..100 + GROUP {
            let (huge, _) = run(100 + GROUP + 2 + 32, |at| if at < fast { 150 } else { 4000 });
            assert!(huge - fast <= GROUP + 2, "{fast} {huge}");
        }
    }
}
