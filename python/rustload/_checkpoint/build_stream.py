"""Checks the arguments of `Checkpoint.stream` and `Checkpoint.materialize`, and builds the `Stream` from them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from rustload._checkpoint.producers import check_memory, producer_for
from rustload._checkpoint.stream import Stream
from rustload._common.options import NamesOptions, RequestOptions, part
from rustload._common.patterns import warn_of_unused_patterns
from rustload._common.progress import checked_progress
from rustload._common.request import Request, checked_cast
from rustload._common.rules import Rules
from rustload._common.sizes import parse_bytes
from rustload._frameworks import adapters
from rustload.errors import _check_one_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rustload._common.options import StreamOptions
    from rustload._tensor.handle import LazyTensor

Order: TypeAlias = Literal["file", "name", "given"]


def build_stream(
    mapping: Any,
    given: str | Iterable[str] | None,
    device: Any,
    dtype: Any,
    transpose: Any,
    options: StreamOptions,
    *,
    order: Order = "file",
    results_kept: bool = False,
) -> Stream:
    """Builds the stream for `Checkpoint.stream`, or for `Checkpoint.materialize`, which keeps all results (`results_kept`).

    Invalid arguments raise here, before the first tensor. `mapping` is the `TensorMapping`, `given` the argument
    `names=`.
    """
    names, tensors = mapping._chosen(given, **part(NamesOptions, options))
    wanted = options["framework"]
    framework = mapping._context.resolve_framework() if wanted is None else adapters.framework_name(wanted)
    adapter = adapters.load_adapter(framework)
    target = adapter.check_device(device)
    writable = adapters.views_are_writable(adapter, target, given=options["writable"])
    request = Request(**part(RequestOptions, options), threads=options["threads"], writable=writable)
    warn_of_unused_patterns(mapping._core.names, dtype=dtype, transpose=transpose)
    _check_one_of("order", order, ("file", "name", "given"))
    progress = checked_progress(options["progress"])
    window = parse_bytes(options["memory"], "memory")
    rules = Rules(dtype=dtype, transpose=transpose)
    if order == "name":
        by_name = sorted(range(len(names)), key=names.__getitem__)
        names, tensors = [names[index] for index in by_name], [tensors[index] for index in by_name]
    if not request.dequantize:
        rules.warn_of_kept(tensors)
    requests = _requests_of(tensors, rules, request)
    share_storages = framework == "torch"
    if results_kept:
        check_memory(tensors, requests, adapter.gpu_for(target), share_storages=share_storages)
    producer = producer_for(
        tensors,
        requests,
        adapter,
        target,
        by_file=order == "file",
        window=window,
        gpu_window=None if results_kept else window,
        threads=request.threads,
        share_storages=share_storages,
        results_kept=results_kept,
        cast=checked_cast(options["cast"]),
        sync=bool(options["sync"]),
    )
    return Stream._of(producer, tensors, names, progress)


def _requests_of(tensors: list[LazyTensor], rules: Rules, request: Request) -> list[Request]:
    """The request of each tensor; equal ones are one object.

    Raises:
        UnsupportedError: A tensor cannot be dequantized (code `QuantUnknown`).
    """
    requests: dict[tuple[Any, ...], Request] = {}

    def request_of(tensor: LazyTensor) -> Request:
        dims = rules.transpose(tensor)
        is_float = request.dequantize and tensor._is_scaled()
        if is_float:
            tensor._core.check_scheme()
        dtype = rules.dtype(tensor, is_float=is_float) or ("float32" if is_float else None)
        key = (dtype, tuple(dims) if isinstance(dims, list) else dims)
        if key not in requests:
            requests[key] = request.but(dtype=dtype, transpose=dims)
        return requests[key]

    if request.dequantize or not rules.depends_on_dtype_only:
        return [request_of(tensor) for tensor in tensors]
    # There may be thousands of tensors, and few dtypes.
    by_kind: dict[tuple[str, bool], Request] = {}
    found = []
    for tensor in tensors:
        core = tensor._core
        kind = (core.dtype, core.is_kept_as_stored)
        if kind not in by_kind:
            by_kind[kind] = request_of(tensor)
        found.append(by_kind[kind])
    return found
