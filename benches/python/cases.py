"""The cases: what is timed, how many bytes it moves, which limit it chases, and who else can do it.

A case writes its files once to `.cache/bench`. Its ways all give the same result, and `check` says so
before anything is timed. The limit is the same movement of bytes with everything in place: source read,
destination touched. It cannot be reached from a file into fresh memory, and it moves with the machine, so
it is timed beside the ways.
"""

from __future__ import annotations

import io
import pickletools
import zipfile
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import safetensors
import safetensors.torch
import torch

import rustload
import rustload.torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CACHE = Path(__file__).resolve().parent.parent.parent / ".cache" / "bench"
MIB = 1 << 20
# Ways of this name start with no memory of an earlier result; rustload's others find what the round before has dropped.
FRESH = "fresh memory"
DTYPES = {None: torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
BITS = {2: torch.int16, 4: torch.int32}


class Case(ABC):
    """One thing to do, and the ways of doing it."""

    title: str
    limit: str
    suffix: str
    # Whether any way must read all tensor data, so that bytes per second mean something.
    reads = True
    # Whether huge pages for torch's own allocations would change its rows.
    allocates = False

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes of tensor data that the case reads."""

    @property
    @abstractmethod
    def path(self) -> Path:
        """The file, whether it exists or not."""

    @abstractmethod
    def tensors(self) -> dict[str, torch.Tensor]:
        """Makes what the file holds."""

    @abstractmethod
    def ways(self) -> dict[str, Callable[[], Any]]:
        """Returns what to time, rustload first."""

    @abstractmethod
    def limit_probe(self) -> Callable[[], object]:
        """Returns what to time as the limit."""

    @abstractmethod
    def check(self) -> None:
        """Raises AssertionError where rustload's result is not the peer's."""

    def before(self, name: str) -> None:
        """Gets ready to time a way, untimed."""
        if name.endswith(FRESH):
            rustload.trim()

    def prepare(self) -> None:
        """Writes the file where it is not there yet."""
        if self.path.exists():
            return
        CACHE.mkdir(parents=True, exist_ok=True)
        partial = self.path.with_name(self.path.name + ".partial")
        if self.suffix == ".bin":
            torch.save(self.tensors(), partial)
        else:
            safetensors.torch.save_file(self.tensors(), partial)
        partial.rename(self.path)


class SmallTensors:
    """A checkpoint of many small tensors, which several cases use."""

    count: int
    each: int
    suffix: str

    @property
    def nbytes(self) -> int:
        return self.count * self.each * 4

    @property
    def path(self) -> Path:
        return CACHE / f"open-{self.count}-{self.each}{self.suffix}"

    def tensors(self) -> dict[str, torch.Tensor]:
        block = torch.arange(self.each, dtype=torch.float32)
        return {f"model.layers.{at}.weight": block.clone() for at in range(self.count)}


class OpenCase(SmallTensors, Case):
    """Open a file and list every name, dtype and shape."""

    limit = "reading the metadata with one system call"
    reads = False

    def __init__(self, count: int, each: int, suffix: str) -> None:
        self.count, self.each, self.suffix = count, each, suffix
        self.title = f"open and list {count:,} tensors, {suffix}"

    def ways(self) -> dict[str, Callable[[], Any]]:
        path = self.path

        def ours() -> object:
            with rustload.open(path) as checkpoint:
                return [(name, tensor.dtype, tensor.shape) for name, tensor in checkpoint.items()]

        def keys_only() -> object:
            with safetensors.safe_open(path, framework="pt") as file:
                return list(file.keys())

        def sliced() -> object:
            with safetensors.safe_open(path, framework="pt") as file:
                slices = [(name, file.get_slice(name)) for name in file.keys()]  # noqa: SIM118 - no mapping
                return [(name, part.get_dtype(), part.get_shape()) for name, part in slices]

        if self.suffix == ".safetensors":
            return {"rustload": ours, "safe_open, keys only": keys_only, "safe_open + get_slice": sliced}
        return {
            "rustload": ours,
            "torch.load(mmap=True)": lambda: _torch_load(path, mmap=True),
            "torch.load": lambda: _torch_load(path, mmap=False),
        }

    def limit_probe(self) -> Callable[[], object]:
        return _metadata(self.path, self.nbytes)

    def check(self) -> None:
        with rustload.open(self.path) as checkpoint:
            shapes = {name: tuple(tensor.shape) for name, tensor in checkpoint.items()}
        assert shapes == {name: tuple(tensor.shape) for name, tensor in self.tensors().items()}


class ScanCase(OpenCase):
    """Scan the pickle of many tensors, against the list of its opcodes, which is what other scanners begin with."""

    limit = "reading the pickle with one system call"

    def __init__(self, count: int) -> None:
        super().__init__(count, 1, ".pkl")
        self.title = f"scan the pickle of {count:,} tensors"

    def prepare(self) -> None:
        if not self.path.exists():
            CACHE.mkdir(parents=True, exist_ok=True)
            partial = self.path.with_name(self.path.name + ".partial")
            file = io.BytesIO()
            torch.save(self.tensors(), file)
            with zipfile.ZipFile(file) as archive:
                partial.write_bytes(archive.read("archive/data.pkl"))
            partial.rename(self.path)

    def ways(self) -> dict[str, Callable[[], Any]]:
        data = self.path.read_bytes()
        return {
            "rustload": lambda: rustload.scan(data).globals,
            "pickletools.genops": lambda: [sum(1 for _ in pickletools.genops(data))],
        }

    def limit_probe(self) -> Callable[[], object]:
        return self.path.read_bytes

    def check(self) -> None:
        report = rustload.scan(self.path.read_bytes())
        assert report.complete
        calls = {(named.module, named.name): named.calls for named in report.globals}
        assert calls["torch._utils", "_rebuild_tensor_v2"] == self.count


class LegacyOpenCase(OpenCase):
    """The same of a stream from before torch's zip format, of which torch has no lazy reader."""

    def __init__(self, count: int, each: int) -> None:
        super().__init__(count, each, ".legacy")
        self.title = f"open and list {count:,} tensors, legacy stream"

    def prepare(self) -> None:
        if not self.path.exists():
            CACHE.mkdir(parents=True, exist_ok=True)
            partial = self.path.with_name(self.path.name + ".partial")
            torch.save(self.tensors(), partial, _use_new_zipfile_serialization=False)
            partial.rename(self.path)

    def ways(self) -> dict[str, Callable[[], Any]]:
        ways = super().ways()
        return {name: ways[name] for name in ("rustload", "torch.load")}


class DataCase(Case):
    """What reads tensors and leaves them as torch tensors."""

    dtype: str | None = None

    def check(self) -> None:
        ours, *peers = (way() for way in self.ways().values())
        for peer in peers:
            assert ours.keys() == peer.keys()
            assert all(_same_bits(ours[name], tensor) for name, tensor in peer.items())


class LoadCase(DataCase):
    """Load a whole float32 model: as views, as copies, or cast."""

    def __init__(self, to: str, layers: int, suffix: str) -> None:
        self.to, self.layers, self.suffix = to, layers, suffix
        self.dtype = None if to in ("view", "copy") else to
        self.allocates = self.reads = to != "view"
        what = {"view": "as float32 views", "copy": "as owned float32"}.get(to, f"as {to}")
        self.title = f"load a {self.nbytes / 1e6:.0f} MB float32 model {what}, {suffix}"
        self.limit = {
            "view": "reading nothing: the metadata alone",
            "copy": "copying the same bytes between touched buffers",
        }.get(to, "the cast between touched buffers")

    SHAPES = (*[(1024, 1024)] * 4, *[(4096, 1024)] * 2, (1024, 4096), (1024,), (1024,))

    @property
    def nbytes(self) -> int:
        return self.layers * sum(torch.Size(shape).numel() for shape in self.SHAPES) * 4

    @property
    def path(self) -> Path:
        return CACHE / f"model-{self.layers}{self.suffix}"

    def tensors(self) -> dict[str, torch.Tensor]:
        torch.manual_seed(0)
        return {
            f"model.layers.{layer}.{at}.weight": torch.randn(shape)
            for layer in range(self.layers)
            for at, shape in enumerate(self.SHAPES)
        }

    def ways(self) -> dict[str, Callable[[], Any]]:
        path, dtype, copies = self.path, DTYPES[self.dtype], self.to == "copy"
        copy = {"view": False, "copy": True}.get(self.to)

        def finish(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.clone() if copies else tensor.to(dtype)

        def ours() -> object:
            with rustload.open(path, framework="torch") as checkpoint:
                return {
                    name: tensor.materialize(dtype=self.dtype, copy=copy)
                    for name, tensor in checkpoint.items()
                }

        def whole() -> object:
            with rustload.open(path, framework="torch") as checkpoint:
                return checkpoint.materialize(dtype=self.dtype, copy=copy)

        ways: dict[str, Callable[[], Any]] = {"rustload": ours, "rustload, ckpt.materialize": whole}
        if self.to != "view":
            ways[f"rustload, {FRESH}"] = whole
        if self.suffix == ".bin":
            ways["torch.load(mmap=True)"] = lambda: _each(_torch_load(path, mmap=True), finish)
            if self.to != "view":
                # What it read is owned already, and needs no copy.
                plain = (lambda tensor: tensor) if copies else finish
                ways["torch.load"] = lambda: _each(_torch_load(path, mmap=False), plain)
        else:
            ways["safe_open"] = lambda: {name: finish(tensor) for name, tensor in _safe_open(path)}
            ways["load_file"] = lambda: _each(safetensors.torch.load_file(path), finish)
        return ways

    def limit_probe(self) -> Callable[[], object]:
        if self.to == "view":
            return _metadata(self.path, self.nbytes)
        return _movement(self.nbytes // 4, DTYPES[self.dtype])


class TransposeCase(DataCase):
    """Load one float32 matrix transposed, cast on the way or not."""

    allocates = True

    def __init__(self, rows: int, columns: int, dtype: str | None, suffix: str) -> None:
        self.rows, self.columns, self.dtype, self.suffix = rows, columns, dtype, suffix
        cast = f" and cast to {dtype}" if dtype else ""
        self.title = f"load float32 {rows}x{columns} transposed{cast}, {suffix}"
        self.limit = f"the {'cast' if dtype else 'copy'} between touched buffers, not transposed"

    @property
    def nbytes(self) -> int:
        return self.rows * self.columns * 4

    @property
    def path(self) -> Path:
        return CACHE / f"matrix-{self.rows}x{self.columns}{self.suffix}"

    def tensors(self) -> dict[str, torch.Tensor]:
        torch.manual_seed(0)
        return {"weight": torch.randn(self.rows, self.columns)}

    def ways(self) -> dict[str, Callable[[], Any]]:
        path, dtype = self.path, DTYPES[self.dtype]

        def ours() -> object:
            with rustload.open(path, framework="torch") as checkpoint:
                return {
                    name: tensor.materialize(dtype=self.dtype, transpose=True)
                    for name, tensor in checkpoint.items()
                }

        def transpose_first(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.t().contiguous().to(dtype)

        def cast_first(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.to(dtype).t().contiguous()

        def load(finish: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[], Any]:
            if self.suffix == ".bin":
                return lambda: _each(_torch_load(path, mmap=True), finish)
            return lambda: {name: finish(tensor) for name, tensor in _safe_open(path)}

        peer = "torch.load(mmap=True)" if self.suffix == ".bin" else "safe_open"
        if self.dtype is None:
            ways = {"rustload": ours, f"{peer} .t().contiguous()": load(transpose_first)}
        else:
            ways = {
                "rustload": ours,
                f"{peer} .to().t().contiguous()": load(cast_first),
                f"{peer} .t().contiguous().to()": load(transpose_first),
            }
        if self.suffix == ".bin":
            ways["torch.load, the same"] = lambda: _each(_torch_load(path, mmap=False), cast_first)
        return ways

    def limit_probe(self) -> Callable[[], object]:
        return _movement(self.rows * self.columns, DTYPES[self.dtype])


class GraphCase(DataCase):
    """Load the object graph of a `.bin` under torch: owned, or mapped and not touched."""

    suffix = ".bin"

    def __init__(self, of: OpenCase | LoadCase, *, mmap: bool) -> None:
        self.of, self.mmap = of, mmap
        self.allocates = self.reads = not mmap
        count = len(of.SHAPES) * of.layers if isinstance(of, LoadCase) else of.count
        self.title = (
            f"torch.load of {count:,} tensors, {self.nbytes / 1e6:.0f} MB, {'mapped' if mmap else 'owned'}"
        )
        self.limit = "the metadata alone" if mmap else "copying the same bytes between touched buffers"

    @property
    def nbytes(self) -> int:
        return self.of.nbytes

    @property
    def path(self) -> Path:
        return self.of.path

    def tensors(self) -> dict[str, torch.Tensor]:
        return self.of.tensors()

    def ways(self) -> dict[str, Callable[[], Any]]:
        path, mmap = self.path, self.mmap
        return {
            "rustload": lambda: rustload.torch.load(path, mmap=mmap),
            "torch.load": lambda: _torch_load(path, mmap=mmap),
        }

    def check(self) -> None:
        ours, theirs = self.ways().values()
        found, expected = ours(), theirs()
        assert list(found) == list(expected)
        assert all(_same_bits(found[name], tensor) for name, tensor in expected.items())

    def limit_probe(self) -> Callable[[], object]:
        return _metadata(self.path, self.nbytes) if self.mmap else _movement(self.nbytes // 4, torch.float32)


def hold(begin: Callable[[], None], case: Case, name: str) -> int:
    """Runs one way once in a process whose memory somebody watches, and keeps the result to the end."""
    way = case.ways()[name]
    torch.ones(1024, 1024).t().contiguous().to(torch.bfloat16)  # starts torch's threads
    begin()
    result = way()
    return len(result)


def all_cases(*, quick: bool) -> Iterator[Case]:
    """Yields every case, at full or at small size."""
    formats = (".bin", ".safetensors")
    opens = ((1, MIB), (300, 16384), (2000, 64)) if quick else ((1, 16 * MIB), (300, 65536), (20_000, 64))
    for count, each in opens:
        yield from (OpenCase(count, each, suffix) for suffix in formats)
        yield LegacyOpenCase(count, each)
    yield ScanCase(opens[-1][0])
    for to in ("view", "copy", "bfloat16", "float16"):
        yield from (LoadCase(to, 1 if quick else 16, suffix) for suffix in formats)
    many, few = OpenCase(*opens[-1], ".bin"), LoadCase("copy", 1 if quick else 16, ".bin")
    yield from (GraphCase(of, mmap=mmap) for of in (many, few) for mmap in (False, True))
    shapes = ((2048, 2048), (2056, 1032)) if quick else ((8192, 8192), (8224, 4128))
    for rows, columns in shapes:
        for dtype in (None, "bfloat16"):
            yield from (TransposeCase(rows, columns, dtype, suffix) for suffix in formats)


def _torch_load(path: Path, *, mmap: bool) -> dict[str, torch.Tensor]:
    state: dict[str, torch.Tensor] = torch.load(path, weights_only=True, mmap=mmap)
    return state


def _safe_open(path: Path) -> Iterator[tuple[str, torch.Tensor]]:
    with safetensors.safe_open(path, framework="pt") as file:
        for name in file.keys():  # noqa: SIM118 - no mapping
            yield name, file.get_tensor(name)


def _each(
    state: dict[str, torch.Tensor], finish: Callable[[torch.Tensor], torch.Tensor]
) -> dict[str, torch.Tensor]:
    # Lets go of each source as soon as its result is there: the peers' peaks are those of careful use.
    return {name: finish(state.pop(name)) for name in list(state)}


def _metadata(path: Path, nbytes: int) -> Callable[[], object]:
    size = path.stat().st_size
    metadata = max(4096, size - nbytes)

    def read() -> object:
        with path.open("rb", buffering=0) as file:
            if path.suffix == ".bin":
                file.seek(size - metadata)  # a zip keeps its directory at the end
            return file.read(metadata)

    return read


def _movement(numel: int, dtype: torch.dtype) -> Callable[[], object]:
    source, target = torch.ones(numel), torch.ones(numel, dtype=dtype)
    return lambda: target.copy_(source)


def _same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    bits = BITS[left.element_size()]
    return (
        left.dtype == right.dtype
        and left.shape == right.shape
        and torch.equal(left.view(bits), right.view(bits))
    )
