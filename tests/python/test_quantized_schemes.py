"""The codes of quantized weights are never read as numbers, and their scales are never cast."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from support import bits, divided, same, write_shards
from test_dtensor import as_rank
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

import rustload
import rustload.torch
from rustload._cli import main

ROWS, COLUMNS = 256, 256


def made(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Every byte, in an order of its own for each shape."""
    count = int(np.prod(shape)) * dtype.itemsize
    numbers = np.random.default_rng(count).integers(0, 256, count, dtype=np.uint8)
    return torch.from_numpy(numbers).view(dtype).reshape(shape)


def fp8(*shape: int) -> torch.Tensor:
    return made(shape or (ROWS, COLUMNS), torch.float8_e4m3fn)


def scales(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    made = torch.Generator().manual_seed(len(shape))
    return (torch.rand(shape, generator=made) * 0.01 + 1e-4).to(dtype)


I32, U8, I8 = torch.int32, torch.uint8, torch.int8
E8M0 = torch.float8_e8m0fnu

STORED: dict[str, tuple[str, dict[str, torch.Tensor]]] = {
    "fp8 by block": ("a.weight", {"a.weight": fp8(), "a.weight_scale_inv": scales(2, 2)}),
    "fp8 alone": ("a.weight", {"a.weight": fp8()}),
    "fp8 with two scales": (
        "a.weight",
        {"a.weight": fp8(), "a.weight_scale": scales(1), "a.weight_scale_inv": scales(2, 2)},
    ),
    "fp8 with a scale of an unknown name": ("a.weight", {"a.weight": fp8(), "a.scale_of_weight": scales(1)}),
    "NVFP4 of ModelOpt": (
        "a.weight",
        {"a.weight": made((8, 16), U8), "a.weight_scale": fp8(8, 2), "a.weight_scale_2": scales()},
    ),
    "NVFP4 of compressed-tensors": (
        "a.weight_packed",
        {
            "a.weight_packed": made((8, 16), U8),
            "a.weight_scale": fp8(8, 2),
            "a.weight_global_scale": scales(1),
        },
    ),
    "FP4 of DeepSeek-V4": (
        "a.weight",
        {"a.weight": made((8, 16), I8), "a.scale": made((8, 1), E8M0)},
    ),
    "FP4 with an inverse scale": (
        "a.weight",
        {"a.weight": made((8, 16), I8), "a.weight_scale_inv": scales(1, 1)},
    ),
    "int4 of Kimi": (
        "a.weight_packed",
        {
            "a.weight_packed": made((8, 16), I32),
            "a.weight_scale": scales(8, 4, dtype=torch.bfloat16),
            "a.weight_shape": torch.tensor([8, 128]),
        },
    ),
    "MXFP4 of gpt-oss": (
        "m.gate_up_proj_blocks",
        {"m.gate_up_proj_blocks": made((2, 8, 1, 16), U8), "m.gate_up_proj_scales": made((2, 8, 1), U8)},
    ),
    "GPTQ": (
        "a.qweight",
        {
            "a.qweight": made((4, 16), I32),
            "a.qzeros": made((1, 2), I32),
            "a.scales": scales(1, 16, dtype=torch.float16),
            "a.g_idx": torch.zeros(32, dtype=I32),
        },
    ),
    "nf4 of bitsandbytes": (
        "a.weight",
        {
            "a.weight": made((64, 1), U8),
            "a.weight.absmax": scales(2),
            "a.weight.quant_map": scales(16),
            "a.weight.quant_state.bitsandbytes__nf4": made((9,), U8),
        },
    ),
    "nf4 stored as bfloat16": (
        "a.weight",
        {
            "a.weight": torch.ones(32, 1, dtype=torch.bfloat16),
            "a.weight.absmax": scales(2),
            "a.weight.quant_state.bitsandbytes__nf4": made((9,), U8),
        },
    ),
    "int8 of bitsandbytes": ("a.weight", {"a.weight": made((8, 16), I8), "a.SCB": scales(8)}),
}

KNOWN = {
    name
    for name in STORED
    if name.startswith(("fp8 by", "NVFP4", "FP4 of DeepSeek", "int4", "MXFP4", "int8 of bitsandbytes"))
}
"""Those that the logical view has as weights: `convert` opens it, and what was opened without it has codes."""

PLAIN = {"norm.weight": torch.ones(3), "ids": torch.arange(6).reshape(1, 6), "a.bias": torch.ones(8)}


def opened(tensors: dict[str, torch.Tensor], folder: Path, kind: str = "safetensors") -> rustload.Checkpoint:
    """The tensors as one file, as a pickle, or with each in a file of its own."""
    if kind == "pt":
        torch.save(tensors, folder / "m.pt")
        return rustload.open(folder / "m.pt")
    if kind == "safetensors":
        save_file(tensors, folder / "m.safetensors")
        return rustload.open(folder / "m.safetensors")
    return rustload.open(write_shards(folder, divided(tensors, len(tensors))))


def decoded(tensors: dict[str, torch.Tensor], folder: Path) -> rustload.Checkpoint:
    """The tensors as one file, with the weights that codes mean."""
    return rustload.open(opened(tensors, folder).files[0], dequantize=True)


def refused(caught: pytest.ExceptionInfo[rustload.RustloadError], name: str) -> None:
    assert caught.value.code == "QuantUnknown"
    assert name in str(caught.value) + "".join(caught.value.__notes__)


@pytest.mark.parametrize("kind", ["safetensors", "pt", "sharded"])
@pytest.mark.parametrize("scheme", STORED)
def test_codes_are_an_error_and_never_numbers(scheme, kind, tmp_path):
    name, tensors = STORED[scheme]
    ckpt = opened(tensors | PLAIN, tmp_path, kind)
    whole = ckpt[name]
    assert bits(whole.materialize()) == bits(tensors[name])
    for handle in (whole, whole[1:3], whole.T, whole[..., ::2]):
        for dtype in (None, "bfloat16", whole.dtype):
            with pytest.raises(rustload.UnsupportedError) as caught:
                handle.materialize(dtype=dtype, dequantize=True)
            refused(caught, name)
    companions = [other for other in tensors if other != name]
    if companions:
        assert companions[0] in str(caught.value)
    with pytest.raises(rustload.UnsupportedError) as caught:
        whole.materialize(out=torch.empty(whole.shape), dequantize=True)
    refused(caught, name)
    calls: list[Any] = [
        lambda: ckpt.stream(dequantize=True),
        lambda: ckpt.materialize(dtype="bfloat16", dequantize=True),
        lambda: ckpt.materialize(dtype={name: whole.dtype}, dequantize=True),
        lambda: whole.stats(dequantize=True),
        lambda: rustload.diff(ckpt, ckpt, data=True, dequantize=True),
        lambda: rustload.save(ckpt, tmp_path / "out.safetensors", dequantize=True),
        lambda: rustload.torch.load_into(torch.nn.Linear(2, 2), ckpt, strict=False, dequantize=True),
    ]
    path = tmp_path if kind == "sharded" else ckpt.files[0]
    if scheme not in KNOWN:
        calls += [
            lambda: rustload.convert(path, tmp_path / "out", dequantize=True),
            rustload.open(path, dequantize=True)[name].materialize,
            rustload.open(path, dequantize=True).materialize,
        ]
    for call in calls:
        with pytest.raises(rustload.UnsupportedError) as caught:
            call()
        refused(caught, name)
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "out.safetensors").exists()
    # What belongs to the codes, and other tensors, are what they are.
    for other, tensor in (tensors | PLAIN).items():
        if other != name:
            assert same(ckpt[other].materialize(dequantize=True), tensor), other


def moved_name(name: str) -> str:
    return f"model.{name}"


@pytest.mark.parametrize("kind", ["safetensors", "pt", "sharded"])
@pytest.mark.parametrize("scheme", STORED)
def test_a_dtype_for_all_leaves_quantized_weights_as_stored(scheme, kind, tmp_path):
    _, tensors = STORED[scheme]
    given = tensors | PLAIN | {"attn.k_scale": scales(1)}
    ckpt = opened(given, tmp_path, kind)
    floats = {"torch.float32", "torch.float16"}
    kept = {name for name in {*tensors, "attn.k_scale"} if str(given[name].dtype) in floats}
    wanted = {
        name: one.bfloat16() if name in PLAIN and one.is_floating_point() else one
        for name, one in given.items()
    }
    path = tmp_path if kind == "sharded" else ckpt.files[0]
    converted = rustload.convert(path, tmp_path / "converted", dtype="bfloat16")
    saved = rustload.save(ckpt, tmp_path / "saved.safetensors", dtype="bfloat16")
    renamed = rustload.convert(path, tmp_path / "renamed", dtype="bfloat16", rename=moved_name)
    for report in (converted, saved):
        assert set(report.kept) == kept
        assert f"{len(kept)} tensor" in str(report)
    assert len(renamed.kept) == len(kept)
    with pytest.warns(rustload.RustloadWarning, match="belong to quantized weights"):
        found = ckpt.materialize(dtype="bfloat16")
    with pytest.warns(rustload.RustloadWarning, match="belong to quantized weights"):
        streamed = dict(ckpt.stream(dtype="bfloat16", transpose=lambda _: None))
    with pytest.warns(rustload.RustloadWarning, match="belong to quantized weights"):
        handles = rustload.torch.state_dict(ckpt, dtype="bfloat16")
    written = [rustload.open(tmp_path / name).materialize() for name in ("converted", "saved.safetensors")]
    moved = rustload.open(tmp_path / "renamed").materialize()
    for name, one in wanted.items():
        for result in (found, streamed, *written):
            assert same(result[name], one), name
        assert handles[name].dtype == one.dtype
        assert same(moved[moved_name(name)], one), name


def test_a_rule_that_names_scales_casts_them(tmp_path):
    given = {"a.weight": fp8(), "a.weight_scale_inv": scales(2, 2)}
    ckpt = opened(given, tmp_path)
    for rule in ({"*_scale_inv": "bfloat16"}, lambda tensor: "bfloat16" if "scale" in tensor.name else None):
        report = rustload.convert(ckpt.files[0], tmp_path / "out.safetensors", dtype=rule, overwrite=True)
        written = load_file(tmp_path / "out.safetensors")
        assert same(written["a.weight_scale_inv"], given["a.weight_scale_inv"].bfloat16())
        assert same(written["a.weight"], given["a.weight"])
        assert report.kept == ()
    assert ckpt["a.weight_scale_inv"].materialize(dtype="bfloat16").dtype == torch.bfloat16
    with pytest.warns(rustload.RustloadWarning, match="casts codes of the quantized weight 'a.weight'"):
        assert same(ckpt["a.weight"].materialize(dtype="float32"), given["a.weight"].float())


def test_load_into_notes_what_a_dtype_for_all_leaves(tmp_path):
    given = {"weight": fp8(4, 4), "weight_scale_inv": scales(1, 1)}
    ckpt = opened(given, tmp_path)
    model = torch.nn.Module()
    for name, one in given.items():
        model.register_buffer(name, torch.empty_like(one))
    report = rustload.torch.load_into(model, ckpt, dtype="bfloat16")
    assert any("belong to quantized weights" in note for note in report.notes)
    assert all(same(model.state_dict()[name], one) for name, one in given.items())


def wide(scale: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """The scale of each element in float32: scales are by block, by row, or one for all."""
    scale = scale.float()
    if scale.numel() == 1:
        return scale.reshape(1, 1).expand(rows, columns)
    if scale.shape in {(rows,), (rows, 1)}:
        return scale.reshape(rows, 1).expand(rows, columns)
    return scale.repeat_interleave(128, 0)[:rows].repeat_interleave(128, 1)[:, :columns]


@pytest.mark.parametrize("codes", [fp8(4, 4), made((4, 4), I8)])
def test_load_into_never_casts_codes_whose_scales_it_leaves_out(codes, tmp_path):
    path = tmp_path / "m.safetensors"
    save_file({"weight": codes, "weight_scale": scales(4, 1)}, path)
    for given in (path, rustload.open(path).select(["weight"])):
        model = torch.nn.Linear(4, 4, bias=False)
        before = model.weight.detach().clone()
        with pytest.raises(rustload.UnsupportedError, match="the codes of a quantized weight") as caught:
            rustload.torch.load_into(model, given, strict=False)
        assert caught.value.code == "QuantUnknown"
        assert torch.equal(model.weight, before)
    # The model has the scales, or the codes as they are, or fp8 alone is meant as numbers.
    model = torch.nn.Linear(4, 4, bias=False)
    model.weight_scale = torch.nn.Parameter(torch.zeros(4, 1))
    rustload.torch.load_into(model, path)
    assert torch.equal(model.weight, codes.float())
    model = torch.nn.Linear(4, 4, bias=False)
    model.weight = torch.nn.Parameter(torch.zeros_like(codes), requires_grad=False)
    rustload.torch.load_into(model, path, strict=False)
    assert same(model.weight, codes)
    save_file({"weight": codes}, path)
    model = torch.nn.Linear(4, 4, bias=False)
    rustload.torch.load_into(model, path)
    assert torch.equal(model.weight.nan_to_num(1), codes.float().nan_to_num(1))


def test_a_handle_of_codes_has_no_numbers(tmp_path):
    path = tmp_path / "m.safetensors"
    save_file({"a.weight": fp8(4, 4), "a.weight_scale": scales(4, 1), "c": torch.ones(2)}, path)
    handles = rustload.torch.state_dict(path)
    with pytest.raises(rustload.UnsupportedError, match="codes of a quantization"):
        handles["a.weight"].dequantize()
    assert same(handles["c"].dequantize(), torch.ones(2))


def test_a_parameter_named_scale_beside_a_weight_that_has_its_scale_is_a_parameter(tmp_path):
    path, target = tmp_path / "m.safetensors", tmp_path / "out.safetensors"
    tensors = {"a.weight": fp8(4, 4), "a.weight_scale": scales(4, 1), "a.scale": torch.full((1,), 3.0)}
    save_file(tensors, path)
    rustload.convert(path, target, dequantize=True, dtype="bfloat16")
    found = load_file(target)
    assert found.keys() == {"a.weight", "a.scale"}
    assert same(found["a.scale"], torch.full((1,), 3.0, dtype=torch.bfloat16))
    rustload.convert(path, tmp_path / "cast.safetensors", dtype="bfloat16")
    found = load_file(tmp_path / "cast.safetensors")
    assert found["a.scale"].dtype == torch.bfloat16
    assert same(found["a.weight"], tensors["a.weight"])


FP8_SHAPES = ((ROWS, COLUMNS), (192, 300), (7, 5), (1, 1))
FP8_NAMES = ("weight_scale", "scale", "qscale_weight")
FP8_SCALES = (torch.float32, torch.bfloat16, torch.float16, E8M0)


# Every pair of the three.
@pytest.mark.parametrize(("shape", "name", "dtype"), [
    (shape, FP8_NAMES[(row + column) % 3], dtype)
    for row, shape in enumerate(FP8_SHAPES) for column, dtype in enumerate(FP8_SCALES)
])  # fmt: skip
def test_fp8_with_a_scale_for_all_for_each_row_or_block(shape, name, dtype, tmp_path):
    rows, columns = shape
    weight = fp8(rows, columns)
    for form in ((), (1,), (1, 1), (rows,), (rows, 1), (-(-rows // 128), -(-columns // 128))):
        scale = scales(*form, dtype=dtype)
        extra = {"a.input_scale": torch.ones(()), "a.bias": torch.ones(rows)}
        ckpt = decoded({"a.weight": weight, f"a.{name}": scale, **extra}, tmp_path)
        product = weight.float() * wide(scale, rows, columns)
        lazy = ckpt["a.weight"]
        assert lazy.scheme is not None
        assert set(lazy.scheme.stored) == {"a.weight", f"a.{name}", "a.input_scale"}
        for target in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
            assert same(lazy.materialize(dtype=target), product.to(target)), (form, target)
            assert same(dict(ckpt.stream(dtype=target))["a.weight"], product.to(target)), (form, target)
        out = torch.empty(columns, rows, dtype=torch.float16)
        assert same(lazy.materialize(out=out, transpose=True), product.T.half())
        assert same(lazy[1:, ::3].T.materialize(), product[1:, ::3].T)
        rustload.convert(
            ckpt.files[0], tmp_path / "out.safetensors", dtype="bfloat16", dequantize=True, overwrite=True
        )
        written = load_file(tmp_path / "out.safetensors")
        assert set(written) == {"a.weight", "a.bias"}
        assert same(written["a.weight"], product.bfloat16())


def test_a_product_in_the_dtype_of_the_scale_is_rounded_once(tmp_path):
    # compressed-tensors casts the codes to the dtype of the scales and multiplies there.
    weight = fp8()
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        scale = scales(ROWS, 1, dtype=dtype)
        ckpt = decoded({"a.weight": weight, "a.weight_scale": scale}, tmp_path)
        assert same(ckpt["a.weight"].materialize(dtype=dtype), weight.to(dtype) * scale)


def test_scales_of_bytes_are_exponents_and_other_integers_are_refused(tmp_path):
    weight = fp8()
    exponents = torch.tensor([[0, 127], [254, 255]], dtype=U8)
    powers = torch.tensor([[2.0**-127, 1.0], [2.0**127, float("nan")]])
    for name in ("weight_scale_inv", "scale"):
        for scale in (exponents, exponents.view(E8M0)):
            lazy = decoded({"a.weight": weight, f"a.{name}": scale}, tmp_path)["a.weight"]
            wanted = weight.float() * wide(powers, ROWS, COLUMNS)
            assert same(lazy.materialize(), wanted)
            assert same(lazy[120:130, 120:130].materialize(), wanted[120:130, 120:130])
        for dtype in (torch.int8, torch.int16, torch.int32, torch.int64, torch.bool):
            ckpt = decoded({"a.weight": weight, f"a.{name}": torch.ones(2, 2).to(dtype)}, tmp_path)
            with pytest.raises(rustload.UnsupportedError, match="no floats or exponents") as caught:
                ckpt["a.weight"].materialize()
            refused(caught, "a.weight")


def test_ragged_blocks_have_the_scale_of_their_block(tmp_path):
    weight = torch.ones(192, 200).to(torch.float8_e4m3fn)
    scale = torch.tensor([[0.0, 1.0], [2.0, 3.0]])
    found = decoded({"w": weight, "w_scale_inv": scale}, tmp_path)["w"].materialize()
    assert found[127, 127] == 0
    assert (found[127, 128], found[128, 127], found[128, 128]) == (1, 2, 3)


def test_scales_of_no_known_shape_are_refused(tmp_path):
    for shape, name, wrong in [
        ((256, 256), "weight_scale_inv", [(3, 3), (1, 2), (2,), (0, 1), (2, 2, 1)]),
        ((256, 256), "weight_scale", [(3, 3), (256, 3), (1, 2), (2,), (0, 1), (1, 2, 2)]),
        ((3, 128, 128), "weight_scale_inv", [(3, 1), (2, 1, 1), (128,), (3, 128, 3)]),
        ((3, 128, 128), "weight_scale", [(128, 1), (128, 128), (1, 128, 1)]),
    ]:
        for form in wrong:
            ckpt = decoded({"a.weight": fp8(*shape), f"a.{name}": torch.ones(form)}, tmp_path)
            with pytest.raises(rustload.FormatError, match="fit no blocks") as caught:
                ckpt["a.weight"].materialize()
            assert caught.value.code == "TensorBounds", (name, form)


def test_ordinary_integers_and_scales_stay_what_they_are(tmp_path):
    given = {
        "embeddings.position_ids": torch.arange(8).reshape(1, 8),
        "embeddings.token_type_ids": torch.zeros(1, 8, dtype=I32),
        "attn.bias": torch.ones(1, 1, 4, 4, dtype=U8),
        "attn.relative_position_index": torch.zeros(4, 4, dtype=I32),
        "attn.logit_scale": torch.ones(()),
        "q_norm.scale": torch.ones(4),
        "conv.weight": torch.ones(4, 4, dtype=torch.bfloat16),
        "conv.weight_scale": torch.ones(4, 1),
        "image": torch.ones(3, 4, 4, dtype=U8),
        "scale": torch.ones(()),
        "table.values": torch.ones(4, 4, dtype=I8),
        "bn.num_batches_tracked": torch.ones((), dtype=torch.int64),
    }
    ckpt = opened(given, tmp_path)
    assert all(same(ckpt[name].materialize(dequantize=True), one) for name, one in given.items())
    found = ckpt.materialize(dtype="float16", dequantize=True)
    for name, one in given.items():
        assert same(found[name], one.half() if one.is_floating_point() else one), name
    report = rustload.convert(ckpt.files[0], tmp_path / "o.safetensors", dtype="float16", dequantize=True)
    assert report.kept == ()
    assert set(load_file(tmp_path / "o.safetensors")) == set(given)


def test_joined_codes_are_refused(tmp_path):
    tensors = {
        "a.weight": made((4, 4), I8),
        "a.scale": scales(4),
        "b.weight": made((4, 4), I8),
        "b.scale": scales(4),
    }
    ckpt = opened(tensors, tmp_path)
    joined = rustload.concat([ckpt["a.weight"], ckpt["b.weight"]])
    assert joined.materialize().dtype == I8
    with pytest.raises(ValueError, match="one by one"):
        joined.materialize(dequantize=True)


def test_a_cast_of_joined_codes_warns(tmp_path):
    given = {"a.weight": fp8(), "a.weight_scale": scales(1), "b.weight": fp8(), "b.weight_scale": scales(1)}
    ckpt = opened(given, tmp_path)
    joined = rustload.concat([ckpt["a.weight"], ckpt["b.weight"]])
    with pytest.warns(rustload.RustloadWarning, match="casts codes of the quantized weight 'a.weight'"):
        found = joined.materialize(dtype="float32")
    assert same(found, torch.cat([fp8(), fp8()]).float())


@pytest.mark.parametrize("codes", [made((8, 16), I8), fp8(8, 16)])
def test_codes_in_parts_and_behind_file_objects_are_refused(codes, tmp_path):
    scale = scales(8, 1)
    for rank in range(2):
        with as_rank(rank, 2):
            mesh = init_device_mesh("cpu", (2,))
            part = DTensor.from_local(codes.chunk(2)[rank].clone(), mesh, [Shard(0)], run_check=False)
            torch.save({"a.weight": part, "a.weight_scale": scale}, tmp_path / f"{rank}.pt")
    joined = rustload.open([tmp_path / "0.pt", tmp_path / "1.pt"])
    opened({"a.weight": codes, "a.weight_scale": scale}, tmp_path)
    with (tmp_path / "m.safetensors").open("rb") as file:
        for ckpt in (joined, rustload.open(file)):
            assert same(ckpt["a.weight"].materialize(), codes)
            with pytest.raises(rustload.UnsupportedError) as caught:
                ckpt["a.weight"][2:6].materialize(dequantize=True)
            refused(caught, "a.weight_scale")
            with pytest.warns(rustload.RustloadWarning, match="belong to quantized weights"):
                found = ckpt.materialize(dtype="bfloat16")
            assert same(found["a.weight_scale"], scale)
    # Those in parts are not decoded either; in one file they are.
    with pytest.raises(rustload.UnsupportedError, match="not stored in one place"):
        rustload.open(joined.files, dequantize=True)["a.weight"].materialize()
    rustload.convert(joined.files, tmp_path / "whole.safetensors")
    whole = rustload.open(tmp_path / "whole.safetensors", dequantize=True)["a.weight"]
    assert same(whole.materialize(), codes.float() * scale)


def test_a_file_that_lacks_the_scales_is_refused(tmp_path):
    opened({"a.weight": fp8(), "a.weight_scale_inv": scales(2, 2)}, tmp_path, "sharded")
    lone = rustload.open(tmp_path / "model-00001-of-00002.safetensors", trailing="error")
    assert list(lone) == ["a.weight"]
    with pytest.raises(rustload.UnsupportedError, match="no scales are beside it"):
        lone["a.weight"].materialize(dequantize=True)


def test_info_notes_weights_of_an_unknown_scheme(tmp_path, capsys):
    name, tensors = STORED["fp8 with two scales"]
    opened(tensors | PLAIN, tmp_path)
    assert main(["info", str(tmp_path / "m.safetensors"), "--json"]) == 0
    (note,) = json.loads(capsys.readouterr().out)["checkpoints"][0]["notes"]
    assert note.startswith(f"1 tensor(s) are codes of a quantization that is not known, such as {name!r}")
    opened({"a.weight": fp8(), "a.weight_scale_inv": scales(2, 2)}, tmp_path)
    assert main(["info", str(tmp_path / "m.safetensors"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["checkpoints"][0]["notes"] == []


def test_the_command_converts_with_a_dtype_for_all_and_patterns(tmp_path):
    given = {"a.weight": fp8(), "a.weight_scale_inv": scales(2, 2), "b": torch.ones(2), "c": torch.ones(2)}
    opened(given, tmp_path)
    source, target = str(tmp_path / "m.safetensors"), str(tmp_path / "o.safetensors")
    assert main(["convert", source, target, "--dtype", "bfloat16", "--dtype", "c=float16", "-q"]) == 0
    written = load_file(target)
    assert {name: one.dtype for name, one in written.items()} == {
        "a.weight": torch.float8_e4m3fn,
        "a.weight_scale_inv": torch.float32,
        "b": torch.bfloat16,
        "c": torch.float16,
    }
