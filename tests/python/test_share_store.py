"""`load_into(share="node")` from a store: the ranks of a machine fetch each byte once, and leave nothing behind."""

import fcntl
import json
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from support import gloo_ranks
from web_server import Server

import rustload
from rustload.torch import _node_folder
from rustload.torch._node_folder import NodeFolder

pytest.importorskip("urllib3")
RANKS = 3


@pytest.fixture(scope="module")
def tensors() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    return {f"layers{number}": torch.randn(1 << 10, 1 << 10, generator=generator) for number in range(6)}


@pytest.fixture
def server(tmp_path: Path, tensors: dict[str, torch.Tensor]) -> Iterator[Server]:
    save_file(tensors, tmp_path / "model.safetensors")
    made = Server({"model.safetensors": (tmp_path / "model.safetensors").read_bytes()})
    yield made
    made.close()


def run_ranks(server: Server, tmp_path: Path, fault: str = "none") -> list[tuple[int, dict[str, Any]]]:
    """The exit code of each rank, and what it has found; its folder is made in `tmp_path`."""
    done = gloo_ranks(
        "store_ranks_child.py", RANKS, f"{server.host}/model.safetensors", fault, TMPDIR=str(tmp_path)
    )
    for rank in done:
        assert rank.stdout or rank.returncode, rank.stderr
    return [
        (rank.returncode, json.loads(rank.stdout.splitlines()[-1]) if rank.stdout else {}) for rank in done
    ]


def folders() -> set[Path]:
    return set(Path("/dev/shm").glob("rustload-node-*"))


def test_each_byte_is_fetched_once(server, tmp_path, tensors):
    before = folders()
    server.delay = 0.02
    expected = [float(tensor.double().sum()) for tensor in tensors.values()]
    for code, found in run_ranks(server, tmp_path):
        assert code == 0
        assert found["sums"] == expected
        assert (
            found["note"]
            == f"what was fetched of 1 files of a store was shared with the {RANKS} ranks of this machine"
        )
    size = len(server.files["model.safetensors"])
    fetched = sum(one.length for one in server.requests)
    # Beside the tensors, each rank reads the header and the end of the file.
    assert fetched <= 1.05 * size, fetched / size
    assert not folders() - before
    assert not list(tmp_path.glob("rustload-node-*"))


def test_a_rank_that_is_killed_leaves_nothing_and_hangs_no_other(server, tmp_path):
    before = folders()
    begin = time.monotonic()
    done = run_ranks(server, tmp_path, "killed")
    assert done[1][0] == -9
    assert all(code != 0 or "error" in found for code, found in done)
    assert time.monotonic() - begin < 60
    assert not folders() - before
    assert not list(tmp_path.glob("rustload-node-*"))


def test_what_has_no_version_is_not_shared(server, tmp_path):
    server.fault = lambda _: "no etag"
    for code, found in run_ranks(server, tmp_path):
        assert (code, found["note"]) == (0, "nothing was shared")


def test_folders_of_killed_ranks_are_removed_later(tmp_path, monkeypatch):
    monkeypatch.setattr(_node_folder, "_window", lambda base: int(base == str(tmp_path)))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    left, held = tmp_path / "rustload-node-left", tmp_path / "rustload-node-held"
    young = tmp_path / "rustload-node-young"
    for folder in (left, held, young):
        folder.mkdir(0o700)
        (folder / "lock").touch()
        (folder / "abc-1").write_bytes(b"x")
    for folder in (left, held):
        os.utime(folder, (1.0, 1.0))
    (tmp_path / "rustload-node-link").symlink_to(left)
    with (held / "lock").open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        made = NodeFolder.made()
    assert Path(made.path).parent == tmp_path
    assert stat.S_IMODE(Path(made.path).stat().st_mode) == 0o700
    assert not left.exists()
    assert held.exists()
    assert young.exists()
    again = NodeFolder(made.path)
    made.remove()
    assert not Path(made.path).exists()
    again.remove()


def test_a_folder_that_others_can_enter_is_refused(tmp_path):
    for mode in (0o755, 0o770, 0o711):
        (tmp_path / oct(mode)).mkdir()
        (tmp_path / oct(mode)).chmod(mode)
        with pytest.raises(PermissionError, match="this user alone"):
            NodeFolder(str(tmp_path / oct(mode)))
    (tmp_path / "own").mkdir(0o700)
    (tmp_path / "link").symlink_to(tmp_path / "own")
    with pytest.raises(PermissionError, match="this user alone"):
        NodeFolder(str(tmp_path / "link"))


def test_what_is_compared_with_a_manifest_is_not_shared(server, tmp_path):
    own = tmp_path / "own"
    own.mkdir(0o700)
    url = f"{server.host}/model.safetensors"
    sums = tmp_path / "SHA256SUMS"
    from hashlib import sha256

    sums.write_text(f"{sha256(server.files['model.safetensors']).hexdigest()}  model.safetensors\n")
    plain = rustload.open(url, remote=("http",))
    assert plain._core.share(str(own), 0, 1, 1 << 30) == 1
    plain._core.unshare()
    verified = rustload.open(f"{server.host}/", remote=("http",), manifest=sums)
    assert verified._core.share(str(own), 0, 1, 1 << 30) == 0
    assert rustload.open(tmp_path / "model.safetensors")._core.share(str(own), 0, 1, 1 << 30) == 0
