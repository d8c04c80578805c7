"""Calls every name of the table of globals, and sets every state of its objects, with operands that record what is done to them.

Where a schema says `any` or `data`, the callee only stores the value: a `Spy` there records every access. An audit hook records
what executes. Run as a child process: `python -m globals_child ROUNDS`; prints JSON.
"""

import importlib
import json
import random
import sys
import warnings
from typing import Any

from fuzz.oracle import table

FORBIDDEN = (
    "exec", "compile", "open", "import", "socket.", "subprocess.", "os.", "ctypes.", "shutil.", "tempfile.", "marshal.", "code.",
    "pickle.",
)  # fmt: skip
events: list[str] = []
touched: list[str] = []
armed = False


def _method(name: str) -> Any:
    def method(*_: object, **__: object) -> Any:
        if armed:
            touched.append(name)
        if name in ("__hash__", "__len__", "__index__", "__int__"):
            return 1
        if name in ("__bool__", "__eq__", "__contains__"):
            return True
        if name in ("__repr__", "__str__", "__format__"):
            return "spy"
        raise TypeError(name)

    return method


def _getattribute(self: Any, name: str) -> Any:
    if armed:
        touched.append(f"attribute {name}")
    return object.__getattribute__(self, name)


METHODS = (
    "hash", "eq", "ne", "lt", "le", "gt", "ge", "bool", "len", "iter", "next", "call", "repr", "str", "format", "getitem",
    "setitem", "contains", "index", "int", "float", "complex", "bytes", "fspath", "add", "radd", "mul", "sub", "truediv", "neg",
    "enter", "exit", "reversed", "length_hint", "array", "torch_function", "dlpack",
)  # fmt: skip
Spy = type(
    "Spy",
    (),
    {"__getattribute__": _getattribute, **{f"__{name}__": _method(f"__{name}__") for name in METHODS}},
)


def resolve(row: table.Row) -> Any:
    """What the row names; None if it is not installed, or belongs to another version."""
    try:
        return getattr(importlib.import_module(row.module), row.name, None)
    except ImportError:
        return None


class Samples:
    """Values of schemas."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def value(self, node: table.Node) -> Any:
        """A value of a schema."""
        rng, parts = self.rng, node.parts
        match node.tag:
            case "union":
                return self.value(rng.choice(parts))
            case "list" | "tuple":
                wanted = parts * rng.randrange(3) if node.text == "*" else parts
                items = [self.value(part) for part in wanted]
                return items if node.tag == "list" else tuple(items)
            case "set":
                return {self.value(parts[0]) for _ in range(rng.randrange(3))}
            case "dict":
                return {self.value(parts[0]): self.value(parts[1]) for _ in range(rng.randrange(1, 3))}
            case "record":
                return self.record(node)
            case "kind":
                return self.kind(node.text)
            case "literal":
                return node.text
            case "named":
                module, _, name = node.text.rpartition(".")
                return getattr(importlib.import_module(module), name)
        return self.word(node.tag)

    def record(self, node: table.Node) -> dict[str, Any]:
        """A dict of the fields, of which those that may be missing are there or not."""
        made = {}
        for name, part in zip(node.names, node.parts, strict=True):
            if name == "*":
                made |= {other: self.value(part) for other in self.rng.sample(ATTRIBUTES, 4)}
            elif not name.endswith("?") or self.rng.random() < 0.6:
                made[name.rstrip("?")] = self.value(part)
        return made

    def word(self, word: str) -> Any:
        """A value of a builtin type, or a spy."""
        rng = self.rng
        match word:
            case "any" | "data":
                return Spy()
            case "plain":
                return rng.choice((None, True, 2, 0.5, "zeros", (1, 2), [1], {"a": 1}, torch.ones(2)))
            case "key":
                return rng.choice((None, 1, 0.5, "a", b"a", (1, "a"), torch.float32))
            case "bool":
                return rng.random() < 0.5
            case "int":
                return rng.choice((0, 1, 2, 7))
            case "num":
                return rng.choice((0, 1, 0.5))
            case "float":
                return 0.5
            case "digits":
                return "0"
            case "str" | "text" | "name":
                return rng.choice(("a", "1", "1/2", "127.0.0.1", "cpu", "C", "d", "f4", "torch.strided"))
            case "bytes":
                return bytes.fromhex("07e80102030405000000")[: rng.choice((1, 4, 6, 10))]
            case "bytearray":
                return bytearray(24)
            case "place" | "ratio":
                return "cpu" if word == "place" else "-1/2"
            case "code":
                return rng.choice(("f4", "<i8", "U3", "S2"))
            case "arguments":
                return torch.FloatStorage(6), 0, (2, 3), (3, 1), False, collections.OrderedDict()
            case "global":
                return rng.choice((int, torch.Tensor, torch._utils._rebuild_tensor_v2))
            case "empty":
                return rng.choice(({}, collections.OrderedDict()))
        return None

    def kind(self, kind: str) -> Any:
        """A value of a kind: a constant, or the result of a call."""
        rng = self.rng
        if kind in KINDS:
            return KINDS[kind]()
        row = rng.choice([row for row in table.KINDS[kind] if resolve(row) is not None])
        if not row.calls:
            return resolve(row)
        for _ in range(20):
            try:
                is_new, args = rng.choice(row.calls)
                given = self.value(args)
                made = resolve(row).__new__(resolve(row), *given) if is_new else resolve(row)(*given)
                if row.state:
                    load_build(made, self.value(row.state))
                return made
            except (ValueError, TypeError, ArithmeticError):
                continue
        raise AssertionError(kind)


def load_build(obj: Any, state: Any) -> None:
    """BUILD, as `_pickle.c: load_build` does it."""
    setstate = getattr(obj, "__setstate__", None)
    if setstate is not None:
        setstate(state)
        return
    slots = None
    if isinstance(state, tuple) and len(state) == 2:
        state, slots = state
    if state:
        obj.__dict__.update(state)
    for name, value in (slots or {}).items():
        setattr(obj, name, value)


def run(row: table.Row, samples: Samples) -> list[str]:
    """Calls a row and sets a state once; returns what executed or was touched."""
    global armed
    found = resolve(row)
    is_new, args = samples.rng.choice(row.calls)
    given = samples.value(args)
    state = samples.value(row.state) if row.state else None
    if row.how == "reconstruct":
        # What the scan demands besides (src/scan/pickles/numpy.rs): NumPy reads behind a list, and frees what are no objects.
        given = (given[0], (0,), given[2])
        if isinstance(state[4], list):
            state = (state[0], (len(state[4]),), *state[2:])
    events.clear()
    touched.clear()
    armed = True
    try:
        made = found.__new__(found, *given) if is_new else found(*given)
        if state is not None:
            load_build(made, state)
    except Exception as error:
        outcome = [] if events or touched else ["", type(error).__name__]
    else:
        outcome = ["ok"]
    finally:
        armed = False
    return [*outcome, *events, *touched]


def hook(event: str, _: tuple[object, ...]) -> None:
    """Records what executes."""
    if armed and event.startswith(FORBIDDEN):
        events.append(event)


if __name__ == "__main__":
    import collections

    import numpy
    import torch
    from torch.distributed._shard.sharded_tensor import metadata as sharded
    from torch.distributed.checkpoint import metadata

    warnings.simplefilter("ignore")
    ATTRIBUTES = (
        "weight",
        "bias",
        "padding_mode",
        "dim",
        "_version",
        "approximate",
        "recompute_scale_factor",
        "other",
        "scale",
    )
    KINDS = {
        "storage": lambda: torch.FloatStorage(6),
        "tensor": lambda: torch.ones(2, 3),
        "size": lambda: torch.Size([2, 3]),
        "ndarray": lambda: numpy.ones(2, "f4"),
        "numpy_dtype": lambda: numpy.dtype("f4"),
        "numpy_objects": lambda: numpy.dtype("O"),
        "numpy_scalar": lambda: numpy.float32(1),
        "module": torch.nn.Identity,
        "layout": lambda: torch.sparse_coo,
        "member": lambda: (
            samples.rng.choice(
                (metadata._MEM_FORMAT_ENCODING, sharded.MEM_FORMAT_ENCODING)
            ).TORCH_CONTIGUOUS_FORMAT
        ),
    }
    samples = Samples(random.Random(1))
    rows = [row for row in table.ROWS if row.calls and resolve(row) is not None]
    for row in rows:  # imports what is imported late
        for _ in range(5):
            run(row, samples)
    sys.addaudithook(hook)
    out = [[row.dotted, run(row, samples)] for row in rows for _ in range(int(sys.argv[1]))]
    json.dump({"rows": [row.dotted for row in rows], "runs": out}, sys.stdout)
