"""Readers that say what they would import: CPython's unpicklers, tarfile, zipfile, gzip, zlib and NumPy, each through the others.

Nothing is imported or called: `find_class` notes a name and returns a stand-in for what a checkpoint may name, and ends the reader for
anything else. `imports(data)` walks bytes as a program would that tries every reader on them.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import pickle
import tarfile
import warnings
import zipfile
import zlib
from typing import Any

import numpy as np

UNDERSTOOD = {
    "OrderedDict",
    "_rebuild_tensor_v2",
    "FloatStorage",
    "ByteStorage",
    "_reconstruct",
    "ndarray",
    "dtype",
    "NumpyArrayWrapper",
}
"""Names of which the files here are made."""

PICKLES_MAX = 50
DEPTH_MAX = 3


class RefusedError(Exception):
    """Ends a reader."""


class StandIn:
    """Takes the place of anything that a checkpoint names."""

    def __new__(cls, *_: Any, **__: Any) -> StandIn:
        return object.__new__(cls)

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __setstate__(self, _: Any) -> None:
        pass

    def __setitem__(self, *_: Any) -> None:
        pass


def _unpickler(base: Any, found: set[str], depth: int) -> Any:
    def load_from_bytes(data: bytes) -> StandIn:
        found.update(imports(data, depth + 1))
        return StandIn()

    class Noting(base):
        def find_class(self, module: str, name: str) -> Any:
            if name in UNDERSTOOD:
                return StandIn
            if name == "_load_from_bytes":
                return load_from_bytes
            found.add(f"{module}.{name}")
            raise RefusedError

        def persistent_load(self, pid: Any) -> Any:
            # As torch's readers do.
            assert isinstance(pid, tuple)
            return StandIn()

    return Noting


def unpickles(data: bytes, found: set[str], depth: int) -> None:
    """`load`, again and again, by both unpicklers."""
    for base in (pickle.Unpickler, pickle._Unpickler):  # type: ignore[attr-defined]
        file, reader = io.BytesIO(data), _unpickler(base, found, depth)
        for _ in range(PICKLES_MAX):
            if file.tell() >= len(data):
                break
            try:
                reader(file).load()
            except Exception:
                break


def reads_array(data: bytes, found: set[str], depth: int) -> None:
    """`numpy.load(allow_pickle=True)` of an array, again and again."""
    file = io.BytesIO(data)
    formats: Any = np.lib.format
    while file.tell() < len(data):
        try:
            version = formats.read_magic(file)
            read = {(1, 0): formats.read_array_header_1_0, (2, 0): formats.read_array_header_2_0}.get(version)
            if read is None:
                return
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                shape, _, dtype = read(file, max_header_size=1 << 40)
        except Exception:
            return
        if dtype.hasobject:
            unpickles(data[file.tell() :], found, depth)
            return
        file.seek(int(np.prod(shape, dtype=object)) * dtype.itemsize, io.SEEK_CUR)


def imports(data: bytes, depth: int = 0) -> set[str]:
    """The names that some reader of these bytes would import, beyond those of checkpoints."""
    found: set[str] = set()
    if depth > DEPTH_MAX or not data:
        return found
    unpickles(data, found, depth)
    reads_array(data, found, depth)
    inner: list[bytes] = []
    with contextlib.suppress(Exception), tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
        for member in archive:
            file = archive.extractfile(member)
            inner += [file.read()] if file is not None else []
    with contextlib.suppress(Exception), zipfile.ZipFile(io.BytesIO(data)) as members:
        for info in members.infolist():
            content = members.read(info)
            if "/data/" in info.filename:
                reads_array(content, found, depth)  # a storage: only NumPy reads it as a file
            else:
                inner.append(content)
    with contextlib.suppress(Exception):
        inner.append(gzip.GzipFile(fileobj=io.BytesIO(data)).read())
    with contextlib.suppress(Exception):
        inner.append(zlib.decompressobj().decompress(data))
    for content in inner:
        found |= imports(content, depth + 1)
    return found
