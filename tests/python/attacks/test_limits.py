"""Every limit: a small file that exceeds the lowered limit, and the error, which names the limit and its override."""

import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from attacks.pickles import (
    NONE,
    SIX,
    get,
    integer,
    listed,
    many,
    mapped,
    name,
    named,
    pickle,
    put,
    tensor,
    text,
)
from attacks.streams import info, safetensors
from attacks.zips import Zip, around
from ranged import Ranges

import rustload
from rustload import _rustload


def opened(limits, path: Path) -> None:
    rustload.open(path, limits=limits)


def exported(limits, path: Path) -> None:
    rustload.open(path, limits=limits).objects  # noqa: B018 - must fail


def read(limits, path: Path) -> None:
    rustload.open(path, limits=limits, framework="dlpack")["w"].materialize(copy=True)


def deep(levels: int) -> bytes:
    return b"]" * levels + b"a" * (levels - 1)


def index(folder: Path) -> Path:
    (folder / "a.safetensors").write_bytes(safetensors({"w": info("F32", [2, 3], 0, 24)}, SIX))
    path = folder / "model.safetensors.index.json"
    path.write_text(json.dumps({"weight_map": {"w": "a.safetensors"}}))
    return path


EXPANDED = around(named({"w": tensor((1000,), (0,))}))
EXCEEDING: dict[str, tuple[int, bytes | Callable[[Path], Path], Callable]] = {
    "pickle_bytes": (100, around(text("x" * 200)), opened),
    "nodes": (10, around(listed(*(integer(1000 + number) for number in range(300)))), opened),
    "stack": (10, around(b"(" + NONE * 20 + b"t"), opened),
    "marks": (3, around(b"((((" + NONE + b"tttt"), opened),
    "memo": (2, around(b"]" + put(0) + put(1) + put(2)), opened),
    "line": (10, around(name("a.long.module.indeed")), opened),
    "dotted": (2, around(b"\x8c\1m\x8c\5a.b.c\x93", protocol=4), opened),
    "int_bytes": (10, around(b"\x8a\x0b" + b"\1" * 11), opened),
    "int_digits": (10, around(b"L" + b"1" * 20 + b"L\n"), opened),
    "depth": (10, around(deep(12)), exported),
    "key_depth": (2, around(mapped((many(many(many(integer(1)))), NONE))), opened),
    "key_nodes": (4, around(mapped((many(*(integer(n) for n in range(9))), NONE))), opened),
    "export_nodes": (10, around(listed(*(b"]" for _ in range(20)))), exported),
    "export_bytes": (1000, around(listed(*(b"]" for _ in range(20)))), exported),
    "name_bytes_total": (100, around(named({"k" * 200: tensor()})), opened),
    "tensors": (2, around(listed(tensor() + put(0), get(0), get(0))), opened),
    "rank": (3, around(tensor((1, 1, 1, 1))), opened),
    "entries": (3, Zip().bytes(), opened),
    "directory_bytes": (100, Zip().bytes(), opened),
    "inflate_bytes": (100, Zip(pickle(text("x" * 300))).spoil("data.pkl", method=8).bytes(), opened),
    "header_bytes": (10, safetensors({"w": info("F32", [2, 3], 0, 24)}, SIX), opened),
    "index_bytes": (10, index, opened),
    "materialize_bytes": (100, EXPANDED, read),
}
REPORTED_OTHERWISE = {
    # torch writes no longer name, so the code is ZipName, and the message states the limit.
    "name_bytes": lambda path: rustload.open(path, limits=rustload.Limits(name_bytes=5)),
    # The larger of two limits applies; the error names the one in bytes.
    "materialize_ratio": lambda path: read(rustload.Limits(materialize_ratio=1, materialize_bytes=1), path),
    # Not of the file but of this machine; 0 is what was measured.
    "available_memory": lambda path: read(rustload.Limits(available_memory=1), path),
    # It has an error code of its own.
    "inflate_ratio": lambda path: opened(rustload.Limits(inflate_ratio=10), path),
}


def nested() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("inner.pt", around(named({"w": tensor()})))
    return out.getvalue()


# A scan continues past an exceeded limit, and reports what it did not scan.
SCANS: dict[str, tuple[int, bytes]] = {
    "scan_depth": (0, nested()),
    "scan_bytes": (10, nested()),
    "findings": (1, around(listed(*(name(f"a{number}.b") for number in range(5))), storages={})),
    "report_bytes": (1000, around(listed(*(name(f"a{number}.b") for number in range(5))), storages={})),
}


# What opening a remote file fetches: its pickle is larger than the first block.
REMOTE = {"remote_requests": 1, "remote_bytes": 1000}
FETCHED = around(text("x" * 300_000), storages={})


def test_every_limit_has_a_case():
    assert {name for name, _, _ in _rustload.LIMITS} == (
        EXCEEDING.keys() | REPORTED_OTHERWISE.keys() | SCANS.keys() | REMOTE.keys()
    )


@pytest.mark.parametrize("limit", REMOTE)
def test_what_is_fetched_of_a_remote_file_is_limited(limit):
    limits = rustload.Limits(**{limit: REMOTE[limit]})
    with pytest.raises(rustload.LimitError) as caught:
        rustload.open(Ranges(FETCHED), limits=limits)
    error = caught.value
    assert (error.code, error.name, error.limit) == ("Limit", limit, REMOTE[limit])
    assert error.found > error.limit
    assert f"limits=rustload.Limits({limit}=...)" in error.__notes__[0]
    assert rustload.open(Ranges(FETCHED)).objects == "x" * 300_000
    report = rustload.scan(Ranges(FETCHED), limits=limits)
    assert report.verdict == "unknown"
    assert not report.complete
    assert rustload.scan(Ranges(FETCHED)).verdict == "inert"
    # Bytes in memory are not fetched.
    assert rustload.open(bytearray(FETCHED), limits=limits).objects == "x" * 300_000


@pytest.mark.parametrize("limit", SCANS)
def test_a_scan_that_exceeds_a_limit_reports_what_it_skipped(limit):
    lowered, data = SCANS[limit]
    whole = rustload.scan(bytearray(data)).files[0]
    cut = rustload.scan(bytearray(data), limits=rustload.Limits(**{limit: lowered})).files[0]
    assert whole.coverage.complete
    assert not whole.coverage.truncated
    if limit in ("findings", "report_bytes"):
        assert cut.coverage.truncated
        assert cut.verdict == whole.verdict
        assert len(cut.findings) == 1 < len(whole.findings)
    else:
        assert not cut.coverage.complete
        assert [missing.member for missing in cut.coverage.unscanned] == ["inner.pt"]
        assert cut.verdict != "inert"


@pytest.mark.parametrize("limit", EXCEEDING)
def test_a_limit_error_names_its_override_and_the_default_accepts_the_file(limit, tmp_path):
    lowered, content, use = EXCEEDING[limit]
    if callable(content):
        path = content(tmp_path)
    else:
        path = tmp_path / "model.bin"
        path.write_bytes(content)
    with pytest.raises(rustload.LimitError) as caught:
        use(rustload.Limits(**{limit: lowered}), path)
    error = caught.value
    assert (error.code, error.name) == ("Limit", limit)
    assert error.found > error.limit
    assert f"limit {limit} exceeded" in str(error)
    assert f"limits=rustload.Limits({limit}=...)" in error.__notes__[0]
    use(rustload.Limits(), path)
    assert next(what for name, _, what in _rustload.LIMITS if name == limit)


def test_limits_that_are_reported_by_another_error(tmp_path):
    path = tmp_path / "model.bin"
    path.write_bytes(EXPANDED)
    with pytest.raises(rustload.FormatError, match="name_bytes is 5") as caught:
        REPORTED_OTHERWISE["name_bytes"](path)
    assert caught.value.code == "ZipName"
    with pytest.raises(rustload.LimitError) as caught:
        REPORTED_OTHERWISE["materialize_ratio"](path)
    assert caught.value.name == "materialize_bytes"
    large = path.with_name("large.pt")
    torch.save({"w": torch.zeros(20 << 20)}, large)
    with pytest.raises(rustload.NotEnoughMemoryError) as missing:
        REPORTED_OTHERWISE["available_memory"](large)
    assert (missing.value.code, missing.value.available) == ("NotEnoughMemory", 1)
    path.write_bytes(Zip(pickle(listed(*[text("x" * 1000)] * 20_000))).spoil("data.pkl", method=8).bytes())
    with pytest.raises(rustload.LimitError) as caught:
        REPORTED_OTHERWISE["inflate_ratio"](path)
    error = caught.value
    assert (error.code, error.name, error.limit) == ("InflateRatio", "inflate_ratio", 10)
    assert error.found > error.limit
    assert "limits=rustload.Limits(inflate_ratio=...)" in error.__notes__[0]
    opened(rustload.Limits(inflate_ratio=2000), path)
