//! What one pickle would do: its calls, imports and states in program order, judged one by one.
//!
//! A call that rustload understands is counted and not listed. Every other one is a step of the trace, and a finding under the code
//! that `unknown="error"` would refuse it with. Bytes that a call would load as a pickle or archive are handed on, to be scanned.

mod calls;
mod cycles;
mod states;
mod steps;
mod values;

use std::collections::{HashMap, HashSet};

use super::report::{FileReport, Finding, Verdict, readers};
use crate::bytes::{Chunk, Region};
use crate::error::{Code, Error, Result};
use crate::index::{Understood, understand};
use crate::limits::Limits;
use crate::parallel::Cancel;
use crate::pickle::{self, Call, Global, GlobalId, Handle, Pickle, Survey, Value, Values};

/// Values that are searched in the arguments or the state of one call.
const SEARCHED: usize = 64;

/// How to read a pickle, and what to call it.
pub(super) struct Place<'a> {
    /// The member, as findings show it.
    pub(super) member: Option<&'a str>,
    /// Where the data starts in the member.
    pub(super) shift: u64,
    /// The form of persistent ids.
    pub(super) legacy: bool,
    /// Whether the keys of storages are wanted.
    pub(super) keys: bool,
}

/// What is known of a pickle once it was scanned.
pub(super) struct Scanned {
    /// One past STOP, or where reading ended.
    pub(super) end: usize,
    /// Whether it ended in STOP.
    pub(super) stopped: bool,
    /// The keys of storages that it refers to.
    pub(super) keys: HashSet<String>,
    /// Bytes that a call would load: ranges of the data, or copies.
    pub(super) nested: Vec<Nested>,
    /// The pickle as a strict reader has it, if it refuses nothing.
    pub(super) pickle: Option<Pickle>,
}

/// Bytes that a call would load.
pub(super) enum Nested {
    /// A range of the pickle itself.
    Inside(Region),
    /// Bytes that the pickle spells as text.
    Decoded(Vec<u8>),
}

/// Surveys a pickle and says what it would do. `sure` tells that this is a pickle; else one that names nothing and does not
/// end well leaves no trace in the report.
pub(super) fn scan(
    report: &mut FileReport,
    data: Chunk,
    start: usize,
    place: &Place<'_>,
    sure: bool,
    limits: &Limits,
    cancel: &Cancel,
) -> Result<Option<Scanned>> {
    let survey = pickle::survey(data, start, limits, cancel)?;
    if !sure && survey.root.is_none() && !names_something(&survey.values) {
        return Ok(None);
    }
    let understood = understand(&survey.values, place.legacy, limits);
    cancel.check()?;
    let mut judge = Judge {
        report,
        survey: &survey,
        understood: &understood,
        place,
        nested: Vec::new(),
        loaded: HashMap::new(),
    };
    judge.defects();
    judge.steps();
    let keys = judge.values();
    let nested = judge.nested;
    let (end, stopped) = (survey.end, survey.root.is_some());
    let pickle = survey.into_pickle();
    Ok(Some(Scanned { end, stopped, keys, nested, pickle }))
}

/// Whether a global has a name that a module could have; texts that only begin like a pickle name nothing of the kind.
fn names_something(values: &Values) -> bool {
    let plain = |text: &str| {
        let text = text.trim();
        !text.is_empty() && text.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '.' | '-'))
    };
    let mut named = values.globals().map(|(id, _)| values.global(id));
    named.any(|global| global.module == pickle::RUN_TIME || (plain(global.module) && plain(global.name)))
}

struct Judge<'a> {
    report: &'a mut FileReport,
    survey: &'a Survey,
    understood: &'a Understood,
    place: &'a Place<'a>,
    nested: Vec<Nested>,
    /// The values that loaders were given, and whether there are bytes to load in them. Each is in `nested`
    /// once, however many calls share it.
    loaded: HashMap<Handle, bool>,
}

impl<'a> Judge<'a> {
    fn values_of(&self) -> &'a Values {
        &self.survey.values
    }

    fn finding(
        &self,
        code: &'static str,
        verdict: Verdict,
        offset: u64,
        message: impl Into<String>,
    ) -> Finding {
        Finding {
            verdict,
            message: message.into(),
            member: self.place.member.map(str::to_owned),
            offset: Some(offset.saturating_add(self.place.shift)),
            ..Finding::new(code)
        }
    }

    /// What the strict reader refuses in the stream itself.
    fn defects(&mut self) {
        let survey = self.survey;
        for error in &survey.defects {
            self.defect(error);
        }
        if let Some((offset, opcode)) = survey.newer {
            let (name, wants, states) = (opcode.name(), opcode.protocol(), survey.protocol);
            let text = format!("{name} is of protocol {wants}, the pickle states {states}");
            self.report.add(self.finding("ProtocolMix", Verdict::Inert, wide(offset), text));
        }
        if survey.root.is_none() {
            let (end, len) = (wide(survey.end), wide(survey.values.data().len()));
            let why = "no reader goes on past this, or a limit was reached";
            self.report.unscanned(
                self.place.member,
                why,
                end.saturating_add(self.place.shift),
                len.saturating_sub(end),
            );
        }
    }

    fn defect(&mut self, error: &Error) {
        let code = error.code();
        let offset = error.offset().unwrap_or_default();
        let mut finding = self.finding(code.as_str(), Verdict::Unknown, offset, error.message());
        finding.readers = readers(code);
        self.report.add(finding);
        if code == Code::PickleFrame {
            let later = self.values_of().globals().map(|(id, _)| self.values_of().global(id));
            let later: Vec<String> = later
                .filter(|global| global.offset >= offset)
                .take(4)
                .map(|global| dotted(&global))
                .collect();
            let rest = match later.as_slice() {
                [] => "no further global".to_owned(),
                names => names.join(", "),
            };
            let text = format!(
                "the C unpickler passes over frames and goes on to {rest}; pickle.py stops or reads other bytes"
            );
            self.report.add(self.finding("FrameDivergence", Verdict::Unknown, offset, text));
        }
    }

    /// The global that a call calls; the class of a legacy stream's `('module', class, file, source)` too.
    fn callee(&self, call: &Call<'_>) -> Option<GlobalId> {
        let values = self.values_of();
        match values.get(call.callable) {
            Value::Global(id) => Some(id),
            Value::PersistentId(pid) => match values.get(pid) {
                Value::Tuple(&[tag, class, ..]) if is_text(values, tag, "module") => {
                    match values.get(class) {
                        Value::Global(id) => Some(id),
                        _ => None,
                    }
                }
                _ => None,
            },
            _ => None,
        }
    }
}

fn is_text(values: &Values, handle: Handle, wanted: &str) -> bool {
    matches!(values.get(handle), Value::Str(text) if text.as_bytes() == wanted.as_bytes())
        || matches!(values.get(handle), Value::Bytes(bytes) if bytes == wanted.as_bytes())
}

fn dotted(global: &Global<'_>) -> String {
    format!("{}.{}", global.module, global.name)
}

fn wide(len: usize) -> u64 {
    u64::try_from(len).unwrap_or(u64::MAX)
}
