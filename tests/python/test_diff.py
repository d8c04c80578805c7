"""`rustload.diff`, `rustload diff` and fingerprints, compared with torch and NumPy."""

import json
import math
import re
import subprocess
from argparse import Namespace
from collections import OrderedDict, deque
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from support import cli

import rustload

# torch warns of complex32.
pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support:UserWarning")

DTYPES = [
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2),
    *(torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.complex64, torch.complex128, torch.complex32),
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.uint16, torch.int32, torch.uint32),
    *(torch.int64, torch.uint64),
]


def random(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    numbers = torch.rand(*shape) * 100
    return numbers.to(torch.complex64).to(dtype) if dtype.is_complex else numbers.to(dtype)


def model() -> dict[str, torch.Tensor]:
    torch.manual_seed(1)
    tensors = {f"layers.{at}.weight": torch.randn(40, 30) for at in range(4)}
    tensors |= {str(dtype).removeprefix("torch."): random(dtype, 5, 7) for dtype in DTYPES}
    tensors["scalar"] = torch.tensor(2.5)
    tensors["empty"] = torch.zeros(0, 3)
    tensors["transposed"] = torch.randn(30, 20).T
    tensors["strided"] = torch.randn(40, 40)[::2, 1::3]
    tensors["nan"] = torch.tensor([float("nan"), -0.0, float("inf")])
    tensors["tied"] = tensors["layers.0.weight"]
    tensors["large"] = torch.randn(700, 1100)
    return tensors


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One model in every format that has a writer here; those but `bin` and `legacy` lack dtypes that their format lacks."""
    folder = tmp_path_factory.mktemp("formats")
    tensors = model()
    torch.save({"state_dict": tensors, "step": 3}, folder / "m.bin")
    torch.save(tensors, folder / "legacy.pt", _use_new_zipfile_serialization=False)
    saved = {name: tensor for name, tensor in tensors.items() if name not in ("complex128", "complex32")}
    rustload.save(saved, folder / "m.safetensors")
    rustload.save(saved, folder / "dropped.safetensors", ties="drop")
    rustload.save(saved, folder / "shards", max_shard_size="20KB")
    plain = {
        name: tensor.numpy()
        for name, tensor in tensors.items()
        if not ("float8" in name or name in ("bfloat16", "complex32"))
    }
    np.savez(folder / "m.npz", **plain)
    return {path.stem if path.suffix != ".bin" else "bin": path for path in folder.iterdir()} | {
        "m": folder / "m.safetensors",
        "npz": folder / "m.npz",
    }


@pytest.mark.parametrize("other", ["legacy", "m", "dropped", "shards", "npz"])
def test_one_model_in_two_formats_is_the_same(other, paths):
    both = rustload.open(paths[other])
    names = [name for name in model() if name in both or name == "tied"]
    report = rustload.diff(paths["bin"], paths[other], data=True, key="state_dict", select=names)
    assert report.same, str(report)
    assert report.equal == len(names)
    assert not report.close
    back = rustload.diff(both, rustload.open(paths["bin"]).under("state_dict").select(names), data=True)
    assert back.same


def test_missing_names_dtypes_and_shapes_are_found(save):
    one = save(
        {"a": torch.zeros(2, 3), "b": torch.zeros(3), "c": torch.zeros(4), "x": torch.ones(1)}, "a.bin"
    )
    two = save(
        {"a": torch.zeros(3, 2), "b": torch.zeros(3).half(), "c": torch.ones(4), "y": torch.ones(1)}, "b.bin"
    )
    report = rustload.diff(one, two)
    assert (report.only_a, report.only_b, report.equal, report.same) == (["x"], ["y"], 1, False)
    found = {diff.name: diff for diff in report.changed}
    assert found["a"].shapes == ((2, 3), (3, 2))
    assert found["b"].dtypes == ("float32", "float16")
    report = rustload.diff(one, two, data=True)
    found = {diff.name: diff for diff in report.changed}
    assert (found["b"].compared_as, found["b"].different) == ("float16", 0)
    assert (found["c"].different, found["c"].first, found["c"].max_absolute) == (4, (0,), 1.0)
    assert rustload.diff(one, two, cast=True, select="b").same


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_differences_are_those_of_numpy(dtype, save):
    torch.manual_seed(2)
    a = random(dtype, 90, 110)
    b = a.clone()
    where = torch.rand(90, 110) < 0.01
    changed = torch.zeros_like(a) if dtype == torch.bool else random(dtype, 90, 110)
    # Not every dtype can be assigned by a mask, bytes can.
    b.view(torch.uint8).view(90, 110, -1)[where] = changed.view(torch.uint8).view(90, 110, -1)[where]
    one, two = save({"x": a.T}, "a.bin"), save({"x": b.T}, "b.bin")
    wide = torch.complex128 if dtype.is_complex else torch.float64
    x, y = a.T.contiguous().to(wide).numpy(), b.T.contiguous().to(wide).numpy()
    for rtol in (0.0, 0.3):
        report = rustload.diff(one, two, data=True, rtol=rtol)
        (found,) = report.changed or report.close
        assert found.different == (x != y).sum()
        assert found.distant == (~np.isclose(x, y, rtol=rtol, atol=0)).sum()
        away = x != y if not found.distant else ~np.isclose(x, y, rtol=rtol, atol=0)
        assert found.first == tuple(np.argwhere(away)[0])
        distance = abs(x - y)
        assert found.max_absolute == pytest.approx(distance.max(), rel=1e-12)
        assert found.max_relative == pytest.approx((distance[y != 0] / abs(y[y != 0])).max(), rel=1e-12)
        assert_measures(found, x, y)


def assert_measures(found: rustload.TensorDiff, x: np.ndarray, y: np.ndarray) -> None:
    """Compares relative L2, RMS and cosine with NumPy's, of the elements that are finite in both."""
    both = np.isfinite(x) & np.isfinite(y)
    x, y = x[both], y[both]
    norms = np.linalg.norm(x), np.linalg.norm(y)
    assert found.relative_l2 == pytest.approx(np.linalg.norm(x - y) / norms[0], rel=1e-12)
    assert found.rms == pytest.approx(np.sqrt(np.mean(abs(x - y) ** 2)), rel=1e-12)
    assert found.cosine == pytest.approx((np.vdot(x, y) / norms[0] / norms[1]).real, rel=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64, torch.int64], ids=str)
@pytest.mark.parametrize("at", [0, 3_000_000, -1])
def test_one_difference_is_measured_against_all_elements(at, dtype, save):
    torch.manual_seed(4)
    a = random(dtype, 4_000_001)
    b = a.clone()
    b[at] = 77
    paths = save({"x": a}, "a.bin"), save({"x": b}, "b.bin")
    x, y = (one.to(torch.complex128 if dtype.is_complex else torch.float64).numpy() for one in (a, b))
    reports = [rustload.diff(*paths, data=True, threads=threads) for threads in (1, 2, 3)]
    for report in reports:
        assert report.changed == reports[0].changed, "it does not depend on the threads"
        assert_measures(report.changed[0], x, y)


def test_measures_leave_out_what_is_not_finite(save):
    inf, nan = float("inf"), float("nan")
    x = torch.tensor([nan, 1.0, inf, 3.0, -inf, 5.0] * 1000)
    y = torch.tensor([1.0, nan, inf, 4.0, 2.0, -5.0] * 1000)
    z = torch.complex(x, torch.arange(6000.0)), torch.complex(y, torch.ones(6000))
    one = save({"real": x, "complex": z[0], "none": x[:1], "a": torch.zeros(3), "b": torch.ones(3)}, "a.bin")
    two = save({"real": y, "complex": z[1], "none": y[:1], "a": torch.ones(3), "b": torch.zeros(3)}, "b.bin")
    found = {diff.name: diff for diff in rustload.diff(one, two, data=True).changed}
    assert_measures(found["real"], x.double().numpy(), y.double().numpy())
    assert_measures(found["complex"], *(one.to(torch.complex128).numpy() for one in z))
    assert (found["none"].relative_l2, found["none"].rms, found["none"].cosine) == (None, None, None)
    assert (found["a"].relative_l2, found["a"].rms, found["a"].cosine) == (inf, 1.0, None)
    assert (found["b"].relative_l2, found["b"].rms, found["b"].cosine) == (1.0, 1.0, None)


def test_differences_of_large_integers_are_exact_before_they_are_squared(save):
    one, two = (
        save({"x": torch.tensor([2**62, 3])}, "a.bin"),
        save({"x": torch.tensor([2**62 + 1, 3])}, "b.bin"),
    )
    (found,) = rustload.diff(one, two, data=True).changed
    assert (found.rms, found.relative_l2) == (0.5**0.5, 2.0**-62)


def row(report: rustload.DiffReport, name: str) -> dict[str, str]:
    """The row of a tensor in the text, by the titles of its columns; what follows them is under an empty title."""
    lines = str(report).splitlines()
    head = next(line for line in lines if "max abs" in line)
    shown = next(line for line in lines if line.startswith(f"  {name} "))
    cells = re.split(r"  +", shown.strip())[1:]
    return dict(zip_longest(re.split(r"  +", head.strip()), cells, fillvalue=""))


def test_the_largest_change_is_first(save):
    torch.manual_seed(5)
    changes = {"a": 0.01, "b": 3.0, "c": 0.5, "d": 1e-6, "e": 0.0}
    tensors = {name: torch.randn(50) for name in changes}
    one = save(tensors | {"shape": torch.zeros(2)}, "a.bin")
    two = save(
        {name: tensor * (1 + changes[name]) for name, tensor in tensors.items()} | {"shape": torch.zeros(3)},
        "b.bin",
    )
    report = rustload.diff(one, two, data=True)
    assert [diff.name for diff in report.changed] == ["shape", "b", "c", "a", "d"]
    assert row(report, "b")["rel L2"] == "3"
    assert row(report, "b")["cosine"] == "1"


def test_nan_in_one_only_is_before_any_distance(save):
    x, y = torch.ones(3), torch.ones(4)
    one = save({"far": x, "nan": y, "inf": y, "shape": x}, "a.bin")
    changed = {"far": x * 9, "nan": y.clone(), "inf": y.clone(), "shape": y}
    changed["nan"][1], changed["inf"][2] = float("nan"), float("inf")
    report = rustload.diff(one, save(changed, "b.bin"), data=True)
    assert [diff.name for diff in report.changed] == ["shape", "nan", "inf", "far"]
    # The elements that are numbers in both are equal, so no distance is shown.
    assert [*row(report, "nan").values()] == ["1", "4", *"-----", "[1]", "1 NaN in one only"]


@pytest.mark.parametrize("prefix", ["model.", "state_dict.module."])
def test_a_prefix_that_one_checkpoint_has_is_seen(prefix, save):
    tensors = {f"layers.{at}.weight": torch.full((2,), float(at)) for at in range(4)} | {
        "head": torch.ones(1)
    }
    one = save(tensors, "a.bin")
    two = save(
        {prefix + name: tensor for name, tensor in tensors.items()} | {prefix + "more": torch.ones(1)},
        "b.bin",
    )
    report = rustload.diff(one, two, data=True)
    assert (report.prefix_a, report.prefix_b, report.equal) == ("", prefix, 5)
    assert (report.only_a, report.only_b) == ([], ["more"])
    assert f"all names of {two} without '{prefix}'" in str(report)
    assert f"without &#x27;{prefix}&#x27;" in report._repr_html_()
    back = rustload.diff(two, one, data=True, select="layers.{0..2}.*")
    assert (back.prefix_a, back.prefix_b, back.equal, back.same) == (prefix, "", 3, True)
    assert json.loads(cli("diff", str(two), str(one), "--json").stdout)["report"]["prefix_a"] == prefix


def test_names_that_both_have_keep_their_prefix(save):
    zero = torch.zeros(1)
    one = save({"model.a": zero, "a": zero}, "a.bin")
    two = save({"model.a": zero, "model.model.a": zero}, "b.bin")
    three = save({"model.x": zero, "model.y": zero}, "c.bin")
    for pair in ((one, two), (two, one), (one, three), (save({"q": zero}, "q.bin"), three)):
        report = rustload.diff(*pair)
        assert (report.prefix_a, report.prefix_b) == ("", "")


def test_large_integers_are_not_rounded(save):
    one = save({"x": torch.tensor([2**62, -(2**63)])}, "a.bin")
    two = save({"x": torch.tensor([2**62 + 1, 2**63 - 1])}, "b.bin")
    (found,) = rustload.diff(one, two, data=True, atol=1).changed
    assert (found.different, found.distant, found.first) == (2, 1, (1,))


def test_nan_zeros_and_infinities(save):
    inf, nan = float("inf"), float("nan")
    one = save({"x": torch.tensor([nan, 0.0, inf, 1.0, nan])}, "a.bin")
    two = save({"x": torch.tensor([nan, -0.0, -inf, nan, nan])}, "b.bin")
    (found,) = rustload.diff(one, two, data=True, atol=1e9, rtol=1e9).changed
    assert (found.different, found.distant, found.nan, found.first) == (3, 2, 1, (2,))
    assert found.max_absolute == inf
    only_signs = rustload.diff(one, two, data=True).changed[0]
    assert only_signs.different == 3
    safetensors.torch.save_file({"x": torch.tensor([0.0])}, one)
    safetensors.torch.save_file({"x": torch.tensor([-0.0])}, two)
    report = rustload.diff(one, two, data=True)
    assert report.same
    assert report.close[0].different == 1


def test_differences_from_zeros_have_no_relative_one(save):
    one = save({"x": torch.tensor([0.0, 2.0]), "y": torch.tensor([0.0, 2.0])}, "a.bin")
    two = save({"x": torch.tensor([0.0, 0.0]), "y": torch.tensor([1.0, 2.0])}, "b.bin")
    report = rustload.diff(one, two, data=True)
    assert [*row(report, "x").values()] == ["1", "2", "2", "-", "1", "1.414", "-", "[1]"]
    assert [*row(report, "y").values()] == ["1", "2", "1", "1", "0.5", "0.7071", "0.894427", "[0]"]


def test_a_converted_file_is_the_same_after_a_cast(save, tmp_path):
    torch.manual_seed(3)
    path = save({"module.w": torch.randn(200, 300), "module.n": torch.arange(4)})
    rustload.convert(path, tmp_path / "b.safetensors", dtype="bfloat16", strip="module.")
    target = tmp_path / "b.safetensors"
    assert not rustload.diff(path, target, strip="module.").same
    report = rustload.diff(path, target, strip="module.", cast=True)
    assert report.same
    assert [diff.compared_as for diff in report.close] == ["bfloat16"]
    assert rustload.diff(path, target, rename={"module.w": "w", "module.n": None}, select="w", cast=True).same


@pytest.mark.parametrize("dtype", ["int64", "uint64"])
@pytest.mark.parametrize("other", ["float64", "float32", "complex128", "int64", "uint64"])
def test_integers_that_float64_does_not_have_differ(dtype, other, tmp_path):
    one, two = tmp_path / "a.safetensors", tmp_path / "b.npz"
    for number, rounded, same in (
        (2**53 + 1, 2**53, False),
        (2**63 - 1, 2**63 - 1, dtype == other),
        (2**53 - 1 if other != "float32" else 2**24, None, True),
        (5, 6, False),
    ):
        rustload.save({"x": np.array([3, number], dtype)}, one)
        np.savez(two, x=np.array([3, number if rounded is None else rounded]).astype(other))
        for a, b in ((one, two), (two, one)):
            report = rustload.diff(a, b, cast=True)
            assert report.same == same, (number, str(report))
            if number == 5:
                assert report.changed[0].different == 1
            elif not same and dtype != other:
                assert report.changed[0].compared_as is None


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"strip": "module"}, "{}"),
        ({"key": "module"}, "{}"),
        ({"rename": {"module": "m.n"}}, "m.n.{}"),
        ({}, "{}"),
    ],
)
def test_ties_of_a_header_have_the_new_names(options, name, tmp_path):
    embed = torch.ones(2)
    tensors = {"embed": embed, "head": embed, "other": torch.zeros(2)}
    one, two = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    rustload.save({f"module.{key}": tensor for key, tensor in tensors.items()}, one, ties="drop")
    rustload.save({name.format(key): tensor for key, tensor in tensors.items()}, two)
    report = rustload.diff(one, two, data=True, **options)
    assert (report.same, report.equal) == (True, 3), str(report)
    assert report.notes == [
        f"{one} has tied names only in its header: {name.format('head')} = {name.format('embed')}"
    ]


def test_a_cast_between_floats_of_one_size(save, tmp_path):
    path = save({"w": torch.randn(100).half()})
    rustload.convert(path, tmp_path / "b.safetensors", dtype="bfloat16")
    assert rustload.diff(path, tmp_path / "b.safetensors", cast=True).same
    report = rustload.diff(path, tmp_path / "b.safetensors", data=True)
    assert [diff.compared_as for diff in report.changed] == ["float32"]


def test_quantized_tensors_as_numbers(save):
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        quantized = torch.quantize_per_tensor(torch.randn(9, 9), 0.1, 2, torch.qint8)
        one = save({"x": quantized}, "a.bin")
        two = save({"x": quantized.dequantize()}, "b.bin")
    assert rustload.diff(one, two, data=True, dequantize=True).same
    assert not rustload.diff(one, two, data=True).same


def test_arguments_are_checked(simple):
    for arguments in ({"atol": -1.0}, {"rtol": float("nan")}, {"key": "nothing"}, {"threads": 0}):
        with pytest.raises(ValueError, match=next(iter(arguments))):
            rustload.diff(simple, simple, data=True, **arguments)  # type: ignore[arg-type]
    assert rustload.diff(simple, simple, data=True, atol=np.float32(0.5), rtol=np.int64(0)).same
    with pytest.raises(ValueError, match="no tensor is under key 'nothing'") as raised:
        rustload.diff(simple, simple, key="nothing")
    assert "exchange them to map names of the other" in raised.value.__notes__[-1]
    with pytest.raises(rustload.TensorNotFoundError):
        rustload.diff(simple, simple, select="nothing")
    calls: list[tuple[int, int, str]] = []
    rustload.diff(simple, simple, data=True, progress=lambda *call: calls.append(call))
    assert calls[-1][0] == calls[-1][1] == 4 * 24 + 8 * 3


def test_a_changed_file_is_an_error(save):
    path = save({"x": torch.zeros(3 << 20)}, "a.bin")
    other = save({"x": torch.zeros(3 << 20)}, "b.bin")
    for first, second in ((path, other), (other, path)):
        one, two = rustload.open(first), rustload.open(second)
        content = path.read_bytes()
        path.write_bytes(content[: 1 << 20])
        with pytest.raises(rustload.FormatError) as caught:
            rustload.diff(one, two, data=True)
        assert caught.value.code == "FileChanged"
        path.write_bytes(content)


def test_reports_fold_layers(save):
    layers = {f"model.layers.{at}.w": torch.zeros(2) for at in range(40)}
    one, two = (
        save(layers, "a.bin"),
        save(
            {name: one.half() for name, one in layers.items()} | {"\x1b[31m": torch.zeros(1)},
            "b.bin",
        ),
    )
    text = str(rustload.diff(one, two))
    assert "model.layers.{0..39}.w" in text
    assert "float32 / float16" in text
    assert "\x1b" not in text
    assert len(text.splitlines()) < 12


@pytest.mark.parametrize("data", [False, True])
def test_values_that_are_not_tensors_are_compared(data, save):
    w = torch.ones(2)
    same = {
        "epoch": 3,
        "loss": float("nan"),
        "betas": (0.9, 0.99),
        "names": {"b", "a"},
        "last": deque([1, [2]]),
        "args": Namespace(lr=0.1),
    }
    one = save({"model": {"w": w}, "step": 1, "lr": 1.0, "gone": [1, {}], **same}, "a.bin")
    changed = {"step": 2, "lr": 1, "new\x1b": "text", "betas": (0.9, 0.98), "args": Namespace(lr=0.2)}
    two = save({"model": {"w": w}, **same, **changed}, "b.bin")
    report = rustload.diff(one, two, data=data)
    assert report.same
    assert report.values == [
        rustload.ValueDiff("step", "1", "2"),
        ("lr", "1.0", "1"),
        ("gone.0", "1", None),
        ("gone.1", "{}", None),
        ("betas.1", "0.99", "0.98"),
        ("args.state.lr", "0.1", "0.2"),
        ("new\x1b", None, "'text'"),
    ]
    text = str(report)
    assert "\x1b" not in text
    for words in ("step  1 / 2\n", f"only in {one}: gone.0, gone.1\n", "7 other values differ"):
        assert words in text, words
    assert json.loads(json.dumps(report.to_dict()))["values"][0] == {"name": "step", "a": "1", "b": "2"}
    assert rustload.diff(one, one, data=data).values == []
    assert "other" not in str(rustload.diff(one, one))


@pytest.mark.parametrize(
    ("one", "two", "expected"),
    [
        ({(1,)}, {(2,)}, [("x", "set of 1", "set of 1")]),
        ({1}, {1.0}, [("x", "{1}", "{1.0}")]),
        ({1}, {True}, [("x", "{1}", "{True}")]),
        ({None}, {1j}, [("x", "{None}", "{1j}")]),
        ({frozenset({8, 0}), (0.5, ())}, {(0.5, ()), frozenset({0, 8})}, []),
        ({math.nan}, {math.nan}, []),
        (frozenset({1}), {1}, [("x", "{1}", "{1}")]),
        ([1, 2], (1, 2), [("x", "[1, 2]", "(1, 2)")]),
        ([1], (), [("x", "[1]", "()"), ("x.0", "1", None)]),
        ([], [1], [("x.0", None, "1")]),
        (deque([1]), [1], [("x", "deque([1])", "[1]")]),
        ([[], 1], 1, [("x", "list of 2", "1"), ("x.0", "[]", None), ("x.1", "1", None)]),
        ({1: 2}, {"1": 2}, [("x.1", "2", None), ("x.1", None, "2")]),
        ({1: 2}, OrderedDict({1: 2}), []),
        ({(1, "a"): 2}, {(1, "a"): 2}, []),
        ({"a": {"b": 1}, "a.b": 2}, {"a": {"b": 3}, "a.b": 2}, [("x.a.b", "1", "3")]),
        ({"a": {"b": 1}, "a.b": 2}, {"a": {"b": 2}, "a.b": 1}, [("x.a.b", "1", "2"), ("x.a.b", "2", "1")]),
        ({"": {"": 1}}, {"": {"": 2}}, [("x..", "1", "2")]),
        ({"w": torch.ones(1)}, {"w": 1}, [("x.w", None, "1")]),
        ([torch.ones(1)], {"0": torch.ones(1)}, [("x", "[<tensor float32 [1]>]", "dict of 1")]),
        (None, torch.ones(1), [("x", "None", None)]),
    ],
    ids=repr,
)
def test_values_of_other_types_and_places_differ(one, two, expected, save):
    report = rustload.diff(save({"x": one}, "a.bin"), save({"x": two}, "b.bin"))
    assert report.values is not None, report.notes
    assert report.values == expected


def test_sets_of_deep_values_are_not_compared(save):
    deep: tuple[Any, ...] = ()
    for _ in range(505):
        deep = (deep,)
    path = save({"w": torch.ones(1), "x": {deep}})
    report = rustload.diff(path, path)
    assert (report.same, report.values) == (True, None)
    assert report.notes[0].startswith("the other values were not compared: maximum recursion depth")


def test_the_whole_of_a_file_without_values_is_no_value(save, tmp_path):
    path = save([torch.ones(1), (torch.zeros(1),)])
    rustload.convert(path, tmp_path / "m.safetensors")
    assert rustload.diff(path, tmp_path / "m.safetensors", data=True).values == []


def test_values_are_compared_of_whole_checkpoints(save, tmp_path):
    one = save({"model": {"w": torch.ones(2)}, "step": 1}, "a.bin")
    two = save({"model": {"w": torch.ones(2)}, "step": 2}, "b.bin")
    assert rustload.diff(one, two, select="model.*").values is None
    assert rustload.diff(one, two, key="model").values is None
    assert rustload.diff(rustload.open(one).select("model.*"), two).values is None
    rustload.convert(one, tmp_path / "c.safetensors")
    (left_out,) = rustload.diff(one, tmp_path / "c.safetensors").values or []
    assert left_out == ("step", "1", None)
    itself: list[object] = []
    itself.append(itself)
    wide: object = 0
    for _ in range(60):
        wide = {"k" * 100_000: wide, "x": [[]] * 1000}  # names of up to 6 MB, a thousand of each length
    # Long names are made one at a time.
    for inside in (itself, wide, {"k" * 6_000_000: [[]] * 100_000}):
        report = rustload.diff(save({"w": torch.ones(1), "x": inside}, "c.bin"), two)
        assert report.values is None
        assert report.notes == [
            "the other values were not compared: more than 200,000, or names that are too long"
        ]


def test_a_difference_in_dtype_only_hints_at_a_cast(save):
    one = save({"w": torch.ones(3), "x": torch.ones(3)}, "a.bin")
    two = save({"w": torch.ones(3).bfloat16(), "x": torch.ones(3)}, "b.bin")
    hint = "1 tensor differs in dtype only: --cast"
    assert f"{hint} compares their elements after a cast" in command(one, two).stdout
    assert f"{hint} ignores that" in command(one, two, "--data").stdout
    assert "dtype only" not in command(one, two, "--cast").stdout
    three = save({"w": torch.zeros(3).bfloat16(), "x": torch.ones(3)}, "c.bin")
    assert "dtype only" not in command(one, three, "--data").stdout


def test_a_tensor_is_no_checkpoint(simple):
    tensor = next(iter(rustload.open(simple).values()))
    for given in (tensor, torch.ones(2)):
        with pytest.raises(TypeError, match="diff takes paths, checkpoints and selections, not a") as caught:
            rustload.diff(given, given)
        assert "select(name)" in caught.value.__notes__[0]


def command(*arguments: Any) -> subprocess.CompletedProcess[str]:
    return cli("diff", *arguments)


def test_the_command_says_what_differs(save, tmp_path):
    one = save({"w": torch.zeros(3), "n": torch.ones(2)}, "a.bin")
    two = save({"w": torch.tensor([0, 0, 0.5]), "n": torch.ones(2)}, "b.safetensors")
    same = command(one, two)
    assert same.returncode == 0, same.stderr
    verdict = "same structure: 2 tensors, same names, dtypes and shapes; no element was compared: pass --data"
    assert same.stdout.splitlines()[-1].strip() == verdict
    different = command(one, two, "--data")
    assert different.returncode == 1
    assert re.search(r"\n  w +1 +3 +0\.5 +1 +inf +[\d.]+ +- +\[2\]\n", different.stdout), different.stdout
    assert different.stdout.endswith("\n  different: 1 of 2 tensors, 1 equal\n")
    assert command(one, two, "--atol", "0.5").returncode == 0
    assert command(one, two, "--data", "--select", "n").returncode == 0
    document = json.loads(command(one, two, "--data", "--json").stdout)
    assert document["report"]["same"] is False
    assert document["report"]["changed"][0]["first"] == [2]
    missing = command(one, tmp_path / "none")
    assert missing.returncode == 3
    assert "none" in missing.stderr
    for wrong in ((one,), (one, two, "--atol", "-1"), (one, two, "--rename", "w")):
        assert command(*wrong).returncode == 2


def test_fingerprints_are_equal_for_equal_tensors(paths):
    names = [name for name in rustload.open(paths["m"]) if name != "tied"]
    found = {
        (
            of.select(names).fingerprint(),
            of.select(names).fingerprint(data=True, threads=threads),
        )
        for threads, of in (
            (1, rustload.open(paths["bin"]).under("state_dict")),
            (2, rustload.open(paths["legacy"])),
            (3, rustload.open(paths["m"])),
            (None, rustload.open(paths["shards"])),
        )
    }
    assert len(found) == 1
    assert rustload.open(paths["m"]).fingerprint(data=True) == rustload.open(paths["dropped"]).fingerprint(
        data=True
    )


def test_fingerprints_differ_where_anything_does(save):
    torch.manual_seed(4)
    base = {"a": torch.randn(3, 4), "b": torch.arange(6), "large": torch.randn(5 << 20)}
    others = [
        base | {"a": base["a"].view(4, 3)},
        base | {"a": base["a"].half()},
        {"a2": base["a"], **{name: base[name] for name in ("b", "large")}},
        base | {"c": torch.zeros(0)},
    ]
    structures = {rustload.open(save(tensors)).fingerprint() for tensors in [base, *others]}
    assert len(structures) == 1 + len(others)
    changed = base["large"].clone()
    changed[-1] += 1
    more = [base, base | {"b": torch.arange(6).flip(0)}, base | {"large": changed}]
    assert len({rustload.open(save(tensors)).fingerprint() for tensors in more}) == 1
    assert len({rustload.open(save(tensors)).fingerprint(data=True) for tensors in more}) == 3
