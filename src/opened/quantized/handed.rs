//! A decoding as plain data, for a decoder that has the bytes of the stored tensors elsewhere: on a GPU. It has no formula of a scheme:
//! where codes lie, the number of each code, and which scale, zero point and offset belong to it.

use super::decode::indices;
use super::packed::{Decoding, Last, Packed, Packing, RowGroups, Values};
use super::part::Part;
use crate::dtype::DType;
use crate::error::Result;
use crate::kernel::codes::{Codes, Number, Order};
use crate::opened::Opened;

/// A stored tensor: its file, and its number there.
pub(crate) type Id = (u32, u32);

/// A matrix of codes.
#[derive(Debug)]
pub(crate) struct HandedCodes {
    pub(crate) tensor: Id,
    pub(crate) columns: u64,
    /// Bytes of a row, or of a word that has codes of several rows.
    pub(crate) unit: u64,
    /// Whether words have codes of several rows.
    pub(crate) is_across: bool,
    pub(crate) bits: u32,
    /// The order of codes repeats after so many bytes.
    pub(crate) period: u64,
    /// Where each code of a period begins, in bits.
    pub(crate) places: Vec<u64>,
    /// Added to each 32-bit word first.
    pub(crate) word_add: u32,
    /// The number of each code.
    pub(crate) numbers: Vec<f32>,
}

/// A matrix of scales: numbers, or codes of one byte, with factors of their own.
#[derive(Debug)]
pub(crate) struct HandedScales {
    pub(crate) tensor: Id,
    pub(crate) columns: u64,
    /// The number of each byte, where these are codes.
    pub(crate) numbers: Option<Vec<f32>>,
    pub(crate) outer: Option<Outer>,
}

/// What scales are multiplied by, or divided by.
#[derive(Debug)]
pub(crate) struct Outer {
    pub(crate) tensor: Id,
    /// Scales that share one.
    pub(crate) each: u64,
    pub(crate) divides: bool,
    /// Added then.
    pub(crate) offset: Option<f32>,
}

/// A decoding: see the fields of [`Decoding`], and of its scales.
#[derive(Debug)]
pub(crate) struct Handed {
    pub(crate) rows: u64,
    pub(crate) columns: u64,
    pub(crate) dtype: DType,
    pub(crate) codes: HandedCodes,
    pub(crate) scales: HandedScales,
    pub(crate) zeros: Option<HandedCodes>,
    /// `height` rows of each `matrix` rows, which have `count` rows of scales, share one; `width` columns do.
    pub(crate) groups: (u64, u64, u64, u64),
    /// The row of scales of each row, and the column of each column, where these are not in order. All are in range.
    pub(crate) indices: (Option<Id>, Option<Id>),
    pub(crate) factor: Option<f32>,
    /// Offsets, and whether the product is rounded before they are added.
    pub(crate) offsets: Option<(Id, bool)>,
}

impl Opened {
    /// What a quantized weight of the logical view is decoded from; `None` for other tensors. Reads the indices of groups, and fails
    /// with `TensorBounds` where one is out of range.
    pub(crate) fn decoding(&self, id: (u32, u32)) -> Result<Option<Handed>> {
        self.placed(id).map(|placed| placed.decoding.handed()).transpose()
    }
}

impl Decoding {
    fn handed(&self) -> Result<Handed> {
        let (mut rows, mut columns) = (self.rows, self.columns);
        let (mut codes, mut scales) = (self.codes.handed(), self.scales.values.handed(self.scales.columns)?);
        let width = self.scales.width;
        let mut index = None;
        let mut groups = match &self.scales.rows {
            &RowGroups::Every { height, matrix, count } => (height, matrix, count, width),
            RowGroups::Index { part, count } => {
                let found = indices(part, 0, rows, *count)?;
                let height = rows.div_ceil((*count).max(1)).max(1);
                if found.iter().zip(0..).any(|(&group, row)| group != row / height) {
                    index = Some(part.id());
                }
                (height, rows.max(1), *count, width)
            }
        };
        let column_index = &self.scales.column_groups;
        if let Some(part) = column_index {
            indices(part, 0, columns, self.scales.columns)?;
        }
        // A long row of whole groups is a row for each: bitsandbytes has all elements in one.
        let is_row = rows == 1 && self.zeros.is_none() && column_index.is_none();
        let places = codes.places.len() as u64;
        if is_row && !codes.is_across && columns.is_multiple_of(width) && width.is_multiple_of(places) {
            (rows, columns) = (columns / width, width);
            (codes.columns, codes.unit, scales.columns) = (width, width / places * codes.period, 1);
            groups = (1, rows.max(1), rows.max(1), width);
        }
        Ok(Handed {
            rows,
            columns,
            dtype: self.dtype,
            codes,
            scales,
            zeros: self.zeros.as_ref().map(Packed::handed),
            groups,
            indices: (index, column_index.as_ref().map(Part::id)),
            factor: if let Last::Factor(factor) = self.last { Some(factor) } else { None },
            offsets: if let Last::Offsets(part, rounds) = &self.last {
                Some((part.id(), *rounds))
            } else {
                None
            },
        })
    }
}

impl Packed {
    fn handed(&self) -> HandedCodes {
        let (unit, is_across) = match self.packing {
            Packing::InRows(pitch) => (pitch, false),
            Packing::AcrossRows(unit) => (unit, true),
        };
        let (period, places) = self.codes.period(if is_across { unit } else { 1 });
        HandedCodes {
            tensor: self.part.id(),
            columns: self.columns,
            unit,
            is_across,
            bits: self.codes.bits(),
            period,
            places,
            word_add: self.codes.word_add(),
            numbers: self.codes.numbers(),
        }
    }
}

impl Values {
    fn handed(&self, columns: u64) -> Result<HandedScales> {
        let (part, numbers, outer) = match self {
            Values::Plain(part) => (part, numbers_of_bytes(part), None),
            Values::Global { part, global, each, divides } => {
                let outer = Outer { tensor: global.id(), each: *each, divides: *divides, offset: None };
                (part, numbers_of_bytes(part), Some(outer))
            }
            Values::Nested { part, table, scales, block, offset } => {
                let outer =
                    Outer { tensor: scales.id(), each: *block, divides: false, offset: Some(*offset) };
                (part, Some(table.floats(0, table.numel())?), Some(outer))
            }
        };
        Ok(HandedScales { tensor: part.id(), columns, numbers, outer })
    }
}

/// The number of each byte of floats of one byte; bytes are exponents.
fn numbers_of_bytes(part: &Part) -> Option<Vec<f32>> {
    let dtype = if part.dtype == DType::U8 { DType::F8E8M0Fnu } else { part.dtype };
    let codes = Codes::new(8, Order::Dense, Number::Float(dtype)).filter(|_| dtype.itemsize() == 1)?;
    Some(codes.numbers())
}
