//! How values, calls, globals and names of one pickle are referred to.

use std::fmt;
use std::num::NonZeroU32;

use crate::num::{to_u32, u32_to_usize};

/// A reference to a value of one pickle. Two handles are equal only if they refer to the same object.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Handle(NonZeroU32);

impl Handle {
    pub(super) const NONE: Handle = Handle(NonZeroU32::MIN);
    pub(super) const FALSE: Handle = Handle(NonZeroU32::MIN.saturating_add(1));
    pub(super) const TRUE: Handle = Handle(NonZeroU32::MIN.saturating_add(2));
    pub(super) const EMPTY_TUPLE: Handle = Handle(NonZeroU32::MIN.saturating_add(3));

    /// An integer from 0 to 255; as in CPython, equal small integers are one object.
    #[inline]
    pub(super) fn small_int(value: u8) -> Handle {
        Handle(Handle::EMPTY_TUPLE.0.saturating_add(1).saturating_add(u32::from(value)))
    }

    #[inline]
    pub(super) fn at(position: usize) -> Handle {
        Handle(NonZeroU32::MIN.saturating_add(to_u32(position)))
    }

    /// The handle's number among the values of its pickle: 0 up to [`Values::len`].
    #[inline]
    pub fn index(self) -> usize {
        u32_to_usize(self.0.get().wrapping_sub(1))
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.index())
    }
}

macro_rules! id {
    ($name:ident, $what:literal) => {
        #[doc = $what]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(u32);

        impl $name {
            pub(super) fn at(position: usize) -> $name {
                $name(to_u32(position))
            }

            /// The number, counted from 0 in program order.
            #[inline]
            pub fn index(self) -> usize {
                u32_to_usize(self.0)
            }
        }
    };
}

id!(GlobalId, "A global of one pickle: equal module and name have one id.");
id!(CallId, "A call of one pickle.");

/// The index of an interned module or class name.
pub(super) type NameId = u32;

/// Which opcode makes a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CallKind {
    /// REDUCE: `callable(*args)`.
    Reduce,
    /// NEWOBJ: `cls.__new__(cls, *args)`.
    NewObj,
    /// NEWOBJ_EX: `cls.__new__(cls, *args, **kwargs)`.
    NewObjEx,
    /// INST: `cls(*args)`.
    Inst,
    /// OBJ: `cls(*args)`.
    Obj,
}

/// A value as the opcode at an offset finds it: a list, dict or set without what is added to it later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The value.
    pub value: Handle,
    /// The offset of the opcode.
    pub offset: u64,
}
