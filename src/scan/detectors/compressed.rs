//! The detector of decompressors: a stream, whose content is bytes like any other.
//!
//! Stands for `gzip`, `zlib`, `bz2` and `lzma` of CPython 3.8 to 3.15, `lz4.frame`, and joblib's readers of them. gzip, zlib and joblib's
//! variant of zlib are inflated within the budget; of a damaged stream, as much as readers get. The others are named and
//! unscanned.

use std::sync::Arc;

use super::super::budget::take;
use super::super::report::Finding;
use super::super::scanner::{Detected, Input, Origin};
use super::super::scanner::{Scanner, inside};
use super::super::verdict::Verdict;
use crate::bytes::Source;
use crate::container::compressed::{self, Compressed};
use crate::error::Result;
use crate::num::to_u64;

/// Inflates a stream and gives its content to all detectors.
pub(super) fn walk(scanner: &mut Scanner<'_>, input: &Input<'_>, detected: &mut Detected) -> Result<()> {
    let Input { source, label, ref head, .. } = *input;
    let Some(found) = Compressed::begin(head) else { return Ok(()) };
    let Compressed::Deflate(stream) = found else {
        let text = format!("a {} archive, which is not unpacked: its contents are unknown", found.name());
        let finding = Finding::new("OpaqueContainer", Verdict::Unknown, label, text);
        scanner.report.add(Finding { offset: Some(0), ..finding });
        scanner.report.unscanned(label, "a packed archive", 0, source.len());
        scanner.report.format.get_or_insert("archive");
        detected.unpacked = Some(false);
        return Ok(());
    };
    let allowed = scanner.budget.decoded_bytes;
    let (limits, cancel) = (&scanner.options.limits, &scanner.options.cancel);
    let inflated = compressed::inflate(source, stream, allowed, limits, cancel)?;
    let is_cut = inflated.cut.is_some();
    let len = to_u64(inflated.bytes.len());
    take(&mut scanner.budget.decoded_bytes, len);
    if len == 0 && !is_cut {
        return Ok(());
    }
    let inner = inside(label, "inflated");
    if input.depth > scanner.options.limits.scan_depth {
        scanner.report.unscanned(Some(&inner), "nested too deep", 0, len);
        detected.unpacked = Some(false);
        return Ok(());
    }
    if let Some(error) = inflated.cut {
        scanner.report.add_error(&error, Some(&inner));
        scanner.report.unscanned(Some(&inner), "too large once inflated", len, 0);
    }
    let content = Source::memory(Arc::new(inflated.bytes));
    let found = scanner.source(&content, Some(&inner), input.depth.saturating_add(1), Origin::Inflated)?;
    // Numbers may begin like a stream; they neither end like one nor have contents.
    if inflated.is_whole || is_cut || found.any() {
        detected.unpacked = Some(!is_cut);
        scanner.report.scanned(label, stream.name(), 0, inflated.end);
        scanner.report.format.get_or_insert("archive");
    }
    if inflated.is_whole && inflated.end < source.len() {
        scanner.remainder(input, inflated.end)?;
    }
    Ok(())
}
