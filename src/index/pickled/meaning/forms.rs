//! The forms of arguments: whether a known callable accepts them, as CPython's would at the moment of the call.

use super::{CallInterpreter, Meaning, SHORT_STRING_MAX_BYTES, short_string};
use crate::index::pickled::known::Known;
use crate::pickle::{Call, CallKind, Handle, Value, Values};

impl<'a> CallInterpreter<'a> {
    /// Whether a known callable is called with its arguments. NEWOBJ calls `cls.__new__(cls, *args)`: a function has no `__new__` of its
    /// own, and the `__new__` of a container ignores the arguments, so that the result is empty.
    pub(super) fn reads_args(&self, call: &Call<'a>, args: &[Handle]) -> bool {
        if !matches!(call.kind, CallKind::NewObj | CallKind::NewObjEx) {
            return true;
        }
        let Some(known) = self.known(call.callable) else { return false };
        let has_kwargs = call.kwargs.is_some_and(|kwargs| match self.get(kwargs) {
            Value::Dict(pairs) => !pairs.is_empty(),
            _ => true,
        });
        !has_kwargs
            && match known {
                Known::Rebuild(_)
                | Known::LoadFromBytes
                | Known::Encode
                | Known::NumpyReconstruct
                | Known::NumpyFromBuffer
                | Known::NumpyScalar => false,
                Known::OrderedDict
                | Known::Counter
                | Known::DefaultDict
                | Known::Dict
                | Known::List
                | Known::Deque
                | Known::Set
                | Known::ByteArray => args.is_empty(),
                _ => true,
            }
    }

    /// Whether a value is a dict or a list of pairs, which `dict(...)` accepts, with keys that are known to differ or to be equal.
    pub(super) fn is_pairs(&mut self, handle: Handle) -> bool {
        let (values, len) = match self.get(handle) {
            Value::Dict(_) => return true,
            Value::List(pairs) | Value::Tuple(pairs) => (self.values, pairs.len()),
            _ => return false,
        };
        let is_pair = |&pair: &Handle| match values.get(pair) {
            Value::Tuple(&[key, _]) => values.is_comparable_key(key),
            // One that grew may have had another length when it was read.
            Value::List(&[key, _]) => values.is_comparable_key(key) && !values.has_versions(pair),
            _ => false,
        };
        let count = self.pairs.entry(handle).or_insert_with(|| leading(values, handle, is_pair));
        *count >= len
    }

    /// Whether a value is a list, a tuple or a set.
    pub(super) fn is_items(&self, handle: Handle) -> bool {
        self.is_sequence(handle) || matches!(self.values.get(handle), Value::Set(_) | Value::FrozenSet(_))
    }

    /// Whether a value is a list or a tuple. A set has another order in Python.
    pub(super) fn is_sequence(&self, handle: Handle) -> bool {
        matches!(self.values.get(handle), Value::List(_) | Value::Tuple(_))
    }

    /// Whether a value is bytes, or a call of `_codecs.encode` that returns bytes.
    pub(super) fn is_bytes(&self, handle: Handle) -> bool {
        match self.values.get(handle) {
            Value::Bytes(_) => true,
            Value::Call(id) => self.out.calls.get(id.index()) == Some(&Meaning::Bytes),
            _ => false,
        }
    }

    pub(super) fn is_count(&self, handle: Handle) -> bool {
        self.values.get(handle) == Value::None || self.values.count_at(handle).is_some()
    }

    pub(super) fn is_real(&self, handle: Handle) -> bool {
        matches!(self.values.get(handle), Value::Float(_) | Value::Int(_))
    }

    /// Whether arguments name a device, as letters and a number: `('cpu')`, `('cuda:1')` or `('cuda', 1)`.
    pub(super) fn is_device(&self, args: &[Handle]) -> bool {
        let (name, index) = match *args {
            [name] => (name, None),
            [name, index] => (name, Some(index)),
            _ => return false,
        };
        let Some(name) = short_string(self.values, name) else { return false };
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
    pub(super) fn is_small_scalar(&self, handle: Handle) -> bool {
        match self.values.get(handle) {
            Value::None | Value::Bool(_) | Value::Int(_) => true,
            Value::Str(text) => text.as_bytes().len() <= SHORT_STRING_MAX_BYTES,
            _ => false,
        }
    }

    /// Whether arguments are `(text, 'latin1')` with latin-1 characters only. Any other codec would call into the codec registry.
    pub(super) fn is_latin1(&mut self, args: &[Handle]) -> bool {
        let &[handle, codec] = args else { return false };
        let (Value::Str(_), Value::Str(codec)) = (self.values.get(handle), self.values.get(codec)) else {
            return false;
        };
        // pickle.py writes "latin1", _pickle.c "latin-1".
        matches!(codec.as_bytes(), b"latin1" | b"latin-1") && self.is_latin1_text(handle)
    }

    /// Whether a value is a string of latin-1 characters only.
    pub(super) fn is_latin1_text(&mut self, handle: Handle) -> bool {
        let Value::Str(text) = self.values.get(handle) else { return false };
        let is_encodable = || text.as_str().is_some_and(|text| text.chars().all(|c| u32::from(c) <= 0xff));
        if text.as_bytes().len() <= SHORT_STRING_MAX_BYTES {
            is_encodable()
        } else {
            *self.latin1.entry(handle).or_insert_with(is_encodable)
        }
    }
}

/// The number of leading items of a list or tuple that pass a test.
pub(super) fn leading(values: &Values, handle: Handle, test: impl Fn(&Handle) -> bool) -> usize {
    match values.get(handle) {
        Value::List(items) | Value::Tuple(items) => {
            items.iter().position(|item| !test(item)).unwrap_or(items.len())
        }
        _ => 0,
    }
}
