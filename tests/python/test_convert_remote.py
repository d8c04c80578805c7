"""`convert(copy_others=True)` of folders in stores: what is beside the checkpoint comes with it, as from a folder on disk."""

import json
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from support import child, contents
from web_server import Hub, Server

import rustload
from rustload._cli import command

fsspec = pytest.importorskip("fsspec")


OTHERS = ("config.json", "empty.txt", "tokenizer.model")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A folder with a model, and much beside it."""
    folder = tmp_path / "model"
    (folder / "extra" / "deep").mkdir(parents=True)
    (folder / ".cache").mkdir()
    save_file({"w": torch.arange(6, dtype=torch.bfloat16).view(2, 3)}, folder / "model.safetensors")
    (folder / "config.json").write_text('{"dtype": "bfloat16", "n": 1}')
    (folder / "empty.txt").write_bytes(b"")
    # Larger than one request.
    (folder / "tokenizer.model").write_bytes(bytes(range(256)) * (9 << 12))
    for name in ("training_args.bin", "renamed.dat", "extra/deep/x.pkl"):
        (folder / name).write_bytes(pickle.dumps({"lr": 1}))
    for name in (".hidden", ".cache/x", "extra/deep/vocab.txt", "extra/merges.txt"):
        (folder / name).write_text(name)
    (folder / "pytorch_model.bin.index.json").write_text("{}")
    return folder


@pytest.fixture
def memory(source: Path) -> Iterator[str]:
    fs = fsspec.filesystem("memory")
    for name, content in contents(source).items():
        fs.pipe(f"/others/model/{name}", content)
    yield "memory://others/model"
    fs.rm("/others", recursive=True)


@pytest.mark.parametrize("options", [{}, {"dtype": "float32"}, {"dtype": "float32", "keep_config": True}])
def test_the_others_of_a_store_are_those_of_a_folder(tmp_path, source, memory, options):
    expected = rustload.convert(source, tmp_path / "local", copy_others=True, **options)
    found = rustload.convert(memory, tmp_path / "remote", copy_others=True, **options)
    assert contents(tmp_path / "remote") == contents(tmp_path / "local")
    assert found.files == expected.files
    assert found.changed == expected.changed
    assert set(found.files) == {"model.safetensors", *OTHERS, "extra/deep/vocab.txt", "extra/merges.txt"}
    kept = json.loads((tmp_path / "remote" / "config.json").read_bytes())["dtype"]
    assert kept == ("float32" if options and "keep_config" not in options else "bfloat16")


def test_the_command_copies_them_too(tmp_path, memory):
    assert command.main(["convert", memory, str(tmp_path / "out"), "--copy-others"]) == 0
    assert set(OTHERS) < set(contents(tmp_path / "out"))


def test_a_file_alone_has_no_others(tmp_path, memory):
    for given, target in ((f"{memory}/model.safetensors", "out"), (memory, "out.safetensors")):
        with pytest.raises(ValueError, match="from folder to folder"):
            rustload.convert(given, tmp_path / target, copy_others=True)
    assert not (tmp_path / "out").exists()


def test_the_others_of_a_web_server_are_those_that_its_page_lists(tmp_path, source, monkeypatch):
    pytest.importorskip("urllib3")
    monkeypatch.setenv("RUSTLOAD_REMOTE", "http")
    server = Server({f"model/{name}": content for name, content in contents(source).items()})
    try:
        report = rustload.convert(f"{server.host}/model/", tmp_path / "out", copy_others=True)
        assert set(report.files) == {"model.safetensors", *OTHERS}
        for name in OTHERS:
            assert (tmp_path / "out" / name).read_bytes() == (source / name).read_bytes()
        # One of them fails: nothing is left.
        server.fault = lambda number: (
            "403" if server.requests[number].path.endswith("tokenizer.model") else None
        )
        with pytest.raises(OSError, match="refuses access"):
            rustload.convert(f"{server.host}/model/", tmp_path / "failed", copy_others=True)
    finally:
        server.close()
    assert sorted(one.name for one in tmp_path.iterdir()) == ["model", "out"]


def test_the_others_of_a_repository_are_of_the_same_commit(tmp_path, source):
    pytest.importorskip("huggingface_hub")
    hub = Hub("org/model", contents(source))
    code = (
        "import json, rustload\n"
        f"report = rustload.convert('hf://org/model', {str(tmp_path / 'out')!r}, copy_others=True)\n"
        "print(json.dumps(sorted(report.files)))"
    )
    environment = {"HF_HOME": str(tmp_path / "hf"), "HF_ENDPOINT": hub.host, "HF_HUB_OFFLINE": "0"}
    try:
        done = child(code, check=False, env=environment)
    finally:
        hub.close()
    assert done.returncode == 0, done.stderr
    files = json.loads(done.stdout.splitlines()[-1])
    assert files == sorted({"model.safetensors", *OTHERS, "extra/deep/vocab.txt", "extra/merges.txt"})
    for name in OTHERS:
        assert (tmp_path / "out" / name).read_bytes() == (source / name).read_bytes()


def test_the_command_line_requests_no_more_than_the_function(tmp_path, source, monkeypatch):
    pytest.importorskip("urllib3")
    monkeypatch.setenv("RUSTLOAD_REMOTE", "http")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    server = Server(contents(source))
    try:
        rustload.convert(f"{server.host}/", tmp_path / "one")
        number = len(server.requests)
        assert command.main(["convert", f"{server.host}/", str(tmp_path / "two"), "-q"]) == 0
        assert len(server.requests) == 2 * number
    finally:
        server.close()
