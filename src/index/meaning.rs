//! What the calls of a pickle mean: which put a tensor together, which are containers, and which stay inert data.
//!
//! A call's callable and arguments were made before it, so one pass in program order decides all of them, without recursion.
//! Argument forms follow `torch/_utils.py` and `torch/_tensor.py`; a known function with a wrong form is an error, an unknown
//! one is [`Meaning::Opaque`].

use std::collections::HashMap;

use super::known::{Known, Rebuild, lookup};
use super::validate::{Flags, RawTensor, Sizes, Tensor};
use super::{Place, Storage};
use crate::dtype::DType;
use crate::error::{Code, Error, Result};
use crate::limits::Limits;
use crate::pickle::{Call, GlobalId, Handle, Text, Value, Values};

/// Bytes of the longest text that a device, a location or the like has. Any number of calls may share one text, so it is
/// bounded before it is looked at.
pub(super) const SHORT: usize = 256;

/// Pairs in a tensor's metadata dict; torch writes `conj` and `neg`.
const PROPERTIES: usize = 16;

/// What one call means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    /// This tensor.
    Tensor(u32),
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
    pub(super) storages: Vec<Storage>,
    pub(super) notes: Vec<String>,
}

/// A storage as the first persistent id described it.
struct Seen {
    id: u32,
    dtype: DType,
    numel: i64,
    location: Handle,
    /// Whether it was noted that another location is said too.
    moved: bool,
}

/// The part of a storage that a persistent id means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Spot {
    storage: u32,
    /// The element type of the id's class.
    dtype: DType,
    /// Where the part starts; only a view does not start at 0.
    start: u64,
    nbytes: u64,
}

/// Reads calls one by one, and storages as calls name them.
pub(super) struct Reader<'a> {
    values: &'a Values,
    limits: &'a Limits,
    locate: Locate<'a>,
    keys: HashMap<&'a str, Seen>,
    /// Views of storages by their own keys, as torch before 0.4 wrote them.
    views: HashMap<&'a str, Spot>,
    /// Whether a list holds pairs only, whether a text is latin-1: asked once, however many calls share it.
    pairs: HashMap<Handle, bool>,
    latin1: HashMap<Handle, bool>,
    out: Meanings,
}

impl<'a> Reader<'a> {
    /// Interprets every call of `values`.
    pub(super) fn new(
        values: &'a Values,
        limits: &'a Limits,
        ids: Ids,
        locate: Locate<'a>,
    ) -> Result<Reader<'a>> {
        let globals = (values.globals())
            .map(|(id, _)| values.global(id))
            .map(|global| lookup(global.module, global.name))
            .collect();
        let out = Meanings { ids, globals, ..Meanings::default() };
        let mut reader = Reader {
            values,
            limits,
            locate,
            keys: HashMap::new(),
            views: HashMap::new(),
            pairs: HashMap::new(),
            latin1: HashMap::new(),
            out,
        };
        for (id, _) in values.calls() {
            let call = values.call(id);
            let meaning = reader.call(&call).map_err(|error| error.at(call.offset))?;
            reader.out.calls.push(meaning);
        }
        Ok(reader)
    }

    /// What is known so far.
    pub(super) fn meanings(&self) -> &Meanings {
        &self.out
    }

    /// Makes one-dimensional tensors of storages that stand in the tree by themselves.
    pub(super) fn add_bare(&mut self, pids: &[Handle]) -> Result<()> {
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

    /// All that was found out.
    pub(super) fn finish(self) -> Meanings {
        self.out
    }

    fn known(&self, handle: Handle) -> Option<Known> {
        match self.values.get(handle) {
            Value::Global(id) => self.global(id),
            _ => None,
        }
    }

    fn global(&self, id: GlobalId) -> Option<Known> {
        self.out.globals.get(id.index()).copied().flatten()
    }

    fn call(&mut self, call: &Call<'a>) -> Result<Meaning> {
        let Value::Tuple(args) = self.values.get(call.args) else { return Ok(Meaning::Opaque) };
        let args: &'a [Handle] = args;
        Ok(match self.known(call.callable) {
            Some(Known::Rebuild(rebuild)) => match self.rebuild(rebuild, args)? {
                Some(tensor) => Meaning::Tensor(tensor),
                None => Meaning::Opaque,
            },
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
            Some(Known::ByteArray) if args.is_empty() || self.is_latin1(args) => Meaning::ByteArray,
            Some(Known::ByteArray) => match args {
                [from] if matches!(self.values.get(*from), Value::Bytes(_)) => Meaning::ByteArray,
                _ => Meaning::Opaque,
            },
            Some(Known::Complex) => match args {
                [re, im] if self.is_real(*re) && self.is_real(*im) => Meaning::Complex,
                _ => Meaning::Opaque,
            },
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
        codec.as_bytes() == b"latin1"
            && if text.as_bytes().len() <= SHORT {
                fits()
            } else {
                *self.latin1.entry(handle).or_insert_with(fits)
            }
    }

    /// The tensor that a known function puts together; `None` where a part of it is of an unknown class.
    fn rebuild(&mut self, rebuild: Rebuild, args: &'a [Handle]) -> Result<Option<u32>> {
        let wrong =
            || Error::new(Code::PickleType, format!("{rebuild:?} is called with {} argument(s)", args.len()));
        match (rebuild, args) {
            (Rebuild::Tensor, &[storage, offset, size, stride]) => {
                let spot = self.storage_of(storage)?;
                self.tensor(spot, spot.dtype, [offset, size, stride], Flags::default())
            }
            (Rebuild::TensorV2, &[storage, offset, size, stride, grad, _, ref rest @ ..])
                if rest.len() <= 1 =>
            {
                let spot = self.storage_of(storage)?;
                let flags = self.flags(grad, rest.first())?;
                self.tensor(spot, spot.dtype, [offset, size, stride], flags)
            }
            (Rebuild::TensorV3, &[storage, offset, size, stride, grad, _, dtype, ref rest @ ..])
                if rest.len() <= 1 =>
            {
                let Some(Known::Dtype(dtype)) = self.known(dtype) else { return Ok(None) };
                let spot = self.storage_of(storage)?;
                if spot.nbytes.checked_rem(dtype.itemsize()) != Some(0) {
                    let text =
                        format!("a storage of {} byte(s) holds no whole number of {dtype}", spot.nbytes);
                    return Err(Error::new(Code::StorageBounds, text));
                }
                let flags = self.flags(grad, rest.first())?;
                self.tensor(spot, dtype, [offset, size, stride], flags)
            }
            (Rebuild::Parameter, &[tensor, grad, _])
            | (Rebuild::ParameterWithState, &[tensor, grad, _, _]) => {
                let requires_grad = self.bool(grad)?;
                let Some(found) = self.tensor_at(tensor) else { return Ok(None) };
                let mut tensor = found.clone();
                tensor.flags = Flags { parameter: true, requires_grad, ..tensor.flags };
                return self.push(tensor).map(Some);
            }
            (Rebuild::FromType, &[function, _, inner, _]) => {
                let Some(Known::Rebuild(rebuild)) = self.known(function) else { return Ok(None) };
                let Value::Tuple(inner) = self.values.get(inner) else { return Err(wrong()) };
                if rebuild == Rebuild::FromType {
                    return Ok(None);
                }
                return self.rebuild(rebuild, inner);
            }
            _ => return Err(wrong()),
        }
        .map(Some)
    }

    fn tensor_at(&self, handle: Handle) -> Option<&Tensor> {
        let Value::Call(id) = self.values.get(handle) else { return None };
        match self.out.calls.get(id.index()) {
            Some(&Meaning::Tensor(tensor)) => self.out.tensors.get(usize::try_from(tensor).ok()?),
            _ => None,
        }
    }

    fn tensor(&mut self, spot: Spot, dtype: DType, place: [Handle; 3], flags: Flags) -> Result<u32> {
        let [offset, size, stride] = place;
        let (shape, strides) = (self.ints(size, "size")?, self.ints(stride, "stride")?);
        let offset = self.int(offset, "offset")?;
        let raw = RawTensor { dtype, shape, strides, offset, storage: spot.storage, flags };
        self.push(raw.prove(spot.nbytes, self.limits)?.shifted(spot.start)?)
    }

    fn push(&mut self, tensor: Tensor) -> Result<u32> {
        let id = u32::try_from(self.out.tensors.len()).unwrap_or(u32::MAX);
        Limits::check("tensors", self.limits.tensors, u64::from(id).saturating_add(1))?;
        self.out.tensors.push(tensor);
        Ok(id)
    }

    fn nbytes(&self, storage: u32) -> u64 {
        let found = usize::try_from(storage).ok().and_then(|id| self.out.storages.get(id));
        found.map_or(0, |storage| storage.nbytes)
    }

    fn flags(&self, grad: Handle, metadata: Option<&Handle>) -> Result<Flags> {
        let mut flags = Flags { requires_grad: self.bool(grad)?, ..Flags::default() };
        let Some(&metadata) = metadata else { return Ok(flags) };
        let pairs = match self.values.get(metadata) {
            Value::Dict(pairs) => pairs,
            Value::None => &[],
            _ => return Err(Error::new(Code::PickleType, "a tensor's metadata is no dict")),
        };
        if pairs.len() > PROPERTIES {
            let text = format!("a tensor carries {} properties, more than there are", pairs.len());
            return Err(Error::new(Code::TensorMetadata, text));
        }
        for &(key, value) in pairs {
            let Value::Str(key) = self.values.get(key) else {
                return Err(Error::new(Code::PickleType, "a tensor's metadata has a key that is no text"));
            };
            match key.as_str() {
                Some("conj") => flags.conjugate = self.bool(value)?,
                Some("neg") => flags.negative = self.bool(value)?,
                _ => {
                    let text = format!("a tensor carries the unknown property {:?}", key.to_string_lossy());
                    return Err(Error::new(Code::TensorMetadata, text));
                }
            }
        }
        Ok(flags)
    }

    fn bool(&self, handle: Handle) -> Result<bool> {
        match self.values.get(handle) {
            Value::Bool(value) => Ok(value),
            _ => Err(Error::new(Code::PickleType, "a tensor's flag is no bool")),
        }
    }

    fn int(&self, handle: Handle, what: &str) -> Result<i64> {
        match self.values.get(handle) {
            Value::Int(value) => Ok(value),
            _ => Err(Error::new(Code::PickleType, format!("a tensor's {what} is no integer of 64 bits"))),
        }
    }

    fn ints(&self, handle: Handle, what: &str) -> Result<Sizes> {
        match self.values.get(handle) {
            Value::Tuple(items) => {
                Limits::check("rank", self.limits.rank, u64::try_from(items.len()).unwrap_or(u64::MAX))?;
                items.iter().map(|&item| self.int(item, what)).collect()
            }
            _ => Err(Error::new(Code::PickleType, format!("a tensor's {what} is no tuple"))),
        }
    }

    /// The storage that a tensor's first argument names.
    fn storage_of(&mut self, handle: Handle) -> Result<Spot> {
        match self.values.get(handle) {
            Value::PersistentId(pid) => self.storage(pid),
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
        self.out.storages.push(Storage { place, nbytes, numel: count });
        self.keys.insert(key, Seen { id, dtype, numel, location, moved: false });
        Ok(id)
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
