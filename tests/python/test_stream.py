"""`Checkpoint.stream` and `Checkpoint.materialize`: results, order, memory, errors and closing."""

import gc
import os
import pickle
import threading

import ml_dtypes
import numpy as np
import pytest
import torch
from support import (
    DTYPES,
    assert_same_bits,
    assert_same_values,
    bits,
    child,
    coded,
    deflated,
    in_threads,
    patterns,
    torch_child,
)

import rustload
from rustload import _rustload
from rustload._common.request import Request

MIB = 1 << 20
FORMATS = ("model.bin", "model.safetensors", "model.legacy", "shards", "deflated", "memory")


@pytest.fixture
def state():
    tensors = {
        name: patterns(name, (6, 10)) for name in DTYPES if name not in ("complex128", "float8_e8m0fnu")
    }
    generator = torch.Generator().manual_seed(1)
    tensors |= {f"layer.{n}.weight": torch.randn(64, 33, generator=generator) for n in range(40)}
    tensors["large.weight"] = torch.randn(1500, 1200, generator=generator)
    tensors["empty"] = torch.empty(0, 3)
    tensors["scalar"] = torch.tensor(1.5)
    return tensors


@pytest.fixture(params=FORMATS)
def opened(request, state, save, tmp_path):
    """`opened(**options)`: the state as a checkpoint of each format, opened with these options."""

    def write(**options):
        if request.param == "shards":
            names = list(state)
            for number in range(3):
                part = {name: state[name] for name in names[number::3]}
                save(part, f"model-{number + 1:05}-of-00003.safetensors")
            return rustload.open(tmp_path, **options)
        if request.param == "deflated":
            (tmp_path / "packed.bin").write_bytes(deflated(save(state, "plain.bin")))
            return rustload.open(tmp_path / "packed.bin", **options)
        if request.param == "model.legacy":
            # torch.save's legacy writer supports no unsigned ints wider than a byte.
            kept = {name: t for name, t in state.items() if not name.startswith(("uint1", "uint3", "uint6"))}
            return rustload.open(save(kept, "model.bin", _use_new_zipfile_serialization=False), **options)
        path = save(state, "model.bin" if request.param == "memory" else request.param)
        return rustload.open(bytearray(path.read_bytes()) if request.param == "memory" else path, **options)

    return write


@pytest.mark.parametrize("copy", [None, True])
def test_a_stream_of_every_format_yields_what_was_saved(opened, state, copy):
    ckpt = opened()
    found = dict(ckpt.stream(copy=copy))
    assert set(found) == set(ckpt) <= set(state)
    for name, tensor in found.items():
        assert_same_bits(tensor, state[name])


def test_casts_and_transposes_equal_torchs(opened, state):
    ckpt = opened()
    rules = {"layer.*": True, "large.*": (1, 0)}
    found = dict(ckpt.stream(dtype="bfloat16", transpose=rules))
    for name, tensor in found.items():
        expected = state[name]
        if expected.dtype in (torch.float64, torch.float32, torch.float16):
            expected = expected.to(torch.bfloat16)
        if name.startswith(("layer.", "large.")):
            expected = expected.t().contiguous()
        assert_same_values(tensor, expected)


def test_numpy_arrays_and_buffers_equal_what_was_saved(opened, state):
    found = opened().materialize(framework="numpy", dtype={"layer*": ml_dtypes.bfloat16})
    assert all(isinstance(array, np.ndarray) for array in found.values())
    assert found["layer.3.weight"].dtype == ml_dtypes.bfloat16
    assert found["large.weight"].tobytes() == bits(state["large.weight"])
    for name, buffer in opened(framework="dlpack").stream(copy=True):
        assert isinstance(buffer, rustload.Buffer)
        assert buffer.tobytes() == bits(state[name])


def test_results_without_a_conversion_are_views(save):
    state = {"a": torch.randn(100), "b": torch.randn(4, 4).t(), "c": torch.zeros(3, dtype=torch.int64)}
    ckpt = rustload.open(save(state))
    streamed, materialized = dict(ckpt.stream()), ckpt.materialize()
    for name, tensor in streamed.items():
        assert tensor.data_ptr() == materialized[name].data_ptr() == ckpt[name].materialize().data_ptr()
        assert tensor.stride() == state[name].stride()
    mixed = ckpt.materialize(dtype="float16")
    assert mixed["c"].data_ptr() == streamed["c"].data_ptr()  # ints are not cast, and stay views
    assert ckpt.materialize(copy=True)["a"].data_ptr() != streamed["a"].data_ptr()
    with pytest.raises(BufferError, match="needs a copy") as caught:
        ckpt.materialize(dtype="float16", copy=False)
    assert "a" in str(caught.value)


@pytest.mark.parametrize("framework", ["numpy", "dlpack"])
def test_numpy_and_dlpack_results_without_a_conversion_are_views(save, framework):
    ckpt = rustload.open(save({"a": torch.arange(6.0)}), framework=framework)
    for found in (ckpt.materialize()["a"], dict(ckpt.stream(copy=False))["a"]):
        assert np.asarray(found).tolist() == [0, 1, 2, 3, 4, 5]
        assert np.asarray(found).ctypes.data == np.asarray(ckpt["a"].materialize()).ctypes.data


def test_file_name_and_given_order(save):
    state = {name: torch.full((4,), float(n)) for n, name in enumerate(["b", "d", "a", "c"])}
    path = save(state, "m.safetensors", metadata={})
    ckpt = rustload.open(path)
    assert [name for name, _ in ckpt.stream(order="name")] == ["a", "b", "c", "d"]
    assert [name for name, _ in ckpt.stream()] == list(ckpt)
    assert [name for name, _ in ckpt.stream(["c", "a"], order="given")] == ["c", "a"]
    assert [name for name, _ in ckpt.stream(ckpt.select("[cd]"), order="name")] == ["c", "d"]
    assert list(ckpt.materialize(["c", "a"])) == ["c", "a"]
    assert list(ckpt.materialize()) == list(ckpt)
    assert list(ckpt.stream([])) == []


@pytest.mark.parametrize("by_file", [True, False])
def test_order_and_ties_are_those_of_the_stream(save, by_file):
    shared = torch.arange(64.0)
    path = save({"b": shared, "c": torch.ones(3), "a": shared, "part": shared[8:], "d": shared})
    tensors = [tensor._core for tensor in rustload.open(path).values()]
    wanted = [Request(copy=True)] * 4 + [Request(dtype="float16")]
    pairs = list(zip(tensors, wanted, strict=True))
    order, ties = _rustload.order(pairs, by_file=by_file)
    steps = [(index, *ties.get(position, (index, False))) for position, index in enumerate(order)]
    options = {"window": MIB, "threads": None, "share_storages": False, "results_kept": True}
    stream = _rustload.stream(pairs, by_file=by_file, **options)
    assert steps == [found[:3] for found in iter(stream.next, None)]
    assert [has_later_alias for _, has_later_alias in ties.values()] == [True, False]


def test_file_order_is_that_of_the_data_and_shards_take_turns(save, tmp_path):
    tensors = {name: torch.zeros(1 << 20) for name in ("p", "q", "r", "s")}  # 4 MiB
    save({f"1{name}": t for name, t in tensors.items()}, "model-00001-of-00002.safetensors")
    save({f"2{name}": t for name, t in tensors.items()}, "model-00002-of-00002.safetensors")
    ckpt = rustload.open(tmp_path)
    assert [n for n, _ in ckpt.stream(threads=1)] == ["1p", "1q", "1r", "1s", "2p", "2q", "2r", "2s"]
    assert [n for n, _ in ckpt.stream(threads=2)] == ["1p", "1q", "2p", "2q", "1r", "1s", "2r", "2s"]
    assert list(ckpt.materialize(threads=2)) == list(ckpt)


@pytest.mark.parametrize("order", ["file", "name", "given"])
@pytest.mark.parametrize("how", [{}, {"copy": True}, {"dtype": "bfloat16"}])
def test_tied_names_are_one_object(save, order, how):
    weight = torch.randn(8, 4)
    state = {
        "embed": weight,
        "middle": torch.randn(3),
        "zz.head": weight,
        "zz.part": weight[2:],
        "n.t": weight.t(),
    }
    ckpt = rustload.open(save(state))
    found = dict(ckpt.stream(order=order, **how))
    assert found["embed"] is found["zz.head"]
    assert found["embed"] is not found["zz.part"]
    for name, tensor in found.items():
        assert_same_values(tensor, state[name].to(tensor.dtype))
    whole = ckpt.materialize(**how)
    assert whole["embed"] is whole["zz.head"]


def test_tied_names_with_different_requests_are_two_objects(save):
    weight = torch.randn(8, 4)
    ckpt = rustload.open(save({"embed": weight, "head": weight}))
    found = ckpt.materialize(dtype={"embed": "bfloat16"}, transpose={"head": True})
    assert (found["embed"].dtype, found["head"].shape) == (torch.bfloat16, (4, 8))


def test_a_name_requested_twice_is_one_object(save):
    ckpt = rustload.open(save({"a": torch.randn(4)}))
    (_, first), (_, second) = ckpt.stream(["a", "a"], copy=True)
    assert first is second


def test_tensors_larger_than_the_window_are_streamed(save):
    state = {f"t{n}": torch.randn(2000, 1000) for n in range(3)}
    for name, tensor in rustload.open(save(state)).stream(dtype="float16", memory="1MiB"):
        assert_same_values(tensor, state[name].half())


PEAK = """
import os, sys, time, rustload
from process_memory import status
path, how = sys.argv[1], eval(sys.argv[2])
def threads():
    # A thread that was joined may stay listed for a moment.
    end = time.monotonic() + 2
    while time.monotonic() < end and len(os.listdir("/proc/self/task")) > 1:
        time.sleep(0.001)
    return len(os.listdir("/proc/self/task"))
ckpt = rustload.open(path, framework="dlpack")
base = status("RssAnon")
{work}
"""


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """320 MiB in 40 tensors."""
    path = tmp_path_factory.mktemp("stream") / "many.bin"
    torch.save({f"t{n:02}": torch.full((2048, 1024), float(n)) for n in range(40)}, path)
    yield path
    path.unlink()


@pytest.mark.parametrize("how", ["dict(copy=True)", "dict(dtype='bfloat16')", "dict(transpose={'*': True})"])
def test_no_more_than_the_window_is_in_flight_when_the_consumer_is_slow(many, how):
    work = """
peak = 0
for name, tensor in ckpt.stream(memory="64MiB", **how):
    end = time.monotonic() + 0.01
    while time.monotonic() < end:
        # The pool of dropped results counts in the window, so nothing is subtracted.
        peak = max(peak, status("RssAnon") - base)
    held = tensor.nbytes
print((peak - held) >> 20, held >> 20)
"""
    over, held = map(int, child(PEAK.format(work=work), many, how).stdout.split())
    assert over <= 64 + held  # while the consumer takes a result, it still holds the one before


def test_results_are_made_ahead_up_to_the_window(many):
    """The next tensors are read while the consumer holds the first."""
    work = """
stream = ckpt.stream(memory="64MiB", **how)
next(stream)
peak, end = 0, time.monotonic() + 2
while peak < 32 << 20 and time.monotonic() < end:
    peak = max(peak, status("RssAnon") - base)
print(peak >> 20)
"""
    assert int(child(PEAK.format(work=work), many, "dict(copy=True)").stdout) >= 32


def test_a_dropped_stream_ends_its_threads_and_frees_memory(many):
    work = """
assert threads() == 1
for end in ("close", "del", "break", "unused"):
    stream = ckpt.stream(memory="64MiB", **how)
    assert threads() == 1
    if end != "unused":
        next(stream)
        assert len(os.listdir("/proc/self/task")) > 1
    if end == "close":
        stream.close()
        assert list(stream) == []
    elif end == "break":
        for name, tensor in stream:
            break
        tensor = None
    stream = None
    assert threads() == 1, end
    rustload.trim()
    assert status("RssAnon") - base < 10 << 20, (end, status("RssAnon") - base)
print("done")
"""
    assert child(PEAK.format(work=work), many, "dict(copy=True)").stdout == "done\n"


def test_inflated_storages_are_freed_with_their_batch(save, tmp_path):
    """32 MiB storages with two tensors each: memory stays within the window, and none is left after the stream."""
    state = {}
    for number in range(5):
        whole = torch.full((8 << 20,), float(number))
        state |= {f"t{number}a": whole[: 4 << 20], f"t{number}b": whole[4 << 20 :]}
    packed = tmp_path / "packed.bin"
    packed.write_bytes(deflated(save(state, "plain.bin")))
    work = """
import threading
peak, done = 0, False
def watch():
    global peak
    while not done:
        peak = max(peak, status("RssAnon") - base)
ckpt["t4a"].materialize(framework="dlpack", dtype="float16")  # leaves its storage inflated
rustload.trim()
assert status("RssAnon") - base > 32 << 20
watcher = threading.Thread(target=watch)
for name, buffer in ckpt.stream(memory="128MiB", dtype="float16"):
    if watcher.ident is None:
        watcher.start()
    assert memoryview(buffer).cast("B")[0:2] == __import__("struct").pack("e", float(name[1])), name
del buffer
done = True
watcher.join()
rustload.trim()
print(peak >> 20, (status("RssAnon") - base) >> 20)
"""
    peak, left = map(int, child(PEAK.format(work=work), packed, "{}").stdout.split())
    assert peak <= 128 + 2 * 8
    assert left < 8


@pytest.mark.parametrize("where", ["waiting", "between"])
def test_ctrl_c_ends_a_stream_within_100_ms(many, where):
    work = """
import signal, threading
gap = None
def interrupt():
    global sent
    time.sleep(0.05)
    sent = time.monotonic()
    os.kill(os.getpid(), signal.SIGINT)
killer = threading.Thread(target=interrupt)
try:
    killer.start()
    while True:
        for name, tensor in ckpt.stream(threads=1, **how):
            pass
except KeyboardInterrupt:
    gap = time.monotonic() - sent
killer.join()
assert threads() == 1
print(gap)
"""
    how = "dict(dtype='float64', transpose={'*': True})" if where == "waiting" else "dict()"
    gaps = [float(child(PEAK.format(work=work), many, how).stdout) for _ in range(3)]
    assert min(gaps) < 0.1, gaps


def test_ctrl_c_ends_a_large_transposing_cast_within_100_ms(save):
    """Its first block writes to every page of the result, and each first write is a page fault."""
    path = save({"w": torch.ones(8192, 8192)})
    work = """
import signal, threading
lazy, gaps = ckpt["w"], []
def interrupt():
    global sent
    time.sleep(0.05)
    sent = time.monotonic()
    os.kill(os.getpid(), signal.SIGINT)
for _ in range(4):
    rustload.trim()
    killer = threading.Thread(target=interrupt)
    try:
        killer.start()
        while True:
            lazy.materialize(**how)
            rustload.trim()
    except KeyboardInterrupt:
        gaps.append(time.monotonic() - sent)
    killer.join()
print(min(gaps))
"""
    assert float(child(PEAK.format(work=work), path, "dict(dtype='float64', transpose=True)").stdout) < 0.1


def test_an_error_names_the_tensor(save):
    path = save({"fine": torch.zeros(4), "wrong.weight": torch.zeros(4), "later": torch.zeros(4)})
    stream = rustload.open(path).stream(dtype={"wrong*": "int8", "*": "float16"}, order="given")
    with coded(ValueError, "LossyCast", match=r"lossy.*wrong\.weight"):
        list(stream)
    stream = rustload.open(path).stream(dtype={"wrong*": "int8", "*": "float16"}, order="given", memory=1)
    assert next(stream)[0] == "fine"  # results made before the error are yielded
    with pytest.raises(ValueError, match="wrong"):
        next(stream)
    assert list(stream) == []


@pytest.mark.parametrize("how", [{"copy": True}, {"dtype": "float16"}])
def test_a_file_truncated_during_a_stream_is_an_error_that_names_the_tensor(save, how):
    path = save({f"t{n}": torch.randn(1 << 20) for n in range(8)})
    stream = rustload.open(path).stream(memory="12MiB", threads=1, **how)
    next(stream)
    os.truncate(path, path.stat().st_size // 2)
    with coded(rustload.FormatError, "FileChanged") as caught:
        list(stream)
    text = str(caught.value) + "".join(getattr(caught.value, "__notes__", []))
    assert any(f"t{n}" in text for n in range(8))
    assert str(path) == caught.value.path


def test_damage_in_an_archive_names_member_and_tensor(save):
    path = save({"first": torch.zeros(100), "second": torch.ones(100)})
    data = bytearray(path.read_bytes())
    at = data.rindex(b"data/1", 0, data.index(b"PK\x01\x02"))
    data[at] = ord("D")
    path.write_bytes(data)
    with coded(rustload.FormatError, "ZipMismatch", match="data/1") as caught:
        rustload.open(path).materialize(copy=True)
    assert 'for tensor "second"' in caught.value.__notes__


def test_missing_names_and_wrong_arguments_are_refused(simple):
    ckpt = rustload.open(simple)
    with pytest.raises(rustload.TensorNotFoundError, match='"nope"'):
        ckpt.stream(["w", "nope"])
    with pytest.raises(TypeError, match="names="):
        ckpt.stream(b"w")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="names="):
        ckpt.materialize(3)  # type: ignore[arg-type]
    for wrong in ("lots", "-1", "1XiB", "", 0, -5):
        with pytest.raises(ValueError, match="memory="):
            ckpt.stream(memory=wrong)
    with pytest.raises(TypeError, match="memory="):
        ckpt.stream(memory=1.5)
    with pytest.raises(ValueError, match="order="):
        ckpt.stream(order="random")
    with pytest.raises(TypeError, match="progress="):
        ckpt.stream(progress="yes")
    with pytest.raises(ValueError, match="threads="):
        ckpt.stream(threads=0)
    with pytest.raises(ValueError, match="for all tensors at once"):
        ckpt.stream(transpose=True)
    with pytest.raises(rustload.DeviceError):
        ckpt.stream(device="cuda:99")
    ckpt.close()
    with pytest.raises(ValueError, match="closed"):
        ckpt.stream()


def test_a_stream_outlives_its_checkpoint(simple):
    with rustload.open(simple) as ckpt:
        stream = ckpt.stream(copy=True)
    assert {name for name, _ in stream} == {"w", "b"}


@pytest.mark.parametrize(("text", "size"), [
    ("1", 1), ("1k", 1000), ("1KB", 1000), ("1 KiB", 1024), ("1.5MiB", 3 << 19), ("2gb", 2 * 10**9), ("1TiB", 1 << 40), (7, 7),
    (np.int32(7), 7),
])  # fmt: skip
def test_memory_sizes_are_parsed(text, size):
    from rustload._common.sizes import parse_bytes

    assert parse_bytes(text, "memory") == size


@pytest.mark.parametrize("given", [None, True, 1.5, np.float64(2), b"1"])
def test_a_size_of_another_type_is_a_type_error(simple, given):
    with pytest.raises(TypeError, match="memory= is a number of bytes or a str"):
        rustload.open(simple).stream(memory=given)


def test_streams_run_in_any_thread(many):
    ckpt = rustload.open(many)
    streams = [ckpt.stream(dtype="bfloat16", memory="32MiB") for _ in range(3)]
    found = in_threads(lambda stream: sorted(float(tensor[0, 0]) for _, tensor in stream), streams)
    assert found == [[float(n) for n in range(40)]] * 3


def test_threads_share_one_stream(many):
    """Each pair is yielded to one of the threads."""
    stream = rustload.open(many).stream(dtype="float16", memory="32MiB")
    found = in_threads(lambda _: [(name, float(tensor[0, 0])) for name, tensor in stream], range(4))
    assert sorted(one for part in found for one in part) == [(f"t{n:02}", float(n)) for n in range(40)]


def test_one_of_the_threads_that_share_a_stream_gets_the_error(save):
    path = save({f"t{n}": torch.randn(1 << 18) for n in range(40)})
    stream = rustload.open(path).stream(dtype={"t30": "int8"}, memory="4MiB", order="given", copy=True)
    found, errors = [], []

    def work(_):
        try:
            found.extend(name for name, _ in stream)
        except BaseException as error:
            errors.append(error)

    in_threads(work, range(4))
    assert [error.code for error in errors] == ["LossyCast"]
    assert sorted(found) == sorted(f"t{n}" for n in range(30))
    assert list(stream) == []
    assert len(stream) == 0


@pytest.mark.parametrize("where", ["waiting", "at work"])
def test_a_stream_may_be_closed_while_another_thread_iterates(many, where):
    stream, ended = rustload.open(many).stream(dtype="float64", memory="32MiB", threads=1), threading.Event()

    def work():
        for _ in stream:
            if where == "at work":
                ended.wait(0.01)
        ended.set()

    thread = threading.Thread(target=work)
    thread.start()
    while len(stream) > 35:
        pass
    stream.close()
    assert ended.wait(5)
    thread.join()
    assert list(stream) == []


def test_a_stream_has_names_a_length_and_a_repr(simple):
    stream = rustload.open(simple).stream(["w", "b"], order="name", copy=True)
    assert isinstance(stream, rustload.Stream)
    assert iter(stream) is stream
    assert (stream.names, len(stream), repr(stream)) == (["b", "w"], 2, "<Stream 0 of 2 tensors given>")
    name, _ = next(stream)
    assert (name, len(stream), repr(stream)) == ("b", 1, "<Stream 1 of 2 tensors given>")
    with stream as same:
        assert same is stream
    assert (stream.names, len(stream), repr(stream)) == (
        ["b", "w"],
        0,
        "<Stream 1 of 2 tensors given, ended>",
    )
    with pytest.raises(StopIteration):
        next(stream)
    stream.close()
    assert [name for name, _ in rustload.open(simple).stream()] == rustload.open(simple).stream().names


def test_streams_do_not_pickle_and_have_no_public_constructor(simple):
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(rustload.open(simple).stream())
    with pytest.raises(TypeError, match="made by a checkpoint"):
        rustload.Stream()


def test_a_progress_callable_may_close_its_stream_and_not_iterate_it(simple):
    def report(_done, _total, name):
        if name == "w":
            with pytest.raises(ValueError, match="busy"):
                next(stream)
            stream.close()

    stream = rustload.open(simple).stream(["w", "b"], order="given", progress=report, copy=True)
    assert [name for name, _ in stream] == ["w"]
    assert len(stream) == 0


def test_a_signal_handler_may_close_a_waiting_stream(many):
    work = """
import signal
stream = ckpt.stream(threads=1, **how)
signal.signal(signal.SIGALRM, lambda *_: stream.close())
signal.setitimer(signal.ITIMER_REAL, 0.05)
begun = time.monotonic()
given = len(list(stream))
assert given < 40 and time.monotonic() - begun < 5
assert threads() == 1
print("done")
"""
    how = "dict(dtype='float64', transpose={'*': True})"
    assert child(PEAK.format(work=work), many, how).stdout == "done\n"


def test_a_child_forked_while_a_thread_waits_gets_an_error(many):
    code = """
    import os, sys, threading, warnings, rustload
    warnings.simplefilter("ignore")
    stream = rustload.open(sys.argv[1], framework="dlpack").stream(dtype="float64", threads=1)
    thread = threading.Thread(target=lambda: list(stream))
    thread.start()
    while len(stream) == 40:
        pass
    pid = os.fork()
    if pid == 0:
        try:
            next(stream)
        except ValueError as error:
            assert error.code == "Forked", error
        else:
            os._exit(3)
        stream.close()
        stream = None
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    thread.join()
    """
    child(code, many)


def test_a_child_forked_while_a_threads_first_use_holds_the_lock_is_told_so(many):
    code = """
    import os, signal, sys, threading, warnings, rustload
    warnings.simplefilter("ignore")
    stream = rustload.open(sys.argv[1], framework="dlpack").stream(copy=True)
    inside, leave = threading.Event(), threading.Event()

    class Held:
        # The thread stops as soon as it has the lock.
        def __enter__(self):
            lock.acquire()
            inside.set()
            leave.wait()
        def __exit__(self, *_):
            lock.release()

    lock, stream._lock = stream._lock, Held()
    thread = threading.Thread(target=lambda: list(stream))
    thread.start()
    inside.wait()
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)
        stream.close()
        try:
            next(stream)
        except ValueError as error:
            os._exit(0 if error.code == "Forked" else 3)
        os._exit(4)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    leave.set()
    thread.join()
    """
    child(code, many)


def test_a_forked_child_does_not_use_its_parents_stream(many):
    """It gets an error and can exit; a stream that had not started works in it."""
    code = """
    import os, sys, warnings, rustload
    warnings.simplefilter("ignore")
    ckpt = rustload.open(sys.argv[1], framework="dlpack")
    begun, fresh = ckpt.stream(copy=True), ckpt.stream(["t01"], copy=True)
    next(begun)
    pid = os.fork()
    if pid == 0:
        try:
            next(begun)
        except ValueError as error:
            assert error.code == "Forked", error
        else:
            os._exit(3)
        begun = None
        assert [name for name, _ in fresh] == ["t01"]
        sys.exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    assert len(list(begun)) == 39
    assert [name for name, _ in fresh] == ["t01"]
    """
    child(code, many)


@pytest.mark.parametrize("how", [{}, {"copy": True}, {"dtype": "float16"}])
def test_progress_counts_every_byte_once(save, how):
    weight = torch.randn(64)
    state = {"a": weight, "tied": weight, "b": torch.zeros(3, dtype=torch.int8)}
    ckpt, calls = rustload.open(save(state)), []
    ckpt.materialize(progress=lambda *call: calls.append(call), **how)
    assert [done for done, _, _ in calls] == [256, 256, 259]
    assert {total for _, total, _ in calls} == {259}
    assert [name for _, _, name in calls] == ["a", "tied", "b"]


def test_an_exception_of_progress_ends_the_stream(simple):
    def wrong(*_call):
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        rustload.open(simple).materialize(progress=wrong)


def test_a_stop_iteration_of_progress_is_not_the_end_of_the_stream(simple):
    with pytest.raises(RuntimeError, match="raised StopIteration"):
        list(rustload.open(simple).stream(progress=lambda *_call: next(iter(()))))


@pytest.mark.parametrize("name", ["small.bin", "small.safetensors"])
def test_20000_small_tensors_take_few_system_calls(save, name):
    state = {f"layer.{n}.weight": torch.full((64,), float(n)) for n in range(20_000)}
    path = save(state, name)
    ckpt = rustload.open(path)
    work = """
    import sys, torch, rustload
    from process_memory import read
    ckpt = rustload.open(sys.argv[1])
    ckpt["layer.0.weight"].materialize()
    before = read("syscr")
    found = ckpt.materialize(dtype="float16")
    print(read("syscr") - before)
    assert all(float(found[f"layer.{n}.weight"][63]) == torch.tensor(float(n)).half() for n in (0, 7, 19_999))
    """
    assert int(torch_child(work, path).stdout) < 250  # half of them read the limit of the cgroup
    assert len(ckpt) == 20_000


def test_the_consumer_may_write_to_results(many):
    ckpt = rustload.open(many)
    for _, tensor in ckpt.stream(dtype="float16", memory="32MiB"):
        tensor.zero_()
    gc.collect()
    assert all(float(tensor[5, 5]) == float(name[1:]) for name, tensor in ckpt.stream(copy=True))


def test_meta_tensors_are_streamed_as_meta_tensors(save):
    state = {"m": torch.empty(3, 2, device="meta"), "a": torch.ones(4)}
    ckpt = rustload.open(save(state))
    for how in ({}, {"dtype": "float16"}, {"copy": True}):
        found = ckpt.materialize(**how)
        assert found["m"].is_meta
        assert found["m"].shape == (3, 2)
        assert found["m"].dtype == found["a"].dtype
        assert float(found["a"].sum()) == 4


@pytest.mark.parametrize("by_collector", [False, True])
def test_a_dropped_stream_lets_its_threads_call_python(save, by_collector):
    """The drop waits for threads that are inside a source of Python's. The garbage collector may also run on such a thread."""
    path = save({f"w{number}": torch.randn(200, 300) for number in range(40)})
    out = torch_child(
        """
        import faulthandler, gc, sys, time
        from pathlib import Path
        import rustload

        faulthandler.dump_traceback_later(30, exit=True)
        whole = Path(sys.argv[1]).read_bytes()

        class Source(rustload.Ranges):
            size, name = len(whole), "memory"
            reading, collects = 0, False

            def read_ranges(self, ranges):
                self.reading += 1
                time.sleep(0.1)
                if self.collects:
                    gc.collect()
                return [memoryview(whole)[start : start + length] for start, length in ranges]

        source = Source()
        found = rustload.open(source).stream(memory="1MiB", copy=True, threads=1)
        next(found)
        before = source.reading
        next(found), next(found), next(found)
        while source.reading == before:
            time.sleep(0.001)
        gc.disable()
        source.collects = sys.argv[2] == "True"
        kept = [found]
        if source.collects:
            kept.append(kept)
        del found, kept
        time.sleep(0.5)
        print("dropped")
        """,
        path,
        by_collector,
    ).stdout
    assert out == "dropped\n"
