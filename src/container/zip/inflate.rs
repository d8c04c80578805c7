//! Inflates a member in chunks, never past the size that the central directory states (APPNOTE 4.4.5, method 8; RFC 1951).
//!
//! Refused: a stream that inflates to more or fewer bytes than stated, that ends before its payload does, or that does not end.

use std::sync::Arc;

use miniz_oxide::inflate::stream::{InflateState, inflate};
use miniz_oxide::{DataFormat, MZError, MZFlush, MZStatus};

use super::structure;
use crate::bytes::{RangeRead, Region, Source};
use crate::error::{Code, Error, Result, error};
use crate::limits::Limits;
use crate::num::{to_u64, to_usize};
use crate::parallel::Cancel;

/// The size of the input and of the output buffer.
const CHUNK_BYTES: u64 = 64 << 10;

/// The least bytes of one request, where several read the input at once.
const REQUEST_MIN_BYTES: u64 = 256 << 10;

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
    let (mut out, mut full) = (Vec::new(), false);
    let stopped = chunks(source, payload, u64::MAX, CHUNK_BYTES, |bytes, consumed| {
        let left = to_usize(max_len).saturating_sub(out.len());
        let taken = bytes.get(..left.min(bytes.len())).unwrap_or_default();
        out.try_reserve(taken.len()).map_err(|_| Error::new(Code::Memory, "no memory to inflate"))?;
        out.extend_from_slice(taken);
        full = taken.len() < bytes.len()
            || Limits::check_inflate_ratio(ratio, consumed, to_u64(out.len())).is_err();
        // An error ends the inflation early; the match below drops it.
        if full { Err(Error::new(Code::Limit, "enough")) } else { Ok(()) }
    });
    match stopped {
        Err(error) if error.code() == Code::Memory || error.code().is_read_failure() => Err(error),
        // `u64::MAX` is not a real size, so a sound stream ends with the error that it inflates to fewer bytes.
        _ => Ok((out, !full)),
    }
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
pub(super) fn tail(
    source: &Source,
    payload: Region,
    max_len: u64,
    ratio: u64,
    cancel: &Cancel,
) -> Result<InflatedTail> {
    let mut out = InflatedTail { bytes: Vec::new(), len: 0, is_whole: true };
    let kept = to_usize(CHUNK_BYTES.saturating_mul(2));
    let stopped = chunks(source, payload, u64::MAX, CHUNK_BYTES, |bytes, consumed| {
        cancel.check()?;
        out.len = out.len.saturating_add(to_u64(bytes.len()));
        out.bytes.extend_from_slice(bytes);
        if out.bytes.len() > kept.saturating_mul(4) {
            out.bytes.drain(..out.bytes.len().saturating_sub(kept));
        }
        out.is_whole = out.len <= max_len && Limits::check_inflate_ratio(ratio, consumed, out.len).is_ok();
        if out.is_whole { Ok(()) } else { Err(Error::new(Code::Limit, "enough")) }
    });
    match stopped {
        Err(error) if error.code() == Code::Cancelled || error.code().is_read_failure() => Err(error),
        _ => Ok(out),
    }
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
    chunks(source, payload, size, input_max, |bytes, _| sink(bytes))
}

/// Fills `input` with the bytes at `at`: by several requests at once if it is long, as the source likes.
fn read_input(source: &Source, at: u64, input: &mut [u8]) -> Result<()> {
    let requests = to_u64(source.access().in_flight.unwrap_or(1).max(1));
    let len = to_u64(input.len()).div_ceil(requests).max(REQUEST_MIN_BYTES);
    if to_u64(input.len()) <= len {
        return source.read_at(at, input);
    }
    let mut offset = at;
    let mut ranges = Vec::new();
    for out in input.chunks_mut(to_usize(len)) {
        let range = RangeRead { offset, out };
        offset = offset.saturating_add(to_u64(range.out.len()));
        ranges.push(range);
    }
    source.read_ranges(&mut ranges)
}

/// As [`stream`], with up to `input_max` bytes of input at a time; `sink` also gets the number of compressed bytes that were consumed
/// so far.
fn chunks(
    source: &Source,
    payload: Region,
    size: u64,
    input_max: u64,
    mut sink: impl FnMut(&[u8], u64) -> Result<()>,
) -> Result<()> {
    let mut state = InflateState::new_boxed(DataFormat::Raw);
    let mut output = vec![0; to_usize(CHUNK_BYTES)];
    let (mut input, mut used, mut inflated) = (Vec::new(), 0_usize, 0_u64);
    let mut at = payload.start();
    loop {
        if used == input.len() {
            let len = payload.end().saturating_sub(at).min(input_max);
            input.resize(to_usize(len), 0);
            read_input(source, at, &mut input)?;
            used = 0;
        }
        let step = inflate(&mut state, input.get(used..).unwrap_or_default(), &mut output, MZFlush::None);
        used = used.saturating_add(step.bytes_consumed);
        at = at.saturating_add(to_u64(step.bytes_consumed));
        inflated = inflated.saturating_add(to_u64(step.bytes_written));
        if inflated > size {
            return Err(structure(format!(
                "the deflate stream inflates to more than the {size} byte(s) stated"
            )));
        }
        let consumed = at.saturating_sub(payload.start());
        sink(output.get(..step.bytes_written).unwrap_or_default(), consumed)?;
        match step.status {
            Ok(MZStatus::StreamEnd) => break,
            Ok(_) if step.bytes_consumed > 0 || step.bytes_written > 0 => {}
            Ok(_) | Err(MZError::Buf) => return Err(structure("the deflate stream has no end")),
            Err(_) => return Err(structure("the bytes are not a deflate stream")),
        }
    }
    match payload.end().saturating_sub(at) {
        0 if inflated == size => Ok(()),
        0 => Err(structure(format!(
            "the deflate stream inflates to {inflated} byte(s), not to the {size} stated"
        ))),
        rest => Err(structure(format!("{rest} byte(s) after the end of the deflate stream"))),
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
