//! What a scan found: findings, a trace of calls, names, and what was looked at; and the same as JSON.
//!
//! Equal findings are one, with a count. A report is bounded by the limit `findings`, which says so where it bites.

use std::collections::HashMap;

use serde_json::{Value as Json, json};

use crate::error::{Code, Error, Kind};

/// What a file would do in a reader that runs pickles. Ordered: the worst of several is the largest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verdict {
    /// Nothing but making data: all of it was looked at and understood.
    Inert,
    /// It names classes or functions of which nothing is known, or readers disagree about it, or it was not all understood.
    Unknown,
    /// It calls something that runs code or touches the system.
    WouldExecute,
}

impl Verdict {
    /// The words that reports show.
    pub fn as_str(self) -> &'static str {
        match self {
            Verdict::Inert => "inert",
            Verdict::Unknown => "unknown",
            Verdict::WouldExecute => "would execute",
        }
    }

    /// SARIF's words for how much a finding matters.
    fn severity(self) -> &'static str {
        match self {
            Verdict::Inert => "note",
            Verdict::Unknown => "warning",
            Verdict::WouldExecute => "error",
        }
    }
}

/// Whether a file was looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Status {
    /// It was.
    #[default]
    Scanned,
    /// It is of no format that holds a pickle, as far as anybody knows.
    Skipped,
    /// It could not be read.
    Unreadable,
}

impl Status {
    /// The word that reports show.
    pub fn as_str(self) -> &'static str {
        match self {
            Status::Scanned => "scanned",
            Status::Skipped => "skipped",
            Status::Unreadable => "unreadable",
        }
    }
}

/// One thing that was found.
#[derive(Clone, Debug)]
pub struct Finding {
    /// Its stable code: an error's, or one that only scans have.
    pub code: &'static str,
    /// What it alone makes of the file.
    pub verdict: Verdict,
    /// What is the matter.
    pub message: String,
    /// The member, where there is one; in nested archives behind `!`.
    pub member: Option<String>,
    /// The offset in the member, or in the file.
    pub offset: Option<u64>,
    /// The global that it is about, or two empty texts.
    pub global: (String, String),
    /// The arguments, abbreviated.
    pub arguments: Option<String>,
    /// How often it was found; offset and arguments are the first's.
    pub times: u64,
    /// The readers that see it or go on past it.
    pub readers: &'static [&'static str],
}

/// One thing that unpickling would do.
#[derive(Clone, Debug)]
pub struct Step {
    /// The member, as in a finding.
    pub member: Option<String>,
    /// Where the opcode lies.
    pub offset: u64,
    /// `import`, `call`, `setstate` or `ext`.
    pub effect: &'static str,
    /// The opcode's name.
    pub opcode: &'static str,
    /// What is imported or called.
    pub global: (String, String),
    /// The arguments, abbreviated.
    pub arguments: String,
    /// What is thought of it.
    pub verdict: Verdict,
}

/// A name, and how often it is called.
#[derive(Clone, Debug)]
pub struct Named {
    /// The member that names it first.
    pub member: Option<String>,
    /// Where.
    pub offset: u64,
    /// Module and name, in Python 3's spelling.
    pub global: (String, String),
    /// What is thought of the name.
    pub verdict: Verdict,
    /// Why it would execute; else empty.
    pub reason: &'static str,
    /// Calls of it.
    pub calls: u64,
}

/// A range that was looked at, or was not.
#[derive(Clone, Debug)]
pub struct Range {
    /// The member, as in a finding.
    pub member: Option<String>,
    /// What it is, or why it was not looked at.
    pub what: String,
    /// Where it starts in the member.
    pub offset: u64,
    /// Bytes.
    pub nbytes: u64,
}

/// All that was found in one file.
#[derive(Debug, Default)]
pub struct FileReport {
    /// The path, as text; `None` for bytes in memory.
    pub path: Option<String>,
    /// The name of the format, where it has one.
    pub format: Option<&'static str>,
    /// Whether it was looked at.
    pub status: Status,
    /// In the order in which they were found.
    pub findings: Vec<Finding>,
    /// In program order.
    pub trace: Vec<Step>,
    /// Each name once.
    pub globals: Vec<Named>,
    /// What was looked at.
    pub scanned: Vec<Range>,
    /// What was not and might matter.
    pub unscanned: Vec<Range>,
    /// Whether a list above is not whole.
    pub truncated: bool,
    /// The worst finding, kept also where the list is full.
    worst: Option<Verdict>,
    by_key: HashMap<Key, usize>,
    by_name: HashMap<(String, String), usize>,
    limit: usize,
}

/// What equal findings have in common.
type Key = (&'static str, Verdict, Option<String>, (String, String));

impl FileReport {
    /// A report without findings; its lists end at `limit`.
    pub(super) fn new(path: Option<String>, limit: u64) -> FileReport {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        FileReport { path, limit, ..FileReport::default() }
    }

    /// Whether all was looked at.
    pub fn is_complete(&self) -> bool {
        self.status == Status::Scanned && self.unscanned.is_empty()
    }

    /// What to think of the file.
    pub fn verdict(&self) -> Verdict {
        let passed_over = self.status == Status::Skipped && self.findings.is_empty();
        let floor = if self.is_complete() || passed_over { Verdict::Inert } else { Verdict::Unknown };
        self.worst.unwrap_or(Verdict::Inert).max(floor)
    }

    /// Forgets that a file beside checkpoints is none.
    pub(super) fn pass_over(&mut self) {
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
        if let Some(known) = self.by_key.get(&key).and_then(|&at| self.findings.get_mut(at)) {
            known.times = known.times.saturating_add(finding.times);
        } else if self.findings.len() < self.limit {
            self.by_key.insert(key, self.findings.len());
            self.findings.push(finding);
        } else {
            self.truncated = true;
        }
    }

    /// The finding that an error of the strict reader is.
    pub(super) fn add_error(&mut self, error: &Error, member: Option<&str>) {
        let member = match (member, error.member()) {
            (Some(outer), Some(inner)) if outer != inner => Some(format!("{outer}!{inner}")),
            (outer, inner) => outer.or(inner).map(str::to_owned),
        };
        self.add(Finding {
            verdict: if error.kind() == Kind::Unsupported {
                unsupported(error.code())
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

    pub(super) fn step(&mut self, step: Step) {
        if self.trace.len() < self.limit {
            self.trace.push(step);
        } else {
            self.truncated = true;
        }
    }

    pub(super) fn name(&mut self, named: Named) {
        if let Some(known) = self.by_name.get(&named.global).and_then(|&at| self.globals.get_mut(at)) {
            known.calls = known.calls.saturating_add(named.calls);
        } else if self.globals.len() < self.limit {
            self.by_name.insert(named.global.clone(), self.globals.len());
            self.globals.push(named);
        } else {
            self.truncated = true;
        }
    }

    pub(super) fn scanned(&mut self, member: Option<&str>, what: &str, offset: u64, nbytes: u64) {
        if self.scanned.len() < self.limit {
            let what = what.to_owned();
            self.scanned.push(Range { member: member.map(str::to_owned), what, offset, nbytes });
        } else {
            self.truncated = true;
        }
    }

    pub(super) fn unscanned(&mut self, member: Option<&str>, why: &str, offset: u64, nbytes: u64) {
        // The first one decides the verdict, so it is always kept.
        if self.unscanned.len() < self.limit.max(1) {
            let what = why.to_owned();
            self.unscanned.push(Range { member: member.map(str::to_owned), what, offset, nbytes });
        } else {
            self.truncated = true;
        }
    }
}

/// A format that rustload does not read says nothing about what the file does; what is encrypted or packed is not known.
fn unsupported(code: Code) -> Verdict {
    match code {
        Code::TarUnsupported | Code::TensorMetadata | Code::StDtype | Code::ZipVersion => Verdict::Inert,
        _ => Verdict::Unknown,
    }
}

const ALL_UNPICKLERS: &[&str] = &["c", "python", "weights_only"];

/// Who goes on past what the strict reader refuses with this code.
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
    /// An inert finding without a place.
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

/// All that was found in all files.
#[derive(Debug, Default)]
pub struct Report {
    /// One for each file, in the order of their paths.
    pub files: Vec<FileReport>,
}

impl Report {
    /// The worst of all files; unknown where nothing was scanned.
    pub fn verdict(&self) -> Verdict {
        let scanned = self.files.iter().any(|file| file.status == Status::Scanned);
        let floor = if scanned { Verdict::Inert } else { Verdict::Unknown };
        self.files.iter().map(FileReport::verdict).max().unwrap_or(floor).max(floor)
    }

    /// Whether everything was looked at.
    pub fn is_complete(&self) -> bool {
        let looked_at = |file: &&FileReport| file.status != Status::Skipped;
        self.files.iter().any(|file| looked_at(&file))
            && self.files.iter().filter(looked_at).all(FileReport::is_complete)
    }

    /// The report as JSON (docs/scan.md has the keys).
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
        let range = |range: &Range, key: &str| json!({"member": range.member, key: range.what, "offset": range.offset, "nbytes": range.nbytes});
        let step = |step: &Step| {
            json!({
                "member": step.member, "offset": step.offset, "effect": step.effect, "opcode": step.opcode,
                "module": step.global.0, "name": step.global.1, "arguments": step.arguments,
                "verdict": step.verdict.as_str(),
            })
        };
        let named = |named: &Named| {
            json!({
                "module": named.global.0, "name": named.global.1, "verdict": named.verdict.as_str(),
                "reason": named.reason, "calls": named.calls, "member": named.member, "offset": named.offset,
            })
        };
        json!({
            "path": self.path, "format": self.format, "status": self.status.as_str(), "verdict": self.verdict().as_str(),
            "findings": self.findings.iter().map(Finding::json).collect::<Vec<_>>(),
            "trace": self.trace.iter().map(step).collect::<Vec<_>>(),
            "globals": self.globals.iter().map(named).collect::<Vec<_>>(),
            "coverage": {
                "complete": self.is_complete(), "truncated": self.truncated,
                "scanned": self.scanned.iter().map(|one| range(one, "kind")).collect::<Vec<_>>(),
                "unscanned": self.unscanned.iter().map(|one| range(one, "why")).collect::<Vec<_>>(),
            },
        })
    }
}
