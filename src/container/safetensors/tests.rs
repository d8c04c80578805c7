//! Tests of each rule of the safetensors header, with the smallest file that violates it (ids from the attack matrix).

use std::sync::Arc;

use proptest::prelude::*;

use super::*;

/// A file with this header and `data` bytes after it.
fn file(header: &[u8], data: usize) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes()[..], header, &vec![7; data]].concat()
}

fn read_with(bytes: Vec<u8>, compat: bool) -> Result<Header> {
    Header::read(&Source::memory(Arc::new(bytes)), &Limits::default(), compat)
}

fn read(header: &str, data: usize) -> Result<Header> {
    read_with(file(header.as_bytes(), data), false)
}

fn code(header: &str, data: usize) -> Option<Code> {
    read(header, data).err().map(|error| error.code())
}

/// One tensor's fields, as JSON.
fn info(dtype: &str, shape: &str, offsets: &str) -> String {
    format!(r#"{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}"#)
}

fn one(dtype: &str, shape: &str, offsets: &str) -> String {
    format!(r#"{{"w":{}}}"#, info(dtype, shape, offsets))
}

#[test]
fn tensors_are_sorted_by_offset() {
    let header = format!(
        r#"{{"b":{},"__metadata__":{{"format":"pt","a":"b"}},"z":{},"a":{},"e":{}}}   "#,
        info("F32", "[2]", "[4,12]"),
        info("U8", "[0,4611686018427387904]", "[4,4]"),
        info("BF16", "[2,1]", "[0,4]"),
        info("U8", "[0]", "[4,4]"),
    );
    let header = read(&header, 12).unwrap();
    let names: Vec<_> = header.tensors.iter().map(|tensor| tensor.name.as_str()).collect();
    assert_eq!(names, ["a", "e", "z", "b"]);
    assert_eq!(header.tensors[3].dtype, DType::F32);
    assert_eq!(header.tensors[3].shape.as_slice(), [2]);
    assert_eq!(header.tensors[3].region, Region::new(header.data.start() + 4, 8).unwrap());
    assert_eq!(header.metadata.unwrap()[1], ("a".to_owned(), "b".to_owned()));
    assert!(header.notes.is_empty());
    assert_eq!(read("{}", 0).unwrap().tensors.len(), 0);
}

#[test]
fn the_length_is_bounded_and_inside_the_file() {
    // S01 to S05, without allocating the stated length
    for bytes in [&b""[..], b"{}", b"\x02\0\0\0\0\0\0"] {
        assert_eq!(read_with(bytes.to_vec(), false).unwrap_err().code(), Code::StHeader);
    }
    for length in [0, 1 << 63, 100_000_001, u64::MAX, 3] {
        let bytes = [&u64::to_le_bytes(length)[..], b"{}"].concat();
        assert_eq!(read_with(bytes, false).unwrap_err().code(), Code::StHeader, "{length}");
    }
    let limits = Limits { header_bytes: 1, ..Limits::default() };
    let error = Header::read(&Source::memory(Arc::new(file(b"{}", 0))), &limits, false).unwrap_err();
    assert_eq!(error.code(), Code::Limit);
}

#[test]
fn the_header_is_utf8_json_padded_with_spaces() {
    // S06, S11, S18, S16
    let error = read_with(file(b"{\"\xff\":1}", 0), false).unwrap_err();
    assert_eq!((error.code(), error.offset()), (Code::StHeader, Some(10)));
    for header in [" {}", "\u{feff}{}", "{}\0", "{}\n", "{} {}", "{},", "[]", "{", "{\"a\":", "nul", "{}\n "]
    {
        assert_eq!(code(header, 0), Some(Code::StHeader), "{header:?}");
    }
    assert_eq!(code(r#"{"\ud800":1}"#, 0), Some(Code::StHeader));
    let deep = format!(r#"{{"w":{{"x":{}"#, "[".repeat(100_000));
    assert_eq!(code(&deep, 0), Some(Code::StHeader));
    assert_eq!(code(&"{\"a\":".repeat(100_000), 0), Some(Code::StHeader));
    assert_eq!(code(&format!("{{\"__metadata__\":{}", "[".repeat(100_000)), 0), Some(Code::StHeader));
}

#[test]
fn duplicate_names_are_refused_unless_compat_takes_the_last() {
    // S07, S08, S09
    let (short, long) = (info("U8", "[4]", "[0,4]"), info("F32", "[1]", "[0,4]"));
    let empty = info("U8", "[0]", "[4,4]");
    let doubled = format!(r#"{{"w":{short},"v":{empty},"w":{long},"v":{empty}}}"#);
    assert_eq!(code(&doubled, 4), Some(Code::StDuplicateKey));
    let header = read_with(file(doubled.as_bytes(), 4), true).unwrap();
    assert_eq!(header.tensors.len(), 2);
    assert_eq!(header.tensors[0].dtype, DType::F32);
    let metadata = r#"{"__metadata__":{"a":"1","b":"x","a":"2"}}"#;
    assert_eq!(code(metadata, 0), Some(Code::StDuplicateKey));
    let header = read_with(file(metadata.as_bytes(), 0), true).unwrap();
    assert_eq!(header.metadata.unwrap()[0], ("a".to_owned(), "2".to_owned()));
    // The reference refuses these as well.
    for header in [
        r#"{"__metadata__":{},"__metadata__":{}}"#,
        r#"{"w":{"dtype":"U8","dtype":"U8","shape":[0],"data_offsets":[0,0]}}"#,
    ] {
        let error = read_with(file(header.as_bytes(), 0), true).unwrap_err();
        assert_eq!(error.code(), Code::StDuplicateKey);
    }
}

#[test]
fn unknown_fields_are_noted() {
    // S10
    let header = r#"{"w":{"dtype":"U8","shape":[0],"x":[{"y":null}],"data_offsets":[0,0],"z":1.5}}"#;
    let notes = read(header, 0).unwrap().notes;
    assert_eq!(notes.len(), 1);
    assert!(notes[0].starts_with("2 unknown") && notes[0].contains("\"x\""), "{notes:?}");
}

#[test]
fn offsets_cover_the_data_exactly_once() {
    let two = |one: &str, two: &str| {
        format!(r#"{{"a":{},"b":{}}}"#, info("U8", "[4]", one), info("U8", "[4]", two))
    };
    assert_eq!(code(&two("[4,8]", "[0,4]"), 8), None);
    // S12a overlap, S12b gaps, S12c and S21 trailing bytes, S12e reversed
    assert_eq!(code(&two("[0,4]", "[2,6]"), 6), Some(Code::StOffsets));
    assert_eq!(code(&two("[0,4]", "[0,4]"), 4), Some(Code::StOffsets));
    assert_eq!(code(&two("[0,4]", "[5,9]"), 9), Some(Code::StOffsets));
    assert_eq!(code(&two("[1,5]", "[5,9]"), 9), Some(Code::StOffsets));
    assert_eq!(code(&two("[0,4]", "[4,8]"), 9), Some(Code::StOffsets));
    assert_eq!(code(&two("[4,0]", "[4,8]"), 8), Some(Code::StOffsets));
    assert_eq!(code("{}", 1), Some(Code::StOffsets));
    // S12d
    let error = read(&two("[0,4]", "[4,8]"), 7).unwrap_err();
    assert_eq!(error.code(), Code::StOffsets);
    assert!(error.message().contains("truncated"), "{error}");
    // S12f, S12g, S23, S24, and lists of another length or kind
    for end in ["-4", "4.0", "4e0", "1e0", "-0", "18446744073709551616", "18446744073709551615"] {
        assert_eq!(code(&one("U8", "[4]", &format!("[0,{end}]")), 4), Some(Code::StOffsets), "{end}");
    }
    assert_eq!(code(&one("U8", "[4]", "[0]"), 4), Some(Code::StOffsets));
    assert_eq!(code(&one("U8", "[4]", "[0,4,4]"), 4), Some(Code::StOffsets));
    assert_eq!(code(&one("U8", "[4]", "[0,\"4\"]"), 4), Some(Code::StHeader));
    assert_eq!(code(&one("U8", "[5]", "[0,4]"), 4), Some(Code::StOffsets));
}

#[test]
fn impossible_shapes_are_refused() {
    // S13
    let many = format!("[{}0]", "1,".repeat(1_000_000));
    for shape in ["[4611686018427387904,4]", "[-1]", "[1.0]", "[18446744073709551616]", many.as_str()] {
        assert_eq!(code(&one("U8", shape, "[0,0]"), 0), Some(Code::TensorShape), "{:.40}", shape);
    }
    assert_eq!(code(&one("F32", "[4611686018427387904]", "[0,0]"), 0), Some(Code::TensorShape));
    assert_eq!(code(&one("U8", "[0,4611686018427387904]", "[0,0]"), 0), None);
}

#[test]
fn dtypes_are_spelled_exactly_and_addressable() {
    // S14, S15
    for dtype in ["f32", "F31", "float32", "", "F6_E2M3", "F6_E3M2"] {
        assert_eq!(code(&one(dtype, "[0]", "[0,0]"), 0), Some(Code::StDtype), "{dtype}");
    }
    for dtype in DType::ALL.iter().filter_map(|dtype| dtype.safetensors()) {
        assert_eq!(code(&one(dtype, "[0]", "[0,0]"), 0), None, "{dtype}");
    }
    let header = read(&one("F4", "[3,6]", "[0,9]"), 9).unwrap();
    assert_eq!(header.tensors[0].dtype, DType::F4E2M1FnX2);
    assert_eq!(header.tensors[0].shape.as_slice(), [3, 3]);
    for shape in ["[2,3]", "[]"] {
        assert_eq!(code(&one("F4", shape, "[0,3]"), 3), Some(Code::StDtype));
    }
    for header in [
        r#"{"w":{"shape":[0],"data_offsets":[0,0]}}"#,
        r#"{"w":{"dtype":"U8","data_offsets":[0,0]}}"#,
        r#"{"w":{"dtype":"U8","shape":[0]}}"#,
        r#"{"w":{"dtype":8,"shape":[0],"data_offsets":[0,0]}}"#,
        r#"{"w":null}"#,
        r#"{"w":[]}"#,
    ] {
        assert_eq!(code(header, 0), Some(Code::StHeader), "{header}");
    }
}

#[test]
fn the_number_of_tensors_is_limited() {
    // S17
    let header = format!(r#"{{"a":{0},"b":{0}}}"#, info("U8", "[0]", "[0,0]"));
    let limits = Limits { tensors: 1, ..Limits::default() };
    let source = Source::memory(Arc::new(file(header.as_bytes(), 0)));
    let error = Header::read(&source, &limits, false).unwrap_err();
    assert_eq!(error.code(), Code::Limit);
    assert!(error.message().contains("tensors"));
}

#[test]
fn any_string_is_a_name() {
    // S19
    let empty = info("U8", "[0]", "[0,0]");
    let header = read(&format!(r#"{{"":{empty},"a\u0000b":{empty},"../../x":{empty}}}"#), 0).unwrap();
    let names: Vec<_> = header.tensors.iter().map(|tensor| tensor.name.as_str()).collect();
    assert_eq!(names, ["", "../../x", "a\0b"]);
}

#[test]
fn metadata_maps_strings_to_strings() {
    // S20
    for value in ["1", "null", "{}", "[]", "true"] {
        assert_eq!(code(&format!(r#"{{"__metadata__":{{"a":{value}}}}}"#), 0), Some(Code::StHeader));
    }
    assert_eq!(code(r#"{"__metadata__":[]}"#, 0), Some(Code::StHeader));
    assert_eq!(read(r#"{"__metadata__":null}"#, 0).unwrap().notes.len(), 1);
}

fn small() -> Vec<u8> {
    let header = format!(
        r#"{{"__metadata__":{{"format":"pt"}},"a":{},"b":{}}}  "#,
        info("F32", "[2,1]", "[0,8]"),
        info("I64", "[]", "[8,16]")
    );
    file(header.as_bytes(), 16)
}

#[test]
fn a_truncated_file_is_an_error() {
    // A17
    for len in 0..small().len() {
        assert!(read_with(small()[..len].to_vec(), false).is_err(), "cut to {len}");
    }
}

#[test]
fn a_flipped_bit_never_gives_a_region_outside_the_data() {
    for bit in 0..small().len() * 8 {
        let mut bytes = small();
        bytes[bit / 8] ^= 1 << (bit % 8);
        if let Ok(header) = read_with(bytes, true) {
            assert!(header.tensors.iter().all(|tensor| header.data.contains(tensor.region)));
        }
    }
}

proptest! {
    #[test]
    fn any_text_in_any_field_never_panics(
        dtype in "(U8|F4|F64|.{0,3})",
        shape in "\\[([0-9]{1,20},){0,3}[0-9-]{1,20}\\]",
        offsets in "\\[[0-9.e-]{0,20},[0-9]{1,3}\\]",
    ) {
        let _ = read(&one(&dtype, &shape, &offsets), 99);
    }
}
