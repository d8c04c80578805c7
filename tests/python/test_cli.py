"""`rustload info`, run as users run it: in a process of its own."""

import argparse
import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from support import child

torch = pytest.importorskip("torch")

import rustload  # noqa: E402
from rustload import _rustload  # noqa: E402
from rustload._cli import main  # noqa: E402
from rustload._common import tree  # noqa: E402 - after the check for torch, which the fixtures need

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
  argparse.Namespace, collections.OrderedDict, torch.BFloat16Storage, torch.FloatStorage, torch._utils._rebuild_tensor_v2
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


def test_info_of_a_small_checkpoint_equals_the_golden_text(folder):
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


def test_json_agrees_with_torch(folder):
    done = run(folder, "info", "--json", "small.pt", "page.pt", "none.pt")
    assert done.returncode == 3
    document = json.loads(done.stdout)
    assert document.keys() == {"schema", "rustload", "checkpoints"}
    assert document["schema"] == 1
    good, page, none = document["checkpoints"]
    # The keys that docs/reference/cli.md promises.
    keys = (
        "path, format, files, elements, nbytes, storage_nbytes, dtypes, quantized, tied, values, unread, opaque, globals, "
        "notes"
    )
    assert list(good) == [*keys.split(", "), "metadata", "tensors", "scan"]
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


def test_an_unreadable_path_is_reported_on_stderr_and_the_rest_is_shown(folder):
    done = run(folder, "info", "page.pt", "small.pt")
    assert done.returncode == 3
    assert done.stdout.strip() == GOLDEN.strip()
    assert re.fullmatch(r"rustload: error: page.pt: this is a saved web page.*\n  note: .*\n", done.stderr)
    missing = run(folder, "info", "none.pt")
    assert (missing.returncode, missing.stdout) == (3, "")
    assert missing.stderr.startswith("rustload: error: none.pt: no such file or directory\n  note: ")


@pytest.mark.parametrize("args", [("info",), ("info", "--nonsense", "x"), ("frobnicate",)])
def test_wrong_usage_exits_with_2(folder, args):
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


@pytest.mark.parametrize("args", [(), ("info",), ("convert",), ("scan",), ("doctor",)])
def test_help_fits_80_columns(folder, monkeypatch, args):
    monkeypatch.setenv("COLUMNS", "80")
    lines = run(folder, *args, "--help").stdout.splitlines()
    assert len(lines) > 5
    assert [line for line in lines if len(line) > 79] == []


VALUES = """\
values (at the top, beside tensors)
  epoch       3
  lr          0.1
  done        False
  best        None
  name        "it's \\x1b[31m"
  text        'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx'...
  huge        int of 8,001 bits
  nan         nan
  state_dict  OrderedDict of 2
  steps       list of 3
  raw         bytes of 5
  7           8
  a\\nb        1
"""


def test_top_level_values_are_shown_abbreviated(folder):
    state = {
        "epoch": 3, "lr": 0.1, "done": False, "best": None, "name": "it's \x1b[31m", "text": "x" * 1000, "huge": 1 << 8000,
        "nan": float("nan"), "state_dict": torch.nn.Linear(1, 1).state_dict(), "steps": [1, 2, 3], "raw": b"bytes",
        "args": argparse.Namespace(lr=1), 7: 8, "a\nb": 1, "w": torch.ones(2),
    }  # fmt: skip
    torch.save(state, folder / "values.pt")
    shown = run(folder, "info", "values.pt").stdout
    assert VALUES in shown
    values = json.loads(run(folder, "info", "--json", "values.pt").stdout)["checkpoints"][0]["values"]
    assert [value["name"] for value in values] == [str(name) for name in state if name not in ("args", "w")]
    found = {value["name"]: value.get("value", value.get("length")) for value in values}
    for name in ("epoch", "lr", "done", "best", "name", "text"):
        assert found[name] == state[name]
    assert (found["nan"], found["huge"], found["state_dict"]) == ("nan", "int of 8,001 bits", 2)
    torch.save({f"n{number}": number for number in range(30)}, folder / "numbers.pt")
    assert "  n19  19\n  and 10 more (--json has all)\n" in run(folder, "info", "numbers.pt").stdout


def test_values_beyond_a_limit_are_noted(folder):
    (folder / "deep.pkl").write_bytes(b"\x80\x02" + b"]" * 2000 + b"a" * 1999 + b".")
    done = run(folder, "info", "deep.pkl")
    assert done.returncode == 0
    assert "the values are not shown: " in done.stdout


def test_only_scan_takes_standard_input(folder):
    for command in ("info", "doctor", "stats", "convert", "diff x"):
        done = run(folder, *command.split(), "-")
        assert (done.returncode, done.stdout) == (2, "")
        assert "works only with rustload scan" in done.stderr


def test_colour_is_off_in_a_pipe_and_on_by_request(folder):
    assert "\x1b" not in run(folder, "info", "small.pt").stdout
    coloured = run(folder, "info", "--color", "always", "small.pt").stdout
    assert "\x1b[1m" in coloured
    assert re.sub(r"\x1b\[\d+m", "", coloured) == GOLDEN


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
@pytest.mark.parametrize(
    ("env", "wanted"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)]
)
def test_a_terminal_gets_colours_unless_the_environment_disables_them(folder, env, wanted):
    from test_info_width import on_terminal

    assert ("\x1b[" in on_terminal(80, folder, "info", "small.pt", **env)) == wanted


def test_control_characters_in_names_are_escaped(folder):
    for args in ((), ("--tensors",)):
        shown = run(folder, "info", *args, "escape.pt").stdout
        assert "\x1b" not in shown
        assert r"a\x1b[31m\nb" in shown


def test_a_stream_without_unicode_gets_ascii(folder):
    done = run(folder, "info", "small.pt", PYTHONIOENCODING="ascii")
    assert done.returncode == 0
    assert done.stdout.isascii()
    assert "`- norm.weight" in done.stdout


def test_a_closed_pipe_exits_with_141_without_a_message(folder):
    command = [sys.executable, "-m", "rustload", "info", "--tensors", "many.pt"]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.readline()
        process.stdout.close()
        errors = process.stderr.read()
    assert (process.returncode, errors) == (141, b"")


@pytest.mark.parametrize(
    "error", [BrokenPipeError(32, "broken pipe"), OSError(28, "No space left on device")]
)
@pytest.mark.parametrize("args", [("view", "--force"), ("show", "a.bias", "zzz")])
def test_output_that_cannot_be_written_is_no_error_of_a_file(folder, monkeypatch, capsys, args, error):
    from rustload import _cli

    def fail(_self):
        raise error

    monkeypatch.chdir(folder)
    torch.save({"a.bias": torch.zeros(2)}, "ok.pt")
    monkeypatch.setattr("rustload._common.terminal.Page.flush", fail)
    monkeypatch.setattr(_cli.command, "_redirect_to_devnull", lambda _: None)
    messages = []
    monkeypatch.setattr(_cli.command, "print_messages", messages.extend)
    code = _cli.main([args[0], "ok.pt", *args[1:]])
    full = ["rustload: error: the output could not be written: no space left on device"]
    assert (code, messages) == ((141, []) if error.errno == 32 else (3, full))
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "command",
    [
        ["scan", "m.pt", "--sarif-file", "link"],
        ["scan", "note.txt", "--sarif-file", "note.txt"],
        ["manifest", "m.pt", "-o", "link", "--overwrite"],
        ["manifest", ".", "-o", "m.pt", "--overwrite"],
        ["convert", "m.pt", "out.safetensors", "--objects", "link", "--overwrite"],
    ],
)
def test_no_output_replaces_a_file_that_was_read(tmp_path, monkeypatch, capsys, command):
    monkeypatch.chdir(tmp_path)
    torch.save({"w": torch.ones(2)}, "m.pt")
    Path("link").symlink_to("m.pt")
    Path("note.txt").write_text("no pickle")
    before = Path("m.pt").read_bytes()
    assert main(command) == 3
    assert "is a file of the checkpoint" in capsys.readouterr().err
    assert (Path("m.pt").read_bytes(), Path("note.txt").read_text()) == (before, "no pickle")
    assert not Path("out.safetensors").exists()


def test_objects_of_tensors_do_not_replace_their_file(tmp_path):
    path = tmp_path / "m.pt"
    torch.save({"w": torch.ones(2)}, path)
    with pytest.raises(ValueError, match="is a file of the checkpoint"):
        rustload.save(dict(rustload.open(path)), tmp_path / "out.safetensors", objects=path, overwrite=True)
    assert [file.name for file in tmp_path.iterdir()] == ["m.pt"]


def test_ctrl_c_exits_with_130_without_a_message(monkeypatch, capsys):
    from rustload import _cli

    def stop(*_args, **_options):
        raise KeyboardInterrupt

    monkeypatch.setattr("rustload.open", stop)
    assert _cli.main(["info", "x"]) == 130
    assert capsys.readouterr() == ("", "")


def test_neither_torch_nor_numpy_is_imported_and_no_tensor_is_read(folder, tmp_path):
    # A member's local header is damaged: only reading the tensor would fail.
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
    done = child(code, spoilt, check=False)
    assert (done.returncode, done.stderr) == (0, "\n")


def test_columns_line_up_for_any_names(folder):
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


def test_only_whole_numbers_fold():
    for stem in ("conv{}", "w_{}", "{}x", "-{}", "1.5e{}x"):
        names = [(f"{stem.format(number)}.w", 3) for number in range(1, 5)]
        assert [row[0].strip() for row in rows(names) if row[1] == 1] != []
        assert all(times == 1 for _, times, _ in rows(names)), stem
    assert rows([(f"h.{number}.w", 3) for number in range(4)]) == [("h.{0..3}.w", 4, 4)]
    assert rows([(f"h.{number:02}.w", 3) for number in range(12)]) == [
        ("h", 1, 12),
        ("  {00..09}.w", 10, 10),
        ("  {10, 11}.w", 2, 2),
    ]
    huge = [(f"h.{10**20 + number}", 3) for number in range(3)]
    assert all(times == 1 for _, times, _ in rows(huge))


def test_a_name_may_be_a_tensor_and_a_prefix():
    assert rows([("a", 1), ("a.b", 2)]) == [("a", 1, 2), ("  b", 1, 1)]


def test_a_name_of_very_many_parts_takes_few_rows():
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
    names = [".".join(parts[:count]) for count in range(1, len(parts) + 1)]
    assert (names[-1], [label for label, _, _ in rows([(one, 1) for one in names])]) == (
        name,
        ["  " * level + part for level, part in enumerate(parts)],
    )


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
def test_numbers_are_abbreviated_as_ranges(numbers, text):
    assert _rustload.spell_numbers(numbers) == text


def test_sums_count_the_same_tensor_once_where_it_folds(folder):
    weight = torch.zeros(4, 3)
    torch.save({"t.0": weight, "t.1": weight}, folder / "same.pt")
    torch.save({"first": weight, "t.0": weight, "t.1": weight}, folder / "above.pt")
    state = {f"l.{n}.{part}": weight if part == "a" else torch.zeros(3) for n in range(2) for part in "ab"}
    torch.save(state, folder / "groups.pt")
    assert re.search(r"t\.\{0, 1\}  ×2 .* 48 B  tied  48 B each\n", run(folder, "info", "same.pt").stdout)
    assert re.search(r"t\.\{0, 1\}  ×2 .* 48 B  tied  48 B each\n", run(folder, "info", "above.pt").stdout)
    # 48 + 2 * 12 in all, 48 + 12 in each.
    assert re.search(r"l\.\{0, 1\} .* 72 B  60 B each\n", run(folder, "info", "groups.pt").stdout)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")  # noqa: PTH110
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(
    "args", [("info",), ("info", "--json"), ("scan",), ("doctor", "--no-measure"), ("info", "-h"), ("-V",)]
)
def test_a_failed_write_of_the_output_is_one_line_and_exit_code_3(folder, args, unbuffered):
    torch.save({"w": torch.zeros(2)}, folder / "ok.pt")
    with open("/dev/full", "w") as full:  # noqa: PTH123
        done = subprocess.run(
            [sys.executable, "-m", "rustload", *args, "ok.pt"],
            cwd=folder,
            env=os.environ | {"PYTHONUNBUFFERED": unbuffered},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    wanted = "rustload: error: the output could not be written: no space left on device\n"
    assert (done.returncode, done.stderr) == (3, wanted)


def test_a_closed_stdout_is_one_line_and_exit_code_3(monkeypatch, capsys):
    from rustload import _cli

    monkeypatch.setattr(sys, "stdout", None)
    assert _cli.main(["info", "x"]) == 3
    assert capsys.readouterr().err == "rustload: error: the output could not be written: stdout is closed\n"


def test_columns_line_up_where_names_are_escaped_for_the_encoding(folder):
    torch.save(
        {"é.weight": torch.zeros(2), "plain": torch.zeros(3), "ü" * 9: torch.zeros(4)}, folder / "umlaut.pt"
    )
    for args in ((), ("--tensors",)):
        shown = run(folder, "info", *args, "umlaut.pt", PYTHONIOENCODING="ascii").stdout
        lines = shown.split("\ntensors\n")[1].split("\n\n")[0].splitlines()
        assert len(lines) == 3
        assert len({re.search(r"\d B", line).end() for line in lines}) == 1


def test_an_empty_name_is_quoted_in_the_tied_names(folder):
    weight = torch.zeros(2)
    torch.save({"": weight, "a": weight}, folder / "empty-name.pt")
    assert '\n  "" = a\n' in run(folder, "info", "empty-name.pt").stdout


@pytest.mark.parametrize("width", [30, 36, 40])
@pytest.mark.parametrize("args", [("info",), ("info", "--tensors"), ("doctor", "--no-measure")])
def test_rows_fit_narrow_terminals(folder, monkeypatch, capsys, width, args):
    from rustload import _cli
    from rustload._common import terminal

    monkeypatch.setattr(terminal.Page, "width", width)
    monkeypatch.chdir(folder)
    assert _cli.main([*args, "small.pt"]) == 0
    shown = capsys.readouterr().out
    assert [line for line in shown.splitlines() if len(line) > width] == []
    # Nothing is lost.
    for word in (
        ("bfloat16", "attn.weight", "160 B", "tied", "[10, 4]") if args[0] == "info" else ("threads",)
    ):
        assert word in shown


def test_doctor_reports_a_missing_path_as_info_does_without_a_heading(folder):
    info, doctor = (run(folder, command, "none.pt") for command in ("info", "doctor"))
    assert (doctor.returncode, doctor.stderr) == (3, info.stderr)
    assert "none.pt" not in doctor.stdout
    document = json.loads(run(folder, "doctor", "--json", "none.pt").stdout)
    assert (
        document["checkpoints"] == json.loads(run(folder, "info", "--json", "none.pt").stdout)["checkpoints"]
    )


def test_a_path_without_a_command_gets_a_hint(folder):
    done = run(folder, "small.pt")
    assert done.returncode == 2
    assert "\n  did you mean: rustload info small.pt\n" in done.stderr
    assert "did you mean" not in run(folder, "frobnicate").stderr


def test_a_file_named_as_an_option_gets_a_hint(folder):
    (folder / "small.pt").rename(folder / "-s.pt")
    done = run(folder, "info", "-s.pt")
    assert done.returncode == 2
    assert "\n  did you mean the file: ./-s.pt\n" in done.stderr
    assert run(folder, "info", "./-s.pt").returncode == 0


def test_all_commands_document_color_alike(folder):
    texts = {
        run(folder, name, "--help").stdout.split("--color")[-1].split("\n  --")[0].split("exit")[0].strip()
        for name in ("info", "scan", "doctor")
    }
    assert len(texts) == 1


@pytest.mark.parametrize(
    ("one", "other", "folded"),
    [
        ("7", "8", "{7, 8}.w"),
        ("0", "1", "{0, 1}.w"),
        ("007", "008", "{007, 008}.w"),
        ("layer12", "layer13", None),
        ("", "1", None),
        ("1_0", "1_1", None),
        ("\u0663", "\u0664", None),
        ("9" * 19, "9" * 18 + "8", None),
    ],
)
def test_a_label_is_a_whole_number_or_none(one, other, folded):
    names = [f"{one}.w", f"{other}.w"]
    assert [label for label, _, _ in rows([(name, 1) for name in names])] == ([folded] if folded else names)
