"""R: resource bombs: small files that are expensive to read. Each opens or exceeds a limit, within the memory bound and 2 s."""

from collections.abc import Callable
from pathlib import Path

from attacks.pickles import NONE, SIX, get, integer, listed, many, name, named, put, tensor, text
from attacks.registry import Build, Fails, Opens, Refused, family, shown
from attacks.zips import Zip, around


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
            "ordered": name("collections.OrderedDict") + b")R(K\0" + get(level) + b"K\1" + get(level) + b"u",
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
family("R01", "", bombs(**{
    f"tensors_{kind}": (lambda kind=kind: dag(60, kind, tensor())) for kind in ("tuple", "list", "dict", "dup", "global", "ordered")
}), limit("name_bytes_total"), "")  # fmt: skip


def named_1024(ckpt) -> None:
    assert len(ckpt) == 1024


family("R01", "", bombs(few=lambda: dag(10, "list", tensor())), Opens("opens", named_1024))
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
family("R07", "", bombs(around_a_tensor=lambda: tensor() + b"\x85" * 1_000_000), limit("depth"))
family(
    "R08", "", bombs(around_a_tensor=lambda: b"]" * 1_000_001 + tensor() + b"a" * 1_000_001), limit("depth")
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


def calls(first: int, second: int) -> Callable[[], bytes]:
    """Calls of two classes, none of which is a tensor."""
    classes = name("mine.A") + put(0) + b"0" + name("mine.B") + put(1) + b"0"
    return lambda: around(classes + b"](" + b"h\0)R" * first + b"h\1)R" * second + b"e")


few = {"limits": {"tensors": 10}}
family("R12", "", {"calls": calls(11, 0), "other_calls": calls(0, 11)}, limit("tensors"), "", options=few)
family("R12", "", {"calls_of_two": calls(10, 10)}, Opens("opens"), "DisallowedGlobal", options=few)
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


# What many values share is read once.

MANY = 100_000


def shared(first: bytes, called: str, each: bytes, *, more: bytes = b"") -> bytes:
    """`first` in the memo at 0, what is called at 1, then `more`, and a list of `each`, many times."""
    return first + put(0) + b"0" + name(called) + put(1) + b"0" + more + b"](" + each * MANY + b"e"


SAME_KEY, NONES, LONG = b"}(" + b"K\1N" * MANY + b"u", b"(" + NONE * MANY + b"t", text("x" * 1_000_000)
CALL, STATE = b"h\1h\0\x85R", b"h\1)Rh\0b"
MODULE = named({key: get(0) for key in ("_parameters", "_buffers", "_modules")}) + put(2) + b"0"
counted = exported("export_nodes")
"""Every use of a shared value counts where the tree is exported."""
family("R17", "", bombs(
    dict=lambda: shared(SAME_KEY, "mine.A", b"h\0"), argument=lambda: shared(SAME_KEY, "mine.A", CALL),
), Opens("linear"), "DuplicateKey")  # fmt: skip
family("R17", "", bombs(
    ordered=lambda: shared(SAME_KEY, "collections.OrderedDict", CALL), state=lambda: shared(SAME_KEY, "mine.A", STATE),
    modules=lambda: shared(SAME_KEY, "mine.Net", b"h\1)Rh\2b", more=MODULE),
), counted, "DuplicateKey")  # fmt: skip
family("R17", "", bombs(
    dtype=lambda: shared(b"(" + text("f4") + NONE * MANY + b"t", "numpy.dtype", b"h\1h\0R"),
    dtype_state=lambda: shared(NONES, "numpy.dtype", b"h\1h\2Rh\0b", more=many(text("f4"), NONE, NONE) + put(2) + b"0"),
    pairs=lambda: shared(
        NONE + NONE + b"\x86" + put(3) + b"0](" + get(3) * MANY + b"e", "collections.OrderedDict", CALL
    ),
    arguments=lambda: shared(NONES, "mine.A", b"h\1h\0R"),
), counted, "")  # fmt: skip
family("R17", "", bombs(
    text=lambda: shared(LONG, "_codecs.encode", b"h\1h\0h\2\x86R", more=text("latin1") + put(2) + b"0"),
), exported("export_bytes"), "")  # fmt: skip
family("R17", "", bombs(name=lambda: shared(NONE, "mine." + "n" * 4000, b"h\1)R")), Opens("linear"), "")

DEEP_KEY = text("k" * 4_000_000) + put(0) + b"0"
family("R20", "400 nested dicts with one key of 4 MB", bombs(
    tensor=lambda: DEEP_KEY + (b"}" + get(0)) * 400 + tensor() + b"s" * 400,
    opaque=lambda: DEEP_KEY + (b"}" + get(0)) * 400 + name("mine.A") + b")\x81" + b"s" * 400,
), limit("name_bytes_total"), "")  # fmt: skip
KEY_OF_TEN = DEEP_KEY + b"}(" + get(0) * 20 + b"t" + tensor() + b"s"
family("R20", "", bombs(tuple_key=lambda: KEY_OF_TEN), limit("name_bytes_total"), "",
       options={"limits": {"name_bytes_total": 16 << 20}})  # fmt: skip
family("R20", "", bombs(tuple_key_fits=lambda: KEY_OF_TEN), Opens("opens"), "")


def all_globals(ckpt):
    return ckpt.globals


def long_globals(count: int) -> Callable[[], bytes]:
    def build() -> bytes:
        names = b"".join(get(0) + text(f"N{number}") + b"\x93" for number in range(count))
        return around(text("m" * 4000) + put(0) + b"0](" + names + b"e", protocol=4)

    return build


family("R22", "200,000 names in a module with a name of 4,000 bytes", {
    "listed": long_globals(200_000),
}, Fails("Limit", all_globals, "listing its globals", "name_bytes_total"), "")  # fmt: skip
family("R22", "", {"few": long_globals(100)}, Opens("opens"), "")


def long_shards(count: int) -> Callable[[Path], Path]:
    """A folder of shards with 20 calls each of long names."""

    def build(folder: Path) -> Path:
        (folder / "R22").mkdir(exist_ok=True)
        for number in range(1, count + 1):
            module = "m" * 2000 + str(number)
            calls = b"](" + b"".join(name(f"{module}.N{at}") + b")R" for at in range(20)) + b"e"
            (folder / "R22" / f"pytorch_model-{number:05}-of-{count:05}.bin").write_bytes(around(calls))
        return folder / "R22"

    return build


some = {"limits": {"name_bytes_total": 100_000}}
family("R22", "", {"four_shards": long_shards(4)}, limit("name_bytes_total"), "", placed=True, options=some)
family("R22", "", {"two_shards": long_shards(2)}, Opens("opens"), "", placed=True, options=some)
