"""Where `convert` writes, and what it says of it: in place, beside the source, and of files that it does not copy."""

import json
import os
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save, save_file
from support import contents, names
from web_server import Server

import rustload
from rustload import _cli


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


def distributed(path: Path) -> Path:
    """A distributed checkpoint."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save({"w": torch.ones(4), "step": 3}, checkpoint_id=path)
    return path


def stated(path: Path) -> Any:
    return json.loads((path / "config.json").read_text())


@pytest.mark.parametrize("pickle", [False, True])
def test_in_place_the_configuration_says_what_was_written(tmp_path, pickle):
    source = model(tmp_path / "model", pickle=pickle, architectures=["X"])
    report = rustload.convert(source, dtype="bfloat16", overwrite=not pickle)
    assert stated(source) == {"dtype": "bfloat16", "architectures": ["X"]}
    assert report.changed == ("config.json with dtype bfloat16",)
    assert "config.json with dtype bfloat16" in str(report)
    assert rustload.open(source)["w0"].dtype == "bfloat16"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    kept = model(tmp_path / "kept", pickle=pickle)
    report = rustload.convert(kept, dtype="bfloat16", overwrite=not pickle, keep_config=True)
    assert (stated(kept)["dtype"], report.changed, report.not_copied) == ("float32", (), ())


def test_in_place_with_the_folder_as_its_own_target(tmp_path):
    source = model(tmp_path / "model", shards=2)
    report = rustload.convert(source, source, dtype="float16", overwrite=True, copy_others=True)
    assert (stated(source)["dtype"], report.changed) == ("float16", ("config.json with dtype float16",))


def test_in_place_a_dequantized_folder_is_not_of_a_quantized_model(tmp_path):
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


def test_in_place_nothing_changes_if_a_file_is_in_the_way(tmp_path):
    source = model(tmp_path / "model", pickle=True)
    save_file({"w0": torch.zeros(1)}, source / "model.safetensors")
    before = {path.name: path.read_bytes() for path in source.iterdir()}
    with pytest.raises(FileExistsError):
        rustload.convert(source, source, dtype="bfloat16", name="model")
    assert {path.name: path.read_bytes() for path in source.iterdir()} == before


def test_a_replaced_working_directory_is_a_warning(tmp_path, monkeypatch, capsys):
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


def test_a_distributed_checkpoint_is_not_hidden_by_its_conversion(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    distributed(tmp_path / "step-1")
    before = sorted(Path("step-1").iterdir())
    for target in (None, "step-1", "step-1/new.safetensors"):
        with pytest.raises(ValueError, match=r"dst= is to be outside of 'step-1': ") as refused:
            rustload.convert("step-1", target)
        assert "'step-1-safetensors'" in "".join(refused.value.__notes__)
    assert _cli.main(["convert", "step-1"]) == 2
    assert "DST is to be outside of 'step-1'" in capsys.readouterr().err
    assert sorted(Path("step-1").iterdir()) == before
    rustload.convert("step-1", "step-1/export")
    assert rustload.convert("step-1", "step-1-safetensors").tensors == 1


@pytest.mark.parametrize("pickle", [False, True])
def test_some_of_the_shards_are_not_written_beside_the_others(tmp_path, monkeypatch, pickle):
    monkeypatch.chdir(tmp_path)
    source = model(tmp_path / "model", pickle=pickle, shards=3)
    for path in source.glob("*.index.json"):
        path.unlink()  # open finds the shards by their numbers
    before = contents(source)
    shards = sorted(str(path) for path in Path("model").glob("*-of-*"))
    link = tmp_path / "link"
    link.symlink_to("model")
    for given in (shards[1], shards[:2], [link / Path(shards[2]).name]):
        for target in (None, "model", link, "model/part.safetensors"):
            with pytest.raises(
                ValueError, match=r"dst= is to be outside of .*would be opened in place"
            ) as refused:
                rustload.convert(given, target, overwrite=True)
            assert "the folder as the source, to convert all shards" in refused.value.__notes__[0]
        assert contents(source) == before
    assert set(rustload.open(source)) == {"w0", "w1", "w2"}
    assert rustload.convert(shards[1], "part.safetensors").tensors == 1
    assert rustload.convert(shards[:2], "part").tensors == 2
    assert rustload.convert(shards, "model", overwrite=True).tensors == 3
    assert set(rustload.open(source)) == {"w0", "w1", "w2"}


def test_the_checkpoint_of_a_folder_is_that_which_open_takes(tmp_path):
    for number, (extension, main, other) in enumerate([
        ("bin", "pytorch_model", "model"),
        ("bin", "pytorch_model-00001-of-00001", "model-00001-of-00001"),
        ("bin", "pytorch_model.fp16", "model.fp16"),
        ("safetensors", "model", "pytorch_model"),
    ]):  # fmt: skip
        source = tmp_path / f"{number}"
        source.mkdir()
        for stem in (main, other):
            tensors = {stem: torch.ones(1)}
            path = source / f"{stem}.{extension}"
            torch.save(tensors, path) if extension == "bin" else save_file(tensors, path)
        rustload.convert(source, tmp_path / f"out{number}")
        assert list(rustload.open(source)) == list(rustload.open(tmp_path / f"out{number}")) == [main]


def test_files_that_are_not_copied_are_in_the_report(tmp_path, capsys):
    source = model(tmp_path / "model", shards=2)
    (source / "tokenizer.json").write_text("{}")
    torch.save({"lr": 1}, source / "training_args.bin")
    (source / "state").mkdir()
    torch.save({"lr": 1}, source / "state" / "named.json")
    names = ("config.json", "tokenizer.json", "training_args.bin")
    for number, options in enumerate([{}, {"dequantize": True}]):
        report = rustload.convert(source, tmp_path / f"out{number}", **options)
        assert report.not_copied == names
        assert "3 other files not copied (config.json, ...)" in str(report)
    report = rustload.convert(source, tmp_path / "all", copy_others=True)
    assert report.not_copied == (f"state{os.sep}named.json", "training_args.bin")
    assert "2 other files not copied" in str(report)
    assert "training_args.bin" in report._repr_html_()
    assert _cli.main(["convert", str(source), str(tmp_path / "cli"), "--copy-others"]) == 0
    says = f"rustload: not copied, as they are pickles: state{os.sep}named.json, training_args.bin\n"
    assert capsys.readouterr().err == says
    assert rustload.convert(source, tmp_path / "one.safetensors").not_copied == ()
    # Of a pipeline, those at the top: not those beside the first of its checkpoints.
    (tmp_path / "pipeline").mkdir()
    model(tmp_path / "pipeline" / "unet")
    (tmp_path / "pipeline" / "model_index.json").write_text("{}")
    assert rustload.convert(tmp_path / "pipeline", tmp_path / "new").not_copied == ("model_index.json",)


def test_an_existing_file_is_named_as_the_target_was_given(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    model(tmp_path / "model", shards=3)
    assert _cli.main(["convert", "model"]) == 3
    assert "error: model/model-00001-of-00003.safetensors: file exists" in capsys.readouterr().err
    (tmp_path / "values.json").write_text("")
    assert _cli.main(["convert", "model", "out", "--objects", "values.json"]) == 3
    assert "error: values.json: file exists" in capsys.readouterr().err
    Path("out").mkdir()
    Path("out/x").write_text("")
    assert _cli.main(["convert", "model", "out"]) == 3
    assert "error: out: file exists" in capsys.readouterr().err


def test_ctrl_c_says_where_a_resumed_call_goes_on(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    source = model(tmp_path / "model", shards=4)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as interrupted:
        rustload.convert(source, "out", resume=True, progress=interrupt)
    kept = tmp_path / ".out.resume"
    assert kept.exists()
    note = f"{kept} keeps what was written: the same call goes on, and rustload doctor --clean {tmp_path} removes it"
    assert interrupted.value.__notes__ == [note]
    convert = rustload.convert
    monkeypatch.setattr(rustload, "convert", lambda *a, **o: convert(*a, **{**o, "progress": interrupt}))
    assert _cli.main(["convert", "model", "out", "--resume"]) == 130
    assert capsys.readouterr().err == f"rustload: interrupted: {note}\n"
    assert _cli.main(["convert", "model", "new"]) == 130
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(rustload, "convert", convert)
    assert _cli.main(["convert", "model", "out", "--resume", "-q", "--copy-others"]) == 0
    assert not kept.exists()


def test_a_url_without_a_target_is_wrong_usage(monkeypatch, capsys):
    monkeypatch.setenv("RUSTLOAD_REMOTE", "http")
    server = Server({"model.safetensors": save({"w": torch.ones(2)})})
    try:
        assert _cli.main(["convert", f"{server.host}/model.safetensors"]) == 2
    finally:
        server.close()
    assert "rustload: error: DST is needed for a URL" in capsys.readouterr().err


def test_nothing_is_written_into_the_cache_for_a_url_of_the_hub(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    snapshot = tmp_path / "models--org--m" / "snapshots" / ("a" * 40)
    snapshot.mkdir(parents=True)
    torch.save({"w": torch.ones(2)}, snapshot / "pytorch_model.bin")
    (tmp_path / "models--org--m" / "refs").mkdir()
    (tmp_path / "models--org--m" / "refs" / "main").write_text("a" * 40)
    for url in ("hf://org/m", "hf://org/m/pytorch_model.bin"):
        assert _cli.main(["convert", url]) == 2
        assert "rustload: error: DST is needed for a URL" in capsys.readouterr().err
    with pytest.raises(ValueError, match="dst= is needed"):
        rustload.convert(["hf://org/m/pytorch_model.bin"])
    assert names(snapshot) == ["pytorch_model.bin"]
    assert _cli.main(["convert", "hf://org/m", str(tmp_path / "out")]) == 0


def test_values_do_not_replace_what_the_same_call_writes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source = model(tmp_path / "model", pickle=True, shards=2)
    for name in ("a", "b"):
        (tmp_path / name).symlink_to("model")
    weights = "model-00001-of-00002.safetensors"
    Path("link.json").symlink_to(f"out/{weights}")
    before = contents(source)
    for target, objects, options in [
        (None, f"model/{weights}", {}),
        (None, "model/model.safetensors.index.json", {}),
        ("a", "b/model.safetensors.index.json", {}),
        ("new", "new/model.safetensors.index.json", {"max_shard_size": 50}),
        ("new", "new/model-00002-of-00003.safetensors", {"max_shard_size": 50}),
        ("new", "new/config.json", {"copy_others": True}),
        ("out", "link.json", {}),
        ("one.safetensors", "one.safetensors", {}),
    ]:
        with pytest.raises(ValueError, match="objects="):
            rustload.convert(source, target, objects=objects, overwrite=True, **options)
        assert contents(source) == before
        assert names(tmp_path) == ["a", "b", "link.json", "model"]
    rustload.convert(source, "a", objects="b/values.json")
    assert contents(source).keys() - before.keys() == {
        weights, "model-00002-of-00002.safetensors", "model.safetensors.index.json", "values.json",
    }  # fmt: skip
    with pytest.raises(ValueError, match="objects="):
        rustload.save({"w": torch.ones(1), "n": 1}, "s.safetensors", objects="s.safetensors")
