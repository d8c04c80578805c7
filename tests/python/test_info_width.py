"""`rustload info` fits the terminal: golden texts at four widths, wide and hostile names, and the columns of text.

`python tests/python/test_info_width.py` writes the golden texts again.
"""

import fcntl
import os
import pty
import random
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import numpy as np
import pytest
from support import cli

from rustload._common import columns

GOLDEN = Path(__file__).parent / "golden"
WIDTHS = (40, 80, 81, 120)

HOSTILE = {
    "bidi": "model.\u202egnp.weight",
    "escape": "model.\x1b[2J\x1b]0;title\x07.weight",
    "lines": "model.a\nb\r.weight",
    "long": "model." + "very_long_" * 40 + "name",
    "wide": "model." + "層" * 200,
    "combining": "model.e" + "\u0301" * 5000,
    "deep": ".".join("ab" * 80),
    "markup": "</script><img src=x onerror=alert(1)>",
}


def sample(folder: Path) -> Path:
    """A checkpoint with layers, and with names in other scripts, emoji and control characters."""
    arrays = {"embed.weight": np.zeros((50, 8), np.float32)}
    for layer in range(12):
        arrays[f"encoder.layers.{layer}.attention.in_proj.weight"] = np.zeros((24, 8), np.float16)
        arrays[f"encoder.layers.{layer}.mlp.conv1"] = np.zeros((2, 2), np.float32)
        arrays[f"encoder.layers.{layer}.mlp.conv2"] = np.zeros((2, 2), np.float32)
    arrays |= {f"编码器.層.{layer}.重み": np.zeros((4, 4), np.float32) for layer in range(3)}
    arrays |= {
        "emoji.🚀🚀.gain": np.zeros(3, np.float64),
        "emoji.❤️.bias": np.zeros(7, np.int8),
        "café.naïve.e\u0301te\u0301": np.zeros(5, np.float32),
        "한국어.가중치": np.zeros((2, 3, 4, 5), np.float32),
        "hostile.\u202egnp.\x1b[31mred": np.zeros(2, np.uint8),
        "a_name_that_is_longer_than_the_column_of_any_of_the_terminals_that_the_tests_have_and_wraps": np.zeros(
            9
        ),
    }
    path = folder / "sample.npz"
    np.savez(path, **arrays)
    return path


def on_terminal(width: int, folder: Path, *args: str, code: int = 0, **more: str) -> str:
    """What the command prints on a terminal of so many columns; checks its exit code. `more` adds to the environment."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
    env = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR")}
    with subprocess.Popen(
        [sys.executable, "-m", "rustload", *args],
        cwd=folder,
        stdout=theirs,
        env={**env, "TERM": "xterm", "PYTHONIOENCODING": "utf-8", **more},
    ) as process:
        os.close(theirs)
        shown = b""
        try:
            while part := os.read(ours, 65536):
                shown += part
        except OSError:  # Linux reports the closed other side as an error
            pass
    os.close(ours)
    assert process.returncode == code
    return shown.decode().replace("\r\n", "\n")


def plain(text: str) -> str:
    return re.sub(r"\x1b\[[\d;]+m", "", text)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("width")
    sample(folder)
    return folder


@pytest.mark.parametrize("width", WIDTHS)
def test_info_on_a_terminal_equals_the_golden_text_and_fits(folder, width):
    cell_len = pytest.importorskip("rich.cells").cell_len
    shown = plain(on_terminal(width, folder, "info", "sample.npz"))
    assert [line for line in shown.splitlines() if cell_len(line) > width] == []
    assert shown == (GOLDEN / f"info-{width}.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("width", [80, 100, 200])
def test_columns_line_up_by_the_width_that_rich_measures(folder, width):
    cell_len = pytest.importorskip("rich.cells").cell_len
    shown = plain(on_terminal(width, folder, "info", "--tensors", "sample.npz"))
    rows = [line for line in shown.split("\ntensors\n")[1].splitlines() if re.search(r"\[[\d, ]*\] ", line)]
    assert len(rows) == 46
    assert len({cell_len(re.split(r"(?<=  )[a-z0-9]+ +\[", row)[0]) for row in rows}) == 1


@pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("options", [(), ("--tensors",)], ids=["tree", "list"])
def test_hostile_names_fit_and_have_no_control_characters(tmp_path, name, options):
    import torch

    cell_len = pytest.importorskip("rich.cells").cell_len
    beside = {name[: len(name) // 2 * 2 : 2] + f".{n}": torch.zeros(2) for n in range(2)}
    torch.save({name: torch.zeros(3), **beside, "values": name, name + "x": 1}, tmp_path / "hostile.pt")
    shown = plain(on_terminal(60, tmp_path, "info", *options, "hostile.pt"))
    assert [line for line in shown.splitlines() if cell_len(line) > 60 or not line.isprintable()] == []
    assert len(shown) < 6000


def test_deep_trees_keep_to_the_width(tmp_path):
    import torch

    names = {".".join("ab" * (depth + 1)): torch.zeros(depth + 1) for depth in range(30)}
    torch.save(names, tmp_path / "deep.pt")
    shown = plain(on_terminal(50, tmp_path, "info", "deep.pt"))
    assert max(map(len, shown.splitlines())) <= 50


def test_a_pipe_gets_whole_rows(folder):
    done = cli("info", "--tensors", "sample.npz", cwd=folder, COLUMNS="40")
    rows = done.stdout.split("\ntensors\n")[1].split("\n\n")[0].splitlines()
    assert len(rows) == 46
    assert all(re.search(r" \[[\d, ]*\] +[\d.]+ K?i?B$", row) for row in rows)


def test_a_pipe_gets_whole_names(tmp_path):
    import torch

    long, tensor = "long." + "very_long_" * 13 + "name", torch.zeros(3)
    torch.save(
        {long: tensor, f"tied.{long}": tensor, "short": torch.ones(2), "x": torch.ones(2)}, tmp_path / "m.pt"
    )
    lines = cli("info", "m.pt", cwd=tmp_path).stdout.splitlines()
    assert f"  {long} = tied.{long}" in lines
    assert [line.find(" float32 ") for line in lines if "  [" in line] == [2 + 5 + len(long) + 1] * 4
    head, *rows = cli("stats", "m.pt", cwd=tmp_path).stdout.splitlines()[1:-1]
    assert {len(row) for row in rows} == {len(head), len(head) + len("  only zeros")}
    torch.save({long: tensor + 1}, tmp_path / "n.pt")
    differ = cli("diff", "m.pt", "n.pt", "--data", cwd=tmp_path).stdout
    assert re.search(rf"\n  {re.escape(long)}  +3  +3  +1 ", differ)


def test_many_tied_names_are_counted(tmp_path):
    import torch

    tensor = torch.zeros(2)
    torch.save({f"{at:02}": tensor for at in range(40)}, tmp_path / "m.pt")
    assert "= 11 and 28 more\n" in cli("info", "m.pt", cwd=tmp_path).stdout


def test_the_width_of_text_is_the_width_that_rich_measures():
    cell_len = pytest.importorskip("rich.cells").cell_len
    samples = [
        "plain", "", "层层", "重み", "ハンカク", "ﾊﾝｶｸ", "한국어", "\u1112\u1161\u11ab", "e\u0301", "🚀", "❤️", "ｗｉｄｅ",
        "Ωμέγα", "שלום", "नमस", "…", "├─ └─", "█▍·", "½", "«»",
    ]  # fmt: skip
    for text in samples:
        assert columns.columns_of(text) == cell_len(text), text
    for code in [*range(0x20, 0x3000), *range(0x3000, 0x30000, 7)]:
        char = chr(code)
        # Spacing marks and newer symbols differ between versions of Unicode; a row is never narrower than measured here.
        if char.isprintable() and columns.columns_of(char) == 0:
            assert cell_len(char) == 0, hex(code)


def test_clipped_and_wrapped_text_keeps_to_its_columns():
    dice = random.Random(7)
    for _ in range(500):
        text = "".join(dice.choice("ab e\u0301层🚀 .") for _ in range(dice.randrange(60)))
        width = dice.randrange(3, 30)
        assert columns.columns_of(columns.clip(text, width)) <= width
        lines = columns.wrap(text, width)
        assert all(columns.columns_of(line) <= width for line in lines)
        assert "".join(lines).replace(" ", "") == text.replace(" ", "")
    assert columns.clip("层层层层", 6) == "层..."
    assert columns.pad("层", 4) + "|" == "层  |"


def test_a_long_word_is_measured_a_few_times_and_not_for_each_line(monkeypatch):
    measured = []
    widths = columns._widths
    monkeypatch.setattr(columns, "_widths", lambda text: measured.append(len(text)) or widths(text))
    for word in ("層" * 50_000, "e\u0301" * 50_000, "\u0301" * 50_000):
        assert "".join(columns.wrap(f"{word} {word}", 80)) == 2 * word
        assert sum(measured) < 8 * len(word), word[:2]
        measured.clear()


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ((), ["b.{0, 1}", "a.{2, 10}", "c"]),
        (("--sort", "size"), ["c", "a.{2, 10}", "b.{0, 1}"]),
        (("--sort", "name"), ["a.{2, 10}", "b.{0, 1}", "c"]),
        (("--filter", "a.*"), ["a.{2, 10}"]),
        (("--filter", "c"), ["c"]),
        (("--tensors", "--sort", "size"), ["c", "a.10", "a.2", "b.0", "b.1"]),
        (("--tensors", "--sort", "name"), ["a.2", "a.10", "b.0", "b.1", "c"]),
        (("--tensors", "--filter", "?.1*"), ["b.1", "a.10"]),
    ],
)
def test_options_choose_and_order_the_rows(tmp_path, options, names):
    sizes = {"b.0": 1, "b.1": 1, "a.10": 4, "a.2": 4, "c": 20}
    np.savez(tmp_path / "x.npz", **{name: np.zeros(size) for name, size in sizes.items()})
    shown = on_terminal(100, tmp_path, "info", *options, "x.npz")
    rows = plain(shown).split("\ntensors\n")[1].split("\n\n")[0].splitlines()
    assert [re.split(r"  +", row.strip())[0] for row in rows] == names


def test_filter_counts_what_matches(folder):
    import json

    def info(*args):
        return cli("info", *args, "sample.npz", cwd=folder)

    shown = info("--filter", "*conv?")
    assert "  tensors     24 of 46 match *conv?\n  elements    96\n  size        384 B\n" in shown.stdout
    document = json.loads(info("--json", "--filter", "*conv?").stdout)["checkpoints"][0]
    assert (document["filter"], document["tensors_in_all"], document["nbytes"]) == ("*conv?", 46, 384)
    assert len(document["tensors"]) == 24
    unmatched = info("--filter", "*.wieght")
    assert (unmatched.returncode, unmatched.stdout) == (3, "")
    assert unmatched.stderr == (
        "rustload: error: --filter has '*.wieght', which matches no name\n  note: did you mean: *.weight\n"
    )
    unknown = info("--filter", "embed.wieght")
    assert (unknown.returncode, unknown.stdout) == (3, "")
    assert "did you mean: embed.weight" in unknown.stderr


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_depth_bounds_the_levels_of_the_tree(folder, depth):
    shown = plain(on_terminal(100, folder, "info", "--depth", str(depth), "sample.npz"))
    rows = shown.split("\ntensors\n")[1].split("\n\n")[0].splitlines()
    levels = {
        len(re.match(r"  ((?:│  |   |├─ |└─ )*)", row)[1]) // 3 + 1
        for row in rows
        if row.strip()[0] != "f" or "64  [9]" not in row
    }
    assert max(levels) == depth


@pytest.mark.parametrize("wrong", ["0", "-1", "two", "1.5"])
def test_a_depth_is_a_whole_number_from_1_on(folder, wrong):
    done = cli("info", f"--depth={wrong}", "sample.npz", cwd=folder)
    assert done.returncode == 2
    assert "a whole number from 1 on" in done.stderr


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as name:
        sample(Path(name))
        for columns_shown in WIDTHS:
            text = plain(on_terminal(columns_shown, Path(name), "info", "sample.npz"))
            (GOLDEN / f"info-{columns_shown}.txt").write_text(text, encoding="utf-8")
