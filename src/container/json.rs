//! JSON parsing with typed errors: serde visitors report which rule a value violates, and skipped values have a depth limit.

use std::cell::Cell;
use std::fmt;

use serde::de::{self, Deserialize, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

use crate::error::{Code, Error, Result};
use crate::num::to_u64;

mod strict;

pub(super) use strict::{Fields, Object, Reader, Value, object};

/// The nesting depth of objects and arrays that a header or an index file may have.
pub(super) const MAX_DEPTH: u8 = 8;

/// Carries rustload's own error through serde, whose errors are text only.
#[derive(Default)]
pub(super) struct Refusal(Cell<Option<Error>>);

impl Refusal {
    /// Stores the error and returns a placeholder error for serde.
    pub(super) fn raise<E: de::Error>(&self, error: Error) -> E {
        self.0.set(Some(error));
        E::custom("refused")
    }
}

/// Lets a visitor read its value by this method of a deserializer.
macro_rules! seed {
    ($visitor:ty, $method:ident) => {
        impl<'de> serde::de::DeserializeSeed<'de> for $visitor {
            type Value = <Self as serde::de::Visitor<'de>>::Value;

            fn deserialize<D: serde::Deserializer<'de>>(self, value: D) -> Result<Self::Value, D::Error> {
                value.$method(self)
            }
        }
    };
}
pub(super) use seed;

/// Parses all of `text`, which starts at byte `base` of the file. A syntax error gets `code`; an error of a visitor is the one stored
/// in `refusal`.
pub(super) fn parse<'de, S: DeserializeSeed<'de>>(
    text: &'de str,
    base: u64,
    code: Code,
    refusal: &Refusal,
    seed: S,
) -> Result<S::Value> {
    let mut json = serde_json::Deserializer::from_str(text);
    let value = seed.deserialize(&mut json).and_then(|value| json.end().map(|()| value));
    value.map_err(|error| {
        let offset = base.saturating_add(offset(text, error.line(), error.column()));
        let typed = refusal.0.take().unwrap_or_else(|| {
            let message = error.to_string();
            Error::new(code, message.split(" at line ").next().unwrap_or_default())
        });
        typed.at(offset)
    })
}

/// The byte offset of serde_json's line and column, both counted from 1.
fn offset(text: &str, line: usize, column: usize) -> u64 {
    let before: usize = text.split_inclusive('\n').take(line.saturating_sub(1)).map(str::len).sum();
    to_u64(before.saturating_add(column.saturating_sub(1)))
}

/// Skips any value of at most `depth` nested objects and arrays.
#[derive(Clone, Copy)]
pub(super) struct Skip {
    /// Nested objects and arrays that the value may still open.
    pub(super) depth: u8,
}

impl Skip {
    fn inner<E: de::Error>(self) -> Result<Skip, E> {
        let depth = self.depth.checked_sub(1).ok_or_else(|| E::custom("values are nested too deeply"))?;
        Ok(Skip { depth })
    }
}

seed!(Skip, deserialize_any);

impl<'de> Visitor<'de> for Skip {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        let inner = self.inner()?;
        while seq.next_element_seed(inner)?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let inner = self.inner()?;
        while map.next_key_seed(Skip { depth: 0 })?.is_some() {
            map.next_value_seed(inner)?;
        }
        Ok(())
    }
}

/// A value as text: a string as it is, any other value as JSON.
pub(super) struct Text(pub(super) String);

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Text, D::Error> {
        Ok(Text(match serde_json::Value::deserialize(deserializer)? {
            serde_json::Value::String(text) => text,
            value => value.to_string(),
        }))
    }
}
