"""Redirects of web servers from encrypted URLs, and web servers that do not answer. All servers are on the loopback interface."""

import base64
import json
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from support import coded, saved
from web_server import Server

import rustload
import rustload.remote

pytest.importorskip("fsspec")
pytest.importorskip("urllib3")

UNVERIFIED = {"ssl": False}  # the certificate is signed by nobody


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server(saved({"w": torch.arange(5000.0)}))
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


@pytest.mark.filterwarnings("ignore:Unverified HTTPS request")
def test_an_encrypted_url_is_not_redirected_to_one_without_encryption(server, redirects):
    url = redirects(server.url)
    for given in (url, redirects(url)):
        with coded(ValueError, "RemoteScheme", match=r"redirects to a URL whose scheme, 'http'"):
            rustload.open(given, storage_options=UNVERIFIED)
        assert not server.requests
    assert rustload.open(server.url, remote=("http",))["w"][7].torch() == 7


SECRET = "s3cr3t"
BASIC = (SECRET, SECRET)

SECRETS: dict[str, tuple[str, dict[str, Any]]] = {
    "headers": ("", {"headers": {"X-Token": SECRET}}),
    "authorization": ("", {"headers": {"Authorization": SECRET}}),
    "cookies": ("", {"cookies": {"session": SECRET}}),
    "parameters": ("", {"params": {"token": SECRET}}),
    "headers of the session": ("", {"client_kwargs": {"headers": {"X-Token": SECRET}}}),
    "cookies of the session": ("", {"client_kwargs": {"cookies": {"session": SECRET}}}),
    "credentials": ("", {"auth": BASIC}),
    "credentials of the session": ("", {"client_kwargs": {"auth": BASIC}}),
    "credentials of the URL": (f"{SECRET}:{SECRET}@", {}),
}
SHOWN = (SECRET, base64.b64encode(f"{SECRET}:{SECRET}".encode()).decode())


@pytest.fixture
def other(server: Server) -> Iterator[Server]:
    made = Server(server.files)
    yield made
    made.close()


def has_secret(server: Server) -> list[bool]:
    """Whether each request to a server has one."""
    texts = [f"{one.path} {headers}" for one, headers in zip(server.requests, server.headers, strict=True)]
    return [any(secret in text for secret in SHOWN) for text in texts]


@pytest.mark.parametrize("kind", SECRETS)
@pytest.mark.parametrize("hosts", ["127.0.0.1", "localhost"])
def test_secrets_stay_with_their_host(server, other, kind, hosts):
    """On the same host, another port is another server."""
    user, options = SECRETS[kind]
    there = other.host.replace("127.0.0.1", hosts)
    # Within the first server, to the other one, within that, and back.
    server.redirects = {"/here": "/there", "/there": f"{there}/next"}
    other.redirects = {"/next": "/again", "/again": f"{server.host}/model.bin"}
    # To stay there, and to a page with links.
    server.redirects |= {"/away": f"{there}/model.bin", "/folder/": f"{there}/"}
    for path in ("here", "away", "folder/"):
        url = f"http://{user}{server.host.removeprefix('http://')}/{path}"
        for one in (server, other):
            one.requests.clear()
            one.headers.clear()
        if path == "folder/":
            found = rustload.remote.fsspec(url, **options)
            assert found.names() == ["model.bin"]  # type: ignore[attr-defined]
        else:
            checkpoint = rustload.open(url, remote=("http",), storage_options=options)
            assert torch.equal(checkpoint["w"].materialize(), torch.arange(5000.0))
        assert other.requests
        assert not any(has_secret(other))
        sent = [
            has for has, one in zip(has_secret(server), server.requests, strict=True) if one.path != "/there"
        ]
        # Parameters are those of the first URL; others go with every request to their host.
        assert all(sent) or (kind == "parameters" and any(sent))
        if kind != "parameters":
            assert all(has_secret(server))


def test_the_timeout_of_the_user_holds_after_a_redirect(server, other):
    server.redirects = {"/model.bin": other.url}
    other.fault = lambda _: "silent"
    options = {"client_kwargs": {"timeout": 0.3}}
    start = time.monotonic()
    with pytest.raises(OSError, match="did not answer in time"):
        rustload.open(server.url, remote=("http",), storage_options=options)
    assert time.monotonic() - start < 10


@pytest.mark.parametrize("target", ["file:///etc/passwd", "ftp://127.0.0.1/m", "mailto:a@b"])
def test_a_redirect_to_what_is_no_url_of_the_web_is_an_error(server, target):
    server.redirects = {"/model.bin": target}
    with pytest.raises((ValueError, OSError), match=r"not a URL of the web|Error"):
        rustload.open(server.url, remote=("http",))


def test_redirects_without_an_end_are_an_error(server):
    server.redirects = {"/model.bin": "/model.bin"}
    with pytest.raises(OSError, match="redirects more than 10 times"):
        rustload.open(server.url, remote=("http",))
    assert len(server.requests) <= 2 * 11


def test_a_server_that_does_not_answer_is_no_missing_file(redirects):
    with socket.socket() as bound:  # and does not listen
        bound.bind(("127.0.0.1", 0))
        host = f"https://127.0.0.1:{bound.getsockname()[1]}"
        for name in ("model.bin", "model.safetensors.index.json"):
            with pytest.raises(OSError, match="NewConnectionError") as caught:
                rustload.open(f"{host}/{name}")
            assert type(caught.value) is OSError
    with pytest.raises(OSError, match="SSLError") as caught:
        rustload.open(redirects("https://127.0.0.1"))
    assert type(caught.value) is OSError


def test_shards_of_a_server_that_stops_are_not_called_missing(server):
    index = "model.safetensors.index.json"
    shards = [f"{number}.safetensors" for number in range(3)]
    text = json.dumps({"weight_map": {name: name for name in shards}})
    server.files = {index: text.encode(), **dict.fromkeys(shards, b"content")}
    server.fault = lambda number: None if server.requests[number].path.endswith(index) else "closed"
    with pytest.raises(OSError, match="ProtocolError"):
        rustload.open(f"{server.host}/{index}", remote=("http",))
    server.files = {index: text.encode()}
    with coded(rustload.FormatError, "ShardMissing"):
        rustload.open(f"{server.host}/{index}", remote=("http",))
