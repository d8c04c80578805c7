"""`Policy`: the names that a scan accepts, and what makes it fail as a gate."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from rustload import _rustload
from rustload._common.manifest import ManifestLike  # noqa: TC001  # `rustload schema` evaluates the types of the fields
from rustload._remote.urls import local_path
from rustload.errors import _error

if TYPE_CHECKING:
    from typing import Self

FailOn: TypeAlias = Literal["unknown", "would-execute"]

# The keys of a policy file.
KEYS = ("allow", "fail_on", "exclude", "manifest")


@dataclass(frozen=True)
class Policy:
    r"""What a scan accepts: names that are known to the user, and what makes a file fail.

    >>> import rustload
    >>> policy = rustload.Policy(allow=("mylib.Config", "mylib.models.*"))
    >>> report = rustload.scan(b"cmylib\nConfig\n)R.", policy=policy)
    >>> report.verdict, report.findings[0].allowed
    ('inert', 'mylib.Config')

    Attributes:
        allow: Classes and functions that are accepted: dotted names, or patterns in which `*` stands for any characters. An
            allowance covers importing, calling and setting the state of what it names, as installed where the file is loaded. It
            never covers what executes code or accesses the system.
        fail_on: The verdict from which on a file fails: `"unknown"`, or `"would-execute"`, which lets unknown files pass.
        baseline: A JSON report of an earlier scan: what it has does not make a file fail. None for no such report.
        exclude: Files and directories that are not scanned where they are found in a directory: names, such as `".git"`, or, with
            a `/`, paths, as they are or from the directory that is scanned. `*` stands for any characters.
        manifest: As in `rustload.open`: what the files have to be. One that differs or is not listed is not scanned, and fails.
    """

    allow: tuple[str, ...] = ()
    fail_on: FailOn = "unknown"
    baseline: str | os.PathLike[str] | None = None
    exclude: tuple[str, ...] = ()
    manifest: ManifestLike | None = None

    def __post_init__(self) -> None:
        """Checks the fields.

        Raises:
            ValueError: A name cannot be allowed, or `fail_on` is none of its values.
            TypeError: `allow` or `exclude` is a single string, or not of strings.
        """
        for field in ("allow", "exclude"):
            given: Any = getattr(self, field)
            if isinstance(given, str):
                text = f"{field} is a tuple of names, not a string: {field}=({given!r},)"
                raise _error("Type", text)
            names = tuple(given) if isinstance(given, Iterable) else (given,)
            if not all(isinstance(name, str) for name in names):
                raise _error("Type", f"{field} is a tuple of names, not {given!r}")
            object.__setattr__(self, field, names)
        if self.fail_on not in get_args(FailOn):
            values = " or ".join(map(repr, get_args(FailOn)))
            raise _error("Value", f"fail_on is {values}, not {self.fail_on!r}")
        for pattern in self.allow:
            _rustload.check_allowance(pattern)

    @classmethod
    def from_file(
        cls, path: str | os.PathLike[str], *, baseline: str | os.PathLike[str] | None = None
    ) -> Self:
        """Reads a policy from a TOML file.

        Its keys, all optional: `allow` and `exclude` (lists of strings), `fail_on`, and `manifest` (a path, from the folder
        of the file).

        Args:
            path: The file.
            baseline: As for `Policy`.

        Raises:
            OSError: The file cannot be read.
            ValueError: It is a URL or not TOML, or has other keys or values.
        """
        import tomllib

        with open(local_path(path, is_read=True), "rb") as file:
            content = file.read()
        try:
            read = tomllib.loads(content.decode())
        except ValueError as error:
            raise _error("Value", f"{os.fspath(path)}: not a TOML file: {error}") from None
        fields = _fields(read, os.fspath(path))
        try:
            return cls(**fields, baseline=baseline)
        except ValueError as error:
            error.add_note(f"the policy is {os.fspath(path)}")
            raise


def _fields(read: dict[str, Any], path: str) -> dict[str, Any]:
    """Checks the types of a policy file's values."""
    for key in read:
        if key not in KEYS:
            raise _error("Value", f"{path}: a policy has no key {key!r}; there are: {', '.join(KEYS)}")
    lists = {key: read.get(key, []) for key in ("allow", "exclude")}
    for key, names in lists.items():
        if not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
            raise _error("Value", f"{path}: {key} is a list of strings")
    found = {**read, **{key: tuple(names) for key, names in lists.items()}}
    if "manifest" in read:
        if not isinstance(read["manifest"], str):
            raise _error("Value", f"{path}: manifest is a string")
        if read["manifest"] != "hf":
            found["manifest"] = os.path.join(os.path.dirname(path), read["manifest"])
    return found
