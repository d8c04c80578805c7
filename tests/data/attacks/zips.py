"""A zip writer for defects: every field of every header can be set."""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass, field
from typing import Any

from attacks.pickles import SIX, named, pickle, tensor

ROOT = "archive"
GOOD = pickle(named({"w": tensor()}))
"""The pickle of a dict with one tensor, `w`, on storage 0."""


@dataclass
class Member:
    """A member; `local` and `central` override fields of its headers."""

    name: bytes
    data: bytes
    method: int = 0
    flags: int = 0
    local: dict[str, Any] = field(default_factory=dict)
    central: dict[str, Any] = field(default_factory=dict)
    after: bytes = b""
    """Bytes between its data and the next member, such as a data descriptor."""
    raw: bytes | None = None
    """Bytes in the file in place of the data compressed with `method`."""

    def stored(self) -> bytes:
        if self.raw is not None:
            return self.raw
        if self.method != 8:
            return self.data
        deflate = zlib.compressobj(9, zlib.DEFLATED, -15)
        return deflate.compress(self.data) + deflate.flush()

    def correct_fields(self) -> dict[str, Any]:
        data = self.stored()
        return {
            "flags": self.flags, "method": self.method, "crc": zlib.crc32(self.data), "csize": len(data),
            "usize": len(self.data), "name": self.name, "extra": b"", "comment": b"", "disk": 0,
        }  # fmt: skip

    def header(self) -> bytes:
        """The local header, the data, and the bytes after it."""
        at = self.correct_fields() | {"sig": b"PK\3\4"} | self.local
        fields = struct.pack(
            "<4s5H3I2H", at["sig"], 20, at["flags"], at["method"], 0, 33, at["crc"], at["csize"], at["usize"],
            at.get("name_len", len(at["name"])), len(at["extra"]),
        )  # fmt: skip
        return fields + at["name"] + at["extra"] + self.stored() + self.after

    def entry(self, offset: int) -> bytes:
        """The entry of the central directory."""
        at = self.correct_fields() | {"sig": b"PK\1\2", "offset": offset} | self.central
        fields = struct.pack(
            "<4s6H3I5H2I", at["sig"], 20, 20, at["flags"], at["method"], 0, 33, at["crc"], at["csize"], at["usize"],
            len(at["name"]), len(at["extra"]), len(at["comment"]), at["disk"], 0, 0, at["offset"],
        )  # fmt: skip
        return fields + at["name"] + at["extra"] + at["comment"]


def member(name: str, data: bytes, **more: Any) -> Member:
    """A member in the root folder."""
    return Member(f"{ROOT}/{name}".encode(), data, **more)


class Zip:
    """A torch archive with optional defects; `bytes()` writes it."""

    def __init__(self, data_pkl: bytes = GOOD, storages: dict[str, bytes] | None = None) -> None:
        kept = {"0": SIX} if storages is None else storages
        self.members = [member("data.pkl", data_pkl), member("byteorder", b"little")]
        self.members += [member(f"data/{key}", data) for key, data in kept.items()]
        self.members += [member("version", b"3\n")]
        self.end: dict[str, Any] = {}
        self.prefix = self.before_end = self.suffix = self.comment = b""
        self.zip64: dict[str, Any] | None = None

    def with_(self, **fields: Any) -> Zip:
        """Sets attributes of the archive."""
        vars(self).update(fields)
        return self

    def find(self, name: str) -> Member:
        return next(one for one in self.members if one.name == f"{ROOT}/{name}".encode())

    def spoil(self, name: str, /, **fields: Any) -> Zip:
        """Sets attributes of a member."""
        vars(self.find(name)).update(fields)
        return self

    def add(self, name: str, data: bytes, **more: Any) -> Zip:
        self.members.append(member(name, data, **more))
        return self

    def add_path(self, name: bytes, data: bytes = b"x") -> Zip:
        """A member with this whole name."""
        self.members.append(Member(name, data))
        return self

    def first(self, name: str, data: bytes) -> Zip:
        self.members.insert(0, member(name, data))
        return self

    def drop(self, name: str) -> Zip:
        self.members.remove(self.find(name))
        return self

    def rename(self, old: str, new: str) -> Zip:
        self.find(old).name = f"{ROOT}/{new}".encode()
        return self

    def bytes(self) -> bytes:
        out, offsets = bytearray(self.prefix), []
        for one in self.members:
            offsets.append(len(out))
            out += one.header()
        start = len(out)
        for one, offset in zip(self.members, offsets, strict=True):
            out += one.entry(offset)
        return bytes(out) + self.ends(len(self.members), start, len(out) - start)

    def ends(self, count: int, start: int, size: int) -> bytes:
        """The records after the central directory."""
        out = self.before_end
        if self.zip64 is not None:
            true = {"count": count, "size": size, "start": start, "disk": 0, "at": start + size, "disks": 1}
            at = true | self.zip64
            out += struct.pack(
                "<4sQ2H2I4Q",
                b"PK\6\6",
                44,
                45,
                45,
                at["disk"],
                0,
                at["count"],
                at["count"],
                at["size"],
                at["start"],
            )
            out += struct.pack("<4sIQI", b"PK\6\7", 0, at["at"], at["disks"])
        at = {
            "disk": 0,
            "start_disk": 0,
            "here": count,
            "count": count,
            "size": size,
            "start": start,
        } | self.end
        comment_len = at.get("comment_len", len(self.comment))
        out += struct.pack(
            "<4s4H2IH",
            b"PK\5\6",
            at["disk"],
            at["start_disk"],
            at["here"],
            at["count"],
            at["size"],
            at["start"],
            comment_len,
        )
        return out + self.comment + self.suffix


def torch_zip(data_pkl: bytes, storages: dict[str, bytes] | None = None) -> bytes:
    """A valid archive with this pickle."""
    return Zip(data_pkl, storages).bytes()


def around(*body: bytes, protocol: int = 2, storages: dict[str, bytes] | None = None) -> bytes:
    """A valid archive with a pickle of this body."""
    return torch_zip(pickle(*body, protocol=protocol), storages)
