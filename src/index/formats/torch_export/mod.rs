//! A program of `torch.export.save` (`.pt2`): a zip archive with the program's graph, and its weights and constants as storages.
//!
//! Follows `torch/export/pt2_archive/_package.py: load_pt2` and, for archives before torch 2.8, `torch/export/__init__.py: load`. A JSON
//! configuration names each tensor, and the member with the bytes of its storage. Payloads that torch pickles (tensor subclasses, and
//! all of them in older archives) are archives of `torch.save`, which the reader of those reads. The graph, the sample inputs, compiled
//! code and custom objects are not read. Stricter than torch: one storage has one dtype and device, and no name, member or
//! configuration is there in two ways.

mod budget;
mod members;

use std::collections::hash_map::Entry as MapEntry;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use self::budget::member;
pub(super) use self::members::is_export;
use self::members::{Part, programs};
use super::contents::Contents;
use crate::container::Format;
use crate::container::payload_config::{Payload, TensorMeta};
use crate::container::zip::Archive;
use crate::dtype::DType;
use crate::error::{Code, Error, Result, ResultExt, bail, error};
use crate::index::model::{
    Entry, Flags, Index, Location, OpaqueClass, Options, Path, RawTensor, Storage, Unknown,
};
use crate::index::pickled::Object;
use crate::limits::Limits;
use crate::num::{to_u32, to_u64};

/// The class of custom objects, which torch reads with TorchScript's unpickler.
const SCRIPT_OBJECT: &str = "torch.ScriptObject";
/// The class of other objects, which torch reads with `pickle.loads`.
const PYTHON_OBJECT: &str = "builtins.object";

/// schema.py: `Layout.Strided`.
const STRIDED: u64 = 7;

/// Reads the index of an opened archive.
pub(super) fn read(archive: Archive, options: &Options) -> Result<Contents> {
    let archive = Arc::new(archive);
    let programs = programs(&archive)?;
    let mut reader = Reader {
        index: Index::empty(Format::TorchExport, archive.source()),
        inner: Vec::new(),
        archive: &archive,
        options,
        left: options.limits.clone(),
        storages: HashMap::new(),
        names: HashSet::new(),
        device: Arc::from("cpu"),
        big_endian: programs.big_endian,
        unknown_fields: 0,
    };
    let text = "this is an exported program: its weights and constants are read, its graph is not";
    reader.index.notes.push(text.to_owned());
    reader.index.notes.extend(programs.notes);
    if !archive.has_checksums() {
        reader.index.notes.push("no checksums were computed when the file was saved".to_owned());
    }
    let has_several = programs.list.len() > 1;
    let mut constants = Names::default();
    for program in &programs.list {
        let label = has_several.then_some(&*program.name);
        reader.part(&program.weights, label, false, &mut Names::default())?;
        reader.part(&program.constants, label, true, &mut constants)?;
    }
    if reader.unknown_fields > 0 {
        let count = reader.unknown_fields;
        reader.index.notes.push(format!("{count} unknown field(s) of the configurations ignored"));
    }
    reader.index.notes.extend(constants.note());
    Ok(Contents { inner: reader.inner, ..reader.index.into() })
}

/// The first few of some names, and their number.
#[derive(Default)]
struct Names {
    first: Vec<Arc<str>>,
    count: u64,
}

impl Names {
    fn add(&mut self, name: &Arc<str>) {
        self.count = self.count.saturating_add(1);
        if self.first.len() < OpaqueClass::PATHS_MAX {
            self.first.push(name.clone());
        }
    }

    fn note(&self) -> Option<String> {
        let (count, names) = (self.count, self.first.join(", "));
        let more = if count > to_u64(self.first.len()) { ", ..." } else { "" };
        (count > 0).then(|| {
            format!(
                "{count} tensor(s) are constants of the program and not in its state_dict, as buffers that are not persistent: \
                 {names}{more}"
            )
        })
    }
}

/// A storage of the index whose bytes are a member.
struct Stored {
    number: u32,
    dtype: DType,
    /// Whether it was read as a pickle, in an index of its own.
    is_pickled: bool,
}

struct Reader<'a> {
    index: Index,
    inner: Vec<Contents>,
    archive: &'a Arc<Archive>,
    options: &'a Options,
    /// The rest of the limits that the parts of the file share.
    left: Limits,
    /// What the members that were named so far are, by number.
    storages: HashMap<usize, Stored>,
    /// The names in the configurations so far.
    names: HashSet<Arc<str>>,
    /// The device of the last storage, which is mostly also the next one's.
    device: Arc<str>,
    big_endian: bool,
    unknown_fields: u64,
}

impl Reader<'_> {
    /// Reads the weights or the constants of a program. All names begin with `label`, if there is one.
    fn part(
        &mut self,
        part: &Part,
        label: Option<&str>,
        are_constants: bool,
        names: &mut Names,
    ) -> Result<()> {
        let (Part::Config { member: number, .. } | Part::Pickled { member: number }) = *part;
        let name = member(self.archive, number)?.name();
        match part {
            Part::Config { folder, .. } => {
                let config = budget::config(&mut self.left, self.archive, number, &self.options.cancel)?;
                self.unknown_fields = self.unknown_fields.saturating_add(config.unknown_fields);
                for payload in config.payloads {
                    self.options.cancel.check()?;
                    self.payload(payload, folder, label, are_constants, names).in_member(name)?;
                }
                Ok(())
            }
            Part::Pickled { .. } => {
                let Some(mut contents) = self.nested(number).in_member(name)? else { return Ok(()) };
                let tree = contents.objects.tree.as_ref();
                if !matches!(tree.map(|tree| tree.get(tree.root())).transpose()?, Some(Object::Dict { .. })) {
                    return Err(config("the pickle is not a dict of tensors".to_owned()).in_member(name));
                }
                if let Some(label) = label {
                    contents = contents.labelled(label, &self.options.limits)?;
                }
                if are_constants {
                    contents.index.entries.iter().for_each(|entry| names.add(&entry.name));
                }
                self.inner.push(contents);
                Ok(())
            }
        }
    }

    /// Adds one payload.
    fn payload(
        &mut self,
        payload: Payload,
        folder: &str,
        label: Option<&str>,
        is_constant: bool,
        names: &mut Names,
    ) -> Result<()> {
        let name = match label {
            Some(label) => Arc::from(format!("{label}.{}", payload.name)),
            None => payload.name,
        };
        if !self.names.insert(name.clone()) {
            return Err(config(format!("the name {name:?} is in two configurations")));
        }
        let path_name = &payload.path_name;
        let number = self.archive.find(&format!("{folder}{path_name}")).ok_or_else(|| {
            let text = format!("the archive has no member \"{folder}{path_name}\", which has {name:?}");
            Error::new(Code::RecordMissing, text)
        })?;
        let is_object = |prefix: &str| is_constant && path_name.starts_with(prefix);
        if is_object("custom_obj_") || is_object("opaque_obj_") {
            let class = if is_object("custom_obj_") { SCRIPT_OBJECT } else { PYTHON_OBJECT };
            return self.add_object(class, &name);
        }
        if is_constant && !path_name.starts_with("tensor_") {
            let text = format!("the constant {name:?} is in {path_name:?}, which is of no known kind");
            return Err(config(text));
        }
        if is_constant {
            names.add(&name);
        }
        if payload.use_pickle {
            let Some(contents) = self.nested(number)? else {
                return Err(config(format!("{path_name:?} is empty, and has {name:?} as a pickle")));
            };
            self.inner.push(contents.labelled(&name, &self.options.limits)?);
            return Ok(());
        }
        let Some(tensor) = payload.tensor else {
            return Err(config(format!("the tensor {name:?} has no tensor_meta")));
        };
        self.add_tensor(name.clone(), number, &tensor, payload.is_parameter).in_member(&name)
    }

    /// The index of an archive of `torch.save` that is a member; `None` for an empty one. Fails where the member has other values too.
    fn nested(&mut self, number: usize) -> Result<Option<Contents>> {
        let stored = Stored { number: 0, dtype: DType::U8, is_pickled: true };
        if self.storages.insert(number, stored).is_some() {
            bail!(Code::StorageConflict, "several values are in one member, and one of them is a pickle");
        }
        budget::nested(&mut self.left, self.archive, number, self.options)
    }

    /// Adds a tensor in the storage that is member `number`.
    fn add_tensor(
        &mut self,
        name: Arc<str>,
        number: usize,
        meta: &TensorMeta,
        parameter: bool,
    ) -> Result<()> {
        let limits = &self.options.limits;
        let count = to_u32(self.index.tensors.len());
        Limits::check("tensors", limits.tensors, u64::from(count).saturating_add(1))?;
        let dtype = DType::from_export_number(meta.dtype).ok_or_else(|| unknown("dtype", meta.dtype))?;
        if meta.layout != STRIDED {
            return Err(unknown("layout", meta.layout));
        }
        let (nbytes, is_meta) = (member(self.archive, number)?.size(), meta.device.0 == "meta");
        let has_elements = meta.sizes.iter().all(|size| size.0 != 0);
        let flags = Flags { parameter, requires_grad: meta.requires_grad, ..Flags::default() };
        let storage = match nbytes {
            // Fake tensors have no bytes. torch gives empty tensors one member too, so a member without bytes is not a tie.
            0 => self.add_storage(if has_elements { Location::Meta } else { Location::Empty }, 0, 0, meta),
            _ if is_meta => {
                bail!(Code::StorageConflict, "the tensor is on the meta device, but has {nbytes} byte(s)");
            }
            _ => self.storage(number, nbytes, dtype, meta)?,
        };
        let raw = RawTensor {
            dtype,
            shape: meta.sizes.iter().map(|size| size.0).collect(),
            strides: meta.strides.iter().map(|stride| stride.0).collect(),
            offset: meta.storage_offset.0,
            storage,
            flags,
        };
        let tensor = match nbytes == 0 && has_elements {
            true => raw.into_meta(limits)?,
            false => raw.prove(nbytes, limits)?,
        };
        self.index.tensors.push(tensor);
        self.index.entries.push(Entry { name, path: Path::Name, tensor: count });
        Ok(())
    }

    /// The storage that is a member with bytes. Fails where other tensors on it have another dtype or device.
    fn storage(&mut self, number: usize, nbytes: u64, dtype: DType, meta: &TensorMeta) -> Result<u32> {
        let next = to_u32(self.index.storages.len());
        match self.storages.entry(number) {
            MapEntry::Occupied(known) => {
                let known = known.get();
                let storage = usize::try_from(known.number).ok().and_then(|at| self.index.storages.get(at));
                let device = storage.and_then(|storage| storage.device.as_deref());
                let text = match () {
                    () if known.is_pickled => "the member is a pickle and a storage".to_owned(),
                    () if known.dtype != dtype => {
                        format!("the storage has elements of {} and of {dtype}", known.dtype)
                    }
                    () if device != Some(&*meta.device.0) => "the storage is on two devices".to_owned(),
                    () => return Ok(known.number),
                };
                return Err(Error::new(Code::StorageConflict, text));
            }
            MapEntry::Vacant(entry) => entry.insert(Stored { number: next, dtype, is_pickled: false }),
        };
        let numel = nbytes.checked_div(dtype.itemsize()).unwrap_or(0);
        if numel.checked_mul(dtype.itemsize()) != Some(nbytes) {
            let text = format!("the member has {nbytes} byte(s), not a whole number of elements of {dtype}");
            return Err(Error::new(Code::StorageBounds, text));
        }
        let location = Location::Member { archive: self.archive.clone(), number: to_u32(number), skip: 0 };
        if self.options.verify {
            location.verify(&self.options.cancel)?;
        }
        Ok(self.add_storage(location, nbytes, numel, meta))
    }

    fn add_storage(&mut self, location: Location, nbytes: u64, numel: u64, meta: &TensorMeta) -> u32 {
        if *self.device != *meta.device.0 {
            self.device = Arc::from(&*meta.device.0);
        }
        let number = to_u32(self.index.storages.len());
        let big_endian = self.big_endian && nbytes > 0;
        let device = Some(self.device.clone());
        self.index.storages.push(Storage { location, nbytes, numel, big_endian, device });
        number
    }

    /// Lists an object that is not a tensor. Fails where unknown values are errors.
    fn add_object(&mut self, class: &str, name: &str) -> Result<()> {
        if self.options.unknown == Unknown::Error {
            bail!(Code::DisallowedGlobal, "the constant {name:?} is a custom object, which is not read");
        }
        self.index.add_opaque(class, name);
        Ok(())
    }
}

/// An `ExportConfig` error.
fn config(text: String) -> Error {
    Error::new(Code::ExportConfig, text)
}

fn unknown(what: &str, number: u64) -> Error {
    error!(Code::TensorMetadata, "{what} {number} is not one that rustload knows")
}
