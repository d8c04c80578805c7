//! The bytes of a member: its range of the archive, or what it inflates to, as far as a reader may go.

use std::sync::Arc;

use super::super::super::budget::take;
use super::super::super::scanner::{Origin, Scanner};
use super::{TEXT_BYTES, VisibleMember};
use crate::bytes::Source;
use crate::container::is_container;
use crate::container::npy::Header;
use crate::container::zip;
use crate::error::{Code, Error, Result};
use crate::limits::Limits;
use crate::num::to_u64;
use crate::pickle::Disasm;

/// Bytes that are inflated first.
pub(super) const FIRST_INFLATED_BYTES: u64 = 1 << 20;

impl Scanner<'_> {
    /// The member's bytes as a source: its range of the file, or inflated. `None` where the budget is spent.
    pub(super) fn open(
        &mut self,
        source: &Source,
        member: &VisibleMember,
        inner: &str,
        origin: Origin,
    ) -> Result<Option<Source>> {
        if member.method == 0 {
            return source.window(member.region.start(), member.region.len()).map(Some);
        }
        // `data.pkl` members share the limit of loading, all other members share a budget of the scan.
        let (name, budget) = match origin {
            Origin::Main => ("pickle_bytes", &mut self.budget.main_pickle_bytes),
            _ => ("scan_bytes", &mut self.budget.decoded_bytes),
        };
        let (allowed, ratio) = (*budget, self.options.limits.inflate_ratio);
        let too_far = |inflated: u64| {
            let text = format!("the first {inflated} bytes inflate to more than {ratio} times their size");
            Error::new(Code::InflateRatio, text)
        };
        let mut len = allowed.min(FIRST_INFLATED_BYTES);
        let (bytes, cut) = loop {
            let (bytes, is_whole) = zip::peek(source, member.region, 8, len, ratio)?;
            let inflated = to_u64(bytes.len());
            if is_whole || is_array_of_size(&bytes, member.size) {
                break (bytes, None);
            }
            if inflated < len {
                break (bytes, Some(too_far(inflated)));
            }
            if len == allowed {
                break (bytes, Some(Error::limit(name, allowed, inflated.saturating_add(1))));
            }
            if !reads_on(&bytes, &self.options.limits) {
                // Only a reader that begins at the end needs the rest.
                let rest = zip::inflated_tail(source, member.region, allowed, ratio, &self.options.cancel)?;
                take(budget, rest.len.saturating_sub(len));
                if !rest.is_whole {
                    let is_limit = rest.len > allowed;
                    let limit = || Error::limit(name, allowed, rest.len);
                    break (bytes, Some(if is_limit { limit() } else { too_far(rest.len) }));
                }
                if !zip::may_end_as_zip(&rest.bytes) {
                    break (bytes, None);
                }
            }
            len = len.saturating_mul(4).min(allowed);
        };
        let inflated = to_u64(bytes.len());
        take(budget, inflated);
        if let Some(error) = cut {
            self.report.add_error(&error, Some(inner));
            self.report.unscanned(Some(inner), "too large once inflated", inflated, 0);
            // Of so few bytes, detectors would only say that they are cut short.
            if inflated < TEXT_BYTES {
                return Ok(None);
            }
        }
        Ok(Some(Source::memory(Arc::new(bytes))))
    }
}

/// Whether the start of a member shows that it is an array of plain numbers that fills it.
fn is_array_of_size(bytes: &[u8], size: Option<u64>) -> bool {
    let read =
        |len: u64| Ok(bytes.get(..usize::try_from(len).unwrap_or(usize::MAX)).unwrap_or(bytes).to_vec());
    let header = Header::read(read).ok().filter(|header| !header.elements.may_be_pickle());
    header.is_some_and(|header| header.end() == size && size.is_some())
}

/// Whether a reader of these first bytes of a member would read on behind them.
fn reads_on(bytes: &[u8], limits: &Limits) -> bool {
    if is_container(bytes) {
        return true;
    }
    let mut at = 0;
    loop {
        let mut disasm = Disasm::lenient(bytes, at, limits);
        let failed = disasm.by_ref().find_map(|op| op.err());
        match failed {
            Some(error) => return error.code() == Code::Truncated || disasm.position() >= bytes.len(),
            // The pickle ends; another one may follow.
            None if disasm.position() >= bytes.len() => return true,
            None => at = disasm.position(),
        }
    }
}
