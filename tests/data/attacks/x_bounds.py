"""X90 to X119: small files whose contents are repeated, expanded or inflated to more than a reader has room for."""

import os
import struct
from collections.abc import Callable
from pathlib import Path

from attacks.a_files import holds
from attacks.pickles import (
    FALSE,
    REDUCE,
    SIX,
    TRUE,
    call,
    get,
    integer,
    ints,
    listed,
    many,
    name,
    named,
    ordered,
    pickle,
    put,
    short,
    storage,
    tensor,
    text,
)
from attacks.registry import Fails, Opens, Refused, family, shown
from attacks.zips import Zip, around

LONG = 4000
"""Bytes of a name, within the limit `line`."""


def name_parts(count: int) -> bytes:
    """Texts in the memo: `count` of them at 0, to be used as modules, and as many after them, to be used as names."""
    out = []
    for number in range(2 * count):
        kind = "m" if number < count else "n"
        out.append(text(f"{kind}{number:03}".ljust(LONG, kind)) + put(number) + b"0")
    return b"".join(out)


def names(count: int) -> bytes:
    """Every pair of `count` modules and `count` names, in a list."""
    pairs = (get(one) + get(count + two) + b"\x93" for one in range(count) for two in range(count))
    return name_parts(count) + listed(*pairs)


def calls(count: int, times: int) -> bytes:
    """Calls of every pair, `times` each."""
    called = get(0) + get(count) + b"\x93" + put(1000) + b"0"
    return name_parts(count) + called + listed(*([get(1000) + b")" + REDUCE] * times))


def keyed(count: int) -> bytes:
    """Calls with a long text as argument."""
    return text("k" * LONG) + put(0) + b"0" + short("m") + short("f") + b"\x93" + put(1) + b"0" + listed(
        *([get(1) + get(0) + b"\x85" + REDUCE] * count)
    )  # fmt: skip


def deflated(data: bytes) -> bytes:
    return Zip(data).spoil("data.pkl", method=8).bytes()


family("X90", "names of 4,000 bytes, repeated from the memo", {
    "names": lambda: around(names(100), protocol=4),
    "deflated": lambda: deflated(pickle(names(100), protocol=4)),
}, Opens("opens; kept as names"), "Import", metadata=900_000)  # fmt: skip
family("X91", "calls of long names, repeated from the memo", {
    "calls": lambda: around(calls(1, 200_000), protocol=4),
    "arguments": lambda: around(keyed(200_000), protocol=4),
}, Opens("opens; kept as data"), "DisallowedGlobal")  # fmt: skip


def long_member() -> bytes:
    return Zip().add("n" * 65_000 + ".pkl", pickle(calls(1, 20_000), protocol=4)).bytes()


family(
    "X92",
    "a member with a name of 65,000 bytes and many calls",
    long_member,
    Refused("ZipName"),
    "ZipName",
    "DisallowedGlobal",
)


def repository(folder: Path, main: Callable[[Path], None]) -> Path:
    """A folder of the Hugging Face cache with one snapshot; `main` creates `refs/main`."""
    whole = folder / "models--org--tiny"
    if not whole.exists():
        (whole / "refs").mkdir(parents=True)
        (whole / "snapshots" / "0123").mkdir(parents=True)
        (whole / "snapshots" / "0123" / "pytorch_model.bin").write_bytes(Zip().bytes())
        outside = folder / "outside"
        outside.mkdir()
        (outside / "pytorch_model.bin").write_bytes(around(named({"outside": tensor()})))
        main(whole / "refs" / "main")
    return whole


def link(path: Path) -> None:
    (path.parent / "elsewhere").write_text("0123")
    path.symlink_to("elsewhere")


family("X93", "a `refs/main` of a Hugging Face cache folder that names no snapshot", {
    kind: (lambda folder, main=main: repository(folder, main)) for kind, main in {
        "pipe": os.mkfifo,
        "outside": lambda path: path.write_text("../../outside"),
        "absolute": lambda path: path.write_text(str(path.parents[2] / "outside")),
        "dots": lambda path: path.write_text(".."),
        "long": lambda path: path.write_text("0123" + " " * 100),
        "link": link,
        "folder": lambda path: path.mkdir(),
    }.items()
}, holds("w"), "", placed=True)  # fmt: skip


def nuls(member: str) -> Callable[[], bytes]:
    """An archive of 250 KB, one member of which inflates to 250 MB of NULs."""
    return lambda: Zip().drop(member).add(member, bytes(250_000_000), method=8).bytes()


ratio = Refused("InflateRatio", "inflate_ratio")
family("X94", "metadata that inflates to a thousand times its size", {"data_pkl": nuls("data.pkl")}, ratio)
family("X94", "", {"version": nuls("version")}, Refused("ZipVersion"), "ZipVersion")


def flood() -> bytes:
    """A version record that begins like a pickle and inflates to a list of 250 million values."""
    return Zip().drop("version").add("version", b"\x80\2(" + b"N" * 250_000_000, method=8).bytes()


family("X94", "", {"flood": flood}, Refused("ZipVersion"), "ZipVersion", "InflateRatio", metadata=17_000_000)


def compressible() -> bytes:
    """A pickle of 20 MB that deflates to a fiftieth."""
    return deflated(pickle(listed(*(text("x" * 300 + str(number)) for number in range(65_000)))))


family("X94", "", {"honest": compressible}, Opens("opens as torch-zip"), metadata=21_000_000)


LONGS = bytes(24)
"""The bytes of storage 0 of the files below: three integers of 64 bits, or six of 32, all of them 0."""


def longs(size: tuple[int, ...], stride: tuple[int, ...], kind: str = "Long") -> bytes:
    return tensor(size, stride, on=storage(f"torch.{kind}Storage", "0", len(LONGS) // ITEMSIZE[kind]))


ITEMSIZE = {"Long": 8, "Int": 4, "Char": 1}


def sparse(layout: str, *parts: bytes) -> bytes:
    """A sparse tensor, as `torch._utils._rebuild_sparse_tensor` makes it."""
    kind = call("torch.serialization._get_layout", text(f"torch.sparse_{layout}"))
    return call("torch._utils._rebuild_sparse_tensor", kind, many(*parts))


def coo(count: int, *coalesced: bytes, kind: str = "Long", width: int = 4) -> bytes:
    """A vector with the index 0 `count` times."""
    values = tensor((count,), (0,), on=storage(key="1"))
    return sparse("coo", longs((1, count), (0, 0), kind), values, ints(width), *coalesced)


def csr_batch(count: int) -> bytes:
    """A batch of empty matrices."""
    crow, column = longs((count, 2), (0, 1)), longs((count, 0), (0, 1))
    values = tensor((count, 0), (0, 1), on=storage(key="1"))
    return sparse("csr", crow, column, values, ints(count, 1, 1))


def on_longs(**values: bytes) -> bytes:
    return around(named(values), storages={"0": LONGS, "1": SIX})


def checked(ckpt) -> None:
    """Checks every sparse tensor."""
    for value in ckpt.objects.values():
        value.check()


def expanded(ask: Callable, what: str) -> Fails:
    return Fails("Limit", ask, what, "materialize_bytes")


EXPANDED_SPARSE = {
    "coo": lambda: on_longs(w=coo(1 << 50)),
    "coalesced": lambda: on_longs(w=coo(1 << 33, TRUE)),
    "csr": lambda: on_longs(w=sparse(
        "csr", longs((1 << 40,), (0,)), longs((0,), (1,)), tensor((0,), (1,), on=storage(key="1")), ints((1 << 40) - 1, 1)
    )),
    "batch": lambda: on_longs(w=csr_batch(1 << 40)),
}  # fmt: skip
"""Each of them alone is beyond the limit."""
MANY_SPARSE = {
    "many": lambda: on_longs(**{f"w{number}": coo((1 << 25) + number, kind="Int") for number in range(64)}),
}
"""Each of them is within the limit, and torch would copy the indices of each."""

family(
    "X95",
    "a sparse tensor whose few indices count as many",
    EXPANDED_SPARSE,
    expanded(checked, "checking"),
    "",
)
family("X95", "", MANY_SPARSE, Opens("opens"))


def quantized(count: int, *, scales: bytes | None = None) -> bytes:
    """A vector of one integer, repeated, with one scale per repetition."""
    one = tensor((count,), (0,), on=storage("torch.DoubleStorage", "2", 1))
    params = many(name("torch.per_channel_affine"), scales or one, longs((count,), (0,)), integer(0))
    on = storage("torch.QInt8Storage", "3", 1)
    return call(
        "torch._utils._rebuild_qtensor", on, integer(0), ints(count), ints(0), params, FALSE, ordered(),
    )  # fmt: skip


def with_scales(**values: bytes) -> bytes:
    return around(named(values), storages={"0": LONGS, "2": struct.pack("<d", 0.5), "3": b"\1"})


def dequantized(ckpt) -> None:
    for value in ckpt.values():
        value.materialize(dequantize=True, copy=True, framework="dlpack")


EXPANDED_SCALES = {
    "scales": lambda: with_scales(w=quantized(1 << 40)),
    "few": lambda: with_scales(w=quantized(1 << 28)),
}
family(
    "X96",
    "a quantized tensor whose only scale counts as many",
    EXPANDED_SCALES,
    expanded(dequantized, "dequantizing"),
)

shown(
    "X124",
    "many tensors whose elements repeat, or that view the same bytes, copied by one call",
    "`Limit` (`materialize_bytes`)",
    "tests/python/test_expanded.py::test_x124_results_that_are_kept_together_are_limited_in_total",
)
