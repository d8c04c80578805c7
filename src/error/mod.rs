//! The crate's error type: what went wrong, where, who must act, and what to try next.
//!
//! A [`Code`] is stable and belongs to exactly one [`Kind`]; the kind decides which Python class is raised. `Display` composes the
//! text from the path, the message, the member and the byte offset. What to try next is data, a [`Remedy`], which each face words.
//!
//! An error is text for people, and quotes names from files: control characters in it are escaped ([`printable`]).

mod code;
mod remedy;

use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

pub use self::code::{Code, Kind};
pub use self::remedy::{Remedy, Value};
use crate::sys;
use crate::text::{into_printable, printable};

/// When a limit may be raised that a file exceeds.
const IF_TRUSTED: &str = "if you trust the file";

/// A result with rustload's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An [`Error`] with a code and a message that is formatted as by `format!`.
macro_rules! error {
    ($code:expr, $($message:tt)+) => { $crate::error::Error::new($code, format!($($message)+)) };
}
/// Returns such an error.
macro_rules! bail {
    ($code:expr, $($message:tt)+) => { return Err($crate::error::error!($code, $($message)+)) };
}
pub(crate) use {bail, error};

/// The subject of an error as data, besides its text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Subject {
    /// No further data.
    #[default]
    Nothing,
    /// A global that a pickle names.
    Global {
        /// The module as written in the pickle.
        module: String,
        /// The name as written in the pickle.
        name: String,
    },
    /// A limit that was exceeded.
    Limit {
        /// The limit's name, as in [`Limits`](crate::limits::Limits).
        name: &'static str,
        /// The limit in force.
        limit: u64,
        /// What the file needs.
        found: u64,
    },
    /// A name that does not exist.
    Name(String),
    /// Results that do not fit the memory.
    Memory {
        /// The bytes that they need.
        needed: u64,
        /// The bytes that are available.
        available: u64,
        /// What bounds these: `cgroup`, `RLIMIT_AS`, `RLIMIT_DATA`, `machine`, `available_memory`, or `GPU`.
        bound: &'static str,
    },
}

/// rustload's error: a [`Code`], a message, and the path, member and byte offset where it occurred.
pub struct Error(Box<Inner>);

struct Inner {
    code: Code,
    message: String,
    path: Option<PathBuf>,
    member: Option<String>,
    offset: Option<u64>,
    argument: Option<&'static str>,
    remedies: Vec<Remedy>,
    subject: Subject,
    source: Option<io::Error>,
}

impl Error {
    /// An error with a code and a message (lower case, no final period). Control characters in the message are escaped.
    pub fn new(code: Code, message: impl Into<String>) -> Error {
        Error(Box::new(Inner {
            code,
            message: into_printable(message.into()),
            path: None,
            member: None,
            offset: None,
            argument: None,
            remedies: Vec::new(),
            subject: Subject::Nothing,
            source: None,
        }))
    }

    /// The operating system's error on `path`.
    pub fn io(source: io::Error, path: impl Into<Option<PathBuf>>) -> Error {
        let code = match source.kind() {
            io::ErrorKind::OutOfMemory => Code::Memory,
            _ => Code::Io,
        };
        let mut error = Error::new(code, source.to_string());
        error.0.path = path.into();
        error.0.source = Some(source);
        error
    }

    /// The error for a new file whose name is taken.
    pub(crate) fn target_exists(path: &Path) -> Error {
        let mut error = Error::io(sys::already_exists(), path.to_owned());
        error.0.code = Code::TargetExists;
        error
    }

    /// The error for a file or folder that another writer has locked.
    pub(crate) fn target_busy(target: &Path) -> Error {
        Error::new(Code::TargetBusy, "another writer, of this process or of another one, has this target")
            .in_file(target)
    }

    /// An exceeded limit: its name, its value, and what the file needs.
    pub fn limit(name: &'static str, limit: u64, found: u64) -> Error {
        let mut error = Error::new(
            Code::Limit,
            format!("limit {name} exceeded: the file needs {found}, the limit is {limit}"),
        );
        error.0.subject = Subject::Limit { name, limit, found };
        error.remedy(Remedy::Raise(name, IF_TRUSTED))
    }

    /// The error for results that need more memory than is available, as `bound` has it.
    pub(crate) fn not_enough_memory(text: String, needed: u64, available: u64, bound: &'static str) -> Error {
        let mut error = Error::new(Code::NotEnoughMemory, text);
        error.0.subject = Subject::Memory { needed, available, bound };
        error
    }

    /// Metadata of `compressed` bytes that inflates to `inflated` or more, where `ratio` times as many are allowed.
    pub(crate) fn inflate_ratio(ratio: u64, compressed: u64, inflated: u64) -> Error {
        let text =
            format!("{compressed} compressed byte(s) inflate to {inflated}, more than {ratio} times as many");
        let mut error = Error::new(Code::InflateRatio, text);
        let found = inflated.div_ceil(compressed.max(1));
        error.0.subject = Subject::Limit { name: "inflate_ratio", limit: ratio, found };
        error.remedy(Remedy::Raise("inflate_ratio", IF_TRUSTED))
    }

    /// An error about a global that is not allowed as the pickle uses it.
    pub fn global(code: Code, module: &str, name: &str, message: impl Into<String>) -> Error {
        let mut error = Error::new(code, message);
        error.0.subject = Subject::Global { module: module.to_owned(), name: name.to_owned() };
        error
    }

    /// The error for an unknown tensor name; the note suggests the names in `similar`.
    pub fn not_found(name: &str, similar: &[String]) -> Error {
        let mut error = Error::new(Code::NotFound, format!("no tensor is named {name:?}"));
        error.0.subject = Subject::Name(name.to_owned());
        match similar {
            [] => error,
            similar => error.note(format!("did you mean: {}", similar.join(", "))),
        }
    }

    /// Sets the byte offset, unless one is set already (the innermost caller's is kept).
    #[must_use]
    pub fn at(mut self, offset: u64) -> Error {
        self.0.offset.get_or_insert(offset);
        self
    }

    /// Adds to the byte offset: the error is one of bytes that begin at `start`.
    #[must_use]
    pub(crate) fn shifted(mut self, start: u64) -> Error {
        self.0.offset = self.0.offset.map(|offset| offset.saturating_add(start)).or(Some(start));
        self
    }

    /// Sets the member of the container, unless one is set already.
    #[must_use]
    pub fn in_member(mut self, member: &str) -> Error {
        self.0.member.get_or_insert_with(|| member.to_owned());
        self
    }

    /// Sets the member, in place of one that is set: for an archive inside another one.
    #[must_use]
    pub(crate) fn within_member(mut self, member: &str) -> Error {
        self.0.member = Some(member.to_owned());
        self
    }

    /// Wraps the error of a nested byte stream that is at `offset`: the member and offset inside the stream move into the message,
    /// after `what`.
    #[must_use]
    pub fn inside(mut self, what: &str, offset: u64) -> Error {
        self.0.message = format!("{what}: {self}");
        (self.0.member, self.0.offset) = (None, Some(offset));
        self
    }

    /// Sets the file, unless one is set already.
    #[must_use]
    pub fn in_file(mut self, path: &Path) -> Error {
        self.0.path.get_or_insert_with(|| path.to_owned());
        self
    }

    /// As [`Error::in_file`], where the file has a path.
    #[must_use]
    pub fn in_known_file(self, path: Option<&Path>) -> Error {
        match path {
            Some(path) => self.in_file(path),
            None => self,
        }
    }

    /// Sets what to try next, in words for any caller, in place of the code's remedies.
    #[must_use]
    pub fn note(self, note: impl Into<String>) -> Error {
        self.remedy(Remedy::Say(into_printable(note.into()).into()))
    }

    /// Sets what to try next, in place of the code's remedies.
    #[must_use]
    pub fn remedy(mut self, remedy: Remedy) -> Error {
        self.0.remedies = vec![remedy];
        self
    }

    /// Sets the argument that is at fault; the message goes on after its name: "is 'keep' or 'error', not 3".
    #[must_use]
    pub(crate) fn on_argument(mut self, argument: &'static str) -> Error {
        self.0.argument = Some(argument);
        self
    }

    /// The stable code.
    pub fn code(&self) -> Code {
        self.0.code
    }

    /// The category: who must act.
    pub fn kind(&self) -> Kind {
        self.0.code.kind()
    }

    /// The message without path, member and offset.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// The file, where known.
    pub fn path(&self) -> Option<&Path> {
        self.0.path.as_deref()
    }

    /// The member of the container, where known.
    pub fn member(&self) -> Option<&str> {
        self.0.member.as_deref()
    }

    /// The byte offset inside the member, or inside the file where there is no member.
    pub fn offset(&self) -> Option<u64> {
        self.0.offset
    }

    /// The argument that is at fault, where one is.
    pub fn argument(&self) -> Option<&'static str> {
        self.0.argument
    }

    /// Takes the argument out of the text, for a face that spells it in its own way.
    pub(crate) fn take_argument(&mut self) -> Option<&'static str> {
        self.0.argument.take()
    }

    /// What to try next: the alternatives that were set, or those of the code.
    pub fn remedies(&self) -> &[Remedy] {
        if self.0.remedies.is_empty() { self.0.code.remedies() } else { &self.0.remedies }
    }

    /// What to try next, as a sentence in the words of the Rust interface.
    pub fn next_step(&self) -> Option<String> {
        remedy::sentence(self.remedies())
    }

    /// The subject of the error as data.
    pub fn subject(&self) -> &Subject {
        &self.0.subject
    }

    /// The operating system's error, for [`Kind::Io`].
    pub fn io_error(&self) -> Option<&io::Error> {
        self.0.source.as_ref()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(path) = self.path() {
            write!(f, "{}: ", printable(&path.to_string_lossy()))?;
        }
        if let Some(argument) = self.argument() {
            write!(f, "{argument} ")?;
        }
        f.write_str(self.message())?;
        match (self.member().map(printable), self.offset()) {
            (Some(member), Some(offset)) => write!(f, " ({member}, byte {offset})"),
            (Some(member), None) => write!(f, " ({member})"),
            (None, Some(offset)) => write!(f, " (byte {offset})"),
            (None, None) => Ok(()),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {self}", self.code().as_str())
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_ref().map(|source| source as _)
    }
}

/// Runs `work` and catches a panic in it, which is a bug: it becomes a [`Code::InternalError`] instead of unwinding further.
pub fn guarded<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| panic.downcast_ref::<&str>().copied());
        let text = format!("internal error: {}", text.unwrap_or("a panic"));
        Err(Error::new(Code::InternalError, text))
    })
}

/// Adds the member or the file to the error of a result.
pub trait ResultExt<T> {
    /// Adds the member of the container.
    fn in_member(self, member: &str) -> Result<T>;
    /// Adds the file.
    fn in_file(self, path: &Path) -> Result<T>;
}

impl<T> ResultExt<T> for Result<T> {
    fn in_member(self, member: &str) -> Result<T> {
        self.map_err(|error| error.in_member(member))
    }

    fn in_file(self, path: &Path) -> Result<T> {
        self.map_err(|error| error.in_file(path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn display_includes_path_message_member_and_offset() {
        let error = Error::new(Code::PickleOpcode, "0xff is not an opcode").at(7).in_member("data.pkl");
        let error = error.in_file(Path::new("m.bin"));
        assert_eq!(error.to_string(), "m.bin: 0xff is not an opcode (data.pkl, byte 7)");
        assert_eq!(error.kind(), Kind::Format);
    }

    #[test]
    fn an_error_has_no_control_characters_and_its_fields_are_exact() {
        let hostile = "a\x1b[2J\n\u{202e}b";
        let error = Error::new(Code::ZipName, format!("member {hostile} is odd")).in_member(hostile);
        let error = error.in_file(Path::new(hostile)).note(format!("rename {hostile}"));
        let shown = "a\\x1b[2J\\n\\u202eb";
        assert_eq!(error.to_string(), format!("{shown}: member {shown} is odd ({shown})"));
        assert_eq!(error.next_step(), Some(format!("rename {shown}")));
        assert_eq!((error.member(), error.path()), (Some(hostile), Some(Path::new(hostile))));
        let error = Error::global(Code::DisallowedGlobal, hostile, hostile, "x");
        assert!(matches!(error.subject(), Subject::Global { module, .. } if module == hostile));
    }

    #[test]
    fn the_innermost_offset_and_member_are_kept() {
        let error = Error::new(Code::Truncated, "x").at(1).at(2).in_member("a").in_member("b");
        assert_eq!((error.offset(), error.member()), (Some(1), Some("a")));
    }

    #[test]
    fn codes_have_distinct_names() {
        let mut names: Vec<_> = Code::ALL.iter().map(|code| code.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Code::ALL.len());
    }

    #[test]
    fn remedies_are_worded_for_rust() {
        let words = |code| Error::new(code, "x").next_step().unwrap_or_default();
        assert_eq!(words(Code::TrailingData), "Set trailing to ignore if you know why they are there.");
        assert_eq!(
            words(Code::TargetExists),
            "Set overwrite to true to replace it, or write to another name."
        );
        assert_eq!(words(Code::NotFound), "List the names.");
        assert_eq!(words(Code::ZipCrc), "The file is damaged: fetch it again.");
        let limit = Error::limit("depth", 1, 2).next_step().unwrap_or_default();
        assert_eq!(limit, "Raise the limit depth if you trust the file.");
        assert_eq!(Error::new(Code::Value, "x").note("use y").next_step().as_deref(), Some("use y"));
        assert_eq!(Error::new(Code::Value, "is 1, not 2").on_argument("dim").to_string(), "dim is 1, not 2");
    }

    #[test]
    fn every_code_has_a_cause_and_a_next_step() {
        for code in Code::ALL {
            assert!(code.meaning().ends_with('.'), "{code:?}");
            // For a wrong argument, the message suffices.
            let needs_no_advice = matches!(code, Code::Value | Code::Index | Code::Type);
            let next = Error::new(*code, "x").next_step();
            assert_eq!(next.is_some_and(|step| step.ends_with('.')), !needs_no_advice, "{code:?}");
        }
    }
}
