"""torch without a GPU on the fake driver: its CUDA memory is host memory, at addresses that carry the fake driver's tag.

All of `rustload._cuda` runs as on a GPU, except for the few functions of `rustload._frameworks.torch_gpu` that are replaced
here. Conversions of the GPU run in torch on the CPU, after all earlier work of the stream.
"""

import ctypes
import gc
import mmap
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import fakecuda
import pytest
import torch
from dlpack_structs import DLManagedTensor

import rustload
from rustload import _rustload
from rustload._cuda import packed, split, uploads
from rustload._cuda.packed import Tile
from rustload._frameworks import torch_gpu
from rustload._rustload import Buffer

_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)

# DLPack tensors that rustload imported and has not deleted, by the address of their DLManagedTensor.
imported: dict[int, Any] = {}


@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def _delete(address: int) -> None:
    del imported[address]


def as_gpu_memory(row: torch.Tensor, device: int = 0) -> Buffer:
    """Imports 1-D host `uint8` memory as memory of the fake GPU."""
    shape = (ctypes.c_int64 * 1)(row.numel())
    managed = DLManagedTensor(deleter=ctypes.cast(_delete, ctypes.c_void_p))
    tensor = managed.dl_tensor
    tensor.data, tensor.device_type, tensor.device_id = row.data_ptr() | fakecuda.TAG, 2, device
    tensor.ndim, tensor.code, tensor.bits, tensor.lanes = 1, 1, 8, 1
    tensor.shape = ctypes.cast(shape, ctypes.POINTER(ctypes.c_int64))
    address = ctypes.addressof(managed)
    imported[address] = (row, shape, managed)
    return _rustload.adopt(_new_capsule(address, b"dltensor", None))


def as_host_memory(buffer: Buffer) -> torch.Tensor:
    """The bytes of a buffer of the fake GPU as a host tensor, which keeps the buffer alive."""
    address, nbytes = fakecuda.address_and_size(buffer)
    memory = (ctypes.c_ubyte * nbytes).from_address(address & ~fakecuda.TAG)
    memory.keeps = buffer  # type: ignore[attr-defined]
    return torch.frombuffer(memory, dtype=torch.uint8)


class StagingBuffer(torch_gpu.TorchStagingBuffer):
    """Converts once all earlier work of the stream is done."""

    def convert_into(self, start: int, dtype: str, shape: Sequence[int], target: torch.Tensor) -> None:
        HostGpu.conversions += 1
        fakecuda.synchronize(HostGpu.current)
        super().convert_into(start, dtype, shape, target)

    def decode_into(self, start: int, tile: Tile, target: torch.Tensor) -> None:
        HostGpu.decoded += 1
        fakecuda.synchronize(HostGpu.current)
        super().decode_into(start, tile, target)


class HostGpu(torch_gpu.TorchGpu):
    """The GPU."""

    # Bytes that are allocated now; the caller's stream; the numbers of conversions and of decoded tiles on the GPU; sizes of the
    # staging buffers; streams that were followed before the current one.
    alive = 0
    current = 0
    conversions = 0
    decoded = 0
    staging_buffers: list[int] = []  # noqa: RUF012 - shared by all instances
    left_streams: list[int] = []  # noqa: RUF012 - shared by all instances

    def __init__(self, index: int = 0) -> None:
        super().__init__(torch.device("cuda", index))
        self.device = torch.device("cpu")

    def current_stream(self) -> int:
        return HostGpu.current

    def follow_current_stream(self, held: Iterable[torch.Tensor]) -> None:
        fakecuda.enter(self.index)
        now = HostGpu.current
        if self._stream is not None and self._stream != now:
            assert all(isinstance(tensor, torch.Tensor) for tensor in held)
            fakecuda.synchronize(self._stream)
            HostGpu.left_streams.append(self._stream)
        self._stream = now

    def synchronize(self) -> None:
        fakecuda.enter(self.index)
        fakecuda.synchronize(HostGpu.current)

    def new(self, shape: Sequence[int], dtype: str, _upload: Any) -> tuple[torch.Tensor, Buffer]:
        kind = getattr(torch, dtype)
        count = torch.Size(shape).numel()
        # Page-aligned, as GPU memory is aligned too; the fill pattern shows bytes that were not copied.
        memory = mmap.mmap(-1, count * kind.itemsize)
        memory.write(b"\xa5" * len(memory))
        HostGpu.alive += len(memory)
        weakref.finalize(memory, HostGpu._free, len(memory))
        tensor = torch.frombuffer(memory, dtype=kind).view(tuple(shape))
        return tensor, self.byte_view(tensor)

    @staticmethod
    def _free(nbytes: int) -> None:
        HostGpu.alive -= nbytes

    def staging_buffer(self, nbytes: int) -> StagingBuffer:
        HostGpu.staging_buffers.append(nbytes)
        return StagingBuffer(*self.new([nbytes], "uint8", None))

    def byte_view(self, tensor: torch.Tensor) -> Buffer:
        return as_gpu_memory(tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8), self.index)

    def wrap(self, buffer: Buffer) -> torch.Tensor:
        row = as_host_memory(buffer)
        tensor = torch.empty(0, dtype=getattr(torch, buffer.dtype))
        return tensor.set_(row.untyped_storage(), 0, buffer.shape, buffer.strides)


def install(patch: pytest.MonkeyPatch) -> None:
    """Makes "cuda" the fake GPU for torch, until the patch is undone. `out=` takes CPU memory for the GPU's."""
    from rustload._frameworks import torch as adapter

    assert rustload.cuda_info()["available"]  # which loads the driver
    fakecuda.enter()
    HostGpu.current, HostGpu.conversions, HostGpu.decoded = 0, 0, 0
    HostGpu.staging_buffers, HostGpu.left_streams = [], []
    numbered = lambda device: torch.device("cuda", device.index or 0)  # noqa: E731
    patch.setattr(torch_gpu, "checked", numbered)
    patch.setattr(adapter, "gpu_for", lambda device: None if device is None else HostGpu(device.index or 0))


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The GPU, for every test of a process with this plugin; fails on leaked memory and stray copies."""
    install(monkeypatch)
    yield
    gc.collect()
    assert not imported
    assert HostGpu.alive == 0
    assert fakecuda.count("memory") == fakecuda.count("stray") == 0


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Staging buffers, batches and slabs so small that every result takes many of them, and the GPU does every cast."""
    monkeypatch.setattr(packed, "TILE_ELEMENTS", 2 << 10)
    monkeypatch.setattr(split, "STAGING_BYTES", 4 << 10)
    monkeypatch.setattr(uploads, "STAGING_BYTES", 4 << 10)
    monkeypatch.setattr(uploads, "_BATCH_BYTES", 16 << 10)
    monkeypatch.setattr(split, "_CPU_CAST_MIN_BYTES", 0)
    monkeypatch.setattr(split, "_cast_rate", lambda *_: 0.0)
