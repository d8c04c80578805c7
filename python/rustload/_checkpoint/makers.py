"""What makes the tensors of a stream: in the memory of the host, or on a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from rustload import _rustload

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rustload._common.request import Cast, Wanted
    from rustload._frameworks.adapters import Adapter
    from rustload._tensor.handle import LazyTensor

__all__ = ["Maker", "maker_for"]


class Maker(Protocol):
    """What makes a stream's tensors. A stream asks one thread at a time for the next; any thread may close it meanwhile."""

    @property
    def order(self) -> Sequence[int]:
        """The places in the list of tensors, in the order in which they come."""

    def next(self) -> Any | None:
        """The framework's tensor that is next in order; None after the last, and once it is closed."""

    def close(self) -> None:
        """Ends the work and frees what was not taken; whoever waits in `next` comes out. It may be closed again."""


class HostMaker:
    """Tensors out of results that the core makes ahead in the memory of the host."""

    __slots__ = ("_adapter", "_core", "_kept", "_place", "_tensors", "_wanted", "order")

    order: list[int]

    def __init__(
        self,
        core: _rustload.Stream,
        tensors: Sequence[LazyTensor],
        wanted: Sequence[Wanted],
        adapter: Adapter,
        place: Any,
    ) -> None:
        """Reads nothing yet; `core` is of these tensors, and each is wanted as `wanted` says at its place."""
        self._core, self._tensors, self._wanted = core, tensors, wanted
        self._adapter, self._place = adapter, place
        # Tied tensors that come again, by the place of the first.
        self._kept: dict[int, Any] = {}
        self.order = core.order()

    def next(self) -> Any | None:
        """The next tensor, waited for."""
        found = self._core.next()
        if found is None:
            return None
        index, first, again, _, buffer = found
        if first != index:
            made = self._kept[first]
        elif buffer is None:
            tensor = self._tensors[index]
            made = self._adapter.make(tensor._core, self._wanted[index], self._place, tensor._shared)
        else:
            made = self._adapter.wrap(buffer, self._place)
        if again:
            self._kept[first] = made
        elif first != index:
            del self._kept[first]
        return made

    def close(self) -> None:
        """Stops the threads of the core."""
        self._core.close()


def maker_for(
    tensors: Sequence[LazyTensor],
    wanted: Sequence[Wanted],
    which: Sequence[int],
    adapter: Adapter,
    device: Any,
    *,
    by_file: bool,
    window: int,
    ahead: int | None,
    threads: int | None,
    standing: bool,
    whole: bool,
    cast: Cast = "auto",
    sync: bool = True,
    into: Sequence[Any] | None = None,
) -> Maker:
    """The maker for a device; reads nothing yet.

    Args:
        tensors: What is read.
        wanted: The different ways in which they are wanted.
        which: For each tensor, the number of its way.
        adapter: The framework.
        device: What the framework's `check_device` gave.
        by_file: Whether they come in the order of the data, or as listed.
        window: Bytes that may be held in the memory of the host.
        ahead: Bytes of results that may be made ahead on a GPU; None for as many as there are.
        threads: Threads that read and cast, at most.
        standing: Whether results in the memory of the host may be views of a storage that they share.
        whole: Whether the caller uses none before he has all.
        cast: Who casts for a GPU.
        sync: Whether results on a GPU are complete when they are given.
        into: For each where it goes on the GPU; None for new memory.
    """
    cores = [tensor._core for tensor in tensors]
    gpu = adapter.place(device)
    if gpu is not None:
        from rustload._cuda.results import CudaMaker  # few need it

        return CudaMaker(
            cores,
            wanted,
            which,
            gpu,
            on_meta=lambda at: adapter.make(cores[at], wanted[which[at]], None, tensors[at]._shared),
            by_file=by_file,
            cast=cast,
            sync=sync,
            window=ahead,
            threads=threads,
            whole=whole,
            into=into,
        )
    core = _rustload.stream(
        cores,
        wanted,
        which,
        window=window,
        threads=threads,
        by_file=by_file,
        share_storages=standing,
        results_kept=whole,
    )
    return HostMaker(core, tensors, [wanted[number] for number in which], adapter, device)
