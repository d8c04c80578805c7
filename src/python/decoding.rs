//! What a quantized weight is decoded from, as plain data for a decoder in Python.

use super::tensor::Tensor;
use crate::checkpoint::{HandedCodes, HandedScales};
use crate::error::Result;
use crate::tensor::Tensor as Core;

/// Tensor, columns, unit, whether across rows, bits, period, places, what is added to words, numbers.
type CodesOf = (Tensor, u64, u64, bool, u32, u64, Vec<u64>, u32, Vec<f32>);
/// Tensor, elements for each, whether it divides, offset.
type OuterOf = (Tensor, u64, bool, Option<f32>);
/// Tensor, columns, numbers, what they are multiplied by.
type ScalesOf = (Tensor, u64, Option<Vec<f32>>, Option<OuterOf>);
/// Rows, columns, dtype, codes, scales, zero points, groups, indices of rows and columns, factor, offsets.
pub(super) type Fields = (
    u64,
    u64,
    &'static str,
    CodesOf,
    ScalesOf,
    Option<CodesOf>,
    (u64, u64, u64, u64),
    (Option<Tensor>, Option<Tensor>),
    Option<f32>,
    Option<(Tensor, bool)>,
);

/// What a weight is decoded from; `None` for what is as it is stored.
pub(super) fn decoding(tensor: &Core) -> Result<Option<Fields>> {
    let Some(handed) = tensor.decoding()? else { return Ok(None) };
    let stored = |id| tensor.stored(id).map(Tensor);
    let codes = |codes: HandedCodes| {
        let HandedCodes { columns, unit, is_across, bits, period, places, word_add, numbers, .. } = codes;
        Ok((stored(codes.tensor)?, columns, unit, is_across, bits, period, places, word_add, numbers))
    };
    let HandedScales { tensor: scales, columns, numbers, outer } = handed.scales;
    let outer = outer.map(|outer| Ok((stored(outer.tensor)?, outer.each, outer.divides, outer.offset)));
    let (row_index, column_index) = handed.indices;
    Ok(Some((
        handed.rows,
        handed.columns,
        handed.dtype.name(),
        codes(handed.codes)?,
        (stored(scales)?, columns, numbers, outer.transpose()?),
        handed.zeros.map(codes).transpose()?,
        handed.groups,
        (row_index.map(stored).transpose()?, column_index.map(stored).transpose()?),
        handed.factor,
        handed.offsets.map(|(id, rounds)| Ok((stored(id)?, rounds))).transpose()?,
    )))
}
