"""Files that do more than an empty report says, one for each reader and each kind of find: the oracle must notice all of them."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zipfile
import zlib
from typing import TYPE_CHECKING

from attacks import pickles as asm
from attacks.streams import tar
from attacks.zips import torch_zip

from fuzz.oracle.fence import Fence, Task
from fuzz.oracle.walk import READERS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fuzz.oracle.watch import Name

EVIL = b"cevil\nrun\n."
LOADER = "torch.storage._load_from_bytes"


def _zipped(content: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("a", content)
    return out.getvalue()


def _npy() -> bytes:
    header = b"{'descr': '|O', 'fortran_order': False, 'shape': (), }".ljust(117) + b"\n"
    return b"\x93NUMPY\x01\0" + len(header).to_bytes(2, "little") + header + EVIL


def files() -> Iterator[tuple[str, str, bytes, dict[Name, int]]]:
    """The kind of the find, the reader, the file, and the names of its report."""
    for reader in ("pickle", "pickle.py", "pickle latin1", "pickle bytes", "numpy", "torch"):
        yield "global", reader, EVIL, {}
    yield "global", "pickle", b"\x80\x04N." + EVIL, {}
    yield "global", "one unpickler", b"\x80\x02X\x04\0\0\0evilq\0.\x80\x04h\0\x8c\x03run\x93.", {}
    yield "global", "torch", torch_zip(asm.pickle(asm.name("evil.run"))), {}
    yield "global", "torch", tar({"pickle": EVIL}), {}
    yield "global", "numpy latin1", _npy(), {}
    yield "global", "torch zip>pickle", torch_zip(asm.pickle(), {"x": EVIL}), {}
    yield "global", "torch zip>numpy", torch_zip(asm.pickle(asm.text("x")), {"x": _npy()}), {}
    yield "global", "tarfile>pickle", tar({"pickle": EVIL}), {}
    yield "global", "zipfile>pickle", _zipped(EVIL), {}
    yield "global", "zipfile>tarfile>pickle", _zipped(tar({"pickle": EVIL})), {}
    yield "global", "gzip>pickle", gzip.compress(EVIL)[:-6], {}
    yield "global", "zlib>pickle", zlib.compress(EVIL) + b"x", {}
    yield "global", "bz2>pickle", bz2.compress(EVIL), {}
    yield "global", "lzma>pickle", lzma.compress(EVIL, lzma.FORMAT_ALONE), {}
    if "joblib" in READERS:
        yield "global", "joblib", zlib.compress(EVIL), {}
    loads = asm.call(LOADER, asm.binary(EVIL))
    yield "global", "pickle", asm.pickle(loads), {("torch.storage", "_load_from_bytes"): 1}
    hidden = (
        asm.ordered()
        + asm.mapped((asm.text("__setstate__"), asm.name(LOADER)))
        + b"b"
        + asm.binary(EVIL)
        + b"b"
    )
    names = {("torch.storage", "_load_from_bytes"): 0, ("collections", "OrderedDict"): 1}
    yield "call", "pickle", asm.pickle(hidden), names
    yield "dangerous", "pickle", asm.pickle(asm.call("posix.getcwd")), {("posix", "getcwd"): 1}
    state = asm.many(asm.NONE, asm.mapped((asm.text("update"), asm.NONE)))
    yield (
        "changed",
        "pickle",
        asm.pickle(asm.name("collections.Counter") + state + b"b"),
        {("collections", "Counter"): 0},
    )
    encode = asm.call("_codecs.encode", asm.text("a"), asm.text("rot13"))
    yield "audit", "pickle", asm.pickle(encode), {("_codecs", "encode"): 1}


def unnoticed(fence: Fence) -> list[str]:
    """The files that the oracle does not notice."""
    made = list(files())
    tasks = [Task(number, data, inert) for number, (_, _, data, inert) in enumerate(made)]
    noticed = {
        result.task.number: {(find.kind, find.reader) for find in result.finds} for result in fence.run(tasks)
    }
    return [
        f"{kind}, {reader}: {data[:80]!r}"
        for number, (kind, reader, data, _) in enumerate(made)
        if (kind, reader) not in noticed.get(number, ())
    ]
