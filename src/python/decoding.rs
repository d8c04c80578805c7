//! What a quantized weight is decoded from, as plain data for a decoder in Python.

use crate::checkpoint::{HandedCodes, HandedScales};
use crate::error::Result;
use crate::tensor::Tensor;

/// Tensor, columns, unit, whether across rows, bits, period, places, what is added to words, numbers.
type CodesOf<T> = (T, u64, u64, bool, u32, u64, Vec<u64>, u32, Vec<f32>);
/// Tensor, elements for each, whether it divides, offset.
type OuterOf<T> = (T, u64, bool, Option<f32>);
/// Tensor, columns, numbers, what they are multiplied by.
type ScalesOf<T> = (T, u64, Option<Vec<f32>>, Option<OuterOf<T>>);
/// Rows, columns, dtype, codes, scales, zero points, groups, indices of rows and columns, factor, offsets.
pub(super) type Fields<T> = (
    u64,
    u64,
    &'static str,
    CodesOf<T>,
    ScalesOf<T>,
    Option<CodesOf<T>>,
    (u64, u64, u64, u64),
    (Option<T>, Option<T>),
    Option<f32>,
    Option<(T, bool)>,
);

/// What a weight is decoded from, its stored tensors as `wrap` makes them; `None` for what is as it is stored.
pub(super) fn decoding<T>(tensor: &Tensor, wrap: impl Fn(Tensor) -> T) -> Result<Option<Fields<T>>> {
    let Some(handed) = tensor.decoding()? else { return Ok(None) };
    let stored = |id| tensor.stored(id).map(&wrap);
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
