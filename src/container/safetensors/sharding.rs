//! What torch.distributed.checkpoint writes into the metadata of a file that has a process's parts of tensors: the index of each
//! part's first element (torch/distributed/checkpoint/filesystem.py: `_SafetensorsWriter`; `_hf_utils.py` has the keys).

use std::collections::{BTreeMap, HashMap};

use crate::container::json::{Reader, object};
use crate::error::{Code, Result, error};
use crate::layout::Dims;
use crate::limits::Limits;

/// The key of the metadata whose value is JSON: `{name: {"saved_offsets": [...]}}`.
const SHARDING_INFO: &str = "DCP_SHARDING_INFO";

/// The key of the version of that.
const VERSION: &str = "DCP_VERSION";

/// Whether a key of the metadata says which parts of tensors a file has.
pub fn is_sharding_key(key: &str) -> bool {
    matches!(key, SHARDING_INFO | VERSION)
}

/// The index of the first element of each tensor in the whole tensor; `None` where the file has no parts. Fails with `DcpMetadata` where
/// the JSON is not what torch writes.
pub fn saved_offsets(
    metadata: &[(String, String)],
    limits: &Limits,
) -> Result<Option<HashMap<String, Dims>>> {
    let Some((_, text)) = metadata.iter().find(|(key, _)| key == SHARDING_INFO) else { return Ok(None) };
    let parsed = Reader::new(Code::DcpMetadata, limits).parse::<BTreeMap<String, Saved>>(text);
    // An offset in the text is none of the file.
    parsed
        .map(|saved| Some(saved.into_iter().map(|(name, Saved { offsets })| (name, offsets)).collect()))
        .map_err(|error| error!(Code::DcpMetadata, "{SHARDING_INFO}: {}", error.message()))
}

struct Saved {
    offsets: Dims,
}

object!(Saved, "the sharding information of a tensor", { offsets: "saved_offsets" });

#[cfg(test)]
mod tests {
    use super::*;

    fn offsets(text: &str) -> Result<HashMap<String, Dims>, Code> {
        let metadata = [(SHARDING_INFO.to_owned(), text.to_owned())];
        saved_offsets(&metadata, &Limits::default().rank(4))
            .map(Option::unwrap_or_default)
            .map_err(|error| error.code())
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
        assert!(saved_offsets(&[], &Limits::default()).unwrap().is_none());
    }
}
