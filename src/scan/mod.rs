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
mod budget;
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::error::Code;

    /// Bytes that ask the scan to stop when they are read for the last of so many times.
    struct Pulling {
        bytes: Vec<u8>,
        reads: AtomicUsize,
        last: usize,
        cancel: Cancel,
    }

    impl AsRef<[u8]> for Pulling {
        fn as_ref(&self) -> &[u8] {
            if self.reads.fetch_add(1, Ordering::Relaxed) == self.last {
                self.cancel.cancel();
            }
            &self.bytes
        }
    }

    fn legacy_stream() -> Vec<u8> {
        let magic = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19\x2e";
        let object = [b"\x80\x02](", &[b'N'; 1 << 20][..], b"e."].concat();
        [&magic[..], b"\x80\x02M\xe9\x03.", b"\x80\x02}.", &object, b"\x80\x02]."].concat()
    }

    #[test]
    fn a_scan_stops_on_request_in_its_strict_reading_too() {
        let scan = |last| {
            let options = Options::default();
            let reads = AtomicUsize::new(0);
            let bytes =
                Arc::new(Pulling { bytes: legacy_stream(), reads, last, cancel: options.cancel.clone() });
            let done = scan_bytes(bytes.clone(), &options);
            (done, bytes.reads.load(Ordering::Relaxed))
        };
        let (done, reads) = scan(usize::MAX);
        assert_eq!(done.unwrap().verdict(), Verdict::Inert);
        // The strict reader comes last, and reads the stream before it runs the pickles.
        let (stopped, _) = scan(reads.saturating_sub(1));
        assert_eq!(stopped.unwrap_err().code(), Code::Cancelled);
    }
}
