//! Classifies BUILD states that are not understood: of unknown classes, of globals themselves, and of attributes that hide methods.

use super::{Classifier, MAX_SEARCHED_VALUES, dotted, pair};
use crate::pickle::{Call, Handle, Value};
use crate::scan::gadgets::{self, CallableFactory};
use crate::scan::preview;
use crate::scan::report::Finding;
use crate::scan::verdict::Verdict;

/// The methods that unpicklers look up on an object to grow it (`Modules/_pickle.c`: `do_append`, `load_additems`).
const GROWING_METHODS: [&[u8]; 3] = [b"append", b"extend", b"add"];

/// What ends the message about a state that an allowance of its class settles; python/rustload/_scan/text.py looks for it.
const SETTLED: &str = "; an allowance of the class covers it";

impl Classifier<'_> {
    /// Adds a BUILD to the trace, and to the findings unless the finding of its call covers it.
    pub(super) fn state(&mut self, offset: u64, target: Handle) {
        let values = self.values_of();
        let mut allowed = None;
        let ((global, verdict), finding) = match values.get(target) {
            Value::Global(id) => {
                let global = values.global(id);
                let text = format!("attributes of {} itself are set", dotted(&global));
                ((pair(&global), Verdict::WouldExecute), Some(("DisallowedGlobal", text)))
            }
            Value::Call(id) => {
                let call = values.call(id);
                let (owner, verdict) = self.owner(&call);
                if let Some(name) = self.hidden_method(&call) {
                    let name = preview::value(values, name);
                    let text = format!(
                        "gets the attribute {name}, which is looked up and called in place of a method"
                    );
                    ((owner, verdict), Some(("StateAttribute", text)))
                } else if let Some(attribute) = self.proof.refused(id) {
                    let what = attribute.map_or("a state".to_owned(), |name| {
                        format!("the attribute {}, whose value is", preview::value(values, name))
                    });
                    // What a module does with its state is code of its class, which an allowance trusts. NumPy takes it for pointers.
                    let is_module = self.proof.kind(id) == Some("module");
                    allowed = if is_module { self.report.allows(&owner.0, &owner.1) } else { None };
                    let settled = if is_module && allowed.is_none() { SETTLED } else { "" };
                    let text = format!("gets {what} of a form that is not known{settled}");
                    ((owner, verdict), Some(("StateAttribute", text)))
                } else {
                    // The finding of the call covers the rest of its state.
                    ((owner, verdict), None)
                }
            }
            _ => {
                let shown = (String::new(), preview::value(values, target));
                let text = "the state of a value of another type is set".to_owned();
                ((shown, Verdict::Unknown), Some(("PickleType", text)))
            }
        };
        self.step(("setstate", "BUILD"), offset, &global, "", verdict);
        if let Some((code, text)) = finding {
            let verdict = if allowed.is_some() { Verdict::Inert } else { verdict };
            let finding = self.finding(code, verdict, offset, text);
            self.report.add(Finding { global, allowed, readers: &["c", "python"], ..finding });
        }
    }

    /// The global that makes the target of a BUILD, and the verdict on its state.
    fn owner(&self, call: &Call<'_>) -> ((String, String), Verdict) {
        let Some(callee) = self.proof.callee(call) else {
            return ((String::new(), "(result of a call)".to_owned()), Verdict::Unknown);
        };
        let global = self.values_of().global(callee);
        let verdict = if self.proof.knows_global(callee) || self.is_harmless_partial(call) {
            Verdict::Unknown
        } else {
            gadgets::classify(global.module, global.name, false).verdict
        };
        (pair(&global), verdict)
    }

    /// The first attribute that an unpickler would call in place of a method of a class that is not known.
    fn hidden_method(&mut self, call: &Call<'_>) -> Option<Handle> {
        let values = self.values_of();
        let states = call.states.iter().take(MAX_SEARCHED_VALUES).map(|state| state.value);
        let parts = states.flat_map(|state| match values.get(state) {
            Value::Tuple(&[attributes, slots]) => [attributes, slots],
            _ => [state, state],
        });
        let parts: Vec<Handle> = parts.collect();
        parts.into_iter().find_map(|part| self.method_in(part))
    }

    /// The same in a dict of attributes. Any number of BUILDs may share one.
    fn method_in(&mut self, attributes: Handle) -> Option<Handle> {
        let values = self.values_of();
        let Value::Dict(pairs) = values.get(attributes) else { return None };
        let is_method = |key: Handle| match values.get(key) {
            Value::Str(name) => {
                let name = name.as_bytes();
                GROWING_METHODS.contains(&name) || (name.starts_with(b"__") && name.ends_with(b"__"))
            }
            _ => false,
        };
        let proof = &self.proof;
        *self.methods.entry(attributes).or_insert_with(|| {
            let mut pairs = pairs.iter();
            pairs.find_map(|&(key, value)| (is_method(key) && proof.may_be_called(value)).then_some(key))
        })
    }

    fn is_harmless_partial(&self, call: &Call<'_>) -> bool {
        let Some(callee) = self.proof.callee(call) else { return false };
        let global = self.values_of().global(callee);
        let partial = gadgets::callable_factory(global.module, global.name) == Some(CallableFactory::Partial);
        partial
            && !self.contains_executable(call.args)
            && call.states.iter().all(|state| !self.contains_executable(state.value))
    }
}
