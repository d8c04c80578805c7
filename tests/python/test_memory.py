"""Anonymous memory that materialize takes, sampled in fresh processes."""

import pytest
import torch
from support import child, torch_child

MIB = 1 << 20
TENSORS, TENSOR_BYTES = 12, 24 * MIB  # 288 MiB

WATCH = """
import sys
import rustload
from process_memory import Peak
path, framework = sys.argv[1:3]
if framework != "dlpack":
    __import__(framework)
ckpt = rustload.open(path, framework=framework)
ckpt["t0"][:10].materialize()  # initializes what is created once
peak = Peak()
{work}
print(*peak.stop())
"""


def peak_and_end(path, framework: str, work: str) -> tuple[int, int]:
    """Anonymous memory in MiB at the peak and at the end of `work`, in addition to that of the open checkpoint."""
    run = child if framework == "dlpack" else torch_child
    peak, end = run(WATCH.format(work=work), path, framework).stdout.split()
    return int(peak), int(end)


@pytest.fixture(scope="module", params=["bin", "safetensors"])
def model(request, tmp_path_factory):
    import safetensors.torch

    path = tmp_path_factory.mktemp("memory") / f"model.{request.param}"
    state = {
        f"t{number}": torch.full((TENSOR_BYTES // 4096, 1024), float(number)) for number in range(TENSORS)
    }
    (torch.save if request.param == "bin" else safetensors.torch.save_file)(state, path)
    yield path
    path.unlink()


@pytest.mark.parametrize("framework", ["torch", "numpy", "dlpack"])
def test_views_of_a_whole_model_take_no_anonymous_memory(model, framework):
    peak, _ = peak_and_end(
        model, framework, "kept = {name: lazy.materialize() for name, lazy in ckpt.items()}"
    )
    assert peak < 30


@pytest.mark.parametrize("framework", ["torch", "dlpack"])
def test_reading_every_view_takes_no_anonymous_memory(model, framework):
    if framework == "torch":
        work = (
            "kept = [lazy.materialize() for lazy in ckpt.values()]; total = sum(float(t.sum()) for t in kept)"
        )
    else:
        work = "kept = [memoryview(t.materialize()).cast('B') for t in ckpt.values()]; [m[::4096].tobytes() for m in kept]"
    peak, _ = peak_and_end(model, framework, work)
    assert peak < 30


@pytest.mark.parametrize(("how", "output"), [
    ("copy=True", 288), ("dtype='bfloat16'", 144), ("dtype='bfloat16', transpose=True", 144), ("transpose=True", 288),
    ("dtype='float64'", 576), ("dtype='float8_e4m3fn'", 72),
])  # fmt: skip
def test_owned_results_peak_at_output_and_64_mib(model, how, output):
    work = f"kept = {{name: lazy.materialize({how}) for name, lazy in ckpt.items()}}"
    peak, end = peak_and_end(model, "dlpack", work)
    assert output - 4 <= end <= output + 8
    assert peak <= output + 64


def test_dropped_results_do_not_accumulate(model):
    peak, end = peak_and_end(model, "dlpack", "for lazy in ckpt.values(): lazy.materialize(dtype='bfloat16')")
    assert peak <= 12 + 64
    assert end < 16


def test_out_takes_no_memory_besides_the_window(model):
    work = """
import torch
out = torch.empty(6144, 1024, dtype=torch.bfloat16).fill_(1)
peak.restart()
for lazy in ckpt.values(): lazy.materialize(out=out)
"""
    peak, end = peak_and_end(model, "torch", work)
    assert peak < 16
    assert end < 8


def test_a_slice_takes_the_memory_of_the_slice(model):
    peak, _ = peak_and_end(
        model, "dlpack", "kept = [lazy[::64, :16].materialize(dtype='float16') for lazy in ckpt.values()]"
    )
    assert peak < 12


def test_opening_takes_memory_in_proportion_to_the_metadata(tmp_path):
    """20,000 tensors. Documented are 64 MiB + 40 times the metadata + 512 bytes per tensor; the first term is 8 MiB here."""
    base = torch.zeros(8)
    path = tmp_path / "many.bin"
    torch.save({f"layer.{number}.weight": base[number % 4 :] for number in range(20_000)}, path)
    size = path.stat().st_size
    code = """
    import sys, rustload
    from process_memory import status
    before = status("VmHWM")
    ckpt = rustload.open(sys.argv[1])
    print(len(ckpt), status("VmHWM") - before)
    """
    count, grown = map(int, child(code, path).stdout.split())
    assert count == 20_000
    assert grown < (8 << 20) + 40 * size + 512 * count
