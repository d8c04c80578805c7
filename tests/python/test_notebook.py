"""What notebooks show: `_repr_html_` is small, safe and well-formed; completion of names; a progress bar in one line."""

import html.parser
import io
import pickle
import re
import struct
import sys
import time

import pytest
import torch
from quiet import within
from support import Reduced, child, sparse

import rustload
import rustload.torch
from rustload._common import progress

HOSTILE = {
    "script": "</script><img src=x onerror=alert(1)>",
    "details": "</details></div><script>alert(1)</script>",
    "attribute": '" onmouseover="alert(1)" x=\'',
    "style": "</style><style>*{display:none}",
    "bidi": "a.\u202egnp.exe",
    "escape": "a.\x1b[31m\x00\r\n",
    "entity": "&lt;b&gt;&#60;script&#62;",
    "surrogate": "a\ud800b",
    "long": "x" * 100_000,
    "wide": "層" * 20_000,
    "dots": "." * 5000,
}


class Epoch:
    """A class that rustload keeps as data."""


VOID = {"img", "br", "hr", "input", "meta", "link"}


class Page(html.parser.HTMLParser):
    """Checks that tags are closed in order; collects tags, attributes and text."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.words.append(data)

    @property
    def text(self) -> str:
        return "\n".join(self.words)


def check(found: str) -> Page:
    """Well-formed, within 50 kB, with no tag or attribute but rustload's own."""
    assert len(found.encode()) <= 50_000
    page = Page(found)
    allowed = {"div", "style", "pre", "b", "span", "details", "summary", "p", "table", "tr", "td", "th", "i"}
    assert {tag for tag, _ in page.tags} <= allowed
    assert {name for _, attributes in page.tags for name in attributes} <= {"class", "style", "open"}
    styles = {attributes["style"] for _, attributes in page.tags if "style" in attributes}
    own = r"display:none|width:[\d.]+%|text-align:(left|right;white-space:nowrap)|table-layout:auto"
    assert all(re.fullmatch(own, style) for style in styles)
    assert page.tags[0] == ("div", {"class": "rustload-repr"})
    style = found.partition("<style>")[2].partition("</style>")[0]
    # Every rule is of rustload's class, so that the page around it keeps its looks.
    for selector in re.findall(r"([^{}]+)\{[^{}]*\}", re.sub(r"@media[^{]*\{", "", style)):
        assert all(".rustload-repr" in one for one in re.split(r",(?![^(]*\))", selector)), selector
    assert not re.search(r"script|https?:|url\(|@import|javascript:", style)
    assert all(char.isprintable() or char == "\n" for char in page.text)
    return page


@pytest.fixture
def ckpt(save):
    state = {"embed.weight": torch.zeros(10, 4)}
    for number in range(12):
        state[f"layers.{number}.attn.weight"] = torch.zeros(2, 3, dtype=torch.bfloat16)
        state[f"layers.{number}.norm.weight"] = torch.zeros(4)
    state["head.weight"] = state["embed.weight"]
    return rustload.open(save(state))


def test_a_checkpoint_is_a_folded_tree_without_data(ckpt):
    page = check(ckpt._repr_html_())
    for word in (
        "Checkpoint",
        "embed.weight",
        "layers.{0..11}",
        "attn.weight",
        "bfloat16",
        "[2, 3]",
        "tied",
        "12 × 2 tensors",
    ):
        assert word in page.text, word
    # The section is open, and so are the groups at its first level.
    assert [attributes for tag, attributes in page.tags if tag == "details"] == [{"open": None}] * 2
    assert "tensors" in page.text
    assert "not all is shown" not in page.text
    assert "26 tensors" in page.text


def test_a_selection_shows_its_own_names(ckpt):
    page = check(ckpt.select("layers.*").strip("layers")._repr_html_())
    assert "{0..11}" in page.text
    assert "Selection" in page.text
    assert "embed" not in page.text
    # A lone group is open.
    assert [attributes for tag, attributes in page.tags if tag == "details"] == [
        {"open": None},
        {"open": None},
    ]
    assert "no tensors" in check(ckpt.select([])._repr_html_()).text


def test_a_tensor_is_a_table(ckpt, save):
    page = check(ckpt["embed.weight"]._repr_html_())
    assert [word for word in page.words if word in ("embed.weight", "float32", "[10, 4]", "160 B")] == [
        "embed.weight", "float32", "[10, 4]", "160 B",
    ]  # fmt: skip
    assert "strides" in check(ckpt["embed.weight"].T._repr_html_()).text
    joined = rustload.stack([ckpt[f"layers.{number % 12}.norm.weight"] for number in range(40)])
    page = check(joined._repr_html_())
    assert "(40)" in page.text
    assert "and 28 more: see .parts" in page.text
    parameter = rustload.open(save({"p": torch.nn.Parameter(torch.ones(2))}, "p.pt"))["p"]
    assert "parameter, requires grad" in check(parameter._repr_html_()).text


@pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE)
def test_hostile_names_are_text(name):
    state = {name: torch.zeros(2), f"{name}.x": torch.zeros(3), "tied": torch.zeros(4), name + name: name}
    file = io.BytesIO()
    pickle_safe = {
        key.encode(errors="surrogatepass").decode(errors="replace"): value for key, value in state.items()
    }
    torch.save(pickle_safe, file)
    ckpt = rustload.open(file.getvalue())
    for shown in (ckpt, ckpt.select("*"), *ckpt.values(), rustload.concat(list(ckpt.values()))):
        check(shown._repr_html_())
    one = next(iter(pickle_safe))
    report = rustload.torch.LoadReport(
        [one] * 500, [one], [rustload.torch.Mismatch(one, (1,), (2,))] * 200, [rustload.torch.Converted(one, one, one)],
        [[one, one]], [], 1, 1, 1.0, None, None, [one],
    )  # fmt: skip
    assert "see report.missing" in check(report._repr_html_()).text
    check(rustload.SaveReport(one, {one: 3}, 1, 3, {one: one}, [one], 1, 0, 0.1)._repr_html_())
    changed = rustload.TensorDiff(one, (one, one), ((1,), (2,)))
    differences = rustload.DiffReport(
        one, one, "", one, True, [f"{one}{number}x" for number in range(500)], [one], [changed] * 3, [changed], 1,
        [one] * 60, 0.1,
    )  # fmt: skip
    page = check(differences._repr_html_())
    assert "see report.only_a" in page.text
    assert "see report.notes" in page.text


def test_a_comparison_is_its_last_line_and_its_lists(save):
    one = {f"layers.{number}.w": torch.zeros(4) for number in range(60)} | {"gone": torch.zeros(1)}
    two = {name: value + (number == 1) for number, (name, value) in enumerate(one.items()) if name != "gone"}
    two |= {f"new.{number}.b": torch.zeros(2) for number in range(60)} | {"layers.3.w": torch.zeros(5)}
    report = rustload.diff(save(one, "a.bin"), save(two, "b.bin"), data=True)
    page = check(report._repr_html_())
    assert "different: 2 of 60 tensors, 1 only in the first, 60 only in the second, 58 equal" in page.text
    for words in ("only_a", "gone", "new.{0..59}.b", " (60)", "layers.1.w", "[4] / [5]"):
        assert words in page.text, words
    assert "4 of 4 elements differ, max abs 1, max rel 1, rel L2 inf, rms 1, first [0]" in page.text
    assert "not all is shown" not in page.text
    # Short sections are open; empty ones are left out.
    assert [attributes for tag, attributes in page.tags if tag == "details"] == [{"open": None}] * 3
    same = check(rustload.diff(save(one, "a.bin"), save(one, "c.bin"))._repr_html_())
    assert (
        "same structure: 61 tensors, same names, dtypes and shapes; no element was compared: pass data=True"
        in same.text
    )


@pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE)
def test_hostile_names_in_a_scan_are_text(name):
    name = name.encode(errors="replace").decode().replace("\n", "")[:3000]
    data = b"\x80\x04\x8c" + b"".join(
        struct.pack("<B", min(len(part), 255)) + part[:255] + (b"\x8c" if number == 0 else b"")
        for number, part in enumerate((b"os", name.encode()[:200].decode(errors="ignore").encode()))
    )
    data += b"\x93\x8c\x08<b>x</b>\x85R."
    report = rustload.scan(data)
    assert report.verdict != "inert"
    page = check(report._repr_html_())
    assert report.verdict in page.text
    check(report.files[0]._repr_html_())


def test_a_scan_of_many_files_is_cut(tmp_path):
    call = Reduced(print, ("<b>" * 50,))
    for number in range(300):
        (tmp_path / f"f{number:03}.pkl").write_bytes(pickle.dumps([call] * (number % 7)))
    report = rustload.scan(tmp_path)
    page = check(report._repr_html_())
    shown = page.text.count(".pkl: ")
    assert 10 < shown <= 100
    assert f"{300 - shown} more files are not shown" in page.text
    assert "would execute" in page.text


def large(path, names):
    return rustload.open(sparse(path, dict.fromkeys(names, ("BF16", [4, 2]))))


def test_150_000_tensors_are_50_kb_in_two_seconds(tmp_path):
    parts = [
        f"mlp.experts.{expert}.{kind}_proj.weight" for expert in range(128) for kind in ("gate", "up", "down")
    ]
    ckpt = large(
        tmp_path / "moe.safetensors",
        [f"model.layers.{layer}.{part}" for layer in range(391) for part in parts],
    )
    assert len(ckpt) > 150_000
    seconds = []
    for _ in range(3):
        start = time.process_time()
        found = ckpt._repr_html_()
        seconds.append(time.process_time() - start)
    assert "391 × 384 tensors" in check(found).text or "50,048 × 3 tensors" in check(found).text
    assert within(min(seconds), 2.0)


def test_150_000_tensors_that_do_not_fold_are_cut(tmp_path):
    ckpt = large(
        tmp_path / "flat.safetensors", [f"block_{number % 997}.weight_{number}" for number in range(150_000)]
    )
    start = time.process_time()
    page = check(ckpt._repr_html_())
    assert within(time.process_time() - start, 3.0)
    assert "not all is shown: see list(ckpt), or rustload info " in page.text
    assert page.text.count("tensors") > 100


def test_ipython_picks_the_html(ckpt):
    formatters = pytest.importorskip("IPython.core.formatters")
    bundle, _ = formatters.DisplayFormatter().format(ckpt)
    assert bundle["text/html"] == ckpt._repr_html_()
    assert bundle["text/plain"] == repr(ckpt)


def test_names_are_completed(ckpt):
    assert ckpt._ipython_key_completions_() == list(ckpt)
    assert ckpt.select("head*")._ipython_key_completions_() == ["head.weight"]


def test_completion_in_ipython(ckpt):
    completer = pytest.importorskip("IPython.core.completer")
    shell = completer.IPCompleter(namespace={"ckpt": ckpt})
    with completer.provisionalcompleter():
        found = [one.text for one in shell.completions('ckpt["head', 10)]
    assert any("head.weight" in text for text in found)


def test_html_imports_no_other_package(tmp_path):
    import numpy as np

    np.savez(tmp_path / "x.npz", a=np.zeros(2))
    child(
        """
        import sys, rustload
        ckpt = rustload.open(sys.argv[1])
        ckpt._repr_html_(), ckpt["a"]._repr_html_(), rustload.scan(sys.argv[1])._repr_html_()
        assert not {"numpy", "torch", "jax", "rich", "IPython"} & sys.modules.keys()
        """,
        tmp_path / "x.npz",
    )


def test_no_tensor_is_read(ckpt, tmp_path):
    path = tmp_path / "cut.safetensors"
    rustload.save(ckpt, path)
    opened = rustload.open(path)
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 1)  # a read would fail now
    check(opened._repr_html_())
    check(opened["embed.weight"]._repr_html_())
    with pytest.raises(rustload.FormatError):
        opened["embed.weight"].materialize(copy=True)


class NotebookStream(io.StringIO):
    """As the stderr of ipykernel: no terminal."""


NotebookStream.__module__ = "ipykernel.iostream"


@pytest.mark.parametrize("fails", [False, True])
def test_a_notebook_gets_a_bar_in_one_line(monkeypatch, fails):
    monkeypatch.setattr(sys, "stderr", stream := NotebookStream())
    monkeypatch.setattr(progress, "_REFRESH_SECONDS", 0)
    with pytest.raises(KeyboardInterrupt) if fails else _nothing(), progress.reporting(True, 1000) as report:
        for number in range(1000):
            if fails and number == 300:
                raise KeyboardInterrupt
            report(1, f"層.{number}" * 20)
    written = stream.getvalue()
    assert written.count("\n") == 1
    assert written.endswith(" stopped\n" if fails else "\n")
    assert ("100%" in written) is not fails
    from rich.cells import cell_len

    assert max(map(cell_len, written.split("\r"))) <= 119


def test_a_bar_in_a_notebook_does_not_flood(monkeypatch):
    monkeypatch.setattr(sys, "stderr", stream := NotebookStream())
    start = time.monotonic()
    with progress.reporting(True, 100_000) as report:
        for number in range(100_000):
            report(1, f"layer.{number}")
    updates = stream.getvalue().count("\r")
    assert updates <= 4 + (time.monotonic() - start) / progress._REFRESH_SECONDS


def _nothing():
    import contextlib

    return contextlib.nullcontext()


def test_statistics_are_a_short_table(tmp_path):
    torch.save({f"layer.{number}": torch.ones(2) for number in range(40)}, tmp_path / "many.pt")
    found = rustload.open(tmp_path / "many.pt").stats()
    assert repr(found) == "<Statistics of 40 tensors>"
    page = found._repr_html_()
    check(page)
    first, _, folded = page.partition("<details>")
    assert first.count("<tr>") == 13
    assert folded.count("<tr>") == 29
    number = '<td style="text-align:right;white-space:nowrap">1</td>'
    assert f'<td style="text-align:left"><div class="k">layer.0</div></td>{number}' in first
    assert "layer.39" in folded


def test_tables_hold_their_alignment_in_the_styles_of_notebooks(tmp_path):
    torch.save({"a": torch.ones(2)}, tmp_path / "a.pt")
    page = rustload.open(tmp_path / "a.pt")._repr_html_()
    assert '<table style="table-layout:auto">' in page
    assert "<td>" not in page
    assert '<td style="text-align:right;white-space:nowrap">8 B</td>' in page


def test_values_beside_the_tensors_are_listed(tmp_path):
    run = {
        "model": {"w": torch.ones(2)},
        "epoch": 3,
        "name": "run \x1b",
        "huge": 10**2000,
        10**1000: 1,
        "at": Epoch(),
    }
    torch.save(run, tmp_path / "run.ckpt")
    ckpt = rustload.open(tmp_path / "run.ckpt")
    page = check(ckpt._repr_html_())
    words = " ".join(" ".join(page.words).split())
    for shown in (
        "values (6)",
        "model dict of 1",
        "epoch 3",
        "huge int of 6,644 bits",
        "int of 3,322 bits 1",
    ):
        assert shown in words
    assert r"name 'run \x1b'" in words
    assert f"<opaque {Epoch.__module__}.Epoch>" in words
    assert "kept as data" in words
    assert "values" not in ckpt.select("*")._repr_html_()
    torch.save(
        {f"{at}": name for at, name in enumerate(HOSTILE.values())} | dict.fromkeys(HOSTILE.values(), 1),
        tmp_path / "x.ckpt",
    )
    page = check(rustload.open(tmp_path / "x.ckpt")._repr_html_())
    assert "script" not in {tag for tag, _ in page.tags}
    assert "not all is shown: see ckpt.objects" in " ".join(page.words)
