//! The exports of the WebAssembly module behind the page for browsers: `docs/site/browser` has its JavaScript.
//!
//! **Protocol.** One thread calls, and one call at a time. A call leaves its answer, JSON in UTF-8, at `answer_start`, where it stays
//! until the next call. `read` is given a buffer of this module, and writes at most its length.
#![expect(unsafe_code, reason = "functions of the page are called, and exported names are not mangled")]

use std::sync::{Arc, Mutex};

use serde_json::{Value as Json, json};

use crate::bytes::{Access, ReadRanges};
use crate::checkpoint::Checkpoint;
use crate::document::numbers::row_of;
use crate::document::scanned::scanned;
use crate::document::{Read, document};
use crate::error::{Code, Error, Result};
use crate::index::Options;
use crate::parallel::lock;
use crate::scan;
use crate::tensor::{Request, Tensor};

#[link(wasm_import_module = "page")]
unsafe extern "C" {
    /// Reads bytes of the file from an offset. Returns whether it has written all `len` of them.
    fn read(offset: f64, out: *mut u8, len: usize) -> bool;
}

/// The tensors of the file, in the order of the document, and the last answer.
static OPENED: Mutex<Vec<Tensor>> = Mutex::new(Vec::new());
static ANSWER: Mutex<String> = Mutex::new(String::new());

/// The file that the page has.
struct PageFile {
    size: u64,
}

impl ReadRanges for PageFile {
    fn size(&self) -> u64 {
        self.size
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        // SAFETY: the page writes to `out`, `out.len()` bytes at most.
        if unsafe { read(offset as f64, out.as_mut_ptr(), out.len()) } {
            Ok(())
        } else {
            Err(Error::new(Code::FileChanged, "the browser cannot read the file, or it was changed"))
        }
    }

    fn access(&self) -> Access {
        Access { concurrent: false, in_flight: Some(1), ..Access::default() }
    }
}

/// Opens and scans a file of this size. The answer is the data of the page, or `error` and `scan`.
// SAFETY: no other function of the module has this name.
#[unsafe(no_mangle)]
pub extern "C" fn describe(size: f64) {
    lock(&OPENED).clear();
    let file: Arc<dyn ReadRanges> = Arc::new(PageFile { size: size as u64 });
    let report = scan::scan_ranges(file.clone(), &scan::Options::new());
    let report: Option<Json> = report.ok().and_then(|report| serde_json::from_str(&report.to_json()).ok());
    let opened = Checkpoint::from_ranges(file, Options::new());
    match opened.and_then(|checkpoint| document(&checkpoint, report.as_ref(), None)) {
        Ok((data, tensors)) => {
            *lock(&OPENED) = tensors;
            answer(&data);
        }
        Err(error) => answer(&json!({"error": described(&error), "scan": report.as_ref().map(scanned)})),
    }
}

/// Reads a tensor of the document, or a sample of it. The answer is `row`, or `error`.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn numbers(tensor: usize, is_sample: bool) {
    let found = lock(&OPENED).get(tensor).cloned();
    let none = || Error::new(Code::Value, "there is no such tensor");
    let read = Read { request: Request::new().threads(1), is_sample };
    match found.ok_or_else(none).and_then(|tensor| row_of(tensor, &read)) {
        Ok(row) => answer(&json!({"row": row})),
        Err(error) => answer(&json!({"error": described(&error)})),
    }
}

/// The address of the last answer.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn answer_start() -> *const u8 {
    lock(&ANSWER).as_ptr()
}

/// The length of the last answer.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn answer_len() -> usize {
    lock(&ANSWER).len()
}

fn answer(json: &Json) {
    *lock(&ANSWER) = json.to_string();
}

fn described(error: &Error) -> Json {
    json!({"code": error.code().as_str(), "text": error.to_string(), "next": error.next_step()})
}
