//! The report of a scan: findings, the trace of effects, the globals and the coverage; and its JSON form.
//!
//! Equal findings are merged, with a count. The limit `findings` bounds every list; a report that reached it is marked as
//! truncated.

use std::collections::HashMap;

use serde_json::{Value as Json, json};

use crate::error::{Code, Error, Kind};
use crate::num::to_usize;

/// What a file would do in a reader that executes pickles. Ordered: the worst verdict is the largest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verdict {
    /// It only creates data: all of it was scanned, and every call is known.
    Inert,
    /// It imports unknown classes or functions, or readers interpret it differently, or not all of it could be scanned.
    Unknown,
    /// It calls something that runs code or accesses the system.
    WouldExecute,
}

impl Verdict {
    /// The name in reports.
    pub fn as_str(self) -> &'static str {
        match self {
            Verdict::Inert => "inert",
            Verdict::Unknown => "unknown",
            Verdict::WouldExecute => "would execute",
        }
    }

    /// The level in SARIF.
    fn severity(self) -> &'static str {
        match self {
            Verdict::Inert => "note",
            Verdict::Unknown => "warning",
            Verdict::WouldExecute => "error",
        }
    }
}

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
    /// The description.
    pub message: String,
    /// The member, where there is one; a member of a nested archive follows a `!`.
    pub member: Option<String>,
    /// The offset in the member, or in the file.
    pub offset: Option<u64>,
    /// The module and name of the global that it is about, or two empty strings.
    pub global: (String, String),
    /// The arguments, abbreviated.
    pub arguments: Option<String>,
    /// How many equal findings were merged; offset and arguments are those of the first.
    pub times: u64,
    /// The readers that see it or accept it.
    pub readers: &'static [&'static str],
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
    /// Whether a list above is incomplete because of the limit.
    pub truncated: bool,
    /// The worst verdict of all findings, including those that the limit dropped.
    worst: Option<Verdict>,
    by_key: HashMap<FindingKey, usize>,
    by_name: HashMap<(String, String), usize>,
    limit: usize,
}

/// The fields that equal findings share.
type FindingKey = (&'static str, Verdict, Option<String>, (String, String));

impl FileReport {
    /// A report without findings; each list has at most `limit` items.
    pub(super) fn new(path: Option<String>, limit: u64) -> FileReport {
        let limit = to_usize(limit);
        FileReport { path, limit, ..FileReport::default() }
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

    pub(super) fn has(&self, code: &str) -> bool {
        self.findings.iter().any(|finding| finding.code == code)
    }

    pub(super) fn add(&mut self, finding: Finding) {
        self.worst = Some(self.worst.map_or(finding.verdict, |worst| worst.max(finding.verdict)));
        let key = (finding.code, finding.verdict, finding.member.clone(), finding.global.clone());
        if let Some(equal_finding) = self.by_key.get(&key).and_then(|&at| self.findings.get_mut(at)) {
            equal_finding.times = equal_finding.times.saturating_add(finding.times);
        } else if self.findings.len() < self.limit {
            self.by_key.insert(key, self.findings.len());
            self.findings.push(finding);
        } else {
            self.truncated = true;
        }
    }

    /// Adds an error of the strict reader as a finding.
    pub(super) fn add_error(&mut self, error: &Error, member: Option<&str>) {
        let member = match (member, error.member()) {
            (Some(outer), Some(inner)) if outer != inner => Some(format!("{outer}!{inner}")),
            (outer, inner) => outer.or(inner).map(str::to_owned),
        };
        self.add(Finding {
            verdict: if error.kind() == Kind::Unsupported {
                unsupported_verdict(error.code())
            } else {
                Verdict::Unknown
            },
            message: error.message().to_owned(),
            member,
            offset: error.offset(),
            readers: readers(error.code()),
            ..Finding::new(error.code().as_str())
        });
    }

    pub(super) fn add_step(&mut self, step: TraceStep) {
        if self.trace.len() < self.limit {
            self.trace.push(step);
        } else {
            self.truncated = true;
        }
    }

    pub(super) fn add_global(&mut self, global: GlobalUse) {
        if let Some(listed) = self.by_name.get(&global.global).and_then(|&at| self.globals.get_mut(at)) {
            listed.calls = listed.calls.saturating_add(global.calls);
        } else if self.globals.len() < self.limit {
            self.by_name.insert(global.global.clone(), self.globals.len());
            self.globals.push(global);
        } else {
            self.truncated = true;
        }
    }

    pub(super) fn scanned(&mut self, member: Option<&str>, what: &str, offset: u64, nbytes: u64) {
        if self.scanned.len() < self.limit {
            let what = what.to_owned();
            self.scanned.push(ByteRange { member: member.map(str::to_owned), what, offset, nbytes });
        } else {
            self.truncated = true;
        }
    }

    pub(super) fn unscanned(&mut self, member: Option<&str>, why: &str, offset: u64, nbytes: u64) {
        // The first one is always kept, since it raises the verdict.
        if self.unscanned.len() < self.limit.max(1) {
            let what = why.to_owned();
            self.unscanned.push(ByteRange { member: member.map(str::to_owned), what, offset, nbytes });
        } else {
            self.truncated = true;
        }
    }
}

/// The verdict for an unsupported feature: inert, except where content is encrypted or compressed and so unknown.
fn unsupported_verdict(code: Code) -> Verdict {
    match code {
        Code::TarUnsupported | Code::TensorMetadata | Code::StDtype | Code::ZipVersion => Verdict::Inert,
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
    /// An inert finding without a location.
    pub(super) fn new(code: &'static str) -> Finding {
        Finding {
            code,
            verdict: Verdict::Inert,
            message: String::new(),
            member: None,
            offset: None,
            global: (String::new(), String::new()),
            arguments: None,
            times: 1,
            readers: &[],
        }
    }

    fn json(&self) -> Json {
        let (module, name) = &self.global;
        let text =
            |text: &String| if module.is_empty() && name.is_empty() { Json::Null } else { json!(text) };
        json!({
            "code": self.code, "severity": self.verdict.severity(), "verdict": self.verdict.as_str(),
            "message": self.message, "member": self.member, "offset": self.offset, "module": text(module),
            "name": text(name), "arguments": self.arguments, "times": self.times, "readers": self.readers,
        })
    }
}

/// The reports of all files.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Report {
    /// One report per file, in the order of the paths.
    pub files: Vec<FileReport>,
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

    /// The report as JSON; docs/scan.md describes the keys.
    pub fn to_json(&self) -> String {
        let files: Vec<Json> = self.files.iter().map(FileReport::json).collect();
        json!({
            "schema": 1, "rustload": env!("CARGO_PKG_VERSION"), "verdict": self.verdict().as_str(),
            "complete": self.is_complete(), "files": files,
        })
        .to_string()
    }
}

impl FileReport {
    fn json(&self) -> Json {
        let range = |range: &ByteRange, key: &str| json!({"member": range.member, key: range.what, "offset": range.offset, "nbytes": range.nbytes});
        let step = |step: &TraceStep| {
            json!({
                "member": step.member, "offset": step.offset, "effect": step.effect, "opcode": step.opcode,
                "module": step.global.0, "name": step.global.1, "arguments": step.arguments,
                "verdict": step.verdict.as_str(),
            })
        };
        let global = |global: &GlobalUse| {
            json!({
                "module": global.global.0, "name": global.global.1, "verdict": global.verdict.as_str(),
                "reason": global.reason, "calls": global.calls, "member": global.member, "offset": global.offset,
            })
        };
        json!({
            "path": self.path, "format": self.format, "status": self.status.as_str(), "verdict": self.verdict().as_str(),
            "findings": self.findings.iter().map(Finding::json).collect::<Vec<_>>(),
            "trace": self.trace.iter().map(step).collect::<Vec<_>>(),
            "globals": self.globals.iter().map(global).collect::<Vec<_>>(),
            "coverage": {
                "complete": self.is_complete(), "truncated": self.truncated,
                "scanned": self.scanned.iter().map(|bytes| range(bytes, "kind")).collect::<Vec<_>>(),
                "unscanned": self.unscanned.iter().map(|bytes| range(bytes, "why")).collect::<Vec<_>>(),
            },
        })
    }
}
