"""The site that `make docs` built, opened from its folder in a real browser: nothing is loaded from elsewhere, the search works.

`make release-check` runs these. With `SCREENSHOTS=FOLDER`, pictures to look at are left there.
"""

import base64
import os
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import chromium

SITE = Path(__file__).resolve().parents[2] / "target" / "docs" / "html"
pytestmark = [
    pytest.mark.skipif(chromium.find() is None, reason="no Chromium (apt-get install chromium)"),
    pytest.mark.skipif(not SITE.is_dir(), reason="the site is not built (make docs)"),
]


@pytest.fixture
def browser(tmp_path):
    browser = chromium.Browser(tmp_path)
    yield browser
    browser.close()


def foreign(browser):
    return [url for url in browser.requests if not url.startswith(("data:", SITE.as_uri()))]


def picture(browser, name):
    if folder := os.environ.get("SCREENSHOTS"):
        data = browser.call("Page.captureScreenshot")["data"]
        Path(folder, f"site-{name}.png").write_bytes(base64.b64decode(data))


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 420])
@pytest.mark.parametrize(
    "page", ["index", "api/open", "reference/formats", "explain/decisions/index", "explain/peers"]
)
def test_a_page_loads_nothing_from_elsewhere_and_fits_the_window(browser, page, width, scheme):
    browser.scheme(scheme)
    browser.size(width, 900)
    browser.open(SITE / f"{page}.html")
    picture(browser, f"{page.replace('/', '-')}-{width}-{scheme}")
    assert not foreign(browser)
    assert not browser.faults
    assert browser.js("document.documentElement.scrollWidth") <= width
    red, green, blue = browser.js(
        "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3).map(Number)"
    )
    assert (red + green + blue > 600) == (scheme == "light")


def test_the_search_works_without_a_server(browser):
    browser.open(SITE / "index.html")
    browser.js("document.querySelector('.md-search__button, [for=__search]').click()")
    time.sleep(0.5)
    for letter in "fingerprint":
        browser.key(letter)
    end, found = time.monotonic() + 20, ""
    while "Fingerprints" not in found and time.monotonic() < end:
        time.sleep(0.2)
        found = browser.js(
            "[...document.querySelectorAll('div')].map((one) => one.shadowRoot?.textContent ?? '').join('')"
        )
    picture(browser, "search")
    assert "Fingerprints" in found  # a heading of the page on differences
    assert not foreign(browser)
    assert not browser.faults
