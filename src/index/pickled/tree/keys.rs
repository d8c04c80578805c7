//! Equality of dict keys that are calls with a meaning: `torch.Size`, bytes, complex numbers, NumPy scalars, frozen sets, and tuples
//! with such values in them.
//!
//! `pickle::keys` compares what the opcodes make; to it, two calls differ. In Python `torch.Size([1])` and `(1,)` are one key.

use std::collections::HashMap;

use super::object::Object;
use super::view::View;
use crate::error::Result;
use crate::index::pickled::known::Known;
use crate::index::pickled::meanings::Meaning;
use crate::num::to_u64;
use crate::pickle::{Handle, Value};

/// Values in one key that are compared; a larger key equals only itself.
const KEY_MAX_VALUES: u32 = 256;

/// Bytes of a text that are compared: many dicts may share a long one.
const TEXT_MAX_BYTES: usize = 128;

impl View<'_> {
    /// Pairs as a dict holds them: of equal keys the first position and key object and the last value.
    pub(super) fn unique(self, pairs: &[(Handle, Handle)]) -> Result<Vec<(Handle, Handle)>> {
        let entries = self.values.unique(pairs)?;
        let mut values_left = KEY_MAX_VALUES;
        if entries.len() < 2 || !entries.iter().any(|&(key, _)| self.is_made_key(key, &mut values_left)) {
            return Ok(entries);
        }
        let mut positions: HashMap<Vec<u8>, usize> = HashMap::new();
        let mut merged: Vec<(Handle, Handle)> = Vec::new();
        // By entry, its position in `merged`.
        let mut merged_into = Vec::with_capacity(entries.len());
        for (key, value) in entries {
            let mut spelled = Vec::new();
            let mut values_left = KEY_MAX_VALUES;
            let position = match self.spell(key, &mut spelled, &mut values_left) {
                Some(()) => *positions.entry(spelled).or_insert(merged.len()),
                None => merged.len(),
            };
            if position == merged.len() {
                merged.push((key, value));
            }
            merged_into.push(position);
        }
        // The last value in program order, whichever of the equal keys it was set by.
        for (number, &(_, value)) in self.values.entry_numbers(pairs)?.into_iter().zip(pairs) {
            let position = merged_into.get(number).copied().unwrap_or(usize::MAX);
            if let Some(entry) = merged.get_mut(position) {
                entry.1 = value;
            }
        }
        Ok(merged)
    }

    /// Whether a call in a key may equal another value.
    fn is_made_key(self, key: Handle, values_left: &mut u32) -> bool {
        match self.values.get(key) {
            Value::FrozenSet(_) => true,
            Value::Call(id) => match self.meaning(id) {
                Meaning::Tuple
                | Meaning::Complex
                | Meaning::Scalar(..)
                | Meaning::Sequence(Known::FrozenSet) => true,
                Meaning::Bytes => !self.is_long_text(key),
                _ => false,
            },
            Value::Tuple(items) => items.iter().any(|&item| {
                *values_left = values_left.saturating_sub(1);
                *values_left > 0 && self.is_made_key(item, values_left)
            }),
            _ => false,
        }
    }

    /// Whether a call encodes a long text, which is not decoded for a comparison.
    fn is_long_text(self, key: Handle) -> bool {
        let Some(call) = self.values.call_at(key) else { return false };
        let text = self.args(&call).first().and_then(|&text| self.text(text));
        text.is_some_and(|text| text.as_bytes().len() > 2 * TEXT_MAX_BYTES)
    }

    /// Appends text that equal keys have in common; `None` for a key that equals only itself.
    fn spell(self, key: Handle, out: &mut Vec<u8>, values_left: &mut u32) -> Option<()> {
        *values_left = values_left.checked_sub(1)?;
        let identity = to_u64(key.index()).to_le_bytes();
        if self.is_long_text(key) {
            sized(b'#', &identity, out);
            return Some(());
        }
        match &self.get(key).ok()? {
            Object::None => out.push(b'N'),
            Object::Bool(value) => integer(if *value { "1" } else { "0" }, out),
            Object::Int(value) => integer(&value.to_string(), out),
            Object::Uint(value) => integer(&value.to_string(), out),
            Object::Float(value) => number(*value, out)?,
            Object::Complex(re, im) if *im == 0.0 => number(*re, out)?,
            Object::Complex(re, im) => {
                out.push(b'C');
                number(*re, out)?;
                number(*im, out)?;
            }
            Object::Str(text) if text.as_bytes().len() <= TEXT_MAX_BYTES => sized(b'S', text.as_bytes(), out),
            Object::Bytes(bytes) if bytes.len() <= TEXT_MAX_BYTES => sized(b'B', bytes, out),
            Object::Tuple(items) => {
                out.push(b'(');
                items.iter().try_for_each(|&item| self.spell(item, out, values_left))?;
                out.push(b')');
            }
            Object::FrozenSet(items) => {
                let spelled = items.iter().map(|&item| {
                    let mut out = Vec::new();
                    self.spell(item, &mut out, values_left).map(|()| out)
                });
                let mut spelled = spelled.collect::<Option<Vec<_>>>()?;
                spelled.sort_unstable();
                spelled.dedup();
                out.push(b'{');
                out.extend(spelled.concat());
                out.push(b'}');
            }
            // Equal by identity; long texts and integers, too, of which `pickle::keys` leaves one of each.
            _ => sized(b'#', &identity, out),
        }
        Some(())
    }
}

fn sized(tag: u8, bytes: &[u8], out: &mut Vec<u8>) {
    out.push(tag);
    out.extend(to_u64(bytes.len()).to_le_bytes());
    out.extend(bytes);
}

fn integer(text: &str, out: &mut Vec<u8>) {
    out.push(b'I');
    out.extend(text.as_bytes());
    out.push(b';');
}

/// Whole numbers are spelled as integers. `None` for NaN, which equals only itself.
fn number(value: f64, out: &mut Vec<u8>) -> Option<()> {
    if value.is_nan() {
        return None;
    }
    if value == 0.0 {
        integer("0", out);
    } else if value.trunc() == value && value.is_finite() {
        integer(&format!("{value:.0}"), out);
    } else {
        out.push(b'F');
        out.extend(value.to_bits().to_le_bytes());
    }
    Some(())
}
