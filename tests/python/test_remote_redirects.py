"""Redirects of web servers from encrypted URLs, and web servers that do not answer. All servers are on the loopback interface."""

from __future__ import annotations

import io
import json
import shutil
import socket
import ssl
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import pytest
import torch
from web_server import Server

import rustload

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytest.importorskip("fsspec")
pytest.importorskip("aiohttp")

UNVERIFIED = {"ssl": False}  # the certificate is signed by nobody


@pytest.fixture
def server() -> Iterator[Server]:
    content = io.BytesIO()
    torch.save({"w": torch.arange(5000.0)}, content)
    made = Server(content.getvalue())
    yield made
    made.close()


@pytest.fixture
def redirects(tmp_path: Path) -> Iterator[Callable[[str], str]]:
    """Starts web servers with TLS that redirect to a URL; returns the URL of each."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("needs openssl, which makes the certificate")
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    command = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost"]
    subprocess.run([*command, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    servers: list[ThreadingHTTPServer] = []

    class Quiet(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *args: object) -> None: ...

    def start(target: str) -> str:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args: object) -> None: ...

            def do_GET(self) -> None:
                self.send_response(302)
                self.send_header("Location", target)
                self.send_header("Content-Length", "0")
                self.end_headers()

            do_HEAD = do_GET  # noqa: N815 - the server calls it

        made = Quiet(("127.0.0.1", 0), Handler)
        made.socket = context.wrap_socket(made.socket, server_side=True)
        threading.Thread(target=made.serve_forever, args=(0.02,), daemon=True).start()
        servers.append(made)
        return f"https://127.0.0.1:{made.server_address[1]}/model.bin"

    yield start
    for made in servers:
        made.shutdown()
        made.server_close()


def test_an_encrypted_url_is_not_redirected_to_one_without_encryption(
    server: Server, redirects: Callable[[str], str]
) -> None:
    url = redirects(server.url)
    for given in (url, redirects(url)):
        with pytest.raises(ValueError, match=r"redirects to a URL whose scheme, 'http'") as caught:
            rustload.open(given, storage_options=UNVERIFIED)
        assert caught.value.code == "RemoteScheme"  # type: ignore[attr-defined]
    assert rustload.open(server.url, remote=("http",))["w"][7].torch() == 7


def test_a_server_that_does_not_answer_is_no_missing_file(redirects: Callable[[str], str]) -> None:
    with socket.socket() as bound:  # and does not listen
        bound.bind(("127.0.0.1", 0))
        host = f"https://127.0.0.1:{bound.getsockname()[1]}"
        for name in ("model.bin", "model.safetensors.index.json"):
            with pytest.raises(OSError, match="ClientConnectorError") as caught:
                rustload.open(f"{host}/{name}")
            assert type(caught.value) is OSError
    with pytest.raises(OSError, match="ClientConnectorCertificateError") as caught:
        rustload.open(redirects("https://127.0.0.1"))
    assert type(caught.value) is OSError


def test_shards_of_a_server_that_stops_are_not_called_missing(server: Server) -> None:
    index = "model.safetensors.index.json"
    shards = [f"{number}.safetensors" for number in range(3)]
    text = json.dumps({"weight_map": {name: name for name in shards}})
    server.files = {index: text.encode(), **dict.fromkeys(shards, b"content")}
    server.fault = lambda number: None if server.requests[number].path.endswith(index) else "closed"
    with pytest.raises(OSError, match="ServerDisconnectedError"):
        rustload.open(f"{server.host}/{index}", remote=("http",))
    server.files = {index: text.encode()}
    with pytest.raises(rustload.FormatError) as caught:
        rustload.open(f"{server.host}/{index}", remote=("http",))
    assert caught.value.code == "ShardMissing"
