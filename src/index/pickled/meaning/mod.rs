//! Interprets the calls of a pickle: which rebuild a tensor, which construct a container, and which remain opaque data.
//!
//! The callable and the arguments of a call precede it, so one pass in program order interprets all calls and BUILDs, without
//! recursion. A callee reads its arguments as they are at that moment, and keeps references to what they contain: a container in
//! which the pickle adds something later is read as it was ([`Values::get_at`]).
//! Argument forms follow `torch/_utils.py` and `torch/_tensor.py`. A known function with arguments in a wrong form is an error;
//! an unknown function is [`Meaning::Opaque`].

mod build;
mod distributed;
pub(super) mod embedded;
mod forms;
mod numpy;
mod pre_0_4;
mod quantized;
mod rebuild;
mod sparse;
mod storage;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::dtype::DType;
use crate::error::{Code, Result, bail};
use crate::index::pickled::known::{Known, Rebuild, lookup};
use crate::index::pickled::legacy::SingleStorage;
use crate::index::pickled::meanings::{
    Found, Keyed, KeyedObjects, Locate, Meaning, Meanings, NumpyType, PersistentIdForm, PersistentIds,
    SHORT_STRING_MAX_BYTES, StorageSlice, short_string,
};
use crate::index::pickled::script::ScriptClasses;
use crate::index::pickled::tree::View;
use crate::limits::Limits;
use crate::parallel::Cancel;
use crate::pickle::{Call, CallId, GlobalId, Handle, Snapshot, Value, Values};

/// The number of calls between two checks for cancellation.
const CANCEL_CHECK_INTERVAL_CALLS: usize = 1 << 12;

/// What the first persistent id with a key described. torch keeps storages and views in one table, and a key refers to what it referred
/// to first, whatever a later id says of it (torch/serialization.py: `deserialized_objects`, `loaded_storages`). A key that is described
/// in two ways is refused.
enum DescribedObject {
    Storage(DescribedStorage),
    /// A slice of a storage with a key of its own (torch before 0.4).
    View(StorageSlice, Class),
}

/// The element type of a storage class, and its name if it is a quantized one.
type Class = (DType, Option<&'static str>);

/// A storage as the first persistent id described it.
struct DescribedStorage {
    id: u32,
    class: Class,
    numel: i64,
    device: Handle,
    /// Whether a note says that another id names another device.
    device_conflict_noted: bool,
}

/// Interprets calls in program order, and adds storages as calls name them.
pub(crate) struct CallInterpreter<'a> {
    values: &'a Values,
    limits: &'a Limits,
    cancel: Cancel,
    locate: Locate<'a>,
    /// The tensors and storages that persistent ids are the keys of.
    keys: HashMap<i64, Keyed>,
    /// The 1-D tensors of such storages that are values of the tree themselves.
    bare_keyed: HashMap<StorageSlice, u32>,
    /// The offset of the call or BUILD that is being interpreted.
    now: u64,
    /// The storages and views that persistent ids describe.
    described: HashMap<&'a str, DescribedObject>,
    /// The persistent ids that were resolved, in no particular order.
    resolved: Vec<Handle>,
    /// Whether the storages that persistent ids describe are big-endian.
    big_endian: bool,
    /// The number of leading items of a list that are pairs, or finite numbers, and whether a string is latin-1. Cached, since any
    /// number of calls may share them.
    pairs: HashMap<Handle, usize>,
    numbers: HashMap<Handle, usize>,
    latin1: HashMap<Handle, bool>,
    /// Whether an array of uint16 has the form of Paddle.
    has_paddle_uint16: bool,
    /// The NumPy dtypes that were used before a BUILD set their state.
    used_dtypes: HashSet<CallId>,
    /// The properties of a tensor among the keys of a dict.
    properties: HashMap<Handle, Vec<(usize, &'static str)>>,
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
    /// Interprets every call and BUILD of `values`. Fails on the first call of a known function with arguments in a wrong form, and
    /// on the first BUILD that sets a state that rustload does not follow.
    pub(crate) fn new(
        values: &'a Values,
        limits: &'a Limits,
        ids: PersistentIds<'a>,
        cancel: &Cancel,
    ) -> Result<CallInterpreter<'a>> {
        let PersistentIds { form, locate, big_endian, objects } = ids;
        let KeyedObjects { by_key, tensors, storages } = objects;
        let is_keyed = form == PersistentIdForm::Keyed;
        let mut interpreter = CallInterpreter {
            values,
            limits,
            cancel: cancel.clone(),
            locate,
            keys: by_key,
            bare_keyed: HashMap::new(),
            now: 0,
            described: HashMap::new(),
            resolved: Vec::new(),
            big_endian,
            pairs: HashMap::new(),
            numbers: HashMap::new(),
            latin1: HashMap::new(),
            has_paddle_uint16: false,
            used_dtypes: HashSet::new(),
            properties: HashMap::new(),
            lengths: HashMap::new(),
            devices: HashMap::new(),
            embedded: HashMap::new(),
            out: Meanings { form, globals: globals(values), tensors, storages, ..Meanings::default() },
        };
        if is_keyed {
            interpreter.resolve_keys()?;
        }
        let mut builds = values.builds().iter().peekable();
        for (id, _) in values.calls() {
            let call = values.call(id);
            while let Some(build) = builds.next_if(|build| build.offset < call.offset) {
                interpreter.build(build).map_err(|error| error.at(build.offset))?;
            }
            if id.index().is_multiple_of(CANCEL_CHECK_INTERVAL_CALLS) {
                cancel.check()?;
            }
            interpreter.now = call.offset;
            let meaning = interpreter.call(&call).and_then(|meaning| check_item_opcodes(meaning, &call));
            let meaning = meaning.map_err(|error| error.at(call.offset))?;
            interpreter.out.calls.push(meaning);
            let tensors = u64::try_from(interpreter.out.tensors.len()).unwrap_or(u64::MAX);
            Limits::check("tensors", limits.tensors, tensors)?;
        }
        for build in builds {
            interpreter.build(build).map_err(|error| error.at(build.offset))?;
        }
        if !is_keyed {
            interpreter.resolve_others()?;
        }
        Ok(interpreter)
    }

    /// Sets the TorchScript classes of the pickle's values.
    pub(crate) fn set_scripts(&mut self, scripts: ScriptClasses) {
        self.out.scripts = scripts;
    }

    /// The interpretation of the calls so far.
    pub(crate) fn view(&self) -> View<'_> {
        View { values: self.values, meanings: &self.out }
    }

    /// The interpretation of all calls.
    pub(crate) fn finish(self) -> Meanings {
        self.out
    }

    /// The known global that a value is; `None` for any other value.
    pub(crate) fn known(&self, handle: Handle) -> Option<Known> {
        match self.values.get(handle) {
            Value::Global(id) => self.global(id),
            _ => None,
        }
    }

    fn global(&self, id: GlobalId) -> Option<Known> {
        self.out.globals.get(id.index()).copied().flatten()
    }

    /// A value as the call or BUILD that is being interpreted finds it.
    fn get(&self, handle: Handle) -> Value<'a> {
        self.values.get_at(Snapshot { value: handle, offset: self.now })
    }

    /// Interprets one call.
    fn call(&mut self, call: &Call<'a>) -> Result<Meaning> {
        if let Value::PersistentId(pid) = self.values.get(call.callable)
            && self.out.module(self.values, pid).is_none()
        {
            bail!(Code::PersistentId, "the callable is a persistent id");
        }
        let Value::Tuple(args) = self.values.get(call.args) else { return Ok(Meaning::Opaque) };
        let args: &'a [Handle] = args;
        if !self.reads_args(call, args) {
            return Ok(Meaning::Opaque);
        }
        let Some(known) = self.known(call.callable) else { return Ok(Meaning::Opaque) };
        let tensor = |found: Option<u32>| found.map_or(Meaning::Opaque, Meaning::Tensor);
        Ok(match (known, args) {
            (Known::Rebuild(Rebuild::Sparse), _) => self.sparse(args)?,
            (Known::Rebuild(rebuild), _) => tensor(self.rebuild(rebuild, args)?),
            (Known::TensorClass(class), _) => tensor(self.old_tensor(class, args)?),
            (Known::LoadFromBytes, _) => self.embedded_storage(call, args)?,
            (Known::OrderedDict | Known::Dict | Known::Counter | Known::DefaultDict, []) => {
                Meaning::Dict(known)
            }
            (Known::OrderedDict | Known::Dict, &[from]) if self.is_pairs(from) => Meaning::Dict(known),
            // It counts the items of anything but a mapping.
            (Known::Counter, &[from]) if matches!(self.values.get(from), Value::Dict(_)) => {
                Meaning::Dict(known)
            }
            (Known::DefaultDict, [_]) => Meaning::Dict(known),
            (Known::DefaultDict, &[_, from]) if self.is_pairs(from) => Meaning::Dict(known),
            (Known::Set | Known::FrozenSet | Known::List | Known::Deque, []) => Meaning::Sequence(known),
            (Known::Set | Known::FrozenSet, &[from]) if self.is_items(from) => Meaning::Sequence(known),
            (Known::List | Known::Deque, &[from]) if self.is_sequence(from) => Meaning::Sequence(known),
            (Known::Deque, &[from, limit]) if self.is_sequence(from) && self.is_count(limit) => {
                Meaning::Sequence(known)
            }
            (Known::Size, &[sizes]) if self.is_sequence(sizes) => Meaning::Tuple,
            (Known::Tuple, []) => Meaning::Tuple,
            (Known::Tuple, &[items]) => match self.paddle_tensor(items) {
                Some(tensor) => Meaning::Tensor(tensor),
                None if self.is_sequence(items) => Meaning::Tuple,
                None => Meaning::Opaque,
            },
            (Known::Encode, _) if self.is_latin1(args) => Meaning::Bytes,
            (Known::Bytes, []) => Meaning::Bytes,
            (Known::ByteArray, []) => Meaning::ByteArray,
            (Known::ByteArray, &[from]) if self.is_bytes(from) => Meaning::ByteArray,
            (Known::ByteArray, _) if self.is_latin1(args) => Meaning::ByteArray,
            (Known::Complex, &[re, im]) if self.is_real(re) && self.is_real(im) => Meaning::Complex,
            (
                Known::NumpyDtype | Known::NumpyReconstruct | Known::NumpyFromBuffer | Known::NumpyScalar,
                _,
            ) => self.numpy(known, args)?,
            (Known::Device, _) if self.is_device(args) => Meaning::Record,
            (Known::Record, _) if args.len() <= 3 && args.iter().all(|&arg| self.is_small_scalar(arg)) => {
                Meaning::Record
            }
            _ => Meaning::Opaque,
        })
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
        bail!(Code::PickleType, "an opcode sets items of, or appends to, a value of another type");
    }
    Ok(meaning)
}
