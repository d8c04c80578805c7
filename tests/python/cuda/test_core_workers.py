"""The threads of uploads: kept per device, as many as the work needs, ended before the process, absent in forked children."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from support import deflated, patterns

START = """
    import os, sys, threading, time
    from pathlib import Path
    import fakecuda, rustload
    from fakecuda import Request
    from rustload import _rustload

    tensors = list(rustload.open(sys.argv[1]).values())
    expected = [fakecuda.expected(tensor, Request()) for tensor in tensors]

    FUTEX = {"x86_64": "202", "aarch64": "98"}[os.uname().machine]
    devices = set()

    def threads():
        \"\"\"The threads of uploads.\"\"\"
        return {task.name for task in Path("/proc/self/task").iterdir() if (task / "comm").read_text() == "rustload-upload\\n"}

    def waits():
        \"\"\"Where the threads wait: the addresses of futexes, and None for each that does something else.\"\"\"
        found = [Path(f"/proc/self/task/{task}/syscall").read_text().split() for task in threads()]
        return [words[1] if words[0] == FUTEX else None for words in found]

    def settle():
        \"\"\"Waits until all threads wait for work, those of a device at one address: one that still ends its last upload is not
        there for the next one.\"\"\"
        while None in (at := waits()) or len(set(at)) > len(devices):
            time.sleep(0.001)

    def load(wanted=Request(), device=0, threads=3):
        devices.add(device)
        upload = _rustload.upload(device, window=1 << 28, threads=threads)
        ticket, into = fakecuda.submit(upload, tensors, wanted)
        upload.wait(ticket, stream=None, sync=True)
        assert [fakecuda.read(buffer) for buffer in into] == [fakecuda.expected(tensor, wanted) for tensor in tensors]
        upload.close()
        settle()

    def grow(count, *args, **options):
        \"\"\"Loads until there are so many threads. A load that is delayed may do with fewer, and none may have more.\"\"\"
        for _ in range(50):
            load(*args, **options)
            assert len(threads()) <= count
            if len(threads()) == count:
                return
        raise AssertionError(threads())
"""


@pytest.fixture
def path(save: Callable[..., Path]) -> Path:
    """A checkpoint of six tensors, each of which takes several slots of a ring of 64 KiB."""
    return save({f"w{number}": patterns("float32", (200, 300), seed=number) for number in range(6)})


def test_threads_are_kept_from_upload_to_upload(on_fake, path):
    on_fake(
        """
    grow(3)
    first = threads()
    for _ in range(20):
        load()
    assert threads() == first, (threads(), first)
    grow(6, device=1)
    assert threads() > first
    # A small batch does not wake threads that it has no work for.
    tensors = [tensors[0][:40]]
    load(device=2)
    assert tensors[0].nbytes < 65536 and len(threads()) == 7
    """,
        path,
        RUSTLOAD_RING="65536x6",
        FAKECUDA_DEVICES=3,
        FAKECUDA_DELAY=300,
    )


def test_casts_have_a_thread_per_core(on_fake, save):
    path = save({f"w{number}": patterns("float32", (200, 300), seed=number) for number in range(30)})
    on_fake(
        """
    cores = len(os.sched_getaffinity(0))
    grow(max(1, min(12, cores * 3 // 4)), threads=None)
    grow(min(48, cores), Request(dtype="bfloat16"), threads=None)
    grow(max(2, min(48, cores)), Request(dtype="bfloat16"), threads=2)
    """,
        path,
        RUSTLOAD_RING="65536x48",
    )


def test_threads_run_on_the_cpus_near_the_gpu(on_fake, path):
    """The fake driver's GPUs are at no PCI address of this machine, so the environment names the CPUs."""
    code = """
    mine = os.sched_getaffinity(0)
    load(threads=None)
    assert threads()
    for task in threads():
        print(sorted(os.sched_getaffinity(int(task))))
    assert os.sched_getaffinity(0) == mine, "the caller stays where it is"
    """
    allowed = sorted(os.sched_getaffinity(0))
    one = [allowed[-1]]
    out = on_fake(code, path, RUSTLOAD_RING="65536x8", RUSTLOAD_UPLOAD_CPUS=f"{one[0]},70").stdout
    assert out == f"{one}\n", "as many threads as there are CPUs"
    for anywhere in ("", "all", "1000-1023"):
        out = on_fake(code, path, RUSTLOAD_RING="65536x8", RUSTLOAD_UPLOAD_CPUS=anywhere).stdout
        assert set(out.splitlines()) == {str(allowed)}
    for wrong in ("some", "3-1", "0,"):
        refused = on_fake("load()", path, RUSTLOAD_UPLOAD_CPUS=wrong, check=False)
        assert f"ValueError: RUSTLOAD_UPLOAD_CPUS={wrong}: expected CPU numbers, or all" in refused.stderr


def test_a_source_may_make_another_device_current_on_a_thread(on_fake, path):
    on_fake(
        """
    whole = Path(sys.argv[1]).read_bytes()
    entered = []

    class Source(rustload.Ranges):
        size, name = len(whole), "memory"

        def read_ranges(self, ranges):
            if Path("/proc/thread-self/comm").read_text() == "rustload-upload\\n":
                fakecuda.enter(1)
                entered.append(1)
            return [memoryview(whole)[start : start + length] for start, length in ranges]

    remote = rustload.open(Source())
    tensors = list(remote.values())
    for _ in range(5):
        load()
    assert entered
    assert fakecuda.count("stray") == 0
    """,
        path,
        RUSTLOAD_RING="65536x6",
        FAKECUDA_DEVICES=2,
    )


def test_threads_end_on_request_and_start_again(on_fake, path):
    on_fake(
        """
    _rustload.end_upload_workers()
    load()
    for _ in range(3):
        assert threads()
        _rustload.end_upload_workers()
        assert not threads()
        load()
    if not (pid := os.fork()):
        # The child has none of the threads, and waits for none.
        _rustload.end_upload_workers()
        os._exit(len(threads()))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    # With work in flight: the jobs that run are done, the others are left.
    upload = _rustload.upload(0, window=1 << 28, threads=2)
    fakecuda.submit(upload, tensors * 50, Request(), slab=False)
    _rustload.end_upload_workers()
    assert not threads()
    upload.close()
    assert fakecuda.count("stray") == 0
    """,
        path,
        RUSTLOAD_RING="65536x6",
        FAKECUDA_DELAY=300,
    )


def test_a_process_ends_its_threads_before_it_ends(on_fake, path):
    """By `atexit`, which is registered by the part of the package that uploads."""
    out = on_fake(
        """
    import atexit
    atexit.register(lambda: print(len(threads()), "at the end"))
    import rustload._cuda.uploads
    grow(3)
    print(len(threads()), "before")
    """,
        path,
        RUSTLOAD_RING="65536x6",
    ).stdout
    assert out == "3 before\n0 at the end\n"


def test_copies_do_not_wait_for_the_work_that_the_next_batch_waits_for(on_fake, save):
    """The GPU converts from one staging buffer while the other one is filled."""
    path = save({f"w{number}": patterns("float32", (500, 700), seed=number) for number in range(3)})
    on_fake(
        """
    fakecuda.enter()
    stream = fakecuda.stream()
    upload = _rustload.upload(0, window=1 << 28, threads=2)
    for _ in range(2):
        # Most copies of the first batch are not enqueued when the second is submitted: the ring has room for a fraction
        # of them, and for all of the second.
        later = fakecuda.destinations(upload, tensors[:1], [Request()])
        before = fakecuda.read(later[0])
        first, into = fakecuda.submit(upload, tensors * 4, Request())
        start = time.monotonic()
        fakecuda.fill(stream, later[0], 0xAA, 1_500_000)
        second, _ = fakecuda.submit(upload, tensors[:1], Request(), later, stream=stream)
        upload.wait(first, stream=None, sync=True)
        assert [fakecuda.read(buffer) for buffer in into] == expected * 4
        # The caller's stream is still busy, and the second batch waits for it.
        assert fakecuda.read(later[0]) == before, time.monotonic() - start
        upload.wait(second, stream=None, sync=True)
        assert [fakecuda.read(buffer) for buffer in later] == expected[:1]
    """,
        path,
        RUSTLOAD_RING="65536x40",
        FAKECUDA_DELAY=1000,
    )


def test_the_host_waits_for_events_by_queries(on_fake, path):
    """So events need no blocking synchronization, which would make them slower for streams."""
    on_fake(
        """
    load()
    assert fakecuda.count("cuEventSynchronize") == 0 < fakecuda.count("cuEventQuery")
    assert fakecuda.library().fakecuda_event_flags() == 2  # CU_EVENT_DISABLE_TIMING
    """,
        path,
        RUSTLOAD_RING="65536x6",
        FAKECUDA_DELAY=2000,
    )


def test_a_dropped_upload_lets_its_threads_call_python(on_fake, path):
    """The drop waits for threads that are inside a source of Python's, and they need the interpreter to get on."""
    on_fake(
        """
    import faulthandler, gc
    faulthandler.dump_traceback_later(30, exit=True)
    whole = Path(sys.argv[1]).read_bytes()

    class Source(rustload.Ranges):
        size, name = len(whole), "memory"
        reading, collects = 0, False

        def read_ranges(self, ranges):
            self.reading += 1
            time.sleep(0.1)
            if self.collects:
                gc.collect()
            return [memoryview(whole)[start : start + length] for start, length in ranges]

    def wait_for_reads(source):
        before = source.reading
        while source.reading == before:
            time.sleep(0.001)

    for collects in (False, True):
        source = Source()
        tensors = list(rustload.open(source).values())
        upload = _rustload.upload(0, window=1 << 28, threads=2)
        into = [upload.allocate(tensor.nbytes) for tensor in tensors]
        fakecuda.submit(upload, tensors, Request(), into)
        wait_for_reads(source)
        # The garbage collector may also run on such a thread, and drop there what the thread works for.
        gc.disable()
        source.collects = collects
        cycle = [upload]
        if collects:
            cycle.append(cycle)
        del upload, cycle, into
        for _ in range(200):
            if not fakecuda.count("memory"):
                break
            time.sleep(0.05)
        assert fakecuda.count("memory") == fakecuda.count("stray") == 0
        gc.enable()
    """,
        path,
        RUSTLOAD_RING="65536x6",
        FAKECUDA_DELAY=300,
    )


@pytest.mark.parametrize("stored", [True, False])
def test_a_closed_upload_stops_a_source_that_waits(on_fake, path, stored):
    """Also while an inflated storage is read, when jobs are planned."""
    if not stored:
        path.write_bytes(deflated(path.read_bytes()))
    on_fake(
        """
    whole = Path(sys.argv[1]).read_bytes()
    reading = threading.Event()

    class Source(rustload.Ranges):
        size, name = len(whole), "memory"
        stalls = False

        def read_ranges(self, ranges):
            end = time.monotonic() + 20
            while self.stalls and not _rustload.is_cancelled():
                reading.set()
                if time.monotonic() > end:
                    os._exit(3)
                time.sleep(0.001)
            return [memoryview(whole)[start : start + length] for start, length in ranges]

    source = Source()
    tensors = list(rustload.open(source).values())
    source.stalls = True
    upload = _rustload.upload(0, window=1 << 28, threads=2)
    kept = fakecuda.submit(upload, tensors, Request(), [upload.allocate(tensor.nbytes) for tensor in tensors])
    assert reading.wait(20)
    upload.close()
    """,
        path,
        RUSTLOAD_RING="65536x6",
    )


def test_work_that_is_left_without_a_thread_is_done_by_the_thread_that_waits(on_fake, save, tmp_path):
    """If the threads were ended with work left, and the system refuses new ones."""
    source, library = tmp_path / "refuse.c", tmp_path / "refuse.so"
    source.write_text("""
        #define _GNU_SOURCE
        #include <dlfcn.h>
        #include <errno.h>
        #include <pthread.h>
        int refuse = 0;
        int pthread_create(pthread_t *thread, const pthread_attr_t *how, void *(*run)(void *), void *with) {
            int (*create)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *) = dlsym(RTLD_NEXT, "pthread_create");
            return refuse ? EAGAIN : create(thread, how, run, with);
        }
    """)
    compiler = os.environ.get("CC", "cc")
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"], check=True)
    path = save({f"w{number}": patterns("float32", (200, 300), seed=number) for number in range(30)})
    on_fake(
        """
    import ctypes, faulthandler
    faulthandler.dump_traceback_later(30, exit=True)
    upload = _rustload.upload(0, window=1 << 28, threads=2)
    ticket, into = fakecuda.submit(upload, tensors, Request(), slab=False)
    _rustload.end_upload_workers()
    ctypes.c_int.in_dll(ctypes.CDLL(sys.argv[2]), "refuse").value = 1
    upload.wait(ticket, stream=None, sync=True)
    assert not threads()
    assert [fakecuda.read(buffer) for buffer in into] == expected
    upload.close()
    """,
        path,
        library,
        RUSTLOAD_RING="65536x6",
        FAKECUDA_DELAY=3000,
        LD_PRELOAD=library,
    )
