//! The detector of zip readers: every member that any of them sees, except tensor storages.
//!
//! Stands for `zipfile` of CPython 3.8 to 3.15, torch's miniz, NumPy, and readers that follow local headers. It opens at a signature
//! at the start, and at a central directory that an end record near the end points to. An archive that the strict parser accepts is
//! walked by its central directory, and every local header is compared with it; byte ranges that belong to no member are searched
//! for members. Any other archive is walked under every interpretation that a reader may have (`zip::salvage`).
//!
//! The storages of a torch archive are read as elements of tensors, and by NumPy as arrays, if they start as one. They are not
//! walked as files of their own, and neither are the elements of an array that fills its member. The members of an exported program
//! have readers of their own: see [`exported`].

mod inflated;
mod sound;

use std::collections::HashSet;

use self::sound::is_array;
use super::super::budget::take;
use super::super::report::Finding;
use super::super::scanner::{Detected, Input, Origin};
use super::super::scanner::{Scanner, inside};
use super::super::verdict::Verdict;
use super::exported::{self, Use};
use super::texts::{self, Meaning};
use super::{VisibleMember, npy};
use crate::bytes::{Region, Source};
use crate::container::Format;
use crate::container::ahead::ReadAhead;
use crate::container::zip::{self, Archive, SalvagedArchive, Trailing, fold_case};
use crate::error::{Code, Error, Result};

/// The first bytes of a member, by which detectors decide.
const TEXT_BYTES: u64 = 1024;

/// Walks the members.
pub(super) fn walk(scanner: &mut Scanner<'_>, input: &Input<'_>, detected: &mut Detected) -> Result<()> {
    let Input { source, label, depth, ref head, .. } = *input;
    let starts = [&b"PK\x03\x04"[..], b"PK\x05\x06", b"PK\x07\x08", b"PK\x30\x30PK\x03\x04"];
    let starts_as_zip = starts.iter().any(|start| head.starts_with(start));
    if !starts_as_zip && !has_directory(source)? {
        return Ok(());
    }
    // The tail of a tar archive has the end of its last members, which were walked as archives of their own.
    if !starts_as_zip && !detected.members.is_empty() && zip::has_directories_of(source, &detected.members)? {
        return Ok(());
    }
    detected.zip = true;
    if *head == zip::EMPTY {
        scanner.report.format.get_or_insert("zip");
        scanner.report.scanned(label, "a zip archive without members", 0, source.len());
        return Ok(());
    }
    if depth > scanner.options.limits.scan_depth {
        scanner.report.unscanned(label, "nested too deep", 0, source.len());
        return Ok(());
    }
    match input.format {
        Some(Format::Zip | Format::Npz) => {}
        Some(_) => {
            let text = "readers that detect a format by the last bytes open it as a zip archive";
            scanner.add_polyglot(label, text, &["zip"]);
        }
        None => {
            scanner.report.format.get_or_insert("zip");
        }
    }
    scanner.archive(source, label, depth, detected)
}

/// Whether an end record near the end points to a central directory.
fn has_directory(source: &Source) -> Result<bool> {
    Ok(source.len() > 22 && zip::has_central_directory(source)?)
}

impl Scanner<'_> {
    /// Walks an archive.
    fn archive(
        &mut self,
        source: &Source,
        label: Option<&str>,
        depth: u64,
        detected: &mut Detected,
    ) -> Result<()> {
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
        detected.exported = exported::is_export(&members);
        self.names(&members, label, detected.exported);
        if detected.exported {
            self.compiled_code(&members, label);
        }
        self.members(source, &members, label, depth, detected)
    }

    /// Adds findings for names that differ in case only, and for TorchScript code.
    fn names(&mut self, members: &[VisibleMember], label: Option<&str>, is_export: bool) {
        let mut folded = HashSet::new();
        let (mut cased, mut code) = (None, (0_u64, None));
        for member in members {
            if !folded.insert(fold_case(&member.name)) && cased.is_none() {
                cased = Some(&member.name);
            }
            if texts::meaning(&member.name, is_export) == Meaning::Code {
                code = (code.0.saturating_add(1), code.1.or(Some(&member.name)));
            }
        }
        if let Some(name) = cased
            && !self.report.has(Code::ZipDuplicate.as_str())
        {
            let text = format!("another member's name differs from {name:?} in case only");
            let finding = Finding::new(Code::ZipCase.as_str(), Verdict::Unknown, label, text);
            self.report.add(Finding { readers: &["zip"], ..finding });
        }
        if let (times, Some(name)) = code {
            let text =
                format!("TorchScript code, such as {name:?}, runs when torch.jit.load's result is used");
            // The name of the module that the code is, for an allowance.
            let global = ("__torch__".to_owned(), "*".to_owned());
            let finding = Finding::new("CodeInArchive", Verdict::Unknown, label, text);
            self.report.add(Finding { times, global, readers: &["torch"], ..finding });
        }
    }

    /// Walks the members: first `data.pkl`, which names the storages. Those of an exported program are named by its configurations.
    fn members(
        &mut self,
        source: &Source,
        members: &[VisibleMember],
        label: Option<&str>,
        depth: u64,
        detected: &mut Detected,
    ) -> Result<()> {
        let is_export = detected.exported;
        let mut storages =
            if is_export { self.export_storages(source, members, detected)? } else { HashSet::new() };
        for member in members {
            let Some(folder) = folder_of_main(&member.name) else { continue };
            let outer = std::mem::take(&mut self.keys);
            let inner = self.member(source, member, label, depth, Origin::Main, Meaning::Content)?;
            detected.main = inner.and_then(|inner| inner.executed?.ok());
            let keys = std::mem::replace(&mut self.keys, outer);
            storages.extend(keys.into_iter().map(|key| format!("{folder}data/{key}")));
        }
        let (mut heads, mut as_elements) = (ReadAhead::default(), 0_u64);
        for member in members.iter().filter(|member| folder_of_main(&member.name).is_none()) {
            if member.listed && storages.contains(&member.name) {
                as_elements = as_elements.saturating_add(member.region.len());
                if is_array(&mut heads, source, member)? {
                    self.storage(source, member, label, depth)?;
                }
                continue;
            }
            self.options.cancel.check()?;
            let name = fold_case(&member.name);
            let extension = name.rsplit('.').next().unwrap_or_default();
            let is_pickle = matches!(extension, "pkl" | "pickle" | "debug_pkl");
            let origin = if is_pickle { Origin::PickleMember } else { Origin::Member };
            let member_use = if is_export { exported::member_use(&member.name) } else { Use::Other };
            let meaning = match member_use {
                Use::Graph | Use::Config => {
                    self.export_json(source, member, member_use, &inside(label, &member.name))?;
                    Meaning::Judged
                }
                // Native code is a finding.
                Use::Run => Meaning::Judged,
                _ => texts::meaning(&member.name, is_export),
            };
            self.member(source, member, label, depth, member_use.origin().unwrap_or(origin), meaning)?;
        }
        if as_elements > 0 {
            let what = "storages: as elements of tensors, and as arrays of NumPy";
            self.report.scanned(label, what, 0, as_elements);
        }
        Ok(())
    }

    /// Gives one member to all detectors. `None` where it is not scanned.
    fn member(
        &mut self,
        source: &Source,
        member: &VisibleMember,
        label: Option<&str>,
        depth: u64,
        origin: Origin,
        meaning: Meaning,
    ) -> Result<Option<Detected>> {
        let inner = inside(label, &member.name);
        let len = member.region.len();
        if len == 0 {
            return Ok(None);
        }
        if member.encrypted {
            self.report.unscanned(Some(&inner), "encrypted", 0, len);
        }
        if !matches!(member.method, 0 | 8) {
            let why = format!("compressed by method {}", member.method);
            self.report.unscanned(Some(&inner), &why, 0, len);
            return Ok(None);
        }
        let name = fold_case(&member.name);
        if member.overlaps_earlier && !take(&mut self.budget.overlapping_bytes, len) {
            self.report.unscanned(Some(&inner), "too many members overlap", 0, len);
            return Ok(None);
        }
        let Some(window) = self.open(source, member, &inner, origin)? else { return Ok(None) };
        let detected = self.source(&window, Some(&inner), depth.saturating_add(1), origin)?;
        self.interpreted(&window, meaning, &inner, &detected)?;
        let is_usual = matches!(origin, Origin::Main | Origin::Loaded)
            || name.ends_with("constants.pkl")
            || name.ends_with(".debug_pkl")
            || name.contains("/opaque_obj_");
        if detected.pickle && !is_usual {
            let text = "the checkpoint does not refer to this pickle; it was scanned";
            let finding = Finding::new("UnreferencedRecord", Verdict::Inert, Some(&inner), text);
            self.report.add(Finding { offset: Some(0), ..finding });
        }
        Ok(Some(detected))
    }

    /// Walks a storage that starts as an array, as NumPy reads members.
    fn storage(
        &mut self,
        source: &Source,
        member: &VisibleMember,
        label: Option<&str>,
        depth: u64,
    ) -> Result<()> {
        let inner = inside(label, &member.name);
        let Some(window) = self.open(source, member, &inner, Origin::Member)? else { return Ok(()) };
        let head = window.read_vec(0, window.len().min(TEXT_BYTES))?;
        let depth = depth.saturating_add(1);
        let input =
            Input { source: &window, label: Some(&inner), depth, origin: Origin::Member, head, format: None };
        npy::walk(self, &input, &mut Detected::default())
    }
}

/// The folder of a torch archive's pickle, with its slash; `None` for other members.
fn folder_of_main(name: &str) -> Option<&str> {
    let name = name.trim_end_matches('\0');
    let start = name.rfind(['/', '\\']).map_or(0, |slash| slash.saturating_add(1));
    let (folder, file) = name.split_at_checked(start)?;
    (fold_case(file.trim_matches('\0')) == "data.pkl").then_some(folder)
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
            size: None,
            encrypted: member.encrypted,
            listed: member.listed,
            head: None,
            overlaps_earlier,
        }
    };
    salvaged.members.into_iter().map(visible).collect()
}

/// Returns the errors that are not faults of the file: I/O, a changed file, cancellation and memory.
pub(super) fn propagate_if_not_file_fault(error: &Error) -> Result<()> {
    let code = error.code();
    match code.is_read_failure() || matches!(code, Code::Cancelled | Code::Memory) {
        true => Err(Error::new(code, error.message())),
        false => Ok(()),
    }
}
