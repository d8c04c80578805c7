"""T: tensors that do not fit their storages, and storages that do not fit their bytes."""

import math
import struct
from collections.abc import Callable

from attacks.pickles import (
    FALSE,
    NONE,
    SIX,
    TRUE,
    call,
    integer,
    ints,
    latin1,
    listed,
    many,
    name,
    named,
    ndarray,
    number,
    numpy_dtype,
    ordered,
    pickle,
    storage,
    tensor,
    tensor_v3,
    text,
)
from attacks.registry import Fails, Opens, Refused, family
from attacks.streams import info, safetensors
from attacks.z_zip import read
from attacks.zips import Zip, around

bounds, outside, shape = Refused("StorageBounds"), Refused("TensorBounds"), Refused("TensorShape")
wrong_type, conflict = Refused("PickleType"), Refused("StorageConflict")
MAX = (1 << 63) - 1


def w(body: bytes, storages: dict[str, bytes] | None = None) -> Callable[[], bytes]:
    """An archive of a dict with `w`."""
    return lambda: around(named({"w": body}), storages=storages)


def states(numel: bytes | int) -> Callable[[], bytes]:
    """A tensor of one element on a storage of this stated size."""
    return w(tensor((1,), on=storage(numel=numel)))


family("T01", "a storage stated larger than its record", states(7), bounds)
family("T02", "a storage stated smaller than its record", states(5), bounds)
family("T03", "a storage of a negative size", states(-1), bounds)
family("T04", "a storage stated empty", states(0), bounds)
family(
    "T05",
    "a size whose product overflows",
    {"2_62": states((1 << 62) + 6), "max": states(MAX), "min": states(-MAX - 1)},
    bounds,
)
family("T06", "a size that is not an int", {
    "float": states(number(6.0)), "bool": states(TRUE), "big": states(b"\x8a\x09" + b"\1" * 9), "none": states(NONE), "text": states(text("6")),
}, wrong_type)  # fmt: skip


def part(size: tuple[int, ...], stride: tuple[int, ...], offset: int = 0) -> Callable[[], bytes]:
    return w(tensor(size, stride, offset))


family(
    "T07",
    "sizes and strides that reach past the end",
    {"size": part((7,), (1,)), "stride": part((2, 3), (4, 1))},
    outside,
)
family("T08", "an offset past the end", {
    "by_one": part((6,), (1,), 1), "all": part((1,), (1,), 6), "scalar": part((), (), 6), "huge": part((1,), (1,), MAX),
}, outside)  # fmt: skip
family("T09", "a negative offset", {"one": part((1,), (1,), -1), "min": part((1,), (1,), -MAX - 1)}, outside)
family("T10", "a negative stride", part((2,), (-1,), 1), outside)
family("T11", "a negative size", {"one": part((-1,), (1,)), "two": part((-2, -3), (3, 1))}, shape)
family("T12", "a product of sizes that overflows", {"sizes": part((1 << 40, 1 << 40), (0, 0))}, shape)
family("T12", "", {"strides": part((3, 3), (MAX, MAX)), "offset": part((2,), (MAX,), MAX)}, outside)


def empty(ckpt) -> None:
    assert ckpt["w"].materialize(framework="dlpack").tobytes() == b""


family("T13", "no elements, and a huge dimension", part((0, MAX), (1, 1), 3), Opens("opens, empty", empty))
family("T13", "", {"no_record": w(tensor((0, 3), on=storage(numel=0)), {})}, Opens("opens, empty", empty))
family(
    "T14",
    "different numbers of strides and sizes",
    {"fewer": part((2, 3), (1,)), "more": part((6,), (1, 1))},
    shape,
)
family("T15", "many dimensions", {
    "65": part((1,) * 65, (1,) * 65), "million": part((1,) * 1_000_000, (1,) * 1_000_000),
}, Refused("Limit", "rank"))  # fmt: skip
family("T15", "", {"64": part((1,) * 64, (1,) * 64)}, Opens())
family(
    "T16",
    "a tensor that repeats one element 2^62 times",
    part((1 << 62,), (0,), 5),
    Fails("Limit", read, "reading", "materialize_bytes"),
)


def sliding(ckpt) -> None:
    found = struct.unpack("<12f", ckpt["w"].materialize(copy=True, framework="dlpack").tobytes())
    assert found == (0, 1, 2, 1, 2, 3, 2, 3, 4, 3, 4, 5)


family(
    "T17",
    "elements that overlap",
    {"sliding": part((4, 3), (1, 1))},
    Opens("reads", sliding),
    verdict="inert",
)


def huge_overlap() -> bytes:
    """A 2 GB tensor of overlapping windows over 1 MB."""
    numel = (1 << 18) + 2047
    return around(
        named({"w": tensor((1 << 18, 2048), (1, 1), on=storage(numel=numel))}),
        storages={"0": bytes(4 * numel)},
    )


family("T17", "", {"huge": huge_overlap}, Opens("opens"), "OverlappingView")
family("T18", "a size that is a bool or a float", {
    "bool": w(tensor(many(TRUE), (1,))), "float": w(tensor(many(number(1.0)), (1,))), "stride": w(tensor((1,), many(TRUE))),
    "offset": w(tensor((1,), (1,), TRUE)), "none": w(tensor(NONE, (1,))), "big": w(tensor(many(b"\x8a\x09" + b"\1" * 9), (1,))),
}, wrong_type)  # fmt: skip
family("T18", "", {"minus_one_of_9_bytes": w(tensor(many(b"\x8a\x09" + b"\xff" * 9), (1,)))}, shape)
family(
    "T19",
    "sizes in a list",
    {"size": w(tensor(listed(integer(6)), (1,))), "stride": w(tensor((6,), listed(integer(1))))},
    wrong_type,
)


def two(one: bytes, other: bytes) -> Callable[[], bytes]:
    return lambda: around(listed(one, other), storages={"0": SIX})


ints6 = tensor((6,), on=storage("torch.IntStorage"))
family("T20", "one storage with two dtypes", {
    "float_int": two(tensor((6,)), ints6), "float_double": two(tensor((6,)), tensor((3,), on=storage("torch.DoubleStorage", numel=3))),
    "float_byte": two(tensor((6,)), tensor((24,), on=storage("torch.ByteStorage", numel=24))),
    "float_float8": two(tensor((6,)), tensor_v3("float8_e5m2", (24,), 24)),
}, conflict)  # fmt: skip
family("T20", "", {"untyped_byte": two(
    tensor_v3("uint16", (12,), 24), tensor((24,), on=storage("torch.ByteStorage", numel=24)),
)}, Opens("opens: untyped bytes are bytes"))  # fmt: skip
family("T20", "", {"empty": lambda: around(
    listed(tensor((0,), on=storage(numel=0)), tensor((0,), on=storage("torch.IntStorage", numel=0))), storages={"0": b""},
)}, Opens("opens: no data to disagree on"))  # fmt: skip
family("T21", "one storage with two sizes", two(tensor((6,)), tensor((1,), on=storage(numel=5))), conflict)


def noted(ckpt) -> None:
    assert any("two devices" in note for note in ckpt.notes), ckpt.notes


family(
    "T22",
    "one storage with two locations",
    two(tensor((6,)), tensor((6,), on=storage(at="cuda:0"))),
    Opens("opens, noted", noted),
)
family(
    "T22",
    "",
    {"class_of_cuda": w(tensor(on=storage("torch.cuda.FloatStorage", at="cuda:0")))},
    Opens("opens"),
)


def untyped(nbytes: int, offset: int) -> Callable[[], bytes]:
    return lambda: around(
        named({"w": tensor_v3("float32", (1,), nbytes, offset)}), storages={"0": bytes(nbytes)}
    )


family("T23", "a number of bytes that is not a multiple of the element size", untyped(10, 0), bounds)
family("T23", "", {"offset_past": untyped(8, 2)}, outside)
family("T23", "", {"offset_in_elements": untyped(8, 1)}, Opens())


def packed_as(dtype: str):
    def check(ckpt) -> None:
        [lazy] = ckpt.values()
        raw = lazy.materialize(copy=True, framework="dlpack").tobytes()
        assert raw == bytes(range(4))
        assert dtype in lazy.dtype or lazy.dtype == "uint8"

    return Opens("read as raw bytes", check)


for dtype in ("float4_e2m1fn_x2", "bits8"):
    family("T24", "packed sub-byte elements", {
        dtype: lambda dtype=dtype: around(named({"w": tensor_v3(dtype, (4,), 4)}), storages={"0": bytes(range(4))}),
    }, packed_as(dtype))  # fmt: skip
family("T24", "", {"quint4x2": lambda: around(named({"w": tensor((4,), on=storage("torch.QUInt4x2Storage", numel=4))}), storages={"0": bytes(range(4))})},
       Refused("PickleType"))  # fmt: skip


def all_true(ckpt) -> None:
    assert ckpt["w"].materialize(framework="dlpack").tobytes() == b"\0\1\1\1"


family("T25", "bools that are neither 0 nor 1", lambda: around(
    named({"w": tensor((4,), on=storage("torch.BoolStorage", numel=4))}), storages={"0": b"\0\1\2\xff"},
), Opens("every byte but 0 is true", all_true))  # fmt: skip


def misaligned() -> bytes:
    """An archive whose storage is at an odd offset."""
    archive = Zip()
    for odd in range(4):
        archive = Zip().spoil("data/0", local={"extra": struct.pack("<HH", 0x4246, odd) + bytes(odd)})
        if archive.bytes().index(SIX) % 4 == 1:
            return archive.bytes()
    raise AssertionError


def is_six(ckpt) -> None:
    assert ckpt["w"].materialize(framework="dlpack").tobytes() == SIX


family("T26", "a storage at an odd offset", misaligned, Opens("copied", is_six))


def halves(ckpt) -> None:
    found = ckpt["w"].materialize(framework="dlpack").tobytes()
    assert found == struct.pack("<4f", 1, 2, 3, 4)


family("T27", "big-endian complex numbers", lambda: Zip(
    pickle(named({"w": tensor((2,), on=storage("torch.ComplexFloatStorage", numel=2))})),
    {"0": struct.pack(">4f", 1, 2, 3, 4)},
).spoil("byteorder", data=b"big").bytes(), Opens("each half swapped", halves))  # fmt: skip


def conjugated(ckpt) -> None:
    assert struct.unpack("<4f", ckpt["w"].materialize(framework="dlpack").tobytes()) == (1, -2, 3, -4)


def negated(ckpt) -> None:
    assert struct.unpack("<6f", ckpt["w"].materialize(framework="dlpack").tobytes()) == (
        0,
        -1,
        -2,
        -3,
        -4,
        -5,
    )


COMPLEX = storage("torch.ComplexFloatStorage", numel=2)
family("T28", "a conjugate or negative bit", {"conj": w(tensor((2,), on=COMPLEX, metadata=named({"conj": TRUE})), {"0": struct.pack("<4f", 1, 2, 3, 4)})},
       Opens("applied", conjugated))  # fmt: skip
family("T28", "", {"neg": w(tensor((6,), metadata=named({"neg": TRUE})))}, Opens("applied", negated))
family("T28", "", {"of_a_bool": w(tensor((24,), on=storage("torch.BoolStorage", numel=24), metadata=named({"neg": TRUE})))},
       Fails("DtypeUnsupported", read, "reading"))  # fmt: skip
family("T28", "", {"of_no_bools": w(tensor((0,), on=storage("torch.BoolStorage", numel=24), metadata=named({"neg": TRUE})))},
       Fails("DtypeUnsupported", read, "reading"))  # fmt: skip


def rebuilt(function: str, *more: bytes) -> Callable[[], bytes]:
    """A call of torch with these arguments after the tensor's place."""
    return w(call(f"torch._utils.{function}", storage(), integer(0), ints(6), ints(1), *more))


V2 = "_rebuild_tensor_v2"
family("T28", "", {
    "no_bool": w(tensor(metadata=named({"conj": integer(1)}))), "requires_grad": rebuilt(V2, integer(1), NONE), "fewer": rebuilt(V2, FALSE),
    "more": rebuilt(V2, FALSE, NONE, NONE, NONE), "more_of_the_first": rebuilt("_rebuild_tensor", NONE),
    "metadata": rebuilt(V2, FALSE, NONE, integer(3)),
}, wrong_type)  # fmt: skip
family(
    "T29",
    "an unknown key of a tensor's metadata",
    {"word": w(tensor(metadata=named({"quantum": TRUE})))},
    Refused("TensorMetadata"),
)


def quantized(scheme: str, *args: bytes) -> Callable[[], bytes]:
    """`_rebuild_qtensor` of six bytes in two rows."""
    quantizer = many(name(f"torch.{scheme}"), *args)
    on = storage("torch.QInt8Storage", numel=6)
    return w(
        call(
            "torch._utils._rebuild_qtensor",
            on,
            integer(0),
            ints(2, 3),
            ints(3, 1),
            quantizer,
            FALSE,
            ordered(),
        ),
        {"0": bytes(6), "1": bytes(16)},
    )


def floats(*values: float) -> bytes:
    return listed(*map(number, values))


family("T30", "a quantizer that does not fit its tensor", {
    "axis": quantized("per_channel_affine", floats(1, 1), listed(integer(0), integer(0)), integer(2)),
    "negative_axis": quantized("per_channel_affine", floats(1, 1), listed(integer(0), integer(0)), integer(-1)),
    "scales": quantized("per_channel_affine", floats(1), listed(integer(0), integer(0)), integer(0)),
    "nan": quantized("per_tensor_affine", number(float("nan")), integer(0)),
}, Refused("TensorBounds"))  # fmt: skip


def sparse(layout: str, *parts: bytes) -> bytes:
    return call(
        "torch._utils._rebuild_sparse_tensor",
        call("torch.serialization._get_layout", text(f"torch.{layout}")),
        many(*parts),
    )


def longs(key: str, *values: int) -> tuple[bytes, dict[str, bytes]]:
    return storage("torch.LongStorage", key, len(values)), {key: struct.pack(f"<{len(values)}q", *values)}


def coo(*index: int) -> Callable[[], bytes]:
    on, data = longs("1", *index)
    parts = tensor((1, len(index)), on=on), tensor((len(index),), on=storage(numel=6)), ints(4), TRUE
    return w(sparse("sparse_coo", *parts), data | {"0": SIX})


def csr(rows: tuple[int, ...], columns: tuple[int, ...]) -> Callable[[], bytes]:
    (crow, one), (col, two_) = longs("1", *rows), longs("2", *columns)
    parts = (
        tensor((len(rows),), on=crow),
        tensor((len(columns),), on=col),
        tensor((len(columns),)),
        ints(len(rows) - 1, 4),
    )
    return w(sparse("sparse_csr", *parts), one | two_ | {"0": SIX})


def checked(ckpt):
    return ckpt.objects["w"].check()


family("T31", "sparse indices outside the tensor, or in a wrong order", {
    "past": coo(0, 4), "negative": coo(0, -1), "crow": csr((0, 3, 2), (0, 1)), "crow_end": csr((0, 1, 5), (0, 1)), "column": csr((0, 1, 2), (0, 9)),
}, Fails("SparseInvariant", checked, "checking"))  # fmt: skip


def no_data(ckpt) -> None:
    assert ckpt.nbytes == 0
    [lazy] = ckpt.values()
    assert lazy.shape == (1 << 62,)


family("T32", "a meta tensor of 2^62 elements", w(
    call("torch._utils._rebuild_meta_tensor_no_storage", name("torch.float32"), ints(1 << 62), ints(1), FALSE),
), Opens("opens; no allocation", no_data))  # fmt: skip

F8 = numpy_dtype("f8")
array_bounds = Refused("NdarrayBounds")
family("T33", "an array whose number of bytes contradicts its shape", {
    "fewer": w(ndarray(F8, (2,), bytes(8))), "more": w(ndarray(F8, (2,), bytes(24))), "overflow": w(ndarray(F8, (MAX, 4), b"")),
}, array_bounds)  # fmt: skip
for key, code in {
    "object": "O8",
    "struct": "V16",
    "text": "U4",
    "datetime": "M8[ns]",
    "unknown": "q9",
}.items():
    family("T34", "an array of a non-numeric dtype", {key: w(ndarray(numpy_dtype(code, order="|"), (1,), bytes(16)))},
           Opens("kept as data"))  # fmt: skip


def fortran(ckpt) -> None:
    assert ckpt["w"].shape == (2, 3)
    assert ckpt["w"].strides == (1, 2)


family(
    "T35",
    "an array in Fortran order",
    w(ndarray(F8, (2, 3), bytes(48), fortran=TRUE)),
    Opens("opens, with its strides", fortran),
)
family("T36", "a NumPy scalar of a wrong length", {
    "short": w(call("numpy._core.multiarray.scalar", F8, latin1(bytes(4)))), "long": w(call("numpy._core.multiarray.scalar", F8, latin1(bytes(9)))),
}, array_bounds)  # fmt: skip


def dequantized(ckpt) -> None:
    ckpt["w"].materialize(framework="dlpack", dequantize=True)


def scales(shape: list[int], count: int) -> bytes:
    """An fp8 tensor of 300 x 200 in zeros, with scales of this shape."""
    infos = {
        "w": info("F8_E4M3", [300, 200], 0, 60_000),
        "w_scale_inv": info("F32", shape, 60_000, 60_000 + 4 * count),
    }
    return safetensors(infos, bytes(60_000 + 4 * count))


family("T37", "scales by block that are not those of the tensor's blocks", {
    "rows": scales([2, 2], 4), "columns": scales([3, 1], 3), "flat": scales([6], 6), "rank": scales([3, 2, 1], 6), "empty": scales([0, 2], 0),
}, Fails("TensorBounds", read, "reading"), "", options={"dequantize": True})  # fmt: skip


def codes(dtype: str, shape: list[int], **beside: str) -> bytes:
    """Codes of this dtype and shape in zeros, with other tensors of four elements."""
    infos, end = {"w": info(dtype, shape, 0, math.prod(shape))}, math.prod(shape)
    for scale, other in beside.items():
        size = 4 * {"F32": 4, "I64": 8}[other]
        infos[scale] = info(other, [2, 2], end, end + size)
        end += size
    return safetensors(infos, bytes(end))


family("T38", "codes of a quantization that is not known", {
    "fp8": codes("F8_E4M3", [256, 256]), "two": codes("F8_E4M3", [256, 256], w_scale="F32", w_scale_inv="F32"),
    "int8": codes("I8", [4, 4], w_scale="F32"), "integers": codes("F8_E4M3", [256, 256], w_scale_inv="I64"),
}, Fails("QuantUnknown", dequantized, "dequantizing"), "")  # fmt: skip
