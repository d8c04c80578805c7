"""`Writer`: a safetensors file whose tensors are declared first and written in any order, whole or in parts."""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Self

from rustload import _rustload
from rustload._common.request import Request
from rustload._common.sizes import whole_number
from rustload._remote.urls import local_path
from rustload._rustload import dtype_name
from rustload._save.arrays import values_of
from rustload._save.job import header_texts, write_options
from rustload.errors import _error

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Writer:
    """Writes a safetensors file in pieces.

    Names, dtypes and shapes are declared first. Then tensors, or parts of them, come in any order and from any thread. Nothing
    appears under the file's name before `close`, at the end of the `with` block; if the block raises, nothing is left.

    >>> import numpy, rustload
    >>> with rustload.Writer("new.safetensors", {"w": ("float32", (4, 2)), "b": ("bfloat16", (2,))}) as writer:
    ...     for row in range(4):
    ...         writer.write("w", numpy.full((1, 2), row, "float32"), at=(row, 0))
    ...     writer.write("b", numpy.zeros(2, "float32"))
    >>> rustload.open("new.safetensors")["w"].numpy()[3]
    array([3., 3.], dtype=float32)
    """

    __slots__ = ("_core", "_has_ended")

    def __init__(
        self,
        path: str | os.PathLike[str],
        tensors: Mapping[str, tuple[Any, Sequence[int]]],
        *,
        metadata: Mapping[str, str] | None = None,
        overwrite: bool = True,
        fsync: bool = True,
        memory: int | str = "256MiB",
        threads: int | None = None,
        write_manifest: bool = False,
    ) -> None:
        """Plans the file and reserves its space.

        Args:
            path: The file.
            tensors: The dtype and the shape of each tensor, by name.
            metadata: As in `save`, like the arguments below.
            overwrite: Whether an existing file is replaced.
            fsync: Whether to wait until the data is on the disk.
            memory: The most memory for buffers in one call of `write`.
            threads: The number of threads of one call of `write`.
            write_manifest: As in `save`. Of pieces of 8 MiB that are not written from the start to the end, the digests are those
                of the file, read back.

        Raises:
            FileExistsError: The file exists, and is not to be replaced.
            OSError: The disk is full, or refuses otherwise.
            TypeError: What is declared is not a dtype and a shape.
            UnsupportedError: The format lacks a dtype.
        """
        where = local_path(path)
        if not os.path.isabs(where):
            # The program may change its working directory before `close`, which gives the file its name.
            where = os.path.join(os.getcwd(), where)
        declared = [_declared(name, what) for name, what in tensors.items()]
        self._has_ended = False
        self._core = _rustload.Writer(
            where,
            declared,
            metadata=list(header_texts(metadata).items()),
            options=write_options(
                {
                    "overwrite": overwrite,
                    "fsync": fsync,
                    "memory": memory,
                    "threads": threads,
                    "write_manifest": write_manifest,
                }
            ),
        )

    def write(
        self, name: str, tensor: Any, *, at: Sequence[int] | None = None, allow_lossy: bool = False
    ) -> None:
        """Writes a tensor, or a part of one, cast to the dtype that was declared.

        Args:
            name: The name that was declared.
            tensor: A lazy tensor or an array, as in `save`.
            at: The index of the part's first element; None for the whole tensor.
            allow_lossy: Allows a cast that changes the kind of number.

        Raises:
            ValueError: The name or the shape was not declared, the elements were written before, or the writer is closed, also
                meanwhile by `discard`.
        """
        request = Request(copy=True, allow_lossy=allow_lossy)
        start: Any = None if at is None else [whole_number(index) for index in at]
        if start is not None and any(index is None or index < 0 for index in start):
            text = f"is the index of the first element, whole numbers from 0 on, not {at!r}"
            raise _error("Value", text, argument="at")
        self._core.write(name, values_of(name, tensor), request, start)

    def close(self) -> int:
        """Gives the file its name, and returns its size in bytes.

        Raises:
            OSError: The disk is full, or refuses otherwise; then nothing is left.
            ValueError: Not all tensors were written; then nothing is left. Or another thread is still writing; then the writer
                stays open. Or the writer is closed.
        """
        size = self._core.finish()
        self._has_ended = True
        return size

    def discard(self) -> None:
        """Leaves nothing of the file. Does nothing after `close`.

        A `write` of another thread ends with a `ValueError` (code "Closed"), and the file is gone once it has.
        """
        self._core.discard()
        self._has_ended = True

    def __enter__(self) -> Self:
        """Returns the writer itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Closes the file, unless the block has closed or discarded it; after an exception, discards it."""
        try:
            if kind is None and not self._has_ended:
                self.close()
        finally:
            self.discard()


def _declared(name: Any, what: Any) -> tuple[str, str, list[int]]:
    """A tensor as it is declared: its name, dtype and shape.

    Raises:
        TypeError: It is not.
    """
    if isinstance(what, (tuple, list)) and len(what) == 2 and isinstance(what[1], Collection):
        sizes = [size for one in what[1] if (size := whole_number(one)) is not None and size >= 0]
        if isinstance(name, str) and len(sizes) == len(what[1]):
            return name, dtype_name(what[0]), sizes
    text = f"{name!r} is not declared as a name with a dtype and a shape, such as ('float32', (2, 3)), but as {what!r}"
    raise _error("Type", text)
