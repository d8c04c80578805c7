"""A pickle assembler: each function returns the opcodes of one value; values are concatenated with `+`."""

import functools
import struct

CANARY = 'touch "${RUSTLOAD_CANARY:-/dev}/null"'
"""A command that creates a file `null` in the canary folder; without that folder it has no effect."""

SIX = struct.pack("<6f", *range(6))
"""The bytes of storage 0 of most files here: six floats."""

NONE, TRUE, FALSE, MARK, STOP, POP, DUP, REDUCE, BUILD = (
    b"N",
    b"\x88",
    b"\x89",
    b"(",
    b".",
    b"0",
    b"2",
    b"R",
    b"b",
)


def proto(number: int) -> bytes:
    return b"\x80" + bytes([number])


def pickle(*body: bytes, protocol: int = 2) -> bytes:
    """A whole pickle."""
    return proto(protocol) + b"".join(body) + STOP


def framed(*body: bytes, length: int | None = None, protocol: int = 4) -> bytes:
    """A pickle in one frame, whose length may be wrong."""
    inside = b"".join(body) + STOP
    return proto(protocol) + frame(len(inside) if length is None else length) + inside


def frame(length: int) -> bytes:
    return b"\x95" + struct.pack("<Q", length)


def text(value: str) -> bytes:
    data = value.encode("utf-8", "surrogatepass")
    return b"X" + struct.pack("<I", len(data)) + data


def short(value: str) -> bytes:
    """SHORT_BINUNICODE, of protocol 4."""
    data = value.encode()
    return b"\x8c" + bytes([len(data)]) + data


def binary(value: bytes) -> bytes:
    """BINBYTES, of protocol 3."""
    return b"B" + struct.pack("<I", len(value)) + value


@functools.lru_cache
def integer(value: int) -> bytes:
    if 0 <= value < 256:
        return b"K" + bytes([value])
    if 0 <= value < 1 << 16:
        return b"M" + struct.pack("<H", value)
    if -(1 << 31) <= value < 1 << 31:
        return b"J" + struct.pack("<i", value)
    data = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a" + bytes([len(data)]) + data


def number(value: float) -> bytes:
    return b"G" + struct.pack(">d", value)


def boolean(value: bool) -> bytes:
    return TRUE if value else FALSE


def put(index: int) -> bytes:
    return b"q" + bytes([index]) if index < 256 else b"r" + struct.pack("<I", index)


def get(index: int) -> bytes:
    return b"h" + bytes([index]) if index < 256 else b"j" + struct.pack("<I", index)


def many(*items: bytes) -> bytes:
    """A tuple."""
    return MARK + b"".join(items) + b"t"


def ints(*values: int) -> bytes:
    return many(*map(integer, values))


def listed(*items: bytes) -> bytes:
    return b"](" + b"".join(items) + b"e" if items else b"]"


def mapped(*pairs: tuple[bytes, bytes]) -> bytes:
    return b"}(" + b"".join(key + value for key, value in pairs) + b"u" if pairs else b"}"


def named(items: dict[str, bytes]) -> bytes:
    """A dict with text keys."""
    return mapped(*((text(key), value) for key, value in items.items()))


def name(dotted: str) -> bytes:
    """GLOBAL, of `module.name`."""
    module, _, attribute = dotted.rpartition(".")
    return f"c{module}\n{attribute}\n".encode()


def stack_name(module: bytes, attribute: bytes) -> bytes:
    return module + attribute + b"\x93"


def call(dotted: str, *args: bytes) -> bytes:
    return name(dotted) + many(*args) + REDUCE


def made(dotted: str, *args: bytes, state: bytes | None = None) -> bytes:
    """NEWOBJ, and BUILD if there is a state."""
    return name(dotted) + many(*args) + b"\x81" + (b"" if state is None else state + BUILD)


def ordered(*pairs: tuple[bytes, bytes]) -> bytes:
    items = MARK + b"".join(key + value for key, value in pairs) + b"u" if pairs else b""
    return name("collections.OrderedDict") + b")R" + items


SYSTEM = call("posix.system", text(CANARY))
"""A call of `os.system` (defined in `posix`) with the canary command."""


# The pickles of torch.save.


def persistent(*items: bytes) -> bytes:
    return many(*items) + b"Q"


def storage(
    kind: str = "torch.FloatStorage", key: bytes | str = "0", numel: bytes | int = 6, at: str = "cpu"
) -> bytes:
    key = text(key) if isinstance(key, str) else key
    numel = integer(numel) if isinstance(numel, int) else numel
    return persistent(text("storage"), name(kind), key, text(at), numel)


def legacy_storage(
    kind: str = "torch.FloatStorage", key: str = "0", numel: int = 6, at: str = "cpu", view: bytes = NONE
) -> bytes:
    return persistent(text("storage"), name(kind), text(key), text(at), integer(numel), view)


def tensor(
    size: tuple[int, ...] | bytes = (2, 3),
    stride: tuple[int, ...] | bytes | None = None,
    offset: int | bytes = 0,
    *,
    on: bytes | None = None,
    metadata: bytes = b"",
    grad: bytes = FALSE,
) -> bytes:
    """`_rebuild_tensor_v2` with the strides of a contiguous tensor unless others are given."""
    if stride is None:
        assert isinstance(size, tuple)
        stride = contiguous(size)
    return call(
        "torch._utils._rebuild_tensor_v2",
        storage() if on is None else on,
        integer(offset) if isinstance(offset, int) else offset,
        ints(*size) if isinstance(size, tuple) else size,
        ints(*stride) if isinstance(stride, tuple) else stride,
        grad,
        ordered(),
        metadata,
    )


def tensor_v3(
    dtype: str, size: tuple[int, ...], nbytes: int, offset: int = 0, metadata: bytes = b""
) -> bytes:
    on = storage("torch.storage.UntypedStorage", numel=nbytes)
    return call(
        "torch._utils._rebuild_tensor_v3", on, integer(offset), ints(*size), ints(*contiguous(size)), FALSE, ordered(),
        name(f"torch.{dtype}"), metadata,
    )  # fmt: skip


def contiguous(size: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [], 1
    for length in reversed(size):
        strides.append(step)
        step *= length
    return tuple(reversed(strides))


def ndarray(dtype: bytes, shape: tuple[int, ...], data: bytes, *, fortran: bytes = FALSE) -> bytes:
    """An array as `ndarray.__reduce__` pickles it."""
    return array(dtype, shape, latin1(data), fortran=fortran)


def array(dtype: bytes, shape: tuple[int, ...], elements: bytes, *, fortran: bytes = FALSE) -> bytes:
    """The same, of any value for the elements: of objects, a list."""
    state = many(integer(1), ints(*shape), dtype, fortran, elements)
    return (
        call("numpy._core.multiarray._reconstruct", name("numpy.ndarray"), ints(0), latin1(b"b"))
        + state
        + BUILD
    )


def numpy_dtype(code: str, *, order: str = "<", state: bytes | None = None) -> bytes:
    rest = many(integer(3), text(order), NONE, NONE, NONE, integer(-1), integer(-1), integer(0))
    return call("numpy.dtype", text(code), FALSE, TRUE) + (state or rest) + BUILD


OBJECT_STATE = many(integer(3), text("|"), NONE, NONE, NONE, integer(-1), integer(-1), integer(63))
"""The state of a dtype of objects."""
OBJECT = numpy_dtype("O8", state=OBJECT_STATE)


def latin1(data: bytes) -> bytes:
    """Bytes as protocol 2 pickles them."""
    return call("_codecs.encode", text(data.decode("latin1")), text("latin1"))
