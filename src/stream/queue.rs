//! A queue between one producer and one consumer with back pressure in bytes: what is being made and what waits to be taken
//! never exceeds the window. A single item that is larger passes alone.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use crate::error::{Code, Result, bail};
use crate::parallel::lock;

/// The queue, which both sides share.
#[derive(Debug)]
pub struct Queue<T> {
    state: Mutex<State<T>>,
    /// Notified when bytes leave the queue, and when the consumer closes it.
    space_freed: Condvar,
    /// Notified when an item is ready, and when the queue ends.
    ready: Condvar,
    window: u64,
    /// Bytes left of the window; `u64::MAX` once the consumer has closed the queue.
    window_left: Arc<AtomicU64>,
}

#[derive(Debug)]
struct State<T> {
    ready: VecDeque<(T, u64)>,
    /// Bytes of items that are being made or wait to be taken.
    in_flight: u64,
    /// The bytes that the producer waits to reserve.
    requested: Option<u64>,
    /// Whether the consumer has closed the queue.
    closed: bool,
    /// Whether the producer has finished.
    ended: bool,
}

/// The outcome of waiting for the next item.
#[derive(Debug)]
pub enum Taken<T> {
    /// The next item; its bytes no longer count in the window.
    Item(T),
    /// No item yet.
    Waiting,
    /// No further item.
    Finished,
}

impl<T> Queue<T> {
    /// An empty queue with a window of `window` bytes.
    pub fn new(window: u64) -> Queue<T> {
        let state =
            State { ready: VecDeque::new(), in_flight: 0, requested: None, closed: false, ended: false };
        Queue {
            state: Mutex::new(state),
            space_freed: Condvar::new(),
            ready: Condvar::new(),
            window,
            window_left: Arc::new(AtomicU64::new(window)),
        }
    }

    /// The bytes left of the window, kept up to date as long as the queue lives.
    pub fn window_left(&self) -> &Arc<AtomicU64> {
        &self.window_left
    }

    fn set_in_flight(&self, state: &mut State<T>, in_flight: u64) {
        state.in_flight = in_flight;
        self.window_left.store(self.window.saturating_sub(in_flight), Ordering::Relaxed);
    }

    /// For the producer: waits until `bytes` more fit the window, and reserves them. Fails once the consumer has closed the queue.
    pub fn reserve(&self, bytes: u64) -> Result<()> {
        let mut state = lock(&self.state);
        state.requested = Some(bytes);
        while !state.closed && !self.fits(&state, bytes) {
            state = self.space_freed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.requested = None;
        if state.closed {
            bail!(Code::Cancelled, "stopped on request");
        }
        let in_flight = state.in_flight.saturating_add(bytes);
        self.set_in_flight(&mut state, in_flight);
        Ok(())
    }

    fn fits(&self, state: &State<T>, bytes: u64) -> bool {
        state.in_flight == 0 || state.in_flight.saturating_add(bytes) <= self.window
    }

    /// For the producer: hands over finished items, each with its share of the reserved bytes.
    pub fn put(&self, items: impl IntoIterator<Item = (T, u64)>) {
        let mut state = lock(&self.state);
        // Items of a closed queue are dropped at the end, after the lock is released.
        if !state.closed {
            state.ready.extend(items);
            self.ready.notify_one();
        }
    }

    /// For the producer: no further item follows.
    pub fn finish(&self) {
        lock(&self.state).ended = true;
        self.ready.notify_one();
    }

    /// For the consumer: the next item. Waits no longer than `timeout`; [`Queue::close`] wakes it.
    pub fn take(&self, timeout: Duration) -> Taken<T> {
        let mut state = lock(&self.state);
        if state.ready.is_empty() && !state.ended && !state.closed {
            state = self.ready.wait_timeout(state, timeout).unwrap_or_else(PoisonError::into_inner).0;
        }
        match state.ready.pop_front() {
            Some((item, bytes)) => {
                let in_flight = state.in_flight.saturating_sub(bytes);
                self.set_in_flight(&mut state, in_flight);
                if state.requested.is_some_and(|requested| self.fits(&state, requested)) {
                    self.space_freed.notify_one();
                }
                Taken::Item(item)
            }
            None if state.ended || state.closed => Taken::Finished,
            None => Taken::Waiting,
        }
    }

    /// For the consumer: ends the queue and drops the waiting items. The producer's next reservation fails.
    pub fn close(&self) {
        let mut state = lock(&self.state);
        state.closed = true;
        let waiting = std::mem::take(&mut state.ready);
        drop(state);
        self.space_freed.notify_one();
        self.ready.notify_all();
        drop(waiting);
        // A closed queue limits nothing.
        self.window_left.store(u64::MAX, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    const SHORT_WAIT: Duration = Duration::from_millis(20);

    /// Compares what the queue admits and counts with a plain list of the items in flight, step by step. On one thread, so that
    /// every run sees every step.
    #[test]
    fn the_window_admits_items_that_fit_and_a_larger_one_alone() {
        const WINDOW: u64 = 10;
        let queue = Queue::new(WINDOW);
        let mut in_flight_items = VecDeque::new();
        for size in [3, 4, 5, 25, 1, 10, 2, 2, 2, 2, 2, 2, 9, 1, 1, 11, 0, 25, 0] {
            loop {
                let in_flight: u64 = in_flight_items.iter().sum();
                let fits = in_flight_items.iter().all(|&one| one == 0) || in_flight + size <= WINDOW;
                assert_eq!(queue.fits(&lock(&queue.state), size), fits, "{size} beside {in_flight_items:?}");
                assert_eq!(
                    queue.window_left().load(Ordering::Relaxed),
                    WINDOW.saturating_sub(in_flight),
                    "{in_flight_items:?}"
                );
                if fits {
                    break;
                }
                assert!(
                    matches!(queue.take(SHORT_WAIT), Taken::Item(taken) if Some(taken) == in_flight_items.pop_front())
                );
            }
            queue.reserve(size).unwrap();
            queue.put([(size, size)]);
            in_flight_items.push_back(size);
        }
    }

    #[test]
    fn a_producer_and_a_consumer_stay_within_the_window() {
        let queue = Arc::new(Queue::new(10));
        let (made, taken) = (Arc::new(AtomicU64::new(0)), AtomicU64::new(0));
        let sizes = [3, 4, 5, 25, 1, 10, 2, 2, 2, 2, 2, 2];
        let producer = thread::spawn({
            let (queue, made) = (queue.clone(), made.clone());
            move || {
                for size in sizes {
                    queue.reserve(size).unwrap();
                    made.fetch_add(size, Ordering::SeqCst);
                    queue.put([(size, size)]);
                }
                queue.finish();
            }
        });
        let mut found = Vec::new();
        loop {
            let in_flight = made.load(Ordering::SeqCst).saturating_sub(taken.load(Ordering::SeqCst));
            assert!(in_flight <= 10 || in_flight == 25, "{in_flight} in flight");
            match queue.take(SHORT_WAIT) {
                Taken::Item(size) => {
                    taken.fetch_add(size, Ordering::SeqCst);
                    found.push(size);
                }
                Taken::Waiting => {}
                Taken::Finished => break,
            }
        }
        producer.join().unwrap();
        assert_eq!(found, sizes);
    }

    #[test]
    fn window_left_follows_reservations_and_takes() {
        let queue = Queue::new(10);
        let window_left = || queue.window_left().load(Ordering::Relaxed);
        assert_eq!(window_left(), 10);
        queue.reserve(25).unwrap();
        assert_eq!(window_left(), 0);
        queue.put([('a', 22), ('b', 3)]);
        assert!(matches!(queue.take(SHORT_WAIT), Taken::Item('a')));
        assert_eq!(window_left(), 7);
        queue.close();
        assert_eq!(window_left(), u64::MAX);
    }

    #[test]
    fn a_full_queue_blocks_the_producer() {
        let queue = Arc::new(Queue::new(10));
        queue.reserve(8).unwrap();
        queue.put([('a', 8)]);
        let producer = thread::spawn({
            let queue = queue.clone();
            move || queue.reserve(3)
        });
        // Under the lock, `requested` is set only while the producer waits.
        while lock(&queue.state).requested.is_none() {
            assert!(!producer.is_finished(), "three bytes beside eight");
            thread::yield_now();
        }
        assert!(matches!(queue.take(SHORT_WAIT), Taken::Item('a')));
        producer.join().unwrap().unwrap();
    }

    #[test]
    fn finished_items_are_delivered_before_the_end() {
        let queue = Queue::new(10);
        assert!(matches!(queue.take(SHORT_WAIT), Taken::Waiting));
        queue.put([(1, 0), (2, 0)]);
        queue.finish();
        assert!(matches!(queue.take(SHORT_WAIT), Taken::Item(1)));
        assert!(matches!(queue.take(SHORT_WAIT), Taken::Item(2)));
        assert!(matches!(queue.take(SHORT_WAIT), Taken::Finished));
        assert!(matches!(queue.take(SHORT_WAIT), Taken::Finished));
    }

    #[test]
    fn close_wakes_a_waiting_consumer_and_ends_the_queue() {
        let queue = Arc::new(Queue::new(10));
        let waiting = thread::spawn({
            let queue = queue.clone();
            move || queue.take(Duration::from_secs(3600))
        });
        thread::sleep(SHORT_WAIT);
        queue.close();
        assert!(matches!(waiting.join().unwrap(), Taken::Finished | Taken::Waiting));
        queue.put([(1, 0)]);
        assert!(matches!(queue.take(SHORT_WAIT), Taken::Finished));
    }

    #[test]
    fn close_drops_waiting_items_and_stops_the_producer() {
        let (queue, item) = (Arc::new(Queue::new(10)), Arc::new(()));
        queue.reserve(10).unwrap();
        queue.put([(item.clone(), 10)]);
        let producer = thread::spawn({
            let queue = queue.clone();
            move || queue.reserve(1)
        });
        queue.close();
        assert_eq!(producer.join().unwrap().unwrap_err().code(), Code::Cancelled);
        assert_eq!(Arc::strong_count(&item), 1);
    }
}
