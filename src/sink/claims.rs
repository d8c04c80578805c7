//! Which ranges of other libraries' memory are being written to, so that two calls never get the same bytes to write.
//!
//! It sees rustload's own writes alone: what else a program does with an array that it gave as `out=` stays that program's duty.
#![forbid(unsafe_code)]

use std::process;
use std::sync::Mutex;

use crate::parallel::lock_within;

/// How often a claim looks for the list while another thread is at it, which takes that thread about as long as a search.
const TRIES: u32 = 1000;

/// Ranges of addresses, each with the process that writes there: a forked child has its own memory at the same addresses.
static CLAIMS: Mutex<Vec<Claimed>> = Mutex::new(Vec::new());

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Claimed {
    process: u32,
    start: usize,
    end: usize,
}

/// The right to write to a range, until it is dropped.
#[derive(Debug)]
pub(super) struct Claim {
    range: Claimed,
    /// Whether it is on the list.
    listed: bool,
}

impl Claim {
    /// The right to write to `len` bytes from `start` on; `None` while somebody else has it for one of them.
    pub(super) fn new(start: usize, len: usize) -> Option<Claim> {
        let wanted = Claimed { process: process::id(), start, end: start.saturating_add(len) };
        // A list that cannot be had, as after a fork while a thread was at it, refuses nothing.
        if let Some(mut claims) = lock_within(&CLAIMS, TRIES) {
            claims.retain(|other| other.process == wanted.process);
            if claims.iter().any(|other| other.start < wanted.end && wanted.start < other.end) {
                return None;
            }
            claims.push(wanted);
            return Some(Claim { range: wanted, listed: true });
        }
        Some(Claim { range: wanted, listed: false })
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        // One that stays would refuse every later write there, so this waits for other threads, which hold the list for a moment.
        // Not in a forked child: there the claim is the parent's, and one of its own is listed only where nobody held the list.
        while self.listed && self.range.process == process::id() {
            if let Some(mut claims) = lock_within(&CLAIMS, TRIES) {
                if let Some(at) = claims.iter().position(|other| *other == self.range) {
                    claims.swap_remove(at);
                }
                return;
            }
            std::thread::yield_now();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlapping_ranges_have_one_writer_at_a_time() {
        // Addresses that no other test has.
        let base = usize::MAX / 2;
        let first = Claim::new(base, 100).unwrap();
        assert!(Claim::new(base + 99, 1).is_none());
        assert!(Claim::new(base - 10, 11).is_none());
        let _behind = Claim::new(base + 100, 1).unwrap();
        let _before = Claim::new(base - 10, 10).unwrap();
        drop(first);
        assert!(Claim::new(base, 100).is_some());
    }
}
