//! Tests of the detected format of each kind of content (ids from the attack matrix).

use std::sync::Arc;

use super::*;
use crate::container::compressed::MAGIC;

fn sniffed(bytes: &[u8]) -> Result<Format> {
    sniff(&Source::memory(Arc::new(bytes.to_vec())))
}

fn code(bytes: &[u8]) -> Option<Code> {
    sniffed(bytes).err().map(|error| error.code())
}

const EMPTY_ZIP: &[u8] = b"PK\x05\x06\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";

#[test]
fn a_legacy_stream_may_have_any_protocol() {
    let framed = [LEGACY_FRAME, LEGACY_MAGIC].concat();
    for (protocol, magic) in
        [(2, LEGACY_MAGIC), (3, LEGACY_MAGIC), (4, &framed), (5, &framed), (4, LEGACY_MAGIC)]
    {
        let bytes = [&[0x80, protocol], magic, b"\x80\x02M\xe9\x03."].concat();
        assert_eq!(sniffed(&bytes).unwrap(), Format::LegacyTorch);
    }
    assert_eq!(sniffed(&[LEGACY_TEXT, b"K\x00."].concat()).unwrap(), Format::LegacyTorch);
}

#[test]
fn nested_containers_are_detected() {
    let zlib = |level| miniz_oxide::deflate::compress_to_vec_zlib(&[7; 100_000], level);
    let joblib = [&b"ZF0x186a0            "[..], &zlib(3)].concat();
    let packed_kinds = MAGIC.iter().map(|(magic, name)| ([magic, &[0; 9][..]].concat(), *name));
    let lzma = [&b"\x5d\0\0\x80\0"[..], &[0xff; 8], &[0, 0x42]].concat();
    let packed_kinds =
        packed_kinds.chain([(lzma, "lzma"), (b"\x53\x2a\x4d\x18\0\0\0\0".to_vec(), "lz4 or zstd")]);
    let zlib_kinds = (0..=9).map(|level| (zlib(level), "zlib")).chain([(joblib, "joblib zlib")]);
    for (bytes, name) in packed_kinds.chain(zlib_kinds) {
        assert_eq!(compressed_format(&bytes), Some(name));
        assert!(is_container(&bytes));
        assert_eq!(code(&bytes), Some(Code::UnsupportedContainer));
    }
    let tar = [vec![b'x'; 257], b"ustar\x0000".to_vec(), vec![0; 300]].concat();
    let legacy = [b"\x80\x04", LEGACY_FRAME, LEGACY_MAGIC].concat();
    for bytes in [b"PK\x03\x04....", EMPTY_ZIP, b"\x93NUMPY\x01\0", &tar, &legacy, LEGACY_TEXT] {
        assert!(is_container(bytes) && compressed_format(bytes).is_none(), "{bytes:?}");
    }
}

#[test]
fn inconclusive_bytes_are_not_identified() {
    for bytes in [
        &b"\x08\x01\x12\x07\x0a\x05\x12\x03abc\x1a\x01a"[..], // a saved model of TensorFlow
        b"\x08\x07\x12\x07pytorch\x0a\x052.6.0",
        b"\x08\x07\x12\x7fpytorch",
        b"\x08\x04\x12\x1e\x0a\x0c\x0a\x05im ge\x1a\x03",
        b"\x08\x04\x12\x1e\x0a\x0c\x0a\0image\x1a\x03",
        b"\x08\x04\x12\xff\xff\xff\xff\xff\xff",
        b"\x81\xa6pa ams\x81\xa1w",
        b"\x81\xa6params\xa1wwwwww",
        b"TFL3\0\0\0\0\0",
    ] {
        assert!(sniffed(bytes).unwrap_err().message().contains("no format"), "{bytes:?}");
    }
}

#[test]
fn the_text_of_a_failed_download_is_quoted() {
    let message = |text: &str| sniffed(text.as_bytes()).unwrap_err().message().to_owned();
    assert_eq!(message("Entry not found\n"), "this is the text 'Entry not found', not a checkpoint");
    assert!(message("{\"error\": \"not there\"}").contains("the text '{\"error\": \"not there\"}',"));
    let denied = "<?xml version=\"1.0\"?>\n<Error><Code>AccessDenied</Code></Error>";
    assert!(message(denied).contains("AccessDenied"));
    let long = format!("{denied}{}", "<Key/>".repeat(200));
    assert!(message(&long).contains("...', not"));
    assert!(message("turn it \u{202e}around").contains("\\u{202e}"));
    for other in ["turn it \u{1b}[1m", "\u{feff} \n\n \n  ", &"many words ".repeat(50), "[some, text]"] {
        assert!(message(other).contains("no format"), "{other:?}");
    }
}

#[test]
fn metadata_bytes_is_an_upper_bound() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    let of = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        metadata_bytes(&path)
    };
    let header = |len: u64| [&len.to_le_bytes()[..], b"{\"w\": 1}", &[0; 100]].concat();
    assert_eq!([of(&header(8)), of(&header(u64::MAX))], [8, 116]);
    assert_eq!([of(b"PK\x03\x04 and so on"), of(b"short"), of(b"")], [14, 5, 0]);
    let archive = |method: u8| [b"PK\x03\x04\x14\0\0\0", &[method, 0][..], &[0; 90]].concat();
    assert_eq!([of(&archive(0)), of(&archive(8))], [100, u64::MAX]);
    assert_eq!([metadata_bytes(folder.path()), metadata_bytes(&folder.path().join("none"))], [0, 0]);
}
