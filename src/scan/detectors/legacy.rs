//! The detector of torch's legacy reader: five pickles in a row, then the storages.
//!
//! Stands for `torch/serialization.py: _legacy_load`, torch 0.1.10 to 2.13. Its reader goes on only after the magic number; other
//! first pickles are walked as pickles one behind another. The storages are read as elements of tensors.

use super::super::scanner::{Detected, Input};
use super::super::scanner::{Scanner, inside};
use super::At;
use crate::error::Result;
use crate::index::{LEGACY_PICKLES, PersistentIdForm};

/// Walks the five pickles; returns the offset after them, or `None` where every reader stops before.
pub(super) fn walk(
    scanner: &mut Scanner<'_>,
    input: &Input<'_>,
    detected: &mut Detected,
) -> Result<Option<u64>> {
    let mut at = 0;
    for name in LEGACY_PICKLES {
        let member = inside(input.label, name);
        let place = At { source: input.source, offset: at, known: true, ids: PersistentIdForm::Legacy };
        let run = scanner.run_pickle(&place)?;
        let scanned = scanner.report_pickle(run, &place, Some(&member), input.depth, false)?;
        detected.pickle = true;
        at = scanned.end;
        if !scanned.stopped {
            return Ok(None);
        }
    }
    Ok(Some(at))
}
