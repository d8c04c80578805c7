//! The report of a scan as the page shows it.

use serde_json::{Value as Json, json};

use super::{ITEMS_MAX, items, text};

/// What the page shows of a report in its JSON form.
pub(crate) fn scanned(report: &Json) -> Json {
    let files: Json = list(&report["files"]).iter().take(ITEMS_MAX).map(file).collect();
    json!({"verdict": report["verdict"], "complete": report["complete"], "files": files})
}

fn list(json: &Json) -> &[Json] {
    json.as_array().map_or(&[], Vec::as_slice)
}

fn file(file: &Json) -> Json {
    let path = file["path"].as_str().unwrap_or("bytes");
    let name = path.rsplit(['/', std::path::MAIN_SEPARATOR]).next().unwrap_or(path);
    json!({
        "name": text(name),
        "status": file["status"],
        "verdict": file["verdict"],
        "complete": file["coverage"]["complete"],
        "findings": items(list(&file["findings"]).iter().map(finding)),
    })
}

fn finding(found: &Json) -> Json {
    let place = found["offset"].as_u64().map(|offset| format!("byte {}", grouped(offset)));
    let place = [found["member"].as_str(), place.as_deref()];
    let at: Vec<&str> = place.into_iter().flatten().filter(|part| !part.is_empty()).collect();
    let parts = [found["module"].as_str(), found["name"].as_str()];
    let global: Vec<&str> = parts.into_iter().flatten().filter(|part| !part.is_empty()).collect();
    let (global, message) = (global.join("."), found["message"].as_str().unwrap_or_default());
    let what = match found["arguments"].as_str() {
        None => message.to_owned(),
        Some(arguments) => {
            format!("{global}{arguments}: {}", message.strip_prefix(&global).unwrap_or(message).trim_start())
        }
    };
    json!({
        "code": found["code"],
        "severity": found["severity"],
        "where": text(&at.join(" ")),
        "what": text(&what),
        "times": found["times"],
    })
}

/// The number with a comma between its groups of three digits.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<&str> =
        digits.as_bytes().rchunks(3).rev().filter_map(|group| std::str::from_utf8(group).ok()).collect();
    groups.join(",")
}
