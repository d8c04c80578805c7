"""Requests to web servers that fail and are sent again, that stall, and that nobody waits for after Ctrl-C."""

import email.utils
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save
from support import child, coded
from web_server import Server

import rustload
import rustload.remote
from rustload._cli import main
from rustload._common import waiting
from rustload._remote import ranges, web

pytest.importorskip("fsspec")
urllib3 = pytest.importorskip("urllib3")


HTTP = ("http",)
PASSING = ("429", "502", "503", "504", "closed", "cut", "cut without size", "reset")
SIZE = 3 << 20
PART = slice(SIZE // 2, SIZE // 2 + 10)
EXPECTED = torch.arange(PART.start, PART.stop, dtype=torch.float32)


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server(save({"w": torch.arange(SIZE, dtype=torch.float32)}))
    yield made
    made.close()


def times(fault: str, count: int) -> Callable[[int], str | None]:
    """So many requests fail."""
    left = iter(range(count))
    return lambda _number: fault if next(left, None) is not None else None


@pytest.mark.parametrize("fault", PASSING)
def test_a_failure_that_passes_does_not_end_a_conversion(server, tmp_path, fault):
    seen: set[Any] = set()

    def each_once(number: int) -> str | None:
        request = server.requests[number]
        is_new = request not in seen
        seen.add(request)
        return fault if is_new else None

    server.fault = each_once
    target = tmp_path / "m.safetensors"
    rustload.convert(rustload.remote.fsspec(server.url), target)
    assert torch.equal(load_file(target)["w"], torch.arange(SIZE, dtype=torch.float32))
    assert len(seen) < len(server.requests)


@pytest.mark.parametrize("fault", PASSING)
def test_a_failure_that_stays_is_an_error_after_some_requests(server, fault):
    tensor = rustload.open(server.url, remote=HTTP)["w"][PART]
    server.requests.clear()
    server.fault = lambda _: fault
    with coded(OSError, "Io", match=r"status|ProtocolError"):
        tensor.materialize()
    assert len(server.requests) == 1 + len(web.RETRY_SECONDS)


@pytest.mark.parametrize("fault", ["500", "200", "etag", "moved", "short"])
def test_a_wrong_answer_is_not_asked_for_again(server, fault):
    tensor = rustload.open(server.url, remote=HTTP)["w"][PART]
    server.requests.clear()
    server.fault = lambda _: fault
    with pytest.raises((OSError, rustload.FormatError)):
        tensor.materialize()
    assert len(server.requests) == 1


@pytest.mark.parametrize("kind", ["seconds", "date"])
def test_a_pause_that_the_server_states_is_kept(server, kind):
    tensor = rustload.open(server.url, remote=HTTP)["w"][PART]
    wanted = 1.0 if kind == "seconds" else 1.5
    server.retry_after = "1" if kind == "seconds" else email.utils.formatdate(time.time() + 2.5, usegmt=True)
    server.fault = times("429", 1)
    start = time.monotonic()
    assert torch.equal(tensor.materialize(), EXPECTED)
    assert wanted - 0.1 < time.monotonic() - start < 10


def test_a_pause_of_an_hour_is_an_error_at_once(server):
    tensor = rustload.open(server.url, remote=HTTP)["w"][PART]
    server.retry_after, server.fault = "3600", times("503", 1)
    start = time.monotonic()
    with pytest.raises(OSError, match="status 503"):
        tensor.materialize()
    assert time.monotonic() - start < 5


@pytest.mark.parametrize("text", ["", "soon", "-1", "Mon, 99 Foo", "9" * 400])
def test_a_pause_that_is_none_does_not_matter(text):
    assert web._retry_after(text) in (0.0, float("inf"))


def test_pauses_grow_and_differ(monkeypatch):
    monkeypatch.setattr(web, "RETRY_SECONDS", (0.5, 1.0, 2.0, 4.0))
    error = urllib3.exceptions.ProtocolError("cut")
    pauses = [[web._seconds_before_retry(error, n, is_first=False) for _ in range(50)] for n in range(5)]
    for one, expected in zip(pauses, web.RETRY_SECONDS, strict=False):
        assert all(expected / 2 <= pause <= expected * 1.5 for pause in one if pause is not None)
        assert len(set(one)) > 10
    assert set(pauses[4]) == {None}


def test_an_object_that_lost_its_version_is_taken_for_another(server):
    checkpoint = rustload.open(server.url, remote=HTTP)
    server.fault = lambda _: "no etag"
    with coded(rustload.FormatError, "FileChanged", match="ETag"):
        checkpoint["w"].materialize()


def test_a_server_without_versions_is_warned_of_once(server, monkeypatch):
    monkeypatch.setattr(ranges, "_warned", set())
    server.fault = lambda _: "no etag"
    server.files["other.bin"] = server.data
    with pytest.warns(rustload.RustloadWarning, match=r"http://127\.0\.0\.1:\d+ states no version"):
        checkpoint = rustload.open(server.url, remote=HTTP)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rustload.open(f"{server.host}/other.bin", remote=HTTP)
    assert checkpoint["w"][7].item() == 7


def test_a_body_that_stalls_is_an_error_after_the_timeout(server, monkeypatch):
    monkeypatch.setenv(web.TIMEOUT, "0.5")
    tensor = rustload.open(server.url, remote=HTTP)["w"][PART]
    server.fault = lambda _: "stalls"
    start = time.monotonic()
    with pytest.raises(OSError, match="did not answer in time"):
        tensor.materialize()
    assert 0.9 < time.monotonic() - start < 10
    # A connection that hangs once is given up for another.
    server.fault = times("stalls", 1)
    assert torch.equal(tensor.materialize(), EXPECTED)


@pytest.mark.parametrize("text", ["soon", "0", "-1", "nan", "inf"])
def test_a_timeout_that_is_none_is_an_error(server, monkeypatch, text):
    monkeypatch.setenv(web.TIMEOUT, text)
    with pytest.raises(ValueError, match="RUSTLOAD_REMOTE_TIMEOUT is a number of seconds"):
        rustload.open(server.url, remote=HTTP)


def convert(url: str, path: Path) -> None:
    rustload.convert(rustload.remote.fsspec(url), path / "out.safetensors", overwrite=True)


CALLS: dict[str, Callable[[str, Path], object]] = {
    "open": lambda url, _: rustload.open(url, remote=HTTP),
    "scan": lambda url, _: rustload.scan(url, remote=HTTP),
    "shards": lambda url, _: rustload.open([url] * 4, remote=HTTP),
    "convert": convert,
}


@pytest.fixture
def ctrl_c(server: Server) -> Iterator[Callable[[int], None]]:
    """Sends SIGINT once so many requests stall; the time at which it did."""
    main = threading.main_thread().ident
    ended = threading.Event()
    sender: list[threading.Thread] = []
    assert main is not None

    def start(count: int) -> None:
        server.requests.clear()

        def send() -> None:
            while len(server.requests) < count and not ended.wait(0.01):
                pass
            if not ended.wait(0.3):
                signal.pthread_kill(main, signal.SIGINT)

        sender.append(threading.Thread(target=send))
        sender[0].start()

    yield start
    ended.set()
    sender[0].join()


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("fault", ["stalls", "silent"])
def test_ctrl_c_does_not_wait_for_a_server(server, tmp_path, ctrl_c, call, fault):
    # HEAD has no body that stalls.
    server.fault = lambda number: fault if server.requests[number].method == "GET" else None
    ctrl_c(2)
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        CALLS[call](server.url, tmp_path)
    assert time.monotonic() - start < 1 + 0.3 + 1


@pytest.mark.parametrize("is_whole", [False, True])
@pytest.mark.parametrize("kind", ["materialize", "stream", "stats"])
def test_ctrl_c_does_not_wait_for_reads(server, ctrl_c, kind, is_whole):
    if is_whole:
        server.data = save({"w": torch.zeros(20 << 20)})
    checkpoint = rustload.open(server.url, remote=HTTP, framework="torch")
    tensor = checkpoint["w"] if is_whole else checkpoint["w"][PART]
    server.fault = lambda _: "stalls"
    ctrl_c(1)
    start = time.monotonic()
    call = (lambda: dict(checkpoint.stream())) if kind == "stream" else getattr(tensor, kind)
    with pytest.raises(KeyboardInterrupt):
        call()
    assert time.monotonic() - start < 1 + 0.3 + 1
    server.fault = lambda _: None
    server.released.set()
    assert tensor[-3:].materialize().shape == (3,)


def test_a_store_of_any_kind_is_not_waited_for_after_ctrl_c(ctrl_c, server):
    fsspec = pytest.importorskip("fsspec")
    hang = threading.Event()

    class Slow(fsspec.get_filesystem_class("memory")):  # type: ignore[misc]
        protocol = ("slow",)

        def cat_file(self, path: str, **options: Any) -> Any:
            server.requests.append(None)  # type: ignore[arg-type]
            hang.wait(30)
            return super().cat_file(path, **options)

    fs = Slow()
    fs.pipe("/m.bin", server.data)
    hang.set()
    tensor = rustload.open(fs.open("/m.bin"))["w"]
    hang.clear()
    ctrl_c(1)
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        tensor.materialize()
    assert time.monotonic() - start < 1 + 0.3 + 1
    hang.set()


def test_where_no_thread_starts_the_caller_makes_the_calls(monkeypatch):
    monkeypatch.setattr(waiting, "_start", lambda _work: False)
    assert waiting.interruptible(threading.get_ident, "it") == threading.get_ident()
    assert waiting.in_parallel(lambda n: (n, threading.get_ident()), range(20)) == [
        (n, threading.get_ident()) for n in range(20)
    ]


def test_calls_in_parallel_raise_the_first_exception():
    def call(number: int) -> int:
        if number == 5:
            raise KeyError(number)
        return number

    with pytest.raises(KeyError):
        waiting.in_parallel(call, range(1000))
    assert waiting.in_parallel(call, range(5)) == list(range(5))


def test_a_process_ends_while_a_request_hangs(server):
    server.fault = lambda number: "stalls" if number else None
    start = time.monotonic()
    child(
        """
        import os, signal, sys, threading
        import rustload
        threading.Timer(1, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            rustload.open(sys.argv[1], remote=("http",))
        except KeyboardInterrupt:
            print("stopped")
        """,
        server.url,
    )
    assert time.monotonic() - start < 15


def test_a_progress_display_says_that_a_server_stalls(server, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(waiting, "SAID_SECONDS", 0.2)
    monkeypatch.setenv(web.TIMEOUT, "0.5")
    checkpoint = rustload.open(server.url, remote=HTTP)
    for progress in (True, False):
        server.fault = times("stalls", 1)
        rustload.save(checkpoint, tmp_path / "a.safetensors", overwrite=True, progress=progress)
        err = capsys.readouterr().err
        assert (f" of 12.0 MiB waiting 0 s for {server.url}\n" in err) is progress, err
    assert err == "", "a library says nothing"


def test_the_command_line_says_what_it_waits_for(monkeypatch, capsys):
    import fsspec

    store = fsspec.filesystem("memory")
    store.pipe("/stalled/m.safetensors", save({"w": torch.ones(2)}))
    info = type(store).info

    def slow(*args: Any, **options: Any) -> Any:
        time.sleep(0.5)
        return info(*args, **options)

    monkeypatch.setattr(type(store), "info", slow)
    monkeypatch.setattr(waiting, "SAID_SECONDS", 0.2)
    monkeypatch.setattr(waiting, "_last_said", 0.0)
    assert main(["scan", "memory://stalled/m.safetensors"]) == 0
    out, err = capsys.readouterr()
    assert "rustload: waiting 0 s for memory://stalled/m.safetensors" in err.splitlines()
    assert "waiting" not in out
