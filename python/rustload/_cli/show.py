"""`rustload show`: the numbers of tensors, and other values of a checkpoint, as text or JSON."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Any, TypedDict

import rustload
from rustload._cli.arguments import SOURCE, add_color, add_json, file
from rustload._cli.exit_codes import READ_FAILED
from rustload._cli.report import Error, print_document, report_error
from rustload._common.patterns import is_literal, matching, unknown_name
from rustload._common.terminal import DEFAULT_COLUMNS, Page
from rustload._describe.objects import find_object, object_names, show_object
from rustload._describe.values import is_packed, numbers_of, parse_index, show_numbers, split_index
from rustload._remote.urls import shown_path
from rustload.errors import RustloadError, _error, _Note, _pass

if TYPE_CHECKING:
    import argparse

    from rustload import Checkpoint, LazyTensor

TENSORS_MAX = 64
"""The most tensors of a pattern that are shown as text."""
VALUES_MAX = 1 << 20
"""The most numbers of a JSON document."""

EPILOG = """\
examples:
  rustload show model.pt 'layers.0.*[:2, :4]'
  rustload show run.ckpt hyper_parameters

exit codes:
  0    everything was shown
  2    wrong usage
  3    something could not be read or has another name, or the output could not
       be written
"""


class Shown(TypedDict):
    """A tensor or a slice of one.

    Attributes:
        name: The tensor's name.
        index: The index as given, without brackets; None for the whole tensor.
        dtype: The tensor's dtype.
        shape: The shape of the slice.
        values: The numbers in C order: NaN and infinities are null, a complex number is its real and its imaginary part. Empty
            for packed dtypes.
    """

    name: str
    index: str | None
    dtype: str
    shape: list[int]
    values: list[float | bool | None]


class Value(TypedDict):
    """A value that is not a tensor.

    Attributes:
        name: The name as given.
        text: The value, as the command prints it.
    """

    name: str
    text: str


class Document(TypedDict):
    """Values of a checkpoint.

    Attributes:
        path: As given; a URL without its secrets.
        tensors: The tensors, and slices of them.
        objects: Other values.
        errors: Why something is not there.
    """

    path: str
    tensors: list[Shown]
    objects: list[Value]
    errors: list[Error]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describes the command, and adds its arguments."""
    parser.description = (
        "Prints numbers of tensors, and values that are not tensors. Reads only what it\n"
        "shows: of a tensor of more than 1,000 elements its edges. Runs nothing of the\n"
        "file, and imports neither torch nor NumPy."
    )
    parser.epilog = EPILOG
    add = parser.add_argument
    add("path", metavar="PATH", type=file, help=SOURCE)
    add(
        "names",
        nargs="+",
        metavar="NAME",
        help="a tensor's name or a pattern, with an index as in NumPy: 'a.*[0, :4]'; or the name of another value",
    )
    add("--dequantize", action="store_true", help="show the dequantized numbers of quantized tensors")
    add_json(parser)
    add_color(parser)


def run(args: argparse.Namespace) -> int:
    """Shows the values and returns the exit code."""
    path = shown_path(args.path)
    document = Document(path=path, tensors=[], objects=[], errors=[])
    page = Page(sys.stdout, args.color)
    shown = _Shown(page, document, dequantize=args.dequantize, as_json=args.json)
    try:
        opened = rustload.open(args.path, dequantize=args.dequantize, manifest=args.manifest)
    except (RustloadError, OSError, ValueError, MemoryError) as error:
        document["errors"].append(report_error(error, args.options))
    else:
        with opened as checkpoint:
            for name in args.names:
                try:
                    shown.show(checkpoint, name)
                except (RustloadError, OSError, ValueError, IndexError, MemoryError) as error:
                    page.flush()
                    document["errors"].append(report_error(error, args.options))
    if args.json:
        print_document(document)
    else:
        page.flush()
    return READ_FAILED if document["errors"] else 0


class _Shown:
    """Adds values to a page or a document."""

    def __init__(self, page: Page, document: Document, *, dequantize: bool, as_json: bool) -> None:
        self._page = page
        self._document = document
        self._dequantize = dequantize
        self._as_json = as_json
        self._count = 0

    def show(self, checkpoint: Checkpoint, given: str) -> None:
        """Shows what a name, a pattern or either with an index is.

        Raises:
            TensorNotFoundError: There is nothing of that name.
        """
        pattern, text = (given, None) if given in checkpoint else split_index(given)
        names = matching(checkpoint, pattern)
        if not names:
            self._show_object(checkpoint, given, pattern)
        for name in names[: None if self._as_json else TENSORS_MAX]:
            tensor = checkpoint[name]
            index = None if text is None else parse_index(text)
            if index and name != pattern and ... not in index:
                # Of a pattern that also matches vectors, these take the first part of the index.
                index = index[: tensor.ndim]
            self._show_tensor(tensor, index)
        if not self._as_json and len(names) > TENSORS_MAX:
            more = f"and {len(names) - TENSORS_MAX:,} more tensors that {pattern!r} matches"
            self._page.text([("2", self._page.safe(more))])

    def _begin(self) -> None:
        if self._count:
            self._page.line()
        self._count += 1

    def _show_tensor(self, tensor: LazyTensor, index: tuple[Any, ...] | None) -> None:
        try:
            part = tensor[index] if index else tensor
        except (IndexError, ValueError, RustloadError) as error:
            error.add_note(f"for tensor {tensor.name!r}")
            raise
        spelled = None if not index else ", ".join(map(_spelled, index))
        packed = is_packed(tensor.dtype)
        if self._as_json:
            held = sum(len(one["values"]) for one in self._document["tensors"])
            if held + math.prod(part.shape) > VALUES_MAX:
                text = f"{tensor.name!r} would make more than {VALUES_MAX:,} numbers of JSON"
                raise _error("Value", text, "select some of them: name[:10]")
            values = [] if packed else numbers_of(part, dequantize=self._dequantize)
            flat: list[float | bool | None] = [
                x for one in values for x in ((one.real, one.imag) if isinstance(one, complex) else (one,))
            ]
            found = Shown(
                name=tensor.name, index=spelled, dtype=str(tensor.dtype), shape=[*part.shape], values=flat
            )
            self._document["tensors"].append(found)
            return
        page = self._page
        columns = page.room(2) or DEFAULT_COLUMNS - 2
        lines = ["packed bits, which are no numbers"]
        if not packed:
            lines = show_numbers(part, columns, dequantize=self._dequantize)
        self._begin()
        of = f" of {list(tensor.shape)}" if spelled else ""
        brackets = f"[{spelled}]" if spelled else ""
        label = page.fitted(page.safe(tensor.name) or '""', len(brackets)) + brackets
        page.cells([("1", label), ("36", str(tensor.dtype)), ("", f"{list(part.shape)}{of}")], 0)
        for line in lines:
            page.line(f"  {line}")

    def _show_object(self, checkpoint: Checkpoint, given: str, pattern: str) -> None:
        root = checkpoint.objects
        found, value = find_object(root, given)
        if not found:
            name = pattern if is_literal(pattern) else given
            if skipped := checkpoint._skipped(name):
                of_numpy = "NpyDtype" if skipped.startswith("numpy.") else "NotFound"
                code = "NpyObjects" if skipped == "numpy.object_" else of_numpy
                raise _error(code, f"{name!r} is skipped: it holds {skipped}, not numbers")
            error = unknown_name(None, name, [*checkpoint, *object_names(root)], of="tensor or value")
            if checkpoint._is_in_codes(name):
                error.add_note(_Note([_pass("dequantize", "for the weight that codes mean", value=True)]))
            raise error
        page = self._page
        lines = [("  " * level, page.safe(key), page.safe(text)) for level, key, text in show_object(value)]
        if self._as_json:
            joined = "\n".join(f"{indent}{key}{': ' if key else ''}{text}" for indent, key, text in lines)
            self._document["objects"].append({"name": given, "text": joined})
            return
        self._begin()
        (_, _, head), *inside = lines
        page.cells([("1", page.safe(given)), ("", head)], 0)
        for indent, key, text in inside:
            page.hanging([("", f"{indent}{key}")], text) if key else page.text([("2", text)], 2 + len(indent))


def _spelled(one: Any) -> str:
    """A part of an index, as it is written in brackets."""
    if isinstance(one, slice):
        ends = ["" if end is None else str(end) for end in (one.start, one.stop, one.step)]
        return ":".join(ends if one.step is not None else ends[:2])
    return "..." if one is ... else str(one)
