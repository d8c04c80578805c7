//! The attack matrix, "Pickle syntax": the expected error code or value of each case P01 to P56.

use rustload::internals::pickle::{Pickle, Value, run, run_recovering};
use rustload::{Cancel, Code, Error, Limits, Subject};

fn fails(data: &[u8]) -> Error {
    run(data.to_vec(), 0, &Limits::default()).expect_err("a bad pickle")
}

fn code(data: &[u8]) -> Code {
    fails(data).code()
}

fn read(data: &[u8]) -> Pickle {
    run(data.to_vec(), 0, &Limits::default()).expect("a valid pickle")
}

fn limit(data: &[u8]) -> &'static str {
    match fails(data).subject() {
        Subject::Limit { name, .. } => name,
        other => panic!("{other:?}"),
    }
}

fn global(data: &[u8]) -> (String, String) {
    let pickle = read(data);
    let (id, _) = pickle.values.globals().next().expect("a global");
    let global = pickle.values.global(id);
    (global.module.to_owned(), global.name.to_owned())
}

fn named(module: &str, name: &str) -> (String, String) {
    (module.to_owned(), name.to_owned())
}

fn frame(len: u64, rest: &[u8]) -> Vec<u8> {
    [b"\x80\x04\x95", &len.to_le_bytes()[..], rest].concat()
}

#[test]
fn p01_to_p03_stop_takes_exactly_one_value() {
    for data in [&b""[..], b"N", b".", b"NN.", b"N(.", b"(N.", b"N(N."] {
        assert_eq!(code(data), Code::PickleStack, "{}", data.escape_ascii());
    }
}

#[test]
fn p04_a_byte_that_is_no_opcode_is_refused_with_its_offset() {
    let error = fails(b"N\xff.");
    assert_eq!((error.code(), error.offset()), (Code::PickleOpcode, Some(1)));
}

#[test]
fn p05_p06_bytes_after_stop_are_left_to_the_caller() {
    assert_eq!(read(b"N.garbage").end, 2);
}

#[test]
fn p07_to_p09_proto_is_first_and_at_most_5() {
    for data in [&b"\x80\x63N."[..], b"\x80\x06N.", b"N0\x80\x02N.", b"\x80\x02\x80\x02N."] {
        assert_eq!(code(data), Code::PickleProto);
    }
}

#[test]
fn p10_opcodes_of_later_protocols_are_accepted() {
    assert_eq!(read(b"\x80\x02\x8c\x01a\x94.").protocol, 2);
    assert_eq!(read(b"\x8c\x01a\x94.").protocol, 0);
}

#[test]
fn p11_p12_p14_memo_indices_are_set_and_canonical() {
    let bad = [
        "h\x00.",
        "g-1\n.",
        "Ng 1 \n.",
        "Np1_0\n.",
        "Np01\n.",
        "Npx\n.",
        "Np\n.",
        "Np18446744073709551617\n.",
    ];
    for data in
        bad.into_iter().chain(["Np4294967296\n.", "g4294967296\n.", "Np1\ng01\n.", "Np-0\n.", "Np+1\n."])
    {
        assert_eq!(code(data.as_bytes()), Code::PickleMemo, "{data}");
    }
    assert!(run(b"Np4294967295\n.".to_vec(), 0, &Limits::default()).is_ok());
}

#[test]
fn p13_p15_memoize_takes_the_number_of_entries_as_index() {
    // LONG_BINPUT 0xffffffff, then MEMOIZE gives number 1.
    let pickle = read(b"K\x05r\xff\xff\xff\xff0K\x06\x940h\x01.");
    assert_eq!(pickle.values.get(pickle.root), Value::Int(6));
    // PUT 1, then MEMOIZE collides with it, and a second one still gives number 1.
    let pickle = read(b"K\x05q\x010K\x06\x940K\x07\x940h\x01.");
    assert_eq!(pickle.values.get(pickle.root), Value::Int(7));
}

#[test]
fn p16_to_p18_numbers_have_one_spelling() {
    let bad = [
        "I0x10", "I010", "I1_000", "I 5", "I5 ", "I+5", "I-0", "I", "I000", "I5L", "F1_0.0", "F1e999", "L5",
        "L", "LL",
    ];
    for number in bad {
        assert_eq!(code(format!("{number}\n.").as_bytes()), Code::AmbiguousNumber, "{number}");
    }
    for float in ["nan", "inf", "-inf", "1e-07"] {
        read(format!("F{float}\n.").as_bytes());
    }
    assert_eq!(limit(format!("L{}L\n.", "9".repeat(1_000_000)).as_bytes()), "int_digits");
    assert_eq!(limit(format!("I{}\n.", "9".repeat(4301)).as_bytes()), "int_digits");
    read(format!("L-{}L\n.", "9".repeat(4300)).as_bytes());
}

#[test]
fn p19_long1_of_zero_bytes_is_zero() {
    assert_eq!(read(b"\x8a\x00.").values.get(read(b"\x8a\x00.").root), Value::Int(0));
}

#[test]
fn p20_to_p23_lengths_beyond_the_data_are_truncated() {
    for data in [
        &b"\x8b\xff\xff\xff\xff."[..],
        b"\x8b\xff\xff\xff\x7f.",
        b"T\xff\xff\xff\xff.",
        b"X\xff\xff\xff\xffabc.",
        b"\x8d\0\0\0\0\0\0\0\x40.",
        b"\x8e\0\0\0\0\0\0\0\x80.",
        b"\x96\xff\xff\xff\xff\xff\xff\xff\xff.",
        b"J\0\0",
        b"cm\nn",
        b"S'a'",
    ] {
        assert_eq!(code(data), Code::Truncated, "{}", data.escape_ascii());
    }
    let long = [b"\x8b\x01\x04\0\0", &[1; 1025][..], b"."].concat();
    assert_eq!(limit(&long), "int_bytes");
}

#[test]
fn p24_to_p28_strings_decode_as_cpython_does() {
    assert_eq!(code(b"X\x01\0\0\0\xff."), Code::PickleText);
    let pickle = read(b"X\x03\0\0\0\xed\xa0\x80.");
    let Value::Str(text) = pickle.values.get(pickle.root) else { panic!("no string") };
    assert_eq!((text.as_str(), text.as_bytes()), (None, &b"\xed\xa0\x80"[..]));
    assert_eq!(global(b"cm\0\nn\n."), named("m\0", "n"));
    for data in [&b"S'a\n."[..], b"Sa\n.", b"S'\\'\n.", b"S'\\x4'\n.", b"V\\u00\n.", b"V\\U00110000\n."] {
        assert_eq!(code(data), Code::PickleText, "{}", data.escape_ascii());
    }
    assert_eq!(global(b"V\\u0073ubprocess\nVrun\n\x93."), named("subprocess", "run"));
}

#[test]
fn p29_p30_global_lines_end_at_a_line_feed_only() {
    assert_eq!(global(b"cm\r\nn\r\n."), named("m\r", "n\r"));
    assert_eq!(global("cmé\n\n.".as_bytes()), named("mé", ""));
    assert_eq!(code(b"cm\xff\nn\n."), Code::PickleText);
    let long = [b"c", &[b'a'; 1 << 20][..], b"\nn\n."].concat();
    assert_eq!(limit(&long), "line");
}

#[test]
fn p31_p33_a_missing_mark_is_a_stack_error() {
    for data in
        [&b"Nt."[..], b"N1.", b"Nl.", b"Nd.", b"]e.", b"}u.", b"\x8f\x90.", b"im\nn\n.", b"(o.", b"No."]
    {
        assert_eq!(code(data), Code::PickleStack, "{}", data.escape_ascii());
    }
}

#[test]
fn opcodes_do_not_reach_below_a_mark() {
    for data in
        [&b"N(\x85"[..], b"N(2", b"N(q\0", b"](Na", b"(]Ne", b"N(R", b"N(Q", b"}N(Ns", b"(e.", b"(N\x86"]
    {
        assert_eq!(code(data), Code::PickleStack, "{}", data.escape_ascii());
    }
    // Nothing is between the two marks, so the container to fill is missing, whatever is below the first mark.
    for data in [&b"]((e1."[..], b"]((Ne1.", b"}((u1.", b"}((NNu1."] {
        assert_eq!(code(data), Code::PickleStack, "{}", data.escape_ascii());
    }
}

#[test]
fn p32_pop_removes_a_mark_without_items() {
    let pickle = read(b"N(0.");
    assert_eq!(pickle.values.get(pickle.root), Value::None);
    assert_eq!(code(b"0."), Code::PickleStack);
}

#[test]
fn p34_marks_are_limited() {
    assert_eq!(limit(&vec![b'('; 10_000_000]), "marks");
}

#[test]
fn p35_a_global_called_mark_is_a_global() {
    assert_eq!(global(b"cmark\nmark\n."), named("mark", "mark"));
}

#[test]
fn p36_to_p39_items_go_to_values_of_the_right_type() {
    for data in [
        &b"}(Nu."[..],
        b"(Nd.",
        b"]NNs.",
        b")NNs.",
        b"U\0NNs.",
        b"NQNNs.",
        b"NQ(NNu.",
        b"cm\nn\nNNs.",
        b"}Na.",
        b"}(Ne.",
        b"}(e.",
        b"NQNa.",
        b"\x8fNa.",
        b"](N\x90.",
        b"}(N\x90.",
        b"](u.",
        b"(N\x91(N\x90.",
        b"]Nb.",
        b"NNb.",
        b"cm\nn\n}b.",
    ] {
        assert_eq!(code(data), Code::PickleType, "{}", data.escape_ascii());
    }
}

#[test]
fn unhashable_keys_and_items_are_refused() {
    for key in [&b"]"[..], b"}", b"\x8f", b"\x96\0\0\0\0\0\0\0\0", b"]\x85", b"]\x85\x85"] {
        for data in [
            [b"}", key, b"Ns."].concat(),
            [b"}(", key, b"Nu."].concat(),
            [b"(", key, b"Nd."].concat(),
            [b"\x8f(", key, b"\x90."].concat(),
            [b"(", key, b"\x91."].concat(),
        ] {
            assert_eq!(code(&data), Code::PickleType, "{}", data.escape_ascii());
        }
    }
    // An opaque value is a key by identity.
    let pickle = read(b"}(cm\nn\n)RNcm\nn\n)RNu.");
    assert_eq!(pickle.values.entries(pickle.root).expect("a dict").len(), 2);
}

#[test]
fn p40_to_p43_p45_straddled_nested_truncated_and_too_long_frames_are_refused() {
    for data in [
        frame(1 << 62, b"N."),
        frame(3, b"N."),
        frame(1, b"K\x01."),
        frame(11, &frame(1, b"N.")[2..]),
        frame(4, b"N.xx"),
        frame(u64::MAX, b"N."),
    ] {
        assert_eq!(code(&data), Code::PickleFrame, "{}", data.escape_ascii());
    }
    // P43: a string that starts inside a frame and ends after it.
    let pad = [b"B\0\0\x02\0", &[b'x'; 1 << 17][..], b"."].concat();
    assert_eq!(code(&frame(100, &pad)), Code::PickleFrame);
    // An opcode may end exactly with the frame.
    read(&frame(2, b"K\x01."));
    read(&frame(0, b"N."));
}

#[test]
fn p44_a_frame_below_protocol_4_is_accepted() {
    read(b"\x80\x02\x95\x02\0\0\0\0\0\0\0N.");
}

#[test]
fn p46_stack_global_takes_two_strings() {
    for data in [&b"K\x01K\x02\x93."[..], b"U\x01mK\x02\x93.", b"C\x01mU\x01n\x93.", b"NN\x93."] {
        assert_eq!(code(data), Code::PickleType);
    }
    assert_eq!(code(b"\x8c\x03\xed\xa0\x80\x8c\x01n\x93."), Code::PickleText);
}

#[test]
fn p47_to_p51_stack_global_takes_the_strings_on_the_stack() {
    let expected = named("m", "n");
    // P47: from the memo. P48: a POP in between. P49: POP before MEMOIZE. P50: DUP. P51: BINSTRING.
    assert_eq!(global(b"\x8c\x01m\x940\x8c\x01n\x940h\0h\x01\x93."), expected);
    assert_eq!(global(b"\x8c\x01m\x8c\x01x0\x8c\x01n\x93."), expected);
    assert_eq!(global(b"\x8c\x01m\x8c\x01x0\x94\x8c\x01n\x93."), expected);
    assert_eq!(global(b"\x8c\x01m2\x93."), named("m", "m"));
    assert_eq!(global(b"T\x01\0\0\0mU\x01n\x93."), expected);
}

#[test]
fn p52_dotted_names_are_kept_and_limited() {
    assert_eq!(global(b"\x8c\x01m\x8c\x05a.b.c\x93."), named("m", "a.b.c"));
    let many = format!("cm\n{}n\n.", "a.".repeat(16));
    assert_eq!(limit(many.as_bytes()), "dotted");
}

#[test]
fn p53_the_extension_registry_is_refused() {
    for data in [&b"\x82\0."[..], b"\x82\x01.", b"\x83\x01\x01.", b"\x84\0\0\0\x80."] {
        assert_eq!(code(data), Code::ExtRegistry);
    }
}

#[test]
fn p54_out_of_band_buffers_are_refused() {
    for data in [&b"\x97."[..], b"N\x98."] {
        assert_eq!(code(data), Code::OutOfBand);
    }
}

#[test]
fn p55_text_persistent_ids_are_a_defect() {
    assert_eq!(code(b"P123\n."), Code::PersistentId);
    let found = run_recovering(b"P123\n.".to_vec(), 0, &Limits::default(), &Cancel::new())
        .expect("a recovered pickle");
    let Value::PersistentId(id) = found.values.get(found.root.unwrap()) else { panic!("no id") };
    assert!(matches!(found.values.get(id), Value::Str(text) if text.as_str() == Some("123")));
}

#[test]
fn p56_the_machine_accepts_any_value_as_a_persistent_id() {
    for data in [&b"U\x01aQ."[..], b"]Q.", b"NQ.", b")Q.", b"NQQ."] {
        let pickle = read(data);
        assert!(matches!(pickle.values.get(pickle.root), Value::PersistentId(_)));
    }
}

#[test]
fn c10_arguments_that_are_no_tuple_are_refused() {
    for data in [&b"cm\nn\n]R."[..], b"cm\nn\nNR.", b"cm\nn\n]\x81.", b"cm\nn\n)]\x92.", b"cm\nn\n]}\x92."] {
        assert_eq!(code(data), Code::PickleType, "{}", data.escape_ascii());
    }
}

#[test]
fn errors_carry_the_offset_of_their_opcode() {
    assert_eq!(fails(b"\x80\x02]NNs.").offset(), Some(5));
    assert_eq!(fails(b"NX\xff\0\0\0.").offset(), Some(1));
    assert_eq!(fails(b"N]h\x07.").offset(), Some(2));
}
