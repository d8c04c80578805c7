//! States that BUILD sets: of unknown classes, of names themselves, and such as hide a dict's methods.

use super::{Judge, SEARCHED, dotted, is_text};
use crate::pickle::{Call, CallId, Handle, Value};
use crate::scan::policy::{self, Maker};
use crate::scan::preview;
use crate::scan::report::{Finding, Step, Verdict};

/// Methods of a dict that an attribute of an OrderedDict would hide.
const METHODS: &[&str] =
    &["items", "keys", "values", "get", "pop", "update", "copy", "setdefault", "__class__", "__reduce__"];

impl Judge<'_> {
    pub(super) fn state(&mut self, offset: u64, target: Handle) {
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
    pub(super) fn hides_methods(&self, id: CallId) -> bool {
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
}
