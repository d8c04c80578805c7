"""The other interfaces on a GPU, on the fake driver: `load_into`, `torch.load`, `safe_open`, state dicts, JAX."""

import io
import os
from typing import Any

import fakecuda
import numpy as np
import pytest
import torch
from hostgpu import HostGpu
from support import DTYPES, assert_same_bits, bits, child, patterns

import rustload
import rustload.torch
from rustload._cuda import results, split
from rustload._frameworks.numpy import numpy_dtype
from rustload.torch import _locations


def model(seed: int = 0) -> torch.nn.Module:
    torch.manual_seed(seed)
    layers = [
        torch.nn.Linear(40, 50),
        torch.nn.BatchNorm1d(50),
        torch.nn.Linear(50, 40),
        torch.nn.Linear(40, 50),
    ]
    module = torch.nn.Sequential(*layers)
    module[3].weight = module[0].weight
    return module


def assert_same_state(
    found: torch.nn.Module, expected: torch.nn.Module, dtype: torch.dtype | None = None
) -> None:
    for name, tensor in expected.state_dict().items():
        wanted = tensor if dtype is None or not tensor.is_floating_point() else tensor.to(dtype)
        assert_same_bits(found.state_dict()[name], wanted)


def count_upload_queues(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list with an element for each upload queue that is created."""
    counted: list[int] = []

    class Counted(results.UploadQueue):
        def __init__(self, *args: Any, **options: Any) -> None:
            counted.append(1)
            super().__init__(*args, **options)

    monkeypatch.setattr(results, "UploadQueue", Counted)
    return counted


@pytest.mark.parametrize(
    "how", [{"device": "cuda"}, {"device_map": {"": 0}}, {"device_map": {"0": 0, "": "cuda:0"}}]
)
@pytest.mark.parametrize("dtype", [None, "bfloat16", "float64"])
def test_load_into_fills_a_meta_model_on_the_gpu(save, how, dtype):
    saved = model()
    with torch.device("meta"):
        target = model()
    fakecuda.delay(500)
    report = rustload.torch.load_into(target, save(saved.state_dict()), dtype=dtype, **how)
    fakecuda.delay(0)
    assert_same_state(target, saved, None if dtype is None else getattr(torch, dtype))
    assert target[3].weight is target[0].weight
    assert not report.missing


@pytest.mark.parametrize("allocated", [False, True])
def test_load_into_casts_where_cast_says(save, monkeypatch, allocated):
    saved = model()
    wide = save(saved.state_dict(), "wide.pt")
    narrow = save(model().bfloat16().state_dict(), "narrow.pt")
    monkeypatch.setattr(split, "_CPU_CAST_MIN_BYTES", 0)
    monkeypatch.setattr(split, "_cast_rate", lambda *_: 1e18)
    for cast, narrowed, widened in (("cpu", 0, 0), ("gpu", 1, 1), ("auto", 0, 1)):
        for source, dtype, on_gpu in ((wide, "bfloat16", narrowed), (narrow, None, widened)):
            with torch.device("cpu" if allocated else "meta"):
                target = model(seed=1)
            if allocated:
                target.to(torch.bfloat16 if dtype else torch.float32)
            HostGpu.conversions = 0
            rustload.torch.load_into(
                target, source, device=None if allocated else "cuda", dtype=dtype, cast=cast
            )
            assert (HostGpu.conversions > 0) == bool(on_gpu), (cast, dtype)
            for name, tensor in target.state_dict().items():
                if tensor.is_floating_point():
                    expected = saved.state_dict()[name].bfloat16()
                    assert_same_bits(tensor, expected if dtype else expected.float())
    with pytest.raises(ValueError, match="cast= is"):
        rustload.torch.load_into(model(), wide, cast="host")


@pytest.mark.parametrize("assign", ["auto", True])
def test_load_into_fills_an_allocated_model_on_the_gpu(save, assign, monkeypatch):
    saved, target = model(), model(seed=1)
    # A weight with gaps between its columns, as slices of a fused tensor have, and a strided bias.
    target[2].weight.data = torch.zeros(40, 100)[:, ::2]
    target[0].bias.data = torch.zeros(100)[::2]
    before = {name: tensor.data_ptr() for name, tensor in target.state_dict().items()}
    counted = count_upload_queues(monkeypatch)
    fakecuda.delay(500)
    rustload.torch.load_into(target, save(saved.state_dict()), assign=assign)
    fakecuda.delay(0)
    assert_same_state(target, saved)
    after = {name: tensor.data_ptr() for name, tensor in target.state_dict().items()}
    assert (before == after) == (assign == "auto")
    assert len(counted) == 1, "all tensors go through one queue"


@pytest.mark.parametrize("allocated", [False, True])
def test_load_into_fills_several_gpus_at_once(save, monkeypatch, allocated):
    monkeypatch.setenv("FAKECUDA_DEVICES", "2")
    fakecuda.enter()  # the fake driver reads it again
    saved = torch.nn.Sequential(*(torch.nn.Linear(300, 200) for _ in range(6)))
    with torch.device("meta"):
        target = torch.nn.Sequential(*(torch.nn.Linear(300, 200) for _ in range(6)))
    if allocated:
        target[2:].to_empty(device="cpu")
    queues: list[tuple[str, int, int | None]] = []

    class Recorded(results.UploadQueue):
        def __init__(self, gpu: Any, **options: Any) -> None:
            queues.append(("open", gpu.index, options["threads"]))
            super().__init__(gpu, **options)

        def close(self) -> None:
            queues.append(("close", self._gpu.index, None))
            super().close()

    monkeypatch.setattr(results, "UploadQueue", Recorded)
    memory: list[int] = []
    new = HostGpu.new
    monkeypatch.setattr(HostGpu, "new", lambda gpu, *args: (memory.append(gpu.index), new(gpu, *args))[1])
    fakecuda.delay(500)
    device_map = {"": 0, "3": 1, "4": 1, "5": 1}
    rustload.torch.load_into(target, save(saved.state_dict()), device_map=device_map, memory="1MiB")
    fakecuda.delay(0)
    assert_same_state(target, saved)
    assert set(memory) == {0, 1}
    opened = [(what, index) for what, index, _ in queues]
    assert {opened[0], opened[1]} == {("open", 0), ("open", 1)}, "both read ahead before either is done"
    share = max(1, len(os.sched_getaffinity(0)) // 2)
    assert {threads for what, _, threads in queues if what == "open"} == {share if share < 16 else None}
    assert opened.count(("close", 0)) >= opened.count(("open", 0))
    assert opened.count(("close", 1)) >= opened.count(("open", 1))


def test_names_tied_in_the_file_fill_tensors_that_are_not(save):
    target = torch.nn.ParameterDict(
        {name: torch.nn.Parameter(torch.zeros(30, 30)) for name in ("a", "b", "c")}
    )
    shared = torch.randn(30, 30)
    rustload.torch.load_into(target, save({"a": shared, "b": shared, "c": torch.ones(30, 30)}))
    assert torch.equal(target["a"], shared)
    assert torch.equal(target["b"], shared)
    assert target["a"].data_ptr() != target["b"].data_ptr()


def test_load_into_from_a_truncated_file_is_a_format_error(save):
    path = save(model().state_dict())
    ckpt = rustload.open(path)
    os.truncate(path, path.stat().st_size // 2)
    with torch.device("meta"):
        target = model()
    with pytest.raises(rustload.FormatError, match="cut or changed"):
        rustload.torch.load_into(target, ckpt, device="cuda")


# torch.load


def state_of_every_kind() -> dict[str, Any]:
    whole = torch.randn(60, 50)
    state: dict[str, Any] = {name: patterns(name, (7, 9)) for name in DTYPES}
    state |= {"whole": whole, "view": whole[3:7, ::2], "turned": whole.T, "empty": torch.empty(0, 3)}
    state |= {"conjugate": torch.randn(4, 4, dtype=torch.complex64).conj(), "scalar": torch.tensor(3)}
    state["parameter"] = torch.nn.Parameter(torch.randn(3, 3))
    state["imaginary"] = torch.randn(8, dtype=torch.complex64).conj().imag
    return state


@pytest.mark.parametrize("where", ["cuda", "cuda:0", torch.device("cuda:0"), {"cpu": "cuda:0"}])
@pytest.mark.parametrize("zipped", [True, False])
def test_torch_load_returns_storages_on_the_gpu(save, where, zipped, monkeypatch):
    state = state_of_every_kind()
    if not zipped:
        # The legacy format has no storages of these dtypes: torch cannot read its own files of them.
        unread = ("uint1", "uint3", "uint6", "float8")
        state = {name: t for name, t in state.items() if not name.startswith(unread)}
    path = save(state, _use_new_zipfile_serialization=zipped)
    expected = torch.load(path, map_location="cpu")
    # torch itself moves storages that rustload does not upload, such as empty ones.
    monkeypatch.setattr(_locations, "_restore", lambda storage, _: storage)
    copies = fakecuda.count("copies")
    for source in (path, path.read_bytes(), io.BytesIO(path.read_bytes())):
        found = rustload.torch.load(source, map_location=where)
        for name, tensor in expected.items():
            loaded = found[name]
            assert (loaded.stride(), loaded.storage_offset()) == (tensor.stride(), tensor.storage_offset())
            assert (type(loaded), loaded.is_conj()) == (type(tensor), tensor.is_conj())
            assert_same_bits(loaded, tensor)
        assert found["view"].untyped_storage().data_ptr() == found["whole"].untyped_storage().data_ptr()
    # All storages but the empty one are uploaded, many in one copy; only a storage of conjugates alone is read on the host.
    assert fakecuda.count("copies") - copies >= 3


def test_torch_load_maps_the_location_of_each_storage(save, monkeypatch):
    counted = count_upload_queues(monkeypatch)
    path = save({"a": torch.randn(5), "b": torch.randn(6)})
    rustload.torch.load(path, map_location={"somewhere": "cuda:0"})
    rustload.torch.load(path, map_location="cpu")
    rustload.torch.load(path)
    assert not counted
    rustload.torch.load(path, map_location={"cpu": "cuda:0"})
    assert len(counted) == 1


def test_torch_load_with_a_failed_copy_is_a_device_error(save):
    path = save({"a": torch.randn(5000)})
    data = bytearray(path.read_bytes())
    fakecuda.fail("cuMemcpyHtoDAsync_v2", 1)
    with pytest.raises(rustload.DeviceError, match="CUDA_ERROR"):
        rustload.torch.load(data, map_location="cuda")
    fakecuda.fail("cuMemcpyHtoDAsync_v2", 0)


# safe_open


@pytest.mark.parametrize("name", ["model.safetensors", "model.bin"])
def test_safe_open_reads_onto_the_gpu(save, name, monkeypatch):
    state = {f"t{n}": torch.randn(30 + n, 20) for n in range(8)}
    counted = count_upload_queues(monkeypatch)
    with rustload.safe_open(save(state, name), "pt", device="cuda") as file:
        everything = file.get_tensors()
        assert len(counted) == 1
        for key, tensor in state.items():
            assert_same_bits(everything[key], tensor)
            assert_same_bits(file.get_tensor(key), tensor)
            part = file.get_slice(key)
            for index in (slice(2, 9), (..., 3), (4, slice(None, None, 2)), None, ()):
                assert_same_bits(part[index], tensor[index].contiguous())
            with pytest.raises(IndexError):
                part[99]
        with file.prefetch() as loader:
            assert_same_bits(loader.take("t3"), state["t3"])
            for key, tensor in loader:
                assert_same_bits(tensor, state[key])
        with file.prefetch({"t1": slice(0, 5), "t2": None}, device="cuda:0") as loader:
            assert_same_bits(loader.take("t2"), state["t2"])
            assert_same_bits(loader.take("t1"), state["t1"][:5])


def test_a_lazy_state_dict_reads_onto_the_gpu(save):
    source = model(seed=2)
    path = save(source.state_dict())
    state = rustload.torch.state_dict(path, device="cuda:0")
    for name, tensor in source.state_dict().items():
        assert_same_bits(state[name].tensor(), tensor)


# JAX


def test_jax_arrays_are_made_over_memory_of_the_driver(save, monkeypatch):
    jax = pytest.importorskip("jax")
    from rustload._frameworks import jax as adapter

    def from_dlpack(buffer: rustload.Buffer) -> Any:
        assert buffer.__dlpack_device__() == (2, 0)
        if buffer.dtype == "complex32":
            raise RuntimeError("UNIMPLEMENTED: Invalid or unsupported DLPack complex width: 32 bits")
        kind = numpy_dtype(buffer.dtype)
        return jax.numpy.asarray(np.frombuffer(fakecuda.read(buffer), kind).reshape(buffer.shape))

    monkeypatch.setattr(adapter, "gpu_for", lambda _: adapter._JaxGpu(0))
    monkeypatch.setattr(jax.dlpack, "from_dlpack", from_dlpack)
    state = {f"t{n}": torch.randn(n, 300) for n in range(20)} | {"c": patterns("complex32", (3,))}
    state |= {"wide": torch.ones(2, dtype=torch.float64), "none": torch.ones(0, dtype=torch.int64)}
    ckpt = rustload.open(save(state), framework="jax")
    for name, array in ckpt.stream([f"t{n}" for n in range(20)], dtype="bfloat16", transpose={"*": True}):
        expected = state[name].to(torch.bfloat16).T.contiguous()
        assert (array.dtype, array.shape) == (jax.numpy.bfloat16, tuple(expected.shape))
        assert np.asarray(array).tobytes() == bits(expected)
    with pytest.raises(rustload.UnsupportedError, match="JAX has no complex32"):
        ckpt["c"].materialize()
    for name in ("wide", "none"):
        with pytest.raises(rustload.UnsupportedError, match="32 bits"):
            ckpt[name].materialize()


def test_a_process_exits_cleanly_during_a_stream(save):
    path = save({f"t{n}": torch.randn(300, 300) for n in range(20)})
    code = """
        import sys
        import pytest, hostgpu, fakecuda, rustload
        patch = pytest.MonkeyPatch()
        hostgpu.install(patch)
        fakecuda.delay(3000)
        found = rustload.open(sys.argv[1], framework="torch").stream(device="cuda", dtype="float64", sync=False)
        kept = [next(found), next(found)]
        other = iter(rustload.open(sys.argv[1], framework="torch").stream(device="cuda"))
        next(other)
        if sys.argv[2] == "global":
            import builtins
            builtins.kept = found, other
    """
    for how in ("local", "global"):
        done = child(code, path, how, check=False)
        assert done.returncode == 0, done.stderr
