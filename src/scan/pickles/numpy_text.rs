//! NumPy arrays of fixed-length strings: `dtype('U4')` and `dtype('S4')`. The loader keeps them as data; NumPy builds them from
//! bytes alone.
//!
//! The size and the flags in a dtype's state must be those of its name. NumPy trusts them, and a flag tells it that the elements
//! are pointers (numpy/_core/src/multiarray/descriptor.c: `arraydescr_setstate`).

use super::understanding::Understanding;
use crate::num::to_u64;
use crate::pickle::{Call, CallKind, Handle, Value};

/// The bytes of a character of `U`, which is UCS-4.
const UNICODE_CHARACTER_BYTES: u64 = 4;
/// `NPY_NEEDS_INIT`, the flag of strings.
const NEEDS_INIT: i64 = 8;

impl Understanding<'_> {
    /// Whether a call makes a dtype of strings.
    pub(super) fn is_text_dtype(&self, call: &Call<'_>) -> bool {
        self.text_size(call).is_some()
    }

    /// The bytes of an element of the dtype of strings that a call makes.
    fn text_size(&self, call: &Call<'_>) -> Option<u64> {
        let Value::Tuple(&[name, _, _]) = self.values.get(call.args) else { return None };
        let name = self.text(name)?.as_str().filter(|name| name.len() <= 8)?;
        let size = match name.split_at_checked(1)? {
            ("U", length) => length.parse::<u32>().map(u64::from).ok()?.checked_mul(UNICODE_CHARACTER_BYTES),
            ("S", length) => length.parse::<u32>().map(u64::from).ok(),
            _ => None,
        }?;
        let &[state] = call.states else { return None };
        let Value::Tuple(&[version, order, base, names, fields, stated, alignment, flags]) =
            self.values.get(state.value)
        else {
            return None;
        };
        let int = |handle| match self.values.get(handle) {
            Value::Int(value) => Some(value),
            _ => None,
        };
        let is_none = |handle| matches!(self.values.get(handle), Value::None);
        let order = self.text(order)?;
        let holds = int(version) == Some(3)
            && matches!(order.as_bytes(), b"<" | b">" | b"|" | b"=")
            && [base, names, fields].into_iter().all(is_none)
            && int(stated).and_then(|stated| u64::try_from(stated).ok()) == Some(size)
            && matches!(int(alignment), Some(1 | 4))
            && matches!(int(flags), Some(0 | NEEDS_INIT));
        holds.then_some(size)
    }

    /// Whether a call makes an array of strings.
    pub(super) fn is_text_array(&mut self, call: &Call<'_>) -> bool {
        let &[state] = call.states else { return false };
        let Value::Tuple(&[version, shape, dtype, fortran, bytes]) = self.values.get(state.value) else {
            return false;
        };
        let (Value::Tuple(sizes), Value::Call(dtype)) = (self.values.get(shape), self.values.get(dtype))
        else {
            return false;
        };
        let dtype = self.values.call(dtype);
        if !self.is_named(dtype.callable, "numpy", "dtype") || dtype.kind != CallKind::Reduce {
            return false;
        }
        let size = |&handle: &Handle| match self.values.get(handle) {
            Value::Int(size) => u64::try_from(size).ok(),
            _ => None,
        };
        let nbytes = self.text_size(&dtype).and_then(|itemsize| {
            sizes.iter().try_fold(itemsize, |product, handle| product.checked_mul(size(handle)?))
        });
        matches!(self.values.get(version), Value::Int(1))
            && matches!(self.values.get(fortran), Value::Bool(_))
            && sizes.len() <= 32
            && nbytes.is_some()
            && nbytes == self.literal_len(bytes)
            && self.is_empty_array(call)
    }

    /// The length of bytes that stand in the pickle. Cached, since any number of arrays may share a string.
    fn literal_len(&mut self, bytes: Handle) -> Option<u64> {
        if !self.is_literal_bytes(bytes) {
            return None;
        }
        let values = self.values;
        match values.get(bytes) {
            Value::Bytes(bytes) => Some(to_u64(bytes.len())),
            Value::Call(id) => match values.get(values.call(id).args) {
                Value::Tuple(&[text, _]) => Some(*self.latin1_lengths.entry(text).or_insert_with(|| {
                    // A byte is a character of Latin-1.
                    match values.get(text) {
                        Value::Str(text) => to_u64(text.to_string_lossy().chars().count()),
                        _ => 0,
                    }
                })),
                _ => Some(0),
            },
            _ => None,
        }
    }
}
