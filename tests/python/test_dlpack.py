"""DLPack and the buffer protocol: what handles and Buffers export, and when it is freed."""

import ctypes
import hashlib
import struct
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from dlpack_structs import DLManagedTensor, DLManagedTensorVersioned
from support import DTYPES, assert_same_bits, bits, child, held_anon, patterns

import rustload
from rustload import _rustload

ctypes.pythonapi.PyCapsule_GetName.restype = ctypes.c_char_p
ctypes.pythonapi.PyCapsule_GetName.argtypes = [ctypes.py_object]
ctypes.pythonapi.PyCapsule_GetPointer.restype = ctypes.c_void_p
ctypes.pythonapi.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]

W = torch.arange(24, dtype=torch.float32).reshape(4, 6)


def name_of(capsule) -> bytes:
    return ctypes.pythonapi.PyCapsule_GetName(capsule)


def versioned(capsule) -> DLManagedTensorVersioned:
    assert name_of(capsule) == b"dltensor_versioned"
    found = DLManagedTensorVersioned.from_address(
        ctypes.pythonapi.PyCapsule_GetPointer(capsule, b"dltensor_versioned")
    )
    found.owner = capsule  # the structure lives as long as its capsule
    return found


class Wrapped:
    """A producer that returns a given capsule."""

    def __init__(self, capsule):
        self.capsule = capsule

    def __dlpack__(self, **_):
        return self.capsule

    def __dlpack_device__(self):
        return (1, 0)


@pytest.fixture
def lazy(simple):
    return rustload.open(simple, framework="dlpack")["w"]


@pytest.fixture(params=["handle", "view", "owned"])
def producer(request, lazy):
    return {
        "handle": lambda: lazy,
        "view": lazy.materialize,
        "owned": lambda: lazy.materialize(copy=True),
    }[request.param]()


# DLDataTypeCode of dlpack.h 1.1, bits.
CODES = {
    "bool": (6, 8), "uint8": (1, 8), "int8": (0, 8), "uint16": (1, 16), "int16": (0, 16), "uint32": (1, 32),
    "int32": (0, 32), "uint64": (1, 64), "int64": (0, 64), "float8_e4m3fn": (10, 8), "float8_e4m3fnuz": (11, 8),
    "float8_e5m2": (12, 8), "float8_e5m2fnuz": (13, 8), "float8_e8m0fnu": (14, 8), "float16": (2, 16),
    "bfloat16": (4, 16), "float32": (2, 32), "float64": (2, 64), "complex64": (5, 64), "complex128": (5, 128),
}  # fmt: skip


@pytest.mark.parametrize("name", DTYPES)
def test_the_dlpack_struct_describes_the_tensor(save, name):
    value = patterns(name, (3, 4, 5)).transpose(0, 2)[1:, ::2]
    capsule = rustload.open(save({"x": value}))["x"].__dlpack__(max_version=(1, 0))
    managed = versioned(capsule)
    tensor = managed.dl_tensor
    assert managed.major == 1
    assert (tensor.code, tensor.bits, tensor.lanes) == (*CODES[name], 1)
    assert (tensor.device_type, tensor.device_id) == (1, 0)
    assert tuple(tensor.shape[: tensor.ndim]) == tuple(value.shape)
    assert tuple(tensor.strides[: tensor.ndim]) == value.stride()
    assert managed.flags & 1 == 0, "a private mapping is writable"


def is_copied(exported) -> bool:
    return bool(versioned(exported).flags & 2)


def test_is_copied_is_set_if_the_consumer_is_the_sole_owner(lazy):
    """dlpack.h: a tensor with this flag is "considered solely owned throughout its lifetime by the consumer"."""
    version = {"max_version": (1, 0)}
    # A copy that a handle made belongs to the consumer alone; a view does not.
    assert is_copied(lazy.__dlpack__(copy=True, **version))
    assert not is_copied(lazy.__dlpack__(**version))
    # A Buffer can be exported again by its owner.
    buffer = lazy.materialize(copy=True)
    first, second = buffer.__dlpack__(**version), buffer.__dlpack__(**version)
    assert (is_copied(first), is_copied(second)) == (False, False)
    assert not is_copied(buffer.hand_over(**version)), "two exports are alive"
    assert not is_copied(buffer.part(0, "float32", (2,)).hand_over(**version))
    assert not is_copied(buffer.as_bytes().hand_over(**version))
    foreign = Foreign(8)
    assert not is_copied(_rustload.adopt(foreign.capsule()).hand_over(**version))


def test_two_consumers_of_one_buffer_share_its_memory(lazy):
    buffer = lazy.materialize(copy=True)
    tensor, array = torch.from_dlpack(buffer), np.from_dlpack(buffer)
    tensor[0, 0] = -5
    assert array[0, 0] == -5


@pytest.mark.parametrize("max_version", [(1, 0), (1, 1), (1, 3), (1, 99), (2, 0), (99, 0)])
def test_a_consumer_of_version_1_or_later_gets_the_versioned_struct(producer, max_version):
    managed = versioned(producer.__dlpack__(max_version=max_version))
    assert managed.major == 1


@pytest.mark.parametrize("max_version", [None, (0, 8), (0, 99)])
def test_other_consumers_get_the_legacy_struct(producer, max_version):
    capsule = producer.__dlpack__(max_version=max_version)
    assert name_of(capsule) == b"dltensor"
    managed = DLManagedTensor.from_address(ctypes.pythonapi.PyCapsule_GetPointer(capsule, b"dltensor"))
    assert tuple(managed.dl_tensor.shape[:2]) == (4, 6)
    assert tuple(managed.dl_tensor.strides[:2]) == (6, 1)


@pytest.mark.parametrize("max_version", [None, (1, 0)])
def test_torch_and_numpy_accept_both_structs(producer, max_version):
    for consume in (torch.from_dlpack, np.from_dlpack):
        found = consume(Wrapped(producer.__dlpack__(max_version=max_version)))
        np.testing.assert_array_equal(np.asarray(found), W.numpy())


def test_a_consumed_capsule_is_renamed_and_refused_a_second_time(producer):
    capsule = producer.__dlpack__(max_version=(1, 0))
    torch.from_dlpack(capsule)
    assert name_of(capsule) == b"used_dltensor_versioned"
    with pytest.raises(RuntimeError):
        torch.from_dlpack(capsule)


def test_the_device_is_the_cpu(producer):
    assert producer.__dlpack_device__() == (1, 0)


@pytest.mark.parametrize("options", [
    {"dl_device": (2, 0)}, {"dl_device": (1, 1)}, {"dl_device": (3, 0)}, {"stream": 1}, {"stream": 0}, {"stream": 2},
    {"stream": 140_000_000},
])  # fmt: skip
def test_another_device_or_a_stream_is_a_buffer_error(producer, options):
    with pytest.raises(BufferError):
        producer.__dlpack__(max_version=(1, 0), **options)


@pytest.mark.parametrize("options", [
    {}, {"stream": None}, {"stream": -1}, {"dl_device": (1, 0)}, {"dl_device": None}, {"copy": None}, {"copy": False},
    {"some_later_keyword": 5},
])  # fmt: skip
def test_ordinary_and_unknown_keywords_are_accepted(producer, options):
    assert_same_bits(torch.from_dlpack(Wrapped(producer.__dlpack__(max_version=(1, 0), **options))), W)


@pytest.mark.parametrize("options", [
    {"stream": "a"}, {"max_version": 1}, {"max_version": (1,)}, {"max_version": ("a", "b")}, {"dl_device": "cpu"},
    {"max_version": (-1, 0)}, {"stream": object()}, {"dl_device": (1,)}, {"copy": "yes"},
])  # fmt: skip
def test_keywords_of_a_wrong_type_are_refused(producer, options):
    with pytest.raises((BufferError, OverflowError, TypeError, ValueError)):
        producer.__dlpack__(**{"max_version": (1, 0), **options})


def test_copy_true_exports_memory_of_its_own(lazy):
    owned = torch.from_dlpack(Wrapped(lazy.__dlpack__(max_version=(1, 0), copy=True)))
    view = lazy.torch()
    view[0, 0] = 5
    assert owned[0, 0] == 0


@pytest.mark.parametrize("kind", ["view", "owned"])
def test_a_buffer_copies_on_request_or_raises_buffer_error(lazy, kind):
    """The protocol: `copy=True` demands a copy, and a producer that cannot copy raises BufferError."""
    buffer = lazy.materialize(copy=True if kind == "owned" else None)
    try:
        capsule = buffer.__dlpack__(max_version=(1, 0), copy=True)
    except BufferError:
        return
    found = torch.from_dlpack(Wrapped(capsule))
    found.zero_()
    assert np.asarray(buffer).any()


def test_copy_false_of_a_handle_without_a_view_is_a_buffer_error(simple):
    lazy = rustload.open(simple.read_bytes())["w"]
    with pytest.raises(BufferError):
        lazy.__dlpack__(max_version=(1, 0), copy=False)


@pytest.mark.parametrize("name", DTYPES)
def test_torch_accepts_every_dtype_from_a_handle(save, name):
    value = patterns(name, (5, 3)).t()
    lazy = rustload.open(save({"x": value, "empty": value[:, :0], "scalar": value[1, 2]}))
    for key, expected in (("x", value), ("empty", value[:, :0]), ("scalar", value[1, 2])):
        assert_same_bits(torch.from_dlpack(lazy[key]), expected)


@pytest.mark.parametrize("name", [name for name in DTYPES if not name.startswith(("bfloat", "float8"))])
def test_numpy_accepts_its_dtypes_from_a_handle(save, name):
    value = patterns(name, (5, 3)).t()
    found = np.from_dlpack(rustload.open(save({"x": value}))["x"])
    assert found.tobytes() == bits(value)
    assert found.flags.writeable


def test_numpy_refuses_a_dtype_that_it_does_not_have(save, collect):
    lazy = rustload.open(save({"x": torch.ones(3, dtype=torch.bfloat16)}), framework="dlpack")["x"]
    buffer = lazy.materialize()
    with pytest.raises((BufferError, RuntimeError, TypeError)):
        np.from_dlpack(buffer)
    collect()


def test_a_handle_accepts_the_keywords_of_torch_from_dlpack(lazy):
    assert_same_bits(torch.from_dlpack(lazy, copy=True), W)
    assert_same_bits(torch.from_dlpack(lazy, copy=False), W)
    assert_same_bits(torch.from_dlpack(lazy, device="cpu"), W)


def test_a_handle_accepts_the_keywords_of_numpy_from_dlpack(lazy):
    view = lazy.materialize(framework="numpy", writable=True)
    assert not np.shares_memory(np.from_dlpack(lazy, copy=True), view)
    assert np.shares_memory(np.from_dlpack(lazy, copy=False), view)
    np.testing.assert_array_equal(np.from_dlpack(lazy, device="cpu"), W.numpy())


@pytest.mark.parametrize("name", ["uint64", "float16", "float32", "complex64"])
def test_torch_accepts_a_handle_as_an_array(save, name):
    """torch.as_tensor looks for DLPack, the buffer protocol and __array__, in an order of its own."""
    value = patterns(name, (3, 4))
    lazy = rustload.open(save({"x": value}))["x"]
    assert_same_bits(torch.as_tensor(lazy), value)
    assert_same_bits(torch.asarray(lazy), value)


def test_a_file_error_propagates_through_dlpack(simple):
    lazy = rustload.open(simple)["w"]
    with simple.open("r+b") as file:
        file.truncate(100)
    with pytest.raises(rustload.FormatError):
        lazy.__dlpack__(max_version=(1, 0), copy=True)


# The buffer protocol.

FORMATS = {
    "bool": "?", "uint8": "B", "int8": "b", "uint16": "H", "int16": "h", "uint32": "I", "int32": "i", "float16": "e",
    "float32": "f", "float64": "d",
    # As in NumPy: `l` and `L` where C's long has 64 bits, `q` and `Q` elsewhere.
    "int64": memoryview(np.zeros(1, np.int64)).format, "uint64": memoryview(np.zeros(1, np.uint64)).format,
}  # fmt: skip


@pytest.mark.parametrize("name", DTYPES)
def test_a_memoryview_has_format_shape_and_strides(save, name):
    value = patterns(name, (4, 6)).t()[::2]
    buffer = rustload.open(save({"x": value}), framework="dlpack")["x"].materialize()
    view = memoryview(buffer)
    assert view.shape == (3, 4)
    assert view.strides == tuple(stride * value.itemsize for stride in value.stride())
    assert (view.itemsize, view.nbytes, view.ndim, view.readonly) == (value.itemsize, value.nbytes, 2, False)
    assert np.asarray(buffer).tobytes() == bits(value)
    if name in FORMATS:
        assert view.format == FORMATS[name]
        assert view.tobytes() == bits(value)
        assert struct.calcsize(view.format) == view.itemsize


@pytest.mark.parametrize("name", ["int64", "uint64", "float32", "bool", "complex64", "complex128"])
def test_numpy_reads_the_dtype_from_the_buffer_protocol(save, name):
    buffer = rustload.open(save({"x": patterns(name, (3,))}), framework="dlpack")["x"].materialize()
    found = np.asarray(buffer)
    assert found.dtype == np.dtype(name)
    assert_same_bits(torch.from_numpy(found.astype(name, copy=False)), torch.from_dlpack(buffer))


def test_scalars_and_empty_tensors_export_buffers(save):
    ckpt = rustload.open(save({"s": torch.tensor(2.5), "e": torch.empty(0, 3)}), framework="dlpack")
    for copy in (None, True):
        scalar = memoryview(ckpt["s"].materialize(copy=copy))
        assert (scalar.ndim, scalar.shape, scalar[()]) == (0, (), 2.5)
        empty = memoryview(ckpt["e"].materialize(copy=copy))
        assert (empty.shape, empty.nbytes, empty.tobytes()) == ((0, 3), 0, b"")


def test_a_strided_buffer_is_refused_to_a_consumer_of_contiguous_bytes(lazy):
    assert bytes(lazy.materialize()) == bits(W)
    with pytest.raises(BufferError):
        hashlib.sha256(lazy.T.materialize())
    assert np.asarray(lazy.T.materialize()).flags.f_contiguous


class PyBuffer(ctypes.Structure):
    """object.h: Py_buffer."""

    _fields_ = (
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.c_void_p),
        *((name, ctypes.c_ssize_t) for name in ("len", "itemsize")),
        *((name, ctypes.c_int) for name in ("readonly", "ndim")),
        *((name, ctypes.c_void_p) for name in ("format", "shape", "strides", "suboffsets", "internal")),
    )


def test_a_refused_buffer_request_sets_obj_to_null(lazy):
    """The buffer protocol: on error, set `view->obj` to NULL."""
    view = PyBuffer(obj=0xDEAD0)
    with pytest.raises(BufferError):
        ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(lazy.T.materialize()), ctypes.byref(view), 0)
    assert view.obj is None


def test_writes_through_a_memoryview_reach_the_memory(lazy):
    buffer = lazy.materialize(copy=True)
    memoryview(buffer)[1, 2] = 55.0
    assert torch.from_dlpack(buffer)[1, 2] == 55


def test_a_released_export_frees_its_memory_and_reference(lazy):
    buffer, strided = lazy.materialize(), lazy.T.materialize()

    def rounds(count: int) -> None:
        for _ in range(count):
            memoryview(buffer).release()
            memoryview(strided).release()

    rounds(1000)
    base, counts = held_anon(), (sys.getrefcount(buffer), sys.getrefcount(strided))
    rounds(150_000)  # shape and strides of an export take 100 bytes or more
    assert held_anon() - base < 4 << 20
    assert (sys.getrefcount(buffer), sys.getrefcount(strided)) == counts


def test_a_refused_export_keeps_no_reference(lazy):
    strided = lazy.T.materialize()
    count = sys.getrefcount(strided)
    for _ in range(100):
        with pytest.raises(BufferError):
            hashlib.sha256(strided)
    assert sys.getrefcount(strided) == count


def test_write_bytes_accepts_a_buffer(lazy, tmp_path):
    (tmp_path / "raw").write_bytes(lazy.materialize())
    assert (tmp_path / "raw").read_bytes() == bits(W)


def test_as_bytes_is_the_same_memory(lazy):
    buffer = lazy.materialize(copy=True)
    row = buffer.as_bytes()
    assert (row.dtype, row.shape) == ("uint8", (96,))
    memoryview(row)[0] = 1
    assert buffer.tobytes()[0] == 1
    with pytest.raises(BufferError):
        lazy.T.materialize().as_bytes()


def test_a_memoryview_keeps_the_memory_alive(lazy, collect):
    buffer = lazy.materialize(copy=True)
    view = memoryview(buffer)
    del buffer
    collect()
    assert view[3, 5] == 23.0
    view.release()


def test_the_repr_of_a_buffer_has_dtype_shape_and_ownership(lazy):
    assert repr(lazy.materialize()) == "<rustload.Buffer float32 [4, 6] view>"
    assert "owned" in repr(lazy.materialize(copy=True))
    with pytest.raises(TypeError):
        rustload.Buffer()


# Deleters. They run in processes of their own: one that needs the interpreter crashes at interpreter shutdown.
# (Daemon threads with torch are left out: torch 2.13 itself aborts there.)

LIFE = """
import sys, threading, time, gc, builtins
import rustload
path, framework, copy, *cases = sys.argv[1:]
lazy = rustload.open(path, framework=framework)["w"]
how = {"copy": True} if copy == "owned" else {}
capsule = lambda **version: lazy.__dlpack__(**version, **how)
class P:
    def __init__(self, **version): self.version = version
    def __dlpack__(self, **_): return capsule(**self.version)
    def __dlpack_device__(self): return (1, 0)
versioned = P(max_version=(1, 0))
if framework == "torch":
    import torch
    make = torch.from_dlpack
elif framework == "numpy":
    import numpy
    make = numpy.from_dlpack
else:
    make = lambda _: lazy.materialize(**how)
for case in cases:
    if case == "leak":
        builtins.leaked = make(versioned)
    elif case == "legacy":
        builtins.legacy = make(P())
    elif case == "cycle":
        class K: pass
        k = K(); k.k = k; k.t = make(versioned); k.u = lazy.materialize(**how); k.lazy = lazy
    elif case == "module":
        sys.modules["zz_kept"] = [
            make(versioned), lazy.materialize(**how), memoryview(lazy.materialize(framework="dlpack", **how))
        ]
    elif case == "capsule":
        builtins.capsule = capsule(max_version=(1, 0))
    elif case == "thread":
        kept = [lazy.materialize(**how) for _ in range(3)]
        t = threading.Thread(target=kept.clear); t.start(); t.join()
    elif case == "daemon":
        started = threading.Event()
        def work():
            while True:
                x = lazy.materialize(**how)
                started.set()
        for _ in range(8):
            threading.Thread(target=work, daemon=True).start()
        started.wait()
        class Slow:
            def __del__(self, sleep=time.sleep):
                sleep(0.1)  # in which the threads end, most of them where the extension asks for the GIL
        last = Slow()
    elif case == "autograd":
        w = torch.ones(4, 6, requires_grad=True); x = make(versioned); y = (w * x).sum(); del x; y.backward()
        assert w.grad.sum() == 276
    else:
        assert case == "set"
        t = make(versioned); t.set_(torch.empty(2, 3)); t = make(versioned)
        t.untyped_storage().resize_(0) if t.untyped_storage().resizable() else None
print("done")
"""


@pytest.mark.parametrize("copy", ["view", "owned"])
@pytest.mark.parametrize(("framework", "cases"), [
    ("torch", ["leak", "legacy", "cycle", "module", "autograd", "set"]), ("numpy", ["legacy", "cycle", "module"]),
    ("dlpack", ["leak", "cycle", "module", "capsule", "thread"]), ("dlpack", ["daemon"]),
])  # fmt: skip
def test_objects_alive_at_exit_are_freed_without_an_error(simple, framework, cases, copy):
    assert child(LIFE, simple, framework, copy, *cases).stdout == "done\n"


def test_a_deleter_runs_in_a_thread_that_does_not_hold_the_interpreter(simple):
    """torch frees saved tensors from its own threads."""
    lazy = rustload.open(simple, framework="torch")["w"]
    for how in ({}, {"copy": True}):
        w = torch.ones(4, 6, requires_grad=True)
        x = lazy.materialize(**how)
        alive = weakref.ref(x)
        y = (w * x).sum()
        del x
        y.backward()
        del y
        assert alive() is None
        assert w.grad.sum() == 276


ctypes.pythonapi.PyCapsule_New.restype = ctypes.py_object
ctypes.pythonapi.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


class Foreign:
    """Memory of "GPU 3" as another library would export it: a row of bytes at an address that the host must not touch."""

    ADDRESS = 1 << 44

    def __init__(self, nbytes: int, kind: int = 2, **change: int) -> None:
        self.deleted = 0
        self._deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self._delete)
        self._shape = (ctypes.c_int64 * 2)(nbytes, 1)
        self._strides = (ctypes.c_int64 * 2)(change.pop("stride", 1), 1)
        self._managed = DLManagedTensorVersioned(
            major=1,
            minor=3,
            flags=change.pop("flags", 0),
            deleter=ctypes.cast(self._deleter, ctypes.c_void_p),
        )
        tensor = self._managed.dl_tensor
        tensor.data, tensor.device_type, tensor.device_id, tensor.ndim = self.ADDRESS, kind, 3, 1
        tensor.code, tensor.bits, tensor.lanes = 1, 8, 1
        tensor.shape, tensor.strides = self._shape, self._strides
        for name, value in change.items():
            setattr(tensor, name, value)

    def _delete(self, _pointer: int) -> None:
        self.deleted += 1

    def capsule(self):
        address = ctypes.addressof(self._managed)
        return ctypes.pythonapi.PyCapsule_New(address, b"dltensor_versioned", None)


def test_adopted_gpu_memory_lives_as_long_as_its_exports(collect):
    foreign = Foreign(96)
    row = _rustload.adopt(foreign.capsule())
    assert (row.dtype, row.shape, row.nbytes, row.is_view) == ("uint8", (96,), 96, False)
    assert row.__dlpack_device__() == (2, 3)
    assert repr(row) == "<rustload.Buffer uint8 [96] owned on cuda:3>"
    part = row.part(32, "bfloat16", (4, 2))
    capsule = part.__dlpack__(max_version=(1, 0), stream=1)
    found = ctypes.cast(
        ctypes.pythonapi.PyCapsule_GetPointer(capsule, b"dltensor_versioned"),
        ctypes.POINTER(DLManagedTensorVersioned),
    ).contents.dl_tensor
    assert (found.data, found.device_type, found.device_id) == (Foreign.ADDRESS + 32, 2, 3)
    assert (found.code, found.bits, found.shape[:2], found.strides[:2]) == (4, 16, [4, 2], [2, 1])
    del row, part
    collect()
    assert foreign.deleted == 0
    del capsule, found
    collect()
    assert foreign.deleted == 1


def test_of_threads_that_import_one_capsule_at_once_one_gets_it(collect):
    for _ in range(5):
        foreign = Foreign(8)
        capsule = foreign.capsule()
        start = threading.Barrier(4)

        def adopt(capsule=capsule, start=start):
            start.wait()
            try:
                return _rustload.adopt(capsule)
            except TypeError as error:
                return str(error)

        with ThreadPoolExecutor(4) as pool:
            found = [job.result() for job in [pool.submit(adopt) for _ in range(4)]]
        refused = [one for one in found if isinstance(one, str)]
        assert refused == ["the capsule is not a DLPack tensor, or was used before"] * 3
        del found
        collect()
        assert foreign.deleted == 1


def test_the_host_does_not_read_gpu_memory():
    foreign = Foreign(8)
    buffer = _rustload.adopt(foreign.capsule())
    for read in (memoryview, bytes, _rustload.Buffer.tobytes):
        with pytest.raises(BufferError, match="in the memory of GPU 3"):
            read(buffer)
    with pytest.raises(RuntimeError, match="Unsupported device"):
        np.from_dlpack(buffer)


def test_a_gpu_buffer_is_exported_for_any_stream_to_its_own_device():
    foreign = Foreign(8)
    buffer = _rustload.adopt(foreign.capsule())
    for stream in (None, -1, 1, 2, 0x7F0012345678):
        assert name_of(buffer.__dlpack__(stream=stream, dl_device=(2, 3))) == b"dltensor"
    for wrong in (
        {"stream": 0},
        {"stream": -2},
        {"dl_device": (1, 0)},
        {"dl_device": (2, 0)},
        {"copy": True},
    ):
        with pytest.raises(BufferError):
            buffer.__dlpack__(**wrong)


def test_managed_memory_is_adopted_as_that_of_the_gpu_that_uses_it():
    """DLPack gives it no device, which CuPy's memory of `malloc_managed` follows."""
    for on in (0, 2):
        row = _rustload.adopt(Foreign(8, kind=13, device_id=0).capsule(), managed_on=on)
        assert row.__dlpack_device__() == (2, on)


def test_only_writable_contiguous_gpu_bytes_are_adopted():
    for foreign, text in (
        (Foreign(8, kind=1), "not in the memory of a GPU"),
        (Foreign(8, kind=3), "not in the memory of a GPU"),
        (Foreign(8, device_id=-1), "not in the memory of a GPU"),
        (Foreign(8, flags=1), "read-only"),
        (Foreign(8, stride=2), "not contiguous"),
        (Foreign(8, ndim=2), "not a one-dimensional uint8 array"),
        (Foreign(8, code=0), "not a one-dimensional uint8 array"),
        (Foreign(-1), "size is negative"),
    ):
        capsule = foreign.capsule()
        with pytest.raises(BufferError, match=text):
            _rustload.adopt(capsule)
        assert foreign.deleted == 1
        with pytest.raises(TypeError, match="used before"):
            _rustload.adopt(capsule)
    with pytest.raises(TypeError, match="not a DLPack capsule"):
        _rustload.adopt(b"")


def test_a_part_must_lie_inside_its_buffer_and_be_aligned(simple):
    foreign = Foreign(8)
    row = _rustload.adopt(foreign.capsule())
    assert row.part(8, "float32", (0,)).nbytes == 0
    for start, dtype, shape in (
        (4, "float32", (2,)),
        (2, "float32", (1,)),
        (9, "uint8", (0,)),
        (0, "float64", (2**62,)),
    ):
        with pytest.raises(ValueError, match=r"does not fit|not aligned"):
            row.part(start, dtype, shape)
    w = rustload.open(simple)["w"]
    owned = w.materialize(framework="dlpack", copy=True)
    assert owned.part(24, "float32", (2, 3)).tobytes() == owned.tobytes()[24:48]
    with pytest.raises(BufferError, match="strided"):
        w[:, ::2].materialize(framework="dlpack", copy=False).part(0, "uint8", (1,))
