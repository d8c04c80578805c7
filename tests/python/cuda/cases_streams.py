"""Many tensors on a GPU, on the fake driver: order, CUDA streams, memory, closing and errors."""

import contextlib
import gc
import importlib
import os
import re
import sys
import threading
import types
from typing import Any

import fakecuda
import hostgpu
import pytest
import torch
from hostgpu import HostGpu
from support import assert_same_bits, assert_same_values

import rustload
from rustload._common.request import Request
from rustload._cuda import uploads
from rustload._cuda.driver_gpu import DriverGpu
from rustload._cuda.results import CudaProducer
from rustload._cuda.slabs import TAKEN_RESULTS
from rustload._cuda.upload_task import UploadTask

MIB = 1 << 20


# Order and CUDA streams.


@pytest.mark.parametrize("how", [{}, {"dtype": "float64"}, {"transpose": True}])
def test_sync_false_is_ordered_with_the_callers_stream(save, how):
    lazy = rustload.open(save({"w": torch.randn(700, 600)}), framework="torch")["w"]
    expected = lazy.materialize(**how)
    fakecuda.delay(20_000)
    try:
        for stream in (0, fakecuda.stream()):
            HostGpu.current = stream
            found = lazy.materialize("cuda", sync=False, **how)
            fakecuda.synchronize(stream)
            assert_same_bits(found, expected)
            assert_same_bits(lazy.materialize("cuda", **how), expected)
    finally:
        fakecuda.delay(0)


def test_copies_wait_for_work_that_the_caller_enqueued(save):
    lazy = rustload.open(save({"w": torch.randn(100, 100)}), framework="torch")["w"]
    out = torch.zeros(100, 100)
    HostGpu.current = fakecuda.stream()
    fakecuda.fill(HostGpu.current, hostgpu.as_gpu_memory(out.view(-1).view(torch.uint8)), 7, 30_000)
    lazy.materialize(out=out)
    assert_same_bits(out, lazy.materialize())


def test_a_stream_follows_the_callers_current_cuda_stream(save):
    state = {f"{n}": torch.randn(300, 300 + n) for n in range(12)}
    ckpt = rustload.open(save(state), framework="torch")
    fakecuda.delay(3000)
    try:
        streams = [fakecuda.stream(), fakecuda.stream()]
        with ckpt.stream(device="cuda", transpose={"*": True}, sync=False, memory="1MiB") as found:
            HostGpu.current = streams[0]
            for number, (name, tensor) in enumerate(found):
                fakecuda.synchronize(HostGpu.current)
                assert_same_bits(tensor, state[name].T.contiguous())
                HostGpu.current = streams[number // 4 % 2]
    finally:
        fakecuda.delay(0)
    assert set(HostGpu.left_streams) == set(streams)


@pytest.mark.parametrize("how", [{}, {"dtype": "float64"}])
def test_results_that_are_left_of_a_batch_follow_the_callers_stream_too(save, monkeypatch, how):
    """All results are made by one batch, for the stream that was current then."""
    state = {f"{n}": torch.randn(50, 30 + n) for n in range(12)}
    state["tied"] = state["0"]
    ckpt = rustload.open(save(state), framework="torch")
    held: list[set[int]] = []
    follow = HostGpu.follow_current_stream

    def record(gpu: HostGpu, tensors: Any) -> None:
        tensors = list(tensors)
        held.append({tensor.data_ptr() for tensor in tensors})
        follow(gpu, tensors)

    monkeypatch.setattr(HostGpu, "follow_current_stream", record)
    first, second = fakecuda.stream(), fakecuda.stream()
    HostGpu.current = first
    busy = torch.zeros(8, dtype=torch.uint8)
    fakecuda.fill(first, hostgpu.as_gpu_memory(busy), 1, 300_000)
    with ckpt.stream(device="cuda", sync=False, order="given", **how) as found:
        _, one = next(found)
        HostGpu.current = second
        rest = dict(found)
        fakecuda.synchronize(second)
        for name, tensor in rest.items():
            assert_same_bits(tensor, state[name].to(tensor.dtype))
    assert len(rest) == 12
    assert rest["tied"] is one
    # Once, and the memory of all results is recorded on the second stream: 13 results lie in one slab.
    assert HostGpu.left_streams == [first]
    assert one.data_ptr() in held[2]
    assert held[3:] == [set()] * len(held[3:])


def test_results_under_cupy_are_complete_with_sync(save, monkeypatch):
    """With CuPy's streams, and memory of the driver in place of that of CuPy's pool."""
    stream = fakecuda.stream()
    now = types.SimpleNamespace(
        ptr=stream, is_capturing=lambda: False, synchronize=lambda: fakecuda.synchronize(stream)
    )
    fake: Any = types.ModuleType("cupy")
    fake.cuda = types.SimpleNamespace(get_current_stream=lambda: now)
    fake.ndarray = object
    monkeypatch.setitem(sys.modules, "cupy", fake)
    monkeypatch.delitem(sys.modules, "rustload._frameworks.cupy", raising=False)
    cupy = importlib.import_module("rustload._frameworks.cupy")
    monkeypatch.delitem(sys.modules, "rustload._frameworks.cupy")
    for name in ("new", "empty", "wrap", "byte_view"):
        monkeypatch.setattr(cupy._CupyGpu, name, getattr(DriverGpu, name))

    class Device(contextlib.nullcontext[None]):
        id = 0

    state = {f"{n}": torch.randn(50, 30 + n) for n in range(12)}
    ckpt = rustload.open(save(state), framework="torch")
    cores = [lazy._core for lazy in ckpt.values()]
    busy = torch.zeros(8, dtype=torch.uint8)
    for kept in (True, False):
        fakecuda.fill(stream, hostgpu.as_gpu_memory(busy), 1, 100_000)
        producer = CudaProducer(
            cores,
            [Request(copy=True)] * len(cores),
            cupy._CupyGpu(Device()),
            on_meta=lambda index: index,
            by_file=False,
            cast="auto",
            sync=True,
            window=None,
            threads=None,
            results_kept=kept,
        )
        found = producer.next(many=True)
        assert [fakecuda.read(buffer) for buffer in found] == [
            tensor.numpy().tobytes() for tensor in state.values()
        ]
        producer.close()


@pytest.mark.parametrize(
    ("order", "how", "memory"),
    [
        ("file", {}, "1MiB"),
        ("name", {"dtype": "float32"}, "256MiB"),
        ("name", {"dtype": "float16", "transpose": {"layer.*.weight": True}}, "256MiB"),
        ("given", {"dtype": "float16", "transpose": {"layer.*.weight": True}}, "1MiB"),
    ],
)
def test_a_stream_yields_what_it_yields_on_the_cpu(many, order, how, memory):
    ckpt = rustload.open(many[0], framework="torch")
    fakecuda.delay(100)
    copies = fakecuda.count("copies")
    done: list[int] = []
    on_host = list(ckpt.stream(order=order, copy=True, **how))
    with ckpt.stream(
        device="cuda", order=order, memory=memory, progress=lambda *now: done.append(now[0]), **how
    ) as found:
        assert found.names == [name for name, _ in on_host]
        on_gpu = list(found)
    fakecuda.delay(0)
    for (gpu_name, on_gpu_tensor), (host_name, on_host_tensor) in zip(on_gpu, on_host, strict=True):
        assert gpu_name == host_name
        assert_same_values(on_gpu_tensor, on_host_tensor)
    by_name = dict(on_gpu)
    assert by_name["large"] is by_name["tied"] is by_name["last"]
    # Names of one tensor count once.
    assert done[-1] == sum({id(by_name[name]): tensor.nbytes for name, tensor in ckpt.items()}.values())
    # 320 small tensors take few copies.
    assert fakecuda.count("copies") - copies < (400 if memory == "1MiB" else 200)


@pytest.mark.parametrize("sync", [True, False])
def test_materialize_uploads_a_whole_checkpoint(many, sync):
    ckpt = rustload.open(many[0], framework="torch")
    fakecuda.delay(500)
    found = ckpt.materialize(device="cuda", dtype="float16", sync=sync)
    if not sync:
        fakecuda.synchronize(0)
    fakecuda.delay(0)
    assert list(found) == list(ckpt)
    assert found["large"] is found["last"]
    for name, tensor in found.items():
        assert_same_values(tensor, ckpt[name].materialize(dtype=tensor.dtype, copy=True))


def test_results_ahead_of_the_consumer_fit_the_window(save):
    ckpt = rustload.open(
        save({f"{n}": torch.full((256, 1024), float(n)) for n in range(14)}), framework="torch"
    )
    for how in ({}, {"transpose": {"*": True}}):
        peak = 0
        with ckpt.stream(device="cuda", memory="6MiB", **how) as found:
            for number, (_, tensor) in enumerate(found):
                assert tensor.flatten()[0] == number
                del tensor
                peak = max(peak, HostGpu.alive - sum(HostGpu.staging_buffers))
        HostGpu.staging_buffers.clear()
        assert 2 * MIB < peak <= 7 * MIB


def test_small_results_share_a_slab_that_is_freed_with_the_last_of_them(save):
    ckpt = rustload.open(save({f"{n}": torch.full((5,), float(n)) for n in range(1000)}), framework="torch")
    copies = fakecuda.count("copies")
    found = ckpt.materialize(device="cuda")
    assert fakecuda.count("copies") - copies < 10
    assert len(hostgpu.imported) == 1
    # As large as needed, each result at a multiple of 256 bytes.
    assert HostGpu.alive == 1000 * 256
    assert len({tensor.untyped_storage().data_ptr() for tensor in found.values()}) == 1000
    assert all(tensor.data_ptr() % 256 == 0 for tensor in found.values())
    assert all(tensor.untyped_storage().nbytes() == 20 for tensor in found.values())
    kept = found["77"]
    del found
    gc.collect()
    assert len(hostgpu.imported) == 1
    assert kept.tolist() == [77.0] * 5


def test_kept_results_share_larger_slabs_than_those_of_a_stream(save):
    state = {f"{n:02}": torch.full((256, 256 + n), float(n)) for n in range(40)}  # of about 256 KiB
    ckpt = rustload.open(save(state), framework="torch")
    # Slabs are what is imported: results with memory of their own are torch's.
    for load, slabs in (
        (lambda: ckpt.materialize(device="cuda"), 2),
        # Only the first one is small enough.
        (lambda: dict(ckpt.stream(device="cuda")), 1),
    ):
        found = load()
        assert len(hostgpu.imported) == slabs
        for name, tensor in found.items():
            assert_same_bits(tensor, state[name])
        del tensor, found
        gc.collect()
        assert not hostgpu.imported
    large = {f"{n}": torch.full((1 << 18,), float(n)) for n in range(3)} | {"l": torch.ones((1 << 18) + 1)}
    found = rustload.open(save(large), framework="torch").materialize(device="cuda")
    # A slab of three times 1 MiB, and an allocation.
    assert HostGpu.alive == 4 * MIB + 4
    assert all(torch.equal(tensor, large[name]) for name, tensor in found.items())


def test_results_that_the_cpu_narrows_share_slabs_too(save):
    state = {f"{n}": torch.randn(100 + n) for n in range(50)} | {
        "int": torch.arange(9),
        "m": torch.randn(3, 5).T,
    }
    ckpt = rustload.open(save(state), framework="torch")
    copies = fakecuda.count("copies")
    found = ckpt.materialize(device="cuda", dtype="float16")
    assert fakecuda.count("copies") - copies < 4
    for name, tensor in state.items():
        assert_same_bits(found[name], tensor.half() if tensor.is_floating_point() else tensor)


def test_a_single_small_result_has_memory_of_its_own(save):
    ckpt = rustload.open(save({f"{n}": torch.full((5,), float(n)) for n in range(50)}), framework="torch")
    found = [lazy.materialize("cuda") for lazy in ckpt.values()]
    assert HostGpu.alive == 50 * 20
    assert [tensor.tolist() for tensor in found] == [[float(n)] * 5 for n in range(50)]


def test_a_slab_is_recorded_on_each_stream_that_its_parts_are_used_on(save, monkeypatch):
    ckpt = rustload.open(save({f"{n}": torch.full((5,), float(n)) for n in range(3)}), framework="torch")
    held_of: dict[int, set[int]] = {}
    follow = HostGpu.follow_current_stream

    def record(gpu: HostGpu, held: Any) -> None:
        held = list(held)
        held_of.setdefault(HostGpu.current, set()).update(tensor.data_ptr() for tensor in held)
        follow(gpu, held)

    monkeypatch.setattr(HostGpu, "follow_current_stream", record)
    first, second = fakecuda.stream(), fakecuda.stream()
    HostGpu.current = first
    tasks = [UploadTask(lazy._core, Request(copy=True), nbytes=20) for lazy in ckpt.values()]
    # One result at a time, so nothing but the slab is left when the stream changes.
    with uploads.UploadQueue(HostGpu(), cast="auto", window=1, threads=1, slabs=TAKEN_RESULTS) as queue:
        queue.start(tasks, sync=False)
        slab = queue.next_batch()[0].owner
        HostGpu.current = second
        later = [task for batch in iter(queue.next_batch, []) for task in batch]
    for stream in (first, second):
        fakecuda.synchronize(stream)
    assert len(later) == 2
    assert all(task.owner is slab for task in later)
    assert slab.data_ptr() in held_of[second]


def test_a_capturing_stream_is_refused_before_the_driver_is_called(save, monkeypatch):
    lazy = rustload.open(save({"w": torch.ones(5)}), framework="torch")["w"]

    def capturing(_gpu: HostGpu, _held: Any) -> None:
        raise rustload.DeviceError("the current stream is capturing a CUDA graph")

    monkeypatch.setattr(HostGpu, "follow_current_stream", capturing)
    names = list(fakecuda.functions())
    before = [fakecuda.count(name) for name in names]
    with pytest.raises(rustload.DeviceError, match="capturing"):
        lazy.materialize("cuda")
    assert [fakecuda.count(name) for name in names] == before


def test_a_dropped_stream_leaves_no_copy_in_flight(many):
    ckpt = rustload.open(many[0], framework="torch")
    fakecuda.delay(5000)
    try:
        for how in ({}, {"dtype": "float64"}):
            found = ckpt.stream(device="cuda", memory="1MiB", **how)
            next(found)
            del found
            gc.collect()
            assert not hostgpu.imported
            assert HostGpu.alive == 0
        assert fakecuda.count("stray") == 0
    finally:
        fakecuda.delay(0)


def test_another_thread_may_close_a_stream(many):
    found = rustload.open(many[0], framework="torch").stream(device="cuda", memory="1MiB")
    next(found)
    fakecuda.delay(100_000)
    closer = threading.Timer(0.05, found.close)
    closer.start()
    rest = list(found)
    closer.join()
    fakecuda.delay(0)
    assert len(rest) < 300
    del rest


@pytest.mark.parametrize("how", [{}, {"dtype": "float64"}, {"transpose": {"*": True}}])
def test_an_error_names_its_tensor(save, how):
    path = save({f"t{n}": torch.randn(300, 300) for n in range(20)}, "model.safetensors")
    ckpt = rustload.open(path, framework="torch")
    os.truncate(path, path.stat().st_size - 1000)
    kept: list[Any] = []
    with pytest.raises(rustload.FormatError) as caught:
        kept.extend(ckpt.stream(device="cuda", memory="1MiB", **how))
    assert re.search(r"\bt\d+\b", str(caught.value) + "".join(caught.value.__notes__))
    with pytest.raises(rustload.FormatError):
        ckpt.materialize(device="cuda", **how)
    with pytest.raises(rustload.FormatError):
        ckpt["t9"].materialize("cuda")
    del kept, caught


def test_a_driver_call_that_fails_during_a_load_is_a_device_error(many):
    ckpt = rustload.open(many[0], framework="torch")
    for name in ("cuMemcpyHtoDAsync_v2", "cuEventRecord", "cuStreamWaitEvent"):
        fakecuda.fail(name, 1)
        with pytest.raises(rustload.DeviceError, match="CUDA_ERROR"):
            ckpt.materialize(device="cuda", dtype="float64")
        fakecuda.fail(name, 0)
        gc.collect()
        assert not hostgpu.imported
    assert len(ckpt.materialize(device="cuda")) == len(ckpt)


def test_a_missing_device_is_a_device_error(simple):
    with pytest.raises(rustload.DeviceError):
        rustload.open(simple, framework="torch")["w"].materialize("cuda:3")
    found = rustload.open(simple, framework="torch").stream(device="cuda:3")
    with pytest.raises(rustload.DeviceError):
        next(found)
