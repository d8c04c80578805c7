"""What results need is compared with what limits of the process and its cgroup leave, before anything is allocated."""

import json
import os
import re

import pytest
import torch
from support import WAIT, child, cli, limited_child, sparse, torch_child

import rustload
import rustload.torch

MIB = 1 << 20

LIMITED = """
import resource, sys
import rustload
from process_memory import status
path, bound, mib = sys.argv[1:4]
ckpt = rustload.open(path, framework="dlpack")
used = status("VmSize" if bound == "RLIMIT_AS" else "VmData")
resource.setrlimit(getattr(resource, bound), (used + (int(mib) << 20),) * 2)
before = status("RssAnon")
try:
    made = {work}
    print("made", status("RssAnon") - before >> 20)
except MemoryError as error:
    assert isinstance(error, rustload.RustloadError), error
    print(error.code, error.bound, error.needed and error.needed >> 20, error.available and error.available >> 20)
    print(error)
    print(*error.__notes__)
    assert status("VmHWM") - status("VmRSS") < 16 << 20
"""


def tensors(mib: int, count: int) -> dict[str, tuple[str, list[int]]]:
    """So many of float32 of so many MiB each."""
    return {f"t{number}": ("F32", [mib, MIB // 4]) for number in range(count)}


@pytest.fixture(scope="module")
def two_gib(tmp_path_factory):
    """A file of 2 GiB in tensors of 512 MiB."""
    return sparse(tmp_path_factory.mktemp("memory") / "large.safetensors", tensors(512, 4))


@pytest.mark.parametrize("bound", ["RLIMIT_AS", "RLIMIT_DATA"])
@pytest.mark.parametrize(("work", "needed"), [
    ("ckpt.materialize(copy=True)", 2048),
    ("ckpt.materialize(dtype='float64')", 4096),
    ("ckpt['t0'].materialize(dtype='float64', transpose=True)", 1024),
    ("rustload.concat([ckpt['t0'], ckpt['t1']]).materialize()", 1024),
    ("list(ckpt.stream(dtype='float64'))", 1024),
])  # fmt: skip
def test_results_over_a_limit_of_the_process_are_an_error_before_anything_is_allocated(
    two_gib, bound, work, needed
):
    done = child(LIMITED.format(work=work), two_gib, bound, 1000)
    first, text, note = done.stdout.splitlines()
    code, ruled, need, available = first.split()
    assert (code, ruled, int(need)) == ("NotEnoughMemory", bound, needed)
    assert 900 <= int(available) <= 1000
    assert f"need {needed / 1024:.1f} GiB, and 9" in text
    assert f"({bound})" in text
    assert "stream" in note
    assert "rustload.Limits(available_memory=...)" in note


@pytest.mark.parametrize(("work", "made"), [
    ("ckpt.materialize(dtype='float8_e4m3fn')", 512),
    ("ckpt['t0'].materialize(copy=True)", 512),
    ("sum(1 for _ in ckpt.stream(dtype='bfloat16'))", 0),
])  # fmt: skip
def test_what_fits_a_limit_of_the_process_is_made(two_gib, work, made):
    found, size = child(LIMITED.format(work=work), two_gib, "RLIMIT_DATA", 1000).stdout.split()
    assert found == "made"
    assert made <= int(size) <= made + 300


def test_without_a_bound_nothing_is_compared(two_gib):
    work = "rustload.open(path, framework='dlpack', limits=rustload.Limits(available_memory=None)).materialize(copy=True)"
    done = child(LIMITED.format(work=work), two_gib, "RLIMIT_DATA", 1000, check=False)
    assert done.stdout.splitlines()[0] == "Memory None None None"


def test_results_over_the_limit_of_a_cgroup_are_an_error_and_not_a_kill(two_gib):
    code = f"""
import sys
import rustload
ckpt = rustload.open(sys.argv[1], framework="dlpack")
{WAIT}
try:
    ckpt.materialize(copy=True)
except rustload.NotEnoughMemoryError as error:
    print(error.code, error.bound, error.needed >> 20, error.available <= 1 << 30)
    print(error)
"""
    first, text = limited_child(1 << 30, code, two_gib).stdout.splitlines()
    assert first == "NotEnoughMemory cgroup 2048 True"
    assert f"/rustload-memory-{os.getpid()}" in text


def test_a_given_limit_counts_for_every_call_that_makes_results(tmp_path):
    path = tmp_path / "m.safetensors"
    rustload.save({"a": torch.zeros(4, 4), "b": torch.zeros(8, 4), "c": torch.zeros(2, 4)}, path)
    ckpt = rustload.open(path, framework="torch", limits=rustload.Limits(available_memory=128))
    with pytest.raises(rustload.NotEnoughMemoryError, match="need 224 B, and 128 B are") as raised:
        ckpt.materialize(copy=True)
    assert (raised.value.needed, raised.value.available, raised.value.bound) == (224, 128, "available_memory")
    assert len(ckpt.materialize()) == 3, "views need none"
    assert len(ckpt.materialize(["a", "c"], copy=True)) == 2
    assert len(list(ckpt.stream(copy=True))) == 3, "the consumer may drop each"
    assert ckpt["b"].materialize(copy=True).shape == (8, 4)
    with pytest.raises(rustload.NotEnoughMemoryError, match="need 256 B"):
        ckpt["b"].materialize(dtype="float64")
    with pytest.raises(rustload.NotEnoughMemoryError, match="need 160 B"):
        rustload.concat([ckpt["b"], ckpt["c"]]).materialize()
    torch.save({"a": torch.zeros(8, 8)}, tmp_path / "m.pt")
    with pytest.raises(rustload.NotEnoughMemoryError, match="need 256 B"):
        rustload.torch.load(tmp_path / "m.pt", limits=rustload.Limits(available_memory=128))
    for limit in (224, None):
        raised_limit = rustload.Limits(available_memory=limit)
        assert len(rustload.open(path, framework="torch", limits=raised_limit).materialize(copy=True)) == 3


@pytest.mark.parametrize("start", ["meta", "memory"])
def test_load_into_counts_what_it_allocates_and_changes_nothing_before(tmp_path, start):
    path = tmp_path / "m.safetensors"
    rustload.save({"weight": torch.ones(32, 8), "bias": torch.ones(32)}, path)
    with torch.device("meta" if start == "meta" else "cpu"):
        model = torch.nn.Linear(8, 32)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}

    def load(limit: int, **options: object) -> None:
        rustload.torch.load_into(model, path, limits=rustload.Limits(available_memory=limit), **options)  # type: ignore[arg-type]

    # Tensors that are replaced are freed meanwhile: 32 * 9 elements of 8 bytes, less 4 bytes each.
    needed = 32 * 9 * (8 if start == "meta" else 4)
    with pytest.raises(rustload.NotEnoughMemoryError) as raised:
        load(needed - 1, dtype="float64")
    assert raised.value.needed == needed
    (note,) = raised.value.__notes__
    assert note.startswith("Pass dtype= for a smaller model, or pass device_map= ")
    assert "stream" not in note
    for name, tensor in model.state_dict().items():
        assert tensor.device == before[name].device
        assert start == "meta" or torch.equal(tensor, before[name])
    load(1)  # in place, or views
    load(32 * 8 * 8, dtype="float64") if start == "memory" else None
    assert float(model.weight.detach().double().sum()) == 32 * 8


FORESEEN = """
import sys
import torch, rustload, rustload.torch
from process_memory import Peak
from rustload import _rustload
def needed(call):
    try:
        call(rustload.Limits(available_memory=1))
    except rustload.NotEnoughMemoryError as error:
        return error.needed
path, way, dtype = sys.argv[1:]
def call(limits):
    if way == "materialize":
        return rustload.open(path, framework="torch", limits=limits).materialize(dtype=dtype, copy=True)
    with torch.device("meta"):
        model = torch.nn.ParameterDict({f"t{n}": torch.nn.Parameter(torch.empty(48, 1 << 18)) for n in range(6)})
    rustload.torch.load_into(model, path, dtype=dtype, copy=True, limits=limits)
    return model
call_small = rustload.open(path, framework="torch")["t0"][:1].materialize(dtype=dtype)
foreseen, peak = needed(call), Peak()
kept = call(rustload.Limits())
print(foreseen >> 20, peak.stop()[0])
"""


@pytest.mark.parametrize(("way", "dtype"), [
    ("materialize", "bfloat16"), ("materialize", "float32"), ("materialize", "float64"),
    ("load_into", "bfloat16"), ("load_into", "float32"),
])  # fmt: skip
def test_the_sum_is_the_peak_within_a_tenth(tmp_path, way, dtype):
    path = sparse(tmp_path / "m.safetensors", tensors(48, 6))
    foreseen, peak = map(int, torch_child(FORESEEN, path, way, dtype).stdout.split())
    assert foreseen == 288 * {"bfloat16": 2, "float32": 4, "float64": 8}[dtype] // 4
    assert abs(peak - foreseen) <= foreseen / 10


def test_the_buffers_of_convert_fit_a_quarter_of_what_is_left(tmp_path):
    path = sparse(tmp_path / "m.safetensors", tensors(64, 4))
    work = f"rustload.convert(path, {str(tmp_path / 'out.safetensors')!r}, dtype='float16', threads=2, fsync=False)"
    found, size = child(LIMITED.format(work=work), path, "RLIMIT_DATA", 200, timeout=300).stdout.split()
    assert found == "made"
    assert int(size) <= 50


def test_info_and_doctor_show_the_same_sum(two_gib):
    done = cli("info", "--dtype", "bf16", "--json", two_gib)
    found = json.loads(done.stdout)["checkpoints"][0]["memory"]
    assert list(found) == ["dtype", "needed", "usable", "bound", "fits"]
    assert (found["dtype"], found["needed"]) == ("bfloat16", 1 << 30)
    assert found["fits"] == (found["needed"] <= found["usable"])
    machine = json.loads(cli("doctor", "--no-measure", "--json", two_gib).stdout)["machine"]["memory"]
    assert machine["bound"] == found["bound"] in ("cgroup", "machine", "RLIMIT_AS", "RLIMIT_DATA")
    assert abs(machine["usable"] - found["usable"]) < 2 << 30
    assert machine["usable"] <= machine["available"]
    shown = cli("info", "--dtype", "bfloat16", two_gib).stdout
    fits = "fits" if found["fits"] else "does not fit"
    assert re.search(rf"\n  memory +1\.0 GiB as bfloat16: {fits}, ", shown)
    assert f"left ({found['bound']})" in shown
    assert f"are left ({found['bound']})\n" in cli("doctor", "--no-measure", two_gib).stdout
    assert "memory" not in json.loads(cli("info", "--json", two_gib).stdout)["checkpoints"][0]
    wrong = cli("info", "--dtype", "bfloat61", two_gib)
    assert (wrong.returncode, "bfloat16" in wrong.stderr) == (2, True)


def test_memory_says_what_is_left_and_by_what():
    found = rustload.memory()
    assert found.usable is not None
    assert 0 < found.usable <= found.available
    assert found.bound in ("cgroup", "machine", "RLIMIT_AS", "RLIMIT_DATA")
