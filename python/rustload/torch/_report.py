"""`LoadReport`, the result of `load_into`, and the error if a checkpoint and a model do not fit."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from rustload._common.similar import did_you_mean, similar
from rustload._common.sizes import format_bytes
from rustload.errors import ModelMismatchError, _no_truth, _printable_lines, _shown

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

NAMES_SHOWN_MAX = 8
PREFIXES_SHOWN_MAX = 3

_OF_CODES = ("_scale_inv", "_packed", "qweight", "_blocks", ".absmax")
"""Ends of names that only quantized weights have."""

_MAKE_BUFFERS = (
    "no file has such buffers: build the model under accelerate.init_empty_weights(include_buffers=False), "
    "or assign each: model.get_submodule(module).register_buffer(name, values, persistent=False)"
)

PART_OF = ", a part of "
"""In `Mismatch.found`, between the shape of a part of a tensor and that of the whole."""


class Mismatch(NamedTuple):
    """A tensor that does not fit.

    Attributes:
        name: Its name in the model.
        found: The shape or dtype in the file.
        expected: The shape or dtype in the model.
    """

    name: str
    found: tuple[int, ...] | str
    expected: tuple[int, ...] | str


class Converted(NamedTuple):
    """A tensor that was cast.

    Attributes:
        name: Its name in the model.
        source: The dtype in the file.
        target: The dtype in the model now.
    """

    name: str
    source: str
    target: str


@dataclasses.dataclass(frozen=True)
class LoadReport:
    """The result of `rustload.torch.load_into`.

    Attributes:
        missing: Parameters and persistent buffers for which the file has neither their name nor a tied one.
        unexpected: Names in the file that the model does not have.
        mismatched: Tensors in both that do not fit; they were not changed.
        converted: Tensors that were cast.
        tied: Groups of names that are now one tensor.
        on_meta: Tensors that are still on the meta device: missing ones, and non-persistent buffers, which no file has and which
            the model's own initialization did not make.
        bytes: Bytes of the loaded tensors, in the model's dtypes; tied tensors count once.
        bytes_read: Bytes of the file's tensors that this process read or mapped, in the file's dtypes: for DTensors, those of its
            own shards. Tensors that the model's own loading code computed with do not count.
        seconds: Wall time from opening to the last tensor.
        peak_host: Peak growth of the process's anonymous memory in bytes, sampled as tensors are finished; None if /proc is not
            available.
        peak_device: Peak growth of torch's allocations in bytes, on all GPUs together; None if CUDA is not in use.
        notes: Remarks that are not errors.
    """

    missing: list[str]
    unexpected: list[str]
    mismatched: list[Mismatch]
    converted: list[Converted]
    tied: list[list[str]]
    on_meta: list[str]
    bytes: int
    bytes_read: int
    seconds: float
    peak_host: int | None
    peak_device: int | None
    notes: list[str]

    def __bool__(self) -> NoReturn:
        """Not defined, as every report would be true.

        Raises:
            TypeError: Always.
        """
        raise _no_truth(self, ".missing, .unexpected and .mismatched")

    def __repr__(self) -> str:
        """The first line of the text."""
        return f"<LoadReport {str(self).partition(chr(10))[0]}>"

    def __str__(self) -> str:
        """One line of text; a second one with what to do if buffers are still on the meta device."""
        rate = f", {self.bytes / self.seconds / 1e9:.2f} GB/s" if self.seconds > 0 else ""
        parts = [f"{format_bytes(self.bytes)} in {self.seconds:.2f} s{rate}"]
        for word in ("converted", "tied", "missing", "unexpected", "mismatched", "on_meta"):
            found = getattr(self, word)
            if found:
                parts.append(f"{len(found)} {word.replace('_', ' ')}")
        if self.peak_host is not None:
            parts.append(f"host peak +{format_bytes(self.peak_host)}")
        if self.peak_device is not None:
            parts.append(f"device peak +{format_bytes(self.peak_device)}")
        unmade = [name for name in self.on_meta if name not in self.missing]
        if not unmade:
            return "; ".join(parts)
        names = ", ".join(map(_shown, unmade[:NAMES_SHOWN_MAX])) + ", ..." * (len(unmade) > NAMES_SHOWN_MAX)
        return f"{'; '.join(parts)}\nto be made before the model runs: {names} ({_MAKE_BUFFERS})"

    def _repr_html_(self) -> str:
        """HTML for notebooks: the line, and the lists that are not empty."""
        from rustload._html.reports import report_html

        lists: dict[str, list[tuple[str, ...]]] = {
            name: [(one,) for one in getattr(self, name)]
            for name in ("missing", "unexpected", "on_meta", "notes")
        }
        lists |= {
            name: [tuple(map(str, one)) for one in getattr(self, name)]
            for name in ("mismatched", "converted", "tied")
        }
        return report_html("LoadReport", str(self), lists)


def mismatch_error(
    source: str,
    model: str,
    missing: Mapping[str, Sequence[int]],
    unexpected: Mapping[str, Sequence[int]],
    mismatched: Sequence[Mismatch],
    messages: Sequence[str] = (),
    *,
    loaded: str | None = None,
) -> ModelMismatchError:
    """The error with everything that does not fit, with similar names and hints. `loaded` says what was loaded, if any."""
    counts = [
        f"{len(found)} {word}"
        for word, found in (
            ("missing", missing),
            ("unexpected", unexpected),
            ("mismatched", mismatched),
            ("refused by the model's own code", messages),
        )
        if found
    ]
    lines = [f"{source} does not fit {model}: {', '.join(counts)}; {loaded or 'nothing was loaded'}"]
    for name in list(missing)[:NAMES_SHOWN_MAX]:
        near = did_you_mean(_near(name, missing[name], unexpected))
        lines.append(f"  missing: {_shown(name)} {list(missing[name])}" + (f" ({near})" if near else ""))
    lines += _more(missing)
    lines += [
        f"  unexpected: {_shown(name)} {list(unexpected[name])}"
        for name in list(unexpected)[:NAMES_SHOWN_MAX]
    ]
    lines += _more(unexpected)
    for one in mismatched[:NAMES_SHOWN_MAX]:
        found, expected = (
            part if isinstance(part, str) else str(list(part)) for part in (one.found, one.expected)
        )
        lines.append(f"  mismatched: {_shown(one.name)} is {found} in the file and {expected} in the model")
    lines += _more(mismatched)
    lines += [f"  {message}" for message in messages]
    error = ModelMismatchError(_printable_lines("\n".join(lines)))
    error.missing, error.unexpected, error.mismatched = list(missing), list(unexpected), list(mismatched)
    hint = prefix_hint(missing, unexpected)
    if hint:
        error.add_note(hint)
    kinds = [one for one in mismatched if isinstance(one.found, str)]
    if any("quantized" in str(one.found) for one in kinds):
        error.add_note(
            "integers of quantized tensors are not weights: rustload.open(path)[name].materialize(dequantize=True) gives them"
        )
    elif any(PART_OF in str(one.found) for one in kinds):
        error.add_note(
            "the file has one process's parts of tensors: give the files of all processes, rustload.open([file, file, ...])"
        )
    elif kinds:
        error.add_note(
            "allow_lossy=True casts floats to ints, complex to real numbers and anything to bool; dtype= changes the model"
        )
    if any(name.endswith(_OF_CODES) for name in unexpected):
        error.add_note("dequantize=True loads the weights that codes and scales of a known scheme mean")
    error.add_note("strict=False loads what fits and reports the rest")
    return error


def _more(found: Mapping[str, Sequence[int]] | Sequence[Mismatch]) -> list[str]:
    return [f"  ... and {len(found) - NAMES_SHOWN_MAX} more"] if len(found) > NAMES_SHOWN_MAX else []


def _near(name: str, shape: Sequence[int], unexpected: Mapping[str, Sequence[int]]) -> list[str]:
    """Similar names in the file: those that differ by a prefix, else those with the same shape, else any."""
    longer = [other for other in unexpected if other.endswith("." + name) or name.endswith("." + other)]
    if longer:
        return longer[:2]
    same = [other for other in unexpected if tuple(unexpected[other]) == tuple(shape)]
    return similar(name, same or unexpected, 2)


def prefix_hint(missing: Mapping[str, object], unexpected: Mapping[str, object]) -> str | None:
    """The hint if most names differ only by a prefix; lists every prefix that fits."""
    in_file = _prefixes(missing, unexpected)
    if in_file:
        first = in_file[0][0]
        under = ", ".join(f"{prefix!r} ({fits} of {len(missing)})" for prefix, fits in in_file)
        others = ", or another of these" if len(in_file) > 1 else ""
        return f"missing names are in the file under {under}: pass strip={first + '.'!r} or key={first!r}{others}"
    in_model = _prefixes(unexpected, missing)
    if in_model:
        prefix, fits = in_model[0]
        many = f"{fits} of {len(unexpected)} names of the file are in the model under {prefix!r}"
        return f"{many}: load into that module, or pass rename=lambda name: {prefix + '.'!r} + name"
    return None


def _prefixes(shorter: Mapping[str, object], longer: Mapping[str, object]) -> list[tuple[str, int]]:
    """The prefixes under which `longer` has most of the names of `shorter`, with how many; the fullest first."""
    found: dict[str, int] = {}
    for name in list(shorter)[:NAMES_SHOWN_MAX]:
        for other in longer:
            prefix = other.removesuffix("." + name)
            if prefix != other and prefix not in found:
                found[prefix] = sum(f"{prefix}.{one}" in longer for one in shorter)
    fitting = [(prefix, fits) for prefix, fits in found.items() if 2 * fits > len(shorter)]
    return sorted(fitting, key=lambda one: -one[1])[:PREFIXES_SHOWN_MAX]
