//! What a pickle means: its calls as tensors and containers, a tree of its values, and a name for every tensor.

pub mod globals;
mod known;
pub(super) mod legacy;
mod meaning;
mod names;
mod read;
mod script;
mod tree;

pub(crate) use self::known::{Known, TensorClass, lookup};
pub use self::meaning::PersistentIdForm;
#[cfg(feature = "scan")]
pub use self::meaning::holds_storage;
pub(crate) use self::meaning::{
    CallInterpreter, Found, Keyed, KeyedObjects, PersistentIds, SHORT_STRING_MAX_BYTES, StorageSlice,
};
pub(crate) use self::read::{check_end, check_side_pickle, read, read_executed};
pub(crate) use self::script::{ScriptClasses, read as read_scripts};
pub use self::tree::{DictKind, Object, Tree};
