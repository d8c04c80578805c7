"""`rustload view`: the page has what `info --json` has, is small and closed, and names from files are text; the SVG image."""

import base64
import hashlib
import html.parser
import json
import math
import os
import random
import re
import runpy
import string
import time
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
import torch
from quiet import within
from support import Reduced, child, cli, sparse
from torch.distributed import checkpoint as dcp

import rustload
from rustload._common import tree
from rustload._view.page import SCRIPTS
from rustload._view.palette import DARK, INK, LIGHT
from rustload._view.treemap import Rect, squarify

LEVELS, HEIGHT_MAX = f"{string.digits}{string.ascii_letters}-_", 63
"""The characters for the heights of bars."""
HOSTILE = [
    "</script><img src=x onerror=alert(1)>",
    "</pre><script>alert(2)</script>",
    "<!--<script>",
    "{{script}}{{data}}",
    '" onmouseover="alert(3)" x=\'',
    "a.\u202egnp.exe",
    "a.\x1b[31m\x00\r\n",
    "&lt;b&gt;&#60;script&#62;",
    "a\u2028b",
    "x" * 10_000,
    "." * 3000,
    "層" * 2000,
]


class Page(html.parser.HTMLParser):
    """The parts of a page, and all its tags."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.content: dict[str, list[str]] = {}
        self._open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag != "meta":
            self._open.append(dict(attrs).get("id") or tag)
            self.content.setdefault(self._open[-1], []).append("")

    def handle_endtag(self, _tag):
        self._open.pop()

    def handle_data(self, data):
        if self._open:
            self.content[self._open[-1]][-1] += data

    @property
    def data(self):
        return json.loads(self.content["data"][0])


def view(path, tmp_path, **options):
    """The page of a checkpoint."""
    written = rustload.view(path, tmp_path / "page.html", **options)
    return Page(written.read_text("utf-8"))


def names_and_folds(data):
    """The full name of each tensor, and the path of labels with folds in their place, in the page's order."""
    folds = from_runs(data["fold"])
    names, folded, open_ = [], [], [[data["roots"], "", ""]]
    for label, shape, fold in zip(data["nodes"][::2], data["nodes"][1::2], folds, strict=True):
        while open_[-1][0] == 0:
            open_.pop()
        open_[-1][0] -= 1
        text = data["labels"][label]
        name = open_[-1][1] + text
        path = open_[-1][2] + (data["folds"][fold - 1] if fold else text)
        if shape & 1:
            names.append(name)
            folded.append(path)
        open_.append([shape >> 1, name + ".", path + "."])
    return names, folded


def from_runs(runs):
    out, value = [], 0
    for difference, length in zip(runs[::2], runs[1::2], strict=True):
        for _ in range(length):
            value += int(difference)
            out.append(value)
    return out


def experts(layers, per_layer):
    return {
        f"model.layers.{layer}.mlp.experts.{expert}.{part}_proj.weight": ("F8_E4M3", [768, 2048])
        for layer in range(layers)
        for expert in range(per_layer)
        for part in ("gate", "up", "down")
    }


@pytest.fixture
def state():
    found = {"embed.weight": torch.zeros(40, 4)}
    for number in range(12):
        found[f"layers.{number}.attn.weight"] = torch.ones(2, 3, dtype=torch.bfloat16)
        found[f"layers.{number}.norm.weight"] = torch.nn.Parameter(torch.ones(4))
    found["layers.3.extra"] = torch.ones(6, 4).T
    found["head.weight"] = found["embed.weight"]
    found["part"] = found["embed.weight"][2:5]
    return found


def test_the_page_has_what_info_has(state, save, tmp_path):
    path = save({**state, "epoch": 3, "note": "second", "sizes": [1, 2]})
    info = json.loads(cli("info", "--json", path).stdout)["checkpoints"][0]
    page = view(path, tmp_path)
    data = page.data
    for key in ("format", "elements", "nbytes", "storage_nbytes", "dtypes"):
        assert data[key] == info[key], key
    names, _ = names_and_folds(data)
    expected = {entry["name"]: entry for entry in info["tensors"]}
    assert sorted(names) == sorted(expected)
    columns = {key: from_runs(data[key]) for key in ("file", "storage", "offset", "flags")}
    for at, name in enumerate(names):
        entry = expected[name]
        dtype, shape, strides, nbytes = data["kinds"][data["kind"][at]]
        assert (data["dtype_names"][dtype], shape, nbytes) == (
            entry["dtype"],
            entry["shape"],
            entry["nbytes"],
        )
        assert strides == (None if entry["contiguous"] else entry["strides"])
        assert [columns["file"][at], columns["storage"][at]] == entry["storage"]
        assert columns["offset"][at] == entry["storage_offset"]
        flags = columns["flags"][at]
        assert (bool(flags & 1), bool(flags & 4)) == (entry["parameter"], entry["repeats"])
        assert bool(flags & 2) == any(name in group for group in info["tied"])
    assert [[names[at] for at in group] for group in data["tied"]] == info["tied"]
    assert data["values"]["items"] == [
        ["epoch", "int", "3"],
        ["note", "str", "'second'"],
        ["sizes", "list", "2 items"],
    ]
    assert data["globals"]["items"] == info["globals"]
    assert data["scan"]["verdict"] == "inert"
    assert "{0..2, 4..11}" in page.content["text"][0]


def random_names(seed):
    """Names with numbers, of few kinds, so that many subtrees are equal."""
    chosen = random.Random(seed)
    parts = [*map(str, range(12)), "07", "08", "09", "00", "w", "b", 'k["x.1"]', "[", "", "٣"]
    names = {
        ".".join(chosen.choices(parts, k=chosen.randint(1, 4))) for _ in range(chosen.choice([5, 60, 400]))
    }
    return {name: torch.zeros(chosen.choice([1, 1, 1, 2])) for name in sorted(names)}


@pytest.mark.parametrize("seed", [None, *range(12)])
def test_folds_are_those_of_the_tree_of_info(state, save, tmp_path, seed):
    ckpt = rustload.open(save(state if seed is None else random_names(seed)))
    tied = {name for group in ckpt.tied for name in group}
    _, folded = names_and_folds(view(ckpt, tmp_path).data)
    root = tree.build(
        (name, tree.Leaf(str(t.dtype), t.shape, t.nbytes, t.name in tied), 1) for name, t in ckpt.items()
    )
    shown, path = set(), []
    for node, lasts in tree.walk(root):
        path[len(lasts) - 1 :] = [node.label]
        if node.leaf:
            shown.add(".".join(path))
    assert set(folded) == shown


def check_closed(text: str) -> Page:
    """No request, and no script or style but those whose hashes the policy has."""
    page = Page(text)
    assert not re.search(
        r"https?:|//[a-z]+\.|@import|url\(|\bfetch\(|XMLHttp|WebSocket|innerHTML|document\.write|\beval\(",
        strip_data(text),
    )
    assert [tag for tag, _ in page.tags] == [
        "html",
        "head",
        *["meta"] * 6,
        "title",
        "style",
        "body",
        "div",
        "pre",
        "script",
        "script",
    ]
    assert {key for _, attrs in page.tags for key in attrs} <= {
        "lang",
        "charset",
        "name",
        "content",
        "http-equiv",
        "id",
        "hidden",
        "type",
    }
    policy = next(attrs["content"] for _, attrs in page.tags if "http-equiv" in attrs)
    scripts = [text for text in page.content["script"] if text]
    assert len(scripts) == 1
    for kind, content in (("script", scripts[0]), ("style", page.content["style"][0])):
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    return page


def strip_data(text: str) -> str:
    return re.sub(
        r'(<pre id="text">).*?(</pre>)|(id="data">).*?(</script>)|<title>.*?</title>',
        "",
        text,
        flags=re.DOTALL,
    )


def test_a_page_makes_no_request_and_has_the_hashes_of_its_script(state, save, tmp_path):
    rustload.view(save(state), tmp_path / "page.html", stats="full")
    check_closed((tmp_path / "page.html").read_text("utf-8"))


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_names_are_text(name, tmp_path):
    path = tmp_path / "hostile.pt"
    tensors = {name: torch.zeros(2), f"{name}.x": torch.zeros(3), "plain": torch.zeros(1)}
    torch.save({**tensors, f"value {name}": name, "deep": {name: tensors[name]}}, path)
    for stats in (None, "full"):
        text = rustload.view(path, tmp_path / "page.html", stats=stats).read_text("utf-8")
        page = check_closed(text)
        assert all(char.isprintable() or char == "\n" for char in text)
        assert all(char not in page.content["data"][0] for char in "<>&")
        assert len(page.data["kind"]) == 4
        assert len(text) < 400_000
    image = rustload.view(path, tmp_path / "map.svg", svg=True).read_text("utf-8")
    assert {one.tag.rpartition("}")[2] for one in ET.fromstring(image).iter()} <= {
        "svg",
        "style",
        "rect",
        "pattern",
        "path",
        "text",
    }


def test_a_hostile_path_is_text(tmp_path):
    path = tmp_path / "<img src=x onerror=alert(1)>\u202e.npy"
    torch.save({"a": torch.zeros(1)}, path)
    page = check_closed(rustload.view(path, tmp_path / "page.html").read_text("utf-8"))
    assert page.data["name"] == "<img src=x onerror=alert(1)>\\u202e.npy"
    ET.fromstring(rustload.view(path, tmp_path / "m.svg", svg=True).read_text("utf-8"))


def test_lone_surrogates_are_spelled_out(tmp_path):
    path = tmp_path / "surrogate.pkl"
    # BINUNICODE with the surrogate that pickle's protocol writes for it, as a key beside a tensor.
    torch.save({"a": torch.zeros(1), "b\ud800": 3}, path, _use_new_zipfile_serialization=False)
    page = check_closed(rustload.view(path, tmp_path / "page.html").read_text("utf-8"))
    assert page.data["values"]["items"][0][0] == "b\\ud800"


def test_20_000_tensors_are_less_than_1_mb_in_seconds(tmp_path):
    path = sparse(tmp_path / "moe.safetensors", experts(53, 128))
    start = time.process_time()
    text = rustload.view(path, tmp_path / "page.html").read_text("utf-8")
    assert within(time.process_time() - start, 4)
    assert len(Page(text).data["kind"]) == 20_352
    assert len(text.encode()) < 1_000_000


def test_a_sparse_file_of_40_gb_takes_less_than_a_second(tmp_path):
    path = sparse(
        tmp_path / "large.safetensors", {f"layers.{n}.weight": ("F32", [12_500, 10_000]) for n in range(80)}
    )
    assert path.stat().st_size > 40_000_000_000
    code = "import rustload, sys, time; s = time.perf_counter(); rustload.view(*sys.argv[1:3]); print(time.perf_counter() - s)"
    best = min(float(child(code, path, tmp_path / "page.html").stdout) for _ in range(3))
    assert best < 1


def test_statistics_and_histograms(tmp_path):
    torch.manual_seed(0)
    tensors = {
        "a": torch.randn(100, 70),
        "n": torch.tensor([1.0, math.nan, math.inf, 0.0]),
        "i": torch.arange(10),
        "z": torch.zeros(5),
    }
    rustload.save(tensors, tmp_path / "s.safetensors")
    ckpt = rustload.open(tmp_path / "s.safetensors")
    data = view(ckpt, tmp_path, stats="full").data
    names, _ = names_and_folds(data)
    found = ckpt.stats(bins=48)
    assert data["stats"]["sampled"] is False
    for name, (total, nan, infinite, zeros, subnormal, low, high, mean, std, bars) in zip(
        names, data["stats"]["rows"], strict=True
    ):
        one = found[name]
        assert (total, nan, infinite, zeros, subnormal) == (
            one.total,
            one.nan,
            one.infinite,
            one.zeros,
            one.subnormal,
        )
        assert (low, high, mean, std) == pytest.approx((one.min, one.max, one.mean, one.std), rel=1e-5)
        counts = one.histogram.counts
        assert [LEVELS.index(bar) for bar in bars] == [
            math.ceil(count * HEIGHT_MAX / max(counts)) for count in counts
        ]
    assert view(ckpt, tmp_path, stats=None).data["stats"] is None
    big = tmp_path / "big.safetensors"
    rustload.save({"b": torch.zeros(200_000)}, big)
    assert view(big, tmp_path, stats="sample").data["stats"]["sampled"] is True
    with pytest.raises(ValueError, match="stats= is None, 'sample' or 'full'"):
        rustload.view(big, tmp_path / "page.html", stats=True)


def test_findings_of_a_scan(tmp_path):
    evil = Reduced(os.system, ("echo </script>",))
    torch.save({"a": torch.zeros(2), "b": evil}, tmp_path / "evil.pt")
    data = check_closed(rustload.view(tmp_path / "evil.pt", tmp_path / "page.html").read_text("utf-8")).data
    assert data["scan"]["verdict"] == "would execute"
    finding = data["scan"]["files"][0]["findings"]["items"][0]
    assert "system('echo </script>')" in finding["what"]
    assert view(tmp_path / "evil.pt", tmp_path, scan=False).data["scan"] is None


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore:.*torch.distributed")
def test_the_files_that_a_distributed_checkpoint_names_are_scanned_and_not_replaced(tmp_path):
    dcp.save(
        {"w": torch.ones(3), "value": Reduced(open, ("/dev/null",))},
        checkpoint_id=tmp_path / "saved",
        no_dist=True,
    )
    for source in (tmp_path / "saved", rustload.open(tmp_path / "saved")):
        scan = view(source, tmp_path).data["scan"]
        assert scan["verdict"] == rustload.scan(tmp_path / "saved").verdict == "would execute"
        assert [file["name"] for file in scan["files"]] == [".metadata", "__0_0.distcp"]
    with pytest.raises(ValueError, match="is a file of the checkpoint"):
        rustload.view(tmp_path / "saved", tmp_path / "saved" / "__0_0.distcp", overwrite=True)


def test_only_files_of_view_are_replaced(save, tmp_path):
    path = save({"a": torch.zeros(2)})
    target = tmp_path / "page.html"
    target.write_text("<!doctype html> mine")
    with pytest.raises(FileExistsError) as caught:
        rustload.view(path, target)
    assert caught.value.code == "TargetExists"
    assert target.read_text() == "<!doctype html> mine"
    rustload.view(path, target, overwrite=True)
    before = target.stat().st_ino
    rustload.view(path, target)  # its own file
    assert target.stat().st_ino != before
    rustload.view(path, target, svg=True)
    assert target.read_text().startswith("<!-- generator: rustload ")
    assert sorted(one.name for one in tmp_path.iterdir() if one != path) == ["page.html"]
    with pytest.raises(FileExistsError, match="File exists"):
        rustload.view(path, tmp_path)


def test_a_file_of_the_checkpoint_is_never_the_output(save, tmp_path):
    path = save({"a": torch.zeros(2)})
    content = path.read_bytes()
    (tmp_path / "link.html").symlink_to(path)
    for target in (path, tmp_path / "link.html"):
        with pytest.raises(ValueError, match="is a file of the checkpoint"):
            rustload.view(path, target, overwrite=True)
    assert path.read_bytes() == content


def test_the_default_name_is_that_of_the_checkpoint(save, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = save({"a": torch.zeros(2)}, "some.model.pt")
    assert str(rustload.view(path)) == "some.model.rustload.html"
    assert str(rustload.view(path, svg=True)) == "some.model.rustload.svg"
    (tmp_path / "folder").mkdir()
    rustload.save({"a": torch.zeros(2)}, tmp_path / "folder" / "model.safetensors")
    assert str(rustload.view("folder/")) == "folder.rustload.html"
    assert str(rustload.view(path.read_bytes())) == "checkpoint.rustload.html"
    assert str(rustload.view(rustload.open(path))) == "some.model.rustload.html"


def test_the_command(save, tmp_path):
    save({"a": torch.zeros(2)}, "m.pt")
    done = cli("view", "m.pt", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "m.rustload.html\n", "")
    done = cli("view", "m.pt", "--svg", "map.svg", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "map.svg\n", "")
    done = cli(
        "view", "m.pt", "--svg", "map.svg", "-o", "p.html", "--stats", "sample", "--no-scan", cwd=tmp_path
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "map.svg\np.html\n", "")
    assert Page((tmp_path / "p.html").read_text()).data["scan"] is None
    (tmp_path / "link").symlink_to(".")
    done = cli("view", "m.pt", "-o", "new", "--svg", "link/new", cwd=tmp_path)
    assert (done.returncode, done.stdout, (tmp_path / "new").exists()) == (2, "", False)
    assert "--svg and --output name one file: link/new" in done.stderr
    (tmp_path / "taken").write_text("x")
    done = cli("view", "m.pt", "-o", "taken", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (3, "")
    assert "--force" in done.stderr
    assert cli("view", "m.pt", "-o", "taken", "--force", cwd=tmp_path).returncode == 0
    assert cli("view", "missing.pt", cwd=tmp_path).returncode == 3
    assert cli("view", "m.pt", "-o", "no/folder.html", cwd=tmp_path).returncode == 3
    assert cli("view", cwd=tmp_path).returncode == 2
    assert cli("view", "m.pt", "--stats", "some", cwd=tmp_path).returncode == 2


def test_the_command_shows_the_weights_that_quantized_tensors_stand_for(save, tmp_path):
    codes = torch.zeros(128, 128).to(torch.float8_e4m3fn)
    save({"a.weight": codes, "a.weight_scale_inv": torch.ones(1, 1)}, "m.safetensors")
    assert cli("view", "m.safetensors", "--dequantize", cwd=tmp_path).returncode == 0
    data = Page((tmp_path / "m.rustload.html").read_text()).data
    names, _ = names_and_folds(data)
    assert (names, [data["dtype_names"][kind[0]] for kind in data["kinds"]]) == (["a.weight"], ["float32"])


def test_no_tensor_is_read_and_no_package_imported(save, tmp_path):
    path = tmp_path / "cut.safetensors"
    rustload.save({"a": torch.zeros(100)}, path)
    opened = rustload.open(path)
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 1)  # a read would fail now
    rustload.view(opened, tmp_path / "page.html", scan=False)
    child(
        """
        import sys, rustload
        rustload.view(sys.argv[1], sys.argv[2])
        assert not {"numpy", "torch", "jax", "rich"} & sys.modules.keys()
        """,
        save({"a": torch.zeros(2)}),
        tmp_path / "page.html",
    )


def test_an_empty_checkpoint_has_a_page_and_an_image(save, tmp_path):
    path = save({"epoch": 3, "none": torch.zeros(0)})
    assert view(path, tmp_path).data["nbytes"] == 0
    ET.fromstring(rustload.view(path, tmp_path / "m.svg", svg=True).read_text())


def test_the_image_is_small_and_has_the_blocks_folded(tmp_path):
    path = sparse(tmp_path / "moe.safetensors", experts(20, 64) | {"embed.weight": ("BF16", [32_000, 2048])})
    image = rustload.view(path, tmp_path / "map.svg", svg=True).read_text()
    found = ET.fromstring(image)
    texts = ["".join(one.itertext()) for one in found.iter("{http://www.w3.org/2000/svg}text")]
    assert {"model.layers.{0..19}.mlp.experts.{0..63}", "gate_proj.weight", "embed.weight"} <= set(texts)
    assert "moe.safetensors" in texts
    assert len(image) < 10_000
    flat = sparse(tmp_path / "flat.safetensors", {f"w_{n}": ("F32", [100 + n]) for n in range(5000)})
    assert len(rustload.view(flat, tmp_path / "map.svg", svg=True).read_text()) < 300_000
    # Nothing but the name of the format is an address.
    assert re.findall(r"https?://[^\"]*", image) == ["http://www.w3.org/2000/svg"]


def test_the_picture_of_readme_is_current():
    root = Path(__file__).resolve().parents[2]
    generator = runpy.run_path(str(root / "docs" / "make_treemap.py"))
    assert generator["PICTURE"].read_text("utf-8") == generator["picture"](), (
        "run python docs/make_treemap.py"
    )


@pytest.mark.parametrize("seed", range(5))
def test_a_squarified_treemap_fills_its_rectangle(seed):
    generator = torch.Generator().manual_seed(seed)
    sizes = sorted((torch.rand(40, generator=generator) ** 3 * 1e9 + 1).tolist(), reverse=True)
    rects = squarify(sizes, Rect(10, 20, 600, 400))
    for size, rect in zip(sizes, rects, strict=True):
        assert rect.width * rect.height == pytest.approx(size / sum(sizes) * 240_000)
        assert rect.x >= 10 - 1e-6
        assert rect.y >= 20 - 1e-6
        assert rect.x + rect.width <= 610 + 1e-6
        assert rect.y + rect.height <= 420 + 1e-6
    for number, one in enumerate(rects):
        for other in rects[:number]:
            width = min(one.x + one.width, other.x + other.width) - max(one.x, other.x)
            height = min(one.y + one.height, other.y + other.height) - max(one.y, other.y)
            assert width < 1e-6 or height < 1e-6
    # Of the example in the paper: 6 by 4 with 6, 6, 4, 3, 2, 2, 1.
    paper = squarify([6, 6, 4, 3, 2, 2, 1], Rect(0, 0, 6, 4))
    assert paper[:2] == [Rect(0, 0, 3, 2), Rect(0, 2, 3, 2)]
    assert paper[2].height == pytest.approx(7 / 3) or paper[2].width == pytest.approx(12 / 7)


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_text_has_a_contrast_of_4_5():
    for fills, ink in ((LIGHT, INK[0]), (DARK, INK[1])):
        assert min(contrast(fill, ink) for fill in fills) >= 4.5
    import importlib.resources

    style = importlib.resources.files("rustload._view").joinpath("page", "page.css").read_text()
    for block in re.findall(r":root \{(.*?)/\*", style, re.DOTALL):
        colours = dict(re.findall(r"--(\w+): (#\w{6})", block))
        assert len(colours) > 10
        for text in ("text", "dim", "accent", "good", "warn", "bad"):
            for ground in ("page", "card", *(["group", "mark"] if text == "text" else [])):
                assert contrast(colours[text], colours[ground]) >= 4.5, (text, ground)


def test_the_files_of_the_page_are_part_of_the_package():
    import importlib.resources

    folder = importlib.resources.files("rustload._view") / "page"
    assert {one.name for one in folder.iterdir()} == {*SCRIPTS, "page.css", "page.html"}


def test_no_script_spreads_a_list_into_arguments_of_which_there_may_be_too_many():
    import importlib.resources

    for name in SCRIPTS:
        text = (importlib.resources.files("rustload._view") / "page" / name).read_text("utf-8")
        # A call with more than about 120,000 arguments throws. Children of `replaceChildren` are few.
        assert not re.findall(r".*\b(?:min|max|push|unshift|append|apply)\(\.\.\..*", text), name
