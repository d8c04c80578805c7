"""Opening reads metadata only in every format; converting a legacy stream takes the memory of the result and a window."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from support import child, torch_child

import rustload

COUNT, NUMEL = 32, 512 << 10
NBYTES = COUNT * NUMEL * 4
# The first read of a legacy stream's head has this size; the metadata of these files is smaller.
HEAD = 1 << 20


class Net(torch.nn.Module):
    """Holds its tensors as parameters; TorchScript can save it."""

    def __init__(self) -> None:
        super().__init__()
        parts = [torch.nn.Linear(512, NUMEL // 512, bias=False) for _ in range(COUNT)]
        self.parts = torch.nn.ModuleList(parts)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


def write_torchscript(path: Path) -> None:
    torch.jit.save(torch.jit.script(Net()), path)


WRITERS: dict[str, Callable[[Path], Any]] = {
    "zip": lambda path: torch.save(Net().state_dict(), path),
    "legacy": lambda path: torch.save(Net().state_dict(), path, _use_new_zipfile_serialization=False),
    "safetensors": lambda path: safetensors.torch.save_file(Net().state_dict(), path),
    "TorchScript": write_torchscript,
    "module": lambda path: torch.save(Net(), path),
    "module, legacy": lambda path: torch.save(Net(), path, _use_new_zipfile_serialization=False),
    "optimizer": lambda path: torch.save({"state": dict(enumerate(Net().parameters()))}, path),
}


@pytest.mark.parametrize("name", WRITERS)
def test_opening_reads_metadata_only(name, tmp_path):
    path = tmp_path / "m.bin"
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # torch.jit is deprecated; torch.save cannot find the source of a module
        WRITERS[name](path)
    code = """
        import os, sys
        import rustload
        from process_memory import read

        start = read()
        cost = read() - start
        for _ in range(2):  # the first time reads modules of Python, too
            start = read()
            ckpt = rustload.open(sys.argv[1])
            shapes = [(t.dtype, t.shape, t.strides) for t in ckpt.values()]
            ckpt.objects, ckpt.tied, ckpt.opaque, ckpt.globals
            spent = read() - start - cost
        with open("/proc/self/maps") as maps:
            assert sys.argv[1] not in maps.read()
        print(spent, len(shapes))
    """
    spent, count = map(int, child(code, path).stdout.split())
    size = path.stat().st_size
    print(f"{name}: {spent} of {size} bytes")  # noqa: T201 - pytest shows it with -s
    assert count == COUNT
    assert size > NBYTES
    # The legacy head is one read; an archive's directory and pickle are a few kilobytes for each tensor at most.
    assert spent <= HEAD + COUNT * 1024


def test_converting_a_legacy_stream_takes_the_memory_of_the_result_and_a_window(tmp_path):
    path = tmp_path / "m.bin"
    state = {f"layers.{at}.weight": torch.ones(2048, 4096) for at in range(9)}
    torch.save(state, path, _use_new_zipfile_serialization=False)
    size = path.stat().st_size
    assert size > 300_000_000
    code = """
        import sys
        import torch
        import rustload
        from process_memory import status

        torch.ones(4).to(torch.bfloat16)
        before = status("VmHWM")
        ckpt = rustload.open(sys.argv[1], framework="torch")
        tensors = {name: t.materialize(dtype="bfloat16") for name, t in ckpt.items()}
        assert all(t.dtype == torch.bfloat16 and t[0, 0] == 1 for t in tensors.values())
        print(status("VmHWM") - before, sum(t.nbytes for t in tensors.values()))
    """
    grown, result = map(int, torch_child(code, path).stdout.split())
    assert result == sum(t.nbytes for t in state.values()) // 2
    assert grown <= result + (256 << 20), f"{grown >> 20} MiB for a result of {result >> 20} MiB"


def test_the_code_of_a_torchscript_archive_is_reported(tmp_path):
    path = tmp_path / "m.pt"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.script(torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU())), path)
        want = torch.jit.load(path).state_dict()
    ckpt = rustload.open(path, framework="torch")
    assert list(ckpt) == list(want)
    assert all(torch.equal(ckpt[name].materialize(), tensor) for name, tensor in want.items())
    (note,) = ckpt.notes
    assert "TorchScript" in note
    assert "code" in note
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.freeze(torch.jit.load(path).eval()), path)
    frozen = rustload.open(path)
    assert list(frozen) == []
    assert any("2 tensor(s) as constants" in note for note in frozen.notes)
