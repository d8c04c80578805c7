//! Integers in bytes: of 8 bits, or of 4 bits in pairs; and the subclasses of torchao.

use super::evidence::{Evidence, Weight, block_scales, bytes, float, in_rows, leading, matrix};
use super::packed::{Decoding, Last, Packed, Packing, RowGroups, Scales, Values};
use super::part::Part;
use super::refusal::{exact, refused, unfit};
use crate::dtype::DType;
use crate::error::Result;
use crate::kernel::codes::{Codes, Number, Order};

/// The longest metadata of a tensor of torchao that are read.
const METADATA_MAX_BYTES: usize = 64 << 10;

impl Evidence<'_> {
    /// Signed integers of 4 bits, two rows to a byte (ModelOpt `W4A16_AWQ`).
    pub(super) fn pairs_of_rows(&mut self, codes: Part, scale: Part, name: &str) -> Result<Weight> {
        let [pairs, columns] = matrix(&codes)?;
        let [rows, groups] = matrix(&scale)?;
        let width = exact(Some(columns), groups).filter(|_| columns > 0 && rows == pairs.saturating_mul(2));
        let width = width.ok_or_else(|| unfit(format!("the scales are {:?}", &scale.shape[..])))?;
        let dtype = float(&scale)?;
        let number = Number::Integer { add: 0, flip: 8, offset: 8 };
        let codes = Packed {
            part: codes,
            codes: Codes::new(4, Order::Dense, number).ok_or_else(|| refused("no codes"))?,
            columns,
            packing: Packing::AcrossRows(1),
        };
        let scales = in_rows(Values::Plain(scale), rows, groups, width);
        let decoding = Decoding { rows, columns, dtype, codes, scales, zeros: None, last: Last::Nothing };
        self.weight_of("int4", name, &[rows, columns], decoding)
    }

    /// 8-bit integers with scales for all, for each row or for each group of columns (compressed-tensors `int-quantized`).
    pub(super) fn scaled_bytes(&mut self, codes: Part, scale: Part, zeros: Option<Part>) -> Result<Weight> {
        let [rows, columns] = matrix(&codes)?;
        let dtype = float(&scale)?;
        let (height, groups) = match scale.shape[..] {
            [] | [1] | [1, 1] => (rows.max(1), 1),
            [count] if count == rows => (1, 1),
            [count, groups] if count == rows => (1, groups),
            _ => return Err(unfit(format!("the scales are {:?}", &scale.shape[..]))),
        };
        let width = exact(Some(columns.max(1)), groups).filter(|_| groups > 0);
        let width = width.ok_or_else(|| unfit(format!("the scales are {:?}", &scale.shape[..])))?;
        let signed = || Number::Integer { add: 0, flip: 128, offset: 128 };
        let zeros = match zeros {
            Some(part) if part.dtype == DType::I8 && part.shape == scale.shape => {
                let packed = bytes(part, signed())?;
                Some(Packed { columns: groups, packing: Packing::InRows(groups), ..packed })
            }
            Some(part) => {
                return Err(unfit(format!("the zero points are {} {:?}", part.dtype, &part.shape[..])));
            }
            None => None,
        };
        let scales = Scales {
            values: Values::Plain(scale),
            columns: groups,
            rows: RowGroups::Every { height, matrix: rows.max(1), count: rows.max(1).div_ceil(height) },
            width,
            column_groups: None,
        };
        let shape = codes.shape.clone();
        let codes = bytes(codes, signed())?;
        let decoding = Decoding { rows, columns, dtype, codes, scales, zeros, last: Last::Nothing };
        self.weight_of("int8", "weight", &shape, decoding)
    }

    /// The tensors of a subclass of torchao, which the metadata names.
    pub(super) fn torchao(&mut self, codes: Part) -> Result<Weight> {
        let (prefix, base) = (format!("{}_", self.name.trim_end_matches("_qdata")), self.name);
        let name = base.trim_start_matches('_').trim_end_matches("_qdata").to_owned();
        let key = self.named(&name);
        let stated = self.opened.metadata.iter().find(|(found, _)| *found == key);
        let stated = stated.filter(|(_, text)| text.len() <= METADATA_MAX_BYTES);
        let stated: Option<serde_json::Value> = stated.and_then(|(_, text)| serde_json::from_str(text).ok());
        let stated = stated.ok_or_else(|| refused(format!("the metadata do not say what {key:?} is")))?;
        let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
        let data = &stated["_data"];
        let own = [&data["dtype"], &data["orig_dtype"]].into_iter().find(|dtype| dtype.is_object());
        let dtype = match own.map(|dtype| text(&dtype["_data"])).unwrap_or_default().as_str() {
            "bfloat16" => DType::BF16,
            "float16" => DType::F16,
            "float32" => DType::F32,
            other => return Err(refused(format!("the metadata say that {key:?} is {other:?}"))),
        };
        let scale = self.need(&format!("{prefix}scale"))?;
        let shape = codes.shape.clone();
        let weight = match (text(&stated["_type"]).as_str(), codes.dtype) {
            ("MXTensor" | "NVFP4Tensor", _) if data["is_swizzled_scales"] != false => {
                Err(refused("its scales are permuted for a kernel"))
            }
            ("Float8Tensor" | "MXTensor", DType::F8E4M3Fn | DType::F8E5M2) => {
                let block = data["block_size"].as_u64().map(|width| (1, width));
                let scales = block_scales(&shape, scale, block.as_slice())?;
                let number = Number::Float(codes.dtype);
                let (rows, columns) = (leading(&shape)?, shape.last().copied().unwrap_or(1));
                let codes = bytes(codes, number)?;
                let decoding =
                    Decoding { rows, columns, dtype, codes, scales, zeros: None, last: Last::Nothing };
                self.weight_of("fp8", &name, &shape, decoding)
            }
            ("NVFP4Tensor", DType::U8) if scale.dtype == DType::F8E4M3Fn => {
                self.take(&format!("{prefix}act_per_tensor_scale"))?;
                let global = self.take(&format!("{prefix}per_tensor_scale"))?.map(|global| (global, false));
                self.nvfp4(codes, scale, global, &name)
            }
            ("MXTensor", DType::U8) if text(&data["elem_dtype"]["_data"]) == "float4_e2m1fn_x2" => {
                self.mxfp4(codes, scale, &name)
            }
            ("Int8Tensor", DType::I8) => {
                let zeros = self.take(&format!("{prefix}zero_point"))?;
                let mut weight = self.scaled_bytes(codes, scale, zeros)?;
                (weight.name, weight.decoding.dtype) = (key, dtype);
                Ok(weight)
            }
            (other, _) => Err(refused(format!("the metadata say that {key:?} is a {other}"))),
        }?;
        Ok(Weight { decoding: Decoding { dtype, ..weight.decoding }, ..weight })
    }
}
