//! Reads a safetensors header: which tensor has which dtype, shape and bytes.
//!
//! Refused: a header that does not start with `{` or is padded with anything but spaces, names that stand twice (unless
//! `compat` asks for the reference reader's "last one wins"), offsets that do not cover the data exactly once, shapes that
//! do not fit their bytes, dtypes that cannot be addressed by bytes. Follows the format's README and the reference reader.

mod parse;

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use crate::bytes::{Region, Source};
use crate::dtype::DType;
use crate::error::{Code, Error, Result};
use crate::layout::{Dims, numel};
use crate::limits::Limits;

use parse::{Element, Info, Parsed};

/// The header's own upper bound, part of the format.
const MAX_HEADER: u64 = 100_000_000;
const LENGTH_LEN: u64 = 8;

/// What a safetensors file says about itself.
#[derive(Clone, Debug)]
pub struct Header {
    /// The `__metadata__` strings, in the file's order; `None` where the header has none.
    pub metadata: Option<Vec<(String, String)>>,
    /// The tensors, in the order of their bytes, then of their names.
    pub tensors: Vec<RawTensor>,
    /// The data section within the source.
    pub data: Region,
    /// Oddities that change nothing.
    pub notes: Vec<String>,
}

/// One tensor of the header; its bytes lie inside the source and belong to no other tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawTensor {
    /// The name, which may be any text.
    pub name: String,
    /// The element type.
    pub dtype: DType,
    /// The shape in elements of `dtype` (F4 counts pairs in its last dimension).
    pub shape: Dims,
    /// The bytes, within the source.
    pub region: Region,
}

impl Header {
    /// Reads and checks the header; `compat` takes the last of tensors or metadata keys with one name.
    pub fn read(source: &Source, limits: &Limits, compat: bool) -> Result<Header> {
        Header::read_unplaced(source, limits, compat).map_err(|error| source.place(error))
    }

    fn read_unplaced(source: &Source, limits: &Limits, compat: bool) -> Result<Header> {
        let (bytes, data) = read_bytes(source, limits)?;
        let text = check_text(&bytes)?;
        let parsed = parse::parse(text, LENGTH_LEN, limits, compat)?;
        let Parsed { metadata, mut infos, notes } = parsed;
        unique_names(&mut infos, compat)?;
        let key = |info: &Info| (info.begin, info.end);
        let less = |one: &Info, two: &Info| key(one).cmp(&key(two)).then_with(|| one.name.cmp(&two.name));
        if !infos.is_sorted_by(|one, two| less(one, two).is_lt()) {
            infos.sort_unstable_by(less);
        }
        check_cover(&infos, data)?;
        let tensors = infos.into_iter().map(|info| tensor(info, data)).collect::<Result<_>>()?;
        Ok(Header { metadata, tensors, data, notes })
    }
}

/// The header's bytes and where the data lies.
fn read_bytes(source: &Source, limits: &Limits) -> Result<(Vec<u8>, Region)> {
    let refuse = |text: String| Err(Error::new(Code::StHeader, text).at(0));
    let have = source.len();
    if have < LENGTH_LEN {
        return refuse(format!("the file has {have} byte(s), fewer than the header's length takes"));
    }
    let mut length = [0; 8];
    source.read_at(0, &mut length)?;
    let length = u64::from_le_bytes(length);
    if length == 0 || length > MAX_HEADER {
        return refuse(format!("a header of {length} byte(s), the format allows 1 to {MAX_HEADER}"));
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

/// UTF-8 that starts with `{` and is padded with nothing but spaces.
fn check_text(bytes: &[u8]) -> Result<&str> {
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let place = LENGTH_LEN.saturating_add(super::len64(error.valid_up_to()));
        Error::new(Code::StHeader, "the header is not UTF-8").at(place)
    })?;
    if !text.starts_with('{') {
        let first = text.chars().next().map_or_else(|| "nothing".to_owned(), |first| format!("{first:?}"));
        let text = format!("the header starts with {first}, not with '{{'");
        return Err(Error::new(Code::StHeader, text).at(LENGTH_LEN));
    }
    if text.trim_end_matches(' ').ends_with(['\n', '\r', '\t', '\0']) {
        return Err(Error::new(Code::StHeader, "the header is padded with other bytes than spaces"));
    }
    Ok(text)
}

/// Refuses a name that stands twice, or keeps its last tensor.
fn unique_names(infos: &mut Vec<Info>, compat: bool) -> Result<()> {
    let mut last: HashMap<&str, usize> = HashMap::with_capacity(infos.len());
    let mut dropped = Vec::new();
    for (index, info) in infos.iter().enumerate() {
        match last.entry(&info.name) {
            Entry::Vacant(slot) => {
                slot.insert(index);
            }
            Entry::Occupied(mut slot) if compat => dropped.push(slot.insert(index)),
            Entry::Occupied(_) => {
                let text = format!("tensor {:?} stands twice in the header", info.name);
                return Err(Error::new(Code::StDuplicateKey, text));
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

/// Sorted by offset, the tensors start at 0, leave no hole, share no byte and end where the file ends.
fn check_cover(infos: &[Info], data: Region) -> Result<()> {
    let refuse = |text: String| Err(Error::new(Code::StOffsets, text));
    let mut next = 0;
    for Info { name, begin, end, .. } in infos {
        if end < begin {
            return refuse(format!("tensor {name:?} ends at {end}, before it begins at {begin}"));
        }
        if *begin != next {
            let what =
                if *begin < next { "shares bytes with the one before" } else { "leaves a hole before it" };
            return refuse(format!("tensor {name:?} at {begin} {what}, which ends at {next}"));
        }
        next = *end;
    }
    let (have, want) = (data.end(), data.start().saturating_add(next));
    if have < want {
        let error = Error::new(
            Code::StOffsets,
            format!("the file is truncated: it has {have} byte(s), its header announces {want}"),
        );
        return Err(error
            .note("The download or copy is probably incomplete: fetch the file again.")
            .at(have));
    }
    if have > want {
        let text = format!("{} byte(s) after the last tensor", have.saturating_sub(want));
        let error = Error::new(Code::StOffsets, text).at(want);
        return Err(error.note("Something was appended to the file, or its header was changed."));
    }
    Ok(())
}

/// A tensor whose shape and dtype account for exactly its bytes.
fn tensor(info: Info, data: Region) -> Result<RawTensor> {
    let Info { name, element, mut shape, begin, end } = info;
    let dtype = match element {
        Element::Whole(dtype) => dtype,
        Element::HalfByte => {
            halve(&mut shape).ok_or_else(|| {
                let text = format!("tensor {name:?} of shape {shape:?} splits a byte between F4 elements");
                Error::new(Code::StDtype, text)
            })?;
            DType::F4E2M1FnX2
        }
    };
    let nbytes = numel(&shape).and_then(|numel| numel.checked_mul(dtype.itemsize())).ok_or_else(|| {
        let text = format!("the size of tensor {name:?} of shape {shape:?} does not fit 64 bits");
        Error::new(Code::TensorShape, text)
    })?;
    let len = end.saturating_sub(begin);
    if nbytes != len {
        let text = format!(
            "tensor {name:?} of shape {shape:?} and dtype {dtype} takes {nbytes} byte(s), its offsets span {len}"
        );
        return Err(Error::new(Code::StOffsets, text));
    }
    let region = data.part(begin, len).ok_or_else(|| Error::new(Code::StOffsets, "outside the data"))?;
    Ok(RawTensor { name, dtype, shape, region })
}

/// Counts pairs instead of elements along the last dimension.
fn halve(shape: &mut Dims) -> Option<()> {
    let last = shape.last_mut().filter(|last| last.is_multiple_of(2))?;
    *last /= 2;
    Some(())
}

#[cfg(test)]
#[expect(clippy::as_conversions, reason = "the builders write small numbers of their own")]
mod tests;
