"""The logical view of quantized checkpoints that are in memory, behind an object or on a web server, and of files that change."""

import io
import itertools
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from quantized_case import BF16, U8, Draw, power
from quantized_files import CASES, logical, write
from ranged import Ranges
from safetensors.torch import save
from support import same
from test_dequantized import equal
from test_file_objects import CountingFile
from web_server import Server

import rustload
from rustload._cli import main

SLACK = 64 << 10
# Those that need no configuration, which is in no file.
NAMES = (
    "fp8 block 128 ragged",
    "pack 4 group 32 of Kimi",
    "nvfp4 of compressed-tensors [1]",
    "mxfp4 i8",
    "gpt-oss",
    "gptq symmetric",
    "nf4 nested",
    "bnb int8",
)

Opened = tuple[Any, "Callable[[], int]"]


def counted(kind: str, data: bytes) -> tuple[Any, Callable[[], int]]:
    """What to open, and how many bytes were read of it since the last call."""
    if kind == "server":
        server = Server(data)

        def asked() -> int:
            total = sum(one.length for one in server.requests)
            server.requests.clear()
            return total

        return server.url, asked
    file: Any = Ranges(data) if kind == "ranges" else CountingFile(data)

    def read() -> int:
        calls = list(itertools.chain(*file.calls)) if kind == "ranges" else list(file.requests)
        (file.calls if kind == "ranges" else file.requests).clear()
        return sum(length for _, length in calls)

    return file, read


def opened(source: Any) -> rustload.Checkpoint:
    return rustload.open(source, dequantize=True, remote=("http",))


@pytest.mark.parametrize("name", NAMES)
def test_every_source_has_the_same_weights(name, tmp_path):
    pytest.importorskip("urllib3")
    case = CASES[name]()
    write(case, tmp_path)
    data = (tmp_path / "model.safetensors").read_bytes()
    sources = [data, bytearray(data), memoryview(data), io.BytesIO(data)]
    sources += [counted(kind, data)[0] for kind in ("ranges", "file", "server")]
    for source in sources:
        ckpt = opened(source)
        assert set(ckpt) == set(logical(case))
        for one, tensor in logical(case).items():
            assert equal(ckpt[one].materialize(), tensor, case), (type(source), one)
            assert same(ckpt[one][1:].materialize(), ckpt[one].materialize()[1:])
        assert {one for one, _ in ckpt.stream()} == set(ckpt)


@pytest.mark.parametrize("name", ["gptq v1", "awq", "pack 8 group asymmetric"])
@pytest.mark.parametrize("form", ["safetensors", "sharded"])
def test_the_configuration_in_a_folder_of_a_store_is_read(name, form, tmp_path, monkeypatch, capsys):
    pytest.importorskip("urllib3")
    fsspec = pytest.importorskip("fsspec")
    case = CASES[name]()
    write(case, tmp_path, form)
    files = {one.name: one.read_bytes() for one in tmp_path.iterdir()}
    memory = fsspec.filesystem("memory")
    for file, content in files.items():
        memory.pipe(f"quantized/{file}", content)
    server = Server(files)
    last = "model.safetensors" + (".index.json" if form == "sharded" else "")
    try:
        for url in (
            f"{server.host}/",
            f"{server.host}/{last}",
            "memory://quantized",
            f"memory://quantized/{last}",
        ):
            ckpt = rustload.open(url, dequantize=True, remote=("http", "memory"))
            for one, tensor in logical(case).items():
                assert equal(ckpt[one].materialize(), tensor, case), (url, one)
        # One that is there and cannot be read may say anything.
        server.fault = lambda number: "403" if "config" in server.requests[number].path else None
        with pytest.raises(OSError, match="403"):
            list(rustload.open(f"{server.host}/", dequantize=True, remote=("http",)))
        monkeypatch.setenv("RUSTLOAD_REMOTE", "http")
        assert main(["info", f"{server.host}/{last}"]) == 0
        assert "the quantized weights are not shown: http" in capsys.readouterr().out
    finally:
        server.close()
        memory.rm("quantized", recursive=True)


@pytest.mark.parametrize("kind", ["ranges", "file", "server"])
def test_rows_of_int4_read_their_codes_and_scales(kind):
    pytest.importorskip("urllib3")
    rows, columns = 2048, 7168
    draw = Draw("int4")
    codes = draw.bytes((rows, columns // 2)).view(torch.int32)
    scales = draw.scales((rows, columns // 32), BF16, edges=False)
    shape = torch.tensor([rows, columns])
    source, read = counted(
        kind, save({"w.weight_packed": codes, "w.weight_scale": scales, "w.weight_shape": shape})
    )
    ckpt = opened(source)
    for first, last in ((0, 128), (1000, 1128), (1920, 2048)):
        read()
        part = ckpt["w.weight"][first:last].materialize()
        assert read() <= 128 * (3584 + 448) + SLACK
        nibbles = codes[first:last].view(U8)
        whole = torch.stack([nibbles & 15, nibbles >> 4], -1).reshape(128, columns)
        assert same(
            part, ((whole.float() - 8) * scales[first:last].float().repeat_interleave(32, 1)).to(BF16)
        )


@pytest.mark.parametrize("kind", ["ranges", "file", "server"])
def test_an_expert_of_gpt_oss_reads_its_blocks_and_scales(kind):
    pytest.importorskip("urllib3")
    experts, rows, groups = 4, 5760, 90
    draw = Draw("gpt-oss")
    blocks = draw.bytes((rows * groups, 16)).repeat(experts, 1).reshape(experts, rows, groups, 16)
    blocks[2] ^= 0x5A
    scales = draw.exponents((experts, rows, groups), edges=False)
    source, read = counted(kind, save({"m.up_proj_blocks": blocks, "m.up_proj_scales": scales}))
    ckpt = opened(source)
    assert ckpt["m.up_proj"].shape == (experts, groups * 32, rows)
    read()
    part = ckpt["m.up_proj"][2].materialize()
    assert read() <= rows * groups * 17 + SLACK
    low = torch.stack([blocks[2] & 15, blocks[2] >> 4], -1).reshape(rows, groups * 32)
    values = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    numbers = torch.cat([values, -values])[low.int()] * power(scales[2]).repeat_interleave(32, 1)
    assert same(part, numbers.to(BF16).T.contiguous())


@pytest.mark.parametrize("name", ["pack 4 group 32 of Kimi", "nvfp4 of ModelOpt []", "gptq v1", "nf4 nested"])
@pytest.mark.parametrize("cut", [True, False])
def test_a_file_that_changed_after_it_was_opened_is_an_error(name, cut, tmp_path):
    """Of the codes, and of each tensor that is read with them and has a file of its own."""
    case = CASES[name]()
    ((weight, codes),) = case.codes.items()
    # These are read when the checkpoint is opened.
    said = ("weight_shape", "quant_state.bitsandbytes__nf4", "quant_map")
    read = [one for one in (codes, *case.companions[weight]) if not one.endswith(said)]
    for number, changed in enumerate(read):
        folder = tmp_path / str(number)
        write(case, folder, "sharded")
        ckpt = rustload.open(folder, dequantize=True)
        (path,) = (one for one in folder.glob("*.safetensors") if changed in rustload.open(one))
        data = path.read_bytes()
        time.sleep(0.01)  # file times have a resolution of a few milliseconds
        path.write_bytes(data[:-1] if cut else data[:-1] + bytes([data[-1] ^ 1]))
        for part in (ckpt[weight], ckpt[weight][:1]):
            with pytest.raises(rustload.FormatError) as caught:
                part.materialize()
            assert caught.value.code == "FileChanged", (changed, caught.value)
        with pytest.raises(rustload.FormatError) as caught:
            list(ckpt.stream())
        assert caught.value.code == "FileChanged", (changed, caught.value)
