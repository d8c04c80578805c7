"""`rustload info`, run as users run it: in a process of its own."""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import zipfile

import pytest

torch = pytest.importorskip("torch")

from rustload._cli import tree  # noqa: E402 - below the check for torch, which the fixtures need

GOLDEN = """\
small.pt
  format      torch-zip
  tensors     13
  elements    89
  size        324 B

dtypes
  float32   █████████████████████▋··       292 B  90.1%  8 tensors
  bfloat16  ██▍·····················        32 B   9.9%  4 tensors

tensors
  embed.weight     float32   [10, 4]       160 B  tied
  blocks.{0..3}    4 × 2 tensors           128 B  32 B each
  ├─ attn.weight   float32   [2, 3]         24 B
  └─ norm.weight   bfloat16  [4]             8 B
  odd              3 tensors                36 B
  ├─ {0, 2}.x  ×2  float32   [2]            16 B  8 B each
  └─ 1.x           float32   [5]            20 B
  head.weight      float32   [10, 4]       160 B  tied

tied (names that share a storage)
  embed.weight = head.weight

kept as data (values of classes that were not built)
  argparse.Namespace  1x  at args

named by the pickle (nothing of it was imported or called)
  argparse.Namespace, collections.OrderedDict, torch.BFloat16Storage, torch.FloatStorage,
  torch._utils._rebuild_tensor_v2
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli")
    state = {"embed.weight": torch.zeros(10, 4)}
    for number in range(4):
        state[f"blocks.{number}.attn.weight"] = torch.zeros(2, 3)
        state[f"blocks.{number}.norm.weight"] = torch.zeros(4, dtype=torch.bfloat16)
    state |= {"odd.0.x": torch.zeros(2), "odd.1.x": torch.zeros(5), "odd.2.x": torch.zeros(2)}
    state["head.weight"] = state["embed.weight"]
    torch.save({**state, "args": argparse.Namespace(lr=0.1)}, folder / "small.pt")
    torch.save({"a\x1b[31m\nb": torch.zeros(2)}, folder / "escape.pt")
    torch.save(
        {f"layer_{n}_{'x' * (n % 50)}": torch.zeros(n % 7 + 1) for n in range(5000)}, folder / "many.pt"
    )
    (folder / "page.pt").write_text("<!doctype html><html>no</html>")
    return folder


def run(folder, *args, **env):
    clean = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS")}
    return subprocess.run(
        [sys.executable, "-m", "rustload", *args],
        cwd=folder,
        capture_output=True,
        encoding="utf-8",
        env={**clean, "PYTHONIOENCODING": "utf-8", **env},
        check=False,
    )


def test_a_small_checkpoint_reads_as_written_here(folder):
    done = run(folder, "info", "small.pt")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == GOLDEN


def test_tensors_lists_every_tensor_on_a_line(folder):
    done = run(folder, "info", "--tensors", "small.pt")
    listed = done.stdout.split("\ntensors\n")[1].split("\n\n")[0].splitlines()
    assert [line.split()[0] for line in listed] == list(torch.load(folder / "small.pt", weights_only=False))[
        :-1
    ]
    assert listed[1].split() == ["blocks.0.attn.weight", "float32", "[2,", "3]", "24", "B"]


def test_json_says_what_torch_says(folder):
    done = run(folder, "info", "--json", "small.pt", "page.pt", "none.pt")
    assert done.returncode == 3
    document = json.loads(done.stdout)
    assert document.keys() == {"schema", "rustload", "checkpoints"}
    assert document["schema"] == 1
    good, page, none = document["checkpoints"]
    # What docs/cli.md promises.
    keys = "path, format, files, elements, nbytes, storage_nbytes, dtypes, tied, opaque, globals, notes, metadata, tensors"
    assert list(good) == keys.split(", ")
    state = torch.load(folder / "small.pt", weights_only=False)
    del state["args"]
    assert [entry["name"] for entry in good["tensors"]] == list(state)
    for entry in good["tensors"]:
        tensor = state[entry["name"]]
        assert f"torch.{entry['dtype']}" == str(tensor.dtype)
        assert (entry["shape"], entry["strides"]) == (list(tensor.shape), list(tensor.stride()))
        assert (entry["nbytes"], entry["storage_offset"]) == (tensor.nbytes, tensor.storage_offset())
    assert [entry["name"] for entry in good["tensors"] if entry["repeats"]] == ["head.weight"]
    assert good["tied"] == [["embed.weight", "head.weight"]]
    assert good["opaque"] == [{"class_name": "argparse.Namespace", "count": 1, "at": ["args"]}]
    assert good["nbytes"] == sum(seen["nbytes"] for seen in good["dtypes"]) == 324
    assert page["error"]["code"] == "UnknownFormat"
    assert page["error"].keys() == {"class", "code", "member", "offset", "message", "notes"}
    assert none["error"]["class"] == "FileNotFoundError"


def test_an_unreadable_path_is_said_on_stderr_and_the_rest_is_shown(folder):
    done = run(folder, "info", "page.pt", "small.pt")
    assert done.returncode == 3
    assert done.stdout.strip() == GOLDEN.strip()
    assert re.fullmatch(r"rustload: error: page.pt: this is a saved web page.*\n  note: .*\n", done.stderr)
    missing = run(folder, "info", "none.pt")
    assert (missing.returncode, missing.stdout) == (3, "")
    assert missing.stderr.startswith("rustload: error: none.pt: no such file or directory\n  note: ")


@pytest.mark.parametrize("args", [(), ("info",), ("info", "--nonsense", "x"), ("frobnicate",)])
def test_wrong_usage_ends_with_2(folder, args):
    done = run(folder, *args)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("rustload: error: ")


def test_help_and_version_go_to_stdout(folder):
    import rustload

    assert run(folder, "--version").stdout == f"rustload {rustload.__version__}\n"
    done = run(folder, "info", "--help")
    assert done.returncode == 0
    assert "--json" in done.stdout
    assert "exit codes" in done.stdout


def test_colour_is_only_where_it_is_wanted(folder):
    assert "\x1b" not in run(folder, "info", "small.pt").stdout
    coloured = run(folder, "info", "--color", "always", "small.pt").stdout
    assert "\x1b[1m" in coloured
    assert re.sub(r"\x1b\[\d+m", "", coloured) == GOLDEN


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
@pytest.mark.parametrize(
    ("env", "wanted"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)]
)
def test_a_terminal_gets_colours_unless_told_otherwise(folder, env, wanted):
    import pty

    ours, theirs = pty.openpty()
    clean = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    command = [sys.executable, "-m", "rustload", "info", "small.pt"]
    with subprocess.Popen(
        command, cwd=folder, stdout=theirs, env={**clean, "TERM": "xterm", **env}
    ) as process:
        os.close(theirs)
        shown = b""
        try:
            while part := os.read(ours, 4096):
                shown += part
        except OSError:  # how Linux says that the other side is closed
            pass
    os.close(ours)
    assert process.returncode == 0
    assert (b"\x1b[" in shown) == wanted


def test_names_from_a_file_cannot_steer_the_terminal(folder):
    for args in ((), ("--tensors",)):
        shown = run(folder, "info", *args, "escape.pt").stdout
        assert "\x1b" not in shown
        assert r"a\x1b[31m\nb" in shown


def test_a_stream_without_unicode_gets_ascii(folder):
    done = run(folder, "info", "small.pt", PYTHONIOENCODING="ascii")
    assert done.returncode == 0
    assert done.stdout.isascii()
    assert "`- norm.weight" in done.stdout


def test_a_reader_that_goes_away_is_no_error(folder):
    command = [sys.executable, "-m", "rustload", "info", "--tensors", "many.pt"]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.readline()
        process.stdout.close()
        said = process.stderr.read()
    assert (process.returncode, said) == (141, b"")


def test_ctrl_c_is_quiet(monkeypatch, capsys):
    from rustload import _cli
    from rustload._cli import info

    def stop(_path):
        raise KeyboardInterrupt

    monkeypatch.setattr(info, "describe", stop)
    assert _cli.main(["info", "x"]) == 130
    assert capsys.readouterr() == ("", "")


def test_neither_torch_nor_numpy_is_imported_and_no_tensor_is_read(folder, tmp_path):
    # A member's local header and bytes are spoilt: only a reader of tensors would notice.
    spoilt = tmp_path / "spoilt.pt"
    with zipfile.ZipFile(folder / "small.pt") as archive:
        at = archive.getinfo("small/data/0").header_offset
    content = bytearray((folder / "small.pt").read_bytes())
    content[at : at + 4] = b"oops"
    spoilt.write_bytes(content)
    code = (
        "import sys; from rustload._cli import main; code = main(['info', sys.argv[1]]);"
        "print(*sorted({'torch', 'numpy', 'rich'} & set(sys.modules)), file=sys.stderr); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code, spoilt], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "\n")


def test_columns_line_up_whatever_is_in_them(folder):
    names = [f"m.{n}.{m}.{part}" for n in range(12) for m in range(9) for part in "ab"]
    torch.save({name: torch.zeros(2) for name in names}, folder / "wide.pt")
    torch.save({"": torch.zeros(2), "a": torch.zeros(3)}, folder / "nameless.pt")
    shown = run(folder, "info", "wide.pt").stdout.split("\ntensors\n")[1].split("\n\n")[0].splitlines()
    assert len({re.search(r"\d K?i?B", line).end() for line in shown}) == 1
    assert '  ""  float32' in run(folder, "info", "nameless.pt").stdout


def leaf(*shape):
    return tree.Leaf("float32", shape, 4, tied=False)


def rows(names):
    root = tree.build((name, leaf(size), 4) for name, size in names)
    return [
        ("  " * (len(lasts) - 1) + node.label, node.times, node.tensors) for node, lasts in tree.walk(root)
    ]


def test_equal_layers_fold_and_unequal_ones_do_not():
    names = [(f"h.{n}.{part}", 3 if n != 2 else 4) for n in range(5) for part in "ab"]
    assert rows(names) == [
        ("h", 1, 10),
        ("  {0, 1, 3, 4}", 4, 8),
        ("    a", 1, 1),
        ("    b", 1, 1),
        ("  2", 1, 2),
        ("    a", 1, 1),
        ("    b", 1, 1),
    ]


def test_folds_nest():
    names = [(f"l.{n}.e.{m}.{part}", 3) for n in range(3) for m in range(4) for part in "ab"]
    assert rows(names) == [("l.{0..2}.e.{0..3}", 12, 24), ("  a", 1, 1), ("  b", 1, 1)]


def test_numbered_words_fold_from_three_on():
    assert rows([("conv1.w", 3), ("conv2.w", 3)]) == [("conv1.w", 1, 1), ("conv2.w", 1, 1)]
    assert rows([("conv1.w", 3), ("conv2.w", 3), ("conv3.w", 3)]) == [("conv{1..3}.w", 3, 3)]


def test_a_name_may_be_a_tensor_and_a_folder():
    assert rows([("a", 1), ("a.b", 2)]) == [("a", 1, 2), ("  b", 1, 1)]


def test_a_name_of_very_many_parts_is_no_burden():
    assert len(rows([(".".join("ab" * 100_000), 1), (".".join("ab" * 100_000) + "c", 1)])) < 5


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("a.b", ["a", "b"]),
        ('a["x.y"].b', ['a["x.y"]', "b"]),
        ("a[.b", ["a[", "b"]),
        ("", [""]),
        ("a..", ["a", "", ""]),
    ],
)
def test_dots_in_brackets_do_not_split(name, parts):
    assert tree.split_name(name) == parts


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ([0], "0"),
        ([0, 1], "0, 1"),
        ([*range(32)], "0..31"),
        ([0, 2, 4], "0..4 step 2"),
        ([0, 1, 2, 5, 7, 8, 9], "0..2, 5, 7..9"),
    ],
)
def test_numbers_are_spelled_short(numbers, text):
    assert tree.spell_numbers(numbers) == text
