//! Decodes the columns of a row, a tile at a time: codes are unpacked or looked up, and their numbers rescaled and rounded once.

use std::ops::Range;

use super::packed::{Decoding, Last, Loaded, Packing, internal};
use crate::dtype::DType;
use crate::error::Result;
use crate::kernel::codes::{CODES_OF_4_BITS, Groups, Pairs, Unpacker};
use crate::kernel::scaling::{rescale, rescale_all, shift};
use crate::kernel::{Cast, Overflow, convert};
use crate::num::to_usize;

/// Elements of a tile: their numbers in f32 fit a core's nearest cache.
const TILE_ELEMENTS: u64 = 1 << 11;
/// Columns of the smallest groups whose codes are looked up among all numbers of the group.
const MIN_LOOKED_UP: usize = CODES_OF_4_BITS;

/// What the rows of a range are decoded with.
pub(super) struct Tiles<'d> {
    decoding: &'d Decoding,
    codes: Loaded,
    unpacker: Unpacker<'d>,
    /// The numbers of all codes of 4 bits.
    sixteen: [f32; CODES_OF_4_BITS],
    /// The number of the scale of each column, where that is not its group.
    column_groups: Option<Vec<u64>>,
    /// The first column, and the first group whose scales are known.
    first_column: u64,
    first_group: u64,
    /// Whether looked up numbers are written with non-temporal stores.
    non_temporal: bool,
    cast: Cast,
    widen: Cast,
    numbers: Vec<f32>,
    rounded: Vec<u8>,
}

/// What the groups of a row have, from that of the first column on.
#[derive(Clone, Copy)]
pub(super) struct Factors<'f> {
    pub(super) scales: &'f [f32],
    pub(super) zeros: Option<&'f [f32]>,
    pub(super) offsets: &'f [f32],
}

impl<'d> Tiles<'d> {
    pub(super) fn new(
        decoding: &'d Decoding,
        codes: Loaded,
        column_groups: Option<Vec<u64>>,
        (first_column, first_group): (u64, u64),
        non_temporal: bool,
    ) -> Result<Tiles<'d>> {
        let packed = &decoding.codes.codes;
        Ok(Tiles {
            unpacker: packed.unpacker(),
            sixteen: packed.sixteen(),
            cast: Cast::new(DType::F32, decoding.dtype, Overflow::default())?,
            widen: Cast::new(decoding.dtype, DType::F32, Overflow::default())?,
            numbers: Vec::new(),
            rounded: Vec::new(),
            decoding,
            codes,
            column_groups,
            first_column,
            first_group,
            non_temporal,
        })
    }

    /// Decodes columns of a row.
    pub(super) fn decode(
        &mut self,
        row: u64,
        columns: Range<u64>,
        factors: Factors<'_>,
        out: &mut [u8],
    ) -> Result<()> {
        if self.scale_and_look_up(row, &columns, factors, out) {
            return Ok(());
        }
        let (mut at, mut rest) = (columns.start, out);
        while at < columns.end {
            let until = (at / TILE_ELEMENTS + 1).saturating_mul(TILE_ELEMENTS).min(columns.end);
            let len = to_usize((until - at) * self.decoding.dtype.itemsize());
            let (own, others) = std::mem::take(&mut rest).split_at_mut_checked(len).ok_or_else(internal)?;
            self.tile(row, at..until, factors, own)?;
            (rest, at) = (others, until);
        }
        Ok(())
    }

    /// Looks all columns up without tables, if that can be done. Returns whether it was.
    fn scale_and_look_up(
        &self,
        row: u64,
        columns: &Range<u64>,
        Factors { scales, zeros, .. }: Factors<'_>,
        out: &mut [u8],
    ) -> bool {
        let (group, skip, width) = self.group(columns);
        let groups = Groups {
            numbers: &self.sixteen,
            zeros: zeros.map(|zeros| from(zeros, group)),
            scales: from(scales, group),
            dtype: self.decoding.dtype,
            non_temporal: self.non_temporal,
        };
        let can_be = matches!(self.decoding.last, Last::Nothing) && self.column_groups.is_none();
        can_be
            && pairs(self.decoding, &self.codes, row, columns, (skip, width))
                .is_some_and(|pairs| pairs.scale_and_look_up(groups, out))
    }

    fn tile(&mut self, row: u64, columns: Range<u64>, factors: Factors<'_>, out: &mut [u8]) -> Result<()> {
        let Factors { scales, zeros, offsets } = factors;
        let (group, skip, width) = self.group(&columns);
        let pairs = match self.column_groups {
            None => pairs(self.decoding, &self.codes, row, &columns, (skip, width)),
            Some(_) => None,
        };
        let (cast, item) = (self.cast, to_usize(self.decoding.dtype.itemsize()));
        let (numbers, rounded) = (&mut self.numbers, &mut self.rounded);
        let from_group = |values| from(values, group);
        let (mut within, mut count) = (skip, width);
        if let Some(pairs) = &pairs {
            (within, count) = (0, CODES_OF_4_BITS);
            numbers.resize(pairs.groups() * count, 0.0);
            let numbers = numbers.as_chunks_mut().0;
            rescale_all(&self.sixteen, zeros.map(from_group), from_group(scales), numbers);
        } else {
            numbers.resize(to_usize(columns.end - columns.start), 0.0);
            self.decoding.codes.unpack(&self.unpacker, &self.codes, row, columns.clone(), numbers);
            if let Some(indices) = &self.column_groups {
                let index = |column: u64| to_usize(column - self.first_column);
                let indices = &indices[index(columns.start)..index(columns.end)];
                let pick = |all: &[f32]| -> Vec<f32> {
                    let one = |&at: &u64| all.get(to_usize(at)).copied().unwrap_or(f32::NAN);
                    indices.iter().map(one).collect()
                };
                rescale(numbers, zeros.map(pick).as_deref(), &pick(scales), 1, 0);
            } else {
                rescale(numbers, zeros.map(from_group), from_group(scales), width, skip);
            }
        }
        match &self.decoding.last {
            Last::Nothing => {}
            Last::Factor(factor) => numbers.iter_mut().for_each(|number| *number *= factor),
            Last::Offsets(_, rounds) => {
                if *rounds {
                    rounded.resize(numbers.len() * item, 0);
                    convert(cast, bytemuck::cast_slice(numbers), rounded)?;
                    convert(self.widen, rounded, bytemuck::cast_slice_mut(numbers))?;
                }
                shift(numbers, from_group(offsets), count, within);
            }
        }
        let Some(pairs) = pairs else { return convert(cast, bytemuck::cast_slice(numbers), out) };
        rounded.resize(numbers.len() * item, 0);
        convert(cast, bytemuck::cast_slice(numbers), rounded)?;
        pairs.look_up(rounded.as_chunks().0, out);
        Ok(())
    }

    /// The group of the first of some columns among those whose scales are known, the columns of it that are before, and the width of
    /// groups. A group that is wider than all columns is as wide as these.
    fn group(&self, columns: &Range<u64>) -> (usize, usize, usize) {
        let width = self.decoding.scales.width;
        let skip = to_usize(columns.start % width);
        let wide = to_usize(columns.end - columns.start).saturating_add(skip).min(to_usize(width));
        (to_usize(columns.start / width - self.first_group), skip, wide.max(1))
    }
}

/// Codes that can be looked up: pairs of 4 bits in groups that are even, and no shorter than all their numbers.
fn pairs<'l>(
    decoding: &Decoding,
    codes: &'l Loaded,
    row: u64,
    columns: &Range<u64>,
    (skip, width): (usize, usize),
) -> Option<Pairs<'l>> {
    let packed = &decoding.codes;
    let Packing::InRows(pitch) = packed.packing else { return None };
    let is_high_first = packed.codes.is_high_first()?;
    let len = to_usize(columns.end - columns.start);
    let is_even = [to_usize(columns.start % 2), len, skip, width].iter().all(|at| at.is_multiple_of(2));
    let bytes = packed.bytes(codes, pitch, row, columns);
    if !is_even || width < MIN_LOOKED_UP || decoding.dtype.itemsize() != 2 || bytes.len() * 2 < len {
        return None;
    }
    Some(Pairs { bytes: &bytes[..len / 2], is_high_first, skip, width })
}

/// The values from that of a group on.
fn from(values: &[f32], group: usize) -> &[f32] {
    values.get(group..).unwrap_or_default()
}
