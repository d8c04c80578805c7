"""A web server for the files of a folder, with a rate for all connections together and a delay before each answer.

It runs in a process of its own, so that it takes no time of the reader's interpreter.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import re
import subprocess
import sys
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CHUNK = 256 << 10
UNLIMITED = 1e12
"""A rate that is none: then the kernel sends the bytes, so that the server takes little time."""
BURST = 0.005
"""Seconds of the rate that the link has in its buffers: a server that is late by less loses nothing."""


class Throttle:
    """Bounds the rate of all threads together.

    Attributes:
        rate: Bytes per second.
    """

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self._free = 0.0
        self._lock = threading.Lock()

    def wait(self, nbytes: int) -> None:
        """Sleeps until so many bytes have passed."""
        with self._lock:
            self._free = max(self._free, time.perf_counter() - BURST) + nbytes / self.rate
            until = self._free
        time.sleep(max(0.0, until - time.perf_counter()))


def serve(folder: Path, rate: float, delay: float) -> None:
    """Serves the files of a folder until standard input ends, and prints the port.

    `/requests` are the requests since the last call.
    """
    throttle = Throttle(rate)
    requests: list[tuple[str, int]] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def log_message(self, *args: Any) -> None: ...

        def do_HEAD(self) -> None:
            self._answer(body=False)

        def do_GET(self) -> None:
            self._answer(body=True)

        def _answer(self, *, body: bool) -> None:
            if self.path == "/requests":
                content = json.dumps(requests).encode()
                requests.clear()
                self._head(200, len(content), "")
                self.wfile.write(content)
                return
            time.sleep(delay)
            path = folder / self.path.lstrip("/")
            if not path.is_file():
                self.send_error(404)
                return
            with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                found = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
                start, end = (int(found[1]), int(found[2]) + 1) if found else (0, len(data))
                requests.append((self.command, end - start if body else 0))
                self._head(206 if found else 200, end - start, f"bytes {start}-{end - 1}/{len(data)}")
                if rate >= UNLIMITED:
                    if body:
                        self.connection.sendfile(file, start, end - start)
                    return
                for at in range(start, end if body else start, CHUNK):
                    part = data[at : min(at + CHUNK, end)]
                    throttle.wait(len(part))
                    self.wfile.write(part)

        def _head(self, status: int, length: int, content_range: str) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(length))
            self.send_header("ETag", '"one"')
            if status == 206:
                self.send_header("Content-Range", content_range)
            self.end_headers()

    class Quiet(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 64

        def handle_error(self, *args: Any) -> None: ...

    server = Quiet(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_address[1], flush=True)
    sys.stdin.read()


@contextlib.contextmanager
def serving(folder: Path, rate: float, delay: float) -> Iterator[str]:
    """The URL of a server in a process of its own."""
    command = [sys.executable, "-m", "benches.remote", "--serve", str(folder), str(rate), str(delay)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait(10)


def requests_of(url: str) -> list[tuple[str, int]]:
    """The method and the number of bytes of each request since the last call."""
    with urllib.request.urlopen(f"{url}/requests") as answer:
        return [(method, length) for method, length in json.load(answer)]
