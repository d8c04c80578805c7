//! Arguments as one short line: what a call is given, as Python would spell it, cut where it gets long.
//!
//! Values may be deep, shared and cyclic, so depth, items and bytes are bounded; nothing is looked at beyond that.

use crate::pickle::{CallId, Handle, Value, Values};

/// Bytes of a preview.
const MOST: usize = 256;
/// Containers inside one another.
const DEPTH: usize = 4;
/// Items of one container.
const ITEMS: usize = 8;
/// Characters of one text.
const TEXT: usize = 120;

/// The arguments of a call, in parentheses.
pub(super) fn arguments(values: &Values, id: CallId) -> String {
    let call = values.call(id);
    let mut out = String::new();
    let args = match values.get(call.args) {
        Value::Tuple(args) => args,
        _ => &[],
    };
    let mut line = Line { values, out: &mut out };
    line.items("(", args, "", DEPTH);
    if let Some(Value::Dict(pairs)) = call.kwargs.map(|kwargs| values.get(kwargs)) {
        line.add(", **");
        line.pairs(pairs, DEPTH);
    }
    line.add(")");
    cut(out)
}

/// One value.
pub(super) fn value(values: &Values, handle: Handle) -> String {
    let mut out = String::new();
    Line { values, out: &mut out }.value(handle, DEPTH);
    cut(out)
}

fn cut(mut text: String) -> String {
    if text.len() > MOST {
        let end = (0..=MOST.saturating_sub(3)).rev().find(|&at| text.is_char_boundary(at));
        text.truncate(end.unwrap_or(0));
        text.push_str("...");
    }
    text
}

struct Line<'a> {
    values: &'a Values,
    out: &'a mut String,
}

impl Line<'_> {
    fn add(&mut self, text: &str) {
        if self.out.len() <= MOST {
            self.out.push_str(text);
        }
    }

    /// Recursion ends at `depth`, which starts at [`DEPTH`].
    fn value(&mut self, handle: Handle, depth: usize) {
        if self.out.len() > MOST {
            return;
        }
        let Some(depth) = depth.checked_sub(1) else { return self.add("...") };
        match self.values.get(handle) {
            Value::None => self.add("None"),
            Value::Bool(true) => self.add("True"),
            Value::Bool(false) => self.add("False"),
            Value::Int(number) => self.add(&number.to_string()),
            Value::BigInt(number) => {
                let bits = number.as_le_bytes().len().saturating_mul(8);
                self.add(&format!("<integer of {bits} bits>"));
            }
            Value::Float(number) => self.add(&number.to_string()),
            Value::Str(text) => {
                let bytes = text.as_bytes();
                let shown = String::from_utf8_lossy(bytes.get(..TEXT).unwrap_or(bytes));
                let dots = if bytes.len() > TEXT { "..." } else { "" };
                self.add(&format!("'{}'{dots}", shown.escape_debug()));
            }
            Value::Bytes(bytes) => self.bytes("b", bytes),
            Value::ByteArray(bytes) => self.bytes("bytearray b", bytes),
            Value::List(items) => self.items("[", items, "]", depth),
            Value::Tuple(items) => self.items("(", items, if items.len() == 1 { ",)" } else { ")" }, depth),
            Value::Set(items) => self.items("{", items, "}", depth),
            Value::FrozenSet(items) => self.items("frozenset {", items, "}", depth),
            Value::Dict(pairs) => self.pairs(pairs, depth),
            Value::Global(id) => {
                let global = self.values.global(id);
                self.add(global.module);
                self.add(".");
                self.add(global.name);
            }
            Value::Call(id) => {
                let call = self.values.call(id);
                self.value(call.callable, depth);
                let args = match self.values.get(call.args) {
                    Value::Tuple(args) => args,
                    _ => &[],
                };
                self.items("(", args, ")", depth);
            }
            Value::PersistentId(id) => {
                self.add("<persistent ");
                self.value(id, depth);
                self.add(">");
            }
        }
    }

    fn bytes(&mut self, prefix: &str, bytes: &[u8]) {
        let shown = bytes.get(..TEXT / 2).unwrap_or(bytes);
        let dots =
            if shown.len() < bytes.len() { format!("... ({} bytes)", bytes.len()) } else { String::new() };
        self.add(&format!("{prefix}'{}'{dots}", shown.escape_ascii()));
    }

    fn items(&mut self, open: &str, items: &[Handle], close: &str, depth: usize) {
        self.add(open);
        for (at, &item) in items.iter().take(ITEMS).enumerate() {
            if at > 0 {
                self.add(", ");
            }
            self.value(item, depth);
        }
        if items.len() > ITEMS {
            self.add(", ...");
        }
        self.add(close);
    }

    fn pairs(&mut self, pairs: &[(Handle, Handle)], depth: usize) {
        self.add("{");
        for (at, &(key, value)) in pairs.iter().take(ITEMS).enumerate() {
            if at > 0 {
                self.add(", ");
            }
            self.value(key, depth);
            self.add(": ");
            self.value(value, depth);
        }
        if pairs.len() > ITEMS {
            self.add(", ...");
        }
        self.add("}");
    }
}
