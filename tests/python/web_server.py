"""Web servers on the loopback interface, which count requests and fail where they are told to; and a fake Hugging Face Hub."""

import contextlib
import hashlib
import json
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit


class Request(NamedTuple):
    """A request: its method, the offset and length of its range, and its path as it was sent."""

    method: str
    start: int
    length: int
    path: str


class Server:
    """A web server with some files.

    Attributes:
        files: The content of each file, by its path.
        etag: The version of all files.
        requests: The requests, in the order in which they came.
        headers: The headers of each of them.
        redirects: Where the server redirects requests for a path.
        retry_after: The header of this name in answers with a status of failure.
        fault: What to do in place of the right answer for the request of this number; None answers right.
        delay: Seconds before each answer.
        released: Ends the answers that stall in their middle.
        host: The URL of the server, without a slash at its end.
        url: The URL of the file `model.bin`.
    """

    def __init__(self, files: bytes | Mapping[str, bytes]) -> None:
        self.files = {"model.bin": files} if isinstance(files, bytes) else dict(files)
        self.etag = '"one"'
        self.requests: list[Request] = []
        self.headers: list[dict[str, str]] = []
        self.redirects: dict[str, str] = {}
        self.retry_after: str | None = None
        self.released = threading.Event()
        self.fault: Callable[[int], str | None] = lambda _: None
        self.delay = 0.0
        self.lock = threading.Lock()
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args: Any) -> None: ...

            def do_HEAD(self) -> None:
                owner.answer(self, body=False)

            def do_GET(self) -> None:
                owner.answer(self, body=True)

        class Quiet(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 64

            def handle_error(self, *args: Any) -> None: ...

        self.server = Quiet(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()
        self.host = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.url = f"{self.host}/model.bin"

    @property
    def data(self) -> bytes:
        """The content of `model.bin`."""
        return self.files["model.bin"]

    @data.setter
    def data(self, content: bytes) -> None:
        self.files["model.bin"] = content

    def close(self) -> None:
        """Stops the server."""
        self.released.set()
        self.server.shutdown()
        self.server.server_close()

    def content(self, path: str) -> tuple[bytes, str] | None:
        """The content at the path of a URL and its type; None for no file. A folder is a page with links to its files."""
        name = unquote(path.lstrip("/"))
        if name in self.files:
            return self.files[name], "application/octet-stream"
        below = [file.removeprefix(name) for file in self.files if file.startswith(name)]
        if below and (not name or name.endswith("/")):
            links = "".join(f'<a href="{one}">{one}</a>' for one in sorted(below) if "/" not in one)
            return f"<html>{links}<a href='../'>up</a></html>".encode(), "text/html"
        return None

    def answer(self, handler: BaseHTTPRequestHandler, *, body: bool) -> None:
        """Answers a request."""
        path = urlsplit(handler.path).path
        found = re.fullmatch(r"bytes=(\d+)-(\d+)", handler.headers.get("Range", ""))
        data, kind = self.content(path) or (None, "")
        start, end = (int(found[1]), int(found[2]) + 1) if found else (0, len(data or b""))
        with self.lock:
            number = len(self.requests)
            self.requests.append(Request(handler.command, start, end - start if body else 0, handler.path))
            self.headers.append(dict(handler.headers))
        if path in self.redirects:
            handler.send_response(302)
            handler.send_header("Location", self.redirects[path])
            handler.send_header("Content-Length", "0")
            handler.end_headers()
            return
        if data is None:
            handler.send_error(404)
            return
        fault = self.fault(number)
        time.sleep(self.delay)
        status, part, etag = (206 if found else 200), data[start:end], self.etag
        stated = (start, end - 1, len(data))
        if fault in ("403", "429", "500", "502", "503", "504"):
            status, part = int(fault), b"no"
        elif fault == "200":
            status, part = 200, data
        elif fault == "short":
            part = part[:-1]
        elif fault == "long":
            part += b"x"
        elif fault == "moved":
            stated = (start + 1, end, len(data))
        elif fault == "etag":
            etag = '"two"'
        elif fault == "closed":
            handler.close_connection = True
            return
        elif fault == "hangs":
            time.sleep(2)
            handler.close_connection = True
            return
        elif fault == "silent":
            self.released.wait(60)
            handler.close_connection = True
            return
        handler.send_response(status)
        if fault != "no size" and not (fault == "cut without size" and found):
            handler.send_header("Content-Length", str(len(part)))
        if status == 206:
            handler.send_header("Content-Range", f"bytes {stated[0]}-{stated[1]}/{stated[2]}")
        if self.retry_after is not None and status > 400:
            handler.send_header("Retry-After", self.retry_after)
        if fault != "no etag":
            handler.send_header("ETag", etag)
        handler.send_header("Content-Type", kind)
        handler.end_headers()
        if body and fault in ("cut", "cut without size", "reset", "stalls"):
            handler.wfile.write(part[: len(part) // 2])
            if fault == "stalls":
                self.released.wait(60)
            if fault == "reset":
                handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                handler.wfile.flush()
                handler.connection.close()
        elif body:
            with contextlib.suppress(OSError):
                handler.wfile.write(part)
        if fault:
            handler.close_connection = True


class Hub(Server):
    """The parts of the Hugging Face Hub's API that reading a repository takes, with one model.

    Attributes:
        commit: The commit that `main` is at.
        commits: The files of each commit, by their paths.
    """

    def __init__(self, name: str, files: Mapping[str, bytes]) -> None:
        super().__init__({})
        self.name, self.commit = name, "a" * 40
        self.commits = {self.commit: dict(files)}

    def content(self, path: str) -> tuple[bytes, str] | None:
        """The answer to a request of the API, or a file."""
        path = unquote(path)
        api = f"/api/models/{self.name}"
        if path == api or path.startswith(f"{api}/revision/"):
            revision = path.removeprefix(api).removeprefix("/revision/") or "main"
            commit = self._commit(revision)
            answer = None if commit is None else {"id": self.name, "modelId": self.name, "sha": commit}
        elif path.startswith(f"{api}/tree/"):
            revision, _, folder = path.removeprefix(f"{api}/tree/").partition("/")
            answer = self._tree(self._commit(revision), folder)
        else:
            revision, _, file = path.removeprefix(f"/{self.name}/resolve/").partition("/")
            found = self.commits.get(self._commit(revision) or "", {}).get(file)
            return None if found is None else (found, "application/octet-stream")
        return None if answer is None else (json.dumps(answer).encode(), "application/json")

    def _commit(self, revision: str) -> str | None:
        commit = self.commit if revision == "main" else revision
        return commit if commit in self.commits else None

    def _tree(self, commit: str | None, folder: str) -> list[dict[str, Any]] | None:
        if commit is None:
            return None
        prefix = f"{folder}/" if folder else ""
        names = [name.removeprefix(prefix) for name in self.commits[commit] if name.startswith(prefix)]
        files = [
            _entry(prefix + name, self.commits[commit][prefix + name]) for name in names if "/" not in name
        ]
        folders = {name.partition("/")[0] for name in names if "/" in name}
        trees = [
            {"type": "directory", "oid": "0" * 40, "size": 0, "path": prefix + name}
            for name in sorted(folders)
        ]
        return files + trees


def _entry(path: str, content: bytes) -> dict[str, Any]:
    """What the Hub's API says of a file; weights are kept by their SHA-256."""
    entry: dict[str, Any] = {"type": "file", "size": len(content), "path": path}
    if path.endswith(".safetensors"):
        entry["lfs"] = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 134}
        content = b"pointer"
    return entry | {"oid": hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()}
