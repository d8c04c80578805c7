//! The schemes of bitsandbytes: blocks of 4-bit codes with a table, described by JSON in a tensor, and 8-bit integers by row.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, Visitor};
use serde_json::Value;

use super::evidence::{Evidence, Weight, bytes, in_rows, matrix};
use super::packed::{Decoding, Last, Packed, Packing, Values};
use super::part::Part;
use super::refusal::{refused, unfit};
use crate::dtype::DType;
use crate::error::Result;
use crate::kernel::codes::{Codes, Number, Order, TABLE_LEN};

/// The most bytes of a description.
const STATE_MAX_BYTES: u64 = 4096;
/// What 8-bit integers are divided by, as a factor.
const EIGHT_BIT_FACTOR: f32 = 1.0 / 127.0;

/// The keys of a description.
const STATE_KEYS: [&str; 7] =
    ["quant_type", "blocksize", "dtype", "shape", "nested_blocksize", "nested_dtype", "nested_offset"];

/// The description of 4-bit codes.
struct State(BTreeMap<String, Value>);

/// Reads a description, in which each key is known and there once.
struct StateVisitor;

impl<'de> Visitor<'de> for StateVisitor {
    type Value = State;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a description")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<State, A::Error> {
        let mut found = BTreeMap::new();
        while let Some((key, value)) = map.next_entry::<String, Value>()? {
            if !STATE_KEYS.contains(&key.as_str()) || found.insert(key, value).is_some() {
                return Err(A::Error::custom("a key is unknown or there twice"));
            }
        }
        Ok(State(found))
    }
}

impl<'de> Deserialize<'de> for State {
    fn deserialize<D: Deserializer<'de>>(json: D) -> std::result::Result<State, D::Error> {
        json.deserialize_map(StateVisitor)
    }
}

impl State {
    fn of(json: &[u8]) -> Result<State> {
        let found = serde_json::from_slice(json);
        found.map_err(|error| {
            refused(format!("the quant_state is not a description of bitsandbytes: {error}"))
        })
    }

    fn text(&self, key: &str) -> &str {
        self.0.get(key).and_then(Value::as_str).unwrap_or_default()
    }

    /// The size of a block; `None` for one that bitsandbytes does not make.
    fn block(&self, key: &str) -> Option<u64> {
        let size = self.0.get(key)?.as_u64()?;
        (size.is_power_of_two() && (32..=4096).contains(&size)).then_some(size)
    }

    fn shape(&self) -> Option<Vec<u64>> {
        self.0.get("shape")?.as_array()?.iter().map(Value::as_u64).collect()
    }
}

/// 4-bit codes (nf4, fp4).
pub(super) fn four_bits(evidence: &mut Evidence<'_>, codes: Part) -> Result<Weight> {
    let absmax = evidence.take_suffix(".absmax")?.ok_or_else(|| refused("no absmax is beside it"))?;
    let table = evidence.take_suffix(".quant_map")?.ok_or_else(|| refused("no quant_map is beside it"))?;
    let nested_scales = evidence.take_suffix(".nested_absmax")?;
    let nested_table = evidence.take_suffix(".nested_quant_map")?;
    let mut scheme = "bnb-nf4";
    let mut state = evidence.take_suffix(".quant_state.bitsandbytes__nf4")?;
    if state.is_none() {
        scheme = "bnb-fp4";
        state = evidence.take_suffix(".quant_state.bitsandbytes__fp4")?;
    }
    let state = state.ok_or_else(|| refused("no quant_state is beside it"))?;
    let len = state.numel();
    if state.dtype != DType::U8 || state.shape.len() != 1 || len > STATE_MAX_BYTES {
        return Err(unfit(format!("the quant_state is {} {:?}", state.dtype, &state.shape[..])));
    }
    let state = State::of(&state.bytes(0, len)?)?;
    let dtype = match state.text("dtype") {
        "float32" => DType::F32,
        "float16" => DType::F16,
        "bfloat16" => DType::BF16,
        other => return Err(refused(format!("the quant_state has the dtype {other:?}"))),
    };
    let is_stated = scheme.strip_prefix("bnb-") == Some(state.text("quant_type"));
    let (Some(shape), Some(blocksize), true) = (state.shape(), state.block("blocksize"), is_stated) else {
        return Err(refused("the quant_state has no shape or block size, or another type than its name"));
    };
    let count = shape.iter().try_fold(1_u64, |count, &size| count.checked_mul(size));
    let stored = codes.numel().saturating_mul(codes.dtype.itemsize());
    let count = count.filter(|&count| count > 0 && count.div_ceil(2) == stored);
    let count =
        count.ok_or_else(|| unfit(format!("a weight of {shape:?} does not take {stored} byte(s)")))?;
    let blocks = count.div_ceil(blocksize);
    if table.dtype != DType::F32 || table.shape[..] != [16] || absmax.shape[..] != [blocks] {
        return Err(unfit(format!("absmax is {:?}, quant_map {:?}", &absmax.shape[..], &table.shape[..])));
    }
    let values = match (absmax.dtype, nested_scales, nested_table) {
        (DType::F32, None, None) => Values::Plain(absmax),
        (DType::U8, Some(scales), Some(nested)) => {
            let block = state.block("nested_blocksize");
            let block = block.ok_or_else(|| refused("the quant_state has no nested_blocksize"))?;
            let is_right = scales.dtype == DType::F32
                && scales.shape[..] == [blocks.div_ceil(block)]
                && nested.dtype == DType::F32
                && nested.shape[..] == [256]
                && state.text("nested_dtype") == "float32";
            let offset = state.0.get("nested_offset").and_then(Value::as_f64).filter(|_| is_right);
            let offset = offset.ok_or_else(|| unfit("the nested scales do not fit the quant_state"))?;
            Values::Nested { part: absmax, table: nested, scales, block, offset: offset as f32 }
        }
        _ => return Err(refused("the scales are not those of bitsandbytes")),
    };
    let mut numbers = Box::new([0.0; TABLE_LEN]);
    numbers[..16].copy_from_slice(&table.floats(0, 16)?);
    let codes = Packed {
        part: codes,
        codes: Codes::new(4, Order::HighFirst, Number::Table(numbers)).ok_or_else(|| refused("no codes"))?,
        columns: count,
        packing: Packing::InRows(stored),
    };
    // Blocks run over all elements in C order.
    let scales = in_rows(values, 1, blocks, blocksize);
    let decoding =
        Decoding { rows: 1, columns: count, dtype, codes, scales, zeros: None, last: Last::Nothing };
    evidence.weight_of(scheme, evidence.name, &shape, decoding)
}

/// 8-bit integers with a scale for each row.
pub(super) fn eight_bits(evidence: &mut Evidence<'_>, codes: Part) -> Result<Weight> {
    let scale = evidence.need("SCB")?;
    let format = evidence.take("weight_format")?;
    let [rows, columns] = matrix(&codes)?;
    if scale.dtype != DType::F32 || scale.shape[..] != [rows] {
        return Err(unfit(format!("the scales are {} {:?}", scale.dtype, &scale.shape[..])));
    }
    if let Some(format) = format
        && (format.dtype != DType::U8 || !format.shape.is_empty() || format.bytes(0, 1)? != [0])
    {
        return Err(refused("its integers are not in rows"));
    }
    let codes = bytes(codes, Number::Integer { add: 0, flip: 128, offset: 128 })?;
    let scales = in_rows(Values::Plain(scale), rows, 1, columns.max(1));
    let decoding = Decoding {
        rows,
        columns,
        dtype: DType::F32,
        codes,
        scales,
        zeros: None,
        last: Last::Factor(EIGHT_BIT_FACTOR),
    };
    evidence.weight_of("bnb-int8", "weight", &[rows, columns], decoding)
}
