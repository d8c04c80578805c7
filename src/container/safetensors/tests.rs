//! Tests of headers of safetensors that are accepted or damaged. Those that violate a rule are cases of the attack table
//! (tests/data/attacks/s_safetensors.py).

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

fn small() -> Vec<u8> {
    let header = format!(
        r#"{{"__metadata__":{{"format":"pt"}},"a":{},"b":{}}}  "#,
        info("F32", "[2,1]", "[0,8]"),
        info("I64", "[]", "[8,16]")
    );
    file(header.as_bytes(), 16)
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
