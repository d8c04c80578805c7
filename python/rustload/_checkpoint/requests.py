"""What `Checkpoint.stream` and `Checkpoint.materialize` are asked for, checked and put into the core's words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from rustload._checkpoint.makers import maker_for
from rustload._checkpoint.stream import Stream
from rustload._common.progress import checked_progress
from rustload._common.request import (
    Cast,
    Overflow,
    Wanted,
    checked_cast,
    checked_copy,
    checked_overflow,
    checked_threads,
)
from rustload._common.rules import Rules
from rustload._common.sizes import parse_bytes
from rustload._frameworks import adapters
from rustload.errors import _make

if TYPE_CHECKING:
    from rustload._common.progress import Progress
    from rustload._frameworks.adapters import Shared
    from rustload._tensor.handle import LazyTensor

__all__ = ["Order", "listed", "stream"]

Order: TypeAlias = Literal["file", "name", "given"]


def stream(
    ckpt: Mapping[str, LazyTensor],
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
    shared: Shared,
    allow_lossy: bool,
    dequantize: bool,
    overflow: Overflow,
    whole: bool,
    cast: Cast,
    sync: bool,
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
    name = framework or shared.settle()
    adapter = adapters.adapter(name)
    where = adapter.check_device(device)
    cast = checked_cast(cast)
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
                    copy=checked_copy(copy),
                    allow_lossy=bool(allow_lossy),
                    dequantize=bool(dequantize),
                    overflow=checked_overflow(overflow),
                    threads=checked_threads(threads),
                )
            )
        which.append(requests[key])
    maker = maker_for(
        tensors,
        wanted,
        which,
        adapter,
        where,
        by_file=order == "file",
        window=window,
        ahead=None if whole else window,
        threads=checked_threads(threads),
        standing=name == "torch",
        whole=whole,
        cast=cast,
        sync=bool(sync),
    )
    return Stream._of(maker, tensors, progress)


def listed(ckpt: Mapping[str, LazyTensor], names: Iterable[str] | None) -> list[str]:
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
