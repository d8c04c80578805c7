use super::*;

const META: &str = r#"{"dtype":7,"sizes":[{"as_int":2}],"requires_grad":true,"device":{"type":"cpu","index":null},"strides":[{"as_int":1}],"storage_offset":{"as_int":0},"layout":7}"#;

fn payload(path_name: &str, meta: &str) -> String {
    format!(r#"{{"path_name":"{path_name}","is_param":true,"use_pickle":false,"tensor_meta":{meta}}}"#)
}

fn config(payloads: &str) -> String {
    format!(r#"{{"config":{{{payloads}}}}}"#)
}

/// A configuration of one tensor, in whose metadata `from` is replaced.
fn changed(from: &str, to: &str) -> String {
    let meta = META.replacen(from, to, 1);
    assert!(from == to || meta != META, "{from}");
    config(&format!(r#""w":{}"#, payload("weight_0", &meta)))
}

fn parse(text: &str) -> Result<PayloadConfig> {
    PayloadConfig::parse(text.as_bytes(), &Limits::default())
}

fn code(text: &str) -> Option<Code> {
    parse(text).err().map(|error| error.code())
}

#[test]
fn a_configuration_of_torch_is_read() {
    let two = format!(r#""w":{},"e":{}"#, payload("weight_0", META), payload("weight_1", "null"));
    let found = parse(&config(&two)).unwrap();
    let tensor = TensorMeta {
        dtype: 7,
        layout: 7,
        sizes: Numbers::from_slice(&[2]),
        strides: Numbers::from_slice(&[1]),
        storage_offset: 0,
        requires_grad: true,
        device: "cpu".to_owned(),
    };
    let [first, second] = &found.payloads[..] else { panic!("two payloads") };
    assert_eq!((&*first.name, &*first.path_name, first.is_parameter), ("w", "weight_0", true));
    assert_eq!((first.tensor.as_ref(), second.tensor.as_ref()), (Some(&tensor), None));
    assert_eq!(found.unknown_fields, 0);
    let device = changed(r#""cpu","index":null"#, r#""cuda","index":1"#);
    assert_eq!(parse(&device).unwrap().payloads[0].tensor.as_ref().unwrap().device, "cuda:1");
    assert!(parse(r#"{"config":{}}"#).unwrap().payloads.is_empty());
}

#[test]
fn fields_that_the_schema_lacks_are_counted() {
    let text = changed(r#""layout":7"#, r#""layout":7,"new":[{"a":1}],"other":null"#);
    assert_eq!(parse(&text).unwrap().unknown_fields, 2);
}

#[test]
fn e01_a_key_that_is_there_twice_is_an_error() {
    let twice = format!(r#""w":{0},"w":{0}"#, payload("weight_0", META));
    let texts = [
        config(&twice),
        r#"{"config":{},"config":{}}"#.to_owned(),
        changed(r#""layout":7"#, r#""layout":7,"layout":7"#),
        changed(r#""dtype":7"#, r#""dtype":7,"dtype":6"#),
        changed(r#"{"as_int":2}"#, r#"{"as_int":2,"as_int":3}"#),
        changed(r#""type":"cpu""#, r#""type":"cpu","type":"cuda""#),
        config(
            r#""w":{"path_name":"a","path_name":"b","is_param":true,"use_pickle":false,"tensor_meta":null}"#,
        ),
    ];
    for text in texts {
        assert_eq!(code(&text), Some(Code::ExportConfig), "{text}");
    }
}

#[test]
fn e02_a_path_name_is_the_name_of_one_member() {
    for name in ["", ".", "..", "../weight_0", "a/b", "/etc/passwd", "a\\\\b", "\\u0000", ".hidden"] {
        let text = config(&format!(r#""w":{}"#, payload(name, META)));
        assert_eq!(code(&text), Some(Code::ExportConfig), "{name}");
    }
}

#[test]
fn e03_numbers_are_integers_of_64_bits() {
    for number in
        ["1.0", "1e3", "\"2\"", "true", "null", "NaN", "9223372036854775808", "[2]", "{}", "1_0", "0x2"]
    {
        let text = changed(r#"{"as_int":2}"#, &format!(r#"{{"as_int":{number}}}"#));
        assert_eq!(code(&text), Some(Code::ExportConfig), "{number}");
    }
    for (from, to) in [
        (r#"{"as_int":2}"#, "2"),
        (r#"{"as_int":2}"#, "{}"),
        (r#"{"as_int":2}"#, r#"{"as_float":2.0}"#),
        (r#""dtype":7"#, r#""dtype":-1"#),
        (r#""dtype":7"#, r#""dtype":"FLOAT""#),
        (r#""requires_grad":true"#, r#""requires_grad":1"#),
    ] {
        assert_eq!(code(&changed(from, to)), Some(Code::ExportConfig), "{to}");
    }
    assert_eq!(parse(&changed(r#"{"as_int":2}"#, r#"{"as_int":-2}"#)).unwrap().payloads.len(), 1);
}

#[test]
fn e04_an_expression_is_a_kind_of_error_of_its_own() {
    let text = changed(r#"{"as_int":2}"#, r#"{"as_expr":{"expr_str":"s0","hint":{"as_int":2}}}"#);
    assert_eq!(code(&text), Some(Code::ExportSymbolic));
}

#[test]
fn e05_deep_and_long_values_are_errors() {
    let deep = changed(
        r#""layout":7"#,
        &format!(r#""layout":7,"new":{}{}"#, "[".repeat(100_000), "]".repeat(100_000)),
    );
    assert_eq!(code(&deep), Some(Code::ExportConfig));
    let long = changed(r#"[{"as_int":2}]"#, &format!("[{}]", vec![r#"{"as_int":1}"#; 65].join(",")));
    assert_eq!(code(&long), Some(Code::Limit));
    let many = format!(r#""a":{0},"b":{0}"#, payload("weight_0", META));
    let error = PayloadConfig::parse(config(&many).as_bytes(), &Limits::default().tensors(1)).unwrap_err();
    assert_eq!(error.code(), Code::Limit);
}

#[test]
fn every_field_is_needed() {
    let whole = changed(META, META);
    for field in TENSOR_FIELDS {
        let text = whole.replacen(&format!("\"{field}\""), &format!("\"x{field}\""), 1);
        assert_eq!(code(&text), Some(Code::ExportConfig), "{field}");
    }
    for field in ["path_name", "is_param", "use_pickle", "config"] {
        let text = whole.replacen(&format!("\"{field}\""), &format!("\"x{field}\""), 1);
        assert_eq!(code(&text), Some(Code::ExportConfig), "{field}");
    }
    for text in [
        "",
        "[]",
        "null",
        "{}",
        r#"{"config":[]}"#,
        r#"{"config":{"w":[]}}"#,
        r#"{"config":{}} x"#,
        "\u{feff}{}",
    ] {
        assert_eq!(code(text), Some(Code::ExportConfig), "{text:?}");
    }
    assert_eq!(PayloadConfig::parse(b"{\"config\":\xff", &Limits::default()).unwrap_err().offset(), Some(10));
}
