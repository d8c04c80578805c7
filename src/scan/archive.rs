//! Scans zip archives: every member that any reader sees, except tensor storages.
//!
//! An archive that the strict parser accepts is scanned by its central directory, and every local header is compared with it;
//! byte ranges that belong to no member are searched for members. Any other archive is scanned under every interpretation that
//! a reader may have (`zip::salvage`).

use std::collections::HashSet;
use std::sync::Arc;

use super::budget::take;
use super::file::{Scanner, inside};
use super::non_zip::{is_truncated_pickle, may_be_pickle};
use super::report::{Finding, Verdict};
use crate::bytes::{Region, Source};
use crate::container::zip::{self, Archive, SalvagedArchive, Trailing};
use crate::container::{compressed_format, is_container};
use crate::error::{Code, Error, Result};
use crate::num::to_u64;

/// The first bytes of a member that tell its format.
const SNIFF_BYTES: u64 = 1024;
/// The maximum number of mismatches between local headers and the directory that are findings of their own.
const MAX_LISTED_MISMATCHES: u64 = 1000;

/// A member, as at least one reader sees it.
struct VisibleMember {
    name: String,
    region: Region,
    method: u16,
    encrypted: bool,
    /// Whether the central directory lists it.
    listed: bool,
    /// Whether it starts inside an earlier member. No sound archive has such a member.
    overlaps_earlier: bool,
}

impl Scanner<'_> {
    /// Scans a zip archive.
    pub(super) fn archive(&mut self, source: &Source, label: Option<&str>, depth: u64) -> Result<()> {
        let members = match Archive::open(source, &self.options.limits, Trailing::Error) {
            Ok(archive) => self.sound_members(&archive, label)?,
            Err(error) => {
                propagate_if_not_file_fault(&error)?;
                self.report.add_error(&error, label);
                None
            }
        };
        let members = match members {
            Some(members) => members,
            None => {
                let salvaged = zip::salvage(source, &self.options.limits, &self.options.cancel)?;
                if !salvaged.complete {
                    self.report.unscanned(label, "parts of a damaged archive", 0, source.len());
                }
                visible_members(salvaged)
            }
        };
        self.names(&members, label);
        self.members(source, &members, label, depth)
    }

    /// The members of a sound archive; `None` where a local header does not match the central directory.
    fn sound_members(
        &mut self,
        archive: &Archive,
        label: Option<&str>,
    ) -> Result<Option<Vec<VisibleMember>>> {
        let (mut out, mut mismatches) = (Vec::new(), 0_u64);
        for (index, member) in archive.members().iter().enumerate() {
            if index.is_multiple_of(1024) {
                self.options.cancel.check()?;
            }
            match archive.payload(index) {
                Ok(region) => out.push(VisibleMember {
                    name: member.name().to_owned(),
                    region,
                    method: member.method(),
                    encrypted: false,
                    listed: true,
                    overlaps_earlier: false,
                }),
                Err(error) => {
                    propagate_if_not_file_fault(&error)?;
                    mismatches = mismatches.saturating_add(1);
                    if mismatches < MAX_LISTED_MISMATCHES {
                        self.report.add_error(&error, label);
                    }
                }
            }
        }
        if mismatches > 0 {
            return Ok(None);
        }
        for gap in archive.gaps()? {
            let salvaged =
                zip::salvage_range(archive.source(), gap, &self.options.limits, &self.options.cancel)?;
            out.extend(visible_members(salvaged));
        }
        Ok(Some(out))
    }

    /// Adds findings for names that differ in case only, and for TorchScript code.
    fn names(&mut self, members: &[VisibleMember], label: Option<&str>) {
        let mut lower = HashSet::new();
        let (mut cased, mut code) = (None, (0_u64, None));
        for member in members {
            if !lower.insert(member.name.to_lowercase()) && cased.is_none() {
                cased = Some(&member.name);
            }
            if member.name.contains("/code/") && member.name.ends_with(".py") {
                code = (code.0.saturating_add(1), code.1.or(Some(&member.name)));
            }
        }
        if let Some(name) = cased
            && !self.report.has(Code::ZipDuplicate.as_str())
        {
            self.report.add(Finding {
                message: format!("another member's name differs from {name:?} in case only"),
                member: label.map(str::to_owned),
                readers: &["zip"],
                ..Finding::new(Code::ZipCase.as_str())
            });
        }
        if let (times, Some(name)) = code {
            self.report.add(Finding {
                verdict: Verdict::Unknown,
                message: format!(
                    "TorchScript code, such as {name:?}, runs when torch.jit.load's result is used"
                ),
                member: label.map(str::to_owned),
                times,
                // The name of the module that the code is, for an allowance.
                global: ("__torch__".to_owned(), "*".to_owned()),
                readers: &["torch"],
                ..Finding::new("CodeInArchive")
            });
        }
    }

    /// Scans the members: first `data.pkl`, which names the storages.
    fn members(
        &mut self,
        source: &Source,
        members: &[VisibleMember],
        label: Option<&str>,
        depth: u64,
    ) -> Result<()> {
        let is_main = |member: &VisibleMember| {
            let name = member.name.rsplit(['/', '\\']).next().unwrap_or_default();
            name.trim_matches('\0').eq_ignore_ascii_case("data.pkl")
        };
        let mut keys = HashSet::new();
        for member in members.iter().filter(|member| is_main(member)) {
            keys.extend(self.member(source, member, label, depth, true)?);
        }
        for member in members.iter().filter(|member| !is_main(member)) {
            let storage = member
                .name
                .rsplit_once("/data/")
                .or_else(|| member.name.strip_prefix("data/").map(|key| ("", key)));
            // A storage is read only as the elements of tensors.
            if member.listed && storage.is_some_and(|(_, key)| keys.contains(key)) {
                continue;
            }
            self.options.cancel.check()?;
            self.member(source, member, label, depth, false)?;
        }
        Ok(())
    }

    /// Scans one member: a pickle, a nested container, or data. Returns the storage keys that its pickle names.
    fn member(
        &mut self,
        source: &Source,
        member: &VisibleMember,
        label: Option<&str>,
        depth: u64,
        main: bool,
    ) -> Result<HashSet<String>> {
        let inner = inside(label, &member.name);
        if member.region.is_empty() {
            return Ok(HashSet::new());
        }
        if !matches!(member.method, 0 | 8) {
            let why = format!("compressed by method {}", member.method);
            self.report.unscanned(Some(&inner), &why, 0, member.region.len());
            return Ok(HashSet::new());
        }
        let (head, _) =
            zip::peek(source, member.region, member.method, SNIFF_BYTES, self.options.limits.inflate_ratio)?;
        let name = member.name.to_ascii_lowercase();
        if name.ends_with(".storage_alignment") {
            self.alignment(&head, &inner);
        }
        // TorchScript source text is never unpickled.
        if name.contains("/code/") && name.ends_with(".py") {
            return Ok(HashSet::new());
        }
        let extension = name.rsplit('.').next().unwrap_or_default();
        let says_pickle = main || matches!(extension, "pkl" | "pickle" | "debug_pkl");
        let container = is_container(&head) && !main;
        if !says_pickle && !container && !may_be_pickle(&head, &self.options.limits) {
            if member.encrypted {
                self.report.unscanned(Some(&inner), "encrypted", 0, member.region.len());
            }
            return Ok(HashSet::new());
        }
        let len = member.region.len();
        if member.overlaps_earlier && !take(&mut self.budget.overlapping_bytes, len) {
            self.report.unscanned(Some(&inner), "too many members overlap", 0, len);
            return Ok(HashSet::new());
        }
        let Some(window) = self.open(source, member, &inner, main)? else { return Ok(HashSet::new()) };
        if container {
            self.report.add(Finding {
                message: "a nested archive or array, which a reader may open".to_owned(),
                member: Some(inner.clone()),
                offset: Some(0),
                ..Finding::new("NestedArchive")
            });
            self.source(&window, Some(&inner), depth.saturating_add(1))?;
            return Ok(HashSet::new());
        }
        let (has_pickle, keys) = self.stream_with_keys(&window, &inner, says_pickle, depth)?;
        let usual = main || name.ends_with("constants.pkl") || name.ends_with(".debug_pkl");
        if has_pickle && !usual {
            self.report.add(Finding {
                message: "the checkpoint does not refer to this pickle; it was scanned".to_owned(),
                member: Some(inner),
                offset: Some(0),
                ..Finding::new("UnreferencedRecord")
            });
        }
        Ok(keys)
    }

    /// The member's bytes as a source: its range of the file, or inflated. `None` where the budget is too small to inflate even
    /// the first [`SNIFF_BYTES`].
    fn open(
        &mut self,
        source: &Source,
        member: &VisibleMember,
        inner: &str,
        main: bool,
    ) -> Result<Option<Source>> {
        if member.method == 0 {
            return source.window(member.region.start(), member.region.len()).map(Some);
        }
        // `data.pkl` members share the limit of loading, all other members share a budget of the scan.
        let (name, budget) = match main {
            true => ("pickle_bytes", &mut self.budget.main_pickle_bytes),
            false => ("scan_bytes", &mut self.budget.decoded_bytes),
        };
        let (allowed, ratio) = (*budget, self.options.limits.inflate_ratio);
        let mut len = allowed.min(1 << 20);
        let (bytes, cut) = loop {
            let (bytes, is_complete) = zip::peek(source, member.region, 8, len, ratio)?;
            let continues =
                is_archive_of_members(&bytes) || is_truncated_pickle(&bytes, &self.options.limits);
            let more = !is_complete && (to_u64(bytes.len()) < SNIFF_BYTES || continues);
            if !more || len == allowed || to_u64(bytes.len()) < len {
                break (bytes, more);
            }
            len = len.saturating_mul(4).min(allowed);
        };
        let inflated = to_u64(bytes.len());
        take(budget, inflated);
        if cut {
            let error = match inflated < allowed {
                true => {
                    let text =
                        format!("the first {inflated} bytes inflate to more than {ratio} times their size");
                    Error::new(Code::InflateRatio, text)
                }
                false => Error::limit(name, allowed, inflated.saturating_add(1)),
            };
            self.report.add_error(&error, Some(inner));
            self.report.unscanned(Some(inner), "too large once inflated", inflated, 0);
            if inflated < SNIFF_BYTES {
                return Ok(None);
            }
        }
        Ok(Some(Source::memory(Arc::new(bytes))))
    }

    /// Checks the storage alignment, with which torch computes offsets (torch/serialization.py: `_load`).
    fn alignment(&mut self, head: &[u8], inner: &str) {
        let text = std::str::from_utf8(head).unwrap_or_default();
        let plain = text.parse::<u32>().is_ok_and(|number| number > 0 && !text.starts_with('+'));
        if !plain {
            self.report.add(Finding {
                message: format!("the storage alignment is {:?}", text.chars().take(40).collect::<String>()),
                member: Some(inner.to_owned()),
                offset: Some(0),
                readers: &["torch"],
                ..Finding::new("BadAlignment")
            });
        }
    }
}

/// Whether bytes are the start of a container whose members are scanned, so that the bytes that follow matter.
fn is_archive_of_members(bytes: &[u8]) -> bool {
    is_container(bytes) && compressed_format(bytes).is_none() && !bytes.starts_with(b"\x93NUMPY")
}

/// The salvaged members, in the order of their offsets, as `zip::salvage` returns them.
fn visible_members(salvaged: SalvagedArchive) -> Vec<VisibleMember> {
    let mut end = 0;
    let visible = |member: zip::SalvagedMember| {
        let region = Region::new(member.start, member.len).unwrap_or_default();
        let overlaps_earlier = region.start() < end;
        end = end.max(region.end());
        VisibleMember {
            region,
            name: member.name,
            method: member.method,
            encrypted: member.encrypted,
            listed: member.listed,
            overlaps_earlier,
        }
    };
    salvaged.members.into_iter().map(visible).collect()
}

/// Returns the errors that are not faults of the file: I/O, a changed file, cancellation and memory.
fn propagate_if_not_file_fault(error: &Error) -> Result<()> {
    match error.code() {
        Code::Io | Code::FileChanged | Code::Cancelled | Code::Memory => {
            Err(Error::new(error.code(), error.message()))
        }
        _ => Ok(()),
    }
}
