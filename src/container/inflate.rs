//! Inflates a range of a source in chunks of bounded size, whatever is around the stream (RFC 1951; RFC 1950 for zlib).

use std::ops::ControlFlow;

use miniz_oxide::inflate::stream::{InflateState, inflate};
use miniz_oxide::{DataFormat, MZError, MZFlush, MZStatus};

use crate::bytes::{RangeRead, Region, Source};
use crate::error::Result;
use crate::num::{to_u64, to_usize};

/// The size of the input and of the output buffer.
pub(super) const CHUNK_BYTES: u64 = 64 << 10;

/// The least bytes of one request, where several read the input at once.
const REQUEST_MIN_BYTES: u64 = 256 << 10;

/// Why an inflation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// With the stream.
    Whole,
    /// The sink wants no more.
    Stopped,
    /// With the input, which is a part of a stream.
    Truncated,
    /// At bytes that are not a stream.
    Damaged,
}

/// Passes what a stream inflates to to `sink`, in chunks, each with the number of compressed bytes that were consumed so far. Reads
/// up to `input_max` bytes at a time. Returns the offset behind the last byte that was consumed. Fails only where the source cannot
/// be read, or the sink fails.
pub(super) fn inflate_chunks(
    source: &Source,
    payload: Region,
    format: DataFormat,
    input_max: u64,
    mut sink: impl FnMut(&[u8], u64) -> Result<ControlFlow<()>>,
) -> Result<(u64, Ended)> {
    let mut state = InflateState::new_boxed(format);
    let mut output = vec![0; to_usize(CHUNK_BYTES)];
    let (mut input, mut used) = (Vec::new(), 0_usize);
    let mut at = payload.start();
    loop {
        if used == input.len() {
            let len = payload.end().saturating_sub(at).min(input_max);
            input.resize(to_usize(len), 0);
            // An empty payload may lie outside of the source, as that of a member that a damaged directory places there.
            if len > 0 {
                read_input(source, at, &mut input)?;
            }
            used = 0;
        }
        let step = inflate(&mut state, input.get(used..).unwrap_or_default(), &mut output, MZFlush::None);
        used = used.saturating_add(step.bytes_consumed);
        at = at.saturating_add(to_u64(step.bytes_consumed));
        let bytes = output.get(..step.bytes_written).unwrap_or_default();
        if sink(bytes, at.saturating_sub(payload.start()))?.is_break() {
            return Ok((at, Ended::Stopped));
        }
        match step.status {
            Ok(MZStatus::StreamEnd) => return Ok((at, Ended::Whole)),
            Ok(_) if step.bytes_consumed > 0 || step.bytes_written > 0 => {}
            Ok(_) | Err(MZError::Buf) => return Ok((at, Ended::Truncated)),
            Err(_) => return Ok((at, Ended::Damaged)),
        }
    }
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
