"""`rustload.jax.load`: loads a checkpoint of any format as a pytree of JAX arrays, without torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Unpack

from rustload._checkpoint.names import select_tensors, unflatten
from rustload._checkpoint.open import opened
from rustload._common.options import NamesOptions, SourceOptions, filled, part, takes
from rustload._common.patterns import matching, warn_of_unused_patterns, warn_user
from rustload._common.progress import Progress, reporting
from rustload._common.request import dims_of, value_for
from rustload._common.rules import Rules
from rustload._common.sizes import same_tensor, sizes_once
from rustload._frameworks import adapters
from rustload.errors import _error

if TYPE_CHECKING:
    from collections.abc import Callable

    from rustload._tensor.handle import LazyTensor

__all__ = ["load", "unflatten"]


@takes(SourceOptions)
def load(
    path: Any,
    *,
    dtype: Any = None,
    transpose: Any = None,
    device: Any = None,
    shardings: Any = None,
    nested: bool = True,
    copy: bool | None = None,
    allow_lossy: bool = False,
    progress: Progress = None,
    **options: Unpack[SourceOptions],
) -> dict[str, Any]:
    """Reads the tensors of a checkpoint as JAX arrays, one at a time.

    Args:
        path: Anything that `rustload.open` takes, an open checkpoint, or a selection of its tensors.
        dtype: A dtype for float tensors, a mapping from glob patterns of the file's names, or a callable. None keeps
            the file's dtypes.
        transpose: A mapping from glob patterns, or a callable, to True (swaps the last two dimensions, which turns the weight of
            a torch linear layer into a Flax kernel) or to a permutation of the dimensions.
        device: A JAX device, its name such as `"cpu"` or `"cuda:0"`, or a sharding; None is JAX's default device.
        shardings: How arrays are distributed over devices: a `jax.sharding.Sharding` for all; a mapping to them from names of
            the result, nested or not, or from glob patterns of the file's names; or a callable that gets the lazy tensor. Each
            process reads the elements of its own devices, once each. Tensors without a sharding (None) go to `device`.
        nested: Whether to split names at dots into nested dicts; otherwise the dict is flat.
        copy: As for `LazyTensor.materialize`.
        allow_lossy: Whether a cast may change the kind of number.
        progress: True for a progress bar on stderr, or a callback `(bytes done, total bytes, name)`.
        **options: What to load (`SourceOptions`).

    Returns:
        The arrays; tied names share one array.

    Raises:
        TypeError: A value of `shardings` is not a sharding.
        UnsupportedError: A tensor has a 64-bit dtype and `jax_enable_x64` is off, or JAX does not have the dtype.
        ValueError: No tensor is under `key`, two tensors would get the same name, or a name is a prefix of another.
        FormatError: As for `rustload.open`; its other errors are possible too.

    >>> import rustload.jax
    >>> params = rustload.jax.load("model.pt", dtype="bfloat16", transpose={"*.weight": True})
    >>> params["q"]["weight"].dtype, params["q"]["weight"].shape
    (dtype(bfloat16), (8, 8))
    """
    how = filled(load, options)
    checkpoint, chosen = opened(path, "jax", how["limits"])
    rules = Rules(dtype=dtype, transpose=transpose)
    warn_of_unused_patterns(checkpoint._core.names, dtype=dtype, transpose=transpose)
    tensors = select_tensors(chosen, **part(NamesOptions, how))
    rules.warn_of_kept(tensors.values())
    sharding_of = _sharding_rule(shardings)
    _warn_of_unused_shardings(shardings, tensors)
    if shardings is not None and copy is False:
        raise _error("Buffer", "shardings= and copy=False cannot be combined: shards are copies")
    target = adapters.load_adapter("jax").check_device(device)
    from rustload._frameworks.jax import check_widths

    ways = {name: (rules.dtype(lazy), rules.transpose(lazy)) for name, lazy in tensors.items()}
    check_widths({lazy.name: ways[name][0] or lazy.dtype for name, lazy in tensors.items()})
    arrays: dict[str, Any] = {}
    tied: dict[Any, Any] = {}
    sizes = sizes_once(lazy._core for lazy in tensors.values())
    with reporting(progress, sum(sizes), "loading") as report:
        for (name, lazy), nbytes in zip(tensors.items(), sizes, strict=True):
            requested, order = ways[name]
            sharding = sharding_of(name, lazy)
            identity = (same_tensor(lazy._core), requested, str(order), sharding)
            if identity not in tied:
                tied[identity] = (
                    lazy.materialize(
                        target, requested, order, copy=copy, framework="jax", allow_lossy=allow_lossy
                    )
                    if sharding is None
                    else _load_shards(
                        lazy, sharding, dtype=requested, transpose=order, allow_lossy=allow_lossy
                    )
                )
            arrays[name] = tied[identity]
            report(nbytes, name)
    return unflatten(arrays) if nested else arrays


def _sharding_rule(shardings: Any) -> Callable[[str, LazyTensor], Any]:
    """Returns a function from a name of the result and its lazy tensor to a sharding or None.

    Args:
        shardings: None, a sharding, a callable, or a mapping from names and glob patterns; the mapping may be nested.

    Raises:
        TypeError: A value is not a sharding.
    """
    if isinstance(shardings, Mapping):
        by_name = dict(_flat(shardings, ""))
        return lambda name, lazy: by_name[name] if name in by_name else value_for(by_name, lazy)
    if callable(shardings):
        return lambda name, lazy: _checked(shardings(lazy), name)
    _checked(shardings, "shardings=")
    return lambda _name, _lazy: shardings


def _warn_of_unused_shardings(shardings: Any, tensors: Mapping[str, LazyTensor]) -> None:
    """Warns of names and patterns that no tensor has."""
    stored = {lazy.name for lazy in tensors.values()}
    rules = [key for key, _ in _flat(shardings, "")] if isinstance(shardings, Mapping) else []
    unused = [key for key in rules if key not in tensors and not matching(stored, key)]
    if unused:
        more = f", nor do {len(unused) - 1:,} others" if unused[1:] else ""
        warn_user(f"has {unused[0]!r}, which matches no name{more}", unused[0], tensors, argument="shardings")


def _flat(shardings: Mapping[Any, Any], prefix: str) -> list[tuple[str, Any]]:
    found = []
    for key, value in shardings.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            found += _flat(value, name + ".")
        else:
            found.append((name, _checked(value, name)))
    return found


def _checked(value: Any, name: str) -> Any:
    import jax

    if value is not None and not isinstance(value, jax.sharding.Sharding):
        note = "such as jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec('x'))"
        raise _error("Type", f"{name!r} has a {type(value).__name__}, not a jax.sharding.Sharding", note)
    return value


def _load_shards(
    lazy: LazyTensor,
    sharding: Any,
    *,
    dtype: str | None,
    transpose: bool | list[int] | None,
    allow_lossy: bool,
) -> Any:
    """Reads the shards of this process's devices as one array.

    Raises:
        UnsupportedError: JAX does not have the dtype.
        ValueError: The sharding does not divide the shape.
    """
    import jax

    from rustload._frameworks.jax import check_sharding

    lazy = lazy.permute(*dims_of(transpose, lazy.ndim))
    check_sharding(sharding, lazy.shape, lazy.name)
    read: dict[str, Any] = {}

    def shard(index: tuple[slice, ...]) -> Any:
        key = str(index)
        if key not in read:  # several devices may hold the same elements
            read[key] = lazy[index].materialize(
                dtype=dtype, copy=True, framework="numpy", allow_lossy=allow_lossy
            )
        return read[key]

    # Without a device of its own in the sharding, a process has no shard that tells the dtype.
    given = {} if sharding.addressable_devices else {"dtype": jax.numpy.dtype(dtype or lazy.dtype)}
    return jax.make_array_from_callback(lazy.shape, sharding, shard, **given)
