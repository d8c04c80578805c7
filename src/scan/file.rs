//! Scans one file: its formats, the result of the strict reader, and its contents.
//!
//! Readers detect a format by the first bytes, by the last bytes or by the file name, so a file may have two formats at once (a
//! polyglot). It is scanned as each of them.

use std::collections::HashSet;
use std::path::Path;

use super::Options;
use super::budget::Budget;
use super::report::{FileReport, Finding, Status, Verdict, short};
use crate::bytes::Source;
use crate::container::{Format, compressed_format, sniff, zip};
use crate::error::{Code, Error, Result};
use crate::index::{self, Index};
use crate::pickle::Pickle;

/// The first bytes of a source that tell its format.
const SNIFF_BYTES: u64 = 1024;

/// Scans the file at a path; `named` is false where it was found in a directory.
pub(super) fn scan_path(path: &Path, named: bool, options: &Options) -> Result<FileReport> {
    let text = path.to_string_lossy().into_owned();
    match Source::open(path) {
        Ok(source) => scan_source(&source, Some(text), named, options),
        Err(error) => Ok(unreadable(FileReport::new(Some(text), options), &error)),
    }
}

/// Scans one file's bytes.
pub(super) fn scan_source(
    source: &Source,
    path: Option<String>,
    named: bool,
    options: &Options,
) -> Result<FileReport> {
    let report = FileReport::new(path, options);
    let mut scanner = Scanner {
        options,
        report,
        budget: Budget::new(&options.limits, source.len()),
        keys: HashSet::new(),
        wants_keys: false,
        executed: None,
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
    report.group_findings();
    // A file in a directory that is not a checkpoint is not a finding.
    if report.status == Status::Skipped && !named {
        report.clear_findings();
    }
    Ok(report)
}

fn unreadable(mut report: FileReport, error: &Error) -> FileReport {
    report.status = Status::Unreadable;
    report.add_error(error, None);
    report
}

/// The state of the scan of one file.
pub(super) struct Scanner<'a> {
    pub(super) options: &'a Options,
    pub(super) report: FileReport,
    /// The work that is left.
    pub(super) budget: Budget,
    /// The storage keys that the pickles of the current stream name.
    pub(super) keys: HashSet<String>,
    /// Whether to collect storage keys.
    pub(super) wants_keys: bool,
    /// The first pickle of the current stream, where it is sound and the whole source.
    pub(super) executed: Option<Pickle>,
}

impl Scanner<'_> {
    fn top(&mut self, source: &Source) -> Result<()> {
        let format = self.source(source, None, 0)?;
        self.report.format = format.map(Format::name).or(self.report.format);
        self.extension(source, format);
        if self.report.scanned.is_empty() && self.report.unscanned.is_empty() && format.is_none() {
            self.report.status = Status::Skipped;
        }
        source.check_unchanged()
    }

    /// Scans a source as every format that it has. `label` names it in findings; `None` is the file itself. Returns the format
    /// that the strict reader detects, or [`Format::Pickle`] where only other readers see a pickle.
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
        let head = source.read_vec(0, source.len().min(SNIFF_BYTES))?;
        let sniffed = sniff(source);
        let ends_as_zip = source.len() > 22 && zip::has_central_directory(source)?;
        match &sniffed {
            Ok(Format::LegacyTorch) => {
                self.legacy(source, label, depth)?;
                let index = self.strict(source, label)?;
                self.add_oversized_views(index.as_ref(), label);
                if !ends_as_zip {
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
                let executed = self.executed.take();
                self.strict_with(source, label, executed)?;
            }
            Ok(format @ (Format::Zip | Format::Npz)) => {
                self.archive(source, label, depth)?;
                let index = self.strict(source, label)?;
                self.add_oversized_views(index.as_ref(), label);
                return Ok(Some(*format));
            }
            Ok(Format::Npy) => {
                self.npy(source, label, depth)?;
                // The strict reader of an archive reads the headers of its arrays, also where only the start was inflated.
                if label.is_none() {
                    self.strict(source, label)?;
                }
            }
            Err(error) => {
                if matches!(error.code(), Code::Io | Code::FileChanged) {
                    return Err(sniff(source)
                        .err()
                        .unwrap_or_else(|| Error::new(Code::FileChanged, "the file changed")));
                }
                return self.unrecognized(source, &head, error, ends_as_zip, label, depth);
            }
        }
        if ends_as_zip {
            let text = "readers that detect a format by the last bytes open it as a zip archive";
            self.polyglot(label, text);
            self.archive(source, label, depth)?;
        }
        Ok(sniffed.ok())
    }

    /// Scans a source whose format the strict reader does not detect as a checkpoint.
    fn unrecognized(
        &mut self,
        source: &Source,
        head: &[u8],
        error: &Error,
        ends_as_zip: bool,
        label: Option<&str>,
        depth: u64,
    ) -> Result<Option<Format>> {
        let is_zip = head.starts_with(b"PK") || ends_as_zip;
        if is_zip {
            let empty = source.len() == 22 && head.starts_with(b"PK\x05\x06");
            // That an archive is not a checkpoint does not raise the verdict.
            let verdict = if error.code() == Code::UnknownFormat { Verdict::Inert } else { Verdict::Unknown };
            if !empty {
                self.archive(source, label, depth)?;
            }
            if !self.report.has(error.code().as_str()) {
                self.add_refusal(error, label, verdict);
            }
            if !head.starts_with(b"PK") {
                self.stream(source, label, false, depth)?;
            }
            self.report.format.get_or_insert("zip");
            return Ok(None);
        }
        // A pickle of protocol 0 or 1 has no PROTO opcode, so any bytes may be one.
        if self.stream(source, label, false, depth)? {
            self.add_refusal(error, label, Verdict::Unknown);
            return Ok(Some(Format::Pickle));
        }
        if let Some(name) = compressed_format(head) {
            let finding = Finding {
                verdict: Verdict::Unknown,
                message: format!("a {name} archive, which is not unpacked: its contents are unknown"),
                member: label.map(str::to_owned),
                offset: Some(0),
                ..Finding::new("OpaqueContainer")
            };
            self.report.add(finding);
            self.report.unscanned(label, "a packed archive", 0, source.len());
            self.add_refusal(error, label, Verdict::Unknown);
            self.report.format.get_or_insert("archive");
            return Ok(None);
        }
        if label.is_none() {
            self.add_refusal(error, None, Verdict::Unknown);
        }
        Ok(None)
    }

    /// Adds an error of the strict reader as a finding.
    fn add_refusal(&mut self, error: &Error, label: Option<&str>, verdict: Verdict) {
        self.report.add(Finding {
            verdict,
            message: error.message().to_owned(),
            member: label.map(str::to_owned),
            offset: error.offset(),
            readers: super::report::readers(error.code()),
            ..Finding::new(error.code().as_str())
        });
    }

    /// Opens the checkpoint as `rustload.open` does. Its error is a finding, unless the report has one with the same code.
    pub(super) fn strict(&mut self, source: &Source, label: Option<&str>) -> Result<Option<Index>> {
        self.strict_with(source, label, None)
    }

    /// As [`strict`](Scanner::strict), with the pickle where it was executed already.
    fn strict_with(
        &mut self,
        source: &Source,
        label: Option<&str>,
        executed: Option<Pickle>,
    ) -> Result<Option<Index>> {
        // The same limit ends the strict reader too; no other error of it gives a worse verdict.
        if self.report.has(Code::Limit.as_str()) {
            return Ok(None);
        }
        let (limits, cancel) = (self.options.limits.clone(), self.options.cancel.clone());
        cancel.check()?;
        let options = index::Options { limits, cancel, ..index::Options::default() };
        let read = match executed {
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
                        // The elements of arrays of objects were scanned.
                        Code::UnknownFormat | Code::NpyDtype | Code::NpyObjects => {
                            self.add_refusal(&error, label, Verdict::Inert);
                        }
                        _ => self.report.add_error(&error, label),
                    }
                }
                Ok(None)
            }
        }
    }

    /// Adds a finding for tensors whose strides make them far larger than their storages (stride 0, overlap).
    fn add_oversized_views(&mut self, index: Option<&Index>, label: Option<&str>) {
        let Some(index) = index else { return };
        let limits = &self.options.limits;
        let repeats = |tensor: &&index::Tensor| {
            let nbytes = tensor.layout().numel().saturating_mul(tensor.dtype().itemsize());
            let storage = usize::try_from(tensor.storage()).ok().and_then(|at| index.storages.get(at));
            let allowed =
                storage.map_or(0, |storage| storage.nbytes).saturating_mul(limits.materialize_ratio);
            nbytes > allowed.max(limits.materialize_bytes)
        };
        let times = u64::try_from(index.tensors.iter().filter(repeats).count()).unwrap_or(u64::MAX);
        if times > 0 {
            self.report.add(Finding {
                message: "a tensor's strides repeat its storage's elements many times".to_owned(),
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

    /// Adds a finding where the file extension is that of another format; readers that go by the extension fail or misread it.
    fn extension(&mut self, source: &Source, format: Option<Format>) {
        let Some(path) = source.path() else { return };
        let extension = path.extension().map(|extension| extension.to_string_lossy().to_ascii_lowercase());
        let (Some(extension), Some(format)) = (extension, format) else { return };
        let says_safetensors = matches!(extension.as_str(), "safetensors" | "sft");
        let says_pickle = matches!(extension.as_str(), "pt" | "pth" | "bin" | "ckpt" | "pkl" | "pickle");
        let is_safetensors = format == Format::Safetensors;
        if (says_safetensors && !is_safetensors) || (says_pickle && is_safetensors) {
            self.report.add(Finding {
                message: format!("the name ends in .{extension}, the content is {}", format.name()),
                ..Finding::new("ExtensionMismatch")
            });
        }
    }
}

/// The label of something inside `label`, as reports show it.
pub(super) fn inside(label: Option<&str>, name: &str) -> String {
    match label {
        Some(label) => short(&format!("{label}!{name}")),
        None => short(name),
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
