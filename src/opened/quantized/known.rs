//! The quantization schemes that are known: what each has beside its codes, with which dtypes and shapes, and what the codes mean.
//!
//! A scheme is known by all of its tensors: each that belongs to the codes must be one of the scheme's, and their shapes must be those
//! of one matrix. What does not fit is refused with the reason; no configuration is needed, except where the tensors leave it open.

use std::collections::BTreeMap;

use super::Weight;
use super::bitsandbytes;
use super::config::Config;
use super::decode::{Decoding, Last, Packed, Packing, RowGroups, Scales, Values};
use super::part::Part;
use crate::dtype::DType;
use crate::error::{Code, Error, Result};
use crate::kernel::codes::{Codes, Number, Order};
use crate::layout::{Dims, Layout};
use crate::opened::Opened;

/// Columns to a scale in MXFP4 and MXFP8, and in NVFP4.
pub(super) const MX_WIDTH: u64 = 32;
pub(super) const NV_WIDTH: u64 = 16;
/// Rows and columns of a block that has one scale, of fp8.
const BLOCKS: [(u64, u64); 4] = [(128, 128), (1, 128), (1, MX_WIDTH), (64, 64)];

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

/// A refusal: these tensors are not what the scheme has.
pub(super) fn refused(text: impl Into<String>) -> Error {
    Error::new(Code::QuantUnknown, text)
}

/// A refusal: a tensor has not the shape that the others demand.
pub(super) fn unfit(text: impl Into<String>) -> Error {
    Error::new(Code::TensorBounds, text)
}

impl Evidence<'_> {
    /// The weight that the codes are. Fails with `QuantUnknown` where they are in no known scheme, and with `TensorBounds` where the
    /// tensors of a scheme do not fit each other.
    pub(super) fn weight(mut self) -> Result<Weight> {
        let codes = Part::of(self.opened, self.codes)?;
        let weight = match (self.name, codes.dtype) {
            ("qweight", DType::I32) => self.words_of_columns(codes),
            ("weight_packed", DType::I32) => self.words_of_rows(codes),
            (name, _) if name.starts_with('_') && name.ends_with("_qdata") => self.torchao(codes),
            (_, DType::U32) => self.words_of_mlx(codes),
            (_, DType::F8E4M3Fn | DType::F8E5M2) => self.scaled_fp8(codes),
            (_, DType::I8 | DType::U8) if self.has_suffix(".absmax") => {
                bitsandbytes::four_bits(&mut self, codes)
            }
            (_, _) if self.has_suffix(".absmax") => bitsandbytes::four_bits(&mut self, codes),
            (_, DType::I8) if self.others.contains_key("SCB") => bitsandbytes::eight_bits(&mut self, codes),
            (_, DType::I8 | DType::U8) => self.four_bit_floats_or_bytes(codes),
            _ => Err(refused("it is in no scheme that rustload knows")),
        }?;
        match self.others.first_key_value() {
            None => Ok(weight),
            Some((other, _)) => Err(refused(format!("{:?} is not part of {}", other, weight.scheme))),
        }
    }

    fn has_suffix(&self, suffix: &str) -> bool {
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

    /// fp8 with a scale for all numbers, for each row or column, or for each block.
    fn scaled_fp8(&mut self, codes: Part) -> Result<Weight> {
        let of_weight: &[&str] = if self.name == "weight" { &["scale", "qscale_weight"] } else { &[] };
        let mut names = vec![format!("{}_scale_inv", self.name), format!("{}_scale", self.name)];
        names.extend(of_weight.iter().map(ToString::to_string));
        let found = names.iter().find(|name| self.others.contains_key(name.as_str()));
        let scale = found.map(|name| self.need(name)).transpose()?;
        let scale = scale.ok_or_else(|| refused("no scale is beside it"))?;
        let shape = codes.shape.clone();
        let scales = block_scales(&shape, scale, &self.config.blocks)?;
        let number = Number::Float(codes.dtype);
        let codes = bytes(codes, number)?;
        let (rows, columns) = (leading(&shape)?, shape.last().copied().unwrap_or(1));
        let decoding =
            Decoding { rows, columns, dtype: DType::F32, codes, scales, zeros: None, last: Last::Nothing };
        self.weight_of("fp8", self.name, &shape, decoding)
    }

    /// Codes in bytes: E2M1 numbers in pairs, or 8-bit integers.
    fn four_bit_floats_or_bytes(&mut self, codes: Part) -> Result<Weight> {
        if let Some(name) = self.name.strip_suffix("_blocks") {
            return self.microscaled_blocks(codes, name);
        }
        let is_packed = self.name == "weight_packed";
        let name = if is_packed { "weight" } else { self.name };
        let scale = match self.take(&format!("{name}_scale"))? {
            Some(scale) => scale,
            None => self.need("scale")?,
        };
        let (rows, width) = (leading(&codes.shape)?, codes.shape.last().copied().unwrap_or(0));
        let columns = width.saturating_mul(2);
        // The shapes of all but the last dimension are equal.
        let grid = |width: u64| {
            (columns.is_multiple_of(width) && columns > 0).then(|| with_last(&codes.shape, columns / width))
        };
        let shape = with_last(&codes.shape, columns);
        let is_exponent = matches!(scale.dtype, DType::U8 | DType::F8E8M0Fnu);
        if is_exponent && grid(MX_WIDTH).as_ref() == Some(&scale.shape) {
            let scales = in_rows(Values::Plain(scale), rows, columns / MX_WIDTH, MX_WIDTH);
            let decoding = e2m1(codes, rows, columns, scales)?;
            return self.weight_of("mxfp4", name, &shape, decoding);
        }
        if codes.dtype == DType::U8 && scale.dtype == DType::F8E4M3Fn {
            let (global, divides) = match is_packed {
                true => (self.need("weight_global_scale")?, true),
                false => (self.need(&format!("{name}_scale_2"))?, false),
            };
            // One for all, or one for each expert.
            let count = global.numel();
            let is_one = matches!(global.shape[..], [] | [1]);
            let is_each = codes.shape.len() == 3 && global.shape[..] == codes.shape[..1];
            if !(is_one || is_each)
                || global.dtype != DType::F32
                || grid(NV_WIDTH).as_ref() != Some(&scale.shape)
            {
                return Err(unfit(format!(
                    "the scales are {:?} and {:?}",
                    &scale.shape[..],
                    &global.shape[..]
                )));
            }
            let is_divisor = |scale: &f32| scale.is_finite() && *scale != 0.0;
            if divides && !global.floats(0, count)?.iter().all(is_divisor) {
                return Err(unfit("the global scale, which divides, is zero or infinite"));
            }
            let each = match is_one {
                true => u64::MAX,
                false => (rows / count.max(1)).saturating_mul(columns / NV_WIDTH).max(1),
            };
            let values = Values::Global { part: scale, global, each, divides };
            let scales = in_rows(values, rows, columns / NV_WIDTH, NV_WIDTH);
            let decoding = e2m1(codes, rows, columns, scales)?;
            return self.weight_of("nvfp4", name, &shape, decoding);
        }
        if codes.dtype == DType::U8 && !is_packed && is_float(scale.dtype) && scale.dtype.itemsize() > 1 {
            return self.pairs_of_rows(codes, scale, name);
        }
        if codes.dtype == DType::I8
            && !is_packed
            && name == "weight"
            && is_float(scale.dtype)
            && scale.dtype.itemsize() > 1
        {
            let zeros = self.take("weight_zero_point")?;
            return self.scaled_bytes(codes, scale, zeros);
        }
        Err(refused("it is in no scheme that rustload knows"))
    }

    /// MXFP4 of experts: blocks of 16 bytes, and exponents, whose last two dimensions are transposed (gpt-oss).
    fn microscaled_blocks(&mut self, codes: Part, name: &str) -> Result<Weight> {
        let scale = self.need(&format!("{name}_scales"))?;
        let [leading @ .., height, groups, 16] = &codes.shape[..] else {
            return Err(unfit(format!("the blocks are {:?}", &codes.shape[..])));
        };
        let (leading, height, groups) = (leading.to_vec(), *height, *groups);
        if codes.dtype != DType::U8
            || scale.dtype != DType::U8
            || scale.shape[..] != codes.shape[..codes.shape.len() - 1]
        {
            return Err(unfit(format!("the exponents are {} {:?}", scale.dtype, &scale.shape[..])));
        }
        let rows = leading.iter().fold(height, |rows, &size| rows.saturating_mul(size));
        let columns = groups.saturating_mul(MX_WIDTH);
        let scales = in_rows(Values::Plain(scale), rows, groups, MX_WIDTH);
        let decoding = e2m1(codes, rows, columns, scales)?;
        let shape: Dims = leading.iter().copied().chain([height, columns]).collect();
        let layout = Layout::contiguous(&shape)?.transpose()?;
        Ok(Weight { name: self.named(name), scheme: "mxfp4", layout, decoding })
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
    let grid = match &scale.shape[..] {
        all if all.iter().all(|&size| size == 1) => vec![(u64::MAX, u64::MAX, 1)],
        [count] if outer.is_empty() && shape.len() == 2 && *count == rows => vec![(1, columns, matrices)],
        _ if !outer.is_empty() && scale.shape[..] == *outer => vec![(rows, columns, matrices)],
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

/// The quotient, if there is no rest.
pub(super) fn exact(number: Option<u64>, divisor: u64) -> Option<u64> {
    let number = number?;
    number.checked_rem(divisor).filter(|&rest| rest == 0).and_then(|_| number.checked_div(divisor))
}
