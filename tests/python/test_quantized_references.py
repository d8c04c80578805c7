"""The checkpoints of `quantized_files` mean what the packages that read them say, and hold every code and scale that matters."""

import importlib
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from quantized_case import Case, fp4, power
from quantized_files import CASES, logical
from support import assert_same_bits, assert_same_values


def reference(module: str, name: str) -> Any:
    """A function or class of transformers."""
    try:
        return getattr(importlib.import_module(f"transformers.integrations.{module}"), name)
    except (ImportError, AttributeError) as error:
        pytest.skip(f"transformers has no {name} of {module}: {error}")


def sole(found: Case) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
    """The weight, its codes and its companions."""
    ((name, weight),) = found.weights.items()
    return weight, found.tensors[found.codes[name]], [found.tensors[one] for one in found.companions[name]]


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("gpt-oss")])
def test_mxfp4_of_gpt_oss_is_what_transformers_computes(name):
    weight, blocks, (scale,) = sole(CASES[name]())
    is_nan = power(scale).isnan()[..., None].expand(-1, -1, -1, 32).flatten(2).transpose(1, 2)
    assert is_nan.any()
    function = reference("mxfp4", "convert_moe_packed_tensors")
    found = function(blocks, scale, dtype=torch.bfloat16)
    assert_same_values(torch.where(is_nan, torch.nan, found), weight)
    for dtype in (torch.float32, torch.float16):
        codes = torch.stack((blocks & 15, blocks >> 4), -1).flatten(2)
        whole = (fp4(codes) * power(scale).repeat_interleave(32, -1)).to(dtype).transpose(1, 2)
        found = function(blocks, scale, dtype=dtype)
        assert_same_values(torch.where(is_nan, torch.nan, found), whole)


def test_fp8_and_fp4_by_block_are_what_transformers_computes():
    function = reference("finegrained_fp8", "Fp8Dequantize")(None)._dequantize_one
    seen = set()
    for make in CASES.values():
        found = make()
        if found.scheme not in ("fp8-block", "mxfp8", "mxfp4") or len(found.weights) != 1:
            continue
        weight, codes, (scale, *_) = sole(found)
        if codes.dtype not in (torch.int8, torch.float8_e4m3fn, torch.float8_e5m2):
            continue
        config = found.config.get("quantization_config", {})
        size = config.get("weight_block_size") if found.scheme == "fp8-block" else [1, 32]
        tall, wide = (a / b for a, b in zip(weight.shape[-2:], scale.shape[-2:], strict=True))
        if [tall, wide] != size:
            continue  # the function takes an edge's smaller blocks for the size of all blocks
        bad = scale == 255 if scale.dtype == torch.uint8 else torch.zeros(scale.shape, dtype=torch.bool)
        bad = bad.repeat_interleave(int(tall), -2).repeat_interleave(int(wide), -1)
        for dtype in {weight.dtype, torch.bfloat16}:
            result = function(codes, scale, dtype)
            assert_same_values(torch.where(bad, torch.nan, result), weight.to(dtype))
            seen.add((found.scheme, scale.dtype, dtype))
    assert {scheme for scheme, _, _ in seen} == {"fp8-block", "mxfp8", "mxfp4"}
    assert len(seen) >= 6


def test_codes_of_metal_are_what_transformers_computes():
    function = reference("metal_quantization", "_affine_dequantize_tensor")
    names = [name for name in CASES if name.startswith("mlx of transformers")]
    assert names
    for name in names:
        found = CASES[name]()
        weight, codes, (scale, offset) = sole(found)
        settings = found.config["quantization_config"]
        result = function(codes, scale, offset, settings["group_size"], settings["bits"])
        assert_same_bits(result.to(weight.dtype), weight)


def test_small_floats_are_those_of_ml_dtypes():
    bytes_of = np.arange(256, dtype=np.uint8)
    exponents = torch.from_numpy(bytes_of.view(ml_dtypes.float8_e8m0fnu).astype(np.float32))
    assert_same_values(power(torch.from_numpy(bytes_of)), exponents)
    small = bytes_of[:16].view(ml_dtypes.float4_e2m1fn).astype(np.float32)
    assert_same_bits(fp4(torch.arange(16)), torch.from_numpy(small))


@pytest.mark.parametrize("name", CASES)
def test_a_case_is_a_whole_checkpoint(name):
    found = CASES[name]()
    assert found.name == name
    again = CASES[name]()
    for key, tensor in found.tensors.items():
        assert_same_bits(tensor, again.tensors[key])
    assert found.codes.keys() == found.weights.keys() == found.companions.keys()
    for key, weight in found.weights.items():
        assert weight.is_contiguous()
        assert weight.dtype in (torch.float32, torch.bfloat16, torch.float16)
        assert weight.to(torch.float64).isfinite().sum() > weight.numel() / 2, "most elements say something"
        assert {found.codes[key], *found.companions[key]} <= found.tensors.keys()
    assert logical(found).keys() >= found.plain.keys()
