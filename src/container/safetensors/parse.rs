//! The header's JSON, by visitors that allocate nothing per field and know which rule a value broke.

use std::collections::HashMap;
use std::fmt;

use serde::de::{self, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

use crate::container::json::{self, MAX_DEPTH, Refusal, Skip};
use crate::container::len64;
use crate::dtype::DType;
use crate::error::{Code, Error, Result};
use crate::layout::Dims;
use crate::limits::Limits;

const METADATA: &str = "__metadata__";

/// The header as it is written, in the file's order.
#[derive(Default)]
pub(super) struct Parsed {
    pub(super) metadata: Option<Vec<(String, String)>>,
    pub(super) infos: Vec<Info>,
    pub(super) notes: Vec<String>,
}

/// One tensor as it is written; nothing is checked but the form.
pub(super) struct Info {
    pub(super) name: String,
    pub(super) element: Element,
    pub(super) shape: Dims,
    pub(super) begin: u64,
    pub(super) end: u64,
}

/// What the shape counts.
#[derive(Clone, Copy)]
pub(super) enum Element {
    /// Elements of whole bytes.
    Whole(DType),
    /// F4: two elements to a byte.
    HalfByte,
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

impl<'de> DeserializeSeed<'de> for Top<'_> {
    type Value = Parsed;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Parsed, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Top<'_> {
    type Value = Parsed;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Parsed, A::Error> {
        let Top(context) = self;
        let mut parsed = Parsed::default();
        let (mut has_metadata, mut odd) = (false, Odd::default());
        while let Some(name) = map.next_key::<String>()? {
            if name == METADATA {
                // The reference reader refuses this one too.
                if std::mem::replace(&mut has_metadata, true) {
                    return Err(context
                        .refuse(Code::StDuplicateKey, format!("{METADATA} stands twice in the header")));
                }
                parsed.metadata = map.next_value_seed(Metadata(context))?;
                if parsed.metadata.is_none() {
                    parsed.notes.push(format!("{METADATA} is null"));
                }
                continue;
            }
            if let Err(error) =
                Limits::check("tensors", context.limits.tensors, len64(parsed.infos.len()).saturating_add(1))
            {
                return Err(context.refusal.raise(error));
            }
            let hint = parsed.infos.last().map(|info| info.element);
            let info = map.next_value_seed(TensorSeed { context, name, hint, odd: &mut odd })?;
            parsed.infos.push(info);
        }
        parsed.notes.extend(odd.note());
        Ok(parsed)
    }
}

/// Unknown fields that were passed over.
#[derive(Default)]
struct Odd {
    first: Option<String>,
    count: u64,
}

impl Odd {
    fn note(self) -> Option<String> {
        let first = self.first?;
        Some(format!("{} unknown field(s) passed over, the first is {first}", self.count))
    }
}

struct Metadata<'c>(Context<'c>);

impl<'de> DeserializeSeed<'de> for Metadata<'_> {
    type Value = Option<Vec<(String, String)>>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

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
        let mut places: HashMap<String, usize> = HashMap::new();
        while let Some((key, value)) = map.next_entry::<String, String>()? {
            match places.get(&key).and_then(|&place| pairs.get_mut(place)) {
                Some(pair) if self.0.compat => pair.1 = value,
                Some(_) => {
                    let text = format!("{key:?} stands twice in {METADATA}");
                    return Err(self.0.refuse(Code::StDuplicateKey, text));
                }
                None => {
                    places.insert(key.clone(), pairs.len());
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
    /// The dtype of the tensor before, which is most often this one's too.
    hint: Option<Element>,
    odd: &'o mut Odd,
}

impl<'de> DeserializeSeed<'de> for TensorSeed<'_, '_> {
    type Value = Info;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Info, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for TensorSeed<'_, '_> {
    type Value = Info;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with dtype, shape and data_offsets")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Info, A::Error> {
        let TensorSeed { context, name, hint, odd } = self;
        let (mut element, mut shape, mut offsets) = (None, None, None);
        while let Some(field) = map.next_key_seed(FieldSeed)? {
            let twice = match field {
                Field::Dtype => element.replace(map.next_value_seed(DtypeSeed { context, hint })?).is_some(),
                Field::Shape => shape.replace(map.next_value_seed(SHAPE.seed(context))?).is_some(),
                Field::Offsets => offsets.replace(map.next_value_seed(OFFSETS.seed(context))?).is_some(),
                Field::Other(field) => {
                    odd.first.get_or_insert_with(|| format!("{field:?} of tensor {name:?}"));
                    odd.count = odd.count.saturating_add(1);
                    // The header and the tensor's own object are open.
                    map.next_value_seed(Skip { depth: MAX_DEPTH - 2 })?;
                    false
                }
            };
            if twice {
                let text = format!("a field stands twice in tensor {name:?}");
                return Err(context.refuse(Code::StDuplicateKey, text));
            }
        }
        let missing =
            |field: &str| context.refuse(Code::StHeader, format!("tensor {name:?} has no field {field:?}"));
        let element = element.ok_or_else(|| missing("dtype"))?;
        let shape = shape.ok_or_else(|| missing("shape"))?;
        match offsets.ok_or_else(|| missing("data_offsets"))?.as_slice() {
            &[begin, end] => Ok(Info { name, element, shape, begin, end }),
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

impl<'de> DeserializeSeed<'de> for FieldSeed {
    type Value = Field;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Field, D::Error> {
        deserializer.deserialize_str(self)
    }
}

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

impl<'de> DeserializeSeed<'de> for DtypeSeed<'_> {
    type Value = Element;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Element, D::Error> {
        deserializer.deserialize_str(self)
    }
}

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
            "F4" => return Ok(Element::HalfByte),
            "F6_E2M3" | "F6_E3M2" => format!("dtype {code:?} has 6-bit elements, which bytes cannot address"),
            _ => match DType::from_safetensors(code) {
                Some(dtype) => return Ok(Element::Whole(dtype)),
                None => format!("{code:?} is no safetensors dtype"),
            },
        };
        Err(self.context.refuse(Code::StDtype, text))
    }
}

/// A list of unsigned numbers and what is wrong when it holds anything else.
#[derive(Clone, Copy)]
struct Numbers {
    code: Code,
    what: &'static str,
}

const SHAPE: Numbers = Numbers { code: Code::TensorShape, what: "shape" };
const OFFSETS: Numbers = Numbers { code: Code::StOffsets, what: "data_offsets" };

impl Numbers {
    fn seed(self, context: Context<'_>) -> NumbersSeed<'_> {
        NumbersSeed { context, numbers: self }
    }
}

#[derive(Clone, Copy)]
struct NumbersSeed<'c> {
    context: Context<'c>,
    numbers: Numbers,
}

impl<'de> DeserializeSeed<'de> for NumbersSeed<'_> {
    type Value = Dims;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Dims, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for NumbersSeed<'_> {
    type Value = Dims;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} as a list of numbers", self.numbers.what)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Dims, A::Error> {
        let mut values = Dims::new();
        while let Some(value) = seq.next_element_seed(NumberSeed(self))? {
            if len64(values.len()) >= self.context.limits.rank {
                let text = format!("more than {} values in {}", values.len(), self.numbers.what);
                return Err(self.context.refuse(self.numbers.code, text));
            }
            values.push(value);
        }
        Ok(values)
    }
}

/// A number that is written as digits only: no sign, fraction or exponent.
struct NumberSeed<'c>(NumbersSeed<'c>);

impl NumberSeed<'_> {
    fn refuse<E: de::Error>(&self, found: impl fmt::Display) -> E {
        let Numbers { code, what } = self.0.numbers;
        self.0.context.refuse(code, format!("{found} in {what} is no unsigned 64-bit integer"))
    }
}

impl<'de> DeserializeSeed<'de> for NumberSeed<'_> {
    type Value = u64;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<u64, D::Error> {
        deserializer.deserialize_any(self)
    }
}

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
        Err(self.refuse(value))
    }
}
