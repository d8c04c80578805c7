//! Storages that persistent ids describe (torch/serialization.py: `persistent_load`), or refer to: those of torch 0.1 are numbers of
//! tensors and storages which the file describes before the pickle (`legacy_load`).

use std::collections::hash_map::Entry;
use std::sync::Arc;

use super::{
    CallInterpreter, Class, DescribedObject, DescribedStorage, Keyed, PersistentIdForm,
    SHORT_STRING_MAX_BYTES, StorageSlice, short_string,
};
use crate::dtype::DType;
use crate::error::{Code, Error, Result, bail, error};
use crate::index::model::{Storage, Tensor};
use crate::index::pickled::known::Known;
use crate::pickle::{Handle, Value, Values};

impl<'a> CallInterpreter<'a> {
    /// Adds 1-D tensors for storages that are values of the tree themselves.
    pub(crate) fn add_bare(&mut self, pids: &[Handle]) -> Result<()> {
        for &pid in pids {
            if self.out.bare.contains_key(&pid) {
                continue;
            }
            let slice = self.storage(pid)?;
            // Two keys may be written in two ways in one pickle, and are one storage.
            if let Some(&id) = self.bare_keyed.get(&slice) {
                self.out.bare.insert(pid, id);
                continue;
            }
            let numel = slice.nbytes.checked_div(slice.dtype.itemsize()).unwrap_or(0);
            let tensor = Tensor::contiguous(slice.dtype, &[numel], slice.storage, slice.nbytes)?;
            let id = self.push(tensor.shifted(slice.start)?)?;
            self.out.bare.insert(pid, id);
            if let Some((dtype, _)) = self.quantized_id(pid) {
                self.out.quantized_storages.insert(id, dtype);
            }
            if self.out.form == PersistentIdForm::Keyed {
                self.bare_keyed.insert(slice, id);
            }
        }
        Ok(())
    }

    /// Resolves the persistent ids that no call has used, so that all of a key's descriptions are compared: torch resolves also those
    /// whose result is dropped.
    pub(super) fn resolve_others(&mut self) -> Result<()> {
        let values: &'a Values = self.values;
        self.resolved.sort_unstable();
        let resolved = std::mem::take(&mut self.resolved);
        for value in values.iter() {
            if let Value::PersistentId(pid) = value
                && resolved.binary_search(&pid).is_err()
                && self.out.module(values, pid).is_none()
            {
                self.storage(pid)?;
            }
        }
        Ok(())
    }

    /// Resolves every persistent id. Fails for one that is neither a class nor the key of a tensor or storage.
    pub(super) fn resolve_keys(&mut self) -> Result<()> {
        let values = self.values;
        for value in values.iter() {
            let Value::PersistentId(pid) = value else { continue };
            if self.out.module(values, pid).is_some() {
                continue;
            }
            if let Keyed::Tensor(tensor) = self.keyed(pid)? {
                self.out.keyed_tensors.insert(pid, tensor);
            }
        }
        Ok(())
    }

    /// What a persistent id refers to.
    fn keyed(&self, pid: Handle) -> Result<Keyed> {
        let key = key(self.values, pid).ok_or_else(|| {
            Error::new(Code::PersistentId, "a persistent id is neither a number nor (class, file, source)")
        })?;
        self.keys.get(&key).copied().ok_or_else(|| {
            error!(Code::TarContent, "the pickle refers to {key}, which is neither a tensor nor a storage")
        })
    }

    /// The storage that a persistent id refers to.
    pub(super) fn keyed_storage(&self, pid: Handle) -> Result<StorageSlice> {
        match self.keyed(pid)? {
            Keyed::Storage(slice) => Ok(slice),
            Keyed::Tensor(_) => Err(Error::new(Code::TarContent, "a tensor stands where a storage belongs")),
        }
    }

    /// The storage that a tensor's first argument refers to.
    pub(super) fn storage_of(&mut self, handle: Handle) -> Result<StorageSlice> {
        match self.values.get(handle) {
            Value::PersistentId(pid) => self.storage(pid),
            Value::Call(_) if self.is_embedded(handle) => self.embedded_slice(handle),
            _ => Err(Error::new(Code::PersistentId, "a tensor's storage is not a persistent id")),
        }
    }

    /// The storage that a persistent id refers to. One id may be used any number of times, so only short strings are read.
    fn storage(&mut self, pid: Handle) -> Result<StorageSlice> {
        let wrong = |what: &str| error!(Code::PersistentId, "a persistent id's {what}");
        let values: &'a Values = self.values;
        if self.out.form == PersistentIdForm::Keyed {
            return self.keyed_storage(pid);
        }
        let (tag, class, key, location, numel, view) = match (self.out.form, values.get(pid)) {
            (PersistentIdForm::Archive, Value::Tuple(&[tag, class, key, location, numel])) => {
                (tag, class, key, location, numel, None)
            }
            (PersistentIdForm::Legacy, Value::Tuple(&[tag, class, key, location, numel, view])) => {
                (tag, class, key, location, numel, Some(view))
            }
            (PersistentIdForm::Archive, _) => {
                return Err(wrong("form is not ('storage', class, key, location, numel)"));
            }
            (PersistentIdForm::Legacy | PersistentIdForm::Keyed, _) => {
                return Err(wrong("form is not ('storage', class, key, location, numel, view)"));
            }
        };
        if short_string(values, tag) != Some("storage") {
            return Err(wrong("first item is not 'storage'"));
        }
        let Some(Known::Storage(dtype)) = self.known(class) else {
            return Err(wrong("class is not a storage class that rustload reads"));
        };
        // UntypedStorage counts bytes (torch/serialization.py: persistent_load).
        let dtype = dtype.unwrap_or(DType::U8);
        let Value::Str(device) = values.get(location) else { return Err(wrong("location is not a string")) };
        if device.as_bytes().len() > SHORT_STRING_MAX_BYTES {
            return Err(wrong("location is too long for a device name"));
        }
        let key = short_string(values, key)
            .filter(|key| is_key(key))
            .ok_or_else(|| Error::new(Code::StorageKey, "a storage's key is not a plain decimal number"))?;
        let numel = match values.get(numel) {
            Value::Int(numel) => numel,
            _ => {
                bail!(Code::PickleType, "a storage's number of elements is not a 64-bit integer");
            }
        };
        self.resolved.push(pid);
        let class = (dtype, self.quantized_id(pid).map(|(name, _)| name));
        let storage = self.root_storage(key, class, numel, location)?;
        let root = StorageSlice { storage, dtype, start: 0, nbytes: self.nbytes(storage) };
        match view.map(|view| values.get(view)) {
            None | Some(Value::None) => Ok(root),
            Some(Value::Tuple(&[view, offset, numel])) => {
                self.storage_view(root, class, [view, offset, numel])
            }
            Some(_) => Err(wrong("view is neither None nor (key, offset, numel)")),
        }
    }

    /// The storage of a key: a new one, or the one that was described before. Fails where the descriptions conflict.
    fn root_storage(&mut self, key: &'a str, class: Class, numel: i64, device: Handle) -> Result<u32> {
        let (dtype, _) = class;
        match self.described.get_mut(key) {
            Some(DescribedObject::Storage(seen)) => {
                seen.check_conflict(key, class, numel)?;
                let is_other = short_string(self.values, seen.device) != short_string(self.values, device);
                if is_other && !seen.device_conflict_noted {
                    seen.device_conflict_noted = true;
                    self.out.notes.push(format!("storage {key} is described as on two devices"));
                }
                return Ok(seen.id);
            }
            Some(DescribedObject::View(..)) => return Err(both(key)),
            None => {}
        }
        let sizes =
            u64::try_from(numel).ok().and_then(|numel| Some((numel, numel.checked_mul(dtype.itemsize())?)));
        let (count, nbytes) = sizes.ok_or_else(|| {
            error!(Code::StorageBounds, "storage {key} is described with {numel} element(s)")
        })?;
        let location = (self.locate)(key, nbytes)?;
        let id = u32::try_from(self.out.storages.len()).unwrap_or(u32::MAX);
        let device_name = self.device(device);
        let big_endian = self.big_endian && nbytes > 0;
        let storage = Storage { location, nbytes, numel: count, big_endian, device: device_name };
        self.out.storages.push(storage);
        let described = DescribedStorage { id, class, numel, device, device_conflict_noted: false };
        self.described.insert(key, DescribedObject::Storage(described));
        Ok(id)
    }

    /// The name of a device. Cached, since any number of storages may share it.
    fn device(&mut self, location: Handle) -> Option<Arc<str>> {
        let text = short_string(self.values, location)?;
        Some(self.devices.entry(location).or_insert_with(|| text.into()).clone())
    }

    /// A slice of a storage with a key of its own (torch before 0.4): `[key, offset, numel]`.
    fn storage_view(
        &mut self,
        root: StorageSlice,
        class: Class,
        [key, offset, numel]: [Handle; 3],
    ) -> Result<StorageSlice> {
        let key = short_string(self.values, key)
            .ok_or_else(|| Error::new(Code::StorageKey, "a view's key is not a string"))?;
        let (offset, numel) = (self.int(offset, "view's offset")?, self.int(numel, "view's size")?);
        let slice = root.view(key, offset, numel)?;
        match self.described.entry(key) {
            Entry::Vacant(entry) => {
                entry.insert(DescribedObject::View(slice, class));
                Ok(slice)
            }
            Entry::Occupied(entry) => match entry.get() {
                DescribedObject::View(seen, seen_class) if (*seen, *seen_class) == (slice, class) => {
                    Ok(slice)
                }
                DescribedObject::View(..) => {
                    Err(error!(Code::StorageConflict, "view {key} has two conflicting descriptions"))
                }
                DescribedObject::Storage(_) => Err(both(key)),
            },
        }
    }
}

impl DescribedStorage {
    /// Fails with `StorageConflict` where a key is described again in another way (torch 2.15's rule for typed storages).
    fn check_conflict(&self, key: &str, class: Class, numel: i64) -> Result<()> {
        let name = |(dtype, quantized): Class| quantized.unwrap_or(dtype.name());
        let is_empty = self.numel == 0 && numel == 0;
        if self.class != class && !is_empty {
            let (seen, other) = (name(self.class), name(class));
            bail!(Code::StorageConflict, "storage {key} is {seen} in one place and {other} in another");
        }
        if self.numel != numel {
            let seen = self.numel;
            let text = format!("storage {key} holds {seen} element(s) in one place and {numel} in another");
            return Err(Error::new(Code::StorageConflict, text));
        }
        Ok(())
    }
}

/// The error for a key of a storage that is also one of a view.
fn both(key: &str) -> Error {
    error!(Code::StorageConflict, "{key} is the key of a storage and of a view")
}

/// The number that a persistent id is: an integer, or its digits (`legacy_load` calls `int`).
fn key(values: &Values, pid: Handle) -> Option<i64> {
    match values.get(pid) {
        Value::Int(key) => Some(key),
        _ => short_string(values, pid).filter(|key| is_key(key))?.parse().ok(),
    }
}

/// Whether a key is a decimal number as torch writes it, without sign and leading zeros.
fn is_key(key: &str) -> bool {
    !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_digit()) && (key == "0" || !key.starts_with('0'))
}
