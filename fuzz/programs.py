"""Differential fuzzing of time: random pickle programs, read by `torch.load(weights_only=True)` and by rustload.

A program makes values, memoizes and fetches them, calls the functions of torch's allowlist, and sets states. It also changes
containers after something else has read them: a callee keeps what it read at its call, and sees the later changes only in what it
holds by reference. What both readers accept must be equal in values, types, dtypes, shapes, strides, ties and shared objects.

    python fuzz/programs.py [--seed 1] [--count 1000000] [--seconds 600] [--show N]

prints how many programs torch accepts, how many of those rustload opens, and its refusals by code. A difference ends the run; its
program is printed, and `--seed S --show N` prints it again.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import io
import itertools
import math
import pickletools
import random
import struct
import sys
import time
import warnings
import zlib
from typing import TYPE_CHECKING, Any

import torch

import rustload
import rustload.torch

if TYPE_CHECKING:
    from collections.abc import Callable

# A storage of each class, with elements that are valid indices of a sparse tensor.
ELEMENTS = 12
STORAGES: list[tuple[str, bytes]] = [
    ("torch.FloatStorage", struct.pack("<12f", *range(12))),
    ("torch.FloatStorage", struct.pack("<12f", *(-value / 8 for value in range(12)))),
    ("torch.DoubleStorage", struct.pack("<12d", *(value / 4 for value in range(12)))),
    ("torch.LongStorage", struct.pack("<12q", *(value % 2 for value in range(12)))),
    ("torch.IntStorage", struct.pack("<12i", *(value % 3 for value in range(12)))),
    ("torch.ComplexFloatStorage", struct.pack("<24f", *range(24))),
    ("torch.HalfStorage", struct.pack("<12e", *range(12))),
    ("torch.BFloat16Storage", struct.pack("<24H", *(16256 + value for value in range(24)))[:24]),
    ("torch.ByteStorage", bytes(range(100, 112))),
    ("torch.QInt8Storage", bytes(range(12))),
]
FLOATS, LONGS, COMPLEX, QUANTIZED = (0, 1, 2, 6, 7), (3,), (5,), (9,)
PLAIN = (0, 1, 2, 3, 4, 5, 6, 7, 8)
CLASSES = {0: "Float", 1: "Float", 2: "Double", 3: "Long", 4: "Int", 6: "Half", 8: "Byte"}

MARK, NONE, TRUE, FALSE, TUPLE, REDUCE, NEWOBJ, BUILD = (
    b"(",
    b"N",
    b"\x88",
    b"\x89",
    b"t",
    b"R",
    b"\x81",
    b"b",
)


def text(value: str) -> bytes:
    """BINUNICODE."""
    data = value.encode()
    return b"X" + struct.pack("<I", len(data)) + data


def integer(value: int) -> bytes:
    """BININT1, BININT2 or BININT."""
    if 0 <= value < 256:
        return b"K" + bytes([value])
    return b"M" + struct.pack("<H", value) if 0 <= value < 1 << 16 else b"J" + struct.pack("<i", value)


def number(value: float) -> bytes:
    """BINFLOAT."""
    return b"G" + struct.pack(">d", value)


def name(dotted: str) -> bytes:
    """GLOBAL."""
    module, _, attribute = dotted.rpartition(".")
    return f"c{module}\n{attribute}\n".encode()


def ints(values: tuple[int, ...]) -> bytes:
    """A tuple of integers."""
    return MARK + b"".join(map(integer, values)) + TUPLE


@dataclasses.dataclass
class Memo:
    """A memoized value.

    Attributes:
        kind: The generator's name of what it is.
        index: Its memo index.
        complete: Whether all opcodes that make it have run.
        used: Whether it was fetched.
    """

    kind: str
    index: int
    complete: bool = True
    used: bool = False


# The containers: what begins one, and what one item of it is.
CONTAINERS = {
    "list": (b"]", "any"),
    "list of ints": (b"]", "int"),
    "list of floats": (b"]", "float"),
    "list of zeros": (b"]", "zero"),
    "list of pairs": (b"]", "pair"),
    "list of keys": (b"]", "key"),
    "dict": (b"}", "any"),
    "dict of counts": (b"}", "int"),
    "dict of attributes": (b"}", "any"),
    "dict of metadata": (b"}", "true"),
    "ordered": (name("collections.OrderedDict") + b")R", "any"),
    "ordered by new": (name("collections.OrderedDict") + b")\x81", "any"),
    "counter": (name("collections.Counter") + b")R", "int"),
}
HASHED = {
    "dict",
    "dict of counts",
    "dict of attributes",
    "dict of metadata",
    "ordered",
    "ordered by new",
    "counter",
}
ATTRIBUTES = ("a", "b", "c", "_metadata", "tag")
PROPERTIES = ("data", "requires_grad", "grad", "_backward_hooks", "volatile", "add", "shape")


class Program:
    """A random program.

    Args:
        rng: The source of all choices.
        tricks: Whether containers change after something has read them, and values have states that no writer sets.
    """

    def __init__(self, rng: random.Random, *, tricks: bool) -> None:
        self.rng, self.tricks = rng, tricks
        self.memo: list[Memo] = []
        self.counter = itertools.count()
        self.budget = rng.choice((10, 25, 60))
        items = [self.value("any", 0) for _ in range(rng.randint(1, 6))]
        self.data = b"\x80\x02" + MARK + b"".join(items) + TUPLE + b"."

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def trick(self, probability: float) -> bool:
        return self.tricks and self.chance(probability)

    def put(self, kind: str, *, complete: bool = True) -> tuple[bytes, Memo]:
        """Memoizes the value on the stack."""
        entry = Memo(kind, next(self.counter), complete)
        self.memo.append(entry)
        return b"r" + struct.pack("<I", entry.index), entry

    def fetch(self, kinds: set[str] | None, depth: int) -> bytes | None:
        """Fetches a value of one of these kinds, and may change it; None where there is none.

        With `kinds=None` it is any value, also one that is still being filled.
        """
        found = [entry for entry in self.memo if kinds is None or entry.kind in kinds]
        # A callee that reads a container that is still being filled is a trick; a container of itself is not.
        if kinds is not None and not self.tricks:
            found = [entry for entry in found if entry.complete]
        if not found:
            return None
        entry = self.rng.choice(found[-8:])
        entry.used = True
        out = b"j" + struct.pack("<I", entry.index)
        if entry.kind in CONTAINERS and self.trick(0.5):
            out += self.fill(entry.kind, depth + 1)
        return out

    def value(self, kind: str, depth: int) -> bytes:
        """The opcodes of a value of a kind."""
        self.budget -= 1
        if kind == "any":
            if self.chance(0.2) and (found := self.fetch(None, depth)):
                return found
            kind = self.any_kind(depth)
        if kind not in SCALARS and self.chance(0.45 if self.tricks else 0.2):
            kinds = SAME_USE.get(kind, {kind})
            if found := self.fetch(kinds, depth):
                return found
        if kind in CONTAINERS:
            return self.container(kind, depth)
        out = MAKERS[kind](self, depth)
        if kind not in SCALARS and self.chance(0.6):
            opcode, _ = self.put(kind)
            out += opcode
            if self.trick(0.06):
                out += self.state(depth) + BUILD
        return out

    def any_kind(self, depth: int) -> str:
        if depth > 4 or self.budget < 0:
            return self.rng.choice(("int", "text", "none", "tensor"))
        return self.rng.choice(ANY)

    def container(self, kind: str, depth: int) -> bytes:
        """A container: memoized first, as writers do, and then filled."""
        opcode, entry = self.put(kind, complete=False)
        out = CONTAINERS[kind][0] + opcode
        if self.trick(0.05):
            out += opcode
        out += self.fill(kind, depth + 1)
        if kind in ("ordered", "counter") and self.chance(0.15):
            out += self.value("dict of attributes", depth + 1) + BUILD
            if self.trick(0.3):
                out += self.fill(kind, depth + 1)
        entry.complete = True
        return out

    def fill(self, kind: str, depth: int) -> bytes:
        """Opcodes that add to the container on the stack."""
        item = CONTAINERS[kind][1]
        count = self.rng.choice((0, 1, 1, 2, 3)) if depth < 5 and self.budget > 0 else self.rng.choice((0, 1))
        if item == "true":
            count = min(count, 1) if self.chance(0.5) else 0
        out = b""
        if kind in HASHED:
            pairs = [self.value(self.key_kind(kind), depth) + self.value(item, depth) for _ in range(count)]
            if kind == "dict of metadata":
                pairs = [text(self.rng.choice(("conj", "neg"))) + TRUE for _ in range(count)]
            elif kind == "dict of attributes":
                names = (*ATTRIBUTES, *PROPERTIES) if self.trick(0.1) else ATTRIBUTES
                pairs = [text(self.rng.choice(names)) + self.value(item, depth) for _ in range(count)]
            if self.chance(0.5):
                return out + (MARK + b"".join(pairs) + b"u" if pairs else b"")
            return out + b"".join(pair + b"s" for pair in pairs)
        items = [self.value(item, depth) for _ in range(count)]
        if self.chance(0.5):
            return out + (MARK + b"".join(items) + b"e" if items else b"")
        return out + b"".join(one + b"a" for one in items)

    def key_kind(self, kind: str) -> str:
        return "text" if kind in ("dict of counts", "counter") and self.chance(0.7) else "key"

    def state(self, depth: int) -> bytes:
        """A state that no writer sets."""
        match self.rng.randrange(6):
            case 0:
                return (
                    MARK + self.storage(self.rng.choice(PLAIN)) + integer(0) + ints((2,)) + ints((1,)) + TUPLE
                )
            case 1:
                return MARK + self.value("tensor", depth + 1) + NONE + self.hooks() + FALSE + FALSE + TUPLE
            case 2:
                return MARK + FALSE + FALSE + self.hooks() + TUPLE
            case 3:
                return NONE
            case 4:
                return b"}"
            case _:
                return self.value("dict of attributes", depth + 1)

    # Values without items.

    def storage(self, at: int) -> bytes:
        dotted, _ = STORAGES[at]
        return (
            MARK
            + text("storage")
            + name(dotted)
            + text(str(at))
            + text("cpu")
            + integer(ELEMENTS)
            + TUPLE
            + b"Q"
        )

    def hooks(self) -> bytes:
        return name("collections.OrderedDict") + b")R"

    def boolean(self) -> bytes:
        return self.rng.choice((TRUE, FALSE))

    def geometry(self, rank: int | None = None) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
        """An offset, a size and strides inside a storage."""
        size = tuple(
            self.rng.choice((0, 1, 2, 2, 3)) for _ in range(self.rng.randint(0, 2) if rank is None else rank)
        )
        stride = tuple(self.rng.choice((0, 1, 1, 2)) for _ in size)
        last = sum((length - 1) * step for length, step in zip(size, stride, strict=True) if length)
        return self.rng.randint(0, ELEMENTS - 1 - last), size, stride

    def placed(self, at: int) -> bytes:
        """Storage, offset, size and strides."""
        offset, size, stride = self.geometry()
        return self.storage(at) + integer(offset) + ints(size) + ints(stride)

    def tensor(self, depth: int) -> bytes:
        at = self.rng.choice(PLAIN)
        return self.tensor_on(at, depth)

    def float_tensor(self, depth: int) -> bytes:
        return self.tensor_on(self.rng.choice(FLOATS), depth)

    def tensor_on(self, at: int, depth: int) -> bytes:
        match self.rng.randrange(8):
            case 0:
                return name("torch._utils._rebuild_tensor") + MARK + self.placed(at) + TUPLE + REDUCE
            case 1 if at in CLASSES:
                out = name(f"torch.{CLASSES[at]}Tensor") + b")" + self.rng.choice((NEWOBJ, REDUCE))
                return out + MARK + self.placed(at) + TUPLE + BUILD
            case 2:
                dtype = {0: "float32", 2: "float64", 3: "int64", 5: "complex64"}.get(at)
                if dtype is None:
                    return self.tensor_v2(at, depth)
                grad = self.boolean() if at != 3 else FALSE
                out = name("torch._utils._rebuild_tensor_v3") + MARK + self.placed(at) + grad
                return out + self.hooks() + name(f"torch.{dtype}") + TUPLE + REDUCE
            case _:
                return self.tensor_v2(at, depth)

    def tensor_v2(self, at: int, depth: int) -> bytes:
        return name("torch._utils._rebuild_tensor_v2") + self.tensor_v2_args(at, depth) + REDUCE

    def tensor_v2_args(self, at: int, depth: int) -> bytes:
        grad = self.boolean() if at in (*FLOATS, *COMPLEX) else FALSE
        metadata = b""
        if at in COMPLEX and self.chance(0.7):
            metadata = self.value("dict of metadata", depth + 1)
        return MARK + self.placed(at) + grad + self.hooks() + metadata + TUPLE

    def parameter(self, depth: int) -> bytes:
        data = self.value("float tensor", depth + 1)
        match self.rng.randrange(6):
            case 0:
                return (
                    name("torch.nn.parameter.Parameter")
                    + MARK
                    + data
                    + TUPLE
                    + self.rng.choice((NEWOBJ, REDUCE))
                )
            case 1:
                out = name("torch.nn.parameter.Parameter") + MARK + data + self.boolean() + TUPLE + NEWOBJ
                return out + MARK + self.boolean() + FALSE + self.hooks() + TUPLE + BUILD
            case 2:
                out = name("torch.nn.parameter.Parameter") + b")" + NEWOBJ
                opcode, _ = self.put("any")
                if self.chance(0.5):
                    out += opcode
                else:
                    self.memo.pop()
                return out + MARK + data + NONE + self.hooks() + self.boolean() + FALSE + TUPLE + BUILD
            case 3 | 4:
                out = name("torch._utils._rebuild_parameter_with_state") + MARK + data + self.boolean()
                return out + self.hooks() + self.attributes(depth) + TUPLE + REDUCE
            case _:
                return (
                    name("torch._utils._rebuild_parameter")
                    + MARK
                    + data
                    + self.boolean()
                    + self.hooks()
                    + TUPLE
                    + REDUCE
                )

    def attributes(self, depth: int) -> bytes:
        """A state of attributes: a dict, or a pair of a dict and slots."""
        one = self.value("dict of attributes", depth + 1)
        if self.chance(0.3):
            return one + self.rng.choice((NONE, self.value("dict of attributes", depth + 1))) + b"\x86"
        return one

    def from_type(self, depth: int) -> bytes:
        at = self.rng.choice((0, 0, 1, 2, 5))
        out = name("torch._tensor._rebuild_from_type_v2") + MARK
        if self.chance(0.7):
            out += (
                name("torch._utils._rebuild_tensor_v2")
                + name("torch.Tensor")
                + self.tensor_v2_args(at, depth)
            )
        else:
            out += name("torch._utils._rebuild_parameter") + name("torch.nn.parameter.Parameter") + MARK
            out += self.value("float tensor", depth + 1) + self.boolean() + self.hooks() + TUPLE
        return out + self.rng.choice((NONE, self.attributes(depth))) + TUPLE + REDUCE

    def quantized(self, depth: int) -> bytes:
        out = name("torch._utils._rebuild_qtensor") + MARK + self.storage(QUANTIZED[0])
        if self.chance(0.3):
            offset, size, stride = self.geometry()
            parameters = (
                MARK
                + name("torch.per_tensor_affine")
                + number(self.rng.choice((0.5, 0.25)))
                + integer(3)
                + TUPLE
            )
        else:
            count = self.rng.randint(1, 3)
            offset, size, stride = 0, (count, 2), (2, 1)
            scales, zeros = self.channels(count, depth)
            parameters = MARK + name("torch.per_channel_affine") + scales + zeros + integer(0) + TUPLE
        out += integer(offset) + ints(size) + ints(stride)
        return out + parameters + FALSE + self.hooks() + TUPLE + REDUCE

    def channels(self, count: int, depth: int) -> tuple[bytes, bytes]:
        """Scales and zero points."""
        if self.chance(0.6):
            if self.trick(0.5):
                return self.value("list of floats", depth + 1), self.value("list of zeros", depth + 1)
            out = []
            for kind, item in (("list of floats", number(0.5)), ("list of zeros", integer(1))):
                opcode, _ = self.put(kind)
                out.append(b"]" + opcode + MARK + item * count + b"e")
            return out[0], out[1]
        scale = (
            name("torch._utils._rebuild_tensor_v2")
            + MARK
            + self.storage(2)
            + integer(1)
            + ints((count,))
            + ints((1,))
        )
        zero = (
            name("torch._utils._rebuild_tensor_v2")
            + MARK
            + self.storage(3)
            + integer(0)
            + ints((count,))
            + ints((1,))
        )
        end = FALSE + self.hooks() + TUPLE + REDUCE
        return scale + end, zero + end

    def sparse(self) -> bytes:
        count = self.rng.randint(0, 3)
        layout = name("torch.serialization._get_layout") + text("torch.sparse_coo") + b"\x85" + REDUCE
        head = name("torch._utils._rebuild_tensor_v2") + MARK
        end = FALSE + self.hooks() + TUPLE + REDUCE
        indices = head + self.storage(3) + integer(0) + ints((2, count)) + ints((count, 1)) + end
        values = head + self.storage(self.rng.choice((0, 1))) + integer(1) + ints((count,)) + ints((1,)) + end
        parts = (
            MARK
            + indices
            + values
            + self.rng.choice((ints((3, 2)), self.size_of((2, 3))))
            + self.rng.choice((FALSE, NONE, b""))
            + TUPLE
        )
        return name("torch._utils._rebuild_sparse_tensor") + layout + parts + b"\x86" + REDUCE

    def size_of(self, values: tuple[int, ...]) -> bytes:
        return name("torch.Size") + ints(values) + b"\x85" + REDUCE

    def meta(self) -> bytes:
        _, size, stride = self.geometry()
        out = name("torch._utils._rebuild_meta_tensor_no_storage") + MARK + name("torch.float32")
        return out + ints(size) + ints(stride) + self.boolean() + TUPLE + REDUCE

    def on_device(self) -> bytes:
        offset, size, stride = self.geometry()
        data = (
            name("torch._utils._rebuild_tensor")
            + MARK
            + self.storage(0)
            + integer(offset)
            + ints(size)
            + ints(stride)
        )
        data += TUPLE + REDUCE
        if self.chance(0.5):
            opcode, _ = self.put("float tensor")
            data += opcode
        out = name("torch._utils._rebuild_device_tensor_from_cpu_tensor") + MARK + data
        return out + name("torch.float32") + text("cpu") + self.boolean() + TUPLE + REDUCE

    def call(self, dotted: str, argument: bytes) -> bytes:
        opcode = NEWOBJ if self.trick(0.1) else REDUCE
        return name(dotted) + argument + b"\x85" + opcode

    def ordered_from(self, depth: int) -> bytes:
        kind = self.rng.choice(("dict", "dict", "list of pairs"))
        return self.call("collections.OrderedDict", self.value(kind, depth + 1))

    def counter_from(self, depth: int) -> bytes:
        kind = "list of keys" if self.trick(0.1) else "dict of counts"
        return self.call("collections.Counter", self.value(kind, depth + 1))

    def set_from(self, depth: int) -> bytes:
        return self.call("builtins.set", self.value("list of keys", depth + 1))

    def size_from(self, depth: int) -> bytes:
        argument = self.value("list of ints", depth + 1) if self.chance(0.7) else ints((1, 2))
        return self.call("torch.Size", argument)

    def pair(self, depth: int) -> bytes:
        one, two = self.value("key" if self.tricks else "text", depth + 1), self.value("any", depth + 1)
        if not self.trick(0.3):
            return one + two + b"\x86"
        opcode, _ = self.put("list")
        return b"]" + opcode + MARK + one + two + b"e"

    def key(self) -> bytes:
        match self.rng.randrange(12):
            case 0:
                return integer(self.rng.randint(0, 2))
            case 1:
                return self.boolean()
            case 2:
                return number(self.rng.choice((0.0, 1.0, 1.5)))
            case 3:
                return ints((self.rng.randint(0, 1), 1))
            case 4:
                return NONE
            # Calls whose results equal other keys.
            case 5:
                return name("torch.Size") + ints((self.rng.randint(0, 1), 1)) + b"\x85" + REDUCE
            case 6:
                return self.encoded()
            case 7:
                real, imaginary = self.rng.choice((0.0, 1.0, 1.5)), self.rng.choice((0.0, -0.0, 2.0))
                return name("builtins.complex") + number(real) + number(imaginary) + b"\x86" + REDUCE
            case _:
                return text(self.rng.choice("abcde"))

    def encoded(self) -> bytes:
        return (
            name("_codecs.encode")
            + text(self.rng.choice(("", "a", "b\xff")))
            + text("latin1")
            + b"\x86"
            + REDUCE
        )

    def byte_array(self) -> bytes:
        return name("builtins.bytearray") + text("a\xff") + text("latin-1") + b"\x86" + REDUCE

    def complex_number(self) -> bytes:
        return name("builtins.complex") + number(1.0) + number(-0.0) + b"\x86" + REDUCE

    def device(self) -> bytes:
        return name("torch.device") + text(self.rng.choice(("cpu", "meta", "cuda:1"))) + b"\x85" + REDUCE

    def tuple_of(self, depth: int) -> bytes:
        return MARK + b"".join(self.value("any", depth + 1) for _ in range(self.rng.randint(0, 3))) + TUPLE


def shallow(make: Callable[[Program], bytes]) -> Callable[[Program, int], bytes]:
    """A maker of a value that has no others in it."""
    return lambda program, _: make(program)


MAKERS: dict[str, Callable[[Program, int], bytes]] = {
    "int": lambda program, _: integer(program.rng.choice((0, 1, 2, 3, 300, -5))),
    "zero": lambda program, _: integer(program.rng.choice((0, 1))),
    "float": lambda program, _: number(program.rng.choice((0.5, 0.25, 2.0))),
    "text": lambda program, _: text(program.rng.choice(("", "a", "b", "\u0141"))),
    "none": lambda _program, _: NONE,
    "true": lambda _program, _: TRUE,
    "dtype": lambda program, _: name(program.rng.choice(("torch.float32", "torch.int64", "torch.qint8"))),
    "key": shallow(Program.key),
    "pair": Program.pair,
    "tensor": Program.tensor,
    "float tensor": Program.float_tensor,
    "parameter": Program.parameter,
    "from type": Program.from_type,
    "quantized": Program.quantized,
    "sparse": shallow(Program.sparse),
    "meta": shallow(Program.meta),
    "on device": shallow(Program.on_device),
    "ordered from": Program.ordered_from,
    "counter from": Program.counter_from,
    "set from": Program.set_from,
    "size from": Program.size_from,
    "encoded": shallow(Program.encoded),
    "bytearray": shallow(Program.byte_array),
    "complex": shallow(Program.complex_number),
    "device": shallow(Program.device),
    "tuple": Program.tuple_of,
}
SCALARS = {"int", "zero", "float", "text", "none", "true", "dtype", "key", "pair"}
ANY = [kind for kind in MAKERS if kind not in ("zero", "true", "key", "pair")]
ANY += [
    "tensor",
    "parameter",
    "parameter",
    "from type",
    "quantized",
    "ordered from",
    "ordered from",
    *CONTAINERS,
]
# A fetched value may be of another kind that serves the same use.
SAME_USE = {
    "float tensor": {"float tensor", "parameter"},
    "tensor": {"tensor", "float tensor", "parameter"},
    "dict": {"dict", "dict of counts", "dict of attributes"},
    "list": {"list", "list of ints", "list of pairs"},
    "list of keys": {"list of keys", "list of ints"},
}


def archive(data: bytes) -> bytes:
    """The program as a file of torch.save."""
    out, directory = bytearray(), bytearray()
    members = [(b"archive/data.pkl", data), (b"archive/byteorder", b"little")]
    members += [(b"archive/data/%d" % at, elements) for at, (_, elements) in enumerate(STORAGES)]
    members.append((b"archive/version", b"3\n"))
    for path, content in members:
        fixed = struct.pack(
            "<HHHHHIIIHH", 20, 0, 0, 0, 0, zlib.crc32(content), len(content), len(content), len(path), 0
        )
        directory += b"PK\x01\x02" + struct.pack("<H", 20) + fixed
        directory += struct.pack("<HHHII", 0, 0, 0, 0, len(out)) + path
        out += b"PK\x03\x04" + fixed + path + content
    end = struct.pack("<HHHHIIH", 0, 0, len(members), len(members), len(directory), len(out), 0)
    return bytes(out + directory + b"PK\x05\x06" + end)


class DifferenceError(AssertionError):
    """The two readers differ."""


def check(condition: object, *what: object) -> None:
    """Raises `DifferenceError` where a condition does not hold."""
    if not condition:
        raise DifferenceError(" ".join(map(str, what)))


class Comparison:
    """Compares two object graphs: values, types, shared objects, and tensors with their storages."""

    def __init__(self, tensor: Callable[[Comparison, Any, torch.Tensor], None]) -> None:
        self.tensor = tensor
        self.pairs: dict[int, tuple[Any, Any]] = {}
        self.reverse: dict[int, Any] = {}
        self.storages: dict[Any, Any] = {}
        self.todo: list[tuple[Any, Any]] = []

    def run(self, ours: Any, theirs: Any) -> None:
        """Compares two roots."""
        self.todo.append((ours, theirs))
        while self.todo:
            self.step(*self.todo.pop())

    def step(self, ours: Any, theirs: Any) -> None:
        is_object = isinstance(theirs, (torch.Tensor, list, dict, set, bytearray))
        if is_object:
            if id(theirs) in self.pairs:
                check(self.pairs[id(theirs)][0] is ours, "one object of torch is two")
                return
            check(id(ours) not in self.reverse, "two objects of torch are one:", repr(theirs))
            self.pairs[id(theirs)], self.reverse[id(ours)] = (ours, theirs), theirs
        if isinstance(theirs, torch.Tensor):
            self.tensor(self, ours, theirs)
            return
        check(
            type(ours) is type(theirs) or is_label(ours, theirs),
            type(ours),
            type(theirs),
            repr(ours),
            repr(theirs),
        )
        if isinstance(theirs, dict):
            check(
                len(ours) == len(theirs),
                "a dict of",
                len(ours),
                "items, not",
                len(theirs),
                list(ours),
                list(theirs),
            )
            for (key, value), (their_key, their_value) in zip(ours.items(), theirs.items(), strict=True):
                self.todo += [(key, their_key), (value, their_value)]
            self.attributes(getattr(ours, "__dict__", {}), getattr(theirs, "__dict__", {}), type(theirs))
        elif isinstance(theirs, (list, tuple)):
            check(len(ours) == len(theirs), "a sequence of", len(ours), "items, not", len(theirs))
            self.todo += zip(ours, theirs, strict=True)
        elif isinstance(theirs, set):
            check(ours == theirs and len(ours) == len(theirs), ours, theirs)
        elif isinstance(theirs, float):
            check(struct.pack("<d", ours) == struct.pack("<d", theirs), ours, theirs)
        elif not is_label(ours, theirs):
            check(ours == theirs, ours, theirs)

    def attributes(self, ours: dict[str, Any], theirs: dict[Any, Any], owner: type) -> None:
        """Compares attributes. rustload sets none that would hide one of the class."""
        theirs = {key: value for key, value in theirs.items() if type(key) is str and not hasattr(owner, key)}
        if owner in (collections.OrderedDict, collections.Counter) and set(ours) <= {"_metadata"}:
            theirs = (
                {key: value for key, value in theirs.items() if key == "_metadata" or key in ours}
                if self.lazy
                else theirs
            )
        check(list(ours) == list(theirs), "attributes", list(ours), list(theirs))
        self.todo += [(ours[key], value) for key, value in theirs.items()]

    lazy = False

    def storage(self, ours: object, theirs: torch.Tensor) -> None:
        """Two tensors share a storage in both readers, or in none."""
        key = theirs.untyped_storage()._cdata
        check(self.storages.setdefault(("theirs", key), ours) == ours, "one storage of torch is two")
        check(self.storages.setdefault(("ours", ours), key) == key, "two storages of torch are one")


def is_label(ours: Any, theirs: Any) -> bool:
    """Whether a value of rustload stands for a class or constant of torch."""
    if isinstance(ours, rustload.Global):
        return not isinstance(theirs, (dict, list, tuple, int, float, str, bytes, torch.Tensor))
    if isinstance(ours, rustload.Opaque):
        return isinstance(theirs, (torch.device, torch.layout))
    return isinstance(theirs, torch.Size) and type(ours) is tuple


def same_elements(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    """Whether two tensors have equal bits."""

    def bits(tensor: torch.Tensor) -> torch.Tensor:
        tensor = tensor.detach().resolve_conj().resolve_neg()
        return torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor).flatten().view(torch.uint8)

    return torch.equal(bits(ours), bits(theirs))


def eager_tensor(comparison: Comparison, ours: Any, theirs: torch.Tensor) -> None:
    """Compares a tensor of `rustload.torch.load`."""
    check(type(ours) is type(theirs), type(ours), type(theirs))
    for attribute in ("dtype", "shape", "layout", "requires_grad", "is_quantized", "is_meta"):
        check(
            getattr(ours, attribute) == getattr(theirs, attribute),
            attribute,
            getattr(ours, attribute),
            getattr(theirs, attribute),
        )
    comparison.attributes(vars(ours), vars(theirs), type(theirs))
    if theirs.layout != torch.strided:
        # torch copies the parts' tensors.
        check(ours.is_coalesced() == theirs.is_coalesced(), "is_coalesced")
        for part in ("_indices", "_values"):
            check(same_elements(getattr(ours, part)(), getattr(theirs, part)()), part)
        return
    check(ours.stride() == theirs.stride(), "stride", ours.stride(), theirs.stride())
    check(ours.storage_offset() == theirs.storage_offset(), "offset")
    check(ours.is_conj() == theirs.is_conj() and ours.is_neg() == theirs.is_neg(), "conj or neg")
    if theirs.is_meta:
        return
    if theirs.is_quantized:
        check(ours.qscheme() == theirs.qscheme(), "qscheme")
        if theirs.qscheme() == torch.per_tensor_affine:
            check((ours.q_scale(), ours.q_zero_point()) == (theirs.q_scale(), theirs.q_zero_point()), "scale")
        else:
            check(same_elements(ours.q_per_channel_scales(), theirs.q_per_channel_scales()), "scales")
            check(
                same_elements(ours.q_per_channel_zero_points(), theirs.q_per_channel_zero_points()), "zeros"
            )
        ours, theirs = ours.int_repr(), theirs.int_repr()
    else:
        comparison.storage(ours.untyped_storage()._cdata, theirs)
    check(same_elements(ours, theirs), "elements", ours, theirs)


def lazy_tensor(comparison: Comparison, ours: Any, theirs: torch.Tensor) -> None:
    """Compares a tensor of `rustload.open(...).objects`."""
    if isinstance(ours, rustload.Sparse):
        check(theirs.layout == torch.sparse_coo and tuple(ours.shape) == tuple(theirs.shape), "sparse", ours)
        for part in ("indices", "values"):
            check(same_elements(ours.parts[part].materialize(), getattr(theirs, f"_{part}")()), part)
        return
    check(isinstance(ours, rustload.LazyTensor), "not a tensor:", repr(ours))
    check(ours.requires_grad == theirs.requires_grad, "requires_grad", ours.requires_grad)
    check(
        ours.is_parameter == (type(theirs) is torch.nn.Parameter) or ours.class_name is not None,
        "is_parameter",
    )
    check(ours.is_meta == theirs.is_meta, "is_meta")
    if vars(theirs) and not any(hasattr(type(theirs), key) for key in vars(theirs)):
        attributes = {key: value for key, value in ours.attributes.items() if key not in PROPERTIES}
        check(list(attributes) == list(vars(theirs)), "attributes", list(attributes), list(vars(theirs)))
    check(tuple(ours.shape) == tuple(theirs.shape), "shape", ours.shape, theirs.shape)
    if theirs.is_meta:
        return
    if theirs.is_quantized:
        found = ours.quantization
        check(found is not None, "not quantized")
        scales = found.scale if isinstance(found.scale, (float, list)) else found.scale.materialize().tolist()
        per_tensor = theirs.qscheme() == torch.per_tensor_affine
        check(
            scales == (theirs.q_scale() if per_tensor else theirs.q_per_channel_scales().tolist()),
            "scales",
            scales,
        )
        theirs = theirs.int_repr()
    else:
        comparison.storage(ours._core.storage, theirs)
    made = ours.materialize()
    check(made.dtype == theirs.dtype, "dtype", made.dtype, theirs.dtype)
    check(same_elements(made, theirs), "elements", made, theirs)


def compare(data: bytes) -> tuple[bool, str]:
    """As `compare_file`, for a program."""
    return compare_file(archive(data))


def compare_file(file: bytes) -> tuple[bool, str]:
    """Returns whether torch accepts a file, and the code with which rustload refuses it; "" where it opens.

    Raises:
        DifferenceError: Both read the program, with different results.
    """
    try:
        theirs = torch.load(io.BytesIO(file), weights_only=True)
    except Exception:  # noqa: BLE001 - torch raises errors of any type
        return False, ""
    try:
        ours = rustload.torch.load(file, unknown="error")
    except rustload.RustloadError as error:
        refused = str(error.code)
        ours = None
    except RuntimeError as error:
        raise DifferenceError(f"torch builds what it cannot: {error}") from error
    else:
        refused = ""
        Comparison(eager_tensor).run(ours, theirs)
    try:
        ckpt = rustload.open(file, framework="torch", unknown="error")
        objects = ckpt.objects
    except rustload.RustloadError as error:
        return True, refused or str(error.code)
    comparison = Comparison(lazy_tensor)
    comparison.lazy = True
    comparison.run(objects, theirs)
    for key in ckpt:
        check_path(ckpt[key], theirs)
    return True, refused


def check_path(ours: Any, theirs: Any) -> None:
    """Compares a named tensor with the one that torch has at its path."""
    for step in ours.path:
        is_dict = isinstance(theirs, dict) and step in theirs and step not in getattr(theirs, "__dict__", {})
        if not is_dict and not isinstance(theirs, (list, tuple)):
            return  # an attribute, or an item of a set
        theirs = theirs[step]
    if (
        isinstance(theirs, torch.Tensor)
        and theirs.layout == torch.strided
        and not theirs.is_quantized
        and not theirs.is_meta
    ):
        check(same_elements(ours.materialize(), theirs), "elements at", ours.path)


@dataclasses.dataclass
class Counts:
    """What a run found.

    Attributes:
        programs: All programs.
        accepted: Those that torch accepts, without and with tricks.
        opened: Those of them that rustload opens too.
        refused: The others, by code.
    """

    programs: int = 0
    accepted: list[int] = dataclasses.field(default_factory=lambda: [0, 0])
    opened: list[int] = dataclasses.field(default_factory=lambda: [0, 0])
    refused: tuple[collections.Counter[str], collections.Counter[str]] = dataclasses.field(
        default_factory=lambda: (collections.Counter(), collections.Counter())
    )

    def __str__(self) -> str:
        lines = [f"{self.programs} programs, 0 differences"]
        for tricks, label in enumerate(("plain", "with tricks")):
            accepted, opened = self.accepted[tricks], self.opened[tricks]
            codes = ", ".join(f"{code} {count}" for code, count in self.refused[tricks].most_common())
            share = 100 * opened / accepted if accepted else math.nan
            lines.append(
                f"  {label}: torch accepts {accepted}, rustload opens {opened} ({share:.2f} %); refused: {codes or 'none'}"
            )
        return "\n".join(lines)


def program(seed: int, at: int) -> Program:
    """The program of a number."""
    rng = random.Random(f"{seed} {at}")
    return Program(rng, tricks=at % 3 > 0)


def loop(*, seed: int, count: int, seconds: float = math.inf) -> Counts:
    """Compares programs until one of the limits is reached.

    Raises:
        DifferenceError: The readers differ; a note has the number of the program, and its opcodes.
    """
    counts, end = Counts(), time.monotonic() + seconds
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        while counts.programs < count and time.monotonic() < end:
            made = program(seed, counts.programs)
            try:
                accepted, refused = compare(made.data)
            except Exception as error:
                error.add_note(f"--seed {seed} --show {counts.programs}\n{made.data.hex()}")
                raise
            if accepted:
                counts.accepted[made.tricks] += 1
                counts.opened[made.tricks] += not refused
                if refused:
                    counts.refused[made.tricks][refused] += 1
            counts.programs += 1
    return counts


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=math.inf)
    parser.add_argument(
        "--show", type=int, metavar="N", help="print the program of this number, and compare it alone"
    )
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.show is None:
        print(loop(seed=given.seed, count=given.count, seconds=given.seconds), file=sys.stderr)
        return
    data = program(given.seed, given.show).data
    pickletools.dis(data)
    print(compare(data))


if __name__ == "__main__":
    main()
