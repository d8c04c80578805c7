"""Random changes of quantized checkpoints, which must each be read as something or be refused: `mutant` and `contradiction`.

Run as a script with a number, it makes so many and prints those that are read wrongly.
"""

import copy
import json
import random
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from quantized_case import BF16, E4M3, E5M2, E8M0, F16, F32, I8, I32, I64, U8, Case, Tensors
from quantized_files import CASES, write
from support import same

import rustload

GROWTH = 32
"""The most bytes that a stored byte stands for: codes of one bit in float32."""

NARROW = (U8, I8, E4M3, E5M2, E8M0)
WIDE = (F32, F16, BF16, I32, I64, torch.int16, torch.bool, torch.uint32, torch.float64)
NAMES = (
    "weight", "weight_packed", "weight_scale", "weight_scale_inv", "weight_scale_2", "weight_shape", "weight_zero_point",
    "weight_global_scale", "weight_g_idx", "qweight", "qzeros", "scales", "g_idx", "scale", "biases", "SCB", "weight.absmax",
    "input_scale", "pre_quant_scale", "up_blocks", "up_scales", "_weight_qdata", "weight.quant_state.bitsandbytes__nf4",
)  # fmt: skip


def spoilt(tensor: torch.Tensor, draw: random.Random) -> torch.Tensor:
    """Another tensor in place of one."""
    last = tensor.shape[-1] if tensor.ndim else 1
    some = [*tensor.shape] or [1]
    some[draw.randrange(len(some))] = draw.choice((0, 1, 2, 3, 7, 16, 32, last + 1, last * 2))
    ways: list[Callable[[], torch.Tensor]] = [
        lambda: tensor.reshape(-1),
        lambda: tensor.reshape(1, *tensor.shape),
        lambda: tensor.reshape(*tensor.shape, 1),
        lambda: tensor.reshape(-1)[:1].reshape(()),
        lambda: tensor[:-1],
        lambda: tensor[..., :-1],
        lambda: tensor[..., ::2],
        lambda: tensor.transpose(-1, -2),
        lambda: tensor.transpose(-1, -2).clone(memory_format=torch.contiguous_format),
        lambda: tensor.reshape(2, -1),
        lambda: tensor.reshape(-1, 2),
        lambda: tensor.reshape(-1)[:1].expand(tensor.shape),
        lambda: tensor.reshape(-1)[1:],
        lambda: torch.zeros(some, dtype=tensor.dtype),
        lambda: torch.zeros((0, *tensor.shape), dtype=tensor.dtype),
        lambda: torch.zeros((*tensor.shape, 0), dtype=tensor.dtype),
        lambda: torch.zeros(0, dtype=tensor.dtype),
        lambda: torch.full_like(tensor, draw.choice((0, 1, -1, 255, 1 << 20))),
        lambda: tensor.to(draw.choice(WIDE)),
        lambda: tensor.view(draw.choice(NARROW)),
        lambda: tensor.view(draw.choice(WIDE)),
        lambda: tensor.reshape(-1).view(U8).flip(0).view(tensor.dtype).reshape(tensor.shape),
    ]
    for way in draw.sample(ways, len(ways)):
        try:
            return way()
        except (RuntimeError, IndexError, NotImplementedError, TypeError):
            continue
    return tensor


def changed_json(value: Any, draw: random.Random) -> Any:
    """A value of JSON in which one is another."""
    if isinstance(value, dict) and value:
        key = draw.choice(list(value))
        if draw.random() < 0.2:
            return {name: one for name, one in value.items() if name != key}
        return {**value, key: changed_json(value[key], draw)}
    if isinstance(value, list) and value:
        at = draw.randrange(len(value))
        return [*value[:at], changed_json(value[at], draw), *value[at + 1 :]]
    return draw.choice(
        (0, 1, -1, 2, 3, 8, 1 << 20, 1 << 62, 1e308, None, True, "", "gptq", "marlin", [], [1] * 99, {})
    )


def mutant(draw: random.Random) -> tuple[str, Case]:
    """A case with one to three changes, and its name."""
    name = draw.choice(list(CASES))
    case = CASES[name]()
    tensors: Tensors = dict(case.tensors)
    config, metadata = copy.deepcopy(case.config), case.metadata
    for _ in range(draw.choice((1, 1, 2, 3))):
        one, other = draw.choice(list(tensors)), draw.choice(list(tensors))
        module = one.rpartition(".")[0]
        match draw.randrange(9):
            case 0 if len(tensors) > 1:
                del tensors[one]
            case 1:
                tensors[f"{module}.{draw.choice(NAMES)}"] = tensors[one]
            case 2:
                tensors[one], tensors[other] = tensors[other], tensors[one]
            case 3:
                new = f"{module}.{draw.choice(NAMES)}"
                tensors = {new if each == one else each: tensor for each, tensor in tensors.items()}
            case 4 if config:
                config = changed_json(config, draw)
            case 5 if metadata:
                found = draw.choice([key for key in metadata if metadata[key].startswith(("{", "["))])
                metadata = {**metadata, found: json.dumps(changed_json(json.loads(metadata[found]), draw))}
            case 6 if "quant_state" in one or tensors[one].dtype in (I64, I32):
                flat = tensors[one].clone().reshape(-1)
                if len(flat):
                    flat[draw.randrange(len(flat))] = draw.choice((0, 1, 34, 44, 57, 91, 93, 125, 127))
                tensors[one] = flat.reshape(tensors[one].shape)
            case _:
                tensors[one] = spoilt(tensors[one], draw)
    return name, case._replace(
        tensors=tensors, config=config if isinstance(config, dict) else {}, metadata=metadata
    )


def swapped(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor as it is in the memory of a big-endian machine."""
    if tensor.itemsize == 1 or not tensor.numel():
        return tensor
    found = tensor.contiguous().reshape(-1).view(U8).reshape(-1, tensor.itemsize).flip(1).contiguous()
    return found.view(tensor.dtype).reshape(tensor.shape)


def written(case: Case, folder: Path, kind: str) -> Path:
    """`quantized_files.write`, also as saved on a big-endian machine (`big`)."""
    contiguous = {name: tensor.contiguous().clone() for name, tensor in case.tensors.items()}
    if kind == "pt":
        return write(case, folder, "pt")
    if kind == "big":
        big = {name: swapped(tensor) for name, tensor in contiguous.items()}
        with mock.patch.object(sys, "byteorder", "big"):
            return write(case._replace(tensors=big), folder, "pt")
    return write(case._replace(tensors=contiguous), folder, kind)


def part_of(shape: tuple[int, ...], draw: random.Random) -> tuple[Any, ...]:
    """An index of each dimension."""
    return tuple(
        draw.randrange(size)
        if size and draw.random() < 0.2
        else slice(draw.randint(0, size), draw.randint(0, size), draw.choice((None, 1, 2, 5)))
        for size in shape
    )


def read(folder: Path, stored: int, draw: random.Random) -> tuple[dict[str, torch.Tensor], list[str]]:
    """What can be read, and what is wrong: parts that are not those of the whole, errors of no type, results without bound."""
    found, wrong = {}, []
    try:
        ckpt = rustload.open(folder, dequantize=True)
    except rustload.RustloadError as error:
        return {}, [f"open: {error}"] if error.code == "InternalError" else []
    for name, lazy in ckpt.items():
        if lazy.scheme is not None and lazy.nbytes > GROWTH * stored:
            wrong.append(f"{name}: {lazy.nbytes} of {stored} bytes")
        keys = [part_of(lazy.shape, draw) for _ in range(3)]
        try:
            found[name] = whole = lazy.materialize()
            wrong += [
                f"{name}: {key} is not that of the whole"
                for key in keys
                if not same(lazy[key].materialize(), whole[key])
            ]
        except rustload.RustloadError as error:
            if error.code == "InternalError" or (name in found and lazy.scheme is not None):
                wrong.append(f"{name}: {error}")
    return found, wrong


def contradiction(case: Case, folder: Path, draw: random.Random) -> list[str]:
    """What is wrong with how a case is read, in each kind of file."""
    stored = sum(tensor.numel() * tensor.itemsize for tensor in case.tensors.values())
    readings, wrong = {}, []
    for kind in ("safetensors", "pt", "big"):
        try:
            written(case, folder / kind, kind)
        except (RuntimeError, KeyError, ValueError, TypeError):
            continue
        readings[kind], faults = read(folder / kind, stored, draw)
        wrong += [f"{kind}: {fault}" for fault in faults]
    for kind, reading in readings.items():
        for name, tensor in reading.items():
            other = readings["safetensors"].get(name) if "safetensors" in readings else None
            # Of what is no number, the dtype may be another in each kind of file.
            if other is not None and not same(tensor, other):
                wrong.append(f"{kind}: {name} is another than in safetensors")
    return wrong


def main(count: int, seed: int = 0) -> None:
    for number in range(count):
        draw = random.Random(seed + number)
        name, case = mutant(draw)
        with tempfile.TemporaryDirectory() as folder:
            for fault in contradiction(case, Path(folder), draw):
                sys.stdout.write(f"{seed + number} {name}: {fault}\n")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
