"""Loads one model from three kinds of checkpoint as transposed bfloat16, and converts one to safetensors.

It compares rustload with torch and safetensors.

`make demo` runs it. A Llama-shaped model with random float32 weights is written once to `.cache/demo`, as
one `.bin`, as three `.bin` shards with an index, and as safetensors. Each loader runs in a process
of its own, on files that are in the page cache, and rustload's result is compared with torch's
bit by bit.
"""

from __future__ import annotations

import json
import shutil
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import rustload
from benches.python import measure

if TYPE_CHECKING:
    from collections.abc import Callable

CACHE = Path(__file__).resolve().parent.parent / ".cache" / "demo"
ROUNDS = 3
OPENS = 5

Tensors = dict[str, torch.Tensor]
Shapes = dict[str, tuple[int, ...]]


def main() -> None:
    """Writes the model if it does not exist yet, measures and prints."""
    model = CACHE / "llama-1"
    if not model.exists():
        say("writing a Llama-shaped model with random weights to .cache/demo ...")
        make_model(model)
    checkpoints = {
        ".bin": model / "bin" / "pytorch_model.bin",
        ".bin, 3 shards": model / "sharded",
        ".safetensors": model / "safetensors" / "model.safetensors",
    }
    print_heading(checkpoints[".bin"])
    for title, path in checkpoints.items():
        equal, count = measure.in_child(compare, path)[0]
        measure.read_through(*files_of(path))
        rows = {name: Row(measure.in_child(time_open, path, name)[0]) for name in ways_for(path)}
        for _ in range(ROUNDS):
            for name, row in rows.items():
                say(f"{title}: {name} ...")
                row.add(path, name)
        print_rows(title, rows, equal, count)
        if equal != count:
            sys.exit(f"{count - equal} of {count} tensors of {title} differ from torch's")
    compare_conversions(checkpoints[".bin"])


# The loaders: `open`, after which every name and shape is known, and `load`, which loads everything.


def convert(tensor: torch.Tensor) -> torch.Tensor:
    """Converts with torch as every loader has to: matrices transposed, everything bfloat16 and contiguous."""
    if tensor.ndim == 2:
        return tensor.t().to(torch.bfloat16).contiguous()
    return tensor.to(torch.bfloat16)


def rustload_open(path: Path) -> Shapes:
    """Opens and lists; reads no tensor data."""
    with rustload.open(path) as checkpoint:
        return {name: tuple(tensor.shape) for name, tensor in checkpoint.items()}


def rustload_load(path: Path) -> Tensors:
    """Casts and transposes each tensor while reading it."""
    with rustload.open(path, framework="torch") as checkpoint:
        return {
            name: tensor.materialize(dtype="bfloat16", transpose=tensor.ndim == 2)
            for name, tensor in checkpoint.items()
        }


def torch_open(path: Path, *, mmap: bool) -> Shapes:
    """Cannot list without loading."""
    return {
        name: tuple(tensor.shape)
        for file in files_of(path)
        for name, tensor in torch.load(file, weights_only=True, mmap=mmap).items()
    }


def torch_load(path: Path, *, mmap: bool) -> Tensors:
    """Loads shard by shard and frees each tensor once it is converted, as a careful user would."""
    loaded = {}
    for file in files_of(path):
        state = torch.load(file, weights_only=True, mmap=mmap)
        for name in list(state):
            loaded[name] = convert(state.pop(name))
    return loaded


def safetensors_open(path: Path) -> Shapes:
    """Reads the header."""
    import safetensors

    with safetensors.safe_open(path, framework="pt") as file:
        return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118 - not a mapping


def safetensors_load(path: Path) -> Tensors:
    """Takes one tensor at a time from the mapped file."""
    import safetensors

    with safetensors.safe_open(path, framework="pt") as file:
        return {name: convert(file.get_tensor(name)) for name in file.keys()}  # noqa: SIM118 - not a mapping


def ways_for(path: Path) -> dict[str, tuple[Callable[[Path], Shapes], Callable[[Path], Tensors]]]:
    """Returns the loaders that can load this checkpoint."""
    ways: dict[str, tuple[Callable[[Path], Shapes], Callable[[Path], Tensors]]] = {
        "rustload": (rustload_open, rustload_load)
    }
    if path.suffix == ".safetensors":
        ways["safetensors.safe_open"] = (safetensors_open, safetensors_load)
        return ways
    for name, mmap in (("torch.load", False), ("torch.load(mmap=True)", True)):
        ways[name] = (
            lambda path, mmap=mmap: torch_open(path, mmap=mmap),  # type: ignore[misc]
            lambda path, mmap=mmap: torch_load(path, mmap=mmap),  # type: ignore[misc]
        )
    return ways


# Measuring.


class Row:
    """Time and memory of one loader."""

    def __init__(self, opened: float) -> None:
        self.opened = opened
        self.loads: list[float] = []
        self.peaks: list[int] = []

    def add(self, path: Path, name: str) -> None:
        """Loads once more, in a fresh process."""
        seconds, peak = measure.in_child(time_load, path, name)
        self.loads.append(seconds)
        self.peaks.append(peak)


def time_open(begin: Callable[[], None], path: Path, name: str) -> float:
    """Returns the median seconds of a few openings."""
    way, _ = ways_for(path)[name]
    way(path)
    begin()
    taken = []
    for _ in range(OPENS):
        start = time.perf_counter()
        shapes = way(path)
        taken.append(time.perf_counter() - start)
        del shapes
    return statistics.median(taken)


def time_load(begin: Callable[[], None], path: Path, name: str) -> float:
    """Returns the seconds from the closed file to the last tensor."""
    _, way = ways_for(path)[name]
    convert(torch.ones(1024, 1024))  # starts torch's threads
    measure.settle(sum(file.stat().st_size for file in files_of(path)) * 5 // 4)
    begin()
    start = time.perf_counter()
    tensors = way(path)
    taken = time.perf_counter() - start
    # The tensors are held until the time has been sent, so the peak includes all of them.
    return taken if tensors else 0.0


def compare(begin: Callable[[], None], path: Path) -> tuple[int, int]:
    """Returns how many tensors rustload and torch agree on, bit by bit, and how many there are."""
    begin()
    reference = safetensors_load(path) if path.suffix == ".safetensors" else torch_load(path, mmap=True)
    tensors = rustload_load(path)
    equal = sum(same_bits(tensors[name], tensor) for name, tensor in reference.items() if name in tensors)
    return equal, len(tensors.keys() | reference.keys())


def same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether both are contiguous and have the same dtype, shape and bytes."""
    return (
        left.dtype == right.dtype
        and left.is_contiguous()
        and torch.equal(left.view(torch.int16), right.contiguous().view(torch.int16))
    )


# Converting.


def rustload_convert(source: Path, target: Path, dtype: str | None) -> None:
    """Reads, casts and writes in a window of memory."""
    rustload.convert(source, target, dtype=dtype, overwrite=True, fsync=False)


def torch_convert(source: Path, target: Path, dtype: str | None) -> None:
    """Maps the file; casts each tensor, and writes all of them. Neither step waits for the disk."""
    from safetensors.torch import save_file

    state = torch.load(source, weights_only=True, mmap=True)
    if dtype is not None:
        state = {name: tensor.to(getattr(torch, dtype)) for name, tensor in state.items()}
    save_file(state, target, metadata={"format": "pt"})


def time_convert(
    begin: Callable[[], None], name: str, source: Path, target: Path, dtype: str | None
) -> float:
    """Returns the seconds from the closed file to the new one."""
    way = CONVERTERS[name]
    convert(torch.ones(1024, 1024))  # starts torch's threads
    begin()
    start = time.perf_counter()
    way(source, target, dtype)
    return time.perf_counter() - start


CONVERTERS = {"rustload.convert": rustload_convert, "torch.load, save_file": torch_convert}


def compare_conversions(source: Path) -> None:
    """Converts a file with the same dtype and to bfloat16, and prints time and memory; the files have to be equal."""
    measure.read_through(source)
    for dtype in (None, "bfloat16"):
        title = "to safetensors" if dtype is None else "to bfloat16"
        targets = {name: CACHE / f"converted-{number}.safetensors" for number, name in enumerate(CONVERTERS)}
        rows = {name: Row(0.0) for name in CONVERTERS}
        for _ in range(ROUNDS):
            for name, row in rows.items():
                say(f"{title}: {name} ...")
                seconds, peak = measure.in_child(time_convert, name, source, targets[name], dtype)
                row.loads.append(seconds)
                row.peaks.append(peak)
        files = [path.read_bytes() for path in targets.values()]
        for path in targets.values():
            path.unlink()
        say("")
        for name, row in rows.items():
            taken, most = statistics.median(row.loads), statistics.median(row.peaks)
            print_line(title, name, "", f"{taken:.3f}", f"{most / 1e6:.0f}")
            title = ""
        print_line("", f"same bytes: {files[0] == files[1]}")
        print()
        if files[0] != files[1]:
            sys.exit("the converted files differ")


# The model.


def make_model(folder: Path) -> None:
    """Writes the same random weights in each format; an existing folder is complete."""
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    for name in ("bin", "sharded", "safetensors"):
        (partial / name).mkdir(parents=True)
    measure.in_child(write_model, partial)
    partial.rename(folder)


def write_model(begin: Callable[[], None], folder: Path) -> None:
    """Builds the model; the `.bin` files are written by hand, as transformers 5 no longer writes any."""
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.utils import logging

    begin()
    logging.disable_progress_bar()
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=16_000,
        hidden_size=1024,
        intermediate_size=2816,
        num_hidden_layers=4,
        num_attention_heads=16,
        num_key_value_heads=8,
    )
    model = LlamaForCausalLM(config).to(torch.float32)
    model.save_pretrained(folder / "safetensors")
    state = model.state_dict()
    torch.save(state, folder / "bin" / "pytorch_model.bin")

    names = list(state)
    third = -(-len(names) // 3)
    weight_map: dict[str, str] = {}
    for number in range(3):
        file = f"pytorch_model-{number + 1:05}-of-00003.bin"
        part = names[number * third : (number + 1) * third]
        torch.save({name: state[name] for name in part}, folder / "sharded" / file)
        weight_map |= dict.fromkeys(part, file)
    index = {
        "metadata": {"total_size": sum(tensor.nbytes for tensor in state.values())},
        "weight_map": weight_map,
    }
    (folder / "sharded" / "pytorch_model.bin.index.json").write_text(json.dumps(index, indent=2))


def files_of(path: Path) -> list[Path]:
    """Returns the files that hold a checkpoint's tensors."""
    return sorted(path.glob("*.bin")) if path.is_dir() else [path]


# Printing: the table on stdout, messages on stderr.

WIDTHS = (16, 23, 10, 10, 10)


def print_heading(path: Path) -> None:
    """Prints what is measured and the head of the table."""
    size = path.stat().st_size
    print(f"Loading a {size / 1e6:.0f} MB float32 model as bfloat16, every matrix transposed.")
    print(f"Warm files, {torch.get_num_threads()} threads, one process per run, medians of {ROUNDS} runs.")
    print("open: until every name and shape is known.  load: from the closed file to the last tensor.")
    print("to safetensors, to bfloat16: the .bin converted to a file, without waiting for the disk.")
    print(f"peak: anonymous memory above the start, the result ({size / 2e6:.0f} MB) included.\n")
    print_line("checkpoint", "way", "open, ms", "load, s", "peak, MB")
    print("-" * (sum(WIDTHS) + 2 * (len(WIDTHS) - 1)))


def print_rows(title: str, rows: dict[str, Row], equal: int, count: int) -> None:
    """Prints one checkpoint's part of the table."""
    say("")
    for name, row in rows.items():
        loaded, peak = statistics.median(row.loads), statistics.median(row.peaks)
        print_line(title, name, f"{row.opened * 1e3:.2f}", f"{loaded:.3f}", f"{peak / 1e6:.0f}")
        title = ""
    print_line("", f"same bits: {equal} of {count} tensors")
    print()


def print_line(*cells: Any) -> None:
    """Prints cells in columns, numbers to the right."""
    padded = [
        f"{cell:<{width}}" if at < 2 else f"{cell:>{width}}"
        for at, (cell, width) in enumerate(zip(cells, WIDTHS, strict=False))
    ]
    print("  ".join(padded).rstrip(), flush=True)


def say(text: str) -> None:
    """Shows progress if stderr is a terminal."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
