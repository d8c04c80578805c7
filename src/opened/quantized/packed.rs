//! A quantized weight: its packed codes, and the scales, zero points and offsets that belong to them.

use std::ops::Range;

use super::part::Part;
use crate::dtype::DType;
use crate::error::{Code, Error, Result};
use crate::kernel::codes::{Codes, Unpacker};
use crate::num::to_usize;

/// A weight as a matrix of numbers, in the order of its codes.
#[derive(Debug)]
pub(super) struct Decoding {
    pub(super) rows: u64,
    pub(super) columns: u64,
    /// The dtype that each number is rounded to.
    pub(super) dtype: DType,
    pub(super) codes: Packed,
    pub(super) scales: Scales,
    /// Zero points, a matrix as that of the scales.
    pub(super) zeros: Option<Packed>,
    /// What follows the scales.
    pub(super) last: Last,
}

/// What follows the scales.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "a weight has one, in a box of its own")]
pub(super) enum Last {
    Nothing,
    /// A factor for all numbers.
    Factor(f32),
    /// An offset for each group, a matrix as that of the scales, and whether the product is rounded before it is added.
    Offsets(Part, bool),
}

/// A matrix of packed codes.
#[derive(Debug)]
pub(super) struct Packed {
    pub(super) part: Part,
    pub(super) codes: Codes,
    pub(super) columns: u64,
    pub(super) packing: Packing,
}

/// How the codes of a matrix lie in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Packing {
    /// Each row in so many bytes.
    InRows(u64),
    /// The codes of several rows in words of so many bytes, a word for each column.
    AcrossRows(u64),
}

/// A matrix of scales.
#[derive(Debug)]
pub(super) struct Scales {
    pub(super) values: Values,
    /// Scales in a row.
    pub(super) columns: u64,
    /// Which row of scales a row of codes has.
    pub(super) rows: RowGroups,
    /// Columns of codes to a scale.
    pub(super) width: u64,
    /// The number of the scale of each column, where that is not its group.
    pub(super) column_groups: Option<Part>,
}

/// What scales are made of.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "a weight has one, in a box of its own")]
pub(super) enum Values {
    /// Numbers.
    Plain(Part),
    /// Numbers that are multiplied by, or divided by, one for each so many of them.
    Global { part: Part, global: Part, each: u64, divides: bool },
    /// Codes of a table, times a scale of their own, plus an offset.
    Nested { part: Part, table: Part, scales: Part, block: u64, offset: f32 },
}

/// Which row of scales a row of codes has.
#[derive(Debug)]
pub(super) enum RowGroups {
    /// `height` rows of each matrix of `matrix` rows, which has `count` rows of scales, share one.
    Every { height: u64, matrix: u64, count: u64 },
    /// That of the index.
    Index { part: Part, count: u64 },
}

/// Codes that were read: from a row, or word of rows, and a column on.
pub(super) struct Loaded {
    bytes: Vec<u8>,
    /// Where in the part they begin, or the first word of rows.
    start: u64,
    first_column: u64,
    /// Bytes from one word of rows to the next.
    pitch: u64,
}

impl Packed {
    /// Reads the codes of some columns of a row, or of all columns of several rows: from the first of `ends` in the first row to the last
    /// in the last.
    pub(super) fn load(&self, rows: Range<u64>, columns: Range<u64>, ends: Range<u64>) -> Result<Loaded> {
        let first_column = columns.start;
        match self.packing {
            Packing::InRows(pitch) => {
                let last = rows.end.saturating_sub(1);
                let (start, _) = self.codes.bytes(ends.start, ends.start);
                let (_, end) = self.codes.bytes(0, ends.end);
                let start = rows.start.saturating_mul(pitch).saturating_add(start);
                let end = last.saturating_mul(pitch).saturating_add(end.min(pitch));
                let bytes = self.part.bytes(start, end.saturating_sub(start))?;
                Ok(Loaded { bytes, start, first_column, pitch })
            }
            Packing::AcrossRows(unit) => {
                let (first, last) =
                    (self.codes.across(rows.start, unit), self.codes.across(rows.end - 1, unit));
                let straddles = u64::from(last.1 + self.codes.bits()) > 8 * unit;
                let words = first.0..last.0 + 1 + u64::from(straddles);
                let pitch = (columns.end - columns.start) * unit;
                let mut bytes = vec![0; to_usize(pitch * (words.end - words.start))];
                let start_of = |word: u64| (word * self.columns + columns.start) * unit;
                if columns == (0..self.columns) {
                    self.part.read(start_of(words.start), &mut bytes)?;
                } else {
                    for (word, out) in words.clone().zip(bytes.chunks_mut(to_usize(pitch).max(1))) {
                        self.part.read(start_of(word), out)?;
                    }
                }
                Ok(Loaded { bytes, start: words.start, first_column, pitch })
            }
        }
    }

    /// The bytes of the codes of some columns of a row, where rows are in bytes of their own.
    pub(super) fn bytes<'l>(
        &self,
        loaded: &'l Loaded,
        pitch: u64,
        row: u64,
        columns: &Range<u64>,
    ) -> &'l [u8] {
        let (start, end) = self.codes.bytes(columns.start, columns.end);
        let at = (row * pitch + start).saturating_sub(loaded.start);
        let bytes = loaded.bytes.get(to_usize(at)..).unwrap_or_default();
        &bytes[..to_usize(end - start).min(bytes.len())]
    }

    /// The numbers of some columns of a row.
    pub(super) fn unpack(
        &self,
        with: &Unpacker<'_>,
        loaded: &Loaded,
        row: u64,
        columns: Range<u64>,
        out: &mut [f32],
    ) {
        match self.packing {
            Packing::InRows(pitch) => {
                with.unpack(self.bytes(loaded, pitch, row, &columns), columns.start, out);
            }
            Packing::AcrossRows(unit) => {
                let (word, bit) = self.codes.across(row, unit);
                let at = |word: u64| {
                    let start =
                        (word - loaded.start) * loaded.pitch + (columns.start - loaded.first_column) * unit;
                    let end = start + (columns.end - columns.start) * unit;
                    loaded.bytes.get(to_usize(start)..to_usize(end)).unwrap_or_default()
                };
                match unit {
                    1 => with.unpack_across::<1>(at(word), at(word + 1), bit, out),
                    _ => with.unpack_across::<4>(at(word), at(word + 1), bit, out),
                }
            }
        }
    }
}

impl Values {
    pub(super) fn parts(&self) -> Vec<&Part> {
        match self {
            Values::Plain(part) => vec![part],
            Values::Global { part, global, .. } => vec![part, global],
            Values::Nested { part, table, scales, .. } => vec![part, table, scales],
        }
    }

    pub(super) fn read(&self, start: u64, count: u64) -> Result<Vec<f32>> {
        match self {
            Values::Plain(part) => part.floats(start, count),
            Values::Global { part, global, each, divides } => {
                let mut scales = part.floats(start, count)?;
                let first = start / each;
                let globals = global.floats(first, (start + count).div_ceil(*each).saturating_sub(first))?;
                for (at, scale) in (start..).zip(&mut scales) {
                    let global = globals.get(to_usize(at / each - first)).copied().unwrap_or(f32::NAN);
                    *scale = if *divides { *scale / global } else { *scale * global };
                }
                Ok(scales)
            }
            Values::Nested { part, table, scales, block, offset } => {
                let codes = part.bytes(start, count)?;
                let table = table.floats(0, table.shape.iter().product())?;
                let first = start / block;
                let own = scales.floats(first, (start + count).div_ceil(*block).saturating_sub(first))?;
                let value = |(at, code): (u64, u8)| {
                    let number = table.get(usize::from(code)).copied().unwrap_or(f32::NAN);
                    let scale = own.get(to_usize(at / block - first)).copied().unwrap_or(f32::NAN);
                    number * scale + offset
                };
                Ok((start..).zip(codes).map(value).collect())
            }
        }
    }
}

pub(super) fn internal() -> Error {
    Error::new(Code::InternalError, "the numbers of a quantized weight are not as many as asked for")
}
