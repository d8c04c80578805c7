"""N: NumPy arrays and archives of them whose headers lie, or hide a pickle."""

import struct
import zlib
from collections.abc import Callable
from typing import Any

from attacks.a_files import holds
from attacks.pickles import SIX, SYSTEM, integer, listed, pickle
from attacks.registry import Fails, Opens, Refused, family
from attacks.zips import GOOD, Member, Zip

header, objects, dtype, bounds, shape = (
    Refused("NpyHeader"),
    Refused("NpyObjects"),
    Refused("NpyDtype"),
    Refused("NdarrayBounds"),
    Refused("TensorShape"),
)
RUNS = ("posix.system",)


def plain(**given: str) -> str:
    """The dict of a header; values are written as they are given."""
    values = {"descr": "'<f4'", "fortran_order": "False", "shape": "(2, 3)"} | given
    return "{" + "".join(f"'{key}': {value}, " for key, value in values.items()) + "}"


def npy(
    text: str | bytes | None = None,
    data: bytes = SIX,
    *,
    version: tuple[int, int] = (1, 0),
    length: int | None = None,
    padded: bool = True,
) -> bytes:
    """A `.npy` file; `length` is what it states in place of the header's length."""
    text = plain() if text is None else text
    raw = text if isinstance(text, bytes) else text.encode("latin-1")
    start = 10 if version[0] == 1 else 12
    if padded:
        raw += b" " * (-(start + len(raw) + 1) % 64) + b"\n"
    stated = struct.pack("<H" if version[0] == 1 else "<I", len(raw) if length is None else length)
    return b"\x93NUMPY" + bytes(version) + stated + raw + data


def npz(**arrays: bytes) -> Zip:
    """An archive of these members, with `.npy` after their names."""
    return Zip().with_(members=[Member(f"{name}.npy".encode(), data) for name, data in arrays.items()])


def add(ident: str, what: str, builds: dict[str, Any], load, *finds: str, **more) -> None:
    family(ident, what, builds, load, *finds, suffix=".npy", **more)


def zipped(ident: str, what: str, builds: dict[str, Callable[[], bytes]], load, *finds: str, **more) -> None:
    family(ident, what, builds, load, *finds, suffix=".npz", **more)


def written(**given: str) -> Callable[[], bytes]:
    return lambda: npy(plain(**given))


add("N01", "an array of more bytes than there are", {
    "npy": lambda: npy(data=SIX[:-1]), "huge": written(shape="(1099511627776,)"), "no_data": lambda: npy(data=b""),
}, Refused("Truncated"))  # fmt: skip
zipped("N01", "", {
    "npz": lambda: npz(w=npy(data=SIX[:-1])).bytes(), "npz_huge": lambda: npz(w=npy(plain(shape="(1099511627776,)"))).bytes(),
}, bounds)  # fmt: skip
add("N02", "bytes after an array", {"npy": lambda: npy() + b"x"}, Refused("TrailingData"))
add("N02", "", {"asked_for": lambda: npy() + b"x"}, holds("arr_0", format="npy"), "TrailingData",
    options={"trailing": "ignore"})  # fmt: skip
zipped("N02", "", {"npz": lambda: npz(w=npy() + b"x").bytes()}, bounds)
zipped(
    "N02",
    "",
    {"npz_asked_for": lambda: npz(w=npy() + b"x").bytes()},
    bounds,
    options={"trailing": "ignore"},
)
add("N03", "a shape that is not a tuple of sizes", {
    "negative": written(shape="(-2, -3)"), "bool": written(shape="(True, 6)"), "float": written(shape="(6.0,)"),
    "number": written(shape="(6)"), "list": written(shape="[6]"), "text": written(shape="('6',)"),
    "nested": written(shape="((6,),)"), "hex": written(shape="(0x6,)"), "underscore": written(shape="(1_0,)"),
    "long_of_python_2": lambda: npy(plain(shape="(6L,)"), version=(3, 0)),
}, header)  # fmt: skip
add("N03", "", {f"shape_{number}": written(shape=shape) for number, shape in enumerate((
    "6", "(6,,)", "(,)", "(6 1)", "(6,", "(+6,)", "(6e0,)", "(06,)", "(6l,)", "(6LL,)", "(6 L,)", "(None,)", "()()", "",
))}, header)  # fmt: skip
add("N04", "a size of more than 63 bits", {
    "one": written(shape="(9223372036854775808,)"), "digits": written(shape=f"({'9' * 9000},)"),
    "product": written(shape="(4294967296, 4294967296)"), "bytes": written(shape="(4611686018427387904,)"),
}, shape)  # fmt: skip
add("N04", "", {"digits_million": lambda: npy(plain(shape=f"({'9' * 1_000_000},)"), version=(2, 0))}, header)
add("N05", "more dimensions than the limit", {
    "65": lambda: npy(plain(shape=f"({'1, ' * 65})"), SIX[:4]), "thousands": lambda: npy(plain(shape=f"({'1,' * 4000})"), SIX[:4]),
}, Refused("Limit", "rank"))  # fmt: skip
add("N06", "a key twice", {
    "shape": lambda: npy(plain()[:-1] + "'shape': (1, 6)}"), "descr": lambda: npy(plain()[:-1] + "'descr': '|O'}"),
}, header)  # fmt: skip
add("N07", "a dict of other keys, or no dict", {
    "unknown": written(extra="1"), "missing": lambda: npy("{'descr': '<f4', 'fortran_order': False}"), "empty": lambda: npy("{}"),
    "no_header": lambda: npy(b"", padded=False), "tuple": lambda: npy("('<f4', False, (6,))"), "two": lambda: npy(plain() * 2),
    "none": written(fortran_order="None"), "word": written(fortran_order="Falsely"),
}, header)  # fmt: skip
add("N07", "", {f"text_{number}": (lambda text=text: npy(text)) for number, text in enumerate((
    "{'descr': '<f4', 'shape': (2, 3)}", "{'fortran_order': False, 'shape': (2, 3)}", "x" + plain(), plain() + "}", plain()[:-3],
    plain().replace("'descr':", "'descr'"), plain().replace("False,", "False"), plain()[:-1] + ",}", plain().replace("desc", "d\\x65sc"),
    plain().replace("descr", "descr\n"),
))}, header)  # fmt: skip
add("N08", "an expression in place of a value", {
    "call": written(shape="(__import__('posix').system('true'),)"), "sum": written(shape="(3 + 3,)"),
    "order": written(fortran_order="0"), "comment": lambda: npy(plain() + " # more"), "escape": written(descr="'\\x3cf4'"),
    "bytes": written(descr="b'<f4'"), "joined": written(descr="'<f' '4'"),
}, header)  # fmt: skip


def hidden(descr: str) -> Callable[[], bytes]:
    return lambda: npy(plain(descr=descr, shape="(1,)"), pickle(listed(SYSTEM), protocol=3))


add("N09", "a call in an object array, in another spelling of its dtype", {
    "native": hidden("'=O'"), "little": hidden("'<O4'"), "big": hidden("'>O8'"), "bare": hidden("'O'"), "quotes": hidden('"|O"'),
}, objects, runs=RUNS)  # fmt: skip
add("N09", "", {
    "name": hidden("'object'"), "list_of_one": hidden("'O,'"),
}, header, runs=RUNS)  # fmt: skip
add("N10", "a call in an array of records with objects", {
    "field": hidden("[('a', '|O')]"), "nested": hidden("[('a', '<i4'), ('b', [('c', 'O')])]"), "subarray": hidden("('|O', (1,))"),
    "escaped": hidden("[('a', '\\x4f')]"), "name": hidden("[('a', 'object')]"),
}, dtype, runs=RUNS)  # fmt: skip


def listed_as(class_name: str) -> Callable[[Any], None]:
    def check(ckpt) -> None:
        assert list(ckpt) == ["w"]
        assert [(found.class_name, found.at) for found in ckpt.opaque] == [(class_name, ["evil"])]

    return check


zipped("N11", "a call in an object array of an archive", {
    "first": lambda: npz(evil=hidden("'|O'")(), w=npy()).bytes(), "last": lambda: npz(w=npy(), evil=hidden("'|O'")()).bytes(),
}, Opens("opens without it", listed_as("numpy.object_")), "", runs=RUNS)  # fmt: skip
zipped("N11", "", {"record": lambda: npz(w=npy(), evil=hidden("[('a', 'O')]")()).bytes()},
       Opens("opens without it", listed_as("numpy.void")), "", runs=RUNS)  # fmt: skip
zipped("N11", "", {"strict": lambda: npz(w=npy(), evil=hidden("'|O'")()).bytes()}, objects, "", runs=RUNS,
       options={"unknown": "error"})  # fmt: skip
add("N12", "a dtype that NumPy has and rustload has not", {
    key: (lambda descr=descr: npy(plain(descr=descr, shape="(0,)"), b"")) for key, descr in {
        "text": "'<U5'", "bytes": "'|S3'", "void": "'|V2'", "time": "'<M8[ns]'", "longdouble": "'<f16'", "record": "[('x', '<f4')]",
        "deep": "[" * 4000 + "]" * 4000, "delta": "'<m8'", "clongdouble": "'<c32'", "titles": "[(('t', 'x'), '<i4')]",
        "shaped": "[('x', '<i4'), ('y', '<f8', (2, 2))]", "subarray": "('<i4', (2,))", "no_fields": "[]",
    }.items()
}, dtype)  # fmt: skip


def with_field(field: bytes, version: int) -> Callable[[], bytes]:
    return lambda: npy(
        plain(descr="[('?', '<i4')]", shape="(0,)").encode().replace(b"?", field), b"", version=(version, 0)
    )


add("N12", "", {
    "latin1_field": with_field(b"\xe9", 1), "any_field": with_field(b"\xff\xfe", 2), "utf8_field": with_field("\u4e2d".encode(), 3),
}, dtype)  # fmt: skip
add("N13", "a dtype that NumPy does not write", {
    "size": written(descr="'<f5'"), "name": written(descr="'float32'"), "order": written(descr="'<<f4'"), "empty": written(descr="''"),
    "list": written(descr="'f4,f4'"), "none": written(descr="None"), "unclosed": written(descr="[" * 4000),
}, header)  # fmt: skip
add("N13", "", {f"descr_{number}": written(descr=descr) for number, descr in enumerate((
    "'<'", "' <f4'", "'<f4 '", "'(2,)f4'", "'<\u00e94'", "'U-1'", "'S'", "'M8,O'", "'m8[s],O'", "'M8[s,O]'", "'<U99999999999'", "4",
    "u'<f4'", "'<f4", "\"<f4'", "[", "[('a',, '<f4')]", "[('a' '<f4')]", "[('a', '<f4')", "[('a', '<f4'])", "[,]", "{'a': 1}", "('<f4'",
    "[None]",
))}, header)  # fmt: skip
add("N14", "a header longer than NumPy reads", {
    "spaces": lambda: npy(plain() + " " * 10_000), "stated": lambda: npy(version=(2, 0), length=0xFFFFFFFF),
    "version_2": lambda: npy(plain() + " " * (1 << 20), version=(2, 0)),
}, header)  # fmt: skip
add("N15", "a header past the end of the file", {
    "stated": lambda: npy(length=9_999), "cut": lambda: npy()[:60], "magic": lambda: npy()[:8],
}, Refused("Truncated"))  # fmt: skip
add("N16", "another version of the format", {
    "0": lambda: npy(version=(0, 0)), "4": lambda: npy(version=(4, 0)), "minor": lambda: npy(version=(1, 1)),
    "2_1": lambda: npy(version=(2, 1)), "255": lambda: npy(version=(255, 255)),
}, header)  # fmt: skip
add("N17", "other bytes than the encoding allows", {
    "utf8": lambda: npy(plain().encode() + b"\xff", version=(3, 0)), "latin1": lambda: npy(plain().encode() + b"\xa0"),
    "nul": lambda: npy(plain().encode() + b"\0"), "utf8_blank": lambda: npy("\u00a0".encode() + plain().encode(), version=(3, 0)),
    "field": with_field(b"\xe9", 3),
}, header)  # fmt: skip
add("N18", "a header without padding", {
    "none": lambda: npy(padded=False), "newline": lambda: npy(plain() + "\n", padded=False),
}, holds("arr_0", format="npy"))  # fmt: skip
add("N18", "", {
    "other_order": lambda: npy("{\"shape\":(2,3),'fortran_order':False,\"descr\":'<f4'}"), "python_2": written(shape="(2L, 3L)"),
    "blanks": lambda: npy(" { 'shape' : ( 2 ,3 ) ,\n 'descr' :\t'<f4' , 'fortran_order' : False , } \r\n"),
    "longest": lambda: npy(plain().ljust(10_000), padded=False), "native": written(descr="'=f4'"), "bare": written(descr="'f4'"),
    "any_order": written(descr="'|f4'"), "no_elements": lambda: npy(plain(shape="(0, 4611686018427387904)"), b""),
}, holds("arr_0", format="npy"))  # fmt: skip


def bomb(size: int, stream: bytes | None = None) -> Callable[[], bytes]:
    """A deflated array of `size` zeros, of which the archive has only `stream`."""
    head = npy(plain(descr="'|u1'", shape=f"({size},)"), b"")

    def build() -> bytes:
        data = head + (bytes(size) if stream is None else stream)
        stated = {"usize": min(len(head) + size, 0xFFFFFFFF)}
        one = Member(b"w.npy", data, method=8, local=dict(stated), central=dict(stated))
        if len(head) + size >= 0xFFFFFFFF:
            packed = len(one.stored())
            one.local["extra"] = struct.pack("<HHQQ", 1, 16, len(head) + size, packed)
            one.local["csize"] = 0xFFFFFFFF
            one.central["extra"] = struct.pack("<HHQ", 1, 8, len(head) + size)
        return Zip().with_(members=[one]).bytes()

    return build


def first(ckpt) -> None:
    ckpt["w"][:1].materialize(copy=True, framework="dlpack")


zipped("N19", "a deflated array that inflates to less than it states", {
    "kilobyte": bomb(1 << 20, bytes(1024)), "terabytes": bomb(1 << 42, bytes(1024)),
}, {
    "kilobyte": Fails("ZipStructure", first, "reading"), "terabytes": Fails("NotEnoughMemory", first, "reading"),
}, "")  # fmt: skip
zipped("N19", "", {"real": bomb(256 << 20)}, holds("w", format="npz"))
zipped("N20", "an archive of arrays with a pickle of torch", {
    "beside": lambda: npz(w=npy()).add("data.pkl", GOOD).bytes(), "bare": lambda: npz(w=npy()).add_path(b"data.pkl", GOOD).bytes(),
}, {"beside": Refused("RecordMissing"), "bare": Refused("ZipName")})  # fmt: skip


def noted(ckpt) -> None:
    assert list(ckpt) == ["w"]
    assert any("not arrays" in note for note in ckpt.notes)


zipped("N21", "a member that is not an array", {
    "text": lambda: npz(w=npy()).add_path(b"README", b"hello").bytes(),
    "pickle": lambda: npz(w=npy()).add_path(b"more.pkl", pickle(integer(1))).bytes(),
}, Opens("opens, noted", noted), "")  # fmt: skip
zipped("N21", "", {"strict": lambda: npz(w=npy()).add_path(b"README", b"hello").bytes()}, Refused("UnknownFormat"), "",
       options={"unknown": "error"})  # fmt: skip
zipped("N21", "", {"call": lambda: npz(w=npy()).add_path(b"more.pkl", pickle(SYSTEM)).bytes()},
       Opens("opens, noted", noted), "", runs=RUNS)  # fmt: skip
zipped("N21", "", {"not_npy": lambda: npz(w=b"no array").bytes(), "empty": lambda: npz(w=b"").bytes()},
       {"not_npy": header, "empty": Refused("Truncated")})  # fmt: skip


ODD_NAMES = (
    b"..",
    b"/a",
    b"C:a",
    b"c:/a",
    b"a\\b",
    b"",
    b"/",
    b"a//b",
    b"a/./b",
    b"a/../b",
    b"a\0b",
    b"a/" + b"x" * 510,
    b"a/\xff",
)
zipped("N21", "", {f"name_{number}": (lambda path=path: npz(w=npy()).add_path(path).bytes()) for number, path in enumerate(ODD_NAMES)},
       Refused("ZipName"))  # fmt: skip
zipped("N21", "", {
    f"usual_{number}": (lambda path=path: npz(w=npy()).add_path(path).bytes())
    for number, path in enumerate((b"a/..b", b"a b/c:d", b"a/" + b"x" * 509, "\u6a21/data.x".encode()))
}, Opens("opens, noted", noted), "")  # fmt: skip


def streamed(**extra: int) -> Callable[[], bytes]:
    """An archive as `numpy.savez` writes it: sizes in a zip64 extra field of the local header only."""
    data = npy()
    true = {"usize": len(data), "csize": len(data), "field_usize": len(data), "field_csize": len(data)}
    stated = true | {"usize": 0xFFFFFFFF, "csize": 0xFFFFFFFF} | extra
    field = struct.pack("<HHQQ", 1, 16, stated["field_usize"], stated["field_csize"])
    local = {"usize": stated["usize"], "csize": stated["csize"], "extra": field}
    return lambda: Zip().with_(members=[Member(b"w.npy", data, local=local)]).bytes()


mismatch = Refused("ZipMismatch")
zipped("N22", "sizes in a zip64 field of the local header that are not the directory's", {
    "usize": streamed(field_usize=1), "csize": streamed(field_csize=1), "zero": streamed(field_usize=0, field_csize=0),
    "plain_usize": streamed(usize=1), "plain_csize": streamed(csize=1), "plain_zeros": streamed(usize=0, csize=0),
    "usize_alone": streamed(csize=len(npy())), "csize_alone": streamed(usize=len(npy())),
    "most": streamed(field_usize=(1 << 64) - 1, field_csize=(1 << 64) - 1),
}, mismatch)  # fmt: skip
zipped("N22", "", {"as_numpy": streamed()}, holds("w", format="npz"))
SENTINEL = {"usize": 0xFFFFFFFF, "csize": 0xFFFFFFFF}
zipped("N22", "", {
    key: (lambda extra=extra: Zip().with_(members=[Member(b"w.npy", npy(), local=SENTINEL | {"extra": extra})]).bytes())
    for key, extra in {
        "no_field": b"", "an_offset": struct.pack("<HHQ", 1, 8, 0),
        "twice": struct.pack("<HHQQ", 1, 16, len(npy()), len(npy())) * 2,
    }.items()
}, mismatch)  # fmt: skip
zipped("N23", "a wrong checksum of an array", {
    "crc": lambda: Zip().with_(members=[Member(b"w.npy", npy(), local={"crc": 1}, central={"crc": 1})]).bytes(),
}, Refused("ZipCrc"), "", options={"verify": True})  # fmt: skip
assert zlib.crc32(npy()) != 1
