//! A checkpoint of torch_checkpointing: `metadata.pkl`, and for each item and rank a file of torch or of safetensors beside it.
//!
//! Follows `torch_checkpointing` 0.1. Its reader unpickles the metadata and the files without restriction, and imports the class that a
//! layout of JSON names. Here the metadata is plain data or an error. The files that have parts of tensors are opened as such files are,
//! each under the name of its item, and every part has to be what the metadata states; the parts are joined as those of any files.
//! Of equal parts that of the lowest rank is used. An item that the metadata does not describe has its tensors as they are in its files.

mod metadata;
mod place;

use std::collections::{BTreeMap, BTreeSet, HashMap};

pub(super) use self::metadata::is_metadata;
use self::metadata::{Described, Items, Piece, Step};
use self::place::{Placed, wrong};
use super::contents::Contents;
use super::dcp::Folder;
use super::{safetensors, torch, torch_legacy};
use crate::bytes::Source;
use crate::container::zip::{Archive, Trailing};
use crate::container::{Format, sniff};
use crate::error::{Code, Result, ResultExt, bail};
use crate::index::model::{Entry, Index, Options, Path, PathStep, check_tiling};
use crate::index::pickled::{self, Object, Tree};
use crate::layout::numel;
use crate::parallel;
use crate::pickle::Pickle;

/// The files that are opened at once: each is a few requests, one after another.
const FILES_AT_ONCE: usize = 8;

/// The file of an item and rank.
struct File<'a> {
    path: String,
    label: String,
    rank: u64,
    tensors: &'a [Described],
    /// Whether no other rank's file of the item is read.
    is_alone: bool,
}

/// Reads the metadata and the files that it describes, and the other items beside them.
pub(super) fn read(
    source: &Source,
    folder: &Folder<'_>,
    pickle: &Pickle,
    options: &Options,
) -> Result<Contents> {
    pickled::check_end(pickle, options)?;
    let items = metadata::parse(pickle, options)?;
    let (files, unread) = files(&items, &folder.names()?)?;
    let mut read: Vec<Option<Contents>> = files.iter().map(|_| None).collect();
    let work = files.iter().zip(&mut read);
    parallel::for_each(
        FILES_AT_ONCE.min(files.len()),
        work,
        || (),
        |(), (file, out)| {
            options.cancel.check()?;
            let source = folder.open(&file.path)?;
            let name = source.name().map_or_else(|| folder.path().join(&file.path), Into::into);
            *out = Some(
                open(&source, file, options).map_err(|error| source.locate_error(error)).in_file(&name)?,
            );
            Ok(())
        },
    )?;
    let mut contents = Contents::from(Index::empty(Format::TorchCheckpointing, source));
    if unread > 0 {
        let text = "that they have nothing which the files of lower ranks lack";
        contents
            .index
            .notes
            .push(format!("the files of {unread} rank(s) were not opened, as the metadata states {text}"));
    }
    contents.inner = read.into_iter().flatten().collect();
    Ok(contents)
}

/// The classes that a reader of torch_checkpointing imports; `None` for a pickle that is not its metadata.
#[cfg(feature = "scan")]
pub fn imported_classes(pickle: &Pickle, options: &Options) -> Option<Result<Vec<String>>> {
    let classes = |items: Items<'_>| {
        let classes: BTreeSet<String> =
            items.values().flat_map(|item| item.classes()).map(str::to_owned).collect();
        classes.into_iter().collect()
    };
    is_metadata(pickle).then(|| metadata::parse(pickle, options).map(classes))
}

/// The files to read, and the number of files that are left out. Those of an item are of the ranks that have a part which no lower
/// rank has; an item without metadata has all of its files, each under its own name where there are several.
fn files<'a>(items: &'a Items<'_>, names: &[String]) -> Result<(Vec<File<'a>>, usize)> {
    let (mut files, mut unread) = (Vec::new(), 0_usize);
    for (name, item) in items {
        let (mut ranks, mut seen) = (BTreeSet::new(), BTreeSet::new());
        for tensor in &item.tensors {
            let mut boxes: BTreeSet<(&[u64], &[u64])> = BTreeSet::new();
            for piece in &tensor.pieces {
                seen.insert(piece.rank);
                let is_empty = numel(&piece.sizes) == Some(0) && numel(&tensor.shape) != Some(0);
                if !is_empty && boxes.insert((&piece.global, &piece.sizes)) {
                    ranks.insert(piece.rank);
                }
            }
            let boxes: Vec<_> = boxes.into_iter().collect();
            check_tiling(&tensor.shape, &boxes).map_err(|error| error.in_member(&dotted(&tensor.path)))?;
        }
        unread = unread.saturating_add(seen.len().saturating_sub(ranks.len()));
        for &rank in &ranks {
            let path = item.file(name, rank).in_member(name)?;
            let is_alone = ranks.len() == 1;
            files.push(File { path, label: name.clone(), rank, tensors: &item.tensors, is_alone });
        }
    }
    let mut others: BTreeMap<&str, BTreeMap<u64, &String>> = BTreeMap::new();
    for name in names {
        let Some((item, digits)) = name.strip_suffix(".pt").and_then(|stem| stem.rsplit_once('_')) else {
            continue;
        };
        let rank =
            digits.parse().ok().filter(|rank: &u64| rank.to_string() == digits && !items.contains_key(item));
        if let Some(rank) = rank {
            others.entry(item).or_default().insert(rank, name);
        }
    }
    for (item, ranks) in others {
        for (&rank, &path) in &ranks {
            let label = if ranks.len() == 1 { item.to_owned() } else { format!("{item}_{rank}") };
            files.push(File { path: path.clone(), label, rank, tensors: &[], is_alone: true });
        }
    }
    Ok((files, unread))
}

/// Reads one file, and checks that it has the parts that the metadata states for its rank.
fn open(source: &Source, file: &File<'_>, options: &Options) -> Result<Contents> {
    let limited = (!options.verify).then(|| source.limited(&options.limits));
    let source = limited.as_deref().unwrap_or(source);
    let mut contents = match sniff(source)? {
        Format::Zip => torch::read(Archive::open(source, &options.limits, Trailing::Error)?, None, options)?,
        Format::LegacyTorch => torch_legacy::read(source, options)?,
        Format::Safetensors => safetensors::read(source, options).map(Contents::from)?,
        format => {
            bail!(Code::DcpChunk, "the file of an item is of the format {}", format.name());
        }
    };
    let tree = contents.objects.tree.clone();
    let by_path: HashMap<Vec<Step>, usize> = (0..)
        .zip(&contents.index.entries)
        .filter_map(|(at, entry)| Some((steps(entry, tree.as_deref())?, at)))
        .collect();
    let mut placed = Placed::default();
    for tensor in file.tensors {
        let pieces: Vec<&Piece> = tensor.pieces.iter().filter(|piece| piece.rank == file.rank).collect();
        if pieces.is_empty() {
            continue;
        }
        options.cancel.check()?;
        let path = match tree {
            Some(_) => &tensor.path,
            None => &vec![Step::Key(dotted(&tensor.path))],
        };
        let entry = by_path.get(path).copied();
        let entry = entry
            .ok_or_else(|| wrong("the file lacks a tensor that the metadata states for its rank".to_owned()));
        entry
            .and_then(|entry| placed.place(&mut contents.index, entry, tensor, &pieces, file.is_alone))
            .map_err(|error| error.in_member(&dotted(&tensor.path)))?;
    }
    contents.labelled(&file.label, &options.limits)
}

/// The path of a tensor inside its item; `None` where it has a step that the metadata cannot state. A file without an object tree has
/// names instead.
fn steps(entry: &Entry, tree: Option<&Tree>) -> Option<Vec<Step>> {
    let (Path::Steps(steps), Some(tree)) = (&entry.path, tree) else {
        return Some(vec![Step::Key(entry.name.to_string())]);
    };
    let step = |step: &PathStep| match *step {
        PathStep::Index(index) => Some(Step::Number(index.into())),
        PathStep::Key(key) => match tree.get(key).ok()? {
            Object::Str(key) => key.as_str().map(|key| Step::Key(key.to_owned())),
            Object::Int(key) => Some(Step::Number(key)),
            _ => None,
        },
        _ => None,
    };
    steps.iter().map(step).collect()
}

/// The name in a safetensors file.
fn dotted(path: &[Step]) -> String {
    let step = |step: &Step| match step {
        Step::Key(key) => key.clone(),
        Step::Number(number) => number.to_string(),
    };
    path.iter().map(step).collect::<Vec<_>>().join(".")
}
