"""A case of the matrix: how its input is built, the expected outcome of a load, and the expected findings of a scan."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attacks import corpus


@dataclass(frozen=True)
class Refused:
    """Opening raises the error of this code."""

    code: str
    limit: str = ""

    def __str__(self) -> str:
        return f"`{self.code}` ({self.limit})" if self.limit else f"`{self.code}`"


@dataclass(frozen=True)
class Opens:
    """It opens, everything in it can be listed, and `check` passes."""

    what: str = "opens"
    check: Callable[[Any], None] | None = None

    def __str__(self) -> str:
        return self.what


@dataclass(frozen=True)
class Kept:
    """It opens with the value kept as data under this class; `unknown="error"` raises the code."""

    class_name: str
    code: str = "DisallowedGlobal"

    def __str__(self) -> str:
        return f"kept as data; strict: `{self.code}`"


@dataclass(frozen=True)
class Named(Kept):
    """Like `Kept`, for a class or function that is named and never called."""

    def __str__(self) -> str:
        return f"kept as a name; strict: `{self.code}`"


@dataclass(frozen=True)
class Fails:
    """It opens; calling `ask` with the checkpoint raises the error of this code."""

    code: str
    ask: Callable[[Any], Any]
    what: str
    limit: str = ""

    def __str__(self) -> str:
        return f"opens; {self.what}: `{self.code}`" + (f" ({self.limit})" if self.limit else "")


@dataclass(frozen=True)
class Shown:
    """A behaviour that needs more than one file to show; a test of its own shows it."""

    what: str
    test: str

    def __str__(self) -> str:
        return self.what


Outcome = Refused | Opens | Kept | Fails | Shown
Build = bytes | Callable[[], bytes] | Callable[[Path], Any] | None


@dataclass(frozen=True)
class Case:
    """One input of the matrix.

    Attributes:
        id: The id in the matrix, such as `"Z17"`.
        name: The name of the input, among those of the id.
        build: The file's bytes, a function that returns them, or (`placed`) a function that writes files into a folder and
            returns the path to open.
        load: The expected outcome of `rustload.open`.
        finds: The codes that a scan's findings must include.
        verdict: The expected verdict of a scan; None if several are correct.
        runs: The calls that a scan's trace must include, in this order.
        options: Arguments of `open`.
        suffix: The extension of the file's name.
        metadata: Bytes of metadata after inflation, if more than the file's size.
        tensors: The number of tensors that the metadata describes, if large.
        placed: Whether `build` takes a folder.
    """

    id: str
    name: str
    build: Build
    load: Outcome
    finds: tuple[str, ...] = ()
    verdict: str | None = None
    runs: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    suffix: str = ".bin"
    metadata: int = 0
    tensors: int = 0
    placed: bool = False

    @property
    def label(self) -> str:
        """The id and the name, as in the names of the tests."""
        return f"{self.id}-{self.name}" if self.name else self.id

    @property
    def filename(self) -> str:
        """The name of its file, unless it is placed."""
        return f"{self.label}{self.suffix}"

    def data(self) -> bytes:
        """The bytes of its file, unless it is placed."""
        data = self.build() if callable(self.build) else self.build  # type: ignore[call-arg]
        assert isinstance(data, bytes)
        return data

    def make(self, folder: Path) -> Any:
        """Creates the input in `folder`; returns the path to open."""
        if self.placed:
            assert callable(self.build)
            return self.build(folder)  # type: ignore[call-arg]
        path = folder / self.filename
        path.write_bytes(self.data())
        return path

    def input(self, folder: Path) -> Any:
        """The path to open: of the file in the corpus, which nobody writes to, or of what a placed case creates in `folder`."""
        return self.make(folder) if self.placed else corpus.path(self)


CASES: list[Case] = []
IDS: dict[str, str] = {}
"""The description of every id's input."""


def family(
    ident: str,
    what: str,
    builds: dict[str, Build] | Build,
    load: Outcome | dict[str, Outcome],
    *finds: str,
    **more: Any,
) -> None:
    """Adds the inputs of one id; `load` may be a dict of outcomes by name.

    By default, a scan must find the code of a refusal too. `finds` are other findings; an empty string means none.
    """
    IDS.setdefault(ident, what)
    for name, build in (builds if isinstance(builds, dict) else {"": builds}).items():
        outcome = load[name] if isinstance(load, dict) else load
        found = tuple(filter(None, finds)) if finds else tuple(_found(outcome))
        CASES.append(Case(ident, name, build, outcome, found, **more))


def _found(outcome: Outcome) -> list[str]:
    """The default findings of a scan: the code of a refusal, with `unknown="keep"` or `"error"`."""
    if isinstance(outcome, Named):
        return ["Import"]
    return [outcome.code] if isinstance(outcome, (Refused, Kept)) else []


def shown(ident: str, what: str, outcome: str, test: str, *finds: str) -> None:
    """Adds an id that has a test of its own."""
    IDS.setdefault(ident, what)
    CASES.append(
        Case(ident, test.partition("::")[2].removeprefix("test_"), None, Shown(outcome, test), finds)
    )
