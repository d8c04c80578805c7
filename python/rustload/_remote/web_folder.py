"""Folders of web servers, and what a URL of one is: a file, or a folder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urljoin

from rustload._remote.folder import ObjectFolder, check_plain, joined, names_others, trimmed
from rustload._remote.ranges import attempt
from rustload._remote.urls import name_of
from rustload._remote.web import Web, repeated
from rustload._remote.web_ranges import open_web
from rustload.errors import _error

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PAGE_BYTES_MAX = 64 << 20
"""The most bytes of a page with links that are read."""


def from_web(url: str, options: Mapping[str, Any]) -> Any:
    """The file or the folder at a URL of a web server. A file that names others is its folder, with that file chosen.

    A web server has no folders: what ends with a slash is taken for one.

    Raises:
        OSError: It does not exist, or has no known size.
        ValueError: There is an option that is not known.
    """
    web, name = Web(options), name_of(url)
    base, last = _split(url)
    if not last:
        return HttpFolder(web, base, trimmed(name))
    folder = HttpFolder(web, base, trimmed(name.rpartition("/")[0]))
    if names_others(last):
        return folder.choose((last,))
    file = open_web(web, url, name)
    file.home = folder
    return file


def _split(url: str) -> tuple[str, str]:
    """The URL of a web server's folder, without slash, query and fragment, and the name of the file in it."""
    scheme, _, rest = url.partition("://")
    for separator in "?#":
        rest = rest.partition(separator)[0]
    base, slash, last = rest.rpartition("/")
    return (f"{scheme}://{base}", unquote(last)) if slash else (f"{scheme}://{rest}", "")


def _links(page: str) -> list[str]:
    """What the links of a page lead to."""
    from html.parser import HTMLParser

    found: list[str] = []

    def start(tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found.extend(value for key, value in attrs if (tag, key) == ("a", "href") and value)

    parser = HTMLParser()
    parser.handle_starttag = start  # type: ignore[method-assign]
    parser.feed(page)
    return found


def _name_in(folder: str, link: str) -> str:
    """The name of the file in a folder that a link on its page leads to; empty for none."""
    try:
        place, _, name = urljoin(f"{folder}/", link).rpartition("/")
    except ValueError:  # no URL
        return ""
    is_there = _place(place) == _place(folder) and "?" not in name and "#" not in name
    return unquote(name) if is_there else ""


def _place(url: str) -> str:
    """Host and path of a URL: links may lack the user and have other escapes; behind a proxy, servers may not know of https."""
    host, slash, path = url.partition("://")[2].partition("/")
    return host.rpartition("@")[2] + slash + unquote(path)


class HttpFolder(ObjectFolder):
    """A folder of a web server: files whose URLs have the same beginning. Its listing is a page with links to them."""

    def __init__(self, web: Web, url: str, name: str) -> None:
        """A folder at a URL without a slash at its end, with its name for messages."""
        super().__init__(name)
        self._web, self._url = web, url
        self._names: list[str] | None = None

    @property
    def is_listed(self) -> bool:
        """Whether the server was asked."""
        return self._names is not None

    def names(self) -> list[str]:
        """The names of its files. The server is asked once."""
        if self._names is None:
            self._names = attempt(self.name, self._list)
        return list(self._names)

    def _list(self) -> list[str]:
        page = repeated(self._page, is_first=True)
        names = [_name_in(self._url, link) for link in _links(page)]
        return list(dict.fromkeys(name for name in names if "/" not in name and name not in ("", ".", "..")))

    def _page(self) -> str:
        """The page with links to its files; empty for what is not a page."""
        headers = {"Accept-Encoding": "identity"}
        with self._web.answered("GET", f"{self._url}/", self.name, headers) as answer:
            kind = answer.headers.get("Content-Type", "text/html")
            if kind.partition(";")[0].strip().lower() != "text/html":
                return ""
            # Decoded where a server compresses all the same.
            content = answer.read(PAGE_BYTES_MAX, decode_content=True)
            if answer.read(1, decode_content=True):
                raise _error("RemoteRange", f"the page with links has more than {PAGE_BYTES_MAX} bytes")
            return content.decode("utf-8", "replace")

    def sizes(self, names: Sequence[str], /) -> list[int | None]:
        """The sizes. Each file is asked for, as listings have none."""
        return self._look_up(names)

    def open(self, name: str, /) -> Any:
        """A file of it. Those that were opened are not asked for again."""
        if name not in self._opened:
            # Nothing in a name is a separator, a query or an escape of one.
            url = f"{self._url}/{quote(check_plain(name), safe='')}"
            self._opened[name] = open_web(self._web, url, joined(self.name, name))
        return self._opened[name]

    def folders(self) -> list[str]:
        """None: links to folders are not followed."""
        return []

    def _folder(self, name: str) -> ObjectFolder:
        return HttpFolder(self._web, f"{self._url}/{quote(name, safe='')}", joined(self.name, name))
