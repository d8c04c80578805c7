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
        sizes: [SymInt(2)][..].into(),
        strides: [SymInt(1)][..].into(),
        storage_offset: SymInt(0),
        requires_grad: true,
        device: Device("cpu".to_owned()),
    };
    let [first, second] = &found.payloads[..] else { panic!("two payloads") };
    assert_eq!((&*first.name, &*first.path_name, first.is_parameter), ("w", "weight_0", true));
    assert_eq!((first.tensor.as_ref(), second.tensor.as_ref()), (Some(&tensor), None));
    assert_eq!(found.unknown_fields, 0);
    let device = changed(r#""cpu","index":null"#, r#""cuda","index":1"#);
    assert_eq!(parse(&device).unwrap().payloads[0].tensor.as_ref().unwrap().device.0, "cuda:1");
    assert!(parse(r#"{"config":{}}"#).unwrap().payloads.is_empty());
}

#[test]
fn fields_that_the_schema_lacks_are_counted() {
    let text = changed(r#""layout":7"#, r#""layout":7,"new":[{"a":1}],"other":null"#);
    assert_eq!(parse(&text).unwrap().unknown_fields, 2);
}

#[test]
fn every_field_is_needed() {
    let whole = changed(META, META);
    for field in ["dtype", "sizes", "requires_grad", "device", "strides", "storage_offset", "layout"] {
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
