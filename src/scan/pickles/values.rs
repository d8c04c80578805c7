//! One pass over all values: persistent ids, duplicate keys, encoded payloads, reference cycles.

use std::collections::HashSet;

use super::{Classifier, cycles, is_text, pair};
use crate::index::PersistentIdForm;
use crate::pickle::{Handle, Value};
use crate::scan::encoded::encoded_payload;
use crate::scan::report::{Finding, Verdict};

impl Classifier<'_> {
    /// Adds the findings of the values; returns the storage keys, if the context asks for them.
    pub(super) fn values(&mut self) -> HashSet<String> {
        let values = self.values_of();
        let mut keys = HashSet::new();
        let (mut duplicated, mut encoded, mut odd) = (0_u64, None, 0_u64);
        for value in values.iter() {
            match value {
                Value::PersistentId(pid) if self.context.ids == PersistentIdForm::Keyed => {
                    match values.get(pid) {
                        Value::Int(_) => {}
                        Value::Str(key) if is_number(key.as_bytes()) => {}
                        Value::Tuple(&[class, ref source @ ..]) => self.module_source(class, source),
                        _ => odd = odd.saturating_add(1),
                    }
                }
                Value::PersistentId(pid) => match values.get(pid) {
                    Value::Tuple(&[tag, _, key, ..]) if is_text(values, tag, "storage") => {
                        if self.context.wants_keys
                            && let Value::Str(key) = values.get(key)
                            && let Some(key) =
                                key.as_str().filter(|key| key.len() <= 64 && !keys.contains(*key))
                        {
                            keys.insert(key.to_owned());
                        }
                    }
                    Value::Tuple(&[tag, class, ref source @ ..]) if is_text(values, tag, "module") => {
                        self.module_source(class, source);
                    }
                    _ => odd = odd.saturating_add(1),
                },
                Value::Dict(pairs) if values.has_equal_keys(pairs) => {
                    duplicated = duplicated.saturating_add(1)
                }
                Value::Str(text) if encoded.is_none() => encoded = encoded_payload(text.as_bytes()),
                _ => {}
            }
        }
        let has_cycle = u64::from(self.recovered.aliased && cycles::has_cycle(values, self.recovered.root));
        let mut add = |code, verdict, times: u64, text: String| {
            if times > 0 {
                let finding = Finding { offset: None, times, ..self.finding(code, verdict, 0, text) };
                self.report.add(finding);
            }
        };
        add(
            "DuplicateKey",
            Verdict::Inert,
            duplicated,
            "a dict has duplicate keys; the last value is kept".to_owned(),
        );
        add("SelfReference", Verdict::Inert, has_cycle, "a value contains itself".to_owned());
        add(
            "PersistentId",
            Verdict::Unknown,
            odd,
            "a persistent id has a form that torch does not write".to_owned(),
        );
        add(
            "EncodedText",
            Verdict::Inert,
            u64::from(encoded.is_some()),
            encoded.unwrap_or_default().to_owned(),
        );
        keys
    }
    /// Adds a finding for `('module', class, file, source)`, or in torch 0.1 for `(class, file, source)`. torch compares the source with that of the installed class, and
    /// warns (torch/serialization.py: `_check_container_source`).
    fn module_source(&mut self, class: Handle, source: &[Handle]) {
        let values = self.values_of();
        let (global, is_known) = match values.get(class) {
            Value::Global(id) => {
                let global = values.global(id);
                (pair(&global), self.understanding.class(id).is_some())
            }
            _ => Default::default(),
        };
        let is_text = source.len() == 2
            && source.iter().all(|&part| matches!(values.get(part), Value::Str(_) | Value::None));
        let verdict = if is_known && is_text { Verdict::Inert } else { Verdict::Unknown };
        let text =
            "a persistent id carries a class and its source text; torch compares it with the local file";
        let finding = Finding { offset: None, global, ..self.finding("ModuleSource", verdict, 0, text) };
        self.report.add(finding);
    }
}

/// Whether text is the key of a tensor or storage of torch 0.1: at most as many digits as 64 bits have.
fn is_number(text: &[u8]) -> bool {
    (1..=20).contains(&text.len()) && text.iter().all(u8::is_ascii_digit)
}
