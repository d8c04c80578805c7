"""The GPU benchmark without a GPU: it reports why it skips, its comparisons detect a wrong bit, its tables are complete."""

import json
import shutil
import sys
from pathlib import Path

import pytest
import safetensors.torch
import torch
from support import program

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.append(str(ROOT))

from benches.gpu import cases, checks, first_contact, peers, probes, run, samples, sweep  # noqa: E402 - from the repository's root

no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")


@no_gpu
@pytest.mark.parametrize("command", [["-m", "benches.gpu.run"], ["benches/gpu/run.py", "--only", "probes"]])
def test_without_a_gpu_the_suite_skips_with_the_reason_and_exits_with_0(command):
    assert program(*command).startswith("skipped: torch ")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_with_a_gpu_every_part_runs_and_nothing_is_wrong():
    assert run.main(["--quick"]) == 0


def test_every_request_on_the_cpu_returns_what_torch_wrote(tmp_path, capsys):
    out = tmp_path / "out.json"
    assert run.main(["--device", "cpu", "--quick", "--folder", str(tmp_path), "--json", str(out)]) == 0
    found = json.loads(out.read_text())
    assert set(found) == {"machine", "correctness"}
    assert [group for group in found["correctness"] if group["wrong"] or not group["checks"]] == []
    total = sum(group["checks"] for group in found["correctness"])
    assert total > 20_000
    assert f"{total:,} checks, 0 wrong" in capsys.readouterr().out


def test_the_samples_have_every_dtype_in_every_layout():
    names = set(samples.tensors(quick=True))
    layouts = {name.partition(".")[2] for name in names} - {"conjugate"}
    assert {"sliced", "transposed", "permuted", "strided", "scalar", "empty", "large"} <= layouts
    assert {f"{dtype}.{layout}" for dtype in samples.dtypes() for layout in layouts} <= names
    # More than a slot of the ring, at full size.
    assert all(
        tensor.nbytes > 2 << 20
        for name, tensor in samples.tensors(quick=False).items()
        if name.endswith((".large", ".huge"))
    )


def test_a_comparison_detects_a_wrong_bit_shape_dtype_or_an_exception():
    def wrong():
        values = torch.tensor([1.0, float("nan")])
        negative = values.clone()
        negative.view(torch.int32)[1] += 1
        yield "equal", values, values.clone(), False
        yield "another NaN", values, negative, False
        yield "another NaN of a cast", values, negative, True
        yield "zeros of two signs", torch.tensor([0.0]), torch.tensor([-0.0]), True
        yield "shape", values, values[None], False
        yield "dtype", values, values.double(), True
        raise ValueError("no more")

    found = checks.outcome("a way", wrong())
    assert found.checks == 6
    last = "ValueError after 6 checks: no more"
    assert found.wrong == ["another NaN", "zeros of two signs", "shape", "dtype", last]


@pytest.mark.parametrize("suffix", [".bin", ".safetensors"])
def test_all_ways_of_loading_return_equal_tensors(tmp_path, suffix):
    for case in cases.cases(quick=True):
        path = case.file.path(tmp_path, suffix)
        expected = cases.safe_reference(path, case.conversion)
        assert sum(tensor.nbytes for tensor in expected.values()) == case.result_bytes
        for name, way in peers.ways(suffix, case.conversion).items():
            if not any(needs_gpu in name for needs_gpu in ("cast=", "pin_memory", "prefetch")):
                assert cases._problem(way, path, case.conversion, "cpu", expected) is None, name
        expected[next(iter(expected))][0] += 1
        assert cases._problem(peers.ours, path, case.conversion, "cpu", expected) is not None


def test_the_limit_counts_the_bytes_that_cross_the_link():
    by_title = {case.title: case for case in cases.cases(quick=False)}
    narrowing, widening = by_title["float32 to bfloat16"], by_title["bfloat16 to float32"]
    assert narrowing.narrows
    assert narrowing.crossing == narrowing.result_bytes == narrowing.file.nbytes // 2
    assert not widening.narrows
    assert widening.crossing == widening.file.nbytes == widening.result_bytes // 2


def test_the_cases_run_on_the_cpu_in_place_of_the_gpu(tmp_path, monkeypatch, capsys):
    peaks = {"device_beyond": 1 << 20, "device_held_beyond": 1 << 20, "host_beyond": 1 << 20}
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _device: None)
    monkeypatch.setattr(probes, "pinned_copies", lambda _device, _size, total: probes.cpu_cast(total))
    monkeypatch.setattr(cases, "peaks", lambda *_: peaks)
    args = run.parse(["--quick", "--filter", "to bfloat16", "--device", "cpu"])
    found: dict = {"results": [], "goals": [], "left_out": []}
    saved = []
    run.timed(tmp_path, args, found, lambda: saved.append(len(found["results"])))
    assert saved == [1, 2, 3, 4], "after each case"
    printed = capsys.readouterr().out
    assert [(result["case"], result["format"]) for result in found["results"]] == [
        (title, suffix)
        for title in ("float32 to bfloat16", "float32 to bfloat16, transposed")
        for suffix in (".safetensors", ".bin")
    ]
    for result in found["results"]:
        rows = {row["way"]: row for row in result["rows"]}
        limits = [rows[name] for name in (cases.LIMIT, cases.CAST_LIMIT)]
        assert max(row["of_limit"] for row in limits) >= 1 == min(row["of_limit"] for row in limits)
        assert rows[peers.OURS]["device_beyond"] == 1 << 20
        assert "failed" not in rows[peers.OURS]
        assert all(way in printed for way in rows)
    goals = [goal["goal"] for goal in found["goals"]]
    assert "float32 to bfloat16: time of .bin over .safetensors" in goals
    assert any("MiB of device memory" in goal for goal in goals)


def results(seconds):
    rows = [
        {"way": name, "median_s": taken, "spread": 0.1, "of_limit": 0.02 / taken}
        for name, taken in seconds.items()
    ]
    rows[0] |= {"device_beyond": 70 << 20, "device_held_beyond": 80 << 20, "host_beyond": 100 << 20}
    rows.append({"way": "another", "failed": "ImportError: no such thing"})
    case = {"case": "one float32 tensor", "format": ".safetensors"}
    return case | {"nbytes": 10**9, "result_bytes": 10**9, "rows": rows}


def test_a_table_has_losing_and_failed_rows(capsys):
    run.print_case(
        results({peers.OURS: 0.021, peers.LOAD_FILE: 0.2, peers.INSTANT: 0.0205, cases.LIMIT: 0.02})
    )
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if "faster than rustload" in line] == [
        line for line in lines if line.strip().startswith(peers.INSTANT)
    ]
    assert any("failed: ImportError: no such thing" in line for line in lines)
    (limit,) = [line for line in lines if cases.LIMIT in line]
    assert "1.00" in limit


def test_missed_goals_are_reported(capsys):
    found = {
        what: holds
        for what, _, _, holds in cases.goals(
            [results({peers.OURS: 0.021, peers.LOAD_FILE: 0.2, peers.INSTANT: 0.0205})], quick=True
        )
    }
    name = "one float32 tensor, .safetensors"
    assert found == {
        f"{name}: part of the limit": True,
        f"{name}: times faster than {peers.INSTANT}": False,
        f"{name}: times faster than {peers.LOAD_FILE}": True,
        f"{name}: MiB of device memory beyond the result": False,
        f"{name}: MiB of host memory beyond the result": True,
    }
    run.print_goals([{"goal": "speed", "found": 0.5, "bound": 0.9, "holds": False}])
    assert "MISSED  speed: 0.50, bound 0.9" in capsys.readouterr().out


def test_the_first_contact_answers_each_question_in_a_line(tmp_path, monkeypatch, capsys):
    def questions(files, *, has_gpu):
        assert not has_gpu
        titles = [title for title, _, _ in first_contact_questions(files, has_gpu=True)]
        assert len(titles) == len(set(titles)) > 30
        ring = "ring 1048576x36, 12 workers"
        for wanted in ("pinned", "graph capture", "forked", ring, "18,000", "cast=cpu"):
            assert any(wanted in title for title in titles), wanted
        assert all("capture" not in title for title, _, _ in first_contact_questions(files, has_gpu=False))
        yield "a model", ["load", str(files[0]), 2, "float32", "auto"], {}
        yield "a failure", ["load", str(files[0]) + ".missing", None, None, "auto"], {}

    first_contact_questions = first_contact.questions
    monkeypatch.setattr(first_contact, "questions", questions)
    monkeypatch.setattr(first_contact, "touch", lambda _gib: 1.0)
    out = tmp_path / "out.json"
    command = [str(tmp_path / "files"), "--device", "cpu", "--scale", "0.002", "--json", str(out)]
    assert first_contact.main(command) == 1
    answers = {one["title"]: one["answer"] for one in json.loads(out.read_text())}
    assert answers["a model"]["GB/s"] > 0
    assert answers["a failure"].startswith("FAILED: ")
    assert "a model" in capsys.readouterr().out
    for path in (tmp_path / "files").iterdir():
        assert all(tensor.isfinite().all() for tensor in safetensors.torch.load_file(path).values())


def test_the_overhead_is_counted_on_the_fake_driver(tmp_path):
    pytest.importorskip("safetensors")
    if shutil.which("cc") is None:
        pytest.skip("no C compiler to build the fake driver with")
    out = tmp_path / "out.json"
    few = ("--quick", "--filter", "256 KiB", "--json", out)
    program("-m", "benches.gpu.overhead", *few, RUSTLOAD_RING="2097152x4")
    (found,) = json.loads(out.read_text())
    assert found["case"] == "2,000 x 256 KiB"
    # 200 of 256 KiB: one copy for each 2 MiB, and few calls of the driver.
    assert (found["copies"], found["copy_mib"]) == (25, 2.0)
    assert found["by_function"]["cuMemcpyHtoDAsync_v2"] == 25
    assert 0 < found["own_us"] <= found["wall_us"]


def test_a_loader_that_fails_while_it_is_timed_gets_a_row_and_the_others_their_times(tmp_path, monkeypatch):
    calls = []

    def fails_later(path, conversion, device):
        calls.append(1)
        if len(calls) > 1:
            raise RuntimeError("out of memory\nand more")
        return peers.ours(path, conversion, device)

    monkeypatch.setattr(torch.cuda, "synchronize", lambda _device: None)
    monkeypatch.setattr(probes, "pinned_copies", lambda _device, _size, total: probes.cpu_cast(total))
    monkeypatch.setattr(
        peers, "ways", lambda _suffix, _conversion: {peers.OURS: peers.ours, "other": fails_later}
    )
    monkeypatch.setattr(cases, "peaks", lambda *_: pytest.fail("peaks were not asked for"))
    case = next(case for case in cases.cases(quick=True) if case.title.startswith("200"))
    found = cases.run(case, ".safetensors", tmp_path, "cpu", rounds=3, with_peaks=False)
    rows = {row["way"]: row for row in found["rows"]}
    assert rows["other"] == {"way": "other", "failed": "RuntimeError: out of memory"}
    assert rows[peers.OURS]["median_s"] > 0


def test_files_are_kept_and_results_are_saved_until_the_time_is_over(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _device: None)
    monkeypatch.setattr(torch.cuda, "set_device", lambda _device: None)
    monkeypatch.setattr(run, "reason_to_skip", lambda _device: None)
    monkeypatch.setattr(run, "machine", lambda _device: {})
    made = []

    def timed(case, suffix, folder, _device, **options):
        made.append((case.file.path(folder, suffix), options["with_peaks"]))
        args.end = 0  # the time is over after the first case
        return {"case": case.title, "format": suffix, "nbytes": 1, "rows": []}

    parse = run.parse
    args = parse(["--quick"])
    monkeypatch.setattr(cases, "run", timed)
    out = tmp_path / "out.json"
    few = ["--quick", "--only", "cases", "--filter", "1 KiB", "--no-peaks"]
    args = parse([*few, "--files", str(tmp_path / "f"), "--json", str(out)])
    monkeypatch.setattr(run, "parse", lambda _arguments: args)
    assert run.main([]) == 0
    ((path, with_peaks),) = made
    assert path.exists()
    assert not with_peaks
    found = json.loads(out.read_text())["cases"]
    assert [result["format"] for result in found["results"]] == [".safetensors"]
    assert found["left_out"] == [[found["results"][0]["case"], ".bin"]]
    assert "left out after 8 minutes" in capsys.readouterr().out


def test_an_unknown_part_in_only_is_refused(capsys):
    with pytest.raises(SystemExit):
        run.parse(["--only", "nothing"])
    assert "invalid choice" in capsys.readouterr().err
    args = run.parse(["--quick", "--only", "probes", "cases"])
    assert (args.only, args.rounds, args.device) == (["probes", "cases"], 3, "cuda:0")


@no_gpu
def test_a_sweep_yields_the_error_of_a_setting_that_fails(tmp_path):
    path = cases.cases(quick=True)[3].file.path(tmp_path, ".safetensors")
    _, _, message = next(sweep.sweep(path, "cuda:0", quick=True))
    assert isinstance(message, str)
    assert "CUDA" in message or "NVIDIA" in message
