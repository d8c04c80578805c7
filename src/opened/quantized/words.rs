//! Integers in 32-bit words: those of compressed-tensors, GPTQ, AWQ and MLX.

use super::evidence::{
    Evidence, MX_WIDTH, NV_WIDTH, Weight, e2m1, float, in_rows, leading, matrix, with_last,
};
use super::packed::{Decoding, Last, Packed, Packing, RowGroups, Scales, Values};
use super::part::Part;
use super::refusal::{exact, refused, unfit};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernel::codes::{Codes, Number, Order};
use crate::layout::Layout;

impl Evidence<'_> {
    /// Integers in 32-bit words along rows (compressed-tensors `pack-quantized`).
    pub(super) fn words_of_rows(&mut self, codes: Part) -> Result<Weight> {
        let scale = self.need("weight_scale")?;
        let stated = self.need("weight_shape")?;
        let zeros = self.take("weight_zero_point")?;
        let index = self.take("weight_g_idx")?;
        let [rows, words] = matrix(&codes)?;
        let [scale_rows, groups] = matrix(&scale)?;
        if stated.shape[..] != [2] || !matches!(stated.dtype, DType::I64 | DType::I32) {
            return Err(unfit("\"weight_shape\" is not two integers"));
        }
        let stated = stated.integers(0, 2)?;
        let columns = match stated[..] {
            [height, width] if u64::try_from(height) == Ok(rows) => u64::try_from(width).ok(),
            _ => None,
        };
        let columns = columns.filter(|&columns| columns > 0 && columns <= words.saturating_mul(32));
        let columns = columns.ok_or_else(|| {
            unfit(format!("\"weight_shape\" is {stated:?}, the codes are {:?}", &codes.shape[..]))
        })?;
        if scale_rows != rows || groups == 0 || !columns.is_multiple_of(groups) {
            return Err(unfit(format!(
                "the scales are {:?}, the weight is {:?}",
                &scale.shape[..],
                [rows, columns]
            )));
        }
        let (bits, order) = self.word_bits(columns, words)?;
        let dtype = float(&scale)?;
        // Stored are codes from 0 on.
        let offset = 1 << (bits - 1);
        let number = || Number::Integer { add: 0, flip: 0, offset };
        let packed = |part, columns, packing, order| {
            let codes =
                Codes::new(bits, order, number()).ok_or_else(|| refused("codes of no known width"))?;
            Ok::<_, Error>(Packed { part, codes, columns, packing })
        };
        let zeros = match zeros {
            None => None,
            Some(part) => {
                let [zero_words, zero_groups] = matrix(&part)?;
                let words = match order {
                    Order::Words => rows.div_ceil(32 / u64::from(bits)),
                    _ => rows.saturating_mul(u64::from(bits)).div_ceil(32),
                };
                if part.dtype != DType::I32 || zero_groups != groups || zero_words != words {
                    return Err(unfit(format!("the zero points are {:?}", &part.shape[..])));
                }
                Some(packed(part, groups, Packing::AcrossRows(4), order)?)
            }
        };
        if let Some(index) = &index
            && (index.dtype != DType::I32 || index.shape[..] != [columns])
        {
            return Err(unfit(format!("the group indices are {:?}", &index.shape[..])));
        }
        // An index of -1 is one that is not used.
        let index = match index {
            Some(index) if index.integers(0, 1)? == [-1] => None,
            index => index,
        };
        let codes = packed(codes, columns, Packing::InRows(words.saturating_mul(4)), order)?;
        let scales = Scales {
            values: Values::Plain(scale),
            columns: groups,
            rows: RowGroups::Every { height: 1, matrix: rows, count: rows },
            width: columns / groups,
            column_groups: index,
        };
        let decoding = Decoding { rows, columns, dtype, codes, scales, zeros, last: Last::Nothing };
        let scheme = ["int", "int1", "int2", "int3", "int4", "int5", "int6", "int7", "int8"][bits as usize];
        self.weight_of(scheme, "weight", &[rows, columns], decoding)
    }

    /// The bits of codes of which `columns` are in so many words, and their order. Fails where the number of words leaves it open.
    fn word_bits(&self, columns: u64, words: u64) -> Result<(u32, Order)> {
        let mut found = Vec::new();
        for bits in 1..=8 {
            if !self.config.bits.is_empty() && !self.config.bits.contains(&bits) {
                continue;
            }
            let dense = columns.saturating_mul(bits).div_ceil(32) == words;
            let (whole, is_apart) = (columns.div_ceil(32 / bits) == words, !32_u64.is_multiple_of(bits));
            if dense {
                found.push((bits as u32, Order::Dense));
            }
            // In one word, or without unused bits, both orders are the same.
            if whole && (!dense || (is_apart && words > 1)) {
                found.push((bits as u32, Order::Words));
            }
        }
        match found[..] {
            [one] => Ok(one),
            [] => Err(unfit(format!("{columns} columns in {words} words are codes of no known width"))),
            [(one, _), (other, _), ..] if one == other => Err(refused(format!(
                "{columns} columns in {words} words may be codes of {one} bits of which some lie in two words, or none",
            ))),
            _ => Err(refused(format!(
                "{columns} columns in {words} words may be codes of {} or {} bits: config.json would say it",
                found[0].0, found[1].0
            ))),
        }
    }

    /// Integers in 32-bit words along columns: GPTQ packs those of one column in a word, AWQ those of one row.
    pub(super) fn words_of_columns(&mut self, codes: Part) -> Result<Weight> {
        let scale = self.need("scales")?;
        let zeros = self.need("qzeros")?;
        let index = self.take("g_idx")?;
        let [height, width] = matrix(&codes)?;
        let [groups, columns] = matrix(&scale)?;
        let [zero_groups, zero_words] = matrix(&zeros)?;
        let dtype = float(&scale)?;
        if zeros.dtype != DType::I32 || zero_groups != groups || groups == 0 || columns == 0 {
            return Err(unfit(format!("the zero points are {:?}", &zeros.shape[..])));
        }
        let is_awq = width != columns;
        let bits = zero_words.saturating_mul(32).checked_div(columns).unwrap_or(0);
        if !matches!(bits, 2 | 3 | 4 | 8) || columns.checked_mul(bits) != zero_words.checked_mul(32) {
            return Err(unfit(format!("the zero points are {:?}", &zeros.shape[..])));
        }
        if is_awq && (width.checked_mul(8) != Some(columns) || bits != 4 || index.is_some()) {
            return Err(unfit(format!("the codes are {:?}", &codes.shape[..])));
        }
        let rows = if is_awq { Some(height) } else { exact(height.checked_mul(32), bits) };
        let rows = rows.filter(|&rows| rows > 0);
        let rows = rows.ok_or_else(|| unfit(format!("the codes are {:?}", &codes.shape[..])))?;
        self.config.check_packed(is_awq)?;
        let plain = |add| Number::Integer { add, flip: 0, offset: 0 };
        let order = if is_awq { Order::EvenFirst } else { Order::Dense };
        let made = |add| {
            Codes::new(bits as u32, order, plain(add)).ok_or_else(|| refused("codes of no known width"))
        };
        let packing = if is_awq { Packing::InRows(width.saturating_mul(4)) } else { Packing::AcrossRows(4) };
        let zero_codes = match is_awq {
            true => made(0)?,
            false => self.config.zeros(&zeros, made(0)?, &made)?,
        };
        let zero_packing = Packing::InRows(zero_words.saturating_mul(4));
        let zeros = Packed { part: zeros, codes: zero_codes, columns, packing: zero_packing };
        let row_groups = match index {
            Some(part) if part.dtype == DType::I32 && part.shape[..] == [rows] => {
                RowGroups::Index { part, count: groups }
            }
            Some(part) => return Err(unfit(format!("the group indices are {:?}", &part.shape[..]))),
            None => {
                let height = self.config.group_of(rows, groups);
                let height =
                    height.ok_or_else(|| unfit(format!("{rows} rows are not in {groups} groups")))?;
                RowGroups::Every { height, matrix: rows, count: groups }
            }
        };
        let codes = Packed { part: codes, codes: made(0)?, columns, packing };
        let scales =
            Scales { values: Values::Plain(scale), columns, rows: row_groups, width: 1, column_groups: None };
        let decoding =
            Decoding { rows, columns, dtype, codes, scales, zeros: Some(zeros), last: Last::Nothing };
        let layout = Layout::contiguous(&[rows, columns])?.transpose()?;
        let scheme = if is_awq { "awq" } else { "gptq" };
        Ok(Weight { name: self.named("weight"), scheme, layout, decoding })
    }

    /// Words of MLX: integers with a scale and an offset for each group, or E2M1 numbers with a scale.
    pub(super) fn words_of_mlx(&mut self, codes: Part) -> Result<Weight> {
        let scale = self.need("scales")?;
        let (rows, words) = (leading(&codes.shape)?, codes.shape.last().copied().unwrap_or(0));
        let groups = scale.shape.last().copied().unwrap_or(0);
        let wrong = || unfit(format!("the scales are {} {:?}", scale.dtype, &scale.shape[..]));
        if codes.shape.len() < 2
            || scale.shape.len() != codes.shape.len()
            || leading(&scale.shape)? != rows
            || words == 0
            || groups == 0
        {
            return Err(wrong());
        }
        let shape = codes.shape.clone();
        if scale.dtype == DType::U8 {
            let columns = words.saturating_mul(8);
            let width = exact(Some(columns), groups).filter(|width| [MX_WIDTH, NV_WIDTH].contains(width));
            let width = width.ok_or_else(wrong)?;
            let (scheme, scale) = match width {
                MX_WIDTH => ("mxfp4", scale),
                _ => ("nvfp4", scale.with_dtype(DType::F8E4M3Fn)),
            };
            let decoding = e2m1(codes, rows, columns, in_rows(Values::Plain(scale), rows, groups, width))?;
            return self.weight_of(scheme, self.name, &with_last(&shape, columns), decoding);
        }
        let (offsets, rounds) = match self.take("biases")? {
            Some(offsets) => (offsets, true),
            None => (self.need("qbiases")?, false),
        };
        let dtype = float(&scale)?;
        if offsets.shape != scale.shape || offsets.dtype != dtype {
            return Err(unfit(format!("the offsets are {} {:?}", offsets.dtype, &offsets.shape[..])));
        }
        let fits = |&(bits, width): &(u64, u64)| {
            (1..=8).contains(&bits)
                && groups.checked_mul(width).and_then(|columns| columns.checked_mul(bits))
                    == words.checked_mul(32)
        };
        let found: Vec<_> = self.config.groups.iter().copied().filter(fits).collect();
        let [(bits, width)] = found[..] else {
            let text = "its words may be codes of several widths: config.json beside it would say bits and group_size";
            return Err(refused(text));
        };
        let columns = groups.saturating_mul(width);
        let plain = Number::Integer { add: 0, flip: 0, offset: 0 };
        let codes = Packed {
            part: codes,
            codes: Codes::new(bits as u32, Order::Dense, plain).ok_or_else(|| refused("no codes"))?,
            columns,
            packing: Packing::InRows(words.saturating_mul(4)),
        };
        let scales = in_rows(Values::Plain(scale), rows, groups, width);
        let last = Last::Offsets(offsets, rounds);
        let decoding = Decoding { rows, columns, dtype, codes, scales, zeros: None, last };
        self.weight_of("mlx", self.name, &with_last(&shape, columns), decoding)
    }
}
