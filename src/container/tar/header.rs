//! Header blocks and extended headers of tar archives: their fields, checksums, numbers and records.
//!
//! Shared by the strict reader and by the scan's walk, which reads headers as Python's `tarfile` does. Nothing is refused here: a
//! malformed field is `None`. Follows POSIX.1-2017 `pax` (ustar and pax interchange formats) and GNU tar's `tar.h`.

/// Bytes of a block: a header is one, and contents are padded to whole ones.
pub const BLOCK_BYTES: u64 = 512;

/// A header block.
#[derive(Clone, Copy, Debug)]
pub struct Header<'a>(&'a [u8; 512]);

/// The records of an extended header: keys and values.
pub(super) type Records<'a> = Vec<(&'a [u8], &'a [u8])>;

impl<'a> Header<'a> {
    /// The header in the first 512 bytes; `None` where there are fewer.
    pub fn new(block: &'a [u8]) -> Option<Header<'a>> {
        block.first_chunk().map(Header)
    }

    fn field(self, from: usize, to: usize) -> &'a [u8] {
        self.0.get(from..to).unwrap_or_default()
    }

    /// Whether all bytes are 0, as in the blocks at an archive's end.
    pub fn is_zero(self) -> bool {
        self.0.iter().all(|&byte| byte == 0)
    }

    /// `name`, up to its first NUL.
    pub fn name(self) -> &'a [u8] {
        text(self.field(0, 100))
    }

    /// `size`, as it is.
    pub fn size(self) -> &'a [u8] {
        self.field(124, 136)
    }

    /// `chksum`, as it is.
    pub fn checksum(self) -> &'a [u8] {
        self.field(148, 156)
    }

    /// `typeflag`.
    pub fn kind(self) -> u8 {
        self.field(156, 157).first().copied().unwrap_or_default()
    }

    /// `magic` and `version`.
    pub fn magic(self) -> &'a [u8] {
        self.field(257, 265)
    }

    /// `prefix`, as it is. GNU's headers have other fields there.
    pub fn prefix_field(self) -> &'a [u8] {
        self.field(345, 500)
    }

    /// `prefix`, up to its first NUL.
    pub fn prefix(self) -> &'a [u8] {
        text(self.prefix_field())
    }

    /// Whether a header of GNU's sparse format continues in the next block.
    #[cfg(feature = "scan")]
    pub fn is_continued(self) -> bool {
        self.0.get(482).is_some_and(|&byte| byte != 0)
    }

    /// The sum of all bytes, with spaces in place of the checksum.
    pub fn sum(self) -> i64 {
        self.sum_of(i64::from)
    }

    /// As [`Header::sum`], of bytes from -128 to 127, as a few old writers summed them.
    #[cfg(feature = "scan")]
    pub fn signed_sum(self) -> i64 {
        self.sum_of(|byte| i64::from(i8::from_le_bytes([byte])))
    }

    fn sum_of(self, value: impl Fn(u8) -> i64) -> i64 {
        let rest = self.field(0, 148).iter().chain(self.field(156, 512));
        rest.fold(256, |sum: i64, &byte| sum.saturating_add(value(byte)))
    }
}

/// Text up to the first NUL.
pub fn text(field: &[u8]) -> &[u8] {
    field.split(|&byte| byte == 0).next().unwrap_or_default()
}

/// A number in the form that all readers agree about: octal digits after spaces and before spaces or NULs, or base 256 after a byte
/// 0x80. `None` for other forms and numbers beyond 63 bits.
pub(super) fn plain_number(field: &[u8]) -> Option<u64> {
    if let Some((0x80, rest)) = field.split_first() {
        return base_256(0, rest).and_then(|number| u64::try_from(number).ok());
    }
    let start = field.iter().position(|&byte| byte != b' ')?;
    let digits = field.get(start..)?;
    let end = digits.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(digits.len());
    let (digits, rest) = digits.split_at_checked(end)?;
    if digits.is_empty() || rest.iter().any(|&byte| !matches!(byte, b' ' | 0)) {
        return None;
    }
    u64::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok().filter(|&number| number <= MAX)
}

/// The greatest number that a header or a record may have.
const MAX: u64 = u64::MAX >> 1;

/// Big-endian bytes behind a first value; `None` where the number does not fit 64 bits.
fn base_256(first: i64, bytes: &[u8]) -> Option<i64> {
    bytes.iter().try_fold(first, |sum, &byte| sum.checked_mul(256)?.checked_add(i64::from(byte)))
}

/// A number as Python's `tarfile` reads it (`tarfile.py: nti`): octal as its `int` reads text, or base 256 after a byte 0x80 or 0xff.
#[cfg(feature = "scan")]
pub fn python_number(field: &[u8]) -> Option<i64> {
    match field.split_first() {
        // What does not fit is far past the end of the file.
        Some((0x80, rest)) => return Some(base_256(0, rest).unwrap_or(i64::MAX)),
        Some((0xff, rest)) => return Some(base_256(-1, rest).unwrap_or(i64::MIN)),
        _ => {}
    }
    // Python's `str.strip` takes separators of information for spaces.
    let is_space = |c: char| c.is_whitespace() || ('\x1c'..='\x1f').contains(&c);
    let text = std::str::from_utf8(text(field)).ok()?.trim_matches(is_space);
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

/// A number of a record: decimal digits. `None` for other forms and numbers beyond 63 bits.
pub(super) fn decimal(value: &[u8]) -> Option<u64> {
    let is_plain = !value.is_empty() && value.iter().all(u8::is_ascii_digit);
    let text = std::str::from_utf8(value).ok().filter(|_| is_plain)?;
    text.parse().ok().filter(|&number| number <= MAX)
}

/// The records of an extended header, each `length key=value\n`, up to a NUL, and the bytes from there on. `None` where one is
/// malformed.
pub fn records(mut text: &[u8]) -> Option<(Records<'_>, &[u8])> {
    let mut records = Vec::new();
    while text.first().is_some_and(|&byte| byte != 0) {
        let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let len: usize = std::str::from_utf8(text.get(..digits)?).ok()?.parse().ok()?;
        let record = text.get(digits..len)?.strip_prefix(b" ")?.strip_suffix(b"\n")?;
        let equals = record.iter().position(|&byte| byte == b'=')?;
        records.push((record.get(..equals)?, record.get(equals.saturating_add(1)..)?));
        text = text.get(len..)?;
    }
    Some((records, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(feature = "scan")]
    fn numbers_are_read_as_python_reads_them() {
        for (field, expected) in [
            (&b"0000644\0"[..], Some(0o644)),
            (b" 644 \0xx", Some(0o644)),
            (b"\0\0\0\0", Some(0)),
            (b"6_44", Some(0o644)),
            (b"0o17", Some(0o17)),
            (b"17\x1f\x1c\0", Some(0o17)),
            (b"-7\0", Some(-7)),
            (b"8\0", None),
            (b"\x80\0\0\x01\x02", Some(258)),
            (b"\xff\xff\xff\xff\xfe", Some(-2)),
            (b"\xff\x01\0\0\0\0\0\0\0\0\0\0", Some(i64::MIN)),
            (b"\x81\0\0\0\0", None),
        ] {
            assert_eq!(python_number(field), expected, "{field:?}");
        }
    }

    #[test]
    fn plain_numbers_have_one_meaning() {
        for (field, expected) in [
            (&b"0000644\0"[..], Some(0o644)),
            (b"  644 \0 ", Some(0o644)),
            (b"00000000644", Some(0o644)),
            (b"\x80\0\0\x01\x02", Some(258)),
            (b"\0\0\0\0", None),
            (b"    ", None),
            (b"6_44\0", None),
            (b"0o17\0", None),
            (b"+7\0", None),
            (b"-7\0", None),
            (b"8\0", None),
            (b"644\x007", None),
            (b"\xff\xff\xff\xff\xfe", None),
            (b"\x80\0\0\0\x80\0\0\0\0\0\0\0", None),
            (b"\x80\0\0\0\x7f\xff\xff\xff\xff\xff\xff\xff", Some(MAX)),
        ] {
            assert_eq!(plain_number(field), expected, "{field:?}");
        }
        assert_eq!(
            (decimal(b"08"), decimal(b""), decimal(b"+1"), decimal(b"1_0")),
            (Some(8), None, None, None)
        );
        assert_eq!((decimal(b"9223372036854775807"), decimal(b"9223372036854775808")), (Some(MAX), None));
    }

    #[test]
    fn records_of_extended_headers_have_a_length_a_key_and_a_value() {
        let (found, rest) = records(b"12 path=abc\n10 size=5\n\0\0").unwrap();
        assert_eq!(found, [(&b"path"[..], &b"abc"[..]), (b"size", b"5")]);
        assert_eq!(rest, b"\0\0");
        assert!(records(b"99 path=abc\n").is_none());
        assert!(records(b"0 path=abc\n").is_none());
    }
}
