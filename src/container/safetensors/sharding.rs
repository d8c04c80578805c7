//! What torch.distributed.checkpoint writes into the metadata of a file that has a process's parts of tensors: the index of each
//! part's first element (torch/distributed/checkpoint/filesystem.py: `_SafetensorsWriter`; `_hf_utils.py` has the keys).

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};

use crate::container::json::{self, MAX_DEPTH, Refusal, Skip};
use crate::error::{Code, Error, Result};
use crate::layout::Dims;

/// The key of the metadata whose value is JSON: `{name: {"saved_offsets": [...]}}`.
const SHARDING_INFO: &str = "DCP_SHARDING_INFO";

/// The key of the version of that.
const VERSION: &str = "DCP_VERSION";

/// The key of the offsets of one tensor.
const OFFSETS: &str = "saved_offsets";

/// Whether a key of the metadata says which parts of tensors a file has.
pub fn is_sharding_key(key: &str) -> bool {
    matches!(key, SHARDING_INFO | VERSION)
}

/// The index of the first element of each tensor in the whole tensor; `None` where the file has no parts. Fails with `DcpMetadata` where
/// the JSON is not what torch writes.
pub fn saved_offsets(metadata: &[(String, String)], rank_max: u64) -> Result<Option<HashMap<String, Dims>>> {
    let Some((_, text)) = metadata.iter().find(|(key, _)| key == SHARDING_INFO) else { return Ok(None) };
    let refusal = Refusal::default();
    let rank_max = usize::try_from(rank_max).unwrap_or(usize::MAX);
    let parsed = json::parse(text, 0, Code::DcpMetadata, &refusal, All { refusal: &refusal, rank_max });
    // An offset in the text is none of the file.
    parsed
        .map(Some)
        .map_err(|error| Error::new(error.code(), format!("{SHARDING_INFO}: {}", error.message())))
}

#[derive(Clone, Copy)]
struct All<'r> {
    refusal: &'r Refusal,
    rank_max: usize,
}

impl<'de> DeserializeSeed<'de> for All<'_> {
    type Value = HashMap<String, Dims>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for All<'_> {
    type Value = HashMap<String, Dims>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut found = HashMap::new();
        while let Some(name) = map.next_key::<String>()? {
            let offsets = map.next_value_seed(One { rank_max: self.rank_max })?;
            match found.entry(name) {
                Entry::Vacant(slot) => slot.insert(offsets),
                Entry::Occupied(slot) => {
                    let text = format!("duplicate key: {:?}", slot.key());
                    return Err(self.refusal.raise(Error::new(Code::DcpMetadata, text)));
                }
            };
        }
        Ok(found)
    }
}

/// The offsets of one tensor.
#[derive(Clone, Copy)]
struct One {
    rank_max: usize,
}

impl<'de> DeserializeSeed<'de> for One {
    type Value = Dims;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Dims, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for One {
    type Value = Dims;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with the offsets of a tensor")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Dims, A::Error> {
        let mut found = None;
        while let Some(key) = map.next_key::<String>()? {
            if key == OFFSETS {
                if found.replace(map.next_value_seed(Numbers { max: self.rank_max })?).is_some() {
                    return Err(A::Error::custom(format!("duplicate key: {OFFSETS:?}")));
                }
            } else {
                map.next_value_seed(Skip { depth: MAX_DEPTH })?;
            }
        }
        found.ok_or_else(|| A::Error::custom(format!("a tensor has no {OFFSETS:?}")))
    }
}

/// A list of at most `max` numbers that are not negative.
struct Numbers {
    max: usize,
}

impl<'de> DeserializeSeed<'de> for Numbers {
    type Value = Dims;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Dims, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Numbers {
    type Value = Dims;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of offsets")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Dims, A::Error> {
        let mut found = Dims::new();
        while let Some(number) = seq.next_element::<u64>()? {
            if found.len() >= self.max {
                return Err(A::Error::custom("a tensor has too many offsets"));
            }
            found.push(number);
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offsets(text: &str) -> Result<HashMap<String, Dims>, Code> {
        let metadata = [(SHARDING_INFO.to_owned(), text.to_owned())];
        saved_offsets(&metadata, 4).map(Option::unwrap_or_default).map_err(|error| error.code())
    }

    #[test]
    fn offsets_are_read_and_other_forms_refused() {
        let found = offsets(r#"{"w": {"saved_offsets": [3, 0]}, "b": {"saved_offsets": []}}"#).unwrap();
        assert_eq!((&found["w"][..], &found["b"][..]), (&[3, 0][..], &[][..]));
        for text in [
            "",
            "[]",
            r#"{"w": [3]}"#,
            r#"{"w": {}}"#,
            r#"{"w": {"saved_offsets": [-1]}}"#,
            r#"{"w": {"saved_offsets": [1.5]}}"#,
            r#"{"w": {"saved_offsets": [18446744073709551616]}}"#,
            r#"{"w": {"saved_offsets": [0, 0, 0, 0, 0]}}"#,
            r#"{"w": {"saved_offsets": [0], "saved_offsets": [1]}}"#,
            r#"{"w": {"saved_offsets": [0]}, "w": {"saved_offsets": [1]}}"#,
            r#"{"w": {"saved_offsets": [0]}} x"#,
        ] {
            assert_eq!(offsets(text), Err(Code::DcpMetadata), "{text}");
        }
        assert!(saved_offsets(&[], 4).unwrap().is_none());
    }
}
