//! Identifies files that are not checkpoints and have no magic bytes at the start, and quotes the text of a failed download.

/// The number of characters that are quoted.
const QUOTE_MAX_CHARS: usize = 80;
/// The first keys of a JSON object that is a server's error response, not an index or a configuration.
const ERROR_KEYS: [&str; 3] = ["\"error", "\"message\"", "\"detail\""];

/// The format of a file and the program that reads it, where the bytes are conclusive.
pub(super) fn identify(head: &[u8]) -> Option<(&'static str, &'static str)> {
    // tensorflow/compiler/mlir/lite/schema/schema.fbs: file_identifier
    if head.get(4..8) == Some(b"TFL3") {
        return Some(("a TensorFlow Lite model", "Read it with LiteRT or tf.lite.Interpreter."));
    }
    if is_onnx(head) {
        return Some(("an ONNX model", "Read it with onnx.load or onnxruntime."));
    }
    if is_core_ml(head) {
        return Some(("a Core ML model", "Read it with coremltools."));
    }
    is_flax(head)
        .then_some(("MessagePack, as Flax writes", "Read it with flax.serialization.msgpack_restore."))
}

/// onnx.proto: ModelProto, as exporters begin it: `ir_version`, `producer_name` as a text, then a field of a higher number.
fn is_onnx(head: &[u8]) -> bool {
    let [0x08, 1..=31, 0x12, len @ 1..=127, rest @ ..] = head else { return false };
    let Some((producer, [next, ..])) = rest.split_at_checked(usize::from(*len)) else { return false };
    producer.iter().all(|byte| matches!(byte, b' '..=b'~'))
        && matches!(next, 0x1a | 0x22 | 0x28 | 0x32 | 0x3a | 0x42)
}

/// coremltools/mlmodel/format/Model.proto: `specificationVersion`, then `description`, whose first field is an input or an output (a
/// message that begins with a name).
fn is_core_ml(head: &[u8]) -> bool {
    let Some([0x12, rest @ ..]) = head.strip_prefix(&[0x08]).and_then(|rest| rest.get(1..)) else {
        return false;
    };
    let Some([0x0a | 0x52, rest @ ..]) = varint(rest) else { return false };
    let Some([0x0a, len, rest @ ..]) = varint(rest) else { return false };
    let name = rest.get(..usize::from(*len)).unwrap_or_default();
    matches!(head.get(1), Some(1..=31))
        && !name.is_empty()
        && name.iter().all(|byte| matches!(byte, b'!'..=b'~'))
}

/// What follows a number in the encoding of Protocol Buffers.
fn varint(bytes: &[u8]) -> Option<&[u8]> {
    let last = bytes.iter().take(5).position(|byte| byte & 0x80 == 0)?;
    bytes.get(last.checked_add(1)?..)
}

/// flax.serialization: a map whose first key is a name and whose first value is a map or an array (an extension of msgpack's).
fn is_flax(head: &[u8]) -> bool {
    let [0x81..=0x8f, len @ 0xa2..=0xbf, rest @ ..] = head else { return false };
    let Some((name, [value, ..])) = rest.split_at_checked(usize::from(len & 0x1f)) else { return false };
    name.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'_')
        && matches!(value, 0x81..=0x8f | 0xde | 0xc7..=0xc9)
}

/// The beginning of a text, quoted on one line, where it looks like a server's response: XML, a JSON error, or a short text.
pub(super) fn error_response(head: &[u8], is_whole: bool) -> Option<String> {
    let text = head.utf8_chunks().next()?.valid();
    let is_whole = is_whole && text.len() == head.len();
    let text = text.trim_start_matches('\u{feff}').trim();
    let is_xml = text.starts_with("<?xml");
    let is_plain = text.chars().all(|char| !char.is_control() || char.is_ascii_whitespace());
    if text.len() < 8 || !is_plain || !(is_xml || is_whole) {
        return None;
    }
    if let Some(inside) = text.strip_prefix(['{', '['])
        && !ERROR_KEYS.iter().any(|key| inside.trim_start().starts_with(key))
    {
        return None;
    }
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let rest = if line.chars().nth(QUOTE_MAX_CHARS).is_some() { "..." } else { "" };
    let quote = |char| matches!(char, '"' | '\'');
    let escaped = |char: char| if quote(char) { char.to_string() } else { char.escape_debug().to_string() };
    let shown: String = line.chars().take(QUOTE_MAX_CHARS).map(escaped).collect();
    Some(format!("'{shown}{rest}'"))
}
