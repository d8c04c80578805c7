//! Storages as persistent ids name them (torch/serialization.py: `persistent_load`).

use std::sync::Arc;

use super::{Ids, Reader, SHORT};
use crate::dtype::DType;
use crate::error::{Code, Error, Result};
use crate::index::known::Known;
use crate::index::{Storage, Tensor};
use crate::pickle::{Handle, Value, Values};

/// A storage as the first persistent id described it.
pub(super) struct Seen {
    id: u32,
    dtype: DType,
    numel: i64,
    location: Handle,
    /// Whether it was noted that another location is said too.
    moved: bool,
}

/// The part of a storage that a persistent id means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Spot {
    pub(super) storage: u32,
    /// The element type of the id's class.
    pub(super) dtype: DType,
    /// Where the part starts; only a view does not start at 0.
    pub(super) start: u64,
    pub(super) nbytes: u64,
}

impl<'a> Reader<'a> {
    /// Makes one-dimensional tensors of storages that stand in the tree by themselves.
    pub(in crate::index) fn add_bare(&mut self, pids: &[Handle]) -> Result<()> {
        for &pid in pids {
            if self.out.bare.contains_key(&pid) {
                continue;
            }
            let spot = self.storage(pid)?;
            let numel = spot.nbytes.checked_div(spot.dtype.itemsize()).unwrap_or(0);
            let whole = Tensor::whole(spot.dtype, &[numel], spot.storage, spot.nbytes)?;
            let id = self.push(whole.shifted(spot.start)?)?;
            self.out.bare.insert(pid, id);
        }
        Ok(())
    }

    /// The storage that a tensor's first argument names.
    pub(super) fn storage_of(&mut self, handle: Handle) -> Result<Spot> {
        match self.values.get(handle) {
            Value::PersistentId(pid) => self.storage(pid),
            Value::Call(_) if self.is_nested(handle) => self.nested_storage(handle),
            _ => Err(Error::new(Code::PersistentId, "a tensor's storage is no persistent id")),
        }
    }

    /// The storage that a persistent id means. One id may be used any number of times, so all that is looked at is short.
    fn storage(&mut self, pid: Handle) -> Result<Spot> {
        let wrong = |what: &str| Error::new(Code::PersistentId, format!("a persistent id's {what}"));
        let values: &'a Values = self.values;
        let (tag, class, key, location, numel, view) = match (self.out.ids, values.get(pid)) {
            (Ids::Archive, Value::Tuple(&[tag, class, key, location, numel])) => {
                (tag, class, key, location, numel, None)
            }
            (Ids::Legacy, Value::Tuple(&[tag, class, key, location, numel, view])) => {
                (tag, class, key, location, numel, Some(view))
            }
            (Ids::Archive, _) => return Err(wrong("form is not ('storage', class, key, location, numel)")),
            (Ids::Legacy, _) => {
                return Err(wrong("form is not ('storage', class, key, location, numel, view)"));
            }
        };
        if short_text(values, tag) != Some("storage") {
            return Err(wrong("first item is not 'storage'"));
        }
        let Some(Known::Storage(dtype)) = self.known(class) else {
            return Err(wrong("class is no storage class that can be read"));
        };
        // UntypedStorage counts bytes (torch/serialization.py: persistent_load).
        let dtype = dtype.unwrap_or(DType::U8);
        let Value::Str(place) = values.get(location) else { return Err(wrong("location is no text")) };
        if place.as_bytes().len() > SHORT {
            return Err(wrong("location is too long for a device's name"));
        }
        let key = short_text(values, key)
            .filter(|key| is_key(key))
            .ok_or_else(|| Error::new(Code::StorageKey, "a storage's key is no plain decimal number"))?;
        let numel = match values.get(numel) {
            Value::Int(numel) => numel,
            _ => {
                return Err(Error::new(
                    Code::PickleType,
                    "a storage's number of elements is no integer of 64 bits",
                ));
            }
        };
        let storage = self.root_storage(key, dtype, numel, location)?;
        let whole = Spot { storage, dtype, start: 0, nbytes: self.nbytes(storage) };
        match view.map(|view| values.get(view)) {
            None | Some(Value::None) => Ok(whole),
            Some(Value::Tuple(&[view, offset, numel])) => self.view(whole, view, offset, numel),
            Some(_) => Err(wrong("view is neither None nor (key, offset, numel)")),
        }
    }

    /// The storage of a key, described for the first time or again.
    fn root_storage(&mut self, key: &'a str, dtype: DType, numel: i64, location: Handle) -> Result<u32> {
        if let Some(seen) = self.keys.get(key) {
            self.check_conflict(seen, key, dtype, numel)?;
            let id = seen.id;
            let moved = short_text(self.values, seen.location) != short_text(self.values, location);
            if let Some(seen) = self.keys.get_mut(key).filter(|seen| moved && !seen.moved) {
                seen.moved = true;
                self.out.notes.push(format!("storage {key} is said to lie on two devices"));
            }
            return Ok(id);
        }
        let sizes =
            u64::try_from(numel).ok().and_then(|numel| Some((numel, numel.checked_mul(dtype.itemsize())?)));
        let (count, nbytes) = sizes.ok_or_else(|| {
            Error::new(Code::StorageBounds, format!("storage {key} is said to hold {numel} element(s)"))
        })?;
        let place = (self.locate)(key, nbytes)?;
        let id = u32::try_from(self.out.storages.len()).unwrap_or(u32::MAX);
        let device = self.device(location);
        let storage = Storage { place, nbytes, numel: count, big_endian: false, location: device };
        self.out.storages.push(storage);
        self.keys.insert(key, Seen { id, dtype, numel, location, moved: false });
        Ok(id)
    }

    /// A location's text; made once, however many storages share it.
    fn device(&mut self, location: Handle) -> Option<Arc<str>> {
        let text = short_text(self.values, location)?;
        Some(self.devices.entry(location).or_insert_with(|| text.into()).clone())
    }

    /// A part of a storage under a key of its own (torch before 0.4).
    fn view(&mut self, whole: Spot, key: Handle, offset: Handle, numel: Handle) -> Result<Spot> {
        let key = short_text(self.values, key)
            .ok_or_else(|| Error::new(Code::StorageKey, "a view's key is no text"))?;
        let (offset, numel) = (self.int(offset, "view's offset")?, self.int(numel, "view's size")?);
        let bytes = |elements: i64| u64::try_from(elements).ok()?.checked_mul(whole.dtype.itemsize());
        let found = bytes(offset)
            .zip(bytes(numel))
            .filter(|(start, nbytes)| start.checked_add(*nbytes).is_some_and(|end| end <= whole.nbytes))
            .map(|(start, nbytes)| Spot { start, nbytes, ..whole });
        let found = found.ok_or_else(|| {
            let text = format!("view {key} of {numel} element(s) from {offset} reaches outside its storage");
            Error::new(Code::StorageBounds, text)
        })?;
        match self.views.insert(key, found) {
            Some(before) if before != found => {
                Err(Error::new(Code::StorageConflict, format!("view {key} is described in two ways")))
            }
            _ => Ok(found),
        }
    }

    /// One key may be described again, but only in the same way (torch 2.15's rule for typed storages).
    fn check_conflict(&self, seen: &Seen, key: &str, dtype: DType, numel: i64) -> Result<()> {
        if seen.dtype != dtype && self.nbytes(seen.id) > 0 {
            let text = format!("storage {key} is {} in one place and {dtype} in another", seen.dtype);
            return Err(Error::new(Code::StorageConflict, text));
        }
        if seen.dtype == dtype && seen.numel != numel {
            let text =
                format!("storage {key} holds {} element(s) in one place and {numel} in another", seen.numel);
            return Err(Error::new(Code::StorageConflict, text));
        }
        Ok(())
    }
}

/// A text, if it is a short one. Python 2's byte strings count: the pickle room gives them as text.
fn short_text(values: &Values, handle: Handle) -> Option<&str> {
    match values.get(handle) {
        Value::Str(text) if text.as_bytes().len() <= SHORT => text.as_str(),
        _ => None,
    }
}

/// Whether a key is a decimal number as torch writes it: no sign, no leading zero.
fn is_key(key: &str) -> bool {
    !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_digit()) && (key == "0" || !key.starts_with('0'))
}
