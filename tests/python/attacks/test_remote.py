"""Archives behind an object that is read by ranges, as those behind a URL are.

Local headers are verified together with the bytes that follow them, and with the same outcome as those of a file.
"""

from typing import Any

import pytest
from attacks import CASES
from attacks.registry import Shown
from attacks.z_zip import local
from attacks.zips import Zip
from ranged import Ranges

import rustload

ARCHIVES = [
    case for case in CASES if case.id[0] == "Z" and not case.placed and not isinstance(case.load, Shown)
]


def outcome(source: Any, case_options: dict[str, Any], name: str) -> list[str]:
    """What opening, and reading each tensor by itself, a row of it and in a stream comes to."""
    options = dict(case_options)
    if "limits" in options:
        options["limits"] = rustload.Limits(**options["limits"])
    out = []

    def add(what: str, read: Any) -> Any:
        try:
            return read()
        except (rustload.RustloadError, OSError, ValueError, MemoryError) as error:
            out.append(
                f"{what}: {getattr(error, 'code', type(error).__name__)}: {error}".replace(name, "FILE")
            )

    def elements(tensor: Any) -> None:
        out.append(tensor.materialize(copy=True, framework="dlpack").tobytes().hex()[:64])

    ckpt = add("open", lambda: rustload.open(source, **options))
    for tensor in list(ckpt.values())[:20] if ckpt else []:
        add("row", lambda tensor=tensor: elements(tensor[:1]))
        add("read", lambda tensor=tensor: elements(tensor))
    if ckpt:
        add("stream", lambda: [name for name, _ in ckpt.stream(copy=True, framework="dlpack")])
    return out


@pytest.mark.parametrize("case", ARCHIVES, ids=lambda case: case.label)
def test_an_archive_read_by_ranges_has_the_outcome_of_a_file(case, tmp_path):
    path = case.input(tmp_path)
    found = outcome(Ranges(path.read_bytes()), case.options, Ranges.name)
    assert found == outcome(path, case.options, str(path))


@pytest.mark.parametrize(
    "field", [{"crc": 1}, {"name": b"archive/data/1"}, {"method": 8}, {"extra": b"\1\0\0\0"}]
)
def test_no_byte_is_given_out_before_its_local_header_is_verified(field):
    ckpt = rustload.open(Ranges(local("data/0", **field)()))
    for read in (
        lambda: ckpt["w"].materialize(framework="numpy"),
        lambda: ckpt["w"][1:2].materialize(framework="numpy"),
        lambda: dict(ckpt.stream(framework="numpy")),
        lambda: ckpt["w"].materialize(framework="numpy"),
    ):
        with pytest.raises(rustload.FormatError) as caught:
            read()
        assert caught.value.code == "ZipMismatch"


def test_a_scan_by_ranges_has_the_findings_of_a_scan_of_the_bytes():
    for data in (Zip().bytes(), local("data/0", crc=1)(), local("data/0", extra=bytes(9000))()):
        ranges, whole = rustload.scan(Ranges(data)), rustload.scan(data)
        codes = [[(found.code, found.message) for found in report.findings] for report in (ranges, whole)]
        assert (ranges.verdict, codes[0]) == (whole.verdict, codes[1])
