//! Calls that rustload does not understand: what they would do, and which bytes they would load.

use super::{Judge, Nested, SEARCHED, dotted, wide};
use crate::bytes::Region;
use crate::pickle::{self, Call, CallId, CallKind, Global, GlobalId, Handle, Value, Values};
use crate::scan::policy::{self, Maker};
use crate::scan::preview;
use crate::scan::report::{Finding, Step, Verdict};

impl Judge<'_> {
    pub(super) fn call(&mut self, id: CallId) {
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
            let whole = self.collect(call);
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
    pub(super) fn names_what_runs(&self, args: Handle) -> bool {
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

    /// Collects the bytes in a loader's arguments: as they are, in a `BytesIO`, or as text that is encoded.
    /// Whether there are any.
    fn collect(&mut self, call: &Call<'_>) -> bool {
        let values = self.values_of();
        let mut found = false;
        let mut open = vec![call.args];
        for _ in 0..SEARCHED {
            let Some(handle) = open.pop() else { break };
            match values.get(handle) {
                Value::Bytes(bytes) | Value::ByteArray(bytes) => {
                    found |= self.load(handle, || nested(values, bytes));
                }
                Value::Str(text) => found |= self.load(handle, || decoded(&text.to_string_lossy())),
                Value::Tuple(items) => open.extend(items.iter().take(SEARCHED)),
                Value::Call(id) => open.push(values.call(id).args),
                _ => {}
            }
        }
        found
    }

    /// Hands a value's bytes on unless another call did; whether it has any.
    fn load(&mut self, value: Handle, bytes: impl FnOnce() -> Option<Nested>) -> bool {
        *self.loaded.entry(value).or_insert_with(|| {
            let bytes = bytes();
            let found = bytes.is_some();
            self.nested.extend(bytes);
            found
        })
    }
}

/// A text whose characters stand for the bytes of a pickle or an archive.
fn decoded(text: &str) -> Option<Nested> {
    let bytes: Option<Vec<u8>> = text.chars().map(|c| u8::try_from(u32::from(c)).ok()).collect();
    let begins =
        |bytes: &Vec<u8>| bytes.len() > 3 && bytes.first().is_some_and(|&byte| byte >= 0x80 || byte == b'P');
    bytes.filter(begins).map(Nested::Decoded)
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

fn opcode(kind: CallKind) -> &'static str {
    match kind {
        CallKind::Reduce => "REDUCE",
        CallKind::NewObj => "NEWOBJ",
        CallKind::NewObjEx => "NEWOBJ_EX",
        CallKind::Inst => "INST",
        CallKind::Obj => "OBJ",
    }
}
