"""`progress=`: what is shown, and how it ends."""

import io
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file

import rustload
from rustload._common import progress
from rustload._common.progress import checked_progress, reporting

MIB = 1 << 20


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def run(progress, *, fail_at: int | None = None) -> None:
    with reporting(progress, 10 * MIB) as report:
        for number in range(10):
            if number == fail_at:
                raise KeyboardInterrupt
            report(MIB, f"layer.{number}")


@pytest.mark.parametrize("progress", [None, False])
def test_nothing_is_printed_by_default(capsys, progress):
    run(progress)
    assert capsys.readouterr() == ("", "")


def test_a_callable_gets_done_total_and_name():
    seen = []
    run(lambda *call: seen.append(call))
    assert seen == [((number + 1) * MIB, 10 * MIB, f"layer.{number}") for number in range(10)]


def test_an_exception_of_the_callable_propagates():
    def wrong(_done, _total, _name):
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        run(wrong)


def test_a_log_gets_a_few_lines_on_stderr(capsys):
    run(True)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines()[-1] == "loading: 10.0 MiB of 10.0 MiB layer.9"
    assert len(err.splitlines()) <= 12


def test_the_last_line_of_a_log_says_where_it_stopped(capsys):
    with pytest.raises(KeyboardInterrupt):
        run(True, fail_at=4)
    assert capsys.readouterr().err.splitlines()[-1] == "loading: 4.0 MiB of 10.0 MiB stopped"


@pytest.mark.parametrize("fail_at", [None, 3])
def test_a_plain_terminal_gets_one_line_with_a_final_newline(monkeypatch, fail_at):
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    if fail_at is None:
        run(True)
    else:
        with pytest.raises(KeyboardInterrupt):
            run(True, fail_at=fail_at)
    written = terminal.getvalue()
    assert written.count("\n") == 1
    assert written.endswith("\n")
    last = written.rstrip().split("\r")[-1]
    assert ("100%" in last) == (fail_at is None)
    assert ("stopped" in last) == (fail_at is not None)


def test_control_characters_in_names_are_escaped(capsys):
    with reporting(True, 1) as report:
        report(1, "w\x1b[2J\r\nw")
    assert "\x1b" not in capsys.readouterr().err


@pytest.mark.parametrize("output", ["log", "bar", "callable"])
def test_a_total_of_zero_is_no_error(monkeypatch, output):
    monkeypatch.setattr(sys, "stderr", Terminal() if output == "bar" else io.StringIO())
    with reporting((lambda *_call: None) if output == "callable" else True, 0):
        pass


class Broken(io.StringIO):
    """A stream that fails from its `after`th write on, as a full disk, or a pipe whose reader is gone."""

    def __init__(self, error: OSError, *, terminal: bool, after: int = 0) -> None:
        super().__init__()
        self.error, self.terminal, self.after = error, terminal, after

    def isatty(self) -> bool:
        return self.terminal

    def write(self, text: str) -> int:
        self.after -= 1
        if self.after < 0:
            raise self.error
        return super().write(text)


@pytest.mark.parametrize("after", [0, 1, 2])
@pytest.mark.parametrize("kind", ["log", "bar"])
@pytest.mark.parametrize("error", [BrokenPipeError(32, "pipe"), OSError(28, "full")])
def test_a_stderr_that_fails_does_not_end_the_work(monkeypatch, error, kind, after):
    monkeypatch.setattr(progress, "_REFRESH_SECONDS", 0)
    monkeypatch.setattr(sys, "stderr", broken := Broken(error, terminal=kind != "log", after=after))
    run(True)
    assert broken.after < 0
    with pytest.raises(KeyboardInterrupt):
        run(True, fail_at=4)


@pytest.mark.parametrize("stderr", [None, "closed"])
def test_a_stderr_that_is_closed_does_not_end_the_work(monkeypatch, stderr):
    closed = Terminal()
    closed.close()
    monkeypatch.setattr(sys, "stderr", stderr and closed)
    run(True)


@pytest.mark.parametrize("redirect", ["2>&-", "2>/dev/full"])
def test_a_command_without_a_stderr_does_its_work(tmp_path, redirect):
    save_file({"w": torch.ones(3)}, tmp_path / "m.safetensors")
    command = f"{sys.executable} -m rustload"
    for arguments in (
        "convert m.safetensors n.safetensors --progress --overwrite",
        "convert m.safetensors n.safetensors --overwrite",
        "info m.safetensors",
    ):
        done = subprocess.run(
            f"{command} {arguments} {redirect}", shell=True, cwd=tmp_path, stdout=subprocess.PIPE, check=False
        )
        assert done.returncode == 0, arguments
        assert done.stdout
    assert torch.equal(load_file(tmp_path / "n.safetensors")["w"], torch.ones(3))
    # What it could not say, its exit code says.
    for arguments, code in (("info missing", 3), ("scan missing", 3), ("info --wrong", 2)):
        done = subprocess.run(
            f"{command} {arguments} {redirect}", shell=True, cwd=tmp_path, stdout=subprocess.PIPE, check=False
        )
        assert done.returncode == code, arguments


@pytest.mark.parametrize("wrong", [1, "yes", []])
def test_a_value_of_another_type_is_a_type_error(wrong):
    with pytest.raises(TypeError, match="progress="):
        checked_progress(wrong)


def _from_stream(path, progress):
    return list(rustload.open(path).stream(progress=progress))


def _from_jax(path, progress):
    pytest.importorskip("jax")
    import rustload.jax

    return rustload.jax.load(path, progress=progress)


def _from_weights(path, progress):
    from rustload.torch._weights import WeightOptions, weights

    return list(weights([path, path], WeightOptions(), progress=progress))


def _from_state_dict(path, progress):
    from rustload.torch._read_progress import with_read_progress

    with reporting(progress, rustload.open(path).select("*").nbytes) as report:
        state = with_read_progress(rustload.torch.state_dict(path), report)
        return [state["b"][:100].tensor(), *(handle.tensor() for handle in state.values())]


@pytest.mark.parametrize("load", [_from_stream, _from_jax, _from_weights, _from_state_dict])
def test_names_of_one_tensor_count_once(tmp_path, load):
    a = torch.randn(1000, 10)
    torch.save({"a": a, "b": a, "c": torch.ones(500, 10)}, tmp_path / "tied.pt")
    calls = []
    assert load(tmp_path / "tied.pt", lambda *call: calls.append(call))
    total = 60_000 * (2 if load is _from_weights else 1)
    assert {call[1] for call in calls} == {total}
    done = [call[0] for call in calls]
    assert done == sorted(done)
    assert done[-1] == total
