"""The hooks of pre-commit and the action for GitHub: valid, pinned, and run in a repository with good and bad files."""

import gzip
import io
import json
import os
import re
import shlex
import subprocess
import sys
import tarfile
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from schemas import ROOT, check_sarif

yaml = pytest.importorskip("yaml")

EVIL = b"cposix\nsystem\n(S'echo hello'\ntR."
ODD = b"\x80\x02csome.lib\nNet\n)\x81."
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 12345\n"
HOOKS = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
ACTION = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
STEPS = ACTION["runs"]["steps"]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """An environment without the user's settings, with the commands `rustload`, and `pipx` which runs that."""
    programs = tmp_path / "programs"
    programs.mkdir()
    rustload = f'exec {shlex.quote(sys.executable)} -m rustload "$@"\n'
    # pipx install --force SPEC
    pipx = f"""[ "$1 $2 $#" = "install --force 3" ] || exit 99
pwd >> {tmp_path}/installed-in
echo "$3" >> {tmp_path}/specs
mkdir -p "$PIPX_BIN_DIR"
cp {programs}/rustload "$PIPX_BIN_DIR"
"""
    for name, script in (("rustload", rustload), ("pipx", pipx)):
        (programs / name).write_text(f"#!/bin/sh\n{script}")
        (programs / name).chmod(0o755)
    return {
        "HOME": str(tmp_path),
        "PRE_COMMIT_HOME": str(tmp_path / "pre-commit"),
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_CONFIG_SYSTEM": "/dev/null",
        "PATH": f"{programs}:{os.environ['PATH']}",
        "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
        "LC_ALL": "C.UTF-8",
    }


@pytest.fixture
def repository(tmp_path: Path, environment: dict[str, str]) -> Path:
    """A git repository with a good checkpoint, and a file that is none."""
    made = tmp_path / "repository"
    (made / "models").mkdir(parents=True)
    torch.save({"w": torch.ones(2)}, made / "models" / "good.pt")
    (made / "README.md").write_text("# Model\n")
    commit(made, environment)
    return made


def commit(folder: Path, environment: dict[str, str]) -> None:
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.com", "-C", str(folder)]
    for arguments in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "files"]):
        subprocess.run([*git, *arguments], env=environment, check=True)


def tool(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        list(map(str, arguments)), capture_output=True, text=True, check=False, timeout=100, **options
    )


def test_the_action_is_valid():
    pytest.importorskip("check_jsonschema")
    check = ("-m", "check_jsonschema", "--builtin-schema", "vendor.github-actions")
    done = tool(sys.executable, *check, ROOT / "action.yml")
    assert done.returncode == 0, done.stdout


def test_the_hooks_are_valid():
    pytest.importorskip("pre_commit")
    done = tool(sys.executable, "-m", "pre_commit", "validate-manifest", ROOT / ".pre-commit-hooks.yaml")
    assert done.returncode == 0, done.stdout


def test_the_action_is_pinned_and_takes_no_input_into_its_scripts():
    text = (ROOT / "action.yml").read_text(encoding="utf-8")
    uses = re.findall(r"uses: (.*)", text)
    assert uses
    for one in uses:
        assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", one), one
    scripts = [step["run"] for step in STEPS if "run" in step]
    assert len(scripts) == 2
    assert not [script for script in scripts if "${{" in script]


def test_both_hooks_take_all_files():
    python, system = HOOKS
    assert {key for key in python if python[key] != system[key]} == {"id", "language", "description"}
    # Neither names nor types by names: readers go by the content.
    assert not python.keys() & {"files", "exclude", "types_or", "exclude_types"}
    assert python["types"] == ["file"]


@pytest.mark.parametrize(
    ("content", "code"),
    [(None, 0), (EVIL, 1), (ODD, 1), (b"\x7fELF" + bytes(60), 0), (LFS, 1), (b"", 0)],
    ids=["good", "evil", "odd", "no-checkpoint", "lfs-pointer", "empty"],
)
def test_the_entry_of_the_hooks_refuses_bad_files(repository, environment, content, code):
    if content is not None:
        (repository / "models" / "new.bin").write_bytes(content)
    for hook in HOOKS:
        files = [path for path in repository.rglob("*") if path.is_file() and ".git" not in path.parts]
        done = tool(*shlex.split(hook["entry"]), *hook["args"], *files, cwd=repository, env=environment)
        assert done.returncode == code, done.stdout + done.stderr


def test_a_hook_takes_no_name_of_a_file_for_an_option(repository, environment):
    (repository / "evil.bin").write_bytes(EVIL)
    known = tool("rustload", "scan", "evil.bin", "--json", cwd=repository, env=environment).stdout
    (repository / "known.bin").write_text(known)
    (repository / "--baseline=known.bin").write_bytes(ODD)
    for hook in HOOKS:
        command = shlex.split(hook["entry"])
        for args in (hook["args"], ["--fail-on", "would-execute", "--"]):
            done = tool(*command, *args, "evil.bin", "--baseline=known.bin", cwd=repository, env=environment)
            assert done.returncode == 1, done.stdout + done.stderr
            assert "evil.bin: would execute" in done.stdout


def test_pre_commit_runs_the_hook(repository, environment, tmp_path):
    pytest.importorskip("pre_commit")
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    (hooks / ".pre-commit-hooks.yaml").write_bytes((ROOT / ".pre-commit-hooks.yaml").read_bytes())
    commit(hooks, environment)
    run = (sys.executable, "-m", "pre_commit", "try-repo", hooks, "rustload-scan-system", "--all-files")
    done = tool(*run, cwd=repository, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "scan checkpoints" in done.stdout
    assert "Passed" in done.stdout
    names = (
        "evil.bin",
        "M.PT",
        "m.pdparams",
        "m.th",
        "m",
        "notes.txt",
        "code.py",
        "m.json",
        "m.pkl.gz",
        "m.zip",
        "m.tar",
    )
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as made:
        made.writestr("m/data.pkl", EVIL)
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w") as written:
        member = tarfile.TarInfo("m.pkl")
        member.size = len(EVIL)
        written.addfile(member, io.BytesIO(EVIL))
    contents = {"m.pkl.gz": gzip.compress(EVIL), "m.zip": archive.getvalue(), "m.tar": tar.getvalue()}
    for name in names:
        (repository / "models" / name).write_bytes(contents.get(name, EVIL))
    commit(repository, environment)
    done = tool(*run, cwd=repository, env=environment)
    assert done.returncode == 1
    assert "Failed" in done.stdout
    for name in names:
        assert f"models/{name}: would execute" in done.stdout
    # Only these are listed.
    assert "README.md" not in done.stdout


def test_the_hook_passes_over_source_files_quickly(tmp_path, environment):
    source = (ROOT / "python" / "rustload" / "__init__.py").read_bytes()
    files = [tmp_path / f"{number}.py" for number in range(2000)]
    for path in files:
        path.write_bytes(source)
    (hook, _) = HOOKS
    start = time.perf_counter()
    done = tool(*shlex.split(hook["entry"]), *hook["args"], *files, env=environment)
    assert (done.returncode, done.stdout) == (0, "")
    assert time.perf_counter() - start < 10


class Ran:
    """The outputs of the action's script, and the exit code of its last step."""

    def __init__(self, repository: Path, environment: dict[str, str], **inputs: str) -> None:
        scan, upload, last = STEPS
        assert upload["if"] == "always() && inputs.upload == 'true' && steps.scan.outputs.sarif != ''"
        assert last["if"] == "always()"
        given = {name: one["default"] for name, one in ACTION["inputs"].items()}
        given |= {name.replace("_", "-"): value for name, value in inputs.items()}
        output = repository.parent / "output"
        output.write_text("")
        values = {
            key: re.sub(r"\$\{\{ inputs\.([\w-]+) \}\}", lambda m: given[m[1]], value)
            for key, value in scan["env"].items()
        }
        temporary = repository.parent / "runner-temp"
        temporary.mkdir(exist_ok=True)
        extra = {
            "GITHUB_OUTPUT": str(output),
            "GITHUB_ACTION_PATH": "/action",
            "RUNNER_TEMP": str(temporary),
        }
        done = self.step(scan, repository, environment | extra | values)
        assert done.returncode == 0, done.stdout + done.stderr
        self.text = done.stdout
        pairs = [line.split("=", 1) for line in output.read_text().splitlines()]
        self.outputs = {f"steps.scan.outputs.{name}": value for name, value in pairs}
        self.sarif = self.outputs.get("steps.scan.outputs.sarif", "")
        self.specs = (repository.parent / "specs").read_text().splitlines()
        self.installed_in = (repository.parent / "installed-in").read_text().splitlines()
        (key,) = last["env"]
        code = self.outputs.get(last["env"][key].strip("${} "), "")
        self.code = self.step(last, repository, environment | {key: code}).returncode
        assert self.code == int(self.outputs["steps.scan.outputs.exit-code"])

    @staticmethod
    def step(
        step: dict[str, Any], folder: Path, environment: dict[str, str]
    ) -> subprocess.CompletedProcess[str]:
        """As the runner of GitHub does it for `shell: bash`."""
        assert step["shell"] == "bash"
        command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
        return tool(*command, cwd=folder, env=environment)


def test_the_action_passes_a_repository_with_good_files(repository, environment):
    ran = Ran(repository, environment)
    assert (ran.code, ran.sarif, ran.specs) == (0, "rustload.sarif", ["/action"])
    log = json.loads((repository / ran.sarif).read_text())
    check_sarif(log)
    assert log["runs"][0]["results"] == []
    uris = [one["location"]["uri"] for one in log["runs"][0]["artifacts"]]
    assert uris == ["models/good.pt"], "git's own files are left out"


def test_the_action_fails_for_a_bad_file_and_writes_the_log(repository, environment):
    (repository / "models" / "evil.bin").write_bytes(EVIL)
    ran = Ran(repository, environment)
    assert ran.code == 1
    assert "models/evil.bin: would execute" in ran.text
    log = json.loads((repository / ran.sarif).read_text())
    check_sarif(log)
    (result,) = log["runs"][0]["results"]
    assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "models/evil.bin"
    assert log["runs"][0]["invocations"][0]["exitCode"] == 1


def test_the_inputs_of_the_action(repository, environment):
    odd = repository / "models" / "$(touch pwned) 'x' .bin"
    odd.write_bytes(ODD)
    (repository / "-dash.bin").write_bytes(ODD)
    lax = Ran(repository, environment, fail_on="would-execute", version="1.2.3", sarif="out dir.sarif")
    assert (lax.code, lax.sarif, lax.specs[-1]) == (0, "out dir.sarif", "rustload==1.2.3")
    assert Ran(repository, environment).code == 1
    assert Ran(repository, environment, path="models/good.pt\n").code == 0
    named = Ran(repository, environment, path=f"models/good.pt\nmodels/{odd.name}\n-dash.bin")
    assert named.code == 1
    assert "-dash.bin: unknown" in named.text
    assert not (repository / "pwned").exists()
    (repository / "policy.toml").write_text('allow = ["some.lib.Net"]\n')
    assert Ran(repository, environment, policy="policy.toml").code == 0
    known = tool(
        "rustload", "scan", ".", "--exclude", ".git", "--json", cwd=repository, env=environment
    ).stdout
    (repository / "known.json").write_text(known)
    assert Ran(repository, environment, baseline="known.json").code == 0


def test_the_action_runs_no_program_of_the_working_copy(repository, environment, tmp_path):
    # pipx run would take the first, a search of the working directory the second, python -m the third.
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    for path in (f"__pypackages__/{version}/lib/bin/rustload", "rustload", "pip.py"):
        program = repository / path
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text("#!/bin/sh\ntouch pwned\n")
        program.chmod(0o755)
    (repository / "models" / "evil.bin").write_bytes(EVIL)
    ran = Ran(repository, environment)
    assert ran.code == 1
    assert not list(tmp_path.rglob("pwned"))
    assert ran.installed_in == [str(tmp_path / "runner-temp")]
    assert "pipx run" not in re.sub(r"#.*", "", STEPS[0]["run"])


def test_a_failed_action_leaves_no_log_of_an_earlier_run(repository, environment):
    assert Ran(repository, environment).sarif
    wrong = Ran(repository, environment, policy="absent.toml")
    assert (wrong.code, wrong.sarif) == (2, "")
    assert not (repository / "rustload.sarif").exists()
    absent = Ran(repository, environment, path="absent.pt")
    assert (absent.code, absent.sarif) == (3, "rustload.sarif")


def test_the_action_passes_a_repository_without_checkpoints(repository, environment):
    (repository / "models" / "good.pt").unlink()
    assert Ran(repository, environment).code == 0
    # A working copy without LFS is not one without checkpoints.
    (repository / "models" / "good.pt").write_bytes(LFS)
    ran = Ran(repository, environment)
    assert ran.code == 1
    assert "Git LFS pointer" in ran.text
