"""Where `convert` writes, and what it says of it: in place, beside the source, and of files that it does not copy."""

from __future__ import annotations

import json
import warnings
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import save_file

import rustload
from rustload import _cli

if TYPE_CHECKING:
    from pathlib import Path


def model(path: Path, *, pickle: bool = False, shards: int = 1, **config: Any) -> Path:
    """A folder of a model in float32, with its configuration."""
    path.mkdir()
    for number in range(shards):
        tensors = {f"w{number}": torch.ones(4, 4)}
        numbered = f"-{number + 1:05}-of-{shards:05}" if shards > 1 else ""
        if pickle:
            torch.save(tensors, path / f"pytorch_model{numbered}.bin")
        else:
            save_file(tensors, path / f"model{numbered}.safetensors")
    stem = "pytorch_model.bin" if pickle else "model.safetensors"
    if shards > 1:
        names = {f"w{n}": f"{stem.replace('.', f'-{n + 1:05}-of-{shards:05}.')}" for n in range(shards)}
        (path / f"{stem}.index.json").write_text(json.dumps({"metadata": {}, "weight_map": names}))
    (path / "config.json").write_text(json.dumps({"dtype": "float32", **config}))
    return path


def stated(path: Path) -> Any:
    return json.loads((path / "config.json").read_text())


@pytest.mark.parametrize("pickle", [False, True])
def test_in_place_the_configuration_says_what_was_written(tmp_path: Path, pickle: bool) -> None:
    source = model(tmp_path / "model", pickle=pickle, architectures=["X"])
    report = rustload.convert(source, dtype="bfloat16", overwrite=not pickle)
    assert stated(source) == {"dtype": "bfloat16", "architectures": ["X"]}
    assert report.changed == ("config.json with dtype bfloat16",)
    assert "config.json with dtype bfloat16" in str(report)
    assert rustload.open(source)["w0"].dtype == "bfloat16"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    kept = model(tmp_path / "kept", pickle=pickle)
    report = rustload.convert(kept, dtype="bfloat16", overwrite=not pickle, keep_config=True)
    assert (stated(kept)["dtype"], report.changed) == ("float32", ())


def test_in_place_with_the_folder_as_its_own_target(tmp_path: Path) -> None:
    source = model(tmp_path / "model", shards=2)
    report = rustload.convert(source, source, dtype="float16", overwrite=True, copy_others=True)
    assert (stated(source)["dtype"], report.changed) == ("float16", ("config.json with dtype float16",))


def test_in_place_a_dequantized_folder_is_not_of_a_quantized_model(tmp_path: Path) -> None:
    source = model(tmp_path / "model", quantization_config={"quant_method": "fp8"})
    (source / "hf_quant_config.json").write_text("{}")
    tensors = {"w": torch.ones(140, 140).to(torch.float8_e4m3fn), "w_scale_inv": torch.ones(2, 2)}
    save_file(tensors, source / "model.safetensors")
    report = rustload.convert(source, dequantize=True, dtype="bfloat16", overwrite=True)
    assert stated(source) == {"dtype": "bfloat16"}
    assert sorted(report.changed) == [
        "config.json without quantization_config and with dtype bfloat16",
        "hf_quant_config.json kept, which describes the quantization: remove it",
    ]


def test_in_place_nothing_changes_if_a_file_is_in_the_way(tmp_path: Path) -> None:
    source = model(tmp_path / "model", pickle=True)
    save_file({"w0": torch.zeros(1)}, source / "model.safetensors")
    before = {path.name: path.read_bytes() for path in source.iterdir()}
    with pytest.raises(FileExistsError):
        rustload.convert(source, source, dtype="bfloat16", name="model")
    assert {path.name: path.read_bytes() for path in source.iterdir()} == before


def test_a_replaced_working_directory_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = model(tmp_path / "model", shards=2)
    (source / "logs").mkdir()
    for folder in (source, source / "logs"):
        monkeypatch.chdir(folder)
        with pytest.warns(rustload.RustloadWarning, match=r"in the old one: enter it again \(cd \.\)"):
            rustload.convert(source, dtype="bfloat16", overwrite=True)
    monkeypatch.chdir(source)
    assert _cli.main(["convert", ".", "--overwrite", "--dtype", "float16"]) == 0
    assert f"rustload: warning: {source} was replaced by a new folder" in capsys.readouterr().err
    monkeypatch.chdir(source)
    with pytest.warns(rustload.RustloadWarning, match="was replaced"):
        rustload.save({"w0": torch.ones(1)}, ".", overwrite=True)
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rustload.convert("model", dtype="bfloat16", overwrite=True)
