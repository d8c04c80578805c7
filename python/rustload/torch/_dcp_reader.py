"""`Reader` and `Planner`: checkpoints of any format for `torch.distributed.checkpoint.load`, without unpickling anything."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import torch
from torch.distributed.checkpoint._traverse import set_element
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, ReadItem
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from rustload._checkpoint.names import select_tensors
from rustload._checkpoint.open import opened
from rustload._common.options import NamesOptions, SourceOptions, filled, part, takes
from rustload._common.patterns import warn_user
from rustload._common.rules import Rules
from rustload._frameworks.torch import torch_dtype
from rustload._rustload import Limits
from rustload.errors import _error
from rustload.torch._dcp_contents import Contents, contents_of, is_plain, with_tensors
from rustload.torch._fill import check_numbers, fill
from rustload.torch._load import load

if TYPE_CHECKING:
    import os

    from torch.distributed.checkpoint.planner import LoadPlanner

    from rustload._tensor.handle import LazyTensor


class _Value(io.BytesIO):
    """A value that is not a tensor, on its way from `Reader` to `Planner`; its bytes are never used."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value


class Reader(StorageReader):
    """Reads a checkpoint of any format that `rustload.open` takes for `torch.distributed.checkpoint.load`.

    That includes DCP's own folders, and a list of the files that the processes of a distributed program saved.

    Each rank opens the checkpoint and reads the elements that its plan asks for. Tensors are named as DCP names those of a nested
    state dict: the keys that lead to them, joined with dots. Values that are not tensors are loaded with `Planner`;
    other planners get those that are plain data.

    >>> import rustload, torch, rustload.torch.distributed as rd
    >>> from torch.distributed import checkpoint as dcp
    >>> state = {"q.weight": torch.zeros(8, 8)}
    >>> dcp.load(state, storage_reader=rd.Reader("model.pt"), planner=rd.Planner())
    >>> torch.equal(state["q.weight"], rustload.open("model.pt")["q.weight"].torch())
    True
    """

    @takes(SourceOptions)
    def __init__(
        self,
        path: Any,
        *,
        dtype: Any = None,
        allow_lossy: bool = False,
        threads: int | None = None,
        **options: Unpack[SourceOptions],
    ) -> None:
        """Opens nothing yet.

        Args:
            path: Anything that `rustload.open` takes, or an open checkpoint.
            dtype: The dtype of tensors that DCP itself creates: a dtype for float tensors, a mapping from glob patterns, or a
                callable. Existing tensors keep theirs, and are cast to.
            allow_lossy: Whether a cast may change the kind of number.
            threads: The number of threads; None for up to one per core.
            **options: What to load (`SourceOptions`). With `key`, `strip` or `rename`, only tensors are loaded.
        """
        self._path, self._options = path, filled(Reader.__init__, options)
        self._rules = Rules(dtype=dtype)
        self._allow_lossy = bool(allow_lossy)
        self._threads = threads
        self._contents: Contents | None = None

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Begins another load, of `checkpoint_id` if it is given."""
        self._contents = None
        if checkpoint_id is not None:
            self._path = checkpoint_id

    def _opened(self) -> Contents:
        if self._contents is None:
            checkpoint, chosen = opened(self._path, "torch", self._options["limits"])
            if checkpoint.format != "torch-dcp":
                for note in checkpoint.notes:
                    if "also has a distributed checkpoint" in note:
                        warn_user(note)
            names = part(NamesOptions, self._options)
            if chosen is not checkpoint or any(value is not None for value in names.values()):
                tensors = select_tensors(chosen, **names)
                self._contents = Contents(tensors, {}, {name: (name,) for name in tensors})
            else:
                self._contents = contents_of(checkpoint, (self._options["limits"] or Limits()).export_nodes)
            self._rules.warn_of_kept(self._contents.tensors.values())
        return self._contents

    def read_metadata(self, *_args: Any, **_kwargs: Any) -> Metadata:
        """The shapes and dtypes of all tensors, the names of other values, and the path of each; reads no tensor.

        Raises:
            FormatError: As for `rustload.open`; its other errors are possible too.
        """
        contents = self._opened()
        found: dict[str, Any] = {}
        for name, lazy in contents.tensors.items():
            whole = torch.Size(lazy.shape)
            properties = TensorProperties(dtype=torch_dtype(self._rules.dtype(lazy) or lazy.dtype))
            chunk = ChunkStorageMetadata(torch.Size([0] * len(whole)), whole)
            found[name] = TensorStorageMetadata(properties, whole, [chunk])
        found |= {name: BytesStorageMetadata() for name in contents.values}
        return Metadata(found, planner_data=dict(contents.paths), storage_data={})

    def set_up_storage_reader(
        self,
        metadata: Metadata,  # noqa: ARG002 - torch's
        is_coordinator: bool,  # noqa: ARG002, FBT001 - torch's
        *_args: Any,
        **_kwargs: Any,
    ) -> None:
        """Opens the checkpoint, if `read_metadata` has not."""
        self._opened()

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """The plan as it is."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """The plans as they are."""
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Reads what the plan asks for, in the order of the file, and returns a completed future.

        Raises:
            AssertionError: A target has another size than what is to be read into it.
            UnsupportedError: A value is not plain data, and the planner is not rustload's.
            FormatError: The file was truncated or changed.
        """
        tensors = self._opened().tensors
        order = {name: number for number, name in enumerate(tensors)}
        items = [req for req in plan.items if req.type is LoadItemType.TENSOR]
        items.sort(key=lambda req: (order[req.storage_index.fqn], req.storage_offsets))
        for req in items:
            self._read_tensor(req, tensors[req.storage_index.fqn], planner)
        for req in plan.items:
            if req.type is LoadItemType.BYTE_IO:
                self._read_value(req, planner)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _read_tensor(self, req: ReadItem, lazy: LazyTensor, planner: LoadPlanner) -> None:
        check_numbers(lazy)
        source = lazy[tuple(slice(o, o + n) for o, n in zip(req.storage_offsets, req.lengths, strict=True))]
        target = planner.resolve_tensor(req).detach()
        if tuple(target.size()) != source.shape:
            raise AssertionError(
                f"req {req.storage_index} mismatch sizes {target.size()} vs {torch.Size(source.shape)}"
            )
        fill(target, source, allow_lossy=self._allow_lossy, threads=self._threads)
        planner.commit_tensor(req, target)

    def _read_value(self, req: ReadItem, planner: LoadPlanner) -> None:
        value = with_tensors(self._opened().values[req.storage_index.fqn]())
        if isinstance(planner, Planner):
            planner.load_bytes(req, _Value(value))
            return
        if not is_plain(value):
            text = (
                f"{req.storage_index.fqn!r} is not plain data, and {type(planner).__name__} would unpickle it"
            )
            note = "pass planner=rustload.torch.distributed.Planner()"
            raise _error("OpaqueValue", text, note)
        data = io.BytesIO()
        torch.save(value, data)
        data.seek(0)
        planner.load_bytes(req, data)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Whether it is a path that exists."""
        return Path(checkpoint_id).exists()


class Planner(DefaultLoadPlanner):
    """DCP's `DefaultLoadPlanner`, without pickle: values that are not tensors come from `Reader` as inert data.

    With another reader, such as DCP's own, their pickles are read by `rustload.torch.load`, which runs nothing.
    """

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        """Puts a value into the state dict.

        Raises:
            DisallowedError: Its pickle names a class or function that `rustload.torch.load` does not know.
        """
        found = value.value if isinstance(value, _Value) else load(value)
        name = read_item.dest_index.fqn
        if self.flatten_state_dict:
            set_element(self.original_state_dict, self.mappings[name], found)
        else:
            self.state_dict[name] = found
