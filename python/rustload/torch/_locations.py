"""Creates the torch storages of a file on the devices that `map_location` selects.

As in torch, `map_location` is applied once per storage, so tied tensors share the result. Storages for the CPU are all read at
once, in threads. For storages that may go to another device, only a few are read ahead, so that the host does not hold the whole
file.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch.serialization import default_restore_location

from rustload._cuda.results import upload_all
from rustload._frameworks import torch as adapter
from rustload.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rustload import _rustload

MapLocation: TypeAlias = (
    str | torch.device | dict[str, str] | Callable[[torch.UntypedStorage, str], Any] | None
)

# Annotated here, because torch does not.
_restore: Callable[[Any, Any], Any] = default_restore_location
_empty: Callable[..., torch.UntypedStorage] = torch.UntypedStorage

# The most bytes to read ahead for storages that may leave the host.
_READ_AHEAD_BYTES = 64 << 20


class Storages:
    """The storages of one file, by number, and the device of each."""

    def __init__(self, count: int) -> None:
        empty = _empty(0)
        self.by_number: list[torch.UntypedStorage] = [empty] * count
        self.devices: list[torch.device] = [empty.device] * count
        # Whether the storages hold the bytes of the file.
        self.has_data = True
        # Only under FakeTensorMode: the device that each fake tensor reports.
        self.locations: list[str | None] | None = None

    def put(self, number: int, storage: Any) -> None:
        """Sets a storage to the result of `map_location`.

        Raises:
            TypeError: The result is not a storage.
        """
        if isinstance(storage, torch.storage.TypedStorage):
            storage = storage._untyped_storage
        if not isinstance(storage, torch.UntypedStorage):
            raise TypeError(f"map_location returned a {type(storage).__name__}, not a torch.UntypedStorage")
        self.by_number[number] = storage
        self.devices[number] = storage.device


def storages(core: _rustload.Checkpoint, shard: int, map_location: MapLocation, *, mmap: bool) -> Storages:
    """Creates the storages of a file, as views of it (private copy-on-write mapping) with `mmap` where nothing is converted."""
    fake = _is_faking()
    if fake or _is_meta(map_location):
        return _on_meta(core, shard, fake=fake)
    infos = core.storages(shard, offsets=False)
    out = Storages(len(infos))
    restore = _restorer(map_location)
    todo = [number for number, (nbytes, _, _) in enumerate(infos) if nbytes]
    if _skips_data():
        out.has_data = False
        found: Iterator[tuple[int, torch.UntypedStorage]]
        found = ((number, _empty(infos[number][0])) for number in todo)
    else:
        gpus = _on_gpus(map_location, [location for _, location, _ in infos])
        for number, storage in _uploaded(
            core, shard, {number: gpus[number] for number in todo if number in gpus}
        ):
            # torch's device registry runs here too; the storage is on its device already.
            out.put(number, _restore(storage, str(storage.device)))
        todo = [number for number in todo if not out.by_number[number].nbytes()]
        sizes = [nbytes for nbytes, _, _ in infos]
        targets = {_target(map_location, location) for _, location, _ in infos}
        found = _read(core, shard, sizes, todo, targets, mmap=mmap)
    for number, storage in found:
        location = infos[number][1]
        # A NumPy array has no saved location.
        out.put(number, storage if location is None else restore(storage, location))
    for number, (nbytes, location, _) in enumerate(infos):
        if not nbytes and location is not None:
            out.put(number, restore(_empty(0), location))
    return out


def _read(
    core: _rustload.Checkpoint,
    shard: int,
    sizes: list[int],
    todo: list[int],
    targets: set[str | None],
    *,
    mmap: bool,
) -> Iterator[tuple[int, torch.UntypedStorage]]:
    """Yields the storages in order: a view if `mmap` and possible, otherwise with owned memory."""
    starts: list[int | None] = [None] * len(sizes)
    whole: torch.UntypedStorage | None = None
    if mmap:
        try:
            # A device's driver pins what it copies, and each pinned page of a writable private mapping becomes memory.
            leaves = not any(target is None or target.startswith("cpu") for target in targets)
            mapped, starts = core.storage_views(shard, writable=not leaves)
        except (BufferError, MemoryError):
            pass  # the system cannot map the file: read into owned memory instead
        else:
            whole = _as_storage(mapped)
    read: dict[int, torch.UntypedStorage] = {}
    stays = targets <= {"cpu"}
    owned = iter(_groups([number for number in todo if starts[number] is None], sizes, stays=stays))
    for number in todo:
        start = starts[number]
        if start is not None and whole is not None:
            yield number, whole[start : start + sizes[number]]
            continue
        if number not in read:
            read.update(_owned(core, shard, sizes, next(owned)))
        yield number, read.pop(number)


def _on_gpus(map_location: MapLocation, locations: list[str | None]) -> dict[int, torch.device]:
    """The CUDA devices of the storages, by number, as far as `map_location` gives them without a call."""
    found: dict[int, torch.device] = {}
    devices: dict[str | None, torch.device | None] = {}
    for number, location in enumerate(locations):
        target = None if location is None else _target(map_location, location)
        if target not in devices:
            devices[target] = _gpu(target)
        device = devices[target]
        if device is not None:
            found[number] = device
    return found


def _gpu(target: str | None) -> torch.device | None:
    """The CUDA device of that name; None for other devices, and for a missing GPU, for which torch raises its own error."""
    if target is None or not target.startswith("cuda"):
        return None
    try:
        device = adapter.check_device(target)
    except DeviceError:
        return None
    return None if adapter.gpu_for(device) is None else device


def _uploaded(
    core: _rustload.Checkpoint, shard: int, devices: dict[int, torch.device]
) -> Iterator[tuple[int, torch.UntypedStorage]]:
    """Copies storages to their GPUs; skips those that the core cannot read as one tensor."""
    if not devices:
        return
    by_number = core.storage_tensors(shard)
    for device in dict.fromkeys(devices.values()):
        tensors = {
            number: tensor
            for number, target in devices.items()
            if target == device and (tensor := by_number[number]) is not None
        }
        gpu = adapter.gpu_for(device)
        assert gpu is not None  # `_gpu` has asked
        for number, made in zip(tensors, upload_all(list(tensors.values()), gpu), strict=True):
            storage: torch.UntypedStorage = made.untyped_storage()
            yield number, storage


def _groups(todo: list[int], sizes: list[int], *, stays: bool) -> Iterator[list[int]]:
    """Groups storages to read together."""
    group: list[int] = []
    nbytes = 0
    for number in todo:
        if group and not stays and nbytes + sizes[number] > _READ_AHEAD_BYTES:
            yield group
            group, nbytes = [], 0
        group.append(number)
        nbytes += sizes[number]
    if group:
        yield group


def _owned(
    core: _rustload.Checkpoint, shard: int, sizes: list[int], group: list[int]
) -> Iterator[tuple[int, torch.UntypedStorage]]:
    buffers, locations = core.read_storages(shard, group)
    storages = [_as_storage(buffer) for buffer in buffers]
    sizes_read = [storage.nbytes() for storage in storages]
    del buffers
    for number, (index, start) in zip(group, locations, strict=True):
        nbytes = sizes[number]
        yield (
            number,
            storages[index] if nbytes == sizes_read[index] else storages[index][start : start + nbytes],
        )


def _as_storage(buffer: _rustload.Buffer) -> torch.UntypedStorage:
    memory: torch.Tensor = torch.from_dlpack(buffer)  # type: ignore[attr-defined]  # exported, not declared
    storage: torch.UntypedStorage = memory.untyped_storage()
    return storage


def _on_meta(core: _rustload.Checkpoint, shard: int, *, fake: bool) -> Storages:
    """Meta storages with their offset in the file as `_checkpoint_offset`, as in torch."""
    infos = core.storages(shard, offsets=True)
    out = Storages(len(infos))
    out.has_data = False
    for number, (nbytes, location, offset) in enumerate(infos):
        storage: Any = _empty(nbytes, device="meta")
        if offset is not None:
            storage._checkpoint_offset = offset
        if fake:
            storage._fake_device = location
        out.put(number, storage)
    if fake:
        out.locations = [location for _, location, _ in infos]
    return out


def _is_meta(map_location: MapLocation) -> bool:
    if isinstance(map_location, torch.device):
        return map_location.type == "meta"
    return isinstance(map_location, str) and map_location == "meta"


def _target(map_location: MapLocation, location: str | None) -> str | None:
    """The device of a storage, if it is known without calling `map_location`; None otherwise."""
    if map_location is None or location is None:
        return location or "cpu"
    if isinstance(map_location, dict):
        found: object = map_location.get(location, location)
        return found if isinstance(found, str) else None  # torch refuses it
    return str(map_location) if isinstance(map_location, (str, torch.device)) else None


def _restorer(map_location: MapLocation) -> Callable[[torch.UntypedStorage, str], Any]:
    """The function that moves a storage. It uses torch's device registry, so `register_package` works."""
    if map_location is None:
        return _restore
    if isinstance(map_location, dict):
        return lambda storage, location: _restore(storage, map_location.get(location, location))
    if isinstance(map_location, (str, bytes)):
        return lambda storage, _: _restore(storage, map_location)
    if isinstance(map_location, torch.device):
        name = str(map_location)
        return lambda storage, _: _restore(storage, name)

    def call_user(storage: torch.UntypedStorage, location: str) -> Any:
        moved = map_location(storage, location)
        return _restore(storage, location) if moved is None else moved

    return call_user


def _skips_data() -> bool:
    """Whether `torch.serialization.skip_data` is active (in a torch that has it)."""
    return bool(getattr(getattr(torch.serialization, "_serialization_tls", None), "skip_data", False))


def _is_faking() -> bool:
    """Whether a FakeTensorMode is active."""
    guards = getattr(torch, "_guards", None)
    detect = getattr(guards, "detect_fake_mode", None)
    return detect is not None and detect(None) is not None
