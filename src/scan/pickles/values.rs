//! One look at every value: persistent ids, equal keys, texts that hide something, values that hold themselves.

use std::collections::HashSet;

use super::{Judge, cycles, is_text};
use crate::pickle::Value;
use crate::scan::encoded::hidden;
use crate::scan::report::{Finding, Verdict};

impl Judge<'_> {
    /// Looks once at every value; gives the keys of storages.
    pub(super) fn values(&mut self) -> HashSet<String> {
        let values = self.values_of();
        let mut keys = HashSet::new();
        let (mut repeated, mut encoded, mut odd) = (0_u64, None, 0_u64);
        for value in values.iter() {
            match value {
                Value::PersistentId(pid) => match values.get(pid) {
                    Value::Tuple(&[tag, _, key, ..]) if is_text(values, tag, "storage") => {
                        if self.place.keys
                            && let Value::Str(key) = values.get(key)
                            && let Some(key) =
                                key.as_str().filter(|key| key.len() <= 64 && !keys.contains(*key))
                        {
                            keys.insert(key.to_owned());
                        }
                    }
                    Value::Tuple(&[tag, ..]) if is_text(values, tag, "module") => {
                        let text = "a persistent id carries a class and its source text; torch compares it with the local file";
                        let finding = Finding {
                            offset: None,
                            ..self.finding("ModuleSource", Verdict::Unknown, 0, text)
                        };
                        self.report.add(finding);
                    }
                    _ => odd = odd.saturating_add(1),
                },
                Value::Dict(pairs) if values.has_equal_keys(pairs) => repeated = repeated.saturating_add(1),
                Value::Str(text) if encoded.is_none() => encoded = hidden(text.as_bytes()),
                _ => {}
            }
        }
        let holds_itself = u64::from(self.survey.fetched && cycles::holds_itself(values, self.survey.root));
        let mut add = |code, verdict, times: u64, text: String| {
            if times > 0 {
                let finding = Finding { offset: None, times, ..self.finding(code, verdict, 0, text) };
                self.report.add(finding);
            }
        };
        add(
            "DuplicateKey",
            Verdict::Inert,
            repeated,
            "a dict has equal keys; the last value counts".to_owned(),
        );
        add("SelfReference", Verdict::Inert, holds_itself, "a value holds itself".to_owned());
        add("PersistentId", Verdict::Unknown, odd, "a persistent id is not one that torch writes".to_owned());
        add(
            "EncodedText",
            Verdict::Inert,
            u64::from(encoded.is_some()),
            encoded.unwrap_or_default().to_owned(),
        );
        keys
    }
}
