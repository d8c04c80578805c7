//! One pass over all values: persistent ids, duplicate keys, encoded payloads, reference cycles.

use std::collections::HashSet;

use super::{Classifier, cycles, pair};
use crate::pickle::{Handle, Value};
use crate::scan::encoded::encoded_payload;
use crate::scan::report::Finding;
use crate::scan::verdict::Verdict;

impl Classifier<'_> {
    /// Adds the findings of the values; returns the storage keys, if the context asks for them.
    pub(super) fn values(&mut self) -> HashSet<String> {
        let values = self.values_of();
        let mut keys = HashSet::new();
        let (mut duplicated, mut encoded, mut odd, mut hashed) = (0_u64, None, 0_u64, 0_u64);
        for value in values.iter() {
            let all_keys = match value {
                Value::Dict(pairs) => pairs.iter().all(|&(key, _)| self.proof.is_key(key)),
                Value::Set(items) | Value::FrozenSet(items) => {
                    items.iter().all(|&item| self.proof.is_key(item))
                }
                _ => true,
            };
            hashed = hashed.saturating_add(u64::from(!all_keys));
            match value {
                Value::PersistentId(pid) => {
                    if self.proof.module_class(pid).is_some() {
                        self.module_source(pid);
                    } else if !self.proof.is_persistent_id(pid) {
                        odd = odd.saturating_add(1);
                    }
                    if self.context.wants_keys
                        && let Value::Tuple(&[_, _, key, ..]) = values.get(pid)
                        && let Value::Str(key) = values.get(key)
                        && let Some(key) = key.as_str().filter(|key| key.len() <= 64 && !keys.contains(*key))
                    {
                        keys.insert(key.to_owned());
                    }
                }
                Value::Dict(pairs) if values.has_equal_keys(pairs) => {
                    duplicated = duplicated.saturating_add(1)
                }
                Value::Str(text) if encoded.is_none() => encoded = encoded_payload(text.as_bytes()),
                _ => {}
            }
        }
        let has_cycle = u64::from(self.recovered.aliased && cycles::has_cycle(values));
        let found = [
            ("DuplicateKey", Verdict::Inert, duplicated, "a dict has duplicate keys; the last value is kept"),
            ("SelfReference", Verdict::Inert, has_cycle, "a value contains itself"),
            ("PersistentId", Verdict::Unknown, odd, "a persistent id has a form that torch does not write"),
            (
                "DictKey",
                Verdict::Unknown,
                hashed,
                "a key of a dict or set is hashed and compared by code of its class",
            ),
            ("EncodedText", Verdict::Inert, u64::from(encoded.is_some()), encoded.unwrap_or_default()),
        ];
        for (code, verdict, times, text) in found.into_iter().filter(|&(_, _, times, _)| times > 0) {
            let finding = Finding { offset: None, times, ..self.finding(code, verdict, 0, text) };
            self.report.add(finding);
        }
        keys
    }
    /// Adds a finding for `('module', class, file, source)`, or in torch 0.1 for `(class, file, source)`. torch compares the source with that of
    /// the installed class, and warns (torch/serialization.py: `_check_container_source`).
    fn module_source(&mut self, pid: Handle) {
        let values = self.values_of();
        let class = self.proof.module_class(pid);
        let global = class.map(|class| pair(&values.global(class))).unwrap_or_default();
        let is_module = class.and_then(|class| self.proof.row(class)).is_some_and(|row| row.kind == "module");
        let is_text = match values.get(pid) {
            Value::Tuple(items) => items
                .iter()
                .rev()
                .take(2)
                .all(|&part| matches!(values.get(part), Value::Str(_) | Value::None)),
            _ => false,
        };
        let verdict = if is_module && is_text { Verdict::Inert } else { Verdict::Unknown };
        let text =
            "a persistent id carries a class and its source text; torch compares it with the local file";
        let finding = Finding { offset: None, global, ..self.finding("ModuleSource", verdict, 0, text) };
        self.report.add(finding);
    }
}
