"""`rustload show`: the numbers of tensors compared with NumPy and torch, and other values."""

import argparse
import json
import os
import re
from typing import Any

import numpy as np
import pytest
import torch
from ranged import Ranges
from support import Reduced, cli

import rustload
from rustload._common.terminal import Page
from rustload._describe.values import parse_index, split_index

DTYPES = [
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2),
    *(torch.complex64, torch.bool, torch.uint8, torch.int8, torch.int32, torch.int64, torch.uint64),
]


def numbers(text: str) -> list[str]:
    """The numbers of the lines below the header."""
    return re.findall(r"[^\s\[\],]+", "".join(text.splitlines(keepends=True)[1:]).replace("...,", ""))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_slice_has_the_numbers_of_torch(dtype, save, command):
    torch.manual_seed(1)
    tensor = (torch.rand(7, 9) * 100).to(torch.complex64 if dtype.is_complex else torch.float32).to(dtype)
    path = save({"layers.0.w": tensor})
    wide = tensor.to(torch.complex128) if dtype.is_complex else tensor.to(torch.float64)
    expected = wide[:2, 1:8:3].flatten().tolist()
    code, out, err = command("show", path, "layers.{0..3}.*[:2, 1:8:3]")
    assert (code, err) == (0, "")
    head, first, *_ = out.splitlines()
    name = str(dtype).removeprefix("torch.")
    assert head == f"layers.0.w[:2, 1:8:3]  {name}  [2, 3] of [7, 9]"
    assert first.startswith("  [[")
    kind: Any = {"bool": lambda text: float(text == "True"), "complex64": complex}.get(name, float)
    assert [kind(text) for text in numbers(out)] == pytest.approx(expected, rel=1e-3)
    document = json.loads(cli("show", str(path), "layers.0.w[:2, 1:8:3]", "--json").stdout)
    (found,) = document["tensors"]
    assert (found["shape"], found["index"]) == ([2, 3], ":2, 1:8:3")
    values = found["values"]
    if dtype.is_complex:
        values = [complex(*pair) for pair in zip(values[::2], values[1::2], strict=True)]
    assert values == expected


@pytest.mark.parametrize(
    "shape", [(2000,), (3, 500), (50, 40), (5, 50, 7), (30, 2, 40), (3, 8, 8, 9), (1001, 1)], ids=str
)
def test_a_large_tensor_has_the_edges_that_numpy_prints(shape, save, command):
    array = np.arange(np.prod(shape)).reshape(shape)
    code, out, _ = command("show", save({"x": torch.from_numpy(array)}), "x")
    assert code == 0
    # NumPy's text but its blank lines, spaces, and the comma after the dots of rows.
    text = np.array2string(array, separator=",", max_line_width=10_000)
    assert re.sub(r"\s", "", "".join(out.splitlines()[1:])) == re.sub(r"\s", "", text)


def test_small_and_odd_shapes(save, command):
    tensors = {
        "scalar": torch.tensor(2.5),
        "empty": torch.zeros(0, 3),
        "row": torch.arange(300),
        "deep": torch.arange(2**9).view([2] * 9),
        "wide": torch.zeros([4] * 7),
    }
    path = save(tensors)
    for name, text in (("scalar", "2.5"), ("empty", "[]")):
        assert command("show", path, name)[1].splitlines()[1:] == [f"  {text}"]
    out = command("show", path, "row")[1]
    assert numbers(out) == [*map(str, range(300))]
    assert max(map(len, out.splitlines())) <= 120
    assert numbers(command("show", path, "deep")[1]) == [*map(str, range(2**9))]
    code, out, err = command("show", path, "wide", "wide[0, ..., 1, :2]")
    assert code == 3
    assert "has 7 dimensions and 16,384 elements, too many to show" in err
    assert out.startswith("wide[0, ..., 1, :2]  float32  [4, 4, 4, 4, 2] of [4, 4, 4, 4, 4, 4, 4]")


def test_only_what_is_shown_is_read(save):
    path = save({"x": torch.arange(1 << 22, dtype=torch.float32).view(2048, 2048)})
    file = Ranges(path.read_bytes())

    from rustload._describe.values import show_numbers

    with rustload.open(file) as checkpoint:
        file.calls.clear()
        show_numbers(checkpoint["x"], 80, dequantize=False)
        assert file.nbytes < 1 << 20, "of 16 MiB"


def test_a_pattern_also_matches_vectors(save, command):
    path = save({"l.w": torch.ones(5, 6), "l.b": torch.arange(5), "l.s": torch.tensor(1)})
    code, out, err = command("show", path, "l.*[:2, :4]")
    assert (code, err) == (0, "")
    heads = [line for line in out.splitlines() if line and line[0] != " "]
    assert heads == ["l.w[:2, :4]  float32  [2, 4] of [5, 6]", "l.b[:2]  int64  [2] of [5]", "l.s  int64  []"]
    code, _, err = command("show", path, "l.b[:2, :4]", "l.b[7]", "l.w[0]")
    assert code == 3
    assert err.count("rustload: error:") == 2
    assert err.count("for tensor 'l.b'") == 2


def test_dequantized_numbers(save, command):
    codes = (torch.rand(4, 8) * 40 - 20).to(torch.float8_e4m3fn)
    tensors = {"w.weight": codes, "w.weight_scale_inv": torch.tensor([[0.25]])}
    path = save(tensors)
    assert command("show", path, "w.weight[0]")[1].startswith("w.weight[0]  float8_e4m3fn")
    document = json.loads(cli("show", str(path), "w.weight", "--dequantize", "--json").stdout)
    (found,) = document["tensors"]
    assert found["values"] == pytest.approx((codes.float() * 0.25).flatten().tolist(), rel=1e-2)


def test_values_that_are_not_tensors(tmp_path, command):
    path = tmp_path / "run.ckpt"
    cycle: list[Any] = [1]
    cycle.append({"again": cycle})
    torch.save(
        {
            "state_dict": {"w": torch.ones(2)},
            "hyper_parameters": {
                "lr": 3e-4,
                "betas": (0.9, 0.999),
                "name": "a\x1b[31mb\n",
                "long": list(range(300)),
                "text": "x" * 5000,
                "huge": 7**2000,
                "ns": argparse.Namespace(depth=2),
                "nested": {"a": [{"b": None}], 3: True},
                "none": {},
            },
            "cycle": cycle,
            "epoch": 3,
        },
        path,
    )
    code, out, err = command(
        "show", path, "hyper_parameters", "epoch", "hyper_parameters.nested.3", "state_dict"
    )
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "hyper_parameters  dict of 9"
    for line in (
        "    lr  0.0003",
        "    betas  (0.9, 0.999)",
        r"    name  'a\x1b[31mb\n'",
        "    ns  <argparse.Namespace> (kept as data)",
        "        depth  2",
        "          b  None",
        "    none  {}",
        "epoch  3",
        "hyper_parameters.nested.3  True",
        "    w  <tensor float32 [2]>",
    ):
        assert line in lines
    assert "99, ... 300 items]" in out
    assert "(the first 2,000 of 5,000 characters)" in out
    assert f"<a number of {(7**2000).bit_length():,} bits>" in out
    assert "\x1b" not in out
    code, out, _ = command("show", path, "cycle")
    assert (code, len(out.splitlines()) < 50) == (0, True)
    document = json.loads(cli("show", str(path), "hyper_parameters.lr", "epoch", "--json").stdout)
    assert document["objects"] == [
        {"name": "hyper_parameters.lr", "text": "0.0003"},
        {"name": "epoch", "text": "3"},
    ]


def test_what_the_file_names_is_not_made(tmp_path, command):
    path = tmp_path / "evil.pt"
    marker = tmp_path / "made"
    torch.save({"w": torch.ones(1), "x": Reduced(os.mkdir, (str(marker),))}, path)
    code, out, _ = command("show", path, "x")
    assert (code, marker.exists()) == (0, False)
    assert "posix.mkdir" in out


def test_unknown_names_are_errors_that_suggest_others(tmp_path, command):
    path = tmp_path / "run.ckpt"
    torch.save({"hyper_parameters": {"lr": 1}, "layers.0.weight": torch.ones(2)}, path)
    for name, near in (("hyper_parameterz", "hyper_parameters"), ("layers.0.wieght[0]", "layers.0.weight")):
        code, out, err = command("show", path, name, "hyper_parameters.lr")
        assert (code, out) == (3, "hyper_parameters.lr  1\n")
        assert "no tensor or value is named" in err
        assert f"did you mean: {near}" in err
    document = json.loads(cli("show", str(path), "nothing", "--json").stdout)
    assert document["errors"][0]["code"] == "NotFound"
    code, _, err = command("show", tmp_path / "missing.pt", "x")
    assert code == 3
    assert "missing.pt" in err


def test_the_empty_name_is_two_quotes(save, command):
    assert command("show", save({"": torch.ones(1)}), "")[1].startswith('""  float32  [1]\n')


def test_a_name_with_brackets_is_itself(save, command):
    path = save({"a[0]": torch.ones(2), "a\x1b[1m": torch.ones(1), "a": torch.zeros(3)})
    assert command("show", path, "a[0]")[1].startswith("a[0]  float32  [2]\n")
    assert command("show", path, "a[1]")[1].startswith("a[1]  float32  [] of [3]\n")
    assert "\x1b" not in command("show", path, "a*")[1]


@pytest.mark.parametrize(
    "text", ["0", "-1", ":", "::", "1:", ":-2", "::2", "1:7:3", "...", "..., 0", "0, :, ..., 2:5", " 1 , 2 "]
)
def test_indexes_are_those_of_python(text):
    class Recorder:
        def __getitem__(self, index: object) -> object:
            return index

    expected = eval(f"recorder[{text}]", {"recorder": Recorder()})
    expected = expected if isinstance(expected, tuple) else (expected,)
    assert parse_index(text) == expected
    assert split_index(f"a.*[{text}]") == ("a.*", text)


@pytest.mark.parametrize(
    "text", ["a[0-9]", "a[!b]", "a[]", "a[1,]", "a[1 2]", "a[x]", "a[1:2:3:4]", "a", "[", "a[1:2 3]"]
)
def test_other_brackets_are_part_of_the_pattern(text):
    assert split_index(text) == (text, None)


@pytest.mark.parametrize("columns", [80, 120])
def test_lines_fit_a_terminal(columns, save, command, monkeypatch):
    monkeypatch.setattr(Page, "width", columns)
    path = save(
        {"layers.0.attention.weight": torch.randn(100, 200), "h": {"text": "word " * 100, "n": [1] * 200}}
    )
    code, out, _ = command("show", path, "layers.0.attention.weight", "layers.*[:40, :20]", "h", "h.text")
    assert code == 0
    assert max(map(len, out.splitlines())) <= columns


def test_a_long_name_is_cut_on_a_terminal_and_whole_elsewhere(save, command, monkeypatch):
    name = "層" * 1000
    path = save({name: torch.ones(2)})
    assert name in command("show", path, "*")[1].replace("\n", "")
    monkeypatch.setattr(Page, "width", 80)
    label, rest, _ = command("show", path, "*[:1]")[1].splitlines()
    assert (label, rest) == (f"{'層' * 35}...[:1]", "float32  [1] of [2]")
