//! The configurations in an archive: YAML, which names what a reader makes of it.
//!
//! Stands for NeMo (`save_restore_connector.py`, `core/classes/common.py`), which gives the YAML of a `.nemo` to omegaconf and hydra: the
//! value of `_target_` is imported and called, and so is that of `target` and the like by older versions; `${name:...}` calls a resolver.
//! PyYAML's full loaders call what tags name. A tree of texts, numbers, lists and mappings without any of these is inert. As parsers of
//! YAML differ, a name that is there and that ours does not see as a key is not proof that another one does not.

use saphyr_parser::{Event, Parser, Tag};

use super::super::report::{Finding, short};
use super::super::scanner::Scanner;
use super::super::verdict::Verdict;
use crate::bytes::Source;
use crate::error::Result;
use crate::num::to_u64;

/// A longer text is not read.
const YAML_MAX_BYTES: u64 = 1 << 20;
/// The key whose value hydra imports and calls.
const TARGET: &str = "_target_";
/// Keys of which some reader imports or calls the value.
const NAMES: [&str; 6] = ["target", "cls", "class_path", "_partial_", "_args_", "_convert_"];
/// Types that every loader makes data of.
const PLAIN_TAGS: [&str; 7] = ["str", "int", "float", "bool", "null", "seq", "map"];

/// What a reader does with a part of the text.
struct Act {
    verdict: Verdict,
    message: String,
    offset: u64,
    /// A name that a reader imports, for an allowance.
    name: Option<String>,
}

impl Scanner<'_> {
    /// Walks YAML.
    pub(super) fn yaml(&mut self, window: &Source, inner: &str) -> Result<()> {
        let bytes = window.read_vec(0, window.len().min(YAML_MAX_BYTES))?;
        let text = std::str::from_utf8(&bytes).ok().filter(|_| window.len() <= YAML_MAX_BYTES);
        let Some(text) = text else {
            self.report.unscanned(Some(inner), "YAML that is too large, or not UTF-8", 0, window.len());
            return Ok(());
        };
        let is_whole = acts(text, |act| {
            let global = act.name.as_deref().and_then(|name| name.rsplit_once('.')).unwrap_or_default();
            let global = (short(global.0), short(global.1));
            let finding = Finding::new("CodeInArchive", act.verdict, Some(inner), act.message);
            self.report.add(Finding { offset: Some(act.offset), global, readers: &["nemo"], ..finding });
        });
        if is_whole {
            self.report.scanned(Some(inner), "YAML", 0, window.len());
        } else {
            self.report.unscanned(
                Some(inner),
                "YAML that parsers may read in different ways",
                0,
                window.len(),
            );
        }
        Ok(())
    }
}

/// A collection that is open.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Open {
    List,
    /// A mapping whose next node is a key.
    Key,
    /// A mapping whose next node is the value of a key.
    Value(Option<&'static str>),
}

/// Passes on what readers do with a text. Returns whether other parsers can read nothing else.
fn acts(text: &str, mut act: impl FnMut(Act)) -> bool {
    let (mut open, mut has_target) = (Vec::<Open>::new(), false);
    for event in Parser::new_from_str(text) {
        let Ok((event, span)) = event else { return false };
        let offset = to_u64(span.start.index());
        let (tag, scalar) = match &event {
            Event::Scalar(value, _, _, tag) => (tag.as_deref(), Some(value.as_ref())),
            Event::SequenceStart(_, tag) | Event::MappingStart(_, tag) => (tag.as_deref(), None),
            Event::SequenceEnd | Event::MappingEnd => {
                open.pop();
                continue;
            }
            Event::Alias(_) => (None, None),
            _ => continue,
        };
        if let Some(tag) = tag.filter(|tag| !is_plain(tag)) {
            let message = format!("a tag of YAML names what a loader makes: {tag}");
            act(Act { verdict: Verdict::WouldExecute, message, offset, name: None });
        }
        // What the node is to the collection around it.
        let origin = open.last().copied();
        match (origin, scalar) {
            // A key that is a collection or another node's.
            (Some(Open::Key), None) => return false,
            (Some(Open::Key), Some(key)) => {
                let known = std::iter::once(&TARGET).chain(&NAMES).find(|known| **known == key).copied();
                has_target |= known == Some(TARGET);
                set_last(&mut open, Open::Value(known));
            }
            (Some(Open::Value(Some(key))), value) => {
                act(named(key, value, offset));
                set_last(&mut open, Open::Key);
            }
            (Some(Open::Value(None)), _) => set_last(&mut open, Open::Key),
            _ => {}
        }
        if let Some(value) = scalar.filter(|value| resolves(value)) {
            let message = format!("a text calls a resolver of omegaconf: {value:?}");
            act(Act { verdict: Verdict::Unknown, message, offset, name: None });
        }
        match event {
            Event::SequenceStart(..) => open.push(Open::List),
            Event::MappingStart(..) => open.push(Open::Key),
            _ => {}
        }
    }
    let is_escaped = ["\\x", "\\u", "\\U"].iter().any(|escape| text.contains(escape));
    // Lines end there for YAML 1.1, which PyYAML reads, and not for 1.2.
    let has_other_breaks = text.contains(['\u{85}', '\u{2028}', '\u{2029}']);
    !is_escaped && !has_other_breaks && (has_target || !text.contains(TARGET))
}

fn set_last(open: &mut [Open], to: Open) {
    if let Some(last) = open.last_mut() {
        *last = to;
    }
}

/// What a reader does with the value of a key that names something.
fn named(key: &str, value: Option<&str>, offset: u64) -> Act {
    let (verdict, what) = match key {
        TARGET => (Verdict::WouldExecute, "hydra imports and calls the value of"),
        _ => (Verdict::Unknown, "a reader may import and call the value of"),
    };
    let value = value.unwrap_or("a collection");
    Act { verdict, message: format!("{what} {key}: {value}"), offset, name: Some(value.to_owned()) }
}

/// Whether every loader makes data of a node with this tag.
fn is_plain(tag: &Tag) -> bool {
    tag.is_yaml_core_schema() && PLAIN_TAGS.contains(&tag.suffix.as_str())
}

/// Whether a text has an interpolation other than of a node: `${oc.env:HOME}`, not `${model.dim}`.
fn resolves(value: &str) -> bool {
    value.split("${").skip(1).any(|rest| {
        let is_node = |inner: &str| {
            inner
                .chars()
                .all(|char| char.is_ascii_alphanumeric() || matches!(char, '_' | '.' | '-' | '[' | ']'))
        };
        !rest.split_once('}').is_some_and(|(inner, _)| is_node(inner))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(text: &str) -> (Verdict, bool) {
        let mut verdict = Verdict::Inert;
        let is_whole = acts(text, |act| verdict = verdict.max(act.verdict));
        (verdict, is_whole)
    }

    #[test]
    fn plain_trees_are_inert() {
        for text in [
            "",
            "sample_rate: 16000\nlabels: [a, 'b', \"c\"]\nmodel:\n  - x: ${model.dim}\n    y: |\n      text\n",
            "a: &one {b: 1}\nc: *one\n---\n- !!str 1\n",
        ] {
            assert_eq!(judged(text), (Verdict::Inert, true), "{text}");
        }
    }

    #[test]
    fn what_names_code_would_execute() {
        for text in [
            "_target_: os.system",
            "a: {b: [{'_target_': x}]}",
            "? _target_\n: x",
            "\"_target_\": [a]",
            "a: !!python/object/apply:os.system [id]",
            "!mine a",
            "a: !<tag:yaml.org,2002:python/name:os.system> ''",
            "%TAG !p! tag:yaml.org,2002:python/\n---\na: !p!name:os.system ''",
        ] {
            assert_eq!(judged(text).0, Verdict::WouldExecute, "{text}");
        }
    }

    #[test]
    fn what_may_is_unknown() {
        for text in
            ["target: nemo.Model", "a: {cls: x.Y}", "a: ${oc.env:HOME}", "a: b${eval:'1'}", "a: ${b${c}}"]
        {
            assert_eq!(judged(text).0, Verdict::Unknown, "{text}");
        }
        for text in [
            "a: \"\\x5ftarget_\"",
            "a: |\n  _target_: x",
            "[a, b]: c",
            "a: [",
            "*a : b",
            "a: 'x\n_target_: y'",
        ] {
            assert!(!judged(text).1, "{text}");
        }
    }
}
