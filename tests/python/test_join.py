"""`rustload.concat` and `rustload.stack`: equal to `torch.cat` and `torch.stack`, without copies of the parts."""

import itertools
import os
import pickle

import numpy as np
import pytest
import torch
from support import assert_same_bits, assert_same_values, child

import rustload

SHAPES = [(4, 3, 5), (4, 7, 5), (4, 1, 5)]


@pytest.fixture
def parts():
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator) for shape in SHAPES]


@pytest.fixture
def ckpt(save, parts):
    # A part that is stored transposed.
    odd = parts[1].permute(2, 0, 1).contiguous().permute(1, 2, 0)
    return rustload.open(save({"a": parts[0], "b": odd, "c": parts[2]}))


@pytest.mark.parametrize("dim", [1, -2])
def test_concat_equals_torch_cat(ckpt, parts, dim):
    joined = rustload.concat(ckpt.values(), dim=dim)
    expected = torch.cat(parts, dim=dim)
    assert (joined.shape, joined.dtype, joined.ndim) == (expected.shape, "float32", 3)
    assert (joined.size, joined.nbytes) == (expected.numel(), expected.nbytes)
    assert joined.strides == expected.stride()
    assert_same_bits(joined.materialize(), expected)


@pytest.mark.parametrize("dim", [0, 1, 2, -1, -3])
def test_stack_equals_torch_stack(save, dim):
    parts = [torch.randn(5, 6) for _ in range(3)]
    ckpt = rustload.open(save(dict(zip("abc", parts, strict=True))))
    joined = rustload.stack(list(ckpt.values()), dim)
    assert_same_bits(joined.materialize(), torch.stack(parts, dim))
    assert_same_bits(joined.materialize(transpose=True), torch.stack(parts, dim).mT.contiguous())


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
@pytest.mark.parametrize("dtype", [None, "bfloat16", "float64"])
def test_joined_tensors_are_permuted_and_cast(ckpt, parts, order, dtype):
    expected = torch.cat(parts, 1).permute(order).contiguous()
    if dtype:
        expected = expected.to(getattr(torch, dtype))
    joined = rustload.concat(ckpt.values(), dim=1)
    assert_same_values(joined.materialize(dtype=dtype, transpose=order), expected)
    assert_same_values(joined.permute(*order).materialize(dtype=dtype), expected)


@pytest.mark.parametrize("seed", range(6))
def test_large_transposed_parts_do_not_overwrite_one_another(save, seed):
    """A row of the result has bytes of every part, and rows do not end on the boundaries of huge pages."""
    random = np.random.default_rng(seed)
    columns, *rows = (
        int(random.integers(*bounds)) for bounds in ((2500, 4500), (300, 1500), (1, 700), (300, 1500))
    )
    parts = [torch.from_numpy(random.random((size, columns), dtype=np.float32) + 1) for size in rows]
    ckpt = rustload.open(save(dict(zip("abc", parts, strict=True))))
    expected = torch.cat(parts).T.contiguous()
    rustload.trim()  # so that the result is new memory, whose pages are touched first
    turned = rustload.concat([tensor.T for tensor in ckpt.values()], dim=1)
    assert_same_bits(turned.materialize(), expected)
    rustload.trim()
    assert_same_bits(rustload.concat(ckpt.values()).materialize(transpose=True), expected)
    out = torch.empty_like(expected)
    turned.materialize(out=out)
    assert_same_bits(out, expected)
    rustload.trim()
    cast = rustload.concat(ckpt.values()).materialize(transpose=True, dtype="bfloat16")
    assert_same_bits(cast, expected.bfloat16())


@pytest.mark.parametrize("seed", range(4))
def test_large_stacks_in_any_permutation(save, seed):
    random = np.random.default_rng(seed)
    shape = tuple(int(size) for size in random.integers(60, 170, 3))
    parts = [torch.from_numpy(random.random(shape, dtype=np.float32)) for _ in range(3)]
    ckpt = rustload.open(save(dict(zip("abc", parts, strict=True))))
    for dim in range(4):
        order = [int(axis) for axis in random.permutation(4)]
        rustload.trim()
        found = rustload.stack(ckpt.values(), dim).materialize(transpose=order)
        assert_same_bits(found, torch.stack(parts, dim).permute(order).contiguous())


def test_reversed_dimensions(ckpt, parts):
    joined = rustload.concat(ckpt.values(), dim=1).T
    assert joined.shape == (5, 11, 4)
    assert_same_bits(joined.materialize(), torch.cat(parts, 1).permute(2, 1, 0).contiguous())
    assert_same_bits(joined.T.materialize(), torch.cat(parts, 1))


KEYS = [
    np.s_[2], np.s_[:, 2], np.s_[:, 3], np.s_[:, -1], np.s_[:, 10], np.s_[:, 1:9], np.s_[:, 3:10], np.s_[:, 4:6], np.s_[:, ::3],
    np.s_[:, 2::4], np.s_[:, 9::5], np.s_[:, 5:5], np.s_[:, 11:], np.s_[1:3, ::2, 1:], np.s_[..., 1], np.s_[..., ::2, :],
    np.s_[None], np.s_[:, None, 2:8], np.s_[:, 2:8, None], np.s_[1, 2:8, 3], np.s_[1, 2, 3], np.s_[1, 10, 3], np.s_[..., None],
    np.s_[:, 0:100:100], np.s_[0:0],
]  # fmt: skip


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_indexing_equals_torchs(ckpt, parts, key):
    found = rustload.concat(ckpt.values(), dim=1)[key]
    expected = torch.cat(parts, 1)[key]
    assert found.shape == expected.shape
    assert_same_bits(found.materialize(), expected.contiguous())
    if found.ndim > 1:
        assert_same_values(
            found.materialize(dtype="float16", transpose=True), expected.half().mT.contiguous()
        )
        assert_same_bits(found.T[:1].materialize(), expected.permute(*range(expected.ndim)[::-1])[:1].contiguous())  # fmt: skip


def test_indexing_drops_parts_outside_the_index(ckpt):
    joined = rustload.concat(ckpt.values(), dim=1)
    assert [part.name for part in joined.parts] == ["a", "b", "c"]
    assert [part.name for part in joined[:, 4:9].parts] == ["b"]
    assert [part.shape for part in joined[:, 2:4].parts] == [(4, 1, 5), (4, 1, 5)]


def test_parts_may_be_slices_of_several_checkpoints(save, parts):
    first = rustload.open(save({"a": parts[0]}, "one.bin"))
    second = rustload.open(save({"b": parts[1]}, "two.safetensors"))
    joined = rustload.concat([first["a"][:, 1:], second["b"][:, ::2], first["a"]], dim=1)
    expected = torch.cat([parts[0][:, 1:], parts[1][:, ::2], parts[0]], dim=1)
    assert_same_bits(joined.materialize(), expected)


@pytest.mark.parametrize("restored", [False, True])
def test_parts_of_several_checkpoints_share_no_storage(save, restored):
    """Also where they have the same place in their files."""
    values = {name: torch.full((4,), float(number)) for number, name in enumerate("abc", 1)}
    paths = [save({name: value}, f"{name}.pt") for name, value in values.items()]
    joined = rustload.concat([next(iter(rustload.open(path).values())) for path in paths])
    if restored:
        joined = pickle.loads(pickle.dumps(joined))
    for how in ({}, {"framework": "jax"}, {"framework": "numpy"}, {"copy": True}):
        found = {part.name: part.materialize(**how) for part in joined.parts}  # all live at once
        for name, value in values.items():
            assert np.array_equal(found[name], value), (how, name)
    views = [joined.parts[at].materialize() for at in (0, 1, 1)]
    views[1].zero_()
    assert [int(view[0]) for view in views] == [1, 0, 0]


@pytest.mark.parametrize("dtype", ["bool", "int64", "complex64", "float8_e4m3fn", "bfloat16"])
def test_any_dtype(save, dtype):
    parts = [torch.arange(12).reshape(3, 4).to(getattr(torch, dtype)) for _ in range(2)]
    ckpt = rustload.open(save(dict(zip("ab", parts, strict=True))))
    expected = torch.cat([part.view(torch.uint8) for part in parts], 1).view(getattr(torch, dtype))
    assert_same_bits(rustload.concat(ckpt.values(), 1).materialize(), expected)


def test_lazy_conjugates_are_resolved(tmp_path):
    parts = [torch.randn(4, 4, dtype=torch.complex64) for _ in range(2)]
    torch.save({"a": parts[0].conj(), "b": parts[1]}, tmp_path / "m.bin")
    found = rustload.concat(rustload.open(tmp_path / "m.bin").values(), 1)
    assert_same_bits(found.materialize(), torch.cat([parts[0].conj(), parts[1]], 1))


@pytest.mark.parametrize("shapes", [[(0, 3), (2, 3)], [(2, 0), (2, 3)], [(0, 3), (0, 3)], [(1, 3), (1, 2)]])
def test_empty_and_single_rows(save, shapes):
    dim = 1 if shapes[0][0] == shapes[1][0] and shapes[0] != shapes[1] else 0
    parts = [torch.randn(shape) for shape in shapes]
    ckpt = rustload.open(save(dict(zip("ab", parts, strict=True))))
    assert_same_bits(rustload.concat(ckpt.values(), dim).materialize(), torch.cat(parts, dim))


def test_large_joins_on_several_threads(save):
    parts = [torch.randn(3000, width) for width in (700, 301, 1024)]
    ckpt = rustload.open(save(dict(zip("abc", parts, strict=True))))
    expected = torch.cat(parts, 1)
    joined = rustload.concat(ckpt.values(), 1)
    for threads in (1, 2, 5):
        assert_same_bits(joined.materialize(threads=threads), expected)
        assert_same_values(
            joined.materialize(dtype="bfloat16", transpose=True, threads=threads), expected.bfloat16().t().contiguous()
        )  # fmt: skip


def test_other_frameworks_and_out(ckpt, parts):
    expected = torch.cat(parts, 1)
    joined = rustload.concat(ckpt.values(), 1)
    assert joined.numpy().tolist() == expected.tolist()
    assert np.asarray(joined).tolist() == expected.tolist()
    assert torch.from_dlpack(joined).equal(expected)
    assert joined.bytes() == expected.numpy().tobytes()
    out = torch.empty(4, 11, 5, dtype=torch.float16)
    assert joined.materialize(out=out) is out
    assert_same_values(out, expected.half())
    array = np.empty((4, 5, 11), np.float64)
    joined.materialize(out=array, transpose=True)
    assert array.tolist() == expected.mT.tolist()
    with pytest.raises(ValueError, match="shape"):
        joined.materialize(out=torch.empty(4, 11))
    with pytest.raises(BufferError, match="are not contiguous in the file"):
        joined.materialize(copy=False)
    with pytest.raises(BufferError, match="are not contiguous in the file"):
        joined.materialize(copy=False, framework="numpy")


def test_parts_that_do_not_match_are_named(save):
    ckpt = rustload.open(
        save({"q": torch.zeros(4, 3), "k": torch.zeros(4, 2), "i": torch.zeros(4, 3, dtype=torch.int32), "v": torch.zeros(4)})
    )  # fmt: skip
    with pytest.raises(
        ValueError, match=r'"q" and "k" cannot be joined: their shapes are \[4, 3\] and \[4, 2\]'
    ):
        rustload.concat([ckpt["q"], ckpt["q"], ckpt["k"]])
    with pytest.raises(ValueError, match=r'"q" and "k".*shapes'):
        rustload.stack([ckpt["q"], ckpt["k"]])
    with pytest.raises(ValueError, match=r'"q" and "v".*shapes'):
        rustload.stack([ckpt["q"], ckpt["v"]])
    with pytest.raises(ValueError, match=r'"q" and "i".*float32 and int32'):
        rustload.concat([ckpt["q"], ckpt["i"]])
    with pytest.raises(IndexError, match="dim=2"):
        rustload.concat([ckpt["q"]], dim=2)
    with pytest.raises(IndexError, match="dim=-4"):
        rustload.stack([ckpt["q"]], dim=-4)
    with pytest.raises(ValueError, match="empty"):
        rustload.concat([])
    for wrong in (ckpt["q"], 3, [torch.zeros(3)], ["q"]):
        with pytest.raises(TypeError, match="lazy tensor"):
            rustload.concat(wrong)
    with pytest.raises(TypeError, match=r"rustload\.concat"):
        rustload.JoinedTensor()


def test_a_joined_tensor_has_no_name_and_its_own_repr(ckpt):
    joined = rustload.concat(ckpt.values(), 1)
    assert (joined.name, joined.path, joined.is_contiguous, joined.requires_grad) == ("", (), False, False)
    assert repr(joined) == "<JoinedTensor of 3 float32 [4, 11, 5] 880 B>"
    assert isinstance(joined, rustload.LazyTensor)
    assert isinstance(joined[1:], rustload.JoinedTensor)
    assert len(list(joined)) == 4


def test_an_error_while_reading_names_the_part(save):
    path = save({"a": torch.randn(100, 1000), "b": torch.randn(100, 1000)})
    ckpt = rustload.open(path)
    joined = rustload.concat(ckpt.values(), 1)
    os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(rustload.FormatError, match="changed") as caught:
        joined.materialize()
    assert (caught.value.code, caught.value.member) == ("FileChanged", "b")


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("changed", ["one.bin", "two.bin"])
def test_a_changed_file_is_an_error_although_no_byte_is_missing(save, dim, changed):
    paths = [save({"w": torch.ones(4, 3)}, name) for name in ("one.bin", "two.bin")]
    joined = rustload.concat([rustload.open(path)["w"] for path in paths], dim=dim)
    path = paths[0].with_name(changed)
    os.utime(path, (1, 1))
    for how in ({}, {"dtype": "bfloat16"}, {"transpose": True}):
        with pytest.raises(rustload.FormatError, match="changed") as caught:
            joined.materialize(**how)
        assert (caught.value.code, caught.value.path) == ("FileChanged", str(path))


@pytest.mark.parametrize("how", ["dict(copy=True)", "dict(dtype='bfloat16')", "dict(transpose=True)"])
def test_no_part_is_copied(save, how):
    """Six parts of 16 MiB: the peak is the result and the scratch buffers."""
    path = save({f"t{n}": torch.full((4096, 1024), float(n)) for n in range(6)})
    code = """
    import sys, rustload
    from process_memory import status
    joined = rustload.concat(rustload.open(sys.argv[1], framework="dlpack").values(), dim=1)
    base = status("VmRSS")
    result = joined.materialize(**eval(sys.argv[2]))
    print((status("VmHWM") - base - result.nbytes) >> 20)
    """
    assert int(child(code, path, how).stdout) < 12


@pytest.mark.filterwarnings(
    "ignore:torch.quantize_per_tensor:UserWarning"
)  # torch deprecates quantized tensors; files still have them
def test_quantized_tensors_are_not_joined(save):
    ckpt = rustload.open(save({"q": torch.quantize_per_tensor(torch.ones(2), 0.5, 1, torch.qint8)}))
    for join in (rustload.concat, rustload.stack):
        with pytest.raises(rustload.UnsupportedError, match='"q" is quantized'):
            join([ckpt["q"], ckpt["q"]])
