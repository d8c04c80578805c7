"""`Writer`: saves a sharded state dict as the safetensors files of a Hugging Face folder, from all ranks at once.

The coordinator locks the target, plans the files and creates them in full size in a hidden folder. Each rank writes its chunks at
their offsets. When all ranks have finished, the coordinator moves the files to the target, the index last.
torch.distributed.checkpoint runs these steps, and gives an error of one rank to all.
"""

from __future__ import annotations

import dataclasses
import errno
import itertools
import math
import os
import re
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.distributed.checkpoint.planner import SavePlan, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future

from rustload import _rustload
from rustload._common.dtype_rows import DTYPE_ROWS
from rustload._common.files import head_of
from rustload._common.sizes import parse_bytes
from rustload._save.job import check_name, header_texts
from rustload.errors import FormatError, _error

if TYPE_CHECKING:
    import io
    from collections.abc import Iterator, Mapping, Sequence

    from torch.distributed.checkpoint.metadata import Metadata
    from torch.distributed.checkpoint.planner import SavePlanner

_TOKEN_FILE = "token"


class Location(NamedTuple):
    """Where a tensor is: the file's name, the offset of its first byte, and its size in bytes."""

    file: str
    start: int
    nbytes: int


class _Layout(NamedTuple):
    """The files, in the order to publish them, and the location of each tensor."""

    files: list[str]
    tensors: dict[str, Location]


@dataclasses.dataclass(frozen=True)
class _Target:
    """What a rank is told: the folder in which to write, the token that proves that it is the coordinator's, and locations."""

    folder: str
    token: str
    tensors: dict[str, Location]


class Writer(StorageWriter):
    """Saves tensors with `torch.distributed.checkpoint.save` as `model.safetensors`, or as shards with their index.

    The files are the same for every number of ranks, and the same as those of `rustload.save` of the whole tensors, sorted by
    name. All ranks have to see the target in one file system (POSIX), which is checked. Tensors are named as DCP names them: the
    keys of nested dicts, joined with dots. A state dict with other values than tensors is refused: save the model's.

    >>> import rustload, torch, rustload.torch.distributed as rd
    >>> from torch.distributed import checkpoint as dcp
    >>> _ = dcp.save({"w": torch.ones(2, 3)}, storage_writer=rd.Writer("saved"))
    >>> rustload.open("saved")["w"].shape
    (2, 3)
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        metadata: Mapping[str, str] | None = None,
        max_shard_size: int | str = "50GB",
        name: str = "model",
        overwrite: bool = False,
        fsync: bool = True,
    ) -> None:
        """Writes nothing yet.

        Args:
            path: The folder.
            metadata: Texts for the headers; `{"format": "pt"}` if None.
            max_shard_size: The most bytes of tensors in one file: an int, or a str such as "5GB".
            name: The name of the files without `.safetensors`.
            overwrite: Whether files of this name in the folder are replaced; other files are kept.
            fsync: Whether to wait until the data is on the disk.

        Raises:
            TypeError: The metadata has other values than texts.
            ValueError: `name` is not a name of a file, or `max_shard_size` is not a size.
        """
        self._path = Path(path)
        self._texts = header_texts(metadata)
        self._max_shard_size = parse_bytes(max_shard_size, "max_shard_size")
        self._name = check_name(name)
        self._overwrite = bool(overwrite)
        self._fsync = bool(fsync)
        self._layout: _Layout | None = None
        self._stage: _rustload.FolderStage | None = None

    @property
    def _target(self) -> Path:
        """The folder without links, which cannot be replaced by a folder."""
        return Path(os.path.realpath(self._path))

    def _release(self) -> None:
        """Ends a save that was begun, on the coordinator: another one may begin."""
        _written.discard(self)
        self._layout = None
        if self._stage is not None:
            self._stage.discard()
            self._stage = None

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Begins another save, to `checkpoint_id` if it is given."""
        self._release()
        if checkpoint_id is not None:
            self._path = Path(checkpoint_id)

    def set_up_storage_writer(self, is_coordinator: bool, *_args: Any, **_kwargs: Any) -> None:  # noqa: FBT001 - torch's
        """Checks the target, on the coordinator.

        Raises:
            FileExistsError: The folder has files of this checkpoint, and they are not to be replaced.
            NotADirectoryError: The path is that of a file.
        """
        if is_coordinator and self._path.exists() and not self._path.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), os.fspath(self._path))
        if is_coordinator and not self._overwrite and self._path.is_dir():
            there = sorted(file for file in os.listdir(self._path) if _is_of_checkpoint(file, self._name))
            if there:
                raise FileExistsError(f"{self._path / there[0]} exists, and overwrite=True is not given")

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """The plan as it is.

        Raises:
            TypeError: A value is not a tensor.
        """
        for item in plan.items:
            if item.type is WriteItemType.BYTE_IO:
                text = f"{item.index.fqn!r} is not a tensor, and safetensors files have only tensors"
                raise _error("Type", text, "save the model's state dict, or the values by another writer")
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Plans the files and creates them in full size, on the coordinator.

        Raises:
            OSError: Another save to the folder is going on (code `TargetBusy`), or the disk is full, or refuses otherwise.
            UnsupportedError: A dtype has no form in a safetensors file.
        """
        specs: dict[str, tuple[str, tuple[int, ...]]] = {}
        for item in itertools.chain.from_iterable(plan.items for plan in plans):
            data = _data(item)
            dtype = str(data.properties.dtype).removeprefix("torch.")
            specs[item.index.fqn] = dtype, tuple(data.size)
        self._release()
        target = self._target
        for other in list(_written):  # whose save has failed on another rank since
            if other._target == target:
                other._release()
        target.parent.mkdir(parents=True, exist_ok=True)
        stage = self._stage = _rustload.FolderStage(os.fspath(target), self._name, overwrite=self._overwrite)
        try:
            layout = self._layout = _create_files(
                stage, specs, self._texts, self._max_shard_size, sync=self._fsync
            )
        except BaseException:
            self._release()
            raise
        return [
            dataclasses.replace(
                plan,
                storage_data=_Target(
                    stage.path,
                    stage.token,
                    {item.index.fqn: layout.tensors[item.index.fqn] for item in plan.items},
                ),
            )
            for plan in plans
        ]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Writes this rank's chunks, and returns a completed future.

        Raises:
            OSError: The folder is not the coordinator's, or the disk refuses.
        """
        try:
            return self._write(plan, planner)
        finally:
            if self._stage is not None:
                _written.add(self)

    def _write(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        target: _Target = plan.storage_data
        folder = Path(target.folder)
        try:
            token = head_of(str(folder.parent / _TOKEN_FILE), 64).decode("ascii", "replace")
        except (OSError, FormatError):
            token = ""
        if token != target.token:
            text = f"this rank does not see {target.folder!r} of the coordinator: all ranks need one shared file system"
            raise FileNotFoundError(text)
        results = []
        items = sorted(plan.items, key=lambda item: target.tensors[item.index.fqn])
        for file, group in itertools.groupby(items, key=lambda item: target.tensors[item.index.fqn].file):
            with open(folder / file, "r+b", buffering=0) as out:
                for item in group:
                    tensor = planner.resolve_data(item)
                    if not isinstance(tensor, torch.Tensor):
                        raise _error("Type", f"{item.index.fqn!r} is not a tensor")
                    size = _write_chunk(out, target.tensors[item.index.fqn], item, tensor)
                    results.append(WriteResult(item.index, size, None))
                if self._fsync:
                    os.fsync(out.fileno())
        done: Future[list[WriteResult]] = Future()
        done.set_result(results)
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:  # noqa: ARG002 - torch's
        """Moves the files to the folder, on the coordinator.

        Raises:
            ValueError: Not all elements were written; the folder is as it was.
            OSError: Another save has taken the hidden folder (code `TargetBusy`), or the system refuses.
        """
        layout, stage = self._layout, self._stage
        if layout is None or stage is None:
            raise _error(
                "Value", "nothing was planned: finish is called by torch.distributed.checkpoint.save"
            )
        try:
            _check_complete(layout, results)
            stage.publish(layout.files, sync=self._fsync)
        finally:
            self._release()

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Whether it can be the path of a folder: one that exists, or whose parent does."""
        path = Path(checkpoint_id)
        return path.is_dir() or (not path.exists() and path.absolute().parent.is_dir())


_written: weakref.WeakSet[Writer] = weakref.WeakSet()
"""Those of this process that have written their chunks, and wait for other ranks."""


def _create_files(
    stage: _rustload.FolderStage,
    specs: Mapping[str, tuple[str, tuple[int, ...]]],
    texts: Mapping[str, str],
    max_shard_size: int,
    *,
    sync: bool,
) -> _Layout:
    """Creates the files of tensors, given by dtype and shape, in full size."""
    for name, (dtype, shape) in specs.items():
        row = DTYPE_ROWS.get(dtype)
        if row is None or row.code is None or (row.code == "F4" and not shape):
            raise _error("NotSafetensors", f"{dtype} has no form in a safetensors file: {name!r}")
    # DCP distributes replicated tensors among ranks, so only sorting gives an order that does not depend on their number.
    tensors = [(name, *specs[name]) for name in sorted(specs)]
    places, files = stage.create_files(
        tensors, metadata=list(texts.items()), max_shard_size=max_shard_size, sync=sync
    )
    return _Layout(files, {name: Location(*at) for (name, _, _), at in zip(tensors, places, strict=True)})


def _is_of_checkpoint(file: str, stem: str) -> bool:
    """Whether a file is one of this checkpoint's, in this or another number of shards, or its index."""
    number = r"((\.generation\d+)?-\d{5}-of-\d{5})?"
    return re.fullmatch(re.escape(stem) + number + r"\.safetensors(\.index\.json)?", file) is not None


def _check_complete(layout: _Layout, results: list[list[WriteResult]]) -> None:
    written: dict[str, int] = {}
    for result in itertools.chain.from_iterable(results):
        written[result.index.fqn] = written.get(result.index.fqn, 0) + result.size_in_bytes
    for name, location in layout.tensors.items():
        if written.get(name, 0) != location.nbytes:
            text = f"{written.get(name, 0)} of {location.nbytes} bytes of {name!r} were written"
            raise _error("WriterIncomplete", text)


def _data(item: WriteItem) -> Any:
    if item.tensor_data is None:
        raise _error("Type", f"{item.index.fqn!r} is not a tensor")
    return item.tensor_data


def _write_chunk(out: io.FileIO, location: Location, item: WriteItem, tensor: torch.Tensor) -> int:
    """Writes a chunk of a tensor at its place in the file; returns the number of bytes."""
    data = _data(item)
    offsets, shape = tuple(data.chunk.offsets), tuple(data.chunk.sizes)
    local = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    if tuple(local.shape) != shape:
        text = (
            f"{item.index.fqn!r} has shape {list(local.shape)} on this rank, and the plan says {list(shape)}"
        )
        raise _error("Value", text)
    if not local.numel():
        return 0
    # A dimension of one element may have any stride, which `view` refuses.
    content = local.as_strided((local.numel(),), (1,)).view(torch.uint8).numpy().data
    position = 0
    for start, nbytes in _runs(tuple(data.size), offsets, shape, local.element_size()):
        out.seek(location.start + start)
        left = content[position : position + nbytes]
        while left:
            left = left[out.write(left) :]
        position += nbytes
    return position


def _runs(
    whole: Sequence[int], offsets: Sequence[int], shape: Sequence[int], itemsize: int
) -> Iterator[tuple[int, int]]:
    """The contiguous ranges of a chunk in its tensor: offset and size in bytes."""
    first = len(whole)  # dimensions from here on are whole
    while first and offsets[first - 1] == 0 and shape[first - 1] == whole[first - 1]:
        first -= 1
    cut = max(first - 1, 0)
    strides = [math.prod(whole[dim + 1 :]) * itemsize for dim in range(len(whole))]
    nbytes = math.prod(shape[cut:]) * itemsize
    outer = (range(offset, offset + size) for offset, size in zip(offsets[:cut], shape[:cut], strict=True))
    inner = offsets[cut] * strides[cut] if whole else 0
    for index in itertools.product(*outer):
        yield sum(at * stride for at, stride in zip(index, strides, strict=False)) + inner, nbytes
