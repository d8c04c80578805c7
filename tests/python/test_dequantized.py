"""The logical view of quantized checkpoints: `rustload.open(path, dequantize=True)` has the weights that the codes mean."""

import json
import pickle
import random
from typing import Any

import pytest
import torch
from quantized_case import Case
from quantized_files import CASES, logical, write
from safetensors.torch import save_file
from support import bits, same
from test_dtensor import as_rank
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import rustload
import rustload.torch
from rustload._cli import main

READ = [name for name in CASES if not name.startswith("sparse")]
KINDS = ["safetensors", "pt", "sharded"]


def equal(found: torch.Tensor, wanted: torch.Tensor, case: Case) -> bool:
    """Equal bits. The product of fp8 is not rounded to the dtype of its scales: its numbers are float32."""
    return same(found.to(wanted.dtype) if case.scheme.startswith(("fp8", "mixed")) else found, wanted)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", READ)
def test_weights_equal_the_reference_bit_for_bit(name, kind, tmp_path):
    case = CASES[name]()
    write(case, tmp_path, kind)
    ckpt, wanted = rustload.open(tmp_path, dequantize=True), logical(case)
    if name.startswith("torchao") and kind == "pt":
        # Its schemes are in the header of safetensors alone.
        with pytest.raises(rustload.UnsupportedError, match="the metadata do not say"):
            ckpt.materialize()
        return
    assert sorted(ckpt) == sorted(wanted)
    found = ckpt.materialize()
    streamed = dict(ckpt.stream())
    for one, tensor in wanted.items():
        lazy = ckpt[one]
        assert lazy.shape == tuple(tensor.shape)
        assert equal(found[one], tensor, case), one
        assert same(streamed[one], found[one]), one
        assert found[one].is_contiguous()
        if one in case.weights:
            assert lazy.scheme is not None
            assert lazy.scheme.stored[0] == case.codes[one]
            assert set(case.companions[one]) <= set(lazy.scheme.stored)


@pytest.mark.parametrize("name", READ)
def test_parts_of_weights_are_parts_of_the_whole(name, tmp_path):
    case = CASES[name]()
    write(case, tmp_path, "sharded")
    ckpt, chosen = rustload.open(tmp_path, dequantize=True), random.Random(1)
    for one in case.weights:
        whole = ckpt[one].materialize()
        for _ in range(12):
            key: tuple[Any, ...] = tuple(
                slice(*sorted(chosen.sample(range(size + 1), 2)), chosen.choice((1, 1, 3)))
                if chosen.random() < 0.8
                else chosen.randrange(size)
                for size in whole.shape
            )
            part = ckpt[one][key]
            assert same(part.materialize(), whole[key]), key
            assert same(part.T.materialize(), whole[key].permute([*reversed(range(part.ndim))])), key
        turned = ckpt[one].materialize(dtype="float32", transpose=True)
        assert same(turned, whole.mT.float())
        assert same(pickle.loads(pickle.dumps(ckpt[one])).materialize(), whole)


@pytest.mark.parametrize("name", READ[::3])
def test_convert_writes_the_weights_and_no_configuration_of_codes(name, tmp_path):
    case = CASES[name]()
    write(case, tmp_path / "in", "sharded")
    report = rustload.convert(tmp_path / "in", tmp_path / "out", dequantize=True, copy_others=True)
    written, wanted = rustload.open(tmp_path / "out"), logical(case)
    assert set(written) == set(wanted)
    assert all(equal(written[one].materialize(), tensor, case) for one, tensor in wanted.items())
    assert report.converted >= len(case.weights)
    config = tmp_path / "out" / "config.json"
    assert not config.exists() or "quant" not in config.read_text()
    assert rustload.diff(tmp_path / "in", tmp_path / "out", data=True, dequantize=True).same


def test_threads_and_blocks_of_a_large_weight_agree(tmp_path):
    made = torch.Generator().manual_seed(0)
    rows, columns = 2048, 4096
    codes = torch.randint(-(2**31), 2**31, (rows, columns // 8), generator=made).to(torch.int32)
    scales = torch.rand(rows, columns // 32, generator=made).bfloat16()
    shape = torch.tensor([rows, columns])
    tensors = {"w.weight_packed": codes, "w.weight_scale": scales, "w.weight_shape": shape}
    save_file(tensors, tmp_path / "m.safetensors")
    nibbles = torch.stack([codes >> (4 * at) & 15 for at in range(8)], -1).reshape(rows, columns)
    wanted = ((nibbles - 8).float() * scales.float().repeat_interleave(32, 1)).bfloat16()
    lazy = rustload.open(tmp_path / "m.safetensors", dequantize=True)["w.weight"]
    for threads in (1, 2, 5):
        assert same(lazy.materialize(threads=threads), wanted)
        assert same(lazy.materialize(threads=threads, transpose=True), wanted.T.contiguous())
        assert same(lazy[3:2000:7, 5:4000].materialize(threads=threads), wanted[3:2000:7, 5:4000])


def test_views_are_copies_and_codes_stay_in_the_stored_view(tmp_path):
    case = CASES[READ[0]]()
    write(case, tmp_path, "safetensors")
    (name,) = case.weights
    lazy = rustload.open(tmp_path, dequantize=True)[name]
    with pytest.raises(BufferError):
        lazy.materialize(copy=False)
    stored = rustload.open(tmp_path)
    assert set(stored) == set(case.tensors)
    assert all(bits(stored[one].materialize()) == bits(tensor) for one, tensor in case.tensors.items())
    assert stored[case.codes[name]].scheme is None


def test_an_error_says_what_to_do_in_either_view(tmp_path):
    case = CASES["pack 4 group asymmetric"]()
    (name,) = case.codes.values()
    write(case, tmp_path)
    with pytest.raises(rustload.UnsupportedError) as caught:
        rustload.open(tmp_path)[name].materialize(dequantize=True)
    assert "Pass dequantize=True when opening" in caught.value.__notes__[0]
    broken = {one: tensor for one, tensor in case.tensors.items() if not one.endswith("weight_shape")}
    save_file(broken, tmp_path / "model.safetensors")
    with pytest.raises(rustload.UnsupportedError, match='no "weight_shape" is beside it') as caught:
        rustload.open(tmp_path, dequantize=True)[name].materialize()
    assert caught.value.__notes__[0].startswith("Without dequantize")


def test_the_name_of_a_weight_in_codes_says_what_reads_it(tmp_path, capsys):
    case, path = CASES["pack 4 group asymmetric"](), tmp_path
    write(case, path)
    (name,) = case.weights
    with pytest.raises(rustload.TensorNotFoundError) as found:
        rustload.open(path)[name]
    assert (
        found.value.__notes__[-1] == "Pass dequantize=True when opening it, for the weight that codes mean."
    )
    assert main(["show", str(path), f"{name}[:1]"]) == 3
    assert "note: Pass --dequantize for the weight that codes mean." in capsys.readouterr().err
    assert main(["show", str(path), f"{name}[:1]", "--dequantize"]) == 0


def test_load_into_fills_a_model_from_codes(tmp_path):
    case = CASES["pack 4 group asymmetric" if "pack 4 group asymmetric" in CASES else READ[20]]()
    write(case, tmp_path, "sharded")
    for name, weight in case.weights.items():
        rows, columns = weight.shape
        with torch.device("meta"):
            model = torch.nn.Linear(columns, rows, bias=False, dtype=torch.bfloat16)
        prefix = name.removesuffix("weight")
        report = rustload.torch.load_into(
            model, tmp_path, strip=prefix, strict=False, dequantize=True, dtype="bfloat16"
        )
        assert report.missing == []
        assert same(model.weight.detach(), weight.bfloat16())


@pytest.mark.parametrize("name", ["fp8 block 128", "pack 4 group asymmetric", "gptq v1", "gpt-oss", "nf4"])
def test_load_into_says_what_reads_codes_that_the_model_has_not(name, tmp_path):
    write(CASES[name](), tmp_path)
    with pytest.raises(rustload.ModelMismatchError) as caught:
        rustload.torch.load_into(torch.nn.Linear(2, 2), tmp_path)
    assert any("dequantize=True" in note for note in caught.value.__notes__)


@pytest.mark.parametrize("name", ["pack 4", "gptq v1", "nvfp4", "mxfp4", "fp8 block 128 ragged"])
def test_each_rank_reads_its_own_rows(name, tmp_path):
    case = next(CASES[one]() for one in READ if one.startswith(name) and _is_matrix(CASES[one]()))
    write(case, tmp_path, "sharded")
    ((own, weight),) = case.weights.items()
    rows, columns = weight.shape
    for rank in (0, 2):
        with as_rank(rank, 3):
            with torch.device("meta"):
                model = torch.nn.Linear(columns, rows, bias=False, dtype=weight.dtype)
            fully_shard(model, mesh=init_device_mesh("cpu", (3,)))
            rustload.torch.load_into(
                model, tmp_path, strip=own.removesuffix("weight"), strict=False, dequantize=True
            )
            assert same(model.weight.to_local().detach(), weight.chunk(3)[rank])


def _is_matrix(case: Case) -> bool:
    return len(case.weights) == 1 and all(
        one.ndim == 2 and one.shape[0] >= 6 for one in case.weights.values()
    )


def test_info_names_schemes_and_both_sizes(tmp_path, capsys):
    case = CASES["mlx 4"]()
    write(case, tmp_path, "safetensors")
    assert main(["info", str(tmp_path)]) == 0
    assert "mlx, 4 bits" in capsys.readouterr().out
    assert main(["info", str(tmp_path), "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["checkpoints"][0]["quantized"]
    (weight,) = case.weights.values()
    assert (found["scheme"], found["bits"], found["weights"]) == ("mlx", 4, 1)
    assert found["nbytes"] == weight.numel() * weight.element_size()
    assert main(["stats", str(tmp_path), "--dequantize", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)["checkpoints"][0]["tensors"]
    assert {one["name"] for one in shown} == set(logical(case))


@pytest.mark.parametrize(
    ("name", "config", "said"),
    [
        ("config.json", {"quantization_config": {"quant_method": "aqlm"}}, "aqlm, which the library aqlm"),
        (
            "hf_quant_config.json",
            {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4_SVD"}},
            "modelopt, which the library nvidia-modelopt",
        ),
    ],
)
def test_a_scheme_that_is_not_read_is_named_with_its_library(name, config, said, tmp_path):
    save_file(
        {"a.weight": torch.ones(4, 4, dtype=torch.uint8), "a.scale": torch.ones(4)},
        tmp_path / "m.safetensors",
    )
    (tmp_path / name).write_text(json.dumps(config))
    ckpt = rustload.open(tmp_path / "m.safetensors", dequantize=True)
    with pytest.raises(rustload.RustloadError, match=f"says {said} decodes"):
        ckpt["a.weight"].materialize()


@pytest.mark.parametrize("name", ["torchao mxfp4", "torchao mxfp8", "torchao nvfp4"])
def test_scales_that_are_permuted_for_a_kernel_are_refused(name, tmp_path):
    case = CASES[name]()
    assert case.metadata is not None
    changed = {key: text.replace("false", "true") for key, text in case.metadata.items()}
    assert changed != case.metadata
    ckpt = rustload.open(write(case._replace(metadata=changed), tmp_path), dequantize=True)
    with pytest.raises(rustload.RustloadError, match="permuted for a kernel"):
        ckpt[next(iter(case.codes.values()))].materialize()
