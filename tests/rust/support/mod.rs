//! Builders for the files that tests open: pickles, torch archives and safetensors. Each defect is one method call.

pub(crate) mod pickle;
pub(crate) mod st;
pub(crate) mod zip;

use std::sync::Arc;
use std::time::Duration;

#[cfg(unix)]
use rustix::time::{ClockId, clock_gettime};
use rustload::{Checkpoint, Code, Error, Options};

/// Opens bytes as a checkpoint, with default options.
pub(crate) fn open(bytes: Vec<u8>) -> Result<Checkpoint, Error> {
    Checkpoint::from_bytes(Arc::new(bytes), Options::default())
}

/// Opens the bytes of a valid checkpoint.
pub(crate) fn opened(bytes: Vec<u8>) -> Checkpoint {
    open(bytes).expect("a checkpoint that opens")
}

/// The error code of opening.
pub(crate) fn code(bytes: Vec<u8>) -> Code {
    open(bytes).map(|checkpoint| names(&checkpoint)).expect_err("a file that is refused").code()
}

/// All names, in order.
pub(crate) fn names(checkpoint: &Checkpoint) -> Vec<String> {
    checkpoint.names().map(|name| name.to_string()).collect()
}

/// The bytes of a tensor as an owned result in its own dtype and order.
pub(crate) fn bytes_of(checkpoint: &Checkpoint, name: &str) -> Vec<u8> {
    let tensor = checkpoint.tensor(name).expect("a tensor of this name");
    let mut out = vec![0; usize::try_from(tensor.nbytes()).expect("a small tensor")];
    tensor.materialize_into(&rustload::Request::default(), &mut out).expect("a tensor that is read");
    out
}

/// Floats as little-endian bytes.
pub(crate) fn f32s(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// Runs a job on a thread with a stack of 256 KiB; returns its result and the time of `timed`.
pub(crate) fn on_small_stack<T: Send>(job: impl FnOnce() -> T + Send) -> (T, Duration) {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(256 << 10);
        let job = thread.spawn_scoped(scope, || timed(job));
        job.expect("a thread").join().expect("a job that does not panic")
    })
}

/// Runs a job; returns its result and this thread's processor time, which does not grow with what else the machine does.
#[cfg(unix)]
pub(crate) fn timed<T>(job: impl FnOnce() -> T) -> (T, Duration) {
    let now = || Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).expect("a time");
    let start = now();
    (job(), now() - start)
}

/// Runs a job; returns its result and its time.
#[cfg(not(unix))]
pub(crate) fn timed<T>(job: impl FnOnce() -> T) -> (T, Duration) {
    let start = std::time::Instant::now();
    (job(), start.elapsed())
}
