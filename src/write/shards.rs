//! How tensors are divided among the files of a folder, and the index that says where each is.
//!
//! The division is that of huggingface_hub (`split_state_dict_into_shards_factory`), the index is written as transformers writes it.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;

/// A tensor to be divided: its storage, which tied tensors share, and the bytes of that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sized {
    /// `None` for a tensor that shares its storage with no other.
    pub(super) storage: Option<u64>,
    pub(super) nbytes: u64,
}

/// The number of each tensor's shard, and the number of shards. A shard has at most `max` bytes, unless a single tensor is larger: then
/// it has a shard of its own. Tensors on one storage are in one shard, and count once.
pub(super) fn divide(tensors: &[Sized], max: u64) -> (Vec<usize>, usize) {
    // Shards are numbered in the order in which they are completed.
    let mut numbers = vec![0; tensors.len()];
    let mut first_of: HashMap<u64, usize> = HashMap::new();
    let (mut completed, mut current, mut current_bytes) = (0, Vec::new(), 0_u64);
    let mut complete = |members: &[usize], numbers: &mut Vec<usize>| {
        members.iter().for_each(|&at| numbers[at] = completed);
        completed += 1;
    };
    for (at, tensor) in tensors.iter().enumerate() {
        if let Some(storage) = tensor.storage
            && *first_of.entry(storage).or_insert(at) != at
        {
            continue;
        }
        if tensor.nbytes > max {
            complete(&[at], &mut numbers);
            continue;
        }
        if current_bytes.saturating_add(tensor.nbytes) > max {
            complete(&std::mem::take(&mut current), &mut numbers);
            current_bytes = 0;
        }
        current.push(at);
        current_bytes = current_bytes.saturating_add(tensor.nbytes);
    }
    if !current.is_empty() {
        complete(&current, &mut numbers);
    }
    for (at, tensor) in tensors.iter().enumerate() {
        if let Some(first) = tensor.storage.and_then(|storage| first_of.get(&storage)) {
            numbers[at] = numbers[*first];
        }
    }
    (numbers, completed)
}

/// The names of the files of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FileNames {
    /// What stands before the number of a shard: `model`, or `model.fp16`.
    stem: String,
}

/// What stands behind the number.
const EXTENSION: &str = ".safetensors";
const INDEX_EXTENSION: &str = ".index.json";

impl FileNames {
    /// The names for `model.safetensors`, or for `model`.
    pub(super) fn new(name: &str) -> FileNames {
        FileNames { stem: name.strip_suffix(EXTENSION).unwrap_or(name).to_owned() }
    }

    /// The names for a file that may be a shard.
    pub(super) fn of_shard(name: &str) -> FileNames {
        match split_shard(name) {
            Some((stem, _, _)) => FileNames { stem },
            None => FileNames::new(name),
        }
    }

    /// The generation of a shard of this checkpoint; `None` for any other file.
    pub(super) fn generation(&self, name: &str) -> Option<u32> {
        split_shard(name).filter(|(stem, _, _)| *stem == self.stem).map(|(_, generation, _)| generation)
    }

    /// The name of shard `number`, counted from 0, of `count`.
    pub(super) fn shard(&self, number: usize, count: usize) -> String {
        match count {
            0 | 1 => format!("{}{EXTENSION}", self.stem),
            _ => format!("{}-{:05}-of-{count:05}{EXTENSION}", self.stem, number + 1),
        }
    }

    /// The name of the index.
    pub(super) fn index(&self) -> String {
        format!("{}{EXTENSION}{INDEX_EXTENSION}", self.stem)
    }

    /// The name of the index of a variant as transformers and diffusers have it: `model.safetensors.index.fp16.json` for `model.fp16`.
    fn is_index_of_variant(&self, name: &str) -> bool {
        let Some((stem, variant)) = self.stem.rsplit_once('.') else { return false };
        let rest = name.strip_prefix(stem).and_then(|rest| rest.strip_prefix(EXTENSION));
        let rest =
            rest.and_then(|rest| rest.strip_prefix(".index.")).and_then(|rest| rest.strip_suffix(".json"));
        rest == Some(variant)
    }

    /// Whether a file is of this checkpoint, in this or another number of shards: a new version replaces it.
    pub(super) fn is_of_checkpoint(&self, name: &str) -> bool {
        if self.is_index_of_variant(name) {
            return true;
        }
        let file = name.strip_suffix(INDEX_EXTENSION).unwrap_or(name);
        self.generation(file).is_some() || file.strip_prefix(&self.stem) == Some(EXTENSION)
    }
}

/// What the stem of a shard has at its end from the second generation on.
const GENERATION: &str = ".generation";

/// The name of a shard in another generation: a folder that has shards gets new ones beside them, before the index names those.
pub(super) fn in_generation(name: &str, generation: u32) -> String {
    match split_shard(name) {
        Some((stem, _, number)) => format!("{stem}{GENERATION}{generation}{number}{EXTENSION}"),
        None => name.to_owned(),
    }
}

/// The stem of a shard, its generation, which is 1 if its name has none, and `-00001-of-00002`. Some writers put the variant behind the
/// number: `model-00001-of-00002.fp16` has the stem `model.fp16`.
fn split_shard(name: &str) -> Option<(String, u32, &str)> {
    let name = name.strip_suffix(EXTENSION)?;
    let split = |name: &str| {
        let (stem, number) = name.split_at_checked(name.len().checked_sub("-00001-of-00002".len())?)?;
        is_shard_number(number).then_some(stem.len())
    };
    let (end, variant) = match split(name) {
        Some(end) => (end, ""),
        None => {
            let (numbered, variant) = name.split_at(name.rfind('.')?);
            (split(numbered)?, variant)
        }
    };
    let (stem, number) = (&name[..end], &name[end..name.len() - variant.len()]);
    let generation =
        stem.rsplit_once(GENERATION).and_then(|(stem, digits)| Some((stem, digits.parse().ok()?)));
    let (stem, generation) = generation.filter(|(_, generation)| *generation > 1).unwrap_or((stem, 1));
    Some((format!("{stem}{variant}"), generation, number))
}

/// Whether a file is an index of shards, also of those of a variant.
pub(super) fn is_index(name: &str) -> bool {
    name.ends_with(".json") && name.contains(".index.")
}

/// Whether a text is like `-00001-of-00002`.
fn is_shard_number(text: &str) -> bool {
    let is_number = |text: &str| text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
    let parts = text.strip_prefix('-').and_then(|number| number.split_once("-of-"));
    parts.is_some_and(|(number, count)| is_number(number) && is_number(count))
}

/// The index of a checkpoint in several files, as Python's `json.dumps` writes it with `indent=2, sort_keys=True`.
pub(super) fn index_json(
    weight_map: &BTreeMap<&str, String>,
    total_size: u64,
    metadata: &BTreeMap<&str, &str>,
) -> String {
    let mut text = format!("{{\n  \"metadata\": {{\n    \"total_size\": {total_size}");
    for (key, value) in metadata {
        let _ = write!(text, ",\n    {}: {}", ascii_json(key), ascii_json(value));
    }
    text.push_str("\n  },\n  \"weight_map\": {");
    for (at, (name, file)) in weight_map.iter().enumerate() {
        let comma = if at == 0 { "" } else { "," };
        // Writing to a string does not fail.
        let _ = write!(text, "{comma}\n    {}: {}", ascii_json(name), ascii_json(file));
    }
    text.push_str(if weight_map.is_empty() { "}\n}\n" } else { "\n  }\n}\n" });
    text
}

/// A JSON string in ASCII.
pub(super) fn ascii_json(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    for c in serde_json::Value::from(text).to_string().chars() {
        if c.is_ascii() && c != '\x7f' {
            out.push(c);
            continue;
        }
        for unit in c.encode_utf16(&mut [0; 2]) {
            let _ = write!(out, "\\u{unit:04x}");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sized(storage: impl Into<Option<u64>>, nbytes: u64) -> Sized {
        Sized { storage: storage.into(), nbytes }
    }

    #[test]
    fn a_tensor_that_is_too_large_has_a_shard_of_its_own_before_the_current_one() {
        let tensors = [sized(None, 3), sized(None, 20), sized(None, 4), sized(None, 9), sized(None, 1)];
        assert_eq!(divide(&tensors, 10), (vec![1, 0, 1, 2, 2], 3));
    }

    #[test]
    fn tied_tensors_are_in_one_shard() {
        let tensors = [sized(7, 6), sized(None, 6), sized(7, 6), sized(8, 2)];
        assert_eq!(divide(&tensors, 10), (vec![0, 1, 0, 1], 2));
        assert_eq!(divide(&[], 10), (vec![], 0));
    }

    #[test]
    fn files_of_a_checkpoint_are_told_by_their_names() {
        let names = FileNames::new("model.fp16.safetensors");
        assert_eq!(names.shard(0, 1), "model.fp16.safetensors");
        assert_eq!(names.shard(1, 3), "model.fp16-00002-of-00003.safetensors");
        assert_eq!(names.index(), "model.fp16.safetensors.index.json");
        let of_transformers = "model.safetensors.index.fp16.json".to_owned();
        for name in [names.shard(0, 1), names.shard(6, 7), names.index(), of_transformers] {
            assert!(names.is_of_checkpoint(&name), "{name}");
            if name.ends_with(EXTENSION) {
                assert_eq!(FileNames::of_shard(&name), names);
            }
        }
        for name in [
            "model.safetensors",
            "model.fp16-1-of-2.safetensors",
            "model.fp16.bin",
            "model.fp16-extra.safetensors",
            "model-00001-of-00002.bf16.safetensors",
            "model-00001-of-0002.fp16.safetensors",
            "model.safetensors.index.json",
        ] {
            assert!(!names.is_of_checkpoint(name), "{name}");
        }
    }

    #[test]
    fn shards_of_another_generation_are_of_the_same_checkpoint() {
        let names = FileNames::new("model.fp16");
        let second = in_generation(&names.shard(0, 2), 2);
        assert_eq!(second, "model.fp16.generation2-00001-of-00002.safetensors");
        assert_eq!(in_generation(&second, 13), "model.fp16.generation13-00001-of-00002.safetensors");
        assert_eq!(in_generation("model.safetensors", 2), "model.safetensors");
        assert_eq!((names.generation(&second), names.generation(&names.shard(0, 2))), (Some(2), Some(1)));
        assert_eq!(FileNames::of_shard(&second), names);
        let behind = "model-00001-of-00002.fp16.safetensors";
        assert_eq!(FileNames::of_shard(behind), names);
        assert_eq!((names.generation(behind), in_generation(behind, 2)), (Some(1), second.clone()));
        assert!(names.is_of_checkpoint(behind) && !FileNames::new("model").is_of_checkpoint(behind));
        assert!(names.is_of_checkpoint(&second) && !FileNames::new("model").is_of_checkpoint(&second));
        for name in ["model.fp16.safetensors", "model.fp16.generation-00001-of-00002.safetensors", "x"] {
            assert_eq!(names.generation(name), None, "{name}");
        }
    }

    #[test]
    fn an_index_is_ascii() {
        let map = BTreeMap::from([("b", "x".to_owned()), ("a\u{e9}\u{1f600}\n", "x".to_owned())]);
        let expected = concat!(
            "{\n  \"metadata\": {\n    \"total_size\": 3\n  },\n  \"weight_map\": {\n",
            "    \"a\\u00e9\\ud83d\\ude00\\n\": \"x\",\n    \"b\": \"x\"\n  }\n}\n"
        );
        assert_eq!(index_json(&map, 3, &BTreeMap::new()), expected);
        let whole = index_json(&map, 3, &BTreeMap::from([("b", "a"), ("\u{e9}", "c")]));
        let metadata = "\"total_size\": 3,\n    \"b\": \"a\",\n    \"\\u00e9\": \"c\"\n  },";
        assert_eq!(whole, expected.replace("\"total_size\": 3\n  },", metadata));
    }
}
