//! Formats a path: keys joined with dots, or in brackets and quotes where dots are ambiguous.

use std::fmt::{self, Write};

use crate::index::model::PathStep;
use crate::index::pickled::meanings::Meaning;
use crate::index::pickled::tree::{Object, View};
use crate::pickle::{Handle, Text, Value};

/// A name under construction. Writing fails where it would be longer than `max_len` bytes.
#[derive(Default)]
pub(super) struct NameBuffer {
    pub(super) text: String,
    pub(super) max_len: usize,
}

impl NameBuffer {
    fn write_plain(&mut self, text: Text<'_>) -> fmt::Result {
        match text.as_str() {
            Some(text) => self.write_str(text),
            None => self.write_str(&text.to_string_lossy()),
        }
    }
}

impl Write for NameBuffer {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.text.len().saturating_add(text.len()) > self.max_len {
            return Err(fmt::Error);
        }
        self.text.push_str(text);
        Ok(())
    }
}

/// Writes the path joined with dots: `optimizer.state.0.exp_avg`.
pub(super) fn dotted(view: View<'_>, path: &[PathStep], out: &mut NameBuffer) -> fmt::Result {
    for (position, step) in path.iter().enumerate() {
        if position > 0 {
            out.write_char('.')?;
        }
        match step {
            PathStep::Key(key) => key_text(view, *key, false, out)?,
            PathStep::Index(index) => write!(out, "{index}")?,
            PathStep::Argument(index) => write!(out, "args.{index}")?,
            PathStep::Component(component) => out.write_str(component.name())?,
        }
    }
    Ok(())
}

/// Writes the path with every key that is not an identifier in brackets: `a["x.y"][0]`.
pub(super) fn bracketed(view: View<'_>, path: &[PathStep], out: &mut NameBuffer) -> fmt::Result {
    for step in path {
        match step {
            PathStep::Key(key) => match view.values.get(*key) {
                Value::Str(text) if text.as_str().is_some_and(is_identifier) => {
                    if !out.text.is_empty() {
                        out.write_char('.')?;
                    }
                    key_text(view, *key, false, out)?;
                }
                _ => {
                    out.write_char('[')?;
                    key_text(view, *key, true, out)?;
                    out.write_char(']')?;
                }
            },
            PathStep::Index(index) => write!(out, "[{index}]")?,
            PathStep::Argument(index) => write!(out, "(args)[{index}]")?,
            PathStep::Component(component) => write!(out, "({})", component.name())?,
        }
    }
    Ok(())
}

fn is_identifier(text: &str) -> bool {
    text.starts_with(|c: char| c.is_alphabetic() || c == '_')
        && text.chars().all(|c| c.is_alphanumeric() || c == '_')
}

/// Writes a dict key; `quoted` distinguishes strings from numbers.
fn key_text(view: View<'_>, key: Handle, quoted: bool, out: &mut NameBuffer) -> fmt::Result {
    if let Value::Str(text) = view.values.get(key)
        && !quoted
    {
        return out.write_plain(text);
    }
    // A key is a small tree (limits key_depth, key_nodes). The stack has what is still to be written.
    enum Pending {
        Value(Handle, bool),
        Text(&'static str),
    }
    let mut stack = vec![Pending::Value(key, quoted)];
    while let Some(pending) = stack.pop() {
        let (handle, quoted) = match pending {
            Pending::Value(handle, quoted) => (handle, quoted),
            Pending::Text(text) => {
                out.write_str(text)?;
                continue;
            }
        };
        match view.values.get(handle) {
            Value::Str(text) if quoted => write!(out, "{:?}", text.to_string_lossy())?,
            Value::Str(text) => out.write_plain(text)?,
            Value::Tuple(items) => {
                out.write_char('(')?;
                stack.push(Pending::Text(if items.len() == 1 { ",)" } else { ")" }));
                for (position, &item) in items.iter().enumerate().rev() {
                    stack.push(Pending::Value(item, true));
                    if position > 0 {
                        stack.push(Pending::Text(", "));
                    }
                }
            }
            Value::None => out.write_str("None")?,
            Value::Bool(value) => out.write_str(if value { "True" } else { "False" })?,
            Value::Int(value) => write!(out, "{value}")?,
            Value::Float(value) => write!(out, "{value:?}")?,
            Value::Bytes(bytes) => write!(out, "b\"{}\"", bytes.escape_ascii())?,
            Value::Global(id) => out.write_str(&view.class_name(Some(id)))?,
            Value::Call(id) => match view.meaning(id) {
                // Only values whose cost is that of their text: a key may be in any number of names.
                Meaning::Bytes => match view.get(handle) {
                    Ok(Object::Bytes(bytes)) => write!(out, "b\"{}\"", bytes.escape_ascii())?,
                    _ => out.write_str("<key>")?,
                },
                Meaning::Record | Meaning::Opaque => {
                    write!(out, "<{}>", view.class_name(view.class_id(&view.values.call(id))))?;
                }
                _ => out.write_str("<key>")?,
            },
            _ => out.write_str("<key>")?,
        }
    }
    Ok(())
}
