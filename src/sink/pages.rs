//! Ranges of anonymous memory on huge pages.
//!
//! **Protocol.** A [`Pages`] is the only owner of its range, and unmaps it when it is dropped. Ranges are private anonymous
//! mappings, so every byte is initialised (the system zeroes it) and may be read and written as `u8` at any time.
//! Splitting and joining move ownership of parts; a part starts on a huge page. Addresses that are handed out stay valid as long
//! as the `Pages` lives; the code that hands them on keeps it alive.

use std::ptr::NonNull;

use super::huge_page_probe::{self, Decision};
use super::os::{self, Advice, PAGE_BYTES};
use crate::sys::process_id;

/// The size of a huge page on x86-64 and most of arm64.
pub(super) const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Faults in the whole pages of `memory`, as a write would, in less time than that of as many page faults. Changes no byte. Where the
/// system refuses it, they are faulted in by the first write.
pub fn populate(memory: &mut [u8]) {
    let before = os::thread_cpu_time();
    os::populate(memory);
    if memory.len() <= HUGE_PAGE_BYTES {
        huge_page_probe::record_populated(os::thread_cpu_time().saturating_sub(before));
    }
}

/// A range of anonymous memory that starts on a huge page.
#[derive(Debug)]
pub(super) struct Pages {
    start: NonNull<u8>,
    len: usize,
    /// Whether huge pages were requested for the whole huge pages in it.
    huge: bool,
    /// The process that mapped it: a forked child would have to copy every page first.
    process: u32,
}

// SAFETY: the range is owned by this value alone, and unmapping it is allowed on any thread.
unsafe impl Send for Pages {}
// SAFETY: a shared `Pages` only returns its address and size.
unsafe impl Sync for Pages {}

impl Pages {
    /// `len` rounded up to small pages: a buffer ends with small pages, so that no huge page is used for a few bytes.
    pub(super) fn rounded_len(len: usize) -> Option<usize> {
        len.checked_next_multiple_of(PAGE_BYTES)
    }

    /// Maps zeroed memory for `len` bytes; `None` if that fails. If `huge`, requests huge pages for the whole huge pages inside,
    /// unless they are slower than small ones; one in many is touched to find out.
    pub(super) fn new(len: usize, huge: bool) -> Option<Pages> {
        let len = Pages::rounded_len(len.max(1))?;
        let start = os::map(len, HUGE_PAGE_BYTES)?;
        let huge = huge && os::HAS_PARTS;
        let pages = Pages { start, len, huge, process: process_id() };
        if huge {
            pages.advise_huge_pages();
        }
        Some(pages)
    }

    /// Requests huge pages, or small ones where [`huge_page_probe`] finds huge ones slow.
    fn advise_huge_pages(&self) {
        let (mut at, count) = (0, self.len / HUGE_PAGE_BYTES);
        while at < count {
            at += match huge_page_probe::decide(count - at) {
                Decision::Huge(pages) => {
                    self.advise(at, pages, Advice::HugePages);
                    pages
                }
                Decision::Small(pages) => {
                    self.advise(at, pages, Advice::SmallPages);
                    pages
                }
                Decision::Probe => {
                    self.advise(at, 1, Advice::HugePages);
                    let before = os::thread_cpu_time();
                    self.advise(at, 1, Advice::Populate);
                    huge_page_probe::record_probe(os::thread_cpu_time().saturating_sub(before), count);
                    1
                }
            };
        }
    }

    /// Advises the system about `count` whole huge pages from huge page number `at`, all inside the range.
    fn advise(&self, at: usize, count: usize, advice: Advice) {
        let start = self.start.as_ptr().wrapping_add(at * HUGE_PAGE_BYTES);
        // SAFETY: the range is owned, and private to this file, whose advice (huge pages or none, populating) changes no byte.
        // Where it is refused, small pages work too, and a probe of an untouched page is fast.
        unsafe { os::advise(start, count * HUGE_PAGE_BYTES, advice) };
    }

    /// The address of the first byte.
    pub(super) fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// The bytes of the range, a multiple of a small page.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The bytes of the huge pages that lie wholly inside.
    pub(super) fn whole_huge_bytes(&self) -> usize {
        self.len & !(HUGE_PAGE_BYTES - 1)
    }

    /// One past the last byte, as a number.
    pub(super) fn end(&self) -> usize {
        self.start.addr().get().saturating_add(self.len)
    }

    /// Whether this process mapped it on huge pages, so that reusing it saves time.
    pub(super) fn is_worth_keeping(&self) -> bool {
        self.huge && self.process == process_id()
    }

    /// Lets the system take the pages when it needs memory, until they are written to again (`MADV_FREE`).
    pub(super) fn mark_free(&self) {
        // SAFETY: the range is owned, and any byte in it may become zero: the pool promises nothing about the bytes of pages that
        // it keeps.
        unsafe { os::advise(self.start.as_ptr(), self.len, Advice::MarkFree) };
    }

    /// Excludes the range from forked children (`MADV_DONTFORK`). On older kernels, after a fork the parent's writes to memory that
    /// a device reads can go to other pages (copy on write) than the device reads.
    pub(super) fn exclude_from_fork(&self) {
        // SAFETY: the range is owned; it is not mapped in a child, and the callers never access it from one.
        unsafe { os::advise(self.start.as_ptr(), self.len, Advice::ExcludeFromFork) };
    }

    /// Splits the range at `at` and returns the rest; this value keeps the front. `None`, with no change, unless `at` is a multiple
    /// of a huge page inside the range, and the system unmaps parts.
    pub(super) fn split_off(&mut self, at: usize) -> Option<Pages> {
        if !os::HAS_PARTS || at == 0 || at >= self.len || !at.is_multiple_of(HUGE_PAGE_BYTES) {
            return None;
        }
        let start = NonNull::new(self.start.as_ptr().wrapping_add(at))?;
        let rest = Pages { start, len: self.len - at, huge: self.huge, process: self.process };
        self.len = at;
        Some(rest)
    }

    /// Whether `next` begins where this range ends and both consist of whole huge pages: a range that ends with small pages is of
    /// use only to a buffer of exactly its size.
    pub(super) fn is_followed_by(&self, next: &Pages) -> bool {
        let all_huge =
            os::HAS_PARTS && self.len == self.whole_huge_bytes() && next.len == next.whole_huge_bytes();
        all_huge && self.end() == next.start.addr().get() && self.huge == next.huge
    }

    /// Appends a range that follows this one.
    pub(super) fn join(&mut self, next: Pages) {
        if self.is_followed_by(&next) {
            self.len += next.len;
            std::mem::forget(next);
        }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the range is owned, is as it was mapped if the system does not unmap parts, and its addresses are not used any more.
        unsafe { os::unmap(self.start.as_ptr(), self.len, HUGE_PAGE_BYTES) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_start_on_a_huge_page_and_end_with_small_pages() {
        for len in [1, PAGE_BYTES, HUGE_PAGE_BYTES, HUGE_PAGE_BYTES + 1, 3 * HUGE_PAGE_BYTES + 5] {
            let pages = Pages::new(len, true).unwrap();
            assert_eq!(pages.start().align_offset(HUGE_PAGE_BYTES), 0);
            assert_eq!(pages.len(), len.next_multiple_of(PAGE_BYTES));
        }
        assert!(Pages::new(usize::MAX, true).is_none());
        assert!(Pages::new(1 << 60, true).is_none());
    }

    // Windows releases ranges as a whole.
    #[cfg(unix)]
    #[test]
    fn only_adjacent_whole_ranges_are_joined() {
        let mut front = Pages::new(4 * HUGE_PAGE_BYTES + PAGE_BYTES, true).unwrap();
        assert!(front.split_off(PAGE_BYTES).is_none());
        assert!(front.split_off(5 * HUGE_PAGE_BYTES).is_none());
        let mut middle = front.split_off(HUGE_PAGE_BYTES).unwrap();
        let mut back = middle.split_off(HUGE_PAGE_BYTES).unwrap();
        let end = back.split_off(HUGE_PAGE_BYTES).unwrap();
        assert_eq!(
            [front.len(), middle.len(), back.len(), end.len()],
            [HUGE_PAGE_BYTES, HUGE_PAGE_BYTES, HUGE_PAGE_BYTES, HUGE_PAGE_BYTES + PAGE_BYTES]
        );
        assert!(
            front.is_followed_by(&middle)
                && middle.is_followed_by(&back)
                && !front.is_followed_by(&back)
                && !back.is_followed_by(&front)
        );
        assert!(!back.is_followed_by(&end), "its last page is small");
        front.join(middle);
        front.join(back);
        assert_eq!((front.len(), front.whole_huge_bytes()), (3 * HUGE_PAGE_BYTES, 3 * HUGE_PAGE_BYTES));
    }
}
