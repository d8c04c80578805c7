"""Lifetimes of results, handles and checkpoints; closing and pickling; threads and forks; files that change while open."""

import collections
import contextlib
import copy
import gc
import hashlib
import itertools
import multiprocessing
import os
import signal
import threading
import time
import weakref

import numpy as np
import pytest
import torch
from support import assert_same_bits, coded, deflated, dtype_of, held_anon, in_threads, open_files, patterns

import rustload

MIB = 1 << 20
HOWS = (
    {},
    {"copy": True},
    {"dtype": "bfloat16"},
    {"transpose": True},
    {"framework": "numpy"},
    {"framework": "dlpack"},
)


def mappings_of(path) -> int:
    with open("/proc/self/maps") as maps:  # noqa: PTH123 - a proc file
        return sum(str(path) in line for line in maps)


@pytest.mark.parametrize("how", HOWS, ids=repr)
def test_a_result_outlives_handle_and_checkpoint(simple, collect, how):
    ckpt = rustload.open(simple, framework="torch")
    lazy = ckpt["w"]
    found = lazy.materialize(**how)
    expected = np.asarray(found.float() if isinstance(found, torch.Tensor) else found).tobytes()
    ckpt.close()
    del ckpt, lazy
    collect()
    simple.unlink()
    junk = [bytearray(96) for _ in range(1000)]
    assert np.asarray(found.float() if isinstance(found, torch.Tensor) else found).tobytes() == expected
    del junk


def test_a_handle_outlives_its_checkpoint(simple, collect):
    ckpt = rustload.open(simple, framework="torch")
    part = ckpt["w"][1:, ::2].T
    ckpt.close()
    del ckpt
    collect()
    assert_same_bits(part.materialize(), torch.arange(24.0).reshape(4, 6)[1:, ::2].T)


def test_the_object_tree_outlives_its_checkpoint(save, collect):
    objects = rustload.open(save({"a": [torch.ones(2)], "n": 1}), framework="torch").objects
    collect()
    assert objects["a"][0].materialize().tolist() == [1, 1]


def test_a_deleted_file_is_still_read(simple):
    ckpt = rustload.open(simple, framework="torch")
    simple.unlink()
    assert ckpt["w"].materialize(copy=True).sum() == 276


@pytest.mark.parametrize("framework", ["torch", "numpy", "dlpack"])
def test_mapping_and_descriptor_are_released_with_the_last_result(simple, collect, framework):
    assert (mappings_of(simple), open_files().count(str(simple))) == (0, 0)
    ckpt = rustload.open(simple, framework=framework)
    assert (mappings_of(simple), open_files().count(str(simple))) == (0, 1)
    view = ckpt["w"].materialize()
    part = np.asarray(view)[1:]
    assert mappings_of(simple) == 1
    del ckpt, view
    collect()
    assert mappings_of(simple) == 1
    assert part[0, 0] == 6
    del part
    collect()
    assert (mappings_of(simple), open_files().count(str(simple))) == (0, 0)


def test_a_file_that_libraries_have_probed_is_closed_without_a_collection(save, collect):
    """np.asarray and hasattr ask for attributes that handles lack; their errors must not be in cycles with the handles."""
    path = save({"w": torch.ones(6), "o": collections.Counter()})
    np.asarray(rustload.open(path)["w"])
    collect()
    gc.disable()
    try:
        ckpt = rustload.open(path)
        for one in (ckpt, ckpt["w"], ckpt.objects["o"]):
            with contextlib.suppress(AttributeError):  # as hasattr does from CPython 3.12 on
                _ = one.missing
        np.asarray(ckpt["w"])
        del ckpt, one
        assert (mappings_of(path), open_files().count(str(path))) == (0, 0)
    finally:
        gc.enable()


def test_an_owned_result_holds_neither_mapping_nor_descriptor(simple, collect):
    found = rustload.open(simple, framework="torch")["w"].materialize(copy=True)
    collect()
    assert (mappings_of(simple), open_files().count(str(simple))) == (0, 0)
    assert found.sum() == 276


@pytest.mark.parametrize("framework", ["torch", "numpy", "dlpack"])
def test_owned_memory_is_freed_when_the_result_is_dropped(save, collect, framework):
    lazy = rustload.open(save({"x": torch.ones(16 * MIB // 4)}), framework=framework)["x"]
    lazy.materialize(copy=True)
    collect()
    before = held_anon()
    for how in ({"copy": True}, {"dtype": "float64"}, {"dtype": "bfloat16"}):
        found = lazy.materialize(**how)
        assert held_anon() - before > 7 * MIB
        del found
        collect()
        assert held_anon() - before < 3 * MIB, how


def test_unconsumed_capsules_free_their_memory(save, collect):
    lazy = rustload.open(save({"x": torch.ones(16 * MIB // 4)}))["x"]
    collect()
    before = held_anon()
    for max_version in (None, (1, 0)):
        capsules = [lazy.__dlpack__(max_version=max_version, copy=True) for _ in range(2)]
        assert held_anon() - before > 30 * MIB
        del capsules
        collect()
        assert held_anon() - before < 3 * MIB


def test_a_thousand_opens_and_views_do_not_leak(simple, collect):
    def open_and_read():
        ckpt = rustload.open(simple, framework="torch")
        return (
            ckpt["w"].materialize(),
            ckpt["w"].numpy(),
            ckpt["w"].materialize(dtype="float16"),
            ckpt.objects,
        )

    for _ in range(50):
        open_and_read()
    collect()
    before = held_anon()
    for _ in range(1000):
        open_and_read()
    collect()
    assert held_anon() - before < 2 * MIB
    assert (mappings_of(simple), open_files().count(str(simple))) == (0, 0)


def test_failed_opens_leak_no_descriptor(simple, collect):
    path = simple.with_name("cut.bin")
    path.write_bytes(simple.read_bytes()[:-30])
    for _ in range(50):
        with pytest.raises(rustload.RustloadError):
            rustload.open(path)
    collect()
    assert open_files().count(str(path)) == 0


def test_checkpoint_and_handle_do_not_keep_each_other_alive(simple):
    """Freed by reference counts alone, so that a mapping does not wait for the collector."""
    gc.collect()
    gc.disable()
    try:
        ckpt = rustload.open(simple, framework="torch")
        view = ckpt["w"].materialize()
        alive = (
            weakref.ref(view.untyped_storage()) if hasattr(view.untyped_storage(), "__weakref__") else None
        )
        ckpt.objects  # noqa: B018 - makes handles
        del ckpt, view
        assert alive is None or alive() is None
        assert mappings_of(simple) == 0
    finally:
        gc.enable()


# Closing and pickling.


def test_a_closed_checkpoint_returns_no_handle_and_existing_handles_still_read(simple):
    with rustload.open(simple, framework="torch") as ckpt:
        lazy = ckpt["w"]
    with coded(ValueError, "Closed", match="closed") as caught:
        ckpt["w"]
    assert caught.value.__notes__
    ckpt.close()
    assert lazy.materialize().sum() == 276
    assert lazy[1].materialize(copy=True).sum() == 51
    assert list(ckpt) == ["w", "b"]
    assert "w" in ckpt
    assert repr(ckpt)


def test_a_closed_checkpoint_refuses_get_values_items_select_and_objects(simple):
    ckpt = rustload.open(simple)
    ckpt.close()
    for look_up in (
        lambda: ckpt.get("w"),
        lambda: list(ckpt.values()),
        lambda: list(ckpt.items()),
        lambda: ckpt.select("*"),
        lambda: ckpt.objects,
    ):
        with pytest.raises(ValueError, match="closed"):
            look_up()


def test_an_error_inside_with_is_not_swallowed(simple):
    with pytest.raises(ZeroDivisionError), rustload.open(simple):
        raise ZeroDivisionError


@pytest.mark.parametrize("do", [copy.copy, copy.deepcopy], ids=lambda do: do.__name__)
def test_a_copy_of_a_handle_or_checkpoint_is_the_same_one(simple, do):
    ckpt = rustload.open(simple)
    for one in (ckpt, ckpt["w"], ckpt["w"][1:]):
        assert do(one) is one, "it cannot change"


def test_checkpoints_and_handles_have_no_public_constructor():
    for wrong in (rustload.Checkpoint, rustload.LazyTensor):
        with pytest.raises(TypeError):
            wrong()


# Threads and forks.


def reference(path):
    return torch.load(path, weights_only=True)


@pytest.fixture
def many(save):
    state = {}
    for number, name in enumerate(
        ["float32", "bfloat16", "int64", "bool", "float16", "uint8", "complex64", "float64"] * 3
    ):
        state[f"t{number}"] = patterns(name, (37, 11 + number), seed=number)
    state["big"] = torch.arange(2_500_000, dtype=torch.float32).reshape(1250, 2000)
    state["tied"] = state["big"]
    return save(state)


def comparable(tensor: torch.Tensor) -> torch.Tensor:
    return torch.nan_to_num(torch.view_as_real(tensor) if tensor.is_complex() else tensor.float())


def test_eight_threads_read_correct_values_of_one_file(many):
    """Of a checkpoint that they share, and of one that each opens on the same file."""
    expected = reference(many)
    shared = rustload.open(many, framework="torch")
    barrier = threading.Barrier(8)

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        names, own = list(shared), rustload.open(many, framework="torch")
        barrier.wait()
        for turn in range(60):
            name, ckpt = names[rng.integers(len(names))], (shared, own)[turn % 2]
            how = HOWS[rng.integers(4)]
            want = expected[name]
            if "dtype" in how and want.dtype.is_complex:
                continue
            found = ckpt[name].materialize(allow_lossy=True, **how)
            want = want.T if how.get("transpose") else want
            want = want.to(dtype_of(how["dtype"])) if "dtype" in how else want
            assert torch.equal(comparable(found), comparable(want)), (name, how)

    in_threads(work, range(8))


def test_concurrent_first_views_share_one_storage(many):
    for _ in range(20):
        ckpt = rustload.open(many, framework="torch")
        barrier = threading.Barrier(4)

        def work(_, ckpt=ckpt, barrier=barrier):
            barrier.wait()
            return ckpt["big"].materialize()

        found = in_threads(work, range(4))
        assert len({tensor.data_ptr() for tensor in found}) == 1
        assert len({tensor.untyped_storage()._cdata for tensor in found}) == 1


def test_other_threads_run_while_one_materializes(save):
    lazy = rustload.open(save({"x": torch.zeros(24_000_000)}), framework="torch")["x"]
    ticks, done = 0, threading.Event()

    def work():
        for _ in range(3):
            lazy.materialize(dtype="float64", threads=1)
        done.set()

    thread = threading.Thread(target=work)
    start = time.perf_counter()
    thread.start()
    while not done.is_set():
        time.sleep(0.001)
        ticks += 1
    thread.join()
    assert ticks > 10 * (time.perf_counter() - start)


def _in_child(work) -> bytes:
    """Runs `work` in a forked child and returns what it returns."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        # SIGALRM ends a child that hangs.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(30)
        try:
            os.write(write, work())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        data = pipe.read()
    assert os.waitpid(pid, 0)[1] == 0
    return data


def test_a_forked_child_reads_the_same(many):
    ckpt = rustload.open(many, framework="numpy")
    warm = ckpt["big"].materialize(dtype="bfloat16")
    handle, view = ckpt["big"], ckpt["big"].materialize()

    def work() -> bytes:
        sums = [handle.materialize(**how).tobytes() for how in ({}, {"copy": True}, {"dtype": "bfloat16"})]
        sums.append(rustload.open(many, framework="numpy")["big"].materialize(dtype="bfloat16").tobytes())
        sums.append(view.tobytes())
        return "".join(hashlib.sha256(data).hexdigest() for data in sums).encode()

    parent = work()
    assert _in_child(work) == parent
    assert _in_child(lambda: _in_child(work)) == parent
    assert warm.tobytes() == ckpt["big"].materialize(dtype="bfloat16").tobytes()


def test_a_fork_while_other_threads_materialize_does_not_hang(many):
    ckpt = rustload.open(many, framework="numpy")
    stop = threading.Event()

    def work():
        while not stop.is_set():
            ckpt["big"].materialize(dtype="float16")
            ckpt["big"].materialize()

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        expected = hashlib.sha256(ckpt["big"].materialize(copy=True).tobytes()).digest()
        for _ in range(10):
            for opened in (lambda: ckpt, lambda: rustload.open(many, framework="numpy")):
                found = _in_child(
                    lambda opened=opened: hashlib.sha256(opened()["big"].materialize(copy=True)).digest()
                )
                assert found == expected
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_a_fork_while_another_thread_measures_casts_does_not_hang():
    stop = threading.Event()

    def work():
        for threads in itertools.count(20):
            if stop.is_set():
                return
            rustload._rustload.cast_rate("float32", "bfloat16", threads)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        for _ in range(5):
            time.sleep(0.01)
            rate = _in_child(lambda: str(rustload._rustload.cast_rate("float32", "bfloat16", 1)).encode())
            assert float(rate) > 0
    finally:
        stop.set()
        thread.join()


def test_a_fork_during_the_lazy_initialization_of_a_file_does_not_hang(many):
    """The file system, the io mode, the O_DIRECT descriptor and the mapping are initialized at first use, without a lock."""
    expected = hashlib.sha256(rustload.open(many, framework="numpy")["big"].materialize(copy=True)).digest()
    for attempt in range(60):
        ckpt = rustload.open(many, framework="numpy")
        first = threading.Thread(target=ckpt["big"].materialize, kwargs={"copy": attempt % 2 == 0 or None})
        first.start()
        time.sleep(attempt / 60 * 0.0008)
        found = _in_child(lambda ckpt=ckpt: hashlib.sha256(ckpt["big"].materialize(copy=True)).digest())
        first.join()
        assert found == expected


def test_the_parent_does_not_see_an_edit_in_a_forked_child(many):
    ckpt = rustload.open(many, framework="numpy")
    view = ckpt["big"].materialize(writable=True)

    def work() -> bytes:
        view[:] = -1
        return b"edited"

    assert _in_child(work) == b"edited"
    assert view[0, 1] == 1


WORKER = None


def _worker(name):
    import numpy as np

    return hashlib.sha256(np.ascontiguousarray(WORKER[name].numpy()).tobytes()).hexdigest()


def test_a_pool_of_forked_workers_shares_the_parents_handles(many):
    """As a DataLoader's workers do."""
    global WORKER
    WORKER = rustload.open(many)
    expected = {name: hashlib.sha256(WORKER[name].bytes()).hexdigest() for name in WORKER}
    with multiprocessing.get_context("fork").Pool(3) as pool:
        found = dict(zip(expected, pool.map(_worker, expected, chunksize=1), strict=True))
    WORKER = None
    assert found == expected


# Files that change.


CHANGES = {
    "cut": lambda path: os.truncate(path, 200),
    "grown": lambda path: path.write_bytes(path.read_bytes() + b"more"),
    "rewritten": lambda path: path.write_bytes(path.read_bytes()[::-1]),
    "touched": lambda path: os.utime(path, (1, 1)),
}
READS = (
    {},
    {"copy": False},
    {"copy": True},
    {"dtype": "bfloat16"},
    {"transpose": True},
    {"out": torch.zeros(4, 6)},
)


@pytest.mark.parametrize("how", READS, ids=lambda how: next(iter(how), "view"))
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("suffix", ["bin", "safetensors"])
def test_a_result_of_a_changed_file_is_file_changed(save, suffix, how, change):
    path = save({"w": torch.arange(24.0).reshape(4, 6)}, f"m.{suffix}")
    lazy = rustload.open(path, framework="torch")["w"]
    time.sleep(0.01)  # file times have a resolution of a few milliseconds
    CHANGES[change](path)
    with pytest.raises(rustload.FormatError) as caught:
        lazy.materialize(**how)
    assert (caught.value.code, caught.value.path) == ("FileChanged", str(path))
    assert "again" in caught.value.__notes__[0]


def test_a_cached_inflated_storage_of_a_changed_file_is_file_changed(simple, tmp_path):
    path = tmp_path / "deflated.bin"
    path.write_bytes(deflated(simple))
    lazy = rustload.open(path, framework="torch")["w"]
    assert lazy.materialize().sum() == 276
    os.utime(path, (1, 1))
    with coded(rustload.FormatError, "FileChanged"):
        lazy.materialize()


def test_a_file_that_is_replaced_by_rename_is_still_read(simple, save):
    """Writers that rename into place never disturb readers."""
    ckpt = rustload.open(simple, framework="torch")
    save({"w": torch.zeros(4, 6), "b": torch.zeros(3)}, "new.bin").replace(simple)
    for how in ({}, {"copy": True}, {"dtype": "float64"}, {"transpose": True}, {"framework": "numpy"}):
        assert ckpt["w"].materialize(**how).sum() == 276
    assert rustload.concat([ckpt["w"], ckpt["w"]]).materialize().sum() == 2 * 276
    assert dict(ckpt.stream(dtype="float64"))["w"].sum() == 276
    assert rustload.open(simple, framework="torch")["w"].materialize().sum() == 0


@pytest.mark.parametrize("what", ["checkpoint", "handle", "part", "objects", "opaque"])
def test_a_repr_reads_no_data(save, what):
    """The file is truncated to nothing before."""
    import argparse

    path = save(
        {"w": torch.ones(3, 4), "args": argparse.Namespace(lr=1), "p": torch.nn.Parameter(torch.ones(2))}
    )
    ckpt = rustload.open(path, framework="torch")
    os.truncate(path, 0)
    text = {
        "checkpoint": lambda: repr(ckpt),
        "handle": lambda: repr(ckpt["w"]),
        "part": lambda: repr(ckpt["p"][1:]),
        "objects": lambda: repr(ckpt.objects),
        "opaque": lambda: repr(ckpt.opaque),
    }[what]()
    assert {
        "checkpoint": "torch-zip, 2 tensors, 56 B",
        "handle": "<LazyTensor 'w' float32 [3, 4] 48 B>",
        "part": "<LazyTensor 'p' float32 [1] 4 B parameter>",
        "objects": "<opaque argparse.Namespace>",
        "opaque": "argparse.Namespace",
    }[what] in text
