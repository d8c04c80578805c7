//! What a user declares to know: names of classes and functions that may be in a file without making it unknown.

use super::gadgets;
use super::verdict::Verdict;
use crate::error::{Code, Error, Result, bail};

/// The length of a module or a name, in bytes, up to which an allowance may cover it. Reports shorten longer ones.
const NAME_MAX_BYTES: usize = 256;

/// The names that a scan accepts beyond those that rustload understands.
///
/// An allowance is a dotted name, `mylib.config.Config`, or a pattern in which `*` stands for any characters,
/// `mylib.models.*`. It covers what the class or function does when it is imported, called and given a state. It never covers a name
/// that executes code or accesses the system.
///
/// ```
/// use rustload::scan::{self, Policy, Verdict};
///
/// let data: rustload::Bytes = std::sync::Arc::new(b"cmylib\nConfig\n)R.".to_vec());
/// let options = scan::Options::new().policy(Policy::new().allow("mylib.Config")?);
/// let report = scan::scan_bytes(data, &options)?;
/// assert_eq!(report.verdict(), Verdict::Inert);
/// assert_eq!(report.files[0].findings[0].allowed.as_deref(), Some("mylib.Config"));
/// assert!(Policy::new().allow("os.system").is_err());
/// # Ok::<(), rustload::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Policy {
    patterns: Vec<String>,
}

impl Policy {
    /// A policy that allows nothing.
    pub fn new() -> Policy {
        Policy::default()
    }

    /// Adds an allowance. Fails where it is not a dotted name or a pattern of one, and where it would cover a name that executes
    /// code or accesses the system.
    pub fn allow(mut self, pattern: &str) -> Result<Policy> {
        check(pattern)?;
        self.patterns.push(pattern.to_owned());
        Ok(self)
    }

    /// The allowances.
    pub fn patterns(&self) -> &[String] {
        &self.patterns
    }

    /// The first allowance that covers a global. A pattern covers no attribute path: `mylib.*` does not cover `mylib`'s
    /// `os.path`.
    pub(super) fn covers(&self, module: &str, name: &str) -> Option<&str> {
        let is_long = module.len().max(name.len()) > NAME_MAX_BYTES;
        if self.patterns.is_empty()
            || is_long
            || gadgets::classify(module, name, false).verdict > Verdict::Unknown
        {
            return None;
        }
        let dotted = format!("{module}.{name}");
        let covers = |pattern: &&String| {
            **pattern == dotted || (!name.contains('.') && matches(pattern.as_bytes(), dotted.as_bytes()))
        };
        self.patterns.iter().find(covers).map(String::as_str)
    }
}

/// Fails where a pattern is not of the form `module.name`, or covers a name of the knowledge base.
fn check(pattern: &str) -> Result<()> {
    let is_valid = |c: char| c.is_alphanumeric() || matches!(c, '_' | '.' | '*' | '-');
    let (module, name) = pattern.rsplit_once('.').unwrap_or_default();
    if module.is_empty() || name.is_empty() || pattern.starts_with('*') || !pattern.chars().all(is_valid) {
        bail!(Code::Value, "an allowance is a name such as mylib.Config or mylib.models.*, not {pattern:?}");
    }
    let found = if pattern.contains('*') {
        gadgets::names().find(|(known, _)| may_match(pattern.as_bytes(), known.as_bytes()))
    } else {
        let is_special = name.starts_with("__") && name.ends_with("__");
        let class = gadgets::classify(module, if is_special { "x.__class__" } else { name }, false);
        (class.verdict > Verdict::Unknown).then(|| (pattern.to_owned(), class.reason))
    };
    match found {
        None => Ok(()),
        Some((name, reason)) => {
            let covered = match name.strip_suffix('.') {
                Some(module) => format!("names of {module}, which"),
                None if name == pattern => "what".to_owned(),
                None => format!("{name}, which"),
            };
            let text = format!("{pattern} cannot be allowed: it covers {covered} {reason}");
            let note = "Allow the classes that you know one by one, or their own package: mylib.models.*";
            Err(Error::new(Code::Value, text).note(note))
        }
    }
}

/// Whether a pattern matches a text. Each `*` is tried at its first place, and moved on where the rest fails.
pub(super) fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut at, mut read) = (0_usize, 0_usize);
    let mut retry = None;
    while read < text.len() {
        match pattern.get(at) {
            Some(b'*') => {
                retry = Some((at, read));
                at = at.saturating_add(1);
            }
            Some(byte) if Some(byte) == text.get(read) => {
                (at, read) = (at.saturating_add(1), read.saturating_add(1));
            }
            _ => {
                let Some((star, from)) = retry else { return false };
                let from = from.saturating_add(1);
                retry = Some((star, from));
                (at, read) = (star.saturating_add(1), from);
            }
        }
    }
    pattern.get(at..).unwrap_or_default().iter().all(|byte| *byte == b'*')
}

/// Whether a pattern matches a name, or, where the name ends with a dot, any name that begins with it.
fn may_match(pattern: &[u8], known: &[u8]) -> bool {
    if !known.ends_with(b".") {
        return matches(pattern, known);
    }
    // Such a name exists if the pattern up to some `*` matches the beginning of `known`, or if `known` is one of the pattern's own.
    let literal = pattern.split(|byte| *byte == b'*').next().unwrap_or_default();
    literal.starts_with(known) || known.starts_with(literal)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(patterns: &[&str]) -> Policy {
        patterns.iter().try_fold(Policy::new(), |policy, pattern| policy.allow(pattern)).unwrap()
    }

    #[test]
    fn an_allowance_covers_its_name_and_a_pattern_what_it_matches() {
        let policy = policy(&["mylib.Config", "mylib.models.*", "other.*Config", "mylib.Outer.Inner"]);
        for (module, name, pattern) in [
            ("mylib", "Config", Some("mylib.Config")),
            ("mylib", "Config2", None),
            ("mylib.models", "Net", Some("mylib.models.*")),
            ("mylib.models.deep", "Net", Some("mylib.models.*")),
            ("other", "MyConfig", Some("other.*Config")),
            ("other", "Config.load", None),
            ("mylib", "Outer.Inner", Some("mylib.Outer.Inner")),
            ("mylib.models", "Net.helper", None),
            ("mylib.models", "system", None),
            ("mylib.models", "os.path", None),
            ("elsewhere", "Config", None),
        ] {
            assert_eq!(policy.covers(module, name), pattern, "{module}.{name}");
        }
    }

    #[test]
    fn what_executes_cannot_be_allowed() {
        for pattern in [
            "os.system",
            "posix.system",
            "builtins.eval",
            "builtins.getattr",
            "torch.load",
            "torch.*",
            "builtins.*",
            "os.*",
            "o*.path",
            "subprocess.P*",
            "importlib.util.*",
            "mylib.system",
            "mylib.Class.__init__",
            "mylib.__setstate__",
            "torch.storage._load_from_bytes",
            "numpy.*",
        ] {
            let error = Policy::new().allow(pattern).unwrap_err();
            assert!(error.message().contains("cannot be allowed"), "{pattern}: {}", error.message());
        }
        for pattern in ["", "Config", ".Config", "mylib.", "*", "*.Config", "my lib.Config", "mylib.Config()"]
        {
            let error = Policy::new().allow(pattern).unwrap_err();
            assert!(error.message().contains("an allowance is a name"), "{pattern}");
        }
        policy(&["torch.optim.*", "torch.nn.*", "osprey.*", "sklearn.*", "__main__.Config", "my.code.Net"]);
    }

    #[test]
    fn stars_match_any_characters() {
        for (pattern, text, expected) in [
            ("a.*", "a.b", true),
            ("a.*", "a.b.c", true),
            ("a.*", "ab", false),
            ("a.*b*c", "a.xbxbc", true),
            ("a.*b*c", "a.xcb", false),
            ("a.**", "a.", true),
        ] {
            assert_eq!(matches(pattern.as_bytes(), text.as_bytes()), expected, "{pattern} {text}");
        }
    }
}
