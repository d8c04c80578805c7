"""The pool of memory of dropped results: reused, never exposed, bounded, freed, empty in a forked child; and slabs."""

import multiprocessing

import numpy as np
import pytest
import torch
from support import assert_same_bits, child, in_threads, patterns, rss_anon

import rustload

MIB = 1 << 20


@pytest.fixture(autouse=True)
def empty_pool():
    rustload.trim()
    yield
    rustload.trim()


@pytest.fixture
def poison(save):
    """`poison(nbytes)`: fills the pool with that many bytes of 0xA5 for the next results."""

    def leave(nbytes: int) -> None:
        path = save({"p": torch.full((nbytes,), 0xA5, dtype=torch.uint8)}, "poison.safetensors")
        result = rustload.open(path, framework="dlpack")["p"].materialize(copy=True)
        before = rustload.memory().kept
        del result
        assert rustload.memory().kept - before >= nbytes // (2 * MIB) * 2 * MIB

    return leave


def test_the_memory_of_a_dropped_result_is_reused(save):
    lazy = rustload.open(save({"w": patterns("float32", (2048, 2048))}), framework="numpy")["w"]
    first = lazy.materialize(copy=True)
    at = first.__array_interface__["data"][0]
    del first
    assert rustload.memory().kept == 16 * MIB
    second = lazy.materialize(copy=True)
    assert second.__array_interface__["data"][0] == at
    assert rustload.memory().kept == 0
    half = lazy.materialize(dtype="float16")
    del second, half
    assert rustload.memory().kept == 24 * MIB
    assert rustload.trim() == 24 * MIB
    assert rustload.memory().kept == 0


REQUESTS = (
    {"copy": True},
    {"transpose": True},
    {"transpose": (1, 0, 2)},
    {"dtype": "float64"},
    {"dtype": "bfloat16", "transpose": True},
    {"dtype": "float8_e4m3fn"},
    {"dtype": "bool", "allow_lossy": True},
)


@pytest.mark.parametrize("how", REQUESTS, ids=repr)
def test_recycled_memory_never_exposes_old_contents(save, poison, how):
    whole = patterns("float32", (90, 130, 240))
    tensors = {"plain": whole, "strided": whole.transpose(0, 2), "part": whole[3:, ::2, 5:]}
    ckpt = rustload.open(save(tensors), framework="torch")
    for name in tensors:
        for key in (..., (slice(1, None), slice(None, None, 3))):
            rustload.trim()
            fresh = ckpt[name][key].materialize(**how)
            rustload.trim()
            poison(32 * MIB)
            found = ckpt[name][key].materialize(**how)
            assert_same_bits(found, fresh)
            if fresh.nbytes >= 16 * MIB:
                assert rustload.memory().kept < 32 * MIB, (
                    "the poisoned memory was not reused, so the test shows nothing"
                )


def test_a_failed_result_leaks_no_memory(save, poison):
    path = save({"w": torch.ones(8 * MIB)}, "w.safetensors")
    ckpt = rustload.open(path, framework="torch")
    poison(32 * MIB)
    base = rss_anon()
    with path.open("r+b") as file:
        file.truncate(16 * MIB)
    for _ in range(4):
        with pytest.raises(rustload.FormatError) as caught:
            ckpt["w"].materialize(copy=True)
        assert caught.value.code == "FileChanged"
    assert rustload.memory().kept == 32 * MIB
    assert rss_anon() - base < 8 * MIB


def read_in_child(path, queue):
    kept = rustload.memory().kept
    before = rss_anon()
    lazy = rustload.open(path, framework="numpy")["w"]
    result = lazy.materialize(copy=True)
    ones = bool((result == 1).all())
    del result
    queue.put((kept, ones, rustload.memory().kept, rustload.trim(), rss_anon() - before))


def test_a_forked_child_has_an_empty_pool_of_its_own(save, poison):
    path = save({"w": torch.ones(4 * MIB)})
    held = rustload.open(path, framework="numpy")["w"].materialize(copy=True)
    poison(64 * MIB)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    process = context.Process(target=read_in_child, args=(path, queue))
    process.start()
    kept, ones, left, trimmed, grown = queue.get(timeout=60)
    process.join(60)
    assert process.exitcode == 0
    assert (kept, ones, left, trimmed) == (0, True, 16 * MIB, 16 * MIB)
    assert grown < 24 * MIB
    assert rustload.memory().kept == 64 * MIB
    assert bool((held == 1).all())


def test_a_child_does_not_keep_the_memory_of_an_inherited_result(save):
    code = """
    import os, sys, rustload
    held = rustload.open(sys.argv[1], framework="dlpack")["w"].materialize(copy=True)
    process = os.fork()
    if not process:
        del held
        os._exit(rustload.memory().kept != 0)
    assert os.waitpid(process, 0)[1] == 0
    del held
    print(rustload.memory().kept)
    """
    path = save({"w": torch.ones(4 * MIB)})
    # CPython 3.12 and later warn of a fork with other threads.
    done = child(code, path, env={"PYTHONWARNINGS": "ignore::DeprecationWarning"})
    assert int(done.stdout) == 16 * MIB


def test_concurrent_results_do_not_share_recycled_memory(save, collect):
    tensors = {f"t{number}": torch.full((MIB,), float(number)) for number in range(8)}
    ckpt = rustload.open(save(tensors), framework="numpy")

    def work(number):
        for _ in range(10):
            result = ckpt[f"t{number}"].materialize(copy=True)
            cast = ckpt[f"t{number}"].materialize(dtype="float64")
            assert (result == number).all()
            assert (cast == number).all()

    held = []
    for _ in range(3):  # the first round creates the arenas of threads
        in_threads(work, range(8))
        found = rustload.memory()
        assert 0 < found.kept <= found.keeps
        collect()
        rustload.trim()
        held.append(rss_anon())
    assert held[2] - held[0] < 16 * MIB


WATCH = """
import sys, rustload
from process_memory import status
path = sys.argv[1]
ckpt = rustload.open(path, framework="dlpack")
ckpt["small"].materialize(copy=True)
base = status("VmHWM")
"""


def test_kept_memory_does_not_raise_the_peak(save):
    """Results of all sizes, at most 96 MiB alive at a time; a pool that raised the peak would end with 200 MiB."""
    tensors = {f"t{size}": torch.zeros(size * MIB, dtype=torch.uint8) for size in (3, 7, 16, 33, 64, 96)}
    tensors["small"] = torch.zeros(10)
    code = (
        WATCH
        + """
for _ in range(3):
    for size in (96, 3, 64, 33, 7, 16, 96, 33, 64):
        result = ckpt[f"t{size}"].materialize(copy=True)
        del result
print((status("VmHWM") - base) >> 20, rustload.memory().kept >> 20)
"""
    )
    grown, kept = map(int, child(code, save(tensors)).stdout.split())
    assert grown <= 96 + 12
    assert kept > 0


def test_the_pool_is_freed_if_an_allocation_would_fail(save):
    """With 420 MiB of address space and 200 of them in the pool, a result of 300 MiB makes the pool free them."""
    tensors = {f"t{size}": torch.zeros(size * MIB, dtype=torch.uint8) for size in (200, 300)}
    code = """
    import resource, sys, rustload
    from process_memory import status
    ckpt = rustload.open(sys.argv[1], framework="dlpack")
    resource.setrlimit(resource.RLIMIT_AS, (status("VmSize") + (420 << 20), resource.getrlimit(resource.RLIMIT_AS)[1]))
    result = ckpt["t200"].materialize(copy=True, threads=1)
    del result
    kept = rustload.memory().kept
    result = ckpt["t300"].materialize(copy=True, threads=1)
    try:
        ckpt["t200"].materialize(copy=True, threads=1)
    except MemoryError as error:
        print(kept >> 20, result.nbytes >> 20, error.code)
    """
    assert child(
        code, save(tensors), env={"RUSTLOAD_POOL": str(1 << 30), "MALLOC_ARENA_MAX": "1"}
    ).stdout.split() == [
        "200",
        "300",
        "NotEnoughMemory",
    ]


@pytest.mark.parametrize("bound", ["RLIMIT_AS", "RLIMIT_DATA"])
def test_little_is_kept_where_the_system_cannot_take_it_back(save, bound):
    """Memory that is free for the process, but mapped, would be what other allocations lack."""
    code = f"""
    import resource, sys, rustload
    from process_memory import status
    used = status("VmSize" if {bound!r} == "RLIMIT_AS" else "VmData")
    resource.setrlimit(resource.{bound}, (used + (400 << 20), resource.getrlimit(resource.{bound})[1]))
    result = rustload.open(sys.argv[1], framework="dlpack")["t"].materialize(copy=True, threads=1)
    del result
    print(rustload.memory().kept >> 20, rustload.memory().keeps >> 20)
    """
    path = save({"t": torch.zeros(100 * MIB, dtype=torch.uint8)})
    kept, keeps = map(int, child(code, path, env={"MALLOC_ARENA_MAX": "1"}).stdout.split())
    assert kept == 0
    assert 30 < keeps <= 50


@pytest.mark.parametrize(("asked", "kept"), [("0", 0), ("8388608", 8), ("nonsense", 16)])
def test_the_environment_sets_the_bound_of_the_pool(save, asked, kept):
    code = """
    import sys, rustload
    ckpt = rustload.open(sys.argv[1], framework="dlpack")
    for name in ("a", "b"):
        result = ckpt[name].materialize(copy=True)
        del result
    print(rustload.memory().kept >> 20)
    """
    tensors = {"a": torch.zeros(16 * MIB, dtype=torch.uint8), "b": torch.zeros(8 * MIB, dtype=torch.uint8)}
    assert int(child(code, save(tensors), env={"RUSTLOAD_POOL": asked}).stdout) == kept


def test_small_results_share_slabs_and_keep_one_slab_alive_each(save, collect):
    count = 20_000
    path = save(
        {f"t{number}": torch.full((256,), float(number)) for number in range(count)}, "many.safetensors"
    )
    ckpt = rustload.open(path, framework="numpy")
    numbers = [int(name[1:]) for name in ckpt]
    lazies = list(ckpt.values())
    rustload.trim()
    base = rss_anon()
    results = [lazy.materialize(copy=True) for lazy in lazies]
    addresses = np.array([array.__array_interface__["data"][0] for array in results])
    assert not (addresses % 64).any()
    assert (np.diff(np.sort(addresses)) >= 1024).all()
    assert len({*(addresses // (2 * MIB))}) <= 16, "20 MiB of results lie in ten slabs"
    assert all(
        float(array[0]) == number == float(array[-1]) for number, array in zip(numbers, results, strict=True)
    )
    kept = results[numbers.index(777)]
    del results
    collect()
    rustload.trim()
    assert float(kept.sum()) == 777 * 256
    assert rss_anon() - base < 8 * MIB
