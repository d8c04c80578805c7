//! Lists what a pickle does, in program order: records every global, counts calls in a known form, classifies every other step.

use super::{Classifier, dotted, pair};
use crate::pickle::{self, Build, CallId, GlobalId, Handle, Value};
use crate::scan::policy;
use crate::scan::report::{Finding, GlobalUse, TraceStep, Verdict};

/// The effect of one opcode.
#[derive(Clone, Copy)]
enum Event {
    Import(GlobalId),
    Call(CallId),
    State(Handle),
}

impl Classifier<'_> {
    /// Records all globals, and classifies every step that is not a call of a known function in a known form.
    pub(super) fn steps(&mut self) {
        let values = self.values_of();
        let mut calls = vec![0_u64; values.globals().len()];
        let mut events: Vec<(u64, Event)> = Vec::new();
        let mut opaque = false;
        for (id, _) in values.calls() {
            let call = values.call(id);
            if let Some(count) = self.callee(&call).and_then(|id| calls.get_mut(id.index())) {
                *count = count.saturating_add(1);
            }
            if !self.known.is_known_call(id) {
                opaque = true;
                events.push((call.offset, Event::Call(id)));
            }
        }
        let mut last = None;
        for &Build { offset, target, .. } in values.builds() {
            let is_known_form = match values.get(target) {
                Value::Call(id) => self.known.is_known_call(id) && !self.shadows_methods(id),
                _ => false,
            };
            // Consecutive BUILDs of one target are listed once.
            if !is_known_form && last != Some(target) {
                opaque = true;
                events.push((offset, Event::State(target)));
            }
            last = Some(target);
        }
        for (id, _) in values.globals() {
            if !self.known.is_known_global(id) && values.global(id).module != pickle::RUN_TIME_MODULE {
                events.push((values.global(id).offset, Event::Import(id)));
            }
        }
        events.sort_by_key(|&(offset, _)| offset);
        for (id, _) in values.globals() {
            let (global, known) = (values.global(id), self.known.is_known_global(id));
            if global.module == pickle::RUN_TIME_MODULE {
                continue;
            }
            let classification = policy::classify(global.module, global.name, known);
            let called = calls.get(id.index()).copied().unwrap_or(0);
            self.report.add_global(GlobalUse {
                member: self.context.member.map(str::to_owned),
                offset: global.offset.saturating_add(self.context.base_offset),
                global: pair(&global),
                verdict: classification.verdict,
                reason: classification.reason,
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

    fn import(&mut self, id: GlobalId, calls: u64, opaque: bool) {
        let global = self.values_of().global(id);
        let classification = policy::classify(global.module, global.name, false);
        let pair = pair(&global);
        self.report.add_step(TraceStep {
            member: self.context.member.map(str::to_owned),
            offset: global.offset.saturating_add(self.context.base_offset),
            effect: "import",
            opcode: "GLOBAL",
            global: pair.clone(),
            arguments: String::new(),
            verdict: classification.verdict.min(Verdict::Unknown),
        });
        let name = dotted(&global);
        if global.name.contains('.') {
            let text = format!("{name} is an attribute path");
            let finding = self.finding("AttributeWalk", classification.verdict, global.offset, text);
            self.report.add(Finding { global: pair.clone(), ..finding });
        }
        if calls > 0 {
            return;
        }
        let (verdict, text) = match classification.verdict {
            // A call that receives it as an argument may call it.
            Verdict::WouldExecute if opaque => (
                Verdict::WouldExecute,
                format!(
                    "{name} is imported and may be called by a function that receives it: it {}",
                    classification.reason
                ),
            ),
            Verdict::WouldExecute => {
                (Verdict::Unknown, format!("{name} is imported and not called: it {}", classification.reason))
            }
            _ => (
                Verdict::Unknown,
                format!("{name} is imported and not called; importing its module runs the module's code"),
            ),
        };
        let finding = self.finding("Import", verdict, global.offset, text);
        self.report.add(Finding { global: pair, readers: &["c", "python"], ..finding });
    }
}
