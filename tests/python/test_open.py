"""The sources that `open` accepts, and the mapping, metadata and names of a checkpoint."""

import json
import os
from collections.abc import Mapping
from pathlib import Path

import pytest
import safetensors.torch
import torch
from support import assert_same_bits, child, coded, safetensors_bytes, saved, write_shards

import rustload

FIRST_SHARD, SECOND_SHARD = {"a": torch.ones(2), "b": torch.zeros(3)}, {"c": torch.full((4,), 7.0)}


@pytest.fixture(params=["bin", "safetensors"])
def sharded(request, tmp_path):
    """A Hugging Face directory: two shards and an index."""
    write_shards(tmp_path, [FIRST_SHARD, SECOND_SHARD], request.param, by="test")
    (index,) = tmp_path.glob("*.index.json")
    return tmp_path, index, sorted(tmp_path.glob(f"*.{request.param}"))


def assert_all_tensors(ckpt) -> None:
    assert list(ckpt) == ["a", "b", "c"]
    assert len(ckpt) == 3
    for name, value in (FIRST_SHARD | SECOND_SHARD).items():
        assert_same_bits(ckpt[name].torch(), value)


def test_a_directory_opens_by_its_index(sharded):
    folder, _, shards = sharded
    ckpt = rustload.open(folder)
    assert_all_tensors(ckpt)
    assert ckpt.files == [str(path) for path in shards]
    assert ckpt.metadata["by"] == "test"
    assert ckpt.metadata["total_size"] == "36"


def test_an_index_file_opens(sharded):
    assert_all_tensors(rustload.open(sharded[1]))


@pytest.mark.parametrize("kind", [list, tuple, iter, lambda paths: (str(path) for path in paths)])
def test_a_list_of_shards_opens_in_its_order(sharded, kind):
    assert_all_tensors(rustload.open(kind(sharded[2])))
    assert list(rustload.open(list(reversed(sharded[2])))) == ["c", "a", "b"]


def test_numbered_shards_open_without_an_index(sharded):
    folder, index, _ = sharded
    index.unlink()
    assert_all_tensors(rustload.open(folder))


@pytest.mark.parametrize(
    "kind",
    [str, Path, lambda path: _PathLike(str(path)), lambda path: _PathLike(os.fsencode(path))],
)
def test_a_path_is_text_or_path_like(simple, kind):
    ckpt = rustload.open(kind(simple))
    assert len(ckpt) == 2
    assert ckpt.files == [str(simple)]


class _PathLike:
    def __init__(self, path):
        self.path = path

    def __fspath__(self):
        return self.path


def test_a_relative_path_opens(simple, monkeypatch):
    monkeypatch.chdir(simple.parent)
    ckpt = rustload.open(simple.name, framework="torch")
    monkeypatch.chdir("/")
    assert ckpt["w"].materialize(copy=True).sum() == 276


def test_a_file_name_that_is_no_unicode_opens(simple):
    odd = os.fsencode(simple.parent) + b"/\xff\xfe.bin"
    simple.rename(os.fsdecode(odd))
    for path in (_PathLike(odd), os.fsdecode(odd), Path(os.fsdecode(odd))):
        ckpt = rustload.open(path, framework="torch")
        assert ckpt["w"].materialize(copy=True).sum() == 276
        assert os.fsencode(ckpt.files[0]) == odd
        assert repr(ckpt)


def test_symlinks_are_followed(sharded, tmp_path):
    """The Hugging Face cache has such links."""
    folder, _, shards = sharded
    link = tmp_path / "link"
    link.mkdir()
    for path in folder.iterdir():
        if path.is_file():
            (link / path.name).symlink_to(path)
    assert_all_tensors(rustload.open(link))
    (tmp_path / "one").symlink_to(shards[0])
    assert list(rustload.open(tmp_path / "one")) == ["a", "b"]


def test_the_content_and_not_the_name_decides_the_format(simple, save):
    as_safetensors = simple.rename(simple.with_suffix(".safetensors"))
    assert rustload.open(as_safetensors).format == "torch-zip"
    other = save({"x": torch.ones(2)}, "y.safetensors")
    assert rustload.open(other.rename(other.with_suffix(".pt"))).format == "safetensors"


def test_an_empty_list_is_a_value_error():
    with pytest.raises(ValueError, match="no path"):
        rustload.open([])


def test_options_are_keyword_only(simple):
    with pytest.raises(TypeError):
        rustload.open(simple, "torch")


def open_descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_open_keeps_no_more_than_one_descriptor_per_file(sharded):
    before = open_descriptors()
    ckpt = rustload.open(sharded[0])
    assert open_descriptors() == before + 2
    del ckpt
    assert open_descriptors() == before


# The mapping.


def test_a_checkpoint_is_a_read_only_mapping(simple):
    ckpt = rustload.open(simple)
    assert isinstance(ckpt, Mapping)
    assert list(ckpt) == list(ckpt.keys()) == [name for name, _ in ckpt.items()] == ["w", "b"]
    assert [lazy.name for lazy in ckpt.values()] == ["w", "b"]
    assert "w" in ckpt
    assert "x" not in ckpt
    assert 5 not in ckpt
    assert None not in ckpt
    assert ckpt.get("x") is None
    assert ckpt.get("w").name == "w"
    with pytest.raises(TypeError):
        ckpt["x"] = 1
    with pytest.raises(TypeError):
        ckpt[0]


def test_names_are_in_the_order_of_the_pickle(save):
    names = [f"n{number * 7 % 31}" for number in range(31)]
    assert list(rustload.open(save({name: torch.ones(1) for name in names}))) == names


def test_names_of_safetensors_are_in_the_order_of_the_data(tmp_path):
    header = {
        "z": {"dtype": "U8", "shape": [2], "data_offsets": [4, 6]},
        "a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]},
        "m": {"dtype": "U8", "shape": [1], "data_offsets": [6, 7]},
    }
    path = tmp_path / "m.safetensors"
    path.write_bytes(safetensors_bytes(json.dumps(header).encode(), b"AAAAZZM"))
    ckpt = rustload.open(path)
    assert list(ckpt) == ["a", "z", "m"]
    assert [lazy.bytes() for lazy in ckpt.values()] == [b"AAAA", b"ZZ", b"M"]


def test_select_accepts_a_glob(save):
    ckpt = rustload.open(
        save({"layers": [{"w": torch.ones(1), "b": torch.ones(1)} for _ in range(3)], "W": torch.ones(1)})
    )
    assert list(ckpt.select("layers.*.w")) == ["layers.0.w", "layers.1.w", "layers.2.w"]
    assert list(ckpt.select("layers.[02].?")) == ["layers.0.w", "layers.0.b", "layers.2.w", "layers.2.b"]
    assert list(ckpt.select("W")) == ["W"]
    with pytest.raises(rustload.TensorNotFoundError, match="names 'w'"):
        ckpt.select("w")
    assert all(isinstance(lazy, rustload.LazyTensor) for lazy in ckpt.select("*").values())


def test_metadata_is_that_of_the_safetensors_header(save):
    path = save(
        {"x": torch.ones(1)}, "m.safetensors", metadata={"format": "pt", "ünï": "cødé\n", "": "empty"}
    )
    assert rustload.open(path).metadata == {"format": "pt", "ünï": "cødé\n", "": "empty"}


def test_a_pickle_has_no_metadata(simple):
    assert rustload.open(simple).metadata == {}


def test_nbytes_counts_a_storage_once(save):
    base = torch.zeros(100)
    ckpt = rustload.open(
        save({"a": base, "b": base[10:], "c": torch.zeros(3, dtype=torch.int8), "e": base[:1].expand(9)})
    )
    assert ckpt.nbytes == 403


def test_tied_lists_the_names_that_share_a_storage(save):
    first, second = torch.zeros(4), torch.zeros(4)
    ckpt = rustload.open(save({"a": first, "b": second, "c": first, "d": second[1:], "e": torch.zeros(4)}))
    assert ckpt.tied == [["a", "c"], ["b", "d"]]


def test_safetensors_have_no_ties(save):
    assert rustload.open(save({"a": torch.zeros(4), "b": torch.zeros(4)}, "m.safetensors")).tied == []


def test_the_default_framework_is_torch_if_installed(simple):
    ckpt = rustload.open(simple)
    assert ckpt.framework == "torch"
    assert rustload.open(simple, framework="numpy").framework == "numpy"
    assert isinstance(ckpt["w"].materialize(), torch.Tensor)


def test_verify_checks_the_storages_checksums():
    data = bytearray(saved({"x": torch.ones(1000)}))
    at = data.index(b"\0\0\x80\x3f" * 8)
    rustload.open(data, verify=True)
    data[at + 100] ^= 1
    assert len(rustload.open(data)) == 1
    with coded(rustload.FormatError, "ZipCrc"):
        rustload.open(data, verify=True)


def test_a_variant_index_opens(tmp_path):
    safetensors.torch.save_file(FIRST_SHARD, tmp_path / "model.fp16-00001-of-00001.safetensors")
    index = tmp_path / "model.safetensors.index.fp16.json"
    index.write_text(
        json.dumps({"weight_map": dict.fromkeys(FIRST_SHARD, "model.fp16-00001-of-00001.safetensors")})
    )
    assert list(rustload.open(index)) == ["a", "b"]
    assert list(rustload.open(tmp_path)) == ["a", "b"]


def test_the_index_decides_which_shard_a_name_is_read_from(sharded):
    """`b` and `d` are in both files; `extra` is not in the index, and is kept."""
    folder, index, (one, two) = sharded
    write = torch.save if one.suffix == ".bin" else safetensors.torch.save_file
    write({name: torch.ones(1) for name in "abd"}, one)
    write({name: torch.zeros(1) for name in ("b", "c", "d", "extra")}, two)
    index.write_text(json.dumps({"weight_map": {"a": one.name, "b": two.name, "c": two.name, "d": one.name}}))
    ckpt = rustload.open(folder, framework="torch")
    assert list(ckpt) == ["a", "d", "b", "c", "extra"]
    assert (ckpt["b"].materialize(), ckpt["d"].materialize()) == (0, 1)
    assert (len(ckpt.files), ckpt.nbytes) == (2, 20)


def test_a_directory_with_both_formats_opens_safetensors_with_a_note(tmp_path):
    safetensors.torch.save_file(FIRST_SHARD, tmp_path / "model.safetensors")
    torch.save(SECOND_SHARD, tmp_path / "pytorch_model.bin")
    ckpt = rustload.open(tmp_path)
    assert list(ckpt) == ["a", "b"]
    assert any("also has PyTorch files" in note for note in ckpt.notes)


def test_a_trainers_files_beside_the_weights_are_ignored(tmp_path):
    torch.save(SECOND_SHARD, tmp_path / "pytorch_model.bin")
    torch.save({"lr": 1}, tmp_path / "training_args.bin")
    torch.save({"s": torch.ones(1)}, tmp_path / "optimizer.pt")
    assert list(rustload.open(tmp_path)) == ["c"]


def test_an_empty_checkpoint_opens(save):
    for path in (save({}), save([], "l.bin"), save({}, "m.safetensors")):
        ckpt = rustload.open(path)
        assert (len(ckpt), list(ckpt), ckpt.nbytes, ckpt.tied) == (0, [], 0, [])
        assert repr(ckpt)


def test_opening_a_file_without_permission_is_a_permission_error(simple):
    if os.geteuid() == 0:
        code = (
            "import os, sys; os.setuid(65534); import rustload\n"
            "try: rustload.open(sys.argv[1])\nexcept PermissionError as e: print(e.errno, e.filename)"
        )
        simple.parent.chmod(0o755)
        simple.chmod(0)
        done = child(code, simple, check=False)
        if "No module named" in done.stderr or not done.stdout:
            pytest.skip("the other user may not read this Python installation")
        assert done.stdout.startswith("13 ")
    else:
        simple.chmod(0)
        with pytest.raises(PermissionError):
            rustload.open(simple)
