"""Calls on other threads, for which a caller waits only as long as its operation goes on."""

from __future__ import annotations

import contextlib
import time
from _queue import Empty, SimpleQueue  # defined there; importing `queue` takes longer
from threading import Thread
from typing import TYPE_CHECKING, Any, TypeVar

from rustload import _rustload
from rustload.errors import _error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

Result = TypeVar("Result")
Outcome = tuple[Any, BaseException | None]

AT_ONCE = 8
"""The most requests of one call that are under way."""

CANCEL_CHECK_SECONDS = 0.1

SAID_SECONDS = 3.0
"""After how long it is said that a call is waited for; and again each time when it is twice as long."""

_sayers: list[Callable[[str], object]] = []
_last_said = 0.0


@contextlib.contextmanager
def saying(say: Callable[[str], object]) -> Iterator[None]:
    """While it is open, `say` gets a text such as `waiting 3 s for https://host/model.bin` when a call takes long.

    Of several that are open, the one that was opened last. It is called by any thread. Without one, nothing is said.
    """
    _sayers.append(say)
    try:
        yield
    finally:
        _sayers.remove(say)


def _say(name: str, seconds: float) -> None:
    """Says what is waited for; of many threads that wait at once, one does."""
    global _last_said
    now = time.monotonic()
    # A copy of the last: another thread may close it meanwhile.
    for say in _sayers[-1:]:
        if now - _last_said >= SAID_SECONDS / 2:
            _last_said = now
            say(f"waiting {seconds:.0f} s for {name}")


def interruptible(call: Callable[[], Result], name: str) -> Result:
    """The result of a call, or its exception, for which Ctrl-C does not wait. `name` is what it asks, without secrets.

    The call is made by another thread, since it may hang in code that knows of no interruption. If this thread is interrupted, or
    the operation that it works for is, the other thread is left to end by its own timeout.

    Raises:
        Cancelled: The operation was stopped.
    """
    done: SimpleQueue[Outcome] = SimpleQueue()
    if not _start(lambda: done.put(_outcome(call))):
        return call()
    return _result(_next(done, name))  # type: ignore[no-any-return]


def in_parallel(call: Callable[[Any], Any], given: Iterable[Any], at_once: int = AT_ONCE) -> list[Any]:
    """The results of calls, of which so many are under way at once; where the system refuses threads, one.

    Raises the first exception. Ctrl-C does not wait for the calls that are under way.
    """
    given = list(given)
    if len(given) < 2:
        return [call(one) for one in given]
    waiting: SimpleQueue[int] = SimpleQueue()
    done: SimpleQueue[tuple[int, Outcome]] = SimpleQueue()
    for number in range(len(given)):
        waiting.put(number)

    def work() -> None:
        while True:
            try:
                number = waiting.get_nowait()
            except Empty:
                return
            done.put((number, _outcome(lambda: call(given[number]))))  # noqa: B023  # called at once

    if not [True for _ in range(min(at_once, len(given))) if _start(work)]:
        work()
    results = [None] * len(given)
    try:
        for _ in given:
            number, outcome = _next(done)
            results[number] = _result(outcome)
    finally:
        with contextlib.suppress(Empty):  # what is left after an exception
            while True:
                waiting.get_nowait()
    return results


def _start(work: Callable[[], None]) -> bool:
    """Starts a thread; False if the system refuses one. The process does not wait for it to end."""
    try:
        Thread(target=work, name="rustload-remote", daemon=True).start()
    except RuntimeError:
        return False
    return True


def _outcome(call: Callable[[], Any]) -> Outcome:
    try:
        return call(), None
    except BaseException as error:  # noqa: BLE001  # another thread raises it
        return None, error


def _result(outcome: Outcome) -> Any:
    result, error = outcome
    if error is not None:
        raise error
    return result


def _next(done: SimpleQueue[Any], name: str | None = None) -> Any:
    """What comes next through a queue. With a name, it is said that it is waited for."""
    start, seconds_said = time.monotonic(), SAID_SECONDS
    while True:
        try:
            return done.get(timeout=CANCEL_CHECK_SECONDS)
        except Empty:
            if _rustload.is_cancelled():
                raise _error("Cancelled", "stopped on request") from None
            seconds = time.monotonic() - start
            if name is not None and seconds >= seconds_said:
                seconds_said *= 2
                _say(name, seconds)
