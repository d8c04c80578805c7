"""`PrefetchLoader`: what `safe_open.prefetch` gives, tensors on their way to a GPU before they are asked for.

Names and error texts are those of safetensors 0.9. Unlike the reference's it reads every format, and a tensor's memory is its
own: it comes from torch's allocator and goes when the tensor goes.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn, Self, final

from rustload._checkpoint.makers import maker_for
from rustload._checkpoint.stream import Stream
from rustload._common.request import Wanted
from rustload._frameworks import adapters
from rustload.errors import _safetensor_error

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from rustload._tensor.handle import LazyTensor

__all__ = ["PrefetchLoader", "planned"]

_WINDOW = 256 << 20


def planned(file: Mapping[str, LazyTensor], plan: Any) -> list[LazyTensor]:
    """The tensors, and parts of tensors, that a plan asks for.

    Raises:
        SafetensorError: The plan names a tensor that there is not, or asks for another part than some first rows.
        TypeError: The plan is no mapping.
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
    """Tensors that are read and uploaded ahead, within 256 MiB of host memory; each is handed out once.

    Iterating gives those that are left, in the order in which they become ready; `take` gives one by its name and waits for it.
    Several threads may use one.
    """

    __slots__ = ("_left", "_lock", "_names", "_ready", "_stream")

    _names: list[str]
    _left: set[str]
    _ready: dict[str, Any]
    _stream: Stream
    _lock: threading.Lock

    def __init__(self) -> None:
        """Not for users: `safe_open.prefetch` makes loaders.

        Raises:
            TypeError: Always.
        """
        raise TypeError("cannot create 'builtins.PrefetchLoader' instances")

    @classmethod
    def _of(cls, tensors: list[LazyTensor], place: Any, threads: int) -> Self:
        made = cls.__new__(cls)
        made._names = [tensor.name for tensor in tensors]
        made._left = set(made._names)
        made._ready = {}
        made._lock = threading.Lock()
        # Owned memory: reading goes on ahead, where a view would be read by the upload.
        wanted = Wanted(
            dtype=None, transpose=None, copy=True, allow_lossy=False, overflow="nan", threads=threads
        )
        adapter = adapters.adapter("torch")
        # On a GPU a tensor is complete before it is handed out, as with safetensors' loader.
        maker = maker_for(
            tensors,
            [wanted],
            [0] * len(tensors),
            adapter,
            place,
            by_file=True,
            window=_WINDOW,
            ahead=_WINDOW,
            threads=threads,
            standing=False,
            whole=False,
        )
        made._stream = Stream._of(maker, tensors)
        return made

    def names(self) -> list[str]:
        """The names of the plan, in its order; handed out or not."""
        return list(self._names)

    def __len__(self) -> int:
        """The number of tensors in the plan."""
        return len(self._names)

    def take(self, name: str) -> Any:
        """The tensor of that name; waits until it is ready.

        Raises:
            SafetensorError: The plan has no such tensor, it was handed out before, or the loader is closed.
        """
        with self._lock:
            if name not in self._left:
                what = "was already taken" if name in self._names else "is not in the plan"
                raise _safetensor_error(f"tensor {name} {what}")
            while name not in self._ready:
                self._advance()
            self._left.discard(name)
            return self._ready.pop(name)

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        """Names and tensors that were not handed out yet, as they become ready."""
        while True:
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
        """Stops reading ahead; tensors that were handed out stay."""
        self._stream.close()
        with self._lock:
            self._ready.clear()

    def __enter__(self) -> Self:
        """The loader itself."""
        return self

    def __exit__(
        self,
        _exc_type: type[BaseException] | None,
        _exc_value: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        """Closes it."""
        self.close()

    def __reduce__(self) -> NoReturn:
        """Loaders do not pickle."""
        raise TypeError("cannot pickle 'builtins.PrefetchLoader' object")
