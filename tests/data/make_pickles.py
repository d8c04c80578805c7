"""Writes `pickles.txt` and `small_data.pkl`, the data of `tests/rust/pickle.rs`.

Each line of `pickles.txt` is a name, a pickle in hex as CPython's pickler writes it, and what CPython's pure-Python
unpickler reads from it, with every global, call and persistent id recorded instead of used. Run with torch 2.13:

    python tests/data/make_pickles.py
"""

import argparse
import collections
import datetime
import decimal
import enum
import fractions
import io
import pathlib
import pickle
import struct
import zipfile
from typing import ClassVar

HERE = pathlib.Path(__file__).parent


class Global:
    def __init__(self, module, name):
        self.text = f"g<{module} {name}>"
        self.__dict__["__new__"] = lambda cls, *args, **kwargs: Call(cls, args, kwargs)

    def __call__(self, *args):
        return Call(self, args, None)


class Call:
    def __init__(self, function, args, kwargs):
        self.callable, self.args, self.kwargs = function, args, kwargs or None
        self.states, self.items, self.appended = [], [], []
        self.__dict__["__setstate__"] = self.states.append

    def __call__(self, *args):
        return Call(self, args, None)

    def __setitem__(self, key, value):
        self.items.append((key, value))

    def append(self, value):
        self.appended.append(value)

    def extend(self, values):
        self.appended.extend(values)


class Persistent:
    def __init__(self, pid):
        self.pid = pid


class Recorder(pickle._Unpickler):
    def find_class(self, module, name):
        if self.proto < 3:
            mapped = pickle._compat_pickle.NAME_MAPPING.get((module, name))
            module, name = mapped or (pickle._compat_pickle.IMPORT_MAPPING.get(module, module), name)
        return Global(module, name)

    def persistent_load(self, pid):
        return Persistent(pid)

    dispatch: ClassVar[dict] = dict(pickle._Unpickler.dispatch)


def pairs(items):
    return "{" + ",".join(f"{show(k)}:{show(v)}" for k, v in items) + "}"


def run(items):
    return ",".join(map(show, items))


def show(value):
    match value:
        case None:
            return "N"
        case True | False:
            return str(value)
        case int():
            if -(2**63) <= value < 2**63:
                return str(value)
            return "big" + value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True).hex()
        case float():
            return "f" + struct.pack(">d", value).hex()
        case str():
            return "s" + value.encode("utf-8", "surrogatepass").hex()
        case bytes():
            return "b" + value.hex()
        case bytearray():
            return "y" + value.hex()
        case list():
            return f"[{run(value)}]"
        case tuple():
            return f"({run(value)})"
        case dict():
            return pairs(value.items())
        case set() | frozenset():
            return type(value).__name__[0] + "<" + ",".join(sorted(map(show, value))) + ">"
        case Global():
            return value.text
        case Persistent():
            return f"p<{show(value.pid)}>"
        case Call():
            kwargs = "" if value.kwargs is None else pairs(value.kwargs.items())
            parts = [
                show(value.callable),
                show(value.args),
                kwargs,
                run(value.states),
                pairs(value.items),
                run(value.appended),
            ]
            return "c<" + "|".join(parts) + ">"
    raise TypeError(value)


class Colour(enum.Enum):
    RED = 1


class Old:
    """Has a `__reduce_ex__` with keyword arguments (NEWOBJ_EX)."""

    def __new__(cls, a, *, b=0):  # noqa: ARG004 - pickled by __reduce_ex__
        return super().__new__(cls)

    def __getnewargs_ex__(self):
        return (1,), {"b": 2}


class Items(list):
    pass


class Pickler(pickle._Pickler):
    def persistent_id(self, obj):
        return ("storage", obj.args) if isinstance(obj, ZeroDivisionError) else None


Old.__module__ = Items.__module__ = Colour.__module__ = "m"
shared = ["x"]
VALUES = {
    "scalars": [None, True, False, 0, 1, 255, 256, 65535, 65536, -1, 2**31 - 1, -(2**31), 2**31],
    "integers": [
        2**62,
        -(2**62),
        2**63 - 1,
        -(2**63),
        2**63,
        -(2**63) - 1,
        2**64,
        -(2**64),
        10**40,
        -(10**40),
    ],
    "floats": [0.0, -0.0, 1.5, 1e300, 1e-300, float("inf"), float("-inf"), 5e-324, 0.1],
    "strings": ["", "a", "é", "😀", "\ud800", "a\nb\\u0041\\", "\x00\x1a\r"],
    "bytes": [b"", b"a", bytes(range(120, 136))],
    "bytearray": bytearray(b"abc"),
    "containers": [
        [],
        (),
        {},
        (1,),
        (1, 2),
        (1, 2, 3),
        (1, 2, 3, 4),
        {"a": 1, 2: [3]},
        {1},
        frozenset({1, "b"}),
        set(),
    ],
    "keys": {
        1: "a",
        "1": "b",
        b"1": "c",
        (1, ("x", None)): "d",
        2.5: "e",
        None: "f",
        10**30: "g",
        "k" * 129: "h",
    },
    "shared": [shared, shared, (shared,)],
    "ordered": collections.OrderedDict(a=1, b=2),
    "default": collections.defaultdict(int, a=1),
    "deque": collections.deque([1, 2], 5),
    "namespace": argparse.Namespace(a=1, b="x"),
    "path": pathlib.PurePosixPath("a/b"),
    "date": datetime.datetime(2020, 1, 2, 3, 4, 5),
    "numbers": [decimal.Decimal("1.5"), fractions.Fraction(1, 3), complex(1, 2)],
    "class": collections.OrderedDict,
    "persistent": [ZeroDivisionError("k")],
    "items": Items([1, 2, 3]),
    "wide": ["x" * 256, b"y" * 256],
    "long4": 1 << 2100,
    "memo": [str(i) for i in range(258)],
}


def write_pickles():
    import sys
    import types

    module = types.ModuleType("m")
    module.Old, module.Items, module.Colour = Old, Items, Colour
    sys.modules["m"] = module
    VALUES["enum"] = Colour.RED
    VALUES["newobj_ex"] = Old(1)
    lines = []
    for name, value in VALUES.items():
        for protocol in range(6):
            if protocol != {"memo": 2, "long4": 2, "wide": 4}.get(name, protocol):
                continue
            out = io.BytesIO()
            persistent = name == "persistent"
            if persistent and protocol == 0:
                continue
            (Pickler if persistent else pickle._Pickler)(out, protocol).dump(value)
            read = Recorder(io.BytesIO(out.getvalue())).load()
            lines.append(f"{name}-{protocol} {out.getvalue().hex()} {show(read)}\n")
    (HERE / "pickles.txt").write_text("".join(lines))


def write_small_data():
    import torch

    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    out = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 1}, out)
    with zipfile.ZipFile(out) as archive:
        (HERE / "small_data.pkl").write_bytes(archive.read("archive/data.pkl"))


if __name__ == "__main__":
    write_pickles()
    write_small_data()
