//! The closed schema of an exported program's graph: a graph with anything else in it is not inert.
//!
//! torch's reader (torch/_export/serde/serialize.py) makes dataclasses of the JSON, looks up operators and types by name, and writes the
//! names of variables into the source of a function, which it executes. `schema.txt` has these dataclasses, with a grammar for each
//! text; keys and values that it does not have are refused here, whatever the reader does with them.

use std::collections::HashMap;
use std::fmt;

use once_cell::race::OnceBox;
use serde::de::{self, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

/// What a node's `metadata` may have: texts that the reader splits, or of which it makes data.
const METADATA: [&str; 6] =
    ["stack_trace", "nn_module_stack", "source_fn_stack", "torch_fn", "custom", "from_node"];
/// Floats that JSON does not have, as torch writes them.
const FLOATS: [&str; 3] = ["Infinity", "-Infinity", "NaN"];

/// How the message of a check that torch adds to a graph begins (torch/fx/passes/runtime_assert.py).
const ASSERTION: &str = "Runtime assertion failed for expression ";

/// The type of a value.
enum Type {
    Bool,
    Int,
    Float,
    /// The name of a variable, or nothing.
    Name,
    /// Names between dots.
    Path,
    /// A text argument of an operator: a mode, an equation.
    Word,
    /// A text that is shown, or that [`expression`](super::expression) judges.
    Text,
    Metadata,
    List(Box<Type>),
    Map(Box<Type>),
    Nullable(Box<Type>),
    Class(&'static str),
}

/// A dataclass; a union has exactly one of its fields.
struct Class {
    is_union: bool,
    fields: HashMap<&'static str, Type>,
}

/// What the graph has that the schema does not, as the end of a sentence; `None` if nothing.
pub(super) fn oddity(json: &str) -> Option<String> {
    static CLASSES: OnceBox<HashMap<&str, Class>> = OnceBox::new();
    let classes =
        CLASSES.get_or_init(|| Box::new(include_str!("schema.txt").lines().filter_map(class).collect()));
    let mut reader = serde_json::Deserializer::from_str(json);
    let root = Type::Class("ExportedProgram");
    let checked = Check { classes, wanted: &root }.deserialize(&mut reader).and_then(|()| reader.end());
    checked.err().map(|error| error.to_string())
}

/// A line of the table.
fn class(line: &'static str) -> Option<(&'static str, Class)> {
    let mut words = line.split(' ');
    let is_union = match words.next()? {
        "record" => false,
        "union" => true,
        _ => return None,
    };
    let name = words.next()?;
    let fields = words.filter_map(|word| word.split_once(':')).map(|(field, of)| (field, parse(of)));
    Some((name, Class { is_union, fields: fields.collect() }))
}

fn parse(text: &'static str) -> Type {
    let inner = |open, close| text.strip_prefix(open).and_then(|rest| rest.strip_suffix(close));
    if let Some(inner) = text.strip_suffix('?') {
        return Type::Nullable(Box::new(parse(inner)));
    }
    if let Some(inner) = inner('[', ']') {
        return Type::List(Box::new(parse(inner)));
    }
    if let Some(inner) = inner('{', '}') {
        return Type::Map(Box::new(parse(inner)));
    }
    match text {
        "bool" => Type::Bool,
        "int" => Type::Int,
        "float" => Type::Float,
        "name" => Type::Name,
        "path" => Type::Path,
        "word" => Type::Word,
        "text" | "expression" | "guard" | "pytree" | "operator" => Type::Text,
        "metadata" => Type::Metadata,
        class => Type::Class(class),
    }
}

/// Whether a text is the name of a variable, or nothing.
pub(super) fn is_name(text: &str) -> bool {
    text.chars().all(|char| char.is_ascii_alphanumeric() || char == '_')
        && !text.starts_with(|char: char| char.is_ascii_digit())
}

/// Whether a text consists of names between dots. torch writes `@1` behind the second call of a module.
fn is_path(text: &str) -> bool {
    let is_part = |char: char| char.is_ascii_alphanumeric() || matches!(char, '_' | '@');
    text.split('.').all(|part| part.chars().all(is_part) && !part.starts_with("__"))
}

/// Whether a text is a key: the reader looks up what it has under it. torch writes `relu__1` for the second `relu_`.
fn is_key(text: &str) -> bool {
    let is_plain = |char: char| char.is_ascii_alphanumeric() || "_.@+-*/%(), ".contains(char);
    let mut words = text.split(|char: char| !char.is_ascii_alphanumeric() && char != '_');
    text.chars().all(is_plain) && words.all(|word| !word.starts_with("__"))
}

/// Whether a text is a mode such as `mean`, an equation such as `ij,jk->ik`, or what torch says where a size is wrong.
fn is_word(text: &str) -> bool {
    let (text, more) = text.strip_prefix(ASSERTION).map_or((text, ""), |rest| (rest, "'()*%<=!&|~"));
    text.chars().all(|char| char.is_ascii_alphanumeric() || "_ ,.->+".contains(char) || more.contains(char))
}

/// Checks one value.
#[derive(Clone, Copy)]
struct Check<'s> {
    classes: &'s HashMap<&'static str, Class>,
    wanted: &'s Type,
}

impl<'s> Check<'s> {
    /// As `self`, for a value that is not null.
    fn present(self) -> &'s Type {
        match self.wanted {
            Type::Nullable(inner) => inner,
            wanted => wanted,
        }
    }

    fn expect<E: de::Error>(self, is_right: bool, what: &str) -> Result<(), E> {
        if is_right { Ok(()) } else { Err(E::custom(format_args!("{what} that its schema does not have"))) }
    }

    fn of(self, wanted: &'s Type) -> Check<'s> {
        Check { wanted, ..self }
    }
}

impl<'de> DeserializeSeed<'de> for Check<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Check<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value of its schema")
    }

    fn visit_bool<E: de::Error>(self, _: bool) -> Result<(), E> {
        self.expect(matches!(self.present(), Type::Bool), "a boolean")
    }

    fn visit_i64<E: de::Error>(self, _: i64) -> Result<(), E> {
        self.expect(matches!(self.present(), Type::Int | Type::Float), "a number")
    }

    fn visit_u64<E: de::Error>(self, _: u64) -> Result<(), E> {
        self.visit_i64(0)
    }

    fn visit_f64<E: de::Error>(self, _: f64) -> Result<(), E> {
        self.expect(matches!(self.present(), Type::Float), "a number")
    }

    fn visit_unit<E: de::Error>(self) -> Result<(), E> {
        self.expect(matches!(self.wanted, Type::Nullable(_)), "a null")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<(), E> {
        let is_right = match self.present() {
            Type::Name => is_name(text),
            Type::Path => is_path(text),
            Type::Word => is_word(text),
            Type::Text => true,
            Type::Float => FLOATS.contains(&text),
            _ => false,
        };
        self.expect(is_right, "a text")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        let Type::List(item) = self.present() else { return self.expect(false, "a list") };
        while seq.next_element_seed(self.of(item))?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let class = match self.present() {
            Type::Class(name) => self.classes.get(name),
            _ => None,
        };
        self.expect(class.is_some() || matches!(self.present(), Type::Map(_) | Type::Metadata), "an object")?;
        let mut seen: Vec<String> = Vec::new();
        while let Some(key) = map.next_key::<String>()? {
            let wanted = match (self.present(), class) {
                (_, Some(class)) => class.fields.get(key.as_str()),
                (Type::Map(item), None) if is_key(&key) => Some(&**item),
                (Type::Metadata, None) if METADATA.contains(&key.as_str()) => Some(&Type::Text),
                _ => None,
            };
            let Some(wanted) = wanted else { return self.expect(false, &format!("a key {key:?}")) };
            map.next_value_seed(self.of(wanted))?;
            if class.is_some() {
                self.expect(!seen.contains(&key), "a key twice")?;
                seen.push(key);
            }
        }
        self.expect(class.is_none_or(|class| !class.is_union || seen.len() == 1), "a number of keys")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_dataclasses_have_is_no_oddity() {
        for json in [
            r#"{"graph_module": {"graph": {"nodes": []}}, "guards_code": [], "range_constraints": {}}"#,
            r#"{"graph_module": {"graph": {"inputs": [{"as_tensor": {"name": "p_a_weight"}}, {"as_float": "-Infinity"}, {"as_float": 1}]}}}"#,
            r#"{"graph_module": {"signature": {"input_specs": [{"parameter": {"arg": {"name": "x"}, "parameter_name": "a.0.w@1"}}]}}}"#,
            r#"{"graph_module": {"graph": {"inputs": [{"as_string": "Runtime assertion failed for expression u0 >= 0 on node 'ge'"}]}}}"#,
            r#"{"graph_module": {"graph": {"tensor_values": {"relu__1": {}, "relu_": {}}}}}"#,
            r#"{"graph_module": {"graph": {"nodes": [{"metadata": {"stack_trace": "File \"x\"\n"}, "name": null}]}}}"#,
        ] {
            assert_eq!(oddity(json), None, "{json}");
        }
    }

    #[test]
    fn anything_else_is_an_oddity() {
        let argument = |value: &str| format!(r#"{{"graph_module": {{"graph": {{"inputs": [{value}]}}}}}}"#);
        for value in [
            r#"{"as_tensor": {"name": "x=open('a', 'w')"}}"#,
            r#"{"as_tensor": {"name": "torch.load"}}"#,
            r#"{"as_tensor": {"name": ["x"]}}"#,
            r#"{"as_tensor": {"name": null}}"#,
            r#"{"as_tensor": {"name": "x", "name": "x"}}"#,
            r#"{"as_tensor": {"name": "x"}, "as_none": true}"#,
            "{}",
            r#"{"as_other": 1}"#,
            r#"{"as_string": "/tmp/file"}"#,
            r#"{"as_string": "Runtime assertion failed for expression /tmp/file"}"#,
            r#"{"as_string": "a 'text'"}"#,
            r#"{"as_int": 1.5}"#,
            r#"{"as_int": "1"}"#,
            r#"{"as_float": "inf"}"#,
            r#"{"as_float": NaN}"#,
            r#"{"as_string_to_argument": {"a=b": {"as_none": true}}}"#,
            r#"{"as_string_to_argument": {"__class__": {"as_none": true}}}"#,
            r#"{"as_string_to_argument": {"a.__class__": {"as_none": true}}}"#,
        ] {
            assert!(oddity(&argument(value)).is_some(), "{value}");
        }
        for json in [
            "",
            "[]",
            "{} {}",
            r#"{"more": 1}"#,
            r#"{"guards_code": {}}"#,
            r#"{"graph_module": {"metadata": {"other": "x"}}}"#,
            r#"{"graph_module": {"module_call_graph": [{"fqn": "a.__class__"}]}}"#,
        ] {
            assert!(oddity(json).is_some(), "{json}");
        }
    }
}
