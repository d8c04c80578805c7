//! The cost of an object tree in Python: bytes of memory, and comparisons of keys whose hashes collide.
//!
//! The bytes are an upper estimate of what 64-bit CPython 3.11 allocates for an object, with the header of the garbage collector,
//! and of the export's own record of it.

use std::collections::HashMap;

use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::index::Object;

/// Bytes of an object, without those that it refers to. Tensors count as 0: the limit `tensors` bounds them.
pub(super) fn bytes(object: &Object<'_>) -> u64 {
    let (own, count, per_item) = match object {
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
    u64::try_from(count).unwrap_or(u64::MAX).saturating_mul(per_item).saturating_add(own)
}

/// Counts hash collisions among the keys of one mapping or set. Hashes of strings and bytes are salted, but a file can choose the
/// hashes of numbers, and of tuples and frozen sets of numbers. A key that collides with n others is compared with all of them.
pub(super) struct HashCollisions(Option<HashMap<isize, u64>>);

impl HashCollisions {
    /// The largest container whose collisions are not counted, as they cost too little.
    const UNCOUNTED_MAX_KEYS: usize = 1024;

    /// For a container of so many keys.
    pub(super) fn new(len: usize) -> HashCollisions {
        HashCollisions((len > HashCollisions::UNCOUNTED_MAX_KEYS).then(HashMap::new))
    }

    /// Adds a key; returns the number of earlier keys with the same hash. Fails for a key that is not hashable.
    pub(super) fn add(&mut self, key: &Bound<'_, PyAny>) -> PyResult<u64> {
        let Some(counts) = &mut self.0 else { return Ok(0) };
        if key.is_instance_of::<PyString>() {
            return Ok(0);
        }
        let count = counts.entry(key.hash()?).or_insert(0);
        let collisions = *count;
        *count = collisions.saturating_add(1);
        Ok(collisions)
    }
}
