"""R: resource bombs: small files that are expensive to read. Each opens or exceeds a limit, within the memory bound and 2 s."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attacks.pickles import NONE, SIX, get, integer, listed, many, name, put, tensor, text
from attacks.registry import Build, Fails, Opens, Refused, family, shown
from attacks.zips import Zip, around

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def limit(which: str) -> Refused:
    return Refused("Limit", which)


def objects(ckpt):
    return ckpt.objects


def exported(which: str) -> Fails:
    """It opens, and exporting its object tree exceeds a limit."""
    return Fails("Limit", objects, "export", which)


def dag(levels: int, kind: str, bottom: bytes) -> bytes:
    """Containers, each of which contains the previous one twice."""
    out = [bottom]
    for level in range(levels):
        out.append(put(level) + b"0")
        both = get(level) + get(level)
        out.append({
            "tuple": both + b"\x86",
            "list": b"](" + both + b"e",
            "dict": b"}(" + text("a") + get(level) + text("b") + get(level) + b"u",
            "dup": get(level) + b"2\x86",
            "binget": b"]" + get(level) + b"a" + get(level) + b"a",
            "global": name("mine.Node") + both + b"\x86R",
        }[kind])  # fmt: skip
    return b"".join(out)


def bombs(**builds: Callable[[], bytes]) -> dict[str, Build]:
    return {key: (lambda build=build: around(build())) for key, build in builds.items()}


small = Opens("opens; shared values stay shared")
family("R01", "2^60 leaves in 60 shared containers", bombs(
    **{kind: (lambda kind=kind: dag(60, kind, NONE)) for kind in ("tuple", "list", "dict")},
), small)  # fmt: skip
family("R01", "", bombs(tensors=lambda: dag(60, "list", tensor())), limit("name_bytes_total"))
family("R02", "a billion laughs by DUP and by BINGET", bombs(
    dup=lambda: dag(60, "dup", text("lol")), binget=lambda: dag(60, "binget", text("lol")),
), small)  # fmt: skip
family(
    "R03",
    "shared calls of globals",
    bombs(calls=lambda: dag(60, "global", name("mine.Lol"))),
    small,
    "DisallowedGlobal",
)

deep_key = limit("key_depth")
family("R04", "2^60 leaves as a dict key", bombs(
    dict=lambda: b"}" + dag(60, "tuple", integer(1)) + b"Ns", setitems=lambda: b"}(" + dag(60, "tuple", integer(1)) + b"Nu",
), deep_key)  # fmt: skip
family("R05", "2^60 leaves as an item of a set", {
    "set": lambda: around(b"\x8f(" + dag(60, "tuple", integer(1)) + b"\x90", protocol=4),
    "frozenset": lambda: around(b"(" + dag(60, "tuple", integer(1)) + b"\x91", protocol=4),
}, deep_key)  # fmt: skip
family("R06", "two equal structures of 2^60 leaves as keys", bombs(
    dags=lambda: b"}(" + dag(60, "tuple", integer(1)) + b"N" + dag(60, "tuple", integer(1)) + b"Nu",
), deep_key)  # fmt: skip
DEEP = 10_000_000
family("R07", "ten million nested tuples", bombs(tuples=lambda: NONE + b"\x85" * DEEP), exported("depth"))
family(
    "R08",
    "ten million nested lists",
    bombs(lists=lambda: b"]" * DEEP + b"a" * (DEEP - 1)),
    exported("depth"),
)
family(
    "R09",
    "256 MiB of values on the stack",
    {"nones": lambda: around(b"N" * ((256 << 20) - 3))},
    limit("stack"),
)
family("R09", "", {"lists": lambda: around(b"(" + b"]" * 40_000_000 + b"l")}, limit("stack"))
family("R10", "one list referenced five million times", bombs(
    binget=lambda: listed(NONE) + put(0) + b"0](" + b"h\0" * 5_000_000 + b"e",
), Opens("opens"))  # fmt: skip
family("R11", "a value that contains itself", bombs(
    list=lambda: b"]q\0h\0a", dict=lambda: b"}q\0K\1h\0s", tuple=lambda: b"]q\0h\0\x85q\1a0h\1",
    ordered=lambda: name("collections.OrderedDict") + b")Rq\0}" + text("me") + b"h\0sb", opaque=lambda: name("mine.A") + b")\x81q\0h\0b",
), Opens("opens, containing itself"), "SelfReference")  # fmt: skip
family(
    "R11",
    "",
    bombs(only_tuples=lambda: name("builtins.frozenset") + b"]q\0" + b"\x85Rq\1" + b"0h\0h\1a0h\1"),
    Opens("opens: the set is empty, as at its call", objects),
    "SelfReference",
)


def tiny_tensors(count: int) -> bytes:
    """Tensors that take 12 bytes of pickle each."""
    shared = name("torch._utils._rebuild_tensor") + put(0) + b"0" + many(
        text("storage"), name("torch.FloatStorage"), text("0"), text("cpu"), integer(6)
    ) + b"Q" + put(1) + b"0"  # fmt: skip
    return around(shared + b"](" + b"h\0(h\x01K\0))tR" * count + b"e")


family("R12", "ten million tensors", lambda: tiny_tensors(10_000_000), limit("tensors"))
family(
    "R13",
    "a million views of one storage",
    lambda: around(tensor() + put(0) + b"0](" + b"h\0" * 1_000_000 + b"e"),
    Opens("opens, lazily"),
    tensors=1_000_000,
)
shown("R14", "dropping, showing and exporting each of these on a small stack", "opens or its limit; no stack overflow",
      "tests/rust/bomb_drops.rs::every_bomb_is_dropped_on_a_small_stack")  # fmt: skip


def overlapping() -> bytes:
    """A thousand members whose directory entries point to the same local header."""
    archive = Zip()
    at = sum(len(one.header()) for one in archive.members[:2])
    for number in range(1000):
        archive.add(f"data/{number + 1}", SIX, central={"offset": at})
    return archive.bytes()


family("R15", "a thousand members that share bytes", overlapping, Refused("RecordOverlap"))


def sparse_gigabyte(folder: Path) -> Path:
    """An archive whose pickle is one GLOBAL line of 1 GB, as a sparse file."""
    size = 1 << 30
    fields = {"csize": size, "usize": size, "crc": 1}
    whole = Zip(b"c").spoil("data.pkl", local=fields, central=fields)
    [first, *rest] = whole.members
    head = first.header()
    tail, start = b"".join(one.header() for one in rest), len(head) - 1 + size
    offsets = [0]
    for one in rest[:-1]:
        offsets.append(offsets[-1] + len(one.header()))
    directory = first.entry(0) + b"".join(
        one.entry(start + at) for one, at in zip(rest, offsets, strict=True)
    )
    path = folder / "R16-sparse.bin"
    with path.open("wb") as file:
        file.write(head)
        file.seek(start)
        file.write(tail + directory + whole.ends(len(whole.members), start + len(tail), len(directory)))
    return path


family("R16", "a GLOBAL line of a gigabyte", {"1_gb": sparse_gigabyte}, limit("pickle_bytes"), placed=True)
family("R16", "", {"64_mb": lambda: around(b"c" + b"m" * (64 << 20) + b"\nx\n")}, limit("line"))


def last_wins(ckpt) -> None:
    assert ckpt.objects == {1: None, 2: True}


family("R17", "a million equal keys", bombs(
    same=lambda: b"}(" + b"K\1N" * 1_000_000 + b"K\2\x88u",
), Opens("linear, the last wins", last_wins), "DuplicateKey")  # fmt: skip
