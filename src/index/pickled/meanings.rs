//! What the calls and persistent ids of a pickle mean, as data: made by the interpreter of calls, read by the tree and by names.

use std::collections::HashMap;
use std::fmt::Display;
use std::sync::Arc;

use crate::dtype::DType;
use crate::error::{Code, Error, Result};
use crate::index::model::{Extra, Location, SparseLayout, Storage, Tensor, ValueBytes};
use crate::index::pickled::known::Known;
use crate::index::pickled::script::ScriptClasses;
use crate::pickle::{Handle, Value, Values};

/// The maximum length, in bytes, of a string that is a key, a device or the like. Any number of calls may share one string, so
/// its length is checked before it is read.
pub(crate) const SHORT_STRING_MAX_BYTES: usize = 256;

/// A short string; `None` for other values. The pickle module reads byte strings of Python 2 as strings too.
pub(crate) fn short_string(values: &Values, handle: Handle) -> Option<&str> {
    match values.get(handle) {
        Value::Str(text) if text.as_bytes().len() <= SHORT_STRING_MAX_BYTES => text.as_str(),
        _ => None,
    }
}

/// A NumPy dtype that rustload supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NumpyType {
    pub(crate) dtype: DType,
    pub(crate) big_endian: bool,
}

/// The interpretation of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Meaning {
    /// The tensor with this number.
    Tensor(u32),
    /// A storage whose bytes lie in the pickle, as a 1-D tensor.
    Storage(u32),
    /// A sparse tensor of this layout.
    Sparse(SparseLayout),
    /// A mapping of this class.
    Dict(Known),
    /// A list, a deque or a set of this class.
    Sequence(Known),
    /// `torch.Size(sizes)`, `tuple(items)`.
    Tuple,
    /// `_codecs.encode(text, 'latin1')`.
    Bytes,
    /// `bytearray(...)`.
    ByteArray,
    /// `complex(re, im)`.
    Complex,
    /// A NumPy dtype.
    NumpyDtype(NumpyType),
    /// A NumPy scalar and its bytes.
    Scalar(NumpyType, Handle),
    /// A small inert value, usual in a checkpoint.
    Record,
    /// A call of an unknown function, or in an unknown form; kept as data.
    Opaque,
}

/// The form of persistent ids: five items in a zip archive, six in a legacy stream (torch/serialization.py: `persistent_load`), a number
/// in torch 0.1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PersistentIdForm {
    /// `('storage', class, key, location, numel)`.
    #[default]
    Archive,
    /// `('storage', class, key, location, numel, view)`, and `('module', class, file, source)`.
    Legacy,
    /// The number of a tensor or storage that the file describes elsewhere, and `(class, file, source)`.
    Keyed,
}

/// How to read the persistent ids of a pickle.
pub(crate) struct PersistentIds<'a> {
    pub(super) form: PersistentIdForm,
    pub(super) locate: Locate<'a>,
    pub(super) big_endian: bool,
    pub(super) objects: KeyedObjects,
}

impl<'a> PersistentIds<'a> {
    /// Those of a form that describes storages. `locate` finds their bytes.
    pub(crate) fn described(form: PersistentIdForm, locate: Locate<'a>) -> PersistentIds<'a> {
        PersistentIds { form, locate, big_endian: false, objects: KeyedObjects::default() }
    }

    /// Whether the numbers of all storages are big-endian.
    pub(crate) fn big_endian(self, big_endian: bool) -> PersistentIds<'a> {
        PersistentIds { big_endian, ..self }
    }

    /// The numbers of these tensors and storages.
    pub(crate) fn keyed(objects: KeyedObjects) -> PersistentIds<'static> {
        let locate: Locate<'static> =
            &|_, _| Err(Error::new(Code::InternalError, "a storage of torch 0.1 has no key of its own"));
        PersistentIds { form: PersistentIdForm::Keyed, locate, big_endian: false, objects }
    }
}

/// Finds the storage with this key and this size in bytes, as the pickle states it.
pub(crate) type Locate<'a> = &'a dyn Fn(&str, u64) -> Result<Found>;

/// What is known of the location of a storage while its pickle is interpreted.
#[derive(Clone, Debug)]
pub(crate) enum Found {
    /// Its location.
    At(Location),
    /// In the pickle itself: the bytes of this value, from this offset on.
    Value(Handle, u64),
    /// Its position in the list of storage keys of a legacy stream. The location follows from the sizes of those before it.
    Listed(usize),
}

impl Storage<Found> {
    /// The storage with its location; `values` are those of its pickle. Fails where the location is not known.
    pub(crate) fn located<V: ValueBytes + 'static>(self, values: &Arc<V>) -> Result<Storage> {
        let Storage { location, nbytes, numel, big_endian, device } = self;
        let location = match location {
            Found::At(location) => location,
            Found::Value(value, start) => Location::Value(values.clone(), value, start),
            Found::Listed(_) => return Err(Error::new(Code::InternalError, "a storage was not located")),
        };
        Ok(Storage { location, nbytes, numel, big_endian, device })
    }
}

/// The interpretation of all calls of one pickle.
#[derive(Debug, Default)]
pub(crate) struct Meanings {
    /// The form of persistent ids.
    pub(crate) form: PersistentIdForm,
    /// The interpretation of each call, by call id.
    pub(crate) calls: Vec<Meaning>,
    /// The known globals, by global id.
    pub(crate) globals: Vec<Option<Known>>,
    /// By persistent id, a storage that is a value of the tree itself and not part of a tensor, as a 1-D tensor.
    pub(crate) bare: HashMap<Handle, u32>,
    /// The quantized dtype of such a storage, by the number of its 1-D tensor.
    pub(crate) quantized_storages: HashMap<u32, &'static str>,
    /// The persistent ids that are tensors.
    pub(crate) keyed_tensors: HashMap<Handle, u32>,
    pub(crate) tensors: Vec<Tensor>,
    /// The further properties of tensors that have any, by tensor number.
    pub(crate) extras: HashMap<u32, Extra>,
    pub(crate) storages: Vec<Storage<Found>>,
    pub(crate) notes: Vec<String>,
    /// The TorchScript classes of the pickle's values.
    pub(crate) scripts: ScriptClasses,
}

impl Meanings {
    /// The tensor that a persistent id is, or the 1-D tensor of the storage that it is.
    pub(crate) fn tensor_of(&self, pid: Handle) -> Option<u32> {
        self.keyed_tensors.get(&pid).or_else(|| self.bare.get(&pid)).copied()
    }

    /// The class of `('module', class, file, source)`, or in torch 0.1 of `(class, file, source)`: a persistent id that refers to the
    /// class itself. It is always a global.
    pub(crate) fn module(&self, values: &Values, pid: Handle) -> Option<Handle> {
        let is_tag = |tag| matches!(values.get(tag), Value::Str(tag) if tag.as_str() == Some("module"));
        let class = match (self.form, values.get(pid)) {
            (PersistentIdForm::Legacy, Value::Tuple(&[tag, class, _, _])) if is_tag(tag) => class,
            (PersistentIdForm::Keyed, Value::Tuple(&[class, _, _])) => class,
            _ => return None,
        };
        matches!(values.get(class), Value::Global(_)).then_some(class)
    }
}

/// What a number refers to.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Keyed {
    /// The tensor with this number.
    Tensor(u32),
    /// A storage, or a part of one.
    Storage(StorageSlice),
}

/// The tensors and storages that a file describes before its pickle.
#[derive(Debug, Default)]
pub(crate) struct KeyedObjects {
    pub(crate) by_key: HashMap<i64, Keyed>,
    pub(crate) tensors: Vec<Tensor>,
    pub(crate) storages: Vec<Storage<Found>>,
}

/// The slice of a storage that a persistent id refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct StorageSlice {
    pub(crate) storage: u32,
    /// The element type of the id's class.
    pub(crate) dtype: DType,
    /// The first byte; 0 unless the id has a view.
    pub(crate) start: u64,
    pub(crate) nbytes: u64,
}

impl StorageSlice {
    /// The slice that is the view `key` of this one, which begins with its storage. Fails where it reaches outside.
    pub(crate) fn view(self, key: impl Display, offset: i64, numel: i64) -> Result<StorageSlice> {
        let bytes = |elements: i64| u64::try_from(elements).ok()?.checked_mul(self.dtype.itemsize());
        bytes(offset)
            .zip(bytes(numel))
            .filter(|(start, nbytes)| start.checked_add(*nbytes).is_some_and(|end| end <= self.nbytes))
            .map(|(start, nbytes)| StorageSlice { start, nbytes, ..self })
            .ok_or_else(|| {
                let text =
                    format!("view {key} of {numel} element(s) from {offset} reaches outside its storage");
                Error::new(Code::StorageBounds, text)
            })
    }
}
