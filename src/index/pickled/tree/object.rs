//! The values of a tree.

use std::borrow::Cow;

use crate::dtype::DType;
use crate::index::model::Sparse;
use crate::pickle::{BigInt, Call, GlobalId, Handle, Snapshot, Text};

/// The class of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DictKind {
    /// `dict`.
    Dict,
    /// `collections.OrderedDict`.
    OrderedDict,
    /// `collections.defaultdict`.
    DefaultDict,
    /// `collections.Counter`.
    Counter,
}

/// One value, with handles to its children.
#[derive(Clone, Debug)]
pub enum Object<'a> {
    /// `None`.
    None,
    /// `True` or `False`.
    Bool(bool),
    /// An integer of 64 bits.
    Int(i64),
    /// An unsigned integer of 64 bits.
    Uint(u64),
    /// A longer integer.
    BigInt(BigInt<'a>),
    /// A float.
    Float(f64),
    /// A complex number.
    Complex(f64, f64),
    /// Text.
    Str(Text<'a>),
    /// Bytes.
    Bytes(Vec<u8>),
    /// A byte array.
    ByteArray(Vec<u8>),
    /// A list.
    List(Cow<'a, [Handle]>),
    /// A tuple, or a `torch.Size`.
    Tuple(&'a [Handle]),
    /// A deque and its maximum length.
    Deque(Vec<Handle>, Option<i64>),
    /// A set.
    Set(Vec<Handle>),
    /// A frozen set.
    FrozenSet(Vec<Handle>),
    /// A mapping; of duplicate keys, the last one is kept, as in Python.
    Dict {
        /// Its class.
        kind: DictKind,
        /// Keys and values.
        entries: Vec<(Handle, Handle)>,
        /// The states that BUILD set on it (`_metadata` on an OrderedDict).
        states: &'a [Snapshot],
        /// The default factory of a defaultdict, usually a global.
        factory: Option<Handle>,
    },
    /// A class or function by name; it is never imported.
    Global {
        /// The module.
        module: &'a str,
        /// The name.
        name: &'a str,
    },
    /// A tensor of the index.
    Tensor(u32),
    /// A sparse tensor, which consists of other tensors.
    Sparse(Sparse),
    /// A value of an unknown class, kept as data.
    Opaque {
        /// Its class, for [`Tree::name_of`](super::Tree::name_of); `None` where the callable is the result of another call.
        class: Option<GlobalId>,
        /// The call.
        call: Call<'a>,
        /// The callable, where it is the result of another call.
        function: Option<Handle>,
    },
}

/// The number of a NumPy scalar in little-endian bytes; `None` where their count is not that of the dtype, or the dtype has no scalar.
pub(super) fn number(dtype: DType, bytes: &[u8]) -> Option<Object<'static>> {
    let float = |bytes: &[u8]| -> Option<f64> {
        Some(match bytes.len() {
            2 => half::f16::from_le_bytes(bytes.try_into().ok()?).to_f64(),
            4 => f64::from(f32::from_le_bytes(bytes.try_into().ok()?)),
            _ => f64::from_le_bytes(bytes.try_into().ok()?),
        })
    };
    Some(match dtype {
        DType::Bool => Object::Bool(*bytes.first()? != 0),
        DType::I8 => Object::Int(i8::from_le_bytes(bytes.try_into().ok()?).into()),
        DType::I16 => Object::Int(i16::from_le_bytes(bytes.try_into().ok()?).into()),
        DType::I32 => Object::Int(i32::from_le_bytes(bytes.try_into().ok()?).into()),
        DType::I64 => Object::Int(i64::from_le_bytes(bytes.try_into().ok()?)),
        DType::U8 => Object::Int(u8::from_le_bytes(bytes.try_into().ok()?).into()),
        DType::U16 => Object::Int(u16::from_le_bytes(bytes.try_into().ok()?).into()),
        DType::U32 => Object::Int(u32::from_le_bytes(bytes.try_into().ok()?).into()),
        DType::U64 => Object::Uint(u64::from_le_bytes(bytes.try_into().ok()?)),
        DType::F16 | DType::F32 | DType::F64 => Object::Float(float(bytes)?),
        DType::C64 | DType::C128 => {
            let (re, im) = bytes.split_at_checked(bytes.len().checked_div(2)?)?;
            Object::Complex(float(re)?, float(im)?)
        }
        _ => return None,
    })
}
