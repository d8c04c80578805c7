"""P: invalid pickles, and pickles that readers read differently."""

import io
import pickle as cpython
import struct
from collections.abc import Callable

from attacks.pickles import (
    CANARY,
    NONE,
    SYSTEM,
    binary,
    frame,
    framed,
    get,
    integer,
    listed,
    made,
    many,
    mapped,
    name,
    named,
    number,
    pickle,
    proto,
    put,
    short,
    stack_name,
    storage,
    tensor,
    text,
)
from attacks.registry import Build, Kept, Named, Opens, Refused, family
from attacks.streams import legacy
from attacks.zips import around, torch_zip

stack, memo, wrong_type = Refused("PickleStack"), Refused("PickleMemo"), Refused("PickleType")
truncated, frames, persistent_id = Refused("Truncated"), Refused("PickleFrame"), Refused("PersistentId")
RUNS = ("posix.system",)


def raw(data: bytes) -> Callable[[], bytes]:
    """An archive with these bytes as its pickle."""
    return lambda: torch_zip(data)


def bodies(protocol: int = 2, /, **parts: bytes) -> dict[str, Build]:
    return {key: (lambda body=body: around(body, protocol=protocol)) for key, body in parts.items()}


def agrees(ident: str, what: str, protocol: int = 2, /, *finds: str, **parts: bytes) -> None:
    """Inputs whose values must equal those of CPython's unpickler."""
    for key, body in parts.items():

        def check(ckpt, body=body) -> None:
            # The Python unpickler, because the C unpickler of older versions allocates the memo up to the largest index.
            expected = cpython._Unpickler(io.BytesIO(pickle(body, protocol=protocol))).load()
            assert ckpt.objects == expected
            assert type(ckpt.objects) is type(expected)

        family(
            ident, what, bodies(protocol, **{key: body}), Opens("opens, with CPython's result", check), *finds
        )


family(
    "P01",
    "a pickle without STOP",
    {"none": raw(proto(2) + NONE), "empty": raw(b""), "proto": raw(proto(2))},
    stack,
)
family("P01", "", {
    "in_an_int": raw(b"J\0\0"), "in_a_name": raw(b"cm\nn"), "in_a_text": raw(b"S'a'"),
}, truncated)  # fmt: skip
family(
    "P02", "STOP on an empty stack", {"": raw(proto(2) + b"."), "over_a_mark": raw(proto(2) + b"(.")}, stack
)
family("P03", "values left at STOP", {"value": raw(proto(2) + b"NN."), "mark": raw(proto(2) + b"(N.")}, stack)
family("P04", "a byte that is not an opcode", {
    "before": raw(proto(2) + b"\xff" + SYSTEM + b"."), "after": raw(proto(2) + SYSTEM + b"\xff."),
}, Refused("PickleOpcode"))  # fmt: skip
family(
    "P04",
    "",
    {"call_then_bad": raw(proto(2) + SYSTEM + b"\xff.")},
    Refused("PickleOpcode"),
    "PickleOpcode",
    runs=RUNS,
)

trailing = Refused("TrailingData")
family("P05", "bytes after STOP", raw(pickle(NONE) + b"garbage"), trailing)
family(
    "P06",
    "a second pickle after STOP",
    raw(pickle(NONE) + pickle(SYSTEM)),
    trailing,
    "TrailingData",
    runs=RUNS,
)
family("P06", "", {"asked_for": raw(pickle(NONE) + pickle(SYSTEM))}, Opens("opens the first"), "TrailingData", runs=RUNS,
       options={"trailing": "ignore"})  # fmt: skip

bad_proto = Refused("PickleProto")
family(
    "P07",
    "a protocol that does not exist",
    {"99": raw(pickle(NONE, protocol=99)), "6": raw(pickle(NONE, protocol=6))},
    bad_proto,
)
family("P08", "PROTO in the middle", raw(proto(2) + NONE + proto(2) + b"."), bad_proto)
family("P09", "PROTO twice", raw(proto(2) + pickle(NONE)), bad_proto)


def noted(word: str) -> Callable:
    def check(ckpt) -> None:
        assert any(word in note for note in ckpt.notes), ckpt.notes

    return check


family("P10", "an opcode of a later protocol than stated", {
    "under_2": raw(pickle(short("a"))), "without_proto": raw(b"](" + short("a") + b"e."),
}, Opens("opens, noted", noted("protocol")))  # fmt: skip

# The memo.

family("P11", "a memo index that is unset", bodies(bin=get(7), long=get(1 << 20), text=b"g7\n"), memo)
family("P12", "a memo index that is not canonical decimal", bodies(
    minus=b"]p0\ng-1\n0", spaces=b"]p0\ng 0 \n0", underscore=b"]p10\ng1_0\n0", zeros=b"]p1\ng01\n0", word=b"]p0\ngx\n0",
    plus=b"]p1\ng+1\n0", empty=b"]p0\ng\n0", put=b"]p00\n",
    put_word=b"Npx\n", put_empty=b"Np\n", put_minus_zero=b"Np-0\n", put_plus=b"Np+1\n", put_underscore=b"Np1_0\n",
), memo)  # fmt: skip
agrees(
    "P13",
    "a memo index of 2^32-1, then MEMOIZE",
    4,
    memoize=b"]" + put(0xFFFFFFFF) + b"\x94" + get(1) + b"\x86",
)
agrees("P13", "", 4, sparse=b"]" + put(0xFFFFFFFF) + get(0xFFFFFFFF) + b"\x86")
agrees("P13", "", text=b"Np4294967295\n")
family(
    "P14",
    "a memo index of 2^64 and more",
    bodies(
        p64=b"]p18446744073709551616\n",
        long=b"]p" + b"9" * 100 + b"\n",
        p32=b"Np4294967296\n",
        g32=b"g4294967296\n",
    ),
    memo,
)
agrees(
    "P15",
    "MEMOIZE on an index that PUT has taken",
    4,
    collides=text("a") + put(1) + text("b") + b"\x94" + get(1) + b"\x87",
)
agrees("P15", "", 4, gap=b"]" + put(5) + text("x") + b"\x94" + get(1) + b"\x87")

# Numbers. Only spellings that all readers read as the same number are accepted.

ambiguous = Refused("AmbiguousNumber")
family("P16", "an INT that readers parse differently", bodies(
    hex=b"I0x10\n", octal=b"I010\n", underscore=b"I1_000\n", space=b"I 5\n", empty=b"I\n", word=b"Ix\n", plus=b"I+5\n",
    space_after=b"I5 \n", minus_zero=b"I-0\n", minus=b"I-\n", zeros=b"I000\n", long=b"I5L\n",
), ambiguous)  # fmt: skip
agrees("P16", "", booleans=b"](I00\nI01\nI5\nI-5\nI0\ne")
family("P17", "a FLOAT that readers parse differently", bodies(
    underscore=b"F1_0.0\n", too_large=b"F1e999\n", empty=b"F\n", word=b"Fx\n", space=b"F 1.5\n",
), ambiguous)  # fmt: skip


def nan_first(ckpt) -> None:
    found = ckpt.objects
    assert found[0] != found[0]
    assert found[1:] == [float("inf"), float("-inf"), 1.5]


family(
    "P17", "", bodies(named=b"](Fnan\nFinf\nF-inf\nF1.5\ne"), Opens("opens, with CPython's result", nan_first)
)
family(
    "P18",
    "a LONG in decimal text",
    bodies(digits=b"L" + b"9" * 1_000_000 + b"L\n", int_4301=b"I" + b"9" * 4301 + b"\n"),
    Refused("Limit", "int_digits"),
)
family("P18", "", bodies(digits_4090=b"L" + b"9" * 4090 + b"L\n", hex=b"L0x1L\n", underscore=b"L1_0L\n"),
       {"digits_4090": Opens(), "hex": ambiguous, "underscore": ambiguous})  # fmt: skip
family("P18", "", bodies(without_l=b"L5\n", empty=b"L\n", only_l=b"LL\n"), ambiguous)
agrees("P18", "", minus_4300=b"L-" + b"9" * 4300 + b"L\n")
agrees("P19", "LONG1 of no bytes", empty=b"\x8a\0")
family("P20", "LONG4 of a negative or huge length", bodies(
    negative=b"\x8b\xff\xff\xff\xff", most=b"\x8b\xff\xff\xff\x7f",
), truncated)  # fmt: skip
family("P20", "", bodies(kib=b"\x8b" + struct.pack("<i", 1025) + b"\1" * 1025), Refused("Limit", "int_bytes"))
family("P21", "BINSTRING of a negative length", bodies(minus=b"T\xff\xff\xff\xffabc"), truncated)
family("P22", "BINUNICODE of 4 GiB", bodies(most=b"X\xff\xff\xff\xffabc"), truncated)
family("P23", "a text or bytes of 2^62 and more", {
    f"{kind}_{power}": raw(proto(5) + opcode + struct.pack("<Q", 1 << power) + b"abc.")
    for kind, opcode in {"unicode": b"\x8d", "bytes": b"\x8e", "bytearray": b"\x96"}.items() for power in (62, 63)
}, truncated)  # fmt: skip

# Text.

family(
    "P24",
    "text that is not UTF-8",
    bodies(bin=b"X\2\0\0\0\xff\xfe", short=b"\x8c\1\xff"),
    Refused("PickleText"),
)
agrees("P25", "text with surrogates", bin=b"X\3\0\0\0\xed\xa0\x80", unicode=b"V\\ud800\n")
family("P26", "a name with a NUL", bodies(global_=b"cos\0x\nsystem\n)R", stack=short("os\0x") + short("system") + b"\x93)R"),
       Kept("os\0x.system"))  # fmt: skip
agrees("P27", "STRING with escapes", escapes=b"S'a\\x41\\n\\\\'\n", quotes=b'S"it\'s"\n')
family("P27", "", bodies(unterminated=b"S'abc\n", bare=b"Sabc\n", escape=b"S'\\x4'\n", quote=b"S'\\'\n", code=b"V\\u00\n",
    large=b"V\\U00110000\n", surrogate=b"\x8c\3\xed\xa0\x80" + short("n") + b"\x93"), Refused("PickleText"))  # fmt: skip
family("P28", "a name in UNICODE escapes", bodies(4, subprocess=b"V\\u0073ubprocess\nVPopen\n\x93" + many(text(CANARY)) + b"R"),
       Kept("subprocess.Popen"), runs=("subprocess.Popen",))  # fmt: skip
family(
    "P29",
    "GLOBAL with a carriage return",
    bodies(cr=b"cposix\r\nsystem\r\n" + many(text(CANARY)) + b"R"),
    Kept("posix\r.system\r"),
)
family("P30", "GLOBAL of an odd name", bodies(
    non_ascii="cmodul\u00e9\nna\u00efve\n)R".encode(), empty=b"c\n\n)R", invalid=b"c\xff\n\xfe\n)R", long=b"c" + b"m" * (1 << 20) + b"\nx\n)R",
), {
    "non_ascii": Kept("modul\u00e9.na\u00efve"), "empty": Kept("."), "invalid": Refused("PickleText"), "long": Refused("Limit", "line"),
})  # fmt: skip

# The stack.

family(
    "P31",
    "TUPLE without MARK",
    bodies(
        tuple=b"Nt",
        list=b"Nl",
        dict=b"Nd",
        appends=b"]e",
        reduce=b"o",
        setitems=b"}u",
        add=b"\x8f\x90",
        inst=b"im\nn\n",
        obj=b"No",
    ),
    stack,
)
family("P31", "", {f"below_a_mark_{number}": raw(body) for number, body in enumerate((
    b"N(\x85", b"N(2", b"N(q\0", b"](Na", b"(]Ne", b"N(R", b"N(Q", b"}N(Ns", b"(e.", b"(N\x86", b"(o.",
    b"]((e1.", b"]((Ne1.", b"}((u1.", b"}((NNu1.",  # the container to fill is missing, whatever is below the first mark
))}, stack)  # fmt: skip
agrees("P32", "POP that removes a MARK", pops=b"N(0")
family("P32", "", bodies(nothing=b"0"), stack)
family("P33", "POP_MARK without MARK", bodies(pops=b"N1"), stack)
family("P34", "ten million MARKs", lambda: around(b"(" * 10_000_000), Refused("Limit", "marks"))
family(
    "P35",
    "a GLOBAL called `mark.mark`",
    bodies(forged=b"(" + name("mark.mark") + NONE + b"t"),
    Named("mark.mark"),
)

# Items of containers.

family("P36", "SETITEMS of an odd number of values", bodies(items=b"}(NNNu", dict=b"(NNNd"), wrong_type)
family("P36", "", {f"unhashable_{kind}_{into}": raw(before + key + after + b".") for kind, key in {
    "list": b"]", "dict": b"}", "set": b"\x8f", "bytearray": b"\x96" + bytes(8), "in_a_tuple": b"]\x85", "deeper": b"]\x85\x85",
}.items() for into, before, after in (
    ("item", b"}", b"Ns"), ("items", b"}(", b"Nu"), ("dict", b"(", b"Nd"), ("set", b"\x8f(", b"\x90"), ("frozenset", b"(", b"\x91"),
)}, wrong_type)  # fmt: skip
STR = text("s")
family("P37", "SETITEM on a value that is not a dict", bodies(
    list=b"]K\0NsN0", text=STR + b"K\0Ns", tuple=b")K\0Ns", number=b"K\5K\0Ns", tensor=tensor() + b"K\0Ns", storage=storage() + b"K\0Ns",
    tensor_items=tensor() + b"(K\0Nu", bytes=b"U\0NNs", id=b"NQNNs", id_items=b"NQ(NNu", global_=name("m.n") + b"NNs",
    state_of_a_list=b"]Nb", state_of_none=b"NNb", state_of_a_class=name("m.n") + b"}b",
), wrong_type)  # fmt: skip
family("P37", "", bodies(opaque=made("mine.Dict") + b"K\0Ns"), Kept("mine.Dict"))
family("P38", "APPEND on a value that is not a list", bodies(
    dict=b"}Na", tensor=tensor() + b"Na", tuple=b")Na", text=STR + b"Na", storage=storage() + b"(Ne", appends=b"}(Ne",
    no_items=b"}(e", id=b"NQNa", set=b"\x8fNa", items_of_a_list=b"](u",
), wrong_type)  # fmt: skip
family("P38", "", bodies(opaque=made("mine.List") + b"Na"), Kept("mine.List"))
family(
    "P39",
    "ADDITEMS on a value that is not a set",
    bodies(4, list=b"](N\x90", dict=b"}(N\x90", tensor=tensor() + b"(N\x90", frozenset=b"(N\x91(N\x90"),
    wrong_type,
)
family(
    "P39",
    "",
    bodies(opaque_key=mapped((made("mine.Key"), NONE), (made("mine.Key"), integer(1)))),
    Kept("mine.Key"),
)

# Frames: PEP 3154.

family("P40", "a frame of a wrong length", {
    "huge": raw(framed(NONE, length=1 << 60)), "short": raw(framed(text("abc"), length=3)),
}, frames, "FrameDivergence")  # fmt: skip
family("P40", "", {"zero": raw(framed(text("abc"), length=0))}, Opens())
family("P41", "nested frames", raw(proto(4) + frame(11) + frame(1) + b"N."), frames, "FrameDivergence")
family(
    "P42",
    "an opcode that crosses a frame's end",
    raw(proto(4) + frame(6) + text("posix") + b"0N."),
    frames,
    "FrameDivergence",
)


def padded_straddle() -> bytes:
    """A frame ends inside a str of 128 KiB; a reader that trusts the frame reads the rest of the str as opcodes."""
    inside = b"B" + struct.pack("<I", 128 << 10) + SYSTEM + b"0"
    return torch_zip(proto(4) + frame(len(inside)) + inside + bytes((128 << 10) - len(SYSTEM) - 1) + b"0N.")


family("P43", "a frame that ends inside a text of 128 KiB", padded_straddle, frames, "FrameDivergence")
agrees("P44", "a frame under protocol 2", framed=frame(2) + b"N")
family("P45", "a frame that reaches past the end", {
    "": raw(proto(4) + frame(100) + b"N."), "most": raw(proto(4) + frame((1 << 64) - 1) + b"N."), "by_one": raw(frame(3) + b"N."),
    "past_stop": raw(proto(4) + frame(4) + b"N.xx"),
}, frames, "FrameDivergence")  # fmt: skip
agrees("P44", "", 4, ends_with_it=frame(2) + b"K\1")

# Names from the stack.

POSIX, NAMED_SYSTEM, ARGS = short("posix"), short("system"), many(text(CANARY)) + b"R"
family(
    "P46",
    "STACK_GLOBAL on numbers",
    bodies(
        4,
        ints=b"K\1K\2\x93",
        list=b"]]\x93",
        bytes=binary(b"os") + binary(b"system") + b"\x93",
        none=b"NN\x93",
        one=text("m") + b"K\2\x93",
    ),
    wrong_type,
)
found = Kept("posix.system")
family(
    "P47",
    "STACK_GLOBAL of names from the memo",
    bodies(4, memo=POSIX + b"\x940" + NAMED_SYSTEM + b"\x940h\0h\1\x93" + ARGS),
    found,
    runs=RUNS,
)
family(
    "P48",
    "STACK_GLOBAL with a POP between",
    bodies(4, pop=POSIX + text("decoy") + b"0" + NAMED_SYSTEM + b"\x93" + ARGS),
    found,
    runs=RUNS,
)
family(
    "P49",
    "a POP before MEMOIZE",
    bodies(4, pop=POSIX + text("decoy") + b"0\x94" + b"h\0" + NAMED_SYSTEM + b"\x93" + ARGS + b"\x86"),
    found,
    runs=RUNS,
)
family("P50", "STACK_GLOBAL of a DUP", bodies(4, dup=short("dup") + b"2\x93)R"), Kept("dup.dup"))
family(
    "P51",
    "STACK_GLOBAL of BINSTRINGs",
    bodies(4, binstring=b"U\5posixT\6\0\0\0system\x93" + ARGS),
    found,
    runs=RUNS,
)
family("P52", "a dotted name", {
    "fromkeys": lambda: around(stack_name(short("collections"), short("OrderedDict.fromkeys")), protocol=4),
    "dunder": lambda: around(stack_name(short("builtins"), short("print.__class__.__base__")), protocol=4),
}, {
    "fromkeys": Named("collections.OrderedDict.fromkeys"), "dunder": Named("builtins.print.__class__.__base__"),
}, "AttributeWalk")  # fmt: skip
family(
    "P52",
    "",
    {"too_many": lambda: around(stack_name(short("m"), short("a" + ".a" * 16)), protocol=4)},
    Refused("Limit", "dotted"),
)
family("P53", "a class by its extension registry code", bodies(
    ext1_0=b"\x82\0", ext1=b"\x82\1", ext2=b"\x83\0\1", ext4=b"\x84\xff\xff\xff\x7f", ext4_negative=b"\x84\0\0\0\x80",
), Refused("ExtRegistry"))  # fmt: skip
family(
    "P54",
    "out-of-band buffers",
    bodies(5, next=b"\x97", readonly=binary(b"x") + b"\x98"),
    Refused("OutOfBand"),
)
family("P55", "a persistent id in text", bodies(text=b"P0\n", long=b"Px" + b"y" * 100 + b"\n"), persistent_id)

LEGACY_ID = many(text("storage"), name("torch.FloatStorage"), text("0"), text("cpu"), integer(6), NONE) + b"Q"
MODULE_ID = many(text("module"), name("mine.Net"), text("net.py"), text("class Net: pass")) + b"Q"
family("P56", "a persistent id that torch does not write", bodies(
    str=STR + b"Q", list=listed(STR) + b"Q", none=b"NQ", empty=b")Q", short=many(text("storage")) + b"Q", number=b"K\5Q",
    tensor=many(text("storage"), tensor(), text("0"), text("cpu"), integer(6)) + b"Q", six=LEGACY_ID, module=MODULE_ID,
    float=many(number(1.0)) + b"Q", on_a_tensor=tensor((6,), on=tensor()), on_none=tensor((6,), on=NONE),
), persistent_id)  # fmt: skip
family(
    "P56", "", {"five_in_legacy": lambda: legacy(pickle(named({"w": tensor(on=storage())})))}, persistent_id
)
family(
    "P56",
    "",
    {"module_in_legacy": lambda: legacy(pickle(made_of_module()), pickle(listed()), b"")},
    Kept("mine.Net"),
)


def made_of_module() -> bytes:
    return MODULE_ID + b")\x81" + named({"x": integer(1)}) + b"b"
