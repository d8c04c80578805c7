//! What one pickle would do: its calls, imports and states in program order, judged one by one.
//!
//! A call that rustload understands is counted and not listed. Every other one is a step of the trace, and a finding under the code
//! that `unknown="error"` would refuse it with. Bytes that a call would load as a pickle or archive are handed on, to be scanned.

use std::collections::HashSet;

use super::encoded::hidden;
use super::policy::{self, Maker};
use super::preview;
use super::report::{FileReport, Finding, Named, Step, Verdict, readers};
use crate::bytes::Region;
use crate::error::{Code, Error, Result};
use crate::index::{Understood, understand};
use crate::limits::Limits;
use crate::parallel::Cancel;
use crate::pickle::{self, Call, CallId, CallKind, Global, GlobalId, Handle, Pickle, Survey, Value, Values};

/// Values that are searched for bytes in the arguments of a loader.
const SEARCHED: usize = 64;
/// Methods of a dict that an attribute of an OrderedDict would hide.
const METHODS: &[&str] =
    &["items", "keys", "values", "get", "pop", "update", "copy", "setdefault", "__class__", "__reduce__"];

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
    data: Vec<u8>,
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
    let mut judge = Judge { report, survey: &survey, understood: &understood, place, nested: Vec::new() };
    judge.defects();
    judge.globals_and_calls();
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
}

/// Something that happens at one opcode.
#[derive(Clone, Copy)]
enum Event {
    Import(GlobalId),
    Call(CallId),
    State(Handle),
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

    fn globals_and_calls(&mut self) {
        let values = self.values_of();
        let mut calls = vec![0_u64; values.globals().len()];
        let mut events: Vec<(u64, Event)> = Vec::new();
        let mut opaque = false;
        for (id, _) in values.calls() {
            let call = values.call(id);
            if let Some(count) = self.callee(&call).and_then(|id| calls.get_mut(id.index())) {
                *count = count.saturating_add(1);
            }
            if !self.understood.call(id) {
                opaque = true;
                events.push((call.offset, Event::Call(id)));
            }
        }
        let mut last = None;
        for &(offset, target) in &self.survey.builds {
            let plain = match values.get(target) {
                Value::Call(id) => self.understood.call(id) && !self.hides_methods(id),
                _ => false,
            };
            // A step of the same target again is told by its count alone.
            if !plain && last != Some(target) {
                opaque = true;
                events.push((u64::from(offset), Event::State(target)));
            }
            last = Some(target);
        }
        for (id, _) in values.globals() {
            if !self.understood.global(id) && values.global(id).module != pickle::RUN_TIME {
                events.push((values.global(id).offset, Event::Import(id)));
            }
        }
        events.sort_by_key(|&(offset, _)| offset);
        for (id, _) in values.globals() {
            let (global, known) = (values.global(id), self.understood.global(id));
            if global.module == pickle::RUN_TIME {
                continue;
            }
            let found = policy::judge(global.module, global.name, known);
            let called = calls.get(id.index()).copied().unwrap_or(0);
            self.report.name(Named {
                member: self.place.member.map(str::to_owned),
                offset: global.offset.saturating_add(self.place.shift),
                global: (global.module.to_owned(), global.name.to_owned()),
                verdict: found.verdict,
                reason: found.reason,
                calls: called,
            });
        }
        for (offset, event) in events {
            match event {
                Event::Import(id) => self.import(id, calls.get(id.index()).copied().unwrap_or(0), opaque),
                Event::Call(id) => self.call(id),
                Event::State(target) => self.state(offset, target),
            }
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

    fn import(&mut self, id: GlobalId, calls: u64, opaque: bool) {
        let global = self.values_of().global(id);
        let found = policy::judge(global.module, global.name, false);
        let pair = (global.module.to_owned(), global.name.to_owned());
        self.report.step(Step {
            member: self.place.member.map(str::to_owned),
            offset: global.offset.saturating_add(self.place.shift),
            effect: "import",
            opcode: "GLOBAL",
            global: pair.clone(),
            arguments: String::new(),
            verdict: found.verdict.min(Verdict::Unknown),
        });
        let name = dotted(&global);
        if global.name.contains('.') {
            let text = format!("{name} walks over attributes");
            let finding = self.finding("AttributeWalk", found.verdict, global.offset, text);
            self.report.add(Finding { global: pair.clone(), ..finding });
        }
        if calls > 0 {
            return;
        }
        let (verdict, text) = match found.verdict {
            // Whoever is given it may call it.
            Verdict::WouldExecute if opaque => (
                Verdict::WouldExecute,
                format!("{name} is named and may be called by what is given it: it {}", found.reason),
            ),
            Verdict::WouldExecute => {
                (Verdict::Unknown, format!("{name} is named and not called: it {}", found.reason))
            }
            _ => (
                Verdict::Unknown,
                format!("{name} is named and not called; importing its module runs the module's code"),
            ),
        };
        let finding = self.finding("Import", verdict, global.offset, text);
        self.report.add(Finding { global: pair, readers: &["c", "python"], ..finding });
    }

    fn call(&mut self, id: CallId) {
        let values = self.values_of();
        let call = values.call(id);
        let arguments = preview::arguments(values, id);
        let callee = self.callee(&call);
        let (global, verdict, code, message) = match callee {
            None => {
                let text = "what is called is the result of another call".to_owned();
                (
                    (String::new(), preview::value(values, call.callable)),
                    Verdict::WouldExecute,
                    "DisallowedCall",
                    text,
                )
            }
            Some(callee) => {
                let global = values.global(callee);
                let pair = (global.module.to_owned(), global.name.to_owned());
                let (verdict, code, text) = self.judged(&call, callee, &global);
                (pair, verdict, code, text)
            }
        };
        let effect = if code == "ExtRegistry" { "ext" } else { "call" };
        self.report.step(Step {
            member: self.place.member.map(str::to_owned),
            offset: call.offset.saturating_add(self.place.shift),
            effect,
            opcode: opcode(call.kind),
            global: global.clone(),
            arguments: arguments.clone(),
            verdict,
        });
        let finding = self.finding(code, verdict, call.offset, message);
        let readers = &["c", "python"];
        self.report.add(Finding { global, arguments: Some(arguments), readers, ..finding });
    }

    /// What a call of a global is: verdict, code and words.
    fn judged(
        &mut self,
        call: &Call<'_>,
        callee: GlobalId,
        global: &Global<'_>,
    ) -> (Verdict, &'static str, String) {
        let name = dotted(global);
        if self.understood.global(callee) {
            let text = format!("{name} is called in a form that rustload does not know");
            return (Verdict::Unknown, "DisallowedCall", text);
        }
        match (global.module, global.name) {
            (pickle::RUN_TIME, "find_class") => {
                return (
                    Verdict::WouldExecute,
                    "DisallowedGlobal",
                    "a global's name is computed by a call".to_owned(),
                );
            }
            (pickle::RUN_TIME, _) => {
                let text = "a class is named by its number in the extension registry of the reading process"
                    .to_owned();
                return (Verdict::Unknown, "ExtRegistry", text);
            }
            _ => {}
        }
        let found = policy::judge(global.module, global.name, false);
        let loader = policy::loads_bytes(global.module, global.name);
        if loader {
            let before = self.nested.len();
            self.collect(call);
            let whole = self.nested.len() > before;
            if whole && policy::is_storage_loader(global.module, global.name) {
                let text = format!("{name} loads bytes of the pickle, which were scanned as well");
                return (Verdict::Inert, "NestedLoad", text);
            }
            if whole {
                let text = format!("{name} loads bytes of the pickle, which were scanned as well");
                let finding = self.finding("NestedLoad", Verdict::Unknown, call.offset, text);
                self.report.add(finding);
            }
        }
        if found.verdict != Verdict::WouldExecute {
            return (
                found.verdict,
                "DisallowedGlobal",
                format!("{name} is called, of which nothing is known"),
            );
        }
        let spared = match policy::is_maker(global.module, global.name) {
            Maker::No => false,
            Maker::Partial => !self.names_what_runs(call.args),
            Maker::Attribute => self.is_member(call),
        };
        if spared {
            let text = format!("{name} makes something of which nothing is known, and it is not called");
            return (Verdict::Unknown, "DisallowedGlobal", text);
        }
        (Verdict::WouldExecute, "DisallowedGlobal", format!("{name} would be called: it {}", found.reason))
    }

    /// `getattr(Class, "NAME")`: a member of a class of which nothing is known.
    fn is_member(&self, call: &Call<'_>) -> bool {
        let values = self.values_of();
        let Value::Tuple(&[class, name]) = values.get(call.args) else { return false };
        let (Value::Global(class), Value::Str(name)) = (values.get(class), values.get(name)) else {
            return false;
        };
        let class = values.global(class);
        let name = name.as_str().unwrap_or_default();
        let plain = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        plain
            && !name.starts_with('_')
            && policy::judge(class.module, class.name, false).verdict == Verdict::Unknown
            && policy::judge(class.module, name, false).verdict == Verdict::Unknown
            && policy::judge(class.name, name, false).verdict == Verdict::Unknown
    }

    /// Whether a name that would execute is among the first values of some arguments.
    fn names_what_runs(&self, args: Handle) -> bool {
        let values = self.values_of();
        let mut open = vec![args];
        for _ in 0..SEARCHED {
            let Some(handle) = open.pop() else { return false };
            match values.get(handle) {
                Value::Global(id) if !self.understood.global(id) => {
                    let global = values.global(id);
                    if policy::judge(global.module, global.name, false).verdict == Verdict::WouldExecute {
                        return true;
                    }
                }
                Value::Tuple(items) | Value::List(items) => open.extend(items.iter().take(SEARCHED)),
                _ => {}
            }
        }
        // Too much to look at is no proof.
        true
    }

    fn state(&mut self, offset: u64, target: Handle) {
        let values = self.values_of();
        let (global, verdict, code, message) = match values.get(target) {
            Value::Global(id) => {
                let global = values.global(id);
                let text = format!("attributes of {} itself are set", dotted(&global));
                (
                    (global.module.to_owned(), global.name.to_owned()),
                    Verdict::WouldExecute,
                    "DisallowedGlobal",
                    text,
                )
            }
            Value::Call(id) => {
                let call = values.call(id);
                let pair = match self.callee(&call) {
                    Some(callee) => {
                        let global = values.global(callee);
                        (global.module.to_owned(), global.name.to_owned())
                    }
                    None => (String::new(), "(result of a call)".to_owned()),
                };
                let hides = self.understood.call(id);
                let text = if hides { "its state hides methods of the dict" } else { "its state is set" };
                let code = if hides { "DisallowedCall" } else { "DisallowedGlobal" };
                let found = policy::judge(&pair.0, &pair.1, hides).verdict.max(Verdict::Unknown);
                let found = if self.is_spared(&call) { Verdict::Unknown } else { found };
                (pair, found, code, text.to_owned())
            }
            _ => (
                (String::new(), preview::value(values, target)),
                Verdict::Unknown,
                "PickleType",
                "the state of a value of another type is set".to_owned(),
            ),
        };
        self.report.step(Step {
            member: self.place.member.map(str::to_owned),
            offset: offset.saturating_add(self.place.shift),
            effect: "setstate",
            opcode: "BUILD",
            global: global.clone(),
            arguments: String::new(),
            verdict,
        });
        // A call's own finding says the same of an unknown class.
        if matches!(values.get(target), Value::Call(id) if !self.understood.call(id)) {
            return;
        }
        let finding = self.finding(code, verdict, offset, message);
        self.report.add(Finding { global, readers: &["c", "python"], ..finding });
    }

    fn is_spared(&self, call: &Call<'_>) -> bool {
        let Some(callee) = self.callee(call) else { return false };
        let global = self.values_of().global(callee);
        let partial = policy::is_maker(global.module, global.name) == Maker::Partial;
        partial
            && !self.names_what_runs(call.args)
            && call.states.iter().all(|&state| !self.names_what_runs(state))
    }

    /// Whether the state of an OrderedDict would hide one of its methods.
    fn hides_methods(&self, id: CallId) -> bool {
        let values = self.values_of();
        let call = values.call(id);
        let Some(callee) = self.callee(&call) else { return false };
        let global = values.global(callee);
        if (global.module, global.name) != ("collections", "OrderedDict") {
            return false;
        }
        call.states.iter().take(SEARCHED).any(|&state| match values.get(state) {
            Value::Dict(pairs) => pairs
                .iter()
                .take(SEARCHED)
                .any(|&(key, _)| METHODS.iter().any(|method| is_text(values, key, method))),
            _ => false,
        })
    }

    /// The bytes in a loader's arguments: as they are, in a `BytesIO`, or as text that is encoded.
    fn collect(&mut self, call: &Call<'_>) {
        let values = self.values_of();
        let mut open = vec![call.args];
        for _ in 0..SEARCHED {
            let Some(handle) = open.pop() else { break };
            match values.get(handle) {
                Value::Bytes(bytes) | Value::ByteArray(bytes) => self.nested.extend(nested(values, bytes)),
                Value::Str(text) if text.as_bytes().len() > 3 => {
                    let latin: Option<Vec<u8>> =
                        text.to_string_lossy().chars().map(|c| u8::try_from(u32::from(c)).ok()).collect();
                    if let Some(bytes) =
                        latin.filter(|bytes| bytes.first().is_some_and(|&byte| byte >= 0x80 || byte == b'P'))
                    {
                        self.nested.push(Nested::Decoded(bytes));
                    }
                }
                Value::Tuple(items) => open.extend(items.iter().take(SEARCHED)),
                Value::Call(id) => open.push(values.call(id).args),
                _ => {}
            }
        }
    }

    /// Looks once at every value; gives the keys of storages.
    fn values(&mut self) -> HashSet<String> {
        let values = self.values_of();
        let mut keys = HashSet::new();
        let (mut repeated, mut encoded, mut odd) = (0_u64, None, 0_u64);
        for handle in values.handles() {
            match values.get(handle) {
                Value::PersistentId(pid) => match values.get(pid) {
                    Value::Tuple(&[tag, _, key, ..]) if is_text(values, tag, "storage") => {
                        if self.place.keys
                            && let Value::Str(key) = values.get(key)
                            && let Some(key) =
                                key.as_str().filter(|key| key.len() <= 64 && !keys.contains(*key))
                        {
                            keys.insert(key.to_owned());
                        }
                    }
                    Value::Tuple(&[tag, ..]) if is_text(values, tag, "module") => {
                        let text = "a persistent id carries a class and its source text; torch compares it with the local file";
                        let finding = Finding {
                            offset: None,
                            ..self.finding("ModuleSource", Verdict::Unknown, 0, text)
                        };
                        self.report.add(finding);
                    }
                    _ => odd = odd.saturating_add(1),
                },
                Value::Dict(pairs) if values.has_equal_keys(pairs) => repeated = repeated.saturating_add(1),
                Value::Str(text) if encoded.is_none() => encoded = hidden(text.as_bytes()),
                _ => {}
            }
        }
        let mut add = |code, verdict, times: u64, text: String| {
            if times > 0 {
                let finding = Finding { offset: None, times, ..self.finding(code, verdict, 0, text) };
                self.report.add(finding);
            }
        };
        add(
            "DuplicateKey",
            Verdict::Inert,
            repeated,
            "a dict has equal keys; the last value counts".to_owned(),
        );
        add("PersistentId", Verdict::Unknown, odd, "a persistent id is not one that torch writes".to_owned());
        add(
            "EncodedText",
            Verdict::Inert,
            u64::from(encoded.is_some()),
            encoded.unwrap_or_default().to_owned(),
        );
        keys
    }
}

/// Bytes of a value, as a range of the pickle where they are one.
fn nested(values: &Values, bytes: &[u8]) -> Option<Nested> {
    if bytes.len() < 4 {
        return None;
    }
    let start = bytes.as_ptr().addr().checked_sub(values.data().as_ptr().addr());
    let start =
        start.filter(|start| start.checked_add(bytes.len()).is_some_and(|end| end <= values.data().len()));
    match start.and_then(|start| Region::new(wide(start), wide(bytes.len()))) {
        Some(region) => Some(Nested::Inside(region)),
        None => Some(Nested::Decoded(bytes.to_vec())),
    }
}

fn is_text(values: &Values, handle: Handle, wanted: &str) -> bool {
    matches!(values.get(handle), Value::Str(text) if text.as_bytes() == wanted.as_bytes())
        || matches!(values.get(handle), Value::Bytes(bytes) if bytes == wanted.as_bytes())
}

fn dotted(global: &Global<'_>) -> String {
    format!("{}.{}", global.module, global.name)
}

fn opcode(kind: CallKind) -> &'static str {
    match kind {
        CallKind::Reduce => "REDUCE",
        CallKind::NewObj => "NEWOBJ",
        CallKind::NewObjEx => "NEWOBJ_EX",
        CallKind::Inst => "INST",
        CallKind::Obj => "OBJ",
    }
}

fn wide(len: usize) -> u64 {
    u64::try_from(len).unwrap_or(u64::MAX)
}
