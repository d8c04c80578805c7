//! The texts that describe the structure of a program's inputs and outputs, as `torch.utils._pytree.treespec_loads` reads them.
//!
//! A node names its type, which the reader looks up among those that are registered, and has a context. The context of a `defaultdict`
//! names a function that is imported and, once the program is used, called; an object in any other context with the key `__enum__`
//! names a class that is imported. Types of other libraries read their contexts in ways of their own.

use serde_json::Value;

use super::super::super::verdict::Verdict;

/// A longer text is not read.
const TEXT_MAX_BYTES: usize = 1 << 20;
/// What a `defaultdict` may make its values with.
const FACTORIES: [&str; 8] = ["bool", "dict", "float", "int", "list", "set", "str", "tuple"];

/// Inert where all types are containers of Python and torch that no context changes.
pub(super) fn verdict(text: &str) -> Verdict {
    let value = if text.len() > TEXT_MAX_BYTES { None } else { serde_json::from_str(text).ok() };
    match value.as_ref().and_then(Value::as_array).map(Vec::as_slice) {
        Some([protocol, node]) if protocol.as_u64() == Some(1) => node_verdict(node),
        _ => Verdict::Unknown,
    }
}

/// The verdict about a node and those below it; the parser of JSON bounds their depth.
fn node_verdict(node: &Value) -> Verdict {
    let Some(fields) = node.as_object().filter(|fields| fields.len() == 3) else { return Verdict::Unknown };
    let (Some(kind), Some(context), Some(children)) =
        (fields.get("type"), fields.get("context"), fields.get("children_spec").and_then(Value::as_array))
    else {
        return Verdict::Unknown;
    };
    let own = match kind {
        Value::Null if context.is_null() && children.is_empty() => Verdict::Inert,
        Value::String(kind) => context_verdict(kind, context),
        _ => Verdict::Unknown,
    };
    children.iter().map(node_verdict).fold(own, Verdict::max)
}

fn context_verdict(kind: &str, context: &Value) -> Verdict {
    if kind == "collections.defaultdict" {
        return factory_verdict(context);
    }
    // JSON in JSON.
    let Some(context) = context.as_str().and_then(|text| serde_json::from_str::<Value>(text).ok()) else {
        return Verdict::Unknown;
    };
    if has_enum(&context) {
        return Verdict::WouldExecute;
    }
    let is_plain = match kind {
        "builtins.tuple"
        | "builtins.list"
        | "torch.Size"
        | "torch.fx.immutable_collections.immutable_list" => context.is_null(),
        "builtins.dict" | "collections.OrderedDict" | "torch.fx.immutable_collections.immutable_dict" => {
            are_keys(&context)
        }
        "collections.deque" => context.is_null() || context.is_u64(),
        _ => false,
    };
    if is_plain { Verdict::Inert } else { Verdict::Unknown }
}

fn factory_verdict(context: &Value) -> Verdict {
    let text = |key| context.get(key).and_then(Value::as_str);
    let (Some(module), Some(name)) = (text("default_factory_module"), text("default_factory_name")) else {
        return Verdict::Unknown;
    };
    if module != "builtins" || !FACTORIES.contains(&name) {
        return Verdict::WouldExecute;
    }
    let has_others = context.as_object().is_none_or(|fields| fields.len() != 3);
    if has_others || !context.get("dict_context").is_some_and(are_keys) {
        Verdict::Unknown
    } else {
        Verdict::Inert
    }
}

/// Whether JSON is a list of plain keys. The keys of keyword arguments are written into the source of a function.
fn are_keys(value: &Value) -> bool {
    let is_plain = |char: char| char.is_ascii_alphanumeric() || matches!(char, '_' | '.' | '-' | '/' | ' ');
    let is_key = |key: &Value| match key {
        Value::String(text) => text.chars().all(is_plain),
        Value::Array(_) | Value::Object(_) => false,
        _ => true,
    };
    value.as_array().is_some_and(|keys| keys.iter().all(is_key))
}

/// Whether JSON has an object for which the reader imports a class.
fn has_enum(value: &Value) -> bool {
    match value {
        Value::Array(items) => items.iter().any(has_enum),
        Value::Object(fields) => fields.contains_key("__enum__") || fields.values().any(has_enum),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(kind: &str, context: &str) -> String {
        let leaf = r#"{"type": null, "context": null, "children_spec": []}"#;
        format!(r#"[1, {{"type": "{kind}", "context": {context}, "children_spec": [{leaf}]}}]"#)
    }

    #[test]
    fn containers_are_inert() {
        for (kind, context) in [
            ("builtins.tuple", r#""null""#),
            ("builtins.dict", r#""[\"a b\", 1, null]""#),
            ("collections.deque", r#""3""#),
            (
                "collections.defaultdict",
                r#"{"default_factory_module": "builtins", "default_factory_name": "list", "dict_context": ["a"]}"#,
            ),
        ] {
            assert_eq!(verdict(&node(kind, context)), Verdict::Inert, "{kind}");
        }
    }

    #[test]
    fn what_is_imported_would_execute_and_the_rest_is_unknown() {
        let factory = |module: &str, more: &str| {
            format!(
                r#"{{"default_factory_module": "{module}", "default_factory_name": "x", "dict_context": []{more}}}"#
            )
        };
        for (kind, context) in [
            ("collections.defaultdict", factory("this", "").as_str()),
            ("collections.defaultdict", factory("this", r#", "more": 1"#).as_str()),
            ("builtins.dict", r#""[{\"__enum__\": true, \"fqn\": \"this:x\", \"name\": \"a\"}]""#),
            ("builtins.tuple", r#""{\"\\u005f_enum__\": 1}""#),
            ("other.Type", r#""{\"__enum__\": 1}""#),
        ] {
            assert_eq!(verdict(&node(kind, context)), Verdict::WouldExecute, "{kind} {context}");
        }
        for (kind, context) in [
            ("builtins.tuple", "null"),
            ("builtins.tuple", r#""[]""#),
            ("builtins.dict", r#""[\"x=open(1)\"]""#),
            ("builtins.dict", r#""[[]]""#),
            ("collections.namedtuple", r#""mine.Point""#),
            ("other.Type", r#""null""#),
        ] {
            assert_eq!(verdict(&node(kind, context)), Verdict::Unknown, "{kind} {context}");
        }
        for text in ["", "[1]", "[2, {}]", "[true, {}]", "{}", r#"[1, {"type": null, "context": null}]"#] {
            assert_eq!(verdict(text), Verdict::Unknown, "{text}");
        }
    }
}
