"""Controls and queries of the fake driver, for child processes that run on it; see tests/data/fakecuda/fakecuda.c."""

import ctypes
import functools
import os
from collections.abc import Iterator, Sequence

import rustload
from rustload import _rustload
from rustload._common.request import Request

TAG = 1 << 60


@functools.cache
def library() -> ctypes.CDLL:
    """The fake driver."""
    found = ctypes.CDLL(os.environ["RUSTLOAD_LIBCUDA"])
    found.fakecuda_count.restype = ctypes.c_long
    found.fakecuda_function.restype = ctypes.c_char_p
    return found


def count(what: str) -> int:
    """The number of live objects or events of a kind, or of calls of a driver function."""
    return int(library().fakecuda_count(what.encode()))


def alive() -> dict[str, int]:
    """The numbers of objects that were created and not destroyed."""
    return {what: count(what) for what in ("memory", "streams", "events", "registered", "contexts")}


def functions() -> Iterator[str]:
    """The names of all functions that can be made to fail."""
    number = 0
    while name := library().fakecuda_function(number):
        yield name.decode()
        number += 1


def fail(name: str, nth: int = 1) -> None:
    """Makes the nth call from now fail, once; 0 for none."""
    library().fakecuda_fail(name.encode(), ctypes.c_long(nth))


def delay(microseconds: int) -> None:
    """Each copy takes up to that long."""
    library().fakecuda_delay(ctypes.c_long(microseconds))


def free_memory(nbytes: int) -> None:
    """The driver says that so many bytes of a GPU are free."""
    library().fakecuda_free_memory(ctypes.c_long(nbytes))


def hold_frees(held: bool = True) -> None:
    """Freeing memory waits, as for work of the GPU, until it is no longer held."""
    library().fakecuda_hold_frees(int(held))


def ignore_events(ignored: bool = True) -> None:
    """Waiting for an event on the host returns at once."""
    library().fakecuda_ignore_events(int(ignored))


def capture(stream: int | None) -> bool:
    """Begins to capture a stream in global mode, or ends the capture; returns whether the last one was disturbed."""
    return bool(library().fakecuda_capture(ctypes.c_void_p(stream)))


def check(code: int) -> None:
    assert code == 0, code


def enter(device: int = 0) -> None:
    """Makes the device's primary context current on this thread."""
    check(library().cuInit(0))
    context = ctypes.c_void_p()
    check(library().cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
    check(library().cuCtxSetCurrent(context))


def stream() -> int:
    """Creates a CUDA stream, as a caller would."""
    handle = ctypes.c_void_p()
    check(library().cuStreamCreate(ctypes.byref(handle), 0))
    assert handle.value
    return handle.value


def synchronize(stream: int) -> None:
    check(library().cuStreamSynchronize(ctypes.c_void_p(stream)))


def fill(stream: int, buffer: _rustload.Buffer, byte: int, microseconds: int) -> None:
    """Enqueues work on a stream that, after a delay, sets all bytes of a buffer."""
    address, size = address_and_size(buffer)
    check(
        library().fakecuda_fill(
            ctypes.c_void_p(stream),
            ctypes.c_uint64(address),
            byte,
            ctypes.c_size_t(size),
            ctypes.c_long(microseconds),
        )
    )


class Snapshot:
    """The bytes of a buffer as a read enqueued on a stream sees them."""

    def __init__(self, stream: int, buffer: _rustload.Buffer) -> None:
        address, size = address_and_size(buffer)
        self._bytes = (ctypes.c_char * size)()
        self._stream = stream
        where = ctypes.c_uint64(address)
        check(library().fakecuda_snapshot(ctypes.c_void_p(stream), self._bytes, where, ctypes.c_size_t(size)))

    def bytes(self) -> bytes:
        synchronize(self._stream)
        return self._bytes.raw


class _Tensor(ctypes.Structure):
    """The first fields of `DLTensor`."""

    _fields_ = (
        ("data", ctypes.c_uint64),
        ("kind", ctypes.c_int32),
        ("id", ctypes.c_int32),
    )


def address_and_size(buffer: _rustload.Buffer) -> tuple[int, int]:
    """A buffer's device address and size in bytes."""
    capsule = buffer.__dlpack__()
    api = ctypes.pythonapi
    api.PyCapsule_GetPointer.restype = ctypes.c_void_p
    api.PyCapsule_GetPointer.argtypes = (ctypes.py_object, ctypes.c_char_p)
    tensor = _Tensor.from_address(api.PyCapsule_GetPointer(capsule, b"dltensor"))
    assert tensor.kind in (2, 10)
    return tensor.data, buffer.nbytes


def read(buffer: _rustload.Buffer) -> bytes:
    """The bytes on the device now, without waiting for any stream."""
    address, size = address_and_size(buffer)
    if not size:
        return b""
    return ctypes.string_at(address & ~TAG, size)


def expected(tensor: rustload.LazyTensor, wanted: Request) -> bytes:
    """The bytes of the CPU's result."""
    return tensor._core.materialize(_owned(wanted)).tobytes()


def _owned(wanted: Request) -> Request:
    return wanted.but(copy=True)


def destinations(
    upload: _rustload.Upload,
    tensors: Sequence[rustload.LazyTensor],
    wanted: Sequence[Request],
    *,
    slab: bool = True,
) -> list[_rustload.Buffer]:
    """Memory for each result: parts of one allocation on multiples of 256 bytes, or allocations of their own."""
    sizes = []
    for tensor, want in zip(tensors, wanted, strict=True):
        sizes.append(tensor._core.materialize(_owned(want)).nbytes)
    if not slab:
        return [upload.allocate(size) for size in sizes]
    starts, end = [], 0
    for size in sizes:
        starts.append(end)
        end += -(-size // 256) * 256
    whole = upload.allocate(max(end, 1))
    return [whole.part(start, "uint8", [size]) for start, size in zip(starts, sizes, strict=True)]


def submit(
    upload: _rustload.Upload,
    tensors: Sequence[rustload.LazyTensor],
    wanted: Sequence[Request] | Request,
    into: Sequence[_rustload.Buffer] | None = None,
    *,
    stream: int | None = None,
    slab: bool = True,
) -> tuple[int, Sequence[_rustload.Buffer]]:
    """Submits tensors; returns the ticket and the destinations."""
    many = [wanted] * len(tensors) if isinstance(wanted, Request) else list(wanted)
    into = destinations(upload, tensors, many, slab=slab) if into is None else into
    pairs = [(tensor._core, want) for tensor, want in zip(tensors, many, strict=True)]
    return upload.submit(pairs, into, stream=stream), into


__all__ = [
    "TAG",
    "Request",
    "Snapshot",
    "address_and_size",
    "alive",
    "capture",
    "count",
    "delay",
    "destinations",
    "enter",
    "expected",
    "fail",
    "fill",
    "functions",
    "hold_frees",
    "ignore_events",
    "library",
    "read",
    "rustload",
    "stream",
    "submit",
    "synchronize",
]
