//! Strict objects of JSON: a key is there once, one that the format lacks is skipped and counted, lists and depth are bounded.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{self, Deserialize, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use smallvec::SmallVec;

use super::{MAX_DEPTH, Refusal, Skip, Text};
use crate::error::{Code, Error, Result};
use crate::limits::Limits;
use crate::num::to_u64;

/// Reads one text.
pub(in crate::container) struct Reader<'c> {
    /// The code of every error but `Limit`.
    code: Code,
    pub(in crate::container) limits: &'c Limits,
    refusal: Refusal,
    skipped: Cell<u64>,
}

impl<'c> Reader<'c> {
    pub(in crate::container) fn new(code: Code, limits: &'c Limits) -> Reader<'c> {
        Reader { code, limits, refusal: Refusal::default(), skipped: Cell::new(0) }
    }

    /// Parses all of `text`.
    pub(in crate::container) fn parse<T: Value>(&self, text: &str) -> Result<T> {
        super::parse(text, 0, self.code, &self.refusal, Seed(self, PhantomData::<T>))
    }

    /// The number of keys that were skipped.
    pub(in crate::container) fn skipped(&self) -> u64 {
        self.skipped.get()
    }

    pub(in crate::container) fn raise<E: de::Error>(&self, error: Error) -> E {
        self.refusal.raise(error)
    }

    pub(in crate::container) fn refuse<E: de::Error>(&self, text: String) -> E {
        self.raise(Error::new(self.code, text))
    }
}

/// What a value may be.
pub(in crate::container) trait Value: Sized {
    fn read<'de, D: Deserializer<'de>>(reader: &Reader<'_>, value: D) -> Result<Self, D::Error>;

    /// The value of a key that is not there.
    fn absent() -> Option<Self> {
        None
    }
}

macro_rules! plain {
    ($($type:ty)*) => {
        $(impl Value for $type {
            fn read<'de, D: Deserializer<'de>>(_: &Reader<'_>, value: D) -> Result<Self, D::Error> {
                Self::deserialize(value)
            }
        })*
    };
}

plain!(bool u64 i64 String Text);

/// An object; [`object!`] implements it for the fields of a struct.
pub(in crate::container) trait Object: Sized {
    /// What the object is, for errors.
    const WHAT: &'static str;

    fn read_fields<'de, A: MapAccess<'de>>(fields: &mut Fields<'_, A>) -> Result<Self, A::Error>;
}

/// Implements [`Object`] for a struct: its description, and the key of each field.
macro_rules! object {
    ($type:ident, $what:literal, { $($slot:ident: $key:literal),* $(,)? }) => {
        impl $crate::container::json::Object for $type {
            const WHAT: &'static str = $what;

            fn read_fields<'de, A: serde::de::MapAccess<'de>>(
                fields: &mut $crate::container::json::Fields<'_, A>,
            ) -> Result<Self, A::Error> {
                $(let mut $slot = None;)*
                while let Some(key) = fields.key()? {
                    match key.as_str() {
                        $($key => fields.once($key, &mut $slot)?,)*
                        _ => fields.skip()?,
                    }
                }
                Ok($type { $($slot: fields.need($key, $slot)?),* })
            }
        }
    };
}

pub(in crate::container) use object;

/// The fields of an object that is being read.
pub(in crate::container) struct Fields<'r, A> {
    pub(in crate::container) reader: &'r Reader<'r>,
    what: &'static str,
    map: A,
}

impl<'de, A: MapAccess<'de>> Fields<'_, A> {
    /// The next key; its value must be read or skipped.
    pub(in crate::container) fn key(&mut self) -> Result<Option<String>, A::Error> {
        self.map.next_key()
    }

    pub(in crate::container) fn value<T: Value>(&mut self) -> Result<T, A::Error> {
        self.map.next_value_seed(Seed(self.reader, PhantomData))
    }

    pub(in crate::container) fn skip(&mut self) -> Result<(), A::Error> {
        self.reader.skipped.set(self.reader.skipped.get().saturating_add(1));
        self.map.next_value_seed(Skip { depth: MAX_DEPTH - 1 })
    }

    /// Reads the value of `key` into a slot that must be empty.
    pub(in crate::container) fn once<T: Value>(
        &mut self,
        key: &str,
        slot: &mut Option<T>,
    ) -> Result<(), A::Error> {
        match slot.replace(self.value()?) {
            Some(_) => Err(self.duplicate(key)),
            None => Ok(()),
        }
    }

    /// The value of `key`, once all keys were read.
    pub(in crate::container) fn need<T: Value>(&self, key: &str, slot: Option<T>) -> Result<T, A::Error> {
        slot.or_else(T::absent)
            .ok_or_else(|| self.reader.refuse(format!("{} has no field {key:?}", self.what)))
    }

    pub(in crate::container) fn duplicate(&self, key: &str) -> A::Error {
        self.reader.refuse(format!("duplicate key {key:?} in {}", self.what))
    }
}

impl<T: Object> Value for T {
    fn read<'de, D: Deserializer<'de>>(reader: &Reader<'_>, value: D) -> Result<T, D::Error> {
        value.deserialize_map(Seed(reader, PhantomData::<(T,)>))
    }
}

/// Values by names that the file chooses.
impl<T: Value> Object for BTreeMap<String, T> {
    const WHAT: &'static str = "values by name";

    fn read_fields<'de, A: MapAccess<'de>>(fields: &mut Fields<'_, A>) -> Result<Self, A::Error> {
        let mut found = BTreeMap::new();
        while let Some(key) = fields.key()? {
            let value = fields.value()?;
            if found.contains_key(&key) {
                return Err(fields.duplicate(&key));
            }
            found.insert(key, value);
        }
        Ok(found)
    }
}

/// A value or null; null where the key is not there.
impl<T: Value> Value for Option<T> {
    fn read<'de, D: Deserializer<'de>>(reader: &Reader<'_>, value: D) -> Result<Self, D::Error> {
        value.deserialize_option(Seed(reader, PhantomData::<Option<T>>))
    }

    fn absent() -> Option<Self> {
        Some(None)
    }
}

/// A list with a value for each dimension.
impl<T: Value> Value for SmallVec<[T; 4]> {
    fn read<'de, D: Deserializer<'de>>(reader: &Reader<'_>, value: D) -> Result<Self, D::Error> {
        value.deserialize_seq(Seed(reader, PhantomData::<[T]>))
    }
}

/// Reads a `T`, as a visitor an object `(T,)`, an `Option<T>` or a list `[T]`.
struct Seed<'r, T: ?Sized>(&'r Reader<'r>, PhantomData<T>);

impl<'de, T: Value> DeserializeSeed<'de> for Seed<'_, T> {
    type Value = T;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<T, D::Error> {
        T::read(self.0, deserializer)
    }
}

impl<'de, T: Object> Visitor<'de> for Seed<'_, (T,)> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} as an object", T::WHAT)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
        T::read_fields(&mut Fields { reader: self.0, what: T::WHAT, map })
    }
}

impl<'de, T: Value> Visitor<'de> for Seed<'_, Option<T>> {
    type Value = Option<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value or null")
    }

    fn visit_none<E>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_some<D: Deserializer<'de>>(self, value: D) -> Result<Self::Value, D::Error> {
        T::read(self.0, value).map(Some)
    }
}

impl<'de, T: Value> Visitor<'de> for Seed<'_, [T]> {
    type Value = SmallVec<[T; 4]>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let mut found = SmallVec::new();
        while let Some(value) = seq.next_element_seed(Seed(self.0, PhantomData::<T>))? {
            found.push(value);
            Limits::check("rank", self.0.limits.rank, to_u64(found.len()))
                .map_err(|error| self.0.raise::<A::Error>(error))?;
        }
        Ok(found)
    }
}
