//! Sources that are neither files nor memory: how many requests and bytes it takes to open, slice and scan a checkpoint behind one,
//! and what its errors become.
#![expect(clippy::unwrap_used, reason = "helpers of tests may panic, and say so by failing")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::support::pickle::{Tensor, torch_state_dict};
use crate::support::zip::Archive;
use crate::support::{names, opened, st};
use rustload::scan::{Verdict, scan_ranges};
use rustload::{
    Access, Checkpoint, Code, DType, Error, Options, Output, RangeRead, ReadRanges, Request, Result, Stream,
    StreamOptions, Taken, Tensor as Handle, TensorIndex,
};

/// Bytes in memory behind the trait, with a count of requests and bytes, a delay, and a request that fails.
struct TestSource {
    bytes: Vec<u8>,
    access: Access,
    delay: Duration,
    fail_at: usize,
    calls: AtomicUsize,
    requests: AtomicUsize,
    bytes_read: AtomicU64,
    in_flight: AtomicUsize,
    in_flight_max: AtomicUsize,
    len_now: AtomicU64,
}

impl TestSource {
    fn new(bytes: Vec<u8>) -> TestSource {
        let len_now = AtomicU64::new(bytes.len() as u64);
        TestSource {
            bytes,
            access: Access::default(),
            delay: Duration::ZERO,
            fail_at: usize::MAX,
            calls: AtomicUsize::new(0),
            requests: AtomicUsize::new(0),
            bytes_read: AtomicU64::new(0),
            in_flight: AtomicUsize::new(0),
            in_flight_max: AtomicUsize::new(0),
            len_now,
        }
    }

    /// Requests and bytes since the last call.
    fn taken(&self) -> (usize, u64) {
        (self.requests.swap(0, Ordering::Relaxed), self.bytes_read.swap(0, Ordering::Relaxed))
    }
}

impl ReadRanges for TestSource {
    fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        self.read_ranges(&mut [RangeRead { offset, out }])
    }

    fn read_ranges(&self, ranges: &mut [RangeRead<'_>]) -> Result<()> {
        let now = self.in_flight.fetch_add(1, Ordering::Relaxed) + 1;
        self.in_flight_max.fetch_max(now, Ordering::Relaxed);
        std::thread::sleep(self.delay);
        let result = if self.calls.fetch_add(1, Ordering::Relaxed) == self.fail_at {
            Err(Error::new(Code::Io, "the connection was lost"))
        } else {
            for range in ranges.iter_mut() {
                let start = range.offset as usize;
                range.out.copy_from_slice(&self.bytes[start..start + range.out.len()]);
                self.requests.fetch_add(1, Ordering::Relaxed);
                self.bytes_read.fetch_add(range.out.len() as u64, Ordering::Relaxed);
            }
            Ok(())
        };
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
        result
    }

    fn access(&self) -> Access {
        self.access
    }

    fn check_unchanged(&self) -> Result<()> {
        if self.len_now.load(Ordering::Relaxed) == self.len() {
            return Ok(());
        }
        Err(Error::new(Code::FileChanged, "the object has another size now"))
    }

    fn name(&self) -> Option<&str> {
        Some("test://model")
    }
}

/// Rows and columns of each tensor of [`model`].
const SHAPE: [u64; 2] = [64, 256];

/// Bytes of a row of each tensor.
const ROW_BYTES: u64 = SHAPE[1] * 4;

/// An archive as torch writes it, of 300 tensors of 64 KiB.
fn model() -> Vec<u8> {
    let tensors: Vec<_> = (0..300)
        .map(|number| {
            let shape = SHAPE.map(|size| i64::try_from(size).unwrap());
            (format!("layers.{number}.weight"), Tensor::whole(DType::F32, &shape, &number.to_string()))
        })
        .collect();
    let entries: Vec<_> = tensors.iter().map(|(name, tensor)| (name.as_str(), tensor.clone())).collect();
    let mut archive = Archive::new(torch_state_dict(&entries));
    for number in 0..300_u32 {
        let values = (0..SHAPE[0] * SHAPE[1]).map(|at| (number * 7 + at as u32) as f32);
        let bytes: Vec<u8> = values.flat_map(f32::to_le_bytes).collect();
        archive = archive.storage(&number.to_string(), &bytes);
    }
    archive.bytes()
}

fn open(source: TestSource) -> (Arc<TestSource>, Result<Checkpoint>) {
    let source = Arc::new(source);
    let opened = Checkpoint::from_ranges(source.clone(), Options::new());
    (source, opened)
}

fn range(start: i64, stop: i64) -> TensorIndex {
    TensorIndex::Range { start: Some(start), stop: Some(stop), step: None }
}

fn bytes_of(tensor: &Handle, request: &Request) -> Vec<u8> {
    let dtype = request.dtype.unwrap_or(tensor.dtype());
    let mut out = vec![0; usize::try_from(tensor.layout().numel() * dtype.itemsize()).unwrap()];
    tensor.materialize_into(request, &mut out).unwrap();
    out
}

#[test]
fn opening_an_archive_of_300_tensors_takes_at_most_6_requests() {
    let (source, checkpoint) = open(TestSource::new(model()));
    assert_eq!(checkpoint.unwrap().len(), 300);
    let (requests, bytes) = source.taken();
    assert!(requests <= 6 && bytes <= 6 << 16, "{requests} requests of {bytes} bytes");
}

#[test]
fn a_slice_reads_its_bytes_and_64_kib_at_most() {
    let (source, checkpoint) = open(TestSource::new(model()));
    let checkpoint = checkpoint.unwrap();
    let expected = opened(model());
    source.taken();
    for (name, rows) in [("layers.7.weight", 3_u64), ("layers.150.weight", 40), ("layers.299.weight", 64)] {
        let items = [range(0, rows as i64)];
        let slice = checkpoint.tensor(name).unwrap().index(&items).unwrap();
        let same = expected.tensor(name).unwrap().index(&items).unwrap();
        assert_eq!(bytes_of(&slice, &Request::default()), bytes_of(&same, &Request::default()));
        let (requests, bytes) = source.taken();
        assert!(bytes <= rows * ROW_BYTES + (64 << 10), "{name}: {bytes} bytes in {requests} requests");
    }
}

#[test]
fn every_kind_of_result_is_that_of_bytes_in_memory() {
    let (source, checkpoint) = open(TestSource::new(model()));
    let (checkpoint, expected) = (checkpoint.unwrap(), opened(model()));
    assert_eq!(names(&checkpoint), names(&expected));
    let requests = [
        Request::default(),
        Request::new().dtype(DType::BF16),
        Request::new().transpose(),
        Request::new().transpose().dtype(DType::F16),
    ];
    for request in &requests {
        for items in [vec![], vec![range(5, 9)], vec![range(0, 64), range(100, 103)]] {
            let of = |from: &Checkpoint| from.tensor("layers.42.weight").unwrap().index(&items).unwrap();
            assert_eq!(bytes_of(&of(&checkpoint), request), bytes_of(&of(&expected), request), "{items:?}");
        }
    }
    let view = checkpoint.tensor("layers.0.weight").unwrap();
    let error = view.materialize(&Request::new().copy(false)).unwrap_err();
    assert_eq!(error.code(), Code::Buffer);
    assert_eq!(source.in_flight.load(Ordering::Relaxed), 0);
}

fn stream_all(checkpoint: &Checkpoint) -> Result<u64> {
    let requests = (0..checkpoint.len()).map(|at| (checkpoint.tensor_at(at).unwrap(), Request::new()));
    let mut stream = Stream::new(requests.collect(), StreamOptions::new());
    let mut nbytes = 0;
    loop {
        match stream.next_within(Duration::from_secs(60)).map_err(|error| error.error)? {
            Taken::Item(item) => match item.output {
                Output::Array(array) => nbytes += array.nbytes(),
                other => panic!("{other:?}"),
            },
            Taken::Finished => return Ok(nbytes),
            Taken::Waiting => panic!("the stream hangs"),
        }
    }
}

#[test]
fn a_stream_reads_neighbours_together_and_several_ranges_at_once() {
    let (source, checkpoint) =
        open(TestSource { delay: Duration::from_millis(5), ..TestSource::new(model()) });
    let checkpoint = checkpoint.unwrap();
    source.taken();
    let start = Instant::now();
    let nbytes = stream_all(&checkpoint).unwrap();
    assert_eq!(nbytes, 300 * SHAPE[0] * ROW_BYTES);
    let (requests, bytes) = source.taken();
    let (len, most) = (source.len(), source.in_flight_max.load(Ordering::Relaxed));
    // Small members lie between their local headers, which are read in runs; then the tensors are read.
    assert!(bytes <= 2 * len && requests < 60, "{bytes} bytes of {len} in {requests} requests");
    assert!(most > 1, "{most} at once in {:?}", start.elapsed());
}

#[test]
fn a_source_for_one_thread_is_read_by_one_thread() {
    let mut access = Access::default();
    access.concurrent = false;
    let (source, checkpoint) =
        open(TestSource { access, delay: Duration::from_millis(1), ..TestSource::new(model()) });
    stream_all(&checkpoint.unwrap()).unwrap();
    assert_eq!(source.in_flight_max.load(Ordering::Relaxed), 1);
}

#[test]
fn an_error_of_the_source_names_it() {
    for fail_at in 0..3 {
        let (_, checkpoint) = open(TestSource { fail_at, ..TestSource::new(model()) });
        let error = match checkpoint {
            Err(error) => error,
            Ok(checkpoint) => stream_all(&checkpoint).unwrap_err(),
        };
        assert_eq!(error.code(), Code::Io, "{error}");
        assert_eq!(error.path().and_then(|path| path.to_str()), Some("test://model"));
    }
}

#[test]
fn an_object_that_changed_is_an_error() {
    let (source, checkpoint) = open(TestSource::new(model()));
    let tensor = checkpoint.unwrap().tensor("layers.1.weight").unwrap();
    bytes_of(&tensor, &Request::default());
    source.len_now.store(1, Ordering::Relaxed);
    let mut out = vec![0; usize::try_from(tensor.nbytes()).unwrap()];
    let error = tensor.materialize_into(&Request::default(), &mut out).unwrap_err();
    assert_eq!(error.code(), Code::FileChanged);
}

#[test]
fn a_scan_reads_the_parts_that_readers_run_and_no_tensors() {
    let source = Arc::new(TestSource::new(model()));
    let report = scan_ranges(source.clone(), &rustload::scan::Options::default()).unwrap();
    assert_eq!(report.verdict(), Verdict::Inert);
    assert_eq!(report.files[0].path.as_deref(), Some("test://model"));
}

#[test]
fn a_safetensors_file_opens_with_one_request() {
    let bytes = st::File::new().tensor("a", "F32", &[4], &[1; 16]).bytes();
    let (source, checkpoint) = open(TestSource::new(bytes));
    assert_eq!(names(&checkpoint.unwrap()), ["a"]);
    assert_eq!(source.taken().0, 1);
}
