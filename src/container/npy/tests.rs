//! Tests of headers that are accepted, and of any bytes. Those that violate a rule are cases of the attack table
//! (tests/data/attacks/n_numpy.py).

use proptest::prelude::*;

use super::*;

/// A file of this version with this text as its header.
fn file(version: u8, text: &[u8]) -> Vec<u8> {
    let len = u32::try_from(text.len()).unwrap().to_le_bytes();
    let len = if version == 1 { &len[..2] } else { &len[..] };
    [MAGIC, &[version, 0], len, text].concat()
}

fn read(bytes: &[u8]) -> Result<Header> {
    Header::read(|len| Ok(bytes.iter().copied().take(usize::try_from(len).unwrap()).collect()))
}

fn header(text: &str) -> Result<Header> {
    read(&file(1, text.as_bytes()))
}

fn numbers(dtype: DType, big_endian: bool) -> Elements {
    Elements::Numbers { dtype, big_endian }
}

#[test]
fn headers_as_numpy_writes_them_are_read_in_each_version() {
    let text = b"{'descr': '>f8', 'fortran_order': True, 'shape': (3, 4), }   \n";
    for (version, start) in [(1, 10), (2, 12), (3, 12)] {
        let found = read(&file(version, text)).unwrap();
        assert_eq!(found.elements, numbers(DType::F64, true));
        assert_eq!((&found.shape[..], found.fortran_order), (&[3, 4][..], true));
        assert_eq!(found.len, start + text.len() as u64);
    }
}

#[test]
fn the_elements_end_where_their_sizes_say() {
    for (text, itemsize) in [
        ("'<f4'", Some(4)),
        ("'<U5'", Some(20)),
        ("'|S3'", Some(3)),
        ("'|V0'", Some(0)),
        ("'<M8[25us]'", Some(8)),
        ("'<f16'", Some(16)),
        ("[('x', '<i4'), ('y', '<f8', (2, 2))]", Some(36)),
        ("[(('t', 'x'), '|S3', 2)]", Some(6)),
        ("[('a', [('b', '|u1', (3,)), ('', '|V5')])]", Some(8)),
        ("('<i2', (2, 3))", Some(12)),
        ("('<i2', ())", Some(2)),
        ("[]", Some(0)),
        ("[('a', '<q9')]", None),
        ("[('a',)]", None),
        ("'|O'", None),
    ] {
        let found = header(&format!("{{'descr': {text}, 'fortran_order': False, 'shape': (2,)}}")).unwrap();
        assert_eq!(found.end(), itemsize.map(|itemsize: u64| itemsize * 2 + found.len), "{text}");
    }
    let huge = header("{'descr': '<f4', 'fortran_order': False, 'shape': (9223372036854775807,)}");
    assert_eq!(huge.unwrap().end(), None);
}

#[test]
fn an_error_has_the_offset_of_what_it_is_about() {
    let text = "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), 'extra': 1}";
    let error = header(text).unwrap_err();
    assert_eq!(error.offset(), Some(10 + text.find("'extra'").unwrap() as u64));
    assert_eq!(error.message(), "the header has the unknown key \"extra\"");
}

/// Fragments of headers, which together are nearly one.
fn fragment() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }".to_owned()),
        proptest::sample::select(vec![
            "{",
            "}",
            "(",
            ")",
            "[",
            "]",
            ",",
            ":",
            "'",
            "\"",
            "\\",
            "'descr'",
            "'shape'",
            "'fortran_order'",
            "True",
            "False",
            "'<f4'",
            "'|O'",
            "3",
            "L",
            "-",
            "\n",
            " ",
            "\0",
        ])
        .prop_map(str::to_owned),
        "\\PC{0,4}",
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    /// Any bytes are a header or an error, and a header ends inside the bytes.
    #[test]
    fn any_bytes_are_a_header_or_an_error(version in 0..5_u8, parts in proptest::collection::vec(fragment(), 0..12), cut in 0..400_usize) {
        let mut bytes = file(version, parts.concat().as_bytes());
        bytes.truncate(bytes.len().saturating_sub(cut / 8));
        if let Ok(found) = read(&bytes) {
            prop_assert!(found.len <= bytes.len() as u64);
        }
    }

    /// A header with any sizes and spacing has the values that it was written with.
    #[test]
    fn what_is_written_is_read(
        sizes in proptest::collection::vec(0..=u64::MAX >> 1, 0..6),
        fortran in any::<bool>(),
        blanks in proptest::collection::vec(0..3_usize, 12),
        order in 0..6_usize,
    ) {
        let mut blanks = blanks.into_iter().map(|count| " ".repeat(count)).cycle();
        let mut pad = || blanks.next().unwrap_or_default();
        let sizes_text: String = sizes.iter().map(|size| format!("{size},{}", pad())).collect();
        let mut items = [
            format!("'descr':{}'<i2'", pad()),
            format!("'fortran_order'{}:{}", pad(), if fortran { "True" } else { "False" }),
            format!("'shape':{}({sizes_text})", pad()),
        ];
        items.rotate_left(order % 3);
        if order >= 3 {
            items.swap(0, 1);
        }
        let found = header(&format!("{}{{{}}}{}\n", pad(), items.join(&format!(",{}", pad())), pad())).unwrap();
        prop_assert_eq!(found.elements, numbers(DType::I16, false));
        prop_assert_eq!(found.shape.to_vec(), sizes);
        prop_assert_eq!(found.fortran_order, fortran);
    }
}
