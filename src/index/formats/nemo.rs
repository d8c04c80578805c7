//! NeMo's archives (`.nemo`): a tar archive with files of torch inside, each read where it lies.
//!
//! Follows `nemo/core/connectors/save_restore_connector.py`: `model_config.yaml` and `model_weights.ckpt`, which is a file of
//! `torch.save`; one such file for every rank of model parallelism, in folders (`mp_rank_00`); or the folder `model_weights` of a
//! distributed checkpoint. Refuses archives without any of these, and tar archives inside the archive. Nothing is extracted.

use super::contents::Contents;
use super::{dcp, torch_legacy};
use crate::bytes::Source;
use crate::container::tar::{Archive, Member};
use crate::container::zip;
use crate::container::{Format, sniff};
use crate::error::{Code, Error, Result, ResultExt, bail};
use crate::index::model::Options;
use crate::limits::Limits;
use crate::pickle;

/// The file name of a torch file.
const WEIGHTS: &str = "model_weights.ckpt";
/// The file name of the metadata of a distributed checkpoint.
const METADATA: &str = ".metadata";

/// The members that the error for another archive names.
const NAMED_MAX: usize = 5;

/// Reads the torch files in an archive. Where there are several, each has the name of its folder before the names of its tensors.
pub(super) fn read(archive: &Archive, options: &Options) -> Result<Contents> {
    let is_weights = |member: &&Member| matches!(split(member.name()).1, WEIGHTS | METADATA);
    let found: Vec<&Member> = archive.members().iter().filter(is_weights).collect();
    if found.len() > 1 && found.iter().any(|member| split(member.name()).1 == METADATA) {
        bail!(Code::TarUnsupported, "the tar archive has a distributed checkpoint beside other checkpoints");
    }
    let mut read = Vec::new();
    for member in &found {
        options.cancel.check()?;
        let mut contents = read_member(archive, member, options).in_member(member.name())?;
        if found.len() > 1 {
            contents = contents.labelled(&label(&found, member), &options.limits)?;
        }
        contents.index.end = Some(archive.end());
        read.push(contents);
    }
    let mut read = read.into_iter();
    let Some(mut first) = read.next() else { return Err(unknown(archive)) };
    first.inner = read.collect();
    Ok(first)
}

/// Reads one torch file.
fn read_member(archive: &Archive, member: &Member, options: &Options) -> Result<Contents> {
    let source = archive.window(member)?;
    if split(member.name()).1 == METADATA {
        return distributed(archive, member, &source, options);
    }
    match sniff(&source)? {
        Format::Zip => {
            let opened = zip::Archive::open(&source, &options.limits, zip::Trailing::Error)?;
            super::torch::read(opened, None, options)
        }
        Format::LegacyTorch => torch_legacy::read(&source, options),
        format => {
            let text = format!("a member that is a file of torch.save is of the format {}", format.name());
            Err(Error::new(Code::TarContent, text))
        }
    }
}

/// Reads a distributed checkpoint, whose files are members of the metadata's folder.
fn distributed(archive: &Archive, member: &Member, source: &Source, options: &Options) -> Result<Contents> {
    Limits::check("pickle_bytes", options.limits.pickle_bytes, source.len())?;
    let data = source.chunk(0, source.len())?;
    let pickle = pickle::run_cancellable(data, &options.limits, &options.cancel)?;
    if !dcp::is_metadata(&pickle) {
        bail!(Code::DcpMetadata, "the metadata is not of torch.distributed.checkpoint");
    }
    let folder = dcp::Folder::in_archive(archive, split(member.name()).0);
    dcp::read(source, folder, pickle, options)
}

/// A name's folder, without its slash, and the rest.
fn split(name: &str) -> (&str, &str) {
    name.rsplit_once('/').unwrap_or(("", name))
}

/// The name of one of several torch files: its folder, or its path where others are in the same folder.
fn label(found: &[&Member], member: &Member) -> String {
    let (folder, file) = split(member.name());
    let is_only = found.iter().filter(|other| split(other.name()).0 == folder).count() == 1;
    if is_only && !folder.is_empty() {
        return folder.to_owned();
    }
    let stem = file.strip_suffix(".ckpt").unwrap_or(file);
    if folder.is_empty() { stem.to_owned() } else { format!("{folder}/{stem}") }
}

/// The error for an archive of something else.
fn unknown(archive: &Archive) -> Error {
    let names: Vec<String> =
        archive.members().iter().take(NAMED_MAX).map(|member| format!("{:?}", member.name())).collect();
    let more = archive.members().len().saturating_sub(names.len());
    let inside = match (names.len(), more) {
        (0, _) => "no files".to_owned(),
        (_, 0) => names.join(", "),
        _ => format!("{} and {more} more", names.join(", ")),
    };
    let text =
        format!("this is a tar archive with {inside}: neither a checkpoint of torch 0.1 nor one of NeMo");
    Error::new(Code::TarUnsupported, text)
}
