"""`rustload.torch.state_dict`: lazy handles that torch, accelerate and diffusers accept as tensors."""

import copy
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from support import DTYPES, assert_same_bits, patterns, torch_child

from rustload._common.progress import reporting
from rustload.torch import StateDict, TorchHandle, state_dict
from rustload.torch._read_progress import with_read_progress

pytestmark = pytest.mark.usefixtures("no_torch_load")

W = torch.arange(24, dtype=torch.float32).reshape(4, 6)


@pytest.fixture
def handle(simple):
    return state_dict(simple)["w"]


def net(seed: int = 0) -> torch.nn.Module:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Conv2d(3, 4, 2), torch.nn.BatchNorm2d(4), torch.nn.Linear(4, 5))


def test_state_dict_is_a_dict_of_handles_in_the_files_order(simple):
    found = state_dict(simple)
    assert isinstance(found, dict)
    assert type(found) is StateDict
    assert list(found) == ["w", "b"]
    assert all(type(handle) is TorchHandle for handle in found.values())
    assert repr(found) == "<StateDict of 2 lazy tensors, 120 bytes>"


def test_metadata_of_a_handle_reads_no_data(handle, simple):
    simple.write_bytes(b"")  # a read would fail now
    assert (handle.dtype, handle.shape, handle.ndim, handle.dim()) == (
        torch.float32,
        torch.Size([4, 6]),
        2,
        2,
    )
    assert (handle.numel(), handle.nelement(), torch.numel(handle), len(handle)) == (24, 24, 24, 4)
    assert (handle.element_size(), handle.itemsize, handle.nbytes) == (4, 4, 96)
    assert (handle.size(), handle.size(-1), handle.device.type) == (torch.Size([4, 6]), 6, "cpu")
    assert handle.is_floating_point()
    assert torch.is_floating_point(handle)
    assert not torch.is_complex(handle)
    flags = ("requires_grad", "is_meta", "is_cuda", "is_sparse", "is_quantized")
    assert not any(getattr(handle, name) for name in flags)
    assert (handle.layout, handle.grad) == (torch.strided, None)
    assert handle.detach() is handle.data is handle
    assert (handle.get_shape(), handle.get_dtype()) == ([4, 6], "F32")
    assert repr(handle) == "<TorchHandle 'w' float32 [4, 6]>"
    assert torch.overrides.is_tensor_like(handle)
    for name in ("cpu", "chunk", "no_such_thing", "SCB"):
        hasattr(handle, name)  # hasattr reads nothing


@pytest.mark.parametrize("key", [
    0, -1, slice(1, 3), (slice(None), slice(0, 6, 2)), ..., (..., None), (1, 2), (), None, (slice(1, 2), -1),
])  # fmt: skip
def test_basic_slices_are_lazy_and_equal_torchs(handle, key):
    part = handle[key]
    assert type(part) is TorchHandle
    assert_same_bits(part.tensor(), W[key])


@pytest.mark.parametrize(
    "key", [W > 5, [0, 2], torch.tensor([1, 1]), (slice(None), [0, 1]), np.array([3, 0])]
)
def test_advanced_indices_return_tensors(handle, key):
    assert_same_bits(handle[key], W[key])


def test_permutations_are_lazy(handle):
    for found in (handle.T, handle.t(), handle.permute(1, 0), handle.permute((1, 0))):
        assert type(found) is TorchHandle
        assert_same_bits(found.tensor(), W.t())


@pytest.mark.parametrize("use", [
    lambda t: t + 1, lambda t: 1 - t, lambda t: t @ t.T, lambda t: t * t, lambda t: t == 3, lambda t: -t, lambda t: t / 2,
    lambda t: 2**t, abs, lambda t: t > 4, lambda t: torch.cat([t, t]), lambda t: torch.stack((t, t), dim=1),
    lambda t: torch.nn.functional.linear(torch.ones(1, 6), t), lambda t: t.float(), lambda t: t.cpu(), lambda t: t.half(),
    lambda t: t.chunk(2)[1], lambda t: t.reshape(-1), lambda t: t.contiguous(), lambda t: t.sum(), lambda t: t.clone(),
    lambda t: t.add(t), lambda t: torch.where(t > 3, t, torch.zeros(4, 6)), lambda t: t.mT, lambda t: t.view(6, 4),
    lambda t: t.to("cpu"), lambda t: t.to(torch.bfloat16), lambda t: t.to("cpu", torch.int32), lambda t: t.to(t),
    lambda t: t.to(dtype=torch.float64),
    lambda t: t.to(device="cpu", dtype=torch.complex64), lambda t: t.to(torch.ones(1, dtype=torch.half)),
    lambda t: t.to(torch.float16, non_blocking=True, copy=True), lambda t: t.to(torch.float16, False, True),
    lambda t: t.to(device=torch.device("cpu"), dtype=None), lambda t: t.to(torch.float8_e5m2).float(), lambda t: t.new_ones(3),
    lambda t: t.clone(memory_format=torch.contiguous_format), lambda t: torch.nn.Parameter(t.to("cpu")).detach(),
])  # fmt: skip
def test_operations_on_a_handle_equal_those_on_a_tensor(handle, use):
    assert_same_bits(use(handle), use(W))


def test_to_takes_the_arguments_of_torch_and_no_others(save, monkeypatch):
    value = torch.arange(120, dtype=torch.float32).reshape(2, 3, 4, 5)
    handle = state_dict(save({"w": value}))["w"]
    for dtype in torch.float32, torch.half:
        made = handle.to(dtype, memory_format=torch.channels_last)
        assert_same_bits(made, value.to(dtype))
        assert made.stride() == value.to(dtype, memory_format=torch.channels_last).stride()
    copies = []
    monkeypatch.setattr(TorchHandle, "_read", lambda *_args, copy: copies.append(copy) or value)
    handle.to("cpu", torch.float32, False, True)
    handle.to(torch.float32, True, True)
    handle.to(value, True, True)
    handle.to("cpu", copy=True)
    handle.to("cpu", torch.float32, True)
    handle.to(torch.float32, copy=False)
    assert copies == [True, True, True, True, None, None]
    for wrong in {"other": value}, {"foo": 1}, {"dtype": torch.half, "layout": torch.strided}:
        with pytest.raises(TypeError):
            handle.to(**wrong)
    with pytest.raises(RuntimeError, match="two dimensions"):
        handle.t()


def test_a_handle_converts_to_numbers_and_arrays_as_a_tensor(simple):
    scalar = state_dict(simple)["b"][1]
    assert (int(scalar), float(scalar), bool(scalar), [5, 6, 7][scalar], scalar.item()) == (
        -2,
        -2.0,
        True,
        6,
        -2,
    )
    np.testing.assert_array_equal(np.asarray(state_dict(simple)["w"]), W.numpy())
    assert [part.tensor().tolist() for part in state_dict(simple)["b"]] == [1, -2, 3]


@pytest.mark.parametrize(
    "make", [torch.as_tensor, torch.tensor, torch.asarray, torch.from_dlpack, W.half().new_tensor]
)
def test_functions_that_make_tensors_of_other_objects_take_handles(save, make):
    found = state_dict(save({"w": W, "s": torch.tensor(3)}), dtype="float16")
    assert_same_bits(make(found["w"]), W.half())
    assert_same_bits(make(found["w"][1:, ::2]), W[1:, ::2].half())
    assert int(make(found["s"])) == 3


def test_elements_are_found_formatted_and_iterated_as_those_of_tensors(save):
    found = state_dict(save({"w": W, "s": torch.tensor(3.0)}))
    assert 23.0 in found["w"]
    assert 24.0 not in found["w"]
    assert f"{found['s']:.2f} {found['s']} {found['w'][0]}" == "3.00 3.0 <TorchHandle 'w' float32 [6]>"
    with pytest.raises(TypeError, match="iteration over a 0-d tensor"):
        iter(found["s"])


def test_a_handle_has_no_address_so_no_tensor_is_taken_for_another(save, tmp_path):
    hub = pytest.importorskip("huggingface_hub")
    found = state_dict(save({"a": torch.ones(512), "b": torch.zeros(512)}), dtype="float16")
    for name in ("data_ptr", "storage", "untyped_storage"):
        with pytest.raises(TypeError, match=r"has no memory.*use \.tensor\(\)"):
            getattr(found["a"], name)()
    with pytest.raises(TypeError, match=r"rustload\.save"):
        hub.save_torch_state_dict(found, tmp_path / "out")


def test_copy_from_a_handle_fills_the_target(handle):
    for target in (
        torch.zeros(4, 6),
        torch.zeros(6, 4).t(),
        torch.zeros(4, 6).half(),
        torch.zeros(4, 6).int(),
    ):
        assert target.copy_(handle) is target
        assert_same_bits(target, W.to(target.dtype))
    target = torch.zeros(2, 4, 6)
    target.copy_(handle)  # broadcast
    assert_same_bits(target, W.expand(2, 4, 6))
    leaf = torch.zeros(4, 6, requires_grad=True)
    with pytest.raises(RuntimeError, match="leaf Variable"):
        leaf.copy_(handle)
    with torch.no_grad():
        leaf.copy_(handle)
    assert_same_bits(leaf.detach(), W)


@pytest.mark.parametrize("name", DTYPES)
def test_every_dtype_is_that_of_the_file(save, name):
    value = patterns(name, (3, 4))
    handle = state_dict(save({"x": value}))["x"]
    assert handle.dtype == value.dtype
    assert_same_bits(handle.to("cpu"), value)


def test_a_dtype_argument_sets_the_dtype_of_the_handles(simple):
    found = state_dict(simple, dtype="bfloat16")
    assert (found["w"].dtype, found["b"].dtype, found["w"].nbytes, found["w"].get_dtype()) == (
        torch.bfloat16, torch.int64, 48, "BF16")  # fmt: skip
    assert_same_bits(found["w"][1:].tensor(), W[1:].bfloat16())
    target = torch.zeros(4, 6)
    target.copy_(found["w"])
    assert_same_bits(target, W.bfloat16().float())


def test_key_strip_and_rename_change_the_names(save):
    path = save({"sd": {"module.a": W, "module.b": W + 1}, "other": W})
    assert list(state_dict(path, key="sd", strip="module", rename={"a": "c"})) == ["c", "b"]


@pytest.mark.parametrize("start", ["", "module."])
def test_torch_takes_a_prefix_off_the_names_and_versions(save, start):
    saved = torch.nn.DataParallel(net()).state_dict() if start else dict(net().state_dict())
    found, expected = state_dict(save(saved)), copy.copy(saved)
    for one in (found, expected):
        torch.nn.modules.utils.consume_prefix_in_state_dict_if_present(one, "module.")
    assert list(found) == list(expected)
    assert getattr(found, "_metadata", {}) == getattr(expected, "_metadata", {})


PATTERNS = [(r"^encoder\.", "body."), (r"^body\.layer(\d)", r"blocks.\1"), (r"nothing", "never")]


@pytest.mark.parametrize("how", [lambda: PATTERNS, lambda: {re.compile(old): new for old, new in PATTERNS}])
@pytest.mark.filterwarnings("ignore:rename= has the pattern")  # patterns are looked for in the original names
def test_every_pattern_is_applied_to_the_result_of_those_before_it(save, how):
    path = save({"encoder.layer1.w": W, "encoder.layer2.w": W + 1, "encoder.norm": W + 2, "head": W + 3})
    assert list(state_dict(path, rename=how())) == ["blocks.1.w", "blocks.2.w", "body.norm", "head"]
    # In the other order, the second one finds nothing.
    turned = how()
    turned = dict(reversed(turned.items())) if isinstance(turned, dict) else turned[::-1]
    assert list(state_dict(path, rename=turned)) == ["body.layer1.w", "body.layer2.w", "body.norm", "head"]


def test_a_deep_copy_of_handles_returns_them(handle):
    assert copy.deepcopy({"h": handle})["h"] is handle
    assert hash(handle) == hash(handle)


def test_handles_are_used_from_many_threads(save):
    state = {f"t{n}": torch.full((64, 64), float(n)) for n in range(64)}
    found = state_dict(save(state))
    with ThreadPoolExecutor(8) as pool:
        tensors = list(pool.map(lambda name: found[name][...].to("cpu", torch.bfloat16), [*found] * 4))
    assert all(bool((tensor == n % 64).all()) for n, tensor in enumerate(tensors))


# torch.nn


@pytest.mark.parametrize("suffix", ["bin", "safetensors"])
def test_load_state_dict_accepts_a_lazy_state_dict(save, suffix):
    path = save(net().state_dict(), f"model.{suffix}")
    model = net(seed=1)
    keys = model.load_state_dict(state_dict(path))
    assert (keys.missing_keys, keys.unexpected_keys) == ([], [])
    for name, tensor in net().state_dict().items():
        assert_same_bits(model.state_dict()[name], tensor)
    half = net(seed=1).bfloat16()
    half.load_state_dict(state_dict(path))
    assert_same_bits(half[0].weight.detach(), net()[0].weight.detach().bfloat16())


def test_a_size_mismatch_is_the_error_of_load_state_dict(save):
    state = net().state_dict()
    state["2.bias"] = torch.zeros(6)
    with pytest.raises(RuntimeError, match=r"size mismatch for 2.bias.*\[6\]"):
        net().load_state_dict(state_dict(save(state)))


def test_the_error_for_assign_advises_load_into(save):
    with torch.device("meta"):
        model = torch.nn.Linear(2, 2)
    path = save(torch.nn.Linear(2, 2).state_dict())
    with pytest.raises(RuntimeError, match=r"use rustload.torch.load_into\(model, path\)"):
        model.load_state_dict(state_dict(path), assign=True)


def test_loading_a_module_in_place_takes_little_additional_memory(tmp_path):
    path = tmp_path / "model.bin"
    torch.save({f"{n}.weight": torch.full((3072, 2048), float(n)) for n in range(8)}, path)  # 192 MiB
    peak = torch_child(
        """
        import sys, torch, rustload.torch
        from process_memory import Peak
        model = torch.nn.Sequential(*(torch.nn.Linear(2048, 3072, bias=False) for _ in range(8)))
        peak = Peak()
        model.load_state_dict(rustload.torch.state_dict(sys.argv[1]))
        found, _ = peak.stop()
        assert float(model[7].weight.detach()[9, 9]) == 7
        print(found)
        """,
        path,
    ).stdout
    assert int(peak) <= 24


# accelerate and diffusers


def test_accelerate_offloads_from_the_file_without_a_copy_on_disk(save, tmp_path):
    accelerate = pytest.importorskip("accelerate")
    from accelerate.hooks import attach_align_device_hook

    def build():
        return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))

    expected = build()
    path = save(expected.state_dict())
    inputs = torch.randn(3, 8)
    with torch.device("meta"):
        hooked, offloaded = build(), build()
    attach_align_device_hook(
        hooked, execution_device="cpu", offload=True, offload_buffers=True, weights_map=state_dict(path)
    )
    accelerate.cpu_offload(offloaded, execution_device="cpu", state_dict=state_dict(path))
    for model in (hooked, offloaded):
        for _ in range(2):
            assert torch.equal(model(inputs), expected(inputs))
        assert {parameter.device.type for parameter in model.parameters()} == {"meta"}
    assert [file.name for file in tmp_path.iterdir()] == ["model.bin"]


@pytest.mark.filterwarnings("ignore")  # of what diffusers imports
def test_diffusers_accepts_a_lazy_state_dict(save):
    pytest.importorskip("diffusers")
    from diffusers import UNet2DModel
    from diffusers.models.model_loading_utils import load_state_dict

    def build(seed):
        torch.manual_seed(seed)
        return UNet2DModel(
            sample_size=8, in_channels=1, out_channels=1, layers_per_block=1, block_out_channels=(8,), norm_num_groups=4,
            down_block_types=("DownBlock2D",), up_block_types=("UpBlock2D",), add_attention=False,
        )  # fmt: skip

    expected = build(0)
    tensors = state_dict(save(expected.state_dict(), "diffusion_pytorch_model.bin"))
    assert load_state_dict(tensors) is tensors
    model = build(1)
    model.load_state_dict(load_state_dict(tensors))
    for name, tensor in expected.state_dict().items():
        assert_same_bits(model.state_dict()[name], tensor)


def test_torch_is_not_monkeypatched():
    code = """
    import torch
    before = {name: id(value) for name, value in vars(torch.nn.Module).items()}, id(torch.load), id(torch.Tensor.copy_)
    import rustload.torch
    after = {name: id(value) for name, value in vars(torch.nn.Module).items()}, id(torch.load), id(torch.Tensor.copy_)
    print(before == after)
    """
    assert torch_child(code).stdout == "True\n"


# Reads that are reported.


def test_the_progress_callback_may_read_tensors_of_the_same_state_dict(simple):
    told = []

    def callback(done, total, name):
        told.append((done, total, name))
        if name == "w":
            assert torch.equal(watched["b"].tensor(), torch.tensor([1, -2, 3]))
            assert len(told) == 1  # not called inside of itself

    with reporting(callback, 120) as report:
        watched = with_read_progress(state_dict(simple), report)
        watched["w"].tensor()
    assert told == [(96, 120, "w"), (120, 120, "b")]


def test_a_child_forked_in_the_progress_callback_may_read(simple):
    code = """
    import os, signal, sys, warnings
    from rustload._common.progress import reporting
    from rustload.torch import state_dict
    from rustload.torch._read_progress import with_read_progress

    def callback(done, total, name):
        pid = os.fork() if name == "w" else None
        if pid == 0:
            signal.alarm(20)
            watched["b"].tensor()
            os._exit(0)
        if pid is not None:
            print(name, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

    warnings.simplefilter("ignore")
    with reporting(callback, 120) as report:
        watched = with_read_progress(state_dict(sys.argv[1]), report)
        watched["w"].tensor()
    """
    assert torch_child(code, simple).stdout == "w 0\n"


def test_threads_report_every_read_once_and_one_at_a_time(save):
    state = {f"t{number}": torch.zeros(number + 1) for number in range(200)}
    told, inside = [], threading.Lock()

    def callback(done, _total, name):
        assert inside.acquire(blocking=False)
        told.append((done, name))
        time.sleep(0.0001)  # lets the other threads run
        inside.release()

    with reporting(callback, 0) as report:
        watched = with_read_progress(state_dict(save(state)), report)
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda handle: handle.tensor(), [*watched.values()] * 2))
    assert sorted(name for _, name in told) == sorted(state)
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert told[-1][0] == sum(4 * len(tensor) for tensor in state.values())


def test_every_use_of_a_handle_with_a_dtype_has_the_numbers_of_that_dtype(tmp_path):
    torch.save({"w": torch.tensor([1.0001, 3.3333, -1e-3])}, tmp_path / "m.pt")
    handle = state_dict(tmp_path / "m.pt", dtype="float16")["w"]
    expected = handle.tensor()
    assert expected.dtype == torch.float16
    assert torch.equal(handle.to(torch.float64), expected.double())
    assert torch.equal(handle.to(torch.float32), handle.float())
    array = np.asarray(handle)
    assert array.dtype == np.float16
    assert np.array_equal(array, expected.numpy())
    assert np.asarray(handle, dtype=np.float64).tolist() == expected.double().tolist()
    with pytest.raises(ValueError, match="a copy is needed to make float16 of float32"):
        np.array(handle, copy=False)
