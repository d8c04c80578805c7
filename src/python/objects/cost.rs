//! What the object tree costs in Python: bytes of memory, and comparisons of keys that hash alike.
//!
//! The bytes are an estimate from above of what 64-bit CPython 3.11 takes for an object, its share of the garbage collector,
//! and what the export remembers of it.

use std::collections::HashMap;

use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::index::Object;

/// Bytes that an object takes, without what it refers to. Handles of tensors are paid for by the limit `tensors`.
pub(super) fn bytes(object: &Object<'_>) -> u64 {
    let (own, count, each) = match object {
        Object::List(items) => (112, items.len(), 16),
        Object::Tuple(items) => (104, items.len(), 16),
        Object::Set(items) | Object::FrozenSet(items) => (272, items.len(), 40),
        Object::Deque(items, _) => (816, items.len(), 16),
        Object::Dict { entries, .. } if entries.is_empty() => (144, 0, 0),
        Object::Dict { entries, .. } => (304, entries.len(), 64),
        Object::Opaque { call, .. } => {
            let items = call.items.len().saturating_mul(10);
            (512, items.saturating_add(call.appended.len()), 16)
        }
        Object::Str(text) => {
            let bytes = text.as_bytes();
            (96, bytes.len(), if bytes.is_ascii() { 1 } else { 4 })
        }
        Object::Bytes(bytes) | Object::ByteArray(bytes) => (104, bytes.len(), 1),
        Object::BigInt(value) => (72, value.as_le_bytes().len(), 2),
        Object::Int(_) | Object::Uint(_) | Object::Float(_) | Object::Complex(..) => (72, 0, 0),
        Object::Global { name, .. } => (240, name.len(), 1),
        _ => (0, 0, 0),
    };
    u64::try_from(count).unwrap_or(u64::MAX).saturating_mul(each).saturating_add(own)
}

/// The keys of one mapping or set by their hashes. A file cannot choose how texts and bytes hash, but it can choose how
/// numbers do, and tuples and frozen sets of numbers; each key that hashes like n others is compared with all of them.
pub(super) struct Crowd(Option<HashMap<isize, u64>>);

impl Crowd {
    /// Fewer keys than this cost nothing worth counting.
    const FEW: usize = 1024;

    /// For a container of so many keys.
    pub(super) fn of(len: usize) -> Crowd {
        Crowd((len > Crowd::FEW).then(HashMap::new))
    }

    /// How many keys before this one hash alike.
    pub(super) fn met(&mut self, key: &Bound<'_, PyAny>) -> PyResult<u64> {
        let Some(seen) = &mut self.0 else { return Ok(0) };
        if key.is_instance_of::<PyString>() {
            return Ok(0);
        }
        let before = seen.entry(key.hash()?).or_insert(0);
        let met = *before;
        *before = met.saturating_add(1);
        Ok(met)
    }
}
