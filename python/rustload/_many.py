"""What `Checkpoint.stream` and `Checkpoint.materialize` are asked for, checked and put into the core's words."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from rustload import _frameworks, _rustload
from rustload._progress import checked_progress
from rustload._rules import Rules
from rustload._stream import HostMaker, Stream
from rustload._tensor import Overflow, Wanted, _copy, _overflow, _threads
from rustload.errors import _make

if TYPE_CHECKING:
    from rustload._checkpoint import Checkpoint
    from rustload._progress import Progress

__all__ = ["Order", "listed", "parse_bytes", "stream"]

Order: TypeAlias = Literal["file", "name", "given"]

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_UNITS |= {"ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30, "ti": 1 << 40}


def stream(
    ckpt: Checkpoint,
    names: Iterable[str] | None,
    *,
    device: Any,
    dtype: Any,
    transpose: Any,
    memory: int | str,
    order: Order,
    progress: Progress,
    threads: int | None,
    copy: bool | None,
    framework: str | None,
    allow_lossy: bool,
    dequantize: bool,
    overflow: Overflow,
    whole: bool,
) -> Stream:
    """What `Checkpoint.stream` gives, and what is behind `materialize`, whose caller keeps all (`whole`).

    What is wrong with the arguments is told here, before the first tensor.
    """
    if order not in ("file", "name", "given"):
        raise _make("Value", "Value", f"order= is 'file', 'name' or 'given', not {order!r}")
    checked_progress(progress)
    window = parse_bytes(memory, "memory")
    rules = Rules(dtype=dtype, transpose=transpose)
    chosen = listed(ckpt, names)
    if order == "name":
        chosen.sort()
    name = framework or ckpt._shared.settle()
    adapter = _frameworks.adapter(name)
    place = adapter.check_device(device)
    tensors = [ckpt[name] for name in chosen]
    requests: dict[tuple[Any, ...], int] = {}
    wanted: list[Wanted] = []
    which = []
    for tensor in tensors:
        dims = rules.transpose(tensor)
        is_float = bool(dequantize) and tensor.quantization is not None
        key = (
            rules.dtype(tensor, is_float=is_float) or ("float32" if is_float else None),
            tuple(dims) if isinstance(dims, list) else dims,
        )
        if key not in requests:
            requests[key] = len(wanted)
            wanted.append(
                Wanted(
                    dtype=key[0],
                    transpose=dims,
                    copy=_copy(copy),
                    allow_lossy=bool(allow_lossy),
                    dequantize=bool(dequantize),
                    overflow=_overflow(overflow),
                    threads=_threads(threads),
                )
            )
        which.append(requests[key])
    core = _rustload.stream(
        [tensor._core for tensor in tensors],
        wanted,
        which,
        window=window,
        threads=_threads(threads),
        by_file=order == "file",
        standing=name == "torch",
        whole=whole,
    )
    maker = HostMaker(core, tensors, [wanted[number] for number in which], adapter, place)
    return Stream._of(maker, tensors, progress)


def listed(ckpt: Checkpoint, names: Iterable[str] | None) -> list[str]:
    """The names that are meant, in the order given.

    Raises:
        TypeError: `names` is one text, or nothing that can be gone through.
    """
    if names is None:
        return list(ckpt)
    given: Any = names
    if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
        note = "for a pattern, pass ckpt.select('*.weight')"
        raise _make("Type", "Type", f"names= is a list of names, not {given!r}", note)
    return list(given)


def parse_bytes(value: int | str, name: str) -> int:
    """A number of bytes, from a number or a text such as `"256MiB"` or `"5 GB"`.

    Raises:
        ValueError: It is no such text, or not positive.
        TypeError: It is neither a number nor a text.
    """
    if isinstance(value, str):
        found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?i?)b?\s*", value.lower())
        if found is None or found[2] not in _UNITS:
            raise _make("Value", "Value", f"{name}={value!r} is no size; write 268435456, '256MiB' or '1GB'")
        value = int(float(found[1]) * _UNITS[found[2]])
    given: Any = value
    if not isinstance(given, int) or isinstance(given, bool):
        raise _make("Type", "Type", f"{name}= is a number of bytes or a text, not {given!r}")
    if value < 1:
        raise _make("Value", "Value", f"{name}= is a positive number of bytes, not {value}")
    return min(value, 1 << 62)
