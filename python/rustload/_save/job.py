"""What `save` and `convert` write: names, values and conversions, and the options of the extension."""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from rustload._common.dtype_rows import DTYPE_ROWS
from rustload._common.options import CastOptions, part
from rustload._common.request import Request
from rustload._common.rules import Rules
from rustload._common.sizes import parse_bytes
from rustload._save.arrays import unsupported
from rustload._tensor.handle import LazyTensor, new_handle
from rustload.errors import _error, _pass

if TYPE_CHECKING:
    from collections.abc import Callable

    from rustload import _rustload
    from rustload._save.arrays import Values
    from rustload._save.options import SaveOptions

SHARD_BYTES = 50_000_000_000
"""The most bytes of tensors in one file of a folder, as in transformers."""

_PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


class _Info(NamedTuple):
    """What a rule for `dtype=` or `transpose=` reads of an array."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of all elements together."""
        return self.numel() * DTYPE_ROWS[self.dtype].itemsize

    def numel(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def _is_kept_as_stored(self) -> bool:
        return False


def _make_named_class(kind: Any) -> Any:
    """The class of lazy tensors of a kind that have a name of their own; parts of them have not."""
    return type(kind.__name__, (kind,), {"__slots__": ("name",), "_wrap": kind._wrap})


_named_class = functools.cache(_make_named_class)


def _named(name: str, tensor: LazyTensor) -> Any:
    """What a rule reads of a lazy tensor: itself, with the name that it is written under."""
    if tensor.name == name:
        return tensor
    kind: Any = type(tensor)
    named = new_handle(_named_class(kind), tensor._core, tensor._context)
    named.name = name
    return named


class File(NamedTuple):
    """A safetensors file of a folder, as the extension takes it.

    Attributes:
        path: Its path in the folder.
        tensors: Names, values, and their conversions.
        metadata: The texts of its header.
        listed_in: The path of the index that lists it, or None.
        whole: The texts of the checkpoint as a whole: in the index if there is one, else in the header.
        max_shard_size: The most bytes of tensors, above which it is several files; None for one.
    """

    path: str
    tensors: list[tuple[str, Values, Request]]
    metadata: list[tuple[str, str]]
    listed_in: str | None
    whole: list[tuple[str, str]]
    max_shard_size: int | None


class Job:
    """The conversions of a call, and the tensors that they are for.

    Attributes:
        tensors: The number of tensors.
        converted: The number of tensors that are cast, transposed or dequantized.
        kept: The names of tensors that a dtype for all leaves, as they belong to quantized weights.
        nbytes: The bytes of all tensors, as they are written.
    """

    def __init__(self, options: SaveOptions) -> None:
        """Starts without tensors."""
        self.tensors = 0
        self.converted = 0
        self.kept: list[str] = []
        self.nbytes = 0
        self._rules = Rules(dtype=options["dtype"], transpose=options["transpose"])
        self._plain = Request(copy=True, threads=options["threads"], **part(CastOptions, options))

    def add(self, name: str, value: Any, core: Values) -> tuple[str, Values, Request]:
        """The tensor with its conversion; `value` is as the user gave it, `core` as the extension writes it."""
        dequantizes = False
        if isinstance(value, LazyTensor):
            dequantizes = self._plain.dequantize and value._is_scaled()
            if value.quantization is not None and not dequantizes:
                raise unsupported(name, "a quantized tensor", _pass("dequantize", "to decode it", value=True))
            info = _named(name, value)
        else:
            info = _Info(name, core[0], core[1])  # type: ignore[index]  # a tuple, as the value is not a lazy tensor
        dims = self._rules.transpose(info)
        dtype = self._rules.dtype(info, is_float=dequantizes) or ("float32" if dequantizes else None)
        is_decoded = dequantizes or (isinstance(value, LazyTensor) and value.scheme is not None)
        if info._is_kept_as_stored and not is_decoded:
            self.kept += self._rules.kept([info])
        self.tensors += 1
        self.nbytes += math.prod(info.shape) * DTYPE_ROWS[dtype or info.dtype].itemsize
        self.converted += is_decoded or dims is not None or dtype not in (None, info.dtype)
        return name, core, self._plain.but(dtype=dtype, transpose=dims)


def packed_names(items: Mapping[str, Any]) -> list[str]:
    """The names of tensors that use a part of their storage only."""
    torch = sys.modules.get("torch")
    numpy = sys.modules.get("numpy")
    packed = []
    for name, value in items.items():
        whole = None
        if isinstance(value, LazyTensor):
            whole = getattr(value._core, "storage_nbytes", None)  # joined tensors have none
        elif torch is not None and isinstance(value, torch.Tensor):
            whole = value.untyped_storage().nbytes() if value.layout == torch.strided else None
        elif numpy is not None and isinstance(value, numpy.ndarray):
            whole = value.base.nbytes if isinstance(value.base, numpy.ndarray) else None
        if whole is not None and value.nbytes < whole:
            packed.append(name)
    return packed


def header_texts(metadata: Mapping[str, str] | None) -> dict[str, str]:
    """The metadata of a file as the user gave them; without, those that transformers needs.

    Raises:
        TypeError: A key or a value is not text.
    """
    if metadata is None:
        return {"format": "pt"}
    given: Any = metadata
    if not isinstance(given, Mapping):
        raise _error("Type", f"is texts by texts, not {given!r}", argument="metadata")
    for key, value in given.items():
        if not (isinstance(key, str) and isinstance(value, str)):
            raise _error("Type", f"is texts by texts, not {value!r} at {key!r}", argument="metadata")
    return dict(metadata)


def write_options(
    options: SaveOptions, report: Callable[[str, int, bool], None] | None = None
) -> _rustload._WriteOptions:
    """The options of the extension. It calls `report` with a tensor's name, a number of bytes, and whether they are reused.

    Raises:
        ValueError: `memory` is not a size.
    """
    return {
        "overwrite": bool(options["overwrite"]),
        "sync": bool(options["fsync"]),
        "verify": bool(options.get("verify")),
        "resume": bool(options.get("resume")),
        "manifest": bool(options.get("write_manifest")),
        "memory": parse_bytes(options["memory"], "memory"),
        "threads": options["threads"],
        "report": report,
    }


def shard_bytes(max_shard_size: int | str | None) -> int | None:
    """The argument `max_shard_size=` in bytes.

    Raises:
        ValueError: It is not a size.
    """
    return None if max_shard_size is None else parse_bytes(max_shard_size, "max_shard_size")


def check_name(name: str) -> str:
    """The name of a folder's files without its extension.

    Raises:
        TypeError: It is not a str.
        ValueError: It is not a name of a file.
    """
    if not isinstance(name, str):
        raise _error("Type", f"is a str, not {name!r}", argument="name")
    stem = name.removesuffix(".safetensors")
    if not stem or "/" in stem or "\0" in stem:
        raise _error("Value", f"{name!r} is not a name of a file", argument="name")
    return stem


def refuse_pickle_name(where: str) -> None:
    """Checks that a target is not named as a pickle.

    Raises:
        ValueError: It is.
    """
    stem, dot, suffix = where.rpartition(".")
    if dot + suffix.lower() in _PICKLE_SUFFIXES:
        note = f"write {stem + '.safetensors'!r}"
        raise _error("Value", f"rustload writes no pickles, and {where!r} is the name of one", note)
