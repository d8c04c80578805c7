"""`materialize` and streams of a few hundred MB peak at the result and the window in every format, and fit such a cgroup."""

import pytest
import torch
from support import WAIT, child, limited_child

MIB = 1 << 20
TENSORS, TENSOR_BYTES = 16, 32 * MIB  # 512 MiB of float32, 256 MiB as bfloat16
OUTPUT = TENSORS * TENSOR_BYTES // 2 // MIB

LOAD = """
import sys, rustload
from process_memory import status
path, how = sys.argv[1], eval(sys.argv[2])
ckpt = rustload.open(path, framework="dlpack")
base = status("VmRSS")
kept = ckpt.materialize(dtype="bfloat16", **how)
assert sum(buffer.nbytes for buffer in kept.values()) == {output} << 20
print((status("VmHWM") - base) >> 20)
""".replace("{output}", str(OUTPUT))


@pytest.fixture(scope="module", params=["zip", "legacy", "sharded", "safetensors"])
def model(request, tmp_path_factory):
    import safetensors.torch

    folder = tmp_path_factory.mktemp("window")
    tensor = torch.empty(TENSOR_BYTES // 4096, 1024)
    state = {f"t{n:02}": tensor.clone().fill_(n) for n in range(TENSORS)}
    path = folder / f"model.{'safetensors' if request.param == 'safetensors' else 'bin'}"
    if request.param == "safetensors":
        safetensors.torch.save_file(state, path)
    elif request.param == "sharded":
        for number in range(4):
            part = dict(list(state.items())[number::4])
            torch.save(part, folder / f"pytorch_model-{number + 1:05}-of-00004.bin")
        path = folder
    else:
        torch.save(state, path, _use_new_zipfile_serialization=request.param == "zip")
    del state
    yield path
    for file in folder.iterdir():
        file.unlink()


# What is kept of dropped results does not depend on the format, whose reads the other tests bound.
one_format = pytest.mark.parametrize("model", ["zip"], indirect=True)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_direct_reads_stay_in_the_window(model, dtype):
    """The bounce buffers of threads count in it; float32 needs none, as it is read into the results."""
    code = LOAD.replace('framework="dlpack"', 'framework="dlpack", io="direct"')
    code = code.replace('dtype="bfloat16"', f'dtype="{dtype}", copy=True').replace(
        f"{OUTPUT} << 20", "output << 20"
    )
    output = OUTPUT * (2 if dtype == "float32" else 1)
    code = f"output = {output}\n" + code
    # A result with the page offset of the file takes one page more.
    assert int(child(code, model, {"memory": "64MiB"}).stdout) <= output + 64 + 1


@pytest.mark.parametrize("how", [{}, {"transpose": {"*": True}}, {"memory": "32MiB"}])
def test_materialize_peaks_at_the_result_and_the_window(model, how):
    window = 32 if "memory" in how else 256
    assert int(child(LOAD, model, how).stdout) <= OUTPUT + window


STREAM = """
import sys, rustload
from process_memory import Peak
path, how, window = sys.argv[1], eval(sys.argv[2]), {window} << 20
ckpt = rustload.open(path, framework="dlpack")
{before}
peak = Peak()
peak.restart(rustload.memory().kept)
for turn in range(3):
    given = 0
    for name, tensor in ckpt.stream(memory=window, **how):
        given += tensor.nbytes
        assert rustload.memory().kept <= window
    assert given == ckpt.nbytes // 2 or "dtype" not in how
    tensor = None
print(peak.stop()[0], rustload.memory().kept >> 20)
"""


@pytest.mark.parametrize("how", [{"dtype": "bfloat16"}, {"copy": True}, {"transpose": {"*": True}}])
def test_a_stream_and_the_pool_stay_in_the_window(model, how):
    """The consumer holds one tensor, and for a moment also the one before; the pool is not subtracted."""
    held = TENSOR_BYTES // MIB // (2 if "dtype" in how else 1)
    code = STREAM.replace("{window}", "128").replace("{before}", "")
    peak, kept = map(int, child(code, model, how).stdout.split())
    assert peak <= 128 + 2 * held
    assert 0 < kept <= 128 + held, (
        "dropped results are kept; the last was dropped after the end of the stream"
    )


@one_format
def test_memory_kept_before_a_stream_counts_in_its_window(model):
    before = """held = ckpt.materialize(**how)
held = None
assert rustload.memory().kept >> 20 == 256
next(ckpt.stream(memory=window, **how))"""
    code = STREAM.replace("{window}", "64").replace("{before}", before)
    peak, kept = map(int, child(code, model, {"dtype": "bfloat16"}).stdout.split())
    assert peak <= 64 + 2 * 16
    assert kept <= 64 + 16, "the last tensor was dropped after the end of the stream"


KEPT = """
import sys, numpy, rustload
from process_memory import Peak
path, how = sys.argv[1], eval(sys.argv[2])
def addresses(arrays):
    return {array.__array_interface__["data"][0] for array in arrays}
ckpt = rustload.open(path, framework="numpy")
held = ckpt.materialize(dtype="float16")
before = addresses(held.values())
held = None
kept = rustload.memory().kept
assert kept == 256 << 20
peak = Peak()
peak.restart(kept)
"""


@one_format
def test_memory_kept_before_a_stream_is_reused_for_results_that_are_held(model):
    """Kept memory is resident: results on fresh pages would take longer, and kept memory would be unmapped for them."""
    code = (
        KEPT
        + """
held = dict(ckpt.stream(dtype="float16", **how))
print(peak.stop()[0], rustload.memory().kept >> 20, addresses(held.values()) == before)
"""
    )
    peak, kept, recycled = child(code, model, {"memory": "64MiB"}).stdout.split()
    assert int(peak) <= 256 + 8, "the kept memory and scratch"
    assert (int(kept), recycled) == (0, "True")


@one_format
@pytest.mark.parametrize("after", [0, 1, 5])
def test_kept_memory_is_freed_down_to_the_window_after_a_result_is_dropped(model, after):
    code = (
        KEPT
        + f"""
held = []
for number, (name, tensor) in enumerate(ckpt.stream(dtype="float16", memory=64 << 20)):
    if number < {after}:
        held.append(tensor)
    if number > {after}:
        assert rustload.memory().kept <= 64 << 20, (number, rustload.memory().kept)
print(peak.stop()[0])
"""
    )
    assert int(child(code, model, {}).stdout) <= 256 + 8


@one_format
def test_memory_kept_before_a_stream_is_freed_when_it_is_closed_early(model):
    code = (
        KEPT
        + """
stream = ckpt.stream(dtype="float16", memory=64 << 20)
first = next(stream)
stream.close()
print(rustload.memory().kept >> 20)
peak.stop()
"""
    )
    assert int(child(code, model, {}).stdout) <= 64


@one_format
def test_no_more_memory_is_kept_for_a_stream_than_it_can_use(model):
    code = (
        KEPT
        + """
few = ckpt.stream(list(ckpt)[:6], dtype="float16", memory=64 << 20)
first = next(few)
print(rustload.memory().kept >> 20)
peak.stop()
"""
    )
    assert int(child(code, model, {}).stdout) <= 5 * 16


@one_format
def test_materialize_reuses_all_kept_memory(model):
    """The second load reuses the memory of the first, and peaks no higher than a single load."""
    code = LOAD.replace("kept = ckpt", "kept = ckpt.materialize(dtype='bfloat16'); kept = None; kept = ckpt")
    code += "print(rustload.memory().kept >> 20)"
    peak, left = map(int, child(code, model, {"memory": "64MiB"}).stdout.split())
    assert peak <= OUTPUT + 64
    assert left == 0, "all of it is in the results"


def test_a_load_fits_a_cgroup_of_the_result_and_512_mib(model):
    # The limit holds from the first page of the program that loads.
    code = f"import os, sys{WAIT}os.execv(sys.executable, [sys.executable, '-c', *sys.argv[1:]])"
    done = limited_child((OUTPUT + 512) * MIB, code, LOAD, model, {})
    assert (done.returncode, done.stderr) == (0, "")
