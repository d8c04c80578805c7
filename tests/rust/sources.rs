//! Sources that are neither files nor memory: how many requests and bytes it takes to open, slice and scan a checkpoint behind one,
//! and what its errors become.
#![expect(clippy::unwrap_used, reason = "helpers of tests may panic, and say so by failing")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::support::pickle::{Tensor, torch_state_dict};
use crate::support::zip::Archive;
use crate::support::{names, opened, st};
use rustload::scan::{FileReport, Verdict, scan_bytes, scan_ranges};
use rustload::{
    Access, Checkpoint, Code, DType, Error, Limits, Options, Order, Output, RangeRead, ReadRanges, Request,
    Result, Stream, StreamOptions, Taken, Tensor as Handle, TensorIndex,
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
    fn size(&self) -> u64 {
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
        if self.len_now.load(Ordering::Relaxed) == self.size() {
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
    archive(300, SHAPE).bytes()
}

/// An archive of so many f32 tensors of this shape, each on a storage of its own.
fn archive(count: u32, shape: [u64; 2]) -> Archive {
    let sizes = shape.map(|size| i64::try_from(size).unwrap());
    let tensors: Vec<_> = (0..count)
        .map(|number| {
            (format!("layers.{number}.weight"), Tensor::whole(DType::F32, &sizes, &number.to_string()))
        })
        .collect();
    let entries: Vec<_> = tensors.iter().map(|(name, tensor)| (name.as_str(), tensor.clone())).collect();
    let mut archive = Archive::new(torch_state_dict(&entries));
    for number in 0..count {
        let values = (0..shape[0] * shape[1]).map(|at| (number * 7 + at as u32) as f32);
        let bytes: Vec<u8> = values.flat_map(f32::to_le_bytes).collect();
        archive = archive.storage(&number.to_string(), &bytes);
    }
    archive
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
    for alignment in [1, 512, 8 << 20] {
        let mut source = TestSource::new(model());
        source.access.alignment = alignment;
        let (source, checkpoint) = open(source);
        let (checkpoint, expected) = (checkpoint.unwrap(), opened(model()));
        assert_eq!(names(&checkpoint), names(&expected));
        let requests = [
            Request::default(),
            Request::new().dtype(DType::BF16),
            Request::new().transpose(),
            Request::new().transpose().dtype(DType::F16),
        ];
        let steps = TensorIndex::Range { start: Some(1), stop: None, step: Some(3) };
        for request in &requests {
            for items in [vec![], vec![range(5, 9)], vec![range(0, 64), range(100, 103)], vec![steps]] {
                let of = |from: &Checkpoint| from.tensor("layers.42.weight").unwrap().index(&items).unwrap();
                let found = bytes_of(&of(&checkpoint), request);
                assert_eq!(found, bytes_of(&of(&expected), request), "{alignment} {items:?}");
            }
        }
        let view = checkpoint.tensor("layers.0.weight").unwrap();
        let error = view.materialize(&Request::new().copy(false)).unwrap_err();
        assert_eq!(error.code(), Code::Buffer);
        assert_eq!(source.in_flight.load(Ordering::Relaxed), 0);
    }
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
    let (len, most) = (source.size(), source.in_flight_max.load(Ordering::Relaxed));
    // Local headers are read together with the tensors between them.
    assert!(bytes <= len + (64 << 10) && requests < 20, "{bytes} bytes of {len} in {requests} requests");
    assert!(most > 1, "{most} at once in {:?}", start.elapsed());
}

#[test]
fn where_requests_take_long_gaps_are_read_instead_of_asking_again() {
    // Of 300 rows of 128 KiB, the first 8 KiB each.
    let (rows, columns) = (300_u64, 32 << 10);
    let data: Vec<u8> = (0..rows * columns * 4).map(|at| (at / 1021) as u8).collect();
    let shape = [rows, columns];
    let bytes = st::File::new().tensor("w", "F32", &shape, &data).bytes();
    let read = |delay| {
        let (source, checkpoint) = open(TestSource { delay, ..TestSource::new(bytes.clone()) });
        let part = checkpoint.unwrap().tensor("w").unwrap();
        let part = part.index(&[range(0, 300), range(0, 2048)]).unwrap();
        source.taken();
        let found = bytes_of(&part, &Request::default());
        let expected: Vec<u8> =
            data.chunks(columns as usize * 4).flat_map(|row| &row[..8192]).copied().collect();
        assert!(found == expected);
        source.taken()
    };
    // The first row came with the header.
    assert_eq!(read(Duration::ZERO), (299, 299 * 8192));
    let (requests, bytes) = read(Duration::from_millis(10));
    assert!(requests <= 8 && bytes <= data.len() as u64, "{bytes} bytes in {requests} requests");
}

#[test]
fn a_permuted_tensor_is_read_once_however_long_requests_take() {
    for (shape, order) in [
        (&[64_u64, 50_000][..], &[1_i64, 0][..]),
        (&[8, 400_000], &[1, 0]),
        (&[48, 100, 800], &[1, 0, 2]),
        (&[64, 200, 300], &[2, 1, 0]),
        (&[300, 200, 64], &[1, 2, 0]),
        (&[30, 40, 50, 70], &[2, 1, 0, 3]),
        (&[40, 200, 300], &[0, 2, 1]),
    ] {
        let data: Vec<u8> = (0..shape.iter().product::<u64>() * 4).map(|at| (at / 1021) as u8).collect();
        let bytes = st::File::new().tensor("w", "F32", shape, &data).bytes();
        let delay = Duration::from_millis(10);
        let (source, checkpoint) = open(TestSource { delay, ..TestSource::new(bytes.clone()) });
        let request = Request::new().order(Order::Permute(order.to_vec()));
        let tensor = checkpoint.unwrap().tensor("w").unwrap();
        source.taken();
        let found = bytes_of(&tensor, &request);
        let (requests, read) = source.taken();
        assert!(found == bytes_of(&opened(bytes).tensor("w").unwrap(), &request), "{shape:?} {order:?}");
        assert!(
            read <= data.len() as u64 && requests <= 32,
            "{shape:?} {order:?}: {requests} of {read} bytes"
        );
    }
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

/// The requests and bytes of a scan of an archive, the most requests at once, and its verdict.
fn scanned(bytes: Vec<u8>, limits: Limits) -> ((usize, u64), usize, FileReport) {
    let source = Arc::new(TestSource { delay: Duration::from_millis(1), ..TestSource::new(bytes) });
    let options = rustload::scan::Options::default().limits(limits);
    let mut report = scan_ranges(source.clone(), &options).unwrap();
    (source.taken(), source.in_flight_max.load(Ordering::Relaxed), report.files.remove(0))
}

#[test]
fn a_scan_fetches_local_headers_and_first_bytes_with_few_requests_several_at_once() {
    // Storages of 64 KiB, read through; of 1 MiB, of which only the ends are read; and small ones.
    for (archive, requests_max, bytes_max) in [
        (archive(300, SHAPE), 20, 21 << 20),
        (archive(40, [512, 512]).descriptors(), 60, 1 << 20),
        (archive(20_000, [2, 2]), 30, 8 << 20),
    ] {
        let ((requests, bytes), most, report) = scanned(archive.bytes(), Limits::new());
        assert_eq!(report.verdict(), Verdict::Inert, "{:?} {:?}", report.findings, report.unscanned);
        assert!(requests <= requests_max && bytes <= bytes_max, "{requests} requests of {bytes} bytes");
        assert!(most > 1 || requests < 20, "{most} of {requests} requests at once");
    }
}

#[test]
fn what_a_scan_may_not_request_is_unscanned_and_never_inert() {
    let bytes = archive(300, [128, 256]).bytes();
    // Headers that are more than the gap of 64 KiB apart are a request each.
    for (limits, what) in [
        (Limits::new().remote_requests(250), "remote_requests"),
        (Limits::new().remote_bytes((4 << 20) + (150 << 10)), "remote_bytes"),
    ] {
        let ((requests, read), _, report) = scanned(bytes.clone(), limits);
        assert_eq!(report.verdict(), Verdict::Unknown, "{what}");
        assert!(requests <= 251 && read <= 6 << 20, "{what}: {requests} requests of {read} bytes");
        let range = &report.unscanned[0];
        assert!(range.what.contains(what) && range.nbytes > 0, "{range:?}");
    }
    assert_eq!(scanned(bytes, Limits::new()).2.verdict(), Verdict::Inert);
}

#[test]
fn a_scan_finds_what_a_local_scan_finds() {
    for (at, descriptors, bytes) in spoiled_headers() {
        let local = scan_bytes(Arc::new(bytes.clone()), &rustload::scan::Options::default()).unwrap();
        let (_, _, remote) = scanned(bytes, Limits::new());
        let codes = |report: &FileReport| -> Vec<String> {
            report.findings.iter().map(|finding| format!("{finding:?}")).collect()
        };
        assert_eq!(codes(&remote), codes(&local.files[0]), "{at} {descriptors}");
        assert_eq!(remote.verdict(), local.verdict());
    }
}

#[test]
fn opening_20_000_tensors_takes_few_requests_and_its_metadata() {
    let archive = archive(20_000, [2, 2]);
    let pickle_and_directory = 20_000 * (127 + 70);
    let (source, checkpoint) = open(TestSource::new(archive.bytes()));
    assert_eq!(checkpoint.unwrap().len(), 20_000);
    let (requests, bytes) = source.taken();
    assert!(
        requests <= 5 && bytes <= pickle_and_directory + (256 << 10),
        "{requests} requests of {bytes} bytes"
    );
}

#[test]
fn opening_within_too_few_requests_or_bytes_is_a_limit_error() {
    let bytes = archive(2000, [2, 2]).bytes();
    for (limits, name) in [
        (Limits::new().remote_requests(1), "remote_requests"),
        (Limits::new().remote_bytes(100_000), "remote_bytes"),
    ] {
        let options = Options::new().limits(limits);
        let error = Checkpoint::from_ranges(Arc::new(TestSource::new(bytes.clone())), options).unwrap_err();
        assert_eq!(error.code(), Code::Limit);
        assert!(error.to_string().contains(name), "{error}");
    }
    // Tensors are not metadata: what is read after opening is not limited.
    let options = Options::new().limits(Limits::new().remote_requests(5).remote_bytes(1 << 20));
    let checkpoint = Checkpoint::from_ranges(Arc::new(TestSource::new(bytes)), options).unwrap();
    for tensor in (0..2000).step_by(10).map(|at| checkpoint.tensor_at(at).unwrap()) {
        bytes_of(&tensor, &Request::default());
    }
}

#[test]
fn eight_requests_at_once_hide_the_delay_of_a_source() {
    // 16 MiB in reads of 64 KiB, each of which sleeps.
    let bytes = archive(1, [4096, 1024]).bytes();
    let time = |concurrent: bool| {
        let mut access = Access::default();
        (access.concurrent, access.block, access.small) = (concurrent, 64 << 10, 0);
        let delay = Duration::from_millis(4);
        let (_, checkpoint) = open(TestSource { access, delay, ..TestSource::new(bytes.clone()) });
        let tensor = checkpoint.unwrap().tensor("layers.0.weight").unwrap();
        let start = Instant::now();
        bytes_of(&tensor, &Request::default());
        start.elapsed()
    };
    let serial = time(false);
    // Where other programs run, threads wait for a processor, too.
    let tries: Vec<_> = (0..5).map(|_| time(true)).take_while(|&parallel| serial <= 4 * parallel).collect();
    assert!(tries.len() < 5, "{serial:?} serially, {tries:?} with 8 in flight");
}

#[test]
fn a_safetensors_file_opens_with_one_request() {
    let bytes = st::File::new().tensor("a", "F32", &[4], &[1; 16]).bytes();
    let (source, checkpoint) = open(TestSource::new(bytes));
    assert_eq!(names(&checkpoint.unwrap()), ["a"]);
    assert_eq!(source.taken().0, 1);
}

#[test]
fn a_whole_tensor_and_its_local_header_are_one_request() {
    for (archive, requests_max) in [(archive(3, SHAPE), 1), (archive(3, SHAPE).descriptors(), 1)] {
        let expected = opened(archive.bytes());
        let (source, checkpoint) = open(TestSource::new(archive.bytes()));
        let checkpoint = checkpoint.unwrap();
        for request in [Request::default(), Request::new().dtype(DType::BF16), Request::new().transpose()] {
            source.taken();
            let tensor = checkpoint.tensor("layers.1.weight").unwrap();
            let same = expected.tensor("layers.1.weight").unwrap();
            assert_eq!(bytes_of(&tensor, &request), bytes_of(&same, &request));
            let (requests, bytes) = source.taken();
            assert!(requests <= requests_max, "{requests} requests");
            assert!(bytes <= tensor.nbytes() + 512, "{bytes} bytes for {}", tensor.nbytes());
        }
    }
}

#[test]
fn a_slice_fetches_the_local_header_in_the_same_batch() {
    // 8 MiB, of which a slice in the middle is far from both ends.
    let archive = archive(2, [2048, 1024]).descriptors();
    let expected = opened(archive.bytes());
    let (source, checkpoint) = open(TestSource::new(archive.bytes()));
    let checkpoint = checkpoint.unwrap();
    let items = [range(1000, 1004)];
    let read = |from: &Checkpoint| {
        bytes_of(&from.tensor("layers.1.weight").unwrap().index(&items).unwrap(), &Request::default())
    };
    for (calls_max, requests_max) in [(1, 3), (1, 1)] {
        let before = source.calls.load(Ordering::Relaxed);
        source.taken();
        assert_eq!(read(&checkpoint), read(&expected));
        let ((requests, bytes), calls) = (source.taken(), source.calls.load(Ordering::Relaxed) - before);
        assert!(calls <= calls_max && requests <= requests_max, "{requests} requests in {calls} calls");
        assert!(bytes <= 4 * 4096 + (64 << 10), "{bytes} bytes");
    }
}

#[test]
fn pieces_of_a_large_tensor_prove_its_header_once() {
    let archive = archive(1, [8192, 1024]).descriptors();
    let expected = opened(archive.bytes());
    let tensor = |from: &Checkpoint| from.tensor("layers.0.weight").unwrap();
    // A transpose is read in bands, by runs of rows.
    let requests = [
        (Request::default(), 16),
        (Request::new().dtype(DType::F16), 16),
        (Request::new().transpose(), usize::MAX),
    ];
    for (request, requests_max) in requests {
        let delay = Duration::from_millis(2);
        let (source, checkpoint) = open(TestSource { delay, ..TestSource::new(archive.bytes()) });
        let checkpoint = checkpoint.unwrap();
        source.taken();
        assert!(bytes_of(&tensor(&checkpoint), &request) == bytes_of(&tensor(&expected), &request));
        let (requests, bytes) = source.taken();
        // The header is beside the first of 8 blocks, the data descriptor beside the last.
        assert!(requests <= requests_max, "{requests} requests");
        assert!(bytes <= tensor(&checkpoint).nbytes() + (8 << 10), "{bytes} bytes");
        let most = source.in_flight_max.load(Ordering::Relaxed);
        assert!(most > 1, "{most} at once");
    }
}

/// Archives whose second storage has a local header or data descriptor with one byte changed, at offsets from the header on.
fn spoiled_headers() -> Vec<(usize, bool, Vec<u8>)> {
    let mut out = Vec::new();
    for descriptors in [false, true] {
        let archive = match descriptors {
            true => archive(3, SHAPE).descriptors(),
            false => archive(3, SHAPE),
        };
        let bytes = archive.bytes();
        let name = b"archive/data/1";
        let name_at = bytes.windows(name.len()).position(|window| window == name).unwrap();
        let (header, payload) = (name_at - 30, name_at + name.len());
        let descriptor = payload + (SHAPE[0] * ROW_BYTES) as usize;
        // Signature, flags, method, checksum, sizes, lengths and name; then the descriptor.
        let offsets = [0, 3, 6, 8, 14, 18, 22, 26, 28, 30, 43].map(|at| header + at);
        let trailing = [0, 4, 8, 12].map(|at| descriptor + at).into_iter().filter(|_| descriptors);
        for at in offsets.into_iter().chain(trailing) {
            let mut spoiled = bytes.clone();
            spoiled[at] ^= 0x41;
            out.push((at - header, descriptors, spoiled));
        }
    }
    out
}

#[test]
fn a_local_header_that_disagrees_is_refused_at_the_read_with_the_same_error() {
    for (at, descriptors, bytes) in spoiled_headers() {
        let (_, checkpoint) = open(TestSource::new(bytes.clone()));
        let (checkpoint, local) = (checkpoint.unwrap(), opened(bytes));
        let tensor = |from: &Checkpoint| from.tensor("layers.1.weight").unwrap();
        let slice = |from: &Checkpoint| tensor(from).index(&[range(30, 31)]).unwrap();
        let fill = |tensor: &Handle, request: &Request| {
            let itemsize = request.dtype.unwrap_or(tensor.dtype()).itemsize();
            let mut out = vec![0x55; usize::try_from(tensor.layout().numel() * itemsize).unwrap()];
            let error = tensor.materialize_into(request, &mut out).unwrap_err();
            assert!(out.iter().all(|&byte| byte == 0x55), "bytes were given out before the proof, {at}");
            error
        };
        let expected = fill(&tensor(&local), &Request::default());
        for found in [
            fill(&tensor(&checkpoint), &Request::default()),
            fill(&slice(&checkpoint), &Request::default()),
            fill(&tensor(&checkpoint), &Request::new().dtype(DType::F16)),
            stream_all(&checkpoint).unwrap_err(),
        ] {
            assert_eq!(found.code(), expected.code(), "{at} {descriptors}: {found} {expected}");
            assert_eq!((found.message(), found.member()), (expected.message(), expected.member()));
            assert_eq!(found.path().and_then(|path| path.to_str()), Some("test://model"));
        }
        // The other tensors are as they were.
        let other =
            |from: &Checkpoint| bytes_of(&from.tensor("layers.2.weight").unwrap(), &Request::default());
        assert!(other(&checkpoint) == other(&local));
    }
}

#[test]
fn a_failed_request_leaves_the_header_unproved_and_the_next_read_proves_it() {
    let (source, checkpoint) = open(TestSource::new(model()));
    let (tensor, opening) =
        (checkpoint.unwrap().tensor("layers.5.weight").unwrap(), source.calls.load(Ordering::Relaxed));
    let source = TestSource { fail_at: opening, ..TestSource::new(model()) };
    let (_, again) = open(source);
    let again = again.unwrap().tensor("layers.5.weight").unwrap();
    let mut out = vec![0; usize::try_from(again.nbytes()).unwrap()];
    assert_eq!(again.materialize_into(&Request::default(), &mut out).unwrap_err().code(), Code::Io);
    again.materialize_into(&Request::default(), &mut out).unwrap();
    assert!(out == bytes_of(&tensor, &Request::default()));
}
