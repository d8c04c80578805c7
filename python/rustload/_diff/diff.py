"""`diff`: compares the tensors of two checkpoints of any formats."""

from __future__ import annotations

import itertools
import math
import os
import time
from numbers import Real
from typing import TYPE_CHECKING, Any, Unpack

from rustload import _rustload
from rustload._checkpoint.checkpoint import Checkpoint
from rustload._checkpoint.names import names_left_out, renamed_ties, select_names
from rustload._checkpoint.open import open as open_checkpoint
from rustload._checkpoint.tensors import TensorMapping
from rustload._common.dtype_rows import DTYPE_ROWS
from rustload._common.options import NamesOptions, filled, takes
from rustload._common.patterns import matches, no_match, patterns_of
from rustload._common.progress import reporting
from rustload._common.request import Request
from rustload._diff.report import DiffReport, TensorDiff
from rustload._diff.values import compare_values
from rustload._remote.urls import shown_path
from rustload._tensor.handle import LazyTensor
from rustload.errors import RustloadError, _error

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from rustload._common.manifest import ManifestLike
    from rustload._common.progress import Progress
    from rustload._diff.report import ValueDiff

BATCH_BYTES = 1 << 30
"""The bytes of tensors that are compared between two reports of progress."""
PREFIX_LEVELS_MAX = 16
"""The most parts of a prefix that only one checkpoint has."""


@takes(NamesOptions)
def diff(
    a: Any,
    b: Any,
    *,
    data: bool = False,
    atol: float = 0.0,
    rtol: float = 0.0,
    cast: bool = False,
    dequantize: bool = False,
    select: str | Iterable[str] | None = None,
    manifest: ManifestLike | None = None,
    progress: Progress = None,
    threads: int | None = None,
    **options: Unpack[NamesOptions],
) -> DiffReport:
    """Compares the tensors of two checkpoints, whatever their formats and however they are divided among files.

    Compares names, dtypes and shapes, which reads metadata only; with `data`, every element too, in some MiB per thread.
    Nothing that the files name is imported or run. Values that are not tensors are compared as data; the report lists those
    that differ, and they do not count for `report.same`. `key`, `strip` and `rename` are for the names of `a`. If all names of
    one checkpoint have a prefix that the names of the other lack, such as `model.` or `state_dict.module.`, they are compared
    without it, and the report has it.

    Args:
        a: A checkpoint: what `rustload.open` takes, a `Checkpoint`, or a selection of its tensors.
        b: Another one.
        data: Whether elements are compared: by their bytes, so that one NaN differs from another.
        atol: The largest absolute difference of numbers that are close. Tensors of which all elements are close do not make the
            checkpoints different; NaN is close to NaN, and 0 to -0.
        rtol: The largest difference in proportion to the magnitude of the number in `b`. Both add up, as in `numpy.isclose`.
        cast: Whether two dtypes are not a difference if the elements are equal after a cast: of the wider of two floats to the
            other (of the first, if both have one size), of others to a dtype that has the numbers of both (float64 has 64-bit
            integers up to 2**53, and larger ones are a difference). Compares elements, as `data` does.
        dequantize: Whether quantized tensors are compared as the numbers that they stand for, and not as their integers; paths
            are opened with it (`rustload.open`).
        select: A glob pattern or name, or several: compares only tensors that match one, as named in `b`; without a
            prefix that only one of both has.
        manifest: As for `rustload.open`, for the paths of both: it lists the files of both folders.
        progress: True for a progress bar on stderr, or a callback `(bytes done, total bytes, name)`.
        threads: The number of threads; None for one per core.
        **options: The names of the tensors of `a` (`NamesOptions`).

    Returns:
        The report; `report.same` says whether there is a difference, `str(report)` what it is.

    Raises:
        ValueError: A tolerance is negative, or `key`, `strip` and `rename` do not fit `a`.
        TensorNotFoundError: `select` matches no name.
        KeyboardInterrupt: Ctrl-C, within a tenth of a second.
        RustloadError: As for `rustload.open`, and as for `LazyTensor.materialize`.

    >>> import rustload
    >>> report = rustload.convert("model.pt", "half.safetensors", dtype="float16")
    >>> rustload.diff("model.pt", "half.safetensors", cast=True).same
    True
    """
    names = filled(diff, options)
    start = time.perf_counter()
    for argument, value in (("atol", atol), ("rtol", rtol)):
        given: Any = value
        if not isinstance(given, Real) or not float(given) >= 0:
            raise _error("Value", f"is a number from 0 on, not {value!r}", argument=argument)
    atol, rtol = float(atol), float(rtol)
    request = Request(allow_lossy=True, dequantize=dequantize, threads=threads)
    notes: list[str] = []
    label_a, whole_a = _opened(a, manifest, dequantize=dequantize)
    label_b, whole_b = _opened(b, manifest, dequantize=dequantize)
    of_a, of_b = _Tensors(whole_a), _Tensors(whole_b)
    try:
        names_of_a = select_names(of_a, **names)
    except ValueError as error:
        error.add_note(
            f"it is looked for in the first checkpoint, {label_a}: exchange them to map names of the other"
        )
        raise
    of_a = _Tensors(
        {new: of_a[name] for new, name in names_of_a.items()}, renamed_ties(of_a.ties, names_of_a, **names)
    )
    prefixes = _prefix(of_a, of_b), _prefix(of_b, of_a)
    of_a, of_b = _without(prefixes[0], of_a), _without(prefixes[1], of_b)
    for tensors, more, label in ((of_a, of_b, label_a), (of_b, of_a, label_b)):
        _note_ties(tensors.ties, label, notes)
        for name, kept in tensors.ties.items():
            if name in more:
                tensors[name] = tensors[kept]
    if select is not None:
        patterns = patterns_of(select, "select")
        names_of_both = [*of_a, *of_b]
        of_a, of_b = _selected(patterns, of_a), _selected(patterns, of_b)
        if not (of_a or of_b):
            raise no_match("select", patterns, names_of_both)
    both = [name for name in of_a if name in of_b]
    values = None
    if (
        isinstance(whole_a, Checkpoint)
        and isinstance(whole_b, Checkpoint)
        and select is None
        and names["key"] is None
    ):
        values = _values(whole_a, whole_b, notes, reads=bool(data or cast))
    pairs = [(name, of_a[name], of_b[name]) for name in both]
    found = _structure(pairs, request)
    if data or cast:
        _compare(found, pairs, request, notes, progress, atol=atol, rtol=rtol, cast=cast)
    changed, close = [], []
    for one in found:
        has_data = one.compared_as is not None
        is_close = has_data and one.distant == 0 and (cast or one.dtypes[0] == one.dtypes[1])
        if is_close and (one.different or one.dtypes[0] != one.dtypes[1]):
            close.append(one)
        elif one.dtypes[0] != one.dtypes[1] or one.shapes[0] != one.shapes[1] or one.distant:
            changed.append(one)
    return DiffReport(
        a=label_a,
        b=label_b,
        prefix_a=prefixes[0],
        prefix_b=prefixes[1],
        data=bool(data or cast),
        only_a=[name for name in of_a if name not in of_b],
        only_b=[name for name in of_b if name not in of_a],
        # The worst change first; those that were not compared are different shapes or dtypes.
        changed=sorted(changed, key=_change, reverse=True),
        close=sorted(close, key=_change, reverse=True),
        equal=len(both) - len(changed) - len(close),
        notes=notes,
        seconds=time.perf_counter() - start,
        values=values,
    )


class _Tensors(dict[str, LazyTensor]):
    """Tensors by name, and the tied names that are only in the header."""

    def __init__(self, tensors: Mapping[str, LazyTensor], ties: dict[str, str] | None = None) -> None:
        super().__init__(tensors)
        metadata = tensors.metadata if isinstance(tensors, Checkpoint) else {}
        self.ties = names_left_out(tensors, metadata) if ties is None else ties


def _opened(given: Any, manifest: ManifestLike | None, *, dequantize: bool) -> tuple[str, TensorMapping]:
    """What to call a checkpoint, and it or the selection that was given.

    Raises:
        TypeError: It is a tensor.
        RustloadError: As for `rustload.open`.
    """
    if isinstance(given, Checkpoint):
        return given.files[0] if len(given.files) == 1 else repr(given), given
    if isinstance(given, TensorMapping):
        return repr(given), given
    if hasattr(given, "shape"):
        note = "compare tensors as a selection of each checkpoint: rustload.diff(a.select(name), b.select(name), data=True)"
        raise _error(
            "Type", f"diff takes paths, checkpoints and selections, not a {type(given).__name__}", note
        )
    is_path = isinstance(given, (str, os.PathLike))
    label = shown_path(os.fsdecode(given)) if is_path else f"<{type(given).__name__}>"
    return label, open_checkpoint(given, dequantize=dequantize, manifest=manifest)


def _values(a: Checkpoint, b: Checkpoint, notes: list[str], *, reads: bool) -> list[ValueDiff] | None:
    """What differs of the values that are not tensors; None if they are not compared, with a note if they cannot be."""
    if not reads and "torch-dcp" in (a.format, b.format):
        return None
    try:
        return compare_values(a, b)
    except (RustloadError, OSError, ValueError, RecursionError) as error:
        notes.append(f"the other values were not compared: {error}")
        return None


def _prefix(tensors: _Tensors, others: _Tensors) -> str:
    """The prefix, with its last dot, that all names have, and without which at least half of the other names are among them."""
    if not (tensors and others) or any(name in tensors for name in others):
        return ""
    # What the first and the last one begin with, all names in between do.
    ends = (name.split(".", PREFIX_LEVELS_MAX)[:-1] for name in (min(tensors), max(tensors)))
    parts = [one for one, _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(*ends, strict=False))]
    prefixes = (".".join(parts[:count]) + "." for count in range(1, len(parts) + 1))
    fits = {prefix: sum(prefix + name in tensors for name in others) for prefix in prefixes}
    best = max(fits, key=lambda prefix: fits[prefix], default="")
    return best if best and 2 * fits[best] >= len(others) else ""


def _without(prefix: str, tensors: _Tensors) -> _Tensors:
    """The tensors under their names without a prefix that all have, and their ties."""
    if not prefix:
        return tensors

    def short(name: str) -> str:
        return name.removeprefix(prefix)

    return _Tensors(
        {short(name): tensor for name, tensor in tensors.items()},
        {short(name): short(kept) for name, kept in tensors.ties.items()},
    )


def _change(one: TensorDiff) -> tuple[int, float]:
    """By which tensors are sorted: not compared, then with NaN or infinities, then by how much they differ."""
    if one.compared_as is None:
        return 2, 0.0
    is_broken = bool(one.nan) or math.isinf(one.max_absolute)
    if one.relative_l2 is None:
        return is_broken, one.max_relative if one.distant else 0.0
    return is_broken, one.relative_l2


def _note_ties(ties: dict[str, str], label: str, notes: list[str]) -> None:
    if ties:
        listed = ", ".join(f"{name} = {kept}" for name, kept in list(ties.items())[:4])
        more = f" and {len(ties) - 4} more" if len(ties) > 4 else ""
        notes.append(f"{label} has tied names only in its header: {listed}{more}")


def _selected(patterns: list[str], tensors: _Tensors) -> _Tensors:
    return _Tensors(
        {
            name: tensor
            for name, tensor in tensors.items()
            if any(matches(name, pattern) for pattern in patterns)
        }
    )


def _structure(pairs: list[tuple[str, LazyTensor, LazyTensor]], request: Request) -> list[TensorDiff]:
    """What metadata say of each pair."""

    def dtype(tensor: LazyTensor) -> str:
        return "float32" if request.dequantize and tensor.quantization is not None else tensor._core.dtype

    return [
        TensorDiff(name, (dtype(one), dtype(two)), (tuple(one.shape), tuple(two.shape)))
        for name, one, two in pairs
    ]


def _compare(
    found: list[TensorDiff],
    pairs: list[tuple[str, LazyTensor, LazyTensor]],
    request: Request,
    notes: list[str],
    progress: Progress,
    *,
    atol: float,
    rtol: float,
    cast: bool,
) -> None:
    """Compares the elements of the pairs of equal shape, and adds what it finds to `found`."""
    wanted: list[tuple[int, str, int]] = []
    without_data = 0
    for number, (one, (_, first, second)) in enumerate(zip(found, pairs, strict=True)):
        dtype = _common(*one.dtypes, cast=cast)
        if one.shapes[0] != one.shapes[1] or dtype is None:
            continue
        if any(getattr(tensor._core, "is_meta", False) for tensor in (first, second)):
            without_data += 1
            continue
        wanted.append((number, dtype, math.prod(one.shapes[0]) * DTYPE_ROWS[dtype].itemsize))
    if without_data:
        notes.append(f"{without_data:,} tensors on the meta device have no elements to compare")
    with reporting(progress, sum(nbytes for _, _, nbytes in wanted), "comparing") as report:
        while wanted:
            batch: list[tuple[int, str, int]] = []
            size = 0
            while wanted and (not batch or (size + wanted[-1][2] <= BATCH_BYTES and len(batch) < 1024)):
                size += wanted[-1][2]
                batch.append(wanted.pop())
            # Tensors that need no conversion are read as they are; the requests of the others are few.
            requests = {dtype: request.but(dtype=dtype) for _, dtype, _ in batch}
            results: Any = _rustload.compare(
                [
                    (pairs[number][1]._core, requests[dtype], pairs[number][2]._core, requests[dtype])
                    for number, dtype, _ in batch
                ],
                atol=atol,
                rtol=rtol,
                threads=request.threads,
            )
            for (number, dtype, nbytes), result in zip(batch, results, strict=True):
                report(nbytes, found[number].name)
                total, different, distant, at, *distances = result
                rounded = dtype in ("float64", "complex128") and cast and not distant
                if rounded and not all(_is_in_float64(one, request.threads) for one in pairs[number][1:]):
                    continue
                name, dtypes, shapes, *_ = found[number]
                index = None if at is None else _index(at, shapes[0])
                found[number] = TensorDiff(
                    name, dtypes, shapes, dtype, total, different, distant, index, *distances
                )


def _is_in_float64(tensor: LazyTensor, threads: int | None) -> bool:
    """Whether float64 has all numbers of a tensor."""
    if tensor._core.dtype not in ("int64", "uint64"):
        return True
    found = tensor.stats(threads=threads)
    return all(abs(number or 0) <= 1 << 53 for number in (found.min, found.max))


def _index(number: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The index of an element by its number in C order."""
    index = []
    for size in reversed(shape):
        number, at = divmod(number, size)
        index.append(at)
    return tuple(reversed(index))


def _common(one: str, two: str, *, cast: bool) -> str | None:
    """The dtype to compare two dtypes in; None if there is none. Of two floats of one size, it is with `cast` the second's."""
    if one == two:
        return one
    kinds = {DTYPE_ROWS[one].kind, DTYPE_ROWS[two].kind}
    if "Packed" in kinds:
        return None
    if "Complex" in kinds:
        return "complex128"
    if kinds == {"Float"}:
        sizes = DTYPE_ROWS[one].itemsize, DTYPE_ROWS[two].itemsize
        if sizes[0] == sizes[1]:
            return two if cast else "float32"
        return one if sizes[0] < sizes[1] else two
    if "Float" in kinds:
        return "float64"
    return "float64" if "uint64" in (one, two) else "int64"
