"""Per-tensor rules for `dtype=` and `transpose=` of functions that load many tensors.

A rule is one value, a callable that gets the `LazyTensor`, or a mapping from glob patterns to values, of which the first match
is used. A plain dtype applies only to floats of 16 bits and more that do not belong to quantized weights, as scales do; to cast
ints, fp8 or scales, use a mapping or a callable. A plain transpose is an error: it would transpose every matrix of the
checkpoint, embeddings too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from rustload._common.patterns import matches, warn_user
from rustload._common.request import Request
from rustload._rustload import dtype_name
from rustload.errors import _error

if TYPE_CHECKING:
    from collections.abc import Iterable

DEFAULT_CAST_DTYPES = frozenset({"float64", "float32", "float16", "bfloat16"})
"""The dtypes of tensors to which a plain `dtype=` applies."""

T = TypeVar("T")


class TensorInfo(Protocol):
    """The properties of a tensor that a per-tensor rule reads; a user's callable gets the `LazyTensor`, with its new name."""

    @property
    def name(self) -> str:
        """The tensor's name."""

    @property
    def dtype(self) -> str:
        """Its dtype, as torch spells it."""

    @property
    def shape(self) -> Sequence[int]:
        """Its shape."""

    @property
    def _is_kept_as_stored(self) -> bool:
        """Whether a dtype for all tensors leaves it, as it is the codes of a quantized weight or belongs to some."""


class PlainWithPatterns(NamedTuple):
    """The `--dtype` options of the command line.

    Attributes:
        patterns: The dtypes of patterns, which count first.
        plain: The plain dtype, for the others.
    """

    patterns: Mapping[str, str]
    plain: str


class Rules:
    """Evaluates `dtype=` and `transpose=` for each tensor.

    >>> import rustload
    >>> ckpt = rustload.open("model.pt")
    >>> rules = Rules(dtype="bfloat16", transpose={"*head.weight": True})
    >>> rules.dtype(ckpt["q.weight"]), rules.transpose(ckpt["q.weight"])
    ('bfloat16', None)
    >>> rules.transpose(ckpt["lm_head.weight"])
    True
    """

    depends_on_dtype_only: bool
    """Whether tensors of the same dtype get the same dtype and transpose, except for quantized ones."""

    _first: Callable[[TensorInfo], str | None]
    _dtype: Callable[[TensorInfo], str | None]
    _transpose: Callable[[TensorInfo], bool | list[int] | None]

    def __init__(self, dtype: Any = None, transpose: Any = None) -> None:
        """Checks the rules as far as possible without a tensor.

        Args:
            dtype: A dtype, a callable from handle to dtype, or a mapping from glob patterns to dtypes; or `PlainWithPatterns`.
                None keeps the file's.
            transpose: The same, with True (swap the last two dimensions), a permutation, or None as values; a plain value is an
                error.

        Raises:
            ValueError: A dtype does not exist, or the transpose is a plain value.
            TypeError: A value has a wrong type.
        """
        patterns = None
        if isinstance(dtype, PlainWithPatterns):
            patterns, dtype = dtype
        self._first = _rule(patterns, _dtype)
        # A class is a NumPy scalar type here, not a rule to call.
        self._is_plain_dtype = not isinstance(dtype, Mapping) and (
            not callable(dtype) or isinstance(dtype, type)
        )
        self._dtype = _rule(dtype, _dtype)
        if transpose not in (None, False) and not isinstance(transpose, Mapping) and not callable(transpose):
            raise _error(
                "Value",
                f"transpose={transpose!r} for all tensors at once is not allowed: a rule has to select the tensors to transpose",
                "use glob patterns, such as transpose={'*_proj.weight': True}, or a callable",
            )
        self._transpose = _rule(transpose, _transpose)
        self.depends_on_dtype_only = self._is_plain_dtype and patterns is None and transpose in (None, False)

    def dtype(self, tensor: TensorInfo, *, is_float: bool = False) -> str | None:
        """The dtype of the result, as torch spells it; None to keep the tensor's.

        Args:
            tensor: The handle.
            is_float: Whether a plain dtype applies whatever the tensor's dtype is, because its integers are dequantized to
                floats.
        """
        first = self._first(tensor)
        if first is not None:
            return first
        if self._is_plain_dtype and not is_float and not _is_cast(tensor):
            return None
        return self._dtype(tensor)

    def kept(self, tensors: Iterable[TensorInfo]) -> list[str]:
        """The names of tensors that a plain dtype would change, if they did not belong to quantized weights."""
        if not self._is_plain_dtype:
            return []
        others = (tensor for tensor in tensors if self._first(tensor) is None)
        floats = (tensor for tensor in others if tensor.dtype in DEFAULT_CAST_DTYPES)
        changed = (tensor for tensor in floats if self._dtype(tensor) not in (None, tensor.dtype))
        return [tensor.name for tensor in changed if tensor._is_kept_as_stored]

    def warn_of_kept(self, tensors: Iterable[TensorInfo]) -> None:
        """Warns of the tensors that `kept` returns."""
        if names := self.kept(tensors):
            warn_user(kept_text(names), argument="dtype")

    def transpose(self, tensor: TensorInfo) -> bool | list[int] | None:
        """True to swap the last two dimensions, a permutation, or None.

        Raises:
            ValueError: The rule swaps two dimensions of a tensor that has fewer.
        """
        dims = self._transpose(tensor) or None
        if dims is True and len(tensor.shape) < 2:
            raise _error(
                "Value",
                f"transpose needs 2 dimensions or more, the tensor has {len(tensor.shape)} ({tensor.name})",
                "a pattern such as '*.weight' matches vectors too, as those of norms: use one that matches "
                "matrices only; in Python also a callable, such as lambda t: t.ndim == 2",
            )
        return dims


def _is_cast(tensor: TensorInfo) -> bool:
    """Whether a plain dtype applies to a tensor."""
    return tensor.dtype in DEFAULT_CAST_DTYPES and not tensor._is_kept_as_stored


def kept_text(names: Sequence[str]) -> str:
    """What a dtype for all tensors does with those that are kept as stored."""
    pattern = f"*{names[0].rpartition('.')[2]}"
    return (
        f"leaves {len(names):,} tensor(s) that belong to quantized weights as stored, such as {names[0]!r}: "
        f"dequantize=True decodes the weights, the pattern {pattern!r} casts these"
    )


def _dtype(value: Any) -> str | None:
    return None if value is None else dtype_name(value)


def _transpose(value: Any) -> bool | list[int] | None:
    return Request(transpose=value).transpose


def _rule(value: Any, checked: Callable[[Any], T | None]) -> Callable[[TensorInfo], T | None]:
    """Converts a rule to a function. Plain and mapped values are checked now, the results of a callable when it is called."""
    if isinstance(value, Mapping):
        patterns = [(pattern, checked(found)) for pattern, found in value.items()]
        return lambda tensor: next(
            (found for pattern, found in patterns if matches(tensor.name, pattern)), None
        )
    if callable(value) and not isinstance(value, type):
        return lambda tensor: _call(value, checked, tensor)
    plain = checked(value)
    return lambda _: plain


def _call(
    value: Callable[[TensorInfo], Any], checked: Callable[[Any], T | None], tensor: TensorInfo
) -> T | None:
    try:
        return checked(value(tensor))
    except Exception as error:
        error.add_note(f"for tensor {tensor.name!r}")
        raise
