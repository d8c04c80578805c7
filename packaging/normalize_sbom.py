"""Removes the path of the checkout from the SBOM of a wheel, which maturin takes from cargo: `normalize_sbom.py WHEEL CHECKOUT`.

Two builds in different folders differ in nothing else. All other entries are copied as they are, packed bytes included. The SBOM
and RECORD, which has its hash, are stored unpacked, so that the bytes do not depend on the zlib of this Python.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import shutil
import struct
import sys
import zipfile
from pathlib import Path
from urllib.parse import quote

PLACEHOLDER = "path+file:///rustload"
"""What refers to the crate in place of its folder; identifiers of a CycloneDX document need only be unique in it."""

LOCAL_HEADER = struct.Struct("<26xHH")
"""The lengths of name and extra field in a local file header (APPNOTE 4.3.7)."""


def normalize(wheel: Path, checkout: str) -> None:
    """Rewrites `wheel` in place."""
    part = wheel.with_suffix(".part")
    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(part, "w") as target:
        changed = {}
        for info in source.infolist():
            if ".dist-info/sboms/" in info.filename:
                changed[info.filename] = without_path(source.read(info).decode(), checkout).encode()
        for info in source.infolist():
            if info.filename.endswith(".dist-info/RECORD"):
                changed[info.filename] = record(source.read(info).decode(), changed).encode()
        for info in source.infolist():
            if info.filename in changed:
                store(target, info, changed[info.filename])
            else:
                copy(source, target, info)
    shutil.move(part, wheel)


def without_path(sbom: str, checkout: str) -> str:
    """The SBOM with a placeholder for the folder of the checkout."""
    for path in {checkout, quote(checkout)}:
        sbom = sbom.replace(f"path+file://{path}", PLACEHOLDER)
    if checkout in sbom:
        raise SystemExit(f"the SBOM still contains {checkout}")
    return sbom


def record(text: str, changed: dict[str, bytes]) -> str:
    """RECORD with the hashes and sizes of changed files."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    for name, digest, size in csv.reader(io.StringIO(text)):
        content = changed.get(name)
        if content is None:
            writer.writerow((name, digest, size))
        else:
            hashed = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=")
            writer.writerow((name, f"sha256={hashed.decode()}", len(content)))
    return out.getvalue()


def store(target: zipfile.ZipFile, info: zipfile.ZipInfo, content: bytes) -> None:
    """Adds an entry, unpacked, with the time and mode of `info`."""
    entry = zipfile.ZipInfo(info.filename, info.date_time)
    entry.external_attr = info.external_attr
    entry.create_system = info.create_system
    target.writestr(entry, content)


def copy(source: zipfile.ZipFile, target: zipfile.ZipFile, info: zipfile.ZipInfo) -> None:
    """Adds an entry with its packed bytes as they are."""
    assert source.fp is not None
    assert target.fp is not None
    source.fp.seek(info.header_offset)
    name, extra = LOCAL_HEADER.unpack(source.fp.read(LOCAL_HEADER.size))
    source.fp.seek(info.header_offset)
    whole = source.fp.read(LOCAL_HEADER.size + name + extra + info.compress_size)
    if info.flag_bits & 8:
        raise SystemExit(f"{info.filename} has its sizes after its data")
    info.header_offset = target.fp.tell()
    target.fp.write(whole)
    target.filelist.append(info)
    target.NameToInfo[info.filename] = info
    target.start_dir = target.fp.tell()
    target._didModify = True  # type: ignore[attr-defined]  # zipfile has no method for this


if __name__ == "__main__":
    normalize(Path(sys.argv[1]), sys.argv[2])
