//! Reads the values of a distributed checkpoint's metadata: plain data, and objects by their fields.

use std::cell::Cell;

use smallvec::SmallVec;

use crate::dtype::DType;
use crate::error::{Code, Error, Result};
use crate::layout::Dims;
use crate::limits::Limits;
use crate::num::to_u64;
use crate::pickle::{Handle, Value, Values};

/// The modules of the classes: torch before 2.3 had those of tensors' properties with its sharded tensors.
pub(super) const METADATA: &str = "torch.distributed.checkpoint.metadata";
const SHARDED: &str = "torch.distributed._shard.sharded_tensor.metadata";
const SHARDING: &str = "torch.distributed._shard.metadata";
pub(super) const MEGATRON: &str = "megatron.core.dist_checkpointing.strategies.torch";

/// The classes and functions that metadata names. Values of the others are not looked at.
const KNOWN: &[(&str, &[&str])] = &[
    (
        METADATA,
        &[
            "Metadata",
            "TensorStorageMetadata",
            "TensorProperties",
            "ChunkStorageMetadata",
            "BytesStorageMetadata",
            "MetadataIndex",
            "StorageMeta",
            "_MEM_FORMAT_ENCODING",
        ],
    ),
    (SHARDED, &["TensorProperties", "MEM_FORMAT_ENCODING"]),
    (SHARDING, &["ShardMetadata"]),
    ("torch.distributed.checkpoint.filesystem", &["_StorageInfo"]),
    ("torch.serialization", &["_get_layout"]),
    ("pathlib", &["PosixPath", "WindowsPath"]),
    ("pathlib._local", &["PosixPath", "WindowsPath"]),
    (MEGATRON, &["MCoreMetadata", "MCoreSavePlan"]),
];

/// The most numbers and steps for each value of the pickle. torch shares shapes among few objects, and writes small numbers once.
const ITEMS_PER_VALUE_MAX: u64 = 32;

/// The most fields of one object: several times as many as any class has.
const FIELDS_MAX: usize = 32;

/// The fields of one object, each with the value of the last state that sets it.
pub(super) struct Fields<'a> {
    class: &'static str,
    fields: SmallVec<[(&'a str, Handle); 6]>,
}

impl Fields<'_> {
    pub(super) fn get(&self, name: &str) -> Option<Handle> {
        self.fields.iter().find(|(field, _)| *field == name).map(|&(_, value)| value)
    }

    pub(super) fn need(&self, name: &str) -> Result<Handle> {
        self.get(name).ok_or_else(|| malformed(format!("a {} has no {name}", self.class)))
    }
}

/// Reads the objects of the metadata.
pub(in crate::index::formats) struct Reader<'a> {
    pub(super) values: &'a Values,
    /// The numbers and steps that were read. Any number of objects may share a list of them, so their sum is bounded.
    items: Cell<u64>,
}

impl<'a> Reader<'a> {
    pub(in crate::index::formats) fn new(values: &'a Values) -> Reader<'a> {
        Reader { values, items: Cell::new(0) }
    }

    /// Counts items that are read. Fails where they are many more than the values of the pickle.
    pub(in crate::index::formats) fn count(&self, items: usize) -> Result<()> {
        self.items.set(self.items.get().saturating_add(to_u64(items)).saturating_add(1));
        let max = to_u64(self.values.len()).saturating_mul(ITEMS_PER_VALUE_MAX).saturating_add(1 << 16);
        match self.items.get() <= max {
            true => Ok(()),
            false => Err(malformed("the same lists are part of very many objects")),
        }
    }

    /// Fails on the first global that metadata does not name.
    pub(super) fn refuse_unknown(&self) -> Result<()> {
        for (id, _) in self.values.globals() {
            let global = self.values.global(id);
            let is_listed =
                KNOWN.iter().any(|(module, names)| *module == global.module && names.contains(&global.name));
            let is_torchs = global.module == "torch"
                && (global.name == "Size" || DType::from_name(global.name).is_some());
            if !is_listed && !is_torchs {
                let (module, name) = (global.module, global.name);
                let text = format!("the metadata imports {module}.{name}, which rustload does not know");
                return Err(Error::global(Code::DisallowedGlobal, module, name, text).at(global.offset));
            }
        }
        Ok(())
    }

    /// The class of an object, as module and name; `None` for other values.
    pub(super) fn class(&self, object: Handle) -> Option<(&'a str, &'a str)> {
        self.values.global_at(self.values.call_at(object)?.callable)
    }

    /// The state that is set on an object of one of these classes, and which class that is.
    pub(super) fn state(
        &self,
        object: Handle,
        classes: &[&'static str],
    ) -> Result<(&'static str, Option<Value<'a>>)> {
        let wanted = classes.first().copied().unwrap_or_default();
        let found = self.class(object).and_then(|(module, name)| {
            let is_listed = KNOWN.iter().any(|(known, names)| *known == module && names.contains(&name));
            classes.iter().copied().find(|class| *class == name).filter(|_| is_listed)
        });
        let (Some(class), Value::Call(id)) = (found, self.values.get(object)) else {
            return Err(malformed(format!("a {wanted} is something else")));
        };
        let call = self.values.call(id);
        let is_empty = matches!(self.values.get(call.args), Value::Tuple([]));
        if !is_empty || call.kwargs.is_some() || !call.items.is_empty() || !call.appended.is_empty() {
            return Err(malformed(format!("a {class} is not made as torch makes it")).at(call.offset));
        }
        match call.states {
            [] => Ok((class, None)),
            [state] => Ok((class, Some(self.values.get_at(*state)))),
            _ => Err(malformed(format!("the state of a {class} is set twice")).at(call.offset)),
        }
    }

    /// The fields of an object of one of these classes.
    pub(super) fn fields(&self, object: Handle, classes: &[&'static str]) -> Result<Fields<'a>> {
        let (class, state) = self.state(object, classes)?;
        let mut fields = Fields { class, fields: SmallVec::new() };
        let pairs = match state {
            None => &[],
            Some(Value::Dict(pairs)) => pairs,
            Some(_) => return Err(malformed(format!("the state of a {class} is not a dict"))),
        };
        if pairs.len() > FIELDS_MAX {
            return Err(malformed(format!("a {class} has {} fields", pairs.len())));
        }
        for &(key, value) in pairs {
            let key = self.text(key)?;
            if fields.get(key).is_some() {
                return Err(malformed(format!("a {class} has {key} twice")));
            }
            fields.fields.push((key, value));
        }
        Ok(fields)
    }

    pub(in crate::index::formats) fn text(&self, value: Handle) -> Result<&'a str> {
        match self.values.get(value) {
            Value::Str(text) => text.as_str().ok_or_else(|| malformed("a name is not UTF-8")),
            _ => Err(malformed("a name is not a string")),
        }
    }

    pub(in crate::index::formats) fn number(&self, value: Handle) -> Result<u64> {
        match self.values.get(value) {
            Value::Int(number) => {
                u64::try_from(number).map_err(|_| malformed(format!("{number} is negative")))
            }
            _ => Err(malformed("a size or offset is not a number of 64 bits")),
        }
    }

    /// The pairs of a dict.
    pub(in crate::index::formats) fn dict(
        &self,
        value: Handle,
        what: &str,
    ) -> Result<&'a [(Handle, Handle)]> {
        match self.values.get(value) {
            Value::Dict(pairs) => Ok(pairs),
            _ => Err(malformed(format!("{what} is not a dict"))),
        }
    }

    /// A `torch.Size`, or a tuple or list of numbers.
    pub(in crate::index::formats) fn sizes(&self, value: Handle, limits: &Limits) -> Result<Dims> {
        let items = match self.values.get(value) {
            Value::Tuple(items) | Value::List(items) => items,
            Value::Call(id) if self.class(value) == Some(("torch", "Size")) => {
                match self.values.get(self.values.call(id).args) {
                    Value::Tuple(&[items]) => match self.values.get(items) {
                        Value::Tuple(items) | Value::List(items) => items,
                        _ => return Err(malformed("a torch.Size of something else than numbers")),
                    },
                    Value::Tuple([]) => &[],
                    _ => return Err(malformed("a torch.Size of several arguments")),
                }
            }
            _ => return Err(malformed("a shape is not a torch.Size")),
        };
        Limits::check("rank", limits.rank, to_u64(items.len()))?;
        self.count(items.len())?;
        items.iter().map(|&item| self.number(item)).collect()
    }
}

pub(in crate::index::formats) fn malformed(text: impl Into<String>) -> Error {
    Error::new(Code::DcpMetadata, text)
}
