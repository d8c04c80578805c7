//! The detector of safetensors: a header, which no reader unpickles, and elements.
//!
//! Stands for the `safetensors` package, 0.3 to 0.8. Its readers run nothing, so this only notes the header as scanned, and names
//! that look like paths. The same bytes may be a pickle from byte 0, as the length of the header is: see [`pickle`](super::pickle).

use super::super::report::Finding;
use super::super::scanner::Scanner;
use super::super::scanner::{Detected, Input};
use super::super::verdict::Verdict;
use crate::container::Format;
use crate::error::Result;
use crate::index::Index;
use crate::num::to_u64;

/// Notes the header as scanned.
pub(super) fn walk(scanner: &mut Scanner<'_>, input: &Input<'_>, _: &mut Detected) -> Result<()> {
    if input.format == Some(Format::Safetensors) {
        let stated =
            input.head.first_chunk().map_or(0, |length| u64::from_le_bytes(*length).saturating_add(8));
        scanner.report.scanned(input.label, "safetensors header", 0, input.source.len().min(stated));
    }
    Ok(())
}

/// Adds a finding for names of tensors that look like paths.
pub(in crate::scan) fn add_odd_names(scanner: &mut Scanner<'_>, index: &Index, label: Option<&str>) {
    let odd = |name: &str| {
        name.is_empty()
            || name.contains('\\')
            || name.contains(char::is_control)
            || name.starts_with('/')
            || name.split('/').any(|part| part == "..")
    };
    let odd_entries: Vec<_> = index.entries.iter().filter(|entry| odd(&entry.name)).collect();
    if let Some(first) = odd_entries.first() {
        let text = format!("a tensor is named {:?}", first.name);
        let finding = Finding::new("OddName", Verdict::Inert, label, text);
        scanner.report.add(Finding { times: to_u64(odd_entries.len()), ..finding });
    }
}
