//! The pool: memory of dropped results, kept for the next ones. The first touch of a fresh huge page (a page fault) costs several
//! times what writing to a resident page costs.
//!
//! What the pool keeps is bounded. The system may take it back at any time (`MADV_FREE`), but for what was dropped last: the first
//! write to a small page that was marked so takes two to three times as long. After half a minute it is unmapped at the next use of
//! the pool. It never raises peak memory: before fresh memory is mapped for a result, the pool unmaps as much. A forked child starts
//! with an empty pool. No thread waits for the lock: a thread that finds the pool locked does without it.
//!
//! A stream that promises to hold no more than its window ([`limit_while_alive`]) shares an atomic number: the bytes left of the
//! window. While that number is alive the pool keeps no more than it says, except for memory that it kept before and that the
//! stream's results can use.
#![forbid(unsafe_code)]

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use once_cell::race::OnceBox;

use super::budgets::Budgets;
use super::pages::{HUGE_PAGE_BYTES, Pages};
use crate::memory::Memory;
use crate::num::to_usize;
use crate::parallel::{lock_unless_stuck, try_lock};
use crate::sys::{Instant, process_id};

/// The most bytes that are kept, however much memory the machine has.
const POOL_MAX_BYTES: u64 = 4 << 30;

/// At most one part in this many of the machine's memory, of the cgroup's limit, or of what RLIMIT_AS and RLIMIT_DATA leave at
/// the first use, is kept: under these two the system takes nothing back.
const POOL_MEMORY_DIVISOR: u64 = 8;

/// The most bytes of what was dropped last that the system may not take back; at most a quarter of what may be kept.
const UNMARKED_MAX_BYTES: usize = 128 << 20;

/// Memory that was kept for longer is unmapped at the next use of the pool.
const KEEP_TIME: Duration = Duration::from_secs(30);

/// Whether a result was dropped while another thread had the lock. Its memory was unmapped then, and the next use of the pool does
/// the rest that a release does.
static MISSED_RELEASE: AtomicBool = AtomicBool::new(false);

/// Pages that return to the pool when they are dropped.
#[derive(Debug)]
pub(super) struct Pooled {
    /// `Some` until the drop.
    pages: Option<Pages>,
    /// Whether they come from the pool, so that they are resident and hold old bytes.
    pub(super) recycled: bool,
}

impl Pooled {
    /// Memory for `len` bytes: from the pool if it has a fitting range, else fresh (zeroed).
    pub(super) fn take(len: usize) -> Option<Pooled> {
        let wanted = Pages::rounded_len(len)?;
        let (found, surplus) = match lock(lock_unless_stuck) {
            Some(mut pool) => {
                let mut surplus = pool.settle_missed_release();
                let (found, more) = pool.take(wanted, Instant::now());
                surplus.extend(more);
                (found, surplus)
            }
            None => (None, Vec::new()),
        };
        // Unmapped outside the lock, and before anything is mapped.
        drop(surplus);
        match found {
            Some(pages) => Some(Pooled { pages: Some(pages), recycled: true }),
            None => Pooled::fresh(len, true),
        }
    }

    /// Zeroed memory for `len` bytes. Empties the pool and tries again if mapping fails.
    pub(super) fn fresh(len: usize, huge: bool) -> Option<Pooled> {
        let pages = Pages::new(len, huge).or_else(|| {
            trim();
            Pages::new(len, huge)
        })?;
        Some(Pooled { pages: Some(pages), recycled: false })
    }

    /// The pages; `Some` until the drop.
    pub(super) fn pages(&self) -> Option<&Pages> {
        self.pages.as_ref()
    }
}

impl Drop for Pooled {
    fn drop(&mut self) {
        let Some(pages) = self.pages.take().filter(Pages::is_worth_keeping) else { return };
        // This may run in a deleter on any thread, where waiting for the lock could deadlock with this same thread. What is not
        // kept is unmapped at the end of this function, outside the lock.
        let _surplus = match lock(try_lock) {
            Some(mut pool) => pool.put_back(pages, Instant::now()),
            None => {
                MISSED_RELEASE.store(true, Ordering::Relaxed);
                vec![pages]
            }
        };
    }
}

/// Unmaps all that is kept. Returns the number of bytes.
pub(super) fn trim() -> u64 {
    let drained = lock(lock_unless_stuck).map(|mut pool| pool.drain());
    drained.map_or(0, |ranges| ranges.values().map(|idle| idle.pages.len() as u64).sum())
}

/// The bytes that are kept, and the most that may be kept.
pub fn usage() -> (u64, u64) {
    let usage = lock(lock_unless_stuck).map(|mut pool| {
        let surplus = pool.settle_missed_release();
        (pool.bytes as u64, pool.limit as u64, surplus)
    });
    // The surplus is unmapped outside the lock.
    usage.map_or((0, 0), |(bytes, limit, _surplus)| (bytes, limit))
}

/// Limits the pool to the number of bytes in `window_left`, which is read at each use, until `window_left` is dropped. Of what is
/// kept already, as much as results of `wanted` bytes can use stays too, until the first result or the returned [`CarriedOver`] is
/// dropped.
#[must_use = "dropping this unmaps what was carried over"]
pub fn limit_while_alive(window_left: &Arc<AtomicU64>, wanted: impl FnOnce() -> u64) -> CarriedOver {
    let limit = window_left.load(Ordering::Relaxed);
    // `wanted` takes a while to compute, and matters only if more is kept than the budget allows.
    let wanted = if usage().0 > limit { wanted() } else { 0 };
    let mut carried_over = 0;
    let surplus = lock(lock_unless_stuck).map(|mut pool| {
        carried_over = pool.bytes.min(to_usize(wanted));
        pool.budgets.add(window_left, carried_over);
        pool.evict_over_limit()
    });
    drop(surplus);
    let limit = if carried_over > 0 { to_usize(limit) } else { usize::MAX };
    CarriedOver { window_left: Arc::downgrade(window_left), limit }
}

/// Memory that was kept before a stream began and is carried over for its results.
#[derive(Debug)]
pub struct CarriedOver {
    window_left: Weak<AtomicU64>,
    /// What the window allows to be kept; `usize::MAX` if nothing was carried over.
    limit: usize,
}

impl Drop for CarriedOver {
    /// Unmaps what was carried over and served no result. Memory in flight has returned before this, possibly without a limit, as
    /// the stream that set the budget has ended.
    fn drop(&mut self) {
        drop(lock(lock_unless_stuck).map(|mut pool| pool.end_carry_over_of(&self.window_left, self.limit)));
    }
}

/// Unmaps what is kept beyond the current budgets. Also done on every release of memory to the pool.
pub fn enforce_limits() {
    drop(lock(lock_unless_stuck).map(|mut pool| pool.evict_over_limit()));
}

/// The most bytes of memory that a result of `len` bytes takes: recycled memory may end with a huge page that is needed only in
/// part.
pub fn footprint(len: u64) -> u64 {
    let rounded = len.checked_next_multiple_of(HUGE_PAGE_BYTES as u64).unwrap_or(len);
    if len >= HUGE_PAGE_BYTES as u64 && rounded - len <= len / 8 { rounded } else { len }
}

/// Locks the pool by that function. The lock is held for about a microsecond, or as long as it takes to mark memory: milliseconds
/// for 100 MiB of small pages.
fn lock(by: fn(&Mutex<Pool>) -> Option<MutexGuard<'_, Pool>>) -> Option<MutexGuard<'static, Pool>> {
    static POOL: OnceBox<Mutex<Pool>> = OnceBox::new();
    let pool = POOL.get_or_init(|| Box::new(Mutex::new(Pool::new(pool_limit(), process_id()))));
    let mut guard = by(pool)?;
    guard.reset_after_fork(process_id());
    Some(guard)
}

/// The most bytes that may be kept: `RUSTLOAD_POOL` in bytes, or a share of the machine's memory.
fn pool_limit() -> usize {
    let configured = std::env::var("RUSTLOAD_POOL").ok().and_then(|text| text.trim().parse().ok());
    let bytes: u64 = configured.unwrap_or_else(|| {
        let memory = Memory::now();
        let cgroup = memory.group.map(|group| group.limit);
        let limits = [cgroup, memory.address_space, memory.data].into_iter().flatten();
        (limits.fold(memory.total, u64::min) / POOL_MEMORY_DIVISOR).min(POOL_MAX_BYTES)
    });
    to_usize(bytes)
}

/// The free ranges.
#[derive(Debug)]
struct Pool {
    /// By address.
    free: BTreeMap<usize, Idle>,
    /// The sum of their sizes.
    bytes: usize,
    limit: usize,
    /// Of the streams that have promised to hold no more than a window.
    budgets: Budgets,
    process: u32,
}

#[derive(Debug)]
struct Idle {
    pages: Pages,
    since: Instant,
    /// Whether the system may take them back.
    is_marked: bool,
}

impl Idle {
    /// Whether the range `next` begins where this one ends, and both are marked, or may both stay without.
    fn can_join(&self, next: &Idle, unmarked_max: usize) -> bool {
        self.is_marked == next.is_marked
            && (self.is_marked || self.pages.len().saturating_add(next.pages.len()) <= unmarked_max)
            && self.pages.is_followed_by(&next.pages)
    }

    /// Appends a range that follows this one.
    fn join(&mut self, next: Idle) {
        self.since = self.since.max(next.since);
        self.pages.join(next.pages);
    }
}

impl Pool {
    fn new(limit: usize, process: u32) -> Pool {
        Pool { free: BTreeMap::new(), bytes: 0, limit, budgets: Budgets::default(), process }
    }

    /// Empties the pool in a forked child: its pages are the parent's, and writing to them would copy each.
    fn reset_after_fork(&mut self, process: u32) {
        if self.process != process {
            self.process = process;
            self.budgets = Budgets::default();
            drop(self.drain());
        }
    }

    /// Takes out what is kept beyond the current limit.
    fn evict_over_limit(&mut self) -> Vec<Pages> {
        let limit = self.budgets.limit(self.limit);
        self.evict(self.bytes.saturating_sub(limit))
    }

    /// Ends the carry-over of one budget. Takes out what is kept beyond `limit`.
    fn end_carry_over_of(&mut self, window_left: &Weak<AtomicU64>, limit: usize) -> Vec<Pages> {
        self.budgets.end_carry_over_of(window_left);
        let limit = self.budgets.limit(self.limit).min(limit);
        self.evict(self.bytes.saturating_sub(limit))
    }

    /// Takes out all ranges.
    fn drain(&mut self) -> BTreeMap<usize, Idle> {
        self.bytes = 0;
        std::mem::take(&mut self.free)
    }

    /// Pages for `wanted` bytes, which is a multiple of a small page; and pages that the caller unmaps.
    fn take(&mut self, wanted: usize, now: Instant) -> (Option<Pages>, Vec<Pages>) {
        let mut surplus = self.take_expired(now);
        let found = self.find(wanted).or_else(|| {
            if self.bytes < wanted {
                return None;
            }
            // Those of one kind are joined.
            self.mark_older(0);
            self.find(wanted)
        });
        let Some(at) = found else {
            // The caller will map as much anew, so as much is unmapped.
            surplus.extend(self.evict(wanted));
            return (None, surplus);
        };
        let Some(Idle { mut pages, since, is_marked }) = self.remove(at) else { return (None, surplus) };
        let size = if pages.len() == wanted { wanted } else { wanted.next_multiple_of(HUGE_PAGE_BYTES) };
        if let Some(pages) = pages.split_off(size) {
            self.insert(Idle { pages, since, is_marked });
        }
        self.budgets.record_reuse(pages.len());
        (Some(pages), surplus)
    }

    /// The address of a range of exactly that size, else of the smallest range to split it from; none if the unused end of the last
    /// huge page would be more than an eighth of the result.
    fn find(&self, wanted: usize) -> Option<usize> {
        let exact = |idle: &Idle| idle.pages.len() == wanted;
        if let Some((&at, _)) = self.free.iter().find(|(_, idle)| exact(idle)) {
            return Some(at);
        }
        let rounded = wanted.checked_next_multiple_of(HUGE_PAGE_BYTES)?;
        if rounded - wanted > wanted / 8 {
            return None;
        }
        let large = self.free.iter().filter(|(_, idle)| idle.pages.whole_huge_bytes() >= rounded);
        large.min_by_key(|(_, idle)| idle.pages.len()).map(|(&at, _)| at)
    }

    /// Ends the carry-over, and returns what is over the limit then, if a release could not do so.
    fn settle_missed_release(&mut self) -> Vec<Pages> {
        if !MISSED_RELEASE.swap(false, Ordering::Relaxed) {
            return Vec::new();
        }
        self.budgets.end_carry_over();
        self.evict_over_limit()
    }

    /// Keeps pages, if they fit the limit. Returns what the caller unmaps.
    fn put_back(&mut self, pages: Pages, now: Instant) -> Vec<Pages> {
        let mut surplus = self.take_expired(now);
        self.budgets.end_carry_over();
        if pages.len() > self.budgets.limit(self.limit) {
            surplus.push(pages);
        } else {
            self.insert(Idle { pages, since: now, is_marked: false });
        }
        surplus.extend(self.evict_over_limit());
        self.mark_older(self.unmarked_max());
        surplus
    }

    /// The most bytes that the system may not take back.
    fn unmarked_max(&self) -> usize {
        UNMARKED_MAX_BYTES.min(self.limit / 4)
    }

    /// Lets the system take what is kept, but for so many bytes of the newest ranges.
    fn mark_older(&mut self, mut left: usize) {
        let unmarked = self.free.iter().filter(|(_, idle)| !idle.is_marked);
        let mut newest_first: Vec<_> = unmarked.map(|(&at, idle)| (Reverse(idle.since), at)).collect();
        newest_first.sort_unstable();
        for (_, at) in newest_first {
            let Some(mut idle) = self.remove(at) else { continue };
            match left.checked_sub(idle.pages.len()) {
                Some(rest) => left = rest,
                None => {
                    idle.pages.mark_free();
                    idle.is_marked = true;
                }
            }
            // Joined with adjacent ranges that are marked, if it is now.
            self.insert(idle);
        }
    }

    /// Adds a range, joined with adjacent ones that are as it is.
    fn insert(&mut self, mut idle: Idle) {
        let unmarked_max = self.unmarked_max();
        if let Some(next) = self.free.get(&idle.pages.end())
            && idle.can_join(next, unmarked_max)
            && let Some(next) = self.remove(idle.pages.end())
        {
            idle.join(next);
        }
        if let Some((&before, front)) = self.free.range(..idle.pages.start().addr().get()).next_back()
            && front.can_join(&idle, unmarked_max)
            && let Some(mut front) = self.remove(before)
        {
            front.join(idle);
            idle = front;
        }
        self.bytes = self.bytes.saturating_add(idle.pages.len());
        self.free.insert(idle.pages.start().addr().get(), idle);
    }

    fn remove(&mut self, at: usize) -> Option<Idle> {
        let idle = self.free.remove(&at)?;
        self.bytes = self.bytes.saturating_sub(idle.pages.len());
        Some(idle)
    }

    /// Takes out at least `bytes`, or all there is, oldest first.
    fn evict(&mut self, bytes: usize) -> Vec<Pages> {
        let mut left = bytes;
        let mut out = Vec::new();
        while left > 0 {
            let oldest = self.free.iter().min_by_key(|(_, idle)| idle.since).map(|(&at, _)| at);
            let Some(mut idle) = oldest.and_then(|at| self.remove(at)) else { break };
            let keep = idle.pages.len().saturating_sub(left) & !(HUGE_PAGE_BYTES - 1);
            let surplus = match idle.pages.split_off(keep) {
                Some(rest) => {
                    self.insert(idle);
                    rest
                }
                None => idle.pages,
            };
            left = left.saturating_sub(surplus.len());
            out.push(surplus);
        }
        out
    }

    /// Takes out what has been kept for longer than [`KEEP_TIME`].
    fn take_expired(&mut self, now: Instant) -> Vec<Pages> {
        let old: Vec<usize> = (self.free.iter())
            .filter(|(_, idle)| now.saturating_duration_since(idle.since) > KEEP_TIME)
            .map(|(&at, _)| at)
            .collect();
        old.into_iter().filter_map(|at| self.remove(at)).map(|idle| idle.pages).collect()
    }
}

#[cfg(test)]
mod tests;
