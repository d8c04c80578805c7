"""`rustload.jax.load`: loads a checkpoint of any format as a pytree of JAX arrays, without torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rustload._checkpoint.names import Key, Rename, Strip, select_tensors, unflatten
from rustload._checkpoint.open import opened
from rustload._common.patterns import warn_of_unused_patterns
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
        path: Anything that `rustload.open` takes, an open checkpoint, or a selection of its tensors.
        key: The key in the file under which the tensors are nested, such as `"state_dict"`.
        strip: A prefix, or several, to remove from names.
        rename: New names: a mapping, pairs of a regular expression and a replacement, or a callable.
        dtype: A dtype for float tensors, a mapping from glob patterns of the file's names, or a callable. None keeps
            the file's dtypes.
        transpose: A mapping from glob patterns, or a callable, to True (swaps the last two dimensions, which turns the weight of
            a torch linear layer into a Flax kernel) or to a permutation of the dimensions.
        device: A JAX device, its name such as `"cpu"` or `"cuda:0"`, or a sharding; None is JAX's default device.
        nested: Whether to split names at dots into nested dicts; otherwise the dict is flat.
        copy: As for `LazyTensor.materialize`.
        allow_lossy: Whether a cast may change the kind of number.
        progress: True for a progress bar on stderr, or a callback `(bytes done, total bytes, name)`.
        limits: Upper bounds on the memory and work that the file can cause.

    Returns:
        The arrays; tied names share one array.

    Raises:
        UnsupportedError: A tensor has a 64-bit dtype and `jax_enable_x64` is off, or JAX does not have the dtype.
        ValueError: No tensor is under `key`, two tensors would get the same name, or a name is a prefix of another.
        FormatError: As for `rustload.open`; its other errors are possible too.

    >>> import rustload.jax
    >>> params = rustload.jax.load("model.pt", dtype="bfloat16", transpose={"*.weight": True})
    >>> params["q"]["weight"].dtype, params["q"]["weight"].shape
    (dtype(bfloat16), (8, 8))
    """
    checkpoint, chosen = opened(path, "jax", limits)
    rules = Rules(dtype=dtype, transpose=transpose)
    warn_of_unused_patterns(checkpoint._core, dtype=dtype, transpose=transpose)
    tensors = select_tensors(chosen, key, strip, rename)
    target = adapters.load_adapter("jax").check_device(device)
    arrays: dict[str, Any] = {}
    tied: dict[Any, Any] = {}
    with reporting(progress, sum(lazy.nbytes for lazy in tensors.values()), "loading") as report:
        for name, lazy in tensors.items():
            requested, order = rules.dtype(lazy), rules.transpose(lazy)
            core = lazy._core
            identity = (
                core.storage,
                core.offset,
                core.dtype,
                lazy.shape,
                lazy.strides,
                requested,
                str(order),
            )
            if identity not in tied:
                tied[identity] = lazy.materialize(
                    target, requested, order, copy=copy, framework="jax", allow_lossy=allow_lossy
                )
            arrays[name] = tied[identity]
            report(lazy.nbytes, name)
    return unflatten(arrays) if nested else arrays
