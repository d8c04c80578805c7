"""Connections to web servers: which are kept, after a fork too, which options are taken, and answers of other kinds."""

import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from safetensors.torch import save
from support import coded
from web_server import Server

import rustload
import rustload.remote

pytest.importorskip("urllib3")


HTTP = ("http",)
SIZE = 1 << 20


class Counting(Server):
    """Counts its connections; may answer in chunks.

    Attributes:
        connections: The ports from which requests came.
        chunks: How many bytes of the content the answers to GET have too few, in chunks without a length; None for no chunks.
    """

    def __init__(self, files: Any) -> None:
        self.connections: set[int] = set()
        self.chunks: int | None = None
        super().__init__(files)

    def answer(self, handler: Any, *, body: bool) -> None:
        self.connections.add(handler.client_address[1])
        found = handler.headers.get("Range")
        if self.chunks is None or found is None:
            super().answer(handler, body=body)
            return
        start, end = (int(one) for one in found.removeprefix("bytes=").split("-"))
        part = self.data[start : end + 1 - self.chunks]
        handler.send_response_only(100)
        handler.end_headers()
        handler.send_response(206)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.send_header("ETag", self.etag)
        handler.send_header("Content-Range", f"bytes {start}-{end}/{len(self.data)}")
        handler.end_headers()
        for at in range(0, len(part), 1000):
            piece = part[at : at + 1000]
            handler.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        handler.wfile.write(b"0\r\n\r\n")


@pytest.fixture
def server() -> Iterator[Counting]:
    made = Counting(save({"w": torch.arange(SIZE, dtype=torch.float32)}))
    yield made
    made.close()


def row(tensor: Any, at: int) -> bool:
    return bool(tensor[at].item() == at)


def test_connections_are_kept(server):
    tensor = rustload.open(server.url, remote=HTTP)["w"]
    assert all(row(tensor, at) for at in range(0, SIZE, SIZE // 20))
    assert len(server.requests) > 20
    assert len(server.connections) <= 2
    server.redirects = {"/away": "/model.bin"}
    before = len(server.connections)
    assert row(rustload.open(f"{server.host}/away", remote=HTTP)["w"], 7)
    assert len(server.connections) == before


def test_threads_have_connections_of_their_own(server):
    tensor = rustload.open(server.url, remote=HTTP)["w"]
    server.delay = 0.02
    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(lambda at: row(tensor, at), range(0, SIZE, SIZE // 100)))
    assert len(server.connections) <= 1 + 8


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_has_its_own_connections(server):
    source: Any = rustload.remote.fsspec(server.url)
    first = bytes(source.read_ranges([(0, 8)])[0])
    before = set(server.connections)
    child = os.fork()
    if child == 0:
        ok = bytes(source.read_ranges([(0, 8)])[0]) == first
        os._exit(0 if ok else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    made = server.connections - before
    assert made
    assert bytes(source.read_ranges([(0, 8)])[0]) == first
    assert server.connections == before | made


def test_an_answer_in_chunks_is_taken_if_it_is_whole(server):
    source: Any = rustload.remote.fsspec(server.url)
    server.chunks = 0
    assert bytes(source.read_ranges([(100, 5000)])[0]) == server.data[100:5100]
    for wrong in (1, 2000, -1):
        server.chunks = wrong
        with pytest.raises(OSError, match="came for") as caught:
            source.read_ranges([(100, 5000)])
        assert caught.value.code == "RemoteRange"  # type: ignore[attr-defined]


def test_a_server_that_states_no_bytes_for_head_is_asked_again(server, monkeypatch):
    answer, data = server.answer, server.data

    def answer_without_bytes(handler: Any, *, body: bool) -> None:
        server.data = data if body else b""
        answer(handler, body=body)

    monkeypatch.setattr(server, "answer", answer_without_bytes)
    assert row(rustload.open(server.url, remote=HTTP)["w"], 7)


def test_a_host_or_path_with_two_colons_is_no_chain_of_urls(server):
    server.files["a::b"] = server.data
    assert row(rustload.open(f"{server.host}/a::b", remote=HTTP)["w"], 7)
    with pytest.raises(OSError, match=r"http://\[::1\]:1/x: the store cannot be reached"):
        rustload.open("http://[::1]:1/x", remote=HTTP)
    # fsspec, which reads the Hub, divides URLs there.
    for url in ("x::memory:", "x%3A%3Amemory:"):
        with coded(ValueError, "RemoteScheme", match="chained"):
            rustload.open(f"https://huggingface.co/org/model/resolve/main/{url}")


def test_a_malformed_url_is_an_error_without_its_password():
    for host in ("u:[s3cr3t]@127.0.0.1:1", "u:[s3cr3t@127.0.0.1:1"):
        with coded(OSError, "Io", match="http://127") as caught:
            rustload.open(f"http://{host}/x", remote=HTTP)
        assert "s3cr3t" not in str(caught.value)


@pytest.mark.parametrize("key", ["timeout", "headers", "cookies", "params", "auth", "ssl", "client_kwargs"])
def test_an_option_of_another_type_is_an_error(server, key):
    with pytest.raises(TypeError, match="storage_options=") as caught:
        rustload.open(server.url, remote=HTTP, storage_options={key: "s3cr3t"})
    assert "s3cr3t" not in str(caught.value)
    assert not server.requests


def test_an_option_that_is_not_known_is_an_error(server):
    for options in ({"block_size": 5}, {"client_kwargs": {"block_size": 5}}):
        with pytest.raises(ValueError, match="'block_size', which is not known") as caught:
            rustload.open(server.url, remote=HTTP, storage_options=options)
        assert "fsspec.open(url, ...)" in caught.value.__notes__[0]
    assert not server.requests


def test_headers_of_the_user_are_sent_once_and_do_not_replace_those_of_rustload(server):
    headers = {"accept-encoding": "gzip", "X-One": "1", "user-agent": "mine"}
    tensor = rustload.open(server.url, remote=HTTP, storage_options={"headers": headers})["w"]
    assert row(tensor, 5)
    sent = server.headers[-1]
    assert [value for key, value in sent.items() if key.lower() == "accept-encoding"] == ["identity"]
    assert {key.lower(): value for key, value in sent.items()}.items() >= {
        "x-one": "1",
        "user-agent": "mine",
    }.items()


def test_a_file_system_of_fsspec_still_reads_from_web_servers(server):
    fsspec = pytest.importorskip("fsspec")
    pytest.importorskip("aiohttp")
    tensor = rustload.open(fsspec.open(server.url))["w"]
    assert row(tensor, 7)
    server.data = server.data[:-4]
    with pytest.raises((OSError, rustload.FormatError)):
        tensor.materialize()


def test_an_index_in_a_file_system_of_fsspec_needs_no_listing():
    fsspec = pytest.importorskip("fsspec")
    pytest.importorskip("aiohttp")
    index = json.dumps({"weight_map": {"w": "a.safetensors"}}).encode()
    server = Server(
        {"m/model.safetensors.index.json": index, "m/a.safetensors": save({"w": torch.arange(9.0)})}
    )
    try:
        ckpt = rustload.open(fsspec.open(f"{server.host}/m/model.safetensors.index.json"))
        assert torch.equal(ckpt["w"].materialize(), torch.arange(9.0))
    finally:
        server.close()
