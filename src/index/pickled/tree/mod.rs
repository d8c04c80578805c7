//! The object tree of a pickle. No Python object is constructed.

mod children;
mod keys;
mod object;
mod view;

pub(crate) use children::{Child, Naming};
pub use object::{DictKind, Object};
pub(crate) use view::View;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use self::view::latin1;
use crate::bytes::Bytes;
use crate::error::Result;
use crate::index::model::{Extra, Part, ValueBytes};
use crate::index::pickled::known::{Known, Rebuild, TensorClass};
use crate::index::pickled::meanings::{Meaning, Meanings};
use crate::limits::Limits;
use crate::num::to_u64;
use crate::pickle::{Disasm, GlobalId, Handle, Opcode, Snapshot, Value, Values};

/// The values of one pickle and the interpretation of its calls.
#[derive(Debug)]
pub struct Tree {
    values: Values,
    meanings: Meanings,
    root: Handle,
}

impl Tree {
    pub(crate) fn new(values: Values, meanings: Meanings, root: Handle) -> Tree {
        Tree { values, meanings, root }
    }

    fn view(&self) -> View<'_> {
        View { values: &self.values, meanings: &self.meanings }
    }

    /// The root value.
    pub fn root(&self) -> Handle {
        self.root
    }

    /// The number of values.
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// The number of bytes of the pickle.
    pub(crate) fn pickle_bytes(&self) -> u64 {
        to_u64(self.values.data().len())
    }

    /// Whether there is no value. A pickle always has one.
    pub fn is_empty(&self) -> bool {
        self.values.len() == 0
    }

    /// The value of a handle.
    pub fn get(&self, handle: Handle) -> Result<Object<'_>> {
        self.view().get(handle)
    }

    /// The items of a list as a call found them; `None` for other values.
    pub fn list_at(&self, list: Snapshot) -> Option<&[Handle]> {
        match self.values.get_at(list) {
            Value::List(items) => Some(items),
            _ => None,
        }
    }

    /// The attributes that a state sets, of which the last counts for a name; `None` for a state that is neither a dict nor a pair of a
    /// dict and slots.
    pub fn attributes(&self, state: Snapshot) -> Result<Option<Vec<(Handle, Handle)>>> {
        match self.view().state_parts(state) {
            Some(parts) => self.values.unique(&parts.concat()).map(Some),
            None => Ok(None),
        }
    }

    /// Whether a state was a dict with fewer attributes than it has at the end of the pickle.
    pub fn has_grown(&self, state: Snapshot) -> bool {
        match (self.values.get(state.value), self.values.get_at(state)) {
            (Value::Dict(pairs), Value::Dict(earlier)) => earlier.len() < pairs.len(),
            _ => false,
        }
    }

    /// The cost of listing a value's children: the number of its items and pairs before duplicate keys are merged, including those of
    /// arguments that it shares with other values.
    pub fn weight(&self, handle: Handle) -> u64 {
        self.view().weight(handle)
    }

    /// Whether a value is a `torch.Size`, which [`get`](Tree::get) returns as a tuple.
    pub fn is_size(&self, handle: Handle) -> bool {
        match self.values.get(handle) {
            Value::Call(id) if self.meanings.calls.get(id.index()) == Some(&Meaning::Tuple) => {
                self.known(self.values.call(id).callable) == Some(Known::Size)
            }
            _ => false,
        }
    }

    /// What a global is known as.
    fn known(&self, handle: Handle) -> Option<Known> {
        let Value::Global(id) = self.values.get(handle) else { return None };
        self.meanings.globals.get(id.index()).copied().flatten()
    }

    /// Whether a call that rebuilds a tensor has an argument for hooks; the oldest forms have none.
    pub fn has_hooks(&self, handle: Handle) -> bool {
        let Value::Call(id) = self.values.get(handle) else { return false };
        match self.known(self.values.call(id).callable) {
            Some(Known::Rebuild(rebuild)) => {
                !matches!(rebuild, Rebuild::Tensor | Rebuild::Meta | Rebuild::FromDevice)
            }
            Some(Known::TensorClass(class)) => class == TensorClass::Parameter,
            _ => false,
        }
    }

    /// Whether a value is a storage itself, which [`get`](Tree::get) returns as a 1-D tensor.
    pub fn is_storage(&self, handle: Handle) -> bool {
        match self.values.get(handle) {
            Value::PersistentId(pid) => self.meanings.bare.contains_key(&pid),
            Value::Call(id) => matches!(self.meanings.calls.get(id.index()), Some(Meaning::Storage(_))),
            _ => false,
        }
    }

    /// The quantized dtype of a storage that is a value itself, by its 1-D tensor; `None` for any other storage.
    pub fn quantized_storage(&self, tensor: u32) -> Option<&'static str> {
        self.meanings.quantized_storages.get(&tensor).copied()
    }

    /// The offsets of all binary strings of Python 2, which are text or bytes as a reader chooses.
    pub fn byte_strings(&self, limits: &Limits) -> HashSet<usize> {
        let ops = Disasm::strict(self.values.data(), 0, limits).map_while(|op| op.ok());
        let strings = ops.filter(|op| matches!(op.opcode, Opcode::BinString | Opcode::ShortBinString));
        strings.map(|op| op.payload).collect()
    }

    /// The offset of the first byte of a string or of bytes, as in [`byte_strings`](Tree::byte_strings).
    pub fn text_offset(&self, handle: Handle) -> Option<usize> {
        self.values.text_offset(handle)
    }

    /// The further properties of a tensor; `None` where it has none.
    pub fn extra(&self, tensor: u32) -> Option<&Extra> {
        self.meanings.extras.get(&tensor)
    }

    /// The tensors that are parts of larger ones.
    pub(crate) fn parts(&self) -> HashMap<u32, Part> {
        let part = |(&tensor, extra): (&u32, &Extra)| Some((tensor, extra.part.as_deref()?.clone()));
        self.meanings.extras.iter().filter_map(part).collect()
    }

    /// A global as `module.name`; a remark for `None`, the class of a call's result.
    pub fn name_of(&self, global: Option<GlobalId>) -> String {
        self.view().class_name(global)
    }

    /// Every distinct global that the pickle names, as `module.name`, in program order.
    pub fn globals(&self) -> impl Iterator<Item = String> + '_ {
        self.values.globals().map(|(id, _)| {
            let global = self.values.global(id);
            format!("{}.{}", global.module, global.name)
        })
    }
}

impl ValueBytes for Tree {
    fn bytes(self: Arc<Self>, handle: Handle) -> Option<Bytes> {
        let is_borrowed = match self.values.get(handle) {
            Value::Bytes(_) | Value::ByteArray(_) => true,
            Value::Str(text) => text.as_bytes().is_ascii() || self.values.is_byte_string(handle),
            _ => false,
        };
        if is_borrowed {
            return Some(Arc::new(TreeBytes { tree: self, value: handle }));
        }
        match self.get(handle).ok()? {
            Object::Bytes(bytes) | Object::ByteArray(bytes) => Some(Arc::new(bytes)),
            Object::Str(text) => Some(Arc::new(latin1(text))),
            _ => None,
        }
    }
}

/// The bytes of a value, borrowed from the tree.
struct TreeBytes {
    tree: Arc<Tree>,
    value: Handle,
}

impl AsRef<[u8]> for TreeBytes {
    fn as_ref(&self) -> &[u8] {
        match self.tree.values.get(self.value) {
            Value::Bytes(bytes) | Value::ByteArray(bytes) => bytes,
            Value::Str(text) => text.as_bytes(),
            _ => &[],
        }
    }
}
