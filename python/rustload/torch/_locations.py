"""Storages of a file as torch storages, where `map_location` wants them.

As in torch, `map_location` is asked once per storage, so tensors that share one share the result. What goes to the CPU is read
all at once, in threads; for what may go elsewhere no more is read ahead than a few storages, so that the memory of the host
holds the file but once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch.serialization import default_restore_location

from rustload._cuda.results import on_gpu
from rustload._frameworks import torch as adapter
from rustload.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rustload import _rustload

__all__ = ["MapLocation", "Storages", "storages"]

MapLocation: TypeAlias = (
    str | torch.device | dict[str, str] | Callable[[torch.UntypedStorage, str], Any] | None
)

# Typed here, as torch does not.
_restore: Callable[[Any, Any], Any] = default_restore_location
_empty: Callable[..., torch.UntypedStorage] = torch.UntypedStorage

# Bytes read ahead of a storage that leaves the host.
_AHEAD = 64 << 20


class Storages:
    """The storages of one file, by number, and the device of each."""

    __slots__ = ("devices", "has_data", "locations", "rows")

    def __init__(self, count: int) -> None:
        empty = _empty(0)
        self.rows: list[torch.UntypedStorage] = [empty] * count
        self.devices: list[torch.device] = [empty.device] * count
        # Whether the bytes are those of the file.
        self.has_data = True
        # Only under FakeTensorMode: where tensors pretend to be.
        self.locations: list[str | None] | None = None

    def put(self, number: int, storage: Any) -> None:
        """Takes what `map_location` made of a storage.

        Raises:
            TypeError: It is no storage.
        """
        if isinstance(storage, torch.storage.TypedStorage):
            storage = storage._untyped_storage
        if not isinstance(storage, torch.UntypedStorage):
            raise TypeError(
                f"map_location gave a {type(storage).__name__}, where a torch.UntypedStorage is wanted"
            )
        self.rows[number] = storage
        self.devices[number] = storage.device


def storages(core: _rustload.Checkpoint, shard: int, map_location: MapLocation, *, mmap: bool) -> Storages:
    """The storages of a file.

    Args:
        core: The opened checkpoint.
        shard: Which of its files.
        map_location: As for `torch.load`.
        mmap: Whether storages are views of the file's private mapping, where they lie in it as they are.
    """
    fake = _is_faking()
    if fake or _is_meta(map_location):
        return _on_meta(core, shard, fake=fake)
    infos = core.storages(shard, places=False)
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
            # torch has its say here too, and finds it where it is to be.
            out.put(number, _restore(storage, str(storage.device)))
        todo = [number for number in todo if not out.rows[number].nbytes()]
        sizes = [nbytes for nbytes, _, _ in infos]
        stays = all(_target(map_location, location) == "cpu" for _, location, _ in infos)
        found = _read(core, shard, sizes, todo, stays=stays, mmap=mmap)
    for number, storage in found:
        location = infos[number][1]
        # An array of NumPy's was on no device.
        out.put(number, storage if location is None else restore(storage, location))
    for number, (nbytes, location, _) in enumerate(infos):
        if not nbytes and location is not None:
            out.put(number, restore(_empty(0), location))
    return out


def _read(
    core: _rustload.Checkpoint, shard: int, sizes: list[int], todo: list[int], *, stays: bool, mmap: bool
) -> Iterator[tuple[int, torch.UntypedStorage]]:
    """Every storage, in order: a view if that is asked for and possible, else bytes of its own."""
    starts: list[int | None] = [None] * len(sizes)
    whole: torch.UntypedStorage | None = None
    if mmap:
        try:
            row, starts = core.storage_views(shard)
        except (BufferError, MemoryError):
            pass  # the system refuses the mapping: bytes of their own do as well
        else:
            whole = _row(row)
    ahead: dict[int, torch.UntypedStorage] = {}
    owned = iter(_groups([number for number in todo if starts[number] is None], sizes, stays=stays))
    for number in todo:
        start = starts[number]
        if start is not None and whole is not None:
            yield number, whole[start : start + sizes[number]]
            continue
        if number not in ahead:
            ahead.update(_owned(core, shard, sizes, next(owned)))
        yield number, ahead.pop(number)


def _on_gpus(map_location: MapLocation, locations: list[str | None]) -> dict[int, torch.device]:
    """The storages that go to a GPU by upload, as far as that is known before they are read."""
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
    """The GPU of that name; None for what is none, or where torch is to say that it is not there."""
    if target is None or not target.startswith("cuda"):
        return None
    try:
        device = adapter.check_device(target)
    except DeviceError:
        return None
    return None if adapter.place(device) is None else device


def _uploaded(
    core: _rustload.Checkpoint, shard: int, wanted: dict[int, torch.device]
) -> Iterator[tuple[int, torch.UntypedStorage]]:
    """Storages on GPUs, for those that can be read by themselves."""
    if not wanted:
        return
    rows = core.storage_tensors(shard)
    for device in dict.fromkeys(wanted.values()):
        numbers = [number for number, where in wanted.items() if where == device and rows[number] is not None]
        place = adapter.place(device)
        if place is None:
            continue
        tensors = [row for number in numbers if (row := rows[number]) is not None]
        for number, made in zip(numbers, on_gpu(tensors, place), strict=True):
            storage: torch.UntypedStorage = made.untyped_storage()
            yield number, storage


def _groups(todo: list[int], sizes: list[int], *, stays: bool) -> Iterator[list[int]]:
    """Which storages to read together."""
    group: list[int] = []
    nbytes = 0
    for number in todo:
        if group and not stays and nbytes + sizes[number] > _AHEAD:
            yield group
            group, nbytes = [], 0
        group.append(number)
        nbytes += sizes[number]
    if group:
        yield group


def _owned(
    core: _rustload.Checkpoint, shard: int, sizes: list[int], group: list[int]
) -> Iterator[tuple[int, torch.UntypedStorage]]:
    buffers, places = core.read_storages(shard, group)
    rows = [_row(buffer) for buffer in buffers]
    whole = [row.nbytes() for row in rows]
    del buffers
    for number, (at, start) in zip(group, places, strict=True):
        nbytes = sizes[number]
        yield number, rows[at] if nbytes == whole[at] else rows[at][start : start + nbytes]


def _row(buffer: _rustload.Buffer) -> torch.UntypedStorage:
    row: torch.Tensor = torch.from_dlpack(buffer)  # type: ignore[attr-defined]  # exported, not declared
    storage: torch.UntypedStorage = row.untyped_storage()
    return storage


def _on_meta(core: _rustload.Checkpoint, shard: int, *, fake: bool) -> Storages:
    """Storages without bytes; each knows where its bytes lie in the file, as torch's do."""
    infos = core.storages(shard, places=True)
    out = Storages(len(infos))
    out.has_data = False
    for number, (nbytes, location, at) in enumerate(infos):
        storage: Any = _empty(nbytes, device="meta")
        if at is not None:
            storage._checkpoint_offset = at
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
    """Where a storage goes, as far as that is known before it is read."""
    if map_location is None or location is None:
        return location or "cpu"
    if isinstance(map_location, dict):
        return map_location.get(location, location)
    return str(map_location) if isinstance(map_location, (str, torch.device)) else None


def _restorer(map_location: MapLocation) -> Callable[[torch.UntypedStorage, str], Any]:
    """What moves a storage. torch's own registry of devices does it, so `register_package` counts here too."""
    if map_location is None:
        return _restore
    if isinstance(map_location, dict):
        return lambda storage, location: _restore(storage, map_location.get(location, location))
    if isinstance(map_location, (str, bytes)):
        return lambda storage, _: _restore(storage, map_location)
    if isinstance(map_location, torch.device):
        name = str(map_location)
        return lambda storage, _: _restore(storage, name)

    def ask(storage: torch.UntypedStorage, location: str) -> Any:
        moved = map_location(storage, location)
        return _restore(storage, location) if moved is None else moved

    return ask


def _skips_data() -> bool:
    """Whether `torch.serialization.skip_data` is in force, for a torch that has it."""
    return bool(getattr(getattr(torch.serialization, "_serialization_tls", None), "skip_data", False))


def _is_faking() -> bool:
    """Whether a FakeTensorMode is in force."""
    guards = getattr(torch, "_guards", None)
    detect = getattr(guards, "detect_fake_mode", None)
    return detect is not None and detect(None) is not None
