//! Codes, what belongs to them, and the parts that schemes are made of.

use std::collections::BTreeMap;

use super::config::Config;
use super::packed::{Decoding, Last, Packed, Packing, RowGroups, Scales, Values};
use super::part::Part;
use super::refusal::{refused, unfit};
use crate::dtype::DType;
use crate::error::Result;
use crate::kernel::codes::{Codes, Number, Order};
use crate::layout::{Dims, Layout};
use crate::opened::Opened;

/// Columns to a scale in MXFP4 and MXFP8, and in NVFP4.
pub(super) const MX_WIDTH: u64 = 32;
pub(super) const NV_WIDTH: u64 = 16;
/// Rows and columns of a block that has one scale, of fp8.
const BLOCKS: [(u64, u64); 4] = [(128, 128), (1, 128), (1, MX_WIDTH), (64, 64)];

/// A quantized weight.
#[derive(Debug)]
pub(super) struct Weight {
    /// Its name in the checkpoint.
    pub(super) name: String,
    /// The scheme that it is quantized in.
    pub(super) scheme: &'static str,
    /// Where its elements lie among those of the decoding.
    pub(super) layout: Layout,
    pub(super) decoding: Decoding,
}

/// Codes, and what belongs to them.
pub(super) struct Evidence<'o> {
    pub(super) opened: &'o Opened,
    pub(super) config: &'o Config,
    /// The entry of the codes.
    pub(super) codes: u32,
    /// The module of the codes, with its dot.
    pub(super) module: &'o str,
    /// The name of the codes in it.
    pub(super) name: &'o str,
    /// What belongs to them: names in the module, and entries.
    pub(super) others: BTreeMap<&'o str, u32>,
}

impl Evidence<'_> {
    pub(super) fn has_suffix(&self, suffix: &str) -> bool {
        self.others.contains_key(format!("{}{suffix}", self.name).as_str())
    }

    /// Takes what belongs to the codes by its name in the module.
    pub(super) fn take(&mut self, name: &str) -> Result<Option<Part>> {
        let Some(entry) = self.others.remove(name) else { return Ok(None) };
        let part = Part::of(self.opened, entry)?;
        match Part::of(self.opened, self.codes)?.overlaps(&part) {
            true => Err(unfit(format!("{name:?} has bytes of the codes"))),
            false => Ok(Some(part)),
        }
    }

    /// Takes what is named as the codes and a suffix.
    pub(super) fn take_suffix(&mut self, suffix: &str) -> Result<Option<Part>> {
        self.take(&format!("{}{suffix}", self.name))
    }

    /// As [`take`](Evidence::take), of what must be there.
    pub(super) fn need(&mut self, name: &str) -> Result<Part> {
        self.take(name)?.ok_or_else(|| refused(format!("no {name:?} is beside it")))
    }

    /// The name of the weight in the module.
    pub(super) fn named(&self, name: &str) -> String {
        format!("{}{name}", self.module)
    }

    /// The weight of a matrix in C order.
    pub(super) fn weight_of(
        &self,
        scheme: &'static str,
        name: &str,
        shape: &[u64],
        decoding: Decoding,
    ) -> Result<Weight> {
        Ok(Weight { name: self.named(name), scheme, layout: Layout::contiguous(shape)?, decoding })
    }
}

/// E2M1 codes in pairs.
pub(super) fn e2m1(part: Part, rows: u64, columns: u64, scales: Scales) -> Result<Decoding> {
    let codes = Codes::new(4, Order::Dense, Number::E2M1).ok_or_else(|| refused("no codes"))?;
    let codes = Packed { part, codes, columns, packing: Packing::InRows(columns / 2) };
    Ok(Decoding { rows, columns, dtype: DType::BF16, codes, scales, zeros: None, last: Last::Nothing })
}

/// Scales of which each row has its own.
pub(super) fn in_rows(values: Values, rows: u64, columns: u64, width: u64) -> Scales {
    let rows = RowGroups::Every { height: 1, matrix: rows.max(1), count: rows.max(1) };
    Scales { values, columns, rows, width, column_groups: None }
}

/// Codes of a byte each.
pub(super) fn bytes(part: Part, number: Number) -> Result<Packed> {
    let columns = part.shape.last().copied().unwrap_or(1);
    let codes = Codes::new(8, Order::Dense, number).ok_or_else(|| refused("no codes"))?;
    Ok(Packed { part, codes, columns, packing: Packing::InRows(columns) })
}

/// The scales of fp8 numbers of this shape. Fails with `TensorBounds` unless one form fits: one for all, for each matrix, row or
/// column, or for each block of one size.
pub(super) fn block_scales(shape: &[u64], scale: Part, stated: &[(u64, u64)]) -> Result<Scales> {
    let is_scale = scale.dtype == DType::U8 || is_float(scale.dtype);
    if !is_scale {
        return Err(refused(format!("the scales are {}, and no floats or exponents", scale.dtype)));
    }
    let (rows, columns) = match shape {
        [.., rows, columns] => (*rows, *columns),
        [columns] => (1, *columns),
        [] => (1, 1),
    };
    let matrices = leading(shape)?.checked_div(rows.max(1)).unwrap_or(0);
    let outer = shape.get(..shape.len().saturating_sub(2)).unwrap_or_default();
    let wrong = || {
        let text =
            format!("the scales of shape {:?} fit no blocks of a tensor of {shape:?}", &scale.shape[..]);
        Err(unfit(text))
    };
    let own = match scale.shape[..] {
        // ModelOpt writes the axes inside of blocks.
        [height, 1, width, 1] if shape.len() == 2 => Dims::from_slice(&[height, width]),
        _ => scale.shape.clone(),
    };
    let grid = match &own[..] {
        all if all.iter().all(|&size| size == 1) => vec![(u64::MAX, u64::MAX, 1)],
        [count] if outer.is_empty() && shape.len() == 2 && *count == rows => vec![(1, columns, matrices)],
        all if !outer.is_empty() && all == outer => vec![(rows, columns, matrices)],
        [own @ .., height, width] if own == outer => {
            let forms = [(rows, columns), (1, columns), (rows, 1)]
                .into_iter()
                .chain(BLOCKS)
                .chain(stated.iter().copied());
            let forms = forms.map(|(high, wide)| (high.clamp(1, rows.max(1)), wide.clamp(1, columns.max(1))));
            let fits = |&(high, wide): &(u64, u64)| {
                rows.div_ceil(high) == *height && columns.div_ceil(wide) == *width
            };
            let mut fitting: Vec<_> = forms.filter(fits).map(|(high, wide)| (high, wide, matrices)).collect();
            fitting.sort_unstable();
            fitting.dedup();
            if fitting.len() > 1 && !stated.is_empty() {
                let is_stated = |&(high, wide, _): &(u64, u64, u64)| {
                    stated.iter().any(|&(one, other)| (high, wide) == (one.min(rows), other.min(columns)))
                };
                fitting.retain(is_stated);
            }
            fitting
        }
        _ => return wrong(),
    };
    let [(height, width, matrices)] = grid[..] else { return wrong() };
    let matrix = if height == u64::MAX { leading(shape)?.max(1) } else { rows.max(1) };
    let (height, width) = (height.min(matrix).max(1), width.min(columns).max(1));
    let count = matrix.div_ceil(height);
    let per_row = columns.div_ceil(width);
    let all = count.saturating_mul(per_row).saturating_mul(matrices);
    if all > scale.numel() {
        return wrong();
    }
    let rows = RowGroups::Every { height, matrix, count };
    Ok(Scales { values: Values::Plain(scale), columns: per_row, rows, width, column_groups: None })
}

/// The shape with another last dimension.
pub(super) fn with_last(shape: &[u64], last: u64) -> Dims {
    shape.iter().copied().take(shape.len().saturating_sub(1)).chain([last]).collect()
}

/// The product of all dimensions but the last.
pub(super) fn leading(shape: &[u64]) -> Result<u64> {
    let outer = shape.split_last().map_or(&[][..], |(_, outer)| outer);
    let product = outer.iter().try_fold(1_u64, |product, &size| product.checked_mul(size));
    product.ok_or_else(|| unfit("the shape does not fit 64 bits"))
}

/// The two dimensions of a matrix.
pub(super) fn matrix(part: &Part) -> Result<[u64; 2]> {
    <[u64; 2]>::try_from(&part.shape[..])
        .map_err(|_| unfit(format!("{:?} is not the shape of a matrix", &part.shape[..])))
}

pub(super) fn is_float(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F16 | DType::BF16 | DType::F8E8M0Fnu)
}

/// The dtype of scales that numbers are rounded to.
pub(super) fn float(scale: &Part) -> Result<DType> {
    match scale.dtype {
        DType::F32 | DType::F16 | DType::BF16 => Ok(scale.dtype),
        dtype => Err(refused(format!("the scales are {dtype}"))),
    }
}
