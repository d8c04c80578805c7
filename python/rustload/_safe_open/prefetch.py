"""`PrefetchLoader`: the result of `safe_open.prefetch`, which reads tensors and copies them to a GPU in the background.

Names and error messages are those of safetensors 0.9. Unlike the reference's loader, it reads every format, and each tensor owns
its memory, which torch's allocator allocates and frees.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn, Self, final

from rustload._checkpoint.producers import producer_for
from rustload._checkpoint.stream import Stream
from rustload._common.request import Request
from rustload._frameworks import adapters
from rustload.errors import _safetensor_error

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rustload._tensor.handle import LazyTensor

_WINDOW_BYTES = 256 << 20


def tensors_of_plan(file: Mapping[str, LazyTensor], plan: Any) -> list[LazyTensor]:
    """The tensors and parts of tensors in a plan.

    Raises:
        SafetensorError: The plan names a tensor that does not exist, or has a value that is not None or a slice with step 1.
        TypeError: The plan is not a mapping.
    """
    if plan is None:
        return list(file.values())
    if not isinstance(plan, Mapping):
        raise TypeError(f"argument 'plan': '{type(plan).__name__}' object is not an instance of 'dict'")
    found = []
    for name, part in plan.items():
        if name not in file:
            raise _safetensor_error(f"File does not contain tensor {name}")
        if part is not None and (not isinstance(part, slice) or part.step not in (None, 1)):
            raise _safetensor_error(
                f"the plan for tensor {name} is None or a slice of its first dimension with step 1"
            )
        found.append(file[name] if part is None else file[name][part])
    return found


@final
class PrefetchLoader:
    """Reads tensors and copies them to a GPU in the background, within 256 MiB of host memory. Each tensor is returned once.

    Iteration yields the remaining tensors in the order in which they become ready; `take` waits for one by name. Thread-safe.
    """

    _names: list[str]
    _left: set[str]
    _ready: dict[str, Any]
    _stream: Stream
    _lock: threading.RLock

    def __init__(self) -> None:
        """Not for users: `safe_open.prefetch` makes loaders.

        Raises:
            TypeError: Always.
        """
        raise TypeError("cannot create 'builtins.PrefetchLoader' instances")

    @classmethod
    def _of(cls, tensors: list[LazyTensor], device: Any, threads: int) -> Self:
        made = cls.__new__(cls)
        made._names = [tensor.name for tensor in tensors]
        made._left = set(made._names)
        made._ready = {}
        # Reentrant, because a signal handler may close the loader while `take` waits.
        made._lock = threading.RLock()
        # Owned memory (copy=True), so that the file is read in the background and not during the H2D copy of a view.
        request = Request(copy=True, threads=threads)
        adapter = adapters.load_adapter("torch")
        # A tensor on a GPU is complete when it is returned, as with the reference's loader.
        producer = producer_for(
            tensors,
            [request] * len(tensors),
            adapter,
            device,
            by_file=True,
            window=_WINDOW_BYTES,
            gpu_window=_WINDOW_BYTES,
            threads=threads,
            share_storages=False,
            results_kept=False,
        )
        made._stream = Stream._of(producer, tensors, made._names)
        return made

    def names(self) -> list[str]:
        """All names of the plan, in its order."""
        return list(self._names)

    def __len__(self) -> int:
        """The number of tensors in the plan."""
        return len(self._names)

    def take(self, name: str) -> Any:
        """Waits for the tensor of that name and returns it.

        Raises:
            SafetensorError: The name is not in the plan, the tensor was already taken, or the loader is closed.
            ValueError: The loader was used before a fork (code `Forked`): it works in the parent only.
        """
        self._stream._claim()
        with self._lock:
            if name not in self._left:
                what = "was already taken" if name in self._names else "is not in the plan"
                raise _safetensor_error(f"tensor {name} {what}")
            while name not in self._ready:
                self._advance()
            self._left.discard(name)
            return self._ready.pop(name)

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        """Yields the remaining pairs of name and tensor, as they become ready.

        Raises:
            ValueError: As for `take`.
        """
        while True:
            self._stream._claim()
            with self._lock:
                if not self._left:
                    return
                if not self._ready:
                    self._advance()
                name = next(iter(self._ready))
                self._left.discard(name)
                found = self._ready.pop(name)
            yield name, found
            del found

    def _advance(self) -> None:
        try:
            name, tensor = next(self._stream)
        except StopIteration:
            raise _safetensor_error("the loader is closed") from None
        self._ready[name] = tensor

    def close(self) -> None:
        """Stops reading; tensors that were returned stay valid.

        In a forked child it has no effect if the loader was used before the fork.
        """
        if not self._stream._is_own():
            return
        self._stream.close()
        with self._lock:
            self._ready.clear()

    def __enter__(self) -> Self:
        """The loader itself."""
        return self

    def __exit__(self, *_error: object) -> None:
        """Closes it."""
        self.close()

    def __reduce__(self) -> NoReturn:
        """Not picklable; always raises TypeError."""
        raise TypeError("cannot pickle 'builtins.PrefetchLoader' object")
