"""First loads: each in a process that has loaded nothing before, as a service has it. Imports are not timed.

    python -m benches.python.first TITLE WAY [--quick]     one load by one loader, for a parent that compares several

The other cases are loops, in which rustload and malloc reuse memory that the process has touched before.
"""

from __future__ import annotations

import argparse
import compileall
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import safetensors.torch
import torch
from torch import nn

import rustload
import rustload.torch

from . import measure
from .case import FRESH, Case, torch_load
from .loading import LoadCase

if TYPE_CHECKING:
    from collections.abc import Callable


class FirstCase(Case):
    """Another case, with each run in a process of its own."""

    has_peaks = False  # those of `FreshRun`

    def __init__(self, of: Case, *, quick: bool) -> None:
        self.of, self.quick = of, quick
        self.title = f"first load: {of.title}"
        self.limit, self.reads = of.limit, of.reads

    @property
    def nbytes(self) -> int:
        return self.of.nbytes

    @property
    def path(self) -> Path:
        return self.of.path

    @property
    def arena(self) -> int:
        return 0  # the memory that a new process gets is not what this one has just freed

    def tensors(self) -> dict[str, torch.Tensor]:
        return self.of.tensors()

    def prepare(self) -> None:
        self.of.prepare()
        # As pip does at installation; a source tree has no .pyc files where PYTHONDONTWRITEBYTECODE is set.
        compileall.compile_dir(Path(rustload.__file__).parent, quiet=2)

    def ways(self) -> dict[str, Callable[[], Any]]:
        names = [name for name in self.of.ways() if not name.endswith(FRESH)]
        return {name: lambda name=name: self.run(name) for name in names}  # type: ignore[misc]  # bound early

    def run(self, name: str) -> measure.FreshRun:
        """Runs one loader in a fresh process."""
        command = [sys.executable, "-m", "benches.python.first", self.title, name]
        command += ["--quick"] if self.quick else []
        root = Path(__file__).resolve().parents[2]
        done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=root)
        return measure.FreshRun(**json.loads(done.stdout.splitlines()[-1]))

    def limit_probe(self) -> Callable[[], object]:
        return self.of.limit_probe()

    def check(self) -> None:
        self.of.check()


class IntoCase(LoadCase):
    """Load a whole float32 model into a module on the meta device, as bfloat16."""

    def __init__(self, layers: int, suffix: str) -> None:
        super().__init__("bfloat16", layers, suffix)
        self.title = f"load_into a model on the meta device: {self.title}"

    def ways(self) -> dict[str, Callable[[], Any]]:
        def ours() -> object:
            model = self.model()
            rustload.torch.load_into(model, self.path, dtype="bfloat16")
            return dict(model.named_parameters())

        def stock() -> object:
            model = self.model()
            if self.suffix == ".safetensors":
                state = safetensors.torch.load_file(self.path)
            else:
                state = torch_load(self.path, mmap=self.suffix == ".bin")
            model.load_state_dict(state, assign=True)
            return dict(model.to(torch.bfloat16).named_parameters())

        return {"rustload": ours, "mmap, assign, cast": stock}

    def model(self) -> nn.Module:
        """A module with a parameter for each tensor of the file."""
        root = nn.Module()
        with torch.device("meta"):
            for layer in range(self.layers):
                for at, shape in enumerate(self.SHAPES):
                    *path, leaf = f"model.layers.{layer}.{at}.weight".split(".")
                    module = root
                    for part in path:
                        if not hasattr(module, part):
                            module.add_module(part, nn.Module())
                        module = module.get_submodule(part)
                    module.register_parameter(leaf, nn.Parameter(torch.empty(shape), requires_grad=False))
        return root


def main() -> None:
    """Runs one loader once and prints its time, the processor time and the anonymous memory at its end."""
    from .cases import all_cases

    parser = argparse.ArgumentParser(
        prog="python -m benches.python.first", description="Times one first load."
    )
    parser.add_argument("title")
    parser.add_argument("way")
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    case: Any = next(case for case in all_cases(quick=args.quick) if case.title == args.title)
    way = case.of.ways()[args.way]
    anonymous = measure.anonymous_bytes()
    before, start = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    result = way()
    seconds, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    run = {"seconds": seconds, "cpu": cpu, "anonymous": measure.anonymous_bytes() - anonymous}
    print(json.dumps(run))
    del result


if __name__ == "__main__":
    main()
