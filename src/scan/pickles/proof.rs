//! What is proven of one pickle, and lookups in it.

use std::collections::{HashMap, HashSet};

use super::schema::{Form, SchemaId, Schemas};
use crate::index::PersistentIdForm;
use crate::index::globals::Row;
use crate::pickle::{Call, CallId, GlobalId, Handle, Value, Values};

pub(super) type Pair = (Handle, SchemaId);

/// Which pairs match, and which pairs depend on each.
#[derive(Default)]
pub(super) struct Memo {
    pub(super) holds: HashMap<Pair, bool>,
    pub(super) dependents: HashMap<Pair, Vec<Pair>>,
}

impl Memo {
    pub(super) fn refute(&mut self, pair: Pair) {
        let mut pending = vec![pair];
        while let Some(pair) = pending.pop() {
            if self.holds.insert(pair, false) != Some(false) {
                pending.extend(self.dependents.remove(&pair).unwrap_or_default());
            }
        }
    }
}

/// What is proven of one pickle.
pub(super) struct Proof<'a> {
    pub(super) values: &'a Values,
    pub(super) schemas: &'static Schemas,
    /// The form of persistent ids.
    pub(super) ids: PersistentIdForm,
    /// By global id, its row, and the forms of its calls.
    pub(super) rows: Vec<Option<(&'static Row, &'static [Form])>>,
    /// The schemas of keys and of persistent ids.
    pub(super) key: Option<SchemaId>,
    pub(super) id: Option<SchemaId>,
    /// By call id, the kind of its result.
    pub(super) kinds: Vec<Option<&'static str>>,
    /// By call id, whether the call is proven.
    pub(super) calls: Vec<bool>,
    /// The calls whose results got a state that is not proven, and its first attribute that is not.
    pub(super) refused: HashMap<CallId, Option<Handle>>,
    /// By state, its first attribute that is not proven: any number of BUILDs may share one.
    pub(super) attributes: HashMap<(Handle, SchemaId), Option<Handle>>,
    /// The objects that a callee has looked at.
    pub(super) seen: HashSet<CallId>,
    pub(super) memo: Memo,
}

impl<'a> Proof<'a> {
    /// The row of a global.
    pub(super) fn row(&self, id: GlobalId) -> Option<&'static Row> {
        self.rows.get(id.index()).copied().flatten().map(|(row, _)| row)
    }

    /// The kind of a call's result.
    pub(super) fn kind(&self, id: CallId) -> Option<&'static str> {
        self.kinds.get(id.index()).copied().flatten()
    }

    /// Whether a global is in the table. What `_load_from_bytes` does is a matter of the bytes that it loads.
    pub(super) fn knows_global(&self, id: GlobalId) -> bool {
        self.row(id).is_some_and(|row| !matches!(row.kind, "loaded" | "function"))
    }

    /// Whether a call is proven; its states are a matter of [`refused`](Proof::refused).
    pub(super) fn knows_call(&self, id: CallId) -> bool {
        self.calls.get(id.index()) == Some(&true)
    }

    /// Whether the states of a value are proven.
    pub(super) fn knows_build(&self, target: Handle) -> bool {
        let Value::Call(id) = self.values.get(target) else { return false };
        self.knows_call(id) && !self.refused.contains_key(&id)
    }

    /// What is wrong with the states of a call's result: the name of an attribute, where it is a dict of these.
    pub(super) fn refused(&self, id: CallId) -> Option<Option<Handle>> {
        self.refused.get(&id).copied()
    }

    /// Whether a persistent id has a form that torch writes.
    pub(super) fn is_persistent_id(&mut self, pid: Handle) -> bool {
        self.id.is_some_and(|schema| self.matches(pid, schema))
    }

    /// Whether a value may be hashed and compared: that runs code of builtin types only.
    pub(super) fn is_key(&mut self, value: Handle) -> bool {
        self.key.is_some_and(|schema| self.matches(value, schema))
    }

    /// The global that a call calls, also through the `('module', class, file, source)` of a legacy stream; `None` where the
    /// callable is not a global.
    #[inline]
    pub(super) fn callee(&self, call: &Call<'_>) -> Option<GlobalId> {
        match self.values.get(call.callable) {
            Value::Global(id) => Some(id),
            Value::PersistentId(pid) => self.module_class(pid),
            _ => None,
        }
    }

    /// The class in a persistent id `('module', class, file, source)`, or in torch 0.1 `(class, file, source)`.
    pub(super) fn module_class(&self, pid: Handle) -> Option<GlobalId> {
        let class = match self.values.get(pid) {
            Value::Tuple(&[class, _, _]) if self.ids == PersistentIdForm::Keyed => class,
            Value::Tuple(&[tag, class, _, _]) if super::is_text(self.values, tag, "module") => class,
            _ => return None,
        };
        match self.values.get(class) {
            Value::Global(id) => Some(id),
            _ => None,
        }
    }

    /// Whether a value is bytes that stand in the pickle: a bytes object, or `_codecs.encode(text, 'latin1')`.
    pub(super) fn is_literal_bytes(&self, value: Value<'_>) -> bool {
        match value {
            Value::Bytes(_) => true,
            Value::Call(id) => self.kind(id) == Some("bytes") && self.values.call(id).states.is_empty(),
            _ => false,
        }
    }

    pub(super) fn is_named(&self, handle: Handle, module: &str, name: &str) -> bool {
        self.values.global_at(handle) == Some((module, name))
    }

    /// Whether a value may be called: a class, a function, or an object of a class that defines `__call__` or is not known.
    pub(super) fn may_be_called(&self, value: Handle) -> bool {
        match self.values.get(value) {
            Value::Global(id) => !self.row(id).is_some_and(Row::is_constant),
            Value::Call(id) => match self.callee(&self.values.call(id)).and_then(|callee| self.row(callee)) {
                Some(row) => row.is_callable || row.kind == "alias" || self.kind(id).is_none(),
                None => true,
            },
            Value::PersistentId(pid) => self.module_class(pid).is_some(),
            _ => false,
        }
    }
}
