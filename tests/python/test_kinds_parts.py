"""Quantized, sparse and meta tensors, subclasses and attributes: values equal torch's, and invalid metadata is refused."""

import io
import time
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from quiet import within
from support import Reduced, child, coded, saved

import rustload
import rustload.torch

pytestmark = pytest.mark.filterwarnings("ignore:Sparse:UserWarning", "ignore:.*quant.*:UserWarning")


def numbers() -> torch.Tensor:
    return torch.randn(40, 70, generator=torch.Generator().manual_seed(0)) * 50


def channels(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(size)
    scales = torch.rand(size, dtype=torch.float64, generator=generator) + 0.01
    return scales, torch.randint(0, 9, (size,), generator=generator)


def quantized() -> dict[str, torch.Tensor]:
    """A tensor of every dtype and scheme that torch can dequantize to compare with."""
    x, found = numbers(), {}
    for dtype in (torch.qint8, torch.quint8, torch.qint32):
        found[f"tensor {dtype}"] = torch.quantize_per_tensor(x, 0.137, 3, dtype)
        for axis in (0, 1):
            found[f"channel {axis} {dtype}"] = torch.quantize_per_channel(
                x, *channels(x.shape[axis]), axis, dtype
            )
    scales, zeros = channels(40)
    found["float qparams"] = torch.quantize_per_channel(
        x, scales.float(), zeros.float() + 0.25, 0, torch.quint8
    )
    return found


with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch deprecates its quantization
    QUANTIZED = quantized()

containers = pytest.mark.parametrize("zip_format", [True, False], ids=["zip", "legacy"])


@containers
@pytest.mark.parametrize("name", QUANTIZED)
def test_dequantize_equals_torch_to_the_bit(name, zip_format):
    q = QUANTIZED[name]
    t = rustload.open(saved({"w": q}, _use_new_zipfile_serialization=zip_format))["w"]
    want = q.dequantize()
    assert torch.equal(t.materialize(), q.int_repr())
    assert torch.equal(t.materialize(dequantize=True), want)
    assert torch.equal(t[3:30:2, ::7].materialize(dequantize=True), want[3:30:2, ::7])
    assert torch.equal(t[5].materialize(dequantize=True), want[5])
    assert torch.equal(t.T.materialize(dequantize=True, dtype="bfloat16"), want.T.bfloat16())
    assert torch.equal(t.materialize(dequantize=True, transpose=True, dtype=torch.float64), want.T.double())
    out = torch.empty(40, 70, dtype=torch.float16)
    t.materialize(dequantize=True, out=out)
    assert torch.equal(out, want.half())
    assert np.array_equal(t.materialize(dequantize=True, framework="numpy"), want.numpy())


def test_a_large_quantized_tensor_is_dequantized_block_by_block():
    x = torch.rand(3, 300, 500, generator=torch.Generator().manual_seed(1))
    q = torch.quantize_per_channel(x, *channels(500), 2, torch.qint8)
    t = rustload.open(saved(q))["tensor"].permute(1, 0, 2)
    for threads in (1, 3):
        found = t.materialize(dequantize=True, threads=threads)
        assert torch.equal(found, q.dequantize().transpose(0, 1))


def test_quantization_has_dtype_scheme_and_parameters():
    scales, zeros = channels(40)
    ckpt = rustload.open(
        saved({"q": QUANTIZED["tensor torch.qint8"], "c": QUANTIZED["channel 0 torch.qint32"]})
    )
    assert list(ckpt) == ["q", "c", "c.scale", "c.zero_point"]
    assert ckpt["q"].quantization == ("qint8", "per_tensor_affine", 0.137, 3, None, None)
    found = ckpt["c"].quantization
    assert found is not None
    assert (found.dtype, found.scheme, found.axis) == ("qint32", "per_channel_affine", 0)
    assert isinstance(found.scale, rustload.LazyTensor)
    assert isinstance(found.zero_point, rustload.LazyTensor)
    assert (found.scale.name, found.zero_point.name) == ("c.scale", "c.zero_point")
    assert torch.equal(found.scale.materialize(), scales)
    assert torch.equal(found.zero_point.materialize(), zeros)
    assert rustload.Quantization._fields == tuple(rustload.Quantization.__annotations__)
    assert ckpt["c.scale"].quantization is None
    assert ckpt["c.scale"].materialize(dequantize=True).dtype == torch.float64


@pytest.mark.parametrize(("dtype", "to_byte"), [(torch.quint4x2, 2), (torch.quint2x4, 4)])
def test_t24_packed_integers_are_read_as_bytes(dtype, to_byte):
    scales, zeros = torch.full((3,), 0.5), torch.zeros(3)
    q = torch.quantize_per_channel(torch.ones(3, 5), scales, zeros, 0, dtype)
    t = rustload.open(saved(q))["tensor"]
    assert (t.dtype, t.shape) == ("uint8", (q.untyped_storage().nbytes(),))
    assert t.bytes() == bytes(q.untyped_storage().tolist())
    found = t.quantization
    assert found is not None
    assert (found.dtype, found.packed) == (str(dtype).removeprefix("torch."), ((3, 5), (5, 1), 0))
    with coded(rustload.UnsupportedError, "DtypeUnsupported"):
        t.materialize(dequantize=True)
    assert 15 // to_byte < t.nbytes


def qtensor(params: tuple[Any, ...], size: tuple[int, ...] = (2, 3)) -> bytes:
    """A file with a quantized tensor of any parameters."""
    q = torch.quantize_per_tensor(torch.ones(2, 3), 0.5, 0, torch.qint8)
    strides = (3, 1)[-len(size) :]
    return saved(
        Reduced(torch._utils._rebuild_qtensor, (q._typed_storage(), 0, size, strides, params, False, {}))
    )


@pytest.mark.parametrize(
    "params",
    [
        (torch.per_tensor_affine, float("nan"), 0),
        (torch.per_tensor_affine, float("inf"), 0),
        (torch.per_channel_affine, torch.ones(2), torch.zeros(2), -1),
        (torch.per_channel_affine, torch.ones(2), torch.zeros(2), 2),
        (torch.per_channel_affine, torch.ones(3), torch.zeros(3), 0),
        (torch.per_channel_affine, torch.ones(2), torch.zeros(3), 0),
        (torch.per_channel_affine, torch.ones(2, 1), torch.zeros(2), 0),
        (torch.per_channel_affine, torch.ones(2, dtype=torch.bool), torch.zeros(2), 0),
        (torch.per_channel_affine, [1.0], [0], 0),
        (torch.per_channel_affine, [1.0, float("nan")], [0, 0], 0),
        (torch.per_channel_affine, [1.0, "x"], [0, 0], 0),
    ],
    ids=str,
)
def test_t30_invalid_quantization_parameters_are_refused_at_open(params):
    with coded(rustload.FormatError, "TensorBounds") as caught:
        rustload.open(qtensor(params))
    assert caught.value.offset is not None


def test_t30_scales_in_tensors_are_checked_when_they_are_used():
    data = qtensor((torch.per_channel_affine, torch.tensor([1.0, float("nan")]), torch.zeros(2), 0))
    t = rustload.open(data)["tensor"]
    assert t.materialize().tolist() == [[2] * 3] * 2
    with coded(rustload.FormatError, "TensorBounds"):
        t.materialize(dequantize=True)


def test_scales_may_be_lists():
    t = rustload.open(qtensor((torch.per_channel_affine, [0.5, 2], [0, 1], 0)))["tensor"]
    assert t.quantization == ("qint8", "per_channel_affine", [0.5, 2], [0, 1], 0, None)
    assert t.materialize(dequantize=True).tolist() == [[1] * 3, [2] * 3]


def test_a_quantizer_of_an_unknown_scheme_leaves_the_tensor_as_data():
    ckpt = rustload.open(qtensor((torch.float32, 1.0, 0)))
    assert isinstance(ckpt.objects, rustload.Opaque)
    assert list(ckpt) == ["args.0"]


def test_dequantize_to_an_integer_dtype_is_a_value_error():
    t = rustload.open(saved(QUANTIZED["tensor torch.qint8"]))["tensor"]
    with pytest.raises(ValueError, match="to a float dtype, not to int32"):
        t.materialize(dequantize=True, dtype="int32")


def test_expanded_scales_are_a_limit_error():
    scales, zeros = torch.ones(1).expand(1 << 40), torch.zeros(1).expand(1 << 40)
    q = torch.quantize_per_tensor(torch.ones(1), 0.5, 0, torch.qint8)
    params = (torch.per_channel_affine, scales, zeros, 0)
    args = (q._typed_storage(), 0, (1 << 40,), (0,), params, False, {})
    t = rustload.open(saved(Reduced(torch._utils._rebuild_qtensor, args)))["tensor"]
    with pytest.raises(rustload.LimitError):
        t[:2].materialize(dequantize=True)


@containers
@pytest.mark.parametrize("whole", [True, False], ids=["materialize", "stream"])
def test_materialize_and_stream_dequantize(zip_format, whole):
    plain = {"float": torch.randn(9), "int": torch.arange(5)}
    ckpt = rustload.open(saved(QUANTIZED | plain, _use_new_zipfile_serialization=zip_format))

    def load(**how: Any) -> dict[str, torch.Tensor]:
        return ckpt.materialize(**how) if whole else dict(ckpt.stream(**how))

    found = load(dequantize=True)
    assert all(torch.equal(found[name], q.dequantize()) for name, q in QUANTIZED.items())
    assert all(torch.equal(found[name], t) for name, t in plain.items())
    # A plain dtype applies to floats, which these are now; rules apply to the names that they match.
    found = load(
        dequantize=True, dtype="bfloat16", transpose=lambda t: t.name.startswith("channel") and t.ndim == 2
    )
    for name, q in QUANTIZED.items():
        expected = q.dequantize().bfloat16()
        assert torch.equal(found[name], expected.T if name.startswith("channel") else expected)
    assert (found["float"].dtype, found["int"].dtype) == (torch.bfloat16, torch.int64)
    found = load(dequantize=True, dtype={"tensor*": "float16"})
    assert {found[name].dtype for name in QUANTIZED if name.startswith("tensor")} == {torch.float16}
    assert found["channel 0 torch.qint8"].dtype == torch.float32
    # Without `dequantize` they are their integers, to which a plain dtype does not apply.
    assert all(torch.equal(load(dtype="bfloat16")[name], q.int_repr()) for name, q in QUANTIZED.items())


def same_integers() -> bytes:
    """A file of tensors on one storage, two of which have the same scales."""
    q = torch.quantize_per_tensor(torch.ones(2, 3), 0.5, 0, torch.qint8)

    def on_them(*params: Any) -> Reduced:
        args = (q._typed_storage(), 0, (2, 3), (3, 1), params, False, {})
        return Reduced(torch._utils._rebuild_qtensor, args)

    first = on_them(torch.per_tensor_affine, 0.5, 0)
    state = {"one": first, "again": first, "two": on_them(torch.per_tensor_affine, 0.5, 1)}
    state["three"] = on_them(torch.per_channel_affine, [0.5, 2], [0, 1], 0)
    return saved(state)


SCALED = {"one": [[1] * 3] * 2, "again": [[1] * 3] * 2, "two": [[0.5] * 3] * 2, "three": [[1] * 3, [2] * 3]}


def test_names_of_the_same_integers_with_other_scales_are_tied_as_integers_only():
    ckpt = rustload.open(same_integers())
    found = ckpt.materialize(dequantize=True)
    assert {name: value.tolist() for name, value in found.items()} == SCALED
    assert found["one"] is found["again"]
    ints = ckpt.materialize(copy=True, framework="numpy")
    assert all(ints[name] is ints["one"] for name in SCALED)


@pytest.mark.parametrize("assign", ["auto", True])
def test_a_model_ties_the_same_integers_with_the_same_scales_only(assign):
    def model(device: str) -> torch.nn.ParameterDict:
        return torch.nn.ParameterDict(
            {name: torch.nn.Parameter(torch.zeros(2, 3, device=device)) for name in SCALED}
        )

    for device in ("meta", "cpu"):
        made = model(device)
        rustload.torch.load_into(made, same_integers(), dequantize=True, assign=assign)
        assert {name: value.tolist() for name, value in made.items()} == SCALED
        assert (made["one"] is made["again"]) == (device == "meta" or assign is True)
    tied = model("cpu")
    tied["two"] = tied["one"]
    with pytest.raises(ValueError, match="'one' and 'two' differ in the file"):
        rustload.torch.load_into(tied, same_integers(), dequantize=True)


# Sparse


def matrix() -> torch.Tensor:
    dense = torch.arange(24.0).reshape(4, 6)
    dense[dense % 3 == 0] = 0
    return dense


SPARSE = {
    "coo": lambda: matrix().to_sparse(),
    "coo, not coalesced": lambda: torch.sparse_coo_tensor([[0, 0, 1]], [1.0, 2.0, 3.0], (4,)),
    "coo, hybrid": lambda: matrix().to_sparse(1),
    "coo, empty": lambda: torch.zeros(3, 0).to_sparse(),
    "csr": lambda: matrix().to_sparse_csr(),
    "csr, batched": lambda: torch.stack([matrix(), matrix()]).to_sparse_csr(),
    "csr, dense": lambda: matrix().unsqueeze(-1).expand(4, 6, 2).contiguous().to_sparse_csr(dense_dim=1),
    "csc": lambda: matrix().to_sparse_csc(),
    "bsr": lambda: matrix().to_sparse_bsr((2, 3)),
    "bsc": lambda: matrix().to_sparse_bsc((2, 3)),
}


@containers
@pytest.mark.parametrize("name", SPARSE)
def test_a_sparse_tensor_has_its_parts_and_becomes_a_torch_tensor(name, zip_format):
    s = SPARSE[name]()
    found = rustload.open(saved({"s": s}, _use_new_zipfile_serialization=zip_format)).objects["s"]
    assert isinstance(found, rustload.Sparse)
    assert (found.layout, found.shape, found.dtype) == (str(s.layout)[6:], tuple(s.shape), "float32")
    assert found.is_coalesced == (s.is_coalesced() if s.layout == torch.sparse_coo else None)
    for part, lazy in found.parts.items():
        expected = getattr(s, part if s.layout != torch.sparse_coo else f"_{part}")()
        assert lazy.name == f"s.{part}"
        assert torch.equal(lazy.materialize(), expected)
    found.check()
    tensor = found.torch()
    assert (tensor.layout, tensor.shape) == (s.layout, s.shape)
    assert torch.equal(tensor.to_dense(), s.to_dense())
    assert repr(found) == f"<Sparse {found.layout} float32 {list(s.shape)}>"


def sparse_of(layout: torch.layout, *data: Any) -> rustload.Sparse:
    found = rustload.open(saved(Reduced(torch._utils._rebuild_sparse_tensor, (layout, data)))).objects
    assert isinstance(found, rustload.Sparse)
    return found


def ints(*rows: Any) -> torch.Tensor:
    return torch.tensor(rows)


F = torch.ones
COO, CSR, CSC, BSR = torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr
BROKEN = {
    "index at the size": (COO, ints([0, 4]), F(2), (4,)),
    "negative index": (COO, ints([0, -1]), F(2), (4,)),
    "more coordinates than dimensions": (COO, ints([0], [0]), F(1), (4,)),
    "more coordinates than values": (COO, ints([0, 1]), F(1), (4,)),
    "values of another dense shape": (COO, ints([0, 1]), F(2, 3), (4, 2)),
    "indices that are not a matrix": (COO, ints(0, 1), F(2), (4,)),
    "indices of floats": (COO, F(1, 2), F(2), (4,)),
    "coalesced, but twice": (COO, ints([1, 1]), F(2), (4,), True),
    "coalesced, but late": (COO, ints([0, 1], [1, 0]).flip(1), F(2), (2, 2), True),
    "rows that do not begin at 0": (CSR, ints(1, 1, 2), ints(0, 1), F(2), (2, 2)),
    "rows that shrink": (CSR, ints(0, 2, 1), ints(0, 1), F(2), (2, 2)),
    "rows beyond the values": (CSR, ints(0, 1, 3), ints(0, 1), F(2), (2, 2)),
    "rows that end early": (CSR, ints(0, 1, 1), ints(0, 1), F(2), (2, 2)),
    "a row longer than the width": (CSR, ints(0, 3, 3), ints(0, 1, 1), F(3), (2, 2)),
    "too few rows": (CSR, ints(0, 2), ints(0, 1), F(2), (2, 2)),
    "column at the width": (CSR, ints(0, 1, 2), ints(0, 2), F(2), (2, 2)),
    "negative column": (CSR, ints(0, 1, 2), ints(-1, 0), F(2), (2, 2)),
    "columns that repeat": (CSR, ints(0, 2, 2), ints(1, 1), F(2), (2, 2)),
    "a row index at the height": (CSC, ints(0, 1, 2), ints(0, 3), F(2), (3, 2)),
    "blocks that do not divide": (BSR, ints(0, 1), ints(0), F(1, 2, 2), (2, 3)),
    "blocks of nothing": (BSR, ints(0, 1), ints(0), F(1, 0, 2), (2, 2)),
    "values without blocks": (BSR, ints(0, 1), ints(0), F(1), (2, 2)),
    "indices of 16 bits": (CSR, ints(0, 1, 2).short(), ints(0, 1).short(), F(2), (2, 2)),
    "indices of two dtypes": (CSR, ints(0, 1, 2).int(), ints(0, 1), F(2), (2, 2)),
    "indices with gaps": (CSR, ints(0, 1, 2), ints(0, 5, 1, 5)[::2], F(2), (2, 2)),
    "another batch": (CSR, ints([0, 1]), ints([0]), F(1, 1), (2, 1, 2)),
}


@pytest.mark.parametrize("name", BROKEN)
def test_t31_invalid_sparse_indices_are_refused_by_check(name):
    layout, *data = BROKEN[name]
    found = sparse_of(layout, *data)
    for use in (found.check, found.torch):
        with coded(rustload.FormatError, "SparseInvariant"):
            use()
    if name == "indices of floats":
        return  # torch casts them
    with pytest.raises(RuntimeError):  # torch agrees
        torch.sparse_coo_tensor(
            *data[:3], is_coalesced=data[3] if data[3:] else None, check_invariants=True
        ) if layout == COO else torch.sparse_compressed_tensor(*data, layout=layout, check_invariants=True)


def test_long_rows_and_many_rows_are_checked_across_blocks():
    columns = torch.arange(200_000)
    one_row = (CSR, ints(0, 200_000), columns, F(200_000), (1, 200_000))
    many_rows = (
        CSR,
        torch.arange(200_001),
        torch.zeros(200_000, dtype=torch.int64),
        F(200_000),
        (200_000, 1),
    )
    sparse_of(*one_row).check()
    sparse_of(*many_rows).check()
    sparse_of(COO, columns.reshape(1, -1), F(200_000), (200_000,), True).check()
    columns[70_000] = columns[69_999]
    with pytest.raises(rustload.FormatError):
        sparse_of(*one_row).check()
    with pytest.raises(rustload.FormatError):
        sparse_of(COO, columns.reshape(1, -1), F(200_000), (200_000,), True).check()


def test_expanded_indices_are_a_limit_error():
    bounds, columns = ints(0, 0).expand(1 << 40, 2), torch.empty(0, dtype=torch.int64).expand(1 << 40, 0)
    found = sparse_of(CSR, bounds, columns, torch.empty(0).expand(1 << 40, 0), (1 << 40, 1, 1))
    with pytest.raises(rustload.LimitError):
        found.check()
    found = sparse_of(COO, ints([0]).expand(1, 1 << 50), torch.empty(0).expand(1 << 50, 0), (1, 0))
    with pytest.raises(rustload.LimitError):
        found.check()


def test_expanded_values_without_coordinates_are_checked_without_iteration():
    nowhere, values = torch.empty(0, 1, dtype=torch.int64).expand(0, 1 << 50), F(1).expand(1 << 50)
    sparse_of(COO, nowhere, values, ()).check()
    with pytest.raises(rustload.FormatError):
        sparse_of(COO, nowhere, values, (), True).check()
    sparse_of(COO, nowhere[:, :1], values[:1], (), True).check()


@pytest.mark.parametrize(
    ("data", "code"),
    [
        ((ints([0]), F(1)), "PickleType"),
        ((ints([0]), F(1), (2,), None, 1), "PickleType"),
        ((ints([0]), F(1), (2,), "x"), "PickleType"),
        ((ints([0]), F(1), (-2,)), "TensorShape"),
        ((ints([0]), F(1), (1 << 40, 1 << 40)), "TensorShape"),
    ],
    ids=["no size", "too long", "flag", "negative", "huge"],
)
def test_a_malformed_sparse_tensor_is_refused_at_open(data, code):
    with coded(rustload.FormatError, code):
        rustload.open(saved(Reduced(torch._utils._rebuild_sparse_tensor, (COO, data))))


# Meta


def test_t32_a_meta_tensor_of_any_size_takes_no_memory():
    huge = torch.empty(1 << 31, 1 << 31, device="meta", dtype=torch.uint8).requires_grad_(False)
    ckpt = rustload.open(saved({"m": huge, "w": torch.ones(2)}))
    t = ckpt["m"]
    assert (t.is_meta, t.shape, t.nbytes, ckpt.nbytes) == (True, (1 << 31, 1 << 31), 1 << 62, 8)
    assert ckpt.tied == []
    found = t.materialize()
    assert (found.device.type, found.shape, found.dtype) == ("meta", huge.shape, huge.dtype)
    assert not ckpt["w"].is_meta


@pytest.mark.parametrize("shape", [(1 << 40, 1 << 20), (1 << 40, 0)])
def test_t32_a_tensor_without_data_is_sliced_whatever_its_strides(shape):
    t = rustload.open(saved(torch.empty_strided(shape, (1 << 62, 1 << 62), device="meta")))["tensor"]
    assert t[5].shape == shape[1:]
    assert t[3:, -1:].shape == (shape[0] - 3, min(shape[1], 1))
    joined = rustload.concat([t, t], dim=1)[4]
    assert joined.shape == (2 * shape[1],)


def test_a_meta_tensor_keeps_strides_and_is_cast_and_transposed():
    m = torch.empty(2, 3, device="meta").T
    t = rustload.open(saved(m))["tensor"]
    assert t.materialize().stride() == m.stride()
    found = t.materialize(dtype="bfloat16", transpose=True)
    assert (found.shape, found.dtype, found.is_contiguous()) == ((2, 3), torch.bfloat16, True)
    assert t[:1].materialize().shape == (1, 2)


@pytest.mark.parametrize("use", ["numpy", "dlpack", "bytes", "out", "convert"])
def test_a_meta_tensor_has_no_elements_outside_torch(use):
    t = rustload.open(saved(torch.empty(1 << 40, device="meta")))["tensor"]
    uses = {
        "numpy": lambda: t.materialize(framework="numpy"),
        "dlpack": lambda: t.materialize(framework="dlpack"),
        "bytes": t.bytes,
        "out": lambda: t[:2].materialize(out=torch.empty(2)),
        "convert": lambda: t.materialize(framework="numpy", dtype="float64"),
    }
    with coded(rustload.UnsupportedError, "MetaTensor"):
        uses[use]()


# Subclasses and attributes


class Subclass(torch.Tensor):
    """A tensor with another class."""


class Slotted(torch.Tensor):
    """A subclass with a slot."""

    __slots__ = ("depth",)


def test_a_subclass_and_its_attributes_are_kept_as_data():
    inner = torch.zeros(3)
    inner.note = "inner"  # type: ignore[attr-defined]
    t = torch.ones(2).as_subclass(Subclass)
    t.inner, t.level = inner, {"n": 1}  # type: ignore[attr-defined]
    ckpt = rustload.open(saved({"t": t, "plain": torch.ones(1)}))
    assert list(ckpt) == ["t", "t.inner", "plain"]
    assert ckpt["t"].class_name == f"{Subclass.__module__}.Subclass"
    found = ckpt["t"].attributes
    assert set(found) == {"inner", "level"}
    assert found["level"] == {"n": 1}
    assert (found["inner"].name, found["inner"].attributes) == ("t.inner", {"note": "inner"})
    assert (ckpt["plain"].class_name, ckpt["plain"].attributes) == (None, {})


def test_slots_are_attributes():
    t = torch.ones(2).as_subclass(Slotted)
    t.depth, t.note = 3, "x"  # type: ignore[attr-defined]
    assert rustload.open(saved(t))["tensor"].attributes == {"depth": 3, "note": "x"}


def test_a_tensor_among_its_own_attributes_is_named_once():
    t = torch.ones(2)
    t.me, t.all = None, [t]  # type: ignore[attr-defined]
    file = saved(t)
    ckpt = rustload.open(file)
    assert list(ckpt) == ["tensor"]
    # The pickler writes the tensor while it writes its attributes, so the state is still empty at the call.
    assert ckpt["tensor"].attributes == vars(torch.load(io.BytesIO(file), weights_only=False)) == {}


def test_attributes_of_a_parameter_are_kept():
    p = torch.nn.Parameter(torch.ones(2))
    p.mask = torch.zeros(2)  # type: ignore[attr-defined]
    ckpt = rustload.open(saved({"p": p}))
    assert list(ckpt) == ["p", "p.mask"]
    assert (ckpt["p"].is_parameter, ckpt["p.mask"].is_parameter) == (True, False)
    assert ckpt["p"].attributes["mask"].name == "p.mask"


def test_attributes_of_many_tensors_take_linear_time():
    rebuild, tensor = torch._utils._rebuild_parameter_with_state, torch.zeros(4)
    ckpt = rustload.open(
        saved({f"{number}": Reduced(rebuild, (tensor, True, {}, {"note": 1})) for number in range(10_000)})
    )
    start = time.process_time()
    assert all(handle.attributes == {"note": 1} for handle in ckpt.values())
    assert within(time.process_time() - start, 2)


def test_a_module_that_a_file_names_is_not_imported():
    """A subclass, an object and a default dict's factory, all of a module whose import would show in `sys.modules`."""
    code = """
        import io, sys, types, rustload
        ckpt = rustload.open(sys.argv[1])
        objects = ckpt.objects
        assert ckpt["t"].class_name == "kinds_canary.Kind", ckpt["t"].class_name
        assert ckpt["t"].attributes["note"] == 1
        assert repr(objects["d"].factory) == "<global kinds_canary.make>"
        assert isinstance(objects["o"], rustload.Opaque)
        for name in ("kinds_canary", "torch", "numpy"):
            assert name not in sys.modules, name
    """
    import sys
    import tempfile
    import types
    from collections import defaultdict

    canary = types.ModuleType("kinds_canary")
    exec(  # the classes must be of that module to be pickled as such
        "import torch\nclass Kind(torch.Tensor): pass\nclass Other: pass\ndef make(): return 1\n",
        canary.__dict__,
    )
    sys.modules["kinds_canary"] = canary
    try:
        t = torch.ones(2).as_subclass(canary.Kind)
        t.note = 1
        data = saved({"t": t, "d": defaultdict(canary.make, a=1), "o": canary.Other()})
    finally:
        del sys.modules["kinds_canary"]
    with tempfile.NamedTemporaryFile(suffix=".pt") as file:
        file.write(data)
        file.flush()
        child(code, file.name)


def test_an_object_of_a_tensor_class_with_a_size_is_no_tensor():
    """C25: `torch.FloatTensor(2**36)` would allocate 256 GiB."""
    data = saved(Reduced(torch.FloatTensor, (1 << 36,)))
    assert isinstance(rustload.open(data).objects, rustload.Opaque)
    with coded(rustload.DisallowedError, "DisallowedCall"):
        rustload.open(data, unknown="error")


def test_nested_old_variables_are_tensors():
    w = torch.ones(2)
    inner = Reduced(torch.autograd.Variable, (), (w, None, {}, False, False))
    outer = Reduced(torch.nn.Parameter, (), (inner, None, {}, True, False))
    file = io.BytesIO(saved({"a": outer, "b": w}))
    ckpt = rustload.open(file)
    assert ckpt.tied == [["a", "b"]]
    assert (ckpt["a"].is_parameter, ckpt["a"].requires_grad, ckpt["b"].is_parameter) == (True, True, False)
