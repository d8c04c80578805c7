"""A scan as a gate: allowances, policy files, `fail_on`, baselines, exit codes, and grouped findings."""

import io
import json
import pickle
import zipfile
from pathlib import Path

import pytest
import torch

import rustload
from rustload._cli import main

UNKNOWN = b"\x80\x02cmylib.config\nConfig\n)\x81}b."
OTHER = b"\x80\x02celsewhere\nNet\n)\x81."
EVIL = b"\x80\x02cposix\nsystem\nX\x01\0\0\0x\x85R."


def allowing(*names: str) -> rustload.Policy:
    return rustload.Policy(allow=names)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "config.pkl"
    path.write_bytes(UNKNOWN)
    return path


class TestAllowances:
    @pytest.mark.parametrize(
        "pattern", ["mylib.config.Config", "mylib.*", "mylib.config.Conf*", "my*.Config"]
    )
    def test_an_allowed_name_is_inert_and_the_report_says_why(self, pattern):
        report = rustload.scan(UNKNOWN, policy=allowing(pattern))
        assert (report.verdict, report.passes) == ("inert", True)
        (found,) = report.findings
        assert (found.allowed, found.verdict, found.severity) == (pattern, "inert", "note")
        (named,) = report.globals
        assert (named.name, named.allowed, named.verdict) == ("Config", pattern, "inert")
        assert f"(allowed by {pattern})" in " ".join(str(report).split())

    def test_other_names_stay_unknown(self):
        report = rustload.scan(OTHER, policy=allowing("mylib.*"))
        assert (report.verdict, report.passes, report.findings[0].allowed) == ("unknown", False, None)

    @pytest.mark.parametrize(
        "pattern", ["os.system", "builtins.getattr", "torch.load", "torch.*", "pickle.loads", "mylib.eval"]
    )
    def test_what_executes_cannot_be_allowed(self, pattern, file, capsys):
        with pytest.raises(ValueError, match="cannot be allowed"):
            allowing(pattern)
        assert main(["scan", "--allow", pattern, str(file)]) == 2
        assert f"{pattern} cannot be allowed" in capsys.readouterr().err

    @pytest.mark.parametrize("pattern", ["Config", "*", "*.Config", "", "mylib.", "a b.C"])
    def test_an_allowance_names_a_module(self, pattern):
        with pytest.raises(ValueError, match="an allowance is a name"):
            allowing(pattern)

    def test_a_pattern_never_covers_what_executes(self):
        data = b"\x80\x02cmylib.tools\nsystem\nX\x01\0\0\0x\x85R."
        assert rustload.scan(data, policy=allowing("mylib.*")).verdict == "would execute"

    def test_a_pattern_covers_no_attribute_path(self):
        data = b"\x80\x04\x8c\x05mylib\x8c\x08th.other\x93)R."
        assert rustload.scan(data, policy=allowing("mylib.*")).verdict == "unknown"
        assert rustload.scan(data, policy=allowing("mylib.th.other")).verdict == "inert"

    def test_arguments_of_an_allowed_call_are_judged_by_themselves(self):
        data = b"\x80\x02cmylib\nrun\ncposix\nsystem\n\x85R."
        assert rustload.scan(data, policy=allowing("mylib.run")).verdict == "would execute"

    def test_the_result_of_an_allowed_call_cannot_be_called(self):
        assert rustload.scan(b"cmylib\nmake\n)R)R.", policy=allowing("mylib.make")).verdict == "would execute"

    def test_a_state_that_hides_a_method_is_not_covered(self):
        data = b"\x80\x02cmylib\nConfig\n)\x81}X\x0c\0\0\0__setstate__ccollections\nOrderedDict\nsbNb."
        report = rustload.scan(data, policy=allowing("mylib.Config"))
        assert report.verdict == "unknown"
        assert [found.code for found in report.findings if found.verdict == "unknown"] == ["StateAttribute"]

    def test_a_member_of_an_enumeration_is_covered_by_its_class(self):
        data = b"c__builtin__\ngetattr\n(cmylib\nColor\nS'RED'\ntR."
        assert rustload.scan(data).verdict == "unknown"
        assert rustload.scan(data, policy=allowing("mylib.Color")).verdict == "inert"

    def test_a_method_of_an_object_is_covered_by_its_class(self):
        data = b"\x80\x02c__builtin__\ngetattr\n(cmylib\nNet\n)\x81S'_step'\ntR."
        assert rustload.scan(data).verdict == "unknown"
        assert rustload.scan(data, policy=allowing("mylib.Net")).verdict == "inert"

    def test_torchscript_is_covered_by_its_module(self, tmp_path):
        path = tmp_path / "script.pt"
        with pytest.warns(DeprecationWarning, match="torch.jit"):
            torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), path)
        assert rustload.scan(path).verdict == "unknown"
        assert rustload.scan(path, policy=allowing("__torch__.*")).verdict == "inert"

    def test_a_string_is_not_a_tuple_of_names(self):
        with pytest.raises(TypeError, match="tuple of names"):
            rustload.Policy(allow="mylib.Config")  # type: ignore[arg-type]

    @pytest.mark.parametrize("field", ["allow", "exclude"])
    @pytest.mark.parametrize("given", [5, [5], [b"a.b"]])
    def test_names_are_texts(self, field, given):
        with pytest.raises(TypeError, match=f"{field} is a tuple of names, not "):
            rustload.Policy(**{field: given})

    def test_a_path_is_not_a_policy(self, file):
        with pytest.raises(
            TypeError, match=r"policy= is a rustload\.Policy or None, not 'p\.toml'"
        ) as caught:
            rustload.scan(file, policy="p.toml")  # type: ignore[arg-type]
        assert "Policy.from_file" in caught.value.__notes__[0]

    def test_unused_allowances_are_named(self, file, command):
        code, _, err = command("scan", "--allow", "mylib.*", "--allow", "gone.Class", file)
        assert (code, err) == (0, "rustload: allowed, and not in any file: gone.Class\n")

    def test_the_text_says_how_to_allow(self, file):
        last = str(rustload.scan(file)).splitlines()[-1]
        assert last == "  if you know what these do: --allow mylib.config.Config"
        last = str(rustload.scan(EVIL)).splitlines()[-1]
        assert (
            last == "  next step  delete it, or read its tensors with rustload.open, which runs nothing of it"
        )

    def test_a_module_of_torch_with_a_recurrent_layer_can_be_allowed(self, tmp_path):
        path = tmp_path / "model.pt"
        torch.save(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.LSTM(2, 2)), path)
        report = rustload.scan(path)
        assert report.verdict == "unknown"
        lines = str(report).splitlines()
        assert (
            "'_modules', whose value is of a form that is not known; an allowance of the class covers it"
            in lines[2]
        )
        _, _, options = lines[-1].partition(": ")
        names = tuple(options.replace("--allow ", "").split())
        assert names == ("torch.nn.modules.rnn.LSTM", "torch.nn.modules.container.Sequential")
        for given in (names, ("torch.nn.*",)):
            report = rustload.scan(path, policy=allowing(*given))
            assert (report.verdict, {found.allowed for found in report.findings}) == ("inert", set(given))
        assert rustload.scan(path, policy=allowing(names[0])).verdict == "unknown"

    def test_a_state_of_a_module_is_not_covered_where_it_hides_a_method(self):
        state = b"}X\x06\0\0\0extendccollections\nCounter\ns"
        data = b"\x80\x02ctorch.nn.modules.linear\nIdentity\n)\x81" + state + b"b."
        assert rustload.scan(data, policy=allowing("torch.nn.*")).verdict == "unknown"

    def test_a_state_of_a_dtype_is_not_covered(self):
        """NumPy would take bytes for pointers."""
        dtype = b"cnumpy\ndtype\n(X\x02\0\0\0f4\x89\x88tR(K\x03X\x01\0\0\0<NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x3ftb."
        report = rustload.scan(b"\x80\x02" + dtype, policy=allowing("numpy.dtype"))
        assert report.verdict == "unknown"
        assert report.findings[0].message == "gets a state of a form that is not known"


class TestPolicyFiles:
    def test_a_file_states_allowances_and_what_fails(self, file, tmp_path, command):
        policy = tmp_path / "policy.toml"
        policy.write_text('allow = ["mylib.config.*"]\nfail_on = "would-execute"\n')
        read = rustload.Policy.from_file(policy)
        assert read == rustload.Policy(allow=("mylib.config.*",), fail_on="would-execute")
        (tmp_path / "other.pkl").write_bytes(OTHER)
        assert command("scan", "--policy", policy, file, tmp_path / "other.pkl")[0] == 0
        assert command("scan", "--policy", policy, "--fail-on", "unknown", tmp_path / "other.pkl")[0] == 1
        assert command("scan", "--policy", policy, "--fail-on", "unknown", "--allow", "elsewhere.Net", file,
                   tmp_path / "other.pkl")[0] == 0  # fmt: skip

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("allows = []", "no key 'allows'"),
            ("allow = 'mylib.Config'", "a list of strings"),
            ("allow = [1]", "a list of strings"),
            ("fail_on = 'inert'", "fail_on is 'unknown' or 'would-execute'"),
            ("allow = ['os.system']", "cannot be allowed"),
            ("allow = [", "not a TOML file"),
            ("\xff", "not a TOML file"),
        ],
    )
    def test_what_is_wrong_in_a_file_is_wrong_usage(self, text, message, file, tmp_path, capsys):
        (tmp_path / "policy.toml").write_bytes(text.encode("latin-1"))
        assert main(["scan", "--policy", str(tmp_path / "policy.toml"), str(file)]) == 2
        shown = capsys.readouterr().err
        assert message in shown
        assert str(tmp_path / "policy.toml") in shown

    def test_an_absent_file_is_wrong_usage(self, file, tmp_path):
        assert main(["scan", "--policy", str(tmp_path / "absent.toml"), str(file)]) == 2


class TestGate:
    def test_what_would_execute_always_fails(self, tmp_path, command):
        (tmp_path / "evil.pkl").write_bytes(EVIL)
        assert command("scan", "--fail-on", "would-execute", tmp_path / "evil.pkl")[0] == 1

    def test_a_skipped_file_is_not_said_to_pass(self, tmp_path, command):
        (tmp_path / "empty.bin").touch()
        code, out, _ = command("scan", tmp_path / "empty.bin")
        assert code == 3
        assert out.startswith(f"{tmp_path / 'empty.bin'}: skipped\n")

    def test_unknown_files_pass_where_only_execution_fails(self, file, command):
        code, out, _ = command("scan", "--fail-on", "would-execute", file)
        assert code == 0
        assert out.startswith(f"{file}: unknown, passes the policy\n")
        report = rustload.scan(file, policy=rustload.Policy(fail_on="would-execute"))
        assert (report.verdict, report.passes) == ("unknown", True)

    def test_a_file_that_cannot_be_read_does_not_pass(self, tmp_path, command):
        assert command("scan", "--fail-on", "would-execute", tmp_path / "absent.pkl")[0] == 3

    def test_what_a_baseline_has_does_not_fail(self, file, tmp_path, command):
        baseline = tmp_path / "baseline.json"
        baseline.write_text(command("scan", "--json", file)[1])
        code, out, _ = command("scan", "--baseline", baseline, file)
        assert (code, out.splitlines()[1].split()[0]) == (0, "known")
        # Positions and arguments may change.
        file.write_bytes(b"\x80\x02K\x000" + UNKNOWN[2:])
        assert command("scan", "--baseline", baseline, file)[0] == 0
        report = rustload.scan(file, policy=rustload.Policy(baseline=baseline))
        assert (report.verdict, report.passes, report.findings[0].known) == ("unknown", True, True)

    @pytest.mark.parametrize("data", [OTHER, EVIL, UNKNOWN[:-1], UNKNOWN + UNKNOWN])
    def test_what_is_new_fails(self, data, file, tmp_path, command):
        baseline = tmp_path / "baseline.json"
        baseline.write_text(command("scan", "--json", file)[1])
        file.write_bytes(data)
        assert command("scan", "--baseline", baseline, file)[0] == 1
        file.write_bytes(UNKNOWN)
        (tmp_path / "second.pkl").write_bytes(UNKNOWN)
        assert command("scan", "--baseline", baseline, file, tmp_path / "second.pkl")[0] == 1

    def test_a_worse_verdict_is_new(self, file, tmp_path, command):
        file.write_bytes(b"\x80\x02cposix\nsystem\n.")
        baseline = tmp_path / "baseline.json"
        baseline.write_text(command("scan", "--json", file)[1])
        assert command("scan", "--baseline", baseline, file)[0] == 0
        file.write_bytes(b"\x80\x02cmylib\nrun\ncposix\nsystem\n\x85R.")
        code, out, _ = command("scan", "--baseline", baseline, "--allow", "mylib.run", "--json", file)
        assert code == 1
        (found,) = [one for one in json.loads(out)["files"][0]["findings"] if one["code"] == "Import"]
        assert (found["verdict"], found["known"]) == ("would execute", False)

    def test_parts_that_were_not_scanned_are_compared(self, file, tmp_path, command):
        file.write_bytes(b"7z\xbc\xaf\x27\x1c" + bytes(40))
        baseline = tmp_path / "baseline.json"
        baseline.write_text(command("scan", "--json", file)[1])
        assert command("scan", file)[0] == 1
        assert command("scan", "--baseline", baseline, file)[0] == 0

    @pytest.mark.parametrize("text", ["", "[]", "{}", '{"files": [{}]}', "[" * 100_000, '{"files": 1}'])
    def test_a_baseline_that_is_no_report_is_wrong_usage(self, text, file, tmp_path, command):
        (tmp_path / "baseline.json").write_text(text)
        code, out, err = command("scan", "--baseline", tmp_path / "baseline.json", file)
        assert (code, out) == (2, "")
        assert "not a report of rustload scan --json" in err
        assert "KeyError" not in err

    def test_json_has_the_policy_and_what_passes(self, file, command):
        document = json.loads(command("scan", "--allow", "mylib.*", "--json", file)[1])
        assert document["policy"] == {
            "allow": ["mylib.*"],
            "fail_on": "unknown",
            "baseline": None,
            "exclude": [],
            "manifest": None,
        }
        assert (document["passes"], document["files"][0]["passes"]) == (True, True)
        assert document["files"][0]["findings"][0]["allowed"] == "mylib.*"
        assert json.loads(rustload.scan(file).to_json())["passes"] is False


def test_equal_findings_of_different_members_are_one():
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for number in range(5):
            archive.writestr(f"a/{number}.pkl", UNKNOWN)
        archive.writestr("a/other.pkl", OTHER)
    findings = [
        found for found in rustload.scan(data.getvalue()).findings if found.code == "DisallowedGlobal"
    ]
    assert [(found.name, found.times, found.member) for found in findings] == [
        ("Config", 5, "a/0.pkl"),
        ("Net", 1, "a/other.pkl"),
    ]


def test_a_policy_cannot_be_changed():
    policy = rustload.Policy()
    with pytest.raises(AttributeError):
        policy.fail_on = "would-execute"  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(policy)) == policy


def test_excluded_names_are_left_out_where_they_are_found_in_a_directory(tmp_path):
    for name in ("a.pkl", ".git/b.pkl", "deep/.git/c.pkl", "deep/.github/d.pkl", "deep/x.git"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(EVIL)
    policy = rustload.Policy(exclude=(".git", "a.pkl"))
    report = rustload.scan(tmp_path, policy=policy)
    assert [Path(file.path).name for file in report.files] == ["d.pkl", "x.git"]
    assert report.excluded == 3, "a.pkl and two folders"
    assert str(report).splitlines()[-1] == "left out: 3 files and folders of these names: .git, a.pkl"
    assert "left out by name: 3 files and folders" in report._repr_html_()
    assert rustload.scan([tmp_path, tmp_path / "deep"], policy=policy).excluded == 4
    (log,) = json.loads(report.to_sarif())["runs"]
    notices = log["invocations"][0]["toolExecutionNotifications"]
    assert [one["message"]["text"] for one in notices if one["descriptor"]["id"] == "Excluded"] == [
        "files and folders that are left out by their names: 3"
    ]
    assert json.loads(report.to_json())["policy"]["exclude"] == [".git", "a.pkl"]
    # What is named is scanned.
    assert len(rustload.scan(tmp_path / ".git", policy=policy).files) == 1
    assert len(rustload.scan(tmp_path / "a.pkl", policy=policy).files) == 1
    with pytest.raises(TypeError, match=r"exclude is a tuple of names, not a string: exclude=\('.git',\)"):
        rustload.Policy(exclude=".git")


@pytest.mark.parametrize(
    ("given", "left"),
    [
        (["sub"], ["a.bin"]),
        (["ROOT/sub"], ["a.bin"]),
        (["sub/"], ["a.bin"]),
        (["./sub/deep"], ["a.bin", "sub/b.bin"]),
        (["sub/b.bin", "ROOT/a.bin"], ["sub/deep/c.bin"]),
        (["s*"], ["a.bin"]),
        (["*.bin"], []),
        (["sub/*.bin"], ["a.bin"]),
    ],
)
def test_paths_and_patterns_are_left_out(given, left, tmp_path, capsys):
    for name in ("a.bin", "sub/b.bin", "sub/deep/c.bin"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(UNKNOWN)
    exclude = [text.replace("ROOT", str(tmp_path)) for text in given]
    policy = rustload.Policy(exclude=tuple(exclude))
    report = rustload.scan(tmp_path, policy=policy)
    assert [Path(file.path).relative_to(tmp_path).as_posix() for file in report.files] == left
    main(["scan", str(tmp_path), *(part for text in exclude for part in ("--exclude", text))])
    assert "not found" not in capsys.readouterr().err


def test_what_is_excluded_and_not_found_is_named(file, tmp_path, command):
    options = [
        "--exclude",
        "art/sub",
        "--exclude",
        file.name,
        "--exclude",
        "art",
        "--fail-on",
        "would-execute",
    ]
    (tmp_path / "other.pkl").write_bytes(UNKNOWN)
    code, _, err = command("scan", *options, tmp_path)
    assert (code, err) == (0, "rustload: excluded, and not found: art/sub, art\n")


def test_a_baseline_without_these_files_is_named_and_what_fails_comes_first(tmp_path, command, monkeypatch):
    folder = tmp_path / "art"
    folder.mkdir()
    for name in ("a.pkl", "c.pkl", "d.pkl"):
        (folder / name).write_bytes(UNKNOWN)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "known.json").write_text(command("scan", "--json", "art")[1])
    (folder / "c.pkl").write_bytes(EVIL)
    code, out, err = command("scan", "--baseline", "known.json", "art")
    assert (code, out.index("c.pkl"), "the baseline" in err) == (1, out.index("art") + 4, False)
    (_, found) = (
        rustload.scan("art", policy=rustload.Policy(baseline="known.json"))._repr_html_().split("c.pkl")
    )
    assert "a.pkl" in found
    assert "passes the policy" in found or "known" in found or "unknown" in found
    out = command("scan", "--baseline", "known.json", "-q", "art")[1]
    assert out.startswith("art/c.pkl: would execute\n")
    assert ".pkl" not in out[10:]
    monkeypatch.chdir(folder)
    code, _, err = command("scan", "--baseline", "../known.json", ".")
    assert code == 1
    assert "the baseline has 3 findings, none in these files: scan the same paths from the same folder" in err


def test_excluded_names_are_left_out_of_folders_of_stores():
    fsspec = pytest.importorskip("fsspec")
    store = fsspec.filesystem("memory")
    for name in ("a.pkl", ".git/b.pkl", "deep/.git/c.pkl", "deep/d.pkl"):
        store.pipe(f"/excluded/{name}", EVIL)
    policy = rustload.Policy(exclude=(".git", "a.pkl"))
    report = rustload.scan("memory://excluded", policy=policy)
    assert [file.path for file in report.files] == ["memory://excluded/deep/d.pkl"]
    assert report.excluded == 3
    policy = rustload.Policy(exclude=("deep/.git", "memory://excluded/.git", "deep/d*"))
    report = rustload.scan("memory://excluded", policy=policy)
    assert [file.path for file in report.files] == ["memory://excluded/a.pkl"]


def test_a_policy_file_and_the_command_line_exclude_names(tmp_path, capsys):
    for name in (".git/b.pkl", ".cache/c.pkl"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes(EVIL)
    torch.save({"w": torch.ones(2)}, tmp_path / "good.pt")
    (tmp_path / "policy.toml").write_text('exclude = [".git"]\n')
    command = ["scan", str(tmp_path), "--policy", str(tmp_path / "policy.toml")]
    assert main(command) == 1
    assert main([*command, "--exclude", ".cache"]) == 0
    out = capsys.readouterr().out
    assert out.count("b.pkl") == 0
    assert "left out: 1 file or folder of these names: .git\n" in out
    assert out.endswith("left out: 2 files and folders of these names: .git, .cache\n")
    assert main([*command, "--exclude", "good.pt", "--exclude", ".cache", "--exclude", "policy.toml"]) == 3
    assert (
        capsys.readouterr().err
        == f"rustload: nothing to scan: {tmp_path}: all that it has is left out by name\n"
    )
    (tmp_path / "policy.toml").write_text('exclude = ".git"\n')
    assert main(["info", str(tmp_path / "good.pt")]) == 0
    assert main(command) == 2
    assert "exclude is a list of strings" in capsys.readouterr().err


@pytest.mark.parametrize("content", [None, b"\x7fELF" + bytes(60)], ids=["no files", "no checkpoint"])
def test_where_there_is_nothing_to_scan_the_command_passes_if_asked_to(tmp_path, content):
    if content is not None:
        (tmp_path / "x").write_bytes(content)
    assert main(["scan", str(tmp_path)]) == 3
    assert main(["scan", str(tmp_path), "--pass-if-empty"]) == 0
    assert main(["scan", str(tmp_path / "absent"), "--pass-if-empty"]) == 3
    (tmp_path / "evil.pkl").write_bytes(EVIL)
    assert main(["scan", str(tmp_path), "--pass-if-empty"]) == 1


def test_a_git_lfs_pointer_was_not_scanned(tmp_path):
    (tmp_path / "model.bin").write_bytes(
        b"version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 12345\n"
    )
    for source in (tmp_path, tmp_path / "model.bin"):
        report = rustload.scan(source)
        assert (report.verdict, report.complete, report.passes) == ("unknown", False, False)
        (gap,) = report.coverage[0].unscanned
        assert "Git LFS pointer" in gap.what
