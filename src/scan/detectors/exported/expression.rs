//! The texts in the graph of an exported program that torch evaluates, and whether they are plain arithmetic.
//!
//! Some keys of torch's schema (torch/_export/serde/schema.py) have such texts: `expr_str`, a shape or condition as `sympy.srepr` writes it,
//! `guards_code`, conditions on the inputs in Python, `in_spec` and `out_spec`, the types of inputs and outputs, and `target` and
//! `as_operator`, which are looked up. The strings of the JSON text are read in order, whatever its structure, so duplicate keys and
//! damage hide none.

use super::super::super::verdict::Verdict;
use super::{operator, pytree};
use crate::num::to_u64;

/// Functions of sympy and torch.utils._sympy that build an expression of their arguments.
const FUNCTIONS: &[&str] = &[
    "Abs",
    "Add",
    "And",
    "Boolean",
    "CeilDiv",
    "CeilToInt",
    "CleanDiv",
    "Equality",
    "Eq",
    "ExprCondPair",
    "Float",
    "FloatPow",
    "FloatTrueDiv",
    "FloorDiv",
    "FloorToInt",
    "Ge",
    "GreaterThan",
    "Gt",
    "ITE",
    "Identity",
    "IntTrueDiv",
    "Integer",
    "IsNonOverlappingAndDenseIndicator",
    "LShift",
    "Le",
    "LessThan",
    "Lt",
    "Max",
    "Min",
    "Mod",
    "ModularIndexing",
    "Mul",
    "Ne",
    "Not",
    "Or",
    "Piecewise",
    "Pow",
    "PowByNatural",
    "PythonMod",
    "RShift",
    "Rational",
    "RoundDecimal",
    "RoundToInt",
    "StrictGreaterThan",
    "StrictLessThan",
    "Symbol",
    "ToFloat",
    "TruncToFloat",
    "TruncToInt",
    "Unequality",
    "Where",
    "Xor",
    "ceiling",
    "floor",
];
/// What guards call.
const GUARD_FUNCTIONS: &[&str] =
    &["abs", "bool", "float", "int", "len", "max", "min", "round", "not", "and", "or"];
/// Attributes of inputs that guards ask for.
const GUARD_ATTRIBUTES: &[&str] =
    &["dim", "dtype", "item", "ndim", "numel", "shape", "size", "storage_offset", "stride"];
/// Functions of Python that do more than arithmetic.
const PYTHON: &[&str] = &[
    "breakpoint",
    "compile",
    "delattr",
    "eval",
    "exec",
    "getattr",
    "globals",
    "input",
    "locals",
    "open",
    "setattr",
    "type",
    "vars",
];

/// Where a text is evaluated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// By sympy, when the program is loaded.
    Expression,
    /// By Python, when its module is made.
    Guard,
    /// By torch.utils._pytree, when the program is loaded.
    Pytree,
    /// As the name of what the program calls.
    Operator,
}

/// A text that torch evaluates.
#[derive(Debug)]
pub(super) struct Evaluated {
    pub(super) kind: Kind,
    pub(super) text: String,
    /// The offset of its string in the graph.
    pub(super) offset: u64,
}

impl Evaluated {
    /// Inert for plain arithmetic, containers and operators of torch; would execute for texts that reach Python's functions or attributes.
    pub(super) fn verdict(&self) -> Verdict {
        match self.kind {
            Kind::Expression | Kind::Guard => check(self.kind, &self.text),
            Kind::Pytree => pytree::verdict(&self.text),
            Kind::Operator => operator::verdict(&self.text),
        }
    }
}

/// Lists the texts of a graph.
pub(super) struct Texts<'a> {
    strings: Strings<'a>,
    /// The last key, if texts follow it.
    kind: Option<Kind>,
}

impl<'a> Texts<'a> {
    pub(super) fn of(json: &'a str) -> Texts<'a> {
        Texts { strings: Strings { json, at: 0 }, kind: None }
    }
}

impl Iterator for Texts<'_> {
    type Item = Evaluated;

    fn next(&mut self) -> Option<Evaluated> {
        loop {
            let (offset, text, is_key) = self.strings.next()?;
            if is_key {
                self.kind = match text.as_str() {
                    "expr_str" => Some(Kind::Expression),
                    "guards_code" => Some(Kind::Guard),
                    "in_spec" | "out_spec" => Some(Kind::Pytree),
                    "target" | "as_operator" => Some(Kind::Operator),
                    _ => None,
                };
            } else if let Some(kind) = self.kind {
                return Some(Evaluated { kind, text, offset: to_u64(offset) });
            }
        }
    }
}

/// The strings of a JSON text, decoded: the offset, the text, and whether a colon follows.
struct Strings<'a> {
    json: &'a str,
    at: usize,
}

impl Iterator for Strings<'_> {
    type Item = (usize, String, bool);

    fn next(&mut self) -> Option<(usize, String, bool)> {
        let rest = self.json.get(self.at..)?;
        let start = self.at.saturating_add(rest.find('"')?);
        let body = self.json.get(start.saturating_add(1)..)?;
        let mut escaped = false;
        let len = body.bytes().position(|byte| {
            let ends = byte == b'"' && !escaped;
            escaped = byte == b'\\' && !escaped;
            ends
        });
        let len = len.unwrap_or(body.len());
        let raw = body.get(..len)?;
        self.at = start.saturating_add(len).saturating_add(2).min(self.json.len());
        let after = self.json.get(self.at..).unwrap_or_default();
        let is_key = after.trim_start().starts_with(':');
        Some((start, decoded(raw), is_key))
    }
}

/// The text of a JSON string. An escape that JSON does not have stays as it is.
fn decoded(raw: &str) -> String {
    if !raw.contains('\\') {
        return raw.to_owned();
    }
    serde_json::from_str(&format!("\"{raw}\"")).unwrap_or_else(|_| raw.to_owned())
}

/// The last token of a text.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Last<'a> {
    Name(&'a str),
    /// A name after a dot.
    Attribute,
    /// A number, a string or a closing bracket.
    Value,
    Operator,
}

/// Whether a text is plain arithmetic: numbers, names, operators, and calls of functions that are known to build an expression.
fn check(kind: Kind, text: &str) -> Verdict {
    if text.contains("__") {
        return Verdict::WouldExecute;
    }
    let is_guard = kind == Kind::Guard;
    let mut verdict = Verdict::Inert;
    let mut last = Last::Operator;
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let word = |is: &dyn Fn(char) -> bool| rest.split(|c| !is(c)).next().unwrap_or_default();
        let (len, next) = match first {
            ' ' => (1, last),
            '0'..='9' => {
                let number = word(&|c| c.is_ascii_alphanumeric() || c == '.');
                (number.len(), Last::Value)
            }
            'a'..='z' | 'A'..='Z' | '_' => {
                let name = word(&|c| c.is_ascii_alphanumeric() || c == '_');
                if matches!(name, "lambda" | "import" | "yield" | "await") {
                    return Verdict::WouldExecute;
                }
                (name.len(), Last::Name(name))
            }
            '\'' => {
                let Some(len) = rest.get(1..).and_then(|rest| rest.find('\'')) else {
                    return Verdict::WouldExecute;
                };
                let inner = rest.get(1..len.saturating_add(1)).unwrap_or_default();
                let is_plain = |c: char| {
                    c.is_ascii_alphanumeric() || matches!(c, '_' | '+' | '-') || (c == '.' && !is_guard)
                };
                // A name in front is a prefix: f'{...}'.
                if !inner.chars().all(is_plain) || matches!(last, Last::Name(_)) {
                    return Verdict::WouldExecute;
                }
                (len.saturating_add(2), Last::Value)
            }
            '.' if is_guard && last != Last::Operator => {
                let name = rest.get(1..).unwrap_or_default();
                let name =
                    name.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).next().unwrap_or_default();
                verdict = verdict.max(attribute(name));
                (name.len().saturating_add(1), Last::Attribute)
            }
            '(' => {
                match last {
                    Last::Operator | Last::Attribute => {}
                    Last::Name(name) => verdict = verdict.max(call(kind, name)),
                    Last::Value => return Verdict::WouldExecute,
                }
                (1, Last::Operator)
            }
            '[' if is_guard => (1, Last::Operator),
            ']' if is_guard => (1, Last::Value),
            ')' => (1, Last::Value),
            '+' | '-' | '*' | '/' | '%' | ',' | '=' | '<' | '>' | '!' | '&' | '|' | '~' | '^' => {
                (1, Last::Operator)
            }
            _ => return Verdict::WouldExecute,
        };
        last = next;
        rest = rest.get(len.max(1)..).unwrap_or_default();
    }
    verdict
}

/// The verdict about a call of a function by its name.
fn call(kind: Kind, name: &str) -> Verdict {
    let known = FUNCTIONS.contains(&name) || (kind == Kind::Guard && GUARD_FUNCTIONS.contains(&name));
    match known {
        true => Verdict::Inert,
        false if PYTHON.contains(&name) => Verdict::WouldExecute,
        // sympy has every function of its own and of Python at hand; its classes are those with a capital letter.
        false if kind == Kind::Expression && !name.starts_with(|c: char| c.is_ascii_uppercase()) => {
            Verdict::WouldExecute
        }
        false => Verdict::Unknown,
    }
}

fn attribute(name: &str) -> Verdict {
    if GUARD_ATTRIBUTES.contains(&name) { Verdict::Inert } else { Verdict::Unknown }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_torch_writes_is_plain() {
        for text in [
            "s0",
            "Symbol('s77', positive=True, integer=True)",
            "Add(FloorDiv(Max(Symbol('s77', positive=True, integer=True), Mul(Integer(2), Symbol('u0'))), Integer(3)), Integer(1))",
            "Max(Integer(1), TruncToInt(Mul(Float('1.7', precision=53), ToFloat(Symbol('s0')))))",
            "s0*2 + 1 <= 3",
            "Rational(1, 2)",
            "-s0**2",
        ] {
            assert_eq!(check(Kind::Expression, text), Verdict::Inert, "{text}");
        }
        for text in [
            "(L['x'].size()[1] % 2) == 0",
            "1 + (max(L['x'].size()[1], L['x'].size()[0]) // 3) <= L['y'].size()[0]",
            "L['a'][0].storage_offset() != 0 and not (L['x'].size()[1] > 2)",
        ] {
            assert_eq!(check(Kind::Guard, text), Verdict::Inert, "{text}");
        }
    }

    #[test]
    fn what_reaches_python_would_execute() {
        for text in [
            "__import__('os').system('true')",
            "eval('x')",
            "exec(chr(1))",
            "open('x')",
            "preview(s0)",
            "(exec)('x')",
            "Symbol('a b')",
            "Symbol('s0').name",
            "Symbol(\"s0\")",
            "f'{s0}'",
            "[s0]",
            "s0; s1",
            "lambda x: x",
            "Integer(1)(2)",
            "'a",
            "s0\nprint",
            "s\u{e4}",
            "1 .real",
        ] {
            assert_eq!(check(Kind::Expression, text), Verdict::WouldExecute, "{text}");
        }
        for text in [
            "eval('x')",
            "L['x'].__class__",
            "L['x'](1)(2)",
            "lambda: 0",
            "getattr(L, 'x')",
            "\"\"",
            "L['a.b']",
        ] {
            assert_eq!(check(Kind::Guard, text), Verdict::WouldExecute, "{text}");
        }
        for (kind, text) in
            [(Kind::Expression, "Sum(s0)"), (Kind::Guard, "f(1)"), (Kind::Guard, "L['x'].data")]
        {
            assert_eq!(check(kind, text), Verdict::Unknown, "{text}");
        }
    }

    #[test]
    fn all_texts_are_found_however_they_are_written() {
        let found = |json: &str| Texts::of(json).map(|text| (text.kind, text.text)).collect::<Vec<_>>();
        let expression = |text: &str| (Kind::Expression, text.to_owned());
        assert_eq!(found(r#"{"expr_str": "s0", "hint": "x"}"#), [expression("s0")]);
        assert_eq!(
            found(r#"{"expr\u005fstr" : "a", "expr_str":"\u0062"}"#),
            [expression("a"), expression("b")]
        );
        assert_eq!(found(r#"{"expr_str": {"x": 1}, "b": "c"}"#), []);
        assert_eq!(found(r#"{"expr_str": ["a", "b"]"#), [expression("a"), expression("b")]);
        let guards = [(Kind::Guard, "a".to_owned()), (Kind::Guard, "b\"".to_owned())];
        assert_eq!(found(r#"{"guards_code": ["a", "b\""], "c": "d"}"#), guards);
        assert_eq!(found(r#"{"expr_str": "cut"#), [expression("cut")]);
        assert_eq!(found(r#""\"#), []);
    }
}
