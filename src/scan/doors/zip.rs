//! The door of zip readers: every member that any of them sees, except tensor storages.
//!
//! Stands for `zipfile` of CPython 3.8 to 3.15, torch's miniz, NumPy, and readers that follow local headers. It opens at a signature
//! at the start, and at a central directory that an end record near the end points to. An archive that the strict parser accepts is
//! walked by its central directory, and every local header is compared with it; byte ranges that belong to no member are searched
//! for members. Any other archive is walked under every interpretation that a reader may have (`zip::salvage`).
//!
//! The storages of a torch archive are read as elements of tensors, and by NumPy as arrays, if they start as one. They are not
//! walked as files of their own, and neither are the elements of an array that fills its member. The members of an exported program
//! have readers of their own: see [`exported`].

mod sound;

use std::collections::HashSet;
use std::sync::Arc;

use self::sound::Heads;
use super::super::budget::take;
use super::super::file::{Scanner, inside};
use super::super::report::{Finding, Verdict};
use super::exported::{self, Use};
use super::{Entered, Role, Visit, npy};
use crate::bytes::{Region, Source};
use crate::container::npy::Header;
use crate::container::zip::{self, Archive, SalvagedArchive, Trailing, fold_case};
use crate::container::{Format, is_container};
use crate::error::{Code, Error, Result};
use crate::limits::Limits;
use crate::num::to_u64;
use crate::pickle::Disasm;

/// Bytes that are read of a member whose text is shown in findings.
const TEXT_BYTES: u64 = 1024;
/// Bytes that are inflated first.
const FIRST_INFLATED_BYTES: u64 = 1 << 20;
/// The member of a skops file that describes its objects.
const SKOPS_SCHEMA: &str = "schema.json";

/// A member, as at least one reader sees it.
pub(super) struct VisibleMember {
    pub(super) name: String,
    pub(super) region: Region,
    pub(super) method: u16,
    /// Its inflated size by the central directory of a sound archive.
    size: Option<u64>,
    encrypted: bool,
    /// Whether the central directory lists it.
    listed: bool,
    /// Its first bytes, where they were read together with the local header.
    head: Option<Vec<u8>>,
    /// Whether it starts inside an earlier member. No sound archive has such a member.
    overlaps_earlier: bool,
}

/// Walks the members.
pub(super) fn walk(scanner: &mut Scanner<'_>, visit: &Visit<'_>, entered: &mut Entered) -> Result<()> {
    let Visit { source, label, depth, ref head, .. } = *visit;
    let starts = [&b"PK\x03\x04"[..], b"PK\x05\x06", b"PK\x07\x08", b"PK\x30\x30PK\x03\x04"];
    let starts_as_zip = starts.iter().any(|start| head.starts_with(start));
    if !starts_as_zip && !has_directory(source)? {
        return Ok(());
    }
    // The tail of a tar archive has the end of its last members, which were walked as archives of their own.
    if !starts_as_zip && !entered.members.is_empty() && zip::has_directories_of(source, &entered.members)? {
        return Ok(());
    }
    entered.zip = true;
    let is_empty = source.len() == 22 && head.starts_with(b"PK\x05\x06");
    if is_empty {
        return Ok(());
    }
    if depth > scanner.options.limits.scan_depth {
        scanner.report.unscanned(label, "nested too deep", 0, source.len());
        return Ok(());
    }
    match visit.format {
        Some(Format::Zip | Format::Npz) => {}
        Some(_) => {
            let text = "readers that detect a format by the last bytes open it as a zip archive";
            scanner.add_polyglot(label, text, &["zip"]);
        }
        None => {
            scanner.report.format.get_or_insert("zip");
        }
    }
    entered.exported = scanner.archive(source, label, depth)?;
    Ok(())
}

/// Whether an end record near the end points to a central directory.
fn has_directory(source: &Source) -> Result<bool> {
    Ok(source.len() > 22 && zip::has_central_directory(source)?)
}

impl Scanner<'_> {
    /// Walks an archive. Returns whether it is an exported program.
    fn archive(&mut self, source: &Source, label: Option<&str>, depth: u64) -> Result<bool> {
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
        let is_export = exported::is_export(&members);
        if is_export {
            self.compiled_code(&members, label);
        }
        self.members(source, &members, label, depth, is_export)?;
        Ok(is_export)
    }

    /// Adds findings for names that differ in case only, and for TorchScript code.
    fn names(&mut self, members: &[VisibleMember], label: Option<&str>) {
        let mut folded = HashSet::new();
        let (mut cased, mut code) = (None, (0_u64, None));
        for member in members {
            if !folded.insert(fold_case(&member.name)) && cased.is_none() {
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

    /// Walks the members: first `data.pkl`, which names the storages. Those of an exported program are named by its configurations.
    fn members(
        &mut self,
        source: &Source,
        members: &[VisibleMember],
        label: Option<&str>,
        depth: u64,
        is_export: bool,
    ) -> Result<()> {
        let mut storages = if is_export { self.export_storages(source, members)? } else { HashSet::new() };
        for member in members {
            let Some(folder) = folder_of_main(&member.name) else { continue };
            let outer = std::mem::take(&mut self.keys);
            self.member(source, member, label, depth, Role::Main)?;
            let keys = std::mem::replace(&mut self.keys, outer);
            storages.extend(keys.into_iter().map(|key| format!("{folder}data/{key}")));
        }
        let (mut heads, mut as_elements) = (Heads::default(), 0_u64);
        for member in members.iter().filter(|member| folder_of_main(&member.name).is_none()) {
            if member.listed && storages.contains(&member.name) {
                as_elements = as_elements.saturating_add(member.region.len());
                if heads.is_array(source, member)? {
                    self.storage(source, member, label, depth)?;
                }
                continue;
            }
            self.options.cancel.check()?;
            let name = fold_case(&member.name);
            let extension = name.rsplit('.').next().unwrap_or_default();
            let is_pickle = matches!(extension, "pkl" | "pickle" | "debug_pkl");
            let role = if is_pickle { Role::PickleMember } else { Role::Member };
            let member_use = if is_export { exported::member_use(&member.name) } else { Use::Other };
            if member_use == Use::Graph {
                self.graph(source, member, &inside(label, &member.name))?;
            }
            self.member(source, member, label, depth, member_use.role().unwrap_or(role))?;
        }
        if as_elements > 0 {
            let what = "storages: as elements of tensors, and as arrays of NumPy";
            self.report.scanned(label, what, 0, as_elements);
        }
        Ok(())
    }

    /// Shows one member to all doors.
    fn member(
        &mut self,
        source: &Source,
        member: &VisibleMember,
        label: Option<&str>,
        depth: u64,
        role: Role,
    ) -> Result<()> {
        let inner = inside(label, &member.name);
        let len = member.region.len();
        if len == 0 {
            return Ok(());
        }
        if member.encrypted {
            self.report.unscanned(Some(&inner), "encrypted", 0, len);
        }
        if !matches!(member.method, 0 | 8) {
            let why = format!("compressed by method {}", member.method);
            self.report.unscanned(Some(&inner), &why, 0, len);
            return Ok(());
        }
        let name = fold_case(&member.name);
        if name.ends_with(".storage_alignment") {
            let (text, _) = zip::peek(source, member.region, member.method, TEXT_BYTES, 1)?;
            self.alignment(&text, &inner);
        }
        if member.overlaps_earlier && !take(&mut self.budget.overlapping_bytes, len) {
            self.report.unscanned(Some(&inner), "too many members overlap", 0, len);
            return Ok(());
        }
        let Some(window) = self.open(source, member, &inner, role)? else { return Ok(()) };
        let entered = self.source(&window, Some(&inner), depth.saturating_add(1), role)?;
        if name == SKOPS_SCHEMA && is_skops_schema(&window)? {
            let why = "the schema of a skops file: skops.io.load imports and calls what it names, as far as it is trusted";
            self.report.unscanned(Some(&inner), why, 0, len);
        }
        let is_usual = matches!(role, Role::Main | Role::Loaded)
            || name.ends_with("constants.pkl")
            || name.ends_with(".debug_pkl")
            || name.contains("/opaque_obj_");
        if entered.pickle && !is_usual {
            self.report.add(Finding {
                message: "the checkpoint does not refer to this pickle; it was scanned".to_owned(),
                member: Some(inner),
                offset: Some(0),
                ..Finding::new("UnreferencedRecord")
            });
        }
        Ok(())
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
        let Some(window) = self.open(source, member, &inner, Role::Member)? else { return Ok(()) };
        let head = window.read_vec(0, window.len().min(TEXT_BYTES))?;
        let depth = depth.saturating_add(1);
        let visit =
            Visit { source: &window, label: Some(&inner), depth, role: Role::Member, head, format: None };
        npy::walk(self, &visit, &mut Entered::default())
    }

    /// The member's bytes as a source: its range of the file, or inflated. `None` where the budget is spent.
    fn open(
        &mut self,
        source: &Source,
        member: &VisibleMember,
        inner: &str,
        role: Role,
    ) -> Result<Option<Source>> {
        if member.method == 0 {
            return source.window(member.region.start(), member.region.len()).map(Some);
        }
        // `data.pkl` members share the limit of loading, all other members share a budget of the scan.
        let (name, budget) = match role {
            Role::Main => ("pickle_bytes", &mut self.budget.main_pickle_bytes),
            _ => ("scan_bytes", &mut self.budget.decoded_bytes),
        };
        let (allowed, ratio) = (*budget, self.options.limits.inflate_ratio);
        let too_far = |inflated: u64| {
            let text = format!("the first {inflated} bytes inflate to more than {ratio} times their size");
            Error::new(Code::InflateRatio, text)
        };
        let mut len = allowed.min(FIRST_INFLATED_BYTES);
        let (bytes, cut) = loop {
            let (bytes, is_whole) = zip::peek(source, member.region, 8, len, ratio)?;
            let inflated = to_u64(bytes.len());
            if is_whole || is_array_of_size(&bytes, member.size) {
                break (bytes, None);
            }
            if inflated < len {
                break (bytes, Some(too_far(inflated)));
            }
            if len == allowed {
                break (bytes, Some(Error::limit(name, allowed, inflated.saturating_add(1))));
            }
            if !reads_on(&bytes, &self.options.limits) {
                // Only a reader that begins at the end needs the rest.
                let rest = zip::inflated_tail(source, member.region, allowed, ratio, &self.options.cancel)?;
                take(budget, rest.len.saturating_sub(len));
                if !rest.is_whole {
                    let is_limit = rest.len > allowed;
                    let limit = || Error::limit(name, allowed, rest.len);
                    break (bytes, Some(if is_limit { limit() } else { too_far(rest.len) }));
                }
                if !zip::may_end_as_zip(&rest.bytes) {
                    break (bytes, None);
                }
            }
            len = len.saturating_mul(4).min(allowed);
        };
        let inflated = to_u64(bytes.len());
        take(budget, inflated);
        if let Some(error) = cut {
            self.report.add_error(&error, Some(inner));
            self.report.unscanned(Some(inner), "too large once inflated", inflated, 0);
            // Of so few bytes, doors would only say that they are cut short.
            if inflated < TEXT_BYTES {
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

/// The folder of a torch archive's pickle, with its slash; `None` for other members.
fn folder_of_main(name: &str) -> Option<&str> {
    let name = name.trim_end_matches('\0');
    let start = name.rfind(['/', '\\']).map_or(0, |slash| slash.saturating_add(1));
    let (folder, file) = name.split_at_checked(start)?;
    (fold_case(file.trim_matches('\0')) == "data.pkl").then_some(folder)
}

/// Whether JSON is the description of a skops file: each of its objects names its loader (skops/io/_utils.py).
fn is_skops_schema(window: &Source) -> Result<bool> {
    const LOADER: &[u8] = b"\"__loader__\"";
    let head = window.read_vec(0, window.len().min(FIRST_INFLATED_BYTES))?;
    Ok(head.windows(LOADER.len()).any(|bytes| bytes == LOADER))
}

/// Whether the start of a member shows that it is an array of plain numbers that fills it.
fn is_array_of_size(bytes: &[u8], size: Option<u64>) -> bool {
    let read =
        |len: u64| Ok(bytes.get(..usize::try_from(len).unwrap_or(usize::MAX)).unwrap_or(bytes).to_vec());
    let header = Header::read(read).ok().filter(|header| !header.elements.may_be_pickle());
    header.is_some_and(|header| header.end() == size && size.is_some())
}

/// Whether a reader of these first bytes of a member would read on behind them.
fn reads_on(bytes: &[u8], limits: &Limits) -> bool {
    if is_container(bytes) {
        return true;
    }
    let mut at = 0;
    loop {
        let mut disasm = Disasm::lenient(bytes, at, limits);
        let failed = disasm.by_ref().find_map(|op| op.err());
        match failed {
            Some(error) => return error.code() == Code::Truncated || disasm.position() >= bytes.len(),
            // The pickle ends; another one may follow.
            None if disasm.position() >= bytes.len() => return true,
            None => at = disasm.position(),
        }
    }
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
    match error.code() {
        Code::Io | Code::FileChanged | Code::Cancelled | Code::Memory => {
            Err(Error::new(error.code(), error.message()))
        }
        _ => Ok(()),
    }
}
