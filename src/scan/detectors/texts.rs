//! What the members of an archive mean to its readers by their names.
//!
//! A scan is a statement about every member: a reader acts on it in a way that a detector follows, or a grammar here has all of its text. A
//! member that has neither is unscanned, whatever it contains: a reader that is not known here may act on it.

use super::super::report::Finding;
use super::super::scanner::Detected;
use super::super::scanner::Scanner;
use super::super::verdict::Verdict;
use crate::bytes::Source;
use crate::container::zip::fold_case;
use crate::error::Result;

/// Bytes of a text of which the grammars accept no more.
pub(super) const GRAMMAR_MAX_BYTES: u64 = 64;

/// What a name means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    /// Nothing: the detectors decide by the content.
    Content,
    /// A short text of torch's archives, which a grammar has.
    Text(Grammar),
    /// The code of TorchScript, which is a finding of its own.
    Code,
    /// YAML, which [`yaml`](super::yaml) judges.
    Yaml,
    /// Elements, or what another part of the scan judges as a whole.
    Judged,
    /// What a reader takes for code, or acts on in a way that no detector follows; says so.
    Acted(&'static str),
}

/// The grammar of a short text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Grammar {
    /// A number, and in archives of torch a line feed.
    Number,
    /// A number of two parts, in exported programs of torch before 2.8.
    Version,
    /// A number with which torch computes offsets.
    Alignment,
    ByteOrder,
    /// The format of an exported program.
    Format,
}

/// The meaning of a member's name, compared without case, as torch's reader compares it.
pub(super) fn meaning(name: &str, is_export: bool) -> Meaning {
    let name = fold_case(name.trim_matches('\0'));
    let file = name.rsplit(['/', '\\']).next().unwrap_or_default();
    let extension = file.rsplit_once('.').map_or("", |(_, extension)| extension);
    match (file, extension) {
        ("version", _) if is_export && !name.contains('/') => Meaning::Text(Grammar::Version),
        ("version" | ".format_version" | "serialization_id" | "archive_version", _) => {
            Meaning::Text(Grammar::Number)
        }
        (".storage_alignment", _) => Meaning::Text(Grammar::Alignment),
        ("byteorder", _) => Meaning::Text(Grammar::ByteOrder),
        ("archive_format", _) => Meaning::Text(Grammar::Format),
        ("schema.json", _) => {
            Meaning::Acted("a schema: skops.io.load imports and calls what it names, as far as it is trusted")
        }
        ("config.json", _) => Meaning::Acted(
            "a configuration: keras.models.load_model imports and calls what that of a model names",
        ),
        ("model.json", _) if !is_export => {
            Meaning::Acted("the index of a TorchScript archive of torch before 1.1, which runs code in it")
        }
        ("bytecode.pkl", _) => Meaning::Acted("a program, which torch.jit.mobile runs"),
        (_, "py") if name.contains("/code/") => Meaning::Code,
        (_, "py" | "pyc") => Meaning::Acted("code in Python or TorchScript"),
        (_, "yaml" | "yml") => Meaning::Yaml,
        // TorchScript's constants.
        _ if !is_export
            && name.rsplit_once("/constants/").is_some_and(|(_, key)| key.parse::<u32>().is_ok()) =>
        {
            Meaning::Judged
        }
        (_, "json") if !is_export => Meaning::Acted("JSON, on which a reader may act"),
        _ => Meaning::Content,
    }
}

impl Scanner<'_> {
    /// Notes a member as unscanned unless a grammar or a detector has all of it.
    pub(super) fn interpreted(
        &mut self,
        window: &Source,
        meaning: Meaning,
        inner: &str,
        detected: &Detected,
    ) -> Result<()> {
        let why = match meaning {
            Meaning::Code | Meaning::Judged => return Ok(()),
            Meaning::Yaml => return self.yaml(window, inner),
            Meaning::Content if detected.any() => return Ok(()),
            Meaning::Content => "a member that no known reader acts on",
            Meaning::Acted(why) => why,
            Meaning::Text(grammar) => {
                let text = window.read_vec(0, window.len().min(GRAMMAR_MAX_BYTES))?;
                if grammar.accepts(&text) {
                    return Ok(());
                }
                if grammar == Grammar::Alignment {
                    self.bad_alignment(&text, inner);
                }
                "a text that is not as torch writes it"
            }
        };
        self.report.unscanned(Some(inner), why, 0, window.len());
        Ok(())
    }

    fn bad_alignment(&mut self, text: &[u8], inner: &str) {
        let text: String = String::from_utf8_lossy(text).chars().take(40).collect();
        let text = format!("the storage alignment is {text:?}");
        let finding = Finding::new("BadAlignment", Verdict::Inert, Some(inner), text);
        self.report.add(Finding { offset: Some(0), readers: &["torch"], ..finding });
    }
}

impl Grammar {
    /// Whether a text is of the grammar.
    pub(super) fn accepts(self, text: &[u8]) -> bool {
        let is_number = |text: &[u8], digits: usize| {
            (1..=digits).contains(&text.len()) && text.iter().all(u8::is_ascii_digit)
        };
        let line = text.strip_suffix(b"\n").unwrap_or(text);
        match self {
            // torch's writer gives an archive an id of 40 digits.
            Grammar::Number => is_number(line, 40),
            // torch/serialization.py: `_load`.
            Grammar::Alignment => is_number(text, 9) && text.iter().any(|&byte| byte != b'0'),
            Grammar::Version => line.splitn(2, |&byte| byte == b'.').all(|part| is_number(part, 9)),
            Grammar::ByteOrder => matches!(text, b"little" | b"big"),
            Grammar::Format => text == b"pt2",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_compared_without_case() {
        assert_eq!(meaning("archive/VERSION", false), Meaning::Text(Grammar::Number));
        assert_eq!(meaning("version", true), Meaning::Text(Grammar::Version));
        assert_eq!(meaning("archive/data/0", false), Meaning::Content);
        assert_eq!(meaning("a/Code/x.PY", false), Meaning::Code);
        for name in ["a/x.PY", "Model.json", "a/BYTECODE.pkl", "config.JSON"] {
            assert!(matches!(meaning(name, false), Meaning::Acted(_)), "{name}");
        }
    }

    #[test]
    fn grammars_accept_what_torch_writes_and_nothing_else() {
        let id = "0241533804661665241314736264053072283732";
        for (grammar, text) in [
            (Grammar::Number, "3\n"),
            (Grammar::Number, "0"),
            (Grammar::Number, id),
            (Grammar::Alignment, "64"),
            (Grammar::Version, "8.2"),
            (Grammar::ByteOrder, "little"),
            (Grammar::Format, "pt2"),
        ] {
            assert!(grammar.accepts(text.as_bytes()), "{text}");
        }
        for (grammar, text) in [
            (Grammar::Number, ""),
            (Grammar::Number, "+3"),
            (Grammar::Number, "3 "),
            (Grammar::Number, "3\n\n"),
            (Grammar::Number, "0x3"),
            (Grammar::Alignment, "0"),
            (Grammar::Alignment, "64\n"),
            (Grammar::Version, "8."),
            (Grammar::Version, "1.2.3"),
            (Grammar::ByteOrder, "Little"),
            (Grammar::Format, "pt2\n"),
        ] {
            assert!(!grammar.accepts(text.as_bytes()), "{text}");
        }
    }
}
