//! The pickle machine: compared with CPython's pure-Python unpickler, opcode by opcode, and with damaged pickles.

use std::collections::HashSet;
use std::fmt::Write as _;

use proptest::prelude::*;
use rustload::internals::pickle::{CallKind, Disasm, Handle, Opcode, Pickle, Value, run};
use rustload::{Code, Limits};

const PICKLES: &str = include_str!("../data/pickles.txt");
const SMALL: &[u8] = include_bytes!("../data/small_data.pkl");

fn read(data: &[u8]) -> Pickle {
    run(data.to_vec(), &Limits::default()).expect("a valid pickle")
}

fn unhex(text: &str) -> Vec<u8> {
    let digit = |at| u8::from_str_radix(&text[at..at + 2], 16).expect("hex");
    (0..text.len()).step_by(2).map(digit).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("writing to a String cannot fail");
        text
    })
}

/// A value as `make_pickles.py` spells it. Recursive, so only for shallow values.
fn show(pickle: &Pickle, handle: Handle) -> String {
    let values = &pickle.values;
    let run = |items: &[Handle]| items.iter().map(|&item| show(pickle, item)).collect::<Vec<_>>().join(",");
    let pairs = |handle| {
        let entries = values.entries(handle).expect("a dict");
        let shown =
            entries.iter().map(|&(key, value)| format!("{}:{}", show(pickle, key), show(pickle, value)));
        format!("{{{}}}", shown.collect::<Vec<_>>().join(","))
    };
    let set = |handle, letter| {
        let mut items: Vec<_> =
            values.elements(handle).expect("a set").iter().map(|&item| show(pickle, item)).collect();
        items.sort();
        format!("{letter}<{}>", items.join(","))
    };
    match values.get(handle) {
        Value::None => "N".into(),
        Value::Bool(true) => "True".into(),
        Value::Bool(false) => "False".into(),
        Value::Int(value) => value.to_string(),
        Value::BigInt(value) => format!("big{}", hex(value.as_le_bytes())),
        Value::Float(value) => format!("f{}", hex(&value.to_be_bytes())),
        Value::Str(text) => format!("s{}", hex(text.as_bytes())),
        Value::Bytes(bytes) => format!("b{}", hex(bytes)),
        Value::ByteArray(bytes) => format!("y{}", hex(bytes)),
        Value::List(items) => format!("[{}]", run(items)),
        Value::Tuple(items) => format!("({})", run(items)),
        Value::Dict(_) => pairs(handle),
        Value::Set(_) => set(handle, 's'),
        Value::FrozenSet(_) => set(handle, 'f'),
        Value::Global(id) => format!("g<{} {}>", values.global(id).module, values.global(id).name),
        Value::PersistentId(id) => format!("p<{}>", show(pickle, id)),
        Value::Call(id) => {
            let call = values.call(id);
            let (callable, args) = (show(pickle, call.callable), show(pickle, call.args));
            let kwargs = call.kwargs.map(pairs).unwrap_or_default();
            let states: Vec<Handle> = call.states.iter().map(|state| state.value).collect();
            let (states, items, appended) = (run(&states), pairs(handle), run(call.appended));
            format!("c<{callable}|{args}|{kwargs}|{states}|{items}|{appended}>")
        }
    }
}

#[test]
fn values_are_what_cpython_reads_for_every_protocol() {
    for line in PICKLES.lines() {
        let mut parts = line.splitn(3, ' ');
        let (name, data) = (parts.next().expect("a name"), parts.next().expect("hex"));
        let data = unhex(data);
        let pickle = read(&data);
        assert_eq!(show(&pickle, pickle.root), parts.next().expect("a value"), "{name}");
        assert_eq!(pickle.end, data.len(), "{name}");
        if let Some(protocol) = name.rsplit('-').next().and_then(|text| text.parse::<u8>().ok()) {
            assert_eq!(pickle.protocol, if protocol < 2 { 0 } else { protocol });
        }
    }
}

/// The smallest use of each opcode, and its value.
const OPCODES: &[(&[u8], &str)] = &[
    (b"I5\n.", "5"),
    (b"I-5\n.", "-5"),
    (b"I01\n.", "True"),
    (b"I00\n.", "False"),
    (b"I9223372036854775808\n.", "big000000000000008000"),
    (b"J\xff\xff\xff\xff.", "-1"),
    (b"K\xff.", "255"),
    (b"M\x01\x02.", "513"),
    (b"L7L\n.", "7"),
    (b"\x8a\x00.", "0"),
    (b"\x8a\x02\xff\xff.", "-1"),
    (b"\x8a\x0a\x01\0\0\0\0\0\0\0\0\0.", "1"),
    (b"\x8b\x02\0\0\0\0\x80.", "-32768"),
    (b"S'a\\x41'\n.", "s6141"),
    (b"S'\\xff'\n.", "bff"),
    (b"T\x02\0\0\0ab.", "s6162"),
    (b"T\x01\0\0\0\xff.", "bff"),
    (b"U\x02ab.", "s6162"),
    (b"B\x01\0\0\0\xff.", "bff"),
    (b"C\x01\xff.", "bff"),
    (b"\x8e\x01\0\0\0\0\0\0\0\xff.", "bff"),
    (b"\x96\x01\0\0\0\0\0\0\0\xff.", "yff"),
    (b"N.", "N"),
    (b"\x88.", "True"),
    (b"\x89.", "False"),
    (b"V\\u0041\xe9\n.", "s41c3a9"),
    (b"\x8c\x01a.", "s61"),
    (b"X\x01\0\0\0a.", "s61"),
    (b"\x8d\x01\0\0\0\0\0\0\0a.", "s61"),
    (b"F1.5\n.", "f3ff8000000000000"),
    (b"Fnan\n.", "f7ff8000000000000"),
    (b"G\x3f\xf8\0\0\0\0\0\0.", "f3ff8000000000000"),
    (b"]Na.", "[N]"),
    (b"](NNe.", "[N,N]"),
    (b"](e.", "[]"),
    (b"(NNl.", "[N,N]"),
    (b").", "()"),
    (b"(NNt.", "(N,N)"),
    (b"(t.", "()"),
    (b"N\x85.", "(N)"),
    (b"NN\x86.", "(N,N)"),
    (b"NNN\x87.", "(N,N,N)"),
    (b"}.", "{}"),
    (b"(K\x01Nd.", "{1:N}"),
    (b"}K\x01Ns.", "{1:N}"),
    (b"}(K\x01NK\x02Nu.", "{1:N,2:N}"),
    (b"\x8f(K\x01K\x01\x90.", "s<1>"),
    (b"(K\x01K\x01\x91.", "f<1>"),
    (b"NK\x010.", "N"),
    (b"N(0.", "N"),
    (b"N2\x86.", "(N,N)"),
    (b"N(K\x011.", "N"),
    (b"K\x07p0\n0g0\n.", "7"),
    (b"K\x07q\x010h\x01.", "7"),
    (b"K\x07r\xff\xff\xff\xff0j\xff\xff\xff\xff.", "7"),
    (b"K\x07\x940h\0.", "7"),
    (b"cm\nn\n.", "g<m n>"),
    (b"\x8c\x01m\x8c\x01n\x93.", "g<m n>"),
    (b"cm\nn\n)R.", "c<g<m n>|()|||{}|>"),
    (b"cm\nn\n)\x81.", "c<g<m n>|()|||{}|>"),
    (b"cm\nn\n)}\x92.", "c<g<m n>|()|{}||{}|>"),
    (b"(K\x01im\nn\n.", "c<g<m n>|(1)|||{}|>"),
    (b"(cm\nn\nK\x01o.", "c<g<m n>|(1)|||{}|>"),
    (b"cm\nn\n)RK\x01bK\x02b.", "c<g<m n>|()||1,2|{}|>"),
    (b"cm\nn\n)RK\x01Ns(K\x02Nu.", "c<g<m n>|()|||{1:N,2:N}|>"),
    (b"cm\nn\n)RK\x01a(K\x02e(K\x03\x90.", "c<g<m n>|()|||{}|1,2,3>"),
    (b"\x80\x02N.", "N"),
    (b"\x95\x02\0\0\0\0\0\0\0N.", "N"),
    (b"NQ.", "p<N>"),
];

/// Opcodes that a file may not use.
const REFUSED: [Opcode; 6] =
    [Opcode::PersId, Opcode::Ext1, Opcode::Ext2, Opcode::Ext4, Opcode::NextBuffer, Opcode::ReadonlyBuffer];

#[test]
fn each_opcode_means_what_pickletools_says() {
    let limits = Limits::default();
    let mut seen: HashSet<Opcode> = REFUSED.into();
    for &(data, expected) in OPCODES {
        let pickle = read(data);
        assert_eq!(show(&pickle, pickle.root), expected, "{}", data.escape_ascii());
        seen.extend(Disasm::strict(data, 0, &limits).map(|op| op.unwrap().opcode));
    }
    let missing: Vec<_> = Opcode::ALL.iter().filter(|opcode| !seen.contains(opcode)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn calls_come_in_program_order_with_their_kinds_and_offsets() {
    let pickle = read(b"cm\nn\n)R0cm\nn\n)\x810(im\nn\n0(cm\nn\no0cm\nn\n)}\x92.");
    let calls: Vec<_> = pickle.values.calls().map(|(id, _)| pickle.values.call(id)).collect();
    let kinds: Vec<_> = calls.iter().map(|call| call.kind).collect();
    use CallKind::{Inst, NewObj, NewObjEx, Obj, Reduce};
    assert_eq!(kinds, [Reduce, NewObj, Inst, Obj, NewObjEx]);
    assert_eq!(calls.iter().map(|call| call.offset).collect::<Vec<_>>(), [6, 14, 17, 29, 38]);
    assert_eq!(pickle.values.globals().count(), 1, "one module and name are one global");
}

#[test]
fn the_result_of_a_call_can_be_called() {
    let pickle = read(b"cm\nn\n)R)R.");
    let Value::Call(outer) = pickle.values.get(pickle.root) else { panic!("no call") };
    assert!(matches!(pickle.values.get(pickle.values.call(outer).callable), Value::Call(_)));
}

#[test]
fn python_2_names_are_mapped_below_protocol_3_only() {
    let names = |data: &[u8]| {
        let pickle = read(data);
        let (id, _) = pickle.values.globals().next().expect("a global");
        let global = pickle.values.global(id);
        (format!("{}.{}", global.module, global.name), global.spelled.0.to_owned())
    };
    let spelled = "__builtin__".to_owned();
    assert_eq!(names(b"c__builtin__\nset\n."), ("builtins.set".into(), spelled.clone()));
    assert_eq!(names(b"\x80\x02c__builtin__\nxrange\n."), ("builtins.range".into(), spelled.clone()));
    assert_eq!(names(b"\x80\x03c__builtin__\nset\n."), ("__builtin__.set".into(), spelled));
    assert_eq!(names(b"ccommands\ngetoutput\n.").0, "subprocess.getoutput");
    assert_eq!(names(b"cexceptions\nOSError\n.").0, "builtins.OSError");
    let pickle = read(b"c__builtin__\nset\ncbuiltins\nset\n\x86.");
    let Value::Tuple([a, b]) = pickle.values.get(pickle.root) else { panic!("no pair") };
    assert_eq!(a, b, "two spellings of one global are one value");
}

#[test]
fn equal_keys_keep_the_first_key_and_take_the_last_value() {
    let shown = |data: &[u8]| {
        let pickle = read(data);
        show(&pickle, pickle.root)
    };
    assert_eq!(shown(b"}(K\x01K\x01\x88K\x02G\x3f\xf0\0\0\0\0\0\0K\x03u."), "{1:3}");
    assert_eq!(shown(b"}(U\x01aK\x01C\x01aK\x02V\\u0061\nK\x03u."), "{s61:3,b61:2}");
    assert_eq!(shown(b"}(K\x01\x85K\x01\x88\x85K\x02u."), "{(1):2}");
    assert_eq!(shown(b"}(K\x01\x85\x85K\x01\x88\x85\x85K\x02u."), "{((1)):2}");
    let nan = b"G\x7f\xf8\0\0\0\0\0\0";
    let two = [b"}(", &nan[..], b"K\x01", nan, b"K\x02u."].concat();
    assert_eq!(shown(&two), "{f7ff8000000000000:1,f7ff8000000000000:2}");
    let one = [b"}(", &nan[..], b"q\x01K\x01h\x01K\x02u."].concat();
    assert_eq!(shown(&one), "{f7ff8000000000000:2}");
    let long = [b"B\xc8\0\0\0", &[b'x'; 200][..]].concat();
    let twice =
        [b"}(", &long[..], b"K\x01", &long, b"K\x02", &long, b"\x85K\x03", &long, b"\x85K\x04u."].concat();
    let text = hex(&[b'x'; 200]);
    assert_eq!(shown(&twice), format!("{{b{text}:2,(b{text}):4}}"));
}

#[test]
fn a_pickle_ends_at_stop() {
    let pickle = run(b"\x80\x02K\x05.more".to_vec(), &Limits::default()).expect("a pickle");
    assert_eq!((pickle.end, pickle.protocol), (5, 2));
    assert_eq!(pickle.values.get(pickle.root), Value::Int(5));
}

#[test]
fn errors_carry_the_offset_of_their_opcode() {
    for (data, code, offset) in [
        (&b"\x80\x02]NNs."[..], Code::PickleType, 5),
        (b"NX\xff\0\0\0.", Code::Truncated, 1),
        (b"N]h\x07.", Code::PickleMemo, 2),
        (b"N\xff.", Code::PickleOpcode, 1),
    ] {
        let error = run(data.to_vec(), &Limits::default()).expect_err("a bad pickle");
        assert_eq!((error.code(), error.offset()), (code, Some(offset)));
    }
}

#[test]
fn a_torch_pickle_truncated_at_any_byte_is_an_error() {
    for len in 0..SMALL.len() {
        assert!(run(SMALL[..len].to_vec(), &Limits::default()).is_err(), "{len}");
    }
}

#[test]
fn a_torch_pickle_with_any_bit_flipped_is_an_error_or_a_value() {
    for at in 0..SMALL.len() {
        for bit in 0..8 {
            let mut data = SMALL.to_vec();
            data[at] ^= 1 << bit;
            visit(&data);
        }
    }
}

/// Reads the pickle, and looks up all its calls and globals if that succeeds.
fn visit(data: &[u8]) {
    let limits = Limits::new().nodes(1 << 20);
    let Ok(pickle) = run(data.to_vec(), &limits) else { return };
    let values = &pickle.values;
    assert!(pickle.root.index() < values.len());
    for (id, handle) in values.calls() {
        let call = values.call(id);
        assert!(call.callable.index() < values.len() && matches!(values.get(call.args), Value::Tuple(_)));
        values.entries(handle).expect("a call has entries");
    }
    for (id, _) in values.globals() {
        let _ = values.global(id);
    }
}

proptest! {
    #[test]
    fn any_bytes_are_an_error_or_a_value(data in proptest::collection::vec(any::<u8>(), 0..200)) {
        visit(&data);
    }

    #[test]
    fn any_opcodes_are_an_error_or_a_value(picks in proptest::collection::vec((0usize..68, any::<[u8; 2]>()), 0..200)) {
        let mut data = b"((((NNNN]}\x8f)".to_vec();
        for (pick, [low, high]) in picks {
            let opcode = Opcode::ALL[pick];
            data.push(opcode.byte());
            match opcode.name() {
                "BININT1" | "BINPUT" | "BINGET" => data.push(low % 4),
                "BININT2" => data.extend([low, high]),
                "GLOBAL" | "INST" => data.extend(b"m\nn\n"),
                _ => {}
            }
        }
        visit(&data);
    }
}
