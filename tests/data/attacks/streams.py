"""Writers of the other formats: legacy streams, torch 0.1's tar files, safetensors, and exported programs (.pt2)."""

import json
import struct
from typing import Any

from attacks.pickles import SIX, integer, legacy_storage, listed, many, name, named, pickle, tensor, text
from attacks.zips import Member, Zip

MAGIC = pickle(b"\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19")
SYSTEM_INFO = pickle(
    named({"protocol_version": integer(1001), "little_endian": b"\x88", "type_sizes": named({})})
)
W = pickle(named({"w": tensor(on=legacy_storage())}))


def block(numel: int, data: bytes) -> bytes:
    """A storage of a legacy stream."""
    return struct.pack("<q", numel) + data


def legacy(
    obj: bytes = W,
    keys: bytes | None = None,
    data: bytes | None = None,
    *,
    magic: bytes = MAGIC,
    version: bytes | None = None,
    system: bytes = SYSTEM_INFO,
) -> bytes:
    """A legacy stream; by default with one storage of six floats."""
    version = pickle(integer(1001)) if version is None else version
    keys = pickle(listed(text("0"))) if keys is None else keys
    return magic + version + system + obj + keys + (block(6, SIX) if data is None else data)


def safetensors(header: bytes | dict[str, Any], data: bytes = b"", *, length: int | None = None) -> bytes:
    if isinstance(header, dict):
        header = json.dumps(header).encode()
        header += b" " * (-len(header) % 8)
    return struct.pack("<Q", len(header) if length is None else length) + header + data


def info(dtype: str, shape: list[Any], begin: int, end: int, **more: Any) -> dict[str, Any]:
    """A tensor's entry in a safetensors header."""
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end], **more}


# Tar, as torch 0.1 wrote it: `sys_info`, `pickle`, `tensors`, `storages`.


def tar_header(
    path: str, size: int, *, kind: bytes = b"0", link: str = "", checksum: int | None = None
) -> bytes:
    """POSIX ustar."""
    fields = struct.pack(
        "100s8s8s8s12s12s8sc100s6s2s32s32s8s8s155s12x", path.encode(), b"0000644\0", b"0000000\0", b"0000000\0",
        f"{size:011o}\0".encode(), b"00000000000\0", b" " * 8, kind, link.encode(), b"ustar\0", b"00", b"", b"",
        b"0000000\0", b"0000000\0", b"",
    )  # fmt: skip
    total = sum(fields) if checksum is None else checksum
    return fields[:148] + f"{total:06o}\0 ".encode() + fields[156:]


def tar_member(path: str, data: bytes, **more: Any) -> bytes:
    stated = more.pop("size", len(data))
    return tar_header(path, stated, **more) + data + bytes(-len(data) % 512)


def tar_storages(count: int = 1, views: bytes | None = None) -> bytes:
    entry = pickle(many(integer(1), text("cpu"), name("torch.FloatStorage"))) + block(6, SIX)
    return pickle(integer(count)) + entry + (pickle(listed()) if views is None else views)


def tar_tensors(count: int = 1, *, dims: int = 1, storage: int = 1) -> bytes:
    entry = pickle(many(integer(2), integer(storage), name("torch.FloatTensor")))
    return pickle(integer(count)) + entry + struct.pack("<ixxxxqqq", dims, 6, 1, 0)


TAR_PARTS = {
    "sys_info": SYSTEM_INFO,
    "pickle": pickle(named({"w": b"P2\n"})),
    "tensors": tar_tensors(),
    "storages": tar_storages(),
}
TAR_END = bytes(1024)


def tar(parts: dict[str, bytes] | None = None, before: bytes = b"", after: bytes = b"") -> bytes:
    """A tar file of torch 0.1's four members, with members before and after them."""
    members = (TAR_PARTS | (parts or {})).items()
    return before + b"".join(tar_member(path, data) for path, data in members) + after + TAR_END


# .pt2, as torch.export.save writes it.


def pt2(sample_inputs: bytes) -> bytes:
    """An exported program whose sample inputs are a nested torch archive."""
    out = Zip()
    config = json.dumps({"config": {}})
    out.members = [
        Member(f"program/{path}".encode(), data)
        for path, data in {
            "archive_format": b"pt2",
            "archive_version": b"0",
            "models/model.json": b"{}",
            "data/weights/model_weights_config.json": config.encode(),
            "data/constants/model_constants_config.json": config.encode(),
            "data/sample_inputs/model.pt": sample_inputs,
            "byteorder": b"little",
            ".data/version": b"6",
        }.items()
    ]
    return out.bytes()
