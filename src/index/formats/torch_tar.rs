//! The tar archive of torch 0.1: `sys_info`, `pickle`, `tensors` and `storages`.
//!
//! Follows `torch/serialization.py: legacy_load`. `storages` is a pickle of a count, then for each storage a pickle
//! `(key, location, class)`, an int64 count of elements and the bytes; then a pickle of the storages that are parts of others,
//! `[(key, root, offset, numel)]`. `tensors` is a pickle of a count, then for each tensor a pickle `(key, storage, class)`, an int32
//! number of dimensions, four bytes that are ignored, and int64 sizes, strides and an offset. Persistent ids of `pickle` are keys.
//! Stricter than torch: keys are numbers that occur once, a view is one of a storage and not of a view, a tensor's class is that
//! of its storage, and nothing follows in the two members. Nothing is extracted.

use std::collections::HashMap;
use std::sync::Arc;

use super::contents::Contents;
use crate::bytes::{Region, Source};
use crate::container::Format;
use crate::container::ahead::ReadAhead;
use crate::container::tar::Archive;
use crate::dtype::DType;
use crate::error::{Code, Error, Result, ResultExt, bail, error};
use crate::index::model::{Flags, Location, Options, RawTensor, Sizes, Storage};
use crate::index::pickled;
use crate::index::pickled::legacy::{pickle_end, system_notes};
use crate::index::pickled::{
    Found, Keyed, KeyedObjects, Known, PersistentIds, StorageSlice, TensorClass, check_side_pickle, lookup,
    short_string, storage_dtype, tensor_dtype,
};
use crate::limits::Limits;
use crate::num::{to_u32, to_u64};
use crate::pickle::{self, Disasm, Handle, Pickle, Value, Values};

/// The members, all of which torch needs.
const MEMBERS: [&str; 4] = [SYSTEM, OBJECT, TENSORS, STORAGES];
const SYSTEM: &str = "sys_info";
const OBJECT: &str = "pickle";
const TENSORS: &str = "tensors";
const STORAGES: &str = "storages";

/// Bytes that are read where a pickle or number is expected; doubled while pickles and numbers lie close together.
const READ_BYTES: u64 = 8192;
const READ_MAX_BYTES: u64 = 1 << 20;

/// Whether an archive is one of torch 0.1, maybe with members missing.
pub(super) fn is_torch(archive: &Archive) -> bool {
    MEMBERS.iter().filter(|name| archive.find(name).is_some()).count() >= 2
}

/// Reads the index of an archive.
pub(super) fn read(archive: &Archive, options: &Options) -> Result<Contents> {
    let mut regions = [Region::default(); 4];
    for (region, name) in regions.iter_mut().zip(MEMBERS) {
        let member = archive
            .find(name)
            .ok_or_else(|| error!(Code::TarStructure, "the archive of torch 0.1 has no member {name:?}"))?;
        if member.has_long_name() {
            bail!(Code::TarStructure, "the name {name:?} is in a header of its own, which torch never wrote");
        }
        *region = member.region();
    }
    let [system, object, tensors, storages] = regions;
    let source = archive.source();
    let mut notes = system_info(source, system, options).in_member(SYSTEM)?;
    let mut objects = Described { options, found: KeyedObjects::default(), devices: HashMap::new() };
    notes.extend(objects.storages(Sections::new(source, storages, STORAGES, options)?).in_member(STORAGES)?);
    notes.extend(objects.tensors(Sections::new(source, tensors, TENSORS, options)?).in_member(TENSORS)?);
    Limits::check("pickle_bytes", options.limits.pickle_bytes, object.len()).in_member(OBJECT)?;
    let data = source.chunk(object.start(), object.len())?;
    let run = |data| pickle::run_accepting_persid(data, &options.limits, &options.cancel);
    let ids = PersistentIds::keyed(objects.found);
    let mut read = run(data)
        .and_then(|pickle| pickled::read_executed(pickle, ids, HashMap::new(), options))
        .in_member(OBJECT)?;
    notes.append(&mut read.notes);
    let (mut index, tree) = read.into_index(Format::Tar, notes, source)?;
    index.end = Some(archive.end());
    Ok((index, tree).into())
}

/// The notes about the writer's system.
fn system_info(source: &Source, member: Region, options: &Options) -> Result<Vec<String>> {
    let mut sections = Sections::new(source, member, "system information", options)?;
    let pickle = sections.pickle()?;
    sections.check_end()?;
    Ok(sections.note.into_iter().chain(system_notes(&pickle)).collect())
}

/// The storages and tensors so far.
struct Described<'a> {
    options: &'a Options,
    found: KeyedObjects,
    /// The names of devices, each of which many storages share.
    devices: HashMap<String, Arc<str>>,
}

impl Described<'_> {
    /// Reads the member `storages`. Returns the text of a note, if there is one.
    fn storages(&mut self, mut sections: Sections<'_>) -> Result<Option<String>> {
        let count = sections.count("storages")?;
        for _ in 0..count {
            self.options.cancel.check()?;
            let at = sections.at;
            let read = self.storage(&mut sections);
            read.map_err(|error| error.at(at))?;
        }
        let at = sections.at;
        let views = sections.pickle()?;
        self.views(&views).map_err(|error| error.at(at))?;
        sections.check_end()?;
        Ok(sections.note)
    }

    /// Reads one storage.
    fn storage(&mut self, sections: &mut Sections<'_>) -> Result<()> {
        let pickle = sections.pickle()?;
        let values = &pickle.values;
        let Value::Tuple(&[key, location, class]) = values.get(pickle.root) else {
            return Err(wrong("a storage is not (key, location, class)"));
        };
        let (key, device) = (self.new_key(values, key)?, self.device(values, location)?);
        let dtype = storage_class(values, class)
            .ok_or_else(|| wrong("the class of a storage is not one of torch 0.1's"))?;
        let numel = i64::from_le_bytes(sections.array()?);
        let sizes =
            u64::try_from(numel).ok().and_then(|numel| Some((numel, numel.checked_mul(dtype.itemsize())?)));
        let (numel, nbytes) = sizes.ok_or_else(|| wrong(&format!("storage {key} has {numel} element(s)")))?;
        let region = sections.skip(nbytes)?;
        let location = if nbytes == 0 { Location::Empty } else { Location::Range(region) };
        let slice = self.add_storage(location, dtype, (numel, nbytes), Some(device));
        self.found.by_key.insert(key, Keyed::Storage(slice));
        Ok(())
    }

    /// Adds a storage with so many elements and bytes.
    fn add_storage(
        &mut self,
        location: Location,
        dtype: DType,
        (numel, nbytes): (u64, u64),
        device: Option<Arc<str>>,
    ) -> StorageSlice {
        let (storage, location) = (to_u32(self.found.storages.len()), Found::At(location));
        self.found.storages.push(Storage { location, nbytes, numel, big_endian: false, device });
        StorageSlice { storage, dtype, start: 0, nbytes }
    }

    /// Reads the list of storages that are parts of others.
    fn views(&mut self, pickle: &Pickle) -> Result<()> {
        let values = &pickle.values;
        let Value::List(views) = values.get(pickle.root) else {
            return Err(wrong("the views of storages are not a list"));
        };
        Limits::check("tensors", self.options.limits.tensors, to_u64(views.len()))?;
        let mut made = HashMap::new();
        for &view in views {
            self.options.cancel.check()?;
            let Value::Tuple(&[key, root, offset, numel]) = values.get(view) else {
                return Err(wrong("a view is not (key, storage, offset, numel)"));
            };
            let key = self.new_key(values, key)?;
            let root = int(values, root)?;
            let Some(Keyed::Storage(whole)) = self.found.by_key.get(&root) else {
                return Err(wrong(&format!("view {key} is of storage {root}, which is missing")));
            };
            let (offset, numel) = (int(values, offset)?, int(values, numel)?);
            let slice = whole.view(key, offset, numel)?;
            if made.insert(key, Keyed::Storage(slice)).is_some() {
                return Err(wrong(&format!("the key {key} is used twice")));
            }
        }
        self.found.by_key.extend(made);
        Ok(())
    }

    /// Reads the member `tensors`. Returns the text of a note, if there is one.
    fn tensors(&mut self, mut sections: Sections<'_>) -> Result<Option<String>> {
        let count = sections.count("tensors")?;
        for _ in 0..count {
            self.options.cancel.check()?;
            let at = sections.at;
            let read = self.tensor(&mut sections);
            read.map_err(|error| error.at(at))?;
        }
        sections.check_end()?;
        Ok(sections.note)
    }

    /// Reads one tensor.
    fn tensor(&mut self, sections: &mut Sections<'_>) -> Result<()> {
        let pickle = sections.pickle()?;
        let values = &pickle.values;
        let Value::Tuple(&[key, storage, class]) = values.get(pickle.root) else {
            return Err(wrong("a tensor is not (key, storage, class)"));
        };
        let key = self.new_key(values, key)?;
        let dtype = tensor_class(values, class)
            .ok_or_else(|| wrong("the class of a tensor is not one of torch 0.1's"))?;
        let slice = match values.get(storage) {
            // An empty tensor without a storage.
            Value::None => None,
            _ => Some(self.slice(int(values, storage)?)?),
        };
        let [ndim, _] = [i32::from_le_bytes(sections.array()?), i32::from_le_bytes(sections.array()?)];
        let rank = u64::try_from(ndim).map_err(|_| wrong(&format!("a tensor has {ndim} dimension(s)")))?;
        let numbers = rank.saturating_mul(16).saturating_add(8);
        if numbers > sections.left() {
            let text = format!("a tensor has {rank} dimensions, for which the member is too short");
            return Err(wrong(&text));
        }
        Limits::check("rank", self.options.limits.rank, rank)?;
        let (mut shape, mut strides) = (sections.numbers(rank)?, sections.numbers(rank)?);
        let offset = i64::from_le_bytes(sections.array()?);
        let slice = match slice {
            Some(slice) if slice.dtype != dtype => {
                return Err(wrong(&format!("a tensor of {dtype} is on a storage of {}", slice.dtype)));
            }
            Some(slice) => slice,
            None => {
                // torch 0.1's tensors of no dimensions are empty; since 0.4 such a one has a shape of one zero.
                if shape.is_empty() {
                    (shape, strides) = (Sizes::from_slice(&[0]), Sizes::from_slice(&[1]));
                }
                self.add_storage(Location::Empty, dtype, (0, 0), None)
            }
        };
        let flags = Flags::default();
        let raw = RawTensor { dtype, shape, strides, offset, storage: slice.storage, flags };
        let tensor = raw.prove(slice.nbytes, &self.options.limits)?.shifted(slice.start)?;
        let number = to_u32(self.found.tensors.len());
        Limits::check("tensors", self.options.limits.tensors, u64::from(number).saturating_add(1))?;
        self.found.tensors.push(tensor);
        self.found.by_key.insert(key, Keyed::Tensor(number));
        Ok(())
    }

    /// The storage of a tensor, by its key.
    fn slice(&self, key: i64) -> Result<StorageSlice> {
        match self.found.by_key.get(&key) {
            Some(Keyed::Storage(slice)) => Ok(*slice),
            _ => Err(wrong(&format!("a tensor is on storage {key}, which is missing"))),
        }
    }

    /// A key that nothing has yet.
    fn new_key(&self, values: &Values, key: Handle) -> Result<i64> {
        let key = int(values, key)?;
        match self.found.by_key.contains_key(&key) {
            false => Ok(key),
            true => Err(wrong(&format!("the key {key} is used twice"))),
        }
    }

    /// The name of a device.
    fn device(&mut self, values: &Values, location: Handle) -> Result<Arc<str>> {
        let name = short_string(values, location)
            .ok_or_else(|| wrong("the location of a storage is not the name of a device"))?;
        Ok(self.devices.entry(name.to_owned()).or_insert_with(|| Arc::from(name)).clone())
    }
}

/// The pickles of a member, and the numbers and bytes between them.
struct Sections<'a> {
    source: Source,
    /// The offset of the member in the archive.
    base: u64,
    /// What the member holds.
    content: &'static str,
    options: &'a Options,
    /// The first thing that torch never writes into these pickles.
    note: Option<String>,
    /// The offset of the next section in the member.
    at: u64,
    ahead: ReadAhead,
    /// Bytes of the next read.
    read_bytes: u64,
}

impl<'a> Sections<'a> {
    fn new(
        archive: &Source,
        member: Region,
        content: &'static str,
        options: &'a Options,
    ) -> Result<Sections<'a>> {
        let base = member.start();
        let source = archive.window(base, member.len())?;
        let (note, ahead) = (None, ReadAhead::default());
        Ok(Sections { source, base, content, options, note, at: 0, ahead, read_bytes: READ_BYTES })
    }

    /// The number of bytes that are left.
    fn left(&self) -> u64 {
        self.source.len().saturating_sub(self.at)
    }

    /// At least `len` bytes from the next section on, or all that are left.
    fn next(&mut self, len: u64) -> Result<&[u8]> {
        let (len, read_bytes) = (len.min(self.left()), self.read_bytes);
        if to_u64(self.ahead.held(self.at).len()) < len {
            self.read_bytes = read_bytes.saturating_mul(2).min(READ_MAX_BYTES);
        }
        self.ahead.read(&self.source, self.at, len, read_bytes)
    }

    /// The next pickle.
    fn pickle(&mut self) -> Result<Pickle> {
        let mut wanted = 1;
        loop {
            let options = self.options;
            let data = self.next(wanted)?;
            let mut disasm = Disasm::strict(data, 0, &options.limits);
            let held = to_u64(data.len());
            match pickle_end(&mut disasm) {
                Ok(end) => {
                    let data = data.get(..end).unwrap_or_default().to_vec();
                    let run = pickle::run_cancellable(data, &self.options.limits, &self.options.cancel);
                    let pickle = run.map_err(|error| error.shifted(self.at))?;
                    let note = check_side_pickle(&pickle, self.content, is_class, self.options);
                    self.note = self.note.take().or(note.map_err(|error| error.shifted(self.at))?);
                    self.at = self.at.saturating_add(to_u64(end));
                    return Ok(pickle);
                }
                // Read more only where the data ended too early.
                Err(error) if !disasm.is_truncated() || held >= self.left() => {
                    return Err(error.shifted(self.at));
                }
                Err(_) => {
                    Limits::check("pickle_bytes", self.options.limits.pickle_bytes, held.saturating_add(1))?;
                    wanted = held
                        .saturating_mul(2)
                        .min(self.options.limits.pickle_bytes)
                        .max(held.saturating_add(1));
                }
            }
        }
    }

    /// The pickle of a count.
    fn count(&mut self, what: &str) -> Result<u64> {
        let at = self.at;
        let pickle = self.pickle()?;
        let text = || wrong(&format!("the number of {what} is not a count")).at(at);
        let count = pickle.values.count_at(pickle.root).ok_or_else(text)?;
        // Each has a pickle of several bytes.
        if count > self.left() {
            let text = format!("{count} {what} are announced, {} byte(s) are left", self.left());
            return Err(wrong(&text).at(at));
        }
        Limits::check("tensors", self.options.limits.tensors, count)?;
        Ok(count)
    }

    /// The next `N` bytes.
    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let found = self.next(to_u64(N))?.first_chunk().copied();
        let found = found.ok_or_else(|| {
            error!(Code::Truncated, "{N} byte(s) announced, {} left", self.left()).at(self.at)
        })?;
        self.at = self.at.saturating_add(to_u64(N));
        Ok(found)
    }

    /// The next `count` int64 numbers. The caller has checked the count.
    fn numbers(&mut self, count: u64) -> Result<Sizes> {
        (0..count).map(|_| self.array().map(i64::from_le_bytes)).collect()
    }

    /// The range of the next `len` bytes in the archive, which are not read.
    fn skip(&mut self, len: u64) -> Result<Region> {
        let start = self.base.checked_add(self.at).filter(|_| len <= self.left());
        let region = start.and_then(|start| Region::new(start, len)).ok_or_else(|| {
            let text = format!("a storage has {len} byte(s), {} are left", self.left());
            wrong(&text)
        })?;
        self.at = self.at.saturating_add(len);
        // Storages of many bytes lie between pickles of few.
        if self.ahead.held(self.at).is_empty() {
            self.read_bytes = READ_BYTES;
        }
        Ok(region)
    }

    /// Fails where bytes follow.
    fn check_end(&self) -> Result<()> {
        match self.left() {
            0 => Ok(()),
            left => Err(wrong(&format!("{left} byte(s) follow the last pickle")).at(self.at)),
        }
    }
}

fn wrong(text: &str) -> Error {
    Error::new(Code::TarContent, text)
}

fn int(values: &Values, handle: Handle) -> Result<i64> {
    match values.get(handle) {
        Value::Int(value) => Ok(value),
        _ => Err(wrong("a key, offset or size is not a 64-bit integer")),
    }
}

/// Whether torch 0.1 names this class in the pickles of storages and tensors.
fn is_class(module: &str, name: &str) -> bool {
    matches!(lookup(module, name), Some(Known::Storage(_) | Known::TensorClass(_)))
}

/// The element type of a storage class of torch 0.1.
fn storage_class(values: &Values, class: Handle) -> Option<DType> {
    let (module, name) = values.global_at(class)?;
    // The quantized classes are of torch 1.3 and later.
    storage_dtype(module, name).filter(|_| !name.starts_with('Q'))
}

/// The size of an element of a storage class; `None` for other names.
#[cfg(feature = "scan")]
pub fn storage_itemsize(module: &str, name: &str) -> Option<u64> {
    storage_dtype(module, name).map(DType::itemsize)
}

/// The element type of a tensor class of torch 0.1.
fn tensor_class(values: &Values, class: Handle) -> Option<DType> {
    let (module, name) = values.global_at(class)?;
    let is_plain = lookup(module, name) == Some(Known::TensorClass(TensorClass::Plain));
    tensor_dtype(module, name).filter(|_| is_plain)
}
