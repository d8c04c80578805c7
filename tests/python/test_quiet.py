"""Tests that measure are found, and are alone when they run."""

import fcntl
import subprocess
import sys
import threading
import time
from pathlib import Path

import quiet

SOURCE = """
import time
from beside import peak, quiet_one

CLOCK = "import time; print(time.monotonic())"
STATUS = "print(open('/proc/self/status').read().split('VmHWM:')[1])"


def seconds():
    return time.perf_counter()


def bound(limit):
    assert seconds() < limit


def test_by_a_helper_of_a_helper():
    bound(2)


def test_in_a_child():
    child(CLOCK)


def test_of_memory():
    child(STATUS)


def test_by_a_helper_beside():
    assert peak() < 5


class TestClass:
    def test_method(self):
        assert time.process_time() < 1


def test_nothing_is_measured():
    quiet_one()
"""


def test_what_measures_is_found_also_through_helpers_and_child_processes(tmp_path):
    (tmp_path / "beside.py").write_text("def peak(): return time.monotonic()\n\ndef quiet_one(): pass\n")
    path = tmp_path / "test_it.py"
    path.write_text(SOURCE)
    found = [name for name in quiet.measuring(path) if name.lower().startswith("test")]
    assert sorted(found) == [
        "TestClass",
        "test_by_a_helper_beside",
        "test_by_a_helper_of_a_helper",
        "test_in_a_child",
    ]
    assert quiet.measures(path, "test_it.py::TestClass::test_method[1]")
    assert not quiet.measures(path, "test_it.py::test_nothing_is_measured")


def test_a_test_that_measures_is_alone_and_nobody_overtakes_it(tmp_path, monkeypatch):
    monkeypatch.setattr(quiet, "LOCKS", tmp_path)
    entered: list[str] = []

    def enter(name: str, *, alone: bool) -> threading.Thread:
        def run() -> None:
            with quiet.room(alone=alone):
                entered.append(name)

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    with quiet.room(alone=False):
        enter("beside", alone=False).join()
        waiting = [enter("measures", alone=True)]
        while not is_held(tmp_path / "turnstile"):
            time.sleep(0.001)
        waiting.append(enter("later", alone=False))
        waiting[-1].join(0.05)
        assert entered == ["beside"]
    for thread in waiting:
        thread.join()
    assert entered == ["beside", "measures", "later"]


def test_a_pytest_that_a_test_runs_does_not_wait_for_who_waits_for_the_test():
    def measure() -> None:
        with quiet.room(alone=True):
            pass

    waiting = threading.Thread(target=measure)
    waiting.start()
    while not is_held(quiet.LOCKS / "turnstile"):
        time.sleep(0.001)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        Path(__file__).with_name("test_touched.py"),
    ]
    done = subprocess.run(
        [*command, "-k", "git_cannot_tell"], capture_output=True, text=True, timeout=100, check=False
    )
    assert "1 passed" in done.stdout
    assert waiting.is_alive()


def is_held(path: Path) -> bool:
    with path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def test_a_bound_grows_with_the_time_that_the_machine_takes_for_known_work(monkeypatch):
    assert quiet.slowness() >= 1
    monkeypatch.setattr(quiet, "_work", lambda: time.sleep(0))
    monkeypatch.setattr(quiet, "_memory", lambda: time.sleep(0))
    assert quiet.slowness() == 1
    assert not quiet.within(2.1, 2)
    monkeypatch.setattr(quiet, "slowness", lambda: 1.5)
    assert quiet.within(2.9, 2)
    assert not quiet.within(3.1, 2)
