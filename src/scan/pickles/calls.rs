//! Classifies calls that are not of a known function in a known form, and collects the bytes that they would load.

use super::{Classifier, MAX_SEARCHED_VALUES, Nested, dotted, pair};
use crate::bytes::Region;
use crate::num::to_u64;
use crate::pickle::{self, Call, CallId, CallKind, Global, GlobalId, Handle, Value, Values};
use crate::scan::gadgets::{self, CallableFactory};
use crate::scan::preview;
use crate::scan::report::{Finding, short};
use crate::scan::verdict::Verdict;

impl Classifier<'_> {
    /// Adds a call to the trace and to the findings.
    pub(super) fn call(&mut self, id: CallId) {
        let values = self.values_of();
        let call = values.call(id);
        let arguments = preview::arguments(values, id);
        let callee = self.proof.callee(&call);
        let (global, verdict, code, message) = match callee {
            None if self.is_time_zone(call.callable) => {
                let text =
                    "zoneinfo.ZoneInfo is made from the name of a time zone, whose data it reads".to_owned();
                (("zoneinfo".to_owned(), "ZoneInfo".to_owned()), Verdict::Unknown, "DisallowedCall", text)
            }
            None => {
                let shown = (String::new(), preview::value(values, call.callable));
                let text = "the callable is the result of another call".to_owned();
                (shown, Verdict::WouldExecute, "DisallowedCall", text)
            }
            Some(callee) => {
                let global = values.global(callee);
                let (verdict, code, text) = self.classify_call(&call, callee, &global);
                if verdict > Verdict::Inert {
                    self.found.insert(callee);
                }
                // What getattr(Class, "NAME") does is a matter of the class.
                let subject = self.class_of_member(&call, &global).unwrap_or(pair(&global));
                (subject, verdict, code, text)
            }
        };
        let effect = if code == "ExtRegistry" { "ext" } else { "call" };
        self.step((effect, opcode(call.kind)), call.offset, &global, &arguments, verdict);
        let finding = self.finding(code, verdict, call.offset, message);
        let readers = &["c", "python"];
        self.report.add(Finding { global, arguments: Some(arguments), readers, ..finding });
    }

    /// The verdict, code and message for a call of a global.
    fn classify_call(
        &mut self,
        call: &Call<'_>,
        callee: GlobalId,
        global: &Global<'_>,
    ) -> (Verdict, &'static str, String) {
        let name = dotted(global);
        if self.proof.knows_global(callee) {
            let text = format!("{name} is called with unknown arguments");
            return (Verdict::Unknown, "DisallowedCall", text);
        }
        match (global.module, global.name) {
            (pickle::RUN_TIME_MODULE, "find_class") => {
                let text = "a global's name is computed by a call".to_owned();
                return (Verdict::WouldExecute, "DisallowedGlobal", text);
            }
            (pickle::RUN_TIME_MODULE, _) => {
                let text = "a class is named by its code in the extension registry of the process that reads the file"
                    .to_owned();
                return (Verdict::Unknown, "ExtRegistry", text);
            }
            _ => {}
        }
        let classification = gadgets::classify(global.module, global.name, false);
        if gadgets::loads_bytes(global.module, global.name) {
            let has_bytes = self.collect_loaded(call);
            let text = format!("{name} loads bytes of the pickle, which were scanned as well");
            if has_bytes && self.loads_literal_storage(call, global) {
                return (Verdict::Inert, "NestedLoad", text);
            }
            if has_bytes {
                let finding = self.finding("NestedLoad", Verdict::Unknown, call.offset, text);
                self.report.add(finding);
            }
        }
        if classification.verdict != Verdict::WouldExecute {
            let text = format!("{name} is called; what it does is unknown");
            return (classification.verdict, "DisallowedGlobal", text);
        }
        if let Some((module, class)) = self.class_of_member(call, global) {
            let text = format!("a member of {module}.{class} is looked up; what the class does is unknown");
            return (Verdict::Unknown, "DisallowedGlobal", text);
        }
        match (global.module, global.name, self.values_of().get(call.args)) {
            ("builtins", "type", Value::Tuple(&[value])) if self.is_constant(value) => {
                return (Verdict::Inert, "DisallowedGlobal", format!("{name} gives the class of a constant"));
            }
            ("functools" | "_functools", "reduce", Value::Tuple(&[operator, _]))
                if self.proof.is_named(operator, "_operator", "or_")
                    && !self.contains_executable(call.args) =>
            {
                let text = format!("{name} makes a union of types, whose effect is unknown");
                return (Verdict::Unknown, "DisallowedGlobal", text);
            }
            _ => {}
        }
        let factory = gadgets::callable_factory(global.module, global.name);
        if factory == Some(CallableFactory::Partial) && !self.contains_executable(call.args) {
            let text = format!("{name} makes a callable of unknown effect, which is not called");
            return (Verdict::Unknown, "DisallowedGlobal", text);
        }
        let text = format!("{name} would be called: it {}", classification.reason);
        (Verdict::WouldExecute, "DisallowedGlobal", text)
    }

    /// Whether a call is `_load_from_bytes` of one bytes object that stands in the pickle, so that these bytes are what it loads.
    fn loads_literal_storage(&self, call: &Call<'_>, global: &Global<'_>) -> bool {
        let arguments = match self.values_of().get(call.args) {
            Value::Tuple(&[bytes]) => self.proof.is_literal_bytes(self.values_of().get(bytes)),
            _ => false,
        };
        let is_changed = !(call.states.is_empty() && call.items.is_empty() && call.appended.is_empty());
        arguments
            && !is_changed
            && call.kind == CallKind::Reduce
            && gadgets::is_storage_loader(global.module, global.name)
    }

    /// The class in `getattr(Class, "NAME")`, or of the object in `getattr(object, "method")`. `None` where the class or this member
    /// of it would execute, as then what the call gives is not a matter of the class.
    fn class_of_member(&self, call: &Call<'_>, callee: &Global<'_>) -> Option<(String, String)> {
        if gadgets::callable_factory(callee.module, callee.name) != Some(CallableFactory::Attribute) {
            return None;
        }
        let values = self.values_of();
        let Value::Tuple(&[owner, name]) = values.get(call.args) else { return None };
        let global = |id: GlobalId| (values.global(id).module, values.global(id).name);
        let (module, class) = match values.get(owner) {
            Value::Global(id) => global(id),
            // Only these make an object of a class for certain: what another function gives may be a module.
            Value::Call(id) => {
                let made = values.call(id);
                let class = global(self.proof.callee(&made)?);
                Some(class).filter(|&class| made.kind == CallKind::NewObj || class == ("re", "_compile"))?
            }
            Value::List(_) => ("builtins", "list"),
            Value::Dict(_) => ("builtins", "dict"),
            _ => return None,
        };
        let Value::Str(name) = values.get(name) else { return None };
        let name = name.as_str().unwrap_or_default();
        let plain = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        let is_unknown = |name: &str| gadgets::classify(module, name, false).verdict == Verdict::Unknown;
        let is_member = plain && is_unknown(class) && is_unknown(&format!("{class}.{name}"));
        is_member.then(|| (short(module), short(class)))
    }

    /// Whether a callable is `getattr(ZoneInfo, "_unpickle")`, as `zoneinfo` pickles itself.
    fn is_time_zone(&self, callable: Handle) -> bool {
        let values = self.values_of();
        let Some(call) = values.call_at(callable) else { return false };
        let Value::Tuple(&[class, name]) = values.get(call.args) else { return false };
        self.proof.is_named(call.callable, "builtins", "getattr")
            && self.proof.is_named(class, "zoneinfo", "ZoneInfo")
            && super::is_text(values, name, "_unpickle")
    }

    /// Whether a value is None, or a constant that has a name.
    fn is_constant(&self, value: Handle) -> bool {
        let is_named = |name| self.proof.is_named(value, "builtins", name);
        matches!(self.values_of().get(value), Value::None)
            || is_named("Ellipsis")
            || is_named("NotImplemented")
    }

    /// Whether the arguments contain a global that would execute. True also where they have more than [`MAX_SEARCHED_VALUES`]
    /// values.
    pub(super) fn contains_executable(&self, args: Handle) -> bool {
        let values = self.values_of();
        let mut pending = vec![args];
        for _ in 0..MAX_SEARCHED_VALUES {
            let Some(handle) = pending.pop() else { return false };
            match values.get(handle) {
                Value::Global(id) if !self.proof.knows_global(id) => {
                    let global = values.global(id);
                    if gadgets::classify(global.module, global.name, false).verdict == Verdict::WouldExecute {
                        return true;
                    }
                }
                Value::Tuple(items) | Value::List(items) => {
                    pending.extend(items.iter().take(MAX_SEARCHED_VALUES))
                }
                _ => {}
            }
        }
        // Not all values were searched.
        true
    }

    /// Collects the bytes in a loader's arguments: plain, in a `BytesIO`, or encoded as text. Returns whether there are any.
    fn collect_loaded(&mut self, call: &Call<'_>) -> bool {
        let values = self.values_of();
        let mut has_bytes = false;
        let mut pending = vec![call.args];
        for _ in 0..MAX_SEARCHED_VALUES {
            let Some(handle) = pending.pop() else { break };
            match values.get(handle) {
                Value::Bytes(bytes) | Value::ByteArray(bytes) => {
                    has_bytes |= self.add_loaded(handle, || nested(values, bytes));
                }
                Value::Str(text) => {
                    has_bytes |= self.add_loaded(handle, || latin1_payload(&text.to_string_lossy()))
                }
                Value::Tuple(items) => pending.extend(items.iter().take(MAX_SEARCHED_VALUES)),
                Value::Call(id) => pending.push(values.call(id).args),
                _ => {}
            }
        }
        has_bytes
    }

    /// Adds a value's bytes to `nested`, once for all calls that share it. Returns whether it has any.
    fn add_loaded(&mut self, value: Handle, bytes: impl FnOnce() -> Option<Nested>) -> bool {
        *self.loaded.entry(value).or_insert_with(|| {
            let bytes = bytes();
            let has_bytes = bytes.is_some();
            self.nested.extend(bytes);
            has_bytes
        })
    }
}

/// The latin-1 bytes of a text, where they start like a pickle or an archive.
fn latin1_payload(text: &str) -> Option<Nested> {
    let bytes: Option<Vec<u8>> = text.chars().map(|c| u8::try_from(u32::from(c)).ok()).collect();
    let begins =
        |bytes: &Vec<u8>| bytes.len() > 3 && bytes.first().is_some_and(|&byte| byte >= 0x80 || byte == b'P');
    bytes.filter(begins).map(Nested::Decoded)
}

/// The bytes of a value, as a range of the pickle where they lie in it.
fn nested(values: &Values, bytes: &[u8]) -> Option<Nested> {
    if bytes.len() < 4 {
        return None;
    }
    let start = bytes.as_ptr().addr().checked_sub(values.data().as_ptr().addr());
    let start =
        start.filter(|start| start.checked_add(bytes.len()).is_some_and(|end| end <= values.data().len()));
    match start.and_then(|start| Region::new(to_u64(start), to_u64(bytes.len()))) {
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
