"""X70 to X89: containers that change after a call has read them, and states that are set on what is made already."""

import struct
from collections.abc import Callable
from typing import Any

from attacks.pickles import (
    BUILD,
    FALSE,
    NONE,
    SIX,
    TRUE,
    call,
    get,
    integer,
    ints,
    latin1,
    listed,
    made,
    many,
    mapped,
    name,
    named,
    ndarray,
    number,
    numpy_dtype,
    ordered,
    pickle,
    put,
    storage,
    tensor,
    text,
)
from attacks.registry import Kept, Opens, Refused, family
from attacks.zips import around

changed, wrong_type = Refused("StateUnsupported"), Refused("PickleType")
opaque = "DisallowedCall"
PARAMETER = "torch.nn.parameter.Parameter"


def setting(target: int, *pairs: tuple[bytes, bytes]) -> bytes:
    """Fetches a dict and sets items of it."""
    return get(target) + b"(" + b"".join(key + value for key, value in pairs) + b"u"


def adding(target: int, *items: bytes) -> bytes:
    """Fetches a list and appends to it."""
    return get(target) + b"(" + b"".join(items) + b"e"


def w(*values: bytes, storages: dict[str, bytes] | None = None) -> Callable[[], bytes]:
    """An archive of a list of values; the later ones change containers of the earlier ones."""
    return lambda: around(listed(*values), storages=storages)


def plain(*values: bytes) -> bytes:
    """A bare pickle of a list of values."""
    return pickle(listed(*values))


def first(expected: Any) -> Opens:
    """The first value of the list is equal to this."""

    def check(ckpt: Any) -> None:
        found = ckpt.objects[0]
        assert found == expected, found
        assert type(found).__name__ != "Opaque"

    return Opens("opens: what the call read", check)


def elements(*expected: float, at: str = "0", code: str = "f") -> Opens:
    """The named tensor has these elements."""

    def check(ckpt: Any) -> None:
        data = ckpt[at].materialize(copy=True, framework="dlpack").tobytes()
        found = struct.unpack(f"<{len(data) // struct.calcsize(code)}{code}", data)
        assert found == expected, found

    return Opens("opens: the elements that the call read", check)


A, B = text("a"), text("b")
DICT = b"}" + put(0)
LIST = b"]" + put(0)

family(
    "X70",
    "a mapping is made of a container that changes later",
    {
        "ordered": w(
            call("collections.OrderedDict", DICT + A + integer(1) + b"s"), setting(0, (B, integer(2)))
        ),
        "overwritten": w(
            call("collections.OrderedDict", DICT + A + integer(1) + b"s"), setting(0, (A, integer(2)))
        ),
        "pairs": w(
            call("collections.OrderedDict", LIST + A + integer(1) + b"\x86a"),
            adding(0, B + integer(2) + b"\x86"),
        ),
        "dict": plain(call("builtins.dict", DICT + A + integer(1) + b"s"), setting(0, (B, integer(2)))),
        "counter": w(call("collections.Counter", DICT + A + integer(1) + b"s"), setting(0, (B, integer(2)))),
    },
    first({"a": 1}),
    "",
)
family(
    "X71",
    "the metadata of a tensor gain a flag after the call",
    w(
        tensor((3,), on=storage("torch.ComplexFloatStorage", numel=3), metadata=b"}" + put(0)),
        setting(0, (text("conj"), TRUE), (text("neg"), TRUE)),
        storages={"0": SIX},
    ),
    elements(*map(float, range(6))),
    "",
)
family(
    "X72",
    "a sequence is made of a container that grows later",
    {
        "size": w(call("torch.Size", LIST + integer(2) + b"a"), adding(0, integer(3))),
        "list": plain(call("builtins.list", LIST + integer(2) + b"a"), adding(0, integer(3))),
        "set": w(call("builtins.set", LIST + integer(2) + b"a"), adding(0, integer(3))),
        "deque": plain(call("collections.deque", LIST + integer(2) + b"a"), adding(0, integer(3))),
    },
    Opens("opens: what the call read", lambda ckpt: _are_items(ckpt.objects[0], [2])),
    "",
)
family(
    "X73",
    "a pair of a list of pairs grows later",
    w(call("collections.OrderedDict", listed(LIST + b"(" + A + integer(1) + b"e")), adding(0, integer(2))),
    Kept("collections.OrderedDict", opaque),
)
family(
    "X74",
    "a state dict's attributes change after BUILD",
    w(
        ordered() + put(1) + DICT + text("_metadata") + integer(1) + b"s" + BUILD,
        setting(0, (text("_metadata"), integer(2))),
    ),
    Opens("opens: the attributes at BUILD", lambda ckpt: _is_equal(ckpt.objects[0]._metadata, 1)),
    "",
)
family(
    "X75",
    "the state of a parameter changes after the call",
    w(
        call(
            "torch._utils._rebuild_parameter_with_state",
            tensor(),
            FALSE,
            ordered(),
            DICT + A + integer(1) + b"s",
        ),
        setting(0, (A, integer(2)), (text("data"), NONE)),
        storages={"0": SIX},
    ),
    Opens("opens: the attributes at the call", lambda ckpt: _is_equal(ckpt["0"].attributes, {"a": 1})),
    "",
)
SCALES = many(name("torch.per_channel_affine"), LIST + number(0.5) + b"a", listed(integer(0)), integer(0))
family(
    "X76",
    "the list of a quantized tensor's scales grows after the call",
    w(
        call(
            "torch._utils._rebuild_qtensor",
            storage("torch.QInt8Storage", numel=6),
            integer(0),
            ints(1, 6),
            ints(6, 1),
            SCALES,
            FALSE,
            ordered(),
        ),
        adding(0, number(0.25)),
        storages={"0": bytes(6)},
    ),
    Opens("opens: the scales at the call", lambda ckpt: _is_equal(ckpt["0"].quantization.scale, [0.5])),
    "",
)


def module(parameters: bytes) -> bytes:
    """The state of a module; memo 0 is its dict."""
    parts = ((text("_parameters"), parameters), (text("_buffers"), ordered()), (text("_modules"), ordered()))
    return DICT + b"(" + b"".join(key + value for key, value in parts) + b"u"


family(
    "X77",
    "the state of a module changes after BUILD",
    w(
        made("torch.nn.modules.linear.Linear", state=module(ordered((text("w"), tensor())))),
        setting(0, (text("_parameters"), ordered((text("w"), tensor((6,)))))),
        storages={"0": SIX},
    ),
    Opens("opens: the parameters at BUILD", lambda ckpt: _is_equal(ckpt["0.w"].shape, (2, 3))),
    "",
)
family(
    "X78",
    "a container is made by NEWOBJ, which ignores its arguments",
    {
        "ordered": w(made("collections.OrderedDict", named({"a": integer(1)}))),
        "set": w(made("builtins.set", listed(integer(1)))),
        "function": w(
            made("torch._utils._rebuild_parameter", tensor(), FALSE, ordered()), storages={"0": SIX}
        ),
    },
    {
        "ordered": Kept("collections.OrderedDict", opaque),
        "set": Kept("builtins.set", opaque),
        "function": Kept("torch._utils._rebuild_parameter", opaque),
    },
)
family(
    "X79",
    "a Counter counts pairs",
    w(call("collections.Counter", listed(A + integer(1) + b"\x86"))),
    Kept("collections.Counter", opaque),
)
GEOMETRY = many(storage(), integer(0), ints(6), ints(1))
family(
    "X80",
    "BUILD replaces the elements of a tensor",
    {
        "tensor": w(tensor() + GEOMETRY + BUILD, storages={"0": SIX}),
        "twice": w(made("torch.FloatTensor", state=GEOMETRY) + GEOMETRY + BUILD, storages={"0": SIX}),
        "parameter": w(
            call("torch._utils._rebuild_parameter", tensor(), FALSE, ordered()) + GEOMETRY + BUILD,
            storages={"0": SIX},
        ),
        "variable": w(
            call("torch._utils._rebuild_parameter", tensor(), FALSE, ordered())
            + many(tensor((6,)), NONE, ordered(), FALSE, FALSE)
            + BUILD,
            storages={"0": SIX},
        ),
    },
    changed,
    "",
)


def with_state(state: bytes) -> Callable[[], bytes]:
    """A parameter with a state; memo 5 is its tensor."""
    data = tensor() + put(5)
    return w(
        call("torch._utils._rebuild_parameter_with_state", data, FALSE, ordered(), state), storages={"0": SIX}
    )


family(
    "X81",
    "the state of a parameter sets a property",
    {
        "data": with_state(named({"data": tensor((6,))})),
        "real": with_state(named({"real": tensor()})),
        "slots": with_state(many(NONE, named({"data": tensor((6,))}))),
        "same": with_state(named({"data": get(5), "requires_grad": FALSE})),
    },
    {"data": changed, "real": changed, "slots": changed, "same": elements(*map(float, range(6)))},
    "",
)
family(
    "X82",
    "BUILD sets the data of a parameter that has some",
    w(
        made(PARAMETER, tensor(), state=many(tensor((6,)), NONE, ordered(), TRUE, FALSE)),
        storages={"0": SIX},
    ),
    changed,
    "",
)
STATE = many(integer(3), text(">"), NONE, NONE, NONE, integer(-1), integer(-1), integer(0))
family(
    "X83",
    "BUILD changes a NumPy dtype that the process shares, or that an array has",
    {
        "shared": plain(call("numpy.dtype", text("f4")) + STATE + BUILD),
        "no copy": plain(call("numpy.dtype", text("f4"), FALSE, FALSE) + STATE + BUILD),
        "twice": plain(numpy_dtype("f4") + STATE + BUILD),
        "used": plain(
            ndarray(call("numpy.dtype", text("f4"), FALSE, TRUE) + put(0), (6,), SIX), get(0) + STATE + BUILD
        ),
    },
    changed,
    "",
)
COLUMNS = (0.0, 2.0, 4.0, 1.0, 3.0, 5.0)
family(
    "X84",
    "an array's order is another true number than 1",
    {
        "2": plain(ndarray(numpy_dtype("f4"), (2, 3), SIX, fortran=integer(2))),
        "-1": plain(ndarray(numpy_dtype("f4"), (2, 3), SIX, fortran=integer(-1))),
    },
    elements(*COLUMNS),
    "",
)


def text_array(content: str) -> bytes:
    """An array whose bytes are text."""
    array = call("numpy._core.multiarray._reconstruct", name("numpy.ndarray"), ints(0), latin1(b"b"))
    return array + many(integer(1), ints(2), numpy_dtype("u1", order="|"), FALSE, text(content)) + BUILD


family(
    "X85",
    "an array's bytes are text, which NumPy encodes as latin-1",
    {"latin-1": plain(text_array("a\xff")), "wide": plain(text_array("a\u0141"))},
    {"latin-1": elements(97, 255, code="B"), "wide": Refused("PickleText")},
    "",
)
INSIDE = DICT + text("self") + get(0) + b"s"
family(
    "X86",
    "what changes late in honest files: containers of themselves, vars(obj), dicts in batches",
    {
        "list": w(LIST + get(0) + b"a", tensor(), storages={"0": SIX}),
        "dict": w(INSIDE, tensor(), storages={"0": SIX}),
        "vars": w(
            name("m.C")
            + b")\x81"
            + put(1)
            + DICT
            + text("me")
            + get(1)
            + b"s"
            + text("vars")
            + get(0)
            + b"s"
            + BUILD,
            tensor(),
            storages={"0": SIX},
        ),
        "ordered": w(
            ordered() + put(0) + text("d") + get(0) + b"s" + text("e") + listed(get(0)) + b"s",
            tensor(),
            storages={"0": SIX},
        ),
        "batches": w(
            DICT
            + b"".join(
                b"(" + b"".join(integer(1000 * batch + at) + get(0) for at in range(1000)) + b"u"
                for batch in range(3)
            ),
            tensor(),
            storages={"0": SIX},
        ),
    },
    elements(*map(float, range(6)), at="1"),
    "",
)
family(
    "X87",
    "BUILD sets a state on a value that has none",
    {
        "set": w(call("builtins.set", listed(integer(1))) + named({"a": NONE}) + BUILD),
        "size": w(call("torch.Size", ints(1)) + named({"a": NONE}) + BUILD),
        "bytes": w(latin1(b"a") + named({"a": NONE}) + BUILD),
        "dict": plain(call("builtins.dict") + named({"a": NONE}) + BUILD),
        "pairs": w(ordered() + listed(A + NONE + b"\x86") + BUILD),
    },
    wrong_type,
    "",
)
family(
    "X88",
    "an object of a tensor class gets a storage of another dtype",
    {
        "long": w(
            made("torch.FloatTensor", state=many(storage("torch.LongStorage"), integer(0), ints(6), ints(1))),
            storages={"0": bytes(48)},
        ),
        "sparse": w(made("torch.sparse.FloatTensor", state=GEOMETRY), storages={"0": SIX}),
        "parameter": w(made(PARAMETER, state=GEOMETRY), storages={"0": SIX}),
    },
    {
        "long": Kept("torch.FloatTensor", opaque),
        "sparse": Kept("torch.sparse.FloatTensor", opaque),
        "parameter": Kept(PARAMETER, opaque),
    },
    "",
)
family(
    "X89",
    "a list is read, grows and is read again, in turns",
    w(
        LIST + integer(1) + b"a",
        *(call("builtins.set", get(0) + integer(at) + b"a") for at in range(2, 5)),
    ),
    Opens(
        "opens: what each call read",
        lambda ckpt: _is_equal(ckpt.objects, [[1, 2, 3, 4], {1, 2}, {1, 2, 3}, {1, 2, 3, 4}]),
    ),
    "",
)
SIZE = call("torch.Size", ints(1, 2))
KEYS = {
    "size": (SIZE, ints(1, 2)),
    "sizes": (SIZE, call("torch.Size", listed(integer(1), integer(2)))),
    "size_in_a_tuple": (many(SIZE, text("a")), many(ints(1, 2), text("a"))),
    "bytes": (latin1(b"k\xff"), latin1(b"k\xff")),
    "complex": (call("builtins.complex", number(1.0), number(-0.0)), TRUE),
    "complexes": (
        call("builtins.complex", number(0.5), number(2.0)),
        call("builtins.complex", number(0.5), number(2.0)),
    ),
}
family(
    "X125",
    "two keys of a dict that are equal by what their calls return",
    {
        "between": lambda: around(
            mapped(
                (TRUE, tensor((4,))),
                (call("builtins.complex", number(1.0), number(-0.0)), tensor((1,))),
                (integer(1), tensor((2,))),
                (text("c"), tensor((3,))),
            )
        )
    }
    | {
        key: (
            lambda one=one, two=two: around(
                mapped((one, tensor((1,))), (two, tensor((2,))), (text("c"), tensor((3,))))
            )
        )
        for key, (one, two) in KEYS.items()
    },
    Opens(
        "opens: the last tensor of the key",
        lambda ckpt: _is_equal([t.shape for t in ckpt.values()], [(2,), (3,)]),
    ),
    "",
)


def _is_equal(found: Any, expected: Any) -> None:
    assert found == expected, found


def _are_items(found: Any, expected: list[Any]) -> None:
    assert list(found) == expected, found
