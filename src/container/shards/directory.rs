//! Selects the checkpoint files of a directory by the naming schemes of Hugging Face, diffusers, PEFT and Mistral.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::{Shards, distributed, index_file, missing};
use crate::bytes::Folder;
use crate::error::{Code, Error, Result, ResultExt, error};
use crate::limits::Limits;
use crate::text::shortened;

/// The file names of one byte format, in the order in which they are looked for.
struct NamingScheme {
    title: &'static str,
    main: &'static str,
    extension: &'static str,
    /// Stems of other known single files, after `main`.
    known: &'static [&'static str],
    /// The extension of `consolidated*` files.
    consolidated: &'static str,
    /// The extensions of files with any other name.
    any: &'static [&'static str],
}

const SAFETENSORS: NamingScheme = NamingScheme {
    title: "safetensors",
    main: "model",
    extension: ".safetensors",
    known: &["diffusion_pytorch_model", "adapter_model"],
    consolidated: ".safetensors",
    any: &[".safetensors", ".sft"],
};

const PICKLES: NamingScheme = NamingScheme {
    title: "PyTorch",
    main: "pytorch_model",
    extension: ".bin",
    known: &["diffusion_pytorch_model", "adapter_model"],
    consolidated: ".pth",
    any: &[".bin", ".pt", ".pth", ".ckpt"],
};

/// The most names of a folder in a message, and the most bytes of one.
const SHOWN_NAMES: usize = 5;
const SHOWN_BYTES: usize = 60;

/// Stems of the files that trainers write beside the weights.
const TRAINER_FILES: &[&str] = &["training_args", "optimizer", "scheduler", "scaler", "rng_state"];

/// Files of orbax: of a step, of the tree of an item, and of a store of arrays in TensorStore's OCDBT.
const ORBAX_FILES: &[&str] = &["_CHECKPOINT_METADATA", "_METADATA", "manifest.ocdbt"];

/// Whether a folder with these names has files of weights by these schemes, other than those of ranks of DeepSpeed.
pub(super) fn has_weights(names: &BTreeSet<String>) -> bool {
    let is_weights = |name: &&String| {
        let ends = SAFETENSORS.any.iter().chain(PICKLES.any);
        let is_rank = name.ends_with("_states.pt");
        !is_rank && ends.into_iter().any(|end| name.ends_with(end)) && !is_trainer_file(name)
    };
    names.iter().any(|name| is_weights(&name))
}

fn is_trainer_file(name: &str) -> bool {
    TRAINER_FILES.iter().any(|stem| name.starts_with(stem))
}

pub(super) enum Choice {
    Index(String),
    Files(Vec<String>),
}

/// The checkpoint in a folder of these files; safetensors files are preferred to pickles. Fails where there is none, or several that are
/// unrelated.
pub(super) fn resolve(folder: &Folder, names: BTreeSet<String>, limits: &Limits) -> Result<Shards<String>> {
    let directory = folder.path();
    let (hidden, names): (BTreeSet<String>, BTreeSet<String>) =
        names.into_iter().partition(|name| name.starts_with('.'));
    let weights: BTreeSet<String> = names.iter().filter(|name| !is_trainer_file(name)).cloned().collect();
    let mut notes = Vec::new();
    let distributed = || distributed::pick(&names, &hidden, directory).map(|name| Choice::Files(vec![name]));
    let choice = match SAFETENSORS.pick(&weights, directory)? {
        Some(choice) => {
            if distributed::has_chunks(&names) {
                let text = "the directory also has a distributed checkpoint; the safetensors files were used";
                notes.push(text.to_owned());
            }
            if !matches!(PICKLES.pick(&weights, directory), Ok(None)) {
                let text = "the directory also has PyTorch files; the safetensors files were used";
                notes.push(text.to_owned());
            }
            Some(choice)
        }
        // Programs write pickles of other state beside the chunks of a distributed checkpoint.
        None if distributed::has_chunks(&names) => Some(distributed()?),
        None => match PICKLES.pick(&weights, directory)? {
            Some(choice) => Some(choice),
            None => match PICKLES.pick(&names, directory)? {
                None if hidden.contains(distributed::METADATA) => Some(distributed()?),
                choice => choice,
            },
        },
    };
    let mut shards = match choice {
        None if ORBAX_FILES.iter().any(|name| names.contains(*name)) => {
            let text =
                "the directory holds a checkpoint of orbax, whose arrays are in a store of TensorStore";
            return Err(other(directory, text, "Read it with orbax.checkpoint."));
        }
        None if is_core_ml(folder) => {
            let text = "the directory is a package of Core ML";
            return Err(other(directory, text, "Read it with coremltools."));
        }
        None => return Err(no_checkpoint(directory, &names)),
        Some(Choice::Index(name)) => index_file::read(folder, &name, limits)?,
        Some(Choice::Files(files)) => {
            if files == [distributed::METADATA] && names.contains("common.pt") {
                let text = "common.pt, in which Megatron saves what is not sharded, was not read: open it as a file of its own";
                notes.push(text.to_owned());
            }
            Shards::of(files)
        }
    };
    shards.notes.extend(notes);
    Ok(shards)
}

/// Whether a folder on disk is a package of Core ML.
fn is_core_ml(folder: &Folder) -> bool {
    matches!(folder, Folder::Disk(path, _) if path.join("Data/com.apple.CoreML").is_dir())
}

/// The error for a directory of another program.
fn other(directory: &Path, text: &str, note: &str) -> Error {
    Error::new(Code::UnknownFormat, text).in_file(directory).note(note)
}

/// The error for a directory without a checkpoint: what it has, and what it would have.
fn no_checkpoint(directory: &Path, names: &BTreeSet<String>) -> Error {
    let shown: Vec<String> =
        names.iter().take(SHOWN_NAMES).map(|name| shortened(name, SHOWN_BYTES).into_owned()).collect();
    let has = match names.len().saturating_sub(shown.len()) {
        _ if shown.is_empty() => "it has no files".to_owned(),
        0 => format!("it has {}", shown.join(", ")),
        more => format!("it has {} and {more} more files", shown.join(", ")),
    };
    let error = error!(Code::UnknownFormat, "the directory holds no checkpoint: {has}").in_file(directory);
    let any: Vec<String> =
        [SAFETENSORS, PICKLES].iter().flat_map(|family| family.any).map(|end| format!("*{end}")).collect();
    error.note(format!(
        "A checkpoint is one file {}, shards with an index (*.index.json) or numbers (-00001-of-00002), or the folder of a distributed \
         checkpoint (.metadata, latest).",
        any.join(", ")
    ))
}

impl NamingScheme {
    /// The first of the known files or sets that exists.
    fn pick(&self, names: &BTreeSet<String>, directory: &Path) -> Result<Option<Choice>> {
        let existing = |name: String| names.contains(&name).then_some(name);
        let file = |name: String| Choice::Files(vec![name]);
        let extension = self.extension;
        if let Some(name) = existing(format!("{}{extension}.index.json", self.main)) {
            return Ok(Some(Choice::Index(name)));
        }
        if let Some(name) = existing(format!("{}{extension}", self.main)) {
            return Ok(Some(file(name)));
        }
        if let Some(name) = only(names, |name| name.ends_with(&format!("{extension}.index.json"))) {
            return Ok(Some(Choice::Index(name)));
        }
        if let Some(name) = self.known.iter().find_map(|stem| existing(format!("{stem}{extension}"))) {
            return Ok(Some(file(name)));
        }
        if let Some(files) = self.sharded(names, directory)? {
            return Ok(Some(Choice::Files(files)));
        }
        let parts: Vec<String> = names.iter().filter(|name| is_part(name, extension)).cloned().collect();
        if !parts.is_empty() {
            return Ok(Some(Choice::Files(parts)));
        }
        if let Some(choice) = self.variant(names) {
            return Ok(Some(choice));
        }
        let has_extension = |name: &&String| self.any.iter().any(|extension| name.ends_with(extension));
        let others: Vec<String> = names.iter().filter(has_extension).cloned().collect();
        match others.len() {
            0 => Ok(None),
            1 => Ok(Some(Choice::Files(others))),
            count => {
                let text = format!("the directory holds {count} {} files and nothing says which", self.title);
                let error = Error::new(Code::UnknownFormat, text).in_file(directory);
                Err(error.note(format!("Open one of: {}.", others.join(", "))))
            }
        }
    }

    /// The files of a sharded checkpoint: consolidated or numbered ones.
    fn sharded(&self, names: &BTreeSet<String>, directory: &Path) -> Result<Option<Vec<String>>> {
        let whole = names.iter().filter(|name| !is_part(name, self.extension)).cloned().collect();
        let numbered = NumberedShards::groups(&whole, self.extension);
        // The shards of a variant are used only where it has no index.
        let indexed = only(names, |name| self.is_variant_index(name)).is_some();
        let consolidated = consolidated(names, self.consolidated, directory)?;
        let plain = |group: &&NumberedShards| group.variant.is_empty();
        let main = |group: &&NumberedShards| group.stem == self.main;
        let mut candidates: Vec<&NumberedShards> = numbered.iter().filter(plain).collect();
        if candidates.is_empty() && !indexed {
            candidates = numbered.iter().collect();
        }
        if let Some(group) = candidates.iter().copied().find(main).filter(|_| candidates.len() > 1) {
            candidates = vec![group];
        }
        // In safetensors directories the consolidated files come first, elsewhere the numbered ones.
        if let Some(files) = consolidated
            && (candidates.is_empty() || self.consolidated == self.extension)
        {
            return Ok(Some(files));
        }
        match candidates.as_slice() {
            [] => Ok(None),
            [group] => group.complete(directory).map(Some),
            several => {
                let stems: Vec<&str> = several.iter().map(|group| group.stem.as_str()).collect();
                let text = format!("the directory holds {} sets of numbered shards", several.len());
                let error = Error::new(Code::UnknownFormat, text).in_file(directory);
                Err(error.note(format!("Give the files of one of: {}.", stems.join(", "))))
            }
        }
    }

    /// A variant: `model.safetensors.index.fp16.json` or `model.fp16.safetensors`; used only where no plain file exists.
    fn variant(&self, names: &BTreeSet<String>) -> Option<Choice> {
        if let Some(name) = only(names, |name| self.is_variant_index(name)) {
            return Some(Choice::Index(name));
        }
        [self.main].iter().chain(self.known).find_map(|stem| {
            let name = only(names, |name| {
                let rest = name.strip_prefix(stem).and_then(|rest| rest.strip_suffix(self.extension));
                rest.is_some_and(is_variant)
            })?;
            Some(Choice::Files(vec![name]))
        })
    }

    fn is_variant_index(&self, name: &str) -> bool {
        let middle = format!("{}.index", self.extension);
        let rest = name.strip_suffix(".json").and_then(|rest| rest.split_once(&middle));
        rest.is_some_and(|(_, variant)| is_variant(variant))
    }
}

/// `shard-00001-model-00001-of-00001.safetensors`: one process's parts of tensors, by torch.distributed.checkpoint
/// (torch/distributed/checkpoint/_hf_utils.py: `_gen_file_name`). A process without parts for a file writes none, so that names tell
/// nothing of missing files.
fn is_part(name: &str, extension: &str) -> bool {
    let rest = name.strip_prefix("shard-").and_then(|rest| rest.split_once("-model-"));
    rest.is_some_and(|(number, _)| decimal(number).is_some())
        && NumberedShards::parse(name, extension).is_some()
        && extension == SAFETENSORS.extension
}

/// `.fp16`: a dot and one word.
fn is_variant(text: &str) -> bool {
    text.strip_prefix('.').is_some_and(|word| !word.is_empty() && !word.contains(['.', '-']))
}

/// The only name that matches; `None` where none or several do.
fn only(names: &BTreeSet<String>, matches: impl Fn(&str) -> bool) -> Option<String> {
    let mut matching = names.iter().filter(|name| matches(name));
    matching.next().filter(|_| matching.next().is_none()).cloned()
}

/// `consolidated.safetensors`, or all of `consolidated.00.pth`, `consolidated.01.pth`, ... without a gap.
fn consolidated(names: &BTreeSet<String>, extension: &str, directory: &Path) -> Result<Option<Vec<String>>> {
    let single_file = format!("consolidated{extension}");
    if names.contains(&single_file) {
        return Ok(Some(vec![single_file]));
    }
    let parse_number = |name: &str| -> Option<(usize, usize)> {
        let digits = name.strip_prefix("consolidated.")?.strip_suffix(extension)?;
        Some((decimal(digits)?, digits.len()))
    };
    let parts: BTreeMap<usize, (usize, &String)> = names
        .iter()
        .filter_map(|name| parse_number(name).map(|(number, width)| (number, (width, name))))
        .collect();
    let Some((&last, &(width, _))) = parts.last_key_value() else { return Ok(None) };
    let gaps = missing_numbers(0, last, |number| parts.contains_key(&number));
    if gaps.is_empty() {
        return Ok(Some(parts.into_values().map(|(_, name)| name.clone()).collect()));
    }
    let gaps: Vec<String> =
        gaps.iter().map(|number| format!("consolidated.{number:0width$}{extension}")).collect();
    Err(missing(directory, &gaps, "belong to the numbered set")).in_file(directory)
}

/// The number of missing names that an error lists at most.
pub(super) const MISSING_NAMES_MAX: usize = 10_000;

fn missing_numbers(first: usize, last: usize, has: impl Fn(usize) -> bool) -> Vec<usize> {
    (first..=last).filter(|&number| !has(number)).take(MISSING_NAMES_MAX).collect()
}

pub(super) fn decimal(digits: &str) -> Option<usize> {
    let plain = !digits.is_empty() && digits.len() <= 6 && digits.bytes().all(|byte| byte.is_ascii_digit());
    plain.then(|| digits.parse().ok()).flatten()
}

/// A set of shards `X-00001-of-0000N.ext`; a variant (`.fp16`) is before the number or before the extension.
struct NumberedShards {
    stem: String,
    variant: String,
    total: usize,
    /// What follows the number: `-of-0000N.ext`.
    tail: String,
    width: usize,
    files: BTreeMap<usize, String>,
}

impl NumberedShards {
    fn groups(names: &BTreeSet<String>, extension: &str) -> Vec<NumberedShards> {
        let mut groups: BTreeMap<(String, String), NumberedShards> = BTreeMap::new();
        for name in names {
            let Some((shard, number)) = NumberedShards::parse(name, extension) else { continue };
            let key = (format!("{}{}", shard.stem, shard.variant), shard.tail.clone());
            groups.entry(key).or_insert(shard).files.insert(number, name.clone());
        }
        groups.into_values().collect()
    }

    fn parse(name: &str, extension: &str) -> Option<(NumberedShards, usize)> {
        let body = name.strip_suffix(extension)?;
        let (head, total_and_variant) = body.rsplit_once("-of-")?;
        let (stem, digits) = head.rsplit_once('-')?;
        let (total, variant_after_total) = total_and_variant
            .split_at_checked(total_and_variant.find('.').unwrap_or(total_and_variant.len()))?;
        let (stem, variant_before_number) = stem.split_at_checked(stem.find('.').unwrap_or(stem.len()))?;
        let (number, total_number) = (decimal(digits)?, decimal(total)?);
        if number == 0 || number > total_number {
            return None;
        }
        let numbered = NumberedShards {
            stem: stem.to_owned(),
            variant: format!("{variant_before_number}{variant_after_total}"),
            total: total_number,
            tail: format!("-of-{total_and_variant}{extension}"),
            width: digits.len(),
            files: BTreeMap::new(),
        };
        Some((numbered, number))
    }

    /// All the files; fails with the names of those that are missing.
    fn complete(&self, directory: &Path) -> Result<Vec<String>> {
        let gaps = missing_numbers(1, self.total, |number| self.files.contains_key(&number));
        if gaps.is_empty() {
            return Ok(self.files.values().cloned().collect());
        }
        let sample = self.files.values().next().map(String::as_str).unwrap_or_default();
        let cut = sample.len().saturating_sub(self.tail.len()).saturating_sub(self.width);
        let head = sample.get(..cut).unwrap_or_default();
        let (width, tail) = (self.width, &self.tail);
        let names: Vec<String> = gaps.iter().map(|number| format!("{head}{number:0width$}{tail}")).collect();
        Err(missing(directory, &names, "the shard numbers imply")).in_file(directory)
    }
}
