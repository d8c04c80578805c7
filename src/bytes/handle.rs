//! Open descriptors of local files. A process may open a limited number of them (`RLIMIT_NOFILE`), and a checkpoint can have more files,
//! so only a part of that number is kept, and a file is opened again when it is needed.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, Weak};

use once_cell::race::OnceBox;

use super::os;
use crate::num::to_usize;
use crate::parallel::lock_unless_stuck;
use crate::sys;

/// The share of the descriptors of a process that may be kept, each with a second one for direct reads; the rest is for others.
const KEPT_SHARE: u64 = 4;

/// The fewest and the most files that are kept open.
const KEPT_MIN: u64 = 8;
const KEPT_MAX: u64 = 4096;

/// The slots with an open file, in the order in which they were opened.
static KEPT: Mutex<VecDeque<Weak<Slot>>> = Mutex::new(VecDeque::new());

/// A file that is opened when it is needed.
pub(super) struct Handle(Arc<Slot>);

#[derive(Default)]
struct Slot(Mutex<Option<Arc<OpenFile>>>);

/// An open file.
pub(super) struct OpenFile {
    pub(super) file: File,
    /// The file opened again with `O_DIRECT`, if the file system supports it. Opened at the first use.
    direct: OnceBox<Option<File>>,
}

impl OpenFile {
    /// A file for whose direct reads another one is read.
    #[cfg(test)]
    pub(super) fn with_direct(file: File, other: File) -> OpenFile {
        OpenFile { file, direct: OnceBox::with_value(Box::new(Some(other))) }
    }

    pub(super) fn direct(&self) -> Option<&File> {
        self.direct.get_or_init(|| Box::new(os::open_direct(&self.file))).as_ref()
    }
}

impl Handle {
    /// The handle of a file that was opened just now.
    pub(super) fn new(file: File) -> Handle {
        let handle = Handle(Arc::default());
        handle.keep(file);
        handle
    }

    /// The open file. If it was closed to make room, `open` opens it again.
    pub(super) fn get<E>(&self, open: impl FnOnce() -> Result<File, E>) -> Result<Arc<OpenFile>, E> {
        let kept = lock_unless_stuck(&self.0.0).and_then(|slot| slot.clone());
        kept.map_or_else(|| open().map(|file| self.keep(file)), Ok)
    }

    fn keep(&self, file: File) -> Arc<OpenFile> {
        let file = Arc::new(OpenFile { file, direct: OnceBox::new() });
        if let Some(mut slot) = lock_unless_stuck(&self.0.0) {
            *slot = Some(file.clone());
            drop(slot);
            close_surplus(kept_max().saturating_sub(1), Some(&self.0));
        }
        file
    }
}

/// Opens a file for reading. If the process may open no more, it closes the files that are kept.
pub(super) fn open(path: &Path) -> io::Result<File> {
    File::open(path).or_else(|error| {
        if !sys::has_too_many_files(&error) {
            return Err(error);
        }
        close_surplus(0, None);
        File::open(path)
    })
}

/// Closes the files that were opened first, until at most `max` are kept, and then adds a slot.
fn close_surplus(max: usize, added: Option<&Arc<Slot>>) {
    let mut surplus = Vec::new();
    if let Some(mut kept) = lock_unless_stuck(&KEPT) {
        if kept.len() > max {
            kept.retain(|slot| slot.strong_count() > 0);
        }
        let count = kept.len().saturating_sub(max);
        surplus.extend(kept.drain(..count));
        kept.extend(added.map(Arc::downgrade));
    }
    for slot in surplus.iter().filter_map(Weak::upgrade) {
        // Closed after the lock is released, once no thread reads from it.
        let file = lock_unless_stuck(&slot.0).and_then(|mut file| file.take());
        drop(file);
    }
}

/// The most files that are kept open.
fn kept_max() -> usize {
    to_usize((sys::open_files_max() / KEPT_SHARE).clamp(KEPT_MIN, KEPT_MAX))
}
