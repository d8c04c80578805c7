//! Parses the header's JSON with serde visitors that allocate nothing per field and report which rule a value violates.

use std::collections::HashMap;
use std::fmt;

use serde::de::{self, MapAccess, SeqAccess, Visitor};

use crate::container::json::{self, MAX_DEPTH, Refusal, Skip};
use crate::dtype::DType;
use crate::error::{Code, Error, Result};
use crate::layout::Dims;
use crate::limits::Limits;
use crate::num::to_u64;

const METADATA: &str = "__metadata__";

/// The parsed header, in the file's order; offsets and shapes are not checked yet.
#[derive(Default)]
pub(super) struct Parsed {
    pub(super) metadata: Option<Vec<(String, String)>>,
    pub(super) infos: Vec<RawInfo>,
    pub(super) notes: Vec<String>,
}

/// One parsed tensor; only its syntax is checked.
pub(super) struct RawInfo {
    pub(super) name: String,
    pub(super) element: Element,
    pub(super) shape: Dims,
    pub(super) begin: u64,
    pub(super) end: u64,
}

/// The unit that the shape counts.
#[derive(Clone, Copy)]
pub(super) enum Element {
    /// Elements of whole bytes.
    Whole(DType),
    /// F4: two elements to a byte.
    PackedF4,
}

pub(super) fn parse(text: &str, base: u64, limits: &Limits, compat: bool) -> Result<Parsed> {
    let refusal = Refusal::default();
    let context = Context { refusal: &refusal, limits, compat };
    json::parse(text, base, Code::StHeader, &refusal, Top(context))
}

#[derive(Clone, Copy)]
struct Context<'c> {
    refusal: &'c Refusal,
    limits: &'c Limits,
    compat: bool,
}

impl Context<'_> {
    fn refuse<E: de::Error>(&self, code: Code, text: impl Into<String>) -> E {
        self.refusal.raise(Error::new(code, text))
    }
}

/// `{"name": info, ..., "__metadata__": {...}}`
struct Top<'c>(Context<'c>);

json::seed!(Top<'_>, deserialize_map);

impl<'de> Visitor<'de> for Top<'_> {
    type Value = Parsed;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Parsed, A::Error> {
        let Top(context) = self;
        let mut parsed = Parsed::default();
        let (mut has_metadata, mut unknown) = (false, UnknownFields::default());
        while let Some(name) = map.next_key::<String>()? {
            if name == METADATA {
                // The reference reader refuses this one too.
                if std::mem::replace(&mut has_metadata, true) {
                    return Err(context
                        .refuse(Code::StDuplicateKey, format!("duplicate key in the header: {METADATA}")));
                }
                parsed.metadata = map.next_value_seed(Metadata(context))?;
                if parsed.metadata.is_none() {
                    parsed.notes.push(format!("{METADATA} is null"));
                }
                continue;
            }
            if let Err(error) =
                Limits::check("tensors", context.limits.tensors, to_u64(parsed.infos.len()).saturating_add(1))
            {
                return Err(context.refusal.raise(error));
            }
            let hint = parsed.infos.last().map(|info| info.element);
            let info = map.next_value_seed(TensorSeed { context, name, hint, unknown: &mut unknown })?;
            parsed.infos.push(info);
        }
        parsed.notes.extend(unknown.note());
        Ok(parsed)
    }
}

/// The unknown fields that were skipped.
#[derive(Default)]
struct UnknownFields {
    first: Option<String>,
    count: u64,
}

impl UnknownFields {
    fn note(self) -> Option<String> {
        let first = self.first?;
        Some(format!("{} unknown field(s) ignored, the first is {first}", self.count))
    }
}

struct Metadata<'c>(Context<'c>);

json::seed!(Metadata<'_>, deserialize_any);

impl<'de> Visitor<'de> for Metadata<'_> {
    type Value = Option<Vec<(String, String)>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of strings")
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut pairs: Vec<(String, String)> = Vec::new();
        let mut positions: HashMap<String, usize> = HashMap::new();
        while let Some((key, value)) = map.next_entry::<String, String>()? {
            match positions.get(&key).and_then(|&position| pairs.get_mut(position)) {
                Some(pair) if self.0.compat => pair.1 = value,
                Some(_) => {
                    let text = format!("duplicate key in {METADATA}: {key:?}");
                    return Err(self.0.refuse(Code::StDuplicateKey, text));
                }
                None => {
                    positions.insert(key.clone(), pairs.len());
                    pairs.push((key, value));
                }
            }
        }
        Ok(Some(pairs))
    }
}

/// `{"dtype": ..., "shape": [...], "data_offsets": [begin, end]}`
struct TensorSeed<'c, 'o> {
    context: Context<'c>,
    name: String,
    /// The dtype of the tensor before, which is mostly also this one's.
    hint: Option<Element>,
    unknown: &'o mut UnknownFields,
}

json::seed!(TensorSeed<'_, '_>, deserialize_map);

impl<'de> Visitor<'de> for TensorSeed<'_, '_> {
    type Value = RawInfo;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with dtype, shape and data_offsets")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawInfo, A::Error> {
        let TensorSeed { context, name, hint, unknown } = self;
        let (mut element, mut shape, mut offsets) = (None, None, None);
        let numbers = |code, what| NumbersSeed { context, code, what };
        while let Some(field) = map.next_key_seed(FieldSeed)? {
            let is_duplicate = match field {
                Field::Dtype => element.replace(map.next_value_seed(DtypeSeed { context, hint })?).is_some(),
                Field::Shape => {
                    shape.replace(map.next_value_seed(numbers(Code::TensorShape, "shape"))?).is_some()
                }
                Field::Offsets => {
                    offsets.replace(map.next_value_seed(numbers(Code::StOffsets, "data_offsets"))?).is_some()
                }
                Field::Other(field) => {
                    unknown.first.get_or_insert_with(|| format!("{field:?} of tensor {name:?}"));
                    unknown.count = unknown.count.saturating_add(1);
                    // Two objects are open already: the header and the tensor's.
                    map.next_value_seed(Skip { depth: MAX_DEPTH - 2 })?;
                    false
                }
            };
            if is_duplicate {
                let text = format!("duplicate field in tensor {name:?}");
                return Err(context.refuse(Code::StDuplicateKey, text));
            }
        }
        let missing =
            |field: &str| context.refuse(Code::StHeader, format!("tensor {name:?} has no field {field:?}"));
        let element = element.ok_or_else(|| missing("dtype"))?;
        let shape = shape.ok_or_else(|| missing("shape"))?;
        match offsets.ok_or_else(|| missing("data_offsets"))?.as_slice() {
            &[begin, end] => Ok(RawInfo { name, element, shape, begin, end }),
            other => {
                let text = format!("tensor {name:?} has {} data_offsets, not 2", other.len());
                Err(context.refuse(Code::StOffsets, text))
            }
        }
    }
}

enum Field {
    Dtype,
    Shape,
    Offsets,
    Other(String),
}

struct FieldSeed;

json::seed!(FieldSeed, deserialize_str);

impl Visitor<'_> for FieldSeed {
    type Value = Field;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a field name")
    }

    fn visit_str<E>(self, name: &str) -> Result<Field, E> {
        Ok(match name {
            "dtype" => Field::Dtype,
            "shape" => Field::Shape,
            "data_offsets" => Field::Offsets,
            other => Field::Other(other.to_owned()),
        })
    }
}

struct DtypeSeed<'c> {
    context: Context<'c>,
    hint: Option<Element>,
}

json::seed!(DtypeSeed<'_>, deserialize_str);

impl Visitor<'_> for DtypeSeed<'_> {
    type Value = Element;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a dtype")
    }

    fn visit_str<E: de::Error>(self, code: &str) -> Result<Element, E> {
        if let Some(Element::Whole(dtype)) = self.hint
            && dtype.safetensors() == Some(code)
        {
            return Ok(Element::Whole(dtype));
        }
        let text = match code {
            "F4" => return Ok(Element::PackedF4),
            "F6_E2M3" | "F6_E3M2" => format!("dtype {code:?} has 6-bit elements, which bytes cannot address"),
            _ => match DType::from_safetensors(code) {
                Some(dtype) => return Ok(Element::Whole(dtype)),
                None => format!("{code:?} is not a safetensors dtype"),
            },
        };
        Err(self.context.refuse(Code::StDtype, text))
    }
}

/// A list of unsigned numbers.
#[derive(Clone, Copy)]
struct NumbersSeed<'c> {
    context: Context<'c>,
    /// The code of the error for an invalid one.
    code: Code,
    what: &'static str,
}

json::seed!(NumbersSeed<'_>, deserialize_seq);

impl<'de> Visitor<'de> for NumbersSeed<'_> {
    type Value = Dims;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} as a list of numbers", self.what)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Dims, A::Error> {
        let mut values = Dims::new();
        while let Some(value) = seq.next_element_seed(NumberSeed(self))? {
            if to_u64(values.len()) >= self.context.limits.rank {
                let text = format!("more than {} values in {}", values.len(), self.what);
                return Err(self.context.refuse(self.code, text));
            }
            values.push(value);
        }
        Ok(values)
    }
}

/// A number of digits only: no sign, fraction or exponent.
struct NumberSeed<'c>(NumbersSeed<'c>);

impl NumberSeed<'_> {
    fn refuse<E: de::Error>(&self, found: impl fmt::Display) -> E {
        let NumbersSeed { context, code, what } = self.0;
        context.refuse(code, format!("{found} in {what} is not an unsigned 64-bit integer"))
    }
}

json::seed!(NumberSeed<'_>, deserialize_any);

impl Visitor<'_> for NumberSeed<'_> {
    type Value = u64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an unsigned integer")
    }

    fn visit_u64<E>(self, value: u64) -> Result<u64, E> {
        Ok(value)
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<u64, E> {
        Err(self.refuse(value))
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<u64, E> {
        // 2.0 is shown as such, not as the integer that it is not.
        Err(self.refuse(format_args!("{value:?}")))
    }
}
