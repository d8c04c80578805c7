//! Classifies BUILD states that are not understood: of unknown classes, of globals themselves, and of attributes that hide methods.

use super::attributes::Target;
use super::{Classifier, dotted, pair};
use crate::pickle::{Call, Handle, Value};
use crate::scan::gadgets::{self, CallableFactory};
use crate::scan::preview;
use crate::scan::report::{Finding, TraceStep, Verdict};

impl Classifier<'_> {
    /// Adds a BUILD to the trace, and to the findings unless the finding of its call covers it.
    pub(super) fn state(&mut self, offset: u64, target: Handle) {
        let values = self.values_of();
        let ((global, verdict), finding) = match values.get(target) {
            Value::Global(id) => {
                let global = values.global(id);
                let text = format!("attributes of {} itself are set", dotted(&global));
                ((pair(&global), Verdict::WouldExecute), Some(("DisallowedGlobal", text)))
            }
            Value::Call(id) => {
                let call = values.call(id);
                let (owner, verdict) = self.owner(&call);
                let problem = self.understanding.refused(id).or_else(|| {
                    let mut states = call.states.iter();
                    states.find_map(|state| self.understanding.problem_of(state.value, Target::Unknown))
                });
                // The finding of the call covers the rest of its state.
                let finding = problem.map(|problem| ("StateAttribute", problem.text(values)));
                ((owner, verdict), finding)
            }
            _ => {
                let shown = (String::new(), preview::value(values, target));
                let text = "the state of a value of another type is set".to_owned();
                ((shown, Verdict::Unknown), Some(("PickleType", text)))
            }
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
        if let Some((code, text)) = finding {
            let finding = self.finding(code, verdict, offset, text);
            self.report.add(Finding { global, readers: &["c", "python"], ..finding });
        }
    }

    /// The global that makes the target of a BUILD, and the verdict on its state.
    fn owner(&self, call: &Call<'_>) -> ((String, String), Verdict) {
        let Some(callee) = self.understanding.callee(call) else {
            return ((String::new(), "(result of a call)".to_owned()), Verdict::Unknown);
        };
        let global = self.values_of().global(callee);
        let verdict = if self.understanding.knows_global(callee) || self.is_harmless_partial(call) {
            Verdict::Unknown
        } else {
            gadgets::classify(global.module, global.name, false).verdict
        };
        (pair(&global), verdict)
    }

    fn is_harmless_partial(&self, call: &Call<'_>) -> bool {
        let Some(callee) = self.understanding.callee(call) else { return false };
        let global = self.values_of().global(callee);
        let partial = gadgets::callable_factory(global.module, global.name) == Some(CallableFactory::Partial);
        partial
            && !self.contains_executable(call.args)
            && call.states.iter().all(|state| !self.contains_executable(state.value))
    }
}
