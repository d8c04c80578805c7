//! Reads the parameter and buffer names of the classes in a TorchScript archive.
//!
//! `torch.jit.save` writes every attribute of a module into `data.pkl`, and the source of its class into `code/`. The source starts
//! with two lists (torch/csrc/jit/serialization/python_print.cpp: `printClass`), and only these are read:
//!
//! ```text
//! class LSTM(Module):
//!   __parameters__ = ["weight_ih_l0", "weight_hh_l0", ]
//!   __buffers__ = []
//! ```
//!
//! A class whose lists are missing or have another form is left out; then all its tensors are named.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};

use crate::container::zip::Archive;
use crate::error::Result;
use crate::index::model::Options;
use crate::limits::Limits;
use crate::pickle::{GlobalId, Values};

/// The root of the module names of TorchScript classes.
const ROOT_MODULE: &str = "__torch__";

/// The attributes of a class, as its source declares them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ScriptClass {
    /// Whether it is a module.
    pub(crate) is_module: bool,
    /// The names of its parameters.
    pub(crate) parameters: HashSet<String>,
    /// The names of its buffers; `None` in sources from before torch 1.7, where every other tensor of a module is a buffer.
    pub(crate) buffers: Option<HashSet<String>>,
}

/// The classes of the values in the pickle of an archive, by global id.
pub(crate) type ScriptClasses = HashMap<GlobalId, ScriptClass>;

/// Reads the TorchScript classes that `values` names from the archive's `code/`; `root` is its root folder. Fails with `Limit`
/// where the sources are too long.
pub(crate) fn read(
    archive: &Archive,
    root: &str,
    values: &Values,
    options: &Options,
) -> Result<ScriptClasses> {
    let mut sources: HashMap<String, HashMap<String, ScriptClass>> = HashMap::new();
    let mut classes = ScriptClasses::new();
    let mut total = 0_u64;
    for (id, _) in values.globals() {
        let global = values.global(id);
        if !is_class(global.module) {
            continue;
        }
        let member = format!("{root}code/{}.py", global.module.replace('.', "/"));
        let source = match sources.entry(member) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => {
                let parsed = match archive.find(entry.key()) {
                    None => HashMap::new(),
                    Some(position) => {
                        total = total.saturating_add(
                            archive.members().get(position).map_or(0, |member| member.size()),
                        );
                        let limits = &options.limits;
                        Limits::check("inflate_bytes", limits.inflate_bytes, total)?;
                        parse(&archive.read(
                            position,
                            "inflate_bytes",
                            limits.inflate_bytes,
                            &options.cancel,
                        )?)
                    }
                };
                entry.insert(parsed)
            }
        };
        if let Some(class) = source.get(global.name) {
            classes.insert(id, class.clone());
        }
    }
    Ok(classes)
}

/// Whether a module name is that of TorchScript classes.
pub(crate) fn is_class(module: &str) -> bool {
    module.strip_prefix(ROOT_MODULE).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// Parses the classes of one source, by name.
fn parse(source: &[u8]) -> HashMap<String, ScriptClass> {
    let source = String::from_utf8_lossy(source);
    let mut classes = HashMap::new();
    let mut lines = source.lines().peekable();
    while let Some(line) = lines.next() {
        let Some((name, base)) = header(line) else { continue };
        let mut class = ScriptClass { is_module: base == "Module", ..ScriptClass::default() };
        let parameters =
            lines.next_if(|line| line.starts_with(PARAMETERS)).and_then(|line| list(line, PARAMETERS));
        let buffers = lines.next_if(|line| line.starts_with(BUFFERS)).map(|line| list(line, BUFFERS));
        match (class.is_module, parameters, buffers) {
            (false, ..) => {}
            (true, Some(parameters), None) => class.parameters = parameters,
            (true, Some(parameters), Some(Some(buffers))) => {
                (class.parameters, class.buffers) = (parameters, Some(buffers));
            }
            _ => continue,
        }
        classes.insert(name.to_owned(), class);
    }
    classes
}

/// The start of the line that lists parameters.
const PARAMETERS: &str = "  __parameters__ = ";
/// The start of the line that lists buffers.
const BUFFERS: &str = "  __buffers__ = ";

/// Parses `class Name(Base):` into name and base; the base is empty in `class Name:`.
fn header(line: &str) -> Option<(&str, &str)> {
    let rest = line.strip_prefix("class ")?.strip_suffix(':')?;
    match rest.strip_suffix(')') {
        Some(rest) => rest.split_once('('),
        None => (!rest.contains('(')).then_some((rest, "")),
    }
}

/// Parses the strings of `["one", "two", ]`; `None` where the form is another. torch escapes nothing, so a string with a quote is
/// ambiguous.
fn list(line: &str, prefix: &str) -> Option<HashSet<String>> {
    let mut rest = line.strip_prefix(prefix)?.strip_prefix('[')?.strip_suffix(']')?;
    let mut out = HashSet::new();
    while !rest.is_empty() {
        let (text, after) = rest.strip_prefix('"')?.split_once("\", ")?;
        if text.contains('"') {
            return None;
        }
        out.insert(text.to_owned());
        rest = after;
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(names: &[&str]) -> HashSet<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    #[test]
    fn the_lists_of_a_class_are_read_and_nothing_else_is() {
        let source = b"class M(Module):\n  __parameters__ = [\"w\", \"0\", ]\n  __buffers__ = []\n  w : Tensor\n  \
            def f(self):\n    __parameters__ = [\"x\", ]\nclass Old(Module):\n  __parameters__ = []\n  b : Tensor\n\
            class Pair(NamedTuple):\n  a : Tensor\nclass Odd(Module):\n  __parameters__ = [\"a\"b\", ]\n\
            class Bare:\n  c : int\nclass None(Module):\n  a : Tensor\n";
        let classes = parse(source);
        let module = |parameters: &[&str], buffers: Option<&[&str]>| ScriptClass {
            is_module: true,
            parameters: set(parameters),
            buffers: buffers.map(set),
        };
        assert_eq!(classes["M"], module(&["w", "0"], Some(&[])));
        assert_eq!(classes["Old"], module(&[], None));
        assert_eq!(classes["Pair"], ScriptClass::default());
        assert_eq!(classes["Bare"], ScriptClass::default());
        assert!(!classes.contains_key("Odd") && !classes.contains_key("None"));
        assert!(parse(b"class \xff(:\nclass (\nclass ").is_empty());
    }
}
