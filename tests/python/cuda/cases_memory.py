"""The memory of results on a GPU is compared with what the driver has free before anything is allocated, on the fake driver."""

from collections.abc import Callable, Iterator
from pathlib import Path

import fakecuda
import pytest
import torch

import rustload
import rustload.torch

MIB = 1 << 20


@pytest.fixture(autouse=True)
def little() -> Iterator[None]:
    """The driver has 40 MiB free."""
    fakecuda.free_memory(40 * MIB)
    yield
    fakecuda.free_memory(1 << 40)


@pytest.fixture
def path(save: Callable[..., Path]) -> Path:
    """Two tensors of 16 MiB each."""
    return save({name: torch.rand(4 * MIB) for name in ("a", "b")})


@pytest.mark.parametrize("framework", ["torch", "dlpack"])
def test_results_over_the_free_memory_of_the_gpu_are_an_error(path, framework):
    ckpt = rustload.open(path, framework=framework)
    before = fakecuda.count("memory")
    with pytest.raises(rustload.NotEnoughMemoryError, match=r"64\.0 MiB, and 40\.0 MiB are") as raised:
        ckpt.materialize(device="cuda:0" if framework == "torch" else 0, dtype="float64")
    assert (raised.value.needed, raised.value.available, raised.value.bound) == (64 * MIB, 40 * MIB, "GPU")
    assert fakecuda.count("memory") == before


def test_what_fits_the_gpu_is_made(path):
    ckpt = rustload.open(path, framework="torch")
    assert len(ckpt.materialize(device="cuda")) == 2
    assert len(list(ckpt.stream(device="cuda", dtype="float64"))) == 2
    fakecuda.free_memory(20 * MIB)
    with pytest.raises(rustload.NotEnoughMemoryError, match="GPU"):
        ckpt["a"].materialize("cuda", dtype="float64")
    unbounded = rustload.Limits(available_memory=None)
    assert len(rustload.open(path, framework="torch", limits=unbounded).materialize(device="cuda")) == 2


def test_page_cache_is_free_where_the_gpu_shares_the_memory_of_the_machine(path, monkeypatch):
    monkeypatch.setenv("FAKECUDA_INTEGRATED", "1")
    fakecuda.enter()  # the fake driver reads it again
    ckpt = rustload.open(path, framework="torch")
    assert len(ckpt.materialize(device="cuda", dtype="float64")) == 2
    monkeypatch.delenv("FAKECUDA_INTEGRATED")
    fakecuda.enter()
    with pytest.raises(rustload.NotEnoughMemoryError, match="GPU"):
        ckpt.materialize(device="cuda", dtype="float64")


def test_a_limit_raises_what_results_on_a_gpu_may_take(path):
    def materialized(limit: int) -> int:
        limits = rustload.Limits(available_memory=limit)
        ckpt = rustload.open(path, framework="torch", limits=limits)
        return len(ckpt.materialize(device="cuda", dtype="float64"))

    assert materialized(64 * MIB) == 2
    for limit, available, bound in ((63 * MIB, 63 * MIB, "available_memory"), (1, 40 * MIB, "GPU")):
        with pytest.raises(rustload.NotEnoughMemoryError) as raised:
            materialized(limit)
        assert (raised.value.available, raised.value.bound) == (available, bound)


def test_load_into_counts_what_goes_to_the_gpu(path):
    with torch.device("meta"):
        model = torch.nn.ParameterDict({name: torch.nn.Parameter(torch.empty(4 * MIB)) for name in "ab"})
    with pytest.raises(rustload.NotEnoughMemoryError, match="GPU"):
        rustload.torch.load_into(model, path, dtype="float64", device="cuda")
    assert all(parameter.is_meta for parameter in model.values())
