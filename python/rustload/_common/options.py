"""Groups of keyword arguments that functions share, each written once: names, types, defaults and descriptions.

A function takes a group as `**options: Unpack[Group]`, which type checkers and editors read. At run time, `takes(Group)` gives it
the signature with each keyword, and the description of each in place of that of `**options`, so that `help()` shows them.
"""

from __future__ import annotations

from rustload._common.similar import did_you_mean, similar
from rustload.errors import _error

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, ClassVar, Literal, TypeVar
    from typing import TypedDict as Group

    from rustload._common.patterns import Key, Rename, Strip
    from rustload._common.progress import Progress
    from rustload._common.request import Cast, Overflow
    from rustload._rustload import Limits

    _F = TypeVar("_F", bound=Callable[..., Any])
    _G = TypeVar("_G", bound=Mapping[str, object])
else:

    class Group:
        """In place of `TypedDict`, which is slow to make. It has the keywords of its bases, then its own."""

        _types: ClassVar[dict[str, str]] = {}
        _text = ""

        def __init_subclass__(cls, *, total=False):
            own = (cls.__doc__ or "").partition("Args:")[2].rstrip()
            cls._text = "".join([base._text for base in cls.__bases__]) + own
            cls._types = {}
            for base in cls.__bases__:
                cls._types |= base._types
            cls._types |= cls.__annotations__


_DEFAULTS: dict[str, object] = {
    "allow_lossy": False,
    "cast": "auto",
    "compat": False,
    "dequantize": False,
    "discard": (),
    "fsync": True,
    "io": "auto",
    "keep": (),
    "memory": "256MiB",
    "overflow": "nan",
    "resume": False,
    "sync": True,
    "ties": "auto",
    "trailing": "error",
    "unknown": "keep",
    "verify": False,
    "write_manifest": False,
}
"""The default of a keyword, in whatever group; None for all others."""


def takes(group: Any) -> Callable[[_F], _F]:
    """Decorates a function that has the keywords of a group as `**options`: gives it the signature and description of each."""

    def decorate(function: Any) -> Any:
        code = function.__code__
        own = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        names = (*own, *group._types)
        shown = type(function)(
            _nothing.__code__.replace(
                co_argcount=code.co_argcount,
                co_kwonlyargcount=len(names) - code.co_argcount,
                co_nlocals=len(names),
                co_varnames=names,
                co_filename=code.co_filename,
                co_firstlineno=code.co_firstlineno,
            ),
            function.__globals__,
            function.__name__,
            function.__defaults__,
        )
        function.defaults = {name: _DEFAULTS.get(name) for name in group._types}
        shown.__kwdefaults__ = {**(function.__kwdefaults__ or {}), **function.defaults}
        shown.__annotations__ = {**function.__annotations__, **group._types}
        del shown.__annotations__["options"]
        shown.__qualname__ = function.__qualname__
        if function.__doc__:
            before, _, rest = function.__doc__.partition("**options:")
            # The margins: functions and methods differ, and Python removes them from version 3.13 on.
            start, margin = before.rstrip(), before[before.rindex("\n") :]
            text = group._text.replace(group._text[: -len(group._text.lstrip())], margin)
            function.__doc__ = shown.__doc__ = start + text + "\n" + rest.partition("\n")[2]
        function.__wrapped__ = shown  # `inspect` follows it, and takes longer to import than this package
        return function

    return decorate


def filled(function: Callable[..., Any], options: _G) -> _G:
    """The keywords that a function with `takes` was called with, and the defaults of the others.

    Raises:
        TypeError: The function has no such keyword.
    """
    defaults: dict[str, object] = function.defaults  # type: ignore[attr-defined]  # set by `takes`
    found = {**defaults, **options}
    if len(found) == len(defaults):
        return found  # type: ignore[return-value]  # it has the keywords of the group
    name = next(name for name in options if name not in defaults)
    known = function.__wrapped__.__code__.co_varnames  # type: ignore[attr-defined]  # as well
    text = f"{function.__qualname__}() got an unexpected keyword argument {name!r}"
    raise _error("Type", text, did_you_mean(similar(name, known)))


def part(group: type[_G], options: Mapping[str, Any]) -> _G:
    """The keywords of one group, of those of several."""
    return {name: options[name] for name in group._types}  # type: ignore[attr-defined,return-value]  # of `Group`


def _nothing() -> None: ...


class OpenOptions(Group, total=False):
    """How a file is read when it is opened.

    Args:
        unknown: `"keep"` keeps values of unknown classes as inert data, and lists arrays of a NumPy archive whose elements are
            no numbers; `"error"` raises DisallowedError for the first, UnsupportedError for the second.
        limits: Upper bounds on the memory and work that the file can cause.
        compat: Whether to accept duplicate keys in a safetensors header as the reference reader does: the last one wins.
        trailing: Whether bytes after the end of an archive, a pickle or a NumPy array are an error or ignored.
        io: How tensors are read into owned results. `"buffered"`: through the page cache. `"direct"`: with O_DIRECT if the
            file system supports it (`notes` says if not), at the speed of the disk and without filling the page cache.
            `"auto"`: direct for a file on a local disk that is not in the page cache and larger than half of the free memory,
            buffered otherwise; on network file systems, tensors are read rather than viewed unless `copy=False`.
            `rustload doctor` shows the choice.
    """

    unknown: Literal["keep", "error"]
    limits: Limits | None
    compat: bool
    trailing: Literal["error", "ignore"]
    io: Literal["auto", "buffered", "direct"]


class NamesOptions(Group, total=False):
    """Which tensors, and under which names.

    Args:
        key: The key under which the tensors are nested: a dotted name such as `"state_dict"`, or a tuple of keys such as
            `("model", "ema")`. Other tensors are left out, and names are the rest.
        strip: A prefix, or several of which the first that fits is removed from a name: `"module."`, with or without the last
            dot.
        rename: New names, after `key` and `strip`: a mapping from names, prefixes of names or compiled regular expressions
            (replaced as by `re.sub`); pairs of a regular expression and its replacement; or a callable from name to name. A new
            name of None leaves the tensor out.
    """

    key: Key
    strip: Strip
    rename: Rename


class SourceOptions(NamesOptions, total=False):
    """What to load of a checkpoint.

    Args:
        limits: Upper bounds on the memory and work that the file can cause.
    """

    limits: Limits | None


class CastOptions(Group, total=False):
    """Which conversions of numbers are made.

    Args:
        allow_lossy: Whether to allow casts from complex to real, from float to int, and to bool. A float out of the range of the
            int saturates, and NaN becomes 0.
        dequantize: Whether to convert the integers of torch's quantized tensors to numbers, in float32 or the float dtype of
            `dtype`; codes of other quantized weights are then an error. Functions that take a path open it with `dequantize`,
            as `rustload.open`, which decodes these. It has no effect on tensors that are numbers as they are.
    """

    allow_lossy: bool
    dequantize: bool


class RequestOptions(CastOptions, total=False):
    """What a result is.

    Args:
        copy: None returns a view of the file (a private mapping, no anonymous memory) without a cast or transpose,
            and owned memory otherwise. True always returns owned memory. False returns a view or raises.
        overflow: The result of a cast to fp8 for values out of range: `"nan"` (as in the OCP specification) or `"saturate"`.
    """

    copy: bool | None
    overflow: Overflow


class ReadOptions(RequestOptions, total=False):
    """What a result is, and how it gets to the framework.

    Args:
        framework: `"torch"`, `"numpy"`, `"jax"`, `"cupy"` or `"dlpack"`, in place of the checkpoint's.
        cast: Where a result on a GPU is cast and transposed, and for torch decoded. `"cpu"`: while reading. `"gpu"`: after the
            H2D copy, if the result is bit-equal. `"auto"`: the CPU casts if that makes the copy shorter and not slower, and the
            GPU does the rest. Quantized weights are decoded on the CPU, too, where that makes the copy shorter. No effect on
            results on the CPU.
        writable: Whether a view may be written to. True: it is of a copy-on-write mapping, and what is written stays in this
            process. False: of a read-only one, which a device's driver can pin without a copy of each page; a write is an error
            in NumPy, and ends the process (SIGSEGV) in torch. None: True for torch and `Buffer`, False for NumPy, JAX and CuPy.
            Owned results are always writable.
        sync: Whether a result on a GPU is complete when it is returned. If False, it is complete for all work that you enqueue on
            the current stream (torch and CuPy; others are always complete). No effect on results on the CPU.
    """

    framework: str | None
    cast: Cast
    writable: bool | None
    sync: bool


class WorkOptions(Group, total=False):
    """What work on many tensors may use, and where it is shown.

    Args:
        memory: The most bytes of buffers: results that are in progress or not yet taken, recycled memory of freed results, and
            scratch; to write, a quarter of what the process may still take if that is less. A number, or a str such as
            `"256MiB"`.
        progress: True for a progress bar on stderr, or a callback `(bytes done, total bytes, name)`; None for no output.
        threads: The number of threads; None for up to one per core, depending on the size.
    """

    memory: int | str
    progress: Progress
    threads: int | None


class StreamOptions(NamesOptions, ReadOptions, WorkOptions, total=False):
    """The names of results, what they are, and how they are read."""


class StatsOptions(Group, total=False):
    """How statistics are made.

    Args:
        sample: Reads about so many elements of a tensor, in up to 64 runs that are spread evenly, instead of all. Counts and
            extremes are then of the sample.
        bins: The number of bins of the histogram from the smallest to the largest finite number; None for no histogram. For
            dtypes of more than 16 bits, the data is read twice.
        dequantize: Whether numbers of a quantized tensor are the dequantized ones, as for `LazyTensor.materialize`.
        threads: The number of threads; None for up to one per core, depending on the size.
    """

    sample: int | None
    bins: int | None
    dequantize: bool
    threads: int | None
