//! Reads a safetensors header: the dtype, shape and byte range of each tensor.
//!
//! Refused: a header that does not start with `{` or is padded with anything but spaces, duplicate names (unless `compat` asks for
//! the reference reader's "last one wins"), offsets that do not cover the data exactly once, shapes that do not match their byte
//! ranges, dtypes that bytes cannot address. Follows the format's README and the reference reader.

mod parse;
mod sharding;
mod write;

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use crate::bytes::{Region, Source};
use crate::dtype::DType;
use crate::error::{Code, Error, Result, bail, error};
use crate::layout::{Dims, numel};
use crate::limits::Limits;
use crate::num::to_u64;

use parse::{Element, Parsed, RawInfo};
pub use sharding::{is_sharding_key, saved_offsets};
pub use write::{Declaration, FilePlan};

/// The format's own upper bound on the header's length.
const HEADER_MAX_BYTES: u64 = 100_000_000;
/// Bytes of the length that precedes the header.
const LENGTH_LEN: u64 = 8;

/// A validated safetensors header.
#[derive(Clone, Debug)]
pub struct Header {
    /// The `__metadata__` strings, in the file's order; `None` where the header has none.
    pub metadata: Option<Vec<(String, String)>>,
    /// The tensors, in the order of their bytes, then of their names.
    pub tensors: Vec<TensorInfo>,
    /// The data section within the source.
    pub data: Region,
    /// Deviations that are harmless: unknown fields, a null `__metadata__`.
    pub notes: Vec<String>,
}

/// One tensor of the header; its byte range is inside the source and overlaps no other tensor's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// The name: any string.
    pub name: String,
    /// The element type.
    pub dtype: DType,
    /// The shape in elements of `dtype` (F4 counts pairs in its last dimension).
    pub shape: Dims,
    /// The byte range, within the source.
    pub region: Region,
}

impl Header {
    /// Reads and checks the header. With `compat`, the last of duplicate tensors or metadata keys is used, as in the reference reader;
    /// without, a duplicate is an error.
    pub fn read(source: &Source, limits: &Limits, compat: bool) -> Result<Header> {
        Header::read_inner(source, limits, compat).map_err(|error| source.locate_error(error))
    }

    fn read_inner(source: &Source, limits: &Limits, compat: bool) -> Result<Header> {
        let (bytes, data) = read_bytes(source, limits)?;
        let text = check_text(&bytes)?;
        let parsed = parse::parse(text, LENGTH_LEN, limits, compat)?;
        let Parsed { metadata, mut infos, notes } = parsed;
        deduplicate(&mut infos, compat)?;
        let key = |info: &RawInfo| (info.begin, info.end);
        let by_range =
            |one: &RawInfo, two: &RawInfo| key(one).cmp(&key(two)).then_with(|| one.name.cmp(&two.name));
        if !infos.is_sorted_by(|one, two| by_range(one, two).is_lt()) {
            infos.sort_unstable_by(by_range);
        }
        check_cover(&infos, data)?;
        let tensors = infos.into_iter().map(|info| tensor(info, data)).collect::<Result<_>>()?;
        Ok(Header { metadata, tensors, data, notes })
    }
}

/// The header's bytes and the region of the data.
fn read_bytes(source: &Source, limits: &Limits) -> Result<(Vec<u8>, Region)> {
    let refuse = |text: String| Err(Error::new(Code::StHeader, text).at(0));
    let have = source.len();
    if have < LENGTH_LEN {
        return refuse(format!("the file has {have} byte(s), too few for the header's length"));
    }
    let mut length = [0; 8];
    source.read_at(0, &mut length)?;
    let length = u64::from_le_bytes(length);
    if length == 0 || length > HEADER_MAX_BYTES {
        return refuse(format!("a header of {length} byte(s), the format allows 1 to {HEADER_MAX_BYTES}"));
    }
    Limits::check("header_bytes", limits.header_bytes, length)?;
    let start = LENGTH_LEN.saturating_add(length);
    let Some(data) = have.checked_sub(start).and_then(|len| Region::new(start, len)) else {
        let text = format!("the header ends at byte {start}, the file has {have} byte(s)");
        return refuse(text).map_err(|error: Error| {
            error.note("The download or copy is probably incomplete: fetch the file again.")
        });
    };
    Ok((source.read_vec(LENGTH_LEN, length)?, data))
}

/// Checks that the header is UTF-8, starts with `{` and is padded with nothing but spaces.
fn check_text(bytes: &[u8]) -> Result<&str> {
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let offset = LENGTH_LEN.saturating_add(to_u64(error.valid_up_to()));
        Error::new(Code::StHeader, "the header is not UTF-8").at(offset)
    })?;
    if !text.starts_with('{') {
        let first = text.chars().next().map_or_else(|| "nothing".to_owned(), |first| format!("{first:?}"));
        return Err(error!(Code::StHeader, "the header starts with {first}, not with '{{'").at(LENGTH_LEN));
    }
    if text.trim_end_matches(' ').ends_with(['\n', '\r', '\t', '\0']) {
        bail!(Code::StHeader, "the header is padded with other bytes than spaces");
    }
    Ok(text)
}

/// Refuses duplicate names; with `compat`, keeps the last tensor of each name.
fn deduplicate(infos: &mut Vec<RawInfo>, compat: bool) -> Result<()> {
    let mut last: HashMap<&str, usize> = HashMap::with_capacity(infos.len());
    let mut dropped = Vec::new();
    for (index, info) in infos.iter().enumerate() {
        match last.entry(&info.name) {
            Entry::Vacant(slot) => {
                slot.insert(index);
            }
            Entry::Occupied(mut slot) if compat => dropped.push(slot.insert(index)),
            Entry::Occupied(_) => {
                bail!(Code::StDuplicateKey, "duplicate key in the header: tensor {:?}", info.name);
            }
        }
    }
    dropped.sort_unstable();
    let mut dropped = dropped.into_iter().peekable();
    let mut index = 0_usize;
    infos.retain(|_| {
        let drop = dropped.next_if_eq(&index).is_some();
        index = index.saturating_add(1);
        !drop
    });
    Ok(())
}

/// Checks that the tensors, sorted by offset, start at 0, leave no gap, do not overlap and end where the file ends.
fn check_cover(infos: &[RawInfo], data: Region) -> Result<()> {
    let refuse = |text: String| Err(Error::new(Code::StOffsets, text));
    let mut next = 0;
    for RawInfo { name, begin, end, .. } in infos {
        if end < begin {
            return refuse(format!("tensor {name:?} ends at {end}, before it begins at {begin}"));
        }
        if *begin != next {
            let what = if *begin < next { "overlaps the tensor" } else { "leaves a gap after the data" };
            return refuse(format!("tensor {name:?} at {begin} {what} before it, which ends at {next}"));
        }
        next = *end;
    }
    let (have, expected) = (data.end(), data.start().saturating_add(next));
    if have < expected {
        let error = error!(
            Code::StOffsets,
            "the file is truncated: it has {have} byte(s), by its header it should have {expected}"
        );
        return Err(error
            .note("The download or copy is probably incomplete: fetch the file again.")
            .at(have));
    }
    if have > expected {
        let text = format!("{} byte(s) after the last tensor", have.saturating_sub(expected));
        let error = Error::new(Code::StOffsets, text).at(expected);
        return Err(error.note("Something was appended to the file, or its header was changed."));
    }
    Ok(())
}

/// Checks that a tensor's shape and dtype take exactly the bytes of its offsets.
fn tensor(info: RawInfo, data: Region) -> Result<TensorInfo> {
    let RawInfo { name, element, mut shape, begin, end } = info;
    let dtype = match element {
        Element::Whole(dtype) => dtype,
        Element::PackedF4 => {
            halve_last_dim(&mut shape).ok_or_else(|| {
                error!(Code::StDtype, "tensor {name:?} of shape {shape:?} splits a byte between F4 elements")
            })?;
            DType::F4E2M1FnX2
        }
    };
    let nbytes = numel(&shape).and_then(|numel| numel.checked_mul(dtype.itemsize())).ok_or_else(|| {
        error!(Code::TensorShape, "the size of tensor {name:?} of shape {shape:?} does not fit 64 bits")
    })?;
    let len = end.saturating_sub(begin);
    if nbytes != len {
        bail!(
            Code::StOffsets,
            "tensor {name:?} of shape {shape:?} and dtype {dtype} takes {nbytes} byte(s), its offsets span {len}"
        );
    }
    let region = data.subregion(begin, len).ok_or_else(|| Error::new(Code::StOffsets, "outside the data"))?;
    Ok(TensorInfo { name, dtype, shape, region })
}

/// Halves the last dimension, which then counts pairs of elements; `None` where it is odd.
fn halve_last_dim(shape: &mut Dims) -> Option<()> {
    let last = shape.last_mut().filter(|last| last.is_multiple_of(2))?;
    *last /= 2;
    Some(())
}

#[cfg(test)]
#[expect(clippy::as_conversions, reason = "the builders write small numbers of their own")]
mod tests;
