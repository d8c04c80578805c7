//! Checkpoints of DeepSpeed: which files of a folder are its parts, and of which rank each is.
//!
//! Follows the names of `deepspeed/runtime/engine.py`, and of `deepspeed/checkpoint/ds_to_universal.py` for universal checkpoints. The
//! scripts beside them (`zero_to_fp32.py`, `zero_to_torch.py`) are never run.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::directory::{self, MISSING_NAMES_MAX, decimal};
use super::{Shards, missing, small_text};
use crate::bytes::Folder;
use crate::error::{Code, Error, Result, ResultExt, error};
use crate::limits::Limits;

/// The files that name the folder of the last save: of ranks, and of a universal checkpoint.
pub(super) const LATEST: [&str; 2] = ["latest", "latest_universal"];

/// The folder of a universal checkpoint that has a folder for each parameter.
const UNIVERSAL: &str = "zero";

const MODEL_END: &str = "_model_states.pt";
const OPTIMIZER_END: &str = "_optim_states.pt";

/// Which part of a checkpoint of DeepSpeed a file is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ZeroFile {
    /// The rank of tensor parallelism.
    pub tensor_rank: usize,
    /// What it has.
    pub part: ZeroPart,
}

/// What a file of a checkpoint of DeepSpeed has.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ZeroPart {
    /// The states of the model; of one rank of data parallelism in stage 3.
    Model(Option<usize>),
    /// The states of the optimizer of a rank of data parallelism.
    Optimizer(usize),
    /// The weights of an expert, by the number of its layer and its own; old versions have those of all layers in a file.
    Expert(Option<usize>, usize),
    /// What has the states of the experts' optimizer in runs without ZeRO, and nothing in those with it.
    ExpertOptimizer(usize),
    /// One state of one parameter of a universal checkpoint.
    Parameter {
        /// The name of the parameter.
        name: String,
        /// `fp32`, or the name of a state of the optimizer.
        state: String,
    },
}

impl ZeroFile {
    /// The part that a file of this name is; `None` for other files.
    pub fn of_name(name: &str) -> Option<ZeroFile> {
        match parse(name)? {
            Named::Part(file) => Some(file),
            Named::Refused(_) => None,
        }
    }
}

/// What a name says.
enum Named {
    Part(ZeroFile),
    /// A part of a kind that is not joined.
    Refused(&'static str),
}

fn parse(name: &str) -> Option<Named> {
    let (body, is_model) = match name.strip_suffix(MODEL_END) {
        Some(body) => (body, true),
        None => match name.strip_suffix(OPTIMIZER_END) {
            Some(body) => (body, false),
            None => {
                let layer = name.strip_suffix("-model_states.pt")?.strip_prefix("layer_")?;
                decimal(layer.split('-').next()?)?;
                return Some(Named::Refused("of the layers of a pipeline"));
            }
        },
    };
    let (body, tensor_rank) = match body.rsplit_once("mp_rank_") {
        Some((head, rank)) => (head, decimal(rank)?),
        None => return None,
    };
    let rank = body.strip_prefix("bf16_").filter(|_| !is_model).unwrap_or(body);
    let rank = rank.strip_prefix("zero_pp_rank_").and_then(|rank| rank.strip_suffix('_')).map(decimal);
    let part = match (rank, is_model) {
        (Some(rank), true) => ZeroPart::Model(Some(rank?)),
        (Some(rank), false) => ZeroPart::Optimizer(rank?),
        (None, true) if body.is_empty() => ZeroPart::Model(None),
        (None, true) => expert(body)?,
        (None, false) => {
            ZeroPart::ExpertOptimizer(decimal(body.strip_prefix("expp_rank_")?.strip_suffix('_')?)?)
        }
    };
    Some(Named::Part(ZeroFile { tensor_rank, part }))
}

/// `layer_0_expert_1_`, or `expert_1_` of old versions.
fn expert(body: &str) -> Option<ZeroPart> {
    let (layer, expert) = body.strip_suffix('_')?.rsplit_once("expert_")?;
    let layer = match layer {
        "" => None,
        layer => Some(decimal(layer.strip_prefix("layer_")?.strip_suffix('_')?)?),
    };
    Some(ZeroPart::Expert(layer, decimal(expert)?))
}

/// The checkpoint in a folder with these files: its own files, or those of the folder that `latest` names. `None` where the folder has
/// neither.
pub(super) fn resolve(
    folder: &Folder,
    names: &BTreeSet<String>,
    limits: &Limits,
) -> Result<Option<Shards<String>>> {
    if let Some(shards) = tag(folder, names)? {
        return Ok(Some(shards));
    }
    let Some(latest) = LATEST.into_iter().find(|latest| names.contains(*latest)) else { return Ok(None) };
    let refuse = |text: String| Error::new(Code::UnknownFormat, text).in_file(&folder.path().join(latest));
    let Some(text) = small_text(folder, latest)? else {
        return Err(refuse(format!("this is not the name of a folder, as {latest} of DeepSpeed is")));
    };
    let name = text.trim();
    let Some(inner) = folder.folder(name)? else {
        return Err(refuse(format!("this names the folder {name:?}, which is not here")));
    };
    let inner_names = inner.names()?.into_iter().collect();
    let mut shards = match tag(&inner, &inner_names)? {
        Some(shards) => shards,
        // Without ZeRO, the file of the model has everything.
        None => directory::resolve(&inner, inner_names, limits)?,
    };
    shards.files.iter_mut().for_each(|file| *file = format!("{name}/{file}"));
    shards.notes.push(format!("{name} was opened, which {latest} names"));
    Ok(Some(shards))
}

/// The checkpoint whose files are in this folder.
fn tag(folder: &Folder, names: &BTreeSet<String>) -> Result<Option<Shards<String>>> {
    // The converter copies the files of the model beside the folders of parameters, and none of the optimizer.
    let is_optimizer = |name: &String| {
        matches!(ZeroFile::of_name(name), Some(ZeroFile { part: ZeroPart::Optimizer(_), .. }))
    };
    if !names.iter().any(is_optimizer)
        && let Some(found) = universal(folder, names)?
    {
        return Ok(Some(found));
    }
    let files = names.iter().map(|name| (name.as_str(), name.clone())).collect();
    of_files(files, folder.path())
}

/// The checkpoint that these files are, each with its name; `None` for files of other programs, and where none has states of an
/// optimizer that is partitioned.
pub(super) fn of_files<File>(files: Vec<(&str, File)>, directory: &Path) -> Result<Option<Shards<File>>> {
    let mut parts = BTreeMap::new();
    let (mut refused, mut twice) = (None, None);
    for (name, file) in files {
        match parse(name) {
            Some(Named::Part(part)) => twice = parts.insert(part, (name, file)).map(|_| name).or(twice),
            Some(Named::Refused(what)) => refused = refused.or(Some((name, what))),
            None => {}
        }
    }
    let is_optimizer = |file: &ZeroFile| matches!(file.part, ZeroPart::Optimizer(_));
    let is_partitioned =
        parts.keys().any(|file| is_optimizer(file) || matches!(file.part, ZeroPart::Model(Some(_))));
    if let Some((name, what)) = refused {
        let error = error!(Code::ZeroUnsupported, "the folder has files {what}, which are not joined")
            .in_file(&directory.join(name));
        return Err(error.note("Open the files one by one, or convert the folder with ds_to_universal.py."));
    }
    let is_expert =
        |file: &ZeroFile| matches!(file.part, ZeroPart::Expert(..) | ZeroPart::ExpertOptimizer(_));
    if !is_partitioned && let Some((_, (name, _))) = parts.iter().find(|(file, _)| is_expert(file)) {
        let text = "the folder has files of experts, and no partitions of ZeRO";
        let error = Error::new(Code::ZeroUnsupported, text).in_file(&directory.join(name));
        return Err(error.note("Open the files one by one."));
    }
    if !is_partitioned {
        return Ok(None);
    }
    if let Some(name) = twice {
        let text = "the folder has two files of one rank, with and without bf16_";
        return Err(Error::new(Code::ZeroConflict, text).in_file(&directory.join(name)));
    }
    check_ranks(&parts, directory, true)?;
    let (mut zero, mut files, mut labels) = (Vec::new(), Vec::new(), Vec::new());
    for (part, (name, file)) in parts {
        zero.push(part);
        labels.push(name.trim_end_matches(".pt").to_owned());
        files.push(file);
    }
    Ok(Some(Shards { zero, labels, ..Shards::of(files) }))
}

/// Fails with the names of missing files: every rank of tensor parallelism has all ranks of data parallelism, with or without states of
/// the optimizer.
fn check_ranks<T>(parts: &BTreeMap<ZeroFile, T>, directory: &Path, has_optimizer: bool) -> Result<()> {
    let last_tensor = parts.keys().map(|file| file.tensor_rank).max().unwrap_or(0);
    let data_rank = |file: &ZeroFile| match file.part {
        ZeroPart::Model(rank) => rank,
        ZeroPart::Optimizer(rank) => Some(rank),
        _ => None,
    };
    let last_data = parts.keys().filter_map(data_rank).max().unwrap_or(0);
    let is_stage_3 = parts.keys().any(|file| matches!(file.part, ZeroPart::Model(Some(_))));
    if is_stage_3 && parts.keys().any(|file| file.part == ZeroPart::Model(None)) {
        let text = "the folder has files of stage 3 and of another stage: they are of two saves";
        return Err(Error::new(Code::ZeroConflict, text).in_file(directory));
    }
    let mut absent = Vec::new();
    for tensor_rank in 0..=last_tensor {
        let mut need = |part: ZeroPart, name: String| {
            if absent.len() < MISSING_NAMES_MAX && !parts.contains_key(&ZeroFile { tensor_rank, part }) {
                absent.push(name);
            }
        };
        if !is_stage_3 {
            need(ZeroPart::Model(None), format!("mp_rank_{tensor_rank:02}{MODEL_END}"));
        }
        for rank in 0..=last_data {
            let head = format!("zero_pp_rank_{rank}_mp_rank_{tensor_rank:02}");
            if is_stage_3 {
                need(ZeroPart::Model(Some(rank)), format!("{head}{MODEL_END}"));
            }
            if has_optimizer {
                need(ZeroPart::Optimizer(rank), format!("[bf16_]{head}{OPTIMIZER_END}"));
            }
        }
        if absent.len() >= MISSING_NAMES_MAX {
            break;
        }
    }
    match absent.is_empty() {
        true => Ok(()),
        false => Err(missing(directory, &absent, "belong to the ranks")).in_file(directory),
    }
}

/// The universal checkpoint in a folder: a folder for each parameter, with a file for each state.
fn universal(folder: &Folder, names: &BTreeSet<String>) -> Result<Option<Shards<String>>> {
    if !folder.folders()?.iter().any(|name| name == UNIVERSAL) {
        return Ok(None);
    }
    let Some(inner) = folder.folder(UNIVERSAL)? else { return Ok(None) };
    let mut shards = Shards::of(Vec::new());
    for name in inner.folders()? {
        let Some(parameter) = inner.folder(&name)? else { continue };
        let mut files = parameter.names()?;
        files.sort();
        for file in files {
            let Some(state) = file.strip_suffix(".pt").filter(|state| *state != "step") else { continue };
            let part = ZeroPart::Parameter { name: name.clone(), state: state.to_owned() };
            shards.zero.push(ZeroFile { tensor_rank: 0, part });
            shards.labels.push(format!("{UNIVERSAL}/{name}/{state}"));
            shards.files.push(format!("{UNIVERSAL}/{name}/{file}"));
        }
    }
    if shards.files.is_empty() {
        return Ok(None);
    }
    let parts: Vec<(Named, &String)> = names.iter().filter_map(|name| Some((parse(name)?, name))).collect();
    // What has no partition is in the files of the model: those of several ranks of tensor parallelism differ, and those of experts and
    // of layers have other names.
    let model = |(named, name)| match named {
        Named::Part(file @ ZeroFile { tensor_rank: 0, part: ZeroPart::Model(_) }) => Some((file, name)),
        _ => None,
    };
    let models: Option<BTreeMap<ZeroFile, &String>> = parts.into_iter().map(model).collect();
    if let Some(models) = models.filter(|models| !models.is_empty()) {
        check_ranks(&models, folder.path(), false)?;
        for (file, name) in models {
            shards.zero.push(file);
            shards.labels.push(name.trim_end_matches(".pt").to_owned());
            shards.files.push(name.clone());
        }
    }
    Ok(Some(shards))
}
