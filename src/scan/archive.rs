//! Zip archives: every member that some reader sees, storages of tensors aside.
//!
//! An archive that the strict door takes is scanned by its directory, with every local header compared; ranges that no member
//! accounts for are searched. Any other is scanned by all of its readings (`zip::salvage`).

use std::collections::HashSet;
use std::sync::Arc;

use super::budget::take;
use super::file::{Scanner, inside};
use super::plain::{goes_on, len64, may_be_pickle};
use super::report::{Finding, Verdict};
use crate::bytes::{Region, Source};
use crate::container::zip::{self, Archive, Salvage, Trailing};
use crate::container::{is_container, packed};
use crate::error::{Code, Error, Result};

/// Bytes looked at to tell what a member is.
const HEAD: u64 = 1024;
/// Contradictions of local headers that are listed one by one.
const CONTRADICTIONS: u64 = 1000;

/// A member as one reader sees it.
struct Seen {
    name: String,
    region: Region,
    method: u16,
    encrypted: bool,
    listed: bool,
    /// Whether it begins in bytes that a member before it has, too. In no sound archive one does.
    again: bool,
}

impl Scanner<'_> {
    /// Scans a zip archive.
    pub(super) fn archive(&mut self, source: &Source, label: Option<&str>, depth: u64) -> Result<()> {
        let members = match Archive::open(source, &self.options.limits, Trailing::Error) {
            Ok(archive) => self.listed(&archive, label)?,
            Err(error) => {
                keep_going(&error)?;
                self.report.add_error(&error, label);
                None
            }
        };
        let members = match members {
            Some(members) => members,
            None => {
                let found = zip::salvage(source, &self.options.limits, &self.options.cancel)?;
                if !found.complete {
                    self.report.unscanned(label, "parts of a damaged archive", 0, source.len());
                }
                seen(found)
            }
        };
        self.names(&members, label);
        self.members(source, &members, label, depth)
    }

    /// The members of a sound archive; `None` where a local header contradicts the directory.
    fn listed(&mut self, archive: &Archive, label: Option<&str>) -> Result<Option<Vec<Seen>>> {
        let (mut out, mut wrong) = (Vec::new(), 0_u64);
        for (index, member) in archive.members().iter().enumerate() {
            if index.is_multiple_of(1024) {
                self.options.cancel.check()?;
            }
            match archive.payload(index) {
                Ok(region) => out.push(Seen {
                    name: member.name().to_owned(),
                    region,
                    method: member.method(),
                    encrypted: false,
                    listed: true,
                    again: false,
                }),
                Err(error) => {
                    keep_going(&error)?;
                    wrong = wrong.saturating_add(1);
                    if wrong < CONTRADICTIONS {
                        self.report.add_error(&error, label);
                    }
                }
            }
        }
        if wrong > 0 {
            return Ok(None);
        }
        for gap in archive.gaps()? {
            let found =
                zip::salvage_range(archive.source(), gap, &self.options.limits, &self.options.cancel)?;
            out.extend(seen(found));
        }
        Ok(Some(out))
    }

    /// Names that only some readers tell apart, and code.
    fn names(&mut self, members: &[Seen], label: Option<&str>) {
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
                readers: &["torch"],
                ..Finding::new("CodeInArchive")
            });
        }
    }

    /// The checkpoint's own pickle first, since it says which members are storages.
    fn members(&mut self, source: &Source, members: &[Seen], label: Option<&str>, depth: u64) -> Result<()> {
        let is_main = |member: &Seen| {
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
            // Read when a tensor is asked for, and never as anything but numbers.
            if member.listed && storage.is_some_and(|(_, key)| keys.contains(key)) {
                continue;
            }
            self.options.cancel.check()?;
            self.member(source, member, label, depth, false)?;
        }
        Ok(())
    }

    /// One member: a pickle, another container, or nothing that runs. Gives the keys of storages that it names.
    fn member(
        &mut self,
        source: &Source,
        member: &Seen,
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
        let (head, _) = zip::peek(source, member.region, member.method, HEAD)?;
        let name = member.name.to_ascii_lowercase();
        if name.ends_with(".storage_alignment") {
            self.alignment(&head, &inner);
        }
        // TorchScript's source text and its companions: nobody unpickles them.
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
        if member.again && !take(&mut self.budget.again, len) {
            self.report.unscanned(Some(&inner), "too many members lie in the same bytes", 0, len);
            return Ok(HashSet::new());
        }
        let Some(window) = self.open(source, member, &inner, main)? else { return Ok(HashSet::new()) };
        if container {
            self.report.add(Finding {
                message: "an archive or array inside the archive, which a reader may go into".to_owned(),
                member: Some(inner.clone()),
                offset: Some(0),
                ..Finding::new("NestedArchive")
            });
            self.source(&window, Some(&inner), depth.saturating_add(1))?;
            return Ok(HashSet::new());
        }
        let (found, keys) = self.keyed(&window, &inner, says_pickle, depth)?;
        let usual = main || name.ends_with("constants.pkl") || name.ends_with(".debug_pkl");
        if found && !usual {
            self.report.add(Finding {
                message: "a pickle that the checkpoint does not refer to; it was scanned".to_owned(),
                member: Some(inner),
                offset: Some(0),
                ..Finding::new("UnreferencedRecord")
            });
        }
        Ok(keys)
    }

    /// The member's bytes as a source: its range of the file, or inflated. `None` where so few may be
    /// inflated that they say nothing.
    fn open(&mut self, source: &Source, member: &Seen, inner: &str, main: bool) -> Result<Option<Source>> {
        if member.method == 0 {
            return source.window(member.region.start(), member.region.len()).map(Some);
        }
        // The checkpoints' own pickles share the limit that loading has, all others share a budget.
        let (name, left) = match main {
            true => ("pickle_bytes", &mut self.budget.main),
            false => ("scan_bytes", &mut self.budget.made),
        };
        let most = *left;
        let mut len = most.min(1 << 20);
        let (bytes, cut) = loop {
            let (bytes, whole) = zip::peek(source, member.region, 8, len)?;
            let begins = holds_others(&bytes) || goes_on(&bytes, &self.options.limits);
            let more = !whole && (len64(bytes.len()) < HEAD || begins);
            if !more || len == most {
                break (bytes, more);
            }
            len = len.saturating_mul(4).min(most);
        };
        let made = len64(bytes.len());
        take(left, made);
        if cut {
            let error = Error::limit(name, most, made.saturating_add(1));
            self.report.add_error(&error, Some(inner));
            self.report.unscanned(Some(inner), "too large once inflated", made, 0);
            if made < HEAD {
                return Ok(None);
            }
        }
        Ok(Some(Source::memory(Arc::new(bytes))))
    }

    /// torch computes offsets with this number (torch/serialization.py: `_load`).
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

/// Whether bytes begin a container whose members are scanned: what is missing of it may be any of them.
fn holds_others(bytes: &[u8]) -> bool {
    is_container(bytes) && packed(bytes).is_none() && !bytes.starts_with(b"\x93NUMPY")
}

/// The members in the order of their places, as `zip::salvage` gives them.
fn seen(found: Salvage) -> Vec<Seen> {
    let mut end = 0;
    let one = |member: zip::Salvaged| {
        let region = Region::new(member.start, member.len).unwrap_or_default();
        let again = region.start() < end;
        end = end.max(region.end());
        Seen {
            region,
            name: member.name,
            method: member.method,
            encrypted: member.encrypted,
            listed: member.listed,
            again,
        }
    };
    found.members.into_iter().map(one).collect()
}

/// Passes on what is no fault of the file's.
fn keep_going(error: &Error) -> Result<()> {
    match error.code() {
        Code::Io | Code::FileChanged | Code::Cancelled | Code::Memory => {
            Err(Error::new(error.code(), error.message()))
        }
        _ => Ok(()),
    }
}
