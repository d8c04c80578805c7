//! Classifies what one pickle would do: its imports, calls and BUILD states, in program order.
//!
//! A call that is proven to run nothing (`proof.rs`) is counted and not listed. Every other call is a step of the trace, and a finding
//! with the code of the error that `unknown="error"` raises for it. Bytes that a call would load as a pickle or archive are
//! returned to be scanned.

mod calls;
mod cycles;
mod matching;
mod numpy;
mod proof;
mod proving;
mod references;
mod schema;
mod states;
mod steps;
mod values;

use std::collections::{HashMap, HashSet};

use self::proof::Proof;
use super::report::{FileReport, Finding, TraceStep, readers, short};
use super::verdict::Verdict;
use crate::bytes::Region;
use crate::error::{Code, Error, Result};
use crate::index::PersistentIdForm;
use crate::limits::Limits;
use crate::num::to_u64;
use crate::parallel::Cancel;
use crate::pickle::{self, Call, Global, GlobalId, Handle, Opcode, Pickle, RecoveredPickle, Value, Values};

/// The maximum number of values that are searched in the arguments or the state of one call.
const MAX_SEARCHED_VALUES: usize = 64;

/// The fewest hexadecimal digits that are a digest.
const DIGEST_MIN_CHARS: usize = 32;

/// How to read a pickle, and where it is in the file.
pub(super) struct PickleContext<'a> {
    /// The member, as findings show it.
    pub(super) member: Option<&'a str>,
    /// The offset of the data in the member.
    pub(super) base_offset: u64,
    /// The form of persistent ids.
    pub(super) ids: PersistentIdForm,
    /// Whether to collect storage keys.
    pub(super) wants_keys: bool,
}

/// The result of scanning a pickle.
pub(super) struct ScannedPickle {
    /// One past STOP, or where the scan ended.
    pub(super) end: usize,
    /// Whether it ended with STOP.
    pub(super) stopped: bool,
    /// The storage keys that it names.
    pub(super) keys: HashSet<String>,
    /// Bytes that calls would load.
    pub(super) nested: Vec<Nested>,
    /// The executed pickle, or why the strict reader refuses it.
    pub(super) pickle: Result<Pickle>,
}

/// Bytes that a call would load.
pub(super) enum Nested {
    /// A range of the pickle itself.
    Inside(Region),
    /// Bytes that the pickle encodes as text.
    Decoded(Vec<u8>),
}

/// Adds to the report what a pickle would do.
pub(super) fn classify(
    report: &mut FileReport,
    recovered: RecoveredPickle,
    context: &PickleContext<'_>,
    limits: &Limits,
    cancel: &Cancel,
) -> Result<ScannedPickle> {
    let proof = Proof::new(&recovered, context.ids, limits);
    cancel.check()?;
    let mut classifier = Classifier {
        report,
        recovered: &recovered,
        proof,
        context,
        nested: Vec::new(),
        loaded: HashMap::new(),
        methods: HashMap::new(),
        found: HashSet::new(),
    };
    classifier.defects();
    classifier.steps();
    let keys = classifier.values();
    let nested = classifier.nested;
    let (end, stopped) = (recovered.end, recovered.root.is_some());
    let pickle = recovered.into_pickle();
    Ok(ScannedPickle { end, stopped, keys, nested, pickle })
}

/// Whether a pickle does anything from an offset on but create data: names a global that may exist, makes a call, or sets a state.
pub(super) fn acts(recovered: &RecoveredPickle, from: u64) -> bool {
    let values = &recovered.values;
    let exists = |id: GlobalId| {
        let global = values.global(id);
        // The module is imported before its attribute is looked up, so the name does not matter.
        global.module == pickle::RUN_TIME_MODULE || is_module(global.module)
    };
    // msgpack begins as an EXT opcode does. Looking up its code does nothing where no reader comes to the end.
    let is_unused =
        |call: Call<'_>| call.states.is_empty() && call.items.is_empty() && call.appended.is_empty();
    let is_cut = recovered.root.is_none() && values.calls().all(|(id, _)| is_unused(values.call(id)));
    let is_code = |id: GlobalId| {
        let global = values.global(id);
        is_cut && (global.module, global.name) == (pickle::RUN_TIME_MODULE, "extension")
    };
    let acts = |id: GlobalId| exists(id) && !is_code(id);
    let runs = |callable: Handle| !matches!(values.get(callable), Value::Global(id) if !acts(id));
    values.globals().any(|(id, _)| values.global(id).offset >= from && acts(id))
        || values.calls().any(|(id, _)| values.call(id).offset >= from && runs(values.call(id).callable))
        || (from > 0 && values.builds().iter().any(|build| build.offset >= from))
}

/// Whether a pickle uses a global as a value, and not only calls it.
pub(super) fn is_used_as_value(recovered: &RecoveredPickle, id: GlobalId) -> bool {
    references::used_as_values(&recovered.values, recovered.root).get(id.index()).copied().unwrap_or(true)
}

/// Whether a line may be the name of a module. Text and numbers that only start like a pickle name none.
pub(super) fn may_be_module(line: &[u8]) -> bool {
    // A line that is cut may end inside a character.
    line.utf8_chunks().next().is_none_or(|chunk| {
        chunk.valid().trim().chars().all(is_plain_char)
            && chunk.invalid().len() < 4
            && chunk.valid().len().saturating_add(chunk.invalid().len()) == line.len()
    })
}

/// Whether a run ended at a GLOBAL or INST whose lines end with the data. `pickle.py` takes such a line for a whole one, without its
/// last byte, and imports the module.
pub(super) fn imports_at_end(recovered: &RecoveredPickle) -> bool {
    if recovered.defects.last().map(Error::code) != Some(Code::Truncated) {
        return false;
    }
    let rest = recovered.values.data().get(recovered.end..).unwrap_or_default();
    let Some((&opcode, lines)) = rest.split_first() else { return false };
    let module = match lines.iter().position(|&byte| byte == b'\n') {
        Some(end) => lines.get(..end),
        None => lines.split_last().map(|(_, line)| line),
    };
    matches!(Opcode::from_byte(opcode), Some(Opcode::Global | Opcode::Inst))
        && module.and_then(|module| std::str::from_utf8(module).ok()).is_some_and(is_module)
}

/// Whether a module may have this name. A digest, such as the one that `refs/main` of a Hub cache consists of, is none.
fn is_module(text: &str) -> bool {
    let text = text.trim();
    let is_digest = text.len() >= DIGEST_MIN_CHARS && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    !text.is_empty() && !is_digest && text.chars().all(is_plain_char)
}

fn is_plain_char(char: char) -> bool {
    char.is_alphanumeric() || matches!(char, '_' | '.' | '-')
}

/// The classification of one pickle.
struct Classifier<'a> {
    report: &'a mut FileReport,
    recovered: &'a RecoveredPickle,
    proof: Proof<'a>,
    context: &'a PickleContext<'a>,
    nested: Vec<Nested>,
    /// The arguments of loaders, and whether they hold bytes to load. The bytes of each are in `nested` once, also where several
    /// calls share it.
    loaded: HashMap<Handle, bool>,
    /// By dict of attributes, the first one that is called in place of a method.
    methods: HashMap<Handle, Option<Handle>>,
    /// The globals of whose calls at least one is a finding.
    found: HashSet<GlobalId>,
}

impl<'a> Classifier<'a> {
    fn values_of(&self) -> &'a Values {
        &self.recovered.values
    }

    fn finding(
        &self,
        code: &'static str,
        verdict: Verdict,
        offset: u64,
        message: impl Into<String>,
    ) -> Finding {
        let offset = Some(offset.saturating_add(self.context.base_offset));
        Finding { offset, ..Finding::new(code, verdict, self.context.member, message) }
    }

    /// Adds a step to the trace.
    fn step(
        &mut self,
        (effect, opcode): (&'static str, &'static str),
        offset: u64,
        global: &(String, String),
        arguments: &str,
        verdict: Verdict,
    ) {
        self.report.add_step(TraceStep {
            member: self.context.member.map(str::to_owned),
            offset: offset.saturating_add(self.context.base_offset),
            effect,
            opcode,
            global: global.clone(),
            arguments: arguments.to_owned(),
            verdict,
        });
    }

    /// Adds findings for the defects of the opcode stream, which are errors of the strict reader.
    fn defects(&mut self) {
        let recovered = self.recovered;
        for error in &recovered.defects {
            self.defect(error);
        }
        if let Some((offset, opcode)) = recovered.newer {
            let (name, wants, states) = (opcode.name(), opcode.protocol(), recovered.protocol);
            let text =
                format!("{name} is an opcode of protocol {wants}, the pickle declares protocol {states}");
            self.report.add(self.finding("ProtocolMix", Verdict::Inert, to_u64(offset), text));
        }
        // Where every reader stops, nothing is left to scan.
        let last = recovered.defects.last().map(Error::code);
        let is_limit = matches!(last, Some(Code::Limit | Code::Truncated));
        if recovered.root.is_none() && (is_limit || recovered.end >= recovered.values.data().len()) {
            let (end, len) = (to_u64(recovered.end), to_u64(recovered.values.data().len()));
            let why = "the pickle is cut short, or a limit was reached";
            let at = end.saturating_add(self.context.base_offset);
            self.report.unscanned(self.context.member, why, at, len.saturating_sub(end));
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
                "read without frames, the pickle continues to {rest}; readers that buffer frames read other bytes"
            );
            self.report.add(self.finding("FrameDivergence", Verdict::Unknown, offset, text));
            let rest = to_u64(self.values_of().data().len()).saturating_sub(offset);
            let why = "readers that buffer frames read other bytes from here on";
            let at = offset.saturating_add(self.context.base_offset);
            self.report.unscanned(self.context.member, why, at, rest);
        }
    }
}

fn is_text(values: &Values, handle: Handle, wanted: &str) -> bool {
    matches!(values.get(handle), Value::Str(text) if text.as_bytes() == wanted.as_bytes())
        || matches!(values.get(handle), Value::Bytes(bytes) if bytes == wanted.as_bytes())
}

/// A global's module and name, as reports show them.
fn pair(global: &Global<'_>) -> (String, String) {
    (short(global.module), short(global.name))
}

fn dotted(global: &Global<'_>) -> String {
    let (module, name) = pair(global);
    short(&format!("{module}.{name}"))
}
