"""S: safetensors headers that violate the format, or that readers read differently."""

import json
from collections.abc import Callable

from attacks.a_files import holds
from attacks.pickles import SIX, SYSTEM, pickle
from attacks.registry import Fails, Opens, Refused, family
from attacks.streams import info, safetensors
from attacks.zips import Zip

header, offsets, dtype, twice = (
    Refused("StHeader"),
    Refused("StOffsets"),
    Refused("StDtype"),
    Refused("StDuplicateKey"),
)
W = info("F32", [2, 3], 0, 24)
SAFE = ".safetensors"


def st(given: bytes | dict, data: bytes = SIX, *, length: int | None = None) -> Callable[[], bytes]:
    return lambda: safetensors(given, data, length=length)


def add(ident: str, what: str, builds, load, *finds: str, **more) -> None:
    family(ident, what, builds, load, *finds, suffix=SAFE, **more)


add("S01", "fewer than eight bytes", {"7": b"\x10" + bytes(6), "1": b"\x10"}, Refused("UnknownFormat"))
add("S02", "an empty header", {"alone": bytes(8), "data": bytes(8) + SIX}, Refused("UnknownFormat"))
add("S02", "", {"braces": bytes(8) + b"{}"}, header)
add("S03", "a header of 2^63 bytes", st({"w": W}, length=1 << 63), header)
add("S04", "a header of more than 100,000,000 bytes", {
    "stated": st({"w": W}, length=100_000_001),
}, header)  # fmt: skip


def long_header() -> bytes:
    text = json.dumps({"w": W}).encode()
    return safetensors(text + b" " * (100_000_001 - len(text)), SIX)


add("S04", "", {"whole": long_header}, header)
add("S05", "a header past the end of the file", st({"w": W}, length=10_000), header)
add(
    "S06",
    "a header that is not UTF-8",
    st(b'{"\xff":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}}'),
    header,
)

ONE, OTHER = (
    '"w":{"dtype":"F32","shape":[6],"data_offsets":[0,24]}',
    '"w":{"dtype":"I32","shape":[6],"data_offsets":[0,24]}',
)
EMPTY = '"e":{"dtype":"F32","shape":[0],"data_offsets":[24,24]}'
double = st(f"{{{ONE},{OTHER}}}".encode())
add("S07", "a duplicate tensor name", double, twice)


def last(ckpt) -> None:
    assert ckpt["w"].dtype == "int32"


add("S07", "", {"compat": double}, Opens("keeps the last", last), "StDuplicateKey", options={"compat": True})
FIELD = st(b'{"w":{"dtype":"U8","dtype":"U8","shape":[0],"data_offsets":[0,0]}}', b"")
add("S07", "", {"field": FIELD}, twice)
add("S07", "", {"field_compat": FIELD}, twice, options={"compat": True})
add("S08", "a duplicate name of an empty tensor", st(f"{{{ONE},{EMPTY},{EMPTY}}}".encode()), twice)
meta = st(f'{{"__metadata__":{{"a":"1","a":"2"}},{ONE}}}'.encode())


def last_text(ckpt) -> None:
    assert ckpt.metadata["a"] == "2"


add("S09", "a duplicate key in the metadata", meta, twice)
SECTION = st(f'{{"__metadata__":{{"a":"1"}},"__metadata__":{{"a":"2"}},{ONE}}}'.encode())
add(
    "S09",
    "",
    {"section": SECTION},
    twice,
)
add("S09", "", {"section_compat": SECTION}, twice, options={"compat": True})
add(
    "S09",
    "",
    {"compat": meta},
    Opens("keeps the last", last_text),
    "StDuplicateKey",
    options={"compat": True},
)


def noted(ckpt) -> None:
    assert any("author" in note for note in ckpt.notes), ckpt.notes


add("S10", "an unknown field of a tensor", st({"w": {**W, "author": "me"}}), Opens("opens, noted", noted))
GOOD = json.dumps({"w": W}).encode()
add("S11", "a header that does not start with `{`, or is padded with other than spaces", {
    "space": st(b" " + GOOD), "bom": st(b"\xef\xbb\xbf" + GOOD), "nul": st(GOOD + b"\0\0"), "newline": st(GOOD + b"\n"),
    "newline_space": st(GOOD + b"\n "), "two": st(GOOD + b" {}"), "comma": st(GOOD + b","), "open": st(GOOD[:-1]), "key": st(b'{"a":'),
}, header)  # fmt: skip
add("S11", "", {"spaces_after": st(GOOD + b"   ")}, holds("w", format="safetensors"))


def span(begin, end, size: int = 24) -> Callable[[], bytes]:
    return st(
        {
            "w": info(
                "U8", [end - begin if isinstance(end, int) and isinstance(begin, int) else size], begin, end
            )
        }
    )


add(
    "S12a",
    "tensors that share bytes",
    {"": st({"a": info("U8", [16], 0, 16), "b": info("U8", [16], 8, 24)}), "same": st({"a": W, "b": W})},
    offsets,
)
add(
    "S12a",
    "",
    {"in_another_order": st({"a": info("U8", [8], 16, 24), "b": info("U8", [16], 0, 16)})},
    Opens(),
)
add("S12b", "bytes between tensors that belong to none", {
    "between": st({"a": info("U8", [8], 0, 8), "b": info("U8", [8], 16, 24)}), "before": span(8, 24),
}, offsets)  # fmt: skip
add("S12c", "bytes after the last tensor", {"": span(0, 8), "no_tensor": st({}, b"x")}, offsets)
add("S12d", "a truncated file", st({"w": W}, SIX[:-1]), offsets)
add("S12e", "an end offset before its start offset", st({"w": info("U8", [0], 24, 0)}), offsets)
RAW = '{{"w":{{"dtype":"U8","shape":[24],"data_offsets":[{},{}]}}}}'


def written(begin: str, end: str) -> Callable[[], bytes]:
    return st(RAW.format(begin, end).encode())


add("S12f", "a negative offset", written("-1", "23"), offsets)
add("S12g", "a fractional offset", written("0.0", "24.0"), offsets)
add("S12g", "", {
    "one": st(RAW.replace(",{}]", "]").format(0).encode()), "three": st(RAW.replace("{}]", "24,{}]").format(0, 24).encode()),
    "of_fewer": st({"w": info("U8", [25], 0, 24)}),
}, offsets)  # fmt: skip
add("S12g", "", {"text": written("0", '"24"')}, header)
add("S13", "an impossible shape", {
    "fraction": st({"w": info("U8", [1.0], 0, 1)}, b"x"), "2_64": st({"w": info("U8", [1 << 64], 0, 0)}, b""),
    "overflow": st({"w": info("F32", [1 << 32, 1 << 32, 4], 0, 24)}), "negative": st({"w": info("F32", [-2, -3], 0, 24)}),
}, Refused("TensorShape"))  # fmt: skip
add(
    "S13",
    "",
    {"million_dims": lambda: safetensors({"w": info("U8", [1] * 1_000_000, 0, 1)}, b"x")},
    Refused("TensorShape"),
)
add("S13", "", {"empty": st({"w": info("U8", [0, 1 << 62], 0, 0)}, b"")}, holds("w", format="safetensors"))
add("S14", "an unknown dtype", {
    "unknown": st({"w": info("F99", [2, 3], 0, 24)}), "lower_case": st({"w": info("f32", [2, 3], 0, 24)}),
    "long": st({"w": info("float32", [2, 3], 0, 24)}), "empty": st({"w": info("", [2, 3], 0, 24)}),
}, dtype)  # fmt: skip
add("S14", "", {
    **{f"no_{key}": st({"w": {name: value for name, value in W.items() if name != key}}) for key in W},
    "number": st({"w": {**W, "dtype": 8}}), "null": st({"w": None}, b""), "list": st({"w": []}, b""),
}, header)  # fmt: skip


def of_pairs(ckpt) -> None:
    assert ckpt["w"].shape == (3, 3)


add("S15", "sub-byte elements that do not fill whole bytes", {
    "f4_odd_rows": st({"w": info("F4", [2, 3], 0, 3)}, b"xyz"), "f4_scalar": st({"w": info("F4", [], 0, 1)}, b"x"),
    "f4": st({"w": info("F4", [3], 0, 2)}, b"xy"), "f6": st({"w": info("F6_E2M3", [1], 0, 1)}, b"x"),
}, dtype)  # fmt: skip
DEEP = 100_000
add(
    "S15",
    "",
    {"f4_pairs": st({"w": info("F4", [3, 6], 0, 9)}, bytes(9))},
    Opens("opens, two to a byte", of_pairs),
)
add("S16", "JSON of 100,000 levels", {
    "metadata": st(b'{"__metadata__":' + b"[" * DEEP), "names": st(b'{"a":' * DEEP),
    "shape": st(b'{"w":{"dtype":"F32","shape":' + b"[" * DEEP + b"]" * DEEP + b',"data_offsets":[0,24]}}'),
    "unknown_field": st(b'{"w":{"dtype":"F32","shape":[6],"data_offsets":[0,24],"x":' + b'{"a":' * DEEP + b"1" + b"}" * DEEP + b"}}"),
}, header)  # fmt: skip


def many(count: int) -> bytes:
    entries = b",".join(
        b'"%d":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}' % number for number in range(count)
    )
    return safetensors(b"{" + entries + b"}")


# A header of 100,000,000 bytes, the most that is allowed, has fewer than four million names, so the limit is lowered.
add(
    "S17",
    "more tensors than the limit",
    {"lowered": lambda: many(1001)},
    Refused("Limit", "tensors"),
    options={"limits": {"tensors": 1000}},
)
add("S17", "", {"half_a_million": lambda: many(500_000)}, Opens("opens"), tensors=500_000)
add("S18", "a lone surrogate", {
    "name": st(b'{"\\ud800":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}}'),
    "metadata": st(f'{{"__metadata__":{{"a":"\\udfff"}},{ONE}}}'.encode()),
}, header)  # fmt: skip


def odd(ckpt) -> None:
    assert len(ckpt) == 1
    repr(ckpt)


add("S19", "an odd name", {
    "nul": st({"a\0b": W}), "empty": st({"": W}), "parent": st({"../../etc/passwd": W}), "escape": st({"\x1b[31mred": W}),
}, Opens("opens", odd), "OddName")  # fmt: skip
add("S20", "metadata that is not a string", {
    "int": st(f'{{"__metadata__":{{"a":5}},{ONE}}}'.encode()), "null": st(f'{{"__metadata__":{{"a":null}},{ONE}}}'.encode()),
    "list": st(f'{{"__metadata__":[],{ONE}}}'.encode()), "dict": st(f'{{"__metadata__":{{"a":{{}}}},{ONE}}}'.encode()),
    "bool": st(f'{{"__metadata__":{{"a":true}},{ONE}}}'.encode()),
}, header)  # fmt: skip
add("S21", "another file appended", {
    "zip": lambda: safetensors({"w": W}, SIX) + Zip().bytes(), "pickle": lambda: safetensors({"w": W}, SIX) + pickle(SYSTEM),
}, offsets, "Polyglot")  # fmt: skip


def same_length_names(ckpt) -> None:
    assert len(ckpt) == 200_000


def flood() -> bytes:
    """Names of equal length that differ only in their last characters."""
    entries = b",".join(
        b'"%s%06d":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}' % (b"a" * 20, n) for n in range(200_000)
    )
    return safetensors(b"{" + entries + b"}")


add(
    "S22",
    "200,000 names with colliding hashes",
    flood,
    Opens("opens in linear time", same_length_names),
    tensors=200_000,
)
add("S23", "an offset that is not a canonical integer", {"exponent": written("0", "24e0"), "minus_zero": written("-0", "24"), "plus": written("+0", "24")},
    {"exponent": offsets, "minus_zero": offsets, "plus": header})  # fmt: skip
add("S24", "an offset of 2^64", {
    "": written("0", "18446744073709551616"), "less_one": written("0", "18446744073709551615"),
}, offsets)  # fmt: skip


def recorded(record: str) -> bytes:
    """A file with this record of containers and values in the metadata."""
    return safetensors({"__metadata__": {"rustload.nesting": record}, "w": W}, SIX)


def nested(record: str) -> Callable[[], bytes]:
    return lambda: recorded(record)


def of(value: str) -> Callable[[], bytes]:
    """A record that has a value beside the tensor."""
    return nested(f'{{"$list":["w",{value}]}}')


add("S25", "a record of containers that is nested deeply, or long", {
    "lists": of('{"$list":[' * 200 + "]}" * 200), "arrays": of("[" * 100_000 + "]" * 100_000),
    "open": lambda: recorded('{"$list":[' * 1_000_000), "quotes": lambda: recorded('"' + '\\"' * 4_000_000),
    "long": lambda: recorded(" " * (32 << 20) + '"w"'),
}, Fails("Nesting", lambda ckpt: ckpt.objects, "its objects"))  # fmt: skip
add("S26", "a record with a value that is not written so", {
    "tag": of('{"$global":"os.system"}'), "class": of('{"__reduce__":["os.system",["id"]]}'), "two_tags": of('{"$list":[],"$dict":[]}'),
    "no_tag": of("{}"), "twice": of('{"$list":[],"$list":[]}'), "array": of("[]"), "nan": of("NaN"), "infinite": of("1e999"),
    "digits": of("1" * 5000), "hex_digits": of('{"$int":"1_0"}'), "small": of('{"$int":"0x1"}'), "finite": of('{"$float":"1.5"}'),
    "bits": of('{"$float":"0x7ff8"}'), "base64": of('{"$bytes":"!"}'), "text": of('{"$str":["x"]}'), "key": of('{"$dict":[[["a"],1]]}'),
    "list_key": of('{"$dict":[[{"$list":[]},1]]}'), "keys": of('{"$dict":[["a",1],["a",2]]}'), "equal_keys": of('{"$dict":[[1,1],[true,2]]}'),
    "pair": of('{"$dict":[["a"]]}'), "parts": of('{"$complex":["1.0"]}'), "empty": nested(""), "cut": nested('{"$list":["w"'),
    "more": nested('"w" "w"'),
}, Fails("Nesting", lambda ckpt: ckpt.objects, "its objects"))  # fmt: skip
add("S27", "a record that does not fit the tensors", {
    "absent": of('"v"'), "hidden": nested('{"$list":[]}'), "metadata": of('"rustload.nesting"'),
}, Fails("Nesting", lambda ckpt: ckpt.objects, "its objects"))  # fmt: skip
