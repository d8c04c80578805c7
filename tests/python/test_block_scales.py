"""fp8 weights with one scale for each block of 128 x 128 elements: `weight` and `weight_scale_inv`."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support import bits, write_shards
from test_dtensor import as_rank
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard

import rustload
import rustload.torch

SHAPES = [
    (256, 384),
    (300, 200),
    (1, 1),
    (129, 127),
    (5, 640),
    (640, 5),
    (200, 1),
    (3, 130, 257),
    (2, 2, 128, 129),
]


def blocks(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (*shape[:-2], -(-shape[-2] // 128), -(-shape[-1] // 128))


def scaled(
    shape: tuple[int, ...],
    dtype: torch.dtype = torch.float8_e4m3fn,
    scale: torch.dtype = torch.float32,
    seed: int = 0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """A weight with every byte, NaN among them, and its scales."""
    made = torch.Generator().manual_seed(seed)
    weight = torch.randint(0, 256, shape, generator=made, dtype=torch.uint8).view(dtype)
    scales = torch.rand(blocks(shape), generator=made) * 0.01 + 1e-4
    return weight, scales.to(scale)


def reference(weight: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """The formula of DeepSeek's kernel, in float32."""
    rows, columns = weight.shape[-2:]
    wide = scale.float().repeat_interleave(128, -2)[..., :rows, :].repeat_interleave(128, -1)[..., :columns]
    return (weight.float() * wide).to(dtype)


def same(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    """Equal bits; of NaN, which casts make with other payloads than torch's, only the place."""
    if (found.dtype, found.shape) != (wanted.dtype, wanted.shape):
        return False
    if found.dtype.is_floating_point and found.dtype.itemsize > 1:
        nan = found.isnan()
        if not torch.equal(nan, wanted.isnan()):
            return False
        found, wanted = found.masked_fill(nan, 0), wanted.masked_fill(nan, 0)
    return bits(found.contiguous()) == bits(wanted.contiguous())


def state() -> dict[str, torch.Tensor]:
    found = {}
    for number, shape in enumerate(SHAPES):
        found[f"l{number}.weight"], found[f"l{number}.weight_scale_inv"] = scaled(shape, seed=number)
    found["e5.weight"], found["e5.weight_scale_inv"] = scaled((130, 260), torch.float8_e5m2)
    for name, dtype in {"bf": torch.bfloat16, "e8": torch.float8_e8m0fnu}.items():
        found[f"{name}.weight"], found[f"{name}.weight_scale_inv"] = scaled((130, 260), scale=dtype)
    found["experts.down_proj"], found["experts.down_proj_scale_inv"] = scaled((3, 130, 130))
    found["norm.weight"] = torch.ones(3)
    return found


def expected(given: dict[str, torch.Tensor], dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    """The weights with scales."""
    names = [name for name in given if f"{name}_scale_inv" in given]
    return {name: reference(given[name], given[f"{name}_scale_inv"], dtype) for name in names}


@pytest.fixture(params=["safetensors", "pt", "legacy", "sharded"])
def file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    given = state()
    path = tmp_path / f"m.{request.param}"
    if request.param == "safetensors":
        save_file(given, path)
    elif request.param == "sharded":
        # The scales are in another file than the weights.
        halves: list[dict[str, torch.Tensor]] = [{}, {}]
        for name, tensor in given.items():
            halves[name.endswith("_inv")][name] = tensor
        write_shards(path, halves)
    else:
        torch.save(given, path, _use_new_zipfile_serialization=request.param == "pt")
    return path


def test_dequantized_weights_equal_the_formula_bit_for_bit(file):
    ckpt, given = rustload.open(file), state()
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
        for name, wanted in expected(given, dtype).items():
            found = ckpt[name].materialize(dtype=None if dtype == torch.float32 else dtype, dequantize=True)
            assert same(found, wanted), (name, dtype)
    lazy = ckpt["l1.weight"]
    assert lazy.block_scale is not None
    assert lazy.block_scale.name == "l1.weight_scale_inv"
    assert lazy.block_scale.shape == (3, 2)
    # Without `dequantize`, and for tensors without scales, nothing changes.
    assert same(lazy.materialize(), given["l1.weight"])
    assert same(ckpt["norm.weight"].materialize(dequantize=True), given["norm.weight"])
    assert ckpt["norm.weight"].block_scale is None
    assert ckpt["l1.weight_scale_inv"].block_scale is None


def test_parts_of_weights_get_the_scales_of_the_part(file):
    ckpt, chosen = rustload.open(file), random.Random(1)
    for name, whole in expected(state()).items():
        for _ in range(6):
            key: tuple[Any, ...] = tuple(
                slice(*sorted(chosen.sample(range(size + 1), 2)), chosen.choice((1, 1, 3)))
                if chosen.random() < 0.8
                else chosen.randrange(size)
                for size in whole.shape
            )
            assert same(ckpt[name][key].materialize(dequantize=True), whole[key]), (name, key)
            part = ckpt[name][key]
            reversed_ = whole[key].permute([*reversed(range(part.ndim))])
            assert same(part.T.materialize(dequantize=True), reversed_), (name, key)
        turned = ckpt[name].materialize(dtype="bfloat16", transpose=True, dequantize=True)
        assert same(turned, whole.mT.bfloat16()), name


def test_streams_and_dicts_dequantize(file):
    ckpt, wanted = rustload.open(file), expected(state(), torch.bfloat16)
    found = dict(ckpt.stream(dtype="bfloat16", dequantize=True))
    assert all(same(found[name], one) for name, one in wanted.items())
    assert found["norm.weight"].dtype == torch.bfloat16
    full = ckpt.materialize(list(wanted), dequantize=True)
    assert all(same(full[name], one) for name, one in expected(state()).items())
    out = torch.empty(300, 200, dtype=torch.float16)
    ckpt["l1.weight"].materialize(out=out, dequantize=True)
    assert same(out, expected(state(), torch.float16)["l1.weight"])


def test_convert_writes_numbers_and_leaves_out_the_scales(file, tmp_path):
    given = state()
    report = rustload.convert(file, tmp_path / "out.safetensors", dtype="bfloat16", dequantize=True)
    written, wanted = load_file(tmp_path / "out.safetensors"), expected(given, torch.bfloat16)
    assert set(written) == {*wanted, "norm.weight"}
    assert all(same(written[name], one) for name, one in wanted.items())
    assert report.converted == len(written)
    rustload.convert(file, tmp_path / "full.safetensors", dequantize=True)
    full = load_file(tmp_path / "full.safetensors")
    assert all(same(full[name], one) for name, one in expected(given).items())
    # Without it, weights and scales are copied.
    rustload.convert(file, tmp_path / "same.safetensors")
    assert set(load_file(tmp_path / "same.safetensors")) == set(given)


class Model(torch.nn.Module):
    """Two weights of the file, and one tensor without a scale."""

    def __init__(self) -> None:
        super().__init__()
        self.l0 = torch.nn.Linear(384, 256, bias=False)
        self.l1 = torch.nn.Linear(200, 300, bias=False)
        self.norm = torch.nn.LayerNorm(3, bias=False)


def test_load_into_a_model_dequantizes(file):
    given = {name: one for name, one in state().items() if name.startswith(("l0", "l1", "norm"))}
    wanted = expected(given, torch.bfloat16)
    chosen = rustload.open(file).select(list(given))
    for on_meta in (False, True):
        with torch.device("meta" if on_meta else "cpu"):
            model = Model().bfloat16()
        report = rustload.torch.load_into(model, chosen, dequantize=True)
        assert (report.missing, report.unexpected) == ([], [])
        found = model.state_dict()
        assert all(same(found[name], one) for name, one in wanted.items())
    with torch.device("meta"):
        model = Model()
    rustload.torch.load_into(model, chosen, dequantize=True, assign=True)
    assert all(same(model.state_dict()[name], one) for name, one in expected(given).items())
    with torch.device("meta"):
        model = Model()
    rustload.torch.load_into(model, chosen, dequantize=True, dtype="bfloat16")
    assert all(same(model.state_dict()[name], one) for name, one in wanted.items())
    with pytest.raises(rustload.ModelMismatchError) as caught:
        rustload.torch.load_into(Model(), chosen)
    assert any("dequantize=True" in note for note in caught.value.__notes__)


def test_each_rank_dequantizes_its_own_rows(file):
    wanted = expected(state(), torch.bfloat16)["l1.weight"]
    for rank in (0, 1, 2):
        with as_rank(rank, 3):
            with torch.device("meta"):
                model = torch.nn.Linear(200, 300, bias=False, dtype=torch.bfloat16)
            fully_shard(model, mesh=init_device_mesh("cpu", (3,)))
            chosen = rustload.open(file).select(["l1.weight", "l1.weight_scale_inv"])
            rustload.torch.load_into(model, chosen, strip="l1.", dequantize=True)
            assert same(model.weight.to_local().detach(), wanted.chunk(3)[rank])


def test_weights_in_parts_are_dequantized(tmp_path):
    weight, scale = scaled((300, 200))
    paths = []
    for rank in range(2):
        with as_rank(rank, 2):
            mesh = init_device_mesh("cpu", (2,))
            made = DTensor.from_local(weight.chunk(2)[rank].clone(), mesh, [Shard(0)], run_check=False)
            paths.append(tmp_path / f"{rank}.pt")
            torch.save({"w": made, "w_scale_inv": scale}, paths[-1])
    ckpt, wanted = rustload.open(paths), reference(weight, scale)
    assert same(ckpt["w"].materialize(dequantize=True), wanted)
    assert same(ckpt["w"][149:152, 100:].materialize(dequantize=True), wanted[149:152, 100:])
    rustload.convert(paths, tmp_path / "m.safetensors", dequantize=True)
    assert same(load_file(tmp_path / "m.safetensors")["w"], wanted)


def test_one_scale_for_all_elements_multiplies_all(tmp_path):
    weight, _ = scaled((130, 7))
    for shape in ((), (1,)):
        scale = torch.full(shape, 0.37)
        save_file({"w": weight, "w_scale_inv": scale}, tmp_path / "m.safetensors")
        found = rustload.open(tmp_path / "m.safetensors")["w"].materialize(dequantize=True)
        assert same(found, weight.float() * 0.37)


def test_scales_of_another_shape_are_an_error(tmp_path):
    weight, _ = scaled((300, 200))
    for shape in ((2, 2), (3, 1), (6,), (3, 2, 1), (0, 2)):
        save_file({"w": weight, "w_scale_inv": torch.ones(shape)}, tmp_path / "m.safetensors")
        lazy = rustload.open(tmp_path / "m.safetensors")["w"]
        assert lazy.materialize().shape == (300, 200)
        with pytest.raises(rustload.FormatError, match="blocks of 128 x 128") as caught:
            lazy.materialize(dequantize=True)
        assert caught.value.code == "TensorBounds"
    with pytest.raises(ValueError, match="float dtype"):
        lazy.materialize(dtype="int8", allow_lossy=True, dequantize=True)


def test_a_chain_of_scales_of_scales_is_followed_once(tmp_path):
    weight, _ = scaled((1, 1))
    names = ["w" + "_scale_inv" * count for count in range(3000)]
    save_file({name: weight.clone() for name in names}, tmp_path / "m.safetensors")
    ckpt = rustload.open(tmp_path / "m.safetensors")
    one = ckpt["w"].materialize(dequantize=True)
    assert same(one, weight.float() * weight.float())
    rustload.convert(tmp_path / "m.safetensors", tmp_path / "out", dequantize=True, resume=True)


def test_tied_weights_with_different_scales_differ(tmp_path):
    weight, scale = scaled((130, 7))
    given = {"a": weight, "a_scale_inv": scale, "b": weight, "b_scale_inv": scale * 2, "c": weight}
    torch.save(given, tmp_path / "m.pt")
    ckpt = rustload.open(tmp_path / "m.pt")
    found = dict(ckpt.stream(["a", "b"], dequantize=True))
    assert same(found["a"], reference(weight, scale))
    assert same(found["b"], reference(weight, scale * 2))
    # Without scales, the weight has no values.
    with pytest.raises(rustload.UnsupportedError, match="no scales are beside it"):
        ckpt["c"].materialize(dequantize=True)
    assert same(dict(ckpt.stream())["c"], weight)
