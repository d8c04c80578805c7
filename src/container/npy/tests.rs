//! Tests of each rule of the header, with the smallest file that violates it.

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

fn descr(text: &str) -> Result<Elements> {
    header(&format!("{{'descr': {text}, 'fortran_order': False, 'shape': (2,), }}\n"))
        .map(|found| found.elements)
}

fn shape(text: &str) -> Result<Vec<u64>> {
    header(&format!("{{'descr': '<f4', 'fortran_order': False, 'shape': {text}, }}"))
        .map(|found| found.shape.to_vec())
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
fn a_header_longer_than_the_first_read_is_read_whole() {
    let text = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }}{:>9000}\n", "");
    let found = read(&file(1, text.as_bytes())).unwrap();
    assert_eq!((found.len, &found.shape[..]), (10 + text.len() as u64, &[2][..]));
}

#[test]
fn keys_may_stand_in_any_order_with_any_blanks_and_quotes() {
    for text in [
        "{\"shape\":(2,),'fortran_order':False,\"descr\":'<f4'}",
        " { 'shape' : ( 2 , ) ,\n 'descr' :\t'<f4' , 'fortran_order' : False , } \r\n",
    ] {
        let found = header(text).unwrap();
        assert_eq!((found.elements, &found.shape[..]), (numbers(DType::F32, false), &[2][..]), "{text}");
    }
}

#[test]
fn every_number_of_numpy_has_a_dtype() {
    for (code, dtype) in [
        ("b1", DType::Bool),
        ("u1", DType::U8),
        ("i1", DType::I8),
        ("u2", DType::U16),
        ("i2", DType::I16),
        ("u4", DType::U32),
        ("i4", DType::I32),
        ("u8", DType::U64),
        ("i8", DType::I64),
        ("f2", DType::F16),
        ("f4", DType::F32),
        ("f8", DType::F64),
        ("c8", DType::C64),
        ("c16", DType::C128),
    ] {
        for (order, big_endian) in [("<", false), ("=", false), ("|", false), ("", false), (">", true)] {
            let found = descr(&format!("'{order}{code}'")).unwrap();
            assert_eq!(found, numbers(dtype, big_endian && dtype.itemsize() > 1), "{order}{code}");
        }
    }
}

#[test]
fn arrays_of_objects_are_recognized_in_every_spelling() {
    for text in ["'|O'", "'O'", "'=O'", "'>O8'", "'<O4'", "\"|O\""] {
        let found = descr(text).unwrap();
        assert_eq!(found, Elements::Objects, "{text}");
        assert!(found.may_be_pickle());
    }
    for text in ["[('a', '|O')]", "[('a', '<i4'), ('b', [('c', 'O8')])]", "('|O', (2,))", "[('a', '\\x4f')]"]
    {
        assert!(descr(text).unwrap().may_be_pickle(), "{text}");
    }
}

#[test]
fn elements_that_are_no_numbers_have_the_class_that_numpy_gives_them() {
    for (text, class) in [
        ("'<U5'", "numpy.str_"),
        ("'|S0'", "numpy.bytes_"),
        ("'|V2'", "numpy.void"),
        ("'<M8[ns]'", "numpy.datetime64"),
        ("'<m8'", "numpy.timedelta64"),
        ("'<f16'", "numpy.longdouble"),
        ("'<c32'", "numpy.clongdouble"),
        ("[('x', '<i4'), ('y', '<f8', (2, 2))]", "numpy.void"),
        ("[(('t', 'x'), '<i4')]", "numpy.void"),
        ("('<i4', (2,))", "numpy.void"),
        ("[]", "numpy.void"),
    ] {
        let found = descr(text).unwrap();
        assert_eq!((found.class(), found.may_be_pickle()), (Some(class), false), "{text}");
    }
    // The name of a field may look like a dtype; such an array is scanned in vain.
    assert!(descr("[('Offset', '<i4')]").unwrap().may_be_pickle());
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
fn other_dtypes_are_refused() {
    for text in [
        "'object'",
        "'float32'",
        "'<f5'",
        "'f4,f4'",
        "''",
        "'<'",
        "'<<f4'",
        "' <f4'",
        "'<f4 '",
        "'(2,)f4'",
        "'<\u{e9}4'",
        "'U-1'",
        "'S'",
        "'M8,O'",
        "'m8[s],O'",
        "'M8[s,O]'",
        "'<U99999999999'",
        "'\\x3cf4'",
        "None",
        "4",
        "b'<f4'",
        "u'<f4'",
        "'<f' '4'",
        "'<f4",
        "\"<f4'",
        "[",
        "[('a',, '<f4')]",
        "[('a' '<f4')]",
        "[('a', '<f4')",
        "[('a', '<f4'])",
        "[,]",
        "{'a': 1}",
        "('<f4'",
        "[None]",
    ] {
        assert_eq!(descr(text).unwrap_err().code(), Code::NpyHeader, "{text}");
    }
}

#[test]
fn a_shape_is_a_tuple_of_decimal_sizes() {
    for (text, sizes) in [
        ("()", &[][..]),
        ("(3,)", &[3]),
        ("(3, 0)", &[3, 0]),
        ("(1, 2, 3,)", &[1, 2, 3]),
        ("(3L, 4L)", &[3, 4]),
        ("(9223372036854775807,)", &[u64::MAX >> 1]),
    ] {
        assert_eq!(shape(text).unwrap(), sizes, "{text}");
    }
    for text in [
        "(3)", "3", "[3]", "(3,,)", "(,)", "(3 4)", "(3,", "(-3,)", "(+3,)", "(True,)", "(3.0,)", "(3e0,)",
        "(0x3,)", "(1_0,)", "(03,)", "('3',)", "(3l,)", "(3LL,)", "(3 L,)", "((3,),)", "(None,)", "()()", "",
    ] {
        assert_eq!(shape(text).unwrap_err().code(), Code::NpyHeader, "{text}");
    }
    let digits = "9".repeat(9000);
    for text in ["(9223372036854775808,)", "(18446744073709551616,)", &format!("({digits},)")] {
        assert_eq!(shape(text).unwrap_err().code(), Code::TensorShape, "{text}");
    }
    let python3 = file(3, b"{'descr': '<f4', 'fortran_order': False, 'shape': (3L,)}");
    assert_eq!(read(&python3).unwrap_err().code(), Code::NpyHeader);
}

#[test]
fn the_dict_has_exactly_three_keys() {
    for text in [
        "",
        "{}",
        "()",
        "{'descr': '<f4', 'fortran_order': False}",
        "{'descr': '<f4', 'shape': (2,)}",
        "{'fortran_order': False, 'shape': (2,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), 'extra': 1}",
        "{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (2,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), 'shape': (3,)}",
        "{'descr': '<f4', 'fortran_order': 0, 'shape': (2,)}",
        "{'descr': '<f4', 'fortran_order': None, 'shape': (2,)}",
        "{'descr': '<f4', 'fortran_order': Falsely, 'shape': (2,)}",
        "{'descr' '<f4', 'fortran_order': False, 'shape': (2,)}",
        "{'descr': '<f4' 'fortran_order': False, 'shape': (2,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2,),,}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2,)",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2,)} # why",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2,)}}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2,)}\0",
        "{'d\\x65scr': '<f4', 'fortran_order': False, 'shape': (2,)}",
        "{'descr\n': '<f4', 'fortran_order': False, 'shape': (2,)}",
        "x{'descr': '<f4', 'fortran_order': False, 'shape': (2,)}",
    ] {
        assert_eq!(header(text).unwrap_err().code(), Code::NpyHeader, "{text}");
    }
}

#[test]
fn an_error_has_the_offset_of_what_it_is_about() {
    let text = "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), 'extra': 1}";
    let error = header(text).unwrap_err();
    assert_eq!(error.offset(), Some(10 + text.find("'extra'").unwrap() as u64));
    assert_eq!(error.message(), "the header has the unknown key \"extra\"");
}

#[test]
fn version_and_length_are_checked() {
    let text = b"{'descr': '<f4', 'fortran_order': False, 'shape': (2,)}";
    let code = |bytes: &[u8]| read(bytes).map(|_| ()).map_err(|error| error.code());
    for (major, minor) in [(0, 0), (1, 1), (2, 1), (4, 0), (255, 255)] {
        let mut bytes = file(2, text);
        bytes[6..8].copy_from_slice(&[major, minor]);
        assert_eq!(code(&bytes), Err(Code::NpyHeader), "{major}.{minor}");
    }
    let padded = |len: usize| [&text[..], &b" ".repeat(len - text.len())].concat();
    assert_eq!(code(&file(1, &padded(10_000))), Ok(()));
    assert_eq!(code(&file(1, &padded(10_001))), Err(Code::NpyHeader));
    assert_eq!(code(&file(2, &padded(1 << 20))), Err(Code::NpyHeader));
    let mut huge = file(2, text);
    huge[8..12].fill(0xff);
    assert_eq!(code(&huge), Err(Code::NpyHeader));
    for len in 0..file(1, text).len() {
        assert_eq!(code(&file(1, text)[..len]), Err(Code::Truncated), "{len}");
    }
    assert_eq!(code(b"\x93NUMPZ\x01\0\0\0"), Err(Code::NpyHeader));
}

#[test]
fn other_bytes_than_ascii_are_allowed_in_field_names_only() {
    let fields = |name: &[u8]| {
        let parts: [&[u8]; 3] =
            [b"{'descr': [('", name, b"', '<i4')], 'fortran_order': False, 'shape': (2,)}"];
        parts.concat()
    };
    let is_record = |version, name: &[u8]| {
        let found = read(&file(version, &fields(name)));
        found.map(|found| found.elements.class() == Some("numpy.void")).map_err(|error| error.code())
    };
    assert_eq!(is_record(1, b"\xe9"), Ok(true));
    assert_eq!(is_record(2, b"\xff\xfe"), Ok(true));
    assert_eq!(is_record(3, "\u{4e2d}".as_bytes()), Ok(true));
    assert_eq!(is_record(3, b"\xe9"), Err(Code::NpyHeader));
    for (version, bytes) in [(1, &b"\xa0"[..]), (3, "\u{a0}".as_bytes())] {
        let text = [b"{", bytes, b"'descr': '<f4', 'fortran_order': False, 'shape': (2,)}"].concat();
        assert_eq!(read(&file(version, &text)).unwrap_err().code(), Code::NpyHeader);
    }
}

#[test]
fn a_list_of_any_depth_needs_no_stack() {
    for len in [9_900, 4_900] {
        let text = format!("{{'descr': {}", "[".repeat(len));
        assert_eq!(header(&text).unwrap_err().code(), Code::NpyHeader);
    }
    let deep = format!("{}{}", "[".repeat(4_000), "]".repeat(4_000));
    assert_eq!(descr(&deep).unwrap().class(), Some("numpy.void"));
}

#[test]
fn bytes_of_an_array_fit_64_bits() {
    let nbytes = |text: &str| {
        let found = header(&format!("{{'descr': '<f4', 'fortran_order': False, 'shape': {text}}}")).unwrap();
        found.nbytes(DType::F32).map_err(|error| error.code())
    };
    assert_eq!(nbytes("()"), Ok(4));
    assert_eq!(nbytes("(2, 3)"), Ok(24));
    assert_eq!(nbytes("(0, 9223372036854775807, 9223372036854775807)"), Ok(0));
    assert_eq!(nbytes("(4611686018427387904,)"), Err(Code::TensorShape));
    assert_eq!(nbytes("(4294967296, 4294967296)"), Err(Code::TensorShape));
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
