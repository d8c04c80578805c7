"""`rustload.open(manifest=)`: nothing that differs from a manifest is parsed or returned, and manifests that lie are refused."""

import base64
import hashlib
import itertools
import json
import os
import pickle
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp
from process_memory import read
from quantized_files import write as write_quantized
from quantized_ints import pack_quantized
from support import child, coded
from web_server import Server

import rustload
import rustload.torch
from rustload._cli import main
from rustload._common import manifest as writing
from rustload._common import manifest_forms as reading

PIECE = 256


def _model() -> dict[str, Any]:
    torch.manual_seed(1)
    return {"a.weight": torch.randn(23, 17), "b": torch.arange(301), "c": torch.ones(3).bfloat16()}


def _write(folder: Path, kind: str) -> Path:
    """A small checkpoint of this format."""
    folder.mkdir()
    model = _model()
    arrays = {name: tensor.float().numpy() for name, tensor in model.items()}
    if kind == "safetensors":
        safetensors.numpy.save_file(arrays, folder / "m.safetensors")
    elif kind == "zip":
        torch.save(model, folder / "m.safetensors")
    elif kind == "legacy":
        torch.save(model, folder / "m.safetensors", _use_new_zipfile_serialization=False)
    elif kind == "npz":
        np.savez(folder / "m.safetensors.npz", **arrays)
        (folder / "m.safetensors.npz").rename(folder / "m.safetensors")
    elif kind == "npz-deflated":
        np.savez_compressed(folder / "m.safetensors.npz", **arrays)
        (folder / "m.safetensors.npz").rename(folder / "m.safetensors")
    elif kind == "sharded":
        rustload.save(model, folder, max_shard_size=2000)
        return folder
    elif kind == "dcp":
        dcp.save(model, checkpoint_id=folder, no_dist=True)
        return folder
    return folder / "m.safetensors"


KINDS = ("safetensors", "zip", "legacy", "npz", "npz-deflated", "sharded", "dcp")


def _read(path: Path, manifest: rustload.Manifest) -> tuple[dict[str, bytes], set[str]]:
    """The bytes of the tensors that can be read, and the codes of errors."""
    found, codes = {}, set()
    try:
        checkpoint = rustload.open(path, manifest=manifest, framework="numpy")
    except (rustload.RustloadError, OSError) as error:
        return {}, {error.code}
    for name, tensor in checkpoint.items():
        try:
            found[name] = bytes(memoryview(tensor.materialize(framework="dlpack", copy=True)).cast("B"))
        except (rustload.RustloadError, OSError) as error:
            codes.add(error.code)
    return found, codes


@pytest.mark.parametrize("kind", KINDS)
def test_no_flipped_byte_is_returned_and_what_it_does_not_touch_is(kind, tmp_path):
    path = _write(tmp_path / "m", kind)
    folder = path if path.is_dir() else path.parent
    manifest = rustload.Manifest.of(path, piece=PIECE)
    whole = rustload.Manifest(
        "".join(
            f"{hashlib.sha256(f.read_bytes()).hexdigest()}  {f.name}\n" for f in folder.iterdir()
        ).encode()
    )
    good, codes = _read(path, manifest)
    assert len(good) == 3
    assert not codes
    assert _read(path, whole) == (good, set())
    partial = 0
    for file in sorted(folder.iterdir()):
        content = file.read_bytes()
        borders = {at + by for at in range(0, len(content), PIECE) for by in (-1, 0)} | {len(content) - 1}
        for at in sorted((borders | {*range(0, len(content), 97)}) & {*range(len(content))}):
            bad = bytearray(content)
            bad[at] ^= 1 << at % 8
            file.write_bytes(bad)
            found, codes = _read(path, manifest)
            assert codes <= {"ManifestMismatch"}, (file.name, at)
            assert found.items() <= good.items(), (file.name, at)
            assert codes or found == good
            partial += bool(codes and found)
            assert _read(path, whole)[0].items() <= good.items()
        file.write_bytes(content)
    # Of a small archive, opening reads all.
    assert partial or kind in ("zip", "legacy", "npz", "npz-deflated")


@pytest.mark.parametrize("is_zip", [True, False])
def test_a_bad_piece_of_a_tensor_leaves_the_others(is_zip, tmp_path):
    path = tmp_path / "m.bin"
    names = ("a", "b", "c")
    model = {name: torch.full((1 << 18,), float(at)) for at, name in enumerate(names)}
    torch.save(model, path, _use_new_zipfile_serialization=is_zip)
    manifest = rustload.Manifest.of(path, piece=4096)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    found, codes = _read(path, manifest)
    assert codes == {"ManifestMismatch"}
    assert len(found) == 2
    assert found.items() < {name: tensor.numpy().tobytes() for name, tensor in model.items()}.items()


@pytest.mark.parametrize("kind", ["safetensors", "zip"])
def test_a_changed_file_is_an_error_of_the_read(kind, tmp_path):
    path = _write(tmp_path / "m", kind)
    content = path.read_bytes()
    manifest = rustload.Manifest.of(path, piece=PIECE)
    good, _ = _read(path, manifest)
    cut = [content[:-1], content + b"\0", b""]
    pieces = [content[at : at + PIECE] for at in range(0, len(content), PIECE)]
    pieces[2], pieces[3] = pieces[3], pieces[2]
    for bad in (*cut, b"".join(pieces)):
        path.write_bytes(bad)
        found, codes = _read(path, manifest)
        assert codes == {"ManifestMismatch"}
        assert len(found) < 3
    path.write_bytes(content)
    checkpoint = rustload.open(path, manifest=manifest, framework="numpy")
    other = path.with_name("other")
    other.write_bytes(bytes(len(content)))
    other.replace(path)
    assert {name: array.tobytes() for name, array in checkpoint.materialize().items()} == good
    assert _read(path, manifest) == ({}, {"ManifestMismatch"})
    path.write_bytes(content)
    checkpoint = rustload.open(path, manifest=manifest, framework="numpy")
    path.write_bytes(bytes(len(content)))
    with pytest.raises(rustload.FormatError) as caught:
        checkpoint.materialize()
    assert caught.value.code in ("FileChanged", "ManifestMismatch")


def test_a_mismatch_says_where(tmp_path):
    path = _write(tmp_path / "m", "safetensors")
    manifest = rustload.Manifest.of(path, piece=PIECE)
    content = bytearray(path.read_bytes())
    content[5 * PIECE + 3] ^= 1
    path.write_bytes(content)
    with pytest.raises(rustload.FormatError, match="piece 5, bytes 1280 to 1536") as caught:
        rustload.open(path, manifest=manifest).materialize()
    error = caught.value
    assert (error.code, error.path, error.offset) == ("ManifestMismatch", str(path), 5 * PIECE)
    assert manifest.check(path) == [rustload.Fault("m.safetensors", "differs", 5, 1280, 1536)]


def test_a_bad_piece_changes_no_parameter_and_no_out(tmp_path):
    model = torch.nn.Linear(64, 64)
    path = tmp_path / "m.safetensors"
    rustload.save(model.state_dict(), path)
    manifest = rustload.Manifest.of(path, piece=PIECE)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    checkpoint = rustload.open(path, manifest=manifest)
    bad = []
    for name in ("weight", "bias"):
        out = torch.zeros(checkpoint[name].shape)
        try:
            checkpoint[name].materialize(out=out)
        except rustload.FormatError:
            bad.append(name)
            # What was verified before the bad piece may be there.
            assert set(out.flatten().tolist()) <= {0.0, *model.state_dict()[name].flatten().tolist()}
    assert len(bad) == 1
    target = torch.nn.Linear(64, 64)
    with pytest.raises(rustload.FormatError):
        rustload.torch.load_into(target, rustload.open(path, manifest=manifest))


@pytest.mark.parametrize("kind", ["safetensors", "zip", "legacy"])
@pytest.mark.parametrize("piece", [PIECE, 1 << 20, 8 << 20])
def test_parts_and_orders_of_a_verified_tensor_are_those_of_the_file(piece, kind, tmp_path):
    torch.manual_seed(2)
    model = {"m": torch.randn(23, 17), "d": torch.randn(3, 40, 5, 6), "v": torch.arange(900)}
    path = tmp_path / "m"
    if kind == "safetensors":
        safetensors.torch.save_file(model, path)
    else:
        model |= {
            "t": torch.randn(31, 12).T,
            "s": torch.randn(9, 8, 7)[::2, :, 1:],
            "e": torch.ones(5, 1).expand(5, 4),
        }
        torch.save(model, path, _use_new_zipfile_serialization=kind == "zip")
    checkpoint = rustload.open(path, manifest=rustload.Manifest.of(path, piece=piece), framework="torch")
    for name, value in model.items():
        lazy = checkpoint[name]
        for order in itertools.permutations(range(value.ndim)):
            assert torch.equal(lazy.materialize(transpose=order), value.permute(order))
            assert torch.equal(
                lazy.permute(order).materialize(dtype="float64"), value.permute(order).double()
            )
        for key in (slice(1, None, 2), (..., 3), (slice(2, 3), None), slice(1, None)):
            assert torch.equal(lazy[key].torch(), value[key])
    rules = {"m": True, "d": (2, 0, 3, 1)}
    orders = {"m": (1, 0), "d": (2, 0, 3, 1)}
    for name, tensor in checkpoint.stream(transpose=rules):
        assert torch.equal(tensor, model[name].permute(orders[name]) if name in orders else model[name])
    rustload.convert(
        path, tmp_path / "o.safetensors", manifest=rustload.Manifest.of(path, piece=piece), transpose=rules
    )
    assert torch.equal(
        safetensors.torch.load_file(tmp_path / "o.safetensors")["d"], model["d"].permute(orders["d"])
    )


def test_verified_tensors_have_no_views(tmp_path):
    path = _write(tmp_path / "m", "safetensors")
    checkpoint = rustload.open(path, manifest=rustload.Manifest.of(path), framework="numpy")
    with pytest.raises(BufferError):
        checkpoint["b"].materialize(copy=False)
    array = checkpoint["b"].materialize()
    path.write_bytes(b"other")
    assert array.sum() == sum(range(301))


def test_files_that_are_not_listed_are_refused(tmp_path):
    folder = _write(tmp_path / "m", "sharded")
    manifest = rustload.Manifest.of(folder)
    assert len(rustload.open(folder, manifest=manifest)) == 3
    for name in manifest.files:
        files = {one: listed for one, listed in manifest.files.items() if one != name}
        fewer = rustload.Manifest.__new__(rustload.Manifest)
        fewer._take(files)
        with coded(rustload.FormatError, "ManifestMissing") as caught:
            rustload.open(folder, manifest=fewer)
        assert caught.value.path == str(folder / name)
    with pytest.raises(ValueError, match="manifest="):
        rustload.open(b"123", manifest=manifest)


@pytest.mark.parametrize("store", ["http", "memory"])
def test_a_file_in_a_store_is_the_one_that_its_folder_lists(store, tmp_path):
    pytest.importorskip("urllib3")
    memory = pytest.importorskip("fsspec").filesystem("memory")
    path = _write(tmp_path / "m", "safetensors")
    name = "a b%.safetensors"
    path = path.rename(path.with_name(name))
    manifest = rustload.Manifest.of(path.parent)
    server = Server({name: path.read_bytes()})
    memory.pipe(f"listed/{name}", path.read_bytes())
    url = f"{server.host}/{quote(name)}" if store == "http" else f"memory://listed/{name}"
    try:
        found = rustload.open(url, manifest=manifest, remote=(store,))
        assert list(found) == list(_model())
        assert torch.equal(found["a.weight"].materialize(), _model()["a.weight"])
        changed = path.read_bytes()[:-1] + b"!"
        server.files[name] = changed
        memory.pipe(f"listed/{name}", changed)
        with coded(rustload.FormatError, "ManifestMismatch"):
            rustload.open(url, manifest=manifest, remote=(store,)).materialize()
    finally:
        server.close()
        memory.rm("listed", recursive=True)


def test_the_configuration_beside_a_file_is_verified_too(tmp_path):
    folder = tmp_path / "m"
    write_quantized(pack_quantized("packed", (32, 64), 4, 32, prefix="proj"), folder)
    manifest = rustload.Manifest.of(folder)

    def decoded(**options: Any) -> np.ndarray:
        checkpoint = rustload.open(folder, dequantize=True, framework="numpy", **options)
        return checkpoint["proj.weight"].materialize(dtype="float32")

    np.testing.assert_array_equal(decoded(manifest=manifest), decoded())
    config = folder / "config.json"
    content = config.read_bytes()
    config.write_bytes(content + b" ")
    with coded(rustload.FormatError, "ManifestMismatch") as caught:
        decoded(manifest=manifest)
    assert caught.value.path == str(config)
    config.unlink()
    with pytest.raises(FileNotFoundError):
        decoded(manifest=manifest)
    # One that is not listed is not there, whatever it says.
    without = rustload.Manifest.of(folder)
    config.write_bytes(b"[" * 1000)
    assert list(rustload.open(folder, manifest=without)) == list(rustload.open(folder))


@pytest.mark.parametrize("store", ["disk", "memory"])
def test_other_files_are_converted_as_a_manifest_lists_them(store, tmp_path):
    folder = _write(tmp_path / "m", "sharded")
    others = {
        "config.json": b'{"dtype": "float32"}',
        "tokenizer.json": os.urandom(9_000_001),
        "sub/vocab.txt": b"a",
        "empty.txt": b"",
    }
    for name, content in others.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)
    manifest = rustload.Manifest.of(folder)
    given: Any = folder
    if store == "memory":
        memory = pytest.importorskip("fsspec").filesystem("memory")
        memory.put(str(folder), "others", recursive=True)
        given = "memory://others/"

    def put(name: str, content: bytes) -> None:
        (folder / name).write_bytes(content)
        if store == "memory":
            memory.pipe(f"others/{name}", content)

    def convert(target: str) -> rustload.SaveReport:
        return rustload.convert(
            given, tmp_path / target, copy_others=True, manifest=manifest, dtype="bfloat16"
        )

    report = convert("out")
    assert {*others} < {*report.files}
    assert json.loads((tmp_path / "out/config.json").read_text()) == {"dtype": "bfloat16"}
    for name, content in others.items():
        assert name == "config.json" or (tmp_path / "out" / name).read_bytes() == content
    for name, content, code in (
        ("config.json", b'{"dtype": "float16"}', "ManifestMismatch"),
        ("config.json", b'{"dtype": "float3!"}', "ManifestMismatch"),
        ("tokenizer.json", others["tokenizer.json"][:-1] + b"!", "ManifestMismatch"),
        ("tokenizer.json", b"", "ManifestMismatch"),
        ("new.txt", b"1", "ManifestMissing"),
    ):
        put(name, content)
        with pytest.raises(rustload.FormatError) as caught:
            convert("failed")
        assert caught.value.code == code, name
        assert str(caught.value.path).endswith(name)
        assert not (tmp_path / "failed").exists()
        put(name, others.get(name, b""))
    convert("restored")
    if store == "memory":
        memory.rm("others", recursive=True)


def test_a_manifest_is_not_copied_with_the_files_that_it_lists(tmp_path):
    folder = _write(tmp_path / "m", "safetensors").parent
    (folder / "config.json").write_text("{}")
    path = folder / "m.manifest.json"
    path.write_text(rustload.Manifest.of(folder).to_json())
    report = rustload.convert(folder, tmp_path / "out", copy_others=True, manifest=path)
    assert {*report.files} == {"m.safetensors", "config.json"}


def test_a_listed_file_has_the_ranges_that_it_has(tmp_path):
    content = os.urandom(1000)
    (tmp_path / "a").write_bytes(content)
    manifest = rustload.Manifest.of(tmp_path, piece=300)
    file = manifest._core.open(str(tmp_path), "a")
    assert (file.name, file.size) == (str(tmp_path / "a"), 1000)
    found = file.read_ranges([(0, 1000), (299, 2), (1000, 0)])
    assert found == [content, content[299:301], b""]
    for wrong in ((0, 1001), (1000, 1), (2**64 - 1, 1), (0, 2**63 - 1)):
        with pytest.raises(ValueError, match="has no bytes"):
            file.read_ranges([wrong])


def test_no_statement_is_written_that_would_not_be_read(tmp_path, monkeypatch):
    (tmp_path / "m").write_bytes(bytes(1000))
    small, large = (rustload.Manifest.of(tmp_path / "m", piece=piece) for piece in (9, 10))
    most = len(large.to_json())
    for module in (writing, reading):
        monkeypatch.setattr(module, "MANIFEST_BYTES_MAX", most)
    assert rustload.Manifest(large.to_json().encode()).files == large.files
    with pytest.raises(ValueError, match="more than") as caught:
        small.to_json()
    assert "piece=" in caught.value.__notes__[0]
    assert main(["manifest", "--piece", "9", str(tmp_path / "m"), "-o", str(tmp_path / "out")]) == 3
    assert not (tmp_path / "out").exists()


def test_a_statement_is_read_as_it_was_written(tmp_path):
    folder = _write(tmp_path / "m", "sharded")
    (folder / "sub").mkdir()
    (folder / "sub" / "notes.txt").write_text("hello")
    (folder / "empty").touch()
    manifest = rustload.Manifest.of(folder, piece="1KiB")
    text = manifest.to_json("m")
    document = json.loads(text)
    root = hashlib.sha256()
    for resource in document["predicate"]["resources"]:
        name, start, end = resource["name"].split(":")
        digest = hashlib.sha256((folder / name).read_bytes()[int(start) : int(end)])
        assert digest.hexdigest() == resource["digest"]
        root.update(digest.digest())
    assert document["subject"] == [{"name": "m", "digest": {"sha256": root.hexdigest()}}]
    assert "sub/notes.txt" in manifest.files
    assert "empty" not in manifest.files
    (tmp_path / "m.json").write_text(text)
    for given in (tmp_path / "m.json", text.encode(), document):
        assert rustload.Manifest(given).files == manifest.files
        assert len(rustload.open(folder, manifest=given)) == 3


def test_long_pieces_and_long_files(tmp_path):
    big = {"a": np.arange(5 << 20, dtype=np.float32), "b": np.arange(1000, dtype=np.int64)}
    path = tmp_path / "m.safetensors"
    safetensors.numpy.save_file(big, path)
    sums = f"{hashlib.sha256(path.read_bytes()).hexdigest()} *m.safetensors\n".encode()
    manifests = [rustload.Manifest.of(path, piece=piece) for piece in ("8MiB", "9MB", "1GB", "3MB")]
    for manifest in (*manifests, rustload.Manifest(sums)):
        checkpoint = rustload.open(path, manifest=manifest, framework="numpy")
        loaded = checkpoint.materialize()
        assert all((loaded[name] == big[name]).all() for name in big)
        half = checkpoint["a"][100:-3].materialize(dtype="float16", overflow="saturate")
        assert half.shape == ((5 << 20) - 103,)
    one_gb = json.loads(manifests[2].to_json())
    with path.open("r+b") as file:
        file.seek(15 << 20)
        file.write(b"x")
    for manifest in manifests[:2]:
        checkpoint = rustload.open(path, manifest=manifest, framework="numpy")
        assert (checkpoint["a"][:1000].materialize() == big["a"][:1000]).all()
        with pytest.raises(rustload.FormatError, match="piece 1"):
            checkpoint["a"].materialize()
    # A manifest that has hashed the whole file knows what each part was; one that has not refuses all of it.
    checkpoint = rustload.open(path, manifest=manifests[2], framework="numpy")
    assert (checkpoint["a"][:1000].materialize() == big["a"][:1000]).all()
    with pytest.raises(rustload.FormatError):
        checkpoint["a"].materialize()
    for manifest in (one_gb, sums):
        with pytest.raises(rustload.FormatError):
            rustload.open(path, manifest=manifest)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts the bytes that a process reads")
def test_each_piece_is_read_once(tmp_path):
    sizes = random.Random(5).sample(range(1000, 4_000_000), 12)
    path = tmp_path / "m.safetensors"
    rustload.save({f"layers.{at}": torch.ones(size).bfloat16() for at, size in enumerate(sizes)}, path)

    manifest = rustload.Manifest.of(path, piece="1MiB")
    for cast in (None, "float32"):
        checkpoint = rustload.open(path, manifest=manifest)
        before = read()
        checkpoint.materialize(dtype=cast, copy=True)
        # A thread that pauses may find that a piece is no longer kept.
        assert read() - before < 1.1 * path.stat().st_size
    checkpoint = rustload.open(path, manifest=manifest)
    before = read()
    checkpoint["layers.7"][:8].materialize()
    assert read() - before < (2 << 20) + (64 << 10)


def test_a_verified_tensor_is_not_pickled_because_it_would_be_opened_unverified(tmp_path):
    path = _write(tmp_path / "m", "safetensors")
    checkpoint = rustload.open(path, manifest=rustload.Manifest.of(path))
    for one in (checkpoint, checkpoint["b"]):
        with pytest.raises(TypeError, match="cannot be pickled"):
            pickle.dumps(one)


def test_a_forked_child_reads(tmp_path):
    path = _write(tmp_path / "m", "safetensors")
    checkpoint = rustload.open(path, manifest=rustload.Manifest.of(path, piece=PIECE), framework="numpy")
    checkpoint["a.weight"].materialize()
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if checkpoint["b"].materialize().sum() == sum(range(301)) else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# Manifests that lie.


def _statement(listed: list[tuple[str, str]], **changes: Any) -> dict[str, Any]:
    digests = [digest for _, digest in listed if len(digest) == 64 and "g" not in digest]
    root = hashlib.sha256(b"".join(map(bytes.fromhex, digests)))
    shards = changes.pop("shard_size", 10)
    made = {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": "m", "digest": {"sha256": root.hexdigest()}}],
        "predicateType": "https://model_signing/signature/v1.0",
        "predicate": {
            "serialization": {"method": "shards", "hash_type": "sha256", "shard_size": shards},
            "resources": [{"name": name, "algorithm": "sha256", "digest": digest} for name, digest in listed],
        },
    }
    for key, value in changes.items():
        owner: Any = made["predicate"] if key in ("serialization", "resources") else made
        owner[key] = value
    return made


D = hashlib.sha256(b"x").hexdigest()
FILES = {"method": "files", "hash_type": "sha256"}


def _named(name: str) -> dict[str, Any]:
    return _statement([(name, D)], serialization=FILES)


ATTACKS: dict[str, Any] = {
    "the root digest": _statement([("a:0:10", D)], subject=[{"name": "m", "digest": {"sha256": "0" * 64}}]),
    "two subjects": _statement([("a:0:10", D)], subject=[{}, {}]),
    "no subject": _statement([("a:0:10", D)], subject=[]),
    "overlap": _statement([("a:0:10", D), ("a:5:15", D)]),
    "hole": _statement([("a:0:10", D), ("a:20:30", D)]),
    "hole at the start": _statement([("a:10:20", D)]),
    "short piece within": _statement([("a:0:9", D), ("a:9:19", D)]),
    "long piece": _statement([("a:0:11", D)]),
    "empty piece": _statement([("a:0:0", D)]),
    "backwards": _statement([("a:0:10", D), ("a:10:5", D)]),
    "the same piece twice": _statement([("a:0:10", D), ("a:0:10", D)]),
    "a file in two places": _statement([("a:0:10", D), ("b:0:10", D), ("a:10:20", D)]),
    "huge offset": _statement([("a:0:99999999999999999999", D)]),
    "long number": _statement([("a:0:" + "9" * 5000, D)]),
    "other digits": _statement([("a:0:١٠", D)]),
    "leading zero": _statement([("a:00:10", D)]),
    "sign": _statement([("a:-0:10", D)]),
    "no range": _statement([("a", D)]),
    "one number": _statement([("a:10", D)]),
    "colon in a name": _statement([("c:a:0:10", D)]),
    "shard size 0": _statement([("a:0:10", D)], shard_size=0),
    "negative shard size": _statement([("a:0:10", D)], shard_size=-1),
    "huge shard size": _statement([("a:0:10", D)], shard_size=1 << 70),
    "bool shard size": _statement([("a:0:1", D)], shard_size=True),
    "shard size with a fraction": _statement([("a:0:10", D)], shard_size=10.5),
    "shard size is no number": _statement([("a:0:10", D)], shard_size=float("nan")),
    "text shard size": _statement([("a:0:10", D)], shard_size="10"),
    "parent": _named("../a"),
    "parent within": _named("a/../../b"),
    "dot": _named("./a"),
    "absolute": _named("/etc/passwd"),
    "backslash": _named("..\\a"),
    "drive": _named("C:a"),
    "empty name": _named(""),
    "double slash": _named("a//b"),
    "slash at the end": _named("a/"),
    "NUL": _named("a\0b"),
    "line break": _named("a\nb"),
    "long name": _named("a" * 5000),
    "a name twice": _statement([("a", D), ("a", D)], serialization=FILES),
    "upper-case digest": _statement([("a:0:10", D.upper())]),
    "short digest": _statement([("a:0:10", D[:-2])]),
    "long digest": _statement([("a:0:10", D + "00")]),
    "line break after a digest": _statement([("a:0:10", D + "\n")]),
    "no hexadecimal digest": _statement([("a:0:10", "g" * 64)]),
    "number as digest": _statement([], resources=[{"name": "a:0:10", "algorithm": "sha256", "digest": 5}]),
    "no digest": _statement([], resources=[{"name": "a:0:10", "algorithm": "sha256"}]),
    "unknown algorithm": _statement([], resources=[{"name": "a:0:10", "algorithm": "md5", "digest": D}]),
    "other shard size": _statement(
        [], resources=[{"name": "a:0:10", "algorithm": "sha256-sharded-5", "digest": D}]
    ),
    "resource is a list": _statement([], resources=[[]]),
    "resources is a dict": _statement([], resources={}),
    "unknown hash": _statement([("a", D)], serialization={"method": "files", "hash_type": "blake3"}),
    "unknown method": _statement([("a", D)], serialization={"method": "tree", "hash_type": "sha256"}),
    "no serialization": _statement([("a", D)], serialization=None),
    "old predicate": _statement([("a:0:10", D)], predicateType="https://model_signing/Digests/v0.1"),
    "other predicate": _statement([("a:0:10", D)], predicateType="https://slsa.dev/provenance/v1"),
    "other type": _statement([("a:0:10", D)], _type="https://in-toto.io/Statement/v0.1"),
    "predicate is text": {**_statement([("a:0:10", D)]), "predicate": "x"},
    "nothing": {},
    "bytes: empty": b"",
    "bytes: blank": b" \n\n",
    "bytes: not JSON": b"{",
    "bytes: key twice": json.dumps(_named("a")).replace('"_type"', '"_type": 1, "_type"').encode(),
    "bytes: inner key twice": json.dumps(_named("a")).replace('"method"', '"method": 1, "method"').encode(),
    "bytes: deep": b'{"a":' + b"[" * 200_000,
    "bytes: long number": b'{"a":' + b"9" * 10_000 + b"}",
    "bytes: infinity": b'{"a": Infinity}',
    "bytes: not UTF-8": b'{"a": "\xff"}',
    "bytes: trailing": json.dumps(_named("a")).encode() + b"{}",
    "bytes: sums: short": b"abcd  a\n",
    "bytes: sums: parent": f"{D}  ../a\n".encode(),
    "bytes: sums: absolute": f"{D}  /a\n".encode(),
    "bytes: sums: twice": f"{D}  a\n{D}  a\n".encode(),
    "bytes: sums: twice by ./": f"{D}  a\n{D}  ./a\n".encode(),
    "bytes: sums: escaped": f"\\{D}  a\\nb\n".encode(),
    "bytes: sums: no name": f"{D}  \n".encode(),
    "bytes: sums: SHA-1": f"{D[:40]}  a\n".encode(),
    "bytes: sums: MD5 by its tag": f"MD5 (a) = {D[:32]}\n".encode(),
    "bytes: sums: binary": bytes(range(256)),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_a_manifest_that_lies_is_refused(name):
    with coded(rustload.FormatError, "ManifestInvalid") as caught:
        rustload.Manifest(ATTACKS[name])
    assert "hole" not in name or "are not one after another" in str(caught.value)
    if isinstance(ATTACKS[name], dict) and not any(isinstance(key, bytes) for key in ATTACKS[name]):
        with pytest.raises(rustload.FormatError):
            rustload.Manifest(json.dumps(ATTACKS[name]).encode())


def test_a_large_manifest_takes_linear_time(tmp_path):
    def seconds(count: int) -> float:
        text = json.dumps(_statement([(f"a:{at}:{at + 10}", D) for at in range(0, count * 10, 10)])).encode()
        start = time.process_time()
        assert len(rustload.Manifest(text).files["a"].digests) == count * 32
        return time.process_time() - start

    seconds(1000)
    assert seconds(80_000) < 12 * max(seconds(20_000), 0.02)
    path = tmp_path / "m.json"
    with path.open("wb") as file:
        file.truncate((64 << 20) + 1)
    start = time.monotonic()
    with pytest.raises(rustload.FormatError, match="more than"):
        rustload.Manifest(path)
    assert time.monotonic() - start < 20


def test_a_bundle_is_refused_unless_its_signature_is_ignored(tmp_path):
    payload = base64.b64encode(json.dumps(_named("a")).encode()).decode()
    envelope = {"payload": payload, "payloadType": "application/vnd.in-toto+json", "signatures": []}
    bundle = {"mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json", "dsseEnvelope": envelope}
    (tmp_path / "model.sig").write_text(json.dumps(bundle))
    for given in (bundle, tmp_path / "model.sig"):
        with pytest.raises(ValueError, match="does not verify") as caught:
            rustload.Manifest(given)
        assert "model_signing" in caught.value.__notes__[0]
        assert [*rustload.Manifest(given, signature="ignore").files] == ["a"]
    with pytest.raises(ValueError, match="signature="):
        rustload.Manifest(bundle, signature="check")  # type: ignore[arg-type]
    for change in ({"payload": "!"}, {"payload": 5}, {"payloadType": "text"}, {"payload": payload[:40]}):
        with pytest.raises(rustload.FormatError):
            rustload.Manifest({"dsseEnvelope": envelope | change}, signature="ignore")


def test_the_lines_of_sha256sum_are_read(tmp_path):
    path = _write(tmp_path / "m", "safetensors")
    forms = [["sha256sum", path.name], ["sha256sum", "-b", path.name], ["sha256sum", "--tag", path.name]]
    for form in (*forms, ["sha256sum", f"./{path.name}"]):
        lines = subprocess.run(form, cwd=path.parent, capture_output=True, check=True).stdout
        for given in (lines, lines.replace(b"\n", b"\r\n"), b"\xef\xbb\xbf# a comment\n\n" + lines):
            assert len(rustload.open(path, manifest=given)) == 3


# The command line.


def test_commands_write_and_verify_manifests(tmp_path, capsys):
    path = _write(tmp_path / "m", "zip")
    manifest = tmp_path / "m.json"
    assert main(["manifest", str(path), "--piece", "1KiB", "-o", str(manifest)]) == 0
    assert main(["manifest", str(path), "-o", str(manifest)]) == 3, "it exists"
    assert main(["verify", str(path), "--manifest", str(manifest)]) == 0
    assert main(["verify", str(path.parent), "--manifest", str(manifest)]) == 0
    capsys.readouterr()
    assert main(["manifest", str(path.parent), "--piece", "1KiB"]) == 0
    assert rustload.Manifest(capsys.readouterr().out.encode()).files == rustload.Manifest(manifest).files
    (path.parent / "more").write_text("x")
    assert main(["verify", str(path.parent), "--manifest", str(manifest)]) == 0
    assert "not listed: more\n" in capsys.readouterr().out
    assert main(["verify", str(path.parent / "more"), "--manifest", str(manifest)]) == 1
    for command in (["info"], ["stats"]):
        assert main([*command, str(path), "--manifest", str(manifest)]) == 0
        assert main([*command, str(path.parent / "more"), "--manifest", str(manifest)]) == 3
    out = tmp_path / "out.safetensors"
    convert = ["convert", str(path), str(out), "--manifest", str(manifest), "--overwrite"]
    assert main(convert) == 0
    before = out.read_bytes()
    content = bytearray(path.read_bytes())
    content[1100] ^= 1
    path.write_bytes(content)
    capsys.readouterr()
    assert main(["verify", str(path), "--manifest", str(manifest)]) == 1
    assert "m.safetensors: differs somewhere in bytes 1024 to 2048\n" in capsys.readouterr().out
    assert main(convert) == 3
    assert out.read_bytes() == before
    assert "piece 1, bytes 1024 to 2048, is not the one in the manifest" in capsys.readouterr().err
    path.write_bytes(content[:-1])
    assert main(["verify", str(path), "--manifest", str(manifest)]) == 1
    path.unlink()
    assert main(["verify", str(path.parent), "--manifest", str(manifest)]) == 1
    assert "m.safetensors: missing\n" in capsys.readouterr().out
    assert main(["verify", str(path), "--manifest", str(manifest)]) == 2
    manifest.write_text("{}")
    assert main(["verify", str(path), "--manifest", str(manifest)]) == 2


def test_importing_rustload_imports_no_manifests():
    code = "import rustload, sys; print('rustload._common.manifest' in sys.modules, 'hashlib' in sys.modules)"
    assert child(code).stdout.split()[0] == "False"
