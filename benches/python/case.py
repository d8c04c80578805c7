"""A case: the timed operation, the bytes that it moves, its limit, and the loaders that can do it.

A case writes its files once to `.cache/bench`. All loaders give the same result; `check` verifies this
before anything is timed. The limit is the same copy or cast between buffers in memory whose pages are mapped already (touched).
A load from a file into fresh memory cannot reach it. It depends on the machine's load, so
it is timed in the same rounds as the loaders.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import safetensors
import safetensors.torch
import torch

import rustload

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

CACHE = Path(__file__).resolve().parent.parent.parent / ".cache" / "bench"
MIB = 1 << 20
# Loaders with this suffix start without recycled memory; rustload's other rows reuse the memory of the previous round.
FRESH = "fresh memory"
DTYPES = {None: torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
BITS = {2: torch.int16, 4: torch.int32}


class Case(ABC):
    """One operation, and the loaders that can do it."""

    title: str
    limit: str
    suffix: str
    # Whether every loader must read all tensor data, so that bytes per second are meaningful.
    reads = True
    # Whether huge pages for torch's own allocations would change torch's rows.
    allocates = False
    # Whether the loaders run in this program, so that their peaks can be measured.
    has_peaks = True
    # The notes printed below the table.
    notes: Sequence[str] = ()

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
        """Makes the contents of the file."""

    @abstractmethod
    def ways(self) -> dict[str, Callable[[], Any]]:
        """Returns the loaders to time, rustload first."""

    @abstractmethod
    def limit_probe(self) -> Callable[[], object]:
        """Returns the function to time as the limit."""

    @abstractmethod
    def check(self) -> None:
        """Raises AssertionError if rustload's result differs from the other loader's."""

    @property
    def arena(self) -> int:
        """Bytes of memory to touch and free before each timed run: enough for the data that is read and for the results."""
        return 2 * self.nbytes if self.reads else 0

    def before(self, name: str) -> None:
        """Prepares a run of one loader, untimed."""
        if name.endswith(FRESH):
            rustload.trim()

    def reason_to_skip(self) -> str | None:
        """Why it cannot run on this machine, or None."""
        return None

    def prepare(self) -> None:
        """Writes the file if it does not exist yet."""
        if self.path.exists():
            return
        CACHE.mkdir(parents=True, exist_ok=True)
        partial = self.path.with_name(self.path.name + ".partial")
        if self.suffix == ".safetensors":
            safetensors.torch.save_file(self.tensors(), partial)
        else:
            torch.save(self.tensors(), partial, _use_new_zipfile_serialization=self.suffix != ".legacy")
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


class DataCase(Case):
    """A loader that returns torch tensors."""

    dtype: str | None = None

    def check(self) -> None:
        first, *others = self.ways().values()
        ours = first()
        for way in others:
            peer = way()  # one at a time, as each may be as large as the file
            assert ours.keys() == peer.keys()
            assert all(same_bits(ours[name], tensor) for name, tensor in peer.items())
            del peer


def hold(begin: Callable[[], None], case: Case, name: str) -> int:
    """Runs one loader once in a process whose memory is sampled, and keeps the result to the end."""
    way = case.ways()[name]
    torch.ones(1024, 1024).t().contiguous().to(torch.bfloat16)  # starts torch's threads
    begin()
    result = way()
    return len(result)


def torch_load(path: Path, *, mmap: bool) -> dict[str, torch.Tensor]:
    """`torch.load` as a careful user calls it."""
    state: dict[str, torch.Tensor] = torch.load(path, weights_only=True, mmap=mmap)
    return state


def safe_open(path: Path) -> Iterator[tuple[str, torch.Tensor]]:
    """Each tensor of a safetensors file, by `safe_open`."""
    with safetensors.safe_open(path, framework="pt") as file:
        for name in file.keys():  # noqa: SIM118 - not a mapping
            yield name, file.get_tensor(name)


def each(
    state: dict[str, torch.Tensor], finish: Callable[[torch.Tensor], torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Converts each tensor and frees its source at once, so that the other loaders' peaks are those of careful use."""
    return {name: finish(state.pop(name)) for name in list(state)}


def read_metadata(path: Path, nbytes: int) -> Callable[[], object]:
    """Reads the metadata with one system call."""
    size = path.stat().st_size
    metadata = max(4096, size - nbytes)

    def read() -> object:
        with path.open("rb", buffering=0) as file:
            if path.suffix == ".bin":
                file.seek(size - metadata)  # a zip has its central directory at the end
            return file.read(metadata)

    return read


def movement(numel: int, dtype: torch.dtype) -> Callable[[], object]:
    """Copies or casts this many float32 elements between touched buffers."""
    source, target = torch.ones(numel), torch.ones(numel, dtype=dtype)
    return lambda: target.copy_(source)


def same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether dtype, shape and every bit are the same."""
    bits = BITS[left.element_size()]
    return (
        left.dtype == right.dtype
        and left.shape == right.shape
        and torch.equal(left.view(bits), right.view(bits))
    )
