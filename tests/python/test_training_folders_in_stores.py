"""Folders of training programs, whose files are in folders of the folder: in stores, and as a manifest lists them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support import coded
from zero_folders import Run, write, write_universal

import rustload
import rustload.remote

NAMES = {"zero": "latest", "universal": "latest_universal", "megatron": "latest_checkpointed_iteration.txt"}


def megatron(root: Path) -> Path:
    for rank in range(2):
        folder = root / "iter_0000020" / f"mp_rank_{rank:02}"
        folder.mkdir(parents=True)
        torch.save({"model": {"w": torch.randn(4, 6)}}, folder / "model_optim_rng.pt")
    (root / "latest_checkpointed_iteration.txt").write_text("20\n")
    return root


def saved(kind: str, root: Path) -> Path:
    groups = [{"a.weight": torch.randn(7, 5), "a.bias": torch.randn(5)}]
    zero = Run(groups=groups, stage=3 if kind == "zero" else 2, world=3, buffers={"ids": torch.arange(3)})
    return {
        "zero": lambda: write(root, zero, tag="step #7%"),
        "universal": lambda: write_universal(root, zero),
        "megatron": lambda: megatron(root),
    }[kind]()


def put(root: Path, place: Callable[[str, bytes], object]) -> None:
    for path in root.rglob("*"):
        if path.is_file():
            place(str(path.relative_to(root)), path.read_bytes())


@pytest.fixture(params=["disk", "fsspec", "obstore"])
def stored(request: pytest.FixtureRequest) -> Any:
    """Puts a folder in a store, and returns what opens it there."""

    def disk(root: Path) -> Path:
        return root

    def fsspec(root: Path) -> str:
        memory = pytest.importorskip("fsspec").filesystem("memory")
        put(root, lambda name, content: memory.pipe(f"/training/{name}", content))
        request.addfinalizer(memory.store.clear)
        return "memory://training"

    def obstore(root: Path) -> Any:
        package = pytest.importorskip("obstore")
        store = pytest.importorskip("obstore.store").MemoryStore()
        put(root, lambda name, content: package.put(store, f"training/{name}", content))
        return rustload.remote.obstore(store, "training/")

    return {"disk": disk, "fsspec": fsspec, "obstore": obstore}[request.param]


def same(found: rustload.Checkpoint, root: Path) -> None:
    with rustload.open(root) as expected:
        assert list(found) == list(expected)
        assert found.notes == expected.notes
        for name, tensor in expected.items():
            whole = tensor.materialize(framework="torch")
            assert torch.equal(found[name].materialize(framework="torch"), whole), name


@pytest.mark.parametrize("kind", list(NAMES))
def test_it_opens_as_on_disk_and_as_a_manifest_lists_it(kind, stored, tmp_path):
    root = saved(kind, tmp_path / "run")
    manifest = rustload.Manifest.of(root)
    given = stored(root)
    same(rustload.open(given), root)
    same(rustload.open(given, manifest=manifest), root)
    # Names are those from the folder that is scanned.
    report = rustload.scan(given, policy=rustload.Policy(manifest=manifest))
    assert {Path(file.path or "").name for file in report.files} == {
        one.name for one in root.rglob("*") if one.is_file()
    }
    assert not [file.path for file in report.files if file.status == "unreadable"]
    latest = (root / NAMES[kind]).read_text().strip()
    inner = next(path for path in root.iterdir() if path.name.endswith(latest))
    same(rustload.open(root / inner.name), inner)
    one = max(root.rglob("*.pt"), key=lambda path: path.stat().st_size)
    content = bytearray(one.read_bytes())
    content[len(content) // 2] ^= 1
    one.write_bytes(content)
    with coded(rustload.FormatError, "ManifestMismatch") as caught:
        rustload.open(stored(root), manifest=manifest).materialize()
    assert one.name in str(caught.value)


@pytest.mark.parametrize("kind", list(NAMES))
def test_a_file_that_a_manifest_does_not_list(kind, stored, tmp_path):
    root = saved(kind, tmp_path / "run")
    moved = next(path for path in root.rglob("*.pt") if "optim" in path.name or kind == "universal")
    moved.rename(tmp_path / moved.name)
    manifest = rustload.Manifest.of(root)
    (tmp_path / moved.name).rename(moved)
    with coded(rustload.FormatError, "ManifestMissing", match=str(moved.relative_to(root))):
        rustload.open(stored(root), manifest=manifest)


@pytest.mark.parametrize("tag", ["", ".", "..", "../run/step #7%", "/", "absent", "step #7%/", "a\0b"])
@pytest.mark.parametrize("name", ["latest", "latest_universal"])
def test_latest_names_a_folder_in_it(tag, name, stored, tmp_path):
    root = saved("zero", tmp_path / "run")
    (root / "latest").rename(root / name)
    (root / name).write_text(tag)
    with pytest.raises((rustload.FormatError, OSError)) as caught:
        rustload.open(stored(root))
    assert getattr(caught.value, "code", "UnknownFormat") in ("UnknownFormat", "Io"), caught.value


def test_a_web_server_has_the_folder_that_latest_names(tmp_path):
    pytest.importorskip("urllib3")
    from web_server import Server

    root = saved("zero", tmp_path / "run")
    files: dict[str, bytes] = {}
    put(root, lambda name, content: files.update({f"run/{name}": content}))
    server = Server(files)
    try:
        same(rustload.open(f"{server.host}/run/", remote=("http",)), root)
        # Each file is looked up once, then read.
        looked_up = [one.path for one in server.requests if one.method == "HEAD"]
        assert len(looked_up) == len({*looked_up})
    finally:
        server.close()
