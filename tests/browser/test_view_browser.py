"""The page of `rustload view` in a real browser: no request, hostile names run nothing; search, map, keys, dark mode.

`make release-check` runs these. With `SCREENSHOTS=FOLDER`, pictures to look at are left there.
"""

import math
import os
import re
import sys
import time
from pathlib import Path

import pytest
import torch
from support import sparse

import rustload
from rustload._view.treemap import Rect, squarify

sys.path.insert(0, str(Path(__file__).parent))

import chromium

pytestmark = pytest.mark.skipif(chromium.find() is None, reason="no Chromium (apt-get install chromium)")

HOSTILE = [
    "</script><img src=x onerror=alert(1)>",
    "<svg onload=alert(2)>",
    "javascript:alert(3)",
    '"><script>alert(4)</script>',
    "{{data}}${alert(5)}",
    "a.\u202egnp.exe",
    "x" * 10_000,
    "." * 3000,
    "__proto__",
    "constructor.prototype",
    "toString",
]


EXPRESSIONS = [
    r"l.y[e-f]rs?\.\d+",
    r"(up|down)_proj\.w",
    r"^model\.(layers\.1\.|norm)",
    r"0\.(mlp|self_\w+)\.[^kq]",
    r"\.\d{1}\.",
    "t$",
    r"[\d_]{2,}|\Wn",
    r"[^\W\d]\D[.]\S",
    "(?:m|l)+p",
]
CONTRAST = r"""(() => {
  const parts = (text) => text.match(/[\d.]+/g).map(Number);
  const linear = (one) => (one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4);
  const light = ([r, g, b]) => 0.2126 * linear(r / 255) + 0.7152 * linear(g / 255) + 0.0722 * linear(b / 255);
  const ground = (one) => {
    const back = parts(getComputedStyle(one).backgroundColor);
    return back.length === 4 && back[3] === 0 ? ground(one.parentElement) : back;
  };
  let worst = [99, ""];
  for (const one of document.querySelectorAll("#app *")) {
    const hasText = [...one.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    if (!hasText || !one.checkVisibility()) continue;
    const [low, high] = [light(parts(getComputedStyle(one).color)), light(ground(one))].sort((a, b) => a - b);
    const contrast = (high + 0.05) / (low + 0.05);
    if (contrast < worst[0]) worst = [contrast, one.outerHTML.slice(0, 200)];
  }
  return worst;
})()"""
"""The lowest contrast of a text with the nearest background that is not transparent, and where it is."""
CUT = (
    "[...document.querySelectorAll('.rows :is(.label, td)')]"
    ".filter((one) => one.scrollWidth > one.clientWidth).map((one) => one.textContent)"
)
"""The texts of the table that do not fit their place."""


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    started = chromium.Browser(tmp_path_factory.mktemp("chromium"))
    yield started
    started.close()


def llama(layers=32, width=4096):
    found = {"model.embed_tokens.weight": ("BF16", [128_256, width])}
    for layer in range(layers):
        at = f"model.layers.{layer}"
        found |= {
            f"{at}.mlp.{part}_proj.weight": ("BF16", [14_336, width]) for part in ("down", "gate", "up")
        }
        found |= {f"{at}.self_attn.{part}_proj.weight": ("BF16", [width, width]) for part in "qo"}
        found |= {f"{at}.self_attn.{part}_proj.weight": ("BF16", [1024, width]) for part in "kv"}
        found |= {f"{at}.{part}_layernorm.weight": ("F32", [width]) for part in ("input", "post_attention")}
    return found | {"model.norm.weight": ("F32", [width]), "lm_head.weight": ("BF16", [128_256, width])}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    path = sparse(folder / "llama.safetensors", llama())
    return rustload.view(path, folder / "llama.html")


def opened(browser, page):
    """Opens a page, and checks that it is complete, asked for nothing and complained of nothing."""
    painted = browser.open(page)
    assert browser.requests == [page.resolve().as_uri()]
    assert browser.faults == []
    assert browser.js("document.documentElement.className") == "ready"
    return painted


def keep(browser, name, *, full=True):
    if "SCREENSHOTS" in os.environ:
        browser.screenshot(Path(os.environ["SCREENSHOTS"]) / f"{name}.png", full=full)


def labels(browser):
    return browser.js("[...document.querySelectorAll('.rows .label')].map((one) => one.textContent)")


def text_of(browser, selector):
    return browser.js(f"document.querySelector({selector!r}).innerText")


def search(browser, text):
    browser.key("/")
    browser.js("document.activeElement.select()")
    browser.type(text)
    time.sleep(0.3)
    return text_of(browser, ".status")


def center(browser, selector, dx=0.5, dy=0.5):
    return browser.js(
        f"(() => {{ const at = document.querySelector({selector!r}).getBoundingClientRect();"
        f"return [at.x + at.width * {dx}, at.y + at.height * {dy}]; }})()"
    )


def test_a_page_opens_in_less_than_a_second(browser, model):
    assert 0 <= opened(browser, model) < 1000
    rows = labels(browser)
    assert rows[:3] == ["model", "embed_tokens.weight", "layers.{0..31}"]
    assert "291 tensors" in text_of(browser, "header")
    keep(browser, "llama-light")


def test_20_000_tensors_open_in_less_than_a_second(browser, tmp_path):
    tensors = {
        f"model.layers.{layer}.mlp.experts.{expert}.{part}_proj.weight": ("F8_E4M3", [768, 2048])
        for layer in range(53)
        for expert in range(128)
        for part in ("gate", "up", "down")
    }
    page = rustload.view(sparse(tmp_path / "moe.safetensors", tensors), tmp_path / "moe.html")
    assert page.stat().st_size < 1_000_000
    assert 0 <= opened(browser, page) < 1000
    # 53 of expert 7, and 128 of layer 7, of which one is both.
    assert search(browser, "*.7.*gate*").startswith("180 of 20,352 tensors")
    assert search(browser, "down").startswith("6,784 of 20,352")
    # Only the rows in sight are in the document.
    assert browser.js("document.querySelectorAll('.rows tr').length") < 60
    browser.js("document.querySelector('.rows').scrollTop = 1e6")
    time.sleep(0.1)
    assert labels(browser)[-1] == "model.layers.52.mlp.experts.127.down_proj.weight"
    keep(browser, "moe-search")


def test_lists_of_more_than_a_function_takes_are_shown(browser, tmp_path):
    """150,000 shapes, and as many tensors in one group."""
    path = sparse(tmp_path / "m.safetensors", {f"a.t{at}": ("U8", [0, at + 1]) for at in range(150_000)})
    opened(browser, rustload.view(path, tmp_path / "m.html", stats="full"))
    browser.js("document.querySelector('.twist').click()")
    assert labels(browser)[:2] == ["a", "t0"]
    assert browser.faults == []


def test_hostile_names_run_nothing(browser, tmp_path):
    path = tmp_path / "hostile.pt"
    state = {name: torch.zeros(number + 1, 50) for number, name in enumerate(HOSTILE)}
    torch.save({**state, **{f"v {name}": name for name in HOSTILE}}, path)
    page = rustload.view(path, tmp_path / "<img src=x onerror=alert(6)>.html", stats="full")
    opened(browser, page)
    assert browser.js("document.images.length + document.querySelectorAll('script').length") == 2
    for name in HOSTILE:
        search(browser, name[:100])
        browser.key("Enter")
        time.sleep(0.05)
    assert browser.faults == []
    assert browser.requests == [page.resolve().as_uri()]
    browser.key("Escape")
    keep(browser, "hostile")


def test_the_policy_blocks_other_scripts(browser, model, tmp_path):
    """The policy itself works: the same page with a script that somebody added does not run it."""
    changed = tmp_path / "changed.html"
    text = model.read_text()
    changed.write_text(
        text.replace(
            '<pre id="text">', '<script>alert(1)</script><img src="data:," onerror="alert(2)"><pre id="text">'
        )
    )
    browser.open(changed)
    assert not any(one.startswith("dialog") for one in browser.faults)
    assert sum("Content Security Policy" in one for one in browser.faults) >= 2
    assert browser.js("document.documentElement.className") == "ready"
    # Nor can a script of the page's own make HTML of text.
    refused = "(() => { try { document.body.innerHTML = '<b>'; return false; } catch { return true; } })()"
    assert browser.js(refused)


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("q_proj", "32 of 291 tensors, 1.0 GiB"),
        ("Q_PROJ", "0 of 291 tensors, 0 B"),
        ("*.layers.3.*", "9 of 291"),
        ("*norm*", "65 of 291"),
        (r"/layers\.[0-3]\./", "36 of 291"),
        (r"/^model\.layers\.(1|2)\d\..*_proj/", "140 of 291"),
        (r"/^lm_head|norm\.weight$/", "66 of 291"),
        (r"/[^a-z]\d{2}[.]mlp/", "66 of 291"),
        ("/(a+)+$/", "0 of 291"),
        ("/(.*)*(.*)*(.*)*x$/", "0 of 291"),
        ("/((a|a?)+)+b/", "1 of 291"),
        ("/(/", "a ) is missing"),
        ("/*a/", "nothing to repeat before *"),
        ("/(?=a)/", "look-around is not supported"),
    ],
)
def test_search(browser, model, text, status):
    opened(browser, model)
    start = time.monotonic()
    found = search(browser, text)
    assert time.monotonic() - start < 3
    assert found.startswith(status)


def test_regular_expressions_find_what_python_finds(browser, model):
    opened(browser, model)
    names = list(llama())
    for pattern in EXPRESSIONS:
        expected = sum(re.search(pattern, name) is not None for name in names)
        assert search(browser, f"/{pattern}/").startswith(f"{expected} of 291"), pattern


def test_keys_of_the_table(browser, model):
    opened(browser, model)
    assert search(browser, "norm.weight").startswith("65 of")
    browser.key("ArrowDown")
    browser.key("ArrowDown")
    assert (
        browser.js("document.querySelector('[aria-selected=true] .label').textContent")
        == "model.layers.0.post_attention_layernorm.weight"
    )
    assert "[4096]" in text_of(browser, ".details")
    browser.key("Escape")
    assert labels(browser)[0] == "model"
    browser.key("Home")
    browser.key("ArrowLeft")  # closes model
    assert labels(browser) == ["model", "lm_head.weight"]
    browser.key("ArrowRight")
    browser.key("ArrowRight")
    browser.key("ArrowDown")
    assert browser.js("document.querySelector('[aria-selected=true] .label').textContent") == "layers.{0..31}"
    browser.key("Enter")
    assert "layers.{0..31}" in text_of(browser, ".crumbs")
    browser.key("Escape")
    assert "layers" not in text_of(browser, ".crumbs")


def test_a_click_in_the_map_zooms_in_and_escape_zooms_out(browser, model):
    opened(browser, model)
    place = center(browser, "canvas", 0.2, 0.6)
    for step in ("model", "layers.{0..31}", "mlp"):
        browser.click(*place)
        time.sleep(0.05)
        assert step in text_of(browser, ".crumbs")
    assert "down_proj.weight" in text_of(browser, ".details")
    assert "32 tensors" in text_of(browser, ".details")
    assert "[object" not in browser.js("document.body.innerText")
    assert "[14336, 4096]" in text_of(browser, ".details")
    keep(browser, "llama-zoomed", full=False)
    for _ in range(3):
        browser.key("Escape")
    assert "model" not in text_of(browser, ".crumbs").replace("llama.safetensors", "")
    browser.js("document.querySelector('canvas').focus()")
    browser.key("ArrowRight")
    browser.key("Enter")
    assert "model" in text_of(browser, ".crumbs")


@pytest.mark.parametrize("seed", range(20))
def test_the_map_and_the_image_have_the_same_layout(browser, model, seed):
    opened(browser, model)
    random = torch.Generator().manual_seed(seed)
    sizes = sorted((torch.rand(1 + 7 * seed, generator=random) ** 3 * 1e9 + 1).tolist(), reverse=True)
    inside = (3.0, 5.0, 40.0 + 90 * (seed % 7), 300.0)
    script = (Path(rustload.__file__).parent / "_view/page/treemap.js").read_text("utf-8")
    function = script[script.index("function squarify") : script.index("// The modules")]
    found = browser.js(f"(() => {{ {function} return squarify({sizes}, {', '.join(map(str, inside))}); }})()")
    assert found == [pytest.approx(list(one)) for one in squarify(sizes, Rect(*inside))]


def test_blocks_unfold(browser, model):
    opened(browser, model)
    browser.js("document.getElementById('fold').click()")
    search(browser, "")
    rows = labels(browser)
    assert "{" not in "".join(rows)
    assert "layers" in rows


def test_statistics_are_shown(browser, tmp_path):
    torch.manual_seed(0)
    weight = torch.randn(200, 100)
    weight[0, :3] = math.nan
    torch.save({"w": weight, "tied": weight, "zero": torch.zeros(9), "step": 3}, tmp_path / "s.pt")
    opened(browser, rustload.view(tmp_path / "s.pt", tmp_path / "s.html", stats="full"))
    search(browser, "w")
    browser.key("Enter")
    shown = text_of(browser, ".details")
    assert "3 (<0.1%)" in shown
    assert "Shares its storage with" in shown
    assert browser.js("document.querySelectorAll('.chart i').length") == 48
    assert "only zeros" in text_of(browser, ".cards")
    keep(browser, "stats")


def test_findings_are_above_the_map(browser, tmp_path):
    class Runs:
        def __reduce__(self):
            return os.system, ("true",)

    torch.save({"w": torch.ones(9), "x": Runs()}, tmp_path / "runs.pt")
    opened(browser, rustload.view(tmp_path / "runs.pt", tmp_path / "runs.html"))
    assert "would execute" in text_of(browser, ".cards.alarm")
    bottom = browser.js("document.querySelector('.cards.alarm').getBoundingClientRect().bottom")
    assert bottom <= browser.js("document.querySelector('canvas').getBoundingClientRect().top")
    assert browser.js("document.querySelectorAll('.cards .finding').length") >= 1
    keep(browser, "findings")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_in_light_and_dark(browser, model, scheme):
    browser.scheme(scheme)
    opened(browser, model)
    worst = browser.js(CONTRAST)
    assert worst[0] >= 4.5, worst
    keep(browser, f"llama-{scheme}")
    browser.scheme("light")


def test_a_narrow_window_has_no_sideways_scroll(browser, model):
    browser.size(390, 800)
    try:
        opened(browser, model)
        assert browser.js("document.documentElement.scrollWidth") <= 390
        keep(browser, "llama-narrow")
    finally:
        browser.size(1440, 1000)


@pytest.mark.parametrize("width", [800, 1280])
def test_names_of_usual_length_are_shown_whole(browser, model, width):
    browser.size(width, 800)
    try:
        opened(browser, model)
        assert browser.js(CUT) == []
        browser.js("document.getElementById('fold').click()")  # more rows than are in sight
        assert browser.js(CUT) == []
    finally:
        browser.size(1440, 1000)


@pytest.mark.parametrize("width", [800, 1280, 1920])
def test_columns_show_the_numbers_where_they_have_room(browser, tmp_path, width):
    layers = [torch.randn(4, generator=torch.Generator().manual_seed(seed)) * 10**seed for seed in range(3)]
    layers[1][2] = math.nan
    named = {f"model.layers.{at}.post_attention_layernorm.weight": one for at, one in enumerate(layers)}
    torch.save(
        named | {f"model.layers.{at}.norm.weight": torch.ones(4) for at in range(3)}, tmp_path / "n.pt"
    )
    page = rustload.view(tmp_path / "n.pt", tmp_path / "n.html", stats="full")
    browser.size(width, 800)
    try:
        opened(browser, page)
        assert browser.js(CUT) == []
        row = "[...document.querySelectorAll('.rows tr')].find((one) => one.innerText.includes('post'))"
        shown = (
            "[...%s.querySelectorAll('.stat')].filter((one) => one.offsetWidth).map((one) => one.textContent)"
        )
        found = [float(one) for one in browser.js(shown % row)]
        row = (
            "[...document.querySelectorAll('.rows tr')].find((one) => one.innerText.includes('norm.weight'))"
        )
        texts = browser.js(f"[...{row}.cells].filter((one) => one.offsetWidth).map((one) => one.innerText)")
        # The size is that of all three; how many there are is in a column, or else before the shape.
        assert ("3 × [4]" in texts, "3" in texts) == ((False, True) if width == 1920 else (True, False))
        keep(browser, f"numbers-{width}")
    finally:
        browser.size(1440, 1000)
    finite = torch.cat(layers).double()
    finite = finite[finite.isfinite()]
    of_all_layers = [finite.min().item(), finite.max().item(), finite.std(correction=0).item(), 1]
    assert found == pytest.approx([] if width == 800 else of_all_layers, rel=6e-3)


def test_without_scripts_the_text_of_info_is_shown(browser, model):
    browser.scripts(on=False)
    try:
        browser.open(model)
        found = browser.call("DOMSnapshot.captureSnapshot", computedStyles=["display"])
        browser.screenshot(model.parent / "text.png")
        keep(browser, "no-scripts")
        assert any("layers.{0..31}" in text for text in found["strings"])
    finally:
        browser.scripts(on=True)


def test_the_image_is_shown_in_light_and_dark(browser, model):
    image = rustload.view(model.parent / "llama.safetensors", model.parent / "llama.svg", svg=True)
    browser.size(980, 560)
    for scheme in ("light", "dark"):
        browser.scheme(scheme)
        browser.open(image)
        assert browser.faults == []
        keep(browser, f"image-{scheme}", full=False)
    browser.size(1440, 1000)
    browser.scheme("light")
    assert browser.js("document.querySelectorAll('rect').length") > 10
