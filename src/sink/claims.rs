//! The ranges of other libraries' memory that rustload is writing to, so that two calls never write to the same bytes.
//!
//! It knows rustload's own writes only: the program is responsible for what else it does with an array that it passes as `out=`.
#![forbid(unsafe_code)]

use std::sync::Mutex;

use crate::parallel::lock_unless_stuck;
use crate::sys::process_id;

/// Address ranges, each with the process that writes there: a forked child has its own memory at the same addresses.
static CLAIMS: Mutex<Vec<ClaimedRange>> = Mutex::new(Vec::new());

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ClaimedRange {
    process: u32,
    start: usize,
    end: usize,
}

/// The right to write to a range, held until it is dropped; `None` where the range is not in the list.
#[derive(Debug)]
pub(super) struct Claim(Option<ClaimedRange>);

impl Claim {
    /// The right to write to `len` bytes from `start`; `None` while another claim covers one of them.
    pub(super) fn new(start: usize, len: usize) -> Option<Claim> {
        let range = ClaimedRange { process: process_id(), start, end: start.saturating_add(len) };
        // A list that cannot be locked, as after a fork while another thread held it, refuses nothing.
        let Some(mut claims) = lock_unless_stuck(&CLAIMS) else { return Some(Claim(None)) };
        claims.retain(|other| other.process == range.process);
        if claims.iter().any(|other| other.start < range.end && range.start < other.end) {
            return None;
        }
        claims.push(range);
        Some(Claim(Some(range)))
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        // A range that stayed listed would refuse every later write there, so this waits for other threads, which hold the lock
        // briefly. It does not wait in a forked child: a claim made before the fork is the parent's, and a claim of the child's own
        // is listed only if the lock was free.
        while let Some(range) = self.0.filter(|range| range.process == process_id()) {
            if let Some(mut claims) = lock_unless_stuck(&CLAIMS) {
                if let Some(at) = claims.iter().position(|other| *other == range) {
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
        // Addresses that no other test claims.
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
