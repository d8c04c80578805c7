"""Decides whether a report passes a policy: no file has anything new that is as bad as the policy's `fail_on`, or worse."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, TypeAlias

from rustload import _rustload
from rustload._common.manifest import core_of, file_of, manifest_of
from rustload._remote.urls import local_path
from rustload._scan.verdict import ORDER
from rustload.errors import _error

if TYPE_CHECKING:
    from rustload._common.manifest import ManifestLike
    from rustload._rustload import Limits
    from rustload._scan.policy import Policy

Key: TypeAlias = tuple[str, ...]

# The largest report that is read as a baseline.
BASELINE_MAX_BYTES = 1 << 28


class Gate:
    """A policy and its baseline, which is read once.

    Raises:
        FormatError: The manifest is not valid.
        OSError: The baseline or the manifest cannot be read.
        ValueError: The baseline is not a report.
    """

    def __init__(self, policy: Policy | None, limits: Limits | None = None) -> None:
        """Reads the baseline. `limits` are those of the scan."""
        self.allow: tuple[str, ...] = () if policy is None else policy.allow
        self.exclude: tuple[str, ...] = () if policy is None else policy.exclude
        self.manifest = None if policy is None else policy.manifest
        self._limits = limits
        self._file = file_of(self.manifest)
        self._options: list[_rustload.ScanOptions] = []
        self._read = self.manifest
        if self.manifest is not None and self.manifest != "hf":
            self._read = manifest_of(self.manifest, None)
        self._fail_on = "unknown" if policy is None else policy.fail_on
        self._path = None if policy is None else policy.baseline
        self._known = {} if self._path is None else _baseline(self._path)

    def options(self, source: Any) -> _rustload.ScanOptions:
        """The options of a scan of this source.

        Raises:
            ValueError: The manifest is `"hf"`, and the Hub has stated no digests for the source.
        """
        options = _rustload.ScanOptions(
            limits=self._limits,
            allow=self.allow,
            exclude=self.exclude,
            manifest=core_of(self._read, source),
            manifest_file=self._file,
        )
        self._options.append(options)
        return options

    @property
    def excluded_nothing(self) -> list[str]:
        """What `exclude` has, and no folder that was scanned."""
        left = [set(options.not_found()) for options in self._options]
        return [one for one in self.exclude if all(one in names for names in left)]

    def unused_baseline(self, report: dict[str, Any]) -> int:
        """How many entries the baseline has, if the report has none of its files; otherwise 0."""
        paths = {str(file["path"]) for file in report["files"]}
        return 0 if any(key[0] in paths for key in self._known) else len(self._known)

    def judge(self, report: dict[str, Any]) -> None:
        """Adds `passes` to the report and to its files, `known` to its findings, and the policy itself.

        A skipped file passes. A file that could not be read does not, nor does a report in which nothing was scanned.
        """
        limit = ORDER[self._fail_on.replace("-", " ")]
        for file in report["files"]:
            failures = 0
            for found in file["findings"]:
                order = ORDER[found["verdict"]]
                found["known"] = order <= self._known.get(_key(file, found), -1)
                failures += order >= limit and not found["known"]
            for gap in file["coverage"]["unscanned"]:
                gap["known"] = _gap_key(file, gap) in self._known
                failures += limit <= ORDER["unknown"] and not gap["known"]
            file["passes"] = file["status"] == "skipped" or (file["status"] == "scanned" and not failures)
        scanned = any(file["status"] == "scanned" for file in report["files"])
        report["passes"] = scanned and all(file["passes"] for file in report["files"])
        baseline = None if self._path is None else os.fspath(self._path)
        report["policy"] = {
            "allow": list(self.allow),
            "fail_on": self._fail_on,
            "baseline": baseline,
            "exclude": list(self.exclude),
            "manifest": _label(self.manifest),
        }


def _label(manifest: ManifestLike | None) -> str | None:
    """The path of a manifest, or what it is otherwise."""
    if isinstance(manifest, (str, os.PathLike)):
        return os.fsdecode(manifest)
    return None if manifest is None else f"<{type(manifest).__name__}>"


def _baseline(path: str | os.PathLike[str]) -> dict[Key, int]:
    """What an earlier report has, with the worst verdict of each."""
    import json

    with open(local_path(path, is_read=True), "rb") as file:
        text = file.read(BASELINE_MAX_BYTES + 1)
    known: dict[Key, int] = {}
    try:
        if len(text) > BASELINE_MAX_BYTES:
            raise ValueError("it is too large")
        for one in json.loads(text)["files"]:
            for found in one["findings"]:
                key = _key(one, found)
                known[key] = max(known.get(key, 0), ORDER[found["verdict"]])
            for gap in one["coverage"]["unscanned"]:
                known[_gap_key(one, gap)] = ORDER["unknown"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        why = f"it has no {error}" if isinstance(error, KeyError) else f"{type(error).__name__}: {error}"
        raise _error("Value", f"{os.fspath(path)}: not a report of rustload scan --json ({why})") from None
    return known


def _key(file: dict[str, Any], found: dict[str, Any]) -> Key:
    """What identifies a finding whatever the file's content: positions, arguments and counts change with it."""
    return tuple(
        str(part) for part in (file["path"], found["code"], found["module"], found["name"], found["member"])
    )


def _gap_key(file: dict[str, Any], gap: dict[str, Any]) -> Key:
    return (str(file["path"]), "unscanned", str(gap["member"]), str(gap["why"]))
