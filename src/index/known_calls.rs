//! Tells a scan which globals and calls of a pickle are known. Works for any pickle, also of a damaged checkpoint.

use super::meaning::{CallInterpreter, Found, Meaning, PersistentIdForm, PersistentIds};
use super::{Location, known};
use crate::limits::Limits;
use crate::pickle::{Call, CallId, GlobalId, Values};

/// Which globals and calls of one pickle are known.
#[derive(Debug)]
pub struct KnownCalls {
    calls: Vec<Meaning>,
    globals: Vec<Option<known::Known>>,
}

impl KnownCalls {
    /// Whether the call is of a known function in a known form, which is usual in a checkpoint.
    pub fn is_known_call(&self, id: CallId) -> bool {
        self.calls.get(id.index()).is_some_and(|meaning| *meaning != Meaning::Opaque)
    }

    /// Whether SETITEM and APPEND, as far as the call's result gets any, are opcodes that its type takes.
    pub fn takes_items(&self, id: CallId, call: &Call<'_>) -> bool {
        match self.calls.get(id.index()) {
            Some(Meaning::Dict(_)) => call.appended.is_empty(),
            Some(Meaning::Sequence(_)) => call.items.is_empty(),
            _ => call.items.is_empty() && call.appended.is_empty(),
        }
    }

    /// Whether the call makes bytes.
    pub fn is_bytes(&self, id: CallId) -> bool {
        self.calls.get(id.index()) == Some(&Meaning::Bytes)
    }

    /// Whether the global is known. A call of it may still be in an unknown form. `_load_from_bytes` is not known by itself, since its
    /// effect is that of the bytes that it loads.
    pub fn is_known_global(&self, id: GlobalId) -> bool {
        self.known(id).is_some_and(|known| known != known::Known::LoadFromBytes)
    }

    /// Whether the global is an object that cannot be called: a dtype, a layout or a quantization scheme of torch.
    pub fn is_plain_value(&self, values: &Values, id: GlobalId) -> bool {
        let global = values.global(id);
        match self.known(id) {
            Some(known::Known::Dtype(_)) => true,
            Some(known::Known::Label) => global.module == "torch" && global.name != "Tensor",
            _ => false,
        }
    }

    fn known(&self, id: GlobalId) -> Option<known::Known> {
        self.globals.get(id.index()).copied().flatten()
    }
}

/// Classifies the calls of a pickle by their forms. `form` is that of its persistent ids.
pub fn known_calls(values: &Values, form: PersistentIdForm, limits: &Limits) -> KnownCalls {
    let no_bytes = |_: &str, _: u64| Ok(Found::At(Location::Empty));
    let meanings =
        CallInterpreter::by_form(values, limits, PersistentIds::described(form, &no_bytes)).finish();
    KnownCalls { calls: meanings.calls, globals: meanings.globals }
}
