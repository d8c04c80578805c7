//! The quantization schemes that are known: what each has beside its codes, with which dtypes and shapes, and what the codes mean.
//!
//! A scheme is known by all of its tensors: each that belongs to the codes must be one of the scheme's, and their shapes must be those
//! of one matrix. What does not fit is refused with the reason; no configuration is needed, except where the tensors leave it open.

use super::bitsandbytes;
use super::config;
use super::evidence::{
    Evidence, MX_WIDTH, NV_WIDTH, Weight, block_scales, bytes, e2m1, in_rows, is_float, leading, with_last,
};
use super::packed::{Decoding, Last, Values};
use super::part::Part;
use super::refusal::{refused, unfit};
use crate::dtype::DType;
use crate::error::Result;
use crate::kernel::codes::Number;
use crate::layout::{Dims, Layout};

/// The longest description that ComfyUI writes beside codes, in bytes.
const LAYER_MAX_BYTES: u64 = 4096;

/// The weight that the codes are. Fails with `QuantUnknown` where they are in no known scheme, and with `TensorBounds` where the
/// tensors of a scheme do not fit each other.
pub(super) fn weight(mut evidence: Evidence<'_>) -> Result<Weight> {
    let codes = Part::of(evidence.opened, evidence.codes)?;
    let layer = evidence.take("comfy_quant")?;
    let weight = match (evidence.name, codes.dtype) {
        ("qweight", DType::I32) => evidence.words_of_columns(codes),
        ("weight_packed", DType::I32) => evidence.words_of_rows(codes),
        (name, _) if name.starts_with('_') && name.ends_with("_qdata") => evidence.torchao(codes),
        (_, DType::U32) => evidence.words_of_mlx(codes),
        (_, DType::F8E4M3Fn | DType::F8E5M2) => evidence.scaled_fp8(codes),
        (_, _) if evidence.has_suffix(".absmax") => bitsandbytes::four_bits(&mut evidence, codes),
        (_, DType::I8) if evidence.others.contains_key("SCB") => {
            bitsandbytes::eight_bits(&mut evidence, codes)
        }
        (_, DType::I8 | DType::U8) => evidence.four_bit_floats_or_bytes(codes),
        _ => Err(refused("it is in no scheme that rustload knows")),
    }?;
    if let Some(layer) = layer {
        evidence.check_layer(&layer, weight.scheme)?;
    }
    evidence.config.check(evidence.module, weight.scheme)?;
    match evidence.others.first_key_value() {
        None => Ok(weight),
        Some((other, _)) => Err(refused(format!("{:?} is not part of {}", other, weight.scheme))),
    }
}

impl Evidence<'_> {
    /// Fails unless a description of ComfyUI beside the codes says what their tensors say.
    fn check_layer(&self, layer: &Part, scheme: &str) -> Result<()> {
        if layer.dtype != DType::U8 || layer.numel() > LAYER_MAX_BYTES {
            return Err(unfit(format!("\"comfy_quant\" is {} {:?}", layer.dtype, &layer.shape[..])));
        }
        let text = layer.bytes(0, layer.numel())?;
        config::check_layer(&serde_json::from_slice(&text).unwrap_or_default(), scheme)
    }

    /// fp8 with a scale for all numbers, for each row or column, or for each block.
    fn scaled_fp8(&mut self, codes: Part) -> Result<Weight> {
        let of_weight: &[&str] =
            if self.name == "weight" { &["scale", "scale_weight", "qscale_weight"] } else { &[] };
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
        let names = [format!("{name}_scale"), format!("{name}_scale_inv"), "scale".to_owned()];
        let found = names.iter().position(|name| self.others.contains_key(name.as_str())).unwrap_or(2);
        let scale = self.need(&names[found])?;
        let columns = codes.shape.last().copied().unwrap_or(0).saturating_mul(2);
        let is_exponent = matches!(scale.dtype, DType::U8 | DType::F8E8M0Fnu);
        if is_exponent && scale.shape == with_last(&codes.shape, columns / MX_WIDTH) {
            return self.mxfp4(codes, scale, name);
        }
        if found == 1 {
            return Err(refused("its inverse scale is no exponents"));
        }
        if codes.dtype == DType::U8 && scale.dtype == DType::F8E4M3Fn {
            let (global, divides) = match is_packed {
                true => (self.need("weight_global_scale")?, true),
                false => (self.need(&format!("{name}_scale_2"))?, false),
            };
            if !divides {
                self.config.check_second_scale()?;
            }
            return self.nvfp4(codes, scale, Some((global, divides)), name);
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

    /// E2M1 numbers in pairs, and an exponent for each 32.
    pub(super) fn mxfp4(&self, codes: Part, scale: Part, name: &str) -> Result<Weight> {
        self.grouped_e2m1(codes, Values::Plain(scale), MX_WIDTH, "mxfp4", name)
    }

    /// E2M1 numbers in pairs, and a scale for each 16; these are, in most files, multiplied by one for all or for each expert, or divided.
    pub(super) fn nvfp4(
        &self,
        codes: Part,
        scale: Part,
        global: Option<(Part, bool)>,
        name: &str,
    ) -> Result<Weight> {
        let Some((global, divides)) = global else {
            return self.grouped_e2m1(codes, Values::Plain(scale), NV_WIDTH, "nvfp4", name);
        };
        let (count, own) = (global.numel(), &global.shape[..]);
        let is_one = matches!(own, [] | [1]);
        let is_each =
            codes.shape.len() == 3 && matches!(own, [each] | [each, 1, 1] if *each == codes.shape[0]);
        if !(is_one || is_each) || global.dtype != DType::F32 {
            return Err(unfit(format!("the global scale is {} {own:?}", global.dtype)));
        }
        let is_divisor = |scale: &f32| scale.is_finite() && *scale != 0.0;
        if divides && !global.floats(0, count)?.iter().all(is_divisor) {
            return Err(unfit("the global scale, which divides, is zero or infinite"));
        }
        let each = if is_one { u64::MAX } else { (scale.numel() / count.max(1)).max(1) };
        let values = Values::Global { part: scale, global, each, divides };
        self.grouped_e2m1(codes, values, NV_WIDTH, "nvfp4", name)
    }

    fn grouped_e2m1(
        &self,
        codes: Part,
        values: Values,
        width: u64,
        scheme: &'static str,
        name: &str,
    ) -> Result<Weight> {
        let rows = leading(&codes.shape)?;
        let columns = codes.shape.last().copied().unwrap_or(0).saturating_mul(2);
        let (shape, groups) = (with_last(&codes.shape, columns), columns / width);
        let (Values::Plain(scale) | Values::Global { part: scale, .. } | Values::Nested { part: scale, .. }) =
            &values;
        let is_grid = columns > 0 && columns.is_multiple_of(width);
        if !is_grid || scale.shape != with_last(&shape, groups) {
            return Err(unfit(format!("the scales are {:?}", &scale.shape[..])));
        }
        let decoding = e2m1(codes, rows, columns, in_rows(values, rows, groups, width))?;
        self.weight_of(scheme, name, &shape, decoding)
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
