//! A queue between one producer and one consumer that is bounded by bytes: what is being made and what waits to be taken
//! never weighs more than the window. A single thing that is heavier goes through alone.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::error::{Code, Error, Result};

/// The queue; both sides share it.
#[derive(Debug)]
pub struct Queue<T> {
    state: Mutex<State<T>>,
    /// Told when bytes were taken out, or nobody will take any more.
    room: Condvar,
    /// Told when there is something to take.
    ready: Condvar,
    window: u64,
    /// What is left of the window; all there is once the consumer has gone.
    left: Arc<AtomicU64>,
}

#[derive(Debug)]
struct State<T> {
    ready: VecDeque<(T, u64)>,
    /// Bytes being made or waiting to be taken.
    held: u64,
    /// What the producer waits to have room for.
    wanted: Option<u64>,
    /// Whether the consumer has gone.
    closed: bool,
    /// Whether the producer has gone.
    ended: bool,
}

/// What a consumer gets.
#[derive(Debug)]
pub enum Taken<T> {
    /// The next thing; its bytes are the consumer's now.
    Item(T),
    /// Nothing yet.
    Waiting,
    /// Nothing any more.
    Finished,
}

impl<T> Queue<T> {
    /// An empty queue for `window` bytes.
    pub fn new(window: u64) -> Queue<T> {
        let state = State { ready: VecDeque::new(), held: 0, wanted: None, closed: false, ended: false };
        Queue {
            state: Mutex::new(state),
            room: Condvar::new(),
            ready: Condvar::new(),
            window,
            left: Arc::new(AtomicU64::new(window)),
        }
    }

    /// Bytes of the window in which nothing is in flight, kept up to date as long as the queue is.
    pub fn left(&self) -> &Arc<AtomicU64> {
        &self.left
    }

    fn hold(&self, state: &mut State<T>, held: u64) {
        state.held = held;
        self.left.store(self.window.saturating_sub(held), Ordering::Relaxed);
    }

    /// For the producer: waits until `bytes` more fit the window, and counts them. Fails once the consumer has gone.
    pub fn reserve(&self, bytes: u64) -> Result<()> {
        let mut state = self.lock();
        state.wanted = Some(bytes);
        while !state.closed && !self.fits(&state, bytes) {
            state = self.room.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.wanted = None;
        if state.closed {
            return Err(Error::new(Code::Cancelled, "stopped on request"));
        }
        let held = state.held.saturating_add(bytes);
        self.hold(&mut state, held);
        Ok(())
    }

    fn fits(&self, state: &State<T>, bytes: u64) -> bool {
        state.held == 0 || state.held.saturating_add(bytes) <= self.window
    }

    /// For the producer: hands over finished things, each with the bytes of the reservation that it stands for.
    pub fn put(&self, items: impl IntoIterator<Item = (T, u64)>) {
        let mut state = self.lock();
        // What nobody will take is dropped at the end, after the lock is let go.
        if !state.closed {
            state.ready.extend(items);
            self.ready.notify_one();
        }
    }

    /// For the producer: there will be nothing more.
    pub fn finish(&self) {
        self.lock().ended = true;
        self.ready.notify_one();
    }

    /// For the consumer: the next thing, waiting no longer than `patience`. Whoever waits hears of [`Queue::close`].
    pub fn take(&self, patience: Duration) -> Taken<T> {
        let mut state = self.lock();
        if state.ready.is_empty() && !state.ended && !state.closed {
            state = self.ready.wait_timeout(state, patience).unwrap_or_else(PoisonError::into_inner).0;
        }
        match state.ready.pop_front() {
            Some((item, bytes)) => {
                let held = state.held.saturating_sub(bytes);
                self.hold(&mut state, held);
                if state.wanted.is_some_and(|wanted| self.fits(&state, wanted)) {
                    self.room.notify_one();
                }
                Taken::Item(item)
            }
            None if state.ended || state.closed => Taken::Finished,
            None => Taken::Waiting,
        }
    }

    /// For the consumer: nothing more will be taken; what waits is dropped.
    pub fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        let waiting = std::mem::take(&mut state.ready);
        drop(state);
        self.room.notify_one();
        self.ready.notify_all();
        drop(waiting);
        // From here on nobody is promised anything.
        self.left.store(u64::MAX, Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    const SOON: Duration = Duration::from_millis(20);

    /// What the queue admits and counts, step by step beside a plain list of what is in flight. On one thread, so that every run
    /// sees every step.
    #[test]
    fn the_window_admits_what_fits_and_one_thing_alone() {
        const WINDOW: u64 = 10;
        let queue = Queue::new(WINDOW);
        let mut flying = VecDeque::new();
        for size in [3, 4, 5, 25, 1, 10, 2, 2, 2, 2, 2, 2, 9, 1, 1, 11, 0, 25, 0] {
            loop {
                let held: u64 = flying.iter().sum();
                let fits = flying.iter().all(|&one| one == 0) || held + size <= WINDOW;
                assert_eq!(queue.fits(&queue.lock(), size), fits, "{size} beside {flying:?}");
                assert_eq!(queue.left().load(Ordering::Relaxed), WINDOW.saturating_sub(held), "{flying:?}");
                if fits {
                    break;
                }
                assert!(matches!(queue.take(SOON), Taken::Item(taken) if Some(taken) == flying.pop_front()));
            }
            queue.reserve(size).unwrap();
            queue.put([(size, size)]);
            flying.push_back(size);
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
            let held = made.load(Ordering::SeqCst).saturating_sub(taken.load(Ordering::SeqCst));
            assert!(held <= 10 || held == 25, "{held} in flight");
            match queue.take(SOON) {
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
    fn what_is_left_of_the_window_is_told() {
        let queue = Queue::new(10);
        let left = || queue.left().load(Ordering::Relaxed);
        assert_eq!(left(), 10);
        queue.reserve(25).unwrap();
        assert_eq!(left(), 0);
        queue.put([('a', 22), ('b', 3)]);
        assert!(matches!(queue.take(SOON), Taken::Item('a')));
        assert_eq!(left(), 7);
        queue.close();
        assert_eq!(left(), u64::MAX);
    }

    #[test]
    fn a_full_queue_makes_the_producer_wait() {
        let queue = Arc::new(Queue::new(10));
        queue.reserve(8).unwrap();
        queue.put([('a', 8)]);
        let producer = thread::spawn({
            let queue = queue.clone();
            move || queue.reserve(3)
        });
        // Under the lock, what is wanted is seen only while the producer waits for it.
        while queue.lock().wanted.is_none() {
            assert!(!producer.is_finished(), "three bytes beside eight");
            thread::yield_now();
        }
        assert!(matches!(queue.take(SOON), Taken::Item('a')));
        producer.join().unwrap().unwrap();
    }

    #[test]
    fn what_was_finished_comes_before_the_end() {
        let queue = Queue::new(10);
        assert!(matches!(queue.take(SOON), Taken::Waiting));
        queue.put([(1, 0), (2, 0)]);
        queue.finish();
        assert!(matches!(queue.take(SOON), Taken::Item(1)));
        assert!(matches!(queue.take(SOON), Taken::Item(2)));
        assert!(matches!(queue.take(SOON), Taken::Finished));
        assert!(matches!(queue.take(SOON), Taken::Finished));
    }

    #[test]
    fn closing_wakes_whoever_waits_and_nothing_comes_after_it() {
        let queue = Arc::new(Queue::new(10));
        let waiting = thread::spawn({
            let queue = queue.clone();
            move || queue.take(Duration::from_secs(3600))
        });
        thread::sleep(SOON);
        queue.close();
        assert!(matches!(waiting.join().unwrap(), Taken::Finished | Taken::Waiting));
        queue.put([(1, 0)]);
        assert!(matches!(queue.take(SOON), Taken::Finished));
    }

    #[test]
    fn closing_frees_what_waits_and_stops_the_producer() {
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
