"""`rustload.scan`: verdicts, findings, trace, the formats that are scanned, bounds, and that nothing is executed."""

import argparse
import bz2
import collections
import contextlib
import enum
import functools
import gzip
import io
import json
import lzma
import os
import pickle
import signal
import struct
import tarfile
import tempfile
import threading
import time
import warnings
import zipfile
import zlib
import zoneinfo
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
import torch
from attacks import pickles as asm
from attacks.zips import GOOD
from support import Reduced, child, safetensors_bytes, saved

import rustload

CALL = b"cposix\nsystem\n(S'x'\ntR"
UNKNOWN = b"csomelib.models\nNet\n)\x81"


def stored(members: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return file.getvalue()


def checkpoint(data_pkl: bytes, **members: bytes) -> bytes:
    rest = {f"archive/{name}": data for name, data in members.items()}
    return stored({"archive/data.pkl": data_pkl, "archive/version": b"3\n", **rest})


def codes(report: rustload.ScanReport) -> set[str]:
    return {found.code for found in report.findings}


EVIL = Reduced(os.system, ("echo executed",))


def loads(data: bytes) -> Reduced:
    """Bytes that unpickling hands to `pickle.loads`."""
    return Reduced(pickle.loads, (data,))


class Color(enum.Enum):
    RED = 1


class TestVerdicts:
    @pytest.mark.parametrize(
        ("data", "verdict"),
        [
            (b"\x80\x02}q\x00.", "inert"),
            (pickle.dumps(collections.OrderedDict(a=1)), "inert"),
            (pickle.dumps(np.arange(3)), "inert"),
            (b"\x80\x02" + UNKNOWN + b".", "unknown"),
            (pickle.dumps(argparse.Namespace(a=1)), "inert"),
            (CALL + b".", "would execute"),
            (b"(S'x'\niposix\nsystem\n.", "would execute"),
            (b"(cposix\nsystem\nS'x'\no.", "would execute"),
            (CALL + b"0N.", "would execute"),
            (CALL, "would execute"),
            (CALL + b"\xff", "would execute"),
            (b"c__builtin__\neval\n(S'1'\ntR.", "would execute"),
            (b"cnt\nsystem\n(S'x'\ntR.", "would execute"),
            (b"ccommands\ngetoutput\n(S'x'\ntR.", "would execute"),
            (b"csomelib\nmake\n)R)R.", "would execute"),
            (b"cfunctools\npartial\n(cposix\nsystem\nS'x'\ntR.", "would execute"),
            (b"cfunctools\npartial\n(csomelib\nf\ntR.", "unknown"),
            (b"c__builtin__\ngetattr\n(csomelib\nColor\nS'RED'\ntR.", "unknown"),
            (b"c__builtin__\ngetattr\n(csomelib\nColor\nS'RED'\ntR)R.", "would execute"),
            (b"c__builtin__\ngetattr\n(cos\nenviron\nS'x'\ntR.", "would execute"),
            (b"c__builtin__\ngetattr\n(" + UNKNOWN + b"S'forward'\ntR.", "unknown"),
            (b"c__builtin__\ngetattr\n(" + UNKNOWN + b"S'forward'\ntR)R.", "would execute"),
            (b"c__builtin__\ngetattr\n(" + UNKNOWN + b"S'__class__'\ntR.", "would execute"),
            (b"c__builtin__\ngetattr\n(" + UNKNOWN + b"S'system'\ntR.", "would execute"),
            (b"c__builtin__\ngetattr\n(csomelib\nmake\n)RS'x'\ntR.", "would execute"),
            (b"c__builtin__\ngetattr\n(ctorch\nhub\nS'download_url_to_file'\ntR.", "would execute"),
            (b"c__builtin__\ngetattr\n(]S'remove'\ntR.", "unknown"),
            (b"c__builtin__\ngetattr\n(cre\n_compile\n(S'a'\nI0\ntRS'search'\ntR.", "unknown"),
            (b"c__builtin__\ntype\n(NtR.", "inert"),
            (b"c__builtin__\ntype\n(c__builtin__\nEllipsis\ntR.", "inert"),
            (b"c__builtin__\ntype\n(NtR)R.", "would execute"),
            (b"c__builtin__\ntype\n(I1\ntR.", "would execute"),
            (
                b"c_functools\nreduce\n(c_operator\nor_\n(c__builtin__\nint\nc__builtin__\nstr\nttR.",
                "unknown",
            ),
            (b"c_functools\nreduce\n(c_operator\nor_\n(cposix\nsystem\nttR.", "would execute"),
            (b"c_functools\nreduce\n(c_operator\nand_\n(NtR.", "would execute"),
            (b"c_operator\nitemgetter\n(S'x'\ntR.", "unknown"),
            (b"c_operator\nitemgetter\n(cposix\nsystem\ntR.", "would execute"),
            (b"(" + UNKNOWN + b"cinspect\n_empty\nl.", "unknown"),
            (b"(" + UNKNOWN + b"cbuiltins\nprint\nl.", "unknown"),
            (pickle.dumps(zoneinfo.ZoneInfo("UTC")), "unknown"),
            (b"csomelib\nf\n}b.", "would execute"),
        ],
    )
    def test_each_verdict(self, data, verdict):
        assert rustload.scan(data).verdict == verdict

    def test_reports_are_equal_by_value_and_have_no_truth(self):
        data = b"cnt\nsystem\n(S'x'\ntR."
        one, two, other = rustload.scan(data), rustload.scan(data), rustload.scan(b"N.")
        assert one == two
        assert one != other
        assert one.files == two.files
        assert one.files[0] != one
        assert len({one, two, other, *one.files}) == 3
        for report in (one, other, one.files[0]):
            with pytest.raises(TypeError, match=r"a (Scan|File)Report has no truth value: use \.passes"):
                bool(report)

    def test_a_verdict_is_the_worst_of_the_findings_and_severity_follows_it(self):
        report = rustload.scan(b"\x80\x02(" + UNKNOWN + CALL + b"l.")
        assert {found.verdict: found.severity for found in report.findings} == {
            "unknown": "warning",
            "would execute": "error",
        }
        assert report.verdict == "would execute"

    def test_an_unknown_class_is_one_finding_with_a_count(self):
        report = rustload.scan(b"\x80\x02(" + UNKNOWN * 5 + b"l.")
        [found] = report.findings
        assert (found.code, found.module, found.name, found.times) == (
            "DisallowedGlobal",
            "somelib.models",
            "Net",
            5,
        )
        assert found.offset == report.trace[1].offset
        assert [named.calls for named in report.globals] == [5]

    def test_the_text_for_an_unknown_class_does_not_call_it_malicious(self):
        text = str(rustload.scan(b"\x80\x02" + UNKNOWN + b"."))
        assert not any(word in text.lower() for word in ("malicious", "dangerous", "safe", "attack"))


class TestTrace:
    def test_the_trace_has_calls_in_program_order_with_offset_and_arguments(self):
        data = b"\x80\x02(" + CALL + b"cos\ngetcwd\n)R" + UNKNOWN + b"l."
        report = rustload.scan(data)
        steps = [(step.effect, f"{step.module}.{step.name}", step.arguments) for step in report.trace]
        assert steps == [
            ("import", "posix.system", ""),
            ("call", "posix.system", "('x')"),
            ("import", "os.getcwd", ""),
            ("call", "os.getcwd", "()"),
            ("import", "somelib.models.Net", ""),
            ("call", "somelib.models.Net", "()"),
        ]
        call = report.trace[1]
        assert (call.opcode, data[call.offset : call.offset + 1]) == ("REDUCE", b"R")

    def test_known_calls_are_counted_and_not_in_the_trace(self):
        report = rustload.scan(saved({f"w{i}": torch.ones(2) for i in range(50)}))
        assert (report.verdict, report.trace) == ("inert", [])
        calls = {f"{named.module}.{named.name}": named.calls for named in report.globals}
        assert calls["torch._utils._rebuild_tensor_v2"] == 50
        assert calls["torch.FloatStorage"] == 0

    def test_long_arguments_are_abbreviated(self):
        data = b"cposix\nsystem\n(X" + struct.pack("<I", 10_000) + b"a" * 10_000 + b"tR."
        [step] = [step for step in rustload.scan(data).trace if step.effect == "call"]
        assert len(step.arguments) <= 256

    def test_build_is_a_setstate_in_the_trace(self):
        report = rustload.scan(b"\x80\x02" + UNKNOWN + b"}b.")
        assert [step.effect for step in report.trace] == ["import", "call", "setstate"]


class TestReaders:
    """A call that one reader refuses and another executes is found."""

    @pytest.mark.parametrize(
        ("data", "code"),
        [
            (b"cposix\nsystem\n]S'x'\naR.", "PickleType"),
            (b"\x80\x63" + CALL + b".", "PickleProto"),
            (b"I 5\n0" + CALL + b".", "AmbiguousNumber"),
            (b"N" + CALL + b".", "PickleStack"),
            (b"\x80\x04\x95\x01\0\0\0\0\0\0\0" + CALL + b".", "PickleFrame"),
            (b"\x82\x01" + CALL + b".", "ExtRegistry"),
            (b"\x97" + CALL + b".", "OutOfBand"),
            (b"N." + CALL + b".", "TrailingData"),
        ],
    )
    def test_the_defect_and_the_call_after_it_are_findings(self, data, code):
        report = rustload.scan(data)
        assert report.verdict == "would execute"
        assert code in codes(report)
        with pytest.raises(rustload.RustloadError) as caught:
            rustload.open(bytearray(data))
        assert caught.value.code in codes(report)

    def test_the_unpicklers_agree_about_arguments_that_are_no_tuple(self):
        # The finding says that pickle.py continues, and it does.
        data = b"ccollections\nOrderedDict\n]R."
        [found] = [found for found in rustload.scan(data).findings if found.code == "PickleType"]
        assert found.readers == ("python",)
        assert pickle._loads(data) == collections.OrderedDict()  # type: ignore[attr-defined]
        with pytest.raises(TypeError, match="must be a tuple"):
            pickle.loads(data)

    def test_a_frame_divergence_names_what_follows(self):
        report = rustload.scan(b"\x80\x04\x95\x01\0\0\0\0\0\0\0" + CALL + b".")
        [found] = [found for found in report.findings if found.code == "FrameDivergence"]
        assert "posix.system" in found.message

    def test_a_computed_name_would_execute(self):
        data = b"\x80\x04\x8c\x02osc_codecs\ndecode\n(S'flfgrz'\nS'rot13'\ntR\x93(S'x'\ntR."
        assert rustload.scan(data).verdict == "would execute"


COMPRESSED = {
    "7z": b"7z\xbc\xaf\x27\x1c" + bytes(100),
    "rar": b"Rar!\x1a\x07" + bytes(100),
    "zstd": b"\x28\xb5\x2f\xfd" + bytes(100),
    "lz4": b"\x04\x22\x4d\x18" + bytes(100),
    "xz": lzma.compress(CALL + b"."),
    "lzma": lzma.compress(CALL + b".", lzma.FORMAT_ALONE),
    "bzip2": bz2.compress(CALL + b"."),
}
INFLATED = {
    "gzip": gzip.compress(CALL + b".", mtime=0),
    **{f"zlib-{level}": zlib.compress(CALL + b".", level) for level in range(10)},
    "zlib, cut short": zlib.compress(CALL + b".")[:-4],
    "joblib zlib": b"ZF" + hex(len(CALL) + 1).ljust(19).encode() + zlib.compress(CALL + b"."),
}


class TestContainers:
    @pytest.mark.parametrize("legacy", [False, True])
    def test_zip_and_legacy_files_are_scanned(self, legacy):
        options = {"_use_new_zipfile_serialization": not legacy}
        assert rustload.scan(saved({"w": torch.ones(3)}, **options)).verdict == "inert"
        report = rustload.scan(saved({"w": torch.ones(3), "e": EVIL}, **options))
        [found] = report.findings
        assert (found.verdict, found.module, found.name, found.arguments) == (
            "would execute",
            "posix",
            "system",
            "('echo executed')",
        )
        assert found.member == ("object" if legacy else "archive/data.pkl")

    def test_names_of_local_headers_and_of_the_directory_are_scanned(self):
        data = checkpoint(CALL + b".")
        # The directory has another name, so that a reader of the directory does not take the member for the pickle.
        at = data.rindex(b"archive/data.pkl")
        report = rustload.scan(data[:at] + b"archive/data.txt" + data[at + 16 :])
        assert report.verdict == "would execute"
        assert "ZipMismatch" in codes(report)

    @pytest.mark.parametrize("where", ["before", "after"])
    def test_an_archive_with_junk_around_it_is_scanned(self, where):
        data = checkpoint(CALL + b".")
        report = rustload.scan(b"junk" * 9 + data if where == "before" else data + b"junk")
        assert report.verdict == "would execute"
        assert ("ZipPrefix" if where == "before" else "ZipTrailing") in codes(report)

    def test_members_outside_the_directory_are_scanned(self):
        hidden = checkpoint(CALL + b".")
        data = checkpoint(pickle.dumps({}))
        end = data.index(b"PK\x01\x02")
        local = hidden[: hidden.index(b"PK\x01\x02")]
        tail = bytearray(data[end:])
        struct.pack_into("<I", tail, len(tail) - 6, end + len(local))  # the new offset of the directory
        report = rustload.scan(data[:end] + local + bytes(tail))
        assert report.verdict == "would execute"

    def test_a_truncated_archive_is_scanned_up_to_its_end(self):
        data = saved({"e": EVIL, "w": torch.ones(1000)})
        report = rustload.scan(data[: len(data) // 2])
        assert (report.verdict, report.complete) == ("would execute", False)
        good = saved({"w": torch.ones(1000)})
        report = rustload.scan(good[: len(good) // 2])
        assert (report.verdict, report.complete) == ("unknown", False)

    def test_deflated_pickles_are_scanned(self):
        data = stored({"a/data.pkl": CALL + b".", "a/version": b"3\n"}, zipfile.ZIP_DEFLATED)
        assert rustload.scan(data).verdict == "would execute"

    def test_unreferenced_pickles_are_findings(self):
        data = checkpoint(pickle.dumps({}), **{".data/x.pkl": CALL + b".", "data/9": CALL + b"."})
        report = rustload.scan(data)
        (found,) = [found for found in report.findings if found.code == "UnreferencedRecord"]
        assert (found.member, found.times) == ("archive/.data/x.pkl", 2)
        assert {step.member for step in report.trace} == {"archive/.data/x.pkl", "archive/data/9"}
        assert report.verdict == "would execute"

    def test_nested_archives_are_scanned_up_to_a_depth(self):
        data = checkpoint(CALL + b".")
        for level in range(3):
            report = rustload.scan(data)
            assert report.verdict == "would execute", level
            data = checkpoint(pickle.dumps({}), **{"inner.pt": data})
        [found] = [found for found in report.findings if found.verdict == "would execute"]
        assert found.member == "archive/inner.pt!archive/inner.pt!archive/data.pkl"
        for _ in range(2):
            data = checkpoint(pickle.dumps({}), **{"inner.pt": data})
        report = rustload.scan(data)
        assert (report.verdict, report.complete) == ("unknown", False)
        assert any("deep" in gap.what for gap in report.coverage[0].unscanned)

    def test_bytes_passed_to_a_loader_are_scanned(self):
        inner = checkpoint(CALL + b".")
        for loader in (b"torch.storage\n_load_from_bytes", b"pickle\nloads"):
            body = b"\x80\x03c" + loader + b"\nB" + struct.pack("<I", len(inner)) + inner + b"\x85R."
            report = rustload.scan(body)
            assert "NestedLoad" in codes(report)
            assert any(found.name == "system" for found in report.findings)

    def test_polyglots_are_scanned_in_every_format(self):
        evil = checkpoint(CALL + b".")
        legacy = saved({"w": torch.ones(2)}, _use_new_zipfile_serialization=False)
        st = safetensors_bytes(b'{"w":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}', b"ab")
        for data in (legacy + evil, st + evil, st + CALL + b"."):
            report = rustload.scan(data)
            assert "Polyglot" in codes(report)
            assert report.verdict == "would execute"
        assert rustload.scan(st).verdict == "inert"

    @pytest.mark.parametrize("name", COMPRESSED)
    def test_compressed_files_and_members_are_unknown(self, name):
        alone = rustload.scan(COMPRESSED[name])
        for report in (alone, rustload.scan(checkpoint(b"N.", inner=COMPRESSED[name]))):
            assert (report.verdict, report.complete) == ("unknown", False)
            assert {"OpaqueContainer", "UnsupportedContainer"} <= codes(report)
        with pytest.raises(rustload.UnsupportedError, match="archive") as caught:
            rustload.open(bytearray(COMPRESSED[name]))
        assert caught.value.code == "UnsupportedContainer"

    @pytest.mark.parametrize("name", INFLATED)
    def test_deflated_streams_are_scanned_inside(self, name):
        for report in (rustload.scan(INFLATED[name]), rustload.scan(checkpoint(b"N.", inner=INFLATED[name]))):
            assert (report.verdict, report.complete) == ("would execute", True)
            assert "UnsupportedContainer" in codes(report)
        with pytest.raises(rustload.UnsupportedError, match="archive"):
            rustload.open(bytearray(INFLATED[name]))

    def test_a_deflated_stream_is_inert_only_once_all_of_it_was_inflated(self):
        data = zlib.compress(np.random.default_rng(0).bytes(1_000_000))
        assert (rustload.scan(data).verdict, rustload.scan(data).complete) == ("inert", True)
        report = rustload.scan(data, limits=rustload.Limits(scan_bytes=900_000))
        assert (report.verdict, report.complete) == ("unknown", False)

    @pytest.mark.parametrize("magic", ["7801", "785e", "789c", "78da"])
    def test_numbers_that_begin_like_zlib_are_not_a_finding(self, magic):
        numbers = np.random.default_rng(0).normal(size=1000)
        for payload in (
            bytes(100),
            b"\xff" * 100,
            *(numbers.astype(f"<f{size}").tobytes() for size in (2, 4, 8)),
        ):
            data = bytes.fromhex(magic) + payload
            report = rustload.scan(checkpoint(b"N.", **{"constants/0": data}))
            assert (report.verdict, report.findings) == ("inert", []), str(report)
            assert rustload.scan(data).files[0].status == "skipped"

    def test_a_storage_that_begins_like_an_archive_is_not_a_finding(self):
        for compressed in (*COMPRESSED.values(), *INFLATED.values()):
            tensor = torch.frombuffer(bytearray(compressed), dtype=torch.uint8)
            for legacy in (False, True):
                data = saved({"w": tensor}, _use_new_zipfile_serialization=not legacy)
                report = rustload.scan(data)
                assert (report.verdict, report.findings) == ("inert", []), str(report)

    @pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
    def test_legacy_streams_of_any_protocol_are_scanned_as_members(self, protocol):
        data = saved({"e": EVIL}, pickle_protocol=protocol, _use_new_zipfile_serialization=False)
        report = rustload.scan(checkpoint(b"N.", inner=data))
        assert {found.member for found in report.findings if found.verdict == "would execute"} == {
            "archive/inner!object"
        }

    def test_a_torchscript_archive_is_unknown_as_it_contains_code(self):
        file = io.BytesIO()
        with quiet():
            torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), file)
        report = rustload.scan(file.getvalue())
        assert report.verdict == "unknown"
        assert "CodeInArchive" in codes(report)

    def test_an_extension_of_another_format_is_a_finding(self, tmp_path):
        path = tmp_path / "m.safetensors"
        path.write_bytes(saved({"w": torch.ones(2)}))
        report = rustload.scan(path)
        assert (report.verdict, codes(report)) == ("inert", {"ExtensionMismatch"})

    @pytest.mark.parametrize("size", [1000, (1 << 20) - 1024, (1 << 20) - 512, 1 << 20, 3 << 20])
    @pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
    def test_a_deflated_container_is_scanned_to_its_end(self, size, method):
        """Whatever the offsets of its members: with only the first MiB inflated, the container may seem to end there."""
        tar, whole = io.BytesIO(), io.BytesIO()
        with tarfile.open(fileobj=tar, mode="w", format=tarfile.USTAR_FORMAT) as out:
            plain = b"\x80\x03B" + struct.pack("<I", size - 8) + bytes(size - 8) + b"."
            for name, data in ("first", plain), ("second", CALL + b"."):
                info = tarfile.TarInfo(name)
                info.size = len(data)
                out.addfile(info, io.BytesIO(data))
        torch.save({"w": torch.zeros(2)}, whole)
        with zipfile.ZipFile(whole, "a", method) as archive:
            archive.writestr("archive/extra", tar.getvalue())
        report = rustload.scan(whole.getvalue())
        assert (report.verdict, report.complete) == ("would execute", True)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Suppresses the deprecation warnings of torch."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def benign() -> dict[str, Any]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.LSTM(8, 8))
    plain = torch.nn.Linear(3, 3)
    optimizer = torch.optim.Adam(plain.parameters())
    plain(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    tied = torch.ones(4)
    return {
        "state_dict": model.state_dict(),
        "module": model,
        "transformer": torch.nn.TransformerEncoderLayer(8, 2),
        "optimizer": optimizer.state_dict(),
        "lightning": {
            "state_dict": model.state_dict(),
            "optimizer_states": [optimizer.state_dict()],
            "lr_schedulers": [schedule.state_dict()],
            "hyper_parameters": argparse.Namespace(lr=0.1, betas=(0.9, 0.99)),
            "callbacks": {"ModelCheckpoint": {"best": torch.tensor(0.5), "path": "x.ckpt"}},
        },
        "numpy": {"a": np.arange(6.0).reshape(2, 3), "s": np.float64(2), "r": np.random.default_rng(0)},
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "tied": {"a": tied, "b": tied[1:]},
        "dtypes": [
            torch.ones(2, dtype=d) for d in (torch.bfloat16, torch.float8_e4m3fn, torch.int8, torch.bool)
        ],
        "containers": [collections.defaultdict(list, a=[1]), collections.Counter("aab"), {1, 2}, slice(1, 2)],
        "enum": {"color": Color.RED, "dtype": torch.float16, "device": torch.device("cpu")},
        "partial": functools.partial(torch.nn.functional.gelu, approximate="tanh"),
        "sparse": torch.eye(3).to_sparse(),
        "bound": torch.nn.ModuleDict({"a": torch.nn.Conv2d(1, 1, 1)}),
    }


class TestBenignFiles:
    @pytest.mark.parametrize("legacy", [False, True])
    @pytest.mark.parametrize("name", sorted(benign()))
    def test_a_benign_file_would_not_execute(self, name, legacy):
        with quiet():
            data = saved(benign()[name], _use_new_zipfile_serialization=not legacy)
        report = rustload.scan(data)
        assert report.verdict != "would execute", str(report)
        assert report.complete

    @pytest.mark.parametrize("name", ["state_dict", "optimizer", "parameter", "tied", "dtypes", "containers"])
    def test_plain_data_is_inert(self, name):
        report = rustload.scan(saved(benign()[name]))
        assert (report.verdict, report.findings) == ("inert", []), str(report)


class TestSources:
    def test_all_kinds_of_sources_have_the_same_verdict(self, tmp_path):
        data = checkpoint(CALL + b".")
        path = tmp_path / "x.pt"
        path.write_bytes(data)
        with path.open("rb") as file:
            sources = [
                data,
                bytearray(data),
                memoryview(data),
                io.BytesIO(data),
                path,
                str(path),
                file,
                [path],
            ]
            for source in sources:
                assert rustload.scan(source).verdict == "would execute", source
            file.seek(10)
            assert rustload.scan(file).files[0].path == str(path)

    def test_a_short_pickle_in_bytes_is_not_taken_for_a_path(self):
        assert rustload.scan(CALL + b".").files[0].path is None

    def test_directories_are_walked_and_other_files_skipped(self, tmp_path):
        (tmp_path / "sub").mkdir()
        (tmp_path / "sub" / "b.bin").write_bytes(checkpoint(CALL + b"."))
        (tmp_path / "a.pt").write_bytes(saved({"w": torch.ones(2)}))
        (tmp_path / "README.md").write_text("# A model\n")
        (tmp_path / "config.json").write_text("{}")
        (tmp_path / "link.pt").symlink_to(tmp_path / "a.pt")
        (tmp_path / "loop").symlink_to(tmp_path)
        report = rustload.scan(tmp_path)
        seen = {
            os.path.relpath(str(file.path), tmp_path): (file.status, file.verdict) for file in report.files
        }
        assert seen == {
            "README.md": ("skipped", "inert"),
            "a.pt": ("scanned", "inert"),
            "config.json": ("skipped", "inert"),
            "link.pt": ("scanned", "inert"),
            "sub/b.bin": ("scanned", "would execute"),
        }
        assert report.complete

    def test_a_source_without_a_pickle_is_skipped(self):
        for data in (b"", b"abc", b"<html></html>"):
            report = rustload.scan(data)
            assert (report.verdict, report.files[0].status, codes(report)) == (
                "unknown",
                "skipped",
                {"UnknownFormat"},
            )

    def test_a_subfolder_that_cannot_be_listed_is_unreadable_with_the_reason(self):
        user = os.geteuid()
        with tempfile.TemporaryDirectory() as made:
            inside = Path(made, "inside")
            inside.mkdir()
            Path(made).chmod(0o755)
            inside.chmod(0o000)
            if user == 0:
                os.seteuid(65534)  # root may list anything
            try:
                report = rustload.scan(made)
            finally:
                os.seteuid(user)
                inside.chmod(0o700)
        assert [(file.status, file.path) for file in report.files] == [("unreadable", str(inside))]
        assert codes(report) == {"Io"}
        assert "ermission denied" in str(report)

    def test_unreadable_sources(self, tmp_path):
        os.mkfifo(tmp_path / "pipe")
        report = rustload.scan(tmp_path / "pipe")
        assert (report.files[0].status, codes(report)) == ("unreadable", {"NotRegularFile"})
        with pytest.raises(FileNotFoundError):
            rustload.scan(tmp_path / "absent.pt")
        with pytest.raises(TypeError):
            rustload.scan(3)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="'rb'"):
            rustload.scan(io.StringIO("x"))
        with pytest.raises(ValueError, match="nothing to scan"):
            rustload.scan([])

    def test_json_is_the_report(self):
        report = rustload.scan(checkpoint(CALL + b"."))
        document = json.loads(report.to_json())
        assert (document["schema"], document["verdict"], document["complete"]) == (1, "would execute", True)
        [file] = document["files"]
        assert [found["code"] for found in file["findings"]] == [found.code for found in report.findings]
        assert file["coverage"]["scanned"][0]["member"] == "archive/data.pkl"
        assert repr(report) == "<ScanReport 'bytes' would execute, 1 finding>"


def zip_local(name: str, data: bytes) -> bytes:
    sizes = (0, len(data), len(data), len(name), 0)
    return struct.pack("<4s5H3I2H", b"PK\3\4", 20, 0, 0, 0, 0, *sizes) + name.encode() + data


def zip_entry(name: str, size: int, offset: int) -> bytes:
    sizes = (0, size, size, len(name), 0, 0, 0, 0, 0, offset)
    return struct.pack("<4s6H3I5H2I", b"PK\1\2", 20, 20, 0, 0, 0, 0, *sizes) + name.encode()


def zip_end(entries: int, size: int, offset: int) -> bytes:
    return struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, entries, entries, size, offset, 0)


def sharing(body: bytes, shared: list[tuple[str, int]], others: dict[str, bytes]) -> bytes:
    """An archive with members that are all `body` from an offset on (`shared`), followed by `others`.

    Names in `shared` have one length: without a local header, a reader assumes the length that the entry's name implies.
    """
    data = zip_local("-" * len(shared[0][0]), body)
    entries = b""
    for name, offset in shared:
        entries += zip_entry(name, len(body) - offset, offset)
    for name, member in others.items():
        entries += zip_entry(name, len(member), len(data))
        data += zip_local(name, member)
    return data + entries + zip_end(len(shared) + len(others), len(entries), len(data))


class TestBounds:
    def test_nothing_runs_and_nothing_is_imported(self, tmp_path):
        canary = tmp_path / "canary"
        data = f"cos\nmkdir\n(S'{canary}'\ntR0cantigravity\nx\n0cthis\ns\n.".encode()
        script = """
            import sys
            import rustload
            before = set(sys.modules)
            report = rustload.scan(sys.argv[1].encode().decode("unicode_escape").encode())
            str(report)
            print(report.verdict, sorted(set(sys.modules) - before - {"rustload._scan.text"}))
        """
        done = child(script, data.decode().encode("unicode_escape").decode())
        verdict, modules = done.stdout.split(" [", 1)
        assert verdict == "would execute"
        assert not any(name in modules for name in ("antigravity", "'this'", "torch", "numpy"))
        assert not canary.exists()

    def test_the_inflated_size_of_a_pickle_is_limited(self):
        data = stored(
            {"a/data.pkl": b"\x80\x02" + b"N0" * (32 << 20) + b"N.", "a/version": b"3\n"},
            zipfile.ZIP_DEFLATED,
        )
        report = rustload.scan(data, limits=rustload.Limits(pickle_bytes=4 << 20))
        assert (report.verdict, report.complete, "Limit" in codes(report)) == ("unknown", False, True)

    def test_nested_members_share_the_limit_scan_bytes(self):
        payload = b"\x80\x02" + b"N0" * (1 << 20) + b"N."
        inner = stored({"x.pkl": payload, "y.pkl": payload}, zipfile.ZIP_DEFLATED)
        assert rustload.scan(inner, limits=rustload.Limits(scan_bytes=8 << 20)).complete
        report = rustload.scan(inner, limits=rustload.Limits(scan_bytes=3 << 20))
        assert (report.verdict, report.complete) == ("unknown", False)

    def test_the_number_of_pickles_in_a_row_is_limited(self):
        report = rustload.scan(b"N." * 20_000 + CALL + b".")
        assert (report.verdict, report.complete) == ("unknown", False)

    def test_pickles_in_a_row_are_counted_over_all_members(self):
        def members(count: int) -> dict[str, bytes]:
            return {f"{number}.pkl": b"N." * 4000 for number in range(count)}

        assert rustload.scan(stored(members(2))).complete
        report = rustload.scan(stored(members(3) | {"x.pkl": CALL + b"."}))
        assert (report.verdict, report.complete) == ("would execute", False)

    def test_bytes_shared_by_many_calls_are_scanned_once(self):
        data = pickle.dumps([float(number) for number in range(2000)])
        for _ in range(3):
            data = pickle.dumps([loads(data)] + [loads(data) for _ in range(39)])
        report = rustload.scan(data)
        assert report.complete
        assert [part.what for part in report.coverage[0].scanned] == ["pickle"] * 4
        assert [found.times for found in report.findings if found.code == "NestedLoad"] == [3 * 40]

    def test_a_text_shared_by_many_calls_is_decoded_once(self):
        for last in ("\x80", "\u0101"):
            text = ("\x80" * 100_000 + last).encode()
            shared = b"cpickle\nloads\nq\x000X" + struct.pack("<I", len(text)) + text + b"q\x010"
            data = b"\x80\x03" + shared + b"(" + b"h\0h\1\x85R" * 10_000 + b"l."
            start = time.perf_counter()
            report = rustload.scan(data, limits=rustload.Limits(scan_bytes=150_000))
            assert time.perf_counter() - start < 2
            assert report.verdict == "would execute"
            nested = [found.times for found in report.findings if found.code == "NestedLoad"]
            assert nested == ([10_000] if last == "\x80" else [])
            assert not any("scan_bytes" in part.what for part in report.coverage[0].unscanned)

    @pytest.mark.parametrize("shift", [0, 2])
    def test_of_many_members_on_the_same_bytes_not_all_are_scanned(self, shift):
        body = b"N0" * 100_000 + b"N."
        shared = [(f"{number:03}.pkl", number * shift) for number in range(400)]
        data = sharing(body, shared, {"evil.pkl": CALL + b"."})
        report = rustload.scan(data)
        # A member that shares no bytes with others is scanned, however many members do.
        assert (report.verdict, report.complete) == ("would execute", False)
        scanned = sum(part.nbytes for part in report.coverage[0].scanned)
        assert scanned <= 5 * len(data)
        named = {part.member for part in report.coverage[0].scanned + report.coverage[0].unscanned}
        assert named >= {name for name, _ in shared}

    def test_of_a_few_members_on_the_same_bytes_all_are_scanned(self):
        body = CALL + b"." + b"N." * 10
        report = rustload.scan(sharing(body, [("a.pkl", 0), ("b.pkl", 0)], {}))
        assert report.complete
        members = {step.member for step in report.trace if step.verdict == "would execute"}
        assert members >= {"a.pkl", "b.pkl"}

    def test_many_equal_directory_entries_are_scanned_in_bounded_time(self):
        entry = zip_entry("a", 0, 0)
        directory = entry * 300_000
        start = len(zip_local("a", b""))
        data = zip_local("a", b"") + directory
        for number in range(16):
            skipped = number * len(entry)
            data += zip_end(1, len(directory) - skipped, start + skipped)
        start_time = time.perf_counter()
        report = rustload.scan(data)
        assert time.perf_counter() - start_time < 2
        assert (report.verdict, report.complete) == ("unknown", False)

    def test_main_pickles_share_the_limit_pickle_bytes(self):
        body = b"\x80\x02" + b"N0" * (1 << 20) + b"N."
        members = {f"{number}/data.pkl": body for number in range(3)}
        data = stored(members, zipfile.ZIP_DEFLATED)
        assert rustload.scan(data, limits=rustload.Limits(pickle_bytes=8 << 20)).complete
        report = rustload.scan(data, limits=rustload.Limits(pickle_bytes=5 << 20))
        assert (report.verdict, report.complete) == ("unknown", False)

    @pytest.mark.parametrize("left", [0, 1, 20])
    def test_a_member_beyond_the_rest_of_the_budget_is_reported_as_unscanned(self, left):
        body = b"\x80\x02" + b"N0" * 1000 + b"N."
        data = stored({"x.pkl": body, "y.bin": b"\x80\x02(" + CALL + b"."}, zipfile.ZIP_DEFLATED)
        report = rustload.scan(data, limits=rustload.Limits(scan_bytes=len(body) + left))
        assert (report.verdict, report.complete) == ("unknown", False)
        assert report.coverage[0].unscanned[-1].member == "y.bin"

    def test_ctrl_c_stops_a_scan(self):
        data = b"\x80\x02(" + b"N0" * (60 << 20) + b"N."
        main = threading.main_thread().ident
        assert main is not None
        timer = threading.Timer(0.1, signal.pthread_kill, (main, signal.SIGINT))
        timer.start()
        start = time.perf_counter()
        with pytest.raises(KeyboardInterrupt):
            rustload.scan([data] * 1000)
        assert time.perf_counter() - start < 5

    @pytest.mark.parametrize("seed", range(3))
    def test_flipped_bytes_never_break_a_scan(self, seed):
        random = np.random.default_rng(seed)
        sources = [
            saved({"w": torch.ones(3), "e": EVIL}),
            saved({"w": torch.ones(3), "e": EVIL}, _use_new_zipfile_serialization=False),
            checkpoint(pickle.dumps({}), **{"inner.pt": checkpoint(CALL + b".")}),
        ]
        for data in sources:
            for _ in range(150):
                changed = bytearray(data)
                for at in random.integers(0, len(data), 3):
                    changed[at] = random.integers(0, 256)
                report = rustload.scan(bytes(changed[: random.integers(1, len(data) + 1)]))
                assert "InternalError" not in codes(report)
                assert report.complete or report.verdict != "inert"

    def test_a_file_that_cannot_be_opened_is_never_inert(self):
        data = saved({"w": torch.arange(6.0)})
        for length in range(0, len(data), 7):
            report = rustload.scan(data[:length])
            assert report.verdict != "inert", length


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("pathlib", "Path.unlink"),
        ("torch._utils", "torch.load"),
        ("sqlite3", "connect"),
        ("os", "a." * 100 + "b"),
        ("torch", "hub.download_url_to_file"),
        ("torch.nn", "modules.module.torch.hub.download_url_to_file"),
        ("numpy", "lib.format.read_array"),
    ],
)
def test_system_access_through_another_module_would_execute(module, name):
    def short(text: str) -> bytes:
        return b"\x8c" + bytes([len(text)]) + text.encode()

    data = b"\x80\x04" + short(module) + short(name) + b"\x93" + short("victim") + b"\x85R."
    assert rustload.scan(data).verdict == "would execute"


@pytest.mark.parametrize(
    ("name", "verdict"), [("RED", "unknown"), ("_generate", "unknown"), ("__init__", "would execute")]
)
def test_getattr_of_a_class_is_as_its_attribute_path(name, verdict):
    """Protocols below 4 write a method of a class in the first way, the others in the second."""
    data = f"cbuiltins\ngetattr\n(cmodels.colors\nColor\nS'{name}'\ntR.".encode()
    path = f"\x8c\x0dmodels.colors\x8c{chr(6 + len(name))}Color.{name}\x93.".encode("latin-1")
    assert rustload.scan(data).verdict == verdict
    assert rustload.scan(b"\x80\x04" + path).verdict == verdict


def test_a_member_outside_the_directory_is_scanned_though_it_is_named_like_a_storage(tmp_path):
    torch.save({"w": torch.ones(2)}, tmp_path / "model.pt")
    file = io.BytesIO()
    with zipfile.ZipFile(tmp_path / "model.pt") as model, zipfile.ZipFile(file, "w") as archive:
        for name in model.namelist():
            if name.endswith("data/0"):
                archive.writestr(name, pickle.dumps(EVIL))
                archive.filelist.pop()
                del archive.NameToInfo[name]
            archive.writestr(name, model.read(name))
    assert list(rustload.open(bytearray(file.getvalue()))) == ["w"]
    assert rustload.scan(file.getvalue()).verdict == "would execute"


@pytest.mark.parametrize("keys", [1, 2, 3, 4, 15])
def test_msgpack_is_not_taken_for_a_pickle_with_an_extension_code(keys, tmp_path):
    """Flax and spaCy write maps of a few keys, whose first byte is that of EXT1, EXT2 or EXT4."""
    data = bytes([0x80 + keys]) + b"\xa6params\x81\xa1w\x93\x01\x02\xc0" * keys
    path = tmp_path / "model.msgpack"
    path.write_bytes(data)
    assert [file.status for file in rustload.scan(tmp_path).files] == ["skipped"]
    for acting in (b"\x82\x01.", b"\x82\x01)R", b"\x82\x01}b", b"\x82\x01Na", b"\x82\x01cposix\nsystem\n"):
        path.write_bytes(acting)
        assert [file.status for file in rustload.scan(tmp_path).files] == ["scanned"]


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_file_of_skops_is_never_inert(method):
    """Its schema names what skops imports and calls, once it is trusted."""

    def archive(schema: str) -> bytes:
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w", method) as members:
            members.writestr("schema.json", schema)
        return file.getvalue()

    report = rustload.scan(
        archive('{"__class__": "list", "__module__": "builtins", "__loader__": "ListNode"}')
    )
    assert (report.verdict, report.complete) == ("unknown", False), str(report)
    assert "skops" in str(report)
    # Another schema is JSON that a reader may act on all the same.
    assert rustload.scan(archive('{"type": "object"}')).verdict == "unknown"


@pytest.mark.parametrize("compress", [0, ("zlib", 3), ("gzip", 3)], ids=["plain", "zlib", "gzip"])
@pytest.mark.parametrize("protocol", [2, 4])
def test_a_file_of_joblib_with_arrays_of_numbers_is_inert(compress, protocol, tmp_path):
    arrays = {
        "c": np.arange(12.0).reshape(3, 4),
        "f": np.asfortranarray(np.ones((3, 4), "f4")),
        "nested": [np.ones(3, "int8"), 5, ("x", np.ones((0, 3)))],
        "large": np.ones((300, 300)),
        "swapped": np.ones(3, ">f4"),
        "text": np.array(["a", "bb"]),
        "bool": np.array([True]),
        "scalar": np.float64(3),
    }
    path = tmp_path / "arrays.joblib"
    joblib.dump(arrays, path, compress=compress, protocol=protocol)
    report = rustload.scan(path)
    assert (report.verdict, report.complete) == ("inert", True), str(report)


FROM_TYPE = b"ctorch._tensor\n_rebuild_from_type_v2\n"
TENSOR = b"ctorch\nTensor\n"
PARAMETER = b"ctorch.nn.parameter\nParameter\n)\x81q\x00"
UNPROVEN = {
    "a function calls itself, and so any other one": b"%b(%b%b(cbuiltins\nbytearray\n%b(K\x07tNtNtR."
    % (FROM_TYPE, FROM_TYPE, TENSOR, TENSOR),
    "a function is called as a class": b"c_codecs\nencode\n\x8c\x01a\x8c\x06latin1\x86\x81.",
    "an object gets another class": b"cargparse\nNamespace\n)\x81}\x8c\x09__class__K\x01sb.",
    "a set gets an item that is not a key": b"cbuiltins\nset\n)R(cargparse\nNamespace\n)\x81\x90.",
    "a parameter gets a state after a callee has looked at it": PARAMETER
    + b"ctorch._utils\n_rebuild_parameter\n(h\x00\x89ccollections\nOrderedDict\n)RtR0(\x88\x88Ntb.",
}


@pytest.mark.parametrize("what", UNPROVEN)
def test_what_no_row_states_is_not_inert(what):
    assert rustload.scan(b"\x80\x04" + UNPROVEN[what]).verdict == "unknown"


OBJECTS = {
    "dicts": np.array([{"a": 1}, None], dtype=object),
    "text": np.array([["a", b"b"], [1, 2.5]], dtype=object),
    "columns first": np.asfortranarray(np.array([[1, "a"], [2, "b"]], dtype=object)),
    "of a single one": np.array([[1, 2]], dtype=object)[0, :1],
    "without dimensions": np.array({"a": [1]}, dtype=object),
    "none": np.zeros((0, 3), dtype=object),
    "arrays": np.array([np.ones(2), np.array([{"a"}], dtype=object), None], dtype=object),
}


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("name", OBJECTS)
def test_an_array_of_plain_objects_is_inert(name, protocol, tmp_path):
    array = OBJECTS[name]
    np.save(tmp_path / "a.npy", array, allow_pickle=True)
    np.savez(tmp_path / "a.npz", a=array, b=np.ones(2))
    (tmp_path / "a.pkl").write_bytes(pickle.dumps({"a": array}, protocol))
    for file in rustload.scan(tmp_path).files:
        assert (file.verdict, file.coverage.complete) == ("inert", True), str(rustload.scan(file.path))


class Unknown:
    """A class that no scan knows."""


def test_objects_in_an_array_are_judged():
    name = f"{Unknown.__module__}.Unknown"
    data = pickle.dumps(np.array([Unknown(), {"a": [Unknown()]}], dtype=object))
    (found,) = [one for one in rustload.scan(data).findings if one.verdict != "inert"]
    assert (found.code, found.name) == ("DisallowedGlobal", "Unknown")
    assert rustload.scan(data, policy=rustload.Policy(allow=(name,))).verdict == "inert"
    # The attributes of a module are plain values, at any depth.
    layer = torch.nn.Identity()
    layer.more = np.array([[collections.Counter()]], dtype=object)
    assert rustload.scan(pickle.dumps(layer)).verdict == "inert"
    layer.more = np.array([[functools.partial(print)]], dtype=object)
    assert rustload.scan(pickle.dumps(layer)).verdict != "inert"
    layer.more = np.array([[torch.nn.Identity()]], dtype=object)
    assert rustload.scan(pickle.dumps(layer)).verdict == "unknown"


FLAGLESS = asm.numpy_dtype("O8", order="|")
GROWN = asm.listed() + asm.put(9) + asm.POP
UNLIKE_OBJECTS = {
    "fewer objects than the shape says": asm.array(asm.OBJECT, (2,), asm.listed(asm.NONE)),
    "more objects": asm.array(asm.OBJECT, (2,), asm.listed(asm.NONE, asm.NONE, asm.NONE)),
    "no objects": asm.array(asm.OBJECT, (1 << 40,), asm.listed()),
    "a negative size": asm.array(asm.OBJECT, (-1, -1), asm.listed(asm.NONE)),
    "a product that wraps": asm.array(asm.OBJECT, (1 << 32, 1 << 32), asm.listed()),
    "objects that come later": GROWN + asm.array(asm.OBJECT, (1,), asm.get(9)) + asm.get(9) + asm.NONE + b"a" + asm.POP,
    "bytes for pointers": asm.array(asm.OBJECT, (1,), asm.latin1(b"12345678")),
    "bytes for pointers, by a flag": asm.array(FLAGLESS, (1,), asm.latin1(b"12345678")),
    "objects, without the flag": asm.array(FLAGLESS, (1,), asm.listed(asm.NONE)),
    "numbers in a list": asm.array(asm.numpy_dtype("f4"), (1,), asm.listed(asm.NONE)),
    "a buffer": asm.call(
        "numpy._core.numeric._frombuffer", asm.latin1(b"12345678"), asm.OBJECT, asm.ints(1), asm.text("C")
    ),
    "a scalar": asm.call("numpy._core.multiarray.scalar", asm.OBJECT, asm.latin1(b"12345678")),
    "a record": asm.numpy_dtype(
        "V8",
        state=asm.many(
            asm.integer(3),
            asm.text("|"),
            asm.NONE,
            asm.many(asm.text("a")),
            asm.mapped((asm.text("a"), asm.many(asm.OBJECT, asm.integer(0)))),
            asm.integer(8),
            asm.integer(1),
            asm.integer(16),
        ),
    ),
    "pointers of 4 bytes": asm.array(asm.numpy_dtype("O4", state=asm.OBJECT_STATE), (1,), asm.listed(asm.NONE)),
    "two states": asm.array(asm.OBJECT, (1,), asm.listed(asm.NONE))
    + asm.many(asm.integer(1), asm.ints(9), asm.OBJECT, asm.FALSE, asm.listed()) + asm.BUILD,
}  # fmt: skip


@pytest.mark.parametrize("what", UNLIKE_OBJECTS)
def test_an_array_of_objects_that_numpy_does_not_write_is_not_inert(what):
    """NumPy compares neither the length of the list with the shape, nor the flags of a dtype with what it is."""
    assert rustload.scan(asm.pickle(UNLIKE_OBJECTS[what])).verdict == "unknown"
    good = asm.listed(asm.NONE) + asm.put(9) + asm.POP + asm.array(asm.OBJECT, (1,), asm.get(9))
    assert rustload.scan(asm.pickle(good)).verdict == "inert"


def test_an_archive_of_arrays_has_no_note(tmp_path):
    np.savez(tmp_path / "a.npz", a=np.arange(3), b=np.ones(2))
    assert rustload.scan(tmp_path / "a.npz").findings == []


def test_what_a_file_of_keras_is_not_scanned_for_is_shown(tmp_path):
    with zipfile.ZipFile(tmp_path / "m.keras", "w") as archive:
        archive.writestr("metadata.json", "{}")
        archive.writestr("config.json", "{}")
    report = rustload.scan(tmp_path / "m.keras")
    why = "not scanned: config.json, byte 0: a configuration: keras.models.load_model imports and calls"
    assert next(line for line in str(report).splitlines() if "not scanned" in line).strip().startswith(why)
    html = report._repr_html_()
    assert html.index("keras.models.load_model") < html.index("JSON, on which")


def test_a_checkpoint_is_not_a_list_of_paths(tmp_path):
    torch.save({"w": torch.ones(2)}, tmp_path / "m.pt")
    for given in (rustload.open(tmp_path / "m.pt"), {str(tmp_path / "m.pt"): 1}):
        with pytest.raises(TypeError, match="scan takes paths, bytes and binary files, not a "):
            rustload.scan(given)  # type: ignore[arg-type]


def test_an_empty_member_behind_the_end_of_a_file_does_not_end_the_scan():
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("archive/data.pkl", GOOD)
        archive.writestr("archive/pad", bytes(1000))
        archive.writestr("archive/data/0", bytes(100), zipfile.ZIP_DEFLATED)
    damaged = bytearray(file.getvalue())
    # The directory is 1000 bytes further on than its record says, and so are all members.
    at = len(damaged) - 6
    (start,) = struct.unpack_from("<I", damaged, at)
    struct.pack_into("<I", damaged, at, start - 1000)
    files = stored({"a.zip": bytes(damaged), "model.pkl": CALL + b"."})
    assert rustload.scan(files).verdict == "would execute"
