//! What the calls of a pickle mean: which put a tensor together, which are containers, and which stay inert data.
//!
//! A call's callable and arguments were made before it, so one pass in program order decides all of them, without recursion.
//! Argument forms follow `torch/_utils.py` and `torch/_tensor.py`; a known function with a wrong form is an error, an unknown
//! one is [`Meaning::Opaque`].

mod nested;
mod numpy;
mod old;
mod quantized;
mod rebuild;
mod sparse;
mod storage;

use std::collections::HashMap;
use std::sync::Arc;

pub(super) use self::numpy::NumpyType;
use self::storage::{Seen, Spot};
use super::extra::{Extra, SparseLayout};
use super::known::{Known, Rebuild, lookup};
use super::script::ScriptClasses;
use super::torch_legacy::Lone;
use super::{Place, Storage, Tensor};
use crate::error::{Code, Error, Result};
use crate::limits::Limits;
use crate::parallel::Cancel;
use crate::pickle::{Call, GlobalId, Handle, Text, Value, Values};

/// Bytes of the longest text that a device, a location or the like has. Any number of calls may share one text, so it is
/// bounded before it is looked at.
pub(super) const SHORT: usize = 256;

/// Calls between two looks at whether the work was asked to stop.
const TICK: usize = 1 << 12;

/// What one call means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    /// This tensor.
    Tensor(u32),
    /// A storage whose bytes lie in the pickle, as the one-dimensional tensor that it is where it stands by itself.
    Storage(u32),
    /// A sparse tensor of this layout.
    Sparse(SparseLayout),
    /// A mapping of this kind.
    Dict(Known),
    /// A list, a deque or a set.
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
    /// A small inert value, no surprise in a checkpoint.
    Record,
    /// Data of an unknown class.
    Opaque,
}

/// The form of persistent ids: five items in an archive, six in a legacy stream (torch/serialization.py: `persistent_load`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Ids {
    /// `('storage', class, key, location, numel)`.
    #[default]
    Archive,
    /// `('storage', class, key, location, numel, view)`, and `('module', class, file, source)`.
    Legacy,
}

/// Where the bytes of a storage with this key are; the number of bytes is what the pickle states.
pub(super) type Locate<'a> = &'a dyn Fn(&str, u64) -> Result<Place>;

/// All that the calls of one pickle mean.
#[derive(Debug, Default)]
pub(super) struct Meanings {
    /// The form of persistent ids.
    pub(super) ids: Ids,
    /// By call id.
    pub(super) calls: Vec<Meaning>,
    /// By global id.
    pub(super) globals: Vec<Option<Known>>,
    /// By persistent id: a storage that stands in the tree by itself, as a one-dimensional tensor.
    pub(super) bare: HashMap<Handle, u32>,
    pub(super) tensors: Vec<Tensor>,
    /// By tensor, where there is anything to say beside its place.
    pub(super) extras: HashMap<u32, Extra>,
    pub(super) storages: Vec<Storage>,
    pub(super) notes: Vec<String>,
    /// What is known of classes of TorchScript.
    pub(super) scripts: ScriptClasses,
}

impl Meanings {
    /// The class of `('module', class, file, source)`, a persistent id that stands for the class itself; always a global.
    pub(super) fn module(&self, values: &Values, pid: Handle) -> Option<Handle> {
        if self.ids != Ids::Legacy {
            return None;
        }
        let Value::Tuple(&[tag, class, _, _]) = values.get(pid) else { return None };
        let is_tag = matches!(values.get(tag), Value::Str(tag) if tag.as_str() == Some("module"));
        (is_tag && matches!(values.get(class), Value::Global(_))).then_some(class)
    }
}

/// Reads calls one by one, and storages as calls name them.
pub(super) struct Reader<'a> {
    values: &'a Values,
    limits: &'a Limits,
    cancel: Cancel,
    locate: Locate<'a>,
    keys: HashMap<&'a str, Seen>,
    /// Views of storages by their own keys, as torch before 0.4 wrote them.
    views: HashMap<&'a str, Spot>,
    /// Whether a list holds pairs only, whether a text is latin-1: asked once, however many calls share it.
    pairs: HashMap<Handle, bool>,
    latin1: HashMap<Handle, bool>,
    /// Whether a list holds numbers only.
    numbers: HashMap<Handle, bool>,
    /// The lengths of texts that stand for bytes.
    lengths: HashMap<Handle, u64>,
    /// The locations of storages.
    devices: HashMap<Handle, Arc<str>>,
    /// What was found in bytes or in a text that stands for bytes: read once, however many calls share it.
    nested: HashMap<Handle, Option<Lone>>,
    out: Meanings,
}

/// What is known of each global.
fn globals(values: &Values) -> Vec<Option<Known>> {
    let named = values.globals().map(|(id, _)| values.global(id));
    named.map(|global| lookup(global.module, global.name)).collect()
}

impl<'a> Reader<'a> {
    /// Interprets every call of `values`.
    pub(super) fn new(
        values: &'a Values,
        limits: &'a Limits,
        ids: Ids,
        locate: Locate<'a>,
        cancel: &Cancel,
    ) -> Result<Reader<'a>> {
        let mut reader = Reader::before(values, limits, ids, locate, cancel.clone());
        // Of these, BUILD sets the data, which may come after the call. Inner ones come later than those around them.
        let mut late = Vec::new();
        for (id, _) in values.calls() {
            if id.index().is_multiple_of(TICK) {
                cancel.check()?;
            }
            let call = values.call(id);
            if let Some(Known::TensorClass(class)) = reader.known(call.callable) {
                late.push((id, class));
            }
            let meaning = reader.call(&call).and_then(|meaning| fits(meaning, &call));
            let meaning = meaning.map_err(|error| error.at(call.offset))?;
            reader.out.calls.push(meaning);
            let tensors = u64::try_from(reader.out.tensors.len()).unwrap_or(u64::MAX);
            Limits::check("tensors", limits.tensors, tensors)?;
        }
        for (id, class) in late.into_iter().rev() {
            let call = values.call(id);
            let tensor = reader.old_tensor(class, &call).map_err(|error| error.at(call.offset))?;
            if let (Some(tensor), Some(meaning)) = (tensor, reader.out.calls.get_mut(id.index())) {
                *meaning = fits(Meaning::Tensor(tensor), &call).map_err(|error| error.at(call.offset))?;
            }
        }
        Ok(reader)
    }

    /// Says what is known of classes of TorchScript.
    pub(super) fn set_scripts(&mut self, scripts: ScriptClasses) {
        self.out.scripts = scripts;
    }

    /// As `new`, but tensors are not put together: a call that would make one is judged by its form, and only whether calls
    /// have a meaning is known then.
    pub(super) fn forms(values: &'a Values, limits: &'a Limits, ids: Ids, locate: Locate<'a>) -> Reader<'a> {
        let mut reader = Reader::before(values, limits, ids, locate, Cancel::default());
        reader.out.calls.reserve(values.calls().len());
        for (id, _) in values.calls() {
            let call = values.call(id);
            let meaning = match (reader.known(call.callable), values.get(call.args)) {
                (Some(Known::Rebuild(rebuild)), Value::Tuple(args)) if reader.has_form(rebuild, args) => {
                    Ok(Meaning::Record)
                }
                // `_load_from_bytes` does what its bytes say, and a scan reads those by itself.
                (Some(Known::Rebuild(_) | Known::LoadFromBytes), _) => Ok(Meaning::Opaque),
                (Some(Known::TensorClass(class)), _) if reader.is_old_tensor(class, &call) => {
                    Ok(Meaning::Record)
                }
                _ => reader.call(&call),
            };
            reader.out.calls.push(meaning.unwrap_or(Meaning::Opaque));
        }
        reader
    }

    /// A reader that has read no call yet.
    fn before(
        values: &'a Values,
        limits: &'a Limits,
        ids: Ids,
        locate: Locate<'a>,
        cancel: Cancel,
    ) -> Reader<'a> {
        Reader {
            values,
            limits,
            cancel,
            locate,
            keys: HashMap::new(),
            views: HashMap::new(),
            pairs: HashMap::new(),
            latin1: HashMap::new(),
            numbers: HashMap::new(),
            lengths: HashMap::new(),
            devices: HashMap::new(),
            nested: HashMap::new(),
            out: Meanings { ids, globals: globals(values), ..Meanings::default() },
        }
    }

    /// What is known so far.
    pub(super) fn meanings(&self) -> &Meanings {
        &self.out
    }

    /// All that was found out.
    pub(super) fn finish(self) -> Meanings {
        self.out
    }

    pub(super) fn known(&self, handle: Handle) -> Option<Known> {
        match self.values.get(handle) {
            Value::Global(id) => self.global(id),
            _ => None,
        }
    }

    fn global(&self, id: GlobalId) -> Option<Known> {
        self.out.globals.get(id.index()).copied().flatten()
    }

    fn call(&mut self, call: &Call<'a>) -> Result<Meaning> {
        if let Value::PersistentId(pid) = self.values.get(call.callable)
            && self.out.module(self.values, pid).is_none()
        {
            return Err(Error::new(Code::PersistentId, "what a persistent id stands for is called"));
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
            Some(Known::LoadFromBytes) => return self.nested(call, args),
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
            Some(Known::Record) if args.len() <= 3 && args.iter().all(|&arg| self.is_plain(arg)) => {
                Meaning::Record
            }
            _ => Meaning::Opaque,
        })
    }

    /// A dict, or a list of pairs: what `dict(...)` takes.
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

    /// Bytes, as they are or as `_codecs.encode` writes them.
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

    /// `('cpu')`, `('cuda:1')` or `('cuda', 1)`: letters, and a number.
    fn is_device(&self, args: &[Handle]) -> bool {
        let (name, index) = match *args {
            [name] => (name, None),
            [name, index] => (name, Some(index)),
            _ => return false,
        };
        let Value::Str(name) = self.values.get(name) else { return false };
        let Some(name) = Some(name).filter(|name| name.as_bytes().len() <= SHORT).and_then(Text::as_str)
        else {
            return false;
        };
        let (letters, number) = name.split_once(':').unwrap_or((name, "0"));
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let whole =
            index.is_none_or(|index| !name.contains(':') && matches!(self.values.get(index), Value::Int(_)));
        whole
            && is_number(number)
            && !letters.is_empty()
            && letters.bytes().all(|byte| byte.is_ascii_lowercase())
    }

    fn is_plain(&self, handle: Handle) -> bool {
        match self.values.get(handle) {
            Value::None | Value::Bool(_) | Value::Int(_) => true,
            Value::Str(text) => text.as_bytes().len() <= SHORT,
            _ => false,
        }
    }

    /// `(text, 'latin1')` with characters that latin-1 has; any other codec would be a call into the codec registry.
    fn is_latin1(&mut self, args: &[Handle]) -> bool {
        let &[handle, codec] = args else { return false };
        let (Value::Str(text), Value::Str(codec)) = (self.values.get(handle), self.values.get(codec)) else {
            return false;
        };
        let fits = || text.as_str().is_some_and(|text| text.chars().all(|c| u32::from(c) <= 0xff));
        // pickle.py writes the one, _pickle.c the other.
        matches!(codec.as_bytes(), b"latin1" | b"latin-1")
            && if text.as_bytes().len() <= SHORT {
                fits()
            } else {
                *self.latin1.entry(handle).or_insert_with(fits)
            }
    }
}

/// Refuses SETITEM on what has no items to set and APPEND on what cannot grow: to a reader that knows the class by its name
/// only, a tensor with items would be a dict (CVE-2026-24747).
fn fits(meaning: Meaning, call: &Call<'_>) -> Result<Meaning> {
    let (items, appended) = (!call.items.is_empty(), !call.appended.is_empty());
    let misfit = match meaning {
        Meaning::Opaque => false,
        Meaning::Dict(_) => appended,
        Meaning::Sequence(_) => items,
        _ => items || appended,
    };
    if misfit {
        let text = "an opcode sets items of, or appends to, a value of another type";
        return Err(Error::new(Code::PickleType, text));
    }
    Ok(meaning)
}
