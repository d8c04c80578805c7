"""A newcomer's first minute, timed: a bare environment, `pip install`, the first lines without a framework, then with NumPy.

    python tests/release/newcomer.py --find FOLDER_OF_WHEELS [--limit SECONDS]

It needs nothing but Python 3.11 or newer, so it can try a wheel wherever one was built. It exits with 1 if a step fails, or if
the time from `pip install` to the first tensor is longer than the limit.
"""

import argparse
import json
import os
import struct
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

WITHOUT_FRAMEWORK = """
import sys, sysconfig
import rustload
if sysconfig.get_config_var("Py_GIL_DISABLED"):
    assert not sys._is_gil_enabled(), "importing rustload switched the GIL on"
for name in ("numpy", "torch", "jax"):
    assert name not in sys.modules, name
with rustload.open("model.safetensors") as ckpt:
    for name, t in ckpt.items():
        print(name, t.dtype, t.shape)
    w = ckpt["layer.weight"].materialize(dtype="float64", transpose=True)
assert type(w) is rustload.Buffer, type(w)
assert (w.dtype, w.shape) == ("float64", (3, 2)), w
assert memoryview(w).tolist() == [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]], memoryview(w).tolist()
assert rustload.scan("model.bin").verdict == "would execute", rustload.scan("model.bin").verdict
with rustload.open("model.bin") as ckpt:
    assert len(ckpt) == 0 and type(ckpt.objects) is rustload.Opaque, ckpt.objects
"""

# While the interpreter ends, it ends each thread where that next asks for the GIL: most with frames of the extension below.
EXIT_DURING_READ = """
import threading, time, rustload
w = rustload.open("model.safetensors")["layer.weight"]
started = threading.Event()
def read():
    while True:
        w.materialize(copy=True)
        started.set()
for _ in range(8):
    threading.Thread(target=read, daemon=True).start()
started.wait()
class Slow:
    def __del__(self, sleep=time.sleep):
        sleep(0.1)
last = Slow()
"""

WITH_NUMPY = """
import numpy as np
import rustload
state = {"layer.weight": np.arange(6, dtype=np.float32).reshape(2, 3), "layer.bias": np.zeros(2, np.float32)}
rustload.save(state, "saved.safetensors")
with rustload.open("saved.safetensors") as ckpt:
    w = ckpt["layer.weight"].materialize(dtype="bfloat16", transpose=True)
    row = ckpt["layer.weight"][1].numpy()
assert type(w) is np.ndarray and w.dtype.name == "bfloat16" and w.shape == (3, 2), w
assert row.tolist() == [3.0, 4.0, 5.0], row
print(w.dtype, w.shape, row)
"""

COMMANDS = [
    (["info", "model.safetensors"], 0),
    (["info", "--json", "model.safetensors"], 0),
    (["scan", "model.safetensors"], 0),
    (["scan", "model.bin"], 1),  # it finds what would be executed
    (["view", "model.safetensors", "-o", "page.html"], 0),
    (["convert", "model.safetensors", "half.safetensors", "--dtype", "bfloat16"], 0),
]


def main() -> None:
    """Runs and times all steps."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--find", required=True, help="the folder with the wheel")
    parser.add_argument(
        "--limit", type=float, default=60, help="the most seconds from pip install to the first tensor"
    )
    arguments = parser.parse_args()
    wheels = Path(arguments.find).resolve()
    with tempfile.TemporaryDirectory() as folder:
        steps = Steps(Path(folder))
        steps.run("make a virtual environment", lambda: venv.create(steps.folder / "venv", with_pip=True))
        before = steps.total
        steps.run("pip install rustload", lambda: steps.pip("--no-index", "--find-links", wheels, "rustload"))
        installed = subprocess.check_output([steps.python, "-m", "pip", "list", "--format=json"], text=True)
        others = {entry["name"] for entry in json.loads(installed)} - {"pip", "setuptools", "rustload"}
        assert not others, f"pip installed {others} too"
        make_files(steps.folder)
        steps.run("open, cast and scan without a framework", lambda: steps.child("-c", WITHOUT_FRAMEWORK))
        to_first_tensor = steps.total - before
        steps.run("exit while other threads read", lambda: steps.child("-c", EXIT_DURING_READ))
        for command, expected in COMMANDS:
            steps.run(
                f"rustload {' '.join(command)}",
                lambda command=command, expected=expected: steps.child(
                    "-m", "rustload", *command, code=expected
                ),
            )
        steps.run(
            "pip install 'rustload[numpy]'", lambda: steps.pip("--find-links", wheels, "rustload[numpy]")
        )
        steps.run("save, open and cast with NumPy", lambda: steps.child("-c", WITH_NUMPY))
        print(f"{to_first_tensor:8.2f} s  from pip install to the first tensor, without a framework")
        print(f"{steps.total:8.2f} s  all steps, Python {sys.version.split()[0]}")
        if to_first_tensor > arguments.limit:
            sys.exit(f"to the first tensor took more than {arguments.limit:g} s")


class Steps:
    """Steps in a folder of their own, without this process's settings of Python and rustload."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.total = 0.0
        self.python = folder / "venv/bin/python"

    def run(self, name: str, step) -> None:
        start = time.perf_counter()
        step()
        seconds = time.perf_counter() - start
        self.total += seconds
        print(f"{seconds:8.2f} s  {name}", flush=True)

    def pip(self, *arguments: str | Path) -> None:
        self.child(
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--only-binary",
            ":all:",
            *arguments,
        )

    def child(self, *arguments: str | Path, code: int = 0) -> None:
        unset = ("PYTHON", "RUSTLOAD_", "VIRTUAL_ENV")
        environment = {name: text for name, text in os.environ.items() if not name.startswith(unset)}
        done = subprocess.run(
            [self.python, *arguments],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert not (self.folder / "executed").exists(), "rustload ran a command that a file names"
        if done.returncode != code:
            sys.exit(f"{arguments} exited with {done.returncode}, not {code}:\n{done.stdout}{done.stderr}")


def make_files(folder: Path) -> None:
    """A safetensors file of two tensors, and a pickle that would run a command."""
    header = json.dumps(
        {
            "layer.weight": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
            "layer.bias": {"dtype": "F32", "shape": [2], "data_offsets": [24, 32]},
        }
    ).encode()
    numbers = struct.pack("<8f", *range(6), 0.5, -0.5)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + numbers)
    (folder / "model.bin").write_bytes(b"cposix\nsystem\n(S'touch executed'\ntR.")


if __name__ == "__main__":
    main()
