//! Parses the payload configurations of a torch.export archive: JSON that says which member of the archive each tensor is in.
//!
//! Follows `torch/_export/serde/schema.py` (`PayloadConfig`, `PayloadMeta`, `TensorMeta`, `SymInt`, `Device`) and refuses what its reader
//! takes silently: duplicate keys, of which Python takes the last, numbers that are not integers of 64 bits, sizes that are expressions,
//! and path names that are more than a file's name. Fields that the schema does not have are skipped. The numbers are not checked here.

use std::collections::HashSet;
use std::sync::Arc;

use serde::de::{Deserializer, MapAccess};
use smallvec::SmallVec;

use super::json::{Fields, Object, Reader, Value, object};
use crate::error::{Code, Error, Result};
use crate::limits::Limits;
use crate::num::to_u64;

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
    /// The tensor in the storage; `None` for an object that is not a tensor.
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
    pub sizes: SmallVec<[SymInt; 4]>,
    /// The stride of each dimension, in elements.
    pub strides: SmallVec<[SymInt; 4]>,
    /// The offset of the first element, in elements.
    pub storage_offset: SymInt,
    /// Its `requires_grad`.
    pub requires_grad: bool,
    /// The device that it was saved from.
    pub device: Device,
}

/// schema.py: `SymInt`, as a number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SymInt(pub i64);

/// schema.py: `Device`, as `cuda:0`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Device(pub String);

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
        let reader = Reader::new(Code::ExportConfig, limits);
        let Top { config: Payloads(payloads) } = reader.parse(text)?;
        Ok(PayloadConfig { payloads, unknown_fields: reader.skipped() })
    }
}

struct Top {
    config: Payloads,
}

object!(Top, "the object", { config: "config" });

/// `{"name": payload, ...}`
struct Payloads(Vec<Payload>);

impl Object for Payloads {
    const WHAT: &'static str = "the configuration";

    fn read_fields<'de, A: MapAccess<'de>>(fields: &mut Fields<'_, A>) -> Result<Self, A::Error> {
        let (mut payloads, mut names) = (Vec::new(), HashSet::new());
        while let Some(name) = fields.key()? {
            let count = to_u64(payloads.len()).saturating_add(1);
            Limits::check("tensors", fields.reader.limits.tensors, count)
                .map_err(|error| fields.reader.raise::<A::Error>(error))?;
            let meta: PayloadMeta = fields.value()?;
            if !is_member_name(&meta.path_name) {
                return Err(fields.reader.refuse(format!("{:?} is not a name of a member", meta.path_name)));
            }
            let name: Arc<str> = name.into();
            if !names.insert(name.clone()) {
                return Err(fields.duplicate(&name));
            }
            let PayloadMeta { path_name, is_parameter, use_pickle, tensor } = meta;
            payloads.push(Payload { name, path_name, is_parameter, use_pickle, tensor });
        }
        Ok(Payloads(payloads))
    }
}

fn is_member_name(text: &str) -> bool {
    !text.is_empty() && !text.starts_with('.') && !text.contains(['/', '\\', '\0'])
}

/// schema.py: `PayloadMeta`.
struct PayloadMeta {
    path_name: String,
    is_parameter: bool,
    use_pickle: bool,
    tensor: Option<TensorMeta>,
}

object!(PayloadMeta, "a payload", {
    path_name: "path_name",
    is_parameter: "is_param",
    use_pickle: "use_pickle",
    tensor: "tensor_meta",
});

object!(TensorMeta, "a tensor", {
    dtype: "dtype",
    layout: "layout",
    sizes: "sizes",
    strides: "strides",
    storage_offset: "storage_offset",
    requires_grad: "requires_grad",
    device: "device",
});

struct RawDevice {
    kind: String,
    index: Option<u64>,
}

object!(RawDevice, "a device", { kind: "type", index: "index" });

impl Value for Device {
    fn read<'de, D: Deserializer<'de>>(reader: &Reader<'_>, value: D) -> Result<Self, D::Error> {
        let RawDevice { kind, index } = Value::read(reader, value)?;
        Ok(Device(index.map(|index| format!("{kind}:{index}")).unwrap_or(kind)))
    }
}

/// A number or an expression. The latter is an error.
impl Object for SymInt {
    const WHAT: &'static str = "a size";

    fn read_fields<'de, A: MapAccess<'de>>(fields: &mut Fields<'_, A>) -> Result<Self, A::Error> {
        let mut number = None;
        while let Some(form) = fields.key()? {
            match form.as_str() {
                "as_int" => fields.once("as_int", &mut number)?,
                "as_expr" => {
                    let text = "a size, stride or offset of a stored tensor is an expression";
                    return Err(fields.reader.raise(Error::new(Code::ExportSymbolic, text)));
                }
                // A union has one field; which of several is meant is not defined.
                other => return Err(fields.reader.refuse(format!("{other:?} is not a form of a size"))),
            }
        }
        fields.need("as_int", number).map(SymInt)
    }
}

#[cfg(test)]
mod tests;
