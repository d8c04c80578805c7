"""The page for browsers that `make docs` built: files are dropped on it, read by slices, and shown; nothing leaves it.

`make release-check` runs these. With `SCREENSHOTS=FOLDER`, pictures to look at are left there; `open-pt.png` is that of README.
"""

import os
import sys
import time
from pathlib import Path

import pytest
import torch
from support import sparse

import rustload

sys.path.insert(0, str(Path(__file__).parent))

import chromium

PAGE = Path(__file__).resolve().parents[2] / "target" / "docs" / "html" / "open.html"
pytestmark = [
    pytest.mark.skipif(chromium.find() is None, reason="no Chromium (apt-get install chromium)"),
    pytest.mark.skipif(not PAGE.is_file(), reason="the page is not built (make docs)"),
]
HOSTILE = [
    "</script><img src=x onerror=alert(1)>",
    "<svg onload=alert(2)>",
    "a.\u202egnp.exe",
    "x" * 10_000,
    "." * 3000,
    "__proto__",
    "constructor.prototype",
]


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    started = chromium.Browser(tmp_path_factory.mktemp("chromium"))
    # What leaves the machine would fail, and be seen as a fault.
    started.call(
        "Network.emulateNetworkConditions", offline=True, latency=0, downloadThroughput=0, uploadThroughput=0
    )
    yield started
    started.close()


def text_of(browser, selector):
    return browser.js(f"document.querySelector({selector!r}).innerText")


def until(browser, condition, seconds=20):
    """Waits until an expression is true, and returns it."""
    end = time.monotonic() + seconds
    while not (found := browser.js(condition)):
        assert time.monotonic() < end, (condition, browser.faults, browser.js("document.body.innerText"))
        time.sleep(0.02)
    return found


def drop(browser, path):
    """Drops a file on the page, as a user does; returns the milliseconds until it is shown."""
    before = browser.js("document.querySelector('.drop [role=status]').textContent = ''; performance.now()")
    for kind in ("dragEnter", "dragOver", "drop"):
        data = {"items": [], "files": [str(path)], "dragOperationsMask": 1}
        browser.call("Input.dispatchDragEvent", type=kind, x=300, y=50, data=data)
    until(browser, "document.querySelector('.drop [role=status]').textContent.startsWith('opened')")
    assert browser.faults == []
    assert [url for url in browser.requests if not url.startswith("blob:")] == [PAGE.as_uri()]
    return browser.js("performance.now()") - before


def numbers(browser):
    """The statistics of the chosen tensor."""
    until(browser, "document.querySelector('.numbers dl') !== null")
    pairs = "[...document.querySelectorAll('.numbers dl > *')].map((one) => one.innerText)"
    found = browser.js(pairs)
    return dict(zip(found[::2], found[1::2], strict=True))


def choose(browser, name):
    """Chooses a tensor by the search."""
    browser.js("document.querySelector('input[type=search]').focus()")
    browser.js("document.activeElement.select()")
    browser.type(name)
    until(
        browser, f"[...document.querySelectorAll('.rows .label')].some((one) => one.textContent === {name!r})"
    )
    browser.key("Enter")
    until(browser, f"document.querySelector('.details h2').textContent === {name!r}")


@pytest.fixture
def page(browser):
    browser.open(PAGE)
    assert browser.faults == []
    return browser


def keep(browser, name):
    if "SCREENSHOTS" in os.environ:
        browser.js("scrollTo(0, 0)")
        browser.screenshot(Path(os.environ["SCREENSHOTS"]) / f"open-{name}.png")


def test_the_page_is_small_and_its_policy_strict():
    text = PAGE.read_text("utf-8")
    assert len(text) <= 1_500_000
    policy = text.partition('Content-Security-Policy" content="')[2].partition('">')[0]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy.replace("'wasm-unsafe-eval'", "")
    assert "connect-src" not in policy
    assert policy.endswith("require-trusted-types-for 'script'; trusted-types rustload; worker-src blob:")


@pytest.mark.parametrize("suffix", ["pt", "safetensors", "zip-free"])
def test_a_checkpoint_is_shown_as_view_shows_it(page, tmp_path, suffix):
    torch.manual_seed(0)
    shapes = {"attn.qkv": [384, 128], "attn.out": [128, 128], "mlp.up": [512, 128], "mlp.down": [128, 512]}
    state = {"embed.weight": torch.randn(2000, 128).bfloat16(), "odd": torch.tensor([1.0, float("nan"), 0.0])}
    for at in range(8):
        for part, shape in shapes.items():
            state[f"layers.{at}.{part}.weight"] = torch.randn(shape).bfloat16()
        state[f"layers.{at}.norm.weight"] = torch.ones(128)
    path = tmp_path / f"model.{suffix}"
    if suffix == "safetensors":
        rustload.save(state, path)
    else:
        torch.save(
            {**state, "tied": state["embed.weight"]}, path, _use_new_zipfile_serialization=suffix == "pt"
        )
    drop(page, path)
    assert text_of(page, "h1") == path.name
    chips = page.js("[...document.querySelectorAll('header .chip')].map((one) => one.textContent)")
    assert chips[:2] == [rustload.open(path).format, "inert"]
    labels = page.js("[...document.querySelectorAll('.rows .label')].map((one) => one.textContent)")
    assert "layers.{0..7}" in labels
    assert page.js("document.querySelector('canvas').width") > 100
    choose(page, "odd")
    found = numbers(page)
    assert (found["min, max"], found["NaN"], found["read"]) == ("0, 1", "1 (33.3%)", "3")
    choose(page, "layers.3.attn.out.weight")
    values = state["layers.3.attn.out.weight"].double()
    shown = [float(one) for one in numbers(page)["min, max"].split(", ")]
    assert shown == pytest.approx([values.min().item(), values.max().item()], rel=1e-4)
    page.key("Escape")
    keep(page, suffix)


def test_all_numbers_of_a_large_tensor(page, tmp_path):
    tensor = torch.zeros(3000, 1000)
    tensor[1234, 567] = 9.5
    rustload.save({"big": tensor}, tmp_path / "big.safetensors")
    drop(page, tmp_path / "big.safetensors")
    choose(page, "big")
    assert numbers(page)["read"].endswith("in a sample")
    page.js(
        "[...document.querySelectorAll('.details button')].find((one) => one.textContent === 'read all numbers').click()"
    )
    until(page, "document.querySelector('.numbers dl')?.innerText.includes('3,000,000')")
    assert numbers(page)["min, max"] == "0, 9.5"


def test_a_pickle_that_would_execute(page, tmp_path):
    path = tmp_path / "evil.pkl"
    path.write_bytes(b"cos\nsystem\n(S'id'\ntR.")
    drop(page, path)
    assert "would execute" in text_of(page, "header")
    assert "os.system('id')" in text_of(page, ".finding")
    keep(page, "evil")


@pytest.mark.parametrize(
    ("content", "code"),
    [(b"hello", "UnknownFormat"), (b"", "UnknownFormat"), ((1 << 40).to_bytes(8, "little") + b"{", None)],
    ids=["text", "empty", "truncated"],
)
def test_what_cannot_be_opened_says_why(page, tmp_path, content, code):
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(rustload.RustloadError) as error:
        rustload.open(path)
    drop(page, path)
    assert text_of(page, ".failure b") == error.value.code
    assert code in (None, error.value.code)
    # Another file opens afterwards.
    rustload.save({"a": torch.ones(3)}, path, overwrite=True)
    drop(page, path)
    assert "1 tensor" in text_of(page, "header")


def test_5_gb_open_in_less_than_a_second(page, tmp_path):
    tensors = {
        f"model.layers.{layer}.{part}.weight": ("BF16", [4096, 4096])
        for layer in range(38)
        for part in "qkvo"
    }
    path = sparse(tmp_path / "large.safetensors", tensors)
    assert path.stat().st_size > 5_000_000_000
    assert min(drop(page, path) for _ in range(3)) <= 1000
    assert "152 tensors" in text_of(page, "header")
    choose(page, "model.layers.37.o.weight")
    assert numbers(page)["zeros"].endswith("(100.0%)")


def test_hostile_names_are_text(page, tmp_path):
    path = tmp_path / "<img src=x onerror=alert(9)>.pt"
    tensors = {name: torch.zeros(2) for name in HOSTILE}
    torch.save({**tensors, **{f"{name}.x": torch.ones(1) for name in HOSTILE}}, path)
    drop(page, path)
    assert page.js("document.images.length") == 0
    assert "<img src=x onerror=alert(9)>.pt" in text_of(page, "h1")
    assert "\u202e" not in page.js("document.body.innerText")


def test_the_policy_lets_nothing_out(page):
    for attempt in (
        "fetch('https://example.org/')",
        "new Worker('data:,')",
        "document.body.innerHTML = '<b>'",
    ):
        assert (
            page.js(
                f"(async () => {{ try {{ await ({attempt}); return 'done'; }} catch {{ return 'refused'; }} }})()"
            )
            == "refused"
        )
