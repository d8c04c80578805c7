//! Decides whether fresh memory goes on huge pages: yes, unless a page fault of a huge page takes longer than those of all the
//! small pages in its place.
//!
//! A virtual machine may have given idle memory back to its host (free page reporting), in blocks of a huge page; touching such a
//! block then waits for the host. Small pages come from fragments, which the host has not taken. A process cannot see this
//! beforehand, so it probes: of every [`PROBE_INTERVAL_PAGES`] huge pages, or more in a large range, one is touched when it is
//! mapped, and timed. The kernel hands out recently used memory first, which is fast; then, mostly, all the rest is slow. So after
//! two slow probes in a row the next pages are small, and each further slow probe doubles their number.
#![forbid(unsafe_code)]

use std::sync::Mutex;
use std::time::Duration;

use crate::parallel::try_lock;

/// One fast probe stands for at least this many huge pages: 16 MiB.
const PROBE_INTERVAL_PAGES: usize = 8;

/// About the most probes in one range: a probe cannot be cancelled.
const PROBES_PER_RANGE: usize = 16;

/// After the first slow probes, this many huge pages are replaced by small ones: 64 MiB. Doubled after each further slow probe.
const SMALL_RUN_MIN_PAGES: usize = 32;

/// The limit of the doubling: 1 GiB.
const SMALL_RUN_MAX_PAGES: usize = 512;

/// A longer probe is slow. 512 small pages take at most this long where page faults are slow; a huge page that the host has backed
/// takes a tenth of it.
const SLOW_TOUCH_TIME: Duration = Duration::from_micros(1500);

/// The number of slow probes in a row from which small pages are used; fewer may be chance.
const SLOW_PROBES_IN_A_ROW: u32 = 2;

/// What to do with the next pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// Put that many on huge pages.
    Huge(usize),
    /// Replace that many by small pages.
    Small(usize),
    /// Put one on a huge page, touch it, and report the time to [`record_probe`].
    Probe,
}

/// What to do with the next of `count` huge pages.
pub(super) fn decide(count: usize) -> Decision {
    with_state(|state| state.decide(count)).unwrap_or(Decision::Huge(count))
}

/// Records the processor time that touching a probed page took, in a range of `count` huge pages.
pub(super) fn record_probe(touch_time: Duration, count: usize) {
    with_state(|state| state.record_probe(touch_time, PROBE_INTERVAL_PAGES.max(count / PROBES_PER_RANGE)));
}

fn with_state<T>(work: impl FnOnce(&mut ProbeState) -> T) -> Option<T> {
    static STATE: Mutex<ProbeState> = Mutex::new(ProbeState::NEW);
    // No thread waits: in a forked child the lock may stay taken.
    try_lock(&STATE).map(|mut state| work(&mut state))
}

/// The outcome of the probes so far.
#[derive(Debug)]
struct ProbeState {
    /// Huge pages still to use without a probe, after a fast one.
    huge: usize,
    /// Huge pages still to replace by small ones, after slow probes.
    small: usize,
    /// The number of slow probes in a row.
    slow_in_a_row: u32,
    /// Huge pages that the next slow probe replaces by small ones.
    next_small_run: usize,
}

impl ProbeState {
    const NEW: ProbeState =
        ProbeState { huge: 0, small: 0, slow_in_a_row: 0, next_small_run: SMALL_RUN_MIN_PAGES };

    fn decide(&mut self, count: usize) -> Decision {
        let (huge, small) = (self.huge.min(count), self.small.min(count));
        self.huge -= huge;
        self.small -= small;
        match (huge, small) {
            (0, 0) => Decision::Probe,
            (0, small) => Decision::Small(small),
            (huge, _) => Decision::Huge(huge),
        }
    }

    /// One probe stands for `interval` pages.
    fn record_probe(&mut self, touch_time: Duration, interval: usize) {
        let next_small_run = self.next_small_run;
        *self = match self.slow_in_a_row + 1 {
            _ if touch_time <= SLOW_TOUCH_TIME => ProbeState { huge: interval - 1, ..ProbeState::NEW },
            slow_in_a_row @ SLOW_PROBES_IN_A_ROW.. => {
                let small = next_small_run.max(interval);
                ProbeState {
                    huge: 0,
                    small,
                    slow_in_a_row,
                    next_small_run: (2 * next_small_run).min(SMALL_RUN_MAX_PAGES),
                }
            }
            slow_in_a_row => ProbeState { huge: 0, small: 0, slow_in_a_row, next_small_run },
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many of `count` huge pages are used as such, and how many are probed, if touching page `n` takes `micros(n)`
    /// microseconds.
    fn run(count: usize, micros: impl Fn(usize) -> u64) -> (usize, usize) {
        let mut state = ProbeState::NEW;
        let (mut at, mut huge, mut probes) = (0, 0, 0);
        while at < count {
            match state.decide(count - at) {
                Decision::Huge(pages) => (at, huge) = (at + pages, huge + pages),
                Decision::Small(pages) => at += pages,
                Decision::Probe => {
                    state.record_probe(Duration::from_micros(micros(at)), PROBE_INTERVAL_PAGES);
                    (at, huge, probes) = (at + 1, huge + 1, probes + 1);
                }
            }
        }
        assert_eq!(at, count);
        (huge, probes)
    }

    #[test]
    fn fast_huge_pages_are_all_used_and_few_are_probed() {
        assert_eq!(run(1000, |_| 150), (1000, 1000_usize.div_ceil(PROBE_INTERVAL_PAGES)));
        assert_eq!(run(1, |_| 150), (1, 1));
    }

    #[test]
    fn slow_huge_pages_are_mostly_replaced_by_small_ones() {
        let (huge, probes) = run(2 + 32 + 1 + 64 + 1 + 128 + 1 + 256 + 1 + 512 + 1 + 512, |_| 4000);
        assert_eq!((huge, probes), (7, 7));
    }

    #[test]
    fn a_single_slow_probe_changes_nothing() {
        assert_eq!(run(1000, |at| if at % 5 == 0 { 4000 } else { 150 }).0, 1000);
    }

    #[test]
    fn huge_pages_are_used_again_once_a_probe_is_fast() {
        let (huge, probes) = run(1000, |at| if at < 90 { 4000 } else { 150 });
        assert_eq!((huge, probes), (3 + 1000 - 99, 3 + (1000_usize - 99).div_ceil(PROBE_INTERVAL_PAGES)));
    }

    #[test]
    fn few_slow_pages_are_touched_before_small_ones_are_used() {
        for fast in 100..100 + PROBE_INTERVAL_PAGES {
            let (huge, _) = run(100 + PROBE_INTERVAL_PAGES + 2 + 32, |at| if at < fast { 150 } else { 4000 });
            assert!(huge - fast <= PROBE_INTERVAL_PAGES + 2, "{fast} {huge}");
        }
    }
}
