"""Folders, indexes, lists of shards, repositories of the Hugging Face Hub and distributed checkpoints behind URLs.

The servers are on the loopback interface.
"""

import json
import shutil
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support import coded, contents, divided, torch_child, write_shards
from torch.distributed import checkpoint as dcp
from web_server import Hub, Server

import rustload
import rustload.remote
import rustload.torch
from rustload._cli import command
from rustload._remote.folder import ObjectFolder
from rustload._remote.hub import hub_url

fsspec = pytest.importorskip("fsspec")


HTTP = ("http",)
INDEX = "model.safetensors.index.json"
SHARDS = [f"model-{number:05}-of-00004.safetensors" for number in range(1, 5)]
SECRET = "s3cr3t"


@pytest.fixture(scope="module")
def tensors() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return {f"layers.{number}.weight": torch.randn(16, 24, generator=generator) for number in range(8)}


def write_sharded(folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    """A folder of four shards and a configuration."""
    write_shards(folder, divided(tensors, len(SHARDS)))
    (folder / "config.json").write_text("{}")


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory, tensors: dict[str, torch.Tensor]) -> Path:
    folder = tmp_path_factory.mktemp("sharded") / "model"
    write_sharded(folder, tensors)
    return folder


@pytest.fixture(scope="module")
def distributed(tmp_path_factory: pytest.TempPathFactory, tensors: dict[str, torch.Tensor]) -> Path:
    folder = tmp_path_factory.mktemp("distributed") / "step"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save({"model": tensors, "step": 3}, checkpoint_id=folder, no_dist=True)
    return folder


def files_of(folder: Path) -> dict[str, bytes]:
    """The content of each file below a folder, by its path from the parent of the folder."""
    return {f"{folder.name}/{name}": content for name, content in contents(folder).items()}


@pytest.fixture
def server(sharded: Path, distributed: Path) -> Iterator[Server]:
    pytest.importorskip("urllib3")
    made = Server(files_of(sharded) | files_of(distributed))
    yield made
    made.close()


@pytest.fixture
def memory(sharded: Path, distributed: Path) -> Iterator[Any]:
    fs = fsspec.filesystem("memory")
    for name, content in (files_of(sharded) | files_of(distributed)).items():
        fs.pipe(f"/bucket/{name}", content)
    yield fs
    fs.rm("/bucket", recursive=True)


@pytest.fixture
def store(sharded: Path, distributed: Path) -> Any:
    obstore = pytest.importorskip("obstore")
    made = pytest.importorskip("obstore.store").MemoryStore()
    for name, content in (files_of(sharded) | files_of(distributed)).items():
        obstore.put(made, name, content)
    return made


def assert_equal(found: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> None:
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert torch.equal(found[name], tensor), name


@pytest.mark.usefixtures("memory")
@pytest.mark.parametrize(
    "given",
    [
        "memory://bucket/model",
        "memory://bucket/model/",
        f"memory://bucket/model/{INDEX}",
        [f"memory://bucket/model/{shard}" for shard in SHARDS],
    ],
)
def test_folders_indexes_and_lists_open_as_on_disk(given, tensors):
    checkpoint = rustload.open(given)
    assert_equal(checkpoint.materialize(), tensors)
    assert [file.rpartition("/")[2] for file in checkpoint.files] == SHARDS
    assert checkpoint.files[0].startswith("memory://bucket/model/")
    assert set(dict(checkpoint.stream())) == set(tensors)


@pytest.mark.parametrize("given", ["model/", f"model/{INDEX}", SHARDS])
def test_a_web_server_has_folders_indexes_and_lists(server, given, tensors):
    url = (
        [f"{server.host}/model/{one}" for one in given]
        if isinstance(given, list)
        else f"{server.host}/{given}"
    )
    checkpoint = rustload.open(url, remote=HTTP)
    assert_equal(checkpoint.materialize(), tensors)
    assert checkpoint.files == [f"{server.host}/model/{shard}" for shard in SHARDS]
    # Beside the index and the listing, only the shards were requested.
    assert {one.path.rpartition("/")[2] for one in server.requests} <= {*SHARDS, INDEX, ""}


def test_folders_of_obstore_are_taken(store, tensors):
    for path in ("model/", f"model/{INDEX}"):
        source = rustload.remote.obstore(store, path)
        assert_equal(rustload.open(source).materialize(), tensors)
        assert_equal(rustload.torch.load(source), tensors)
    assert rustload.open(rustload.remote.obstore(store, "step/"))["model.layers.3.weight"].shape == (16, 24)
    report = rustload.scan(rustload.remote.obstore(store, ""))
    assert report.verdict == "inert"
    assert {file.path.rpartition("/")[2] for file in report.files} >= {*SHARDS, ".metadata", "__0_0.distcp"}
    with pytest.raises(rustload.FormatError, match="no checkpoint"):
        rustload.open(rustload.remote.obstore(store, "nothing/"))


@pytest.mark.usefixtures("memory")
def test_every_verb_takes_a_folder(tmp_path, sharded, tensors, capsys):
    url = "memory://bucket/model"
    for given in (url, rustload.remote.fsspec(url), fsspec.open(url)):
        assert_equal(rustload.torch.load(given), tensors)
        with rustload.safe_open(given, framework="pt") as file:
            assert torch.equal(file.get_tensor("layers.3.weight"), tensors["layers.3.weight"])
        assert rustload.scan(given).verdict == "inert"
    report = rustload.convert(url, tmp_path / "out")
    assert list(report.files) == [*SHARDS, INDEX]
    assert_equal(rustload.open(tmp_path / "out").materialize(), tensors)
    rustload.convert(url, tmp_path / "one.safetensors", dtype="float16")
    assert load_file(tmp_path / "one.safetensors")["layers.0.weight"].dtype == torch.float16
    assert rustload.diff(url, sharded, data=True).same
    model = torch.nn.Module()
    model.layers = torch.nn.ModuleList(torch.nn.Linear(24, 16, bias=False) for _ in tensors)
    rustload.torch.load_into(model, url)
    assert_equal(model.state_dict(), tensors)
    assert rustload.open(url).stats()["layers.0.weight"].total == tensors["layers.0.weight"].numel()
    assert "layers" in rustload.view(url, tmp_path / "map.svg", svg=True).read_text()
    for arguments in (["info", "--json", url], ["scan", url], ["diff", url, str(sharded)], ["stats", url]):
        assert command.main(arguments) == 0, arguments
    assert command.main(["convert", url, str(tmp_path / "cli")]) == 0
    assert_equal(rustload.open(tmp_path / "cli").materialize(), tensors)
    assert SHARDS[3] in capsys.readouterr().out


@pytest.mark.usefixtures("memory")
@pytest.mark.parametrize("url", ["memory://bucket/step", "memory://bucket/step/.metadata"])
def test_distributed_checkpoints_open_with_their_values(url, tensors):
    checkpoint = rustload.open(url)
    assert checkpoint.format == "torch-dcp"
    assert_equal(
        {name.removeprefix("model."): value for name, value in checkpoint.materialize().items()}, tensors
    )
    assert checkpoint.objects["step"] == 3
    assert torch.equal(
        checkpoint["model.layers.2.weight"][3:5].materialize(), tensors["layers.2.weight"][3:5]
    )
    report = rustload.scan(url)
    assert report.verdict == "inert"


def test_a_distributed_checkpoint_on_a_web_server(server, tensors):
    checkpoint = rustload.open(f"{server.host}/step/.metadata", remote=HTTP)
    assert torch.equal(checkpoint["model.layers.2.weight"].materialize(), tensors["layers.2.weight"])
    assert {one.path for one in server.requests} == {"/step/.metadata", "/step/__0_0.distcp"}
    with pytest.raises(rustload.FormatError, match="file of chunks") as caught:
        rustload.open(f"{server.host}/step/__0_0.distcp", remote=HTTP)
    assert f"{server.host}/step" in caught.value.__notes__[0]
    # By the folder, its items are known, and so none of its bytes is left out.
    assert rustload.scan(f"{server.host}/step/__0_0.distcp", remote=HTTP).verdict == "inert"


def test_a_scan_of_a_folder_goes_into_its_folders(memory):
    memory.pipe("/bucket/model/deep/er/bad.pkl", b"cos\nsystem\n(S'id'\ntR.")
    report = rustload.scan("memory://bucket")
    assert report.verdict == "would execute"
    (bad,) = [file for file in report.files if file.verdict == "would execute"]
    assert bad.path == "memory://bucket/model/deep/er/bad.pkl"
    assert len(report.files) == len(memory.find("/bucket"))


def test_a_pipeline_is_converted_as_on_disk(tmp_path, memory, tensors):
    local = tmp_path / "pipeline"
    write_sharded(local / "unet", tensors)
    (local / "model_index.json").write_text("{}")
    (local / "vae").mkdir()
    tied = {"embed.weight": torch.ones(2, 2)}
    torch.save(tied | {"lm_head.weight": tied["embed.weight"]}, local / "vae" / "pytorch_model.bin")
    (local / "vae" / "config.json").write_text('{"tie_word_embeddings": true}')
    for name, content in files_of(local).items():
        memory.pipe(f"/bucket/{name}", content)
    found = rustload.convert("memory://bucket/pipeline", tmp_path / "remote")
    expected = rustload.convert(local, tmp_path / "local")
    assert found.files == expected.files
    assert found.dropped == expected.dropped == {"lm_head.weight": "embed.weight"}
    for name in found.files:
        assert (tmp_path / "remote" / name).read_bytes() == (tmp_path / "local" / name).read_bytes(), name
    rustload.convert("memory://bucket/pipeline", tmp_path / "remote copied", copy_others=True)
    rustload.convert(local, tmp_path / "local copied", copy_others=True)
    copied = {
        name.partition("/")[2]: content for name, content in files_of(tmp_path / "remote copied").items()
    }
    assert copied == {
        name.partition("/")[2]: content for name, content in files_of(tmp_path / "local copied").items()
    }
    with pytest.raises(ValueError, match="dst="):
        rustload.convert("memory://bucket/pipeline")


@pytest.fixture
def tied(tmp_path: Path) -> Path:
    """A file whose head is its embedding, beside the configuration that says so."""
    folder = tmp_path / "tied"
    folder.mkdir()
    embedding = torch.arange(6.0).view(2, 3)
    torch.save(
        {"embed.weight": embedding, "lm_head.weight": embedding, "step": 3}, folder / "pytorch_model.bin"
    )
    (folder / "config.json").write_text('{"tie_word_embeddings": true}')
    return folder


@pytest.mark.parametrize("target", ["folder", "file.safetensors"])
@pytest.mark.parametrize("place", ["memory", "server", "store"])
def test_a_single_file_is_converted_as_on_disk(tmp_path, tied, request, place, target):
    stored = request.getfixturevalue(place)
    for name, content in files_of(tied).items():
        if place == "memory":
            stored.pipe(f"/bucket/{name}", content)
        elif place == "server":
            stored.files[name] = content
        else:
            pytest.importorskip("obstore").put(stored, name, content)
    if place == "memory":
        given: Any = "memory://bucket/tied/pytorch_model.bin"
    elif place == "server":
        given = rustload.remote.fsspec(f"{stored.host}/tied/pytorch_model.bin?token={SECRET}")
    else:
        given = rustload.remote.obstore(stored, "tied/pytorch_model.bin")
    for side in ("remote", "local"):
        (tmp_path / side).mkdir()
    found = rustload.convert(given, tmp_path / "remote" / target)
    expected = rustload.convert(tied / "pytorch_model.bin", tmp_path / "local" / target)
    assert found.files == expected.files
    assert found.dropped == expected.dropped == {"lm_head.weight": "embed.weight"}
    name = next(iter(found.files))
    folder = "folder" if target == "folder" else ""
    assert (tmp_path / "remote" / folder / name).read_bytes() == (
        tmp_path / "local" / folder / name
    ).read_bytes()
    if place == "server":
        # The query is a secret for the file, and the folder is not listed.
        beside = [one.path for one in stored.requests if "pytorch_model" not in one.path]
        assert set(beside) == {"/tied/config.json"}
    with pytest.raises(ValueError, match="dst="):
        rustload.convert(given)


def test_a_single_file_is_converted_without_a_listing_of_its_folder(tmp_path, tied, memory, monkeypatch):
    memory.pipe("/bucket/lone/model.pt", (tied / "pytorch_model.bin").read_bytes())

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("the folder may be a bucket")

    monkeypatch.setattr(type(memory), "ls", refuse)
    report = rustload.convert("memory://bucket/lone/model.pt", tmp_path / "out.safetensors")
    assert (report.tensors, report.dropped) == (2, {})


@pytest.mark.usefixtures("memory")
def test_a_chunk_is_opened_within_the_limits_on_requests(tensors):
    names = {f"model.{name}": tensor for name, tensor in tensors.items()}
    small = rustload.open("memory://bucket/step", limits=rustload.Limits(remote_bytes=10_000))
    with pytest.raises(rustload.LimitError, match="remote_bytes") as caught:
        small["model.layers.0.weight"].materialize()
    assert "__0_0.distcp" in str(caught.value)
    none = rustload.open("memory://bucket/step", limits=rustload.Limits(remote_requests=1))
    assert_equal(dict(none.stream(threads=4)), names)


def test_the_limits_on_requests_are_those_of_each_chunk(tmp_path):
    large = {f"w{number:02}": torch.full((300, 100), float(number)) for number in range(60)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save(large, checkpoint_id=tmp_path / "large", no_dist=True)
    fs = fsspec.filesystem("memory")
    for name, content in files_of(tmp_path / "large").items():
        fs.pipe(f"/chunks/{name}", content)
    try:
        # What other threads read of the same file meanwhile does not count.
        limits = rustload.Limits(remote_requests=4, remote_bytes=300_000)
        for _ in range(3):
            with rustload.open("memory://chunks/large", limits=limits) as checkpoint:
                assert_equal(dict(checkpoint.stream(threads=8)), large)
        with (
            rustload.open("memory://chunks/large", limits=rustload.Limits(remote_requests=1)) as checkpoint,
            pytest.raises(rustload.LimitError, match="remote_requests"),
        ):
            checkpoint.materialize()
    finally:
        fs.rm("/chunks", recursive=True)


def test_a_single_file_has_its_url_as_its_file(memory, server, store):
    with rustload.open(f"memory://bucket/model/{SHARDS[0]}") as checkpoint:
        assert checkpoint.files == [f"memory://bucket/model/{SHARDS[0]}"]
        assert repr(checkpoint["layers.0.weight"])
    host = server.host.removeprefix("http://")
    url = f"http://user:{SECRET}@{host}/model/{SHARDS[0]}?token={SECRET}#{SECRET}"
    for given in (url, [url], rustload.remote.fsspec(url)):
        assert rustload.open(given, remote=HTTP).files == [f"{server.host}/model/{SHARDS[0]}"]
    assert rustload.open(rustload.remote.obstore(store, f"model/{SHARDS[0]}")).files == [
        f"MemoryStore://model/{SHARDS[0]}"
    ]
    assert rustload.open(memory.cat(f"/bucket/model/{SHARDS[0]}")).files == []


def test_what_is_missing_is_named(memory):
    memory.rm(f"/bucket/model/{SHARDS[1]}")
    memory.rm(f"/bucket/model/{SHARDS[3]}")
    with coded(rustload.FormatError, "ShardMissing") as caught:
        rustload.open("memory://bucket/model")
    assert f"missing from memory://bucket/model: {SHARDS[1]}, {SHARDS[3]}" in str(caught.value)
    memory.rm("/bucket/step/__0_0.distcp")
    with coded(rustload.FormatError, "ShardMissing") as caught:
        rustload.open("memory://bucket/step")
    with pytest.raises(FileNotFoundError):
        rustload.open("memory://bucket/other")


@pytest.mark.usefixtures("memory")
def test_a_list_of_shards_has_no_folder_and_no_index():
    for other in ("memory://bucket/model", f"memory://bucket/model/{INDEX}"):
        with coded(rustload.UnsupportedError, "RemoteFolder"):
            rustload.open([f"memory://bucket/model/{SHARDS[0]}", other])


def test_a_missing_shard_of_a_web_server_is_named(server):
    del server.files[f"model/{SHARDS[2]}"]
    with coded(rustload.FormatError, "ShardMissing") as caught:
        rustload.open(f"{server.host}/model/{INDEX}", remote=HTTP)
    assert SHARDS[2] in str(caught.value)


HOSTILE = [
    "../secret.safetensors",
    "..",
    ".",
    "",
    "/etc/passwd",
    "a/b",
    "..\\secret",
    "a\0b",
    "http://127.0.0.1:1/x",
    "//127.0.0.1/x",
    "file:///etc/passwd",
    "C:x",
]


@pytest.mark.parametrize("name", HOSTILE)
def test_an_index_names_no_file_outside_its_folder(server, memory, name):
    text = json.dumps({"weight_map": {"w": name}}).encode()
    server.files[f"model/{INDEX}"] = text
    memory.pipe(f"/bucket/model/{INDEX}", text)
    for url in (f"{server.host}/model/{INDEX}", f"memory://bucket/model/{INDEX}"):
        with coded(rustload.FormatError, "IndexFormat"):
            rustload.open(url, remote=("http", "memory"))
    assert {one.path for one in server.requests} == {f"/model/{INDEX}"}


@pytest.mark.parametrize(
    "name", ["..%2fsecret", "%2e%2e%2fsecret", "a?b=c", "a#b", "@evil", "xy::memory:", "*", "é", "a b", "%"]
)
def test_a_plain_name_is_requested_as_it_is(server, memory, name, tensors, sharded):
    text = json.dumps({"weight_map": dict.fromkeys(load_file(sharded / SHARDS[0]), "x")}).replace(
        '"x"', json.dumps(name)
    )
    server.files["secret"] = b"outside"
    for where in ("model", "twin"):
        server.files[f"{where}/{INDEX}"] = text.encode()
    memory.pipe(f"/bucket/model/{INDEX}", text.encode())
    for url in (f"{server.host}/model/{INDEX}", f"memory://bucket/model/{INDEX}"):
        with coded(rustload.FormatError, "ShardMissing"):
            rustload.open(url, remote=("http", "memory"))
    content = (sharded / SHARDS[0]).read_bytes()
    server.files[f"model/{name}"] = content
    memory.pipe_file(f"/bucket/model/{name}", content)
    for url in (f"{server.host}/model/{INDEX}", f"memory://bucket/model/{INDEX}"):
        found = rustload.open(url, remote=("http", "memory")).materialize()
        assert_equal(found, {one: tensors[one] for one in found})
    for one in server.requests:
        assert one.path.startswith("/model/")
        assert one.path.count("/") == 2
        assert "?" not in one.path


def test_metadata_names_no_file_outside_its_folder(server, distributed, memory):
    content = (distributed / ".metadata").read_bytes()
    for name in ("/etc/passwd.", "../x.distcp.", "a/b.distcp..", "a\\b.distcp."):
        assert content.count(b"__0_0.distcp") == 1
        hostile = content.replace(b"__0_0.distcp", name.encode().ljust(12, b".")[:12])
        server.files["step/.metadata"] = hostile
        memory.pipe("/bucket/step/.metadata", hostile)
        for url in (f"{server.host}/step/.metadata", "memory://bucket/step"):
            with coded(rustload.FormatError, "DcpPath"):
                rustload.open(url, remote=("http", "memory"))
    assert {one.path for one in server.requests} == {"/step/.metadata"}


def test_links_of_a_listing_outside_its_folder_are_not_followed(server):
    server.files["away/model.safetensors"] = b"outside"
    page = "<a href='/away/model.safetensors'>x</a><a href='../away/model.safetensors'>x</a><a href='http://127.0.0.1:1/model.safetensors'>x</a>"
    server.content = lambda path, real=server.content: (
        (page.encode(), "text/html") if path == "/model/" else real(path)
    )  # type: ignore[method-assign, misc]
    with pytest.raises(rustload.FormatError, match="no checkpoint"):
        rustload.open(f"{server.host}/model/", remote=HTTP)
    assert {one.path for one in server.requests} <= {"/model/", "/model"}


@pytest.mark.parametrize("folder", ["a%20b", "a b"])
def test_links_of_a_listing_may_be_written_in_other_ways(server, tmp_path, folder):
    save_file({"w": torch.ones(2)}, tmp_path / "m")
    server.files["a b/model.safetensors"] = (tmp_path / "m").read_bytes()
    for base in ("", "/a%20b/", "/a b/", f"{server.host}/a%20b/"):
        page = f"<a href='http://[x'>x</a><a href='{base}model.safetensors'>x</a>"
        server.content = lambda path, real=server.content, page=page: (
            (page.encode(), "text/html") if path.endswith("/") else real(path)
        )  # type: ignore[method-assign, misc]
        for host in (server.host, server.host.replace("//", "//user:password@")):
            assert list(rustload.open(f"{host}/{folder}/", remote=HTTP)) == ["w"]


def test_shards_are_opened_and_read_at_once(tmp_path):
    """Each call of the objects takes a fixed time, so that a serial reader would take the sum."""
    tensors = {f"{number}": torch.full((300_000,), float(number)) for number in range(8)}
    contents = {}
    for name, tensor in tensors.items():
        save_file({name: tensor}, tmp_path / "x")
        contents[f"memory://{name}"] = (tmp_path / "x").read_bytes()
    lock = threading.Lock()
    now = most = calls = 0

    class Slow:
        def __init__(self, name: str) -> None:
            self.name, self.content = name, contents[name]
            self.size = len(self.content)

        def read_ranges(self, ranges: list[tuple[int, int]]) -> list[bytes]:
            nonlocal now, most, calls
            with lock:
                now, calls = now + 1, calls + len(ranges)
                most = max(most, now)
            time.sleep(0.05 * len(ranges))
            with lock:
                now -= 1
            return [self.content[start : start + length] for start, length in ranges]

    begin = time.perf_counter()
    checkpoint = rustload.open([Slow(name) for name in contents])
    opened = time.perf_counter() - begin
    assert (len(checkpoint), most) == (8, 8)
    assert opened < 0.05 * calls / 2
    most = calls = 0
    begin = time.perf_counter()
    found = dict(checkpoint.stream())
    took = time.perf_counter() - begin
    assert_equal(found, tensors)
    assert most >= 4
    assert took < 0.05 * calls / 2


def test_storage_options_of_a_folder_are_not_shown(server, capsys):
    import traceback

    host = server.host.removeprefix("http://")
    options = {"headers": {"X-Token": SECRET}}
    shown: list[str] = []
    for path in ("model/", f"model/{INDEX}?token={SECRET}", f"model/{SHARDS[0]}?token={SECRET}#{SECRET}"):
        url = f"http://user:{SECRET}@{host}/{path}"
        source = rustload.remote.fsspec(url, **options)
        checkpoint = rustload.open(source)
        shown += [repr(source), repr(checkpoint), *checkpoint.files, repr(checkpoint["layers.0.weight"])]
        shown.append(rustload.scan(url, remote=HTTP, storage_options=options).to_json())
        server.fault = lambda _: "500"
        calls: list[Callable[[], object]] = [
            lambda url=url: rustload.open(url, remote=HTTP, storage_options=options),  # type: ignore[misc]
            lambda url=url: rustload.open([url, url], remote=HTTP, storage_options=options),  # type: ignore[misc]
        ]
        for call in calls:
            with pytest.raises((rustload.RustloadError, OSError)) as caught:
                call()
            shown += traceback.format_exception(caught.value, limit=0)
        server.fault = lambda _: None
        command.main(["info", "--json", url])
    captured = capsys.readouterr()
    assert server.host in "".join(shown)
    assert SECRET not in "".join([*shown, captured.out, captured.err])


def test_a_folder_object_shows_its_name(memory):
    folder = rustload.remote.fsspec("memory://bucket/model")
    assert isinstance(folder, ObjectFolder)
    assert repr(folder) == "<FsspecFolder 'memory://bucket/model'>"
    assert sorted(folder.names()) == sorted(["config.json", INDEX, *SHARDS])
    assert folder.sizes([SHARDS[0], "absent"]) == [memory.size(f"/bucket/model/{SHARDS[0]}"), None]
    with pytest.raises(rustload.FormatError, match="not a plain name"):
        folder.open("../step/.metadata")


@pytest.mark.filterwarnings("ignore:.*states no version")
def test_a_folder_that_cannot_be_listed_is_read_by_its_index(memory, monkeypatch, tensors):
    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(SECRET)

    def info(self: Any, path: str, **_: Any) -> dict[str, Any]:
        return {"name": path, "size": self.store[path].size, "type": "file"}

    with monkeypatch.context() as patched:
        patched.setattr(type(memory), "ls", refuse)
        patched.setattr(type(memory), "info", info)
        assert_equal(rustload.open(f"memory://bucket/model/{INDEX}").materialize(), tensors)


# The Hugging Face Hub


@pytest.fixture
def hub(sharded: Path, distributed: Path) -> Iterator[Hub]:
    pytest.importorskip("huggingface_hub")
    files = {name.partition("/")[2]: content for name, content in files_of(sharded).items()}
    made = Hub("org/model", files | files_of(distributed))
    yield made
    made.close()


def run_with(code: str, tmp_path: Path, **environment: str) -> Any:
    """What a Python program prints as JSON. huggingface_hub reads the environment when it is imported."""
    environment = {"HF_HOME": str(tmp_path / "hf"), **environment}
    done = torch_child(f"import json, rustload\n{code}", check=False, env=environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_a_repository_is_pinned_to_one_commit(tmp_path, hub, tensors):
    code = f"""
import torch
found = {{}}
for given in ("hf://org/model", "hf://org/model@main/{INDEX}", "hf://org/model/{SHARDS[0]}", "hf://org/model/step",
              [f"hf://org/model/{{name}}" for name in {SHARDS!r}],
              {hub.host!r} + "/org/model", {hub.host!r} + "/org/model/blob/main/{SHARDS[0]}",
              {hub.host!r} + "/org/model/tree/main/step"):
    ckpt = rustload.open(given, remote=("hf", "http"))
    sums = {{name: float(value.double().sum()) for name, value in ckpt.materialize().items()}}
    found[str(given)] = [repr(ckpt), ckpt.files, sums]
print(json.dumps(found))
"""
    found = run_with(code, tmp_path, HF_ENDPOINT=hub.host, HF_HUB_OFFLINE="0")
    sums = {name: float(tensor.double().sum()) for name, tensor in tensors.items()}
    pinned = f"hf://org/model@{hub.commit}"
    for given, (shown, files, values) in found.items():
        one = {name: sums[name] for name in list(sums)[:: len(SHARDS)]}
        step = {f"model.{name}": value for name, value in sums.items()}
        expected = step if given.endswith("step") else one if given.endswith(SHARDS[0]) else sums
        assert values == expected, given
        assert pinned in shown or files[0].startswith(pinned)
    read = [one.path for one in hub.requests if "/resolve/" in one.path]
    assert read
    assert all(path.startswith(f"/org/model/resolve/{hub.commit}/") for path in read)
    # What huggingface_hub asks for: the repository, its revision, and the tree of the folder.
    asked = {one.path.partition("?")[0] for one in hub.requests if "/resolve/" not in one.path}
    api = "/api/models/org/model"
    assert asked - {"/api/agent-harnesses"} <= {
        api,
        f"{api}/revision/main",
        f"{api}/revision/{hub.commit}",
        f"{api}/tree/{hub.commit}",
        f"{api}/tree/{hub.commit}/step",
    }


def test_a_repository_is_what_the_api_of_the_hub_states(tmp_path, hub):
    """Of weights it states the SHA-256, of small files git's SHA-1."""
    answer, changed = hub.content, ""

    def content(path: str) -> tuple[bytes, str] | None:
        nonlocal changed
        if path.startswith("/change/"):
            changed = path.removeprefix("/change/")
            return b"", "text/plain"
        found = answer(path)
        if found and changed and path.endswith(changed) and "/resolve/" in path:
            return found[0][:-1] + bytes([found[0][-1] ^ 1]), found[1]
        return found

    hub.content = content  # type: ignore[method-assign]
    expected = {
        "": [8, 2, 8, 0],
        SHARDS[0]: ["ManifestMismatch", "ManifestMismatch", 8, 1],
        SHARDS[1]: ["ManifestMismatch", 2, 8, 1],
        INDEX: ["ManifestMismatch", 2, 8, 1],
        ".metadata": [8, 2, "ManifestMismatch", 1],
    }
    code = f"""
import contextlib, io
from urllib.request import urlopen
from rustload._cli import main

def codes():
    for given in ("hf://org/model", "hf://org/model/{SHARDS[0]}", "hf://org/model/step"):
        try:
            yield len(rustload.open(given, manifest="hf").materialize())
        except rustload.FormatError as error:
            yield error.code
    with contextlib.redirect_stdout(io.StringIO()):
        yield main(["verify", "hf://org/model", "--manifest", "hf"])

found = {{}}
for changed in {list(expected)}:
    urlopen({hub.host!r} + "/change/" + changed).close()
    found[changed] = list(codes())
print(json.dumps(found))
"""
    assert run_with(code, tmp_path, HF_ENDPOINT=hub.host, HF_HUB_OFFLINE="0") == expected


def test_a_push_under_way_does_not_mix_commits(tmp_path, hub, tensors):
    """`main` moves to another commit after its first resolution; all files come from the first one."""
    first, second = hub.commit, "b" * 40
    hub.commits[second] = dict.fromkeys(hub.commits[first], b"other")
    resolve = hub.content

    def moving(path: str) -> tuple[bytes, str] | None:
        answer = resolve(path)
        if path.endswith("/revision/main"):
            hub.commit = second
        return answer

    hub.content = moving  # type: ignore[method-assign]
    given = [f"hf://org/model/{name}" for name in SHARDS]
    code = (
        f"ckpt = rustload.open({given!r})\nckpt.materialize()\nprint(json.dumps([sorted(ckpt), ckpt.files]))"
    )
    names, files = run_with(code, tmp_path, HF_ENDPOINT=hub.host, HF_HUB_OFFLINE="0")
    assert names == sorted(tensors)
    assert {file.rpartition("/")[0] for file in files} == {f"hf://org/model@{first}"}


@pytest.mark.usefixtures("memory")
def test_offline_only_the_cache_is_read(tmp_path, sharded, tensors, monkeypatch):
    commit = "c" * 40
    cache = tmp_path / "hub"
    snapshot = cache / "models--org--model" / "snapshots" / commit
    shutil.copytree(sharded, snapshot)
    (cache / "models--org--model" / "refs").mkdir()
    (cache / "models--org--model" / "refs" / "main").write_text(commit)
    (cache / "secret").mkdir()
    monkeypatch.setenv("HF_HUB_CACHE", str(cache))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    for given in (
        "hf://org/model",
        f"hf://org/model@{commit}",
        f"hf://models/org/model@main/{INDEX}",
        [f"hf://org/model/{name}" for name in SHARDS],
        "https://huggingface.co/org/model/tree/main",
    ):
        checkpoint = rustload.open(given)
        assert_equal(checkpoint.materialize(), tensors)
        assert checkpoint.files == [str(snapshot / name) for name in SHARDS]
    assert rustload.scan("hf://org/model").verdict == "inert"
    with coded(ValueError, "RemoteScheme", match="is read from the local cache"):
        rustload.open([f"hf://org/model/{SHARDS[0]}", f"memory://bucket/model/{SHARDS[1]}"])
    for url in (
        "hf://org/other",
        "hf://org/model@dev",
        "hf://org/model/absent.bin",
        "hf://datasets/org/model",
    ):
        with pytest.raises(FileNotFoundError) as caught:
            rustload.open(url)
        assert "HF_HUB_OFFLINE" in caught.value.__notes__[0]
    for url in (
        "hf://org/model/../../../secret",
        "hf://org/..",
        "hf://org/model@..",
        "hf://org/model@refs%2F..%2F..",
        "hf://buckets/org/model/x",
    ):
        with pytest.raises(ValueError, match="no path in a repository"):
            rustload.open(url)


def test_only_pages_of_repositories_are_pages_of_the_hub(monkeypatch):
    site = "https://huggingface.co"
    for url, expected in {
        f"{site}/org/model": "hf://org/model",
        f"{site}/org/model/": "hf://org/model",
        f"{site}/org/model/blob/main/a/b.bin": "hf://org/model@main/a/b.bin",
        f"{site}/org/model/resolve/main/a%20b.bin?download=true": "hf://org/model@main/a b.bin",
        f"{site}/org/model/blob/refs%2Fpr%2F3/x.bin": "hf://org/model@refs%2Fpr%2F3/x.bin",
        f"{site}/datasets/org/data/tree/v1": "hf://datasets/org/data@v1",
        f"{site}/spaces/org/demo": "hf://spaces/org/demo",
        f"{site}/docs/hub": f"{site}/docs/hub",
        f"{site}/api/models/org/model": f"{site}/api/models/org/model",
        f"{site}/org/model/discussions/1": f"{site}/org/model/discussions/1",
        "https://huggingface.co.evil/org/model": "https://huggingface.co.evil/org/model",
        "https://x@huggingface.co/org/model": "https://x@huggingface.co/org/model",
        "https://example.com/org/model": "https://example.com/org/model",
    }.items():
        assert hub_url(url) == expected
    monkeypatch.setattr("rustload._remote.hub.find_spec", lambda _: None)
    assert hub_url(f"{site}/org/model/resolve/main/x.bin") == f"{site}/org/model/resolve/main/x.bin"
