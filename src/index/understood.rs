//! Which calls of a pickle rustload understands, asked by a scanner: of any pickle, however broken its checkpoint is.

use super::meaning::{Ids, Meaning, Reader};
use super::{Place, known};
use crate::limits::Limits;
use crate::pickle::{CallId, GlobalId, Values};

/// What rustload makes of one pickle's globals and calls.
#[derive(Debug)]
pub struct Understood {
    calls: Vec<Meaning>,
    globals: Vec<bool>,
}

impl Understood {
    /// Whether the call is of a known function in a known form, and so no surprise in a checkpoint.
    pub fn call(&self, id: CallId) -> bool {
        self.calls.get(id.index()).is_some_and(|meaning| *meaning != Meaning::Opaque)
    }

    /// Whether the global has a meaning; a call of it may be in an unknown form all the same. One that loads bytes has none by
    /// itself: it means what the bytes do.
    pub fn global(&self, id: GlobalId) -> bool {
        self.globals.get(id.index()).copied().unwrap_or(false)
    }
}

/// Judges the calls of a pickle by their forms; `legacy` tells the form of its persistent ids.
pub fn understand(values: &Values, legacy: bool, limits: &Limits) -> Understood {
    let ids = if legacy { Ids::Legacy } else { Ids::Archive };
    let anywhere = |_: &str, _: u64| Ok(Place::Empty);
    let meanings = Reader::forms(values, limits, ids, &anywhere).finish();
    let named = values.globals().map(|(id, _)| values.global(id));
    let plain = |known: known::Known| known != known::Known::LoadFromBytes;
    let globals = named.map(|global| known::lookup(global.module, global.name).is_some_and(plain)).collect();
    Understood { calls: meanings.calls, globals }
}
