//! Folders that training programs write: of torch_checkpointing (an item in a file for each rank) and of Megatron (a folder for each
//! rank). Which of their files are the checkpoint, and under which label each is read.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::directory::{self, MISSING_NAMES_MAX, decimal};
use super::{Shards, distributed, missing, small_text, zero};
use crate::bytes::Folder;
use crate::error::{Code, Error, Result, ResultExt};
use crate::limits::Limits;

/// The metadata of torch_checkpointing (torch_checkpointing/metadata_serialization.py).
pub(super) const METADATA: &str = "metadata.pkl";

/// What the folder of an unfinished save of torch_checkpointing begins with (checkpoint_writer.py: `DEFAULT_TEMP_DIR_PREFIX`).
const UNFINISHED: &str = "tmp_";

/// Bytes of the metadata in which its first keys are.
const HEAD_BYTES: u64 = 4096;

/// The file of Megatron that names the last iteration: its number, or `release` (megatron/training/checkpointing.py).
const LATEST: &str = "latest_checkpointed_iteration.txt";

/// The files of a rank of Megatron, each with the end of its label.
const RANK_FILES: [(&str, &str); 2] = [("model_optim_rng.pt", ""), ("distrib_optim.pt", ".distrib_optim")];

/// The checkpoint in a folder: that of a training program, or one of files by the names of other programs.
pub(super) fn resolve(folder: &Folder, limits: &Limits) -> Result<Shards<String>> {
    let names: BTreeSet<String> = folder.names()?.into_iter().collect();
    if names.contains(LATEST) {
        return latest(folder, limits);
    }
    resolve_one(folder, names, limits)
}

/// As [`resolve`], for a folder that is not one of several iterations.
fn resolve_one(folder: &Folder, names: BTreeSet<String>, limits: &Limits) -> Result<Shards<String>> {
    let mut found = match torch_checkpointing(folder, &names)? {
        None => megatron(folder, &names)?,
        found => found,
    };
    // Trainers save weights of their own beside the folder of DeepSpeed.
    if found.is_none() && !directory::has_weights(&names) && !distributed::is_checkpoint(&names) {
        found = zero::resolve(folder, &names, limits)?;
    }
    if let Some(found) = found {
        return Ok(found);
    }
    let latest = zero::LATEST.into_iter().find(|latest| names.contains(*latest));
    let mut shards = directory::resolve(folder, names, limits)?;
    if let Some(latest) = latest {
        shards.notes.push(format!(
            "the directory also has {latest}, as DeepSpeed writes: for its checkpoint, open the folder that is named there"
        ));
    }
    Ok(shards)
}

/// The folder as one of torch_checkpointing: its metadata, or without any the items of a single rank. Fails with `DcpUnfinished` for
/// metadata in a folder of an unfinished save.
fn torch_checkpointing(folder: &Folder, names: &BTreeSet<String>) -> Result<Option<Shards<String>>> {
    if names.contains(METADATA) && is_metadata(folder)? {
        let directory = folder.path();
        if directory.file_name().is_some_and(|name| name.to_string_lossy().starts_with(UNFINISHED)) {
            let text =
                "this checkpoint of torch_checkpointing was not finished: its folder's name begins with tmp_";
            let error = Error::new(Code::DcpUnfinished, text).in_file(directory);
            return Err(error.note("If all ranks did write their files, rename the folder."));
        }
        return Ok(Some(Shards::of(vec![METADATA.to_owned()])));
    }
    let is_checkpoint = |name: &&String| {
        [".pt", ".pth", ".bin", ".ckpt", ".safetensors"].iter().any(|end| name.ends_with(end))
    };
    let files: Vec<&String> = names.iter().filter(is_checkpoint).collect();
    let labels: Option<Vec<String>> = files
        .iter()
        .map(|name| name.strip_suffix("_0.pt").filter(|item| !item.is_empty()).map(str::to_owned))
        .collect();
    Ok(labels.filter(|labels| labels.len() > 1).map(|labels| Shards {
        labels,
        notes: vec![
            "each file is an item of one rank, as torch_checkpointing writes: names begin with the item"
                .to_owned(),
        ],
        ..Shards::of(files.into_iter().cloned().collect())
    }))
}

/// Whether `metadata.pkl` begins as that of torch_checkpointing; other programs write files of this name too.
fn is_metadata(folder: &Folder) -> Result<bool> {
    let source = folder.open(METADATA)?;
    let head = source.read_vec(0, source.len().min(HEAD_BYTES)).in_file(&folder.path().join(METADATA))?;
    let has = |key: &str| head.windows(key.len()).any(|bytes| bytes == key.as_bytes());
    Ok(has("metadata") && (has("world_size") || has("sharding_metadata")))
}

/// The folder as that of an iteration of Megatron, with a folder for each rank. Fails for one in the zarr format.
fn megatron(folder: &Folder, names: &BTreeSet<String>) -> Result<Option<Shards<String>>> {
    if names.contains("metadata.json")
        && small_text(folder, "metadata.json")?.is_some_and(|text| is_zarr(&text))
    {
        let text =
            "the directory is a checkpoint of Megatron in the zarr format (metadata.json: sharded_backend)";
        let error = Error::new(Code::UnknownFormat, text).in_file(folder.path());
        return Err(
            error.note("Load it with the Megatron that wrote it, and save it with --ckpt-format torch_dist.")
        );
    }
    let mut ranks: BTreeMap<Vec<usize>, &String> = BTreeMap::new();
    let folders = folder.folders()?;
    for name in &folders {
        let Some(rank) = name.strip_prefix("mp_rank_") else { continue };
        if let Some(rank) = rank.split('_').map(decimal).collect() {
            ranks.insert(rank, name);
        }
    }
    let files: Vec<&str> = RANK_FILES.iter().map(|(file, _)| *file).collect();
    let (mut found, mut labels, mut absent) = (Vec::new(), Vec::new(), Vec::new());
    for &rank in ranks.values() {
        let Some(inner) = folder.folder(rank)? else { continue };
        let sizes = inner.sizes(&files)?;
        for ((file, label), size) in RANK_FILES.iter().zip(sizes) {
            match size {
                Some(_) => {
                    found.push(format!("{rank}/{file}"));
                    labels.push(format!("{rank}{label}"));
                }
                None if label.is_empty() => absent.push(format!("{rank}/{file}")),
                None => {}
            }
        }
    }
    // DeepSpeed names its folders alike, and has files of other names in them.
    if found.is_empty() {
        return Ok(None);
    }
    absent.extend(gaps(&ranks, folder.path())?);
    if !absent.is_empty() {
        return Err(missing(folder.path(), &absent, "belong to the ranks")).in_file(folder.path());
    }
    let mut notes = Vec::new();
    if ranks.len() > 1 {
        notes.push(format!(
            "the {} ranks of Megatron are not joined, as their files do not say along which dimension a tensor is cut: names begin with \
             the rank's folder",
            ranks.len()
        ));
    }
    Ok(Some(Shards { labels, notes, ..Shards::of(found) }))
}

/// The checkpoint in the folder of the last iteration.
fn latest(folder: &Folder, limits: &Limits) -> Result<Shards<String>> {
    let refuse =
        |text: String| Err(Error::new(Code::UnknownFormat, text).in_file(&folder.path().join(LATEST)));
    let text = small_text(folder, LATEST)?.unwrap_or_default();
    let name = match text.trim().parse::<u64>() {
        Ok(iteration) => format!("iter_{iteration:07}"),
        Err(_) if text.trim() == "release" => "release".to_owned(),
        Err(_) => return refuse("this is neither the number of an iteration nor \"release\"".to_owned()),
    };
    let Some(iteration) = folder.folder(&name)? else {
        return refuse(format!("this names the folder {name}, which is not here"));
    };
    let names = iteration.names()?.into_iter().collect();
    let mut shards = resolve_one(&iteration, names, limits)?;
    shards.files.iter_mut().for_each(|file| *file = format!("{name}/{file}"));
    shards.notes.push(format!("{name} was opened, which {LATEST} names"));
    Ok(shards)
}

/// The folders of ranks that are missing: all combinations of tensor, pipeline and expert parallelism have one. Fails where the names
/// have different numbers of numbers.
fn gaps(ranks: &BTreeMap<Vec<usize>, &String>, directory: &Path) -> Result<Vec<String>> {
    let Some(mut rank) = ranks.first_key_value().map(|(first, _)| vec![0; first.len()]) else {
        return Ok(Vec::new());
    };
    if ranks.keys().any(|other| other.len() != rank.len()) {
        return Err(Error::new(Code::UnknownFormat, "the directory has folders of ranks of several saves")
            .in_file(directory));
    }
    let axis_last = |axis| ranks.keys().filter_map(|rank| rank.get(axis).copied()).max().unwrap_or(0);
    let last: Vec<usize> = (0..rank.len()).map(axis_last).collect();
    let mut absent = Vec::new();
    loop {
        if !ranks.contains_key(&rank) {
            let rest = rank.iter().skip(1).map(|number| format!("_{number:03}")).collect::<String>();
            absent.push(format!("mp_rank_{:02}{rest}", rank.first().copied().unwrap_or(0)));
        }
        // The next combination: the last number that can grow does, and those after it begin again.
        let Some(axis) = (0..rank.len()).rev().find(|&axis| rank.get(axis) < last.get(axis)) else { break };
        for (at, number) in rank.iter_mut().enumerate().skip(axis) {
            *number = if at == axis { number.saturating_add(1) } else { 0 };
        }
        if absent.len() >= MISSING_NAMES_MAX {
            break;
        }
    }
    Ok(absent)
}

fn is_zarr(text: &str) -> bool {
    let rest = text.split_once("\"sharded_backend\"").map_or("", |(_, rest)| rest);
    rest.trim_start().strip_prefix(':').is_some_and(|rest| rest.trim_start().starts_with("\"zarr\""))
}

/// The error for a file in which Composer names another one in place of a symbolic link (composer/utils/checkpoint.py).
pub(super) fn symlink_file(path: &Path) -> Error {
    let text = "this is a symlink file of Composer, which only names a checkpoint";
    Error::new(Code::UnknownFormat, text).in_file(path).note("Open the file that its text names.")
}
