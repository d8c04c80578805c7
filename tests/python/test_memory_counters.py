"""`rustload.memory`: anonymous memory, file pages, and the cgroup's limit."""

from pathlib import Path

import torch
from support import rss_anon

import rustload

MIB = 1 << 20


def test_memory_counts_anonymous_and_file_pages_separately(save):
    path = save({"w": torch.ones(16 * MIB // 4)}, "model.safetensors")
    lazy = rustload.open(path, framework="torch")["w"]
    rustload.trim()  # else the owned result would reuse memory of the pool
    before = rustload.memory()
    view = lazy.materialize()
    assert float(view.sum()) == 4 * MIB
    viewed = rustload.memory()
    assert viewed.file - before.file >= 15 * MIB
    assert viewed.anon - before.anon < 8 * MIB
    owned = lazy.materialize(copy=True)
    copied = rustload.memory()
    assert owned.shape == view.shape
    assert copied.anon - viewed.anon >= 15 * MIB
    assert abs(rustload.memory().anon - rss_anon()) < 4 * MIB


def test_memory_has_the_limit_of_the_cgroup_if_there_is_one():
    found = rustload.memory()
    assert found.peak >= found.anon > 0
    assert found.total >= found.available > 0
    assert (found.limit is None) == (found.used is None) == (found.group is None)
    if found.group is not None:
        folder = Path(found.group)
        names = ("memory.max", "memory.high", "memory.limit_in_bytes")
        limits = [(folder / name).read_text().strip() for name in names if (folder / name).exists()]
        assert str(found.limit) in limits
