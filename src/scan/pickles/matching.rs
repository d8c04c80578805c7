//! Matches values with schemas, to any depth, without recursion and in linear time.
//!
//! A value that contains itself matches if nothing in it does not. So a pair of value and schema counts as matching until a part of it does
//! not, which then is passed on to all pairs that depend on it. Each pair is looked at once.

use super::numpy;
use super::proof::{Pair, Proof};
use super::schema::{Items, Schema, SchemaId};
use crate::index::PersistentIdForm;
use crate::pickle::{CallId, Handle, Value};

/// The maximum length, in bytes, of a string that a constructor parses.
const TEXT_MAX_BYTES: usize = 4096;
/// The same for a device or a fraction.
const NUMBER_MAX_BYTES: usize = 256;
/// The digits of 64 bits.
const DIGITS_MAX: usize = 20;
/// Lists of so few items, so deep, are matched each time, since the memo costs more.
const SHALLOW_MAX_ITEMS: usize = 16;
const SHALLOW_MAX_DEPTH: u8 = 2;

impl<'a> Proof<'a> {
    /// Whether a value has the type of a schema.
    pub(super) fn matches(&mut self, value: Handle, schema: SchemaId) -> bool {
        let goal = (value, schema);
        if let Some(holds) = self.shallow(goal, SHALLOW_MAX_DEPTH) {
            return holds;
        }
        if let Some(&holds) = self.memo.holds.get(&goal) {
            return holds;
        }
        self.memo.holds.insert(goal, true);
        let mut pending = vec![goal];
        while let Some(pair) = pending.pop() {
            if !self.expand(pair, &mut pending) {
                self.memo.refute(pair);
            }
        }
        self.memo.holds.get(&goal) == Some(&true)
    }

    /// Looks at the parts of a pair; false where one does not match.
    fn expand(&mut self, pair: Pair, pending: &mut Vec<Pair>) -> bool {
        let Some(parts) = self.parts(pair) else { return false };
        for part in parts {
            match self.scalar(part) {
                Some(true) => continue,
                Some(false) => return false,
                None => {}
            }
            match self.memo.holds.get(&part) {
                Some(false) => return false,
                Some(true) => {}
                None => {
                    self.memo.holds.insert(part, true);
                    pending.push(part);
                }
            }
            self.memo.dependents.entry(part).or_default().push(pair);
        }
        true
    }

    /// Whether a value matches, where that depends on no part of it.
    fn scalar(&mut self, pair: Pair) -> Option<bool> {
        self.shallow(pair, 0)
    }

    /// Whether a scalar matches, or a short list or tuple of such to some depth.
    #[inline(always)]
    fn shallow(&mut self, (handle, schema): Pair, depth: u8) -> Option<bool> {
        let value = self.values.get(handle);
        if self.schemas.takes(schema).contains(&value) {
            return Some(true);
        }
        self.not_by_type((handle, value), schema, depth)
    }

    /// As [`shallow`](Proof::shallow), for what the type of a value does not decide.
    #[inline(never)]
    pub(super) fn not_by_type(
        &mut self,
        (handle, value): (Handle, Value<'a>),
        schema: SchemaId,
        depth: u8,
    ) -> Option<bool> {
        let Some((_, schema)) = self.alternative((handle, value), schema) else { return Some(false) };
        let schemas = match schema {
            Schema::Data | Schema::Plain | Schema::Key => return self.plain_scalar(value, schema),
            Schema::Set { .. } | Schema::Dict { .. } | Schema::Record { .. } => return None,
            Schema::List(schemas) | Schema::Tuple(schemas) => schemas,
            Schema::Kind(_) => {
                if let Value::Call(id) = value
                    && !self.values.call(id).states.is_empty()
                {
                    self.seen.insert(id);
                }
                return Some(true);
            }
            // The head is all of the others.
            _ => return Some(true),
        };
        let depth = depth.checked_sub(1)?;
        let (Value::List(items) | Value::Tuple(items)) = value else { return None };
        if items.len() > SHALLOW_MAX_ITEMS {
            return None;
        }
        for (at, &item) in items.iter().enumerate() {
            if !self.shallow((item, schemas.at(at)?), depth)? {
                return Some(false);
            }
        }
        Some(true)
    }

    /// Whether a value is data, plain or a key, where that depends on no part of it.
    fn plain_scalar(&self, value: Value<'a>, schema: &Schema) -> Option<bool> {
        let is_key = matches!(schema, Schema::Key);
        match value {
            Value::None
            | Value::Bool(_)
            | Value::Int(_)
            | Value::BigInt(_)
            | Value::Float(_)
            | Value::Str(_)
            | Value::Bytes(_) => Some(true),
            Value::ByteArray(_) => Some(!is_key),
            Value::Tuple([]) => Some(true),
            Value::Tuple(_) => None,
            // The items of a set are keys.
            Value::FrozenSet(_) if is_key => Some(true),
            Value::List(_) | Value::Dict(_) | Value::Set(_) | Value::FrozenSet(_) => is_key.then_some(false),
            Value::Global(id) => Some(self.row(id).is_some_and(|row| row.is_constant())),
            Value::PersistentId(pid) => Some(!is_key && self.module_class(pid).is_none()),
            Value::Call(id) => self.plain_call(id, schema),
        }
    }

    fn plain_call(&self, id: CallId, schema: &Schema) -> Option<bool> {
        let Some(kind) = self.kind(id) else { return Some(false) };
        let row = self.callee(&self.values.call(id)).and_then(|callee| self.row(callee));
        match (schema, kind) {
            (Schema::Key, "size" | "bytes" | "frozenset") => Some(true),
            (Schema::Key, _) => Some(row.is_some_and(|row| row.is_key)),
            (Schema::Plain, "ndarray") if numpy::lists(self, id).next().is_some() => None,
            (
                _,
                "ordered_dict" | "counter" | "default_dict" | "dict" | "list" | "deque" | "set" | "frozenset"
                | "tuple",
            ) => None,
            (
                Schema::Plain,
                "tensor" | "storage" | "size" | "device" | "layout" | "complex" | "bytes" | "bytearray"
                | "record" | "ndarray" | "numpy_scalar" | "numpy_dtype" | "numpy_objects",
            ) => Some(true),
            (Schema::Data, kind) => Some(kind != "alias" && row.is_some_and(|row| !row.is_callable)),
            _ => Some(false),
        }
    }

    /// The schema itself, or the first one of a union whose head a value has.
    #[inline]
    fn alternative(
        &self,
        value: (Handle, Value<'a>),
        schema: SchemaId,
    ) -> Option<(SchemaId, &'static Schema)> {
        match self.schemas.node(schema) {
            Schema::Union(parts) => parts.iter().find_map(|&part| self.alternative(value, part)),
            node => self.has_head(value, schema).then_some((schema, node)),
        }
    }

    /// Whether the outermost type of a value is that of a schema.
    #[inline]
    fn has_head(&self, (handle, value): (Handle, Value<'a>), schema: SchemaId) -> bool {
        let kind = |wanted: &str| self.has_kind(value, wanted);
        let text = |value| match value {
            Value::Str(text) => Some(text.as_bytes()),
            _ => None,
        };
        match self.schemas.node(schema) {
            Schema::Any
            | Schema::None
            | Schema::Bool
            | Schema::Int
            | Schema::Num
            | Schema::Float
            | Schema::Str
            | Schema::Global => self.schemas.takes(schema).contains(&value),
            Schema::Data | Schema::Plain | Schema::Key => true,
            Schema::Text => text(value).is_some_and(|text| text.len() <= TEXT_MAX_BYTES),
            Schema::Digits => text(value).is_some_and(|text| {
                (1..=DIGITS_MAX).contains(&text.len()) && text.iter().all(u8::is_ascii_digit)
            }),
            Schema::Place => text(value).is_some_and(is_place),
            Schema::Ratio => text(value).is_some_and(is_ratio),
            Schema::Code => numpy::elements(self, handle).is_some(),
            Schema::Name => {
                text(value).is_some_and(|text| !(text.starts_with(b"__") && text.ends_with(b"__")))
            }
            Schema::Bytes => self.is_literal_bytes(value),
            Schema::ByteArray => matches!(value, Value::ByteArray(_)) || kind("bytearray"),
            Schema::Empty => self.is_empty(value),
            Schema::Kind(wanted) => kind(wanted),
            Schema::Literal(wanted) => self.is_literal(value, wanted.as_bytes()),
            Schema::Named(module, name) => self.is_named(handle, module, name),
            Schema::List(items) => matches!(value, Value::List(found) if items.has_len(found.len())),
            Schema::Tuple(items) => matches!(value, Value::Tuple(found) if items.has_len(found.len())),
            Schema::Set { .. } => {
                matches!(value, Value::Set(_) | Value::FrozenSet(_)) || kind("set") || kind("frozenset")
            }
            Schema::Dict { is_builtin, .. } => {
                matches!(value, Value::Dict(_)) || (!is_builtin && kind("ordered_dict"))
            }
            Schema::Record { .. } => matches!(value, Value::Dict(_)),
            Schema::Union(parts) => {
                parts.iter().any(|&part| self.alternative((handle, value), part).is_some())
            }
        }
    }

    /// Whether a value is this text: a string, bytes, or `_codecs.encode(text, 'latin1')`.
    fn is_literal(&self, value: Value<'a>, wanted: &[u8]) -> bool {
        let text = match value {
            Value::Call(id) if self.is_literal_bytes(value) => {
                match self.values.get(self.values.call(id).args) {
                    Value::Tuple(&[text, _]) => self.values.get(text),
                    _ => return false,
                }
            }
            _ => value,
        };
        match text {
            Value::Str(text) => text.as_bytes() == wanted,
            Value::Bytes(bytes) => bytes == wanted,
            _ => false,
        }
    }

    fn has_kind(&self, value: Value<'a>, wanted: &str) -> bool {
        match value {
            Value::Call(id) => self.kind(id) == Some(wanted),
            Value::Global(id) => self.row(id).is_some_and(|row| row.calls == "-" && row.kind == wanted),
            Value::PersistentId(pid) => {
                (wanted == "storage" || (wanted == "tensor" && self.ids == PersistentIdForm::Keyed))
                    && self.module_class(pid).is_none()
            }
            _ => false,
        }
    }

    /// Whether a value is an empty dict or `OrderedDict`, also at the end.
    fn is_empty(&self, value: Value<'a>) -> bool {
        let has_state = matches!(value, Value::Call(id) if !self.values.call(id).states.is_empty());
        !has_state && self.pairs(value).is_some_and(<[_]>::is_empty)
    }

    /// The pairs of a dict, or of an `OrderedDict` that was made empty.
    fn pairs(&self, value: Value<'a>) -> Option<&'a [(Handle, Handle)]> {
        let id = match value {
            Value::Dict(pairs) => return Some(pairs),
            Value::Call(id) if self.kind(id) == Some("ordered_dict") => id,
            _ => return None,
        };
        let call = self.values.call(id);
        let is_empty = |&from: &Handle| match self.values.get(from) {
            Value::List(items) | Value::Tuple(items) => items.is_empty(),
            Value::Dict(pairs) => pairs.is_empty(),
            _ => false,
        };
        let Value::Tuple(args) = self.values.get(call.args) else { return None };
        args.iter().all(is_empty).then_some(call.items)
    }

    /// The parts of a value whose head matches, each with its schema; `None` where it does not match for another reason.
    fn parts(&self, (value, schema): Pair) -> Option<Vec<Pair>> {
        let found = self.values.get(value);
        let (schema, node) = self.alternative((value, found), schema)?;
        let each = |items: &[Handle], schema| Some(items.iter().map(|&item| (item, schema)).collect());
        match (node, found) {
            (Schema::List(schemas) | Schema::Tuple(schemas), Value::List(items) | Value::Tuple(items)) => {
                items.iter().enumerate().map(|(at, &item)| Some((item, schemas.at(at)?))).collect()
            }
            (&Schema::Set { item, .. }, Value::Set(items) | Value::FrozenSet(items)) => each(items, item),
            (&Schema::Set { item, list }, Value::Call(id)) => {
                let call = self.values.call(id);
                let mut parts: Vec<Pair> = each(call.appended, item)?;
                match self.values.get(call.args) {
                    Value::Tuple([]) => {}
                    Value::Tuple(&[from]) => parts.push((from, list)),
                    _ => return None,
                }
                Some(parts)
            }
            (&Schema::Dict { key: name, value: schema, .. }, _) => {
                let pairs = self.pairs(found)?.iter();
                Some(pairs.flat_map(|&(key, value)| [(key, name), (value, schema)]).collect())
            }
            (Schema::Record { fields, .. }, Value::Dict(pairs)) => {
                let has = |name: &str| pairs.iter().any(|&(key, _)| self.is_str(key, name));
                let missing = fields.iter().any(|field| field.is_required && !has(field.name));
                let part = |&(key, value): &(Handle, Handle)| Some((value, self.field(key, schema)?));
                if missing { None } else { pairs.iter().map(part).collect() }
            }
            (Schema::Data | Schema::Plain | Schema::Key, found) => match found {
                Value::List(items) | Value::Tuple(items) | Value::Set(items) | Value::FrozenSet(items) => {
                    each(items, schema)
                }
                Value::Dict(pairs) => each_of(pairs, schema),
                Value::Call(id) if self.kind(id) == Some("ndarray") => {
                    Some(numpy::lists(self, id).map(|list| (list, schema)).collect())
                }
                Value::Call(id) => {
                    let call = self.values.call(id);
                    let mut parts: Vec<Pair> = each(call.appended, schema)?;
                    parts.extend(each_of(call.items, schema)?);
                    parts.push((call.args, schema));
                    Some(parts)
                }
                _ => None,
            },
            _ => None,
        }
    }

    /// The schema of a record for the value of a key.
    pub(super) fn field(&self, key: Handle, schema: SchemaId) -> Option<SchemaId> {
        let Schema::Record { fields, rest } = self.schemas.node(schema) else { return None };
        let Value::Str(name) = self.values.get(key) else { return None };
        let name = name.as_bytes();
        let field = fields.iter().find(|field| field.name.as_bytes() == name).map(|field| field.schema);
        field.or(*rest).filter(|_| !(name.starts_with(b"__") && name.ends_with(b"__")))
    }

    fn is_str(&self, handle: Handle, text: &str) -> bool {
        matches!(self.values.get(handle), Value::Str(found) if found.as_bytes() == text.as_bytes())
    }
}

impl Items {
    fn has_len(&self, len: usize) -> bool {
        match self {
            Items::Many(_) => true,
            Items::Exactly(items) => items.len() == len,
        }
    }

    fn at(&self, index: usize) -> Option<SchemaId> {
        match self {
            Items::Many(item) => Some(*item),
            Items::Exactly(items) => items.get(index).copied(),
        }
    }
}

/// Whether a text names a device: letters, and perhaps a number.
fn is_place(text: &[u8]) -> bool {
    let is_number = |text: &[u8]| !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    let mut parts = text.splitn(2, |&byte| byte == b':');
    text.len() <= NUMBER_MAX_BYTES
        && parts
            .next()
            .is_some_and(|letters| !letters.is_empty() && letters.iter().all(u8::is_ascii_lowercase))
        && parts.next().is_none_or(is_number)
}

/// Whether a text is a fraction of integers. With an exponent, Python would compute a power.
fn is_ratio(text: &[u8]) -> bool {
    text.len() <= NUMBER_MAX_BYTES
        && text.iter().all(|byte| byte.is_ascii_digit() || matches!(byte, b'-' | b'/'))
}

fn each_of(pairs: &[(Handle, Handle)], schema: SchemaId) -> Option<Vec<Pair>> {
    Some(pairs.iter().flat_map(|&(key, value)| [(key, schema), (value, schema)]).collect())
}
