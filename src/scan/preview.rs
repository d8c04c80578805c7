//! Formats the arguments of a call as one short line in Python syntax, truncated.
//!
//! Values may be deep, shared and cyclic, so depth, items and bytes are bounded; nothing is read beyond these bounds.

use crate::pickle::{Call, CallId, Handle, Value, Values};

/// The maximum length of a preview, in bytes.
const PREVIEW_MAX_BYTES: usize = 256;
/// The maximum nesting of containers.
const MAX_DEPTH: usize = 4;
/// The maximum number of items of a container.
const MAX_ITEMS: usize = 8;
/// The maximum number of bytes of a string.
const STRING_MAX_BYTES: usize = 120;

/// Formats the arguments of a call, in parentheses.
pub(super) fn arguments(values: &Values, id: CallId) -> String {
    let call = values.call(id);
    let mut out = String::new();
    let mut line = PreviewWriter { values, out: &mut out };
    line.items("(", arguments_of(values, &call), "", MAX_DEPTH);
    if let Some(Value::Dict(pairs)) = call.kwargs.map(|kwargs| values.get(kwargs)) {
        line.add(", **");
        line.pairs(pairs, MAX_DEPTH);
    }
    line.add(")");
    truncate(out)
}

fn arguments_of<'a>(values: &'a Values, call: &Call<'_>) -> &'a [Handle] {
    match values.get(call.args) {
        Value::Tuple(args) => args,
        _ => &[],
    }
}

/// Formats one value.
pub(super) fn value(values: &Values, handle: Handle) -> String {
    let mut out = String::new();
    PreviewWriter { values, out: &mut out }.value(handle, MAX_DEPTH);
    truncate(out)
}

fn truncate(mut text: String) -> String {
    if text.len() > PREVIEW_MAX_BYTES {
        let end = (0..=PREVIEW_MAX_BYTES.saturating_sub(3)).rev().find(|&at| text.is_char_boundary(at));
        text.truncate(end.unwrap_or(0));
        text.push_str("...");
    }
    text
}

/// A preview under construction.
struct PreviewWriter<'a> {
    values: &'a Values,
    out: &'a mut String,
}

impl PreviewWriter<'_> {
    fn add(&mut self, text: &str) {
        if self.out.len() <= PREVIEW_MAX_BYTES {
            self.out.push_str(text);
        }
    }

    /// Writes a value; `depth` is the number of levels that are left, at first [`MAX_DEPTH`].
    fn value(&mut self, handle: Handle, depth: usize) {
        if self.out.len() > PREVIEW_MAX_BYTES {
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
                let shown = String::from_utf8_lossy(bytes.get(..STRING_MAX_BYTES).unwrap_or(bytes));
                let dots = if bytes.len() > STRING_MAX_BYTES { "..." } else { "" };
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
                self.items("(", arguments_of(self.values, &call), ")", depth);
            }
            Value::PersistentId(id) => {
                self.add("<persistent ");
                self.value(id, depth);
                self.add(">");
            }
        }
    }

    fn bytes(&mut self, prefix: &str, bytes: &[u8]) {
        let shown = bytes.get(..STRING_MAX_BYTES / 2).unwrap_or(bytes);
        let dots =
            if shown.len() < bytes.len() { format!("... ({} bytes)", bytes.len()) } else { String::new() };
        self.add(&format!("{prefix}'{}'{dots}", shown.escape_ascii()));
    }

    fn items(&mut self, open: &str, items: &[Handle], close: &str, depth: usize) {
        self.list(open, items, close, |line, &item| line.value(item, depth));
    }

    fn pairs(&mut self, pairs: &[(Handle, Handle)], depth: usize) {
        self.list("{", pairs, "}", |line, &(key, value)| {
            line.value(key, depth);
            line.add(": ");
            line.value(value, depth);
        });
    }

    fn list<T>(&mut self, open: &str, items: &[T], close: &str, write: impl Fn(&mut Self, &T)) {
        self.add(open);
        for (at, item) in items.iter().take(MAX_ITEMS).enumerate() {
            if at > 0 {
                self.add(", ");
            }
            write(self, item);
        }
        if items.len() > MAX_ITEMS {
            self.add(", ...");
        }
        self.add(close);
    }
}
