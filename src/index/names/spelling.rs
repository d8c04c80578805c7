//! Spells a path: joined with dots, or with brackets and quotes where dots would not do.

use std::fmt::{self, Write};

use crate::index::Step;
use crate::index::meaning::Meaning;
use crate::index::tree::{Object, View};
use crate::pickle::{Handle, Text, Value};

/// A name under construction, which fails to grow beyond its room.
#[derive(Default)]
pub(super) struct Name {
    pub(super) text: String,
    pub(super) room: usize,
}

impl Name {
    fn write_plain(&mut self, text: Text<'_>) -> fmt::Result {
        match text.as_str() {
            Some(text) => self.write_str(text),
            None => self.write_str(&text.to_string_lossy()),
        }
    }
}

impl Write for Name {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.text.len().saturating_add(text.len()) > self.room {
            return Err(fmt::Error);
        }
        self.text.push_str(text);
        Ok(())
    }
}

/// The path joined with dots: `optimizer.state.0.exp_avg`.
pub(super) fn dotted(view: View<'_>, path: &[Step], out: &mut Name) -> fmt::Result {
    for (position, step) in path.iter().enumerate() {
        if position > 0 {
            out.write_char('.')?;
        }
        match step {
            Step::Key(key) => key_text(view, *key, false, out)?,
            Step::Index(index) => write!(out, "{index}")?,
            Step::Argument(index) => write!(out, "args.{index}")?,
            Step::Part(part) => out.write_str(part.name())?,
        }
    }
    Ok(())
}

/// The path with every key that is no identifier in brackets: `a["x.y"][0]`.
pub(super) fn spelled(view: View<'_>, path: &[Step], out: &mut Name) -> fmt::Result {
    for step in path {
        match step {
            Step::Key(key) => match view.values.get(*key) {
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
            Step::Index(index) => write!(out, "[{index}]")?,
            Step::Argument(index) => write!(out, "(args)[{index}]")?,
            Step::Part(part) => write!(out, "({})", part.name())?,
        }
    }
    Ok(())
}

fn is_identifier(text: &str) -> bool {
    text.starts_with(|c: char| c.is_alphabetic() || c == '_')
        && text.chars().all(|c| c.is_alphanumeric() || c == '_')
}

/// A dict key as text; `quoted` tells texts from numbers.
fn key_text(view: View<'_>, key: Handle, quoted: bool, out: &mut Name) -> fmt::Result {
    if let Value::Str(text) = view.values.get(key)
        && !quoted
    {
        return out.write_plain(text);
    }
    // A key is a small tree (limits key_depth, key_nodes): what is still to be written, last first.
    enum Part {
        Value(Handle, bool),
        Text(&'static str),
    }
    let mut parts = vec![Part::Value(key, quoted)];
    while let Some(part) = parts.pop() {
        let (handle, quoted) = match part {
            Part::Value(handle, quoted) => (handle, quoted),
            Part::Text(text) => {
                out.write_str(text)?;
                continue;
            }
        };
        match view.values.get(handle) {
            Value::Str(text) if quoted => write!(out, "{:?}", text.to_string_lossy())?,
            Value::Str(text) => out.write_plain(text)?,
            Value::Tuple(items) => {
                out.write_char('(')?;
                parts.push(Part::Text(if items.len() == 1 { ",)" } else { ")" }));
                for (position, &item) in items.iter().enumerate().rev() {
                    parts.push(Part::Value(item, true));
                    if position > 0 {
                        parts.push(Part::Text(", "));
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
                // Only what costs no more than its text is looked into: a key may stand in any number of names.
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
