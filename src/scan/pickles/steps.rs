//! Lists what a pickle does, in program order: records every global, counts proven calls, classifies every other step.

use super::references::used_as_values;
use super::{Classifier, dotted, pair};
use crate::pickle::{self, Build, CallId, GlobalId, Handle};
use crate::scan::gadgets;
use crate::scan::report::{Finding, GlobalUse};
use crate::scan::verdict::Verdict;

/// The effect of one opcode.
#[derive(Clone, Copy)]
enum Event {
    Import(GlobalId),
    Call(CallId),
    State(Handle),
}

impl Classifier<'_> {
    /// Records all globals, and classifies every step that is not proven.
    pub(super) fn steps(&mut self) {
        let values = self.values_of();
        let mut calls = vec![0_u64; values.globals().len()];
        let mut events: Vec<(u64, Event)> = Vec::new();
        for (id, _) in values.calls() {
            let call = values.call(id);
            let callee = self.proof.callee(&call);
            if let Some(count) = callee.and_then(|id| calls.get_mut(id.index())) {
                *count = count.saturating_add(1);
            }
            if !self.proof.knows_call(id) {
                events.push((call.offset, Event::Call(id)));
            }
        }
        let mut last = None;
        for &Build { offset, target, .. } in values.builds() {
            // Consecutive BUILDs of one target are listed once.
            if last.replace(target) != Some(target) && !self.proof.knows_build(target) {
                events.push((offset, Event::State(target)));
            }
        }
        // Whether there is something that may call a function that it gets.
        let opaque = !events.is_empty();
        for (id, _) in values.globals() {
            if !self.proof.knows_global(id) && values.global(id).module != pickle::RUN_TIME_MODULE {
                events.push((values.global(id).offset, Event::Import(id)));
            }
        }
        events.sort_by_key(|&(offset, _)| offset);
        self.globals(&calls);
        let called = |id: GlobalId| calls.get(id.index()).is_some_and(|&count| count > 0);
        for &(offset, event) in &events {
            match event {
                Event::Import(id) => self.import(id, called(id), opaque),
                Event::Call(id) => self.call(id),
                Event::State(target) => self.state(offset, target),
            }
        }
        // The finding of a call covers that its callee is imported. Where all calls are inert, there is none.
        let imports = events.iter().filter_map(|&(_, event)| match event {
            Event::Import(id) if called(id) && !self.found.contains(&id) => Some(id),
            _ => None,
        });
        let imports: Vec<GlobalId> = imports.collect();
        if !imports.is_empty() {
            let used = used_as_values(values, self.recovered.root);
            for id in imports.into_iter().filter(|id| used.get(id.index()) == Some(&true)) {
                self.use_as_value(id, "used as a value", opaque);
            }
        }
    }

    /// Lists the globals.
    fn globals(&mut self, calls: &[u64]) {
        let values = self.values_of();
        for (id, _) in values.globals() {
            let (global, known) = (values.global(id), self.proof.knows_global(id));
            if global.module == pickle::RUN_TIME_MODULE {
                continue;
            }
            let classification = gadgets::classify(global.module, global.name, known);
            self.report.add_global(GlobalUse {
                member: self.context.member.map(str::to_owned),
                offset: global.offset.saturating_add(self.context.base_offset),
                global: pair(&global),
                verdict: classification.verdict,
                reason: classification.reason,
                calls: calls.get(id.index()).copied().unwrap_or(0),
                allowed: None,
            });
        }
    }

    fn import(&mut self, id: GlobalId, called: bool, opaque: bool) {
        let global = self.values_of().global(id);
        let classification = gadgets::classify(global.module, global.name, false);
        let pair = pair(&global);
        let verdict = classification.verdict.min(Verdict::Unknown);
        self.step(("import", "GLOBAL"), global.offset, &pair, "", verdict);
        if global.name.contains('.') {
            let text = format!("{} is an attribute path", dotted(&global));
            let finding = self.finding("AttributeWalk", classification.verdict, global.offset, text);
            self.report.add(Finding { global: pair, ..finding });
        }
        if !called {
            self.use_as_value(id, "not called", opaque);
        }
    }

    /// Adds a finding for a global that is used as a value.
    fn use_as_value(&mut self, id: GlobalId, how: &str, opaque: bool) {
        let global = self.values_of().global(id);
        let classification = gadgets::classify(global.module, global.name, false);
        let name = dotted(&global);
        let (verdict, text) = match classification.verdict {
            // A call that receives it as an argument may call it. To write is not to access the system, as long as no call says what.
            Verdict::WouldExecute if opaque && classification.reason != gadgets::WRITES_OUTPUT => (
                Verdict::WouldExecute,
                format!(
                    "{name} is imported and may be called by a function that receives it: it {}",
                    classification.reason
                ),
            ),
            Verdict::WouldExecute => {
                (Verdict::Unknown, format!("{name} is imported and {how}: it {}", classification.reason))
            }
            _ => (
                Verdict::Unknown,
                format!("{name} is imported and {how}; importing its module runs the module's code"),
            ),
        };
        let finding = self.finding("Import", verdict, global.offset, text);
        let pair = pair(&global);
        self.report.add(Finding { global: pair, readers: &["c", "python"], ..finding });
    }
}
