//! A binary file object of Python as a source of bytes: read by `seek` and `read`, or by `read_ranges` if it has that.

use std::cell::Cell;
use std::path::PathBuf;
use std::process;
use std::sync::{Arc, Mutex, TryLockError};
use std::thread;
use std::time::Duration;

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyOSError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyString};

use super::run;
use crate::bytes::{Access, RangeRead, ReadFolder, ReadRanges, Source};
use crate::error::{Code, Error, Result};

/// How long a thread sleeps while another one uses the file object.
const BUSY_WAIT: Duration = Duration::from_micros(200);

/// `io.SEEK_END`.
const SEEK_END: u8 = 2;

/// A file object that stays open as long as something reads from it.
pub(super) struct FileObject {
    object: Py<PyAny>,
    len: u64,
    name: Option<String>,
    /// The object's `identity`, if it has one.
    identity: Option<String>,
    folder: Option<Arc<dyn ReadFolder>>,
    /// Whether it has `check_unchanged`, which is asked in place of the size.
    has_check: bool,
    /// Whether it has `read_ranges`, which reads without moving a position.
    has_ranges: bool,
    /// Held over `seek` and `read`. It is tried with the interpreter attached and never waited for, so that the thread that holds it can
    /// always finish.
    position: Mutex<()>,
    /// The process that opened it. A forked child shares the position with its parent, which may be reading.
    process: u32,
}

thread_local! {
    /// Whether this thread is inside a file object's method, which must not read from a file object itself.
    static READS: Cell<bool> = const { Cell::new(false) };
}

impl FileObject {
    /// A source of the object's bytes from `start` on. `name` is for messages.
    pub(super) fn source(object: &Bound<'_, PyAny>, start: u64, name: Option<String>) -> PyResult<Source> {
        let source = Source::new(Arc::new(FileObject::new(object, name, None)?));
        if start > source.len() {
            let text = format!("the file object is at byte {start}, its end is at {}", source.len());
            return Err(PyValueError::new_err(text));
        }
        Ok(source.window(start, source.len().saturating_sub(start))?)
    }

    /// The object, which is in that folder if there is one. `name` is for messages.
    pub(super) fn new(
        object: &Bound<'_, PyAny>,
        name: Option<String>,
        folder: Option<Arc<dyn ReadFolder>>,
    ) -> PyResult<FileObject> {
        let has_ranges = object.hasattr("read_ranges")?;
        let len = match has_ranges {
            true => object.getattr("size")?.extract().map_err(|_| {
                PyTypeError::new_err("size is the number of bytes of an object with read_ranges, an int")
            })?,
            false => object.call_method1("seek", (0, SEEK_END))?.extract().or_else(|_: PyErr| {
                // `seek` of some file objects returns nothing.
                object.call_method0("tell")?.extract::<u64>()
            })?,
        };
        let identity = match object.getattr_opt("identity")? {
            Some(identity) if has_ranges => identity.extract::<Option<String>>().unwrap_or_default(),
            _ => None,
        };
        let has_check = has_ranges && object.hasattr("check_unchanged")?;
        let position = Mutex::new(());
        Ok(FileObject {
            object: object.clone().unbind(),
            len,
            name,
            identity,
            folder,
            has_check,
            has_ranges,
            position,
            process: process::id(),
        })
    }

    /// Runs `read` with the object, while no other thread of rustload uses it.
    fn with_object<T>(&self, mut read: impl FnMut(&Bound<'_, PyAny>) -> PyResult<T>) -> Result<T> {
        if process::id() != self.process {
            let text = "a file object of another process: a forked child shares its position with its parent";
            let error = Error::new(Code::Value, text);
            return Err(error.note("Open the checkpoint in this process, or by its path."));
        }
        let again = || Error::new(Code::Value, "the file object reads from a checkpoint that reads from it");
        loop {
            let done = run::callback(|py| {
                let guard = match self.position.try_lock() {
                    Ok(guard) => guard,
                    Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                    Err(TryLockError::WouldBlock) if READS.get() => return Some(Err(again())),
                    Err(TryLockError::WouldBlock) => {
                        py.detach(|| thread::sleep(BUSY_WAIT));
                        return None;
                    }
                };
                let outer = READS.replace(true);
                let result = read(self.object.bind(py)).map_err(|error| self.failed(error));
                READS.set(outer);
                drop(guard);
                Some(result)
            });
            if let Some(result) = done {
                return result;
            }
        }
    }

    /// The error for an exception of one of the object's methods, which becomes its cause.
    fn failed(&self, error: PyErr) -> Error {
        run::callback_failed(error, self.name.as_ref().map(PathBuf::from))
    }

    fn read_by_position(&self, file: &Bound<'_, PyAny>, offset: u64, out: &mut [u8]) -> PyResult<()> {
        file.call_method1("seek", (offset,))?;
        let mut done = 0;
        while let Some(rest) = out.get_mut(done..).filter(|rest| !rest.is_empty()) {
            // A raw stream may return fewer bytes than asked for.
            let bytes = file.call_method1("read", (rest.len(),))?;
            let bytes = bytes.cast::<PyBytes>().map_err(|_| not_bytes(&bytes))?.as_bytes();
            if bytes.is_empty() || bytes.len() > rest.len() {
                return Err(wrong_length(offset, rest.len(), bytes.len()));
            }
            rest[..bytes.len()].copy_from_slice(bytes);
            done += bytes.len();
        }
        Ok(())
    }
}

impl ReadRanges for FileObject {
    fn size(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        self.read_ranges(&mut [RangeRead { offset, out }])
    }

    fn read_ranges(&self, ranges: &mut [RangeRead<'_>]) -> Result<()> {
        if !self.has_ranges {
            return ranges.iter_mut().try_for_each(|RangeRead { offset, out }| {
                self.with_object(|file| self.read_by_position(file, *offset, out))
            });
        }
        let wanted: Vec<(u64, usize)> = ranges.iter().map(|range| (range.offset, range.out.len())).collect();
        run::callback(|py| read_ranges(self.object.bind(py), &wanted, ranges))
            .map_err(|error| self.failed(error))
    }

    fn access(&self) -> Access {
        let mut access = Access::default();
        if !self.has_ranges {
            (access.concurrent, access.in_flight) = (false, Some(1));
        }
        access
    }

    fn check_unchanged(&self) -> Result<()> {
        if self.has_check {
            let checked = run::callback(|py| self.object.bind(py).call_method0("check_unchanged").map(drop));
            return checked.map_err(|error| self.failed(error));
        }
        let len = if self.has_ranges {
            let size = run::callback(|py| self.object.bind(py).getattr("size")?.extract::<u64>());
            size.map_err(|error| self.failed(error))?
        } else {
            self.with_object(|file| {
                file.call_method1("seek", (0, SEEK_END))?;
                file.call_method0("tell")?.extract::<u64>()
            })?
        };
        if len == self.len {
            return Ok(());
        }
        let text = format!("the file object had {} byte(s) when it was opened, and has {len} now", self.len);
        Err(Error::new(Code::FileChanged, text))
    }

    fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    fn identity(&self) -> Option<String> {
        self.identity.clone()
    }

    fn folder(&self) -> Option<Arc<dyn ReadFolder>> {
        self.folder.clone()
    }
}

/// Reads ranges with one call of the object's `read_ranges`, which gets pairs of offset and length and returns a buffer for each.
fn read_ranges(
    object: &Bound<'_, PyAny>,
    wanted: &[(u64, usize)],
    ranges: &mut [RangeRead<'_>],
) -> PyResult<()> {
    let py = object.py();
    let found = object.call_method1("read_ranges", (PyList::new(py, wanted)?,))?;
    let mut found = found.try_iter()?;
    for range in ranges {
        let buffer = found.next().transpose()?;
        let buffer = buffer.ok_or_else(|| PyOSError::new_err("read_ranges returned too few buffers"))?;
        let buffer = PyBuffer::<u8>::get(&buffer)?;
        if buffer.len_bytes() != range.out.len() {
            return Err(wrong_length(range.offset, range.out.len(), buffer.len_bytes()));
        }
        buffer.copy_to_slice(py, range.out)?;
    }
    Ok(())
}

/// The name of an object in messages: its `name`.
pub(super) fn object_name(object: &Bound<'_, PyAny>) -> PyResult<Option<String>> {
    Ok(object.getattr_opt("name")?.and_then(|name| name.extract().ok()))
}

fn wrong_length(offset: u64, wanted: usize, found: usize) -> PyErr {
    PyOSError::new_err(format!("the file object returned {found} byte(s) at offset {offset}, not {wanted}"))
}

fn not_bytes(found: &Bound<'_, PyAny>) -> PyErr {
    let text = match found.is_instance_of::<PyString>() {
        true => "the file is open in text mode; open it with mode 'rb'",
        false => "read() of the file object does not return bytes",
    };
    PyTypeError::new_err(text)
}
