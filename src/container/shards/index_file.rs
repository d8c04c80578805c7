//! Reads a Hugging Face index file: `{"metadata": {...}, "weight_map": {name: file}}`.
//!
//! Refused: duplicate keys, file names that are not plain names in the index's own directory, files that do not exist.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, Visitor};

use super::{Shards, WeightMap, missing};
use crate::bytes::{Folder, is_plain_name};
use crate::container::json::{self, MAX_DEPTH, Refusal, Skip, Text};
use crate::error::{Code, Error, Result, ResultExt};
use crate::limits::Limits;

/// Reads the index file of this name, and finds its shards in the same folder.
pub(super) fn read(folder: &Folder, name: &str, limits: &Limits) -> Result<Shards<String>> {
    read_inner(folder, name, limits).in_file(&folder.path().join(name))
}

fn read_inner(folder: &Folder, name: &str, limits: &Limits) -> Result<Shards<String>> {
    let source = folder.open(name)?;
    Limits::check("index_bytes", limits.index_bytes, source.len())?;
    let bytes = source.read_vec(0, source.len())?;
    let text = std::str::from_utf8(&bytes).map_err(|_| Error::new(Code::IndexFormat, "it is not UTF-8"))?;
    let refusal = Refusal::default();
    let index = json::parse(text, 0, Code::IndexFormat, &refusal, TopSeed(&refusal))?;
    let pairs = index.weight_map.ok_or_else(|| Error::new(Code::IndexFormat, "it has no \"weight_map\""))?;

    let names: BTreeSet<&str> = pairs.values().map(String::as_str).collect();
    if let Some(name) = names.iter().find(|name| !is_plain_name(name)) {
        let text = format!("file name {name:?} is not a plain name in the index's directory");
        return Err(Error::new(Code::IndexFormat, text));
    }
    let names: Vec<&str> = names.into_iter().collect();
    let sizes = folder.sizes(&names)?;
    let absent = names.iter().zip(sizes).filter(|(_, size)| size.is_none());
    let absent: Vec<String> = absent.map(|(name, _)| (*name).to_owned()).collect();
    if !absent.is_empty() {
        return Err(missing(folder.path(), &absent, "the index names"));
    }
    let positions: BTreeMap<&str, usize> =
        names.iter().enumerate().map(|(position, name)| (*name, position)).collect();
    let files = names.iter().map(|name| (*name).to_owned()).collect();
    let weight_map: WeightMap = pairs
        .iter()
        .filter_map(|(tensor, file)| Some((tensor.clone(), *positions.get(file.as_str())?)))
        .collect();
    let (metadata, notes) = (index.metadata, Vec::new());
    Ok(Shards { files, weight_map: Some(weight_map), metadata, notes, index: source.file_stamp() })
}

#[derive(Default)]
struct IndexFile {
    weight_map: Option<BTreeMap<String, String>>,
    metadata: Vec<(String, String)>,
}

fn refuse_duplicate<E: serde::de::Error>(refusal: &Refusal, key: &str) -> E {
    refusal.raise(Error::new(Code::IndexFormat, format!("duplicate key in the index: {key:?}")))
}

struct TopSeed<'r>(&'r Refusal);

impl<'de> DeserializeSeed<'de> for TopSeed<'_> {
    type Value = IndexFile;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<IndexFile, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for TopSeed<'_> {
    type Value = IndexFile;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an index with \"weight_map\"")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<IndexFile, A::Error> {
        let (mut index, mut has_metadata) = (IndexFile::default(), false);
        while let Some(key) = map.next_key::<String>()? {
            let is_duplicate = match key.as_str() {
                "weight_map" => {
                    let pairs = map.next_value_seed(PairsSeed(self.0))?;
                    index.weight_map.replace(pairs).is_some()
                }
                "metadata" => {
                    index.metadata = map
                        .next_value::<Option<BTreeMap<String, Text>>>()?
                        .unwrap_or_default()
                        .into_iter()
                        .map(|(key, Text(value))| (key, value))
                        .collect();
                    std::mem::replace(&mut has_metadata, true)
                }
                _ => {
                    map.next_value_seed(Skip { depth: MAX_DEPTH - 1 })?;
                    false
                }
            };
            if is_duplicate {
                return Err(refuse_duplicate(self.0, &key));
            }
        }
        Ok(index)
    }
}

struct PairsSeed<'r>(&'r Refusal);

impl<'de> DeserializeSeed<'de> for PairsSeed<'_> {
    type Value = BTreeMap<String, String>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for PairsSeed<'_> {
    type Value = BTreeMap<String, String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of file names")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut pairs = BTreeMap::new();
        while let Some((name, file)) = map.next_entry::<String, String>()? {
            if pairs.contains_key(&name) {
                return Err(refuse_duplicate(self.0, &name));
            }
            pairs.insert(name, file);
        }
        Ok(pairs)
    }
}
