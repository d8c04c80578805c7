//! Reads a Hugging Face index file: `{"metadata": {...}, "weight_map": {name: file}}`.
//!
//! Refused: duplicate keys, file names that are not plain names in the index's own directory, files that do not exist.

use std::collections::{BTreeMap, BTreeSet};

use super::{Shards, WeightMap, missing};
use crate::bytes::{Folder, is_plain_name};
use crate::container::json::{Reader, Text, object};
use crate::error::{Code, Error, Result, ResultExt, bail};
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
    let IndexFile { weight_map, metadata } = Reader::new(Code::IndexFormat, limits).parse(text)?;

    let names: BTreeSet<&str> = weight_map.values().map(String::as_str).collect();
    if let Some(name) = names.iter().find(|name| !is_plain_name(name)) {
        bail!(Code::IndexFormat, "file name {name:?} is not a plain name in the index's directory");
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
    let weight_map: WeightMap = weight_map
        .iter()
        .filter_map(|(tensor, file)| Some((tensor.clone(), *positions.get(file.as_str())?)))
        .collect();
    let metadata = metadata.unwrap_or_default().into_iter().map(|(key, Text(value))| (key, value)).collect();
    Ok(Shards { weight_map: Some(weight_map), metadata, index: source.file_stamp(), ..Shards::of(files) })
}

struct IndexFile {
    weight_map: BTreeMap<String, String>,
    metadata: Option<BTreeMap<String, Text>>,
}

object!(IndexFile, "the index", { weight_map: "weight_map", metadata: "metadata" });
