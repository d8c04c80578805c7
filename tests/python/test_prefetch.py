"""`safe_open.prefetch`: names and error texts of the reference; each tensor is taken once, by name or as it is ready."""

import pickle

import pytest
import torch
from support import assert_same_bits, in_threads, torch_child

import rustload
from rustload._safe_open import prefetch
from rustload._safe_open.prefetch import PrefetchLoader


@pytest.fixture
def state():
    generator = torch.Generator().manual_seed(0)
    return {f"w{number}": torch.randn(40 + number, 8, generator=generator) for number in range(6)}


@pytest.fixture(params=["m.bin", "m.safetensors"])
def path(request, save, state):
    return save(state, request.param)


def loader(path, plan=None) -> PrefetchLoader:
    """The loader that `prefetch` returns, on the CPU instead of a GPU."""
    file = rustload.open(path, framework="torch")
    return PrefetchLoader._of(prefetch.tensors_of_plan(file, plan), None, 2)


def test_iteration_yields_every_tensor_once(path, state):
    with loader(path) as found:
        assert (found.names(), len(found)) == (list(rustload.open(path)), 6)
        seen = dict(found)
        assert list(found) == []
    assert seen.keys() == state.keys()
    for name, tensor in seen.items():
        assert_same_bits(tensor, state[name])


def test_tensors_are_taken_by_name_in_any_order(path, state):
    found = loader(path)
    for name in ("w5", "w0", "w3"):
        assert_same_bits(found.take(name), state[name])
    with pytest.raises(rustload.SafetensorError, match="tensor w3 was already taken"):
        found.take("w3")
    assert {name for name, _ in found} == {"w1", "w2", "w4"}


def test_a_plan_names_tensors_and_rows(path, state):
    found = loader(path, {"w2": None, "w4": slice(3, 17)})
    assert found.names() == ["w2", "w4"]
    assert_same_bits(found.take("w4"), state["w4"][3:17])
    assert_same_bits(found.take("w2"), state["w2"])
    with pytest.raises(rustload.SafetensorError, match="tensor w0 is not in the plan"):
        found.take("w0")


@pytest.mark.parametrize(
    ("plan", "error", "text"),
    [
        ({"zz": None}, rustload.SafetensorError, "File does not contain tensor zz"),
        ({"w0": slice(0, 8, 2)}, rustload.SafetensorError, "slice of its first dimension with step 1"),
        ({"w0": 3}, rustload.SafetensorError, "slice of its first dimension with step 1"),
        (["w0"], TypeError, "argument 'plan'"),
    ],
)
def test_a_wrong_plan_is_refused(path, plan, error, text):
    with pytest.raises(error, match=text):
        loader(path, plan)


def test_a_closed_loader_refuses_to_take(path, state):
    found = loader(path)
    first = found.take("w0")
    found.close()
    found.close()
    with pytest.raises(rustload.SafetensorError, match="the loader is closed"):
        found.take("w1")
    assert_same_bits(first, state["w0"])


def test_threads_share_a_loader(path, state):
    found, seen = loader(path), {}
    in_threads(seen.update, [found] * 3)
    assert seen.keys() == state.keys()


FORKED = """
import os, signal, sys, threading, warnings, rustload
from rustload._safe_open import prefetch
warnings.simplefilter("ignore")
file = rustload.open(sys.argv[1], framework="torch")
loader = prefetch.PrefetchLoader._of(prefetch.tensors_of_plan(file, None), None, 1)
inside, leave = threading.Event(), threading.Event()
kind = type(loader._stream._producer)
fast_next = kind.next

def slow_next(self, **options):
    inside.set()
    leave.wait()
    return fast_next(self, **options)

kind.next = slow_next

def in_child(use):
    # Forks while the other thread holds the locks; SIGALRM ends a child that waits for ever.
    inside.wait()
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)
        kind.next = fast_next
        try:
            use()
        except ValueError as error:
            os._exit(7 if error.code == "Forked" else 8)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
"""


@pytest.mark.parametrize(
    ("use", "code"),
    [("lambda: loader.take('w1')", 7), ("lambda: list(loader)", 7), ("lambda: loader.close()", 0)],
)
def test_a_child_forked_while_a_thread_takes_a_tensor_does_not_wait(path, use, code):
    run = f"""
thread = threading.Thread(target=lambda: loader.take("w0"))
thread.start()
print(in_child({use}))
leave.set()
thread.join()
"""
    assert torch_child(FORKED + run, path).stdout == f"{code}\n"


def test_a_loader_that_was_not_used_works_in_a_forked_child(path):
    run = """
inside.set(), leave.set()
print(in_child(lambda: loader.take("w1")), len(dict(loader)))
"""
    assert torch_child(FORKED + run, path).stdout == "0 6\n"


def test_a_signals_handler_may_close_the_loader_that_waits(path):
    found = loader(path)
    stream = found._stream

    class Interrupted:
        def __init__(self):
            self._is_own, self._claim, self.close = stream._is_own, stream._claim, stream.close

        def __next__(self):
            found.close()  # as a signal handler does in the thread that waits
            return next(stream)

    found._stream = Interrupted()
    with pytest.raises(rustload.SafetensorError, match="the loader is closed"):
        found.take("w0")


def test_prefetch_requires_torch_and_a_cuda_device(path):
    with (
        rustload.safe_open(path, "np") as file,
        pytest.raises(rustload.SafetensorError, match='prefetch is only compatible with framework="pt"'),
    ):
        file.prefetch()
    with rustload.safe_open(path, "pt") as file:
        with pytest.raises(rustload.SafetensorError, match="prefetch loads to cuda devices, not cpu"):
            file.prefetch()
        with pytest.raises(rustload.SafetensorError, match="prefetch loads to cuda devices, not xpu:0"):
            file.prefetch(device="xpu")
        if not torch.cuda.is_available():
            with pytest.raises(rustload.DeviceError, match="cuda"):
                file.prefetch(device="cuda")
    with pytest.raises(rustload.SafetensorError, match="File is closed"):
        file.prefetch(device="cuda")


def test_loaders_do_not_pickle_and_have_no_public_constructor(path):
    with pytest.raises(TypeError, match="cannot pickle"):
        pickle.dumps(loader(path))
    with pytest.raises(TypeError, match="cannot create"):
        PrefetchLoader()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_tensors_are_on_the_gpu(path, state):
    with rustload.safe_open(path, "pt", "cuda") as file, file.prefetch() as found:
        for name, tensor in found:
            assert tensor.device.type == "cuda"
            assert_same_bits(tensor.cpu(), state[name])
