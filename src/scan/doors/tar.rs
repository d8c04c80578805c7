//! The door of tar readers: every member, as Python's `tarfile` finds it.
//!
//! Stands for `tarfile.open` of CPython 3.8 to 3.15, with which torch reads what torch 0.1 wrote. The checksum of the first header
//! decides, not the word `ustar`. A member of an unknown type is a regular file. Long names (GNU) and extended headers (pax) precede
//! the member that they describe. A sparse member, a size below zero, and extended headers for all members that change names or
//! sizes end in unscanned bytes: their contents are assembled from other places.

use super::super::file::{Scanner, inside};
use super::{Entered, Role, Visit};
use crate::bytes::Source;
use crate::error::Result;

/// Bytes of a tar block.
const BLOCK_BYTES: u64 = 512;
/// Bytes of a long name or of an extended header that are read.
const EXTENDED_MAX_BYTES: u64 = 1 << 20;
/// The members of a torch 0.1 archive that torch unpickles.
const PICKLES: [&str; 4] = ["pickle", "sys_info", "tensors", "storages"];

/// A header (POSIX ustar, GNU, V7).
struct Header {
    name: String,
    size: i64,
    kind: u8,
    /// Whether a GNU sparse header continues in the next block.
    is_extended: bool,
}

/// What headers before a member say about it.
#[derive(Default)]
struct Described {
    name: Option<String>,
    size: Option<i64>,
    /// Whether its content is not what follows its header.
    is_moved: bool,
}

/// Walks the members.
pub(super) fn walk(scanner: &mut Scanner<'_>, visit: &Visit<'_>, entered: &mut Entered) -> Result<()> {
    let Visit { source, label, depth, ref head, .. } = *visit;
    if head.get(..512).and_then(header).is_none() {
        return Ok(());
    }
    entered.tar = true;
    scanner.report.format.get_or_insert("tar");
    let end = source.len();
    if depth > scanner.options.limits.scan_depth {
        scanner.report.unscanned(label, "nested too deep", 0, end);
        return Ok(());
    }
    let (mut at, mut members, mut described) = (0_u64, 0_u64, Described::default());
    while at.saturating_add(BLOCK_BYTES) <= end {
        scanner.options.cancel.check()?;
        members = members.saturating_add(1);
        if members > scanner.options.limits.entries {
            scanner.report.unscanned(label, "too many members", at, end.saturating_sub(at));
            break;
        }
        let block = source.read_vec(at, BLOCK_BYTES)?;
        at = at.saturating_add(BLOCK_BYTES);
        // `ignore_zeros=True` reads on behind the end of an archive.
        if block.iter().all(|&byte| byte == 0) {
            continue;
        }
        let Some(mut header) = header(&block) else { break };
        if header.kind == b'S' {
            described.is_moved = true;
            while header.is_extended && at.saturating_add(BLOCK_BYTES) <= end {
                header.is_extended = source.read_vec(at.saturating_add(504), 1)? != [0];
                at = at.saturating_add(BLOCK_BYTES);
            }
        }
        let describes_next = matches!(header.kind, b'L' | b'K' | b'x' | b'X' | b'g');
        let size = described.size.filter(|_| !describes_next).unwrap_or(header.size);
        let Ok(size) = u64::try_from(size) else {
            scanner.report.unscanned(label, "a size below zero", at, end.saturating_sub(at));
            break;
        };
        let next = at.saturating_add(size.div_ceil(BLOCK_BYTES).saturating_mul(BLOCK_BYTES));
        let len = size.min(end.saturating_sub(at));
        if describes_next {
            let text = source.read_vec(at, len.min(EXTENDED_MAX_BYTES))?;
            if len > EXTENDED_MAX_BYTES || !described.add(header.kind, &text) {
                let why = "an extended header that moves the contents of members";
                scanner.report.unscanned(label, why, at, end.saturating_sub(at));
            }
            at = next;
            continue;
        }
        let described = std::mem::take(&mut described);
        let name = described.name.unwrap_or(header.name);
        let inner = inside(label, &name);
        // Links, folders, devices and pipes have no content. torch extracts members, and then reads the file that a link names.
        if matches!(header.kind, b'1'..=b'6') {
            if matches!(header.kind, b'1' | b'2') {
                scanner.report.unscanned(Some(&inner), "a link to another file", 0, 0);
            }
            continue;
        }
        if described.is_moved {
            scanner.report.unscanned(Some(&inner), "a sparse member, which is not assembled", 0, size);
        }
        if size > len {
            scanner.report.unscanned(Some(&inner), "a truncated member", 0, size.saturating_sub(len));
        }
        let window = source.window(at, len)?;
        scanner.tar_member(&window, &name, &inner, depth)?;
        at = next;
    }
    scanner.report.scanned(label, "tar", 0, end);
    Ok(())
}

impl Scanner<'_> {
    fn tar_member(&mut self, window: &Source, name: &str, inner: &str, depth: u64) -> Result<()> {
        if window.is_empty() {
            return Ok(());
        }
        let name = name.trim_start_matches("./");
        let role = if PICKLES.contains(&name) { Role::PickleMember } else { Role::Member };
        let entered = self.source(window, Some(inner), depth.saturating_add(1), role)?;
        // In these two members of a torch 0.1 archive, raw numbers and elements lie between the pickles.
        if entered.pickle && matches!(name, "tensors" | "storages") {
            self.report.unscanned(Some(inner), "pickles between raw numbers", 0, window.len());
        }
        Ok(())
    }
}

impl Described {
    /// Adds what a long name or an extended header says; returns whether it leaves contents where they are.
    fn add(&mut self, kind: u8, text: &[u8]) -> bool {
        match kind {
            b'L' => self.name = Some(text_field(text)),
            b'K' => {}
            kind => {
                let Some(records) = pax_records(text) else { return false };
                for (key, value) in records {
                    let is_harmless = match key {
                        b"path" if kind != b'g' => {
                            self.name = Some(String::from_utf8_lossy(value).into_owned());
                            true
                        }
                        b"size" if kind != b'g' => {
                            let size = std::str::from_utf8(value).ok().and_then(|size| size.parse().ok());
                            self.size = size.or(self.size);
                            size.is_some()
                        }
                        b"path" | b"size" => false,
                        key if key.starts_with(b"GNU.sparse.") => {
                            self.is_moved = true;
                            kind != b'g'
                        }
                        _ => true,
                    };
                    if !is_harmless {
                        return false;
                    }
                }
            }
        }
        true
    }
}

/// The records of an extended header, each `length key=value\n`; `None` where they are malformed.
fn pax_records(mut text: &[u8]) -> Option<Vec<(&[u8], &[u8])>> {
    let mut records = Vec::new();
    while text.first().is_some_and(|&byte| byte != 0) {
        let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let len: usize = std::str::from_utf8(text.get(..digits)?).ok()?.parse().ok()?;
        let record = text.get(digits..len)?.strip_prefix(b" ")?.strip_suffix(b"\n")?;
        let equals = record.iter().position(|&byte| byte == b'=')?;
        records.push((record.get(..equals)?, record.get(equals.saturating_add(1)..)?));
        text = text.get(len..)?;
    }
    Some(records)
}

/// The header in a block, if its checksum is right (`tarfile.py: TarInfo.frombuf`).
fn header(block: &[u8]) -> Option<Header> {
    let field = |from: usize, to: usize| block.get(from..to).unwrap_or_default();
    let stated = number(field(148, 156))?;
    let rest = || field(0, 148).iter().chain(field(156, 512));
    let unsigned: i64 = rest().map(|&byte| i64::from(byte)).sum();
    // Some writers summed signed bytes.
    let signed: i64 = rest().map(|&byte| i64::from(i8::from_le_bytes([byte]))).sum();
    if block.len() < 512 || ![unsigned, signed].iter().any(|sum| sum.saturating_add(256) == stated) {
        return None;
    }
    let kind = field(156, 157).first().copied().unwrap_or_default();
    let (name, prefix) = (text_field(field(0, 100)), text_field(field(345, 500)));
    let is_folder = kind == 0 && name.ends_with('/');
    let has_prefix = !prefix.is_empty() && !matches!(kind, b'L' | b'K' | b'S');
    Some(Header {
        name: if has_prefix { format!("{prefix}/{name}") } else { name },
        size: number(field(124, 136))?,
        kind: if is_folder { b'5' } else { kind },
        is_extended: block.get(482).is_some_and(|&byte| byte != 0),
    })
}

/// Text up to the first NUL.
fn text_field(field: &[u8]) -> String {
    let text = field.split(|&byte| byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).into_owned()
}

/// A number of a header (`tarfile.py: nti`): octal as Python's `int` reads it, or base 256 behind a byte 0x80 or 0xff.
fn number(field: &[u8]) -> Option<i64> {
    if let Some((&first @ (0x80 | 0xff), rest)) = field.split_first() {
        let start = if first == 0xff { -1_i64 } else { 0 };
        let add = |sum: i64, &byte: &u8| sum.checked_mul(256)?.checked_add(i64::from(byte));
        // What does not fit is far past the end of the file.
        return Some(rest.iter().try_fold(start, add).unwrap_or(if first == 0xff {
            i64::MIN
        } else {
            i64::MAX
        }));
    }
    let text = field.split(|&byte| byte == 0).next().unwrap_or_default();
    let text = std::str::from_utf8(text).ok()?.trim();
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => (-1, digits),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    let digits = digits.strip_prefix("0o").or_else(|| digits.strip_prefix("0O")).unwrap_or(digits);
    if digits.is_empty() {
        return text.is_empty().then_some(0);
    }
    let number = i64::from_str_radix(&digits.replace('_', ""), 8).ok()?;
    number.checked_mul(sign)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_python_reads_them() {
        for (field, expected) in [
            (&b"0000644\0"[..], Some(0o644)),
            (b" 644 \0xx", Some(0o644)),
            (b"\0\0\0\0", Some(0)),
            (b"6_44", Some(0o644)),
            (b"0o17", Some(0o17)),
            (b"-7\0", Some(-7)),
            (b"8\0", None),
            (b"\x80\0\0\x01\x02", Some(258)),
            (b"\xff\xff\xff\xff\xfe", Some(-2)),
            (b"\xff\x01\0\0\0\0\0\0\0\0\0\0", Some(i64::MIN)),
            (b"\x81\0\0\0\0", None),
        ] {
            assert_eq!(number(field), expected, "{field:?}");
        }
    }

    #[test]
    fn records_of_extended_headers_have_a_length_a_key_and_a_value() {
        let records = pax_records(b"12 path=abc\n10 size=5\n\0\0").unwrap();
        assert_eq!(records, [(&b"path"[..], &b"abc"[..]), (b"size", b"5")]);
        assert!(pax_records(b"99 path=abc\n").is_none());
    }
}
