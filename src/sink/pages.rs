//! Address ranges of anonymous memory on huge pages, owned one by one.
//!
//! **Protocol.** A [`Pages`] owns its range: nobody else has it, and it is unmapped when it is dropped. Ranges are private
//! anonymous mappings, so every byte is initialised (the system zeroes it) and may be read and written as `u8` at any time.
//! Splitting and joining move ownership of parts; a part starts on a huge page. Addresses that are handed out stay valid as long
//! as the `Pages` is kept, which is what whoever hands them on has to see to.

use std::ffi::c_void;
use std::process;
use std::ptr::{self, NonNull};
use std::time::Duration;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use rustix::time::{ClockId, clock_gettime};

use super::trial::{self, Next};

/// The size of a huge page on x86-64 and most of arm64.
pub(super) const HUGE: usize = 2 << 20;

/// The size of a small page; elsewhere than on x86-64 the largest that is in use.
const SMALL: usize = if cfg!(target_arch = "x86_64") { 4096 } else { 64 << 10 };

/// A range of anonymous memory that starts on a huge page.
#[derive(Debug)]
pub(super) struct Pages {
    start: NonNull<u8>,
    len: usize,
    /// Whether its whole huge pages were asked to be huge.
    huge: bool,
    /// The process that made it: in a forked child every page of it would have to be copied first.
    owner: u32,
}

// SAFETY: the range is owned by this value alone, and unmapping it is allowed on any thread.
unsafe impl Send for Pages {}
// SAFETY: a shared `Pages` only tells its address and size.
unsafe impl Sync for Pages {}

impl Pages {
    /// What a buffer of `len` bytes takes: small pages at its end, so that no huge page is begun for a few bytes.
    pub(super) fn rounded(len: usize) -> Option<usize> {
        len.checked_next_multiple_of(SMALL)
    }

    /// Zeroed memory for `len` bytes. Only the whole huge pages inside are asked for, only if `huge`, and only while they are
    /// not slower than small ones; one in many is touched to find out.
    pub(super) fn new(len: usize, huge: bool) -> Option<Pages> {
        let len = Pages::rounded(len.max(1))?;
        let start = aligned(len)?;
        let pages = Pages { start, len, huge, owner: process::id() };
        if huge {
            pages.choose();
        }
        Some(pages)
    }

    /// Asks for huge pages where they are worth it.
    fn choose(&self) {
        let (mut at, count) = (0, self.len / HUGE);
        while at < count {
            at += match trial::next(count - at) {
                Next::Huge(pages) => {
                    self.advise(at, pages, Advice::LinuxHugepage);
                    pages
                }
                Next::Small(pages) => {
                    self.advise(at, pages, Advice::LinuxNoHugepage);
                    pages
                }
                Next::Try => {
                    self.advise(at, 1, Advice::LinuxHugepage);
                    let before = busy();
                    self.advise(at, 1, Advice::LinuxPopulateWrite);
                    trial::saw(busy().saturating_sub(before), count);
                    1
                }
            };
        }
    }

    /// Advises the system about `count` whole huge pages from the one with number `at` on, all inside.
    fn advise(&self, at: usize, count: usize, advice: Advice) {
        let start = self.start.as_ptr().wrapping_add(at * HUGE);
        // SAFETY: the range is owned, and private to this file, whose advice (huge pages or none, touching) changes no byte.
        // Refused where huge pages are switched off, or by an old system: small pages do too, and what is not touched is fast.
        let _ = unsafe { madvise(start.cast(), count * HUGE, advice) };
    }

    /// The address of the first byte.
    pub(super) fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Bytes of the range, a multiple of a small page.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Bytes of the huge pages that lie wholly inside.
    pub(super) fn whole(&self) -> usize {
        self.len & !(HUGE - 1)
    }

    /// One past the last byte, as a number.
    pub(super) fn end(&self) -> usize {
        self.start.addr().get().saturating_add(self.len)
    }

    /// Whether this process made it, of huge pages, so that its next owner gains by it.
    pub(super) fn is_worth_keeping(&self) -> bool {
        self.huge && self.owner == process::id()
    }

    /// Lets the system take the pages, as it needs them, until somebody writes to them.
    pub(super) fn lend(&self) {
        // SAFETY: the range is owned, and any byte in it may become zero: whoever keeps pages here promises nothing of them.
        let _ = unsafe { madvise(self.start.as_ptr().cast(), self.len, Advice::LinuxFree) };
    }

    /// Leaves the range out of forked children. While a device reads memory of which a child has a copy, on older kernels what is
    /// written to it goes to other pages than the device reads.
    pub(super) fn withhold(&self) {
        // SAFETY: the range is owned; in a child it is not there, and whoever withholds it never goes there from one.
        let _ = unsafe { madvise(self.start.as_ptr().cast(), self.len, Advice::LinuxDontFork) };
    }

    /// Cuts the range at `at`, a multiple of a huge page inside it: this value keeps the front. `None` leaves all as it is.
    pub(super) fn split_off(&mut self, at: usize) -> Option<Pages> {
        if at == 0 || at >= self.len || !at.is_multiple_of(HUGE) {
            return None;
        }
        let start = NonNull::new(self.start.as_ptr().wrapping_add(at))?;
        let rest = Pages { start, len: self.len - at, huge: self.huge, owner: self.owner };
        self.len = at;
        Some(rest)
    }

    /// Whether `next` begins where this range ends, and both are whole huge pages: an end of small ones is of use to a buffer of
    /// exactly its size, and to no other.
    pub(super) fn meets(&self, next: &Pages) -> bool {
        let whole = self.len == self.whole() && next.len == next.whole();
        whole && self.end() == next.start.addr().get() && self.huge == next.huge
    }

    /// Adds a range that this one meets.
    pub(super) fn join(&mut self, next: Pages) {
        if self.meets(&next) {
            self.len += next.len;
            std::mem::forget(next);
        }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        unmap(self.start.as_ptr(), self.len);
    }
}

/// How long the processor was busy with this thread: waiting for others' turns does not count.
fn busy() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

/// Maps `len` bytes that start on a huge page.
fn aligned(len: usize) -> Option<NonNull<u8>> {
    let start = map(len)?;
    if start.align_offset(HUGE) == 0 {
        // As newer kernels place them; neighbours then meet, and can be joined.
        return NonNull::new(start);
    }
    unmap(start, len);
    let room = len.checked_add(HUGE)?;
    let start = map(room)?;
    let lead = start.align_offset(HUGE);
    let inside = start.wrapping_add(lead);
    unmap(start, lead);
    unmap(inside.wrapping_add(len), HUGE - lead);
    NonNull::new(inside)
}

fn map(len: usize) -> Option<*mut u8> {
    // SAFETY: a new private mapping at an address that the system chooses touches no other memory.
    let found = unsafe {
        mmap_anonymous(ptr::null_mut::<c_void>(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
    };
    found.ok().map(<*mut c_void>::cast)
}

/// Unmaps a range that the caller owns, and gives up.
fn unmap(start: *mut u8, len: usize) {
    if len > 0 {
        // SAFETY: private to this file, whose callers own the range and use none of its addresses afterwards.
        // Refused where the process has too many mappings: then the range stays, unused.
        let _ = unsafe { munmap(start.cast(), len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_start_on_a_huge_page_and_take_small_pages_at_their_end() {
        for len in [1, SMALL, HUGE, HUGE + 1, 3 * HUGE + 5] {
            let pages = Pages::new(len, true).unwrap();
            assert_eq!(pages.start().align_offset(HUGE), 0);
            assert_eq!(pages.len(), len.next_multiple_of(SMALL));
        }
        assert!(Pages::new(usize::MAX, true).is_none());
        assert!(Pages::new(1 << 60, true).is_none());
    }

    #[test]
    fn parts_are_joined_where_they_meet_and_nowhere_else() {
        let mut front = Pages::new(4 * HUGE + SMALL, true).unwrap();
        assert!(front.split_off(SMALL).is_none());
        assert!(front.split_off(5 * HUGE).is_none());
        let mut middle = front.split_off(HUGE).unwrap();
        let mut back = middle.split_off(HUGE).unwrap();
        let end = back.split_off(HUGE).unwrap();
        assert_eq!([front.len(), middle.len(), back.len(), end.len()], [HUGE, HUGE, HUGE, HUGE + SMALL]);
        assert!(front.meets(&middle) && middle.meets(&back) && !front.meets(&back) && !back.meets(&front));
        assert!(!back.meets(&end), "its last page is small");
        front.join(middle);
        front.join(back);
        assert_eq!((front.len(), front.whole()), (3 * HUGE, 3 * HUGE));
    }
}
