//! The schemas in the table of globals, parsed: the exact types of the arguments and states that are proven to run nothing.

use std::collections::HashMap;

use once_cell::race::OnceBox;

use crate::index::globals;
use crate::pickle::Value;

/// The number of a schema.
pub(super) type SchemaId = u16;

/// The type of a value. The words are explained in the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Schema {
    Any,
    Data,
    Plain,
    Key,
    None,
    Bool,
    Int,
    Num,
    Float,
    Str,
    Text,
    Digits,
    Code,
    Place,
    Ratio,
    Name,
    Bytes,
    ByteArray,
    Global,
    Empty,
    Kind(&'static str),
    Literal(&'static str),
    Named(&'static str, &'static str),
    List(Items),
    Tuple(Items),
    /// A set of items; a call of `set` makes it of a list of them.
    Set {
        item: SchemaId,
        list: SchemaId,
    },
    Dict {
        is_builtin: bool,
        key: SchemaId,
        value: SchemaId,
    },
    Record {
        fields: Vec<Field>,
        rest: Option<SchemaId>,
    },
    Union(Vec<SchemaId>),
}

/// A set of the types of values that have no parts, and of all others as one.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Types(u8);

impl Types {
    const ALL: Types = Types(u8::MAX);
    const NONE: Types = Types(1);
    const BOOL: Types = Types(1 << 1);
    const INT: Types = Types(1 << 2);
    const FLOAT: Types = Types(1 << 3);
    const STR: Types = Types(1 << 4);
    const BYTES: Types = Types(1 << 5);
    const GLOBAL: Types = Types(1 << 6);
    const OTHER: Types = Types(1 << 7);

    /// The types of both.
    const fn and(self, more: Types) -> Types {
        Types(self.0 | more.0)
    }

    /// Whether a value has one of the types.
    #[inline]
    pub(super) fn contains(self, value: &Value<'_>) -> bool {
        let one = match value {
            Value::None => Types::NONE,
            Value::Bool(_) => Types::BOOL,
            Value::Int(_) | Value::BigInt(_) => Types::INT,
            Value::Float(_) => Types::FLOAT,
            Value::Str(_) => Types::STR,
            Value::Bytes(_) => Types::BYTES,
            Value::Global(_) => Types::GLOBAL,
            _ => Types::OTHER,
        };
        self.0 & one.0 != 0
    }
}

impl Schema {
    /// The types of which every value matches. Of a union, those that its first part with other values as well does not hide.
    fn takes(&self, schemas: &Schemas) -> Types {
        match self {
            Schema::Any => Types::ALL,
            Schema::Data | Schema::Plain | Schema::Key => Types::NONE
                .and(Types::BOOL)
                .and(Types::INT)
                .and(Types::FLOAT)
                .and(Types::STR)
                .and(Types::BYTES),
            Schema::None => Types::NONE,
            Schema::Bool => Types::BOOL,
            Schema::Int => Types::INT,
            Schema::Float => Types::FLOAT,
            Schema::Num => Types::INT.and(Types::FLOAT),
            Schema::Str => Types::STR,
            Schema::Global => Types::GLOBAL,
            Schema::Union(parts) => {
                let is_type = |part: &&SchemaId| {
                    let is_more = matches!(
                        schemas.node(**part),
                        Schema::Data | Schema::Plain | Schema::Key | Schema::Union(_)
                    );
                    !is_more && schemas.takes(**part).0 != 0
                };
                let more = parts.iter().find(|part| !is_type(part));
                let first = parts.iter().take_while(is_type).chain(more);
                first.fold(Types::default(), |types, &part| types.and(schemas.takes(part)))
            }
            _ => Types::default(),
        }
    }
}

/// The items of a list or tuple.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Items {
    Many(SchemaId),
    Exactly(Vec<SchemaId>),
}

/// A name in a dict of names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Field {
    pub(super) name: &'static str,
    pub(super) is_required: bool,
    pub(super) schema: SchemaId,
}

/// One form of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Form {
    /// Whether NEWOBJ makes the call.
    pub(super) is_new: bool,
    /// The arguments.
    pub(super) args: SchemaId,
}

/// All schemas of the table.
#[derive(Debug, Default)]
pub(super) struct Schemas {
    nodes: Vec<Schema>,
    /// By schema, the types of which every value matches.
    takes: Vec<Types>,
    types: HashMap<&'static str, SchemaId>,
    calls: HashMap<&'static str, Vec<Form>>,
    states: HashMap<&'static str, SchemaId>,
}

impl Schemas {
    /// Those of the table, parsed once.
    pub(super) fn get() -> &'static Schemas {
        static SCHEMAS: OnceBox<Schemas> = OnceBox::new();
        SCHEMAS.get_or_init(|| Box::new(Schemas::parse()))
    }

    /// A text that does not parse proves nothing; a test finds it.
    fn parse() -> Schemas {
        let mut schemas = Schemas::default();
        for line in globals::TEXT.lines() {
            if let Some((name, text)) = line.strip_prefix("type ").and_then(|line| line.split_once('='))
                && let Some(schema) = schemas.schema(text)
            {
                schemas.types.insert(name.trim(), schema);
            }
        }
        for (_, _, row) in globals::rows() {
            if row.calls != "-" && !schemas.calls.contains_key(row.calls) {
                let forms = row.calls.split(" / ").map(|form| {
                    let args = form.strip_prefix("new");
                    Some(Form { is_new: args.is_some(), args: schemas.schema(args.unwrap_or(form))? })
                });
                if let Some(forms) = forms.collect() {
                    schemas.calls.insert(row.calls, forms);
                }
            }
            if row.state != "-"
                && !schemas.states.contains_key(row.state)
                && let Some(state) = schemas.schema(row.state)
            {
                schemas.states.insert(row.state, state);
            }
        }
        schemas
    }

    pub(super) fn node(&self, id: SchemaId) -> &Schema {
        const NOTHING: &Schema = &Schema::Union(Vec::new());
        self.nodes.get(usize::from(id)).unwrap_or(NOTHING)
    }

    /// The types of which every value matches.
    #[inline]
    pub(super) fn takes(&self, id: SchemaId) -> Types {
        self.takes.get(usize::from(id)).copied().unwrap_or_default()
    }

    /// The forms of a row's calls.
    pub(super) fn forms(&self, calls: &str) -> &[Form] {
        self.calls.get(calls).map(Vec::as_slice).unwrap_or_default()
    }

    /// The schema of a row's states.
    pub(super) fn state(&self, state: &str) -> Option<SchemaId> {
        self.states.get(state).copied()
    }

    /// The schema of a name that the table defines.
    pub(super) fn named(&self, name: &str) -> Option<SchemaId> {
        self.types.get(name).copied()
    }

    fn schema(&mut self, text: &'static str) -> Option<SchemaId> {
        let mut parser = Parser { schemas: self, rest: text.trim() };
        let schema = parser.union()?;
        parser.rest.is_empty().then_some(schema)
    }

    fn add(&mut self, node: Schema) -> Option<SchemaId> {
        let at = self.nodes.iter().position(|known| *known == node).unwrap_or(self.nodes.len());
        if at == self.nodes.len() {
            self.takes.push(node.takes(self));
            self.nodes.push(node);
        }
        u16::try_from(at).ok()
    }
}

struct Parser<'p> {
    schemas: &'p mut Schemas,
    rest: &'static str,
}

impl Parser<'_> {
    fn eat(&mut self, token: &str) -> bool {
        let rest = self.rest.strip_prefix(token);
        self.rest = rest.map_or(self.rest, str::trim_start);
        rest.is_some()
    }

    /// What stands before a character that ends it.
    fn until(&mut self, is_end: impl Fn(char) -> bool) -> &'static str {
        let (word, rest) = self.rest.split_at(self.rest.find(is_end).unwrap_or(self.rest.len()));
        self.rest = rest.trim_start();
        word
    }

    fn union(&mut self) -> Option<SchemaId> {
        let mut parts = vec![self.term()?];
        while self.eat("|") {
            parts.push(self.term()?);
        }
        match parts[..] {
            [part] => Some(part),
            _ => self.schemas.add(Schema::Union(parts)),
        }
    }

    fn term(&mut self) -> Option<SchemaId> {
        let node = if self.eat("?") {
            let none = self.schemas.add(Schema::None)?;
            Schema::Union(vec![none, self.term()?])
        } else if self.eat("[") {
            Schema::List(self.items("]")?)
        } else if self.eat("(") {
            Schema::Tuple(self.items(")")?)
        } else if self.eat("{") {
            self.dict()?
        } else if self.eat("'") {
            let text = self.until(|char| char == '\'');
            self.eat("'").then_some(Schema::Literal(text))?
        } else if self.eat("<") {
            let kind = self.until(|char| char == '>');
            self.eat(">").then_some(Schema::Kind(kind))?
        } else if self.eat("set(") {
            let item = self.union()?;
            let list = self.schemas.add(Schema::List(Items::Many(item)))?;
            self.eat(")").then_some(Schema::Set { item, list })?
        } else if self.eat("dict(") {
            let key = self.union()?;
            let value = self.eat(",").then(|| self.union())??;
            self.eat(")").then_some(Schema::Dict { is_builtin: true, key, value })?
        } else {
            let word = self.until(|char| !(char.is_alphanumeric() || matches!(char, '_' | '.')));
            if let Some(defined) = self.schemas.named(word) {
                return Some(defined);
            }
            match word.rsplit_once('.') {
                Some((module, name)) => Schema::Named(module, name),
                None => builtin(word)?,
            }
        };
        self.schemas.add(node)
    }

    fn items(&mut self, end: &str) -> Option<Items> {
        let mut items = Vec::new();
        while !self.eat(end) {
            let item = self.union()?;
            if self.eat("*") {
                return self.eat(end).then_some(Items::Many(item));
            }
            items.push(item);
            self.eat(",");
        }
        Some(Items::Exactly(items))
    }

    fn dict(&mut self) -> Option<Schema> {
        if !self.rest.starts_with(['.', '*']) {
            let key = self.union()?;
            let value = self.eat(":").then(|| self.union())??;
            return self.eat("}").then_some(Schema::Dict { is_builtin: false, key, value });
        }
        let (mut fields, mut rest) = (Vec::new(), None);
        while !self.eat("}") {
            if self.eat("*:") {
                rest = Some(self.union()?);
            } else if self.eat(".") {
                let name = self.until(|char| matches!(char, '?' | ':'));
                let is_required = !self.eat("?");
                let schema = self.eat(":").then(|| self.union())??;
                fields.push(Field { name, is_required, schema });
            } else {
                return None;
            }
            self.eat(",");
        }
        Some(Schema::Record { fields, rest })
    }
}

fn builtin(word: &str) -> Option<Schema> {
    Some(match word {
        // What a function gets is matched with the forms of its row.
        "any" | "arguments" => Schema::Any,
        "data" => Schema::Data,
        "plain" => Schema::Plain,
        "key" => Schema::Key,
        "none" => Schema::None,
        "bool" => Schema::Bool,
        "int" => Schema::Int,
        "num" => Schema::Num,
        "float" => Schema::Float,
        "str" => Schema::Str,
        "text" => Schema::Text,
        "digits" => Schema::Digits,
        "code" => Schema::Code,
        "place" => Schema::Place,
        "ratio" => Schema::Ratio,
        "name" => Schema::Name,
        "bytes" => Schema::Bytes,
        "bytearray" => Schema::ByteArray,
        "global" => Schema::Global,
        "empty" => Schema::Empty,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::super::proof::Proof;
    use super::*;
    use crate::index::PersistentIdForm;
    use crate::limits::Limits;
    use crate::parallel::Cancel;
    use crate::pickle;

    #[test]
    fn every_call_state_and_type_of_the_table_is_a_schema() {
        let schemas = Schemas::get();
        for (module, name, row) in globals::rows() {
            assert_eq!(
                schemas.forms(row.calls).is_empty(),
                row.calls == "-",
                "{module}.{name} {}",
                row.calls
            );
            assert_eq!(schemas.state(row.state).is_none(), row.state == "-", "{module}.{name} {}", row.state);
        }
        let types = globals::TEXT.lines().filter(|line| line.starts_with("type "));
        assert_eq!(types.count(), schemas.types.len());
        // What loads bytes gives a storage, and a dtype of objects is of another kind.
        let kinds =
            globals::rows().map(|(_, _, row)| if row.kind == "loaded" { "storage" } else { row.kind });
        let kinds: Vec<&str> = kinds.chain(["numpy_objects"]).collect();
        for node in &schemas.nodes {
            match node {
                Schema::Kind(kind) => assert!(kinds.contains(kind), "{kind}"),
                Schema::Named(module, name) => {
                    assert!(globals::row(module, name).is_some(), "{module}.{name}")
                }
                _ => {}
            }
        }
    }

    #[test]
    fn what_a_schema_takes_by_its_type_matches_without_it_too() {
        let schemas = Schemas::get();
        // Every scalar, an empty and a full container, a constant, a class, a call and a persistent id.
        let data = b"(N\x88K\x05\x8a\x09\0\0\0\0\0\0\0\0\x01G?\xf8\0\0\0\0\0\0X\x01\0\0\0aC\x01a)N\x85]}\
            ctorch\nfloat32\nctorch\nSize\nccollections\nOrderedDict\n)RNQl.";
        let recovered =
            pickle::run_recovering(data.to_vec(), &Limits::default(), &Cancel::new()).expect("a pickle");
        assert!(recovered.defects.is_empty(), "{recovered:?}");
        let values = &recovered.values;
        let mut proof = Proof::new(&recovered, PersistentIdForm::Archive, &Limits::default());
        let mut taken = 0;
        for id in (0..schemas.nodes.len()).filter_map(|id| SchemaId::try_from(id).ok()) {
            for handle in values.handles() {
                let value = values.get(handle);
                if schemas.takes(id).contains(&value) {
                    assert_eq!(proof.not_by_type((handle, value), id, 2), Some(true), "{id} {value:?}");
                    taken += 1;
                }
            }
        }
        assert!(taken > 1000, "{taken}");
    }

    #[test]
    fn schemas_are_parsed_with_their_parts() {
        let mut schemas = Schemas::default();
        let id = schemas.schema("{.a: [int*], .b?: ?(str, <size>), *: plain}").unwrap();
        let Schema::Record { fields, rest } = schemas.node(id).clone() else { panic!("{schemas:?}") };
        assert_eq!(
            fields.iter().map(|field| (field.name, field.is_required)).collect::<Vec<_>>(),
            [("a", true), ("b", false)]
        );
        assert_eq!(schemas.node(rest.unwrap()), &Schema::Plain);
        for text in ["", "(", "[int", "(int))", "unknown", "'a", "{a: int}", "{.a int}", "set(int"] {
            assert_eq!(schemas.schema(text), None, "{text}");
        }
    }
}
