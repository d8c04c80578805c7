"""Writes checkpoints that are tar archives: those of torch 0.1, which no torch writes any more, and NeMo's (`.nemo`)."""

from __future__ import annotations

import io
import pickle
import struct
import sys
import tarfile
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))

from attacks import pickles

CLASSES = {
    torch.float64: "Double", torch.float32: "Float", torch.float16: "Half", torch.int64: "Long", torch.int32: "Int",
    torch.int16: "Short", torch.int8: "Char", torch.uint8: "Byte",
}  # fmt: skip
"""The stems of torch 0.1's classes."""


class ClassTag:
    """A class with its source, as torch 0.1 wrote containers of modules."""

    def __init__(self, dotted: str) -> None:
        self.dotted = dotted


class StoragePart:
    """A tensor on a storage that is a part of that of `tensor`: `numel` elements from `start`."""

    def __init__(self, tensor: torch.Tensor, start: int, numel: int) -> None:
        self.tensor, self.start, self.numel = tensor, start, numel


class Torch01:
    """The four members of an archive of torch 0.1, as torch/serialization.py of 0.1.12 writes them.

    Tensors and storages in the object are persistent ids. Tensors that share a storage share it in the file.
    """

    def __init__(
        self,
        obj: Any,
        *,
        cuda: bool = False,
        location: str = "",
        little_endian: bool = True,
        protocol: int = 2,
    ) -> None:
        self.module, self.location = ("torch.cuda", "cuda:0") if cuda else ("torch", location or "cpu")
        self.protocol = protocol
        self._tensors: dict[int, tuple[int, Any]] = {}
        self._storages: dict[int, tuple[int, torch.Tensor]] = {}
        self._views: dict[tuple[int, int, int], int] = {}
        self._next = 94_000_000_000_000
        self.pickle = self._object(obj)
        self.sys_info = pickle.dumps(
            {
                "protocol_version": 1000,
                "little_endian": little_endian,
                "type_sizes": {"short": 2, "int": 4, "long": 8},
            },
            protocol,
        )
        self.tensors = self._all_tensors()
        self.storages = self._all_storages()

    def members(self) -> dict[str, bytes]:
        """The members in the order in which torch writes them."""
        return {name: getattr(self, name) for name in ("sys_info", "pickle", "tensors", "storages")}

    def bytes(self) -> bytes:
        """The archive."""
        return packed(self.members())

    def _key(self) -> int:
        self._next += 16
        return self._next

    def _object(self, obj: Any) -> bytes:
        out = io.BytesIO()
        writer = self

        class Pickler(pickle._Pickler):  # type: ignore[name-defined]
            def persistent_id(self, found: Any) -> Any:
                return writer._id(found)

            def save_pers(self, pid: Any) -> None:
                if not isinstance(pid, ClassTag):
                    super().save_pers(pid)
                    return
                tag = pickles.many(
                    pickles.name(pid.dotted), pickles.text("net.py"), pickles.text("class Net")
                )
                self.write(tag + b"Q")

        Pickler(out, self.protocol).dump(obj)
        return out.getvalue()

    def _id(self, found: Any) -> Any:
        if isinstance(found, ClassTag):
            return found
        if isinstance(found, (torch.Tensor, StoragePart)) and not isinstance(found, torch.nn.Parameter):
            if id(found) not in self._tensors:
                self._tensors[id(found)] = (self._key(), found)
                self._storage(found)
            return str(self._tensors[id(found)][0])
        if isinstance(found, torch.storage.TypedStorage):
            whole = torch.tensor([], dtype=found.dtype).set_(found)
            return str(self._storage(whole))
        return None

    def _storage(self, found: torch.Tensor | StoragePart) -> int:
        """The key of a tensor's storage."""
        tensor = found.tensor if isinstance(found, StoragePart) else found
        root = tensor.untyped_storage()._cdata
        if root not in self._storages:
            self._storages[root] = (self._key(), tensor)
        if isinstance(found, StoragePart):
            return self._views.setdefault((root, found.start, found.numel), self._key())
        return self._storages[root][0]

    def _class(self, dtype: torch.dtype, what: str) -> bytes:
        return pickles.name(f"{self.module}.{CLASSES[dtype]}{what}")

    def _all_tensors(self) -> bytes:
        out = pickle.dumps(len(self._tensors), self.protocol)
        for key, found in self._tensors.values():
            part = isinstance(found, StoragePart)
            tensor, start = (found.tensor, found.start) if part else (found, 0)
            ids = (pickles.integer(key), pickles.integer(self._storage(found)))
            out += pickles.pickle(pickles.many(*ids, self._class(tensor.dtype, "Tensor")))
            rank = tensor.dim()
            out += struct.pack("<ii", rank, -1 if part else 0)
            out += struct.pack(f"<{2 * rank}q", *tensor.shape, *tensor.stride())
            out += struct.pack("<q", tensor.storage_offset() - start)
        return out

    def _all_storages(self) -> bytes:
        out = pickle.dumps(len(self._storages), self.protocol)
        for key, tensor in self._storages.values():
            entry = pickles.many(
                pickles.integer(key), pickles.text(self.location), self._class(tensor.dtype, "Storage")
            )
            data = bytes(tensor.untyped_storage().tolist())
            out += pickles.pickle(entry) + struct.pack("<q", len(data) // tensor.itemsize) + data
        views = [
            (key, self._storages[root][0], start, numel) for (root, start, numel), key in self._views.items()
        ]
        return out + pickle.dumps(views, self.protocol)


def packed(members: dict[str, bytes], format: int = tarfile.PAX_FORMAT) -> bytes:  # noqa: A002 (tarfile's name)
    """A tar archive of these members, by Python's tarfile; a name that ends with a slash is a folder."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:", format=format) as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name.rstrip("/"))
            info.size, info.mtime = len(data), 1_483_228_800.25
            if name.endswith("/"):
                info.type = tarfile.DIRTYPE
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def torch01(obj: Any, **options: Any) -> bytes:
    """The archive that torch 0.1 writes of an object; see `Torch01`."""
    return Torch01(obj, **options).bytes()


def saved(obj: Any, **options: Any) -> bytes:
    """What torch.save writes."""
    out = io.BytesIO()
    torch.save(obj, out, **options)
    return out.getvalue()


CONFIG = b"target: nemo.collections.asr.models.EncDecCTCModel\nsample_rate: 16000\n"


def nemo(weights: dict[str, bytes], *, format: int = tarfile.PAX_FORMAT) -> bytes:  # noqa: A002 (tarfile's name)
    """A NeMo archive, with names as `tar.add(folder, arcname=".")` gives them; `weights` by path."""
    folders = sorted({f"./{path.rpartition('/')[0]}/" for path in weights if "/" in path})
    members = {"./": b"", "./model_config.yaml": CONFIG, **dict.fromkeys(folders, b"")}
    return packed(members | {f"./{path}": data for path, data in weights.items()}, format)


def nemo_distributed(folder: Path, state: dict[str, Any]) -> bytes:
    """A NeMo archive whose weights are a distributed checkpoint; `folder` is for its files."""
    import torch.distributed.checkpoint as dcp

    dcp.save(state, checkpoint_id=folder, no_dist=True)
    return nemo({f"model_weights/{file.name}": file.read_bytes() for file in sorted(folder.iterdir())})
