//! What the configurations and the nested archives of one exported program may take together.

use crate::bytes::Source;
use crate::container::payload_config::PayloadConfig;
use crate::container::zip::{Archive, Member, Trailing};
use crate::error::{Code, Error, Result};
use crate::index::formats::contents::Contents;
use crate::index::formats::torch;
use crate::index::model::Options;
use crate::limits::Limits;
use crate::num::to_u64;
use crate::parallel::Cancel;
use std::sync::Arc;

/// Reads and parses a configuration; takes what it has from `limits`.
pub(super) fn config(
    limits: &mut Limits,
    archive: &Archive,
    number: usize,
    cancel: &Cancel,
) -> Result<PayloadConfig> {
    let member = member(archive, number)?;
    let (name, max_bytes) = match member.is_compressed() && limits.inflate_bytes < limits.header_bytes {
        true => ("inflate_bytes", limits.inflate_bytes),
        false => ("header_bytes", limits.header_bytes),
    };
    let bytes = archive.read(number, name, max_bytes, cancel)?;
    limits.header_bytes = limits.header_bytes.saturating_sub(to_u64(bytes.len()));
    if member.is_compressed() {
        limits.inflate_bytes = limits.inflate_bytes.saturating_sub(to_u64(bytes.len()));
    }
    PayloadConfig::parse(&bytes, limits).map_err(|error| error.in_member(member.name()))
}

/// The index of an archive of `torch.save` that is a member; `None` for an empty member. A compressed one is inflated into memory. What
/// it has is taken from `limits`.
pub(super) fn nested(
    limits: &mut Limits,
    archive: &Archive,
    number: usize,
    options: &Options,
) -> Result<Option<Contents>> {
    let member = member(archive, number)?;
    if member.size() == 0 {
        return Ok(None);
    }
    let source = match member.is_compressed() {
        true => {
            let max_bytes = limits.inflate_bytes;
            let bytes = archive.read(number, "inflate_bytes", max_bytes, &options.cancel)?;
            limits.inflate_bytes = max_bytes.saturating_sub(to_u64(bytes.len()));
            Source::memory(Arc::new(bytes))
        }
        false => {
            let region = archive.payload(number)?;
            archive.source().window(region.start(), region.len())?
        }
    };
    let options = Options { limits: limits.clone(), ..options.clone() };
    let nested = Archive::open(&source, limits, Trailing::Error);
    let contents = nested.and_then(|nested| torch::read(nested, None, &options));
    let contents = contents.map_err(|error| inside(error, member))?;
    let taken = contents.objects.tree.as_ref().map_or(0, |tree| tree.pickle_bytes());
    limits.pickle_bytes = limits.pickle_bytes.saturating_sub(taken);
    Ok(Some(contents))
}

/// A member by its number.
pub(super) fn member(archive: &Archive, number: usize) -> Result<&Member> {
    let missing = || Error::new(Code::InternalError, "a member of the archive is missing");
    archive.members().get(number).ok_or_else(missing)
}

/// The error of a nested archive, with the names of both members.
fn inside(error: Error, member: &Member) -> Error {
    match error.member().map(|inner| format!("{}!{inner}", member.name())) {
        Some(both) => error.within_member(&both),
        None => error.in_member(member.name()),
    }
}
