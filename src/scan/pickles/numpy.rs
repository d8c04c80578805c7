//! NumPy's dtypes and arrays: what the schemas do not say. A dtype is one of numbers or of strings of a fixed length, and the size and the
//! flags in its state are those of its name: NumPy trusts them, and a flag tells it that the elements are pointers
//! (numpy/_core/src/multiarray/descriptor.c: `arraydescr_setstate`).

use super::proof::Proof;
use crate::dtype::DType;
use crate::index::globals::Row;
use crate::pickle::{Call, CallId, Handle, Value};

/// The bytes of a character of `U`, which is UCS-4.
const UNICODE_CHARACTER_BYTES: i64 = 4;
/// `NPY_NEEDS_INIT`, the flag of strings.
const NEEDS_INIT: i64 = 8;
/// The longest name of such a dtype.
const NAME_MAX_BYTES: usize = 8;

/// The elements of a dtype.
pub(super) enum Elements {
    Numbers,
    /// Strings of this many bytes.
    Strings(i64),
}

/// Whether a call whose arguments have the form of its row makes a dtype, an array or a scalar of such elements.
pub(super) fn is_proven(proof: &Proof<'_>, id: CallId, call: &Call<'_>, row: &Row) -> bool {
    let Value::Tuple(args) = proof.values.get(call.args) else { return false };
    match (row.kind, row.how, args) {
        // The size of strings is in the state.
        ("numpy_dtype", _, &[name, ..]) => match elements(proof, name) {
            Some(Elements::Strings(_)) => proof.values.call(id).states.len() == 1,
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
    let &[version, order, _, _, _, size, alignment, ref rest @ ..] = state else { return false };
    let int = |handle| match proof.values.get(handle) {
        Value::Int(value) => Some(value),
        _ => None,
    };
    let is_copy =
        args.get(2).is_some_and(|&copy| matches!(proof.values.get(copy), Value::Bool(true) | Value::Int(1)));
    let is_order = match proof.values.get(order) {
        Value::Str(order) => matches!(order.as_bytes(), b"<" | b">" | b"|" | b"="),
        _ => false,
    };
    let flags = rest.first().map_or(Some(0), |&flags| int(flags));
    let agrees = match args.first().and_then(|&name| elements(proof, name)) {
        Some(Elements::Numbers) => int(size) == Some(-1) && int(alignment) == Some(-1) && flags == Some(0),
        Some(Elements::Strings(len)) => {
            int(size) == Some(len)
                && matches!(int(alignment), Some(1 | 4))
                && matches!(flags, Some(0 | NEEDS_INIT))
        }
        None => false,
    };
    agrees && is_copy && is_order && matches!(int(version), Some(0..=4))
}

/// What the elements of a dtype with this name are.
pub(super) fn elements(proof: &Proof<'_>, name: Handle) -> Option<Elements> {
    let Value::Str(name) = proof.values.get(name) else { return None };
    let name = name.as_str().filter(|name| name.len() <= NAME_MAX_BYTES)?;
    if DType::from_numpy_code(name).is_some() {
        return Some(Elements::Numbers);
    }
    let (letter, len) = name.split_at_checked(1)?;
    let len = len.parse::<u32>().map(i64::from).ok()?;
    match letter {
        "U" => len.checked_mul(UNICODE_CHARACTER_BYTES).map(Elements::Strings),
        "S" => Some(Elements::Strings(len)),
        _ => None,
    }
}
