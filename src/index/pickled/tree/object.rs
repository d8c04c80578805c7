//! The values of a tree.

use std::borrow::Cow;

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
