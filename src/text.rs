//! Text from a file, in a form for people: without characters that act on a terminal or reorder a line, and of a bounded length.
//!
//! Whatever the library says about a file (an error, a note, a message of a scan) quotes names from the file in this form. Fields
//! that hold a name itself are exact. `python/rustload/_common/printable.py` has the same rule for what Python code formats.
#![forbid(unsafe_code)]

use std::borrow::Cow;
use std::fmt::Write as _;

/// The text with control characters, line breaks, bidirectional controls and other characters without a visible form as escape
/// sequences of Python (`\x1b`, `\u202e`). Other characters, a backslash among them, stay.
pub(crate) fn printable(text: &str) -> Cow<'_, str> {
    if text.bytes().all(|byte| matches!(byte, 0x20..0x7f)) || text.chars().all(is_printable) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    for char in text.chars() {
        if is_printable(char) {
            out.push(char);
        } else {
            escape(char, &mut out);
        }
    }
    Cow::Owned(out)
}

/// As [`printable`], for a text that is not needed otherwise.
pub(crate) fn into_printable(text: String) -> String {
    match printable(&text) {
        Cow::Borrowed(_) => text,
        Cow::Owned(escaped) => escaped,
    }
}

/// Whether a character is visible, by the rule of Python's `str.isprintable`: it is a space, or in none of Unicode's categories
/// "other" and "separator".
fn is_printable(char: char) -> bool {
    if char.is_ascii() {
        return matches!(char, ' '..='~');
    }
    // The standard library's table for `Debug` has this rule. At the start of a text, `Debug` also escapes what extends a letter.
    let mut pair = String::from("a");
    pair.push(char);
    pair.escape_debug().nth(1) == Some(char)
}

fn escape(char: char, out: &mut String) {
    let code = u32::from(char);
    // Writing to a `String` does not fail.
    let _ = match char {
        '\t' => out.write_str("\\t"),
        '\n' => out.write_str("\\n"),
        '\r' => out.write_str("\\r"),
        _ if code <= 0xff => write!(out, "\\x{code:02x}"),
        _ if code <= 0xffff => write!(out, "\\u{code:04x}"),
        _ => write!(out, "\\U{code:08x}"),
    };
}

/// The text, without its middle where it has more than `max_bytes` bytes: names from files can be arbitrarily long.
pub(crate) fn shortened(text: &str, max_bytes: usize) -> Cow<'_, str> {
    const GAP: &str = "...";
    if text.len() <= max_bytes {
        return Cow::Borrowed(text);
    }
    let kept = max_bytes.saturating_sub(GAP.len());
    let head = (0..=kept.saturating_sub(kept / 3)).rev().find_map(|end| text.get(..end));
    let tail = (text.len().saturating_sub(kept / 3)..=text.len()).find_map(|start| text.get(start..));
    let (head, tail) = (head.unwrap_or_default(), tail.unwrap_or_default());
    Cow::Owned([head, GAP, tail].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_acts_on_a_terminal_or_has_no_form_is_escaped() {
        let hostile = "a\x1b[31m\r\n\t\u{0}\u{7f}\u{85}\u{9b}\u{a0}\u{ad}\u{200b}\u{202e}\u{2028}\u{2066}\u{feff}\u{e000}\u{e0041}b";
        assert_eq!(
            printable(hostile),
            "a\\x1b[31m\\r\\n\\t\\x00\\x7f\\x85\\x9b\\xa0\\xad\\u200b\\u202e\\u2028\\u2066\\ufeff\\ue000\\U000e0041b"
        );
    }

    #[test]
    fn visible_text_stays_as_it_is() {
        for text in ["", "layers.0.weight", "a\\n'\"", "größe", "重み", "नमस्ते", "e\u{301}", "🙂"]
        {
            assert!(matches!(printable(text), Cow::Borrowed(_)), "{text}");
            assert_eq!(printable(text), text);
        }
    }

    #[test]
    fn a_long_text_loses_its_middle() {
        assert_eq!(shortened("abcdefghij", 10), "abcdefghij");
        assert_eq!(shortened("abcdefghijk", 10), "abcde...jk");
        assert_eq!(shortened("ééééééé", 10), "éé...é");
        assert_eq!(shortened("abc", 0), "...");
    }
}
