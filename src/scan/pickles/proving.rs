//! Proves that a pickle runs nothing that the file chooses: every call, every state, every key and every persistent id has exactly the
//! types that the table of globals states, whether the result is reachable or not.
//!
//! A pickle is a program of few opcodes over values. What CPython runs for one is fixed by the opcode and by the exact types of its
//! operands: code of builtin types, or of a callable whose row says what it looks at. So a value without a proven type, or in a place where
//! no type is stated, is not proven; there is no default. Containers only grow, so what holds for all items at the end held at
//! every moment before. An object gets one state, and none once another callee has looked at it.

use std::collections::{HashMap, HashSet};

use super::numpy;
use super::proof::{Memo, Proof};
use super::schema::{Schema, SchemaId, Schemas};
use crate::index::globals::{Row, row};
use crate::index::{PersistentIdForm, holds_storage};
use crate::limits::Limits;
use crate::pickle::{Build, Call, CallId, CallKind, Handle, RecoveredPickle, Value};

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
}
