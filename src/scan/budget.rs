//! Bounds the work of scanning one file.
//!
//! A byte of the file is scanned once at each nesting level, as every format that it may have there, and the limit `scan_depth`
//! bounds the levels. Work that a crafted file could repeat beyond that takes from a budget, and ranges that are skipped because
//! the budget is spent are in the coverage. So the cost of a scan is a small multiple of the file size and of the bytes that may
//! be inflated or decoded from it.

use crate::limits::Limits;

/// The bytes of overlapping members that are scanned, as a multiple of the file size.
const OVERLAP_FACTOR: u64 = 4;
/// The maximum number of pickles in one file that follow another pickle. Each has a fixed cost, although it may be only two bytes
/// long.
const MAX_FOLLOWING_PICKLES: u64 = 10_000;

/// The work that is left.
pub(super) struct Budget {
    /// Bytes that `data.pkl` members may still inflate to; the same limit as for loading.
    pub(super) main_pickle_bytes: u64,
    /// Bytes that everything else may still be inflated or decoded to.
    pub(super) decoded_bytes: u64,
    /// Bytes of members that overlap earlier members.
    pub(super) overlapping_bytes: u64,
    /// Pickles that follow another pickle.
    pub(super) following_pickles: u64,
}

impl Budget {
    pub(super) fn new(limits: &Limits, file_len: u64) -> Budget {
        Budget {
            main_pickle_bytes: limits.pickle_bytes,
            decoded_bytes: limits.scan_bytes,
            overlapping_bytes: file_len.saturating_mul(OVERLAP_FACTOR),
            following_pickles: MAX_FOLLOWING_PICKLES,
        }
    }
}

/// Takes `amount` from a budget; returns false, and takes nothing, where less is left.
pub(super) fn take(budget: &mut u64, amount: u64) -> bool {
    let rest = budget.checked_sub(amount);
    *budget = rest.unwrap_or(*budget);
    rest.is_some()
}
