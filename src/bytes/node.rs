//! Bytes of a store that the processes of one machine fetch once: the first that needs some fetches them into a file, and the others
//! read that.
//!
//! A stripe of an object is a file in a folder of this user alone: its bytes, and then a byte for each granule, which says whether
//! the granule is there. Who fetches holds an exclusive lock on the file, which the system releases when the process ends, however it ends: then
//! the next one that needs the bytes fetches them. Nothing here is needed for a read to succeed: without room, after an error of the
//! folder, and when another process takes too long, the object is read as without this.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::PathBuf;
use std::slice;
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use sha2::{Digest, Sha256};

use super::read_ranges::RangeRead;
use super::scratch::zeroed;
use crate::error::{Code, Error, Result, bail};
use crate::num::{to_u64, to_usize};
use crate::parallel::{Cancel, lock_unless_stuck};
use crate::sys::{self, FileExt, Instant};

/// The bytes of a file.
const STRIPE_BYTES: u64 = 4 << 20;

/// What is fetched and kept at least.
pub(super) const GRANULE_BYTES: u64 = 64 << 10;

const GRANULES: usize = (STRIPE_BYTES / GRANULE_BYTES) as usize;

/// A request has at most so many stripes.
const RUN_STRIPES: usize = 2;

/// How long a read waits for what other processes fetch before it fetches that itself.
const WAIT_MAX: Duration = Duration::from_secs(10);

const WAIT_MIN: Duration = Duration::from_millis(1);
const WAIT_STEP_MAX: Duration = Duration::from_millis(16);

/// The most stripes that one thread has claimed, each of which is an open file.
const CLAIMS_MAX: usize = 16;

/// What a process shares with the others of its machine.
pub struct NodeShare {
    folder: PathBuf,
    /// Of `count` processes, this one begins with the stripes at this share of a read, so that not all begin with the same.
    number: usize,
    count: usize,
    /// The most bytes of files that this process keeps.
    window: u64,
    kept: Mutex<Kept>,
}

/// The files that this process has filled, the oldest first.
#[derive(Default)]
struct Kept {
    files: VecDeque<(PathBuf, u64)>,
    bytes: u64,
    /// The folder cannot be written to any more.
    is_full: bool,
}

/// What reads the object itself.
pub(super) type Fetch<'a> = dyn Fn(&mut [RangeRead<'_>]) -> Result<()> + 'a;

/// The object that is read.
pub(super) struct Shared<'a> {
    /// Identifies this version of the object.
    pub(super) identity: &'a str,
    pub(super) size: u64,
    pub(super) fetch: &'a Fetch<'a>,
}

/// The part of a read that lies in one stripe.
struct Part<'a> {
    offset: u64,
    out: &'a mut [u8],
    path: PathBuf,
    /// The file, locked by this process; fetched by it next.
    claim: Option<File>,
    is_done: bool,
}

impl Part<'_> {
    /// The bytes of the object that are fetched for it: whole granules.
    fn span(&self, size: u64) -> (u64, u64) {
        let end = self.offset.saturating_add(to_u64(self.out.len()));
        let end = end.div_ceil(GRANULE_BYTES).saturating_mul(GRANULE_BYTES).min(size);
        (self.offset / GRANULE_BYTES * GRANULE_BYTES, end)
    }

    fn start_in_file(&self) -> u64 {
        self.offset % STRIPE_BYTES
    }

    /// The numbers of its granules in the stripe.
    fn granules(&self) -> std::ops::Range<usize> {
        let start = self.start_in_file();
        let end = start.saturating_add(to_u64(self.out.len()));
        to_usize(start / GRANULE_BYTES)..to_usize(end.div_ceil(GRANULE_BYTES))
    }

    /// Takes its bytes from the file if they are there, else the right to fetch them if no other process has it.
    fn try_take(&mut self) -> io::Result<()> {
        let file = sys::private_file(&self.path)?;
        if !is_locked(file.try_lock_shared())? || self.take(&file)? {
            return Ok(());
        }
        // Windows does not turn a lock into another one, and Linux releases it for that.
        file.unlock()?;
        if !is_locked(file.try_lock())? {
            return Ok(());
        }
        // Another process may have had it between the two locks.
        if !self.take(&file)? {
            self.claim = Some(file);
        }
        Ok(())
    }

    /// Copies its bytes out of the file, if all of them are there.
    fn take(&mut self, file: &File) -> io::Result<bool> {
        let mut table = [0; GRANULES];
        let read = file.read_at(&mut table, STRIPE_BYTES)?;
        let is_there = table.get(..read).and_then(|table| table.get(self.granules()));
        if !is_there.is_some_and(|granules| granules.iter().all(|&granule| granule == 1)) {
            return Ok(false);
        }
        file.read_exact_at(self.out, self.start_in_file())?;
        self.is_done = true;
        Ok(true)
    }
}

impl NodeShare {
    /// Shares by the files of a folder, which only this user can enter. The processes have the numbers below `count`; each keeps up
    /// to `window` bytes of files.
    pub fn new(folder: PathBuf, number: usize, count: usize, window: u64) -> NodeShare {
        let count = count.max(1);
        NodeShare { folder, number: number % count, count, window, kept: Mutex::default() }
    }

    /// As [`ReadRanges::read_ranges`](super::ReadRanges::read_ranges).
    pub(super) fn read(&self, object: &Shared<'_>, ranges: &mut [RangeRead<'_>]) -> Result<()> {
        let mut parts = self.parts(object, ranges);
        let first = parts.len().saturating_mul(self.number) / self.count;
        parts.rotate_left(first);
        // Its own share first, then whatever no other process fetches, then what the others have fetched.
        let own = parts_of_one(parts.len(), self.count);
        self.pass(object, &mut parts, own)?;
        while self.pass(object, &mut parts, CLAIMS_MAX)? {}
        let (start, mut step) = (Instant::now(), WAIT_MIN);
        loop {
            parts.retain(|part| !part.is_done);
            let Some((first, rest)) = parts.split_first_mut() else { return Ok(()) };
            if start.elapsed() > WAIT_MAX || self.is_full() {
                return fetch_alone(object, &mut parts);
            }
            if Cancel::is_current_cancelled() {
                bail!(Code::Cancelled, "stopped on request");
            }
            thread::sleep(step);
            step = WAIT_STEP_MAX.min(step.saturating_mul(2));
            self.pass(object, slice::from_mut(first), 1)?;
            if first.is_done {
                while self.pass(object, rest, CLAIMS_MAX)? {}
            }
        }
    }

    /// Cuts ranges at the ends of stripes.
    fn parts<'a>(&self, object: &Shared<'_>, ranges: &'a mut [RangeRead<'_>]) -> Vec<Part<'a>> {
        let key = Sha256::digest(object.identity.as_bytes());
        let key: String = key.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
        let mut parts = Vec::new();
        for range in ranges {
            let (mut offset, mut rest) = (range.offset, &mut *range.out);
            while !rest.is_empty() {
                let stripe = offset / STRIPE_BYTES;
                let len = to_usize(STRIPE_BYTES - offset % STRIPE_BYTES).min(rest.len());
                let (out, tail) = rest.split_at_mut(len);
                let path = self.folder.join(format!("{key}-{stripe:x}"));
                parts.push(Part { offset, out, path, claim: None, is_done: false });
                (offset, rest) = (offset.saturating_add(to_u64(len)), tail);
            }
        }
        parts
    }

    /// Takes what is there, and fetches up to `most` of the parts that nobody fetches. False if there were none.
    fn pass(&self, object: &Shared<'_>, parts: &mut [Part<'_>], most: usize) -> Result<bool> {
        let mut claims = 0;
        for part in parts.iter_mut().filter(|part| !part.is_done) {
            if claims >= most || self.is_full() {
                break;
            }
            match part.try_take() {
                Ok(()) => claims += usize::from(part.claim.is_some()),
                Err(_) => self.give_up(),
            }
        }
        let mut runs: Vec<&mut [Part<'_>]> = Vec::new();
        for run in parts.chunk_by_mut(|one, next| {
            one.claim.is_some() && next.claim.is_some() && one.span(object.size).1 == next.span(object.size).0
        }) {
            runs.extend(
                run.chunks_mut(RUN_STRIPES).filter(|run| run.iter().all(|part| part.claim.is_some())),
            );
        }
        runs.into_iter().try_for_each(|run| self.fetch(object, run))?;
        Ok(claims > 0)
    }

    /// Fetches claimed parts that follow one another by one request, and keeps their bytes for the others.
    fn fetch(&self, object: &Shared<'_>, run: &mut [Part<'_>]) -> Result<()> {
        let (Some(first), Some(last)) = (run.first(), run.last()) else { return Ok(()) };
        let (start, end) = (first.span(object.size).0, last.span(object.size).1);
        let mut bytes = zeroed(end.saturating_sub(start))?;
        (object.fetch)(&mut [RangeRead { offset: start, out: &mut bytes }])?;
        for part in run {
            let (from, to) = part.span(object.size);
            let found = |from: u64, len: usize| {
                let from = to_usize(from.saturating_sub(start));
                let part = bytes.get(from..from.saturating_add(len));
                part.ok_or_else(|| Error::new(Code::InternalError, "a part outside its request"))
            };
            part.out.copy_from_slice(found(part.offset, part.out.len())?);
            part.is_done = true;
            let granules = found(from, to_usize(to.saturating_sub(from)))?;
            if let Some(file) = part.claim.take()
                && !self.is_full()
            {
                let table = [1; GRANULES];
                let table = table.get(part.granules()).unwrap_or(&[]);
                let marks = STRIPE_BYTES.saturating_add(to_u64(part.granules().start));
                let written = file
                    .write_all_at(granules, from % STRIPE_BYTES)
                    .and_then(|()| file.write_all_at(table, marks));
                match written {
                    Ok(()) => self.keep(part.path.clone(), to_u64(granules.len())),
                    Err(_) => self.give_up(),
                }
            }
        }
        Ok(())
    }

    /// Counts a file that was filled; over the window, the oldest are removed, which processes that have opened them can still read.
    fn keep(&self, path: PathBuf, bytes: u64) {
        let Some(mut kept) = lock_unless_stuck(&self.kept) else { return };
        // What other processes have put into the same file is counted by them.
        kept.files.push_back((path, bytes));
        kept.bytes = kept.bytes.saturating_add(bytes);
        while kept.bytes > self.window
            && let Some((oldest, bytes)) = kept.files.pop_front()
        {
            kept.bytes = kept.bytes.saturating_sub(bytes);
            let _ = fs::remove_file(oldest);
        }
    }

    fn is_full(&self) -> bool {
        lock_unless_stuck(&self.kept).is_none_or(|kept| kept.is_full)
    }

    fn give_up(&self) {
        if let Some(mut kept) = lock_unless_stuck(&self.kept) {
            kept.is_full = true;
        }
    }
}

/// Whether this process has got a lock; false where another one has it.
fn is_locked(tried: Result<(), TryLockError>) -> io::Result<bool> {
    match tried {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// The parts of a read that one of `count` processes begins with.
fn parts_of_one(parts: usize, count: usize) -> usize {
    parts.div_ceil(count).min(CLAIMS_MAX)
}

/// Reads the parts from the object itself.
fn fetch_alone(object: &Shared<'_>, parts: &mut [Part<'_>]) -> Result<()> {
    let mut ranges: Vec<_> =
        parts.iter_mut().map(|part| RangeRead { offset: part.offset, out: &mut *part.out }).collect();
    (object.fetch)(&mut ranges)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    const SIZE: u64 = 5 * STRIPE_BYTES + 12_345;

    /// An object whose bytes follow from their offsets, and what was fetched of it.
    #[derive(Default)]
    struct Object {
        requests: AtomicU64,
        bytes: AtomicU64,
        fails: bool,
    }

    fn byte(at: u64) -> u8 {
        (at ^ (at >> 8) ^ (at >> 16)) as u8
    }

    impl Object {
        fn fetch(&self, ranges: &mut [RangeRead<'_>]) -> Result<()> {
            if self.fails {
                bail!(Code::Io, "the store failed");
            }
            thread::sleep(Duration::from_millis(2));
            for RangeRead { offset, out } in ranges {
                assert!(*offset + to_u64(out.len()) <= SIZE, "a request past the end");
                self.requests.fetch_add(1, Ordering::Relaxed);
                self.bytes.fetch_add(to_u64(out.len()), Ordering::Relaxed);
                for (at, out) in out.iter_mut().enumerate() {
                    *out = byte(*offset + to_u64(at));
                }
            }
            Ok(())
        }

        fn read(&self, node: &NodeShare, offset: u64, len: usize) -> Result<()> {
            let mut found = vec![0; len];
            let fetch = |ranges: &mut [RangeRead<'_>]| self.fetch(ranges);
            let object = Shared { identity: "one", size: SIZE, fetch: &fetch };
            node.read(&object, &mut [RangeRead { offset, out: &mut found }])?;
            let is_right = found.iter().enumerate().all(|(at, found)| *found == byte(offset + to_u64(at)));
            assert!(is_right, "{offset} {len}");
            Ok(())
        }

        fn counts(&self) -> (u64, u64) {
            (self.requests.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed))
        }
    }

    fn node(folder: &tempfile::TempDir, number: usize, count: usize) -> NodeShare {
        NodeShare::new(folder.path().to_owned(), number, count, u64::MAX)
    }

    // On Windows no processes share: the folder needs flock(2) (`_node_folder.py`).
    #[cfg(unix)]
    #[test]
    fn each_byte_is_fetched_once_by_processes_that_read_at_once() {
        let (folder, object) = (tempfile::tempdir().unwrap(), Object::default());
        thread::scope(|scope| {
            for number in 0..8 {
                let (folder, object) = (&folder, &object);
                scope.spawn(move || {
                    let node = node(folder, number, 8);
                    object.read(&node, 0, to_usize(SIZE)).unwrap();
                    object.read(&node, 3, to_usize(SIZE) - 3).unwrap();
                });
            }
        });
        assert_eq!(object.counts().1, SIZE);
        assert!(object.counts().0 <= 6, "{:?}", object.counts());
    }

    #[test]
    fn ranges_of_any_place_and_length_are_right() {
        let (folder, object) = (tempfile::tempdir().unwrap(), Object::default());
        let nodes = [node(&folder, 0, 2), node(&folder, 1, 2)];
        let mut state = 7_u64;
        for number in 0..300 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let offset = (state >> 20) % SIZE;
            let len = ((state >> 3) % (2 << 20)).min(SIZE - offset);
            object.read(&nodes[number % 2], offset, to_usize(len)).unwrap();
        }
        object.read(&nodes[0], SIZE, 0).unwrap();
    }

    // On Windows no processes share: the folder needs flock(2) (`_node_folder.py`).
    #[cfg(unix)]
    #[test]
    fn one_that_reads_alone_sends_long_requests() {
        let (folder, object) = (tempfile::tempdir().unwrap(), Object::default());
        object.read(&node(&folder, 0, 1), 0, to_usize(SIZE)).unwrap();
        assert_eq!(object.counts(), (3, SIZE));
    }

    #[test]
    fn what_a_dead_process_had_claimed_or_half_written_is_fetched_by_another() {
        let (folder, object) = (tempfile::tempdir().unwrap(), Object::default());
        object.read(&node(&folder, 0, 1), 0, to_usize(SIZE)).unwrap();
        for file in fs::read_dir(folder.path()).unwrap() {
            // Its bytes came, and the table did not.
            let file = fs::OpenOptions::new().write(true).open(file.unwrap().path()).unwrap();
            file.set_len(STRIPE_BYTES).unwrap();
            file.write_all_at(b"half of it", 0).unwrap();
        }
        object.read(&node(&folder, 0, 1), 0, to_usize(SIZE)).unwrap();
        assert_eq!(object.counts().1, 2 * SIZE);
        let path = fs::read_dir(folder.path()).unwrap().next().unwrap().unwrap().path();
        let held = File::open(&path).unwrap();
        held.lock().unwrap();
        fs::remove_file(path).unwrap();
        object.read(&node(&folder, 0, 1), 0, to_usize(SIZE)).unwrap();
    }

    #[test]
    fn one_that_claims_and_does_not_finish_is_waited_for_until_it_ends() {
        let (folder, object) = (tempfile::tempdir().unwrap(), Object::default());
        object.read(&node(&folder, 0, 1), 0, 1).unwrap();
        let path = fs::read_dir(folder.path()).unwrap().next().unwrap().unwrap().path();
        let held = File::open(&path).unwrap();
        held.lock().unwrap();
        thread::scope(|scope| {
            let reading = scope.spawn(|| object.read(&node(&folder, 0, 1), 0, to_usize(STRIPE_BYTES)));
            thread::sleep(Duration::from_millis(50));
            assert!(!reading.is_finished());
            drop(held);
            reading.join().unwrap().unwrap();
        });
    }

    // On Windows no processes share: the folder needs flock(2) (`_node_folder.py`).
    #[cfg(unix)]
    #[test]
    fn over_the_window_the_oldest_are_removed() {
        let (folder, object) = (tempfile::tempdir().unwrap(), Object::default());
        let node = NodeShare::new(folder.path().to_owned(), 0, 1, 2 * STRIPE_BYTES);
        for _ in 0..3 {
            for stripe in 0..5 {
                object.read(&node, stripe * STRIPE_BYTES, to_usize(STRIPE_BYTES)).unwrap();
            }
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
        assert_eq!(object.counts(), (15, 15 * STRIPE_BYTES));
    }

    #[test]
    fn without_the_folder_each_reads_for_itself() {
        let (folder, object) = (tempfile::tempdir().unwrap(), Object::default());
        let gone = node(&folder, 0, 2);
        drop(folder);
        object.read(&gone, 5, 3 << 20).unwrap();
        object.read(&gone, 5, 3 << 20).unwrap();
        assert_eq!(object.counts().1, 6 << 20);
    }

    // On Windows, links need a privilege.
    #[cfg(unix)]
    #[test]
    fn links_in_the_folder_are_not_followed() {
        let (folder, object) = (tempfile::tempdir().unwrap(), Object::default());
        object.read(&node(&folder, 0, 1), 0, 1).unwrap();
        let path = fs::read_dir(folder.path()).unwrap().next().unwrap().unwrap().path();
        let elsewhere = tempfile::NamedTempFile::new().unwrap();
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink(elsewhere.path(), &path).unwrap();
        object.read(&node(&folder, 0, 1), 0, 1).unwrap();
        assert_eq!(elsewhere.as_file().metadata().unwrap().len(), 0);
    }

    #[test]
    fn an_error_of_the_store_is_one_of_the_read_and_releases_its_claims() {
        let folder = tempfile::tempdir().unwrap();
        let broken = Object { fails: true, ..Object::default() };
        assert_eq!(broken.read(&node(&folder, 0, 1), 0, 3 << 20).unwrap_err().code(), Code::Io);
        let object = Object::default();
        object.read(&node(&folder, 0, 1), 0, 3 << 20).unwrap();
        assert_eq!(object.counts().1, 3 << 20);
    }
}
