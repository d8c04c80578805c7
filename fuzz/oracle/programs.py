"""Random pickles of what checkpoints are made of, and of the tricks by which a pickle does more than it seems to."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from attacks import pickles as asm
from attacks.streams import block, legacy

from fuzz.oracle import table
from fuzz.oracle.names import ATTRIBUTES, EVIL, HIDING, KNOWN, OTHER

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

STORAGE = legacy(asm.pickle(asm.legacy_storage()))
"""A storage as torch writes it into pickles that are not its own."""


class Program:
    """A generator of values as opcodes, which remembers what lies in the memo."""

    def __init__(self, rng: random.Random, *, has_storages: bool = False) -> None:
        self.rng, self.memo = rng, 0
        self.has_storages = has_storages
        """Whether it is for an archive, which has storages for persistent ids."""
        self.noise, self.left = rng.choice(NOISES)
        """How much of it is not an honest checkpoint's: the share of places, and how many at most."""

    def odd(self, share: float = 1.0) -> bool:
        """Whether to leave the honest form here, as a share of the places does in the noisiest programs."""
        is_odd = self.left > 0 and self.rng.random() < share * self.noise
        self.left -= is_odd
        return is_odd

    def value(self, depth: int = 3) -> bytes:
        """The opcodes of one value."""
        kinds = (HONEST_LEAVES, HONEST, LEAVES, KINDS)[2 * self.odd(0.3) + (depth > 0)]
        made = self.rng.choice(kinds)(self, depth - 1)
        if self.rng.random() < 0.25:
            made += asm.put(self.memo)
            self.memo += 1
        if self.rng.random() < 0.1:
            made += self.rng.choice((b"20", b"(1", b"N0", b"(0", b"22\x860", b"q\xff0h\xff", b"\x940h\x00"))
        return made

    def text(self, depth: int) -> bytes:
        rng = self.rng
        return asm.text(rng.choice((*HIDING, "latin1", "cpu", "f4", "O", "<", "storage", "module", "0", "a")))

    def number(self, depth: int) -> bytes:
        return asm.integer(self.rng.choice((0, 1, 2, 6, 255, -1, 1 << 31, 1 << 62)))

    def constant(self, depth: int) -> bytes:
        return self.rng.choice((b"N", b"\x88", b"\x89", b")", b"]", b"}", b"\x8f", asm.number(0.5)))

    def fetched(self, depth: int) -> bytes:
        return asm.get(self.rng.randrange(self.memo)) if self.memo else b"N"

    def payload(self, depth: int) -> bytes:
        """Bytes that a loader could load."""
        rng = self.rng
        data = rng.choice(EVIL)
        if rng.random() < 0.4:
            data = rng.choice(
                (legacy(data), legacy(keys=data), legacy(data=block(6, asm.SIX) + data), data + b"\0" * 600)
            )
        match rng.randrange(5):
            case 0:
                return asm.latin1(data)
            case 1:
                return b"\x96" + struct.pack("<Q", len(data)) + data
            case 2:
                return asm.call("builtins.bytearray", asm.binary(data))
            case _:
                return asm.binary(data)

    def tuple(self, depth: int) -> bytes:
        count = self.rng.randrange(5)
        items = b"".join(self.value(depth) for _ in range(count))
        return items + b"\x85\x86\x87"[count - 1 : count] if 0 < count < 4 else b"(" + items + b"t"

    def key(self, depth: int) -> bytes:
        """A key of a dict or an item of a set."""
        return self.value(depth) if self.odd() else self.word("key", depth)

    def pair(self, depth: int) -> bytes:
        return asm.many(self.text(0), self.number(0))

    def list(self, depth: int) -> bytes:
        return asm.listed(*(self.value(depth) for _ in range(self.rng.randrange(4))))

    def dict(self, depth: int) -> bytes:
        return asm.mapped(*((self.text(depth), self.value(depth)) for _ in range(self.rng.randrange(4))))

    def named(self, depth: int) -> bytes:
        rng = self.rng
        dotted = rng.choice(OTHER if self.odd(0.25) else KNOWN)
        if rng.random() < 0.2:
            module, _, name = dotted.rpartition(".")
            return asm.stack_name(asm.text(module), asm.text(name))
        return asm.name(dotted)

    def call(self, depth: int) -> bytes:
        if not self.odd(0.4):
            return self.known(depth)
        how = self.rng.randrange(6)
        if how < 4:
            return self.named(depth) + self.tuple(depth) + (b"R", b"R", b"\x81", b"}\x92")[how]
        arguments = b"".join(self.value(depth) for _ in range(self.rng.randrange(3)))
        if how == 4:
            return b"(" + self.named(depth) + arguments + b"o"
        module, _, name = self.rng.choice(KNOWN).rpartition(".")
        return b"(" + arguments + f"i{module}\n{name}\n".encode()

    def known(self, depth: int) -> bytes:
        """A call as an honest checkpoint has it."""
        rng = self.rng
        match rng.randrange(17):
            case 0:
                return asm.ordered(*((self.key(depth), self.value(depth)) for _ in range(rng.randrange(3))))
            case 1:
                return asm.call(
                    "collections.OrderedDict", asm.listed(asm.many(self.text(0), self.value(depth)))
                )
            case 2:
                counted = asm.mapped((self.key(depth), self.number(0)))
                return asm.call("collections.Counter", self.list(depth) if self.odd(0.5) else counted)
            case 3:
                factory = (
                    self.named(depth)
                    if self.odd()
                    else asm.name(rng.choice(("builtins.list", "builtins.int")))
                )
                return asm.call("collections.defaultdict", factory)
            case 4:
                if rng.random() < 0.5:
                    return asm.call(rng.choice(("builtins.list", "collections.deque")), self.list(depth))
                return asm.call(
                    rng.choice(("builtins.set", "builtins.frozenset")), asm.listed(self.key(depth))
                )
            case 5:
                return self.loaded()
            case 6:
                return self.tensor()
            case 7:
                return asm.call("torch._utils._rebuild_parameter", self.tensor(), b"\x88", asm.ordered())
            case 8:
                inner = self.tensor()
                return asm.call(
                    "torch._utils._rebuild_parameter_with_state",
                    inner,
                    b"\x88",
                    asm.ordered(),
                    self.dict(depth),
                )
            case 9:
                if rng.random() < 0.5:
                    items = [self.value(depth - 1) for _ in range(rng.randrange(3))]
                    length = len(items) + self.odd(0.1)
                    return asm.array(asm.OBJECT, (length,), asm.listed(*items))
                return asm.ndarray(asm.numpy_dtype("f4"), (6,), asm.SIX)
            case 10:
                return asm.numpy_dtype(
                    rng.choice(("f4", "O", "i8", "V8", "O8", "b1")),
                    state=self.tuple(depth) if self.odd(0.3) else None,
                )
            case 11:
                return asm.call("builtins.slice", asm.integer(0), asm.NONE)
            case 12:
                return asm.call("torch.device", asm.text("cpu"))
            case 13:
                return asm.latin1(b"x\xff")
            case 14:
                return asm.call(
                    "torch._tensor._rebuild_from_type_v2",
                    asm.name("torch._utils._rebuild_tensor_v2"),
                    asm.name("torch.Tensor"),
                    asm.many(
                        self.storage(),
                        *map(asm.integer, (0,)),
                        asm.ints(6),
                        asm.ints(1),
                        b"\x89",
                        asm.ordered(),
                    ),
                    self.dict(depth),
                )
            case 15 if self.odd():
                return asm.call("torch.storage._load_from_bytes", self.payload(depth))
            case _:
                return asm.call("torch.Size", asm.ints(2, 3))

    def function(self, depth: int) -> bytes:
        """A function of the table that is not called: a call of it by what holds it is one too many."""
        return asm.name(self.rng.choice(FUNCTIONS))

    def tensor(self) -> bytes:
        """A tensor of six floats."""
        return asm.tensor(on=self.storage())

    def storage(self) -> bytes:
        """A storage by its id, or one that lies in the pickle where there are no others."""
        return asm.storage() if self.has_storages or self.odd(0.1) else self.loaded()

    def loaded(self) -> bytes:
        """A storage that lies in the pickle."""
        return asm.call("torch.storage._load_from_bytes", asm.binary(STORAGE))

    def object(self, depth: int) -> bytes:
        """A call of any name of the table in one of its forms, mostly, with a state, items or appended values."""
        return self.row(self.rng.choice(table.ROWS), depth)

    def row(self, row: table.Row, depth: int) -> bytes:
        """The same for a row; perhaps as a key."""
        made = self.instance(row, depth)
        if "k" in row.flags or self.odd(0.5):
            made = self.rng.choice((made, made, b"}" + made + asm.NONE + b"s", b"\x8f(" + made + b"\x90"))
        return made

    def instance(self, row: table.Row, depth: int) -> bytes:
        """The same for a row, and never as a key."""
        rng = self.rng
        if row.calls and not self.odd(0.05):
            is_new, args = rng.choice(row.calls)
            made = asm.name(row.dotted) + self.schema(args, depth)
            made += rng.choice((b"\x81", b"}\x92", b"R")) if self.odd(0.05) else b"\x81" if is_new else b"R"
        elif row.calls:
            made = asm.name(row.dotted) + self.tuple(depth) + rng.choice((b"R", b"\x81"))
        else:
            made = asm.name(row.dotted)
        if rng.random() < 0.15:
            made += asm.put(self.memo)
            self.memo += 1
        while rng.random() < 0.75 if row.state and made.endswith((b"\x81", b"R")) else self.odd(0.1):
            made += (self.state(row, depth) if row.state else self.dict(depth)) + b"b"
            if not self.odd(0.2):
                break
        while self.odd(0.2):
            first, second = self.value(depth), self.value(depth)
            made += rng.choice((first + second + b"s", first + b"a", b"(" + first + second + b"e"))
        return made

    def state(self, row: table.Row, depth: int) -> bytes:
        """A state of the schema of a row, or nearly."""
        rng = self.rng
        if row.state is not None and not self.odd(0.3):
            return self.schema(row.state, depth)
        names = rng.choices(rng.choice((ATTRIBUTES, HIDING, HIDING[:1])), k=rng.randrange(1, 4))
        odd = asm.mapped(
            *((asm.text(name), rng.choice((self.function, self.value))(depth)) for name in names)
        )
        if rng.random() < 0.5:
            return odd
        # Behind a state that hides an attribute, one that a reader may give to what it finds there.
        return odd + b"b" + (self.schema(row.state, depth) if row.state else self.tuple(depth))

    def schema(self, node: table.Node, depth: int) -> bytes:
        """A value of a schema; seldom another one in the place of a part of it."""
        rng, parts = self.rng, node.parts
        if self.odd(0.05):
            return rng.choice((self.value, self.fetched, self.object, self.function))(depth - 1)
        match node.tag:
            case "union":
                return self.schema(rng.choice(parts), depth)
            case "list" | "tuple":
                wanted = parts * rng.randrange(3) if node.text == "*" else parts
                items = [self.schema(part, depth - 1) for part in wanted]
                return asm.listed(*items) if node.tag == "list" else asm.many(*items)
            case "set":
                return (
                    b"\x8f("
                    + b"".join(self.schema(parts[0], depth - 1) for _ in range(rng.randrange(3)))
                    + b"\x90"
                )
            case "dict":
                pairs = [
                    (self.schema(parts[0], depth - 1), self.schema(parts[1], depth - 1))
                    for _ in range(rng.randrange(3))
                ]
                return asm.ordered(*pairs) if rng.random() < 0.2 else asm.mapped(*pairs)
            case "record":
                fields = []
                for name, part in zip(node.names, parts, strict=True):
                    if name == "*":
                        others = rng.choices(ATTRIBUTES, k=rng.randrange(3))
                        fields += [(asm.text(other), self.schema(part, depth - 1)) for other in others]
                    elif not name.endswith("?") or rng.random() < 0.5:
                        fields.append((asm.text(name.rstrip("?")), self.schema(part, depth - 1)))
                rng.shuffle(fields)
                return asm.mapped(*fields)
            case "kind":
                return self.kind(node.text, depth)
            case "literal":
                return asm.text(node.text)
            case "named":
                return asm.name(node.text)
        return self.word(node.tag, depth)

    def kind(self, kind: str, depth: int) -> bytes:
        """A value of a kind."""
        if kind == "storage" and self.rng.random() < 0.8:
            return self.storage()
        if kind == "tensor" and (depth <= 0 or self.rng.random() < 0.5):
            return self.tensor()
        if kind == "numpy_dtype" and self.rng.random() < 0.8:
            return asm.numpy_dtype(self.rng.choice(("f4", "i8", "b1")))
        if kind == "numpy_objects":
            return asm.OBJECT
        if kind == "storage":
            return self.loaded()
        if depth <= -6:
            return asm.NONE
        return self.row(self.rng.choice(table.KINDS[kind]), depth - 1)

    def word(self, word: str, depth: int) -> bytes:
        """A value of a builtin type, or one that the callee only stores."""
        rng = self.rng
        match word:
            case "any" | "data":
                return self.value(depth - 1)
            case "plain":
                return rng.choice((self.text, self.number, self.constant, self.constant))(0)
            case "key":
                return rng.choice((self.text, self.number, self.pair))(0)
            case "none" | "empty":
                return asm.NONE if word == "none" else rng.choice((asm.ordered(), b"}"))
            case "bool":
                return rng.choice((b"\x88", b"\x89"))
            case "int":
                return self.number(0)
            case "num" | "float":
                return asm.number(rng.choice((0.5, 1.0)))
            case "digits":
                return asm.text(rng.choice(("0", "1")))
            case "str" | "text" | "name":
                return asm.text(
                    rng.choice(
                        ("a", "1", "cpu", "f4", "C", "d", "1/2", "127.0.0.1", "torch.sparse_coo", *ATTRIBUTES)
                    )
                )
            case "bytes":
                return asm.latin1(
                    rng.choice(
                        (b"b", asm.SIX, bytes.fromhex("07e80102030405000000")[: rng.choice((4, 6, 10))])
                    )
                )
            case "bytearray":
                return asm.call("builtins.bytearray", asm.latin1(asm.SIX))
            case "place" | "ratio":
                return asm.text("cpu" if word == "place" else "-1/2")
            case "code":
                return asm.text(rng.choice(("f4", "<i8", "U3", "S2")))
            case "arguments":
                return asm.many(
                    self.storage(), asm.integer(0), asm.ints(6), asm.ints(1), b"\x89", asm.ordered()
                )
            case "global":
                return self.named(depth) if self.odd(0.5) else asm.name(rng.choice(table.ROWS).dotted)
        raise ValueError(word)

    def built(self, depth: int) -> bytes:
        """An object with BUILDs, whose states may hide attributes; a reader may call what it finds in place of its own."""
        rng = self.rng
        made = rng.choice((self.known, self.known, self.call, self.fetched, self.named))(depth)
        if rng.random() < 0.5:
            name = rng.choice(("__setstate__", "__setstate__", rng.choice(HIDING)))
            hiding = asm.mapped((asm.text(name), rng.choice((self.named, self.named, self.value))(depth)))
            made += rng.choice((hiding, hiding, asm.many(asm.NONE, hiding), asm.many(hiding, hiding))) + b"b"
        for _ in range(rng.randrange(1, 3)):
            made += rng.choice((self.payload, self.tuple, self.dict, self.value))(depth) + b"b"
        return made

    def filled(self, depth: int) -> bytes:
        """An object with items set or appended."""
        made = self.rng.choice((self.known, self.call, self.fetched, self.built))(depth)
        first, second = self.value(depth), self.value(depth)
        return made + self.rng.choice(
            (
                first + second + b"s",
                first + b"a",
                b"(" + first + second + b"e",
                b"(" + first + second + b"u",
                b"(" + first + b"\x90",
            )
        )

    def twins(self, depth: int) -> bytes:
        """Two keys that may be equal, and a state that may change one of them later."""
        rng = self.rng
        row = rng.choice([row for row in table.ROWS if row.calls and ("k" in row.flags or self.odd(0.1))])
        first, number = self.instance(row, depth), self.memo
        self.memo += 1
        made = first + asm.put(number) + b"0}" + asm.get(number) + asm.NONE + b"s"
        if rng.random() < 0.5 and (row.state or self.odd()):
            made += asm.get(number) + self.state(row, depth) + b"b0"
        return made + rng.choice((asm.get(number), self.instance(row, depth))) + asm.NONE + b"s"

    def persistent(self, depth: int) -> bytes:
        """A persistent id, whose parts may be anything; a reader formats and compares them."""
        if not self.has_storages and not self.odd(0.5):
            return self.known(depth)
        form = table.TYPES[self.rng.choice(("archive_id", "legacy_id"))]
        items = [self.schema(part, depth) for part in form.parts]
        if self.odd(0.3):
            items = [asm.text("module"), self.named(depth), self.value(depth), self.value(depth)]
        elif self.odd(0.2):
            items[self.rng.randrange(len(items))] = self.value(depth)
        return asm.persistent(*items)


NOISES = ((0.0, 0), (0.3, 1), (0.3, 1), (0.3, 2), (0.3, 1 << 30), (1.0, 1 << 30))
FUNCTIONS = [
    row.dotted for row in table.ROWS if row.name.startswith("_rebuild_") and row.module == "torch._utils"
]
HONEST_LEAVES: tuple[Callable[[Program, int], bytes], ...] = (
    Program.text, Program.number, Program.constant, Program.fetched, Program.payload,
)  # fmt: skip
HONEST = (
    *HONEST_LEAVES, Program.tuple, Program.list, Program.dict, Program.known, Program.known, Program.object, Program.object,
    Program.object, Program.object, Program.twins, Program.persistent,
)  # fmt: skip
"""What honest checkpoints have."""
LEAVES: tuple[Callable[[Program, int], bytes], ...] = (
    Program.text, Program.number, Program.constant, Program.fetched, Program.named, Program.payload,
)  # fmt: skip
KINDS = (
    *LEAVES, Program.tuple, Program.list, Program.dict, Program.call, Program.known, Program.known, Program.built,
    Program.built, Program.object, Program.object, Program.object, Program.twins,
    Program.filled, Program.persistent,
)  # fmt: skip


def program(rng: random.Random, *, has_storages: bool = False) -> bytes:
    """A whole pickle, or the first of several."""
    writer = Program(rng, has_storages=has_storages)
    body = b"".join(writer.value() + b"0" for _ in range(rng.randrange(3)))
    proto = b"" if writer.odd(0.2) else rng.choice((b"\x80\x02", b"\x80\x02", b"\x80\x04", b"\x80\x05"))
    return proto + body + writer.value(4) + b"."


def fragment(rng: random.Random) -> bytes:
    """Opcodes that leave the stack as it was, to be put into a pickle."""
    return Program(rng).value(2) + b"0"
