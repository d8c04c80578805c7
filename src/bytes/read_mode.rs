//! How some bytes of a source are read: buffered or direct, by how many threads, and through which file descriptor.
#![forbid(unsafe_code)]

use std::fs::File;
use std::sync::Arc;

use super::access::Access;
use super::file::LocalFile;
use super::io_choice::{DIRECT_ALIGNMENT, DIRECT_READ_MAX_BYTES};
use super::os;
use super::reader::Reader;
use super::source::Source;
use crate::parallel;

/// If at least this many bytes are read, each thread reads through a file descriptor of its own.
const SEQUENTIAL_READ_MIN_BYTES: u64 = 16 << 20;

/// The number of threads that keep a disk busy, however few cores there are.
const DISK_THREADS: usize = 4;

/// How some bytes of a source are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadMode {
    way: ReadWay,
    access: Access,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReadWay {
    /// By the source's own positional reads; those of a file go through the page cache.
    Plain,
    /// Through the page cache, each thread with a file descriptor and read-ahead of its own.
    Sequential,
    /// With `O_DIRECT`, which bypasses the page cache.
    Direct,
}

impl ReadMode {
    /// How to read `bytes` bytes for one result. If they are not contiguous, they are read in short runs, and those of a file
    /// through the page cache.
    pub fn of(source: &Source, bytes: u64, contiguous: bool) -> ReadMode {
        let access = source.data_access();
        let plain = ReadMode { way: ReadWay::Plain, access };
        let Some(file) = source.file() else { return plain };
        if bytes >= DIRECT_READ_MAX_BYTES && contiguous && file.direct().is_some() {
            ReadMode { way: ReadWay::Direct, access: direct_access() }
        } else if bytes >= sequential_min(access) {
            ReadMode { way: ReadWay::Sequential, access }
        } else {
            plain
        }
    }

    /// With `O_DIRECT` if that is chosen for the source's file and the file system supports it, however few the bytes.
    pub(super) fn direct(source: &Source) -> ReadMode {
        let is_direct = source.file().and_then(LocalFile::direct).is_some();
        ReadMode {
            way: if is_direct { ReadWay::Direct } else { ReadWay::Plain },
            access: source.data_access(),
        }
    }

    /// The sizes that suit it.
    pub fn access(self) -> Access {
        self.access
    }

    /// Whether reads are direct, so that they bypass the page cache.
    pub fn is_direct(self) -> bool {
        self.way == ReadWay::Direct
    }

    /// One thread's reads of the source.
    pub fn reader(self, source: &Source) -> Reader<'_> {
        self.reader_with(source, &mut Descriptor::default())
    }

    /// As [`ReadMode::reader`], with the thread's file descriptor of the same file if it has one.
    pub fn reader_with<'a>(self, source: &'a Source, descriptor: &mut Descriptor) -> Reader<'a> {
        let (direct, sequential) = match self.way {
            ReadWay::Direct => (source.file().and_then(LocalFile::direct), None),
            ReadWay::Sequential => (None, descriptor.of(source)),
            ReadWay::Plain => (None, None),
        };
        Reader { source, access: self.access, direct, sequential }
    }
}

/// A thread's own file descriptor, with read-ahead of its own.
#[derive(Default)]
pub struct Descriptor(Option<(Source, Option<Arc<File>>)>);

impl Descriptor {
    /// The descriptor of the source's file: the last one if it is of the same file.
    fn of(&mut self, source: &Source) -> Option<Arc<File>> {
        match &self.0 {
            Some((last, descriptor)) if last.same_backing(source) => descriptor.clone(),
            _ => {
                let opened = source
                    .file()
                    .and_then(|file| os::open_sequential(&file.opened().ok()?.file))
                    .map(Arc::new);
                self.0.insert((source.clone(), opened)).1.clone()
            }
        }
    }
}

/// The least bytes for which each thread opens a file descriptor of its own: fewer where the kernel's read-ahead counts most.
fn sequential_min(access: Access) -> u64 {
    if access.waits_for_requests() { access.small } else { SEQUENTIAL_READ_MIN_BYTES }
}

/// How the disk behind a file is read best.
fn direct_access() -> Access {
    Access {
        // Larger than the L2 cache, but the disk is slower than the cache misses.
        block: DIRECT_READ_MAX_BYTES,
        alignment: DIRECT_ALIGNMENT,
        in_flight: Some(DISK_THREADS.max(parallel::cores())),
        ..Access::BUFFERED
    }
}

/// Upper bounds for the reads of a source: the bytes of one thread's scratch and bounce buffer, and the number of threads, where
/// the source suggests one.
pub fn scratch_bounds(source: &Source) -> (u64, Option<usize>) {
    let access = source.data_access();
    if source.file().is_some_and(LocalFile::may_be_direct) {
        (access.block + DIRECT_READ_MAX_BYTES, access.in_flight.max(direct_access().in_flight))
    } else {
        (access.block, access.in_flight)
    }
}
