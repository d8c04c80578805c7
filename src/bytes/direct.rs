//! How payload is read: through the page cache, or around it (`O_DIRECT`), and how the choice is made.
//!
//! Around the cache, a disk is read at its own speed and nothing is left in memory, so the next reading costs as much again.
//! So `auto` goes around it only where the file would not stay in memory anyway: cold, on a disk of this machine, and larger than
//! half of the memory that is left. Where the system refuses a direct read, the same bytes are read through the cache.
#![forbid(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::hash::{BuildHasher, RandomState};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use rustix::fs::{Advice, OFlags, fadvise};
use rustix::io::{Errno, ReadWriteFlags, preadv2};

use super::place::{Place, PlaceKind};
use super::scratch::Aligned;
use crate::memory::Memory;

/// How payload is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Io {
    /// As the file system and the page cache make it best.
    #[default]
    Auto,
    /// Through the page cache.
    Buffered,
    /// Around the page cache, where the file system has that; reads of less than 256 KiB go through it.
    Direct,
}

/// How a file is read, and why.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// [`Io::Buffered`] or [`Io::Direct`].
    pub io: Io,
    /// The reason, in words.
    pub reason: String,
    /// The part of the file that is in the page cache, from samples; `None` where the system does not tell.
    pub cached: Option<f64>,
}

/// What offsets, sizes and addresses of direct reads are multiples of: enough for every disk with blocks of a page.
pub const BLOCK: u64 = 4096;

/// Files below this size are not worth a second descriptor.
const WORTH_IT: u64 = 64 << 20;

/// From this share on, the cache is faster than the disk.
const WARM: f64 = 0.25;

/// Places that are asked whether they are in the cache.
const SAMPLES: u64 = 64;

impl Choice {
    /// What to do with a file of `len` bytes for which `asked` was asked.
    pub(super) fn of(file: &File, len: u64, place: &Place, asked: Io) -> Choice {
        let cached = || cached(file, len);
        Choice::from(asked, len, place, Memory::now().headroom(), cached)
    }

    /// Whether a file of `len` bytes may come to be read directly.
    pub(super) fn may_be_direct(asked: Io, len: u64) -> bool {
        match asked {
            Io::Buffered => false,
            Io::Direct => true,
            Io::Auto => len >= WORTH_IT && len > Memory::now().headroom() / 2,
        }
    }

    fn from(asked: Io, len: u64, place: &Place, room: u64, cached: impl FnOnce() -> Option<f64>) -> Choice {
        let because = |io, reason: &str, cached| Choice { io, reason: reason.to_owned(), cached };
        match asked {
            Io::Buffered => return because(Io::Buffered, "io=\"buffered\" was asked for", None),
            Io::Direct => return because(Io::Direct, "io=\"direct\" was asked for", None),
            Io::Auto => {}
        }
        match place.kind {
            PlaceKind::Local => {}
            PlaceKind::Memory => return because(Io::Buffered, "the file is in memory", cached()),
            PlaceKind::Network => {
                let reason =
                    "the file is not on a disk of this machine: it is read by position, and not mapped";
                return because(Io::Buffered, reason, cached());
            }
            PlaceKind::Unknown => return because(Io::Buffered, "the file system is not known", cached()),
        }
        if len < WORTH_IT {
            return because(Io::Buffered, "the file is small", cached());
        }
        match cached() {
            None => because(Io::Buffered, "the system does not tell what is in the page cache", None),
            Some(share) if share >= WARM => {
                because(Io::Buffered, "enough of the file is in the page cache", Some(share))
            }
            Some(share) if len <= room / 2 => {
                let reason = "the file is not in the page cache yet, and has room there for the next time";
                because(Io::Buffered, reason, Some(share))
            }
            Some(share) => {
                let reason =
                    "the file is not in the page cache, and larger than half of the memory that is left";
                because(Io::Direct, reason, Some(share))
            }
        }
    }
}

/// The share of a file that is in the page cache, from samples. Each asks for one byte without waiting.
pub(super) fn cached(file: &File, len: u64) -> Option<f64> {
    // Another description of the file, so that the advice is not the readers': a byte that is not there makes the system
    // read no more than its page.
    let probe = again(file, OFlags::empty())?;
    fadvise(&probe, 0, None, Advice::Random).ok()?;
    let count = SAMPLES.min(len.div_ceil(BLOCK)).max(1);
    let step = (len / count).max(1);
    let mut found = 0_u64;
    for sample in 0..count {
        // Anywhere in its part: a look leaves its own page behind, which the next look is not to find.
        let at = step.saturating_mul(sample).saturating_add(RandomState::new().hash_one(sample) % step);
        let mut byte = [0];
        let mut into = [std::io::IoSliceMut::new(&mut byte)];
        match preadv2(&probe, &mut into, at, ReadWriteFlags::NOWAIT) {
            Ok(_) => found += 1,
            Err(Errno::AGAIN) => {}
            Err(_) => return None,
        }
    }
    Some(found as f64 / count as f64)
}

/// Another description of an open file, around the page cache; `None` where the file system has no such reads.
pub(super) fn open_direct(file: &File) -> Option<File> {
    let direct = again(file, OFlags::DIRECT)?;
    let mut memory = Aligned::new(|_| None);
    // Some file systems take the flag and refuse the reads.
    direct.read_at(memory.blocks(usize::try_from(BLOCK).ok()?)?, 0).ok()?;
    Some(direct)
}

/// Another description of an open file, for one thread that reads forward: the system reads ahead of each description by itself.
pub(super) fn open_forward(file: &File) -> Option<File> {
    let forward = again(file, OFlags::empty())?;
    fadvise(&forward, 0, None, Advice::Sequential).ok()?;
    Some(forward)
}

/// The same file, opened anew. Its path may have become another's.
fn again(file: &File, flags: OFlags) -> Option<File> {
    let flags = i32::try_from(flags.bits()).ok()?;
    OpenOptions::new().read(true).custom_flags(flags).open(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn local() -> Place {
        Place { name: "ext4".to_owned(), kind: PlaceKind::Local }
    }

    #[test]
    fn auto_goes_around_the_cache_only_where_the_file_is_cold_local_and_too_large_to_stay() {
        const GIB: u64 = 1 << 30;
        let io = |len, kind, room, cached| {
            let place = Place { name: String::new(), kind };
            Choice::from(Io::Auto, len, &place, room, || cached).io
        };
        assert_eq!(io(16 * GIB, PlaceKind::Local, 24 * GIB, Some(0.0)), Io::Direct);
        assert_eq!(io(16 * GIB, PlaceKind::Local, 24 * GIB, Some(0.5)), Io::Buffered);
        assert_eq!(io(16 * GIB, PlaceKind::Local, 64 * GIB, Some(0.0)), Io::Buffered);
        assert_eq!(io(16 * GIB, PlaceKind::Local, 24 * GIB, None), Io::Buffered);
        assert_eq!(io(16 << 20, PlaceKind::Local, 1 << 20, Some(0.0)), Io::Buffered);
        for kind in [PlaceKind::Network, PlaceKind::Memory, PlaceKind::Unknown] {
            assert_eq!(io(16 * GIB, kind, GIB, Some(0.0)), Io::Buffered);
        }
    }

    #[test]
    fn what_is_asked_for_is_done_without_a_look() {
        let never = || -> Option<f64> { panic!("nobody looks") };
        assert_eq!(Choice::from(Io::Direct, 1, &local(), 1, never).io, Io::Direct);
        assert_eq!(Choice::from(Io::Buffered, 1 << 40, &local(), 1, never).io, Io::Buffered);
    }

    #[test]
    fn a_file_that_was_just_written_is_in_the_cache() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&vec![1; 1 << 20]).unwrap();
        // Where the file system does not tell, there is nothing to see.
        if let Some(share) = cached(file.as_file(), 1 << 20) {
            assert!(share > 0.9, "{share}");
        }
    }
}
