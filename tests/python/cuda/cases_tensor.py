"""One tensor on a GPU, on the fake driver: every dtype, layout and cast, `out=`, and frameworks without an allocator."""

import itertools
from collections.abc import Iterator
from typing import Any

import fakecuda
import pytest
import torch
from hostgpu import HostGpu
from support import DTYPES, assert_same_bits, patterns

import rustload
from rustload import _rustload
from rustload._common.request import Request

pytestmark = pytest.mark.filterwarnings("ignore:torch.quantize_per:UserWarning")

CASTS = ("auto", "cpu", "gpu")


def layouts(base: torch.Tensor) -> dict[str, torch.Tensor]:
    """Tensors of ranks 0 to 4 on one storage of shape (6, 10, 16)."""
    return {
        "whole": base,
        "scalar": base[1, 2, 3],
        "row": base[1, 2],
        "column": base[:, 1, 2],
        "matrix": base[2],
        "turned": base[2].T,
        "permuted": base.permute(2, 0, 1),
        "reversed": base.permute(2, 1, 0),
        "part": base[1:, ::3, 2:9],
        "part turned": base[1:, ::3, 2:9].permute(1, 2, 0),
        "four": base.view(6, 5, 2, 16).permute(2, 0, 3, 1),
        "ones": base[:, :1].permute(2, 1, 0),
        "spread": base[:, :1].expand(6, 3, 16),
        "empty": base[:0],
    }


def orders(ndim: int) -> Iterator[Any]:
    yield None
    if ndim >= 2:
        yield True
        yield from itertools.islice(itertools.permutations(range(ndim)), 1, 7)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("cast", CASTS)
def test_every_dtype_and_layout_equals_the_cpus(save, cast):
    path = save(
        {f"{name} {how}": t for name in DTYPES for how, t in layouts(patterns(name, (6, 10, 16))).items()}
    )
    for name, lazy in rustload.open(path, framework="torch").items():
        plain = name.startswith(("bfloat16", "complex128", "bool"))
        for order in orders(lazy.ndim) if plain else (None, True if lazy.ndim > 1 else None):
            expected = lazy.materialize(transpose=order, copy=True)
            found = lazy.materialize("cuda", transpose=order, cast=cast)
            assert found.is_contiguous(), name
            assert_same_bits(found, expected)
    assert (HostGpu.conversions == 0) == (cast == "cpu")


@pytest.mark.usefixtures("small")
def test_a_result_takes_at_most_two_staging_buffers(save):
    path = save({"w": torch.randn(300, 70), "wide": torch.randn(2, 5000)})
    ckpt = rustload.open(path, framework="torch")
    for lazy in ckpt.values():
        HostGpu.staging_buffers.clear()
        assert_same_bits(lazy.materialize("cuda", transpose=True), lazy.materialize(transpose=True))
        assert_same_bits(lazy.T.materialize("cuda", "float64"), lazy.T.materialize(dtype="float64"))
        # Two for each of the two results, as panels are whole slabs.
        assert len(HostGpu.staging_buffers) <= 4


def test_quantized_tensors_are_dequantized(save):
    plain = torch.quantize_per_tensor(torch.randn(40, 30), 0.1, 3, torch.quint8)
    channels = torch.quantize_per_channel(
        torch.randn(40, 30), torch.rand(30) + 0.1, torch.zeros(30, dtype=torch.long), 1, torch.qint8
    )
    ckpt = rustload.open(save({"plain": plain, "channels": channels}), framework="torch")
    for name in ("plain", "channels"):
        lazy = ckpt[name]
        for dtype, order in itertools.product((None, "bfloat16"), (None, True)):
            how: Any = {"dtype": dtype, "transpose": order, "dequantize": True}
            found, expected = lazy.materialize("cuda", **how), lazy.materialize(**how)
            assert_same_bits(found, expected), name
        part = lazy[3:20, ::2]
        assert_same_bits(part.materialize("cuda", dequantize=True), part.materialize(dequantize=True))


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("cast", CASTS)
def test_joined_tensors_equal_the_cpus(save, cast):
    path = save({name: torch.randn(size, 24) for name, size in (("q", 32), ("k", 8), ("none", 0), ("v", 16))})
    ckpt = rustload.open(path, framework="torch")
    q, k, none, v = ckpt.values()
    joined = [rustload.concat([q, k, none, v]), rustload.concat([q[:8], k, v[8:]], dim=1)]
    joined += [rustload.stack([q[:8], k, v[:8]], dim=dim) for dim in range(3)]
    joined += [joined[0][4:50, ::3], joined[0].T, joined[4].permute(2, 0, 1), joined[0][40:], joined[0][:0]]
    for lazy in joined:
        for dtype, order in itertools.product((None, "bfloat16", "float64"), (None, True)):
            expected = lazy.materialize(dtype=dtype, transpose=order)
            assert_same_bits(lazy.materialize("cuda", dtype, order, cast=cast), expected)


def test_meta_tensors_stay_on_meta(save):
    path = save({"m": torch.empty(3, 4, device="meta"), "w": torch.ones(3)})
    ckpt = rustload.open(path, framework="torch")
    assert ckpt["m"].materialize("cuda").device.type == "meta"
    assert [t.device.type for _, t in ckpt.stream(device="cuda")] == ["meta", "cpu"]


# Into existing memory (`out=`).


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("cast", CASTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_out_may_have_any_layout(save, cast, dtype):
    lazy = rustload.open(save({"w": torch.randn(60, 48)}), framework="torch")["w"]
    expected = lazy.materialize(dtype=dtype)
    whole = torch.zeros(120, 96, dtype=dtype)
    for out in (
        torch.zeros(60, 48, dtype=dtype),
        torch.zeros(48, 60, dtype=dtype).T,
        whole[::2, ::2],
        whole[60:, 7:55],
    ):
        before = out._version
        assert lazy.materialize(out=out, cast=cast) is out
        assert torch.equal(out, expected)
        assert out._version > before
        turned = out.T
        assert torch.equal(lazy.T.materialize(out=turned, cast=cast), expected.T)
    quantized = torch.quantize_per_tensor(torch.randn(30, 20), 0.1, 3, torch.quint8)
    lazy = rustload.open(save({"q": quantized}), framework="torch")["q"]
    out = torch.zeros(20, 30, dtype=torch.float32)
    lazy.materialize(out=out.T, dequantize=True, cast=cast)
    assert torch.equal(out.T, quantized.dequantize())


def test_out_must_fit(simple):
    lazy = rustload.open(simple, framework="torch")["w"]
    with pytest.raises(ValueError, match="shape"):
        lazy.materialize(out=torch.zeros(3, 3))
    conjugate = torch.zeros(4, 6, dtype=torch.complex64).conj()
    assert torch.equal(lazy.materialize(out=conjugate).real, lazy.materialize())


# Frameworks without an allocator.


def bytes_of(buffer: rustload.Buffer) -> bytes:
    return fakecuda.read(buffer)


@pytest.mark.parametrize("cast", CASTS)
def test_buffers_equal_the_cpus(many, cast):
    ckpt = rustload.open(many[0], framework="dlpack")
    for device, how in (
        ("cuda", {}),
        (0, {"dtype": "float16"}),
        ("cuda:0", {"transpose": {"*.weight": True}}),
    ):
        for name, buffer in ckpt.stream(device=device, cast=cast, sync=False, **how):
            request: Any = {
                "dtype": buffer.dtype,
                "transpose": "transpose" in how and name.endswith(".weight"),
            }
            assert buffer.__dlpack_device__() == (2, 0)
            assert bytes_of(buffer) == ckpt[name].materialize(copy=True, **request).tobytes()
    w = ckpt["large"]
    assert (
        bytes_of(w.materialize("cuda", "float32", transpose=True))
        == w.materialize(dtype="float32", transpose=True).tobytes()
    )
    out = w.materialize("cuda")
    assert ckpt["tied"].materialize(out=out) is out
    assert bytes_of(out) == w.materialize().tobytes()
    empty = ckpt["layer.000.bias"].materialize("cuda")
    assert (empty.shape, empty.nbytes) == ((0,), 0)
    joined = rustload.concat([w, w])
    assert bytes_of(joined.materialize("cuda")) == joined.materialize().tobytes()
    with pytest.raises(rustload.UnsupportedError, match="first dimension"):
        rustload.concat([w, w], dim=1).materialize("cuda")
    with pytest.raises(BufferError, match="copy=False is not possible"):
        w.materialize("cuda", copy=False)
    for wrong in ("cuda:7", "cuda:x", "toaster"):
        with pytest.raises(rustload.DeviceError):
            w.materialize(wrong)


def test_results_that_the_core_makes_alone_are_found_in_one_call(save):
    state = {
        "plain": torch.ones(4, 6),
        "turned": torch.ones(4, 6).T,
        "half": torch.ones(5, dtype=torch.float16),
        "int": torch.arange(3),
        "empty": torch.ones(0, 3),
        "large": torch.ones(1000),
    }
    cores = [lazy._core for lazy in rustload.open(save(state)).values()]

    def found(request: Request, cast_below: int = 1000) -> dict[str, int]:
        sizes = _rustload.direct_upload_bytes([(core, request) for core in cores], cast_below)
        return {core.name: nbytes for core, nbytes in zip(cores, sizes, strict=True) if nbytes}

    plain = {"plain": 96, "half": 10, "int": 24, "large": 4000}
    assert found(Request()) == plain
    assert found(Request(copy=True)) == plain
    assert (
        found(Request(copy=False)) == found(Request(transpose=True)) == found(Request(dequantize=True)) == {}
    )
    assert found(Request(dtype="float16")) == {"plain": 48, "half": 10, "int": 6}
    assert found(Request(dtype="float16"), 0) == {"half": 10}
    assert found(Request(dtype="float32"), 1 << 62) == {"plain": 96, "int": 12, "large": 4000}


def test_parts_for_tensors_are_cut_one_behind_another(save):
    state = {f"{n}": torch.ones(n, 3, dtype=torch.float64) for n in range(1, 6)}
    cores = [lazy._core for lazy in rustload.open(save(state)).values()]
    upload = _rustload.upload(0, window=1 << 20, threads=1)
    whole = upload.allocate(1000)
    parts, end = whole.parts(10, 256, cores, [None, "float32", None, None, None])
    assert [(part.dtype, part.shape) for part in parts] == [
        ("float64", (1, 3)),
        ("float32", (2, 3)),
        ("float64", (3, 3)),
    ]
    start, _ = fakecuda.address_and_size(whole)
    assert [fakecuda.address_and_size(part)[0] - start for part in parts] == [256, 512, 768]
    assert end == 768 + 72
    assert whole.parts(1000, 256, cores, [None] * 5) == ([], 1000)
    with pytest.raises(ValueError, match="not aligned"):
        whole.parts(1, 1, cores, [None] * 5)
    with pytest.raises(ValueError, match="dtype"):
        whole.parts(0, 256, cores, ["float33"] * 5)
    del whole, parts


def test_cuda_info_finds_the_fake_driver():
    found = rustload.cuda_info()
    assert found["available"]
    assert found["reason"] is None
    assert found["devices"] == _rustload.cuda_info()["devices"] == 1
