//! The detector of the metadata of torch_checkpointing: it names files, and classes that are imported.
//!
//! Stands for `torch_checkpointing` 0.1 (`metadata_serialization.py`, `checkpoint_layout.py`): it unpickles the metadata and the files of
//! `torch.save` without restriction, imports the class of every layout of JSON when it reads the metadata, and makes objects of it. The
//! files are scanned as files of their own.

use super::super::gadgets;
use super::super::report::Finding;
use super::super::scanner::Scanner;
use super::super::scanner::{Detected, Input};
use super::super::verdict::Verdict;
use crate::container::Format;
use crate::error::Result;
use crate::index::{self, Index};

/// Adds what a reader of the metadata imports. The strict reader, which would open the other files, has read it thereby.
pub(super) fn walk(scanner: &mut Scanner<'_>, input: &Input<'_>, detected: &mut Detected) -> Result<()> {
    let options = scanner.strict_options();
    let Some(Ok(pickle)) = &detected.executed else { return Ok(()) };
    let Some(classes) = index::imported_classes(pickle, &options) else { return Ok(()) };
    let text = "torch_checkpointing unpickles this file, and those that it names, without restriction";
    scanner.report.add(Finding::new("UnrestrictedLoad", Verdict::Inert, input.label, text));
    for class in classes.as_deref().unwrap_or_default() {
        let (module, name) = class.rsplit_once('.').unwrap_or((class, ""));
        let verdict = gadgets::classify(module, name, false).verdict;
        let text =
            format!("a layout names {class}: its module is imported, and JSON is made an object of it");
        let global = (module.to_owned(), name.to_owned());
        scanner.report.add(Finding { global, ..Finding::new("Import", verdict, input.label, text) });
    }
    detected.read = Some(classes.map(|_| Index::empty(Format::TorchCheckpointing, input.source).into()));
    Ok(())
}
