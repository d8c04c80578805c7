//! Where threads start.
//!
//! **Protocol.** The system writes and reads one set of CPUs, whose size it is told; the thread belongs to a handle.
#![expect(unsafe_code, reason = "a thread that has not run yet has no number, only the handle of pthreads")]

use std::ffi::c_ulong;
use std::mem::size_of_val;
use std::os::unix::thread::JoinHandleExt;

use crossbeam_utils::thread::ScopedJoinHandle;
use libc::{pthread_setaffinity_np, sched_getaffinity};

/// The CPUs that a thread may run on, a bit for each.
type Cpus = [c_ulong; 1024 / c_ulong::BITS as usize];

/// Moves a new thread away from the core of this one, which is busy; where it runs afterwards is the system's choice.
///
/// A virtual machine whose host takes idle cores may start the thread here, where it waits for up to 4 ms, as it counts the idle
/// ones as taken. Nothing is done if the system refuses.
pub(crate) fn leave_core(thread: &ScopedJoinHandle<'_, ()>) {
    let mut all: Cpus = [0; _];
    let size = size_of_val(&all);
    // SAFETY: the set has this size.
    let is_known = unsafe { sched_getaffinity(0, size, (&raw mut all).cast()) } == 0;
    let core = rustix::thread::sched_getcpu();
    let mut others = all;
    let Some(word) = others.get_mut(core / c_ulong::BITS as usize).filter(|_| is_known) else { return };
    *word &= !(1 << (core % c_ulong::BITS as usize));
    for cpus in [others, all] {
        // SAFETY: the set has this size, and the thread has not been joined, as its handle is borrowed.
        unsafe { pthread_setaffinity_np(thread.as_pthread_t(), size, (&raw const cpus).cast()) };
    }
}
