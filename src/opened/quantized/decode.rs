//! The numbers of a quantized weight as a source of bytes: reads unpack the codes of the rows asked for, and read no more than these
//! and the scales and zero points that belong to them.

use std::ops::Range;

use super::part::Part;
use crate::bytes::{Access, ReadRanges};
use crate::dtype::DType;
use crate::error::{Code, Error, Result};
use crate::kernel::codes::{Codes, Unpacker, look_up};
use crate::kernel::scaling::{rescale, rescale_all, shift};
use crate::kernel::{Cast, Overflow, convert};
use crate::num::to_usize;

/// Elements that are decoded at a time: their codes and scales fit a core's cache.
const BLOCK_ELEMENTS: u64 = 1 << 17;
/// As many in a file whose requests are expensive.
const REMOTE_BLOCK_ELEMENTS: u64 = 32 * BLOCK_ELEMENTS;
/// Columns of the groups whose codes are looked up, instead of each being rescaled.
const MIN_LOOKED_UP: usize = 16;
/// Elements of a row that are in f32 at a time.
const TILE_ELEMENTS: u64 = 1 << 11;

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
struct Loaded {
    bytes: Vec<u8>,
    /// Where in the part they begin, or the first word of rows.
    start: u64,
    first_column: u64,
    /// Bytes from one word of rows to the next.
    pitch: u64,
}

/// Codes of two to a byte.
struct Pairs<'l> {
    bytes: &'l [u8],
    is_high_first: bool,
    groups: usize,
}

/// Scales and zero points of some rows.
struct Factors {
    scales: Vec<f32>,
    offsets: Vec<f32>,
    zeros: Option<Loaded>,
    /// The rows of scales and the columns.
    rows: Range<u64>,
    columns: Range<u64>,
}

impl Packed {
    /// Reads the codes of some columns of a row, or of all columns of several rows: from the first of `ends` in the first row to the last
    /// in the last.
    fn load(&self, rows: Range<u64>, columns: Range<u64>, ends: Range<u64>) -> Result<Loaded> {
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
    fn bytes<'l>(&self, loaded: &'l Loaded, pitch: u64, row: u64, columns: &Range<u64>) -> &'l [u8] {
        let (start, end) = self.codes.bytes(columns.start, columns.end);
        let at = (row * pitch + start).saturating_sub(loaded.start);
        let bytes = loaded.bytes.get(to_usize(at)..).unwrap_or_default();
        &bytes[..to_usize(end - start).min(bytes.len())]
    }

    /// The numbers of some columns of a row.
    fn unpack(&self, with: &Unpacker<'_>, loaded: &Loaded, row: u64, columns: Range<u64>, out: &mut [f32]) {
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
    fn parts(&self) -> Vec<&Part> {
        match self {
            Values::Plain(part) => vec![part],
            Values::Global { part, global, .. } => vec![part, global],
            Values::Nested { part, table, scales, .. } => vec![part, table, scales],
        }
    }

    fn read(&self, start: u64, count: u64) -> Result<Vec<f32>> {
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

impl Decoding {
    /// The bytes of all numbers.
    pub(super) fn nbytes(&self) -> Option<u64> {
        self.rows.checked_mul(self.columns)?.checked_mul(self.dtype.itemsize())
    }

    fn parts(&self) -> Vec<&Part> {
        let mut parts = self.scales.values.parts();
        parts.push(&self.codes.part);
        parts.extend(self.zeros.as_ref().map(|zeros| &zeros.part));
        parts.extend(&self.scales.column_groups);
        if let RowGroups::Index { part, .. } = &self.scales.rows {
            parts.push(part);
        }
        if let Last::Offsets(part, _) = &self.last {
            parts.push(part);
        }
        parts
    }

    /// Decodes `out.len()` bytes' worth of numbers of one row, or of several rows from the first column of the first to the last of the
    /// last.
    fn decode(&self, start: u64, end: u64, out: &mut [u8]) -> Result<()> {
        let (first, last) = (start / self.columns, (end - 1) / self.columns);
        let columns = match first == last {
            true => start % self.columns..(end - 1) % self.columns + 1,
            false => 0..self.columns,
        };
        let ends = start % self.columns..(end - 1) % self.columns + 1;
        let codes = self.codes.load(first..last + 1, columns.clone(), ends)?;
        let groups = match &self.scales.rows {
            RowGroups::Index { part, count } => Some(indices(part, first, last + 1 - first, *count)?),
            RowGroups::Every { .. } => None,
        };
        let column_groups = match &self.scales.column_groups {
            Some(part) => {
                Some(indices(part, columns.start, columns.end - columns.start, self.scales.columns)?)
            }
            None => None,
        };
        let grid_columns = match &column_groups {
            Some(_) => 0..self.scales.columns,
            None => columns.start / self.scales.width..columns.end.div_ceil(self.scales.width),
        };
        let grid_row = |row: u64| match (&self.scales.rows, &groups) {
            (RowGroups::Every { height, matrix, count }, _) => row / matrix * count + row % matrix / height,
            (_, Some(groups)) => groups.get(to_usize(row - first)).copied().unwrap_or_default(),
            _ => 0,
        };
        let unpack_codes = self.codes.codes.unpacker();
        let unpack_zeros = self.zeros.as_ref().map(|packed| (packed, packed.codes.unpacker()));
        let sixteen = self.codes.codes.sixteen();
        let mut factors: Option<Factors> = None;
        let item = self.dtype.itemsize();
        let cast = Cast::new(DType::F32, self.dtype, Overflow::default())?;
        let widen = Cast::new(self.dtype, DType::F32, Overflow::default())?;
        let (mut rest, mut numbers, mut rounded) = (out, Vec::new(), Vec::new());
        let (mut zeros, mut zeros_of) = (Vec::new(), None);
        for row in first..=last {
            let group = grid_row(row);
            if factors.as_ref().is_none_or(|factors| !factors.rows.contains(&group)) {
                // Rows of scales in order are read at once.
                let until = if groups.is_some() { group } else { grid_row(last) };
                factors = Some(self.factors(group..until + 1, grid_columns.clone())?);
            }
            let Some(factors) = &factors else { continue };
            let scales = factors.of(&factors.scales, group);
            if let (Some((packed, with)), Some(loaded)) = (&unpack_zeros, &factors.zeros)
                && zeros_of != Some(group)
            {
                zeros.resize(scales.len(), 0.0);
                packed.unpack(with, loaded, group, factors.columns.clone(), &mut zeros);
                zeros_of = Some(group);
            }
            let from = if row == first { start % self.columns } else { 0 };
            let to = if row == last { (end - 1) % self.columns + 1 } else { self.columns };
            let mut at = from;
            while at < to {
                let until = (at / TILE_ELEMENTS + 1).saturating_mul(TILE_ELEMENTS).min(to);
                let (first_group, skip, width) = self.group(to_usize(until - at), at, grid_columns.start);
                let pairs = column_groups.is_none().then(|| self.pairs(&codes, row, at..until, skip, width));
                let pairs = pairs.flatten();
                let zeros = self.zeros.as_ref().map(|_| &zeros[..]);
                let from = |all| from_group(all, first_group);
                let (mut within, mut count) = (skip, width);
                if let Some(pairs) = &pairs {
                    // All numbers of each group, among which codes are looked up.
                    (within, count) = (0, sixteen.len());
                    numbers.resize(pairs.groups * count, 0.0);
                    rescale_all(&sixteen, zeros.map(from), from(scales), numbers.as_chunks_mut().0);
                } else {
                    numbers.resize(to_usize(until - at), 0.0);
                    self.codes.unpack(&unpack_codes, &codes, row, at..until, &mut numbers);
                    if let Some(indices) = &column_groups {
                        let indices = &indices[to_usize(at - columns.start)..to_usize(until - columns.start)];
                        let pick = |all: &[f32]| -> Vec<f32> {
                            let one = |&at: &u64| all.get(to_usize(at)).copied().unwrap_or(f32::NAN);
                            indices.iter().map(one).collect()
                        };
                        let zeros = zeros.map(pick);
                        rescale(&mut numbers, zeros.as_deref(), &pick(scales), 1, 0);
                    } else {
                        rescale(&mut numbers, zeros.map(from), from(scales), width, skip);
                    }
                }
                match &self.last {
                    Last::Nothing => {}
                    Last::Factor(factor) => numbers.iter_mut().for_each(|number| *number *= factor),
                    Last::Offsets(_, rounds) => {
                        if *rounds {
                            rounded.resize(numbers.len() * to_usize(item), 0);
                            convert(cast, bytemuck::cast_slice(&numbers), &mut rounded)?;
                            convert(widen, &rounded, bytemuck::cast_slice_mut(&mut numbers))?;
                        }
                        shift(&mut numbers, from(factors.of(&factors.offsets, group)), count, within);
                    }
                }
                let len = to_usize((until - at) * item);
                let (own, others) =
                    std::mem::take(&mut rest).split_at_mut_checked(len).ok_or_else(internal)?;
                match pairs {
                    Some(pairs) => {
                        rounded.resize(numbers.len() * to_usize(item), 0);
                        convert(cast, bytemuck::cast_slice(&numbers), &mut rounded)?;
                        look_up(pairs.bytes, pairs.is_high_first, rounded.as_chunks().0, (skip, width), own);
                    }
                    None => convert(cast, bytemuck::cast_slice(&numbers), own)?,
                }
                rest = others;
                at = until;
            }
        }
        if rest.is_empty() { Ok(()) } else { Err(internal()) }
    }

    /// Codes of a row that can be looked up: pairs of 4 bits in groups that are even, and no shorter than a table.
    fn pairs<'l>(
        &self,
        loaded: &'l Loaded,
        row: u64,
        columns: Range<u64>,
        skip: usize,
        width: usize,
    ) -> Option<Pairs<'l>> {
        let Packing::InRows(pitch) = self.codes.packing else { return None };
        let is_high_first = self.codes.codes.is_high_first()?;
        let len = to_usize(columns.end - columns.start);
        let is_even = [to_usize(columns.start % 2), len, skip, width].iter().all(|at| at.is_multiple_of(2));
        let bytes = self.codes.bytes(loaded, pitch, row, &columns);
        if !is_even || width < MIN_LOOKED_UP || self.dtype.itemsize() != 2 || bytes.len() * 2 < len {
            return None;
        }
        Some(Pairs { bytes, is_high_first, groups: (skip + len).div_ceil(width) })
    }

    /// The group of column `at`, the columns of it that are before, and the width of groups, for `len` numbers. A group that is wider
    /// than all numbers is as wide as these.
    fn group(&self, len: usize, at: u64, first_group: u64) -> (usize, usize, usize) {
        let width = self.scales.width;
        let skip = to_usize(at % width);
        let wide = len.saturating_add(skip).min(to_usize(width));
        (to_usize(at / width - first_group), skip, wide.max(1))
    }

    fn factors(&self, rows: Range<u64>, columns: Range<u64>) -> Result<Factors> {
        let all = self.scales.columns;
        // Of several rows, those between are whole; the rows of a part begin and end with its columns.
        let (columns, start, count) = match rows.end - rows.start {
            1 => (columns.clone(), rows.start * all + columns.start, columns.end - columns.start),
            count => (0..all, rows.start * all, count * all),
        };
        let load = |zeros: &Packed| zeros.load(rows.clone(), columns.clone(), columns.clone());
        let zeros = self.zeros.as_ref().map(load).transpose()?;
        let offsets = match &self.last {
            Last::Offsets(part, _) => part.floats(start, count)?,
            _ => Vec::new(),
        };
        Ok(Factors { scales: self.scales.values.read(start, count)?, offsets, zeros, rows, columns })
    }
}

impl Factors {
    /// Those of a row of scales.
    fn of<'f>(&self, all: &'f [f32], row: u64) -> &'f [f32] {
        let width = self.columns.end - self.columns.start;
        let start = to_usize((row - self.rows.start) * width);
        all.get(start..start + to_usize(width)).unwrap_or_default()
    }
}

/// The values from one of a group on.
fn from_group(values: &[f32], group: usize) -> &[f32] {
    values.get(group..).unwrap_or_default()
}

/// Indices of groups. Fails with `TensorBounds` for one that is not below `count`.
pub(super) fn indices(part: &Part, start: u64, len: u64, count: u64) -> Result<Vec<u64>> {
    let checked = |index: i64| {
        let outside =
            || Error::new(Code::TensorBounds, format!("the index {index} is of none of {count} groups"));
        u64::try_from(index).ok().filter(|&index| index < count).ok_or_else(outside)
    };
    part.integers(start, len)?.into_iter().map(checked).collect()
}

fn internal() -> Error {
    Error::new(Code::InternalError, "the numbers of a quantized weight are not as many as asked for")
}

impl ReadRanges for Decoding {
    fn size(&self) -> u64 {
        self.nbytes().unwrap_or_default()
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        let item = self.dtype.itemsize();
        if !offset.is_multiple_of(item) || !(out.len() as u64).is_multiple_of(item) {
            return Err(internal());
        }
        let (mut at, end) = (offset / item, (offset + out.len() as u64) / item);
        let is_remote = self.codes.part.source().access().waits_for_requests();
        let block = if is_remote { REMOTE_BLOCK_ELEMENTS } else { BLOCK_ELEMENTS };
        let mut rest = out;
        while at < end {
            // Whole rows where several fit a block, so that each word of packed rows is read once.
            let until = match at / self.columns == (end - 1) / self.columns || self.columns > block {
                true => (at / block + 1).saturating_mul(block),
                false => (at + block) / self.columns * self.columns,
            };
            let row_end = (at / self.columns + 1) * self.columns;
            let until = if self.columns > block { until.min(row_end) } else { until }.min(end);
            let len = to_usize((until - at) * item);
            let (own, others) = std::mem::take(&mut rest).split_at_mut_checked(len).ok_or_else(internal)?;
            // What follows from bytes that changed is no fault of the file as it was.
            self.decode(at, until, own).map_err(|error| self.check_unchanged().err().unwrap_or(error))?;
            (rest, at) = (others, until);
        }
        Ok(())
    }

    fn access(&self) -> Access {
        let codes = self.codes.part.source().access();
        Access { gap: 0, alignment: 1, metadata_block: 0, ..codes }
    }

    fn check_unchanged(&self) -> Result<()> {
        self.parts().into_iter().try_for_each(Part::check_unchanged)
    }
}
