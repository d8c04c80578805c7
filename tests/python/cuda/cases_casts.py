"""Casts during an upload, on the fake driver: whether the CPU or the GPU casts, the result is that of the CPU."""

from typing import Any

import pytest
import torch
from hostgpu import HostGpu
from support import DTYPES, assert_same_values, patterns

import rustload
from rustload._cuda import split

CASTS = ("auto", "cpu", "gpu")


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("cast", CASTS)
def test_every_cast_equals_the_cpus(save, cast):
    path = save({name: patterns(name, (7, 33)) for name in DTYPES})
    for source, lazy in rustload.open(path, framework="torch").items():
        for target in DTYPES:
            for how in ({}, {"transpose": True}):
                try:
                    expected = lazy.materialize(dtype=target, allow_lossy=True, copy=True, **how)
                except rustload.RustloadError as error:
                    with pytest.raises(type(error)):
                        lazy.materialize("cuda", target, allow_lossy=True, cast=cast, **how)
                    continue
                found = lazy.materialize("cuda", target, allow_lossy=True, cast=cast, **how)
                assert_same_values(found, expected), (source, target)


def test_a_lossy_cast_is_refused_as_on_the_cpu(simple):
    lazy = rustload.open(simple)["w"]
    for cast in CASTS:
        with pytest.raises(ValueError, match="allow_lossy"):
            lazy.materialize("cuda", "int8", cast=cast)
    with pytest.raises(ValueError, match="cast= is"):
        lazy.materialize("cuda", cast="host")
    with pytest.raises(BufferError, match="copy=False is not possible"):
        lazy.materialize("cuda", copy=False)
    assert HostGpu.conversions == 0


def test_dtype_size_and_rate_decide_whether_the_cpu_or_the_gpu_casts(save, monkeypatch):
    path = save({"f": torch.ones(8, 4), "b": torch.ones(8, 4, dtype=torch.bfloat16)})
    f, b = rustload.open(path, framework="torch").values()

    def gpu_conversions(lazy: Any, dtype: str, cast: str = "auto", rate: float = 0.0, **how: Any) -> int:
        monkeypatch.setattr(split, "_cast_rate", lambda *_: rate)
        HostGpu.conversions = 0
        lazy.materialize("cuda", dtype, cast=cast, **how)
        return HostGpu.conversions

    assert gpu_conversions(b, "float32") == 1, "widening is the GPU's"
    assert gpu_conversions(f, "bfloat16") == 0, "a small cast is not worth a measurement"
    monkeypatch.setattr(split, "_CPU_CAST_MIN_BYTES", 0)
    assert gpu_conversions(f, "bfloat16", rate=0.0) == 1, "the CPU would hold up the copies"
    assert gpu_conversions(f, "bfloat16", rate=1e18) == 0, "the CPU is faster than the link"
    assert gpu_conversions(f, "bfloat16", rate=1e18, cast="gpu") == 1
    assert gpu_conversions(f, "bfloat16", rate=0.0, cast="cpu") == 0
    assert gpu_conversions(b, "float32", cast="cpu", transpose=True) == 0
    assert gpu_conversions(f, "float8_e4m3fn", cast="gpu") == 0, "this cast is the CPU's"
    assert gpu_conversions(f, "int32", cast="gpu", allow_lossy=True) == 0
    assert gpu_conversions(f, "bfloat16", rate=1e18, transpose=True) == 1, (
        "cast by the CPU, transposed by the GPU"
    )
