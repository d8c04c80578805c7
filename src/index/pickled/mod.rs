//! What a pickle means: its calls as tensors and containers, a tree of its values, and a name for every tensor.

mod checks;
pub mod globals;
mod known;
pub(super) mod legacy;
mod meaning;
mod meanings;
mod names;
mod read;
mod script;
mod tree;

pub(crate) use self::checks::{callee, check_end, check_side_pickle};
pub(crate) use self::known::{Known, TensorClass, lookup, storage_dtype, tensor_dtype};
pub(crate) use self::meaning::CallInterpreter;
#[cfg(feature = "scan")]
pub use self::meaning::embedded::holds_storage;
pub use self::meanings::PersistentIdForm;
pub(crate) use self::meanings::{Found, Keyed, KeyedObjects, PersistentIds, StorageSlice, short_string};
pub(crate) use self::read::read_executed;
pub(crate) use self::script::{ScriptClasses, read as read_scripts};
pub use self::tree::{DictKind, Object, Tree};
