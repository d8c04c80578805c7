"""The readers: each takes bytes, reads them as users of its library do, and returns the contents of what it opens.

An error of a reader ends its run, as it does for a user. Compressed data and members are read piece by piece, as an unpickler
reads a file: what precedes a wrong checksum counts.
"""

from __future__ import annotations

import bz2
import codecs
import contextlib
import gzip
import hashlib
import importlib.util
import io
import lzma
import os
import pathlib
import pickle
import tarfile
import warnings
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator
from typing import Any

import numpy as np
import torch

from fuzz.oracle.watch import WATCH, CUnpickler, StandIn

PIECE_BYTES = 1 << 16
CONTENT_MAX_BYTES = 1 << 20
"""The bytes of one member that are given back to the readers."""
CONTENTS_MAX = 64
"""The members of one input that are given back."""
DEPTH_MAX = 3
"""The levels of archives in archives: the limit `scan_depth`."""
PICKLES_MAX = 1000
"""The consecutive pickles that are read."""

Contents = Iterator[bytes]
Reader = Callable[[bytes], Contents]


class _CReader(CUnpickler):
    def persistent_load(self, _: Any) -> StandIn:
        return StandIn()


class _PythonReader(pickle._Unpickler):
    def persistent_load(self, _: Any) -> StandIn:
        return StandIn()


def _pickles(unpickler: Any, encoding: str) -> Reader:
    """Consecutive pickles, a new unpickler for each."""

    def read(data: bytes) -> Contents:
        file = io.BytesIO(data)
        _until_end(lambda: unpickler(file, encoding=encoding).load())
        yield from ()

    return read


def _one_unpickler(data: bytes) -> Contents:
    """Consecutive pickles read by one unpickler, which keeps its memo."""
    _until_end(_CReader(io.BytesIO(data)).load)
    yield from ()


def _until_end(load: Callable[[], Any]) -> None:
    """Reads pickles up to the end of the file; fails if there is none."""
    load()
    with contextlib.suppress(EOFError):
        for _ in range(PICKLES_MAX):
            load()


def _torch(data: bytes) -> Contents:
    """`torch.load` of a file on disk: the zip, tar and legacy formats."""
    with _on_disk(data).open("rb") as file:
        torch.load(file, weights_only=False, map_location="cpu")
    yield from ()


def _torch_records(data: bytes) -> Contents:
    """The records that torch's own reader of zip archives finds."""
    archive = torch._C.PyTorchFileReader(io.BytesIO(data))
    for name in archive.get_all_records()[:CONTENTS_MAX]:
        with contextlib.suppress(RuntimeError):
            if archive.get_record_size(name) <= CONTENT_MAX_BYTES:
                yield archive.get_record(name)


def _tarfile(data: bytes) -> Contents:
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
        for member in archive:
            with contextlib.suppress(Exception):
                file = archive.extractfile(member)
                if file is not None:
                    yield _drain(file)


def _zipfile(data: bytes) -> Contents:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for info in archive.infolist()[:CONTENTS_MAX]:
            with contextlib.suppress(Exception), archive.open(info) as file:
                yield _drain(file)


def _numpy(encoding: str) -> Reader:
    def read(data: bytes) -> Contents:
        loaded = np.load(io.BytesIO(data), allow_pickle=True, encoding=encoding)
        if isinstance(loaded, np.lib.npyio.NpzFile):
            for name in loaded.files[:CONTENTS_MAX]:
                with contextlib.suppress(Exception):
                    loaded[name]
        yield from ()

    return read


def _joblib(data: bytes) -> Contents:
    """`joblib.load` of a path: joblib's formats before 0.10 need one."""
    import joblib

    joblib.load(_on_disk(data))
    yield from ()


def _decompressed(opened: Callable[[Any], Any]) -> Reader:
    def read(data: bytes) -> Contents:
        out = _drain(opened(io.BytesIO(data)))
        if not out:
            raise EOFError
        yield out

    return read


class _ZlibFile(io.RawIOBase):
    """A zlib stream; what follows its end is ignored, as by `zlib.decompressobj`."""

    def __init__(self, file: io.BytesIO) -> None:
        self._stream, self._rest = zlib.decompressobj(), file.read()

    def read(self, size: int = -1) -> bytes:
        out = self._stream.decompress(self._rest, size)
        self._rest = self._stream.unconsumed_tail
        return out


def _drain(file: Any) -> bytes:
    """The bytes of a file up to the first error."""
    parts, left = [], CONTENT_MAX_BYTES
    read = getattr(file, "read1", file.read)  # `read` of a buffered file gives nothing if an error follows
    with contextlib.suppress(Exception):
        while left > 0 and (part := read(min(left, PIECE_BYTES))):
            parts.append(part)
            left -= len(part)
    return b"".join(parts)


def _on_disk(data: bytes) -> pathlib.Path:
    """The data as a file of the child's folder, which is its working directory."""
    path = pathlib.Path("input.bin").absolute()
    path.write_bytes(data)
    return path


READERS: dict[str, Reader] = {
    "pickle": _pickles(_CReader, "ASCII"),
    "pickle.py": _pickles(_PythonReader, "ASCII"),
    "pickle latin1": _pickles(_CReader, "latin1"),
    "pickle bytes": _pickles(_CReader, "bytes"),
    "one unpickler": _one_unpickler,
    "torch": _torch,
    "torch zip": _torch_records,
    "tarfile": _tarfile,
    "zipfile": _zipfile,
    "numpy": _numpy("ASCII"),
    "numpy latin1": _numpy("latin1"),
    "gzip": _decompressed(lambda file: gzip.GzipFile(fileobj=file)),
    "zlib": _decompressed(_ZlibFile),
    "bz2": _decompressed(bz2.BZ2File),
    "lzma": _decompressed(lzma.LZMAFile),
}
if importlib.util.find_spec("joblib"):
    READERS["joblib"] = _joblib


CONTENTS = "contents"
"""Stands for all readers of what the others open."""


def warm_up() -> None:
    """Loads modules that the readers import late, so that an import by a reader stands out."""
    for encoding in ("ascii", "cp437", "latin1", "raw_unicode_escape", "unicode_escape", "utf-8"):
        codecs.lookup(encoding)
    if "joblib" in READERS:
        import joblib

        joblib.hash(1)
    torch.set_num_threads(1)
    torch.jit.load = _refuse  # it runs no pickles, and TorchScript's code is not what is tested here
    buffer = io.BytesIO()
    torch.save({"w": torch.ones(2)}, buffer)
    np.savez_compressed(buffer, a=np.array([None]))
    with contextlib.suppress(Exception):
        next(_tarfile(buffer.getvalue()))


def _refuse(*_args: Any, **_kwargs: Any) -> None:
    raise RuntimeError("TorchScript is not run")


def read_all(data: bytes, skip: Collection[str], started: Callable[[int], None]) -> dict[str, str]:
    """Runs every reader on the data, and on what they open in it; returns how each ended.

    Args:
        data: The content of a file.
        skip: Readers of the file itself that are left out.
        started: Called with the number of each reader before it runs on the file itself.

    Returns:
        By reader, `"ok"` or the error's class, for the readers of the file itself and for those of contents.
    """
    outcomes: dict[str, str] = {}
    todo, seen = [("", data, 0)], {hashlib.sha1(data).digest()}
    while todo:
        path, content, depth = todo.pop()
        if depth > 0:
            started(len(READERS))
            if CONTENTS in skip:
                break
        for number, (name, reader) in enumerate(READERS.items()):
            if depth == 0:
                started(number)
                if name in skip:
                    continue
            WATCH.reader = label = f"{path}{name}"
            resolved = WATCH.resolved
            try:
                for inner in reader(content):
                    digest = hashlib.sha1(inner).digest()
                    if inner and depth < DEPTH_MAX and digest not in seen and len(seen) < CONTENTS_MAX:
                        seen.add(digest)
                        todo.append((f"{label}>", inner, depth + 1))
                outcomes[label] = "ok"
            except Exception as error:  # noqa: BLE001 - readers raise errors of any type
                outcomes[label] = type(error).__name__
            if WATCH.resolved > resolved:
                outcomes[label] += " after names"
            if WATCH.tainted:
                return outcomes
    return outcomes


def silence() -> None:
    """Drops the readers' warnings and output."""
    warnings.simplefilter("ignore")
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
