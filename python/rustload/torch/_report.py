"""What a load did, and the one error for a checkpoint and a model that do not fit."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, NamedTuple

from rustload._common.similar import did_you_mean, similar
from rustload._common.sizes import format_bytes
from rustload.errors import ModelMismatchError, _clipped

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Converted", "LoadReport", "Mismatch", "mismatch_error", "prefix_hint"]

SHOWN = 8


class Mismatch(NamedTuple):
    """A tensor that does not fit.

    Attributes:
        name: Its name in the model.
        found: What the file has: a shape, or a dtype.
        expected: What the model has.
    """

    name: str
    found: tuple[int, ...] | str
    expected: tuple[int, ...] | str


class Converted(NamedTuple):
    """A tensor that was cast on the way.

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
    """What `rustload.torch.load_into` did.

    Attributes:
        missing: Names of parameters and persistent buffers that the file does not have, nor a name they are tied to.
        unexpected: Names in the file that the model does not have.
        mismatched: What is in both and does not fit, and was left alone.
        converted: What was cast.
        tied: The groups of names that are one tensor now.
        on_meta: What is on the meta device still: buffers that no file has because they are not persistent, and what is missing.
            The model has to make these itself.
        bytes: Bytes of the tensors that were filled, in the model's dtypes, tied ones once.
        seconds: Wall time from opening to the last tensor.
        peak_host: How much the process's anonymous memory grew at most, in bytes, measured as tensors were finished; None where
            the system does not tell.
        peak_device: How much the memory that torch allocated on GPUs grew at most, in bytes, all GPUs together; None where none
            took part.
        notes: Things worth knowing that are no error.
    """

    missing: list[str]
    unexpected: list[str]
    mismatched: list[Mismatch]
    converted: list[Converted]
    tied: list[list[str]]
    on_meta: list[str]
    bytes: int
    seconds: float
    peak_host: int | None
    peak_device: int | None
    notes: list[str]

    def __str__(self) -> str:
        """A line for people."""
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
        return "; ".join(parts)


def mismatch_error(
    source: str,
    model: str,
    missing: Mapping[str, Sequence[int]],
    unexpected: Mapping[str, Sequence[int]],
    mismatched: Sequence[Mismatch],
    messages: Sequence[str] = (),
    *,
    loaded: bool = False,
) -> ModelMismatchError:
    """The one error for all that does not fit, with near names and what may have been meant."""
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
    what = (
        "what fits was loaded, since hooks that run then have the last word"
        if loaded
        else "nothing was loaded"
    )
    lines = [f"{source} does not fit {model}: {', '.join(counts)}; {what}"]
    for name in list(missing)[:SHOWN]:
        near = did_you_mean(_near(name, missing[name], unexpected))
        lines.append(f"  missing: {_clipped(name)} {list(missing[name])}" + (f" ({near})" if near else ""))
    lines += _more(missing)
    lines += [f"  unexpected: {_clipped(name)} {list(unexpected[name])}" for name in list(unexpected)[:SHOWN]]
    lines += _more(unexpected)
    for one in mismatched[:SHOWN]:
        found, expected = (
            part if isinstance(part, str) else str(list(part)) for part in (one.found, one.expected)
        )
        lines.append(f"  mismatched: {_clipped(one.name)} is {found} in the file and {expected} in the model")
    lines += _more(mismatched)
    lines += [f"  {message}" for message in messages]
    error = ModelMismatchError("\n".join(lines))
    error.missing, error.unexpected, error.mismatched = list(missing), list(unexpected), list(mismatched)
    hint = prefix_hint(missing, unexpected)
    if hint:
        error.add_note(hint)
    kinds = [one for one in mismatched if isinstance(one.found, str)]
    if any("quantized" in str(one.found) for one in kinds):
        error.add_note(
            "integers of quantized tensors are no weights: rustload.open(path)[name].materialize(dequantize=True) gives them"
        )
    elif kinds:
        error.add_note(
            "allow_lossy=True casts floats to ints, complex to real numbers and anything to bool; dtype= changes the model"
        )
    error.add_note("strict=False loads what fits and reports the rest")
    return error


def _more(found: Mapping[str, Sequence[int]] | Sequence[Mismatch]) -> list[str]:
    return [f"  ... and {len(found) - SHOWN} more"] if len(found) > SHOWN else []


def _near(name: str, shape: Sequence[int], unexpected: Mapping[str, Sequence[int]]) -> list[str]:
    """Names in the file that may be the one: those that end in it, or look like it and have its shape if any has."""
    longer = [other for other in unexpected if other.endswith("." + name) or name.endswith("." + other)]
    if longer:
        return longer[:2]
    same = [other for other in unexpected if tuple(unexpected[other]) == tuple(shape)]
    return similar(name, same or unexpected, 2)


def prefix_hint(missing: Mapping[str, object], unexpected: Mapping[str, object]) -> str | None:
    """What to pass where most names differ by a prefix alone; names every prefix that fits."""
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
    """The prefixes under which `longer` has at least half of the names of `shorter`, with how many; the fullest first."""
    found: dict[str, int] = {}
    for name in list(shorter)[:SHOWN]:
        for other in longer:
            prefix = other.removesuffix("." + name)
            if prefix != other and prefix not in found:
                found[prefix] = sum(f"{prefix}.{one}" in longer for one in shorter)
    fitting = [(prefix, fits) for prefix, fits in found.items() if 2 * fits >= len(shorter)]
    return sorted(fitting, key=lambda one: -one[1])[:SHOWN]
