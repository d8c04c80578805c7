//! Parses text arguments of opcodes: decimal numbers, string escapes, and UTF-8 with lone surrogates.
//!
//! A number is accepted only in a form that both of CPython's unpicklers read alike (`INT 0x10`, `FLOAT 1_0.0` and `GET 01` are
//! refused). Strings follow `pickletools`: STRING has Python's byte escapes, UNICODE is raw-unicode-escape, the binary forms are
//! UTF-8 with `surrogatepass`.

use crate::error::{Code, Error, Result, error};
use crate::num::to_u64;

/// An integer parsed from text: of 64 bits, or larger as little-endian two's complement bytes.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Integer {
    Small(i64),
    Big(Vec<u8>),
}

/// `pickletools: INT`: canonical decimal, or `Ok(Err(bool))` for `00` and `01`, which are the booleans.
pub(super) fn int(line: &[u8], digits: u64) -> Result<Result<Integer, bool>> {
    match line {
        b"00" => Ok(Err(false)),
        b"01" => Ok(Err(true)),
        _ => decimal(line, digits).map(Ok),
    }
}

/// `pickletools: LONG`: canonical decimal with the suffix `L`, which every writer adds.
pub(super) fn long(line: &[u8], digits: u64) -> Result<Integer> {
    match line.split_last() {
        Some((b'L', line)) => decimal(line, digits),
        _ => Err(ambiguous("a long integer lacks its L", line)),
    }
}

/// `pickletools: FLOAT`: what Python's `repr` writes, and any other decimal of digits, point and exponent.
pub(super) fn float(line: &[u8]) -> Result<f64> {
    match line {
        b"nan" => return Ok(f64::NAN),
        b"inf" => return Ok(f64::INFINITY),
        b"-inf" => return Ok(f64::NEG_INFINITY),
        _ => {}
    }
    let refused = || ambiguous("not a plain decimal float", line);
    let unsigned = line.strip_prefix(b"-").unwrap_or(line);
    let exponent = unsigned.iter().position(|byte| matches!(byte, b'e' | b'E'));
    let (mantissa, power) = unsigned.split_at(exponent.unwrap_or(unsigned.len()));
    let mut parts = mantissa.split(|&byte| byte == b'.');
    let (whole, fraction) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let plain = |part: &[u8]| part.iter().all(u8::is_ascii_digit);
    if parts.next().is_some()
        || !plain(whole)
        || !plain(fraction)
        || (whole.is_empty() && fraction.is_empty())
    {
        return Err(refused());
    }
    if let Some((_, power)) = power.split_first() {
        let power = power.strip_prefix(b"-").or_else(|| power.strip_prefix(b"+")).unwrap_or(power);
        if power.is_empty() || !plain(power) {
            return Err(refused());
        }
    }
    let value =
        std::str::from_utf8(line).ok().and_then(|text| text.parse::<f64>().ok()).ok_or_else(refused)?;
    if value.is_finite() { Ok(value) } else { Err(ambiguous("a float is out of range", line)) }
}

/// The argument of PUT and GET: canonical decimal that fits 32 bits.
pub(super) fn memo_index(line: &[u8]) -> Result<u32> {
    let number = canonical(line).filter(|_| !line.starts_with(b"-")).and_then(|text| text.parse().ok());
    number.ok_or_else(|| error!(Code::PickleMemo, "{} is not a memo index", preview(line)))
}

/// The line as text if it is canonical decimal: `0|-?[1-9][0-9]*`.
fn canonical(line: &[u8]) -> Option<&str> {
    let unsigned = line.strip_prefix(b"-").unwrap_or(line);
    let plain = match unsigned {
        [] => false,
        b"0" => line.len() == 1,
        [b'0', ..] => false,
        _ => unsigned.iter().all(u8::is_ascii_digit),
    };
    std::str::from_utf8(line).ok().filter(|_| plain)
}

fn decimal(line: &[u8], limit: u64) -> Result<Integer> {
    let text = canonical(line).ok_or_else(|| ambiguous("not a canonical decimal integer", line))?;
    if let Ok(small) = text.parse() {
        return Ok(Integer::Small(small));
    }
    let negative = text.starts_with('-');
    let digits = text.trim_start_matches('-').as_bytes();
    crate::limits::Limits::check("int_digits", limit, to_u64(digits.len()))?;
    Ok(Integer::Big(twos_complement(digits, negative)))
}

/// Converts decimal digits to little-endian two's complement of minimal length. Quadratic in the digits, at most `int_digits`.
fn twos_complement(digits: &[u8], negative: bool) -> Vec<u8> {
    let mut limbs: Vec<u32> = Vec::new();
    for chunk in digits.chunks(9) {
        let (mut scale, mut carry) = (1u64, 0u64);
        for &digit in chunk {
            scale = scale.wrapping_mul(10);
            carry = carry.wrapping_mul(10).wrapping_add(u64::from(digit.wrapping_sub(b'0')));
        }
        for limb in &mut limbs {
            let wide = u64::from(*limb).wrapping_mul(scale).wrapping_add(carry);
            *limb = u32::try_from(wide & 0xffff_ffff).unwrap_or_default();
            carry = wide >> 32;
        }
        if carry > 0 {
            limbs.push(u32::try_from(carry).unwrap_or_default());
        }
    }
    limbs.push(0);
    let mut bytes: Vec<u8> = limbs.iter().flat_map(|limb| limb.to_le_bytes()).collect();
    if negative {
        let mut carry = true;
        for byte in &mut bytes {
            let (sum, over) = (!*byte).overflowing_add(u8::from(carry));
            (*byte, carry) = (sum, over);
        }
    }
    bytes.truncate(minimal_len(&bytes));
    bytes
}

/// The minimal length of a little-endian two's complement number; the bytes beyond it only repeat the sign.
pub(super) fn minimal_len(bytes: &[u8]) -> usize {
    let mut rest = bytes;
    while let [.., below, top] = rest {
        let redundant = (*top == 0 && *below < 0x80) || (*top == 0xff && *below >= 0x80);
        if !redundant {
            break;
        }
        rest = rest.split_last().map_or(rest, |(_, init)| init);
    }
    rest.len()
}

/// A little-endian two's complement number of at most eight bytes, sign-extended (`pickletools: decode_long`); `None` if longer.
pub(super) fn i64_from_twos_complement(bytes: &[u8]) -> Option<i64> {
    let fill = if bytes.last().is_some_and(|&top| top >= 0x80) { 0xff } else { 0 };
    let mut wide = [fill; 8];
    wide.get_mut(..bytes.len())?.copy_from_slice(bytes);
    Some(i64::from_le_bytes(wide))
}

/// Decodes the bytes between the quotes of a STRING line into `out`, with Python's byte escapes.
pub(super) fn string(line: &[u8], out: &mut Vec<u8>) -> Result<()> {
    let bad = |what: &str| error!(Code::PickleText, "{what} in {}", preview(line));
    let body = match line {
        [open @ (b'\'' | b'"'), body @ .., close] if open == close => body,
        _ => return Err(bad("no matching quotes")),
    };
    let mut rest = body;
    while let Some((&byte, tail)) = rest.split_first() {
        rest = tail;
        if byte != b'\\' {
            out.push(byte);
            continue;
        }
        let (&escape, tail) = rest.split_first().ok_or_else(|| bad("an incomplete escape"))?;
        rest = tail;
        match escape {
            b'\\' | b'\'' | b'"' => out.push(escape),
            b'a' => out.push(7),
            b'b' => out.push(8),
            b't' => out.push(b'\t'),
            b'n' => out.push(b'\n'),
            b'v' => out.push(11),
            b'f' => out.push(12),
            b'r' => out.push(b'\r'),
            b'x' => {
                let (value, tail) = hex(rest, 2).ok_or_else(|| bad("an incomplete \\x escape"))?;
                out.push(u8::try_from(value).unwrap_or_default());
                rest = tail;
            }
            b'0'..=b'7' => {
                let mut value = escape.wrapping_sub(b'0');
                for _ in 0..2 {
                    let Some((digit @ b'0'..=b'7', tail)) = rest.split_first() else { break };
                    value = value.wrapping_mul(8).wrapping_add(digit.wrapping_sub(b'0'));
                    rest = tail;
                }
                out.push(value);
            }
            // CPython keeps an unknown escape as it is.
            _ => out.extend([b'\\', escape]),
        }
    }
    Ok(())
}

/// Decodes `raw-unicode-escape` (Latin-1 with `\uXXXX` and `\UXXXXXXXX`) into `out`, as UTF-8 with surrogates.
pub(super) fn raw_unicode(line: &[u8], out: &mut Vec<u8>) -> Result<()> {
    let bad = || error!(Code::PickleText, "an invalid \\u escape in {}", preview(line));
    let mut rest = line;
    while let Some((&byte, tail)) = rest.split_first() {
        rest = tail;
        match (byte, rest.split_first()) {
            (b'\\', Some((kind @ (b'u' | b'U'), tail))) => {
                let (point, tail) = hex(tail, if *kind == b'u' { 4 } else { 8 }).ok_or_else(bad)?;
                push_code_point(point, out).ok_or_else(bad)?;
                rest = tail;
            }
            (b'\\', Some((&other, tail))) => {
                out.push(b'\\');
                push_code_point(u32::from(other), out).ok_or_else(bad)?;
                rest = tail;
            }
            _ => push_code_point(u32::from(byte), out).ok_or_else(bad)?,
        }
    }
    Ok(())
}

/// Whether the bytes are UTF-8 in which surrogates may occur, encoded as three bytes each (Python's `surrogatepass`).
pub(super) fn is_wtf8(bytes: &[u8]) -> bool {
    let mut rest = bytes;
    loop {
        let Err(error) = std::str::from_utf8(rest) else { return true };
        let bad = rest.get(error.valid_up_to()..).unwrap_or_default();
        match bad {
            [0xed, 0xa0..=0xbf, 0x80..=0xbf, tail @ ..] => rest = tail,
            _ => return false,
        }
    }
}

fn push_code_point(point: u32, out: &mut Vec<u8>) -> Option<()> {
    match char::from_u32(point) {
        Some(char) => out.extend(char.encode_utf8(&mut [0; 4]).as_bytes()),
        None if (0xd800..0xe000).contains(&point) => {
            let low = |bits: u32| u8::try_from(bits & 0x3f).unwrap_or_default() | 0x80;
            out.extend([0xed, low(point >> 6), low(point)]);
        }
        None => return None,
    }
    Some(())
}

fn hex(bytes: &[u8], len: usize) -> Option<(u32, &[u8])> {
    let (digits, rest) = bytes.split_at_checked(len)?;
    let mut value = 0u32;
    for &digit in digits {
        value = value.wrapping_mul(16).wrapping_add(char::from(digit).to_digit(16)?);
    }
    Some((value, rest))
}

#[cold]
fn ambiguous(what: &str, line: &[u8]) -> Error {
    error!(Code::AmbiguousNumber, "{what}: {}", preview(line))
}

/// At most 40 bytes of a line, quoted.
pub(super) fn preview(line: &[u8]) -> String {
    let shown = line.get(..40).unwrap_or(line);
    let dots = if shown.len() < line.len() { "..." } else { "" };
    format!("\"{}\"{dots}", shown.escape_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn big_decimals_become_twos_complement() {
        let big = |text: &[u8]| match long(text, 4300).unwrap() {
            Integer::Big(bytes) => bytes,
            Integer::Small(small) => panic!("{small}"),
        };
        assert_eq!(big(b"9223372036854775808L"), [0, 0, 0, 0, 0, 0, 0, 0x80, 0]);
        assert_eq!(big(b"-9223372036854775809L"), [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f, 0xff]);
        assert_eq!(big(b"340282366920938463463374607431768211456L"), {
            let mut bytes = [0; 17];
            bytes[16] = 1;
            bytes
        });
        assert_eq!(long(b"-9223372036854775808L", 4300).unwrap(), Integer::Small(i64::MIN));
    }

    #[test]
    fn only_plain_decimal_floats_are_accepted() {
        for good in ["1.5", "-0.0", "1e-05", "1e+16", ".5", "5.", "123456789012345678"] {
            assert_eq!(float(good.as_bytes()).unwrap(), good.parse::<f64>().unwrap());
        }
        for bad in
            ["", "-", ".", "1e", "1_0.0", "1e999", " 1", "1 ", "+1", "0x1p3", "infinity", "NaN", "1.2.3"]
        {
            assert_eq!(float(bad.as_bytes()).unwrap_err().code(), Code::AmbiguousNumber, "{bad}");
        }
    }

    #[test]
    fn an_escaped_backslash_does_not_begin_a_unicode_escape() {
        let decode = |line: &[u8]| {
            let mut out = Vec::new();
            raw_unicode(line, &mut out).map(|()| out)
        };
        assert_eq!(decode(b"\\u0073ub").unwrap(), b"sub");
        assert_eq!(decode(b"\\\\u0041").unwrap(), b"\\\\u0041");
        assert_eq!(decode(b"a\\").unwrap(), b"a\\");
        assert_eq!(decode(b"\xe9").unwrap(), "é".as_bytes());
        assert_eq!(decode(b"\\ud83d\\ude00").unwrap(), b"\xed\xa0\xbd\xed\xb8\x80");
        assert_eq!(decode(b"\\U0001f600").unwrap(), "😀".as_bytes());
        for bad in [&b"\\u00"[..], b"\\U00110000", b"\\u00g0"] {
            assert_eq!(decode(bad).unwrap_err().code(), Code::PickleText);
        }
    }

    #[test]
    fn string_escapes_follow_python() {
        let decode = |line: &[u8]| {
            let mut out = Vec::new();
            string(line, &mut out).map(|()| out)
        };
        assert_eq!(decode(br#"'a\'\n\x41\101\q\0'"#).unwrap(), b"a'\nAA\\q\0");
        for bad in [&b"'a"[..], b"a'", b"'", b"'a\"", b"'\\'", b"'\\x4'", b""] {
            assert_eq!(decode(bad).unwrap_err().code(), Code::PickleText);
        }
    }

    #[test]
    fn surrogates_are_accepted_and_other_invalid_utf8_is_not() {
        assert!(is_wtf8(b"a\xed\xa0\x80b"));
        assert!(!is_wtf8(b"\xff"));
        assert!(!is_wtf8(b"\xed\xa0"));
    }
}
