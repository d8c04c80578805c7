//! Scans one file: gives its bytes to every detector, and asks the strict reader.
//!
//! Readers detect a format by the first bytes, by the last bytes or by the file's name, so no format rules out another one. The
//! [detectors](super::detectors) find what readers would run; this keeps the state of the scan, and adds as findings what the strict reader
//! refuses.

use std::collections::HashSet;
use std::path::Path;

use super::Options;
use super::budget::Budget;
use super::detectors::{DETECTORS, safetensors};
use super::report::{FileReport, Finding, Status};
use super::scanner::{Detected, Input, Origin, Scanner, inside};
use super::verdict::Verdict;
use crate::bytes::{Region, Source};
use crate::container::npy::MAGIC;
use crate::container::{Format, LFS_POINTER, is_container, sniff, zip};
use crate::error::{Code, Error, Result};
use crate::index::{self, Contents, Index};

/// The scripts that DeepSpeed copies beside its checkpoints (deepspeed/runtime/engine.py: `_copy_recovery_script`).
const SCRIPTS: [&str; 2] = ["zero_to_fp32.py", "zero_to_torch.py"];

/// The first bytes of a source, by which most detectors decide.
const HEAD_BYTES: u64 = 1024;

/// Scans the file at a path or URL; `named` is false where it was found in a directory. A file of a distributed checkpoint has
/// `items`: the ranges that readers load, which are scanned each by itself.
pub(super) fn scan_file(
    opened: Result<Source>,
    path: &Path,
    named: bool,
    items: Option<&[Region]>,
    options: &Options,
) -> Result<FileReport> {
    let text = path.to_string_lossy().into_owned();
    match (opened, items) {
        (Ok(source), None) => scan_source(&source, Some(text), named, options),
        (Ok(source), Some(items)) => {
            scan_with(&source, Some(text), true, options, |scanner, source| scanner.item_file(source, items))
        }
        (Err(error), _) => Ok(unreadable(FileReport::new(Some(text), options), &error)),
    }
}

/// Scans one file's bytes.
pub(super) fn scan_source(
    source: &Source,
    path: Option<String>,
    named: bool,
    options: &Options,
) -> Result<FileReport> {
    scan_with(source, path, named, options, |scanner, source| scanner.top(source))
}

fn scan_with(
    source: &Source,
    path: Option<String>,
    named: bool,
    options: &Options,
    scan: impl FnOnce(&mut Scanner<'_>, &Source) -> Result<()>,
) -> Result<FileReport> {
    let report = FileReport::new(path, options);
    let source = &*source.limited(&options.limits);
    let mut scanner =
        Scanner { options, report, budget: Budget::new(&options.limits, source.len()), keys: HashSet::new() };
    match scan(&mut scanner, source).and_then(|()| source.check_unchanged()) {
        Ok(()) => {}
        Err(error) if error.code() == Code::Cancelled => return Err(error),
        Err(error) if error.code().is_read_failure() => {
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
    let name = report.path.as_deref().and_then(|path| path.rsplit(['/', '\\']).next());
    if name.is_some_and(|name| SCRIPTS.contains(&name)) {
        let text = "this is a script that unpickles the checkpoint beside it without restriction; rustload reads that without it";
        report.add(Finding::new("CheckpointScript", Verdict::Inert, None, text));
    }
    Ok(report)
}

fn unreadable(mut report: FileReport, error: &Error) -> FileReport {
    report.status = Status::Unreadable;
    report.add_error(error, None);
    report
}

impl Scanner<'_> {
    fn top(&mut self, source: &Source) -> Result<()> {
        let format = self.source(source, None, 0, Origin::File)?.format;
        self.report.format = format.map(Format::name).or(self.report.format);
        self.extension(source, format);
        if self.report.scanned.is_empty() && self.report.unscanned.is_empty() && format.is_none() {
            self.report.status = Status::Skipped;
        }
        Ok(())
    }

    fn item_file(&mut self, source: &Source, items: &[Region]) -> Result<()> {
        self.report.format = Some(Format::TorchDcp.name());
        self.items(source, None, items, 1)
    }

    /// Gives every item of a file of a distributed checkpoint to every detector. Bytes outside the items were not scanned. `label` names
    /// the file where it is a member of an archive.
    pub(super) fn items(
        &mut self,
        source: &Source,
        label: Option<&str>,
        items: &[Region],
        depth: u64,
    ) -> Result<()> {
        let mut end = 0_u64;
        for item in items {
            self.outside_items(label, end, item.start());
            end = end.max(item.end());
            let window = source.window(item.start(), item.len())?;
            let inner = inside(label, &format!("item at {}", item.start()));
            let detected = self.source(&window, Some(&inner), depth, Origin::Loaded)?;
            if !detected.any() {
                self.report.unscanned(Some(&inner), "an item in an unknown format", 0, window.len());
            }
        }
        self.outside_items(label, end, source.len());
        Ok(())
    }

    fn outside_items(&mut self, label: Option<&str>, start: u64, end: u64) {
        let len = end.saturating_sub(start);
        if len > 0 {
            self.report.unscanned(label, "bytes outside the items that the metadata states", start, len);
        }
    }

    /// Gives a source to every detector, and adds what the strict reader refuses. `label` names it in findings; `None` is the file
    /// itself.
    pub(super) fn source(
        &mut self,
        source: &Source,
        label: Option<&str>,
        depth: u64,
        origin: Origin,
    ) -> Result<Detected> {
        self.options.cancel.check()?;
        self.budget.input()?;
        let head = source.read_vec(0, source.len().min(HEAD_BYTES))?;
        let sniffed = match sniff(source) {
            Err(error) if error.code().is_read_failure() => return Err(error),
            sniffed => sniffed,
        };
        let format = sniffed.as_ref().ok().copied();
        // An archive of arrays is what NumPy writes.
        let is_array = head.starts_with(MAGIC) && label.is_some_and(|label| label.ends_with(".npy"));
        if origin == Origin::Member && is_container(&head) && !is_array {
            let text = "a nested archive or array, which a reader may open";
            let finding = Finding::new("NestedArchive", Verdict::Inert, label, text);
            self.report.add(Finding { offset: Some(0), ..finding });
        }
        let input = Input { source, label, depth, origin, head, format };
        let mut detected = Detected::default();
        for detector in DETECTORS {
            detector(self, &input, &mut detected)?;
        }
        detected.format = if detected.exported { Some(Format::TorchExport) } else { format };
        match sniffed {
            Ok(format) => self.open_strictly(&input, format, &mut detected)?,
            Err(error) => self.add_unrecognized(&input, &error, &mut detected),
        }
        Ok(detected)
    }

    /// Adds what the strict reader refuses in a format that it detects.
    fn open_strictly(&mut self, input: &Input<'_>, format: Format, detected: &mut Detected) -> Result<()> {
        let label = input.label;
        // A member that is a pickle refers to the archive. The reader of an archive reads the headers of its arrays, also where only
        // the start was inflated.
        if (format == Format::Pickle && input.origin.is_member())
            || (format == Format::Npy && label.is_some())
        {
            return Ok(());
        }
        let index = self.strict(input, detected)?;
        self.add_oversized_views(index.as_ref(), label);
        if let Some(index) = index.filter(|_| format == Format::Safetensors) {
            safetensors::add_odd_names(self, &index, label);
        }
        // The error has the offset of the first byte behind the storages, or that no tensor covers.
        let code = match format {
            Format::LegacyTorch => Code::TrailingData,
            Format::Safetensors => Code::StOffsets,
            _ => return Ok(()),
        };
        let is_end = |finding: &&Finding| finding.code == code.as_str() && finding.member.as_deref() == label;
        let end = self.report.findings.iter().find(is_end).and_then(|finding| finding.offset);
        let Some(end) = end.filter(|&end| end > 0) else { return Ok(()) };
        let before = self.report.scanned.len();
        self.remainder(input, end)?;
        if self.report.scanned.len() > before && format == Format::Safetensors {
            self.add_polyglot(label, "readers of other formats read what follows the tensors", &[]);
        }
        Ok(())
    }

    /// Adds the error for a source that the strict reader does not detect as a checkpoint.
    fn add_unrecognized(&mut self, input: &Input<'_>, error: &Error, detected: &mut Detected) {
        let is_pickle = detected.pickle && !detected.zip;
        if is_pickle {
            detected.format = Some(Format::Pickle);
        }
        let is_bare_member = input.origin.is_member() && !(detected.zip || detected.unpacked.is_some());
        if (input.label.is_some() && !detected.any()) || is_bare_member {
            return;
        }
        if detected.zip && self.report.has(error.code().as_str()) {
            return;
        }
        // A working copy without LFS must not pass for one whose files were scanned.
        if input.label.is_none() && input.head.starts_with(LFS_POINTER) {
            self.report.unscanned(
                None,
                "a Git LFS pointer: the file itself is elsewhere",
                0,
                input.source.len(),
            );
        }
        // That an archive is not a checkpoint does not raise the verdict, once readers of it were followed.
        let verdict = match error.code() {
            Code::UnknownFormat if detected.zip || detected.tar || detected.joblib => Verdict::Inert,
            Code::ZipStructure if input.head == zip::EMPTY => Verdict::Inert,
            Code::UnsupportedContainer if detected.unpacked == Some(true) => Verdict::Inert,
            _ => Verdict::Unknown,
        };
        self.report.add_refusal(error, input.label, verdict);
    }

    /// The contents of a source as the strict reader reads it, once for all callers; `None` if it refuses the file.
    ///
    /// Fails if the source cannot be read, has changed, or the scan was cancelled.
    pub(super) fn read_once<'e>(
        &self,
        source: &Source,
        detected: &'e mut Detected,
    ) -> Result<Option<&'e Contents>> {
        let (executed, main) = (detected.executed.take(), detected.main.take());
        let read = detected.read.take().unwrap_or_else(|| {
            let options = self.strict_options();
            options.cancel.check()?;
            match executed {
                Some(pickle) => pickle.and_then(|pickle| index::read_pickle(source, pickle, &options)),
                None => index::read_executed(source, main, &options),
            }
        });
        match read {
            Err(error) if error.code() == Code::Cancelled || error.code().is_read_failure() => Err(error),
            read => Ok(detected.read.insert(read).as_ref().ok()),
        }
    }

    /// How the strict reader opens.
    pub(super) fn strict_options(&self) -> index::Options {
        let (limits, cancel) = (self.budget.strict(&self.options.limits), self.options.cancel.clone());
        index::Options { limits, cancel, ..index::Options::default() }
    }

    /// Opens the checkpoint as `rustload.open` does. Its error is a finding, unless the report has one with the same code.
    fn strict(&mut self, input: &Input<'_>, detected: &mut Detected) -> Result<Option<Index>> {
        // The same limit ends the strict reader too; no other error of it gives a worse verdict.
        if self.report.has(Code::Limit.as_str()) {
            return Ok(None);
        }
        self.read_once(input.source, detected)?;
        let error = match detected.read.take() {
            Some(Err(error)) => error,
            read => return Ok(read.transpose()?.map(|read| read.index)),
        };
        let label = input.label;
        match error.code() {
            code if self.report.has(code.as_str()) => {}
            // The elements of arrays of objects were scanned.
            Code::UnknownFormat | Code::NpyDtype | Code::NpyObjects => {
                self.report.add_refusal(&error, label, Verdict::Inert);
            }
            // It is a pickle for joblib only.
            _ if detected.joblib => self.report.add_refusal(&error, label, Verdict::Inert),
            _ => self.report.add_error(&error, label),
        }
        Ok(None)
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
            let text = "a tensor's strides repeat its storage's elements many times";
            let finding = Finding::new("OverlappingView", Verdict::Inert, label, text);
            self.report.add(Finding { times, ..finding });
        }
    }

    pub(super) fn add_polyglot(&mut self, label: Option<&str>, text: &str, readers: &'static [&'static str]) {
        self.report.add(Finding { readers, ..Finding::new("Polyglot", Verdict::Unknown, label, text) });
    }

    /// Adds a finding where the file extension is that of another format; readers that go by the extension fail or misread it.
    fn extension(&mut self, source: &Source, format: Option<Format>) {
        let Some(path) = source.path().or_else(|| source.name().map(Path::new)) else { return };
        let extension = path.extension().map(|extension| extension.to_string_lossy().to_ascii_lowercase());
        let (Some(extension), Some(format)) = (extension, format) else { return };
        let says_safetensors = matches!(extension.as_str(), "safetensors" | "sft");
        let says_pickle = matches!(extension.as_str(), "pt" | "pth" | "bin" | "ckpt" | "pkl" | "pickle");
        let is_safetensors = format == Format::Safetensors;
        if (says_safetensors && !is_safetensors) || (says_pickle && is_safetensors) {
            let text = format!("the name ends in .{extension}, the content is {}", format.name());
            self.report.add(Finding::new("ExtensionMismatch", Verdict::Inert, None, text));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, SystemTime};

    #[test]
    fn an_archive_without_members_is_inert() {
        let verdict = |bytes: &[u8]| {
            let source = Source::memory(std::sync::Arc::new(bytes.to_vec()));
            let report = scan_source(&source, None, true, &Options::default()).unwrap();
            (report.verdict(), report.is_complete())
        };
        assert_eq!(verdict(&zip::EMPTY), (Verdict::Inert, true));
        // A record that says that there is a member, or more bytes than the record.
        for at in [8, 10, 12, 16, 20] {
            let mut bytes = zip::EMPTY;
            bytes[at] = 1;
            assert_eq!(verdict(&bytes).0, Verdict::Unknown, "{at}");
        }
        assert_eq!(verdict(&[&zip::EMPTY[..], b"\0"].concat()).0, Verdict::Unknown);
    }

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
