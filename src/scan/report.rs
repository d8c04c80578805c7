//! The report of a scan: findings, the trace of effects, the globals and the coverage; and its JSON form.
//!
//! Equal findings are merged, with a count. A finding about a name that the policy allows is inert, and says which allowance made
//! it so. A report is bounded whatever the file names: a long text loses its middle, the limit
//! `findings` bounds every list of a file, and `report_bytes` bounds the reports of all files together. A report that reached a
//! limit is marked as truncated; it still has the finding that first gave the file its verdict.

mod json;

use std::collections::HashMap;
use std::sync::Arc;

use super::verdict::Verdict;
use super::{Options, Policy};
use crate::error::{Code, Error, Kind};
use crate::num::{to_u64, to_usize};
use crate::text::{printable, shortened};

/// The maximum length of one text in a report, in bytes; the longest name of a member that the strict reader accepts fits.
const TEXT_MAX_BYTES: usize = 512;
/// What an item of a list takes of the limit `report_bytes` besides its texts.
const ITEM_BYTES: u64 = 256;

/// The codes of findings that are about what a name does, and that an allowance of the name settles.
const CODES_OF_NAMES: [&str; 6] =
    ["DisallowedGlobal", "DisallowedCall", "Import", "AttributeWalk", "ModuleSource", "CodeInArchive"];

/// Whether a file was scanned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Status {
    /// It was scanned.
    #[default]
    Scanned,
    /// It has no known format that can contain a pickle.
    Skipped,
    /// It could not be read.
    Unreadable,
}

impl Status {
    /// The name in reports.
    pub fn as_str(self) -> &'static str {
        match self {
            Status::Scanned => "scanned",
            Status::Skipped => "skipped",
            Status::Unreadable => "unreadable",
        }
    }
}

/// One fact about a file.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Finding {
    /// Its stable code: that of an error, or one that only scans use.
    pub code: &'static str,
    /// The verdict that it alone gives the file.
    pub verdict: Verdict,
    /// The description; control characters are escaped.
    pub message: String,
    /// The member, where there is one; a member of a nested archive follows a `!`.
    pub member: Option<String>,
    /// The offset in the member, or in the file.
    pub offset: Option<u64>,
    /// The module and name of the global that it is about, or two empty strings. Here and below, a name of more than 512 bytes
    /// is without its middle.
    pub global: (String, String),
    /// The arguments, abbreviated; control characters are escaped.
    pub arguments: Option<String>,
    /// How many equal findings were merged; member, offset and arguments are those of the first.
    pub times: u64,
    /// The readers that see it or accept it.
    pub readers: &'static [&'static str],
    /// The allowance of the policy that made it inert.
    pub allowed: Option<String>,
}

/// One effect that unpickling would have.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TraceStep {
    /// The member, as in a finding.
    pub member: Option<String>,
    /// The offset of the opcode.
    pub offset: u64,
    /// `import`, `call`, `setstate` or `ext`.
    pub effect: &'static str,
    /// The opcode's name.
    pub opcode: &'static str,
    /// What is imported or called.
    pub global: (String, String),
    /// The arguments, abbreviated.
    pub arguments: String,
    /// The verdict about it.
    pub verdict: Verdict,
}

/// A global that the file imports.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct GlobalUse {
    /// The member that imports it first.
    pub member: Option<String>,
    /// The offset of the first import in it.
    pub offset: u64,
    /// Module and name, in Python 3's spelling.
    pub global: (String, String),
    /// The verdict about it.
    pub verdict: Verdict,
    /// Why it would execute; empty otherwise.
    pub reason: &'static str,
    /// How often it is called.
    pub calls: u64,
    /// The allowance of the policy that covers it.
    pub allowed: Option<String>,
}

/// A byte range that was scanned, or was not.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ByteRange {
    /// The member, as in a finding.
    pub member: Option<String>,
    /// What it contains, or why it was not scanned.
    pub what: String,
    /// Its offset in the member.
    pub offset: u64,
    /// Its length in bytes.
    pub nbytes: u64,
}

/// The report of one file.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct FileReport {
    /// The path, as text; `None` for bytes in memory.
    pub path: Option<String>,
    /// The name of the format, where it has one.
    pub format: Option<&'static str>,
    /// Whether it was scanned.
    pub status: Status,
    /// The findings, in the order in which they were added.
    pub findings: Vec<Finding>,
    /// The effects, in program order.
    pub trace: Vec<TraceStep>,
    /// Each imported global once.
    pub globals: Vec<GlobalUse>,
    /// The ranges that were scanned.
    pub scanned: Vec<ByteRange>,
    /// The ranges that were not scanned and may contain a pickle.
    pub unscanned: Vec<ByteRange>,
    /// Whether a list above is incomplete because of a limit.
    pub truncated: bool,
    /// The worst verdict of all findings, including those that the limit dropped.
    worst: Option<Verdict>,
    by_key: HashMap<FindingKey, usize>,
    by_name: HashMap<GlobalKey, usize>,
    /// The limit `findings`.
    limit: usize,
    /// The limit `report_bytes`, and how much of it is taken.
    max_bytes: u64,
    bytes: u64,
    policy: Arc<Policy>,
}

/// The fields that equal findings of one member share.
type FindingKey = (&'static str, Verdict, Option<String>, (String, String), String);

/// The fields that uses of one global share. Two long names may be equal once they are shortened; their verdicts stay apart.
type GlobalKey = ((String, String), Verdict);

impl FileReport {
    /// A report without findings.
    pub(super) fn new(path: Option<String>, options: &Options) -> FileReport {
        let (limit, max_bytes) = (to_usize(options.limits.findings), options.limits.report_bytes);
        let policy = Arc::clone(&options.policy);
        FileReport { path, limit, max_bytes, policy, ..FileReport::default() }
    }

    /// The bytes that the report takes of the limit `report_bytes`.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Takes an item with `texts` of the limit `report_bytes`. Returns false, and marks the report as truncated, where the list
    /// of `len` items or the report is full; an item that `must_keep` is taken all the same.
    fn take<'a>(
        &mut self,
        len: usize,
        texts: impl Iterator<Item = &'a String> + Clone,
        must_keep: bool,
    ) -> bool {
        let with = |count: fn(&str) -> u64| {
            let texts = texts.clone().map(|text| count(text)).fold(ITEM_BYTES, u64::saturating_add);
            self.bytes.saturating_add(texts)
        };
        // In a full report the escapes are not counted.
        let may_fit = len < self.limit && with(|text| to_u64(text.len())) <= self.max_bytes;
        let bytes = if may_fit || must_keep { with(json_bytes) } else { u64::MAX };
        let fits = may_fit && bytes <= self.max_bytes;
        if fits || must_keep {
            self.bytes = bytes;
        }
        self.truncated |= !fits;
        fits || must_keep
    }

    /// Whether everything was scanned.
    pub fn is_complete(&self) -> bool {
        self.status == Status::Scanned && self.unscanned.is_empty()
    }

    /// The verdict about the file.
    pub fn verdict(&self) -> Verdict {
        let is_skipped = self.status == Status::Skipped && self.findings.is_empty();
        let floor = if self.is_complete() || is_skipped { Verdict::Inert } else { Verdict::Unknown };
        self.worst.unwrap_or(Verdict::Inert).max(floor)
    }

    /// Removes all findings, for a file in a directory that is not a checkpoint.
    pub(super) fn clear_findings(&mut self) {
        self.findings.clear();
        self.by_key.clear();
        self.worst = None;
    }

    /// The allowance that covers what a global does.
    pub(super) fn allows(&self, module: &str, name: &str) -> Option<String> {
        self.policy.covers(module, name).map(str::to_owned)
    }

    pub(super) fn has(&self, code: &str) -> bool {
        self.findings.iter().any(|finding| finding.code == code)
    }

    pub(super) fn add(&mut self, mut finding: Finding) {
        if let Some(pattern) = settles(&self.policy, &finding) {
            finding.allowed = Some(pattern.to_owned());
            finding.verdict = Verdict::Inert;
        }
        let is_worse = self.worst.is_none_or(|worst| finding.verdict > worst);
        self.worst = self.worst.max(Some(finding.verdict));
        finding.message = message(&finding.message);
        finding.arguments = finding.arguments.map(|arguments| message(&arguments));
        finding.member = finding.member.map(|name| short(&name));
        finding.global = short_global(finding.global);
        let (global, text) = (finding.global.clone(), finding.message.clone());
        let key = (finding.code, finding.verdict, finding.member.clone(), global, text);
        if let Some(equal_finding) = self.by_key.get(&key).and_then(|&at| self.findings.get_mut(at)) {
            equal_finding.times = equal_finding.times.saturating_add(finding.times);
            return;
        }
        let Finding { message, member, arguments, allowed, global: (module, name), .. } = &finding;
        let texts = [message, module, name].into_iter().chain(member).chain(arguments).chain(allowed);
        // The first finding of a verdict says why the file has it.
        if self.take(self.findings.len(), texts, is_worse) {
            self.by_key.insert(key, self.findings.len());
            self.findings.push(finding);
        }
    }

    /// Adds an error of the strict reader as a finding.
    pub(super) fn add_error(&mut self, error: &Error, member: Option<&str>) {
        let member = match (member, error.member()) {
            (Some(outer), Some(inner)) if outer != inner => Some(format!("{outer}!{inner}")),
            (outer, inner) => outer.or(inner).map(str::to_owned),
        };
        let code = error.code();
        let is_unsupported = error.kind() == Kind::Unsupported;
        let verdict = if is_unsupported { unsupported_verdict(code) } else { Verdict::Unknown };
        self.add_refusal(error, member.as_deref(), verdict);
    }

    /// As [`add_error`](FileReport::add_error), of this member and with this verdict.
    pub(super) fn add_refusal(&mut self, error: &Error, member: Option<&str>, verdict: Verdict) {
        let code = error.code();
        self.add(Finding {
            offset: error.offset(),
            readers: readers(code),
            ..Finding::new(code.as_str(), verdict, member, error.message())
        });
    }

    /// Merges equal findings of different members. The first one stays.
    pub(super) fn group_findings(&mut self) {
        let mut firsts: HashMap<FindingKey, usize> = HashMap::new();
        let mut grouped: Vec<Finding> = Vec::with_capacity(self.findings.len());
        for finding in std::mem::take(&mut self.findings) {
            let (global, text) = (finding.global.clone(), finding.message.clone());
            let key = (finding.code, finding.verdict, None, global, text);
            match firsts.get(&key).and_then(|&at| grouped.get_mut(at)) {
                Some(first) => first.times = first.times.saturating_add(finding.times),
                None => {
                    firsts.insert(key, grouped.len());
                    grouped.push(finding);
                }
            }
        }
        self.findings = grouped;
    }

    pub(super) fn add_step(&mut self, mut step: TraceStep) {
        let (module, name) = &step.global;
        if step.verdict == Verdict::Unknown && self.policy.covers(module, name).is_some() {
            step.verdict = Verdict::Inert;
        }
        if self.trace.len() >= self.limit {
            self.truncated = true;
            return;
        }
        step.arguments = message(&step.arguments);
        step.member = step.member.map(|name| short(&name));
        step.global = short_global(step.global);
        let TraceStep { member, arguments, global: (module, name), .. } = &step;
        if self.take(self.trace.len(), [arguments, module, name].into_iter().chain(member), false) {
            self.trace.push(step);
        }
    }

    pub(super) fn add_global(&mut self, mut global: GlobalUse) {
        if global.verdict == Verdict::Unknown {
            let (module, name) = &global.global;
            global.allowed = self.policy.covers(module, name).map(str::to_owned);
            if global.allowed.is_some() {
                global.verdict = Verdict::Inert;
            }
        }
        global.member = global.member.map(|name| short(&name));
        global.global = short_global(global.global);
        let key = (global.global.clone(), global.verdict);
        if let Some(listed) = self.by_name.get(&key).and_then(|&at| self.globals.get_mut(at)) {
            listed.calls = listed.calls.saturating_add(global.calls);
            return;
        }
        let GlobalUse { member, allowed, global: (module, name), .. } = &global;
        if self.take(self.globals.len(), [module, name].into_iter().chain(member).chain(allowed), false) {
            self.by_name.insert(key, self.globals.len());
            self.globals.push(global);
        }
    }

    pub(super) fn scanned(&mut self, member: Option<&str>, what: &str, offset: u64, nbytes: u64) {
        let range = ByteRange { member: member.map(short), what: message(what), offset, nbytes };
        // The first one is always kept, since it tells a file that was scanned from one that was skipped.
        let is_first = self.scanned.is_empty();
        if self.take(self.scanned.len(), range.member.iter().chain([&range.what]), is_first) {
            self.scanned.push(range);
        }
    }

    pub(super) fn unscanned(&mut self, member: Option<&str>, why: &str, offset: u64, nbytes: u64) {
        let range = ByteRange { member: member.map(short), what: message(why), offset, nbytes };
        // The first one is always kept, since it raises the verdict.
        let is_first = self.unscanned.is_empty();
        if self.take(self.unscanned.len(), range.member.iter().chain([&range.what]), is_first) {
            self.unscanned.push(range);
        }
    }
}

/// A name as reports show it.
pub(super) fn short(name: &str) -> String {
    shortened(name, TEXT_MAX_BYTES).into_owned()
}

fn short_global((module, name): (String, String)) -> (String, String) {
    let short = |text: String| if text.len() > TEXT_MAX_BYTES { short(&text) } else { text };
    (short(module), short(name))
}

/// A message as reports show it: for people, so without control characters.
fn message(text: &str) -> String {
    shortened(&printable(&shortened(text, TEXT_MAX_BYTES)), TEXT_MAX_BYTES).into_owned()
}

/// The length of a text as JSON, in which a control character has six bytes.
fn json_bytes(text: &str) -> u64 {
    let escaped = text.bytes().filter(|&byte| byte < 0x20 || matches!(byte, b'"' | b'\\')).count();
    to_u64(text.len()).saturating_add(to_u64(escaped).saturating_mul(5))
}

/// The verdict for an unsupported feature: inert, except where content is encrypted or compressed and so unknown.
fn unsupported_verdict(code: Code) -> Verdict {
    match code {
        Code::TarUnsupported
        | Code::TensorMetadata
        | Code::StDtype
        | Code::ZipVersion
        | Code::ExportVersion
        | Code::ExportSymbolic => Verdict::Inert,
        _ => Verdict::Unknown,
    }
}

const ALL_UNPICKLERS: &[&str] = &["c", "python", "weights_only"];

/// The readers that accept what the strict reader refuses with this code.
pub(super) fn readers(code: Code) -> &'static [&'static str] {
    match code {
        Code::PickleProto => &["weights_only"],
        Code::PickleFrame => &["c", "weights_only"],
        Code::AmbiguousNumber => &["c", "python"],
        Code::PickleStack | Code::TrailingData => ALL_UNPICKLERS,
        Code::PickleType => &["python"],
        Code::ExtRegistry | Code::OutOfBand => &["c", "python"],
        Code::ZipPrefix | Code::ZipTrailing => &["zip", "torch"],
        Code::ZipDuplicate
        | Code::ZipCase
        | Code::ZipName
        | Code::ZipMismatch
        | Code::ZipAmbiguous
        | Code::ZipCrc => &["zip", "torch"],
        Code::StDuplicateKey | Code::StOffsets => &["safetensors"],
        _ => &[],
    }
}

impl Finding {
    /// A finding about a member, or about the file.
    pub(super) fn new(
        code: &'static str,
        verdict: Verdict,
        member: Option<&str>,
        message: impl Into<String>,
    ) -> Finding {
        Finding {
            code,
            verdict,
            message: message.into(),
            member: member.map(str::to_owned),
            offset: None,
            global: (String::new(), String::new()),
            arguments: None,
            times: 1,
            readers: &[],
            allowed: None,
        }
    }
}

/// The reports of all files.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Report {
    /// One report per file, in the order of the paths.
    pub files: Vec<FileReport>,
    /// How many files and directories were left out by their names; what is in such a directory is not counted.
    pub excluded: u64,
}

impl Report {
    /// The worst verdict of all files; unknown where nothing was scanned.
    pub fn verdict(&self) -> Verdict {
        let scanned = self.files.iter().any(|file| file.status == Status::Scanned);
        let floor = if scanned { Verdict::Inert } else { Verdict::Unknown };
        self.files.iter().map(FileReport::verdict).max().unwrap_or(floor).max(floor)
    }

    /// Whether at least one file was not skipped, and all of those were scanned completely.
    pub fn is_complete(&self) -> bool {
        let not_skipped = |file: &&FileReport| file.status != Status::Skipped;
        self.files.iter().any(|file| not_skipped(&file))
            && self.files.iter().filter(not_skipped).all(FileReport::is_complete)
    }
}

/// The allowance that settles a finding.
fn settles<'p>(policy: &'p Policy, finding: &Finding) -> Option<&'p str> {
    let (module, name) = &finding.global;
    let is_settled = finding.verdict == Verdict::Unknown && CODES_OF_NAMES.contains(&finding.code);
    if is_settled { policy.covers(module, name) } else { None }
}
