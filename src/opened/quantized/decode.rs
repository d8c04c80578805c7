//! The numbers of a quantized weight as a source of bytes: reads unpack the codes of the rows asked for, and read no more than these
//! and the scales and zero points that belong to them.

use std::ops::Range;

use super::packed::{Decoding, Last, Loaded, Packed, Packing, RowGroups, Scales, internal};
use super::part::Part;
use super::tiles::{Factors, Tiles};
use crate::bytes::{Access, ReadRanges};
use crate::error::{Code, Error, Result};
use crate::num::to_usize;

/// Elements that are decoded at a time: their codes and scales fit a core's cache.
const BLOCK_ELEMENTS: u64 = 1 << 17;
/// As many in a file whose requests are expensive.
const REMOTE_BLOCK_ELEMENTS: u64 = 32 * BLOCK_ELEMENTS;

/// Scales, zero points and offsets as they were read.
struct LoadedFactors {
    scales: Vec<f32>,
    offsets: Vec<f32>,
    zeros: Option<Loaded>,
    /// The rows of scales and the columns.
    rows: Range<u64>,
    columns: Range<u64>,
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
    fn decode(&self, start: u64, end: u64, non_temporal: bool, out: &mut [u8]) -> Result<()> {
        let (first, last) = (start / self.columns, (end - 1) / self.columns);
        let columns = match first == last {
            true => start % self.columns..(end - 1) % self.columns + 1,
            false => 0..self.columns,
        };
        let ends = start % self.columns..(end - 1) % self.columns + 1;
        let codes = self.codes.load(first..last + 1, columns.clone(), ends.clone())?;
        let (last, columns, ends) = match first < last && ends == (0..self.columns) && self.is_gapless() {
            true => (first, 0..end - start, 0..end - start),
            false => (last, columns, ends),
        };
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
        let unpack_zeros = self.zeros.as_ref().map(|packed| (packed, packed.codes.unpacker()));
        let firsts = (columns.start, grid_columns.start);
        let mut tiles = Tiles::new(self, codes, column_groups, firsts, non_temporal)?;
        let mut factors: Option<LoadedFactors> = None;
        let (mut rest, mut zeros, mut zeros_of) = (out, Vec::new(), None);
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
            let from = if row == first { ends.start } else { 0 };
            let to = if row == last { ends.end } else { columns.end };
            let len = to_usize((to - from) * self.dtype.itemsize());
            let (own, others) = std::mem::take(&mut rest).split_at_mut_checked(len).ok_or_else(internal)?;
            let offsets = factors.of(&factors.offsets, group);
            let factors = Factors { scales, zeros: self.zeros.as_ref().map(|_| &zeros[..]), offsets };
            tiles.decode(row, from..to, factors, own)?;
            rest = others;
        }
        if rest.is_empty() { Ok(()) } else { Err(internal()) }
    }

    /// Whether rows are one after another, in codes and scales, so that several are as one.
    fn is_gapless(&self) -> bool {
        let Scales { columns, width, rows, column_groups, .. } = &self.scales;
        let has_own_scales = matches!(rows, RowGroups::Every { height: 1, matrix, count } if matrix == count)
            && columns.checked_mul(*width) == Some(self.columns);
        let codes = &self.codes.codes;
        has_own_scales
            && column_groups.is_none()
            && self.zeros.is_none()
            && matches!(self.codes.packing, Packing::InRows(pitch)
                if codes.bytes(0, self.columns).1 == pitch && codes.bytes(self.columns, self.columns).0 == pitch)
    }

    fn factors(&self, rows: Range<u64>, columns: Range<u64>) -> Result<LoadedFactors> {
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
        Ok(LoadedFactors { scales: self.scales.values.read(start, count)?, offsets, zeros, rows, columns })
    }
}

impl LoadedFactors {
    /// Those of a row of scales.
    fn of<'f>(&self, all: &'f [f32], row: u64) -> &'f [f32] {
        let width = self.columns.end - self.columns.start;
        let start = to_usize((row - self.rows.start) * width);
        all.get(start..start + to_usize(width)).unwrap_or_default()
    }
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

impl Decoding {
    fn read(&self, offset: u64, non_temporal: bool, out: &mut [u8]) -> Result<()> {
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
            let decoded = self.decode(at, until, non_temporal, own);
            decoded.map_err(|error| self.check_unchanged().err().unwrap_or(error))?;
            (rest, at) = (others, until);
        }
        Ok(())
    }
}

impl ReadRanges for Decoding {
    fn size(&self) -> u64 {
        self.nbytes().unwrap_or_default()
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        self.read(offset, false, out)
    }

    fn read_at_non_temporal(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        self.read(offset, true, out)
    }

    fn access(&self) -> Access {
        let codes = self.codes.part.source().access();
        Access { gap: 0, alignment: 1, metadata_block: 0, ..codes }
    }

    fn check_unchanged(&self) -> Result<()> {
        self.parts().into_iter().try_for_each(Part::check_unchanged)
    }
}
