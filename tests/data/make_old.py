"""Files of old writers, built byte by byte: archives with every kind of packing, and streams of torch before 0.4.

Run it to write them into a folder:
    python tests/data/make_old.py FOLDER
"""

import argparse
import collections
import copyreg
import io
import pathlib
import pickle
import struct
import sys
import zlib
from typing import Any, ClassVar

import torch

FULL = 0xFFFFFFFF
MAGIC = 0x1950A86A20F9469CFC6C
SYSTEM = {"protocol_version": 1001, "little_endian": True, "type_sizes": {"short": 2, "int": 4, "long": 4}}


class Storage:
    """A storage; the pickler writes its persistent id."""

    def __init__(self, *pid: Any) -> None:
        self.pid = pid


class Call:
    """Pickles as a call, with a state to set on the result if there is one."""

    def __init__(self, *parts: Any) -> None:
        self.parts = parts

    def __reduce__(self) -> Any:
        return self.parts


class New:
    """Pickles as NEWOBJ without arguments and BUILD, as `copy_reg.__newobj__` has it."""

    def __init__(self, cls: Any, state: Any) -> None:
        self.cls, self.state = cls, state

    @property  # type: ignore[misc]  # NEWOBJ requires that it is the class
    def __class__(self) -> Any:
        return self.cls

    def __reduce_ex__(self, protocol: Any) -> Any:
        return copyreg.__newobj__, (self.cls,), self.state  # type: ignore[attr-defined]  # not declared


class Pickler(pickle._Pickler):  # type: ignore[name-defined]  # the Python pickler, whose persistent ids can be overridden
    """A pickler that writes storages as persistent ids."""

    def persistent_id(self, obj: Any) -> Any:
        return obj.pid if isinstance(obj, Storage) else None


class Python2(Pickler):
    """A pickler that writes str as Python 2 did: SHORT_BINSTRING."""

    dispatch: ClassVar[dict[Any, Any]] = dict(Pickler.dispatch)

    def save_str(self, text: str) -> None:
        data = text.encode()
        self.write(pickle.SHORT_BINSTRING + bytes([len(data)]) + data)
        self.memoize(text)

    dispatch[str] = save_str


def pickled(obj: Any, pickler: Any = Pickler, protocol: int = 2) -> bytes:
    out = io.BytesIO()
    pickler(out, protocol).dump(obj)
    return out.getvalue()


def stream(
    obj: Any, storages: dict[str, tuple[int, bytes]], pickler: Any = Pickler, protocol: int = 2
) -> bytes:
    """A legacy stream: five pickles, then count and bytes of each storage."""
    parts = (MAGIC, 1001, SYSTEM, obj, list(storages))
    head = b"".join(pickled(part, pickler, protocol) for part in parts)
    return head + b"".join(struct.pack("<q", count) + data for count, data in storages.values())


def archive(
    members: dict[str, bytes],
    *,
    alignment: int = 64,
    checksums: bool = True,
    descriptors: bool = True,
    zip64: bool = False,
    deflated: tuple[str, ...] = (),
) -> bytes:
    """A torch archive. Each member's payload begins at a multiple of `alignment`, after an extra field `FB` of as many `Z`."""
    out, directory = bytearray(), bytearray()
    for name, data in members.items():
        path = f"archive/{name}".encode()
        crc = zlib.crc32(data) if checksums else 0
        method = 8 if name in deflated else 0
        packer = zlib.compressobj(wbits=-15)
        payload = packer.compress(data) + packer.flush() if method else data
        start, sizes = len(out), (crc, len(payload), len(data))
        flags, stated = (0x808, (0, 0, 0)) if descriptors else (0x800, sizes)
        wide = struct.pack("<HHQQ", 1, 16, len(data), len(payload)) if zip64 else b""
        if zip64:
            stated = (stated[0], FULL, FULL)
        pad = -(start + 30 + len(path) + len(wide) + 4) % alignment
        extra = wide + struct.pack("<HH", 0x4246, pad) + b"Z" * pad
        out += struct.pack(
            "<4s5H3I2H", b"PK\3\4", 45 if zip64 else 0, flags, method, 0, 0, *stated, len(path), len(extra)
        )
        out += path + extra + payload
        if descriptors:
            out += struct.pack("<4sIQQ" if zip64 else "<4sIII", b"PK\7\10", *sizes)
        known = (crc, FULL, FULL, len(path), len(wide)) if zip64 else (*sizes, len(path), 0)
        directory += struct.pack(
            "<4s6H3I5H2I", b"PK\1\2", 0, 45 if zip64 else 0, flags, method, 0, 0, *known, 0, 0, 0, 0, start
        )
        directory += path + wide
    at, count = len(out), len(members)
    out += directory
    if zip64:
        size = len(directory)
        out += struct.pack("<4sQ2H2I4Q", b"PK\6\6", 44, 45, 45, 0, 0, count, count, size, at)
        out += struct.pack("<4sIQI", b"PK\6\7", 0, at + size, 1)
        return bytes(out + struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, count, count, size, FULL, 0))
    return bytes(out + struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, count, count, len(directory), at, 0))


def storage(dtype: str, key: str, count: int, view: Any = "none in an archive") -> Storage:
    pid = ("storage", getattr(torch, f"{dtype}Storage"), key, "cpu", count)
    return Storage(*pid) if view == "none in an archive" else Storage(*pid, view)


def tensor(on: Storage, *size: int, offset: int = 0, stride: tuple[int, ...] | None = None) -> Call:
    """A call of `_rebuild_tensor_v2`, by default contiguous."""
    stride = torch.empty(size, device="meta").stride() if stride is None else stride
    return Call(torch._utils._rebuild_tensor_v2, (on, offset, size, stride, False, collections.OrderedDict()))


FLOATS = struct.pack("<6f", 1, 2, 3, 4, 5, 6)
DOUBLES = struct.pack("<2d", 0.5, -0.5)


def model() -> dict[str, bytes]:
    """The members of an archive with two tied tensors and one of doubles."""
    w = storage("Float", "0", 6)
    state = collections.OrderedDict(w=tensor(w, 2, 3), t=tensor(w, 3, 2, stride=(1, 3)))
    state["d"] = tensor(storage("Double", "1", 2), 2)
    data = {"data.pkl": pickled(state), "byteorder": b"little", "data/0": FLOATS, "data/1": DOUBLES}
    return {**data, "version": b"3\n", ".data/serialization_id": b"0" * 40}


def big_endian() -> bytes:
    members = model()
    swapped = {"data/0": struct.pack(">6f", 1, 2, 3, 4, 5, 6), "data/1": struct.pack(">2d", 0.5, -0.5)}
    return archive({**members, **swapped, "byteorder": b"big"})


def views() -> bytes:
    """Storage views of torch before 0.4: a part of a root storage, with its own key."""
    part, other = ("11", 2, 4), ("12", 0, 3)
    obj = {
        "whole": tensor(storage("Float", "10", 6, None), 2, 3),
        "part": tensor(storage("Float", "10", 6, part), 2, 2),
        "again": tensor(storage("Float", "10", 6, part), 2, offset=1),
        "other": tensor(storage("Float", "10", 6, other), 3),
    }
    return stream(obj, {"10": (6, FLOATS)})


def first_tensors() -> bytes:
    on = storage("Float", "0", 6, None)
    return stream({"w": Call(torch._utils._rebuild_tensor, (on, 1, (2, 2), (3, 1)))}, {"0": (6, FLOATS)})


def parameters() -> bytes:
    data = tensor(storage("Float", "0", 6, None), 2, 3)
    hooks: Any = collections.OrderedDict()
    obj = {
        "parameter": New(torch.nn.Parameter, (data, None, hooks, True, False)),
        "frozen": New(torch.nn.Parameter, (data, None, hooks, False, False)),
        "called": Call(torch.nn.Parameter, (data, True)),
        "variable": Call(torch.autograd.Variable, (data,), (True, False, hooks)),
    }
    return stream(obj, {"0": (6, FLOATS)})


def of_python_2(protocol: int = 2) -> bytes:
    """Byte strings for str, `__builtin__`, `copy_reg`: Python 3 maps these names for protocols below 3."""
    obj = collections.OrderedDict(
        weight=tensor(storage("Float", "0", 6, None), 2, 3),
        config={"kinds": {1, 2}, "range": range(3), "note": "text", "args": argparse.Namespace(lr=0.5)},
    )
    return stream(obj, {"0": (6, FLOATS)}, Python2, protocol)


OLD = {
    "plain": lambda: archive(model()),
    **{
        f"alignment {1 << bits}": lambda bits=bits: archive(model(), alignment=1 << bits)
        for bits in range(13)
    },
    "alignment 3": lambda: archive(model(), alignment=3),
    "no checksums": lambda: archive(model(), checksums=False),
    "no descriptors": lambda: archive(model(), descriptors=False),
    "zip64": lambda: archive(model(), zip64=True),
    "zip64, no descriptors": lambda: archive(model(), zip64=True, descriptors=False),
    "deflated data.pkl": lambda: archive(model(), deflated=("data.pkl",)),
    "deflated": lambda: archive(model(), deflated=tuple(model())),
    "no byteorder": lambda: archive({name: data for name, data in model().items() if name != "byteorder"}),
    "big-endian": big_endian,
    "views": views,
    "first tensors": first_tensors,
    "parameters": parameters,
    "Python 2": of_python_2,
    "Python 2, protocol 1": lambda: of_python_2(1),
}


def main() -> None:
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, write in OLD.items():
        (folder / f"{name}.pt").write_bytes(write())
    print(f"{len(OLD)} files in {folder}")


if __name__ == "__main__":
    main()
