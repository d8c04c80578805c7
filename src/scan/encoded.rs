//! Detects base64 and hexadecimal encodings of a pickle or of code in strings. Nothing loads such a string by itself, so the
//! finding is informational.

/// The maximum number of characters of a string that are decoded.
const DECODE_MAX_CHARS: usize = 4096;

/// The message of the finding where a base64 or hexadecimal string decodes to a pickle or to code.
pub(super) fn encoded_payload(text: &[u8]) -> Option<&'static str> {
    if text.len() < 16 {
        return None;
    }
    let head = text.get(..DECODE_MAX_CHARS).unwrap_or(text);
    let first = head.get(..16).unwrap_or(head);
    let decoded = if first.iter().all(u8::is_ascii_hexdigit) {
        hex(head)
    } else if first.iter().all(|byte| byte.is_ascii_alphanumeric() || b"+/-_=".contains(byte)) {
        base64(head)
    } else {
        return None;
    };
    if matches!(decoded.as_slice(), [0x80, 2..=5, b'c' | b'}' | b']' | b'(' | b'X' | 0x8c | 0x95, ..]) {
        return Some("a text decodes to a pickle; nothing in this file loads it");
    }
    let code_words =
        [&b"import "[..], b"os.system", b"subprocess", b"exec(", b"eval(", b"__import__", b"/bin/sh"];
    let looks_like_code =
        code_words.iter().any(|word| decoded.windows(word.len()).any(|window| window == *word));
    looks_like_code.then_some("a text decodes to what looks like code; nothing in this file runs it")
}

fn hex(text: &[u8]) -> Vec<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let byte = |pair: &[u8; 2]| {
        let [high, low] = *pair;
        u8::try_from(digit(high)?.wrapping_mul(16).wrapping_add(digit(low)?)).ok()
    };
    text.as_chunks::<2>().0.iter().map_while(byte).collect()
}

fn base64(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let (mut bits, mut bit_count) = (0_u32, 0_u32);
    for &byte in text {
        let value = match byte {
            b'A'..=b'Z' => byte.wrapping_sub(b'A'),
            b'a'..=b'z' => byte.wrapping_sub(b'a').wrapping_add(26),
            b'0'..=b'9' => byte.wrapping_sub(b'0').wrapping_add(52),
            b'+' | b'-' => 62,
            b'/' | b'_' => 63,
            _ => break,
        };
        bits = (bits << 6) | u32::from(value);
        bit_count = bit_count.wrapping_add(6);
        if bit_count >= 8 {
            bit_count = bit_count.wrapping_sub(8);
            out.push(u8::try_from((bits >> bit_count) & 0xff).unwrap_or_default());
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoded_pickles_and_code_are_detected() {
        assert!(encoded_payload(b"gASVIAAAAAAAAACMBXBvc2l4lIwGc3lzdGVtlJOU").is_some());
        assert!(encoded_payload(b"80049520000000000000008c05706f736978948c06").is_some());
        assert!(encoded_payload(b"aW1wb3J0IG9zOyBvcy5zeXN0ZW0oJ2lkJyk=").is_some());
        for plain in [
            "layers.0.attention.weight",
            "a1b2c3d4e5f60718293a4b5c6d7e8f90",
            "transformer_block_encoder",
            "AAAAAAAAAAAAAAAAAAAAAAAA",
        ] {
            assert!(encoded_payload(plain.as_bytes()).is_none(), "{plain}");
        }
    }
}
