//! Tells a scan which globals and calls of a pickle are known. Works for any pickle, also of a damaged checkpoint.

use super::meaning::{CallInterpreter, Found, Meaning, PersistentIdForm};
use super::{Location, known};
use crate::limits::Limits;
use crate::pickle::{CallId, GlobalId, Values};

/// Which globals and calls of one pickle are known.
#[derive(Debug)]
pub struct KnownCalls {
    calls: Vec<Meaning>,
    globals: Vec<bool>,
}

impl KnownCalls {
    /// Whether the call is of a known function in a known form, which is usual in a checkpoint.
    pub fn is_known_call(&self, id: CallId) -> bool {
        self.calls.get(id.index()).is_some_and(|meaning| *meaning != Meaning::Opaque)
    }

    /// Whether the global is known. A call of it may still be in an unknown form. `_load_from_bytes` is not known by itself, since its
    /// effect is that of the bytes that it loads.
    pub fn is_known_global(&self, id: GlobalId) -> bool {
        self.globals.get(id.index()).copied().unwrap_or(false)
    }
}

/// Classifies the calls of a pickle by their forms. `legacy` is whether persistent ids have the form of the legacy stream.
pub fn known_calls(values: &Values, legacy: bool, limits: &Limits) -> KnownCalls {
    let form = if legacy { PersistentIdForm::Legacy } else { PersistentIdForm::Archive };
    let no_bytes = |_: &str, _: u64| Ok(Found::At(Location::Empty));
    let meanings = CallInterpreter::by_form(values, limits, form, &no_bytes).finish();
    let named = values.globals().map(|(id, _)| values.global(id));
    let is_inert = |known: known::Known| known != known::Known::LoadFromBytes;
    let globals =
        named.map(|global| known::lookup(global.module, global.name).is_some_and(is_inert)).collect();
    KnownCalls { calls: meanings.calls, globals }
}
