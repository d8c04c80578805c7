//! What the scan of one file may cost.
//!
//! A byte of the file is looked at once at each level of nesting, as whatever formats it may have there, and
//! the limit `scan_depth` bounds the levels. What an author could have repeated beyond that is taken from a
//! budget here, and what is not looked at for lack of it is in the coverage: so a scan costs no more than a
//! small multiple of the file and of the bytes that may be made of it.

use crate::limits::Limits;

/// How many times a file's bytes may be looked at once more, where members lie in one another.
const AGAIN: u64 = 4;
/// Pickles of one file that may follow others. Each costs a beginning and an end, though it may have two
/// bytes.
const PICKLES: u64 = 10_000;

/// What is left.
pub(super) struct Budget {
    /// Bytes that checkpoints' own pickles may still inflate to: as many as in loading.
    pub(super) main: u64,
    /// Bytes that all else may still be inflated or decoded to.
    pub(super) made: u64,
    /// Bytes of members that members before them have as well.
    pub(super) again: u64,
    /// Pickles that follow others.
    pub(super) pickles: u64,
}

impl Budget {
    pub(super) fn new(limits: &Limits, file: u64) -> Budget {
        Budget {
            main: limits.pickle_bytes,
            made: limits.scan_bytes,
            again: file.saturating_mul(AGAIN),
            pickles: PICKLES,
        }
    }
}

/// Takes from one of the budgets; whether that much was left.
pub(super) fn take(left: &mut u64, wanted: u64) -> bool {
    let rest = left.checked_sub(wanted);
    *left = rest.unwrap_or(*left);
    rest.is_some()
}
