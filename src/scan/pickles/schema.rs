//! The schemas in the table of globals, parsed: the exact types of the arguments and states that are proven to run nothing.

use std::collections::HashMap;

use once_cell::race::OnceBox;

use crate::index::globals;

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
    use super::*;

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
