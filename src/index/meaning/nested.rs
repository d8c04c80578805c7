//! Storages as torch writes them into a pickle that is not its own (torch/storage.py: `__reduce__`): a call of
//! `torch.storage._load_from_bytes` on the bytes of a legacy stream, which is that storage and nothing else.
//!
//! The stream is read by the reader of such files, under the same limits. Its values go once its storage is placed, so there
//! is never more than one beside the outer pickle's, and all streams together are no longer than that pickle. A stream cannot
//! hold another: in the pickles of a legacy stream the call is of no known form.

use std::sync::Arc;

use super::storage::Spot;
use super::{Ids, Meaning, Reader};
use crate::bytes::Source;
use crate::container::{Format, sniff};
use crate::error::{Code, Error, Kind, Result};
use crate::index::known::Known;
use crate::index::torch_legacy::{Lone, read_lone};
use crate::index::tree::{Object, View};
use crate::index::{Options, Place, Storage, Tensor, Unknown};
use crate::limits::Limits;
use crate::pickle::{Call, Handle, Value};

impl<'a> Reader<'a> {
    /// The storage that `_load_from_bytes` would make; a call on what is no legacy stream is not understood.
    pub(super) fn nested(&mut self, call: &Call<'a>, args: &[Handle]) -> Result<Meaning> {
        let Some((bytes, key)) = self.stream(args) else { return Ok(Meaning::Opaque) };
        if self.out.ids == Ids::Legacy || !call.states.is_empty() {
            return Ok(Meaning::Opaque);
        }
        if !self.nested.contains_key(&key) {
            let count = u64::try_from(self.nested.len()).unwrap_or(u64::MAX).saturating_add(1);
            Limits::check("entries", self.limits.entries, count)?;
            let found = self.read_stream(bytes).map_err(|error| blame(error, call.offset))?;
            self.nested.insert(key, found);
        }
        let Some(Some(Lone { storage, dtype, .. })) = self.nested.get(&key) else {
            return Ok(Meaning::Opaque);
        };
        let Place::Region(region) = storage.place else { return Ok(Meaning::Opaque) };
        let storage = Storage { place: Place::Value(bytes, region.start()), ..storage.clone() };
        let number = u32::try_from(self.out.storages.len()).unwrap_or(u32::MAX);
        let whole = Tensor::whole(*dtype, &[storage.numel], number, storage.nbytes)?;
        self.out.storages.push(storage);
        self.push(whole).map(Meaning::Storage)
    }

    /// Whether a value is the result of a call of `_load_from_bytes`, on whatever bytes.
    pub(super) fn is_nested(&self, handle: Handle) -> bool {
        match self.values.get(handle) {
            Value::Call(id) => self.known(self.values.call(id).callable) == Some(Known::LoadFromBytes),
            _ => false,
        }
    }

    /// The storage that such a call made.
    pub(super) fn nested_storage(&self, handle: Handle) -> Result<Spot> {
        let made = match self.values.get(handle) {
            Value::Call(id) => self.out.calls.get(id.index()),
            _ => None,
        };
        let tensor = match made {
            Some(&Meaning::Storage(tensor)) => usize::try_from(tensor).ok(),
            _ => None,
        };
        let tensor = tensor.and_then(|tensor| self.out.tensors.get(tensor)).ok_or_else(|| {
            let text = "a tensor's storage is a call of torch.storage._load_from_bytes on what is no legacy stream of torch";
            let note = "torch writes such a stream there: the pickle is damaged, made by hand, or a newer torch's.";
            Error::new(Code::PersistentId, text).note(note)
        })?;
        let storage = tensor.storage();
        Ok(Spot { storage, dtype: tensor.dtype(), start: 0, nbytes: self.nbytes(storage) })
    }

    /// The name of the class of such a storage.
    pub(super) fn nested_class(&self, handle: Handle) -> Option<&str> {
        let Value::Call(id) = self.values.get(handle) else { return None };
        let Value::Tuple(args) = self.values.get(self.values.call(id).args) else { return None };
        let (_, key) = self.stream(args)?;
        self.nested.get(&key)?.as_ref().map(|found| &*found.class)
    }

    /// The one argument where it is bytes, and what they are known by: any number of calls may make bytes of one text.
    fn stream(&self, args: &[Handle]) -> Option<(Handle, Handle)> {
        let &[bytes] = args else { return None };
        let key = match self.values.get(bytes) {
            Value::Bytes(_) => bytes,
            Value::Call(id) if self.is_bytes(bytes) => match self.values.get(self.values.call(id).args) {
                Value::Tuple(&[text, _]) => text,
                _ => return None,
            },
            _ => return None,
        };
        Some((bytes, key))
    }

    /// Reads bytes as a legacy stream; `None` where they do not start as one.
    fn read_stream(&self, bytes: Handle) -> Result<Option<Lone>> {
        let view = View { values: self.values, meanings: &self.out };
        let Object::Bytes(bytes) = view.get(bytes)? else { return Ok(None) };
        let source = Source::memory(Arc::new(bytes));
        if !matches!(sniff(&source), Ok(Format::LegacyTorch)) {
            return Ok(None);
        }
        let (limits, cancel) = (self.limits.clone(), self.cancel.clone());
        let options = Options { limits, cancel, unknown: Unknown::Error, ..Options::default() };
        read_lone(&source, &options).map(Some)
    }
}

/// An error of a stream as one of the call at `offset`.
fn blame(error: Error, offset: u64) -> Error {
    let error = error.inside("in the bytes for torch.storage._load_from_bytes", offset);
    match error.kind() {
        Kind::Format | Kind::Disallowed | Kind::Unsupported => error.note(
            "torch writes one storage there and nothing else: the file is damaged or was made by hand.",
        ),
        _ => error,
    }
}
