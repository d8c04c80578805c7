//! Parses the payload configurations of a torch.export archive: JSON that says which member of the archive each tensor is in.
//!
//! Follows `torch/_export/serde/schema.py` (`PayloadConfig`, `PayloadMeta`, `TensorMeta`, `SymInt`, `Device`) and refuses what its reader
//! takes silently: duplicate keys, of which Python takes the last, numbers that are not integers of 64 bits, sizes that are expressions,
//! and path names that are more than a file's name. Fields that the schema does not have are skipped. The numbers are not checked here.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use serde::de::{self, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use smallvec::SmallVec;

use super::json::{self, MAX_DEPTH, Refusal, Skip};
use crate::error::{Code, Error, Result};
use crate::limits::Limits;
use crate::num::to_u64;

/// One number per dimension, as the file states it.
pub type Numbers = SmallVec<[i64; 4]>;

/// A tensor or another object of a program, and the member of the archive that has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Payload {
    /// Its fully qualified name in the program.
    pub name: Arc<str>,
    /// The name of the member, in the folder of the configuration.
    pub path_name: String,
    /// Whether it is a `torch.nn.Parameter`.
    pub is_parameter: bool,
    /// Whether the member is a pickle, or an archive with one, in place of a storage's bytes.
    pub use_pickle: bool,
    /// The tensor in the storage; `None` for an object that is no tensor.
    pub tensor: Option<TensorMeta>,
}

/// A tensor, as the file describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TensorMeta {
    /// The number of the dtype in torch's schema.
    pub dtype: u64,
    /// The number of the layout in torch's schema.
    pub layout: u64,
    /// The number of elements along each dimension.
    pub sizes: Numbers,
    /// The stride of each dimension, in elements.
    pub strides: Numbers,
    /// The offset of the first element, in elements.
    pub storage_offset: i64,
    /// Its `requires_grad`.
    pub requires_grad: bool,
    /// The device that it was saved from: `cuda:0`.
    pub device: String,
}

/// A parsed configuration.
#[derive(Debug, Default)]
pub struct PayloadConfig {
    /// The payloads, in the file's order.
    pub payloads: Vec<Payload>,
    /// The number of fields that the schema does not have.
    pub unknown_fields: u64,
}

impl PayloadConfig {
    /// Parses a configuration. Fails with `ExportConfig` where it is not one, with `ExportSymbolic` for sizes that are expressions, and
    /// with `Limit`.
    pub fn parse(bytes: &[u8], limits: &Limits) -> Result<PayloadConfig> {
        let text = std::str::from_utf8(bytes).map_err(|error| {
            Error::new(Code::ExportConfig, "the text is not UTF-8").at(to_u64(error.valid_up_to()))
        })?;
        let refusal = Refusal::default();
        let mut config = PayloadConfig::default();
        let mut has_config = false;
        let fields = TopFields { limits, config: &mut config, has_config: &mut has_config };
        json::parse(text, 0, Code::ExportConfig, &refusal, Object { refusal: &refusal, fields })?;
        if !has_config {
            return Err(Error::new(Code::ExportConfig, "the object has no field \"config\""));
        }
        Ok(config)
    }
}

/// The fields of a JSON object of one kind.
trait Fields<'de> {
    /// What the object is, for errors.
    const WHAT: &'static str;

    /// Reads the value of a field. Returns the field's number, or `None`, with nothing read, where the schema has no such field.
    fn read<A: MapAccess<'de>>(
        &mut self,
        field: &str,
        map: &mut A,
        refusal: &Refusal,
    ) -> Result<Option<u8>, A::Error>;

    /// Counts a field that the schema does not have, and that was skipped.
    fn skipped(&mut self) {}
}

/// Reads an object by its fields; a field that is there twice is an error.
struct Object<'c, F> {
    refusal: &'c Refusal,
    fields: F,
}

impl<'de, F: Fields<'de>> DeserializeSeed<'de> for Object<'_, F> {
    type Value = F;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<F, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de, F: Fields<'de>> Visitor<'de> for Object<'_, F> {
    type Value = F;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} as an object", F::WHAT)
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<F, A::Error> {
        let mut seen = 0_u32;
        while let Some(field) = map.next_key::<String>()? {
            let Some(number) = self.fields.read(&field, &mut map, self.refusal)? else {
                map.next_value_seed(Skip { depth: MAX_DEPTH })?;
                self.fields.skipped();
                continue;
            };
            let bit = 1_u32.checked_shl(number.into()).unwrap_or(0);
            if seen & bit != 0 {
                let text = format!("duplicate key {field:?} in {}", F::WHAT);
                return Err(self.refusal.raise(Error::new(Code::ExportConfig, text)));
            }
            seen |= bit;
        }
        Ok(self.fields)
    }
}

/// `{"config": {...}}`
struct TopFields<'c> {
    limits: &'c Limits,
    config: &'c mut PayloadConfig,
    has_config: &'c mut bool,
}

impl<'de> Fields<'de> for TopFields<'_> {
    const WHAT: &'static str = "the configuration";

    fn read<A: MapAccess<'de>>(
        &mut self,
        field: &str,
        map: &mut A,
        refusal: &Refusal,
    ) -> Result<Option<u8>, A::Error> {
        if field != "config" {
            return Ok(None);
        }
        // A second one is refused once it was read, so it must not add to the first.
        if std::mem::replace(self.has_config, true) {
            let text = "duplicate key \"config\" in the configuration";
            return Err(refusal.raise(Error::new(Code::ExportConfig, text)));
        }
        map.next_value_seed(Payloads { refusal, limits: self.limits, config: self.config })?;
        Ok(Some(0))
    }

    fn skipped(&mut self) {
        self.config.unknown_fields = self.config.unknown_fields.saturating_add(1);
    }
}

/// `{"name": payload, ...}`
struct Payloads<'c> {
    refusal: &'c Refusal,
    limits: &'c Limits,
    config: &'c mut PayloadConfig,
}

impl<'de> DeserializeSeed<'de> for Payloads<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Payloads<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of payloads")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let refuse = |error: Error| self.refusal.raise::<A::Error>(error);
        let mut names: HashSet<Arc<str>> = HashSet::new();
        while let Some(name) = map.next_key::<String>()? {
            let count = to_u64(names.len()).saturating_add(1);
            Limits::check("tensors", self.limits.tensors, count).map_err(refuse)?;
            let name: Arc<str> = name.into();
            let fields = PayloadFields { limits: self.limits, ..PayloadFields::new(self.limits) };
            let read = map.next_value_seed(Object { refusal: self.refusal, fields })?;
            self.config.unknown_fields = self.config.unknown_fields.saturating_add(read.unknown);
            let payload = read.finish(name.clone()).map_err(|error| refuse(error.in_member(&name)))?;
            if !names.insert(name.clone()) {
                let text = format!("duplicate key {name:?} in the configuration");
                return Err(refuse(Error::new(Code::ExportConfig, text)));
            }
            self.config.payloads.push(payload);
        }
        Ok(())
    }
}

/// schema.py: `PayloadMeta`.
struct PayloadFields<'c> {
    limits: &'c Limits,
    path_name: Option<String>,
    is_parameter: Option<bool>,
    use_pickle: Option<bool>,
    /// The outer option is whether the field is there.
    tensor: Option<Option<TensorMeta>>,
    unknown: u64,
}

impl<'c> PayloadFields<'c> {
    fn new(limits: &'c Limits) -> PayloadFields<'c> {
        PayloadFields {
            limits,
            path_name: None,
            is_parameter: None,
            use_pickle: None,
            tensor: None,
            unknown: 0,
        }
    }

    fn finish(self, name: Arc<str>) -> Result<Payload> {
        let path_name = self.path_name.ok_or_else(|| missing("path_name"))?;
        let is_plain =
            !path_name.is_empty() && !path_name.starts_with('.') && !path_name.contains(['/', '\\', '\0']);
        if !is_plain {
            return Err(Error::new(Code::ExportConfig, format!("{path_name:?} is no name of a member")));
        }
        Ok(Payload {
            name,
            path_name,
            is_parameter: self.is_parameter.ok_or_else(|| missing("is_param"))?,
            use_pickle: self.use_pickle.ok_or_else(|| missing("use_pickle"))?,
            tensor: self.tensor.flatten(),
        })
    }
}

impl<'de> Fields<'de> for PayloadFields<'_> {
    const WHAT: &'static str = "a payload";

    fn read<A: MapAccess<'de>>(
        &mut self,
        field: &str,
        map: &mut A,
        refusal: &Refusal,
    ) -> Result<Option<u8>, A::Error> {
        Ok(Some(match field {
            "path_name" => {
                self.path_name = Some(map.next_value()?);
                0
            }
            "is_param" => {
                self.is_parameter = Some(map.next_value()?);
                1
            }
            "use_pickle" => {
                self.use_pickle = Some(map.next_value()?);
                2
            }
            "tensor_meta" => {
                let read = map.next_value_seed(OrNull(TensorSeed { limits: self.limits, refusal }))?;
                self.unknown = self.unknown.saturating_add(read.as_ref().map_or(0, |(_, unknown)| *unknown));
                self.tensor = Some(read.map(|(tensor, _)| tensor));
                3
            }
            _ => return Ok(None),
        }))
    }

    fn skipped(&mut self) {
        self.unknown = self.unknown.saturating_add(1);
    }
}

/// `null`, or what the seed reads.
struct OrNull<S>(S);

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for OrNull<S> {
    type Value = Option<S::Value>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_option(self)
    }
}

impl<'de, S: DeserializeSeed<'de>> Visitor<'de> for OrNull<S> {
    type Value = Option<S::Value>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value or null")
    }

    fn visit_none<E>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        self.0.deserialize(deserializer).map(Some)
    }
}

/// A `TensorMeta`, and the number of unknown fields in it.
struct TensorSeed<'c> {
    limits: &'c Limits,
    refusal: &'c Refusal,
}

impl<'de> DeserializeSeed<'de> for TensorSeed<'_> {
    type Value = (TensorMeta, u64);

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        let TensorSeed { limits, refusal } = self;
        let fields = TensorFields { limits, tensor: TensorMeta::default(), seen: 0, unknown: 0 };
        let read = Object { refusal, fields }.deserialize(deserializer)?;
        match TENSOR_FIELDS
            .iter()
            .zip(0_u32..)
            .find(|(_, at)| read.seen.checked_shr(*at).unwrap_or(0) & 1 == 0)
        {
            Some((field, _)) => Err(refusal.raise(missing(field))),
            None => Ok((read.tensor, read.unknown)),
        }
    }
}

/// schema.py: `TensorMeta`.
const TENSOR_FIELDS: [&str; 7] =
    ["dtype", "sizes", "requires_grad", "device", "strides", "storage_offset", "layout"];

struct TensorFields<'c> {
    limits: &'c Limits,
    tensor: TensorMeta,
    /// One bit for each of [`TENSOR_FIELDS`] that was read.
    seen: u32,
    unknown: u64,
}

impl<'de> Fields<'de> for TensorFields<'_> {
    const WHAT: &'static str = "a tensor";

    fn read<A: MapAccess<'de>>(
        &mut self,
        field: &str,
        map: &mut A,
        refusal: &Refusal,
    ) -> Result<Option<u8>, A::Error> {
        let Some((_, number)) = TENSOR_FIELDS.iter().zip(0_u8..).find(|(known, _)| **known == field) else {
            return Ok(None);
        };
        let (tensor, limits) = (&mut self.tensor, self.limits);
        match field {
            "dtype" => tensor.dtype = map.next_value()?,
            "layout" => tensor.layout = map.next_value()?,
            "requires_grad" => tensor.requires_grad = map.next_value()?,
            "sizes" => tensor.sizes = map.next_value_seed(NumbersSeed { limits, refusal })?,
            "strides" => tensor.strides = map.next_value_seed(NumbersSeed { limits, refusal })?,
            "storage_offset" => tensor.storage_offset = map.next_value_seed(NumberSeed { refusal })?,
            _ => {
                let fields = DeviceFields::default();
                tensor.device = map.next_value_seed(Object { refusal, fields })?.finish(refusal)?;
            }
        }
        self.seen |= 1_u32.checked_shl(number.into()).unwrap_or(0);
        Ok(Some(number))
    }

    fn skipped(&mut self) {
        self.unknown = self.unknown.saturating_add(1);
    }
}

/// schema.py: `Device`.
#[derive(Default)]
struct DeviceFields {
    kind: Option<String>,
    index: Option<u64>,
}

impl DeviceFields {
    fn finish<E: de::Error>(self, refusal: &Refusal) -> Result<String, E> {
        let kind = self.kind.ok_or_else(|| refusal.raise(missing("type")))?;
        Ok(self.index.map(|index| format!("{kind}:{index}")).unwrap_or(kind))
    }
}

impl<'de> Fields<'de> for DeviceFields {
    const WHAT: &'static str = "a device";

    fn read<A: MapAccess<'de>>(
        &mut self,
        field: &str,
        map: &mut A,
        _: &Refusal,
    ) -> Result<Option<u8>, A::Error> {
        match field {
            "type" => {
                self.kind = Some(map.next_value()?);
                Ok(Some(0))
            }
            "index" => {
                self.index = map.next_value()?;
                Ok(Some(1))
            }
            _ => Ok(None),
        }
    }
}

/// A list of numbers, at most as many as the limit `rank` allows.
struct NumbersSeed<'c> {
    limits: &'c Limits,
    refusal: &'c Refusal,
}

impl<'de> DeserializeSeed<'de> for NumbersSeed<'_> {
    type Value = Numbers;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Numbers, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for NumbersSeed<'_> {
    type Value = Numbers;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of sizes or strides")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Numbers, A::Error> {
        let mut numbers = Numbers::new();
        while let Some(number) = seq.next_element_seed(NumberSeed { refusal: self.refusal })? {
            numbers.push(number);
            Limits::check("rank", self.limits.rank, to_u64(numbers.len()))
                .map_err(|error| self.refusal.raise::<A::Error>(error))?;
        }
        Ok(numbers)
    }
}

/// schema.py: `SymInt`, a number or an expression. The latter is an error.
struct NumberSeed<'c> {
    refusal: &'c Refusal,
}

impl<'de> DeserializeSeed<'de> for NumberSeed<'_> {
    type Value = i64;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<i64, D::Error> {
        let refusal = self.refusal;
        let read = Object { refusal, fields: SymIntFields(None) }.deserialize(deserializer)?;
        read.0.ok_or_else(|| refusal.raise(missing("as_int")))
    }
}

struct SymIntFields(Option<i64>);

impl<'de> Fields<'de> for SymIntFields {
    const WHAT: &'static str = "a size";

    fn read<A: MapAccess<'de>>(
        &mut self,
        field: &str,
        map: &mut A,
        refusal: &Refusal,
    ) -> Result<Option<u8>, A::Error> {
        match field {
            "as_int" => {
                self.0 = Some(map.next_value()?);
                Ok(Some(0))
            }
            "as_expr" => {
                let text = "a size, stride or offset of a stored tensor is an expression";
                Err(refusal.raise(Error::new(Code::ExportSymbolic, text)))
            }
            // A union has one field; which of several is meant is not defined.
            other => {
                let text = format!("{other:?} is no form of a size");
                Err(refusal.raise(Error::new(Code::ExportConfig, text)))
            }
        }
    }
}

fn missing(field: &str) -> Error {
    Error::new(Code::ExportConfig, format!("the field {field:?} is missing"))
}

#[cfg(test)]
mod tests;
