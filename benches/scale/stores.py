"""Checkpoints without data: files of zeros that take no space, and an object whose requests are counted."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from benches.scale.shapes import Shapes

SHARD_BYTES = 4_700_000_000
"""The most bytes of tensors in a file: then Llama-3.1-405B has about as many files as on the Hugging Face Hub (191)."""


def header_of(shapes: dict[str, tuple[int, ...]]) -> tuple[bytes, int]:
    """The beginning of a safetensors file of bfloat16 tensors, and the size of the file."""
    entries, position = {}, 0
    for name, shape in shapes.items():
        end = position + 2 * torch.Size(shape).numel()
        entries[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [position, end]}
        position = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, 8 + len(text) + position


def write_folder(folder: Path, shapes: Shapes, shard_bytes: int = SHARD_BYTES) -> int:
    """Writes sparse safetensors shards with their index; returns the number of shards."""
    shards: list[dict[str, tuple[int, ...]]] = [{}]
    size = 0
    for name, (shape, _) in shapes.tensors().items():
        nbytes = 2 * torch.Size(shape).numel()
        if shards[-1] and size + nbytes > shard_bytes:
            shards.append({})
            size = 0
        shards[-1][name] = shape
        size += nbytes
    weight_map: dict[str, str] = {}
    for number, tensors in enumerate(shards):
        file = f"model-{number + 1:05}-of-{len(shards):05}.safetensors"
        head, total = header_of(tensors)
        with (folder / file).open("wb") as opened:
            opened.write(head)
            opened.truncate(total)
        weight_map |= dict.fromkeys(tensors, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return len(shards)


class CountedObject:
    """One safetensors object of zeros, as `rustload.open` takes it; counts the ranges that are asked for, and their bytes.

    Attributes:
        latency: The seconds that each call takes. What a source is asked for depends on it.
        identity: The same in all processes, so that they can share what they fetch.
    """

    def __init__(self, shapes: Shapes, latency: float) -> None:
        """Makes the header only."""
        self.latency, self.identity = latency, "counted"
        self._head, self.size = header_of({name: shape for name, (shape, _) in shapes.tensors().items()})
        self._lock = threading.Lock()
        self.requests = self.nbytes = 0
        self._zeros = b""

    def read_ranges(self, ranges: list[tuple[int, int]]) -> list[memoryview]:
        """The header's bytes, and zeros."""
        time.sleep(self.latency)
        with self._lock:
            self.requests += len(ranges)
            self.nbytes += sum(length for _, length in ranges)
            longest = max(length for _, length in ranges)
            if longest > len(self._zeros):
                self._zeros = bytes(longest)
            zeros = memoryview(self._zeros)
        return [
            memoryview((self._head[offset : offset + length]).ljust(length, b"\0"))
            if offset < len(self._head)
            else zeros[:length]
            for offset, length in ranges
        ]


def system_calls() -> tuple[int, int]:
    """The reads of this process so far, and their bytes (`syscr` and `rchar` of /proc/self/io)."""
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(fields["syscr"]), int(fields["rchar"])
