//! One file: which formats its bytes have, what the strict reader says, and what is inside.
//!
//! Readers choose a format by the first bytes, by the last ones or by the name, so a file may be two things. It is scanned as
//! all of them.

use std::collections::HashSet;
use std::path::Path;

use super::Options;
use super::budget::Budget;
use super::report::{FileReport, Finding, Status, Verdict};
use crate::bytes::Source;
use crate::container::{Format, packed, sniff, zip};
use crate::error::{Code, Error, Result};
use crate::index::{self, Index};
use crate::pickle::Pickle;

/// Bytes looked at to tell a format.
const HEAD: u64 = 1024;

/// Scans the file at a path; `named` tells that it was asked for itself, and not found in a directory.
pub(super) fn scan_path(path: &Path, named: bool, options: &Options) -> Result<FileReport> {
    let text = path.to_string_lossy().into_owned();
    match Source::open(path) {
        Ok(source) => scan_source(&source, Some(text), named, options),
        Err(error) => Ok(unreadable(FileReport::new(Some(text), options.limits.findings), &error)),
    }
}

/// Scans one file's bytes.
pub(super) fn scan_source(
    source: &Source,
    path: Option<String>,
    named: bool,
    options: &Options,
) -> Result<FileReport> {
    let report = FileReport::new(path, options.limits.findings);
    let mut scanner = Scanner {
        options,
        report,
        budget: Budget::new(&options.limits, source.len()),
        keys: HashSet::new(),
        wants_keys: false,
        ran: None,
    };
    match scanner.top(source) {
        Ok(()) => {}
        Err(error) if error.code() == Code::Cancelled => return Err(error),
        Err(error) if matches!(error.code(), Code::Io | Code::FileChanged) => {
            return Ok(unreadable(scanner.report, &error));
        }
        Err(error) => {
            scanner.report.add_error(&error, None);
            scanner.report.unscanned(None, error.message(), 0, source.len());
        }
    }
    let mut report = scanner.report;
    // What lies beside checkpoints in a directory is no finding.
    if report.status == Status::Skipped && !named {
        report.pass_over();
    }
    Ok(report)
}

fn unreadable(mut report: FileReport, error: &Error) -> FileReport {
    report.status = Status::Unreadable;
    report.add_error(error, None);
    report
}

/// The work on one file.
pub(super) struct Scanner<'a> {
    pub(super) options: &'a Options,
    pub(super) report: FileReport,
    /// What may still be looked at.
    pub(super) budget: Budget,
    /// The keys of storages that the pickles of the stream at hand name.
    pub(super) keys: HashSet<String>,
    pub(super) wants_keys: bool,
    /// The first pickle of the stream at hand, if it is sound and all there is.
    pub(super) ran: Option<Pickle>,
}

impl Scanner<'_> {
    fn top(&mut self, source: &Source) -> Result<()> {
        let found = self.source(source, None, 0)?;
        self.report.format = found.map(Format::name).or(self.report.format);
        self.extension(source, found);
        if self.report.scanned.is_empty() && self.report.unscanned.is_empty() && found.is_none() {
            self.report.status = Status::Skipped;
        }
        source.check_unchanged()
    }

    /// Scans all that a source is; `label` names it in findings, `None` for the file itself.
    pub(super) fn source(
        &mut self,
        source: &Source,
        label: Option<&str>,
        depth: u64,
    ) -> Result<Option<Format>> {
        self.options.cancel.check()?;
        if depth > self.options.limits.scan_depth {
            self.report.unscanned(label, "nested too deep", 0, source.len());
            return Ok(None);
        }
        let head = source.read_vec(0, source.len().min(HEAD))?;
        let sniffed = sniff(source);
        let by_end = source.len() > 22 && zip::leads_to_directory(source)?;
        match &sniffed {
            Ok(Format::LegacyTorch) => {
                self.legacy(source, label, depth)?;
                let index = self.strict(source, label)?;
                self.overlapping(index.as_ref(), label);
                if !by_end {
                    self.after_legacy(source, label, depth)?;
                }
            }
            Ok(Format::Safetensors) => self.safetensors(source, label, depth)?,
            Ok(Format::Tar) => {
                self.strict(source, label)?;
                self.tar(source, label, depth)?;
            }
            Ok(Format::Pickle) => {
                self.stream(source, label, true, depth)?;
                let ran = self.ran.take();
                self.strict_with(source, label, ran)?;
            }
            Ok(Format::Zip) => {
                self.archive(source, label, depth)?;
                let index = self.strict(source, label)?;
                self.overlapping(index.as_ref(), label);
                return Ok(Some(Format::Zip));
            }
            Err(error) => {
                if matches!(error.code(), Code::Io | Code::FileChanged) {
                    return Err(sniff(source)
                        .err()
                        .unwrap_or_else(|| Error::new(Code::FileChanged, "the file changed")));
                }
                return self.unnamed(source, &head, error, by_end, label, depth);
            }
        }
        if by_end {
            let text = "readers that go by the last bytes see a zip archive in it";
            self.polyglot(label, text);
            self.archive(source, label, depth)?;
        }
        Ok(sniffed.ok())
    }

    /// What the strict reader does not take for a checkpoint.
    fn unnamed(
        &mut self,
        source: &Source,
        head: &[u8],
        error: &Error,
        by_end: bool,
        label: Option<&str>,
        depth: u64,
    ) -> Result<Option<Format>> {
        let is_zip = head.starts_with(b"PK") || by_end;
        if is_zip {
            let empty = source.len() == 22 && head.starts_with(b"PK\x05\x06");
            // A .npz is scanned like any archive; that it is no checkpoint is no finding.
            let verdict = if error.code() == Code::UnknownFormat { Verdict::Inert } else { Verdict::Unknown };
            if !empty {
                self.archive(source, label, depth)?;
            }
            if !self.report.has(error.code().as_str()) {
                self.refused(error, label, verdict);
            }
            if !head.starts_with(b"PK") {
                self.stream(source, label, false, depth)?;
            }
            self.report.format.get_or_insert("zip");
            return Ok(None);
        }
        if head.starts_with(b"\x93NUMPY") {
            self.npy(source, label, depth)?;
            self.refused(error, label, Verdict::Inert);
            self.report.format.get_or_insert("npy");
            return Ok(None);
        }
        // Any bytes may be a pickle without PROTO.
        if self.stream(source, label, false, depth)? {
            self.refused(error, label, Verdict::Unknown);
            return Ok(Some(Format::Pickle));
        }
        if let Some(name) = packed(head) {
            let finding = Finding {
                verdict: Verdict::Unknown,
                message: format!("a {name} archive, which is not unpacked: what it holds is not known"),
                member: label.map(str::to_owned),
                offset: Some(0),
                ..Finding::new("OpaqueContainer")
            };
            self.report.add(finding);
            self.report.unscanned(label, "a packed archive", 0, source.len());
            self.refused(error, label, Verdict::Unknown);
            self.report.format.get_or_insert("archive");
            return Ok(None);
        }
        if label.is_none() {
            self.refused(error, None, Verdict::Unknown);
        }
        Ok(None)
    }

    /// The strict reader's refusal, as a finding.
    fn refused(&mut self, error: &Error, label: Option<&str>, verdict: Verdict) {
        self.report.add(Finding {
            verdict,
            message: error.message().to_owned(),
            member: label.map(str::to_owned),
            offset: error.offset(),
            readers: super::report::readers(error.code()),
            ..Finding::new(error.code().as_str())
        });
    }

    /// Opens the checkpoint as `rustload.open` does; what that refuses and the scan has not seen yet is a finding.
    pub(super) fn strict(&mut self, source: &Source, label: Option<&str>) -> Result<Option<Index>> {
        self.strict_with(source, label, None)
    }

    /// The same, where the pickle was run already.
    fn strict_with(
        &mut self,
        source: &Source,
        label: Option<&str>,
        ran: Option<Pickle>,
    ) -> Result<Option<Index>> {
        // A limit ends the strict reader too; whatever else it would refuse is no worse.
        if self.report.has(Code::Limit.as_str()) {
            return Ok(None);
        }
        let (limits, cancel) = (self.options.limits.clone(), self.options.cancel.clone());
        cancel.check()?;
        let options = index::Options { limits, cancel, ..index::Options::default() };
        let read = match ran {
            Some(pickle) => index::read_pickle(source, pickle, &options),
            None => index::read(source, &options),
        };
        match read {
            Ok(index) => Ok(Some(index)),
            Err(error) if matches!(error.code(), Code::Io | Code::FileChanged | Code::Cancelled) => {
                Err(error)
            }
            Err(error) => {
                if !self.report.has(error.code().as_str()) {
                    match error.code() {
                        Code::UnknownFormat => self.refused(&error, label, Verdict::Inert),
                        _ => self.report.add_error(&error, label),
                    }
                }
                Ok(None)
            }
        }
    }

    /// Tensors that are far larger than their storages, by repeating elements.
    fn overlapping(&mut self, index: Option<&Index>, label: Option<&str>) {
        let Some(index) = index else { return };
        let limits = &self.options.limits;
        let repeats = |tensor: &&index::Tensor| {
            let nbytes = tensor.layout().numel().saturating_mul(tensor.dtype().itemsize());
            let storage = usize::try_from(tensor.storage()).ok().and_then(|at| index.storages.get(at));
            let room = storage.map_or(0, |storage| storage.nbytes).saturating_mul(limits.materialize_ratio);
            nbytes > room.max(limits.materialize_bytes)
        };
        let times = u64::try_from(index.tensors.iter().filter(repeats).count()).unwrap_or(u64::MAX);
        if times > 0 {
            self.report.add(Finding {
                message: "a tensor repeats its storage's elements many times over".to_owned(),
                member: label.map(str::to_owned),
                times,
                ..Finding::new("OverlappingView")
            });
        }
    }

    pub(super) fn polyglot(&mut self, label: Option<&str>, text: &str) {
        self.report.add(Finding {
            verdict: Verdict::Unknown,
            message: text.to_owned(),
            member: label.map(str::to_owned),
            readers: &["zip"],
            ..Finding::new("Polyglot")
        });
    }

    /// A name that promises another format than the content has; readers that go by the name refuse or misread it.
    fn extension(&mut self, source: &Source, found: Option<Format>) {
        let Some(path) = source.path() else { return };
        let extension = path.extension().map(|extension| extension.to_string_lossy().to_ascii_lowercase());
        let (Some(extension), Some(found)) = (extension, found) else { return };
        let says_safetensors = matches!(extension.as_str(), "safetensors" | "sft");
        let says_pickle = matches!(extension.as_str(), "pt" | "pth" | "bin" | "ckpt" | "pkl" | "pickle");
        let is_safetensors = found == Format::Safetensors;
        if (says_safetensors && !is_safetensors) || (says_pickle && is_safetensors) {
            self.report.add(Finding {
                message: format!("the name ends in .{extension}, the content is {}", found.name()),
                ..Finding::new("ExtensionMismatch")
            });
        }
    }
}

/// The label of something inside something.
pub(super) fn inside(label: Option<&str>, name: &str) -> String {
    match label {
        Some(label) => format!("{label}!{name}"),
        None => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, SystemTime};

    #[test]
    fn a_file_that_changed_while_it_was_scanned_has_no_verdict() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("values.pkl");
        std::fs::write(&path, b"\x80\x02}q\x00.").unwrap();
        let scan = |source: &Source| scan_source(source, None, true, &Options::default()).unwrap();
        let source = Source::open(&path).unwrap();
        assert_eq!(scan(&source).status, Status::Scanned);
        // All bytes are there and the same; only the time tells.
        let file = std::fs::File::options().write(true).open(&path).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(3600)).unwrap();
        let report = scan(&source);
        assert_eq!(report.status, Status::Unreadable);
        assert!(report.has(Code::FileChanged.as_str()));
    }
}
