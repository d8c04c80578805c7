"""Quantized weights on the fake driver: packed codes are copied, and torch decodes them to the bits of the core's decoder."""

import random
from pathlib import Path
from typing import Any

import fakecuda
import pytest
import torch
from hostgpu import HostGpu
from quantized_files import CASES, write
from safetensors.torch import save_file
from support import same

import rustload
from rustload._cuda import packed, split
from rustload._frameworks import torch_packed
from rustload.errors import RustloadError

READ = [name for name in CASES if not name.startswith("sparse")]
TARGETS = (None, "float32", "bfloat16", "float16")


def slices(shape: tuple[int, ...], chosen: random.Random) -> tuple[Any, ...]:
    """A random slice along each dimension, some of them in steps, or an index."""
    return tuple(
        slice(*sorted(chosen.sample(range(size + 1), 2)), chosen.choice((1, 1, 3)))
        if chosen.random() < 0.8
        else chosen.randrange(size)
        for size in shape
    )


def always_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decodes on the GPU also where fewer bytes would travel otherwise, as for a few columns."""
    monkeypatch.setattr(split, "_is_less_packed", lambda *_: True)


@pytest.mark.parametrize("name", READ)
def test_every_weight_has_the_bits_of_the_cpu(name, tmp_path, monkeypatch, request):
    case, chosen = CASES[name](), random.Random(name)
    write(case, tmp_path, "sharded")
    ckpt = rustload.open(tmp_path, framework="torch", dequantize=True)
    always_packed(monkeypatch)
    for one in case.weights:
        lazy = ckpt[one]
        for target in TARGETS:
            how: dict[str, Any] = {"dtype": target}
            HostGpu.decoded = 0
            found = lazy.materialize("cuda", **how)
            assert HostGpu.decoded > 0, "the GPU decodes it"
            assert same(found, lazy.materialize(**how)), target
        how = {"transpose": True, "dtype": chosen.choice(TARGETS)}
        assert same(lazy.materialize("cuda", **how), lazy.materialize(**how)), how
    request.getfixturevalue("small")
    for one in case.weights:
        for _ in range(6):
            part, target = ckpt[one][slices(ckpt[one].shape, chosen)], chosen.choice(TARGETS)
            for view in (part, part.T):
                how = {"dtype": target}
                assert same(view.materialize("cuda", **how), view.materialize(**how)), (view, target)


def kimi(folder: Path, rows: int = 256, columns: int = 1024) -> tuple[rustload.LazyTensor, int]:
    """An int4 weight with a bfloat16 scale for each 32 columns, and the bytes of its codes and scales."""
    made = torch.Generator().manual_seed(0)
    tensors = {
        "w.weight_packed": torch.randint(-(2**31), 2**31, (rows, columns // 8), generator=made).int(),
        "w.weight_scale": torch.rand(rows, columns // 32, generator=made).bfloat16(),
        "w.weight_shape": torch.tensor([rows, columns]),
    }
    save_file(tensors, folder / "m.safetensors")
    lazy = rustload.open(folder / "m.safetensors", framework="torch", dequantize=True)["w.weight"]
    return lazy, rows * columns // 2 + rows * columns // 16


def copied(lazy: Any, *args: Any, **how: Any) -> int:
    """The bytes that are copied to the GPU for a result, whose bits are compared with those of the CPU."""
    before = fakecuda.count("bytes")
    found = lazy.materialize("cuda", *args, **how)
    nbytes = fakecuda.count("bytes") - before
    how.pop("cast", None)
    assert same(found, lazy.materialize(None, *args, **how))
    return nbytes


def test_codes_and_scales_are_all_that_is_copied(tmp_path, monkeypatch):
    lazy, packed_nbytes = kimi(tmp_path)
    for target in (None, "float32", "float16"):
        assert copied(lazy, target) == packed_nbytes
    assert copied(lazy, transpose=True) == packed_nbytes
    assert copied(lazy[64:128]) == packed_nbytes // 4
    monkeypatch.setattr(packed, "TILE_ELEMENTS", 5000)  # in four rows at a time
    assert copied(lazy, transpose=True) == packed_nbytes
    assert HostGpu.decoded >= 64


def test_the_cpu_decodes_where_it_was_asked_to_or_fewer_bytes_are_copied(tmp_path):
    lazy, _ = kimi(tmp_path)
    assert copied(lazy, cast="cpu") == lazy.nbytes
    assert copied(lazy[:, :64]) == lazy[:, :64].nbytes
    assert copied(lazy[:, :64], "float32") == lazy[:, :64].nbytes, "the GPU widens"
    assert copied(lazy[::16]) == lazy[::16].nbytes
    assert copied(lazy, "float8_e4m3fn", allow_lossy=True) == lazy.size
    assert HostGpu.decoded == 0


def test_rows_longer_than_a_tile_are_decoded_by_the_cpu(tmp_path, monkeypatch):
    lazy, _ = kimi(tmp_path)
    monkeypatch.setattr(packed, "TILE_ELEMENTS", 1023)
    assert copied(lazy) == lazy.nbytes
    monkeypatch.setattr(packed, "TILE_ELEMENTS", 1024)
    monkeypatch.setattr(split, "STAGING_BYTES", 512)
    assert copied(lazy) == lazy.nbytes
    assert HostGpu.decoded == 0
    monkeypatch.setattr(split, "STAGING_BYTES", 1024)
    assert copied(lazy) < lazy.nbytes // 2, "with the gaps between parts of a row"
    assert HostGpu.decoded == 256


def test_streams_out_and_joined_weights_are_packed_too(tmp_path):
    lazy, packed_nbytes = kimi(tmp_path)
    ckpt = rustload.open(tmp_path / "m.safetensors", framework="torch", dequantize=True)
    wanted = lazy.materialize()
    before = fakecuda.count("bytes")
    (found,) = dict(ckpt.stream(device="cuda")).values()
    assert same(found, wanted)
    assert same(ckpt.materialize(device="cuda")["w.weight"], wanted)
    joined = rustload.concat([lazy, lazy[:100]], 0)
    assert same(joined.materialize("cuda"), torch.cat([wanted, wanted[:100]]))
    assert fakecuda.count("bytes") - before == 3 * packed_nbytes + packed_nbytes * 100 // 256
    # The destination is on the fake GPU where `HostGpu` makes it.
    out, _ = HostGpu().new((1024, 256), "float32", None)
    lazy.materialize(out=out.T)
    assert same(out.T, wanted.float())
    del out


def test_an_index_of_no_group_is_the_error_of_the_cpu(tmp_path):
    case = CASES[next(name for name in READ if "desc_act" in name or "g_idx" in name)]()
    (name,) = case.weights
    index = next(key for key in case.tensors if key.endswith("g_idx"))
    case.tensors[index][3] = 99
    write(case, tmp_path)
    lazy = rustload.open(tmp_path, framework="torch", dequantize=True)[name]
    texts = []
    for device in (None, "cuda"):
        with pytest.raises(RustloadError, match="is of none of") as caught:
            lazy.materialize(device)
        texts.append((caught.value.code, str(caught.value)))
    assert texts[0] == texts[1]


def test_decoding_a_tile_takes_less_than_20_bytes_for_each_element(tmp_path, monkeypatch):
    elements = 1 << 16
    monkeypatch.setattr(packed, "TILE_ELEMENTS", elements)
    peaks: list[int] = []
    decode = torch_packed.decode

    def profiled(tile: packed.Tile, stored: list[torch.Tensor]) -> torch.Tensor:
        with torch.profiler.profile(profile_memory=True) as profile:
            found = decode(tile, stored)
        held = peak = 0
        for event in profile.profiler.kineto_results.events():
            if event.name() == "[memory]":
                held += event.nbytes()
                peak = max(peak, held)
        assert peak > 2 * elements
        peaks.append(peak)
        return found

    monkeypatch.setattr("rustload._frameworks.torch_gpu.decode", profiled)
    always_packed(monkeypatch)
    lazy, _ = kimi(tmp_path)
    lazy.materialize("cuda", "float32")
    # A scale and a zero point, or an offset, for each element are the most that there can be.
    rows, columns = 128, 2048
    words = torch.randint(-(2**31), 2**31, (rows, columns // 8)).int()
    gptq = {
        "w.qweight": words[: rows // 8].repeat(1, 8),
        "w.qzeros": words,
        "w.scales": torch.rand(rows, columns).half(),
        "w.g_idx": torch.randperm(rows).int(),
    }
    save_file(gptq, tmp_path / "m.safetensors")
    (tmp_path / "config.json").write_text(
        '{"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 1, "checkpoint_format": "gptq_v2"}}'
    )
    whole = rustload.open(tmp_path, framework="torch", dequantize=True)["w.weight"]
    monkeypatch.setattr(packed, "TILE_ELEMENTS", rows * columns)
    whole.materialize("cuda", "float32")
    (*first, last) = peaks
    assert len(first) == 4
    assert max(first) < 20 * elements
    assert last < 20 * rows * columns
