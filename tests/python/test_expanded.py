"""Files that state more indices or scales than they have: limits and Ctrl-C hold, also where torch does the work."""

import io
import time
import warnings

import pytest
import torch
from attacks.x_bounds import (
    EXPANDED_SCALES,
    EXPANDED_SPARSE,
    MANY_SPARSE,
    coo,
    csr_batch,
    on_longs,
    quantized,
    with_scales,
)
from quiet import within
from support import child, torch_child

import rustload
import rustload.torch

FILES = {**EXPANDED_SPARSE, **MANY_SPARSE, **EXPANDED_SCALES}


@pytest.mark.parametrize("name", FILES)
def test_torch_load_refuses_what_a_file_states_and_does_not_have(name, tmp_path):
    path = tmp_path / "model.pt"
    path.write_bytes(FILES[name]())
    assert path.stat().st_size < 30_000
    done = torch_child(
        """
        import resource, sys, time
        import rustload, rustload.torch
        resource.setrlimit(resource.RLIMIT_AS, (24 << 30, 24 << 30))
        start, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        try:
            rustload.torch.load(sys.argv[1])
        except rustload.LimitError as error:
            print(error.code, error.name)
        growth = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10
        assert growth < 1500, growth
        assert time.process_time() - start < 20, time.process_time() - start
        """,
        path,
    )
    assert done.stdout == "Limit materialize_bytes\n"


def test_the_limit_is_the_callers():
    data = on_longs(w=coo(1000), v=coo(1000))
    assert rustload.torch.load(io.BytesIO(data))["w"].to_dense().tolist() == [0, 0, 0, 0]
    with pytest.raises(rustload.LimitError):
        rustload.torch.load(io.BytesIO(data), limits=rustload.Limits(materialize_bytes=15_000))
    rustload.torch.load(io.BytesIO(data), limits=rustload.Limits(materialize_bytes=16_000))
    data = with_scales(w=quantized(1000))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch has deprecated these tensors
        made = rustload.torch.load(io.BytesIO(data))["w"]
    assert made.dequantize().tolist() == [0.5] * 1000
    with pytest.raises(rustload.LimitError):
        rustload.torch.load(io.BytesIO(data), limits=rustload.Limits(materialize_bytes=10_000))


def test_equal_matrices_of_a_batch_are_checked_once():
    data = on_longs(w=csr_batch(60_000_000))
    start = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = rustload.torch.load(io.BytesIO(data))["w"]
    assert made.shape == (60_000_000, 1, 1)
    assert within(time.process_time() - start, 2)


def test_ctrl_c_stops_the_check_of_indices(tmp_path):
    path = tmp_path / "model.pt"
    path.write_bytes(on_longs(w=coo(1 << 27)))
    done = child(
        """
        import os, signal, sys, threading, time
        import rustload, rustload.torch
        rustload.torch.load  # imported before the signal
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        start = time.monotonic()
        try:
            while True:
                rustload.torch.load(sys.argv[1])
        except KeyboardInterrupt:
            print("stopped", time.monotonic() - start < 5)
        """,
        path,
        timeout=60,
    )
    assert done.stdout == "stopped True\n"


def test_a_framework_that_copies_views_keeps_the_limit(tmp_path):
    path = tmp_path / "model.pt"
    torch.save({"w": torch.ones(1).expand(1 << 40), "v": torch.ones(6, 1).expand(6, 1000)}, path)
    ckpt, jax = rustload.open(path), rustload.open(path, framework="jax")
    for use in (
        jax["w"].materialize,
        lambda: jax["w"].materialize(copy=False),
        lambda: jax.materialize(["w"]),
        lambda: dict(jax.stream(["w"])),
        lambda: ckpt["w"].__array__("float64"),
    ):
        with pytest.raises(rustload.LimitError) as caught:
            use()
        assert caught.value.name == "materialize_bytes"
    # A view that nobody copies takes no memory, and within the limit it may be copied.
    assert ckpt["w"].materialize(framework="torch").stride() == (0,)
    assert jax["v"].materialize().shape == (6, 1000)
    assert jax.materialize(["v"])["v"].shape == (6, 1000)
    assert ckpt["v"].__array__("float64").shape == (6, 1000)


def test_a_lazy_module_is_not_made_larger_than_the_limit(tmp_path):
    path = tmp_path / "model.pt"
    torch.save({"weight": torch.ones(1, 1).expand(3, 1 << 40)}, path)
    module = torch.nn.LazyLinear(3, bias=False)
    with pytest.raises(rustload.LimitError) as caught:
        rustload.torch.load_into(module, path)
    assert caught.value.name == "materialize_bytes"
    assert torch.nn.parameter.is_lazy(module.weight)


def test_x124_results_that_are_kept_together_are_limited_in_total(tmp_path):
    mib = 1 << 20
    base = torch.rand(mib // 4)
    saved = {
        "expanded": {f"{n}": torch.ones(1).expand(mib // 4 + n) for n in range(3000)},
        "views": {f"{n}": base[n:] for n in range(64)},
        "distinct": {f"{n}": torch.full((mib // 4,), float(n)) for n in range(64)},
    }
    small = rustload.Limits(materialize_bytes=4 * mib)
    for kind, state in saved.items():
        path = tmp_path / f"{kind}.pt"
        torch.save(state, path)
        ckpt = rustload.open(path, limits=small)
        views = ckpt.materialize()
        assert len(views) == len(state)
        del views
        # A stream's results need not be kept.
        assert sum(1 for _ in ckpt.stream(copy=True, memory="8MiB")) == len(state)
        if kind == "distinct":
            assert len(ckpt.materialize(copy=True)) == 64
            continue
        for how in ({"copy": True}, {"dtype": "float16"}):
            with pytest.raises(rustload.LimitError) as caught:
                ckpt.materialize(**how)
            assert caught.value.limit == 16 * mib if kind == "views" else 4 * mib
            assert caught.value.code == "Limit"
    # With the default limits, 64 copies of a mebibyte are nothing.
    assert len(rustload.open(tmp_path / "views.pt").materialize(copy=True)) == 64
