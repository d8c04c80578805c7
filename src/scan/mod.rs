//! What would this file have done? Looks at files as any reader might, and runs nothing.
//!
//! A scan uses the loader's own containers, disassembler and machine. It first asks the strict reader, whose refusal is a finding,
//! and goes on where other readers would: through damaged archives, past a pickle's end, into members that nothing refers to
//! and into archives inside archives. What was not looked at is listed, and then no file is called inert. Tensors are not read.
#![forbid(unsafe_code)]
#![deny(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::unwrap_used,
    clippy::as_conversions
)]

mod archive;
mod encoded;
mod file;
mod pickles;
mod plain;
mod policy;
mod preview;
mod report;
mod walk;

use std::path::PathBuf;

use crate::bytes::{Bytes, Source};
use crate::error::Result;
use crate::limits::Limits;
use crate::parallel::Cancel;

pub use report::{FileReport, Finding, Named, Range, Report, Status, Step, Verdict};

/// How to scan.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Bounds on what a file may make the scan do.
    pub limits: Limits,
    /// The request to stop.
    pub cancel: Cancel,
}

/// Scans files, and all files in directories. What is wrong with a file is in the report; an error is a path that is not there,
/// or a request to stop.
pub fn scan(paths: &[PathBuf], options: &Options) -> Result<Report> {
    let mut report = Report::default();
    for path in paths {
        for (path, named) in walk::files(path)? {
            options.cancel.check()?;
            report.files.push(file::scan_path(&path, named, options)?);
        }
    }
    Ok(report)
}

/// Scans the bytes of one file.
pub fn scan_bytes(bytes: Bytes, options: &Options) -> Result<Report> {
    Ok(Report { files: vec![file::scan_source(&Source::memory(bytes), None, true, options)?] })
}
