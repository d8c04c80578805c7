"""`.stats()` and `rustload stats`, compared with NumPy in float64."""

import json
import subprocess
from typing import Any

import numpy as np
import pytest
import torch
from support import cli

import rustload

# torch warns of complex32.
pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support:UserWarning")

FLOATS = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2fnuz,
]
INTS = [
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.uint16,
    torch.int32,
    torch.uint32,
    torch.int64,
    torch.uint64,
]


def check(found: rustload.Statistics, tensor: torch.Tensor) -> None:
    """Compares statistics with those of NumPy."""
    if tensor.dtype.is_complex:
        tensor = torch.view_as_real(tensor.resolve_conj())
    is_float = tensor.dtype.is_floating_point
    numbers = (tensor.to(torch.float64) if is_float else tensor).numpy().ravel()
    finite = numbers[np.isfinite(numbers)]
    assert found.total == numbers.size
    assert found.nan == np.isnan(numbers).sum()
    assert found.positive_infinity == np.isposinf(numbers).sum()
    assert found.negative_infinity == np.isneginf(numbers).sum()
    assert found.zeros == (numbers == 0).sum()
    assert found.finite == finite.size
    subnormal = np.zeros(0)
    if is_float and tensor.dtype != torch.float8_e8m0fnu:
        subnormal = finite[(finite != 0) & (abs(finite) < torch.finfo(tensor.dtype).smallest_normal)]
    assert found.subnormal == subnormal.size
    if not finite.size:
        assert (found.min, found.max, found.mean, found.std) == (None, None, None, None)
        return
    assert (found.min, found.max) == (finite.min(), finite.max())
    assert type(found.min) is (float if is_float else int)
    wide = finite.astype(np.longdouble)
    assert found.mean is not None
    assert found.std is not None
    assert abs(found.mean - wide.mean()) <= 1e-12 * max(abs(wide.mean()), wide.std())
    assert abs(found.std - wide.std()) <= 1e-12 * max(wide.std(), abs(wide.mean()) * 1e-3)
    if tensor.element_size() <= 2:
        bits = tensor.contiguous().view(torch.uint8 if tensor.element_size() == 1 else torch.int16)
        assert found.distinct == bits.unique().numel()
    else:
        assert found.distinct is None
    normal = finite[(finite != 0)].astype(np.longdouble)
    normal = normal[abs(normal) >= (torch.finfo(tensor.dtype).smallest_normal if is_float else 0)]
    exponents = np.frexp(normal)[1] - 1
    for exponent, negative, positive in found.exponents:
        here = normal[exponents == exponent]
        assert (negative, positive) == ((here < 0).sum(), (here > 0).sum())
    assert sum(negative + positive for _, negative, positive in found.exponents) == normal.size


def special(dtype: torch.dtype) -> torch.Tensor:
    """Numbers of all magnitudes, with zeros of both signs, subnormal numbers, infinities and NaN where there are any."""
    torch.manual_seed(1)
    numbers = torch.randn(70_000, dtype=torch.float64) * torch.exp(
        torch.randn(70_000, dtype=torch.float64) * 8
    )
    numbers[::1001] = 0.0
    numbers[1::1001] = -0.0
    numbers[2::1001] = torch.finfo(dtype).tiny / 4
    numbers[3::2001] = float("inf")
    numbers[4::2001] = float("-inf")
    numbers[5::3001] = float("nan")
    return numbers.to(dtype)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_floats_have_the_statistics_of_numpy(dtype, save):
    ckpt = rustload.open(save({"x": special(dtype), "few": special(dtype)[:300], "one": special(dtype)[7:8]}))
    for name, tensor in ckpt.items():
        check(tensor.stats(), tensor.torch())
        assert ckpt.stats(name)[name] == tensor.stats(threads=1)


@pytest.mark.parametrize("dtype", INTS, ids=str)
def test_integers_have_the_statistics_of_numpy(dtype, save):
    info = torch.iinfo(dtype)
    torch.manual_seed(2)
    bits = torch.randint(0, 256, (30_000 * dtype.itemsize,), dtype=torch.uint8)
    tensors = {"any": bits.view(dtype), "edges": torch.tensor([info.min, info.max, 0], dtype=dtype)}
    for name, found in rustload.open(save(tensors)).stats().items():
        check(found, tensors[name])
    assert (found.min, found.max) == (info.min, info.max)


@pytest.mark.parametrize("dtype", [torch.complex32, torch.complex64, torch.complex128], ids=str)
def test_complex_numbers_count_as_two(dtype, save):
    part = {torch.complex32: torch.float16, torch.complex64: torch.float32, torch.complex128: torch.float64}
    numbers = torch.view_as_complex(special(part[dtype])[:60_000].view(-1, 2).clone())
    check(rustload.open(save({"x": numbers}))["x"].stats(), numbers)


def test_e8m0_bools_and_what_has_no_numbers(save):
    ckpt = rustload.open(
        save(
            {
                "scale": torch.arange(256, dtype=torch.uint8).view(torch.float8_e8m0fnu),
                "bool": torch.tensor([True, False, True]),
                "empty": torch.zeros(0, 3),
                "packed": torch.zeros(4, dtype=torch.uint8).view(torch.float4_e2m1fn_x2),
            }
        )
    )
    scale = ckpt["scale"].stats()
    assert (scale.total, scale.nan, scale.min, scale.max) == (256, 1, 2.0**-127, 2.0**127)
    check(ckpt["bool"].stats(), ckpt["bool"].torch())
    assert ckpt["empty"].stats().mean is None
    assert ckpt["packed"].stats().total == 0


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")
def test_views_joined_and_quantized_tensors(save):
    torch.manual_seed(3)
    base = torch.randn(300, 400)
    quantized = torch.quantize_per_channel(base, torch.rand(300) + 0.1, torch.zeros(300), 0, torch.qint8)
    ckpt = rustload.open(save({"x": base, "q": quantized}))
    check(ckpt["x"][5:200:3, 10:].T.stats(), base[5:200:3, 10:])
    check(rustload.concat([ckpt["x"], ckpt["x"][:7]], dim=0).stats(), torch.cat([base, base[:7]]))
    check(ckpt["q"].stats(), quantized.int_repr())
    check(ckpt["q"].stats(dequantize=True), quantized.dequantize())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.uint8], ids=str)
@pytest.mark.parametrize("bins", [1, 7, 64])
def test_a_histogram_is_that_of_numpy(dtype, bins, save):
    torch.manual_seed(4)
    numbers = (torch.randn(50_000) * 40).abs().to(dtype)
    tensors = {"x": numbers, "same": numbers[:1].repeat(9), "none": numbers[:0]}
    found = rustload.open(save(tensors)).stats(bins=bins)
    for name in ("x", "same"):
        counts, edges = np.histogram(tensors[name].to(torch.float64).numpy(), bins)
        histogram = found[name].histogram
        assert histogram is not None
        assert histogram.counts == counts.tolist()
        assert (histogram.min, histogram.max) == (edges[0], edges[-1])
    assert found["none"].histogram is None


def test_numbers_whose_squares_are_infinite_count(save):
    few = [1.0, 2e200, np.nan, 3.0, 7e299, np.inf, -5.0]
    generator = torch.Generator().manual_seed(3)
    many = torch.randn(5000, dtype=torch.float64, generator=generator) * 1e-3
    many[::700] = 3e250
    for value in (torch.tensor(few, dtype=torch.float64), many):
        found = rustload.open(save({"w": value}))["w"].stats(bins=4)
        finite = value[value.isfinite()].numpy()
        assert (found.min, found.max) == (finite.min(), finite.max())
        assert found.mean == pytest.approx(finite.mean())
        assert found.std == np.inf
        assert found.histogram is not None
        assert found.histogram.counts == np.histogram(finite, 4)[0].tolist()
    value = torch.tensor([-1.7e308, 1.0, 1.7e308, -1.7e308, 1.7e308], dtype=torch.float64)
    found = rustload.open(save({"w": value}))["w"].stats()
    assert (found.min, found.max, found.finite) == (-1.7e308, 1.7e308, 5)
    assert abs(found.mean or 0.0) < 1.7e300


def test_a_sample_reads_part_of_large_tensors(save):
    torch.manual_seed(5)
    ramp = torch.arange(1 << 21, dtype=torch.float32)
    ckpt = rustload.open(save({"ramp": ramp, "matrix": ramp.view(2048, 1024).T, "small": ramp[:100].clone()}))
    found = ckpt.stats(sample=6400)
    for name in ("ramp", "matrix"):
        sample = found[name]
        assert sample.sampled
        assert sample.mean is not None
        assert 3200 <= sample.total <= 6400
        assert (sample.min, sample.max) == (0, ramp[-1])
        # The runs of the matrix are along its rows, and fall on some columns more often than on others.
        assert abs(sample.mean / ramp.mean() - 1) < (0.01 if name == "ramp" else 0.1)
    assert not found["small"].sampled
    assert found["small"].total == 100
    joined = rustload.concat([ckpt["ramp"], ckpt["ramp"]], dim=0).stats(sample=6400)
    assert joined.sampled
    assert joined.mean is not None
    assert abs(joined.mean / ramp.mean() - 1) < 0.02


def test_arguments_are_checked(simple):
    ckpt = rustload.open(simple)
    for arguments, error in (
        ({"sample": 0}, ValueError),
        ({"bins": 1 << 17}, ValueError),
        ({"bins": 2.5}, TypeError),
        ({"sample": True}, TypeError),
        ({"threads": 0}, ValueError),
    ):
        with pytest.raises(error):
            ckpt["w"].stats(**arguments)  # type: ignore[arg-type]
        with pytest.raises(error):
            ckpt.stats(**arguments)  # type: ignore[arg-type]
    with pytest.raises(rustload.TensorNotFoundError):
        ckpt.stats("nothing")
    # NumPy's numbers are numbers.
    assert ckpt["w"].stats(sample=np.int64(5), bins=np.int8(3)) == ckpt["w"].stats(sample=5, bins=3)


def test_a_changed_file_is_an_error(save):
    path = save({"x": torch.zeros(3 << 20)})
    ckpt = rustload.open(path)
    with path.open("r+b") as file:
        file.truncate(1 << 20)
    with pytest.raises(rustload.FormatError, match="x") as caught:
        ckpt.stats()
    assert caught.value.code == "FileChanged"


def test_a_meta_tensor_is_an_error(save):
    with pytest.raises(rustload.RustloadError):
        rustload.open(save({"x": torch.zeros(3, device="meta")})).stats()


def command(*arguments: Any) -> subprocess.CompletedProcess[str]:
    return cli("stats", *arguments)


def test_as_text_statistics_are_a_table(save):
    tensors = {f"w{at}": torch.tensor([at, -1.5, float("nan"), 0]) for at in range(1005)}
    ckpt = rustload.open(save(tensors))
    title, head, first, *rest = str(ckpt.stats()).splitlines()
    assert (title, head.split()) == (
        "Statistics of 1,005 tensors",
        ["min", "max", "mean", "std", "NaN", "zeros"],
    )
    assert first.split() == ["w0", "-1.5", "0", "-0.5", "0.7071", "1", "2"]
    assert (len(rest), rest[-1]) == (1000, "  and 5 more")
    assert str(ckpt.stats([])) == "Statistics of 0 tensors"
    found = repr(ckpt["w7"].stats(bins=3))
    assert found.startswith("Statistics(total=4, nan=1, ")
    assert found.endswith("exponents=<2>, histogram=<3 bins>, sampled=False)")


@pytest.mark.filterwarnings("ignore::rustload.RustloadWarning")
def test_reports_have_a_repr_of_one_line(save, tmp_path):
    import rustload.torch

    path = save({f"{at}.weight": torch.randn(2, 2) for at in range(40)})
    layers = torch.nn.ModuleList(torch.nn.Linear(2, 2, bias=False) for _ in range(40))
    converted = rustload.convert(path, tmp_path / "to.safetensors", dtype="float16")
    for report, begin in (
        (rustload.torch.load_into(layers, path, dtype="bfloat16"), "<LoadReport 320 B in "),
        (rustload.diff(path, tmp_path / "to.safetensors"), f"<DiffReport {str(path)!r} "),
        (converted, "<SaveReport wrote 40 tensors, "),
    ):
        assert repr(report).startswith(begin)
        if report is not converted:  # what was not written is an error
            with pytest.raises(
                TypeError, match=r"a (Load|Diff)Report has no truth value: use \.(missing|same)"
            ):
                bool(report)
        assert len(repr(report)) < 400
        assert "\n" not in repr(report)


def test_a_gate_that_selects_nothing_is_an_error(save):
    path = save({"model.layers.0.w": torch.zeros(2), "model.layers.1.w": torch.tensor([float("nan")])})
    for select in (["nosuch*"], ["nosuch*", "?"], ["nosuch"]):
        options = [word for one in select for word in ("--select", one)]
        done = command(path, "--fail-on", "nan", *options)
        assert (done.returncode, done.stdout) == (3, "")
        assert done.stderr.startswith(
            f"rustload: error: --select {'names' if select == ['nosuch'] else 'has'} 'nosuch"
        )
    near = command(path, "--select", "model.layer.*")
    assert near.stderr.endswith("  note: did you mean: model.layers.*\n")
    some = command(path, "--fail-on", "nan", "--select", "nosuch*", "--select", "*.1.*")
    assert (some.returncode, "no name matches 'nosuch*'" in some.stderr) == (1, True)


def test_the_command_shows_every_tensor(save):
    bad = torch.tensor([1.0, float("nan"), float("inf")])
    path = save({"layer.weight": torch.arange(6.0).view(2, 3), "bad": bad, "zero": torch.zeros(4)})
    done = command(path, "--bins", 4)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    row = next(line for line in lines if "layer.weight" in line)
    assert row.split()[1:8] == ["float32[2,", "3]", "0", "5", "2.5", "1.708", "16.67%"]
    assert any("1 NaN, 1 infinite" in line for line in lines)
    assert any("only zeros" in line for line in lines)
    assert "3 tensors, 13 numbers read; 1 tensor with NaN or infinities" in lines[-1]
    for what, code in (("nan", 1), ("inf,zero", 1), ("zero", 1)):
        assert command(path, "--fail-on", what).returncode == code
    assert command(path, "--select", "layer.*", "--fail-on", "nan,inf,zero").returncode == 0
    document = json.loads(command(path, "--json", "--fail-on", "nan").stdout)
    entries = {entry["name"]: entry for entry in document["checkpoints"][0]["tensors"]}
    assert entries["bad"]["nan"] == 1
    assert entries["bad"]["faults"] == ["nan"]
    assert entries["layer.weight"]["mean"] == 2.5
    assert entries["zero"]["std"] == 0


def test_the_command_reports_what_it_cannot_read(tmp_path, simple):
    done = command(simple, tmp_path / "none.bin")
    assert done.returncode == 3
    assert "2 tensors" in done.stdout
    assert "none.bin" in done.stderr
    for arguments in (("--fail-on", "zeros"), ("--sample", "0"), ("--bins", "100000")):
        wrong = command(simple, *arguments)
        assert wrong.returncode == 2
        assert "rustload: error" in wrong.stderr
