//! What to try after an error, as data: each face words it in its own names of options and functions.

use std::borrow::Cow;
use std::fmt;

/// What to try next. `Display` words it for Rust, `python/rustload/errors.py` for Python and for the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Remedy {
    /// In words for any caller.
    Say(Cow<'static, str>),
    /// Raise the limit of this name; and when.
    Raise(&'static str, &'static str),
    /// Pass an option with this value; and when, or to what end.
    Pass(&'static str, Value, &'static str),
    /// Call another function; and to what end.
    Call(&'static str, &'static str),
    /// List the names of the checkpoint.
    List,
}

/// The value of an option in a [`Remedy`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Value {
    /// A value of the caller's choice.
    Any,
    /// True or false.
    Flag(bool),
    /// One of the option's words.
    Word(&'static str),
}

impl fmt::Display for Remedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Remedy::Say(text) => f.write_str(text),
            Remedy::Raise(limit, when) => write!(f, "raise the limit {limit} {when}"),
            Remedy::Pass(option, Value::Any, why) => write!(f, "set {option} {why}"),
            Remedy::Pass(option, Value::Flag(flag), why) => write!(f, "set {option} to {flag} {why}"),
            Remedy::Pass(option, Value::Word(word), why) => write!(f, "set {option} to {word} {why}"),
            Remedy::Call(function, why) => write!(f, "call {function} {why}"),
            Remedy::List => f.write_str("list the names"),
        }
    }
}

/// The alternatives as one sentence; `None` without any. Words for any caller that are the only remedy stay as they are.
pub(super) fn sentence(remedies: &[Remedy]) -> Option<String> {
    if let [Remedy::Say(text)] = remedies {
        return Some(text.to_string());
    }
    let words: Vec<String> = remedies.iter().map(Remedy::to_string).collect();
    let words = words.join(", or ");
    let mut rest = words.chars();
    rest.next().map(|first| format!("{}{}.", first.to_uppercase(), rest.as_str()))
}
