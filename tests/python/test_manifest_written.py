"""Manifests that `save`, `convert` and `Writer` write beside the files."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rustload
from rustload._cli import main


def _beside(path: Path) -> Path:
    return path.with_name(f"{path.name}.manifest.json")


def _tensors(count: int = 40) -> dict[str, torch.Tensor]:
    torch.manual_seed(2)
    small = {f"layers.{at}.weight": torch.randn(97 + at, 31) for at in range(count)}
    return {**small, "embed": torch.randn(2_500_000), "head": torch.randn(1000, 3000), "empty": torch.ones(0)}


def _check(path: Path) -> rustload.Manifest:
    """What was written beside a path is the manifest of its files, and they open with it."""
    manifest = rustload.Manifest(_beside(path))
    assert manifest.files == rustload.Manifest.of(path).files
    assert manifest.check(path) == []
    assert json.loads(_beside(path).read_text())["subject"][0]["name"] == path.name
    return manifest


@pytest.mark.parametrize("threads", [1, 4])
def test_save_writes_the_digests_of_a_file(threads, tmp_path):
    path, tensors = tmp_path / "m.safetensors", _tensors()
    rustload.save(tensors, path, fsync=False)
    assert not _beside(path).exists()
    for options in ({}, {"dtype": "bfloat16"}, {"verify": True}, {"resume": True}):
        rustload.save(tensors, path, write_manifest=True, overwrite=True, threads=threads, **options)
        _check(path)
    rustload.save(rustload.open(path), tmp_path / "n.safetensors", write_manifest=True, threads=threads)
    _check(tmp_path / "n.safetensors")
    content = bytearray(path.read_bytes())
    content[-1] ^= 4
    path.write_bytes(content)
    with pytest.raises(rustload.FormatError, match="manifest"):
        rustload.open(path, manifest=_beside(path)).materialize()


def test_a_manifest_is_not_replaced_without_permission_and_needs_a_file(tmp_path):
    path, tensors = tmp_path / "m.safetensors", {"a": torch.ones(3)}
    _beside(path).write_text("mine")
    with pytest.raises(FileExistsError):
        rustload.save(tensors, path, overwrite=False, write_manifest=True)
    assert not path.exists()
    assert _beside(path).read_text() == "mine"
    rustload.save(tensors, path, overwrite=True, write_manifest=True)
    _check(path)
    with pytest.raises(ValueError, match="manifest"):
        rustload.save(tensors, io.BytesIO(), write_manifest=True)


def test_a_file_that_a_manifest_cannot_list_is_refused_before_it_is_written(tmp_path):
    steps: list[int] = []
    with pytest.raises(ValueError, match='cannot list "a:b') as caught:
        rustload.save(
            {"a": torch.ones(3)}, tmp_path / "a:b.safetensors", write_manifest=True, progress=steps.append
        )
    assert caught.value.__notes__ == ["Rename the file."]
    with pytest.raises(ValueError, match='cannot list "a:b'):
        rustload.Writer(tmp_path / "a:b.safetensors", {"a": ("float32", (3,))}, write_manifest=True)
    assert steps == []
    assert list(tmp_path.iterdir()) == []
    rustload.save({"a": torch.ones(3)}, tmp_path / "a:b", max_shard_size="1MB", write_manifest=True)
    (tmp_path / "a:b" / "c:d.txt").touch()
    with pytest.raises(ValueError, match='cannot list "c:d'):
        rustload.convert(
            tmp_path / "a:b", tmp_path / "to", copy_others=True, write_manifest=True, progress=steps.append
        )
    assert steps == []
    _check(tmp_path / "a:b")


def test_a_folder_is_listed_with_its_other_files(tmp_path):
    source = tmp_path / "source"
    rustload.save(_tensors(), source, max_shard_size="9MB", write_manifest=True)
    assert len(_check(source).files) > 3
    (source / "config.json").write_text('{"dtype": "float32"}')
    (source / "tokenizer.json").write_bytes(bytes(3_000_001))
    (source / "empty.txt").touch()
    for number, options in enumerate(({}, {"dtype": "bfloat16"}, {"resume": True, "max_shard_size": "3MB"})):
        out = tmp_path / f"out{number}"
        rustload.convert(source, out, copy_others=True, write_manifest=True, **options)
        manifest = _check(out)
        assert {"config.json", "tokenizer.json"} < {*manifest.files}
        loaded = rustload.open(out, manifest=_beside(out), framework="torch")
        assert torch.equal(loaded["head"].materialize(), rustload.open(out)["head"].materialize())
    assert main(["convert", str(source), str(tmp_path / "cli"), "--write-manifest", "-q"]) == 0
    _check(tmp_path / "cli")
    report = tmp_path / "one.safetensors"
    rustload.convert(source, report, write_manifest=True)
    _check(report)


def test_a_call_that_is_resumed_lists_what_an_earlier_one_wrote(tmp_path):
    source = tmp_path / "source.safetensors"
    rustload.save(_tensors(), source)
    path = tmp_path / "m.safetensors"
    seen = 0

    def stop(done: int, *_: Any) -> None:
        nonlocal seen
        seen = done
        if done > 6_000_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        rustload.save(rustload.open(source), path, resume=True, threads=1, progress=stop)
    rustload.save(rustload.open(source), path, resume=True, threads=1, write_manifest=True)
    assert seen
    _check(path)


def test_a_writer_lists_parts_in_any_order(tmp_path):
    path = tmp_path / "m.safetensors"
    rows = np.random.default_rng(1).normal(size=(3000, 1000)).astype("float32")
    declared = {"w": ("float32", rows.shape), "b": ("uint8", (5,))}
    with rustload.Writer(path, declared, write_manifest=True) as writer:
        writer.write("b", np.arange(5, dtype="uint8"))
        for at in (2000, 0, 1000):
            writer.write("w", rows[at : at + 1000, 500:], at=(at, 500))
            writer.write("w", rows[at : at + 1000, :500], at=(at, 0))
    _check(path)
    with rustload.Writer(path, declared, write_manifest=True) as writer:
        writer.write("w", rows)
        writer.write("b", np.arange(5, dtype="uint8"))
    _check(path)
