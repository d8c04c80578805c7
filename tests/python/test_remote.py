"""Checkpoints behind URLs and in stores: what is requested, what is said, and what faults become.

The servers are on the loopback interface.
"""

import builtins
import contextlib
import json
import random
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ranged import Ranges
from safetensors.torch import save_file
from support import coded
from web_server import Server

import rustload
import rustload.remote
import rustload.torch
from rustload import _cli
from rustload._cli import command
from rustload._remote.urls import name_of

fsspec = pytest.importorskip("fsspec")


SECRET = "s3cr3t"
HTTP = ("http",)


@pytest.fixture(scope="module")
def tensors() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    return {f"layers.{number}.weight": torch.randn(32, 128, generator=generator) for number in range(300)}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, tensors: dict[str, torch.Tensor]) -> Path:
    path = tmp_path_factory.mktemp("model") / "model.bin"
    torch.save(tensors, path)
    return path


@pytest.fixture
def server(model: Path) -> Iterator[Server]:
    pytest.importorskip("urllib3")
    made = Server(model.read_bytes())
    yield made
    made.close()


@pytest.fixture
def memory(model: Path) -> Iterator[Any]:
    fs = fsspec.filesystem("memory")
    fs.pipe("/bucket/model.bin", model.read_bytes())
    yield fs
    fs.rm("/bucket", recursive=True)


def metadata_bytes(path: Path) -> int:
    """The bytes of data.pkl, and of the directory of an archive."""
    import zipfile

    with zipfile.ZipFile(path) as archive:
        pickle = next(one for one in archive.infolist() if one.filename.endswith("data.pkl"))
        return pickle.file_size + path.stat().st_size - archive.start_dir


@pytest.mark.parametrize("allowed", ["", "s3, hf"])
def test_the_environment_can_forbid_urls(allowed, monkeypatch):
    monkeypatch.setenv("RUSTLOAD_REMOTE", allowed)
    calls: list[Callable[[str], object]] = [
        rustload.open,
        rustload.scan,
        rustload.convert,
        lambda url: rustload.safe_open(url, "pt"),
        lambda url: rustload.diff(url, url),
        rustload.torch.load,
    ]
    for call in calls:
        with pytest.raises(ValueError, match="scheme 'memory' is not allowed"):
            call("memory://x/m.bin")
    with pytest.raises(FileNotFoundError):
        rustload.open("memory://x/m.bin", remote=("memory",))


@pytest.mark.parametrize("count", [300, 20_000])
def test_info_takes_at_most_5_requests_and_256_kib_beyond_the_metadata(tmp_path, server, count):
    path = tmp_path / "model.bin"
    torch.save({f"layers.{number}.weight": torch.zeros(64) for number in range(count)}, path)
    server.data = path.read_bytes()
    assert len(rustload.open(server.url, remote=HTTP)) == count
    assert len(server.requests) <= 5, server.requests
    assert sum(one.length for one in server.requests) <= metadata_bytes(path) + (256 << 10)


def test_a_slice_reads_its_bytes_and_64_kib_at_most(server, tensors):
    checkpoint = rustload.open(server.url, remote=HTTP)
    server.requests.clear()
    part = checkpoint["layers.150.weight"][4:9].materialize()
    assert torch.equal(part, tensors["layers.150.weight"][4:9])
    assert sum(one.length for one in server.requests) <= part.nbytes + (64 << 10)


def test_every_verb_takes_a_source_of_a_web_server(tmp_path, server, tensors):
    source = rustload.remote.fsspec(server.url)
    assert rustload.scan(source).verdict == "inert"
    state = rustload.torch.load(source)
    with rustload.safe_open(source, framework="pt") as file:
        assert torch.equal(file.get_tensor("layers.3.weight"), tensors["layers.3.weight"])
    rustload.convert(source, tmp_path / "model.safetensors")
    converted = rustload.open(tmp_path / "model.safetensors").materialize()
    assert state.keys() == converted.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert torch.equal(state[name], tensor)
        assert torch.equal(converted[name], tensor)


@pytest.mark.parametrize("kind", ["url", "open file", "file"])
def test_urls_and_files_of_fsspec_are_taken(memory, kind, tensors):
    url = "memory://bucket/model.bin"
    given = {"url": lambda: url, "open file": lambda: fsspec.open(url), "file": lambda: memory.open(url)}[
        kind
    ]()
    loaded = rustload.open(given).materialize()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in tensors.items())
    assert rustload.scan(given).verdict == "inert"
    if kind == "url":
        assert rustload.torch.load(given).keys() == tensors.keys()
        with rustload.safe_open(given, framework="np") as file:
            assert np.array_equal(file.get_tensor("layers.0.weight"), tensors["layers.0.weight"].numpy())


def test_a_local_file_of_fsspec_is_opened_by_its_path(model):
    checkpoint = rustload.open(fsspec.open(str(model)))
    assert checkpoint.files == [str(model)]


def test_a_safetensors_file_loads_from_a_url(tmp_path, memory, tensors):
    save_file(tensors, tmp_path / "model.safetensors")
    memory.pipe("/bucket/model.safetensors", (tmp_path / "model.safetensors").read_bytes())
    loaded = rustload.torch.load("memory://bucket/model.safetensors")
    assert all(torch.equal(loaded[name], tensor) for name, tensor in tensors.items())


def test_objects_of_obstore_are_taken(model, tensors):
    obstore = pytest.importorskip("obstore")
    store = pytest.importorskip("obstore.store").MemoryStore()
    obstore.put(store, "a/model.bin", model.read_bytes())
    source = rustload.remote.obstore(store, "a/model.bin")
    checkpoint = rustload.open(source)
    assert torch.equal(checkpoint["layers.7.weight"].materialize(), tensors["layers.7.weight"])
    assert all(torch.equal(value, tensors[name]) for name, value in checkpoint.materialize().items())
    obstore.put(store, "a/model.bin", model.read_bytes())
    with coded(rustload.FormatError, "FileChanged"):
        checkpoint["layers.9.weight"].materialize()
    with pytest.raises(FileNotFoundError):
        rustload.remote.obstore(store, "a/other.bin")


@pytest.mark.usefixtures("memory")
def test_a_view_of_a_remote_tensor_is_an_error():
    with pytest.raises(BufferError):
        rustload.open("memory://bucket/model.bin")["layers.0.weight"].materialize(copy=False)


def test_schemes_that_are_not_allowed_are_errors_and_cause_no_request(server):
    for url, remote, note in [
        (server.url, None, "remote=('http',)"),
        ("file:///etc/hosts", None, "without file://"),
        ("gopher://x/y", None, "known are"),
        ("memory://bucket/model.bin", (), "remote=('memory',)"),
        ("zip://a::memory://bucket/a.zip", None, "fsspec.open"),
    ]:
        for verb in (rustload.open, rustload.scan):
            with coded(ValueError, "RemoteScheme", match="not") as caught:
                verb(url, **({} if remote is None else {"remote": remote}))
            assert note in caught.value.__notes__[0]
    with pytest.raises(ValueError, match="list of shards has URLs and"):
        rustload.open(["memory://bucket/model.bin", "model.bin"])
    with pytest.raises(TypeError, match="remote="):
        rustload.open("https://x/y", remote="https")
    assert not server.requests


def test_a_missing_package_is_named_with_its_pip_line(monkeypatch):
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.partition(".")[0] in ("s3fs", "fsspec"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with coded(rustload.UnsupportedError, "RemoteUnavailable") as caught:
        rustload.open("s3://bucket/model.bin")
    assert caught.value.__notes__ == ["pip install s3fs"]


def test_an_unknown_size_is_an_error(server):
    server.fault = lambda _: "no size"
    with coded(OSError, "RemoteSize", match="how long"):
        rustload.open(server.url, remote=HTTP)


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        ("200", "RemoteRange"),
        ("moved", "RemoteRange"),
        ("etag", "FileChanged"),
        ("500", "Io"),
        ("short", "RemoteRange"),
        ("long", "RemoteRange"),
    ],
)
def test_a_wrong_answer_is_a_typed_error(server, fault, code):
    checkpoint = rustload.open(server.url, remote=HTTP)
    server.fault = lambda _: fault
    with coded((OSError, rustload.FormatError), code):
        checkpoint["layers.200.weight"].materialize()


@pytest.mark.parametrize(
    ("fault", "text", "note"),
    [
        ("403", r"the store refuses access \(status 403\)", "check the credentials"),
        ("429", r"the store asks for fewer requests \(status 429\)", "try again later"),
        ("500", r"the store failed \(status 500\)", "try again later"),
        ("closed", r"the connection to the store broke \(\w+\)", "try again"),
    ],
)
def test_each_failure_has_its_cause_and_advice(server, monkeypatch, fault, text, note):
    monkeypatch.setattr("rustload._remote.web.RETRY_SECONDS", ())
    server.fault = lambda _: fault
    with pytest.raises(OSError, match=text) as caught:
        rustload.open(server.url, remote=HTTP)
    assert note in caught.value.__notes__[0].lower()
    assert "disk" not in caught.value.__notes__[0]


def test_a_host_that_cannot_be_reached_is_said_so():
    for host in ("127.0.0.1:1", "no-such-host.invalid"):
        with pytest.raises(OSError, match="the store cannot be reached") as caught:
            rustload.open(f"http://{host}/m.bin", remote=HTTP)
        assert "the network" in caught.value.__notes__[0]


def test_another_range_is_said_to_be_one(server):
    checkpoint = rustload.open(server.url, remote=HTTP)
    server.fault = lambda _: "moved"
    with pytest.raises(OSError, match=r"bytes \d+ to \d+ came for \d+ to \d+"):
        checkpoint["layers.200.weight"].materialize()


def test_a_page_is_said_to_be_a_folder(server):
    server.content = lambda _: (b"<html></html>", "text/html")  # type: ignore[method-assign]
    server.fault = lambda _: "200"
    with pytest.raises(OSError, match="status 200") as caught:
        rustload.open(server.url, remote=HTTP)
    assert "end the URL of a folder with a slash" in caught.value.__notes__[0]


def test_files_are_not_written_to_urls(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rustload.save({"a": torch.ones(2)}, "m.safetensors")
    for write in (
        lambda url: rustload.save({"a": torch.ones(2)}, url),
        lambda url: rustload.convert("m.safetensors", url),
        lambda url: rustload.Writer(url, {"a": ("float32", (2,))}),
    ):
        for name in ("x.safetensors", "x"):
            with pytest.raises(ValueError, match=r"memory://bucket/.* files are not written to URLs"):
                write(f"memory://bucket/{name}")


def test_the_command_line_says_how_to_allow_a_scheme(server, capsys):
    assert _cli.main(["info", server.url]) == 3
    err = capsys.readouterr().err
    assert "Set RUSTLOAD_REMOTE=http to allow it." in err
    assert "remote=" not in err


FAULTS = ("200", "500", "short", "long", "moved", "etag", "closed")


def test_each_request_that_fails_once_gives_right_bytes_or_a_typed_error(server, tensors):
    choice = random.Random(5)
    codes: list[str] = []
    for _ in range(60):
        failing, fault = choice.randrange(8), choice.choice(FAULTS)
        server.requests.clear()
        server.fault = lambda number, failing=failing, fault=fault: fault if number == failing else None  # type: ignore[misc]
        name = f"layers.{choice.randrange(300)}.weight"
        try:
            part = rustload.open(server.url, remote=HTTP)[name].materialize()
        except (OSError, rustload.FormatError) as error:
            codes.append(error.code)  # type: ignore[union-attr]
            continue
        assert torch.equal(part, tensors[name])
    assert 10 < len(codes) < 60
    assert {*codes} <= {"Io", "RemoteRange", "RemoteSize", "FileChanged"}


def test_no_secret_is_shown(server, capsys):
    import traceback

    host = server.url.removeprefix("http://")
    url = f"http://user:{SECRET}@{host}?token={SECRET}#{SECRET}"
    assert name_of(url) == server.url
    options = {"headers": {"X-Token": SECRET}}
    checkpoint = rustload.open(url, remote=HTTP, storage_options=options)
    source = rustload.remote.fsspec(url, **options)
    shown = [repr(checkpoint), repr(source), str(source.identity), repr(checkpoint["layers.0.weight"])]  # type: ignore[attr-defined]
    shown.append(rustload.scan(url, remote=HTTP, storage_options=options).to_json())
    assert server.url in shown[0]
    for fault in ("500", "200", "closed", "etag"):
        server.fault = lambda _, fault=fault: fault  # type: ignore[misc]
        for call in (
            checkpoint["layers.200.weight"].materialize,
            lambda: rustload.open(url, remote=HTTP, storage_options=options),
        ):
            with contextlib.suppress(rustload.RustloadError, OSError):
                call()
                continue
            try:
                call()
            except (rustload.RustloadError, OSError) as error:
                shown += traceback.format_exception(error)
    for bad in (f"gopher://u:{SECRET}@h/p?{SECRET}", f"http://h:{SECRET}/?{SECRET}", f"s3://b/k?{SECRET}"):
        try:
            rustload.open(bad)
        except (rustload.RustloadError, OSError, ValueError) as error:
            shown += traceback.format_exception(error)
    assert command.main(["info", "--json", url]) != 0
    assert command.main(["scan", "--json", url]) != 0
    server.fault = lambda _: None
    folder = url.replace("model.bin", "")
    assert command.main(["scan", folder, "--exclude", "*"]) == 3
    for usage in ([url], ["info", "--bogus", url], ["verify", url, url, "--manifest", "x"]):
        with pytest.raises(SystemExit):
            command.main(usage)
    captured = capsys.readouterr()
    shown += [captured.out, captured.err]
    # The tracebacks quote lines of this file, which names the variable and not the text.
    assert SECRET not in "".join(shown)


@pytest.mark.parametrize("place", ["local", "memory"])
def test_the_compression_of_a_file_of_fsspec_is_undone(place, memory, model, tmp_path, tensors):
    import gzip

    (tmp_path / "m.gz").write_bytes(gzip.compress(model.read_bytes(), 1))
    memory.pipe("/bucket/m.gz", (tmp_path / "m.gz").read_bytes())
    url = "memory://bucket/m.gz" if place == "memory" else str(tmp_path / "m.gz")
    for given in (fsspec.open(url, compression="gzip"), fsspec.open(url, compression="infer")):
        checkpoint = rustload.open(given)
        assert [*checkpoint] == [*tensors]
        assert rustload.torch.load(given).keys() == tensors.keys()
        assert rustload.scan(given).passes
    for mode in ("r", "wb"):
        with pytest.raises(TypeError, match="mode 'rb'"):
            rustload.open(fsspec.open(url, mode))
    assert [*rustload.open(fsspec.open(url, compression="gzip"))] == [*tensors]


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("https://u:s3c/r3t@h/m.bin?s3c", "https://h/m.bin"),
        ("https://u:s3c/r3t?s3c@h/m.bin", "https://u"),
        ("https://u:s3c/r@3t/s3c@h:80/m.bin", "https://h:80/m.bin"),
        ("https://u:s3c/@h:s3c?@h/m.bin", "https://h"),
        ("https://[::1]:80/a@1.0/m.bin", "https://[::1]:80/a@1.0/m.bin"),
        ("https://h:80/a@1.0/m.bin", "https://h:80/a@1.0/m.bin"),
        ("zip://m.bin::https://u:s3c@h/x.zip?s3c", "zip://m.bin::https://h/x.zip"),
        ("zip://m.bin?s3c::simplecache::s3://u:s3/c@h/x", "zip://m.bin::s3://h/x"),
        ("simplecache::https://u:s3::c@h/x", "simplecache::https://h/x"),
    ],
)
def test_the_name_of_a_url_has_no_secrets(url, name):
    assert name_of(url) == name


@pytest.mark.parametrize(
    "arguments",
    [
        ["{}.bin"],
        ["info", "--color={}", "m"],
        ["info", "--depth", "{}", "m"],
        ["convert", "m", "--rename", "{}"],
        ["info", "zip://m.bin::{}"],
        ["scan", "--json", "m", "--policy", "{}"],
        ["scan", "--json", "m", "--baseline", "{}"],
        ["scan", "m", "--sarif-file", "{}"],
        ["view", "m", "-o", "{}"],
        ["view", "m", "--svg", "{}"],
        ["manifest", "m", "-o", "{}"],
        ["convert", "m", "n", "--objects", "{}"],
    ],
)
@pytest.mark.parametrize("password", [SECRET, f"{SECRET}'", f"{SECRET}'\"", f"{SECRET}\n", f"a/{SECRET}"])
def test_no_command_shows_a_password(arguments, password, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rustload.save({"w": torch.ones(1)}, "m")
    with contextlib.suppress(SystemExit):
        assert command.main([one.format(f"https://u:{password}@h/x") for one in arguments]) != 0
    captured = capsys.readouterr()
    assert SECRET not in captured.out + captured.err
    assert "//h/x" in captured.err
    assert [one.name for one in tmp_path.iterdir()] == ["m"]


@pytest.mark.usefixtures("memory")
def test_the_command_line_takes_urls(tmp_path, capsys, tensors):
    url = "memory://bucket/model.bin"
    assert command.main(["info", "--json", url]) == 0
    (described,) = json.loads(capsys.readouterr().out)["checkpoints"]
    assert (described["path"], described["files"]) == (url, [url])
    assert len(described["tensors"]) == len(tensors)
    assert command.main(["scan", url]) == 0
    out = tmp_path / "model.safetensors"
    assert command.main(["convert", url, str(out)]) == 0
    assert rustload.open(out).keys() == tensors.keys()


def test_the_blocks_of_a_source_that_sleeps_are_read_at_once():
    data = np.arange(24 << 20, dtype=np.uint8)
    header = json.dumps({"w": {"dtype": "U8", "shape": [len(data)], "data_offsets": [0, len(data)]}}).encode()
    whole = len(header).to_bytes(8, "little") + header + data.tobytes()

    class Slow:
        size, name = len(whole), "slow://"

        def read_ranges(self, ranges: list[tuple[int, int]]) -> list[memoryview]:
            time.sleep(0.1 * len(ranges))
            return [memoryview(whole)[start : start + length] for start, length in ranges]

    checkpoint = rustload.open(Slow(), framework="numpy")
    begin = time.perf_counter()
    found = checkpoint["w"].materialize()
    took = time.perf_counter() - begin
    assert np.array_equal(found, data)
    assert took < 0.1 * 6 / 2, "its 6 blocks were not read at once"


def test_a_resumed_conversion_takes_nothing_of_a_url_with_another_query(tmp_path):
    pytest.importorskip("urllib3")

    class StopError(Exception): ...

    def stop(done: int, total: int, _name: str) -> None:
        if total // 4 <= done < total:
            raise StopError

    class ByQuery(Server):
        """Every file has one path, size and version."""

        def answer(self, handler: Any, *, body: bool) -> None:
            handler.path = "/" + handler.path.partition("?")[2]
            super().answer(handler, body=body)

    options: dict[str, Any] = {"resume": True, "threads": 1, "memory": "2MiB"}
    path, target = tmp_path / "m.safetensors", tmp_path / "out.safetensors"
    files = {}
    for name, number in (("one", 1.0), ("two", 2.0)):
        save_file({f"w{n}": torch.full((4 << 20,), number) for n in range(8)}, path)
        files[name] = path.read_bytes()
    server = ByQuery(files)
    try:
        with pytest.raises(StopError):
            rustload.convert(
                rustload.remote.fsspec(f"{server.host}/get?one"), target, progress=stop, **options
            )
        assert (tmp_path / ".out.safetensors.resume").is_dir()
        rustload.convert(rustload.remote.fsspec(f"{server.host}/get?two"), target, **options)
    finally:
        server.close()
    assert {float(tensor.torch()[0]) for tensor in rustload.open(target).values()} == {2.0}


def test_diff_and_stats_name_a_url_without_its_secrets(memory, model, capsys):
    # The memory file system takes the query as a part of the name.
    memory.pipe(f"/bucket/model.bin?{SECRET}", model.read_bytes())
    url = f"memory://bucket/model.bin?{SECRET}"
    assert command.main(["diff", url, str(model)]) == 0
    assert command.main(["stats", "--json", url]) == 0
    captured = capsys.readouterr()
    assert "memory://bucket/model.bin" in captured.out
    assert SECRET not in captured.out + captured.err


def npz(path: Path, arrays: dict[str, np.ndarray[Any, Any]], *, deflated: bool) -> bytes:
    (np.savez_compressed if deflated else np.savez)(path, **arrays)  # type: ignore[arg-type]
    return path.read_bytes()


@pytest.mark.parametrize("deflated", [False, True])
def test_the_headers_of_an_npz_are_read_several_at_once(tmp_path, deflated):
    dice = np.random.default_rng(5)
    arrays: dict[str, np.ndarray[Any, Any]] = {
        f"a{number}": dice.integers(0, 256, (3, 100_000), np.uint8) for number in range(40)
    }
    # Headers that are longer than what is read at once, of an array that is empty, and of one whose elements are not numbers.
    arrays |= {"long": dice.normal(size=(1,) * 60), "empty": np.zeros((0, 3)), "text": np.array(["a", "b"])}
    data = npz(tmp_path / "a.npz", arrays, deflated=deflated)
    del arrays["text"]
    source = Ranges(data, 0.005)
    ckpt = rustload.open(source)
    local = rustload.open(tmp_path / "a.npz")
    assert list(ckpt) == list(local) == list(arrays)
    assert ckpt.notes == local.notes
    assert source.most >= 4
    # One after another, they would be a request for each array.
    assert source.requests <= 40 + 6
    assert source.nbytes < 1 << 20
    for name, array in arrays.items():
        assert np.array_equal(ckpt[name].numpy(), array), name


@pytest.mark.parametrize("deflated", [False, True])
@pytest.mark.parametrize("at", [0, 14, 18, 30])
def test_a_spoilt_header_of_an_npz_is_the_error_of_a_local_file(tmp_path, deflated, at):
    arrays = {f"a{number}": np.arange(50_000.0) for number in range(4)}
    data = bytearray(npz(tmp_path / "a.npz", arrays, deflated=deflated))
    with zipfile.ZipFile(tmp_path / "a.npz") as archive:
        data[archive.infolist()[2].header_offset + at] ^= 0x55
    (tmp_path / "spoilt.npz").write_bytes(data)
    with pytest.raises(rustload.FormatError) as local:
        rustload.open(tmp_path / "spoilt.npz").materialize()
    with pytest.raises(rustload.FormatError) as remote:
        rustload.open(Ranges(bytes(data))).materialize()
    assert (remote.value.code, remote.value.member) == (local.value.code, local.value.member)


def test_many_arrays_of_an_npz_are_within_the_limits(tmp_path):
    arrays = {f"a{number}": np.zeros(50_000) for number in range(30)}
    data = npz(tmp_path / "a.npz", arrays, deflated=False)
    with pytest.raises(rustload.LimitError, match="remote_requests"):
        rustload.open(Ranges(data), limits=rustload.Limits(remote_requests=5))
    assert len(rustload.open(Ranges(data), limits=rustload.Limits(remote_requests=100))) == 30


def test_a_deflated_storage_is_read_by_several_ranges_at_once(tmp_path):
    noise = np.random.default_rng(7).integers(0, 256, 9 << 20, np.uint8)
    source = Ranges(npz(tmp_path / "a.npz", {"noise": noise}, deflated=True), 0.005)
    tensor = rustload.open(source)["noise"]
    source.calls.clear()
    assert np.array_equal(tensor.numpy(), noise)
    # 4 MiB at a time, by 8 ranges of 512 KiB.
    assert len(source.calls) <= 6
    assert max(map(len, source.calls)) == 8
    assert max(length for call in source.calls for _, length in call) <= 512 << 10
    assert source.nbytes < source.size + (128 << 10)
