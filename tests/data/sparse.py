"""Writes large checkpoints as sparse files, which take almost no disk space: a few values with holes in between.

The archive has the headers that torch's writer makes, past 4 GiB too: a record of 4 GiB or more has a zip64 extra with its
sizes in its local header, one that starts past 4 GiB has one with its header's offset; either makes the data descriptor 24
bytes long. The central directory has sentinels and a zip64 extra for exactly the fields that do not fit. All checksums are
zero, as with `torch.serialization.set_crc32_options(False)`.

Used by the tests; by hand: python tests/data/sparse.py OUT.bin OUT.safetensors
"""

import collections
import io
import json
import pickle
import struct
import sys
from pathlib import Path
from typing import Any

import torch
import torch._utils

FULL = 0xFFFFFFFF
GIB = 1 << 30
# Name, float32 elements. `early` is larger than 4 GiB and starts below, `late` is larger and starts past it, `odd` and `tail`
# are small and start past it.
TENSORS = {
    "first": 1000,
    "early": 6 * GIB // 4,
    "late": 5 * GIB // 4,
    "odd": 777,
    "middle": 3 * GIB // 4 + 5,
    "huge": 25 * GIB // 4,
    "tail": 12,
}


def planted(name: str) -> list[tuple[int, bytes]]:
    """The values of a tensor, as pairs of element index and bytes: at its start, in its middle and at its end."""
    count = TENSORS[name]
    return [(at, struct.pack("<f", 1.0 + at % 1000)) for at in (0, count // 2, count - 1)]


class _Storage:
    def __init__(self, key: str, count: int) -> None:
        self.key, self.count = key, count


class _Tensor:
    def __init__(self, storage: _Storage) -> None:
        self.storage = storage

    def __reduce__(self) -> Any:
        count = self.storage.count
        args = (self.storage, 0, (count,), (1,), False, collections.OrderedDict())
        return torch._utils._rebuild_tensor_v2, args


class _Pickler(pickle.Pickler):
    def persistent_id(self, obj: Any) -> Any:
        if isinstance(obj, _Storage):
            return ("storage", torch.FloatStorage, obj.key, "cpu", obj.count)
        return None


def write_archive(path: Path) -> None:
    """A torch archive of `TENSORS`."""
    root = path.stem
    data_pkl = io.BytesIO()
    storages = {name: _Storage(str(key), count) for key, (name, count) in enumerate(TENSORS.items())}
    _Pickler(data_pkl, 2).dump({name: _Tensor(storage) for name, storage in storages.items()})
    directory = []
    with path.open("wb") as file:

        def record(name: str, size: int, pieces: list[tuple[int, bytes]]) -> None:
            start = file.tell()
            encoded = f"{root}/{name}".encode()
            large, far = size >= FULL, start >= FULL
            extra = b""
            if large or far:
                values = [size, size] * large + [start] * far
                extra = struct.pack(f"<HH{len(values)}Q", 1, 8 * len(values), *values)
            end = start + 30 + len(encoded) + len(extra) + 4
            padding = -end % 64
            extra += struct.pack("<HH", 0x4246, padding) + b"Z" * padding
            file.write(
                struct.pack("<IHHHHHIIIHH", 0x04034B50, 0, 0x808, 0, 0, 0, 0, 0, 0, len(encoded), len(extra))
            )
            file.write(encoded + extra)
            payload = file.tell()
            assert payload % 64 == 0
            for at, data in pieces:
                file.seek(payload + at)
                file.write(data)
            file.seek(payload + size)
            file.write(struct.pack("<IIQQ" if large or far else "<IIII", 0x08074B50, 0, size, size))
            values = [size, size] * large + [start] * far
            extra = struct.pack(f"<HH{len(values)}Q", 1, 8 * len(values), *values) if values else b""
            shown = FULL if large else size
            entry = (0x02014B50, 0, 0, 0x808, 0, 0, 0, 0, shown, shown, len(encoded), len(extra), 0, 0, 0, 0)
            directory.append(
                struct.pack("<IHHHHHHIIIHHHHHII", *entry, FULL if far else start) + encoded + extra
            )

        record("data.pkl", len(data_pkl.getvalue()), [(0, data_pkl.getvalue())])
        record(".format_version", 1, [(0, b"1")])
        record(".storage_alignment", 2, [(0, b"64")])
        record("byteorder", 6, [(0, b"little")])
        for name, storage in storages.items():
            record(f"data/{storage.key}", 4 * storage.count, [(4 * at, data) for at, data in planted(name)])
        record("version", 2, [(0, b"3\n")])
        record(".data/serialization_id", 40, [(0, b"0" * 40)])
        start = file.tell()
        file.write(b"".join(directory))
        size, count = file.tell() - start, len(directory)
        end = file.tell()
        file.write(struct.pack("<IQHHIIQQQQ", 0x06064B50, 44, 0, 45, 0, 0, count, count, size, start))
        file.write(struct.pack("<IIQI", 0x07064B50, 0, end, 1))
        file.write(struct.pack("<IHHHHIIH", 0x06054B50, 0, 0, count, count, size, FULL, 0))


def write_safetensors(path: Path) -> None:
    """A safetensors file of `TENSORS`."""
    header, at = {}, 0
    for name, count in TENSORS.items():
        header[name] = {"dtype": "F32", "shape": [count], "data_offsets": [at, at + 4 * count]}
        at += 4 * count
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name in TENSORS:
            for element, data in planted(name):
                file.seek(8 + len(text) + header[name]["data_offsets"][0] + 4 * element)
                file.write(data)
        file.truncate(8 + len(text) + at)


if __name__ == "__main__":
    write_archive(Path(sys.argv[1]))
    write_safetensors(Path(sys.argv[2]))
