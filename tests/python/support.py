"""Helpers of several test files: dtypes, random bit patterns, comparison by bits, child processes."""

import ast
import atexit
import contextlib
import functools
import importlib.util
import io
import json
import math
import os
import pickle
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import textwrap
import zipfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from process_memory import status

HERE = str(Path(__file__).resolve().parent)
ROOT = Path(__file__).resolve().parents[2]
CHILD = {
    "PYTHONFAULTHANDLER": "1",
    "PYTHONPATH": os.pathsep.join(filter(None, (HERE, os.environ.get("PYTHONPATH")))),
}
"""What the environment of programs that tests run has in addition."""
STAND_INS = str(Path(__file__).resolve().parent / "stand_ins")
"""The folder of the stand-ins for servers."""

FP8 = ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu")
INTS = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64")
FLOATS = ("float16", "bfloat16", "float32", "float64")
REAL = ("bool", *INTS, *FP8, *FLOATS)
DTYPES = (*REAL, "complex64", "complex128")
# The dtypes of these that safetensors' own Python package can write.
IN_SAFETENSORS = frozenset(DTYPES) - {"complex128", "float8_e8m0fnu"}


def dtype_of(name: str) -> torch.dtype:
    found = getattr(torch, name)
    assert isinstance(found, torch.dtype)
    return found


def patterns(name: str, shape: tuple[int, ...], seed: int = 0) -> torch.Tensor:
    """A tensor of random bit patterns: every NaN, denormal and sign may occur."""
    dtype = dtype_of(name)
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=generator).bool()
    count = int(torch.Size(shape).numel()) * dtype.itemsize
    return torch.randint(0, 256, (count,), dtype=torch.uint8, generator=generator).view(dtype).reshape(shape)


def bits(tensor: torch.Tensor) -> bytes:
    """The elements' bytes in C order."""
    # clone, as `contiguous` and `reshape` keep odd strides of dimensions of size 1, which `view` then refuses.
    flat = (
        tensor.detach().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format).reshape(-1)
    )
    return bytes(flat.view(torch.uint8).numpy().data) if flat.numel() else b""


def same(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    """Equal bits; of NaN, which casts make with other payloads than torch's, only the place."""
    if (found.dtype, found.shape) != (wanted.dtype, wanted.shape):
        return False
    if found.dtype.is_floating_point and found.dtype.itemsize > 1:
        nan = found.isnan()
        if not torch.equal(nan, wanted.isnan()):
            return False
        found, wanted = found.masked_fill(nan, 0), wanted.masked_fill(nan, 0)
    return bits(found) == bits(wanted)


def assert_same_bits(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert found.dtype == expected.dtype
    assert tuple(found.shape) == tuple(expected.shape)
    assert bits(found) == bits(expected)


def assert_same_values(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Equal to the bit, except that any NaN equals any other."""
    assert found.dtype == expected.dtype
    assert tuple(found.shape) == tuple(expected.shape)
    if not expected.dtype.is_floating_point or not expected.numel():
        assert bits(found) == bits(expected)
        return
    found, expected = (
        tensor.clone(memory_format=torch.contiguous_format).reshape(-1) for tensor in (found, expected)
    )
    found_nan, is_nan = (tensor.to(torch.float64).isnan() for tensor in (found, expected))
    assert torch.equal(found_nan, is_nan)
    in_bytes = (tensor.clone().view(torch.uint8).reshape(len(tensor), -1) for tensor in (found, expected))
    assert torch.equal(*(rows[~is_nan] for rows in in_bytes))


def saved(obj: Any, **options: Any) -> bytes:
    """What `torch.save` writes."""
    file = io.BytesIO()
    torch.save(obj, file, **options)
    return file.getvalue()


def torch_zip(data_pkl: bytes, storages: dict[str, bytes] | None = None, *, root: str = "archive") -> bytes:
    """A checkpoint archive around any pickle, as Python's zipfile packs it."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(f"{root}/data.pkl", data_pkl)
        archive.writestr(f"{root}/byteorder", "little")
        for key, data in (storages or {}).items():
            archive.writestr(f"{root}/data/{key}", data)
        archive.writestr(f"{root}/version", "3\n")
    return file.getvalue()


def repacked(
    archive: bytes | Path,
    change: Callable[[str, bytes], bytes | None] = lambda _, data: data,
    method: int = zipfile.ZIP_STORED,
) -> bytes:
    """The archive with other members; a member for which `change` gives None is left out."""
    file = io.BytesIO()
    source = io.BytesIO(archive) if isinstance(archive, bytes) else archive
    with (
        zipfile.ZipFile(source) as before,
        zipfile.ZipFile(file, "w", method, compresslevel=1) as after,
    ):
        for name in before.namelist():
            data = change(name, before.read(name))
            if data is not None:
                after.writestr(name, data)
    return file.getvalue()


def deflated(archive: bytes | Path) -> bytes:
    return repacked(archive, method=zipfile.ZIP_DEFLATED)


def pickled(obj: Any, protocol: int = 2) -> bytes:
    return pickle.dumps(obj, protocol)


class Reduced:
    """Pickles as a call, with a state to set on the result if there is one."""

    def __init__(self, *reduced: Any) -> None:
        self.reduced = reduced

    def __reduce__(self) -> tuple[Any, ...]:
        return self.reduced


@contextlib.contextmanager
def coded(
    kind: type[BaseException] | tuple[type[BaseException], ...], code: object, match: str | None = None
) -> Iterator[pytest.ExceptionInfo[Any]]:
    """As `pytest.raises`; the exception must have the code."""
    with pytest.raises(kind, match=match) as caught:
        yield caught
    assert caught.value.code == code, caught.value  # type: ignore[union-attr]


def safetensors_bytes(header: bytes, data: bytes = b"") -> bytes:
    header += b" " * (-len(header) % 8)
    return struct.pack("<Q", len(header)) + header + data


def sparse(path: Path, tensors: dict[str, tuple[str, list[int]]]) -> Path:
    """A safetensors file of zeros with these dtypes and shapes, whose data takes no room on the disk."""
    sizes = {"BOOL": 1, "U8": 1, "F8_E4M3": 1, "BF16": 2, "F32": 4}
    header, offset = {}, 0
    for name, (dtype, shape) in tensors.items():
        end = offset + math.prod(shape) * sizes[dtype]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, end]}
        offset = end
    start = safetensors_bytes(json.dumps(header).encode())
    with path.open("wb") as file:
        file.write(start)
        file.truncate(len(start) + offset)
    return path


def write_shards(
    folder: Path,
    parts: list[dict[str, torch.Tensor]],
    suffix: str = "safetensors",
    *,
    metadata: dict[str, str] | None = None,
    **of_index: object,
) -> Path:
    """Writes a folder of shards with these tensors, and their index, as transformers does: version 4 for "bin".

    `metadata` is that of each file of safetensors, `of_index` that of the index.
    """
    folder.mkdir(parents=True, exist_ok=True)
    stem, weight_map = "pytorch_model" if suffix == "bin" else "model", {}
    for number, part in enumerate(parts, start=1):
        file = f"{stem}-{number:05}-of-{len(parts):05}.{suffix}"
        if suffix == "bin":
            torch.save(part, folder / file)
        else:
            safetensors.torch.save_file(part, folder / file, metadata)
        weight_map |= dict.fromkeys(part, file)
    size = sum(tensor.nbytes for part in parts for tensor in part.values())
    index = {"metadata": {"total_size": size, **of_index}, "weight_map": weight_map}
    (folder / f"{stem}.{suffix}.index.json").write_text(json.dumps(index))
    return folder


def divided(tensors: dict[str, torch.Tensor], count: int) -> list[dict[str, torch.Tensor]]:
    """The tensors of so many shards, which take turns."""
    return [dict(list(tensors.items())[number::count]) for number in range(count)]


def contents(folder: Path) -> dict[str, bytes]:
    """The content of each file below a folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def in_threads(work: Callable[[Any], Any], given: Iterable[Any]) -> list[Any]:
    """What `work` returns for each of these, all at once in threads; raises what one of them raises."""
    given = list(given)
    with ThreadPoolExecutor(len(given)) as pool:
        return list(pool.map(work, given))


def child(
    code: str,
    *args: object,
    timeout: float = 100,
    check: bool = True,
    env: dict[str, str] | None = None,
    cwd: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """Runs Python code in a fresh process, `args` in `sys.argv[1:]`; by default it must exit with 0 and write nothing to stderr.

    It may import from this folder. `env` adds to the environment.
    """
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, args)]
    whole = {**os.environ, **CHILD, **(env or {})}
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
        env=whole,
        cwd=cwd,
        check=False,
    )
    if check:
        assert (done.returncode, done.stderr) == (0, ""), done.stdout
    return done


def program(*args: object, **env: str) -> str:
    """What a program of this repository prints: `program("-m", "benches.python", "--quick")`; it must exit with 0."""
    command = [sys.executable, "-W", "ignore", *map(str, args)]
    whole = {**os.environ, **env}
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=110, env=whole, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


TEMPLATE = """
import json, os, sys, threading, traceback, types

asked, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
exec(sys.argv[1])

def run(code, args, env, folder, out, err):
    for number, path in ((1, out), (2, err)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_TRUNC), number)
    for file in (asked, answers):
        os.close(file.fileno())
    os.chdir(folder)
    os.environ.update(env)
    sys.argv, main = ["-c", *args], types.ModuleType("__main__")
    sys.modules["__main__"] = main
    status = 0
    try:
        exec(compile(code, "<string>", "exec"), vars(main))
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
        status = 1
    threading._shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)

for line in asked:
    processes = []
    for one in json.loads(line):
        processes.append(os.fork())
        if not processes[-1]:
            run(*one)
    print(json.dumps(processes), file=answers, flush=True)
    ended = [os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in processes]
    print(json.dumps(ended), file=answers, flush=True)
"""


@functools.cache
def template(imports: str) -> subprocess.Popen[bytes]:
    """A process that has run these imports, and runs code in forks of itself."""
    command, env = [sys.executable, "-c", TEMPLATE, imports], {**os.environ, **CHILD}
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, env=env)
    atexit.register(process.communicate)
    return process


def forks(
    imports: str, code: str, *args: object, envs: list[dict[str, str]], timeout: float
) -> list[subprocess.CompletedProcess[str]]:
    """Runs code at once in several forks of a process that has run the imports; each has one of `envs` beside its environment.

    They end as os._exit does, without what Python runs at its end.
    """
    asked, answers = template(imports).stdin, template(imports).stdout
    assert asked is not None
    assert answers is not None
    words = list(map(str, args))
    with contextlib.ExitStack() as files:
        written = [[files.enter_context(tempfile.NamedTemporaryFile("r")) for _ in range(2)] for _ in envs]
        given = [
            [code, words, env, str(Path.cwd()), *(file.name for file in pair)]
            for env, pair in zip(envs, written, strict=True)
        ]
        asked.write(json.dumps(given).encode() + b"\n")
        processes = json.loads(answers.readline())
        if not select.select([answers], [], [], timeout)[0]:
            for process in processes:
                os.kill(process, signal.SIGKILL)
        return [
            subprocess.CompletedProcess(["-c", *words], status, *(file.read() for file in pair))
            for status, pair in zip(json.loads(answers.readline()), written, strict=True)
        ]


def torch_child(
    code: str, *args: object, timeout: float = 100, check: bool = True, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """As `child`, in a fork of a process that has imported torch and NumPy, which takes longer than most code.

    For code whose first use of torch is not what is tested.
    """
    (done,) = forks("import numpy, torch", textwrap.dedent(code), *args, envs=[env or {}], timeout=timeout)
    if check:
        assert (done.returncode, done.stderr) == (0, ""), done.stdout
    return done


def gloo_ranks(
    script: str, world: int, *args: object, timeout: float = 110, **env: str
) -> list[subprocess.CompletedProcess[str]]:
    """Runs a script of this folder in the processes of one gloo group, whatever their exit codes; `env` adds to the environment.

    They are forks of a process that has run the script's imports.
    """
    code = Path(__file__).with_name(script).read_text(encoding="utf-8")
    imports = [node for node in ast.parse(code).body if isinstance(node, ast.Import | ast.ImportFrom)]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    env |= {"WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world)}
    envs = [{**env, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(world)]
    return forks("\n".join(map(ast.unparse, imports)), code, *args, envs=envs, timeout=timeout)


def cli(*args: object, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    """Runs the command `rustload` in a fresh process, whatever its exit code; `env` adds to the environment."""
    command = [sys.executable, "-m", "rustload", *map(str, args)]
    whole = {**os.environ, "PYTHONIOENCODING": "utf-8", **env}
    return subprocess.run(
        command, cwd=cwd, env=whole, capture_output=True, encoding="utf-8", timeout=100, check=False
    )


def sizes_of(path: Path) -> tuple[int, int]:
    """The file's apparent size and the bytes allocated for it on the disk."""
    status = path.stat()
    return status.st_size, status.st_blocks * 512


def rss_anon() -> int:
    """This process's anonymous memory in bytes."""
    return status("RssAnon")


def held_anon() -> int:
    """As `rss_anon`, after `rustload.trim()` freed the memory kept for later results: the rest is in use."""
    import rustload

    rustload.trim()
    return rss_anon()


@contextlib.contextmanager
def host(name: str) -> Iterator[bool]:
    """Makes a server importable: the installed one, or else its stand-in of this folder. Yields whether it is the real one."""
    is_real = importlib.util.find_spec(name) is not None
    if not is_real:
        sys.path.insert(0, STAND_INS)
    try:
        yield is_real
    finally:
        if not is_real:
            sys.path.remove(STAND_INS)
            for module in [
                one for one in sys.modules if one.split(".")[0] == name or one == f"rustload.{name}"
            ]:
                del sys.modules[module]


def names(folder: Path) -> list[str]:
    """What is in a folder, by name."""
    return sorted(path.name for path in folder.iterdir())


def open_files() -> list[str]:
    """What this process's file descriptors refer to."""
    found = []
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # another thread closed it meanwhile
            found.append(str(link.readlink()))
    return found


def module_of(path: str) -> Any:
    """A script of this checkout, which is in no package, as a module: `module_of("fuzz/programs.py")`."""
    source = ROOT / path
    spec = importlib.util.spec_from_file_location(source.stem, source)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look for it
    spec.loader.exec_module(module)
    return module


WAIT = """
print("ready", flush=True)
sys.stdin.readline()
"""
"""Where a program waits until its memory is limited."""


def limited_child(nbytes: int, code: str, *args: object) -> subprocess.CompletedProcess[str]:
    """Runs Python code, which contains `WAIT`, in a cgroup that holds so many bytes; skips the test where none can be made."""
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, args)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, env={**os.environ, **CHILD}, text=True, **pipes) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "ready\n"
        try:
            with module_of("benches/memory/limit.py").limited(running.pid, nbytes):
                out, err = running.communicate("go\n", timeout=100)
        except OSError as error:
            running.kill()
            pytest.skip(f"no cgroup with a limit of memory can be made here: {error}")
    return subprocess.CompletedProcess(command, running.returncode, out, err)


def write_entry_points(folder: Path) -> None:
    """Writes the entry points of pyproject.toml as the metadata of an installed package, which `importlib.metadata` finds."""
    import tomllib

    root = Path(__file__).resolve().parents[2]
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    info = folder / "rustload_test-0.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: rustload-test\nVersion: 0.0\n")
    groups = [
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in found.items())
        for group, found in project["entry-points"].items()
    ]
    (info / "entry_points.txt").write_text("\n".join(groups))
