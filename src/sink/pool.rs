//! Memory of results that were dropped, kept for the next ones: touching a fresh huge page costs several times what writing
//! to one costs that has been in use.
//!
//! What is kept is bounded, may be taken back by the system at any time (`MADV_FREE`), goes after half a minute at the next use
//! of the pool, and never raises the peak: a result that finds nothing here first has as much unmapped as it maps anew. A child
//! after a fork starts without. Nobody waits: whoever finds the pool in use does without it.
//!
//! Somebody who has promised to hold no more than a window ([`bound_by`]) tells what is left of it in a number that changes as
//! the work goes on. While that number lives, no more is kept than it says, but for what was kept before and his results can use.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::thread;
use std::time::{Duration, Instant};

use once_cell::race::OnceBox;

use super::budgets::{Budgets, to_usize};
use super::pages::{HUGE, Pages};
use crate::memory::Memory;
use crate::parallel;

/// The most that is kept, whatever the machine has.
const MOST: u64 = 4 << 30;

/// The share of the machine's memory, or of the group's limit, that is kept at most.
const SHARE: u64 = 8;

/// How long memory is kept.
const KEPT: Duration = Duration::from_secs(30);

/// How often a result looks again at a pool in use. Uses take about a microsecond.
const TRIES: u32 = 64;

/// How often a thread that need not hurry looks again, letting others run between.
const TURNS: u32 = 1000;

/// Pages on loan: they go to the pool when they are dropped.
#[derive(Debug)]
pub(super) struct Pooled {
    /// Until the drop.
    pages: Option<Pages>,
    /// Whether they have been in use before, so that they are resident and hold old bytes.
    pub(super) recycled: bool,
}

impl Pooled {
    /// Memory for `len` bytes: recycled where there is some, zeroed otherwise.
    pub(super) fn take(len: usize) -> Option<Pooled> {
        let wanted = Pages::rounded(len)?;
        let (found, surplus) = match lock(TRIES) {
            Some(mut pool) => pool.take(wanted, Instant::now()),
            None => (None, Vec::new()),
        };
        // Unmapped before anything is mapped, and outside the lock.
        drop(surplus);
        match found {
            Some(pages) => Some(Pooled { pages: Some(pages), recycled: true }),
            None => Pooled::fresh(len, true),
        }
    }

    /// Zeroed memory for `len` bytes; memory that is kept is given up for it where there is no other.
    pub(super) fn fresh(len: usize, huge: bool) -> Option<Pooled> {
        let pages = Pages::new(len, huge).or_else(|| {
            trim();
            Pages::new(len, huge)
        })?;
        Some(Pooled { pages: Some(pages), recycled: false })
    }

    /// The pages, until the drop.
    pub(super) fn pages(&self) -> Option<&Pages> {
        self.pages.as_ref()
    }
}

impl Drop for Pooled {
    fn drop(&mut self) {
        let Some(pages) = self.pages.take().filter(Pages::is_worth_keeping) else { return };
        // This may be a deleter on any thread, where waiting could mean waiting for oneself. What is not kept is unmapped
        // at the end of this function, outside the lock.
        let _surplus = match lock(1) {
            Some(mut pool) => pool.give(pages, Instant::now()),
            None => vec![pages],
        };
    }
}

/// Unmaps all that is kept; how many bytes that were.
pub(super) fn trim() -> u64 {
    let kept = lock(TRIES).map(|mut pool| std::mem::take(&mut *pool.emptied()));
    kept.map_or(0, |kept| kept.values().map(|idle| idle.pages.len() as u64).sum())
}

/// Bytes that are kept, and the most that may be.
pub(super) fn kept() -> (u64, u64) {
    lock(TRIES).map_or((0, 0), |pool| (pool.bytes as u64, pool.most as u64))
}

/// Keeps no more than the bytes that `room` says, at any time until it is dropped; of what is kept already, also as much as
/// results of `wanted` bytes can be made of, until the first result is dropped or the [`Carried`] is.
#[must_use = "what was kept before goes when this is dropped"]
pub fn bound_by(room: &Arc<AtomicU64>, wanted: impl FnOnce() -> u64) -> Carried {
    let most = room.load(Ordering::Relaxed);
    // To find out how much is wanted takes a while, and matters only where more is kept than the room.
    let wanted = if kept().0 > most { wanted() } else { 0 };
    let mut carried = 0;
    let surplus = patiently().map(|mut pool| {
        carried = pool.bytes.min(to_usize(wanted));
        pool.budgets.add(room, carried);
        pool.bounded()
    });
    drop(surplus);
    let most = if carried > 0 { to_usize(most) } else { usize::MAX };
    Carried { room: Arc::downgrade(room), most }
}

/// Memory that was kept before somebody promised a window, and is carried over for the results.
#[derive(Debug)]
pub struct Carried {
    room: Weak<AtomicU64>,
    /// What the window lets be kept; no bound where nothing was carried over.
    most: usize,
}

impl Drop for Carried {
    /// Unmaps what was carried over and served no result. What was in flight comes back before this, maybe without a bound, as
    /// whoever worked is gone.
    fn drop(&mut self) {
        let surplus = patiently().map(|mut pool| pool.settle(&self.room, self.most));
        drop(surplus);
    }
}

/// Unmaps what is kept beyond what the rooms say now. Whoever gives does so too.
pub fn keep_bounds() {
    let surplus = patiently().map(|mut pool| pool.bounded());
    drop(surplus);
}

/// The most bytes that memory for a result of `len` bytes takes: a recycled one may end with a huge page of which it needs a part.
pub fn footprint(len: u64) -> u64 {
    let whole = len.checked_next_multiple_of(HUGE as u64).unwrap_or(len);
    if len >= HUGE as u64 && whole - len <= len / 8 { whole } else { len }
}

/// The pool, for a thread that may wait a moment.
fn patiently() -> Option<MutexGuard<'static, Pool>> {
    (0..TURNS).find_map(|turn| {
        if turn > 0 {
            thread::yield_now();
        }
        lock(TRIES)
    })
}

/// The pool, unless somebody else is in it.
fn lock(tries: u32) -> Option<MutexGuard<'static, Pool>> {
    static POOL: OnceBox<Mutex<Pool>> = OnceBox::new();
    let pool = POOL.get_or_init(|| Box::new(Mutex::new(Pool::new(bound(), process::id()))));
    let mut found = parallel::lock_within(pool, tries)?;
    found.own(process::id());
    Some(found)
}

/// How much may be kept: what `RUSTLOAD_POOL` says in bytes, or a share of what there is.
fn bound() -> usize {
    let asked = std::env::var("RUSTLOAD_POOL").ok().and_then(|text| text.trim().parse().ok());
    let bytes: u64 = asked.unwrap_or_else(|| {
        let memory = Memory::now();
        let limit = memory.group.map_or(u64::MAX, |group| group.limit);
        (memory.total.min(limit) / SHARE).min(MOST)
    });
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

/// Free pages by address.
#[derive(Debug)]
struct Pool {
    free: BTreeMap<usize, Idle>,
    /// The sum of their sizes.
    bytes: usize,
    most: usize,
    /// Of those that have promised to hold no more than a window.
    budgets: Budgets,
    owner: u32,
}

#[derive(Debug)]
struct Idle {
    pages: Pages,
    since: Instant,
}

impl Pool {
    fn new(most: usize, owner: u32) -> Pool {
        Pool { free: BTreeMap::new(), bytes: 0, most, budgets: Budgets::default(), owner }
    }

    /// After a fork the pages are the parent's: to write to them would copy each.
    fn own(&mut self, process: u32) {
        if self.owner != process {
            self.owner = process;
            self.budgets = Budgets::default();
            self.emptied().clear();
        }
    }

    /// What is kept beyond what may be now.
    fn bounded(&mut self) -> Vec<Pages> {
        let most = self.budgets.bound(self.most);
        self.cut(self.bytes.saturating_sub(most))
    }

    /// Carries nothing over any more for whoever promised this room; what is kept beyond `most` goes.
    fn settle(&mut self, room: &Weak<AtomicU64>, most: usize) -> Vec<Pages> {
        self.budgets.settle(room);
        let most = self.budgets.bound(self.most).min(most);
        self.cut(self.bytes.saturating_sub(most))
    }

    fn emptied(&mut self) -> &mut BTreeMap<usize, Idle> {
        self.bytes = 0;
        &mut self.free
    }

    /// Pages for `wanted` bytes, which is a multiple of a small page; and pages to be unmapped.
    fn take(&mut self, wanted: usize, now: Instant) -> (Option<Pages>, Vec<Pages>) {
        let mut surplus = self.expired(now);
        let found = self.find(wanted);
        let Some(at) = found else {
            // What is mapped now was not there before, so as much goes.
            surplus.extend(self.cut(wanted));
            return (None, surplus);
        };
        let Some(Idle { mut pages, since }) = self.remove(at) else { return (None, surplus) };
        let size = if pages.len() == wanted { wanted } else { wanted.next_multiple_of(HUGE) };
        if let Some(rest) = pages.split_off(size) {
            self.insert(rest, since);
        }
        self.budgets.has_used(pages.len());
        (Some(pages), surplus)
    }

    /// A range of exactly that size, or the smallest to cut it from, if the end of its last huge page is no great waste.
    fn find(&self, wanted: usize) -> Option<usize> {
        let exact = |idle: &Idle| idle.pages.len() == wanted;
        if let Some((&at, _)) = self.free.iter().find(|(_, idle)| exact(idle)) {
            return Some(at);
        }
        let whole = wanted.checked_next_multiple_of(HUGE)?;
        if whole - wanted > wanted / 8 {
            return None;
        }
        let large = self.free.iter().filter(|(_, idle)| idle.pages.whole() >= whole);
        large.min_by_key(|(_, idle)| idle.pages.len()).map(|(&at, _)| at)
    }

    /// Keeps pages; what has to go for them.
    fn give(&mut self, pages: Pages, now: Instant) -> Vec<Pages> {
        let mut surplus = self.expired(now);
        self.budgets.end_carrying();
        if pages.len() > self.budgets.bound(self.most) {
            surplus.push(pages);
        } else {
            pages.lend();
            self.insert(pages, now);
        }
        surplus.extend(self.bounded());
        surplus
    }

    /// Adds pages, joined with neighbours.
    fn insert(&mut self, mut pages: Pages, since: Instant) {
        let mut newest = since;
        let start = pages.start().addr().get();
        if let Some(idle) = self.free.get(&pages.end())
            && pages.meets(&idle.pages)
            && let Some(next) = self.remove(pages.end())
        {
            newest = newest.max(next.since);
            pages.join(next.pages);
        }
        if let Some((&before, idle)) = self.free.range(..start).next_back()
            && idle.pages.meets(&pages)
            && let Some(mut front) = self.remove(before)
        {
            newest = newest.max(front.since);
            front.pages.join(pages);
            pages = front.pages;
        }
        self.bytes = self.bytes.saturating_add(pages.len());
        self.free.insert(pages.start().addr().get(), Idle { pages, since: newest });
    }

    fn remove(&mut self, at: usize) -> Option<Idle> {
        let idle = self.free.remove(&at)?;
        self.bytes = self.bytes.saturating_sub(idle.pages.len());
        Some(idle)
    }

    /// Takes out at least `bytes`, or all there is, the oldest first.
    fn cut(&mut self, bytes: usize) -> Vec<Pages> {
        let mut left = bytes;
        let mut out = Vec::new();
        while left > 0 {
            let oldest = self.free.iter().min_by_key(|(_, idle)| idle.since).map(|(&at, _)| at);
            let Some(Idle { mut pages, since }) = oldest.and_then(|at| self.remove(at)) else { break };
            let keep = pages.len().saturating_sub(left) & !(HUGE - 1);
            match pages.split_off(keep) {
                Some(rest) => {
                    left = left.saturating_sub(rest.len());
                    out.push(rest);
                    self.insert(pages, since);
                }
                None => {
                    left = left.saturating_sub(pages.len());
                    out.push(pages);
                }
            }
        }
        out
    }

    /// Takes out what has been kept for too long.
    fn expired(&mut self, now: Instant) -> Vec<Pages> {
        let old: Vec<usize> = (self.free.iter())
            .filter(|(_, idle)| now.saturating_duration_since(idle.since) > KEPT)
            .map(|(&at, _)| at)
            .collect();
        old.into_iter().filter_map(|at| self.remove(at)).map(|idle| idle.pages).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(count: usize) -> Pages {
        Pages::new(count * HUGE, true).unwrap()
    }

    fn sum(pages: &[Pages]) -> usize {
        pages.iter().map(Pages::len).sum::<usize>() / HUGE
    }

    #[test]
    fn a_range_is_cut_for_smaller_results_and_whole_again_when_they_go() {
        let (mut pool, now) = (Pool::new(100 * HUGE, 1), Instant::now());
        assert!(pool.give(pages(8), now).is_empty());
        let parts: Vec<_> = (0..4).map(|_| pool.take(2 * HUGE, now).0.unwrap()).collect();
        assert_eq!((pool.bytes, pool.free.len()), (0, 0));
        for part in parts {
            pool.give(part, now);
        }
        assert_eq!((pool.bytes, pool.free.len()), (8 * HUGE, 1));
        assert_eq!(pool.take(8 * HUGE, now).0.unwrap().len(), 8 * HUGE);
    }

    #[test]
    fn an_end_of_small_pages_is_reused_by_its_own_size_and_wasted_for_no_other() {
        let (mut pool, now) = (Pool::new(100 * HUGE, 1), Instant::now());
        let odd = HUGE + (64 << 10);
        pool.give(Pages::new(odd, true).unwrap(), now);
        pool.give(pages(9), now);
        assert_eq!(pool.take(odd, now).0.unwrap().len(), odd);
        // Half of its second huge page would lie idle.
        assert!(pool.find(HUGE + HUGE / 2).is_none());
        assert_eq!(pool.take(8 * HUGE - (64 << 10), now).0.unwrap().len(), 8 * HUGE);
    }

    #[test]
    fn a_result_that_finds_nothing_has_as_much_given_up() {
        let (mut pool, now) = (Pool::new(100 * HUGE, 1), Instant::now());
        pool.give(pages(4), now);
        pool.give(pages(3), now + Duration::from_secs(1));
        let (found, surplus) = pool.take(20 * HUGE, now);
        assert!(found.is_none());
        assert_eq!((sum(&surplus), pool.bytes), (7, 0));
        pool.give(pages(9), now);
        let (found, surplus) = pool.take(3 * HUGE / 2, now);
        assert!(found.is_none());
        assert_eq!((sum(&surplus), pool.bytes), (2, 7 * HUGE));
    }

    #[test]
    fn the_bound_holds_and_the_oldest_goes_first() {
        let (mut pool, now) = (Pool::new(10 * HUGE, 1), Instant::now());
        assert_eq!(sum(&pool.give(pages(11), now)), 11);
        pool.give(pages(6), now);
        let surplus = pool.give(pages(7), now + Duration::from_secs(1));
        assert_eq!((sum(&surplus), pool.bytes), (3, 10 * HUGE));
        assert_eq!(pool.take(7 * HUGE, now).0.unwrap().len(), 7 * HUGE);
    }

    #[test]
    fn a_window_bounds_what_is_kept_while_it_lives() {
        let (mut pool, now) = (Pool::new(100 * HUGE, 1), Instant::now());
        let room = Arc::new(AtomicU64::new(5 * HUGE as u64));
        pool.give(pages(9), now);
        pool.budgets.add(&room, 0);
        assert_eq!((sum(&pool.bounded()), pool.bytes), (4, 5 * HUGE));
        assert_eq!((sum(&pool.give(pages(2), now)), pool.bytes), (2, 5 * HUGE));
        room.store(3 * HUGE as u64 - 1, Ordering::Relaxed);
        // Too large to be kept, and what is there already has become too much.
        assert_eq!((sum(&pool.give(pages(4), now)), pool.bytes), (4 + 3, 2 * HUGE));
        drop(room);
        assert_eq!((sum(&pool.give(pages(30), now)), pool.bytes), (0, 32 * HUGE));
    }

    #[test]
    fn what_was_kept_before_a_window_serves_results_until_one_is_dropped() {
        let (mut pool, now) = (Pool::new(100 * HUGE, 1), Instant::now());
        let room = Arc::new(AtomicU64::new(HUGE as u64));
        pool.give(pages(30), now);
        pool.budgets.add(&room, 20 * HUGE);
        assert_eq!((sum(&pool.bounded()), pool.bytes), (10, 20 * HUGE));
        let mut held = [4, 4].map(|count| pool.take(count * HUGE, now).0.unwrap()).into_iter();
        assert_eq!((sum(&pool.bounded()), pool.bytes), (0, 12 * HUGE));
        // As soon as one is dropped, no more is kept than the window leaves.
        assert_eq!(sum(&pool.give(held.next().unwrap(), now)), 4 + 11);
        pool.give(held.next().unwrap(), now);
        assert_eq!(pool.bytes, HUGE);
    }

    #[test]
    fn what_was_kept_before_a_window_goes_at_its_end() {
        let (mut pool, now) = (Pool::new(100 * HUGE, 1), Instant::now());
        let room = Arc::new(AtomicU64::new(5 * HUGE as u64));
        pool.give(pages(20), now);
        pool.budgets.add(&room, 20 * HUGE);
        let held = pool.take(8 * HUGE, now).0.unwrap();
        // Whoever worked is gone, and promises nothing any more.
        room.store(u64::MAX, Ordering::Relaxed);
        pool.give(held, now);
        let surplus = pool.settle(&Arc::downgrade(&room), 5 * HUGE);
        assert_eq!((sum(&surplus), pool.bytes), (15, 5 * HUGE));
    }

    #[test]
    fn a_footprint_has_the_huge_page_that_is_wasted() {
        let of = |len: usize| footprint(len as u64) as usize;
        assert_eq!([of(5), of(HUGE - 1), of(HUGE), of(HUGE + 5)], [5, HUGE - 1, HUGE, HUGE + 5]);
        assert_eq!([of(8 * HUGE - 1), of(15 * HUGE + 1)], [8 * HUGE, 16 * HUGE]);
        assert_eq!(footprint(u64::MAX), u64::MAX);
    }

    #[test]
    fn what_was_kept_too_long_goes_at_the_next_use() {
        let (mut pool, now) = (Pool::new(100 * HUGE, 1), Instant::now());
        pool.give(pages(6), now);
        assert_eq!(sum(&pool.give(pages(1), now + KEPT + Duration::from_secs(1))), 6);
        assert_eq!(pool.bytes, HUGE);
    }

    #[test]
    fn a_forked_child_keeps_nothing_of_its_parent() {
        let (mut pool, now) = (Pool::new(100 * HUGE, 1), Instant::now());
        pool.give(pages(6), now);
        pool.own(2);
        assert_eq!((pool.bytes, pool.free.len(), pool.owner), (0, 0, 2));
    }

    #[test]
    fn threads_that_give_and_take_at_once_never_share_a_page() {
        std::thread::scope(|scope| {
            for mark in 0..4_u8 {
                scope.spawn(move || {
                    for round in 0..200_usize {
                        let mut buffer = crate::sink::HostBuffer::unfilled(
                            (2 + (round + usize::from(mark)) % 3) as u64 * HUGE as u64,
                        )
                        .unwrap();
                        let bytes = buffer.bytes_mut();
                        bytes.iter_mut().step_by(4096).for_each(|byte| *byte = mark);
                        std::thread::yield_now();
                        assert!(bytes.iter().step_by(4096).all(|&byte| byte == mark));
                    }
                });
            }
        });
        let (kept, most) = kept();
        assert!(kept <= most);
        trim();
    }
}
