"""`weights`: the named tensors of a model's files, one after the other, for servers that copy them into a model themselves."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from rustload._checkpoint.names import select_names
from rustload._checkpoint.open import open as open_checkpoint
from rustload._common.memory import trim
from rustload._common.progress import Progress, reporting
from rustload._common.similar import did_you_mean, similar
from rustload._common.sizes import parse_bytes, sizes_once
from rustload.errors import _error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from rustload._common.patterns import Key, Rename, Strip

_WINDOW_MIN = 64 << 20


class WeightOptions(NamedTuple):
    """How to read weights, as a server's configuration says.

    Attributes:
        memory: The most bytes that are read ahead, as for `Checkpoint.stream`.
        threads: The number of threads; None for up to one per core.
        mmap: Whether tensors are views of the files, of which only the pages that are used are read. None: if this process is one
            of several in `torch.distributed`, because a rank of a tensor-parallel model uses a part of each tensor. The views are
            read-only: a model that changes its weights in place while it loads them needs False.
        key: The key in each file under which the weights are nested.
        strip: A prefix, or several, to remove from names.
        rename: Other names, as for `Checkpoint.stream`.
    """

    memory: int | str = "256MiB"
    threads: int | None = None
    mmap: bool | None = None
    key: Key = None
    strip: Strip = None
    rename: Rename = None

    @classmethod
    def checked(cls, given: Mapping[str, Any], where: str) -> WeightOptions:
        """The options in a mapping that a user wrote, probably as JSON, at the place that messages name.

        Raises:
            ValueError: A key is unknown, or a value is not one that it can have.
        """
        for name in given:
            if name not in cls._fields:
                note = did_you_mean(similar(str(name), cls._fields)) or f"known: {', '.join(cls._fields)}"
                raise _error("Value", f"{where} has an unknown key {name!r}", note)
        made = cls(**given)
        parse_bytes(made.memory, "memory")
        is_count = isinstance(made.threads, int) and not isinstance(made.threads, bool) and made.threads > 0
        if made.threads is not None and not is_count:
            raise _error("Value", f"{where}: threads is a positive integer, not {made.threads!r}")
        if made.mmap not in (None, True, False):
            raise _error("Value", f"{where}: mmap is true, false or null, not {made.mmap!r}")
        return made


def weights(
    files: Iterable[str],
    options: WeightOptions,
    *,
    prefix: str = "",
    is_wanted: Callable[[str], bool] | None = None,
    progress: Progress = None,
) -> Iterator[tuple[str, torch.Tensor]]:
    """Iterates over the tensors of files, each file in the order of its data.

    All files are opened first, so that a damaged one is an error before the first tensor. A name that is in several files occurs
    several times. Values that are not tensors are left out.

    Args:
        files: Paths of checkpoints of any format.
        options: How to read.
        prefix: What to put in front of each name.
        is_wanted: Called with each name, without the prefix; False leaves the tensor out, and it is not read.
        progress: True for one progress bar on stderr, or a callback `(bytes done, total bytes, name)`.

    Yields:
        The name, and the tensor on the CPU with the dtype of the file.

    Raises:
        ValueError: A file has no tensor under `options.key`.
        FormatError: As for `rustload.open`; its other errors are possible too.
    """
    is_mapped = _ranks() > 1 if options.mmap is None else options.mmap
    copy = None if is_mapped else True
    with contextlib.ExitStack() as stack:
        opened = [stack.enter_context(open_checkpoint(file, framework="torch")) for file in files]
        chosen, sizes = [], []
        for checkpoint in opened:
            names = select_names(checkpoint, options.key, options.strip, options.rename)
            chosen.append({old: new for new, old in names.items() if is_wanted is None or is_wanted(new)})
            once = sizes_once(checkpoint[old]._core for old in chosen[-1])
            sizes.append(dict(zip(chosen[-1], once, strict=True)))
        total = sum(sum(of_file.values()) for of_file in sizes)
        # Reading ahead by more than a part of a small model takes memory, and no less time.
        window = min(parse_bytes(options.memory, "memory"), max(total // 8, _WINDOW_MIN))
        stack.callback(trim)  # a server keeps no memory for further loads
        report = stack.enter_context(reporting(progress, total))
        for checkpoint, new_names, nbytes in zip(opened, chosen, sizes, strict=True):
            stream = checkpoint.stream(
                list(new_names), memory=window, threads=options.threads, copy=copy, writable=False
            )
            with stream:
                for old, tensor in stream:
                    report(nbytes[old], old)
                    yield prefix + new_names[old], tensor
                    del tensor  # the stream may reuse its memory now
            checkpoint.close()


def is_first_rank() -> bool:
    """Whether this process is the first of those in `torch.distributed`, or the only one: it shows the progress."""
    return _ranks() == 1 or torch.distributed.get_rank() == 0


def _ranks() -> int:
    distributed = torch.distributed
    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1
