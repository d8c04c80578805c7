"""`manifest="hf"`: files are compared with the digests that the Hugging Face Hub has stated."""

import hashlib
from pathlib import Path

import pytest
import torch

import rustload
from rustload._cli import main


def _hub_file(folder: Path, name: str, content: bytes, *, small: bool, is_cache: bool) -> Path:
    """A file as huggingface_hub downloads it; returns where its bytes are."""
    digest = hashlib.sha256(content).hexdigest()
    if small:
        digest = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if is_cache:
        blob = folder.parents[1] / "blobs" / digest
        blob.parent.mkdir(exist_ok=True)
        blob.write_bytes(content)
        path.symlink_to(blob)
        return blob
    path.write_bytes(content)
    stated = folder / ".cache" / "huggingface" / "download" / f"{name}.metadata"
    stated.parent.mkdir(parents=True, exist_ok=True)
    stated.write_text(f"{'0' * 40}\n{digest}\n1764000000.5\n")
    return path


@pytest.mark.parametrize("is_cache", [True, False])
def test_the_digests_of_the_hub_are_those_of_its_cache(is_cache, tmp_path):
    folder = tmp_path / "models--org--m" / "snapshots" / ("a" * 40) if is_cache else tmp_path / "m"
    saved = tmp_path / "saved"
    rustload.save({"a": torch.randn(1_000_000), "b": torch.randn(1_100_000)}, saved, max_shard_size="5MB")
    places = {
        file.name: _hub_file(
            folder, file.name, file.read_bytes(), small=file.suffix == ".json", is_cache=is_cache
        )
        for file in saved.iterdir()
    }
    good = rustload.open(saved, framework="numpy").materialize()
    given = [folder, tmp_path / "models--org--m"] if is_cache else [folder]
    for path in given:
        loaded = rustload.open(path, manifest="hf", framework="numpy").materialize()
        assert all((loaded[name] == good[name]).all() for name in good)
        assert main(["verify", str(folder), "--manifest", "hf"]) == 0
    for name, place in places.items():
        content = place.read_bytes()
        bad = bytearray(content)
        bad[len(bad) // 2] ^= 8
        place.write_bytes(bad)
        with pytest.raises(rustload.FormatError) as caught:
            rustload.open(folder, manifest="hf", framework="numpy").materialize()
        assert caught.value.code == "ManifestMismatch", name
        assert main(["verify", str(folder), "--manifest", "hf"]) == 1
        place.write_bytes(content)
    # A file that did not come from the Hub.
    (folder / "added.safetensors").write_bytes((folder / "model-00001-of-00002.safetensors").read_bytes())
    with pytest.raises(rustload.FormatError) as caught:
        rustload.open(folder / "added.safetensors", manifest="hf")
    assert caught.value.code == "ManifestMissing"


def test_without_digests_of_the_hub_nothing_is_opened(tmp_path):
    rustload.save({"a": torch.ones(3)}, tmp_path / "m.safetensors")
    for given in (tmp_path, tmp_path / "m.safetensors", b"123"):
        with pytest.raises(ValueError, match="'hf'"):
            rustload.open(given, manifest="hf")
    stated = tmp_path / ".cache" / "huggingface" / "download" / "m.safetensors.metadata"
    stated.parent.mkdir(parents=True)
    for text in ("", "a\n", "a\nb\nc\n", f"a\n{'F' * 64}\n1\n", f"a\n{'0' * 63}\n1\n", "\0" * 5000):
        stated.write_text(text)
        with pytest.raises(ValueError, match="'hf'"):
            rustload.open(tmp_path, manifest="hf")
    assert main(["verify", str(tmp_path), "--manifest", "hf"]) == 2
