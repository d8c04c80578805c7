//! Scoped threads over a list of jobs: no global pool, so nothing to deadlock in a forked process.

use std::num::NonZero;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread;

use crate::error::{Code, Error, Result};

/// Below this many bytes of work one thread is faster than several.
const WORTH_A_THREAD: u64 = 4 << 20;

/// A request to stop, seen by all threads of one piece of work.
#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// A token that nobody has pulled.
    pub fn new() -> Cancel {
        Cancel::default()
    }

    /// Asks the work to stop at its next check.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Fails once the work was asked to stop.
    pub fn check(&self) -> Result<()> {
        if self.0.load(Ordering::Relaxed) {
            Err(Error::new(Code::Cancelled, "stopped on request"))
        } else {
            Ok(())
        }
    }
}

/// Locks a mutex in at most `tries` attempts; `None` if another thread holds it all the while.
///
/// A child process may be forked while another thread holds a lock, and in the child nobody ever unlocks it. What a child may
/// reach is locked by this, for no longer than it takes to move a value, and whoever gets `None` does without.
pub fn lock_within<T>(mutex: &Mutex<T>, tries: u32) -> Option<MutexGuard<'_, T>> {
    for _ in 0..tries {
        match mutex.try_lock() {
            Ok(guard) => return Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => {
                mutex.clear_poison();
                return Some(poisoned.into_inner());
            }
            Err(TryLockError::WouldBlock) => std::hint::spin_loop(),
        }
    }
    None
}

/// How many threads to use for `bytes` of work: what was asked for, else one per core, but no more than have enough to do.
pub fn threads(bytes: u64, wanted: Option<usize>) -> usize {
    if bytes < WORTH_A_THREAD {
        return 1;
    }
    let most = usize::try_from(bytes / WORTH_A_THREAD).unwrap_or(usize::MAX);
    wanted.unwrap_or_else(cores).clamp(1, most.max(1))
}

/// The cores that this process may use.
pub fn cores() -> usize {
    thread::available_parallelism().map_or(1, NonZero::get)
}

/// Runs `job` on every item, on up to `threads` threads (the caller's among them), each with its own `state`.
///
/// The first error stops the others at their next item and is returned.
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
            let Some(item) = items.lock().unwrap_or_else(PoisonError::into_inner).next() else { break };
            if let Err(error) = job(&mut own, item) {
                failed.store(true, Ordering::Relaxed);
                failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
            }
        }
    };
    thread::scope(|scope| {
        for _ in 1..threads {
            // Where the system refuses another thread, those that there are do the work.
            if thread::Builder::new().spawn_scoped(scope, worker).is_err() {
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
    fn every_item_is_done_once() {
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
    fn a_lock_that_is_held_is_not_waited_for() {
        let mutex = Mutex::new(1);
        let held = lock_within(&mutex, 1).unwrap();
        assert!(lock_within(&mutex, 100).is_none());
        drop(held);
        assert_eq!(lock_within(&mutex, 1).map(|guard| *guard), Some(1));
    }

    #[test]
    fn small_work_stays_on_one_thread() {
        assert_eq!(threads(1000, Some(8)), 1);
        assert_eq!(threads(1 << 30, Some(8)), 8);
        assert_eq!(threads(12 << 20, Some(4000)), 3);
    }
}
