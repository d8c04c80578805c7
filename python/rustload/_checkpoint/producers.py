"""Producers: they make the tensors of a stream, on the host or on a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from rustload import _rustload
from rustload._frameworks.adapters import check_copy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rustload._common.request import Cast, Request
    from rustload._cuda.gpu import Gpu
    from rustload._frameworks.adapters import Adapter
    from rustload._tensor.handle import LazyTensor

_MANY = 256
"""The most tensors that are returned together."""

_MANY_BYTES = 1 << 20
"""From so many bytes on no other is returned with them: progress is reported then."""


class Producer(Protocol):
    """Makes the tensors of a stream. One thread at a time calls `next`; any thread may call `close` concurrently."""

    @property
    def order(self) -> Sequence[int]:
        """The indices in the list of tensors, in the order in which `next` returns the tensors."""

    def next(self, *, many: bool) -> list[Any]:
        """The next tensor of the framework, or with `many` all that are made; empty after the last one and after `close`."""

    def close(self) -> None:
        """Stops the work and frees results that were not taken; a concurrent `next` returns no tensor. Idempotent."""


class HostProducer:
    """Makes host tensors from buffers that the core produces in the background."""

    order: list[int]

    def __init__(
        self,
        core: _rustload.Stream,
        tensors: Sequence[LazyTensor],
        requests: Sequence[Request],
        adapter: Adapter,
        device: Any,
    ) -> None:
        """Reads nothing yet; `core` is the stream of these tensors, each with the request at the same index."""
        self._core, self._tensors, self._requests = core, tensors, requests
        self._adapter, self._device = adapter, device
        # Results of tied tensors that occur again later, by the index of the first.
        self._reused: dict[int, Any] = {}
        self.order = core.order()

    def next(self, *, many: bool) -> list[Any]:
        """Waits for the next tensor; with `many`, of small ones for several."""
        made: list[Any] = []
        nbytes = 0
        while (found := self._core.next()) is not None:
            index, first, has_later_alias, buffer = found
            if first != index:
                result = self._reused[first]
            elif buffer is None:
                tensor = self._tensors[index]
                result = self._adapter.make(
                    tensor._core, self._requests[index], self._device, tensor._context
                )
            else:
                if self._adapter.COPIES_VIEWS or self._device is not None:
                    check_copy(self._tensors[index]._core, buffer)
                nbytes += buffer.nbytes
                result = self._adapter.wrap(buffer, self._device)
            if has_later_alias:
                self._reused[first] = result
            elif first != index:
                del self._reused[first]
            made.append(result)
            if not many or len(made) == _MANY or nbytes > _MANY_BYTES:
                break
        return made

    def close(self) -> None:
        """Stops the threads of the core."""
        self._core.close()


def check_memory(
    tensors: Sequence[LazyTensor],
    requests: Sequence[Request],
    gpu: Gpu | None,
    *,
    share_storages: bool,
    more: int = 0,
) -> None:
    """Compares the memory of results that are kept together with what this process, or the GPU, may take.

    Args:
        tensors: The tensors to read.
        requests: The request of each.
        gpu: The GPU that the results are on; None for the host.
        share_storages: Whether host results may share the storage of tied tensors.
        more: Bytes to add to the sum; negative for memory that is freed meanwhile.

    Raises:
        NotEnoughMemoryError: They need more (code `NotEnoughMemory`); nothing was allocated.
    """
    cores = [tensor._core for tensor in tensors]
    if gpu is None:
        pairs = zip(cores, requests, strict=True)
        _rustload.check_memory(pairs, share_storages=share_storages, more=more)
    else:
        from rustload._cuda.results import check_memory as check

        check(cores, requests, gpu, freed=max(-more, 0))


def producer_for(
    tensors: Sequence[LazyTensor],
    requests: Sequence[Request],
    adapter: Adapter,
    device: Any,
    *,
    by_file: bool,
    window: int,
    gpu_window: int | None,
    threads: int | None,
    share_storages: bool,
    results_kept: bool,
    cast: Cast = "auto",
    sync: bool = True,
    into: Sequence[Any] | None = None,
) -> Producer:
    """Creates the producer for a device; reads nothing yet.

    Args:
        tensors: The tensors to read.
        requests: The request of each.
        adapter: The framework.
        device: The result of the adapter's `check_device`.
        by_file: True for the order of the data in the files, False for the order of the list.
        window: The most bytes of host memory to hold.
        gpu_window: The most bytes of results to make ahead of the consumer on a GPU; None for no bound.
        threads: The most threads that read and cast.
        share_storages: Whether host results may share the storage of tied tensors.
        results_kept: Whether the consumer uses no result before it has all of them.
        cast: Whether the CPU or the GPU casts, as in `LazyTensor.materialize`.
        sync: Whether results on a GPU are complete when they are returned.
        into: For each tensor an existing destination on the GPU; None allocates.
    """
    cores = [tensor._core for tensor in tensors]
    gpu = adapter.gpu_for(device)
    if gpu is not None:
        from rustload._cuda.results import CudaProducer

        return CudaProducer(
            cores,
            requests,
            gpu,
            on_meta=lambda index: adapter.make(cores[index], requests[index], None, tensors[index]._context),
            by_file=by_file,
            cast=cast,
            sync=sync,
            window=gpu_window,
            threads=threads,
            results_kept=results_kept,
            into=into,
        )
    core = _rustload.stream(
        zip(cores, requests, strict=True),
        window=window,
        threads=threads,
        by_file=by_file,
        share_storages=share_storages,
        results_kept=results_kept,
    )
    return HostProducer(core, tensors, requests, adapter, device)
