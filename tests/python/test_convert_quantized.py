"""`convert(copy_others=True)` with `dtype` or `dequantize`: the other files say of dtype and quantization what is written."""

import json
import warnings
from pathlib import Path
from typing import Any

import torch
from quantized_case import E4M3, F32, Draw, Tensors
from safetensors.torch import save_file

import rustload
from rustload._cli import main

QUANTIZATION = {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}


def fp8() -> Tensors:
    """A weight with scales by block."""
    draw = Draw("fp8")
    return {"w": draw.bytes((130, 140), E4M3), "w_scale_inv": draw.scales((2, 2), F32)}


def folder(path: Path, config: Any, **sidecars: Any) -> Path:
    """A folder with one fp8 weight."""
    path.mkdir()
    save_file({**fp8(), "n": torch.ones(2)}, path / "model.safetensors")
    text = config if isinstance(config, str) else json.dumps(config)
    (path / "config.json").write_text(text)
    for name, content in sidecars.items():
        (path / f"{name}.json").write_text(json.dumps(content))
    return path


def test_the_new_configuration_is_not_of_a_quantized_model(tmp_path):
    config = {
        "model_type": "x",
        "torch_dtype": "float16",
        "quantization_config": QUANTIZATION,
        "compression_config": {},
        "expert_dtype": "fp4",
        "text_config": {"dtype": "float32", "quantization_config": QUANTIZATION, "hidden_size": 3},
        "vision_config": {"dtype": "auto"},
        "name": "\u00e9",
    }
    source = folder(tmp_path / "in", config, hf_quant_config={}, quantize_config={}, tokenizer={"a": 1})
    report = rustload.convert(source, tmp_path / "out", dtype="bfloat16", dequantize=True, copy_others=True)
    assert json.loads((tmp_path / "out" / "config.json").read_text()) == {
        "model_type": "x",
        "torch_dtype": "bfloat16",
        "text_config": {"dtype": "bfloat16", "hidden_size": 3},
        "vision_config": {"dtype": "auto"},
        "name": "\u00e9",
    }
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
    }
    assert sorted(report.changed) == [
        "config.json without compression_config, expert_dtype, quantization_config and with dtype bfloat16",
        "hf_quant_config.json left out",
        "quantize_config.json left out",
    ]
    assert all(change in str(report) for change in report.changed)
    assert report._asdict()["changed"] == report.changed
    # float32, the dtype without `dtype=`, is not what the configuration says.
    rustload.convert(source, tmp_path / "full", dequantize=True, copy_others=True)
    assert json.loads((tmp_path / "full" / "config.json").read_text())["torch_dtype"] == "float32"


def test_files_that_say_nothing_of_a_quantization_are_copied(tmp_path):
    for number, text in enumerate(['{"a": 1,  "torch_dtype": "bfloat16"}', "[1]", "{broken", "[" * 100_000]):
        source = folder(tmp_path / f"in{number}", text)
        out = tmp_path / f"out{number}"
        report = rustload.convert(source, out, dtype="bfloat16", dequantize=True, copy_others=True)
        assert (out / "config.json").read_text() == text
        assert report.changed == ()
    # Weights that stay quantized keep their configuration.
    source = folder(tmp_path / "in", {"quantization_config": QUANTIZATION}, hf_quant_config={})
    report = rustload.convert(source, tmp_path / "same", dtype="bfloat16", copy_others=True)
    assert json.loads((tmp_path / "same" / "config.json").read_text()) == {
        "quantization_config": QUANTIZATION
    }
    assert (tmp_path / "same" / "hf_quant_config.json").exists()
    assert (report.changed, report.kept) == ((), ("w_scale_inv",))


def test_the_new_configuration_states_the_dtype_of_most_floats(tmp_path):
    config = {"dtype": "float32", "vision_config": {"torch_dtype": "float32", "dtype": {"a": "float32"}}}
    source = folder(tmp_path / "in", config)
    weights = {"big": torch.ones(9), "small": torch.ones(4), "ids": torch.arange(99)}
    save_file(weights, source / "model.safetensors")

    def stated(dtype: Any, **options: Any) -> tuple[str, tuple[str, ...]]:
        target = tmp_path / f"{len(list(tmp_path.iterdir()))}"
        report = rustload.convert(source, target, dtype=dtype, copy_others=True, **options)
        written = json.loads((target / "config.json").read_text())
        assert written["vision_config"] == {"torch_dtype": written["dtype"], "dtype": {"a": "float32"}}
        return written["dtype"], report.changed

    assert stated("bfloat16") == ("bfloat16", ("config.json with dtype bfloat16",))
    assert stated({"small": "float32", "*": "float16"}) == ("float16", ("config.json with dtype float16",))
    # What is said already, without a conversion, on demand, and where there is no float.
    assert stated({"small": "bfloat16"}) == ("float32", ())
    assert stated(None) == ("float32", ())
    assert stated("bfloat16", keep_config=True) == ("float32", ())
    assert stated("bfloat16", select="ids") == ("float32", ())
    # The floats of a model that stays quantized are those beside its codes and scales.
    quantized = folder(tmp_path / "quantized", {"dtype": "float32", "quantization_config": QUANTIZATION})
    rustload.convert(quantized, tmp_path / "kept", dtype="bfloat16", copy_others=True)
    assert json.loads((tmp_path / "kept" / "config.json").read_text())["dtype"] == "bfloat16"
    report = rustload.convert(
        quantized, tmp_path / "both", dequantize=True, copy_others=True, keep_config=True
    )
    assert json.loads((tmp_path / "both" / "config.json").read_text())["quantization_config"] == QUANTIZATION
    assert report.changed == ()


def test_a_plain_dtype_beside_patterns_is_as_one_alone(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        quantized = torch.quantize_per_tensor(torch.randn(9, 9), 0.1, 2, torch.qint8)
    torch.save({"q": quantized, "n": torch.ones(2), "ids": torch.arange(2)}, "m.bin")
    folder(tmp_path / "in", {"quantization_config": QUANTIZATION})
    for patterns, dtype in (([], "bfloat16"), (["--dtype", "n=float16"], "float16")):
        options = [*patterns, "--dtype", "bfloat16", "--overwrite", "--json"]
        assert main(["convert", "m.bin", "m.safetensors", "--dequantize", *options]) == 0
        dtypes = {name: tensor.dtype for name, tensor in rustload.open("m.safetensors").items()}
        assert dtypes == {"q": "bfloat16", "n": dtype, "ids": "int64"}
        capsys.readouterr()
        assert main(["convert", "in", "out", *options]) == 0
        assert json.loads(capsys.readouterr().out)["report"]["kept"] == ["w_scale_inv"]
    assert (
        main(
            ["convert", "in", "out", "--dtype", "w_*=float16", "--dtype", "bfloat16", "--overwrite", "--json"]
        )
        == 0
    )
    assert json.loads(capsys.readouterr().out)["report"]["kept"] == []
    assert rustload.open("out")["w_scale_inv"].dtype == "float16"


def test_each_component_of_a_pipeline_states_its_own_dtype(tmp_path):
    source = tmp_path / "in"
    for name, dtype in (("text_encoder", torch.float32), ("transformer", torch.float8_e4m3fn)):
        (source / name).mkdir(parents=True)
        tensors = {"w": torch.ones(140, 140).to(dtype)}
        if dtype == torch.float8_e4m3fn:
            tensors["w_scale_inv"] = torch.ones(2, 2)
        save_file(tensors, source / name / "model.safetensors")
        (source / name / "config.json").write_text('{"dtype": "bfloat16"}')
    (source / "transformer" / "config.json").write_text(
        json.dumps({"dtype": "bfloat16", "quantization_config": QUANTIZATION})
    )
    (source / "model_index.json").write_text("{}")
    dtype = {"w": "bfloat16"}
    rustload.convert(source, tmp_path / "out", dequantize=True, copy_others=True)
    assert (tmp_path / "out" / "text_encoder" / "config.json").read_text() == '{\n  "dtype": "float32"\n}\n'
    rustload.convert(source, tmp_path / "bf16", dequantize=True, copy_others=True, dtype=dtype)
    assert "float32" not in (tmp_path / "bf16" / "text_encoder" / "config.json").read_text()


def test_a_scale_that_the_model_has_as_a_parameter_is_written(tmp_path):
    source = folder(tmp_path / "in", {"quantization_config": QUANTIZATION})
    ones = {name: torch.ones(()) for name in ("logit_scale", "attn.k_scale", "attn.v_scale")}
    save_file({**fp8(), **ones}, source / "model.safetensors")
    rustload.convert(source, tmp_path / "out", dtype="bfloat16", dequantize=True)
    written = rustload.open(tmp_path / "out")
    # Those of a cache belong to the quantization.
    assert {name: one.dtype for name, one in written.items()} == {"w": "bfloat16", "logit_scale": "bfloat16"}
