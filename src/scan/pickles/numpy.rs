//! NumPy's dtypes and arrays: what the schemas do not say. A dtype is one of numbers, of strings of a fixed length, or of records of these,
//! and the size, the fields and the flags in its state agree with its name: NumPy trusts them, reads a field wherever its offset
//! says, and a flag tells it that the elements are pointers (numpy/_core/src/multiarray/descriptor.c: `arraydescr_setstate`).
//!
//! A dtype of objects is of another kind, so that only the state of an array takes one. That has its elements in a list, which NumPy reads
//! and stores without looking at them, and without looking at the list's length (methods.c: `_setlist_pkl`).

use std::collections::HashSet;

use super::proof::Proof;
use crate::dtype::DType;
use crate::index::globals::Row;
use crate::num::to_u64;
use crate::pickle::{Build, Call, CallId, Handle, Snapshot, Value};

/// The bytes of a character of `U`, which is UCS-4.
const UNICODE_CHARACTER_BYTES: i64 = 4;
/// `NPY_NEEDS_INIT`, the flag of strings.
const NEEDS_INIT: i64 = 8;
/// What a dtype of records may have besides: `NPY_NEEDS_PYAPI` and `NPY_ALIGNED_STRUCT`.
const RECORD_FLAGS: i64 = NEEDS_INIT | 16 | 128;
/// The flags of `O`. Without that of lists, NumPy would take bytes of the state for pointers.
const OBJECT_FLAGS: i64 = 63;
/// The longest name of such a dtype.
const NAME_MAX_BYTES: usize = 8;
/// The most fields of a record.
const FIELDS_MAX: usize = 1024;

/// The elements of a dtype, with the bytes of one.
#[derive(Clone, Copy)]
pub(super) enum Elements {
    Numbers(i64),
    /// Of a fixed length.
    Strings(i64),
    /// With fields, which are in the state.
    Records(i64),
    /// Pointers to objects.
    Objects,
}

impl Elements {
    fn itemsize(self) -> i64 {
        match self {
            Elements::Numbers(size) | Elements::Strings(size) | Elements::Records(size) => size,
            Elements::Objects => 8,
        }
    }
}

/// Whether a call whose arguments have the form of its row makes a dtype, an array or a scalar of such elements.
pub(super) fn is_proven(proof: &Proof<'_>, id: CallId, call: &Call<'_>, row: &Row) -> bool {
    let Value::Tuple(args) = proof.values.get(call.args) else { return false };
    match (row.kind, row.how, args) {
        // The size of strings and the fields of records are in the state.
        ("numpy_dtype", _, &[name, ..]) => match elements(proof, name) {
            Some(Elements::Strings(_) | Elements::Records(_)) => proof.values.call(id).states.len() == 1,
            found => found.is_some(),
        },
        ("ndarray", "reconstruct", &[_, shape, _]) => match proof.values.get(shape) {
            Value::Tuple(&[len]) => matches!(proof.values.get(len), Value::Int(0)),
            _ => false,
        },
        _ => true,
    }
}

/// Whether a state of a dtype says what its name says. Only a copy may get one: NumPy shares the others.
pub(super) fn is_dtype_state(proof: &Proof<'_>, call: &Call<'_>, state: Handle) -> bool {
    let (Value::Tuple(args), Value::Tuple(state)) = (proof.values.get(call.args), proof.values.get(state))
    else {
        return false;
    };
    let &[version, order, _, names, fields, size, alignment, ref rest @ ..] = state else { return false };
    let int = |handle| match proof.values.get(handle) {
        Value::Int(value) => Some(value),
        _ => None,
    };
    let is_copy =
        args.get(2).is_some_and(|&copy| matches!(proof.values.get(copy), Value::Bool(true) | Value::Int(1)));
    let order = match proof.values.get(order) {
        Value::Str(order) => order.as_bytes(),
        _ => b"",
    };
    let flags = rest.first().map_or(Some(0), |&flags| int(flags));
    let has_no_fields = [names, fields].iter().all(|&part| proof.values.get(part) == Value::None);
    let agrees = match args.first().and_then(|&name| elements(proof, name)) {
        Some(Elements::Numbers(_)) => {
            int(size) == Some(-1) && int(alignment) == Some(-1) && flags == Some(0) && has_no_fields
        }
        Some(Elements::Strings(len)) => {
            int(size) == Some(len)
                && matches!(int(alignment), Some(1 | 4))
                && matches!(flags, Some(0 | NEEDS_INIT))
                && has_no_fields
        }
        Some(Elements::Records(len)) => {
            int(size) == Some(len)
                && matches!(int(alignment), Some(1 | 2 | 4 | 8 | 16))
                && flags.is_some_and(|flags| flags & !RECORD_FLAGS == 0)
                && order == b"|"
                && are_fields(proof, names, fields, len)
        }
        Some(Elements::Objects) => {
            int(size) == Some(-1)
                && int(alignment) == Some(-1)
                && flags == Some(OBJECT_FLAGS)
                && order == b"|"
                && has_no_fields
        }
        None => false,
    };
    agrees && is_copy && matches!(order, b"<" | b">" | b"|" | b"=") && matches!(int(version), Some(0..=4))
}

/// Whether the state of an array has objects only in a list, and there as many as its shape says, at the moment when NumPy reads them.
pub(super) fn is_array_state(proof: &Proof<'_>, build: &Build) -> bool {
    let Value::Tuple(&[_, shape, dtype, _, elements]) = proof.values.get(build.state) else { return false };
    let has_objects = match proof.values.get(dtype) {
        Value::Call(id) => proof.kind(id) == Some("numpy_objects"),
        _ => return false,
    };
    let Value::List(items) = proof.values.get_at(Snapshot { value: elements, offset: build.offset }) else {
        return !has_objects;
    };
    if !has_objects {
        return false;
    }
    let Value::Tuple(shape) = proof.values.get(shape) else { return false };
    let mut sizes = shape.iter().map(|&size| proof.values.count_at(size));
    sizes.try_fold(1_u64, |product, size| product.checked_mul(size?)) == Some(to_u64(items.len()))
}

/// Whether these are the fields of a record of `len` bytes: each name has one, without a title, and each has bytes of the record that no
/// other has. A record inside a record is smaller, which excludes circles, and has no records: NumPy walks them recursively.
fn are_fields(proof: &Proof<'_>, names: Handle, fields: Handle, len: i64) -> bool {
    let (Value::Tuple(names), Value::Dict(fields)) = (proof.values.get(names), proof.values.get(fields))
    else {
        return false;
    };
    if names.is_empty() || names.len() > FIELDS_MAX || names.len() != fields.len() {
        return false;
    }
    let text = |handle| match proof.values.get(handle) {
        Value::Str(text) => Some(text.as_bytes()),
        _ => None,
    };
    let mut left: HashSet<Option<&[u8]>> = names.iter().map(|&name| text(name)).collect();
    let mut ranges = Vec::new();
    for &(name, field) in fields {
        let range = field_range(proof, field, len);
        // A name that is twice in the tuple leaves a field without one.
        let (Some(range), true) = (range, left.remove(&text(name))) else { return false };
        ranges.push(range);
    }
    ranges.sort_unstable();
    ranges.is_sorted_by(|one, next| one.1 <= next.0)
}

/// The first byte of a field, and the one behind it, inside a record of `len` bytes.
fn field_range(proof: &Proof<'_>, field: Handle, len: i64) -> Option<(i64, i64)> {
    let Value::Tuple(&[dtype, offset]) = proof.values.get(field) else { return None };
    let Value::Int(offset) = proof.values.get(offset) else { return None };
    let Value::Call(id) = proof.values.get(dtype) else { return None };
    let found = elements_of(proof, id)?;
    if matches!(found, Elements::Records(size) if size >= len || has_records(proof, id)) {
        return None;
    }
    let end = offset.checked_add(found.itemsize())?;
    (found.itemsize() > 0 && offset >= 0 && end <= len).then_some((offset, end))
}

/// Whether a field of a dtype is a record.
fn has_records(proof: &Proof<'_>, dtype: CallId) -> bool {
    let is_record = |&(_, field): &(Handle, Handle)| match proof.values.get(field) {
        Value::Tuple(&[dtype, ..]) => match proof.values.get(dtype) {
            Value::Call(id) => matches!(elements_of(proof, id), Some(Elements::Records(_))),
            _ => false,
        },
        _ => false,
    };
    let fields =
        proof.values.call(dtype).states.iter().filter_map(|state| match proof.values.get(state.value) {
            Value::Tuple(state) => state.get(4),
            _ => None,
        });
    fields.into_iter().any(|&fields| match proof.values.get(fields) {
        Value::Dict(fields) => fields.len() > FIELDS_MAX || fields.iter().any(is_record),
        _ => false,
    })
}

/// What the elements of the dtype are that a call makes.
fn elements_of(proof: &Proof<'_>, id: CallId) -> Option<Elements> {
    match proof.values.get(proof.values.call(id).args) {
        Value::Tuple(&[name, ..]) if proof.kind(id) == Some("numpy_dtype") => elements(proof, name),
        _ => None,
    }
}

/// Whether the elements of a dtype with this name are objects.
pub(super) fn is_objects(proof: &Proof<'_>, name: Handle) -> bool {
    matches!(elements(proof, name), Some(Elements::Objects))
}

/// The lists of objects of an array.
pub(super) fn lists<'a>(proof: &Proof<'a>, array: CallId) -> impl Iterator<Item = Handle> + use<'a> {
    let values = proof.values;
    values.call(array).states.iter().filter_map(|state| match values.get(state.value) {
        Value::Tuple(&[_, _, _, _, elements]) => {
            matches!(values.get(elements), Value::List(_)).then_some(elements)
        }
        _ => None,
    })
}

/// What the elements of a dtype with this name are.
pub(super) fn elements(proof: &Proof<'_>, name: Handle) -> Option<Elements> {
    let Value::Str(name) = proof.values.get(name) else { return None };
    let name = name.as_str().filter(|name| name.len() <= NAME_MAX_BYTES)?;
    if let Some(dtype) = DType::from_numpy_code(name) {
        return i64::try_from(dtype.itemsize()).ok().map(Elements::Numbers);
    }
    let (letter, len) = name.split_at_checked(1)?;
    let len = len.parse::<u32>().map(i64::from).ok()?;
    match letter {
        "O" => (len == 8).then_some(Elements::Objects),
        "U" => len.checked_mul(UNICODE_CHARACTER_BYTES).map(Elements::Strings),
        "S" => Some(Elements::Strings(len)),
        "V" => Some(Elements::Records(len)),
        _ => None,
    }
}
