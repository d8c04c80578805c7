//! Interprets the calls of a pickle: which rebuild a tensor, which construct a container, and which remain opaque data.
//!
//! The callable and the arguments of a call precede it, so one pass in program order interprets all calls, without recursion.
//! Argument forms follow `torch/_utils.py` and `torch/_tensor.py`. A known function with arguments in a wrong form is an error;
//! an unknown function is [`Meaning::Opaque`].

mod embedded;
mod numpy;
mod pre_0_4;
mod quantized;
mod rebuild;
mod sparse;
mod storage;

use std::collections::HashMap;
use std::sync::Arc;

pub(super) use self::numpy::NumpyType;
use self::storage::{DescribedStorage, StorageSlice};
use super::extra::{Extra, SparseLayout};
use super::known::{Known, Rebuild, lookup};
use super::script::ScriptClasses;
use super::torch_legacy::SingleStorage;
use super::{Location, Storage, Tensor};
use crate::error::{Code, Error, Result};
use crate::limits::Limits;
use crate::parallel::Cancel;
use crate::pickle::{Call, GlobalId, Handle, Text, Value, Values};

/// The maximum length, in bytes, of a string that is a key, a device or the like. Any number of calls may share one string, so
/// its length is checked before it is read.
pub(super) const SHORT_STRING_MAX_BYTES: usize = 256;

/// The number of calls between two checks for cancellation.
const CANCEL_CHECK_INTERVAL_CALLS: usize = 1 << 12;

/// The interpretation of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Meaning {
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
    /// `torch.Size`.
    Size,
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

/// The form of persistent ids: five items in a zip archive, six in a legacy stream (torch/serialization.py: `persistent_load`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum PersistentIdForm {
    /// `('storage', class, key, location, numel)`.
    #[default]
    Archive,
    /// `('storage', class, key, location, numel, view)`, and `('module', class, file, source)`.
    Legacy,
}

/// Finds the storage with this key and this size in bytes, as the pickle states it.
pub(super) type Locate<'a> = &'a dyn Fn(&str, u64) -> Result<Found>;

/// What is known of the location of a storage while its pickle is interpreted.
#[derive(Clone, Debug)]
pub(super) enum Found {
    /// Its location.
    At(Location),
    /// Its position in the list of storage keys of a legacy stream. The location follows from the sizes of those before it.
    Listed(usize),
}

impl Storage<Found> {
    /// The storage with its location. Fails where that is not known.
    pub(super) fn located(self) -> Result<Storage> {
        let Storage { location, nbytes, numel, big_endian, device } = self;
        match location {
            Found::At(location) => Ok(Storage { location, nbytes, numel, big_endian, device }),
            Found::Listed(_) => Err(Error::new(Code::InternalError, "a storage was not located")),
        }
    }
}

/// The interpretation of all calls of one pickle.
#[derive(Debug, Default)]
pub(super) struct Meanings {
    /// The form of persistent ids.
    pub(super) form: PersistentIdForm,
    /// The interpretation of each call, by call id.
    pub(super) calls: Vec<Meaning>,
    /// The known globals, by global id.
    pub(super) globals: Vec<Option<Known>>,
    /// By persistent id, a storage that is a value of the tree itself and not part of a tensor, as a 1-D tensor.
    pub(super) bare: HashMap<Handle, u32>,
    pub(super) tensors: Vec<Tensor>,
    /// The further properties of tensors that have any, by tensor number.
    pub(super) extras: HashMap<u32, Extra>,
    pub(super) storages: Vec<Storage<Found>>,
    pub(super) notes: Vec<String>,
    /// The TorchScript classes of the pickle's values.
    pub(super) scripts: ScriptClasses,
}

impl Meanings {
    /// The class of `('module', class, file, source)`, a persistent id that refers to the class itself. It is always a global.
    pub(super) fn module(&self, values: &Values, pid: Handle) -> Option<Handle> {
        if self.form != PersistentIdForm::Legacy {
            return None;
        }
        let Value::Tuple(&[tag, class, _, _]) = values.get(pid) else { return None };
        let is_tag = matches!(values.get(tag), Value::Str(tag) if tag.as_str() == Some("module"));
        (is_tag && matches!(values.get(class), Value::Global(_))).then_some(class)
    }
}

/// Interprets calls in program order, and adds storages as calls name them.
pub(super) struct CallInterpreter<'a> {
    values: &'a Values,
    limits: &'a Limits,
    cancel: Cancel,
    locate: Locate<'a>,
    storages_by_key: HashMap<&'a str, DescribedStorage>,
    /// Storage views with keys of their own, as torch before 0.4 wrote them.
    views: HashMap<&'a str, StorageSlice>,
    /// Whether a list holds only pairs, and whether a string is latin-1. Cached, since any number of calls may share them.
    pairs: HashMap<Handle, bool>,
    latin1: HashMap<Handle, bool>,
    /// Whether a list holds only numbers.
    numbers: HashMap<Handle, bool>,
    /// The latin-1 lengths of strings that encode bytes.
    lengths: HashMap<Handle, u64>,
    /// The devices of storages.
    devices: HashMap<Handle, Arc<str>>,
    /// The storage in bytes, or in a string that encodes bytes. Cached, since any number of calls may share them.
    embedded: HashMap<Handle, Option<SingleStorage>>,
    out: Meanings,
}

/// The known global of each global id.
fn globals(values: &Values) -> Vec<Option<Known>> {
    let named = values.globals().map(|(id, _)| values.global(id));
    named.map(|global| lookup(global.module, global.name)).collect()
}

impl<'a> CallInterpreter<'a> {
    /// Interprets every call of `values`. Fails on the first call of a known function with arguments in a wrong form.
    pub(super) fn new(
        values: &'a Values,
        limits: &'a Limits,
        form: PersistentIdForm,
        locate: Locate<'a>,
        cancel: &Cancel,
    ) -> Result<CallInterpreter<'a>> {
        let mut interpreter = CallInterpreter::empty(values, limits, form, locate, cancel.clone());
        // Calls of torch before 0.4, whose data a later BUILD sets. A tensor that another one contains is created after it, so they
        // are interpreted last to first.
        let mut deferred = Vec::new();
        for (id, _) in values.calls() {
            if id.index().is_multiple_of(CANCEL_CHECK_INTERVAL_CALLS) {
                cancel.check()?;
            }
            let call = values.call(id);
            if let Some(Known::TensorClass(class)) = interpreter.known(call.callable) {
                deferred.push((id, class));
            }
            let meaning = interpreter.call(&call).and_then(|meaning| check_item_opcodes(meaning, &call));
            let meaning = meaning.map_err(|error| error.at(call.offset))?;
            interpreter.out.calls.push(meaning);
            let tensors = u64::try_from(interpreter.out.tensors.len()).unwrap_or(u64::MAX);
            Limits::check("tensors", limits.tensors, tensors)?;
        }
        for (id, class) in deferred.into_iter().rev() {
            let call = values.call(id);
            let tensor = interpreter.pre_0_4_tensor(class, &call).map_err(|error| error.at(call.offset))?;
            if let (Some(tensor), Some(meaning)) = (tensor, interpreter.out.calls.get_mut(id.index())) {
                *meaning = check_item_opcodes(Meaning::Tensor(tensor), &call)
                    .map_err(|error| error.at(call.offset))?;
            }
        }
        Ok(interpreter)
    }

    /// Sets the TorchScript classes of the pickle's values.
    pub(super) fn set_scripts(&mut self, scripts: ScriptClasses) {
        self.out.scripts = scripts;
    }

    /// As [`new`](CallInterpreter::new), without rebuilding tensors: a call that rebuilds one is a [`Meaning::Record`] where its
    /// arguments have the right form. It never fails; only whether a call is opaque is valid.
    pub(super) fn by_form(
        values: &'a Values,
        limits: &'a Limits,
        form: PersistentIdForm,
        locate: Locate<'a>,
    ) -> CallInterpreter<'a> {
        let mut interpreter = CallInterpreter::empty(values, limits, form, locate, Cancel::default());
        interpreter.out.calls.reserve(values.calls().len());
        for (id, _) in values.calls() {
            let call = values.call(id);
            let meaning = match (interpreter.known(call.callable), values.get(call.args)) {
                (Some(Known::Rebuild(rebuild)), Value::Tuple(args))
                    if interpreter.has_form(rebuild, args) =>
                {
                    Ok(Meaning::Record)
                }
                // The effect of `_load_from_bytes` is that of its bytes, which a scan reads by itself.
                (Some(Known::Rebuild(_) | Known::LoadFromBytes), _) => Ok(Meaning::Opaque),
                (Some(Known::TensorClass(class)), _) if interpreter.is_pre_0_4_tensor(class, &call) => {
                    Ok(Meaning::Record)
                }
                _ => interpreter.call(&call),
            };
            interpreter.out.calls.push(meaning.unwrap_or(Meaning::Opaque));
        }
        interpreter
    }

    /// An interpreter that has read no call yet.
    fn empty(
        values: &'a Values,
        limits: &'a Limits,
        form: PersistentIdForm,
        locate: Locate<'a>,
        cancel: Cancel,
    ) -> CallInterpreter<'a> {
        CallInterpreter {
            values,
            limits,
            cancel,
            locate,
            storages_by_key: HashMap::new(),
            views: HashMap::new(),
            pairs: HashMap::new(),
            latin1: HashMap::new(),
            numbers: HashMap::new(),
            lengths: HashMap::new(),
            devices: HashMap::new(),
            embedded: HashMap::new(),
            out: Meanings { form, globals: globals(values), ..Meanings::default() },
        }
    }

    /// The interpretation of the calls so far.
    pub(super) fn meanings(&self) -> &Meanings {
        &self.out
    }

    /// The interpretation of all calls.
    pub(super) fn finish(self) -> Meanings {
        self.out
    }

    /// The known global that a value is; `None` for any other value.
    pub(super) fn known(&self, handle: Handle) -> Option<Known> {
        match self.values.get(handle) {
            Value::Global(id) => self.global(id),
            _ => None,
        }
    }

    fn global(&self, id: GlobalId) -> Option<Known> {
        self.out.globals.get(id.index()).copied().flatten()
    }

    /// Interprets one call.
    fn call(&mut self, call: &Call<'a>) -> Result<Meaning> {
        if let Value::PersistentId(pid) = self.values.get(call.callable)
            && self.out.module(self.values, pid).is_none()
        {
            return Err(Error::new(Code::PersistentId, "the callable is a persistent id"));
        }
        let Value::Tuple(args) = self.values.get(call.args) else { return Ok(Meaning::Opaque) };
        let args: &'a [Handle] = args;
        Ok(match self.known(call.callable) {
            Some(Known::Rebuild(Rebuild::Sparse)) => self.sparse(args)?,
            Some(Known::Rebuild(rebuild)) => match self.rebuild(rebuild, args)? {
                Some(tensor) => {
                    if !call.states.is_empty() {
                        self.extra(tensor).states.extend_from_slice(call.states);
                    }
                    Meaning::Tensor(tensor)
                }
                None => Meaning::Opaque,
            },
            Some(Known::LoadFromBytes) => return self.embedded_storage(call, args),
            Some(kind @ (Known::OrderedDict | Known::Dict | Known::Counter)) => match args {
                [] => Meaning::Dict(kind),
                [from] if self.is_pairs(*from) => Meaning::Dict(kind),
                _ => Meaning::Opaque,
            },
            Some(kind @ Known::DefaultDict) => match args {
                [] | [_] => Meaning::Dict(kind),
                [_, from] if self.is_pairs(*from) => Meaning::Dict(kind),
                _ => Meaning::Opaque,
            },
            Some(kind @ (Known::List | Known::Set | Known::FrozenSet)) => match args {
                [] => Meaning::Sequence(kind),
                [from] if self.items(*from).is_some() => Meaning::Sequence(kind),
                _ => Meaning::Opaque,
            },
            Some(kind @ Known::Deque) => match args {
                [] => Meaning::Sequence(kind),
                [from] if self.items(*from).is_some() => Meaning::Sequence(kind),
                [from, limit] if self.items(*from).is_some() && self.is_count(*limit) => {
                    Meaning::Sequence(kind)
                }
                _ => Meaning::Opaque,
            },
            Some(Known::Size) => match args {
                [sizes] if matches!(self.values.get(*sizes), Value::Tuple(_) | Value::List(_)) => {
                    Meaning::Size
                }
                _ => Meaning::Opaque,
            },
            Some(Known::Encode) if self.is_latin1(args) => Meaning::Bytes,
            Some(Known::Bytes) if args.is_empty() => Meaning::Bytes,
            Some(Known::ByteArray) if args.is_empty() || self.is_latin1(args) => Meaning::ByteArray,
            Some(Known::ByteArray) => match args {
                [from] if self.is_bytes(*from) => Meaning::ByteArray,
                _ => Meaning::Opaque,
            },
            Some(Known::Complex) => match args {
                [re, im] if self.is_real(*re) && self.is_real(*im) => Meaning::Complex,
                _ => Meaning::Opaque,
            },
            Some(
                known @ (Known::NumpyDtype
                | Known::NumpyReconstruct
                | Known::NumpyFromBuffer
                | Known::NumpyScalar),
            ) => return self.numpy(known, call, args),
            Some(Known::Device) if self.is_device(args) => Meaning::Record,
            Some(Known::Record) if args.len() <= 3 && args.iter().all(|&arg| self.is_small_scalar(arg)) => {
                Meaning::Record
            }
            _ => Meaning::Opaque,
        })
    }

    /// Whether a value is a dict or a list of pairs, which `dict(...)` accepts.
    fn is_pairs(&mut self, handle: Handle) -> bool {
        let values = self.values;
        match values.get(handle) {
            Value::Dict(_) => true,
            Value::List(pairs) | Value::Tuple(pairs) => *self.pairs.entry(handle).or_insert_with(|| {
                pairs.iter().all(|&pair| {
                    matches!(values.get(pair), Value::Tuple(pair) | Value::List(pair) if pair.len() == 2)
                })
            }),
            _ => false,
        }
    }

    fn items(&self, handle: Handle) -> Option<&'a [Handle]> {
        match self.values.get(handle) {
            Value::List(items) | Value::Tuple(items) | Value::Set(items) | Value::FrozenSet(items) => {
                Some(items)
            }
            _ => None,
        }
    }

    /// Whether a value is bytes, or a call of `_codecs.encode` that returns bytes.
    fn is_bytes(&self, handle: Handle) -> bool {
        match self.values.get(handle) {
            Value::Bytes(_) => true,
            Value::Call(id) => self.out.calls.get(id.index()) == Some(&Meaning::Bytes),
            _ => false,
        }
    }

    fn is_count(&self, handle: Handle) -> bool {
        matches!(self.values.get(handle), Value::None | Value::Int(_))
    }

    fn is_real(&self, handle: Handle) -> bool {
        matches!(self.values.get(handle), Value::Float(_) | Value::Int(_))
    }

    /// Whether arguments name a device, as letters and a number: `('cpu')`, `('cuda:1')` or `('cuda', 1)`.
    fn is_device(&self, args: &[Handle]) -> bool {
        let (name, index) = match *args {
            [name] => (name, None),
            [name, index] => (name, Some(index)),
            _ => return false,
        };
        let Value::Str(name) = self.values.get(name) else { return false };
        let Some(name) =
            Some(name).filter(|name| name.as_bytes().len() <= SHORT_STRING_MAX_BYTES).and_then(Text::as_str)
        else {
            return false;
        };
        let (letters, number) = name.split_once(':').unwrap_or((name, "0"));
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let is_index_valid =
            index.is_none_or(|index| !name.contains(':') && matches!(self.values.get(index), Value::Int(_)));
        is_index_valid
            && is_number(number)
            && !letters.is_empty()
            && letters.bytes().all(|byte| byte.is_ascii_lowercase())
    }

    /// Whether a value is None, a bool, an int or a short string.
    fn is_small_scalar(&self, handle: Handle) -> bool {
        match self.values.get(handle) {
            Value::None | Value::Bool(_) | Value::Int(_) => true,
            Value::Str(text) => text.as_bytes().len() <= SHORT_STRING_MAX_BYTES,
            _ => false,
        }
    }

    /// Whether arguments are `(text, 'latin1')` with latin-1 characters only. Any other codec would call into the codec registry.
    fn is_latin1(&mut self, args: &[Handle]) -> bool {
        let &[handle, codec] = args else { return false };
        let (Value::Str(text), Value::Str(codec)) = (self.values.get(handle), self.values.get(codec)) else {
            return false;
        };
        let is_encodable = || text.as_str().is_some_and(|text| text.chars().all(|c| u32::from(c) <= 0xff));
        // pickle.py writes "latin1", _pickle.c "latin-1".
        matches!(codec.as_bytes(), b"latin1" | b"latin-1")
            && if text.as_bytes().len() <= SHORT_STRING_MAX_BYTES {
                is_encodable()
            } else {
                *self.latin1.entry(handle).or_insert_with(is_encodable)
            }
    }
}

/// Fails with `PickleType` on SETITEM of a value without items and on APPEND to a value that cannot grow: a reader that knows only
/// the class name would take a tensor with items for a dict (CVE-2026-24747).
fn check_item_opcodes(meaning: Meaning, call: &Call<'_>) -> Result<Meaning> {
    let (items, appended) = (!call.items.is_empty(), !call.appended.is_empty());
    let is_wrong_type = match meaning {
        Meaning::Opaque => false,
        Meaning::Dict(_) => appended,
        Meaning::Sequence(_) => items,
        _ => items || appended,
    };
    if is_wrong_type {
        let text = "an opcode sets items of, or appends to, a value of another type";
        return Err(Error::new(Code::PickleType, text));
    }
    Ok(meaning)
}
