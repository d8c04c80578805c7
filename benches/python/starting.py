"""Cases about fixed costs: a view of a tensor from an open file, and a fresh process that loads one tensor."""

from __future__ import annotations

import compileall
import json
import mmap
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import safetensors
import safetensors.numpy
import safetensors.torch
import torch

import rustload

from .case import CACHE, MIB, Case, torch_load

if TYPE_CHECKING:
    from collections.abc import Callable


class ViewCase(Case):
    """Take a view of a tensor of 64 MiB from an open file, under each framework."""

    limit = "a torch tensor on an existing mapping"
    reads = False

    def __init__(self, numel: int, suffix: str) -> None:
        self.numel, self.suffix = numel, suffix
        self.title = f"take a view of a tensor of {self.nbytes / MIB:.0f} MiB from an open file, {suffix}"

    @property
    def nbytes(self) -> int:
        return self.numel * 4

    @property
    def path(self) -> Path:
        return CACHE / f"view-{self.numel}{self.suffix}"

    def tensors(self) -> dict[str, torch.Tensor]:
        return {"weight": torch.arange(self.numel, dtype=torch.float32).reshape(-1, 1024)}

    def ways(self) -> dict[str, Callable[[], Any]]:
        checkpoint = rustload.open(self.path, framework="torch")
        handle = checkpoint["weight"]
        ways: dict[str, Callable[[], Any]] = {
            "rustload": lambda: [handle.materialize(copy=False)],
            "rustload, look-up and view": lambda: [checkpoint["weight"].materialize(copy=False)],
            "rustload, numpy": lambda: [handle.materialize(copy=False, framework="numpy")],
            "rustload, dlpack": lambda: [handle.materialize(copy=False, framework="dlpack")],
        }
        if self.suffix == ".safetensors":
            pt: Any = safetensors.safe_open(self.path, framework="pt")
            np_: Any = safetensors.safe_open(self.path, framework="np")
            ways["safe_open, pt"] = lambda: [pt.get_tensor("weight")]
            ways["safe_open, np (a copy)"] = lambda: [np_.get_tensor("weight")]
        else:
            ways["torch.load(mmap=True), opened anew"] = lambda: [torch_load(self.path, mmap=True)["weight"]]
        return ways

    def limit_probe(self) -> Callable[[], object]:
        with self.path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        return lambda: torch.frombuffer(mapped, dtype=torch.float32, offset=4096, count=MIB // 4)

    def check(self) -> None:
        ours, *others = [np.asarray(way()[0]) for way in self.ways().values()]
        assert all(np.array_equal(ours, other) for other in others)


# The code of a fresh process, by loader; `path` is a safetensors file with a tensor "weight".
SCRIPTS = {
    "rustload": "import rustload",
    "rustload info": "import rustload._cli; rustload._cli.main(['info', path])",
    "rustload: open and list": "import rustload; list(rustload.open(path).items())",
    "rustload: one as a Buffer": "import rustload; rustload.open(path, framework='dlpack')['weight'].materialize()",
    "rustload: one as NumPy": "import rustload; rustload.open(path, framework='numpy')['weight'].materialize()",
    "rustload: one as torch": "import rustload; rustload.open(path, framework='torch')['weight'].materialize()",
    "rustload: one as JAX": "import rustload; rustload.open(path, framework='jax')['weight'].materialize()",
    "safetensors": "import safetensors",
    "safetensors: one as NumPy": "import safetensors as s; s.safe_open(path, 'np').get_tensor('weight')",
    "safetensors: one as torch": "import safetensors as s; s.safe_open(path, 'pt').get_tensor('weight')",
    "safetensors: one as JAX": "import safetensors as s; s.safe_open(path, 'flax').get_tensor('weight')",
    "torch.load(mmap=True): one as torch": "import torch; torch.load(path[:-12] + '.bin', mmap=True)['weight']",
}
HEAVY = ("jax", "ml_dtypes", "numpy", "safetensors", "torch")
PRINT_IMPORTS = f"; import sys, json; print(json.dumps([name for name in {HEAVY!r} if name in sys.modules]))"


class StartCase(Case):
    """Start a process, import, and take one tensor under each framework."""

    title = "a fresh process: import, and take one tensor of 4 MiB"
    limit = "a process that does nothing"
    suffix = ".safetensors"
    reads = False
    has_peaks = False

    def __init__(self) -> None:
        self.notes: list[str] = []

    @property
    def nbytes(self) -> int:
        return 4 * MIB

    @property
    def path(self) -> Path:
        return CACHE / f"start{self.suffix}"

    def tensors(self) -> dict[str, torch.Tensor]:
        return {"weight": torch.ones(1024, 1024)}

    def prepare(self) -> None:
        super().prepare()
        # As pip does at installation; a source tree has no .pyc files where PYTHONDONTWRITEBYTECODE is set.
        compileall.compile_dir(Path(rustload.__file__).parent, quiet=2)
        torch.save(self.tensors(), self.path.with_suffix(".bin"))

    def ways(self) -> dict[str, Callable[[], Any]]:
        return {name: lambda script=script: self.run(script) for name, script in SCRIPTS.items()}  # type: ignore[misc]  # bound early

    def run(self, script: str) -> str:
        """Runs a line of code in a fresh process; returns its output."""
        line = f"path = {str(self.path)!r}; {script}"
        done = subprocess.run([sys.executable, "-c", line], check=True, capture_output=True, text=True)
        return done.stdout

    def limit_probe(self) -> Callable[[], object]:
        return lambda: self.run("pass")

    def check(self) -> None:
        """Reports what each loader imports: rustload only the requested framework."""
        imports = {
            name: json.loads(self.run(script + PRINT_IMPORTS).splitlines()[-1])
            for name, script in SCRIPTS.items()
        }
        for name in ("rustload", "rustload info", "rustload: open and list", "rustload: one as a Buffer"):
            assert imports[name] == [], f"{name} imports {imports[name]}"
        assert "torch" not in imports["rustload: one as NumPy"]
        assert "torch" not in imports["rustload: one as JAX"]
        self.notes = [
            f"{name} imports {', '.join(found) or 'none of them'}" for name, found in imports.items()
        ]
        self.notes.insert(0, f"looked for: {', '.join(HEAVY)}")
