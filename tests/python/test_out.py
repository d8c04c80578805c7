"""`out=`: results written into the caller's memory."""

import threading

import ml_dtypes
import numpy as np
import pytest
import torch
from support import DTYPES, FP8, assert_same_bits, assert_same_values, bits, dtype_of, in_threads, patterns

import rustload

W = torch.arange(24, dtype=torch.float32).reshape(4, 6)


@pytest.fixture
def lazy(simple):
    return rustload.open(simple)["w"]


def test_out_is_returned_and_filled(lazy):
    out = torch.full((4, 6), -1.0)
    assert lazy.materialize(out=out) is out
    assert_same_bits(out, W)


@pytest.mark.parametrize("name", DTYPES)
def test_the_dtype_of_out_decides_the_cast(lazy, name):
    out = torch.zeros((4, 6), dtype=dtype_of(name))
    lazy.materialize(out=out, allow_lossy=True)
    # 23, the largest value, overflows no dtype.
    assert_same_bits(out, W.to(out.dtype))


@pytest.mark.parametrize("name", DTYPES)
def test_every_dtype_is_written_to_torch_and_numpy(save, name):
    value = patterns(name, (3, 5, 2))
    lazy = rustload.open(save({"x": value.transpose(0, 2)}))["x"]
    out = torch.zeros((2, 5, 3), dtype=value.dtype)
    lazy.materialize(out=out)
    assert_same_bits(out, value.transpose(0, 2))
    array = np.zeros((2, 5, 3), dtype=lazy[:0].numpy().dtype)
    lazy.materialize(out=array)
    assert array.tobytes() == bits(value.transpose(0, 2))


@pytest.mark.parametrize("name", ["bool", "float8_e4m3fn", "bfloat16", "int64", "complex64"])
@pytest.mark.parametrize("layout", ["transposed", "sliced", "offset", "channels"])
def test_a_strided_out_is_filled_and_its_gaps_are_unchanged(save, name, layout):
    value = patterns(name, (6, 8))
    lazy = rustload.open(save({"x": value}))["x"]
    backing = torch.zeros((20, 20), dtype=value.dtype)
    out = {
        "transposed": backing[:8, :6].t(),
        "sliced": backing[1:19:3, 2:18:2],
        "offset": backing[3:9, 5:13],
        "channels": backing.reshape(-1).as_strided((6, 8), (1, 6), 7),
    }[layout]
    lazy.materialize(out=out)
    assert_same_bits(out, value)
    out.zero_()
    assert bits(backing) == bytes(backing.nbytes)


def test_a_leaf_that_requires_grad_is_filled_in_place(lazy):
    out = torch.zeros((4, 6), requires_grad=True)
    assert lazy.materialize(out=out) is out
    assert_same_bits(out, W)
    assert out.is_leaf
    assert out.grad_fn is None


def test_a_strided_leaf_that_requires_grad_is_filled_in_place(lazy):
    out = torch.nn.Parameter(torch.zeros((6, 4)).t())
    lazy.materialize(out=out)
    assert_same_bits(out.detach(), W)


def test_filling_out_increments_the_version_counter(lazy):
    """An autograd graph that saved `out` must not continue with other values silently."""
    out = torch.zeros((4, 6))
    weight = torch.ones((4, 6), requires_grad=True)
    product = (weight * out).sum()
    lazy.materialize(out=out)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()


@pytest.mark.parametrize("name", ["bool", "float32", *FP8])
def test_a_scalar_out_is_filled(save, name):
    value = patterns(name, (5,), seed=3)[3]
    lazy = rustload.open(save({"x": value}))["x"]
    out = torch.zeros((), dtype=value.dtype)
    lazy.materialize(out=out)
    assert_same_bits(out, value)
    array = np.zeros((), dtype=lazy.numpy().dtype)
    assert lazy.materialize(out=array) is array
    assert array.tobytes() == bits(value)


def test_an_out_of_one_element_with_any_stride_is_filled(save):
    """torch reports such a tensor as contiguous, whatever its stride."""
    lazy = rustload.open(save({"x": torch.tensor([[3.5]])}))["x"]
    backing = torch.zeros(4, 4)
    out = backing[1:2, ::3][:, :1]
    assert out.is_contiguous()
    lazy.materialize(out=out)
    assert backing[1, 0] == 3.5
    array = np.zeros((4, 4), dtype=np.float32)
    lazy.materialize(out=array[1:2, ::3][:, :1])
    assert array[1, 0] == 3.5


def test_an_empty_out_is_returned(save):
    ckpt = rustload.open(save({"x": torch.empty(0, 3), "y": torch.empty(3, 0)}))
    for out in (
        torch.empty(0, 3),
        np.empty((0, 3), np.float32),
        torch.empty(3, 0).t(),
        torch.empty(0, 3, dtype=torch.int64),
    ):
        assert ckpt["x"].materialize(out=out, allow_lossy=True) is out
    assert ckpt["y"].materialize(transpose=True, out=torch.empty(0, 3)).shape == (0, 3)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["<f4", ">f4", "<f8", ">f8", "<f2", ">f2", ">i4", "<c8", ">c8", ">u8"])
def test_a_numpy_out_is_filled_in_any_order_and_byte_order(lazy, order, dtype):
    out = np.full((4, 6), 77, dtype=dtype, order=order)
    assert lazy.materialize(out=out, allow_lossy=True) is out
    np.testing.assert_array_equal(out, W.numpy().astype(dtype))


def test_a_strided_numpy_out_is_filled(lazy):
    backing = np.zeros((8, 12), dtype=ml_dtypes.bfloat16)
    lazy.materialize(out=backing[::2, ::-2])
    np.testing.assert_array_equal(backing[::2, ::-2].astype(np.float32), W.numpy())
    assert not backing[1::2].any()


def test_a_misaligned_numpy_out_is_filled(lazy):
    out = np.zeros(97, np.uint8)[1:].view(np.float32).reshape(4, 6)
    assert not out.flags.aligned
    lazy.materialize(out=out)
    np.testing.assert_array_equal(out, W.numpy())


def test_a_read_only_numpy_out_is_refused(lazy):
    out = np.zeros((4, 6), dtype=np.float32)
    out.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        lazy.materialize(out=out)
    assert not out.any()


def test_a_buffer_out_is_filled(lazy, simple):
    out = rustload.open(simple, framework="dlpack")["w"].materialize(dtype="bfloat16")
    memoryview(out).cast("B")[:] = bytes(48)
    assert lazy.materialize(out=out) is out
    assert_same_bits(torch.from_dlpack(out), W.bfloat16())


def test_a_strided_buffer_is_filled_or_refused_by_a_buffer_error(lazy, simple):
    out = rustload.open(simple, framework="dlpack")["w"].T.materialize()
    try:
        lazy.materialize(transpose=True, out=out)
    except BufferError:
        return
    assert_same_bits(torch.from_dlpack(out), W.t())


@pytest.mark.parametrize("out", [
    torch.zeros(6, 4), torch.zeros(24), torch.zeros(4, 6, 1), torch.zeros(()), np.zeros((6, 4)), np.zeros(24),
], ids=lambda out: f"{type(out).__name__}{tuple(out.shape)}")  # fmt: skip
def test_a_wrong_shape_is_a_value_error(lazy, out):
    with pytest.raises(ValueError, match=r"shape.*\(4, 6\)"):
        lazy.materialize(out=out)
    assert not out.any()


def test_out_has_the_transposed_shape(lazy):
    out = torch.zeros(6, 4, dtype=torch.float16)
    lazy.materialize(transpose=True, out=out)
    assert_same_bits(out, W.t().half())
    with pytest.raises(ValueError, match="shape"):
        lazy.materialize(transpose=True, out=torch.zeros(4, 6))


@pytest.mark.parametrize("make", [
    lambda: np.zeros((4, 6), dtype="U3"), lambda: np.zeros((4, 6), dtype=object), lambda: np.zeros((4, 6), dtype="M8[s]"),
    lambda: np.zeros((4, 6), dtype=[("a", "f4")]), lambda: np.zeros((4, 6), dtype=np.longdouble),
])  # fmt: skip
def test_a_dtype_without_a_counterpart_is_refused(lazy, make):
    with pytest.raises((TypeError, ValueError, NotImplementedError)):
        lazy.materialize(out=make(), allow_lossy=True)


def test_a_dtype_that_contradicts_out_is_a_value_error(lazy):
    with pytest.raises(ValueError, match="dtype"):
        lazy.materialize(dtype="float16", out=torch.zeros(4, 6))
    lazy.materialize(dtype="float16", out=torch.zeros(4, 6, dtype=torch.float16))


def test_a_lossy_cast_into_out_needs_allow_lossy(lazy):
    out = torch.zeros(4, 6, dtype=torch.int32)
    with pytest.raises(ValueError, match="lossy"):
        lazy.materialize(out=out)
    assert not out.any()
    lazy.materialize(out=out, allow_lossy=True)
    assert_same_bits(out, W.int())


@pytest.mark.parametrize("how", [{"copy": False}, {"device": "cpu"}, {"device": "cuda"}])
def test_out_with_device_or_copy_false_is_an_error(lazy, how):
    with pytest.raises((ValueError, BufferError), match="out="):
        lazy.materialize(out=torch.zeros(4, 6), **how)


@pytest.mark.parametrize(
    "out", [bytearray(96), [0.0] * 24, "out", 5, object()], ids=lambda out: type(out).__name__
)
def test_an_out_that_is_no_array_is_a_type_error(lazy, out):
    with pytest.raises(TypeError, match="out="):
        lazy.materialize(out=out)


def test_a_meta_out_is_refused(lazy):
    with pytest.raises((ValueError, RuntimeError, NotImplementedError, rustload.DeviceError)):
        lazy.materialize(out=torch.zeros(4, 6, device="meta"))


def test_an_expanded_out_is_refused(lazy):
    """Its elements share memory, which cannot hold different values."""
    out = torch.zeros(1, 6).expand(4, 6)
    with pytest.raises((ValueError, RuntimeError)):
        lazy.materialize(out=out)


def test_a_lazily_conjugated_out_is_filled(save):
    z = torch.tensor([1 + 2j, 3 - 4j])
    lazy = rustload.open(save({"z": z}))["z"]
    out = torch.zeros(2, dtype=torch.complex64).conj()
    lazy.materialize(out=out)
    assert torch.equal(out, z)


@pytest.mark.filterwarnings("ignore:the matrix subclass:PendingDeprecationWarning")
def test_a_subclass_of_ndarray_is_filled(lazy, tmp_path):
    out = np.memmap(tmp_path / "out.raw", dtype=np.float32, mode="w+", shape=(4, 6))
    lazy.materialize(out=out)
    np.testing.assert_array_equal(out, W.numpy())
    for matrix in (np.matrix(np.zeros((4, 6))), np.matrix(np.zeros((6, 4)), dtype=np.float32).T):
        assert lazy.materialize(out=matrix) is matrix
        np.testing.assert_array_equal(matrix, W.numpy())


def test_a_subclass_of_tensor_is_filled(lazy):
    class Mine(torch.Tensor):
        pass

    out = torch.zeros(4, 6).as_subclass(Mine)
    lazy.materialize(out=out)
    assert_same_bits(out.as_subclass(torch.Tensor), W)


def test_a_large_out_is_filled_by_several_threads(save):
    value = torch.arange(3_000_001, dtype=torch.float32)
    out = torch.zeros(3_000_001, dtype=torch.bfloat16)
    rustload.open(save({"x": value}))["x"].materialize(out=out, threads=2)
    assert_same_values(out, value.bfloat16())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that torch can use")
def test_an_out_on_the_gpu_is_filled(lazy):
    out = torch.zeros(4, 6, dtype=torch.float16, device="cuda")
    lazy.materialize(out=out)
    assert_same_bits(out.cpu(), W.half())


def test_concurrent_calls_with_one_out_are_refused(save):
    lazy = rustload.open(save({"x": torch.zeros(16_000_000)}))["x"]
    out = torch.empty(16_000_000, dtype=torch.float64)
    refused, done, barrier = [], [], threading.Barrier(2)

    def work(part):
        barrier.wait()
        for _ in range(8):
            try:
                lazy.materialize(out=part)
                done.append(1)
            except ValueError as error:
                refused.append(str(error))

    in_threads(work, [out, out])
    assert done
    assert refused
    assert all("another call is writing to the same memory" in text for text in refused)
    assert lazy.materialize(out=out) is out


def test_concurrent_calls_with_parts_of_one_out_succeed(save):
    value = patterns("float32", (4_000_000,))
    lazy = rustload.open(save({"x": value}))["x"]
    out = torch.empty(16_000_000, dtype=torch.float64)

    def work(part):
        for _ in range(5):
            lazy.materialize(out=part)

    in_threads(work, out.split(4_000_000))
    assert_same_values(out, value.double().repeat(4))
