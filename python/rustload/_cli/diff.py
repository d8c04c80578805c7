"""`rustload diff`: compares the tensors of two checkpoints."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import rustload
from rustload._cli.as_options import as_options
from rustload._cli.exit_codes import GATE_FAILED, READ_FAILED
from rustload._cli.report_error import report_error
from rustload._cli.report_warnings import report_warnings
from rustload._common.terminal import Page, print_json
from rustload.errors import RustloadError

if TYPE_CHECKING:
    import argparse

__all__ = ["run"]

# Version of the JSON document; removing a key or changing its meaning increments it.
SCHEMA = 1


def run(args: argparse.Namespace) -> int:
    """Compares the checkpoints and returns the exit code."""
    document: dict[str, Any] = {"schema": SCHEMA, "rustload": rustload.__version__}
    code = READ_FAILED
    try:
        with report_warnings(as_options):
            report = rustload.diff(
                args.a,
                args.b,
                data=args.data or args.atol > 0 or args.rtol > 0,
                atol=args.atol,
                rtol=args.rtol,
                cast=args.cast,
                dequantize=args.dequantize,
                select=args.select or None,
                key=args.key,
                strip=args.strip or None,
                rename=dict(args.rename) or None,
            )
    except (RustloadError, OSError, ValueError, TypeError, MemoryError) as error:
        document["error"] = report_error(error, as_options)
    else:
        code = 0 if report.same else GATE_FAILED
        document["report"] = report.to_dict()
    if args.json:
        print_json(document)
    elif code != READ_FAILED:
        from rustload._diff.report import show

        page = Page(sys.stdout, args.color)
        show(page, report)
        page.flush()
    return code
