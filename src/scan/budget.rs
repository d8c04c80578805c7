//! Bounds the work of scanning one file: one budget, for every detector and every nesting level.
//!
//! A byte of the file is scanned once at each nesting level, as every format that it may have there, and the limit `scan_depth`
//! bounds the levels. Whatever a crafted file could repeat beyond that takes from the budget, which is a multiple of the file's size
//! and a constant: opcodes that are executed, bytes that are inflated, sources that are given to the detectors. Where it is spent, the rest
//! is unscanned. So the time of a scan is linear in the size of the file.

use crate::error::{Code, Error, Result, error};
use crate::limits::Limits;
use crate::num::to_u64;

/// The bytes of overlapping members that are scanned, as a multiple of the file size.
const OVERLAP_FACTOR: u64 = 4;
/// The maximum number of pickles in one file that follow another pickle. Each has a fixed cost, although it may be only two bytes
/// long.
const MAX_FOLLOWING_PICKLES: u64 = 10_000;
/// Bytes of opcodes that may be executed for any file, and for each of its bytes. A file of joblib is executed up to each of its arrays.
const EXECUTED_BYTES: u64 = 8 << 20;
const EXECUTED_FACTOR: u64 = 64;
/// Bytes that may be inflated or decoded for any file; each of its bytes adds the limit `inflate_ratio`.
const INFLATED_BYTES: u64 = 12 << 20;
/// Sources that may be given to the detectors for any file, and the bytes of it that allow for one more: fewer than a member of an
/// archive takes.
const VISITS: u64 = 1000;
const VISIT_BYTES: u64 = 64;
/// What the start of a run costs, in bytes of opcodes.
const RUN_BYTES: u64 = 448;
/// What a call in a pickle costs to be judged, in bytes of opcodes.
const CALL_BYTES: u64 = 48;
/// What an error in a pickle costs to be recovered from, in bytes of opcodes.
const DEFECT_BYTES: u64 = 48;

/// The work that is left.
pub(super) struct Budget {
    /// Bytes that `data.pkl` members may still inflate to; at most the limit for loading.
    pub(super) main_pickle_bytes: u64,
    /// Bytes that everything else may still be inflated or decoded to.
    pub(super) decoded_bytes: u64,
    /// Bytes of members that overlap earlier members.
    pub(super) overlapping_bytes: u64,
    /// Pickles that follow another pickle.
    pub(super) following_pickles: u64,
    /// Bytes of opcodes that may still be executed.
    executed_bytes: u64,
    /// Sources that may still be given to the detectors.
    visits: u64,
    /// As the limit `pickle_bytes`, for each time that the strict reader reads a source.
    strict_pickle_bytes: u64,
}

impl Budget {
    pub(super) fn new(limits: &Limits, file_len: u64) -> Budget {
        let inflated = file_len.saturating_mul(limits.inflate_ratio).saturating_add(INFLATED_BYTES);
        let executed_bytes = file_len.saturating_mul(EXECUTED_FACTOR).saturating_add(EXECUTED_BYTES);
        Budget {
            main_pickle_bytes: limits.pickle_bytes.min(inflated),
            decoded_bytes: limits.scan_bytes.min(inflated),
            overlapping_bytes: file_len.saturating_mul(OVERLAP_FACTOR),
            following_pickles: MAX_FOLLOWING_PICKLES,
            executed_bytes,
            visits: (file_len / VISIT_BYTES).saturating_add(VISITS),
            strict_pickle_bytes: limits.pickle_bytes.min(executed_bytes),
        }
    }

    /// The longest pickle that may still be executed.
    pub(super) fn executable(&self) -> u64 {
        self.executed_bytes.saturating_sub(RUN_BYTES)
    }

    /// Takes the execution of opcodes; returns false where less is left.
    pub(super) fn execute(&mut self, len: u64) -> bool {
        take(&mut self.executed_bytes, len.saturating_add(RUN_BYTES))
    }

    /// As [`execute`](Budget::execute), but fails, which ends the scan of the file.
    pub(super) fn must_execute(&mut self, len: u64) -> Result<()> {
        if self.execute(len) { Ok(()) } else { Err(spent("opcodes are executed")) }
    }

    /// Takes a run that has ended, after some errors. Fails where less is left.
    pub(super) fn must_recover(&mut self, len: u64, defects: usize) -> Result<()> {
        self.must_execute(to_u64(defects).saturating_mul(DEFECT_BYTES).saturating_add(len))
    }

    /// Takes the judgement of calls. Fails where less is left.
    pub(super) fn judge(&mut self, calls: u64) -> Result<()> {
        self.must_execute(calls.saturating_mul(CALL_BYTES))
    }

    /// The limits under which the strict reader reads a source.
    pub(super) fn strict(&self, limits: &Limits) -> Limits {
        limits.clone().pickle_bytes(self.strict_pickle_bytes)
    }

    /// Takes one source that is given to the detectors. Fails where none is left, which ends the scan of the file.
    pub(super) fn input(&mut self) -> Result<()> {
        if take(&mut self.visits, 1) { Ok(()) } else { Err(spent("contents lie in each other")) }
    }
}

fn spent(what: &str) -> Error {
    error!(Code::Limit, "more {what} than a scan allows for a file of this size")
}

/// Takes `amount` from a budget; returns false, and takes nothing, where less is left.
pub(super) fn take(budget: &mut u64, amount: u64) -> bool {
    let rest = budget.checked_sub(amount);
    *budget = rest.unwrap_or(*budget);
    rest.is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn judged_calls_are_charged_and_the_file_ends_where_less_is_left() {
        let mut budget = Budget::new(&Limits::new(), 0);
        let calls = budget.executed_bytes / CALL_BYTES / 4;
        for _ in 0..3 {
            budget.judge(calls).unwrap();
        }
        let left = budget.executed_bytes;
        assert!(left < 2 * calls * CALL_BYTES, "{left}");
        assert_eq!(budget.judge(2 * calls).unwrap_err().code(), crate::error::Code::Limit);
    }
}
