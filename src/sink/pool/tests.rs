//! Tests of the pool. Windows, which releases ranges as a whole, keeps none.

use super::*;

fn pages(count: usize) -> Pages {
    Pages::new(count * HUGE_PAGE_BYTES, true).unwrap()
}

fn sum(pages: &[Pages]) -> usize {
    pages.iter().map(Pages::len).sum::<usize>() / HUGE_PAGE_BYTES
}

#[cfg(unix)]
#[test]
fn a_range_is_split_for_smaller_results_and_rejoined_when_they_are_dropped() {
    let (mut pool, now) = (Pool::new(100 * HUGE_PAGE_BYTES, 1), Instant::now());
    assert!(pool.put_back(pages(8), now).is_empty());
    let parts: Vec<_> = (0..4).map(|_| pool.take(2 * HUGE_PAGE_BYTES, now).0.unwrap()).collect();
    assert_eq!((pool.bytes, pool.free.len()), (0, 0));
    for part in parts {
        pool.put_back(part, now);
    }
    assert_eq!((pool.bytes, pool.free.len()), (8 * HUGE_PAGE_BYTES, 1));
    assert_eq!(pool.take(8 * HUGE_PAGE_BYTES, now).0.unwrap().len(), 8 * HUGE_PAGE_BYTES);
}

#[cfg(unix)]
#[test]
fn a_range_ending_in_small_pages_is_reused_only_for_its_exact_size() {
    let (mut pool, now) = (Pool::new(100 * HUGE_PAGE_BYTES, 1), Instant::now());
    let odd = HUGE_PAGE_BYTES + (64 << 10);
    pool.put_back(Pages::new(odd, true).unwrap(), now);
    pool.put_back(pages(9), now);
    assert_eq!(pool.take(odd, now).0.unwrap().len(), odd);
    // Half of its second huge page would be unused.
    assert!(pool.find(HUGE_PAGE_BYTES + HUGE_PAGE_BYTES / 2).is_none());
    assert_eq!(pool.take(8 * HUGE_PAGE_BYTES - (64 << 10), now).0.unwrap().len(), 8 * HUGE_PAGE_BYTES);
}

#[test]
fn a_release_that_found_the_pool_locked_ends_the_carry_over_at_the_next_use() {
    let (mut pool, now) = (Pool::new(100 * HUGE_PAGE_BYTES, 1), Instant::now());
    pool.put_back(pages(4), now);
    let window_left = Arc::new(AtomicU64::new(HUGE_PAGE_BYTES as u64));
    pool.budgets.add(&window_left, 4 * HUGE_PAGE_BYTES);
    assert!(pool.evict_over_limit().is_empty());
    // Tests of other modules use the process's own pool at the same time, which may settle it first.
    let settled = (0..1000).any(|_| {
        MISSED_RELEASE.store(true, Ordering::Relaxed);
        !pool.settle_missed_release().is_empty()
    });
    assert!(settled && pool.bytes <= HUGE_PAGE_BYTES);
}

#[cfg(unix)]
#[test]
fn a_miss_evicts_as_much_as_it_maps() {
    let (mut pool, now) = (Pool::new(100 * HUGE_PAGE_BYTES, 1), Instant::now());
    pool.put_back(pages(4), now);
    pool.put_back(pages(3), now + Duration::from_secs(1));
    let (found, surplus) = pool.take(20 * HUGE_PAGE_BYTES, now);
    assert!(found.is_none());
    assert_eq!((sum(&surplus), pool.bytes), (7, 0));
    pool.put_back(pages(9), now);
    let (found, surplus) = pool.take(3 * HUGE_PAGE_BYTES / 2, now);
    assert!(found.is_none());
    assert_eq!((sum(&surplus), pool.bytes), (2, 7 * HUGE_PAGE_BYTES));
}

#[cfg(unix)]
#[test]
fn the_limit_holds_and_the_oldest_range_is_evicted_first() {
    let (mut pool, now) = (Pool::new(10 * HUGE_PAGE_BYTES, 1), Instant::now());
    assert_eq!(sum(&pool.put_back(pages(11), now)), 11);
    pool.put_back(pages(6), now);
    let surplus = pool.put_back(pages(7), now + Duration::from_secs(1));
    assert_eq!((sum(&surplus), pool.bytes), (3, 10 * HUGE_PAGE_BYTES));
    assert_eq!(pool.take(7 * HUGE_PAGE_BYTES, now).0.unwrap().len(), 7 * HUGE_PAGE_BYTES);
}

#[cfg(unix)]
#[test]
fn a_window_limits_what_is_kept_while_it_is_alive() {
    let (mut pool, now) = (Pool::new(100 * HUGE_PAGE_BYTES, 1), Instant::now());
    let left = Arc::new(AtomicU64::new(5 * HUGE_PAGE_BYTES as u64));
    pool.put_back(pages(9), now);
    pool.budgets.add(&left, 0);
    assert_eq!((sum(&pool.evict_over_limit()), pool.bytes), (4, 5 * HUGE_PAGE_BYTES));
    assert_eq!((sum(&pool.put_back(pages(2), now)), pool.bytes), (2, 5 * HUGE_PAGE_BYTES));
    left.store(3 * HUGE_PAGE_BYTES as u64 - 1, Ordering::Relaxed);
    // It is too large to be kept, and what is kept already exceeds the budget too.
    assert_eq!((sum(&pool.put_back(pages(4), now)), pool.bytes), (4 + 3, 2 * HUGE_PAGE_BYTES));
    drop(left);
    assert_eq!((sum(&pool.put_back(pages(30), now)), pool.bytes), (0, 32 * HUGE_PAGE_BYTES));
}

#[cfg(unix)]
#[test]
fn memory_kept_before_a_window_serves_results_until_one_is_dropped() {
    let (mut pool, now) = (Pool::new(100 * HUGE_PAGE_BYTES, 1), Instant::now());
    let left = Arc::new(AtomicU64::new(HUGE_PAGE_BYTES as u64));
    pool.put_back(pages(30), now);
    pool.budgets.add(&left, 20 * HUGE_PAGE_BYTES);
    assert_eq!((sum(&pool.evict_over_limit()), pool.bytes), (10, 20 * HUGE_PAGE_BYTES));
    let mut held = [4, 4].map(|count| pool.take(count * HUGE_PAGE_BYTES, now).0.unwrap()).into_iter();
    assert_eq!((sum(&pool.evict_over_limit()), pool.bytes), (0, 12 * HUGE_PAGE_BYTES));
    // Once a result is dropped, no more is kept than the window leaves.
    assert_eq!(sum(&pool.put_back(held.next().unwrap(), now)), 4 + 11);
    pool.put_back(held.next().unwrap(), now);
    assert_eq!(pool.bytes, HUGE_PAGE_BYTES);
}

#[cfg(unix)]
#[test]
fn memory_kept_before_a_window_is_unmapped_at_its_end() {
    let (mut pool, now) = (Pool::new(100 * HUGE_PAGE_BYTES, 1), Instant::now());
    let left = Arc::new(AtomicU64::new(5 * HUGE_PAGE_BYTES as u64));
    pool.put_back(pages(20), now);
    pool.budgets.add(&left, 20 * HUGE_PAGE_BYTES);
    let held = pool.take(8 * HUGE_PAGE_BYTES, now).0.unwrap();
    // The stream has ended, and its budget is unlimited.
    left.store(u64::MAX, Ordering::Relaxed);
    pool.put_back(held, now);
    let surplus = pool.end_carry_over_of(&Arc::downgrade(&left), 5 * HUGE_PAGE_BYTES);
    assert_eq!((sum(&surplus), pool.bytes), (15, 5 * HUGE_PAGE_BYTES));
}

#[test]
fn a_footprint_includes_a_partly_used_last_huge_page() {
    let of = |len: usize| footprint(len as u64) as usize;
    assert_eq!(
        [of(5), of(HUGE_PAGE_BYTES - 1), of(HUGE_PAGE_BYTES), of(HUGE_PAGE_BYTES + 5)],
        [5, HUGE_PAGE_BYTES - 1, HUGE_PAGE_BYTES, HUGE_PAGE_BYTES + 5]
    );
    assert_eq!(
        [of(8 * HUGE_PAGE_BYTES - 1), of(15 * HUGE_PAGE_BYTES + 1)],
        [8 * HUGE_PAGE_BYTES, 16 * HUGE_PAGE_BYTES]
    );
    assert_eq!(footprint(u64::MAX), u64::MAX);
}

#[test]
fn expired_memory_is_unmapped_at_the_next_use() {
    let (mut pool, now) = (Pool::new(100 * HUGE_PAGE_BYTES, 1), Instant::now());
    pool.put_back(pages(6), now);
    assert_eq!(sum(&pool.put_back(pages(1), now + KEEP_TIME + Duration::from_secs(1))), 6);
    assert_eq!(pool.bytes, HUGE_PAGE_BYTES);
}

#[cfg(unix)]
#[test]
fn the_system_may_take_all_but_what_was_dropped_last() {
    let (mut pool, now) = (Pool::new(40 * HUGE_PAGE_BYTES, 1), Instant::now());
    let ranges = |pool: &Pool| {
        pool.free
            .values()
            .map(|idle| (idle.pages.len() / HUGE_PAGE_BYTES, idle.is_marked))
            .collect::<Vec<_>>()
    };
    // Neighbors, but for a gap of one huge page before the last.
    let mut whole = pages(28);
    let mut split_off = |count: usize| whole.split_off(count * HUGE_PAGE_BYTES).unwrap();
    let (last, _gap, end, middle) = (split_off(21), split_off(20), split_off(14), split_off(8));
    pool.put_back(end, now);
    assert_eq!(ranges(&pool), [(6, false)]);
    // Both together are more than a quarter of what may be kept.
    pool.put_back(middle, now + Duration::from_secs(1));
    assert_eq!(ranges(&pool), [(6, false), (6, true)]);
    pool.put_back(whole, now + Duration::from_secs(2));
    assert_eq!(ranges(&pool), [(8, false), (12, true)]);
    // The rest of a range that was split is as it was, until something newer is kept.
    let front = pool.take(6 * HUGE_PAGE_BYTES, now + Duration::from_secs(3)).0.unwrap();
    assert_eq!(ranges(&pool), [(2, false), (12, true)]);
    pool.put_back(front, now + Duration::from_secs(3));
    pool.put_back(last, now + Duration::from_secs(4));
    assert_eq!(ranges(&pool), [(20, true), (7, false)]);
}

#[cfg(unix)]
#[test]
fn neighbors_serve_a_result_together_though_the_system_may_take_only_one() {
    let (mut pool, now) = (Pool::new(40 * HUGE_PAGE_BYTES, 1), Instant::now());
    let mut one = pages(12);
    let two = one.split_off(6 * HUGE_PAGE_BYTES).unwrap();
    pool.put_back(one, now);
    pool.put_back(two, now);
    assert_eq!(pool.free.len(), 2);
    let (taken, surplus) = pool.take(12 * HUGE_PAGE_BYTES, now);
    assert_eq!((taken.map(|pages| pages.len()), surplus.len()), (Some(12 * HUGE_PAGE_BYTES), 0));
}

#[test]
fn a_forked_child_starts_with_an_empty_pool() {
    let (mut pool, now) = (Pool::new(100 * HUGE_PAGE_BYTES, 1), Instant::now());
    pool.put_back(pages(6), now);
    pool.reset_after_fork(2);
    assert_eq!((pool.bytes, pool.free.len(), pool.process), (0, 0, 2));
}

#[test]
fn concurrent_threads_never_share_a_page() {
    std::thread::scope(|scope| {
        for tag in 0..4_u8 {
            scope.spawn(move || {
                for round in 0..200_usize {
                    let mut buffer = crate::sink::HostBuffer::unfilled(
                        (2 + (round + usize::from(tag)) % 3) as u64 * HUGE_PAGE_BYTES as u64,
                    )
                    .unwrap();
                    let bytes = buffer.bytes_mut();
                    bytes.iter_mut().step_by(4096).for_each(|byte| *byte = tag);
                    std::thread::yield_now();
                    assert!(bytes.iter().step_by(4096).all(|&byte| byte == tag));
                }
            });
        }
    });
    let (kept, limit) = usage();
    assert!(kept <= limit);
    trim();
}
