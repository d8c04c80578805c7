"""What `TorchGpu` asks of torch.cuda and CuPy, without a GPU: their functions are replaced one by one."""

import contextlib
import importlib
import sys
import types
from typing import Any

import pytest
import torch

import rustload
from rustload._frameworks import torch as adapter
from rustload._frameworks import torch_gpu


def test_a_child_that_torch_cannot_use_cuda_in_is_refused_with_the_reason(monkeypatch):
    """torch alone used CUDA before the fork, so the driver was not started by rustload."""
    monkeypatch.setattr(torch.cuda, "_is_in_bad_fork", lambda: True)
    # As there: the number of GPUs is cached from before the fork, or unknown.
    for available in (True, False):
        monkeypatch.setattr(torch.cuda, "is_available", lambda available=available: available)
        for work in (
            lambda: adapter.check_device("cuda"),
            lambda: adapter.check_device(0),
            lambda: adapter.gpu_for(torch.device("cuda:0")),
        ):
            with pytest.raises(rustload.DeviceError, match="forked") as caught:
                work()
            assert "spawn" in caught.value.__notes__[0]


def test_amd_gpus_are_torchs_alone_unless_the_library_of_hip_is_named(monkeypatch):
    monkeypatch.setattr(torch.version, "hip", "6.3")
    monkeypatch.delenv("RUSTLOAD_LIBCUDA", raising=False)
    assert adapter.gpu_for(torch.device("cuda:0")) is None
    monkeypatch.setenv("RUSTLOAD_LIBCUDA", "libamdhip64.so")
    found = adapter.gpu_for(torch.device("cuda:0"))
    assert found is not None
    assert found.index == 0


def test_memory_of_a_gpu_that_is_not_current_is_exported(monkeypatch):
    """`Tensor.__dlpack__` raises if the tensor's GPU is not the thread's current one."""

    def not_current(*_: Any, **__: Any) -> Any:
        raise BufferError("Can't export tensors on a different CUDA device index")

    monkeypatch.setattr(torch.Tensor, "__dlpack__", not_current)
    monkeypatch.setattr(torch_gpu._rustload, "adopt", torch._C._from_dlpack)
    tensor = torch.arange(12, dtype=torch.int16).reshape(3, 4)
    found: Any = torch_gpu.TorchGpu(torch.device("cuda", 1)).byte_view(tensor)
    assert (found.data_ptr(), found.shape, found.dtype) == (tensor.data_ptr(), (24,), torch.uint8)


class _Stream:
    def __init__(self, *, capturing: bool) -> None:
        self.cuda_stream = self.ptr = id(self)
        self._capturing = capturing

    def is_capturing(self) -> bool:
        return self._capturing


def test_a_capture_is_noticed_on_the_stream_of_the_gpu_and_before_anything_is_allocated(monkeypatch):
    """The current device of the thread is another one, whose stream does not capture."""
    current = [0]
    capturing = {0: False, 1: True}

    @contextlib.contextmanager
    def device(index: int) -> Any:
        current.append(index)
        yield
        current.pop()

    monkeypatch.setattr(torch.cuda, "device", device)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda index: _Stream(capturing=capturing[index]))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing[current[-1]])
    with pytest.raises(rustload.DeviceError, match="capturing a CUDA graph"):
        torch_gpu.TorchGpu(torch.device("cuda", 1)).follow_current_stream(())
    torch_gpu.TorchGpu(torch.device("cuda", 0)).follow_current_stream(())
    assert current == [0]


def test_cupy_does_not_allocate_while_its_stream_captures(monkeypatch):
    class Device:
        def __init__(self, index: int = 0) -> None:
            self.id = index

        def __enter__(self) -> None:
            pass

        def __exit__(self, *_: object) -> None:
            pass

    streams = [_Stream(capturing=True)]
    cuda = types.SimpleNamespace(Device=Device, get_current_stream=lambda: streams[0])
    fake: Any = types.ModuleType("cupy")
    fake.cuda, fake.ndarray = cuda, object
    monkeypatch.setitem(sys.modules, "cupy", fake)
    monkeypatch.delitem(sys.modules, "rustload._frameworks.cupy", raising=False)
    cupy = importlib.import_module("rustload._frameworks.cupy")
    monkeypatch.delitem(sys.modules, "rustload._frameworks.cupy")
    gpu = cupy._CupyGpu(Device(0))
    with pytest.raises(rustload.DeviceError, match="capturing a CUDA graph"):
        gpu.follow_current_stream(())
    streams[0] = _Stream(capturing=False)
    gpu.follow_current_stream(())
