"""What rustload makes of the files in a folder, as one line of JSON for each, which is the same on every system.

    python tests/release/digests.py FOLDER

It needs nothing but rustload: run it with the same folder on two systems, and compare. A line has the error, or names, dtypes,
shapes and digests of the tensors, as they are and after a cast with a transpose, of a saved and of a converted file, and of the
report of a scan.
"""

import hashlib
import json
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import rustload


def main() -> None:
    """Writes the lines, in the order of the paths."""
    sys.stdout.reconfigure(encoding="utf-8", newline="\n")
    root = Path(sys.argv[1])
    warnings.simplefilter("ignore")
    for path in sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()):
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps({"path": path, **digests(root / path, Path(folder))}), flush=True)


def digests(path: Path, folder: Path) -> dict[str, Any]:
    """What one file gives; `folder` is for new files."""
    report = rustload.scan(path.read_bytes())  # a report of bytes has no path of this system
    found: dict[str, Any] = {"scan": report.verdict, "report": digest(report.to_json().encode())}
    found["same"] = rustload.scan(path).verdict == report.verdict
    steps = {"open": open_file, "convert": convert}
    return found | {name: attempt(step, path, folder) for name, step in steps.items()}


def attempt(step: Any, *arguments: Path) -> Any:
    """The result of a step, or the code of its error."""
    try:
        return step(*arguments)
    except (rustload.RustloadError, BufferError, OSError, TypeError, ValueError) as error:
        return [type(error).__name__, getattr(error, "code", None), getattr(error, "offset", None)]


def open_file(path: Path, folder: Path) -> Any:
    """Every tensor of a file, and that of a file into which they are saved."""
    with rustload.open(path, framework="dlpack") as ckpt:
        tensors = {name: attempt(read, tensor) for name, tensor in ckpt.items()}
        target = folder / "saved.safetensors"
        saved = attempt(lambda: (rustload.save(dict(ckpt.items()), target), digest(target.read_bytes()))[1])
        return {"tensors": tensors, "saved": saved}


def read(tensor: rustload.LazyTensor) -> Any:
    """The digests of a view or copy, of a copy, and of a cast."""
    results = [tensor.materialize(), tensor.materialize(copy=True, threads=2)]
    if len(tensor.shape) >= 2:
        results.append(tensor.materialize(transpose=True))
    if tensor.dtype in ("float32", "bfloat16", "float16"):
        results.append(tensor.materialize(dtype="float64"))
    return [tensor.dtype, tensor.shape, *(digest(memoryview(result).tobytes()) for result in results)]


def convert(path: Path, folder: Path) -> str:
    """The file that `convert` writes."""
    target = folder / "converted.safetensors"
    rustload.convert(path, target)
    return digest(target.read_bytes())


def digest(data: bytes) -> str:
    """The start of the SHA-256 of bytes."""
    return hashlib.sha256(data).hexdigest()[:16]


if __name__ == "__main__":
    main()
