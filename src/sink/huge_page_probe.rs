//! Decides whether fresh memory goes on huge pages: yes, unless a page fault of a huge page takes longer than those of all the
//! small pages in its place.
//!
//! A virtual machine may have given idle memory back to its host (free page reporting), in blocks of a huge page; touching such a
//! block then waits for the host. Small pages come from fragments, which the host has not taken. A process cannot see this
//! beforehand, so it probes: of every [`PROBE_INTERVAL_PAGES`] huge pages, or more in a large range, one is touched when it is
//! mapped, and timed. The kernel hands out recently used memory first, which is fast; then, mostly, all the rest is slow. So after
//! two slow probes in a row the next pages are small, and each further slow probe doubles their number. Where the kernel reports free
//! pages to the host, one slow page is enough, for a gigabyte: there it takes as long as a huge page saves on 32 MiB.
#![forbid(unsafe_code)]

use std::sync::Mutex;
use std::time::Duration;

use super::os;
use crate::parallel::try_lock;

/// One fast probe stands for two huge pages, a second one in a row for four, and so on up to this many: 16 MiB, or more in a large
/// range.
const PROBE_INTERVAL_PAGES: usize = 8;

/// About the most probes in one range: a probe cannot be cancelled.
const PROBES_PER_RANGE: usize = 16;

/// The limit of the huge pages that are replaced by small ones after a slow probe: 1 GiB.
const SMALL_RUN_MAX_PAGES: usize = 512;

/// A longer probe is slow. 512 small pages take at most this long where page faults are slow; a huge page that the host has backed
/// takes a tenth of it.
const SLOW_TOUCH_TIME: Duration = Duration::from_micros(1500);

/// What slow probes mean on this machine.
#[derive(Clone, Copy, Debug)]
struct Policy {
    /// The number of slow probes in a row from which small pages are used.
    slow_in_a_row: u32,
    /// So many huge pages are replaced by small ones then: doubled after each further slow probe.
    small_run_pages: usize,
}

/// A single slow probe may be chance. 64 MiB.
const USUAL: Policy = Policy { slow_in_a_row: 2, small_run_pages: 32 };

/// Where the host takes back what was free for some seconds.
const FREE_PAGES_ARE_REPORTED: Policy = Policy { slow_in_a_row: 1, small_run_pages: SMALL_RUN_MAX_PAGES };

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
    let policy = if os::free_pages_are_reported() { FREE_PAGES_ARE_REPORTED } else { USUAL };
    let interval = PROBE_INTERVAL_PAGES.max(count / PROBES_PER_RANGE);
    with_state(|state| state.record_probe(touch_time, interval, policy));
}

/// Records the processor time that populating at most a huge page took. The first part of one takes as long as all of it, so where
/// one slow probe is enough, this is one too: pages that a fast probe stood for may be slow.
pub(super) fn record_populated(touch_time: Duration) {
    if touch_time > SLOW_TOUCH_TIME && os::free_pages_are_reported() {
        record_probe(touch_time, 1);
    }
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
    /// The number of fast probes in a row.
    fast_in_a_row: u32,
    /// The number of slow probes in a row.
    slow_in_a_row: u32,
    /// Huge pages that the next slow probe replaces by small ones; 0 for what the policy says.
    next_small_run: usize,
}

impl ProbeState {
    const NEW: ProbeState =
        ProbeState { huge: 0, small: 0, fast_in_a_row: 0, slow_in_a_row: 0, next_small_run: 0 };

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
    fn record_probe(&mut self, touch_time: Duration, interval: usize, policy: Policy) {
        let next_small_run = self.next_small_run.max(policy.small_run_pages);
        *self = match self.slow_in_a_row + 1 {
            _ if touch_time <= SLOW_TOUCH_TIME => {
                let fast_in_a_row = self.fast_in_a_row.saturating_add(1);
                let huge = 1_usize.checked_shl(fast_in_a_row).unwrap_or(interval).min(interval) - 1;
                ProbeState { huge, fast_in_a_row, ..ProbeState::NEW }
            }
            slow_in_a_row if slow_in_a_row >= policy.slow_in_a_row => {
                let small = next_small_run.max(interval);
                ProbeState {
                    small,
                    slow_in_a_row,
                    next_small_run: (2 * next_small_run).min(SMALL_RUN_MAX_PAGES),
                    ..ProbeState::NEW
                }
            }
            slow_in_a_row => ProbeState { slow_in_a_row, ..ProbeState::NEW },
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many of `count` huge pages are used as such, and how many are probed, if touching page `n` takes `micros(n)`
    /// microseconds.
    fn run(count: usize, micros: impl Fn(usize) -> u64) -> (usize, usize) {
        run_with(USUAL, count, micros)
    }

    fn run_with(policy: Policy, count: usize, micros: impl Fn(usize) -> u64) -> (usize, usize) {
        let mut state = ProbeState::NEW;
        let (mut at, mut huge, mut probes) = (0, 0, 0);
        while at < count {
            match state.decide(count - at) {
                Decision::Huge(pages) => (at, huge) = (at + pages, huge + pages),
                Decision::Small(pages) => at += pages,
                Decision::Probe => {
                    state.record_probe(Duration::from_micros(micros(at)), PROBE_INTERVAL_PAGES, policy);
                    (at, huge, probes) = (at + 1, huge + 1, probes + 1);
                }
            }
        }
        assert_eq!(at, count);
        (huge, probes)
    }

    #[test]
    fn fast_huge_pages_are_all_used_and_few_are_probed() {
        // The first two probes stand for two and four pages.
        assert_eq!(run(1000, |_| 150), (1000, 2 + 994_usize.div_ceil(PROBE_INTERVAL_PAGES)));
        assert_eq!(run(1, |_| 150), (1, 1));
    }

    #[test]
    fn slow_huge_pages_are_mostly_replaced_by_small_ones() {
        let (huge, probes) = run(2 + 32 + 1 + 64 + 1 + 128 + 1 + 256 + 1 + 512 + 1 + 512, |_| 4000);
        assert_eq!((huge, probes), (7, 7));
    }

    #[test]
    fn a_single_slow_probe_ends_huge_pages_where_the_host_takes_back_free_ones() {
        assert_eq!(run_with(FREE_PAGES_ARE_REPORTED, 1 + 512 + 1 + 512, |_| 4000), (2, 2));
        let (huge, probes) = run_with(FREE_PAGES_ARE_REPORTED, 300, |at| if at < 100 { 150 } else { 4000 });
        assert!(huge <= 100 + PROBE_INTERVAL_PAGES && probes <= 16, "{huge} {probes}");
    }

    #[test]
    fn a_slow_page_among_those_that_a_probe_stands_for_ends_huge_pages() {
        let mut state = ProbeState { huge: 7, fast_in_a_row: 3, ..ProbeState::NEW };
        assert_eq!(state.decide(2), Decision::Huge(2));
        state.record_probe(Duration::from_millis(4), 1, FREE_PAGES_ARE_REPORTED);
        assert_eq!(state.decide(1000), Decision::Small(512));
    }

    #[test]
    fn a_single_slow_probe_changes_nothing() {
        assert_eq!(run(1000, |at| if at % 5 == 0 { 4000 } else { 150 }).0, 1000);
    }

    #[test]
    fn huge_pages_are_used_again_once_a_probe_is_fast() {
        let (huge, probes) = run(1000, |at| if at < 90 { 4000 } else { 150 });
        // Of the fast probes, the first two stand for two and four pages.
        assert_eq!(
            (huge, probes),
            (3 + 1000 - 99, 3 + 2 + (1000_usize - 99 - 6).div_ceil(PROBE_INTERVAL_PAGES))
        );
    }

    #[test]
    fn few_slow_pages_are_touched_before_small_ones_are_used() {
        for fast in 100..100 + PROBE_INTERVAL_PAGES {
            let (huge, _) = run(100 + PROBE_INTERVAL_PAGES + 2 + 32, |at| if at < fast { 150 } else { 4000 });
            assert!(huge - fast <= PROBE_INTERVAL_PAGES + 2, "{fast} {huge}");
        }
    }
}
