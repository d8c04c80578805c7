"""`rustload.jax.load`: a checkpoint as a pytree of JAX arrays, from any format and without torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rustload._checkpoint.checkpoint import Checkpoint
from rustload._checkpoint.names import Key, Rename, Strip, named, unflatten
from rustload._checkpoint.open import open as open_checkpoint
from rustload._common.patterns import check_rules
from rustload._common.progress import Progress, reporting
from rustload._common.rules import Rules
from rustload._frameworks import adapters

if TYPE_CHECKING:
    from rustload._common.limits import Limits

__all__ = ["load", "unflatten"]


def load(
    path: Any,
    *,
    key: Key = None,
    strip: Strip = None,
    rename: Rename = None,
    dtype: Any = None,
    transpose: Any = None,
    device: Any = None,
    nested: bool = True,
    copy: bool | None = None,
    allow_lossy: bool = False,
    progress: Progress = None,
    limits: Limits | None = None,
) -> dict[str, Any]:
    """Reads the tensors of a checkpoint as JAX arrays, one at a time.

    Args:
        path: What `rustload.open` takes, or an open checkpoint.
        key: What the wanted tensors are nested under in the file, such as `"state_dict"`.
        strip: A prefix, or several, to take off names.
        rename: Other names: a mapping, pairs of a regular expression and a replacement, or a callable.
        dtype: A dtype for float tensors, a mapping from glob patterns of the file's names, or a callable. None keeps the file's.
        transpose: A mapping from glob patterns, or a callable, that says True (the last two dimensions swapped, as Flax wants the
            kernels of torch's linear layers) or gives an order of dimensions.
        device: A JAX device, its name such as `"cpu"` or `"cuda:0"`, or a sharding; None is JAX's default.
        nested: Whether names are taken apart at dots into dicts in dicts; else the dict is flat.
        copy: As for `LazyTensor.materialize`.
        allow_lossy: Whether a cast may change the kind of number.
        progress: True for a bar on stderr, or a callable `(bytes done, bytes in all, name)`.
        limits: Bounds on what the file may make the reader do.

    Returns:
        The arrays; names that are tied in the file have one array.

    Raises:
        UnsupportedError: A tensor is 64 bits wide and JAX is set to 32, or JAX has no such dtype.
        ValueError: Nothing is under `key`, two tensors would get one name, or a name is inside of another.
        FormatError: As for `rustload.open`, whose other errors are possible too.

    >>> import rustload.jax
    >>> params = rustload.jax.load("model.pt", dtype="bfloat16", transpose={"*.weight": True})
    >>> params["q"]["weight"].dtype, params["q"]["weight"].shape
    (dtype(bfloat16), (8, 8))
    """
    checkpoint = (
        path if isinstance(path, Checkpoint) else open_checkpoint(path, framework="jax", limits=limits)
    )
    rules = Rules(dtype=dtype, transpose=transpose)
    check_rules(checkpoint._core, dtype=dtype, transpose=transpose)
    tensors = named(checkpoint, key, strip, rename)
    place = adapters.adapter("jax").check_device(device)
    arrays: dict[str, Any] = {}
    tied: dict[Any, Any] = {}
    with reporting(progress, sum(lazy.nbytes for lazy in tensors.values()), "loading") as report:
        for name, lazy in tensors.items():
            wished, order = rules.dtype(lazy), rules.transpose(lazy)
            core = lazy._core
            same = (core.storage, core.offset, lazy.dtype, lazy.shape, lazy.strides, wished, str(order))
            if same not in tied:
                tied[same] = lazy.materialize(
                    place, wished, order, copy=copy, framework="jax", allow_lossy=allow_lossy
                )
            arrays[name] = tied[same]
            report(lazy.nbytes, name)
    return unflatten(arrays) if nested else arrays
