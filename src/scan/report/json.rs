//! Writes a report as JSON; docs/reference/scan.md describes the keys.
//!
//! The document is written item by item: the values of all items together would take a multiple of its memory.

use std::fmt::Write as _;

use serde_json::{Value as Json, json};

use super::{ByteRange, FileReport, Finding, GlobalUse, Report, TraceStep};

impl Report {
    /// The report as JSON; docs/reference/scan.md describes the keys.
    pub fn to_json(&self) -> String {
        let header = json!({
            "schema": 1, "rustload": env!("CARGO_PKG_VERSION"), "verdict": self.verdict().as_str(),
            "complete": self.is_complete(), "excluded": self.excluded,
        });
        let mut out = String::new();
        write_object(&mut out, &header, |out| {
            write_list(out, "files", &self.files, |out, file| file.write_json(out));
        });
        out
    }
}

impl FileReport {
    fn write_json(&self, out: &mut String) {
        let header = json!({
            "path": self.path, "format": self.format, "status": self.status.as_str(), "verdict": self.verdict().as_str(),
        });
        let coverage = json!({"complete": self.is_complete(), "truncated": self.truncated});
        write_object(out, &header, |out| {
            write_list(out, "findings", &self.findings, |out, finding| write(out, &finding.json()));
            write_list(out, "trace", &self.trace, |out, step| write(out, &step.json()));
            write_list(out, "globals", &self.globals, |out, global| write(out, &global.json()));
            out.push_str(",\"coverage\":");
            write_object(out, &coverage, |out| {
                write_list(out, "scanned", &self.scanned, |out, range| write(out, &range.json("kind")));
                write_list(out, "unscanned", &self.unscanned, |out, range| write(out, &range.json("why")));
            });
        });
    }
}

fn write(out: &mut String, json: &Json) {
    // Writing to a `String` does not fail.
    let _ = write!(out, "{json}");
}

/// Writes an object of the pairs of `header`, and those that `more` adds, each with a comma before it.
fn write_object(out: &mut String, header: &Json, more: impl FnOnce(&mut String)) {
    write(out, header);
    out.pop();
    more(out);
    out.push('}');
}

fn write_list<T>(out: &mut String, key: &str, items: &[T], mut item: impl FnMut(&mut String, &T)) {
    let _ = write!(out, ",\"{key}\":[");
    for (at, one) in items.iter().enumerate() {
        if at > 0 {
            out.push(',');
        }
        item(out, one);
    }
    out.push(']');
}

impl Finding {
    fn json(&self) -> Json {
        let (module, name) = &self.global;
        let text =
            |text: &String| if module.is_empty() && name.is_empty() { Json::Null } else { json!(text) };
        json!({
            "code": self.code, "severity": self.verdict.severity(), "verdict": self.verdict.as_str(),
            "message": self.message, "member": self.member, "offset": self.offset, "module": text(module),
            "name": text(name), "arguments": self.arguments, "times": self.times, "readers": self.readers,
            "allowed": self.allowed,
        })
    }
}

impl TraceStep {
    fn json(&self) -> Json {
        json!({
            "member": self.member, "offset": self.offset, "effect": self.effect, "opcode": self.opcode,
            "module": self.global.0, "name": self.global.1, "arguments": self.arguments,
            "verdict": self.verdict.as_str(),
        })
    }
}

impl GlobalUse {
    fn json(&self) -> Json {
        json!({
            "module": self.global.0, "name": self.global.1, "verdict": self.verdict.as_str(),
            "reason": self.reason, "calls": self.calls, "member": self.member, "offset": self.offset,
            "allowed": self.allowed,
        })
    }
}

impl ByteRange {
    /// `key` is the name of what it contains.
    fn json(&self, key: &str) -> Json {
        json!({"member": self.member, key: self.what, "offset": self.offset, "nbytes": self.nbytes})
    }
}
