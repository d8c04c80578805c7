"""`rustload stats` and `rustload diff` fit the terminal, and give other programs whole rows."""

import re
from pathlib import Path

import numpy as np
import pytest
from support import cli
from test_info_width import HOSTILE, on_terminal, plain

WIDTHS = (24, 40, 60, 80, 81, 100, 120, 200)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stats-width")
    dice = np.random.default_rng(7)
    arrays = {
        "model.layers.0.mlp.experts.17.down_proj.weight_scale_inv": dice.normal(size=(64, 16)).astype("f4"),
        "conv.weight": dice.normal(size=(8, 3, 3, 3)).astype("f2"),
        "bad": np.array([1, np.nan, np.inf, 0], "f8"),
        "dead": np.zeros(7, "f4"),
        "ids": np.arange(1000) * 10**12,
        "重み": dice.normal(size=4),
        "ends": np.array([0, 0, 0, 1, 1, 1.0]),
        "complex": np.array([1j]),
        "empty": np.zeros((0, 3)),
    }
    np.savez(folder / "a.npz", **arrays)
    del arrays["dead"]
    arrays["bad"] = np.zeros(4)
    arrays["ids"] = arrays["ids"].astype("f4")
    np.savez(folder / "b.npz", **arrays)
    return folder


def too_wide(text: str, width: int) -> list[str]:
    cell_len = pytest.importorskip("rich.cells").cell_len
    return [line for line in plain(text).splitlines() if cell_len(line) > width or not line.isprintable()]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("options", [(), ("--bins", "20")], ids=["numbers", "histograms"])
def test_statistics_fit_the_terminal(folder, width, options):
    shown = plain(on_terminal(width, folder, "stats", *options, "a.npz"))
    assert too_wide(shown, width) == []
    # No number is lost, however the lines are split.
    flat = " ".join(shown.split())
    for name in ("conv.weight", "bad", "dead", "ids", "重み", "empty"):
        assert f" {name} " in flat
    for words in ("float64[4]", "1 NaN, 1 infinite", "only zeros", "9.99e+14", "float64[0, 3]"):
        assert words in flat, words
    assert flat.endswith("2,263 numbers read; 1 tensor with NaN or infinities")


@pytest.mark.parametrize("width", [80, 81, 100, 120, 200])
@pytest.mark.parametrize("options", [(), ("--bins", "20")], ids=["numbers", "histograms"])
def test_numbers_line_up_from_80_columns_on(folder, width, options):
    cell_len = pytest.importorskip("rich.cells").cell_len
    lines = plain(on_terminal(width, folder, "stats", *options, "a.npz")).splitlines()
    assert lines[1].split() == ["min", "max", "mean", "std", "zeros"]
    rows = [line for line in lines if re.search(r"\d\[[\d, ]*\] ", line)]
    assert len(rows) == 9
    ends = {
        tuple(cell_len(line[: match.end(at)]) for at in range(1, 6))
        for line in rows
        for match in [re.search(r"\]" + r" +([-\d.e+]+%?)" * 5, line)]
        if match is not None
    }
    heads = [match.end() for match in re.finditer(r"\S+", lines[1])]
    assert ends == {tuple(heads)}


def test_one_long_name_does_not_split_the_other_rows(tmp_path):
    arrays = {f"layer.{at}": np.linspace(-1.2345, 2, 40_000).reshape(200, 200) for at in range(20)}
    np.savez(tmp_path / "a.npz", **arrays, **{"a.name." * 9: np.ones(2)})
    shown = plain(on_terminal(80, tmp_path, "stats", "a.npz"))
    assert too_wide(shown, 80) == []
    assert len(re.findall(r"\n  layer\.\d+ +float64\[200, 200\] +-1\.234 ", shown)) == 20


def test_rows_of_eight_numbers_fit_80_columns(tmp_path):
    np.savez(tmp_path / "a.npz", w=np.linspace(-0.012345, 1, 32).reshape(4, 8))
    shown = plain(on_terminal(80, tmp_path, "show", "a.npz", "w")).splitlines()
    assert len(shown) == 5
    assert shown[1].startswith("  [[-0.0123,")


def test_a_folder_is_shown_by_its_name(tmp_path):
    import rustload

    for name in ("one", "two"):
        tensors = {str(at): np.ones(100, "f4") for at in range(4)}
        rustload.save(tensors, tmp_path / name, max_shard_size=500)
    shown = [repr(rustload.open(tmp_path / name)) for name in ("one", "two")]
    assert shown[0].startswith(f"<Checkpoint {str(tmp_path / 'one')!r} safetensors in 4 files, 4 tensors")
    assert shown[1] == shown[0].replace("/one'", "/two'")


def test_a_histogram_below_its_row_keeps_its_gaps(folder):
    for width in (40, 80, 200):
        shown = plain(on_terminal(width, folder, "stats", "--bins", "20", "--select", "ends", "a.npz"))
        assert "█" + " " * 18 + "█" in shown, width


@pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE)
def test_hostile_names_fit(tmp_path, name):
    import torch

    torch.save({name: torch.zeros(3), "b": torch.ones(1)}, tmp_path / "hostile.pt")
    torch.save({name: torch.ones(3), name + "x": torch.ones(1)}, tmp_path / "other.pt")
    for width in (40, 80):
        shown = on_terminal(width, tmp_path, "stats", "hostile.pt")
        shown += on_terminal(width, tmp_path, "info", "--tensors", "hostile.pt")
        assert too_wide(shown, width) == []
        shown += on_terminal(width, tmp_path, "diff", "--data", "hostile.pt", "other.pt", code=1)
        assert too_wide(shown, width) == []
        assert len(shown) < 9000


@pytest.mark.parametrize("width", WIDTHS[1:])
def test_differences_fit_the_terminal(folder, width):
    for options, code in (((), 1), (("--data", "--cast"), 1)):
        shown = on_terminal(width, folder, "diff", "a.npz", "b.npz", *options, code=code)
        assert too_wide(shown, width) == []
    shown = on_terminal(width, folder, "diff", "a.npz", "a.npz")
    assert too_wide(shown, width) == []
    flat = " ".join(plain(shown).split())
    assert (
        "same structure: 9 tensors, same names, dtypes and shapes; no element was compared: pass --data"
        in flat
    )


@pytest.mark.parametrize("width", [80, 81, 100, 120, 200])
def test_distances_line_up_from_80_columns_on(tmp_path, width):
    cell_len = pytest.importorskip("rich.cells").cell_len
    dice = np.random.default_rng(8)
    one = {f"model.layers.{at}.self_attn.q_proj.weight": dice.normal(size=(9, 7 + at)) for at in range(6)}
    one |= {"重み": dice.normal(size=3), "nan": np.ones(5), "some": np.ones(70000)}
    two = {name: value + 1e-3 * dice.normal(size=value.shape) for name, value in one.items()}
    two["nan"], two["some"] = np.array([np.nan, 1, 1, 1, 1]), one["some"] * ([1] * 69990 + [3] * 10)
    np.savez(tmp_path / "one.npz", **one)
    np.savez(tmp_path / "two.npz", **two)
    shown = plain(on_terminal(width, tmp_path, "diff", "--data", "one.npz", "two.npz", code=1))
    assert too_wide(shown, width) == []
    head, *lines = shown.split("different (9 tensors)\n")[1].split("\n\n")[0].splitlines()
    titles = head.strip().split("  ")
    assert [title for title in map(str.strip, titles) if title] == [
        title
        for title in ("differ", "of", "max abs", "max rel", "rel L2", "rms", "cosine", "first")
        if width >= 120
        or title in ("differ", "max abs", "rel L2", "cosine")
        or (width == 100 and title in ("of", "max rel"))
    ]
    ends = [match.end() for match in re.finditer(r"\S+( [a-zL]\S*)?", head)]
    rows = [line for line in lines if line[2] != " "]
    assert len(rows) == 9
    for line in rows:
        # Each column ends under its title; what is no column, as of NaN, follows or is below.
        columns = ["".join(char * max(cell_len(char), 1) for char in line)[at - 1 : at + 1] for at in ends]
        assert all(cell[0] != " " and cell[1:] in ("", " ") for cell in columns), line
    assert [line.split()[0] for line in lines if "1 NaN in one only" in line] == [
        "nan" if width > 130 else "1"
    ]
    assert shown.splitlines()[-1] == "  different: 9 of 9 tensors"


def test_a_title_that_is_a_long_path_is_wrapped(tmp_path):
    for name, number in (("a" * 90, 1), ("b" * 90, 2)):
        np.savez(tmp_path / f"{name}.npz", **{f"w{number}": np.zeros(2)})
    shown = on_terminal(60, tmp_path, "diff", f"{'a' * 90}.npz", f"{'b' * 90}.npz", code=1)
    assert too_wide(shown, 60) == []


def test_a_pipe_gets_whole_rows(folder):
    done = cli("stats", "--bins", "20", "a.npz", cwd=folder, COLUMNS="40")
    rows = done.stdout.splitlines()[2:-1]
    assert len(rows) == 9
    assert all(re.search(r"^  \S+ +[a-z]+\d+\[[\d, ]*\]" + r" +[-\d.e+]+%?" * 5, row) for row in rows)
