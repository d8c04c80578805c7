//! Tests of headers that are accepted. Those that violate a rule are cases of the attack table (tests/data/attacks/n_numpy.py); any
//! bytes are read in tests/python/test_numpy_files.py.

use proptest::prelude::*;

use super::*;

/// The header of version 1.0 with this text.
fn header(text: &str) -> Result<Header> {
    let len = u16::try_from(text.len()).unwrap().to_le_bytes();
    let bytes = [MAGIC, &[1, 0], &len[..], text.as_bytes()].concat();
    Header::read(|len| Ok(bytes.iter().copied().take(usize::try_from(len).unwrap()).collect()))
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

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

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
        prop_assert_eq!(found.elements, Elements::Numbers { dtype: DType::I16, big_endian: false });
        prop_assert_eq!(found.shape.to_vec(), sizes);
        prop_assert_eq!(found.fortran_order, fortran);
    }
}
