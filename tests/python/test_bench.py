"""The benchmarks at small size: they run, all ways of a case agree, and rows where a peer is faster are marked."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support import program

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.append(str(ROOT))

from benches.counts import __main__ as counts  # noqa: E402 - from the repository's root
from benches.python import __main__ as main  # noqa: E402
from benches.python import cold, measure, plot  # noqa: E402
from benches.python.cases import all_cases  # noqa: E402
from benches.ranks import shared  # noqa: E402

QUICK = list(all_cases(quick=True))


def test_a_run_prints_a_table_and_writes_json_and_a_picture(tmp_path):
    out, picture = tmp_path / "out.json", tmp_path / "out.svg"
    few = ("--quick", "--filter", "permuted to (1, 0, 2)")
    printed = program("-m", "benches.python", *few, "--json", out, "--plot", picture)
    found = json.loads(out.read_text())
    (result,) = found["results"]
    assert {"date", "cpu", "torch", "rustload"} <= set(found["machine"])
    ways = [row["way"] for row in result["rows"]]
    assert ways[0] == "rustload"
    assert ways[-1] == "(limit)"
    assert all(len(row["seconds"]) == 3 for row in result["rows"])
    assert all(way in printed for way in ways)
    assert picture.read_text().startswith("<svg ")


@pytest.mark.parametrize(
    "case", [case for case in QUICK if "fresh process" not in case.title], ids=lambda case: case.title
)
def test_all_ways_of_a_case_return_equal_results(case):
    if reason := case.reason_to_skip():
        pytest.skip(reason)
    case.prepare()
    case.check()
    assert next(iter(case.ways())) == "rustload"
    case.limit_probe()()


def test_case_titles_are_unique():
    for quick in (True, False):
        titles = [case.title for case in all_cases(quick=quick)]
        assert len(set(titles)) == len(titles)


def test_sets_have_as_many_tensors_as_their_titles_say():
    counts = {case.kind: len(case.shapes) for case in all_cases(quick=False) if hasattr(case, "shapes")}
    assert counts == {"dense": 300, "mixture-of-experts": 18_000}


def test_a_cold_case_starts_with_its_file_out_of_the_page_cache():
    case = next(case for case in QUICK if isinstance(case, cold.ColdCase))
    if reason := case.reason_to_skip():
        pytest.skip(reason)
    case.prepare()
    measure.read_through(case.path)
    assert cold.cached_share(case.path) > 0.99
    case.before("rustload")
    assert cold.cached_share(case.path) == 0
    assert cold.read_directly(case.path) == case.path.stat().st_size
    assert cold.cached_share(case.path) == 0


def test_at_least_three_rounds_run_although_the_budget_is_spent():
    done = measure.interleave({"one": lambda: None, "two": lambda: None}, rounds=9, arena=0, budget=0)
    assert {name: len(times.seconds) for name, times in done.items()} == {"one": 3, "two": 3}
    done = measure.interleave({"one": lambda: None}, rounds=5, arena=0, budget=60)
    assert len(done["one"].seconds) == 5


def test_cases_past_the_time_limit_are_reported_as_skipped(capsys):
    assert main.run_all(QUICK[:2], main.argparse.Namespace(rounds=3), 0.0, huge_pages=False) == []
    assert capsys.readouterr().out.count("skipped: the time limit is reached") == 2


def test_the_picture_marks_the_peer_that_is_faster():
    rows = [
        {"way": "rustload", "median_s": 2.0, "times_rustload": 1.0},
        {"way": "rustload, another way", "median_s": 1.5, "times_rustload": 0.75},
        {"way": "a peer", "median_s": 1.0, "times_rustload": 0.5},
        {"way": "(limit)", "median_s": 0.5, "times_rustload": 0.25},
    ]
    drawn = plot.svg([{"case": "a case", "torch_huge_pages": False, "rows": rows}])
    assert drawn.count("(faster than rustload)") == 1
    assert drawn.count(plot.FASTER) == 1


@pytest.fixture
def counting(monkeypatch, tmp_path):
    """Instruction counts of two jobs by a fake tool: 100 for the set-up, plus the dict's number per repetition."""
    per_repetition = {"parse": 1000, "cast": 500}

    def count(command):
        return 100 if len(command) == 1 else 100 + per_repetition[command[1]] * int(command[2])

    monkeypatch.setattr(counts, "TOOLS", {"perf": count})
    monkeypatch.setattr(counts, "built", lambda: "program")
    monkeypatch.setattr(counts, "compiler", lambda: "rustc")
    monkeypatch.setattr(
        counts,
        "jobs",
        lambda _program, _tool: [counts.Job("parse", 10, "tensor"), counts.Job("cast", 5, "element")],
    )
    monkeypatch.setattr(counts, "KEPT", tmp_path / "kept.json")
    return per_repetition


def test_a_run_from_a_server_meets_the_bounds_of_requests_and_bytes(tmp_path):
    pytest.importorskip("urllib3")
    out = tmp_path / "out.json"
    program("-m", "benches.remote", "--quick", "--json", out)
    rows = json.loads(out.read_text())
    exact = [row for row in rows if row["is_exact"]]
    assert len(exact) == 6
    assert all(row["met"] for row in exact)
    assert all(row["value"] > 0 for row in rows)


def test_counts_are_stored_and_a_regression_is_reported(counting, capsys):
    assert counts.main(["--update"]) == 0
    assert json.loads(counts.KEPT.read_text())["counts"] == {"parse": 1000, "cast": 500}
    assert "100.00 per tensor" in capsys.readouterr().out
    counting |= {"parse": 1015, "cast": 515}
    assert counts.main([]) == 0
    printed = capsys.readouterr().out
    assert "+1.5%" in printed
    assert printed.count("MORE") == 1
    assert counts.main(["--check"]) == 1
    assert counts.main(["--check", "--filter", "parse"]) == 0


@pytest.mark.usefixtures("counting")
def test_counts_of_another_tool_are_not_compared(capsys, monkeypatch):
    counts.KEPT.write_text(json.dumps({"tool": "valgrind", "counts": {"parse": 1, "cast": 1}}))
    assert counts.main(["--check"]) == 0
    assert capsys.readouterr().out.count("new") == 2
    monkeypatch.setattr(counts, "TOOLS", {})
    assert counts.main([]) == 0
    assert capsys.readouterr().out.startswith("skipped: ")


@pytest.mark.skipif(shutil.which("valgrind") is None, reason="valgrind is not installed")
def test_valgrind_counts_instructions():
    assert counts.works(counts.by_valgrind)


def test_a_tool_that_cannot_count_is_not_used(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert not counts.works(counts.by_perf)
    assert not counts.works(counts.by_valgrind)


def test_eight_processes_that_map_one_file_share_its_pages(tmp_path):
    """Each of them got the checkpoint as a pickle."""
    path, count = shared.save(tmp_path, 32), 8
    found = shared.measured(path, count, cwd=ROOT)
    size = path.stat().st_size - 8192  # the pages at both ends
    assert all(one["rss"] >= size for one in found)
    assert size <= sum(one["pss"] for one in found) <= 1.05 * size + count * (64 << 10)


def test_each_rank_reads_its_share_in_every_way_of_rustload():
    """The command itself compares values and forward passes; a star would mark what is over its bars."""
    small = ("--ranks", 2, "--mib", 24, "--rounds", 1, "--ways", "load_into")
    printed = program("-m", "benches.ranks", *small)
    lines = [line.split() for line in printed.splitlines() if "load_into" in line]
    assert len(lines) == 4
    for line in lines:
        assert "*" not in line
        share, read = map(float, line[-4:-2])
        assert share == 12
        assert share <= read <= 1.05 * share + 1  # the pickles of a legacy file


def test_the_ranks_of_a_machine_fetch_a_file_once_from_a_slow_file_system():
    command = [
        sys.executable,
        "-m",
        "benches.ranks.node",
        *("--ranks", "2", "--mib", "24", "--rounds", "1", "--ms", "2"),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=110)
    if "can be mounted" in done.stderr:
        pytest.skip("no FUSE file system can be mounted")
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith(("rows", "columns", "replicated"))]
    assert len(lines) == 8
    for line in lines:
        assert 24 <= float(line.split()[-1]) <= 26, line  # MiB, with read-ahead
