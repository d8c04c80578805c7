"""`fingerprint`: a digest of the tensors of a checkpoint, whatever its format and however it is divided among files."""

from __future__ import annotations

import hashlib
import json
import threading
from typing import TYPE_CHECKING

from rustload import _rustload
from rustload._checkpoint.names import names_left_out
from rustload._common.request import Request
from rustload._common.waiting import in_parallel

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rustload._tensor.handle import LazyTensor

FORMAT = "rustload-fingerprint-1"
"""The first line of what is hashed; another version hashes other text."""

SLICE_BYTES = 16 << 20
"""The most bytes of a tensor that are read at once; each thread has one such slice."""


def fingerprint(
    tensors: Mapping[str, LazyTensor], texts: Mapping[str, str], *, data: bool, threads: int | None
) -> str:
    """The digest, as 64 hexadecimal digits.

    Args:
        tensors: The tensors by name.
        texts: The header's texts, which have the names that a writer has left out because they are tied.
        data: Whether the elements count, and not only names, dtypes and shapes.
        threads: The number of threads; None for one per core.

    Raises:
        ValueError: `threads` is not positive.
        TypeError: It is not an integer.
    """
    threads = Request(copy=True, threads=threads).threads
    named = dict(tensors)
    named |= {name: named[kept] for name, kept in names_left_out(named, texts).items()}
    digests = _digests(list(named.values()), threads) if data else {}
    lines = [FORMAT]
    for name in sorted(named):
        core = named[name]._core
        line: list[object] = [name, core.dtype, list(core.shape)]
        lines.append(json.dumps([*line, digests[core.id]] if data else line))
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _digests(tensors: list[LazyTensor], threads: int | None) -> dict[tuple[int, int], str]:
    """The SHA-256 of each tensor's elements, in C order and little-endian."""
    different = {tensor._core.id: tensor for tensor in tensors}
    stop = threading.Event()

    def digest(tensor: LazyTensor) -> str:
        found = hashlib.sha256()
        for part in _slices(tensor):
            if stop.is_set():
                break
            if part.nbytes:
                found.update(memoryview(part._core.materialize(request)).cast("B"))
        return found.hexdigest()

    # Each thread reads for itself.
    request = Request(copy=True, threads=1)
    workers = threads or int(_rustload.machine()["threads"])
    try:
        return dict(zip(different, in_parallel(digest, different.values(), workers), strict=True))
    finally:
        stop.set()  # after an error or Ctrl-C, the others end at their next slice


def _slices(tensor: LazyTensor) -> Iterator[LazyTensor]:
    """The tensor in parts of bounded size, which follow each other in C order."""
    if tensor.nbytes <= SLICE_BYTES or not tensor.shape:
        yield tensor
        return
    rows = max(SLICE_BYTES // (tensor.nbytes // tensor.shape[0]), 1)
    for start in range(0, tensor.shape[0], rows):
        yield from _slices(tensor[start : start + rows]) if rows > 1 else _slices(tensor[start])
