//! Scoped threads over a list of jobs. There is no global thread pool, which would deadlock in a forked process.

use std::cell::RefCell;
use std::num::NonZero;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread;
use std::time::Duration;

use crate::error::{Code, Error, Result};
use crate::num::to_usize;
use crate::sys::Instant;

/// Bytes of work per thread: with less, starting the thread costs more than it saves.
const BYTES_PER_THREAD_MIN: u64 = 2 << 20;

/// How long the number of cores is remembered: it comes from files of the cgroup, which take 27 to 75 µs to read.
const CORES_FOR: Duration = Duration::from_millis(100);

/// How often a lock that another thread holds is tried: for half a millisecond, or as long as other threads need the core.
const LOCK_ATTEMPTS: u32 = 10_000;

/// The attempts after which the thread yields to others.
const SPINS_PER_YIELD: u32 = 64;

thread_local! {
    /// The token of the operation that this thread works for.
    static CURRENT: RefCell<Option<Cancel>> = const { RefCell::new(None) };
}

/// A cancellation token, shared by all threads of one operation.
#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// A token that has not been cancelled.
    pub fn new() -> Cancel {
        Cancel::default()
    }

    /// Cancels: the operation fails at its next [`Cancel::check`].
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Fails with `Cancelled` once the token is cancelled.
    pub fn check(&self) -> Result<()> {
        if self.is_cancelled() { Err(Error::new(Code::Cancelled, "stopped on request")) } else { Ok(()) }
    }

    fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Runs `work` as a part of this operation: [`Cancel::is_current_cancelled`] in it, and in threads that it starts by `for_each`,
    /// tells of this token.
    pub fn during<T>(&self, work: impl FnOnce() -> T) -> T {
        during(Some(self.clone()), work)
    }

    /// Cancels the operation that this thread works for, if it has a token.
    pub fn cancel_current() {
        CURRENT.with_borrow(|current| current.iter().for_each(Cancel::cancel));
    }

    /// Whether the operation that this thread works for was cancelled. For code that waits outside of the core, such as a source
    /// whose request does not return.
    pub fn is_current_cancelled() -> bool {
        CURRENT.with_borrow(|current| current.as_ref().is_some_and(Cancel::is_cancelled))
    }
}

fn during<T>(cancel: Option<Cancel>, work: impl FnOnce() -> T) -> T {
    /// Restores the outer token, also if the work panics.
    struct Outer(Option<Cancel>);
    impl Drop for Outer {
        fn drop(&mut self) {
            CURRENT.set(self.0.take());
        }
    }
    let _outer = Outer(CURRENT.replace(cancel));
    work()
}

/// Locks a mutex that other threads hold only to move a value; `None` if one holds it for much longer.
///
/// A process may fork while another thread holds a lock, which is then never unlocked in the child. Locks that a child can reach
/// are taken by this function; a caller that gets `None` continues without the value.
pub fn lock_unless_stuck<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    for attempt in 1..=LOCK_ATTEMPTS {
        match try_lock(mutex) {
            // The thread that holds it may be waiting for a core.
            None if attempt % SPINS_PER_YIELD == 0 => thread::yield_now(),
            None => std::hint::spin_loop(),
            guard => return guard,
        }
    }
    None
}

/// Locks a mutex, also after a panic of a thread that held it.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Locks a mutex if no thread holds it.
pub fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => {
            mutex.clear_poison();
            Some(poisoned.into_inner())
        }
        Err(TryLockError::WouldBlock) => None,
    }
}

/// The number of threads for `bytes` of work: `requested`, else one per core, but at most one per [`BYTES_PER_THREAD_MIN`].
pub fn threads(bytes: u64, requested: Option<usize>) -> usize {
    if bytes < BYTES_PER_THREAD_MIN {
        return 1;
    }
    let max = to_usize(bytes / BYTES_PER_THREAD_MIN);
    requested.unwrap_or_else(cores).clamp(1, max.max(1))
}

/// The number of cores that this process may use, asked at most every [`CORES_FOR`].
pub fn cores() -> usize {
    static KNOWN: Mutex<Option<(Instant, usize)>> = Mutex::new(None);
    let ask = || thread::available_parallelism().map_or(1, NonZero::get);
    let Some(mut known) = lock_unless_stuck(&KNOWN) else { return ask() };
    match *known {
        Some((since, cores)) if since.elapsed() < CORES_FOR => cores,
        _ => known.insert((Instant::now(), ask())).1,
    }
}

/// Runs `job` on every item, on up to `threads` threads including the caller's, each with its own `state`.
///
/// Returns the first error; the other threads stop at their next item.
pub fn for_each<T, S, I, E>(
    threads: usize,
    items: I,
    state: impl Fn() -> S + Sync,
    job: impl Fn(&mut S, T) -> Result<(), E> + Sync,
) -> Result<(), E>
where
    T: Send,
    E: Send,
    I: Iterator<Item = T> + Send,
{
    if threads <= 1 {
        let mut own = state();
        let mut items = items;
        return items.try_for_each(|item| job(&mut own, item));
    }
    let items = Mutex::new(items);
    let failure: Mutex<Option<E>> = Mutex::new(None);
    let failed = AtomicBool::new(false);
    let worker = || {
        let mut own = state();
        while !failed.load(Ordering::Relaxed) {
            let Some(item) = lock(&items).next() else { break };
            if let Err(error) = job(&mut own, item) {
                failed.store(true, Ordering::Relaxed);
                lock(&failure).get_or_insert(error);
            }
        }
    };
    let cancel = CURRENT.with_borrow(Clone::clone);
    thread::scope(|scope| {
        for _ in 1..threads {
            let (cancel, worker) = (cancel.clone(), &worker);
            // Where the system refuses another thread, the existing ones do the work.
            if thread::Builder::new().spawn_scoped(scope, move || during(cancel, worker)).is_err() {
                break;
            }
        }
        worker();
    });
    match failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(error) => Err(error),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_item_is_processed_once() {
        let mut cells = vec![0_u8; 1000];
        for_each(
            4,
            cells.iter_mut(),
            || (),
            |(), cell| {
                *cell += 1;
                Ok::<(), Error>(())
            },
        )
        .unwrap();
        assert!(cells.iter().all(|&cell| cell == 1));
    }

    #[test]
    fn the_first_error_is_returned() {
        let result = for_each(
            3,
            0..100,
            || (),
            |(), n| {
                if n == 50 { Err(Error::new(Code::Value, "fifty")) } else { Ok(()) }
            },
        );
        assert_eq!(result.unwrap_err().message(), "fifty");
    }

    #[test]
    fn a_lock_that_stays_held_is_given_up() {
        let mutex = Mutex::new(1);
        let held = try_lock(&mutex).unwrap();
        assert!(try_lock(&mutex).is_none() && lock_unless_stuck(&mutex).is_none());
        drop(held);
        assert_eq!(lock_unless_stuck(&mutex).map(|guard| *guard), Some(1));
    }

    #[test]
    fn threads_know_the_operation_that_they_work_for() {
        let (outer, inner) = (Cancel::new(), Cancel::new());
        outer.cancel();
        let check = |expected| {
            let job = |(): &mut (), _| {
                assert_eq!(Cancel::is_current_cancelled(), expected);
                Ok::<(), Error>(())
            };
            for_each(4, 0..100, || (), job).unwrap();
        };
        outer.during(|| {
            check(true);
            inner.during(|| check(false));
            check(true);
        });
        check(false);
    }

    #[test]
    fn small_work_stays_on_one_thread() {
        assert_eq!(threads(1000, Some(8)), 1);
        assert_eq!(threads(1 << 30, Some(8)), 8);
        assert_eq!(threads(12 << 20, Some(4000)), 6);
    }
}
