"""`open`: the way in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

from rustload import _rustload
from rustload._checkpoint.checkpoint import Checkpoint
from rustload._common.limits import Limits
from rustload._common.paths import StrPath, beneath, contents, paths, repository
from rustload._frameworks import adapters
from rustload.errors import _make

if TYPE_CHECKING:
    from collections.abc import Iterable
    from io import BytesIO

__all__ = ["open"]

Framework: TypeAlias = Literal["torch", "numpy", "jax", "cupy", "dlpack", "pt", "pytorch", "np", "flax"]


def open(
    path: StrPath | Iterable[StrPath] | bytes | bytearray | memoryview | BytesIO,
    *,
    framework: Framework | None = None,
    unknown: Literal["keep", "error"] = "keep",
    verify: bool = False,
    limits: Limits | None = None,
    compat: bool = False,
    trailing: Literal["error", "ignore"] = "error",
    io: Literal["auto", "buffered", "direct"] = "auto",
) -> Checkpoint:
    """Opens a checkpoint: reads its metadata, and nothing that it names is imported, called or built.

    Args:
        path: A file, a directory, an index file (`*.index.json`), a list of shards; or the bytes of one file in memory, as a
            `bytearray`, `memoryview` or `BytesIO`, or as `bytes`. Of these, fewer than 4096 without a zero among them are a path.
        framework: What `materialize` makes: `"torch"`, `"numpy"`, `"jax"`, `"cupy"` or `"dlpack"`; safetensors' words `"pt"`,
            `"np"` and `"flax"` mean the first three. None: torch if it is installed, else NumPy, else plain buffers; settled
            at the first materialize.
        unknown: `"keep"` keeps values of unknown classes as inert data, `"error"` refuses the file.
        verify: Whether the checksums of all storages are checked now, which reads the whole file. Archives only.
        limits: Bounds on what the file may make the reader do.
        compat: Whether duplicate keys in a safetensors header are accepted as by the reference reader: the last wins.
        trailing: Whether bytes after the end of an archive or its pickle are an error or passed over.
        io: How tensors are read into owned results. `"buffered"`: through the page cache. `"direct"`: around it, where the file
            system can (`notes` says where not), which is the disk's own speed and leaves nothing in memory for the next time.
            `"auto"`: direct for a file on a local disk that is not in the page cache and larger than half of the free memory,
            buffered otherwise; and on network file systems tensors are read rather than viewed, unless `copy=False` asks for
            a view. `rustload doctor` shows the choice.

    Returns:
        The checkpoint, a mapping from names to lazy tensors.

    Raises:
        FormatError: The file is no checkpoint, or a damaged one.
        UnsupportedError: The file is of a kind that is not read yet.
        DisallowedError: The pickle names something unknown, and `unknown="error"`.
        LimitError: The file is beyond a limit.
        OSError: The file cannot be read.
        TypeError: `path` is neither a path nor bytes; open files are not taken.
    """
    chosen = None if framework is None else adapters.named(framework)
    if io not in ("auto", "buffered", "direct"):
        raise _make("Value", "Value", f"io={io!r} is not 'auto', 'buffered' or 'direct'")
    if limits is not None and not isinstance(limits, Limits):
        raise _make("Type", "Type", f"limits= is a rustload.Limits, not {limits!r}")
    given = {} if limits is None else limits._given()
    data = contents(path)
    if data is not None:
        core = _rustload.open_bytes(
            data, unknown=unknown, trailing=trailing, compat=compat, verify=verify, limits=given
        )
    else:
        wanted = [repository(one) for one in paths(path)]
        with beneath(wanted):
            core = _rustload.open_paths(
                wanted, unknown=unknown, trailing=trailing, compat=compat, verify=verify, limits=given, io=io
            )
    return Checkpoint._wrap(core, chosen)
