"""X40 to X69: calls and states that pickle, torch or NumPy turn into execution although each name in them is known."""

from typing import Any

from attacks.c_calls import beside
from attacks.pickles import (
    BUILD,
    NONE,
    POP,
    REDUCE,
    SYSTEM,
    binary,
    boolean,
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
    numpy_dtype,
    ordered,
    pickle,
    put,
    storage,
    tensor,
    text,
)
from attacks.registry import Build, Opens, Outcome, Refused, family
from attacks.streams import legacy
from attacks.zips import torch_zip

# A pickle that runs the canary command, as a loader would get it.
INNER = torch_zip(pickle(SYSTEM))
LOADER = "torch.storage._load_from_bytes"

opens = Opens("opens; a scan does not call it inert")


def states(state: bytes, then: bytes = b"") -> dict[str, bytes]:
    """A state set on an object of each kind that is understood."""
    objects = {
        "ordered_dict": ordered((text("a"), integer(1))),
        "counter": call("collections.Counter", named({"a": integer(1)})),
        "tensor": tensor(),
        "parameter": call("torch._utils._rebuild_parameter", tensor(), boolean(True), ordered()),
        "namespace": made("argparse.Namespace"),
        "simple_namespace": call("types.SimpleNamespace"),
        "uuid": made("uuid.UUID"),
        "module": made("torch.nn.modules.linear.Linear"),
        "layer": made("torch.nn.modules.transformer.TransformerEncoderLayer"),
        "arguments": made("transformers.training_args.TrainingArguments"),
        "user_dict": made("collections.UserDict"),
    }
    return {key: body + state + BUILD + then for key, body in objects.items()}


CLOSED = ("tensor", "parameter")
"""The objects of `states` on which `open` accepts no state."""
CONTAINERS = ("ordered_dict", "counter")
"""Those on which it accepts a dict only."""


def hidden(
    ident: str,
    what: str,
    builds: dict[str, Build],
    *finds: str,
    verdict: str = "unknown",
    refused: dict[str, str] | None = None,
) -> None:
    """Adds inputs that a scan must not call inert; `refused` has the codes of those that do not open, by what their names begin with."""
    codes = dict.fromkeys(CLOSED, "StateUnsupported") | (refused or {})

    def outcome(key: str) -> Outcome:
        code = next((code for begin, code in codes.items() if key.startswith(begin)), None)
        return opens if code is None else Refused(code)

    family(ident, what, builds, {key: outcome(key) for key in builds}, *(finds or ("",)), verdict=verdict)


# C: _pickle.c load_build looks `__setstate__` up on the instance, so the second BUILD calls the attribute.
# The bytes that it is called with are an archive, which zip readers find at the end of the pickle, too.
SECOND = binary(INNER) + BUILD
for value in (LOADER, "builtins.eval", "torch._utils._rebuild_parameter"):
    hidden(
        "X40",
        "a state that hides `__setstate__`, then a second BUILD",
        {
            f"{key}-{value.rpartition('.')[2]}": beside(body, 3)
            for key, body in states(named({"__setstate__": name(value)}), SECOND).items()
        },
        "StateAttribute",
        verdict="would execute",
        refused=dict.fromkeys(CONTAINERS, "PickleType"),
    )
hidden(
    "X41",
    "the same as a pair of attributes and slots",
    {
        key: beside(body, 3)
        for key, body in states(many(NONE, named({"__setstate__": name(LOADER)})), SECOND).items()
    },
    "StateAttribute",
    verdict="would execute",
    refused=dict.fromkeys(CONTAINERS, "PickleType"),
)
hidden(
    "X42",
    "attributes in place of the methods that unpicklers call to grow an object",
    {
        f"{key}-{method}": beside(body, 3)
        for method, then in {
            "append": NONE + b"a",
            "extend": b"(" + NONE + b"e",
            "add": b"(" + NONE + b"\x90",
        }.items()
        for key, body in states(named({method: name(LOADER)}), then).items()
        if key in ("ordered_dict", "namespace", "module")
    },
    verdict="would execute",
    refused={"ordered_dict": "PickleType"},
)
for method in ("keys", "items", "__torch_function__", "__class__", "__dict__", "__array__"):
    hidden(
        "X43",
        "attributes in place of methods that torch, NumPy or a container look up",
        {
            f"{key}-{method.strip('_')}": beside(body)
            for key, body in states(named({method: name("collections.OrderedDict")})).items()
            # These classes are not known.
            if key not in ("layer", "user_dict")
        },
        "StateAttribute",
    )
hidden(
    "X44",
    "an attribute that is an object which can be called",
    {
        key: beside(body)
        for key, body in states(
            named({"extend": made("torch.nn.modules.linear.Linear", state=named({}))})
        ).items()
    },
    "StateAttribute",
)
hidden(
    "X45",
    "a state in which a rebuilt tensor gets attributes that can be called",
    {
        "from_type": beside(
            call(
                "torch._tensor._rebuild_from_type_v2",
                name("torch._utils._rebuild_tensor_v2"),
                name("torch.Tensor"),
                many(storage(), integer(0), ints(6), ints(1), boolean(False), ordered()),
                named({"__setstate__": name("torch._utils._rebuild_parameter")}),
            )
        ),
        "slots": beside(
            call(
                "torch._utils._rebuild_parameter_with_state",
                tensor(),
                boolean(True),
                ordered(),
                many(NONE, named({"__class__": name("collections.OrderedDict")})),
            )
        ),
    },
    "DisallowedCall",
    refused={"slots": "StateUnsupported"},
)

# A loader that is called once with harmless bytes, and used as a value as well.
HARMLESS = call(LOADER, latin1(legacy()))
KEPT = HARMLESS + POP + name(LOADER)
for key, body in {
    "item": listed(KEPT),
    "dict_value": named({"f": KEPT}),
    "argument": call("collections.Counter", listed(many(KEPT, integer(1)))),
    "factory": call("collections.defaultdict", KEPT),
    "attribute": ordered() + named({"f": KEPT}) + BUILD,
    "namespace": made("argparse.Namespace", state=named({"f": KEPT})),
    "mapped": call("builtins.map", KEPT, listed(latin1(INNER))),
    "partial": call("functools.partial", KEPT, latin1(INNER)),
    "hook": ordered((integer(0), KEPT)),
}.items():
    hidden(
        "X46",
        "a loader as a value, beside a harmless call of it",
        {key: beside(body)},
        "Import",
        verdict="would execute",
        # The bytes are a stream of no single storage, as torch writes it there.
        refused={key: "PickleType"},
    )

for loader in (LOADER, "torch.load", "pickle.loads"):
    hidden(
        "X47",
        "a loader as the factory of a defaultdict",
        {loader: beside(call("collections.defaultdict", name(loader)))},
        "Import",
    )

# `_load_from_bytes` of bytes that do not stand in the pickle.
ARRAY = call("numpy._core.multiarray._reconstruct", name("numpy.ndarray"), ints(0), latin1(b"b"))
FILLED = ARRAY + many(integer(1), ints(len(INNER)), numpy_dtype("u1"), boolean(False), binary(INNER)) + BUILD
for key, given in {
    "array": FILLED,
    "late_array": ARRAY
    + put(9)
    + many(integer(1), ints(len(INNER)), numpy_dtype("u1"), boolean(False), binary(INNER))
    + BUILD,
    "bytearray": call("builtins.bytearray", binary(INNER)),
    "bytesio": call("io.BytesIO", binary(INNER)),
    "call": call("builtins.bytes", listed(*map(integer, INNER[:64]))),
    "joined": call("mylib.join", binary(INNER[:50]), binary(INNER[50:])),
    "two": binary(INNER) + NONE,
    "none": b"",
}.items():
    hidden(
        "X48",
        "`_load_from_bytes` of anything but bytes that stand in the pickle",
        {key: beside(call(LOADER, given), 3)},
        "",
        verdict="would execute",
    )
hidden(
    "X49",
    "a state set on what `_load_from_bytes` returns",
    {"build": beside(HARMLESS + named({"__setstate__": name("builtins.eval")}) + BUILD)},
    "StateAttribute",
    verdict="would execute",
    refused={"build": "PickleType"},
)
hidden(
    "X50",
    "a bytearray that changes after it was passed on",
    {
        "extended": beside(
            b"\x96" + len(INNER).to_bytes(8, "little") + INNER + put(9) + POP + call(LOADER, get(9)), 5
        )
    },
    "",
    verdict="would execute",
)

# NumPy trusts the flags and the sizes of a dtype's state; a flag says that elements are pointers.
FLAGS = many(integer(3), text("<"), NONE, NONE, NONE, integer(-1), integer(-1), integer(63))
hidden(
    "X51",
    "a dtype whose flags say that its numbers are pointers",
    {
        "float": beside(call("numpy.dtype", text("f8"), boolean(False), boolean(True)) + FLAGS + BUILD),
        "string": beside(
            call("numpy.dtype", text("U2"), boolean(False), boolean(True))
            + many(integer(3), text("<"), NONE, NONE, NONE, integer(8), integer(4), integer(63))
            + BUILD
        ),
        "size": beside(
            call("numpy.dtype", text("U2"), boolean(False), boolean(True))
            + many(integer(3), text("<"), NONE, NONE, NONE, integer(800), integer(4), integer(8))
            + BUILD
        ),
    },
    "",
)


def record_dtype(
    fields: dict[str, bytes],
    *,
    names: list[str] | None = None,
    size: int = 16,
    flags: int = 16,
    **changes: Any,
) -> bytes:
    """A dtype of records as NumPy pickles it, with other parts on request."""
    code, alignment = changes.get("code", f"V{size}"), changes.get("alignment", 1)
    listed_names = many(*map(text, list(fields) if names is None else names))
    columns = changes.get("columns", named(fields))
    state = (
        integer(3),
        text("|"),
        NONE,
        listed_names,
        columns,
        integer(size),
        integer(alignment),
        integer(flags),
    )
    made_of = call("numpy.dtype", text(code), boolean(False), boolean(True))
    return made_of + changes.get("memo", b"") + many(*state) + BUILD


def at(offset: int, dtype: bytes = numpy_dtype("f8"), *more: bytes) -> bytes:
    """A field."""
    return many(dtype, integer(offset), *more)


PAIR = {"a": at(0), "b": at(8)}
INSIDE = record_dtype({"a": at(0)}, size=8)
hidden(
    "X208",
    "a dtype of records with fields that are outside, overlap, are objects or contain themselves",
    {
        "outside": beside(record_dtype({"a": at(0), "b": at(9)})),
        "far": beside(record_dtype({"a": at(0), "b": at(1 << 40)})),
        "negative": beside(record_dtype({"a": at(-8), "b": at(8)})),
        "overlap": beside(record_dtype({"a": at(0), "b": at(7)})),
        "same": beside(record_dtype({"a": at(0), "b": at(0)})),
        "objects": beside(record_dtype({"a": at(0, numpy_dtype("O8", order="|"))}, size=8, flags=27)),
        "pointers": beside(record_dtype(PAIR, flags=16 | 1)),
        "pickles": beside(record_dtype(PAIR, flags=16 | 2)),
        "getitem": beside(record_dtype(PAIR, flags=16 | 32)),
        "size": beside(record_dtype(PAIR, size=17, code="V16")),
        "alignment": beside(record_dtype(PAIR, alignment=0)),
        "title": beside(record_dtype({"a": at(0), "b": at(8, numpy_dtype("f8"), text("b"))})),
        "nameless": beside(record_dtype(PAIR, names=["a"])),
        "twice": beside(record_dtype(PAIR, names=["a", "a"])),
        "another": beside(record_dtype(PAIR, names=["a", "c"])),
        "no_fields": beside(record_dtype({})),
        "list": beside(record_dtype(PAIR, columns=listed(at(0), at(8)))),
        "ordered": beside(record_dtype(PAIR, columns=ordered((text("a"), at(0)), (text("b"), at(8))))),
        "of_numbers": beside(record_dtype({"a": at(0)}, size=-1, alignment=-1, flags=0, code="f8")),
        "of_strings": beside(record_dtype({"a": at(0)}, size=8, flags=8, code="S8")),
        "itself": beside(record_dtype({"a": at(0, get(9))}, size=8, memo=put(9))),
        "equal": beside(record_dtype({"a": at(0, INSIDE)}, size=8)),
        "deep": beside(record_dtype({"a": at(0, record_dtype({"a": at(0, INSIDE)}, size=9))})),
        "bare": beside(call("numpy.dtype", text("V16"), boolean(False), boolean(True))),
        "void": beside(numpy_dtype("V16", order="|")),
        "many": beside(record_dtype({f"f{n}": at(n, numpy_dtype("i1")) for n in range(1025)}, size=1025)),
    },
    "",
)
hidden(
    "X52",
    "an array that is not empty before its state is set",
    {
        "huge": beside(
            call("numpy._core.multiarray._reconstruct", name("numpy.ndarray"), ints(1 << 40), latin1(b"b"))
            + many(integer(1), ints(2), numpy_dtype("u1"), boolean(False), latin1(b"ab"))
            + BUILD
        ),
    },
    "DisallowedCall",
)

# Known classes in forms that are not known.
for key, body in {
    "namespace_init": call("argparse.Namespace", text("a")),
    "linear_init": call("torch.nn.modules.linear.Linear", integer(1 << 30), integer(1 << 30)),
    "path_object": call("pathlib.PosixPath", made("argparse.Namespace")),
    "zone": call("datetime.datetime", latin1(b"\x07\xe4\1\1\0\0\0\0\0\0"), made("argparse.Namespace")),
    "enum_object": call("transformers.trainer_utils.SchedulerType", made("argparse.Namespace")),
    "exponent": call("fractions.Fraction", text("1e999999999")),
    "relu": call("torch.nn.functional.relu", tensor()),
    "reconstructor": call("copyreg._reconstructor", name("mylib.Thing"), name("builtins.object"), NONE),
    "base": call("copyreg._reconstructor", name("argparse.Namespace"), name("collections.OrderedDict"), NONE),
    "arguments": made("torch.nn.modules.linear.Linear", integer(1)),
    "append": made("argparse.Namespace") + integer(1) + b"a",
    "items": made("argparse.Namespace") + text("a") + integer(1) + b"s",
    "paths_state": call("pathlib.PurePosixPath", text("a")) + named({"_str": integer(1)}) + BUILD,
    "rnn_names": made(
        "torch.nn.modules.rnn.LSTM",
        state=named({"_flat_weights_names": made("argparse.Namespace", state=named({"index": integer(1)}))}),
    ),
    "state_object": made(
        "argparse.Namespace", state=made("argparse.Namespace", state=named({"a": integer(1)}))
    ),
    "state_keys": made("argparse.Namespace", state=mapped((integer(1), integer(2)))),
}.items():
    hidden("X53", "a known class in a form that is not known", {key: beside(body)}, "")
for attribute, verdict in {
    "__members__": "would execute",
    "mro": "unknown",
    "LINEAR": "unknown",
    "CONSTANT.x": "would execute",
}.items():
    hidden(
        "X54",
        "`getattr` of a known enumeration",
        {
            attribute.strip("_"): beside(
                call("builtins.getattr", name("transformers.trainer_utils.SchedulerType"), text(attribute))
            )
        },
        "",
        verdict=verdict,
    )
hidden(
    "X55",
    "the result of a call of a known class or function is called",
    {
        "module": beside(made("torch.nn.modules.linear.Linear", state=named({})) + b")" + REDUCE),
        "identity": beside(
            call("torch.jit._pickle.restore_type_tag", name("torch.load"), text("x"))
            + many(latin1(INNER))
            + REDUCE
        ),
        "member": beside(call("transformers.trainer_utils.SchedulerType", text("linear")) + b")" + REDUCE),
    },
    "",
    verdict="would execute",
)

# torch.nn.Module finds attributes in its dicts, so what it is passed to may call their values.
GIVING = made(
    "torch.nn.modules.linear.Linear",
    state=named(
        {
            "_modules": named(
                {"detach": name("collections.OrderedDict"), "__torch_function__": name("builtins.int")}
            )
        }
    ),
)
hidden(
    "X56",
    "an object of a known class as an argument of a function of torch",
    {
        "rebuilt": beside(call("torch._utils._rebuild_parameter", GIVING, boolean(True), ordered())),
        "sparse": beside(
            call(
                "torch._utils._rebuild_sparse_tensor",
                name("torch.sparse_coo"),
                many(GIVING, tensor(), ints(2)),
            )
        ),
        "size": beside(call("torch.Size", many(GIVING))),
    },
    "DisallowedCall",
)
