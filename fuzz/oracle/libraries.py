"""The readers of libraries: torch, NumPy and, where it is installed, joblib."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import pathlib
import types
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fuzz.oracle import table
from fuzz.oracle.readers import CONTENT_MAX_BYTES, CONTENTS_MAX, contents

if TYPE_CHECKING:
    from fuzz.oracle.readers import Contents, Reader


def _torch(data: bytes) -> Contents:
    """`torch.load` of a file on disk: the zip, tar and legacy formats."""
    with on_disk(data).open("rb") as file:
        torch.load(file, weights_only=False, map_location="cpu")
    yield from ()


def _torch_records(data: bytes) -> Contents:
    """The records that torch's own reader of zip archives finds."""
    archive, members = torch._C.PyTorchFileReader(io.BytesIO(data)), {}
    for name in archive.get_all_records()[:CONTENTS_MAX]:
        with contextlib.suppress(RuntimeError):
            if archive.get_record_size(name) <= CONTENT_MAX_BYTES:
                members[name] = archive.get_record(name)
    yield from contents({name: name for name in members}, members)


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

    joblib.load(on_disk(data))
    yield from ()


def on_disk(data: bytes) -> pathlib.Path:
    """The data as a file of the child's folder, which is its working directory."""
    path = pathlib.Path("input.bin").absolute()
    path.write_bytes(data)
    return path


LIBRARY_READERS: dict[str, Reader] = {
    "torch": _torch,
    "torch zip": _torch_records,
    "numpy": _numpy("ASCII"),
    "numpy latin1": _numpy("latin1"),
}
if importlib.util.find_spec("joblib"):
    LIBRARY_READERS["joblib"] = _joblib


def warm_up() -> None:
    """Loads modules that the readers import late, so that an import by a reader stands out, and those of the table."""
    for module in sorted({row.module for row in table.ROWS}):
        with contextlib.suppress(ImportError):  # it is not installed, or of another version
            importlib.import_module(module)
    if "joblib" in LIBRARY_READERS:
        import joblib

        joblib.hash(1)
        joblib.compressor.zlib = types.SimpleNamespace(**vars(zlib) | {"decompressobj": _Decompressor})
    torch.set_num_threads(1)
    torch.jit.load = _refuse  # it runs no pickles, and TorchScript's code is not what is tested here
    buffer = io.BytesIO()
    torch.save({"w": torch.ones(2)}, buffer)
    np.savez_compressed(buffer, a=np.array([None]))


class _Decompressor:
    """A zlib stream of joblib 1.6, which decompresses what follows a stream's end for ever, and reads no opcode from it."""

    def __init__(self, wbits: int) -> None:
        self._stream = zlib.decompressobj(wbits)

    @property
    def unused_data(self) -> bytes:
        """What follows the stream."""
        return self._stream.unused_data

    def decompress(self, data: bytes) -> bytes:
        """What the data holds; an error behind the end."""
        if self._stream.eof:
            raise EOFError
        return self._stream.decompress(data)


def _refuse(*_args: Any, **_kwargs: Any) -> None:
    raise RuntimeError("TorchScript is not run")
