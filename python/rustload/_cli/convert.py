"""`rustload convert`: writes a checkpoint as safetensors files."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import rustload
from rustload._cli.as_options import as_options
from rustload._cli.exit_codes import READ_FAILED, VERIFY_FAILED
from rustload._cli.report_error import report_error
from rustload._cli.report_warnings import report_warnings
from rustload._common.patterns import matches
from rustload._common.rules import DEFAULT_CAST_DTYPES
from rustload._common.terminal import Page, print_json
from rustload.errors import RustloadError

if TYPE_CHECKING:
    import argparse

__all__ = ["run"]

# Version of the JSON document; removing a key or changing its meaning increments it.
SCHEMA = 1


def run(args: argparse.Namespace) -> int:
    """Converts a checkpoint and returns the exit code."""
    options: dict[str, Any] = {
        "select": args.select or None,
        "key": args.key,
        "strip": args.strip or None,
        "rename": {old: new or None for old, new in args.rename} or None,
        "dtype": _dtype_rule(args.dtype),
        "transpose": dict.fromkeys(args.transpose, True) or None,
        "allow_lossy": args.allow_lossy,
        "dequantize": args.dequantize,
        "ties": args.ties,
        "keep": args.keep,
        "discard": args.discard,
        "verify": args.verify,
        "resume": args.resume,
        "progress": _on_terminal() and not args.quiet if args.progress is None else args.progress,
        "max_shard_size": args.max_shard_size,
        "name": args.name,
        "metadata": dict(args.metadata) or None,
        "fingerprint": args.fingerprint,
        "copy_others": args.copy_others,
        "objects": args.objects,
        "overwrite": args.overwrite,
    }
    document: dict[str, Any] = {"schema": SCHEMA, "rustload": rustload.__version__}
    code = 0
    with report_warnings(as_options):
        try:
            report = rustload.convert(args.src, args.dst, **options)
        except (RustloadError, OSError, ValueError, TypeError, MemoryError) as error:
            code = VERIFY_FAILED if getattr(error, "code", None) == "VerifyFailed" else READ_FAILED
            document["error"] = report_error(error, as_options)
    if args.json:
        if not code:
            document["report"] = report._asdict()
        print_json(document)
    elif not (code or args.quiet):
        page = Page(sys.stdout, "never")
        page.line(str(report))
        page.flush()
    return code


def _on_terminal() -> bool:
    return sys.stderr is not None and not sys.stderr.closed and sys.stderr.isatty()


def _dtype_rule(given: list[tuple[str | None, str]]) -> Any:
    """`--dtype`: the dtype of all floats, and those of patterns, which count first."""
    patterns = [(pattern, dtype) for pattern, dtype in given if pattern is not None]
    plain = [dtype for pattern, dtype in given if pattern is None]
    if not patterns:
        return plain[-1] if plain else None
    if not plain:
        return dict(patterns)

    def choose(tensor: Any) -> str | None:
        found = next((dtype for pattern, dtype in patterns if matches(tensor.name, pattern)), None)
        is_cast = tensor.dtype in DEFAULT_CAST_DTYPES and not tensor._is_kept_as_stored
        return found or (plain[-1] if is_cast else None)

    return choose
