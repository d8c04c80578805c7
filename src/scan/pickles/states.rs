//! Classifies BUILD states: of unknown classes, of globals themselves, and attributes that shadow a dict's methods.

use super::{Classifier, MAX_SEARCHED_VALUES, dotted, is_text, pair};
use crate::pickle::{Call, CallId, Handle, Value};
use crate::scan::policy::{self, CallableFactory};
use crate::scan::preview;
use crate::scan::report::{Finding, TraceStep, Verdict};

/// The methods of a dict that an attribute of an OrderedDict can shadow.
const DICT_METHODS: &[&str] =
    &["items", "keys", "values", "get", "pop", "update", "copy", "setdefault", "__class__", "__reduce__"];

impl Classifier<'_> {
    /// Adds a BUILD to the trace, and to the findings unless the finding of its call covers it.
    pub(super) fn state(&mut self, offset: u64, target: Handle) {
        let values = self.values_of();
        let (global, verdict, code, message) = match values.get(target) {
            Value::Global(id) => {
                let global = values.global(id);
                let text = format!("attributes of {} itself are set", dotted(&global));
                (pair(&global), Verdict::WouldExecute, "DisallowedGlobal", text)
            }
            Value::Call(id) => {
                let call = values.call(id);
                let callee = self.callee(&call).map(|callee| values.global(callee));
                let shown = callee
                    .as_ref()
                    .map_or((String::new(), "(result of a call)".to_owned()), |global| pair(global));
                let shadows = self.known.is_known_call(id);
                let text = if shadows { "its state shadows methods of the dict" } else { "its state is set" };
                let code = if shadows { "DisallowedCall" } else { "DisallowedGlobal" };
                let call_verdict = callee.map_or(Verdict::Unknown, |global| {
                    policy::classify(global.module, global.name, shadows).verdict.max(Verdict::Unknown)
                });
                let call_verdict =
                    if self.is_harmless_partial(&call) { Verdict::Unknown } else { call_verdict };
                (shown, call_verdict, code, text.to_owned())
            }
            _ => (
                (String::new(), preview::value(values, target)),
                Verdict::Unknown,
                "PickleType",
                "the state of a value of another type is set".to_owned(),
            ),
        };
        self.report.add_step(TraceStep {
            member: self.context.member.map(str::to_owned),
            offset: offset.saturating_add(self.context.base_offset),
            effect: "setstate",
            opcode: "BUILD",
            global: global.clone(),
            arguments: String::new(),
            verdict,
        });
        // For an unknown class, the finding of the call covers its state.
        if matches!(values.get(target), Value::Call(id) if !self.known.is_known_call(id)) {
            return;
        }
        let finding = self.finding(code, verdict, offset, message);
        self.report.add(Finding { global, readers: &["c", "python"], ..finding });
    }

    fn is_harmless_partial(&self, call: &Call<'_>) -> bool {
        let Some(callee) = self.callee(call) else { return false };
        let global = self.values_of().global(callee);
        let partial = policy::callable_factory(global.module, global.name) == Some(CallableFactory::Partial);
        partial
            && !self.contains_executable(call.args)
            && call.states.iter().all(|state| !self.contains_executable(state.value))
    }

    /// Whether the state of an OrderedDict would shadow one of its methods.
    pub(super) fn shadows_methods(&self, id: CallId) -> bool {
        let values = self.values_of();
        let call = values.call(id);
        let Some(callee) = self.callee(&call) else { return false };
        let global = values.global(callee);
        if (global.module, global.name) != ("collections", "OrderedDict") {
            return false;
        }
        call.states.iter().take(MAX_SEARCHED_VALUES).any(|&state| match values.get_at(state) {
            Value::Dict(pairs) => pairs
                .iter()
                .take(MAX_SEARCHED_VALUES)
                .any(|&(key, _)| DICT_METHODS.iter().any(|method| is_text(values, key, method))),
            _ => false,
        })
    }
}
