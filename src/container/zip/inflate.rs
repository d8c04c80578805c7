//! Inflates a member in chunks, never past the size that the central directory states (APPNOTE 4.4.5, method 8; RFC 1951).
//!
//! Refused: a stream that inflates to more or fewer bytes than stated, that ends before its payload does, or that does not end.

use std::ops::ControlFlow;
use std::sync::Arc;

use miniz_oxide::DataFormat;

use super::structure;
use crate::bytes::{Region, Source};
use crate::container::inflate::{CHUNK_BYTES, Ended, inflate_chunks};
use crate::error::{Code, Error, Result, error};
use crate::limits::Limits;
use crate::num::{to_u64, to_usize};
use crate::parallel::Cancel;

/// Inflates to a vector of exactly `size` bytes. Memory grows with what the stream really contains, not with `size`.
pub(super) fn to_vec(source: &Source, payload: Region, size: u64, cancel: &Cancel) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    stream(source, payload, size, |bytes| {
        cancel.check()?;
        out.try_reserve(bytes.len())
            .map_err(|_| error!(Code::Memory, "{size} byte(s) to inflate could not be allocated"))?;
        out.extend_from_slice(bytes);
        Ok(())
    })?;
    Ok(out)
}

/// Inflates up to `max_len` bytes, and no more than the limit `inflate_ratio` allows; also returns whether that is all of the
/// stream, even where the stream is damaged.
pub(super) fn prefix(source: &Source, payload: Region, max_len: u64, ratio: u64) -> Result<(Vec<u8>, bool)> {
    let mut out = Vec::new();
    let (_, ended) = inflate_chunks(source, payload, DataFormat::Raw, CHUNK_BYTES, |bytes, consumed| {
        let left = to_usize(max_len).saturating_sub(out.len());
        let taken = bytes.get(..left.min(bytes.len())).unwrap_or_default();
        out.try_reserve(taken.len()).map_err(|_| Error::new(Code::Memory, "no memory to inflate"))?;
        out.extend_from_slice(taken);
        let is_full = taken.len() < bytes.len()
            || Limits::check_inflate_ratio(ratio, consumed, to_u64(out.len())).is_err();
        Ok(if is_full { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    })?;
    Ok((out, ended != Ended::Stopped))
}

/// As [`prefix`], of bytes in memory; `None` if they cannot be inflated.
pub(super) fn prefix_of(head: &[u8], max_len: u64, ratio: u64) -> Option<Vec<u8>> {
    let source = Source::memory(Arc::new(head.to_vec()));
    let region = Region::new(0, to_u64(head.len()))?;
    prefix(&source, region, max_len, ratio).ok().map(|(bytes, _)| bytes)
}

/// The last bytes of an inflated stream.
#[cfg(feature = "scan")]
pub struct InflatedTail {
    /// At least the last [`CHUNK_BYTES`] that were inflated, if there are as many.
    pub bytes: Vec<u8>,
    /// The bytes that were inflated.
    pub len: u64,
    /// Whether that is all of the stream, even where the stream is damaged.
    pub is_whole: bool,
}

/// Inflates up to `max_len` bytes, and no more than the limit `inflate_ratio` allows, and keeps the last ones.
#[cfg(feature = "scan")]
pub fn inflated_tail(
    source: &Source,
    payload: Region,
    max_len: u64,
    ratio: u64,
    cancel: &Cancel,
) -> Result<InflatedTail> {
    let mut out = InflatedTail { bytes: Vec::new(), len: 0, is_whole: true };
    let kept = to_usize(CHUNK_BYTES.saturating_mul(2));
    inflate_chunks(source, payload, DataFormat::Raw, CHUNK_BYTES, |bytes, consumed| {
        cancel.check()?;
        out.len = out.len.saturating_add(to_u64(bytes.len()));
        out.bytes.extend_from_slice(bytes);
        if out.bytes.len() > kept.saturating_mul(4) {
            out.bytes.drain(..out.bytes.len().saturating_sub(kept));
        }
        out.is_whole = out.len <= max_len && Limits::check_inflate_ratio(ratio, consumed, out.len).is_ok();
        Ok(if out.is_whole { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
    })?;
    Ok(out)
}

/// Inflates exactly `size` bytes and passes them to `sink` in chunks. Where requests are expensive, several read the input at once.
pub(super) fn stream(
    source: &Source,
    payload: Region,
    size: u64,
    mut sink: impl FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    let access = source.access();
    let input_max = if access.waits_for_requests() { access.block.max(CHUNK_BYTES) } else { CHUNK_BYTES };
    let mut inflated = 0_u64;
    let (end, ended) = inflate_chunks(source, payload, DataFormat::Raw, input_max, |bytes, _| {
        inflated = inflated.saturating_add(to_u64(bytes.len()));
        if inflated > size {
            return Err(structure(format!(
                "the deflate stream inflates to more than the {size} byte(s) stated"
            )));
        }
        sink(bytes).map(ControlFlow::Continue)
    })?;
    match (ended, payload.end().saturating_sub(end)) {
        (Ended::Truncated, _) => Err(structure("the deflate stream has no end")),
        (Ended::Damaged, _) => Err(structure("the bytes are not a deflate stream")),
        (_, 0) if inflated == size => Ok(()),
        (_, 0) => Err(structure(format!(
            "the deflate stream inflates to {inflated} byte(s), not to the {size} stated"
        ))),
        (_, rest) => Err(structure(format!("{rest} byte(s) after the end of the deflate stream"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_byte_beyond_the_stated_size_is_handed_on() {
        let deflated = miniz_oxide::deflate::compress_to_vec(&vec![0; 8 << 20], 6);
        let payload = Region::new(0, to_u64(deflated.len())).unwrap();
        let source = Source::memory(Arc::new(deflated));
        for size in [0, 1, 100_000, (8 << 20) - 1] {
            let mut handed = 0;
            let done = stream(&source, payload, size, |bytes| {
                handed = to_u64(bytes.len()).saturating_add(handed);
                Ok(())
            });
            assert_eq!(done.unwrap_err().code(), Code::ZipStructure);
            assert!(handed <= size, "{handed} of {size}");
        }
    }
}
