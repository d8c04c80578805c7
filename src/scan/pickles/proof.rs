//! Proves that a pickle runs nothing that the file chooses: every call, every state, every key and every persistent id has exactly the
//! types that the table of globals states, whether the result is reachable or not.
//!
//! A pickle is a program of few opcodes over values. What CPython runs for one is fixed by the opcode and by the exact types of its
//! operands: code of builtin types, or of a callable whose row says what it looks at. So a value without a proven type, or in a place where
//! no type is stated, is not proven; there is no default. Containers only grow, so what holds for all items at the end held at
//! every moment before. An object gets one state, and none once another callee has looked at it.

use std::collections::{HashMap, HashSet};

use super::matching::Memo;
use super::numpy;
use super::schema::{Form, Schema, SchemaId, Schemas};
use crate::index::globals::{Row, row};
use crate::index::{PersistentIdForm, holds_storage};
use crate::limits::Limits;
use crate::pickle::{Build, Call, CallId, CallKind, GlobalId, Handle, RecoveredPickle, Value, Values};

/// What is proven of one pickle.
pub(super) struct Proof<'a> {
    pub(super) values: &'a Values,
    pub(super) schemas: &'static Schemas,
    /// The form of persistent ids.
    pub(super) ids: PersistentIdForm,
    /// By global id, its row, and the forms of its calls.
    rows: Vec<Option<(&'static Row, &'static [Form])>>,
    /// The schemas of keys and of persistent ids.
    key: Option<SchemaId>,
    id: Option<SchemaId>,
    /// By call id, the kind of its result.
    kinds: Vec<Option<&'static str>>,
    /// By call id, whether the call is proven.
    calls: Vec<bool>,
    /// The calls whose results got a state that is not proven, and its first attribute that is not.
    refused: HashMap<CallId, Option<Handle>>,
    /// By state, its first attribute that is not proven: any number of BUILDs may share one.
    attributes: HashMap<(Handle, SchemaId), Option<Handle>>,
    /// The objects that a callee has looked at.
    pub(super) seen: HashSet<CallId>,
    pub(super) memo: Memo,
}

impl<'a> Proof<'a> {
    pub(super) fn new(recovered: &'a RecoveredPickle, ids: PersistentIdForm, limits: &Limits) -> Proof<'a> {
        let values = &recovered.values;
        let schemas = Schemas::get();
        let rows = values.globals().map(|(id, _)| {
            let global = values.global(id);
            row(global.module, global.name).map(|row| (row, schemas.forms(row.calls)))
        });
        let id = match ids {
            PersistentIdForm::Archive => "archive_id",
            PersistentIdForm::Legacy => "legacy_id",
            PersistentIdForm::Keyed => "keyed_id",
        };
        let mut proof = Proof {
            values,
            schemas,
            key: schemas.named("hashed"),
            id: schemas.named(id),
            ids,
            rows: rows.collect(),
            kinds: Vec::new(),
            calls: Vec::new(),
            refused: HashMap::new(),
            attributes: HashMap::new(),
            seen: HashSet::new(),
            memo: Memo::default(),
        };
        proof.kinds = proof.kinds_of_calls(limits);
        proof.prove();
        proof
    }

    /// What each call gives, if it is proven.
    fn kinds_of_calls(&self, limits: &Limits) -> Vec<Option<&'static str>> {
        let mut loaded = HashMap::new();
        let calls = self.values.calls().map(|(id, _)| {
            let call = self.values.call(id);
            let row = self.callee(&call).and_then(|callee| self.row(callee))?;
            let args = self.values.get(call.args);
            if row.kind != "loaded" {
                let kind = match args {
                    Value::Tuple(&[name, ..])
                        if row.kind == "numpy_dtype" && numpy::is_objects(self, name) =>
                    {
                        "numpy_objects"
                    }
                    _ => row.kind,
                };
                return Some(kind).filter(|_| row.calls != "-");
            }
            let Value::Tuple(&[bytes]) = args else { return None };
            let is_storage =
                *loaded.entry(bytes).or_insert_with(|| holds_storage(self.values, bytes, limits));
            is_storage.then_some("storage")
        });
        calls.collect()
    }

    /// Proves calls and states in program order.
    fn prove(&mut self) {
        let values = self.values;
        let mut builds = values.builds().iter().peekable();
        let mut built = HashSet::new();
        self.calls = vec![false; values.calls().len()];
        for (id, _) in values.calls() {
            let call = values.call(id);
            while let Some(build) = builds.next_if(|build| build.offset < call.offset) {
                self.build(build, &mut built);
            }
            let is_proven = self.is_proven(id, &call);
            self.calls.get_mut(id.index()).into_iter().for_each(|proven| *proven = is_proven);
        }
        for build in builds {
            self.build(build, &mut built);
        }
    }

    fn is_proven(&mut self, id: CallId, call: &Call<'a>) -> bool {
        let found = self.callee(call).and_then(|callee| self.rows.get(callee.index()).copied().flatten());
        let Some((row, forms)) = found else { return false };
        let is_new = match call.kind {
            CallKind::NewObj => true,
            CallKind::NewObjEx => return false,
            CallKind::Reduce | CallKind::Inst | CallKind::Obj => false,
        };
        forms.iter().any(|form| form.is_new == is_new && self.matches(call.args, form.args))
            && self.takes_items(row, call)
            && match row.kind {
                "tensor" if row.how == "from_type" => self.is_from_type(call),
                "numpy_dtype" | "numpy_scalar" | "ndarray" => numpy::is_proven(self, id, call, row),
                _ => true,
            }
    }

    /// Whether SETITEM, APPEND and the like, as far as the result gets any, are opcodes of its type, with keys that may be hashed.
    fn takes_items(&mut self, row: &Row, call: &Call<'a>) -> bool {
        let (is_dict, is_list, is_set) = match row.kind {
            "ordered_dict" | "counter" | "default_dict" | "dict" => (true, false, false),
            "list" | "deque" => (false, true, false),
            "set" => (false, true, true),
            _ => (false, false, false),
        };
        (is_list || call.appended.is_empty())
            && (is_dict || call.items.is_empty())
            && (!is_set || call.appended.iter().all(|&item| self.is_key(item)))
            && call.items.iter().all(|&(key, _)| self.is_key(key))
    }

    /// Whether `_rebuild_from_type_v2(function, class, args, state)` calls a function that makes a new tensor, in one of its forms.
    fn is_from_type(&mut self, call: &Call<'a>) -> bool {
        let Value::Tuple(&[function, _, args, _]) = self.values.get(call.args) else { return false };
        let Value::Global(function) = self.values.get(function) else { return false };
        let Some(row) = self.row(function) else { return false };
        row.kind == "tensor"
            && !matches!(row.how, "from_type" | "from_device" | "sparse")
            && self.schemas.forms(row.calls).iter().any(|form| !form.is_new && self.matches(args, form.args))
    }

    fn build(&mut self, build: &Build, built: &mut HashSet<CallId>) {
        let Value::Call(id) = self.values.get(build.target) else { return };
        let call = self.values.call(id);
        let row = self.callee(&call).and_then(|callee| self.row(callee));
        let Some(row) = row.filter(|_| self.kind(id).is_some()) else { return };
        let is_first = built.insert(id) && !self.seen.contains(&id);
        let is_proven = is_first
            && self.schemas.state(row.state).is_some_and(|schema| self.matches(build.state, schema))
            && match row.kind {
                "numpy_dtype" => numpy::is_dtype_state(self, &call, build.state),
                "ndarray" => numpy::is_array_state(self, build),
                _ => true,
            };
        if !is_proven && !self.refused.contains_key(&id) {
            let attribute =
                self.schemas.state(row.state).and_then(|schema| self.wrong_attribute(build.state, schema));
            self.refused.insert(id, attribute);
        }
    }

    /// The first attribute of a state that its schema does not have.
    fn wrong_attribute(&mut self, state: Handle, schema: SchemaId) -> Option<Handle> {
        let Value::Dict(pairs) = self.values.get(state) else { return None };
        if let Some(&found) = self.attributes.get(&(state, schema)) {
            return found;
        }
        let mut wrong = |key, value| match self.schemas.node(schema) {
            Schema::Dict { key: name, value: schema, .. } => {
                !self.matches(key, *name) || !self.matches(value, *schema)
            }
            Schema::Record { .. } => !self.is_field(key, value, schema),
            _ => false,
        };
        let found = pairs.iter().find_map(|&(key, value)| wrong(key, value).then_some(key));
        self.attributes.insert((state, schema), found);
        found
    }

    fn is_field(&mut self, key: Handle, value: Handle, schema: SchemaId) -> bool {
        self.field(key, schema).is_some_and(|schema| self.matches(value, schema))
    }

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
