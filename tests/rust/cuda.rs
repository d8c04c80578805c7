//! Uploads of the core, without Python and without a GPU: each test runs itself again in a process with the fake driver of
//! `tests/data/fakecuda`. Without a C compiler the tests print a message and are skipped.
#![expect(clippy::unwrap_used, reason = "helpers of tests may panic, and say so by failing")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crate::support::{f32s, st};
use rustload::cuda::GpuMemory;
use rustload::cuda::{self, Device, DeviceMemory, Upload, Waited};
use rustload::{Array, Checkpoint, Code, DType, Options, Order, Request, Tensor};

/// Set in the process that has the fake driver.
const INSIDE: &str = "RUSTLOAD_TEST_INSIDE";

/// The fake driver, built once.
fn library() -> Option<&'static Path> {
    static BUILT: OnceLock<Option<PathBuf>> = OnceLock::new();
    let build = || {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/fakecuda/fakecuda.c");
        let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("fakecuda-{}.so", std::process::id()));
        let options = ["-O1", "-shared", "-fPIC", "-pthread", "-Wl,-soname,libcuda.so.1", "-o"];
        match Command::new("cc").args(options).arg(&out).arg(source).status() {
            Ok(status) => {
                assert!(status.success(), "the fake driver is built");
                Some(out)
            }
            Err(error) => {
                eprintln!("skipped: there is no C compiler: {error}");
                None
            }
        }
    };
    BUILT.get_or_init(build).as_deref()
}

/// The name of one of these tests in the test runner.
fn full_name(test: &str) -> String {
    // The path of the module without the crate's name.
    let (_, module) = module_path!().split_once("::").unwrap();
    format!("{module}::{test}")
}

/// Runs `test`, the body of the test `name`, in a process with the fake driver and this environment.
fn on_fake(name: &str, environment: &[(&str, &str)], test: impl FnOnce()) {
    if std::env::var_os(INSIDE).is_some() {
        return test();
    }
    let Some(library) = library() else { return };
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", &full_name(name), "--nocapture"])
        .env(INSIDE, "1")
        .env("RUSTLOAD_LIBCUDA", library);
    // Pinned memory is never freed, which LeakSanitizer would report (make sanitize).
    command.env("LSAN_OPTIONS", "detect_leaks=0");
    let done = command.envs(environment.iter().copied()).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(done.status.success(), "{}{}", text(&done.stdout), text(&done.stderr));
    assert!(text(&done.stdout).contains("1 passed"), "{}", text(&done.stdout));
}

fn checkpoint() -> Checkpoint {
    let values: Vec<f32> = (0_u32..600 * 700).map(|n| (n % 8191) as f32 - 4000.5).collect();
    let file = st::File::new()
        .tensor("matrix", "F32", &[600, 700], &f32s(&values))
        .tensor("small", "F32", &[3, 5], &f32s(&values[..15]))
        .tensor("next", "F32", &[7], &f32s(&values[15..22]))
        .tensor("empty", "F32", &[0, 4], &[])
        .tensor("cube", "F32", &[30, 50, 40], &f32s(&values[..60_000]));
    Checkpoint::from_bytes(Arc::new(file.bytes()), Options::default()).unwrap()
}

fn expected(tensor: &Tensor, request: &Request) -> Vec<u8> {
    let layout = tensor.result_layout(&request.order).unwrap();
    let dtype = request.dtype.unwrap_or(tensor.dtype());
    let mut out = vec![0; usize::try_from(layout.numel() * dtype.itemsize()).unwrap()];
    tensor.materialize_into(request, &mut out).unwrap();
    out
}

/// GPU memory for each result: as a destination, and as memory that a test can read back.
fn destinations(device: &'static Device, sizes: &[usize]) -> Vec<(Array, Arc<DeviceMemory>)> {
    let made = |&size: &usize| {
        let memory = Arc::new(DeviceMemory::new(device, size as u64).unwrap());
        (Array::on_gpu(memory.clone()), memory)
    };
    sizes.iter().map(made).collect()
}

fn done(upload: &Upload, ticket: u64) -> Result<(), (usize, String, Code)> {
    loop {
        match upload.wait(ticket, None, true, Duration::MAX) {
            Ok(Waited::Done) => return Ok(()),
            Ok(Waited::Waiting) => {}
            Err(failed) => return Err((failed.index, failed.name, failed.error.code())),
        }
    }
}

#[test]
fn uploads_equal_the_results_of_the_cpu() {
    let environment = [("RUSTLOAD_RING", "32768x4"), ("FAKECUDA_DELAY", "300")];
    on_fake("uploads_equal_the_results_of_the_cpu", &environment, || {
        let ckpt = checkpoint();
        let upload = Upload::new(0, 64 << 20, Some(3)).unwrap();
        for dtype in [None, Some(DType::BF16), Some(DType::F64), Some(DType::F8E4M3Fn)] {
            for order in [Order::Same, Order::Transpose] {
                let wide = |name: &&str| order == Order::Same || *name != "next";
                let names = ["matrix", "small", "next", "empty", "cube"];
                let tensors = names.iter().filter(|name| wide(name)).map(|name| ckpt.tensor(name).unwrap());
                let request = Request::new().dtype(dtype).order(order.clone());
                let requests: Vec<_> = tensors.map(|tensor| (tensor, request.clone())).collect();
                let results: Vec<_> =
                    requests.iter().map(|(tensor, request)| expected(tensor, request)).collect();
                let sizes: Vec<usize> = results.iter().map(Vec::len).collect();
                let targets = destinations(upload.device(), &sizes);
                let into = targets.iter().map(|(array, _)| array.clone()).collect();
                let ticket = upload.submit(requests, into, None).unwrap();
                done(&upload, ticket).unwrap();
                for ((_, memory), expected) in targets.iter().zip(&results) {
                    let mut found = vec![0; expected.len()];
                    memory.memcpy_d2h(&mut found).unwrap();
                    assert!(found == *expected, "{dtype:?} {order:?}");
                }
            }
        }
    });
}

#[test]
fn an_error_names_its_tensor_and_ends_only_its_ticket() {
    on_fake("an_error_names_its_tensor_and_ends_only_its_ticket", &[("FAKECUDA_DELAY", "300")], || {
        let ckpt = checkpoint();
        let upload = Upload::new(0, 64 << 20, Some(2)).unwrap();
        let request = |name, dtype| (ckpt.tensor(name).unwrap(), Request::new().dtype(dtype));
        let submit = |requests: Vec<(Tensor, Request)>, sizes: &[usize]| {
            let into = destinations(upload.device(), sizes).into_iter().map(|(array, _)| array).collect();
            upload.submit(requests, into, None)
        };
        let good = submit(vec![request("small", None)], &[60]).unwrap();
        let lossy = submit(vec![request("small", None), request("next", Some(DType::I8))], &[60, 7]).unwrap();
        let after = submit(vec![request("next", None)], &[28]).unwrap();
        assert_eq!(done(&upload, lossy), Err((1, "next".to_owned(), Code::LossyCast)));
        assert_eq!((done(&upload, good), done(&upload, after)), (Ok(()), Ok(())));
        assert_eq!(done(&upload, good).unwrap_err().2, Code::Value);
        let wrong = submit(vec![request("small", None)], &[61]).unwrap_err();
        assert_eq!((wrong.name.as_str(), wrong.error.code()), ("small", Code::Value));
        upload.close();
        assert_eq!(submit(vec![request("small", None)], &[60]).unwrap_err().error.code(), Code::Closed);
    });
}

#[test]
fn a_thread_that_waits_learns_that_another_one_closed_the_upload() {
    let environment = [("RUSTLOAD_RING", "4096x3"), ("FAKECUDA_DELAY", "100000")];
    on_fake("a_thread_that_waits_learns_that_another_one_closed_the_upload", &environment, || {
        let matrix = checkpoint().tensor("matrix").unwrap();
        let upload = Upload::new(0, 64 << 20, Some(2)).unwrap();
        let into = destinations(upload.device(), &[600 * 700 * 4]).into_iter().map(|(array, _)| array);
        let ticket = upload.submit(vec![(matrix, Request::new())], into.collect(), None).unwrap();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                let start = Instant::now();
                let code = upload.wait(ticket, None, true, Duration::from_secs(20)).unwrap_err().error.code();
                (code, start.elapsed() < Duration::from_secs(10))
            });
            std::thread::sleep(Duration::from_millis(200));
            upload.close();
            assert_eq!(waiting.join().unwrap(), (Code::Value, true));
        });
    });
}

#[test]
fn device_memory_has_its_size_and_device() {
    on_fake("device_memory_has_its_size_and_device", &[("FAKECUDA_DEVICES", "2")], || {
        let device = Device::of(1).unwrap();
        let memory = DeviceMemory::new(device, 100).unwrap();
        assert_eq!((memory.device(), memory.nbytes()), (1, 100));
        assert_ne!(memory.address(), 0);
        assert_eq!(memory.memcpy_d2h(&mut [0; 99]).unwrap_err().code(), Code::Value);
        assert_eq!(DeviceMemory::new(device, 0).unwrap().address(), 0);
        let none = Device::of(2).unwrap_err();
        assert_eq!((none.code(), none.message()), (Code::Device, "there is no CUDA device 2: there are 2"));
        assert!(std::ptr::eq(device, Device::of(1).unwrap()));
    });
}

#[test]
fn without_a_driver_the_error_has_a_reason() {
    if std::env::var_os(INSIDE).is_none() {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", &full_name("without_a_driver_the_error_has_a_reason")]).env(INSIDE, "1");
        let done = command.env("RUSTLOAD_LIBCUDA", "/nonexistent/libcuda.so.1").output().unwrap();
        let text = String::from_utf8_lossy(&done.stdout);
        assert!(done.status.success() && text.contains("1 passed"), "{text}");
        return;
    }
    let info = cuda::info();
    assert_eq!((info.library, info.version, info.devices), (None, None, 0));
    assert!(info.reason.unwrap().starts_with("there is no CUDA driver: /nonexistent/libcuda.so.1"));
    assert_eq!(Upload::new(0, 1 << 20, None).err().unwrap().code(), Code::Device);
}
