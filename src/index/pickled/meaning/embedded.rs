//! Embedded storages: torch writes a storage into a pickle other than that of `torch.save` as a call of
//! `torch.storage._load_from_bytes` on the bytes of a legacy stream that consists of this storage (torch/storage.py: `__reduce__`).
//!
//! The reader of legacy streams reads the bytes, under the same limits. The values of a stream are dropped once its storage is
//! located, so at most one stream is in memory beside the outer pickle, and all streams together are no longer than that pickle.
//! Streams do not nest: inside a legacy stream the call has no known form.

use std::sync::Arc;

use super::quantized::quantized_dtype;
use super::{CallInterpreter, Found, Meaning, PersistentIdForm, PersistentIds, StorageSlice};
use crate::bytes::Source;
use crate::container::{Format, sniff};
use crate::error::{Code, Error, Kind, Result, ResultExt};
use crate::index::model::{Location, Options, Storage, Tensor, Unknown};
use crate::index::pickled::known::Known;
use crate::index::pickled::legacy::{self, SingleStorage};
use crate::index::pickled::tree::Object;
use crate::limits::Limits;
use crate::pickle::{Call, Handle, Pickle, Value, Values};

impl<'a> CallInterpreter<'a> {
    /// Interprets a call of `_load_from_bytes` as a storage. A call on bytes that are not a legacy stream is opaque.
    pub(super) fn embedded_storage(&mut self, call: &Call<'a>, args: &[Handle]) -> Result<Meaning> {
        let Some((bytes, key)) = self.embedded_bytes(args) else { return Ok(Meaning::Opaque) };
        if self.out.form == PersistentIdForm::Legacy {
            return Ok(Meaning::Opaque);
        }
        if !self.embedded.contains_key(&key) {
            let count = u64::try_from(self.embedded.len()).unwrap_or(u64::MAX).saturating_add(1);
            Limits::check("entries", self.limits.entries, count)?;
            let stream_storage = self.read_stream(bytes).map_err(|error| at_call(error, call.offset))?;
            self.embedded.insert(key, stream_storage);
        }
        let Some(Some(SingleStorage { storage, dtype, class })) = self.embedded.get(&key) else {
            return Ok(Meaning::Opaque);
        };
        let Storage { location: Found::At(Location::Range(region)), nbytes, numel, big_endian, device } =
            storage
        else {
            return Ok(Meaning::Opaque);
        };
        let location = Found::Value(bytes, region.start());
        let (device, nbytes) = (device.clone(), *nbytes);
        let storage = Storage { location, nbytes, numel: *numel, big_endian: *big_endian, device };
        let number = u32::try_from(self.out.storages.len()).unwrap_or(u32::MAX);
        let tensor = Tensor::contiguous(*dtype, &[storage.numel], number, storage.nbytes)?;
        let quantized = quantized_dtype(class);
        self.out.storages.push(storage);
        let id = self.push(tensor)?;
        if let Some((dtype, _)) = quantized {
            self.out.quantized_storages.insert(id, dtype);
        }
        Ok(Meaning::Storage(id))
    }

    /// Whether a value is a call of `_load_from_bytes`, on any bytes.
    pub(super) fn is_embedded(&self, handle: Handle) -> bool {
        match self.values.get(handle) {
            Value::Call(id) => self.known(self.values.call(id).callable) == Some(Known::LoadFromBytes),
            _ => false,
        }
    }

    /// The storage of such a call. Fails with `PersistentId` where the bytes are not a legacy stream.
    pub(super) fn embedded_slice(&self, handle: Handle) -> Result<StorageSlice> {
        let meaning = match self.values.get(handle) {
            Value::Call(id) => self.out.calls.get(id.index()),
            _ => None,
        };
        let tensor = match meaning {
            Some(&Meaning::Storage(tensor)) => usize::try_from(tensor).ok(),
            _ => None,
        };
        let tensor = tensor.and_then(|tensor| self.out.tensors.get(tensor)).ok_or_else(|| {
            let text = "a tensor's storage is a call of torch.storage._load_from_bytes on bytes that are not a legacy stream of torch";
            let note = "torch writes such a stream there: the pickle is damaged, made by hand, or from a newer torch.";
            Error::new(Code::PersistentId, text).note(note)
        })?;
        let storage = tensor.storage();
        Ok(StorageSlice { storage, dtype: tensor.dtype(), start: 0, nbytes: self.nbytes(storage) })
    }

    /// The class name of such a storage.
    pub(super) fn embedded_class(&self, handle: Handle) -> Option<&str> {
        let Value::Tuple(args) = self.values.get(self.values.call_at(handle)?.args) else { return None };
        let (_, key) = self.embedded_bytes(args)?;
        self.embedded.get(&key)?.as_ref().map(|storage| &*storage.class)
    }

    /// The single argument where it is bytes, and the value to cache the result by: any number of calls may encode one string.
    fn embedded_bytes(&self, args: &[Handle]) -> Option<(Handle, Handle)> {
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

    /// Reads bytes as a legacy stream of one storage; `None` where they do not start as one.
    fn read_stream(&self, bytes: Handle) -> Result<Option<SingleStorage>> {
        let Object::Bytes(bytes) = self.view().get(bytes)? else { return Ok(None) };
        let source = Source::memory(Arc::new(bytes));
        if !matches!(sniff(&source), Ok(Format::LegacyTorch)) {
            return Ok(None);
        }
        let (limits, cancel) = (self.limits.clone(), self.cancel.clone());
        let options = Options { limits, cancel, unknown: Unknown::Error, ..Options::default() };
        read_single_storage(&source, &options).map(Some)
    }
}

/// Whether bytes that stand in a pickle are a legacy stream of one storage, as torch writes it for `_load_from_bytes`.
#[cfg(feature = "scan")]
pub fn holds_storage(values: &Values, handle: Handle, limits: &Limits) -> bool {
    let bytes = match values.get(handle) {
        Value::Bytes(bytes) => Some(bytes.to_vec()),
        Value::Call(id) => match values.get(values.call(id).args) {
            Value::Tuple(&[text, _]) => match values.get(text) {
                Value::Str(text) => text.as_str().and_then(|text| {
                    text.chars().map(|char| u8::try_from(u32::from(char)).ok()).collect::<Option<Vec<u8>>>()
                }),
                _ => None,
            },
            _ => None,
        },
        _ => None,
    };
    let options = Options { limits: limits.clone(), unknown: Unknown::Error, ..Options::default() };
    bytes.is_some_and(|bytes| read_single_storage(&Source::memory(Arc::new(bytes)), &options).is_ok())
}

/// Reads a stream that consists of one storage, as torch writes it into other pickles (torch/storage.py: `__reduce__`).
fn read_single_storage(source: &Source, options: &Options) -> Result<SingleStorage> {
    let not_single = || Error::new(Code::PickleType, "the stream is not a single storage");
    let (head, keys, _) = legacy::open(source, options)?;
    let Pickle { values, root, .. } =
        head.run(legacy::OBJECT, &options.limits).in_member(legacy::PICKLES[legacy::OBJECT])?;
    let is_single = values.globals().len() == 1 && values.calls().len() == 0;
    let (Value::PersistentId(pid), Some((class, _)), true) =
        (values.get(root), values.globals().next(), is_single)
    else {
        return Err(not_single());
    };
    let positions = legacy::positions(&keys);
    let locate = |key: &str, _: u64| legacy::locate(&positions, key);
    let ids = PersistentIds::described(PersistentIdForm::Legacy, &locate);
    let mut interpreter = CallInterpreter::new(&values, &options.limits, ids, &options.cancel)?;
    interpreter.add_bare(&[pid]).in_member(legacy::PICKLES[legacy::OBJECT])?;
    let mut meanings = interpreter.finish();
    let end = legacy::locate_storages(source, &mut meanings.storages, &keys, head.end(), &options.cancel)?;
    legacy::check_end(source, end, options)?;
    match (&meanings.tensors[..], meanings.storages.pop()) {
        // The tensor of a view is only a slice of the storage.
        ([tensor], Some(storage)) if tensor.layout().numel() == storage.numel => {
            let class = values.global(class).name.into();
            Ok(SingleStorage { storage, dtype: tensor.dtype(), class })
        }
        _ => Err(not_single()),
    }
}

/// Adds the offset of the call, and a note, to an error of an embedded stream.
fn at_call(error: Error, offset: u64) -> Error {
    let error = error.inside("in the bytes for torch.storage._load_from_bytes", offset);
    match error.kind() {
        Kind::Format | Kind::Disallowed | Kind::Unsupported => error.note(
            "torch writes one storage there and nothing else: the file is damaged or was made by hand.",
        ),
        _ => error,
    }
}
