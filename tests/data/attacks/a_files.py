"""A: files, and the detection of their format."""

import gzip
import lzma
import os
from pathlib import Path

from attacks.pickles import SIX, SYSTEM, pickle
from attacks.registry import Kept, Opens, Refused, family, shown
from attacks.streams import info, legacy, safetensors, tar
from attacks.zips import Zip


def holds(*names: str, format: str = "torch-zip"):  # noqa: A002 - the property's name
    """Opens as this format with these names."""

    def check(ckpt) -> None:
        assert list(ckpt) == list(names)
        assert ckpt.format == format

    return Opens(f"opens as {format}", check)


def six(ckpt) -> None:
    """`w` is the six floats."""
    assert list(ckpt) == ["w"]
    assert ckpt["w"].materialize(framework="dlpack").tobytes() == SIX


unknown = Refused("UnknownFormat")

family("A01", "an empty file", b"", unknown, verdict=None)
family("A02", "one to three bytes", {"1": b"P", "2": b"PK", "3": b"PK\3"}, unknown)


def folder_without_checkpoint(folder: Path) -> Path:
    (folder / "A03").mkdir(exist_ok=True)
    (folder / "A03" / "config.json").write_text("{}")
    return folder / "A03"


def pipe(folder: Path) -> Path:
    path = folder / "pipe.bin"
    if not path.exists():
        os.mkfifo(path)
    return path


def dangling(folder: Path) -> Path:
    path = folder / "link.bin"
    path.unlink(missing_ok=True)
    path.symlink_to(folder / "gone.bin")
    return path


irregular = Refused("NotRegularFile")
family("A03", "a directory with no checkpoint in it", folder_without_checkpoint, unknown, "", placed=True)
family("A04", "a pipe", pipe, irregular, placed=True)
family("A05", "`/dev/zero`", lambda _: Path("/dev/zero"), irregular, placed=True)
family(
    "A06", "a file of `/proc`, whose size is 0", lambda _: Path("/proc/self/status"), irregular, placed=True
)
family("A07", "a dangling symbolic link", dangling, Refused("Io"), placed=True)

family(
    "A08",
    "a legacy stream with a zip archive appended",
    lambda: legacy() + Zip().bytes(),
    Refused("TrailingData"),
    "Polyglot",
)
family("A09", "bytes before a zip archive", {
    "junk": lambda: b"#!/bin/sh\n" + Zip().bytes(),
    "pickle": lambda: pickle(SYSTEM) + Zip().bytes(),
    "offsets_moved": lambda: Zip().with_(prefix=b"junk").bytes(),
}, {"junk": Refused("ZipPrefix"), "pickle": Refused("TrailingData"), "offsets_moved": Refused("ZipPrefix")}, "ZipPrefix")  # fmt: skip
family(
    "A10",
    "a zip archive that starts with an end record",
    {"then_an_archive": lambda: Zip(pickle(SYSTEM)).with_(prefix=b"PK\5\6" + bytes(18)).bytes()},
    Refused("ZipStructure"),
)
family("A10", "", {"empty": b"PK\5\6" + bytes(18)}, Refused("ZipStructure"), verdict="inert")
family(
    "A11",
    "a zip archive that starts with a split marker",
    lambda: Zip().with_(prefix=b"PK\7\x08").bytes(),
    Refused("ZipStructure"),
)

opaque = Refused("UnsupportedContainer")
family("A12", "an archive of another kind", {
    "7z": b"7z\xbc\xaf\x27\x1c" + bytes(100),
    "rar": b"Rar!\x1a\x07\1\0" + bytes(100),
    "xz": lambda: lzma.compress(Zip().bytes()),
    "zstd": b"\x28\xb5\x2f\xfd" + bytes(100),
}, opaque, "OpaqueContainer")  # fmt: skip
family("A12", "", {"gz": lambda: gzip.compress(Zip().bytes(), mtime=0)}, opaque, verdict="inert")

family(
    "A13", "a tar archive of torch 0.1", tar, Opens("opens as torch-tar", list), verdict="inert", suffix=".pt"
)
family(
    "A13",
    "",
    {"call": lambda: tar({"pickle": pickle(SYSTEM)})},
    Kept("posix.system", "DisallowedGlobal"),
    runs=("posix.system",),
    suffix=".pt",
)


def plain_safetensors() -> bytes:
    return safetensors({"w": info("F32", [2, 3], 0, 24)}, SIX)


family(
    "A14",
    "a safetensors file named `.pt`",
    plain_safetensors,
    holds("w", format="safetensors"),
    "ExtensionMismatch",
    suffix=".pt",
)
family(
    "A15",
    "a torch archive named `.safetensors`",
    lambda: Zip().bytes(),
    holds("w"),
    "ExtensionMismatch",
    suffix=".safetensors",
)
family("A16", "a saved web page or a Git LFS pointer", {
    "html": b"<!DOCTYPE html><html><body>Not found</body></html>",
    "lfs": b"version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 12345\n",
}, unknown)  # fmt: skip

shown("A17", "a valid file truncated at every byte, or with any bit flipped", "an error, or a result that breaks no promise; never a panic",
      "test_boundary.py::test_a17_a_file_truncated_at_any_byte_is_an_error")  # fmt: skip
shown(
    "A17",
    "",
    "an error, or a result that breaks no promise; never a panic",
    "test_boundary.py::test_a17_a_flipped_bit_is_never_an_internal_error",
)
shown("A18", "a file that grows, shrinks or is replaced after opening", "owned results: `FileChanged`, never SIGBUS",
      "tests/python/test_lifetime.py::test_a_result_of_a_changed_file_is_file_changed")  # fmt: skip
shown(
    "A19",
    "a pipe beside a checkpoint, where a configuration, the Hub's metadata or a plan is looked for",
    "passed over, or `NotRegularFile`; no hang",
    "tests/python/test_irregular_files.py::test_no_command_waits_for_a_pipe",
)
