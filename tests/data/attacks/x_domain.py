"""X130 to X138: values that are not data although each name in the pickle is known.

In each family a callee, a reader or the interpreter looks at a value whose code the file chooses.
"""

from attacks.c_calls import beside
from attacks.pickles import (
    BUILD,
    NONE,
    POP,
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
    ordered,
    persistent,
    put,
    storage,
    tensor,
    text,
)
from attacks.x_calls import hidden

LINEAR = "torch.nn.modules.linear.Linear"
INDEX = "torch.distributed.checkpoint.metadata.MetadataIndex"


def module(**dicts: bytes) -> bytes:
    """A module as torch writes it, with other dicts."""
    parts = {"training": boolean(True), "_parameters": b"}", "_buffers": b"}", "_modules": b"}"}
    return made(LINEAR, state=named(parts | dicts))


GIVING = module(_modules=named({"append": module(), "items": module()}))
"""A module that finds other modules, which can be called, in place of methods. By itself it is inert."""
INNER = module(_modules=named({"items": GIVING}))

hidden(
    "X130",
    "a known object deep in the state of a known module",
    {
        "buffers": beside(module(_buffers=named({"a": GIVING}))),
        "weights": beside(module(_parameters=named({"a": listed(INNER)}))),
        "modules": beside(
            module(_modules=named({"a": made("argparse.Namespace", state=named({"a": GIVING}))}))
        ),
        "modules_dict": beside(module(_modules=made("argparse.Namespace", state=named({"a": GIVING})))),
        "names": beside(module(_parameters=mapped((many(integer(1), GIVING), NONE)))),
        "hooks": beside(module(_forward_hooks=ordered((integer(0), GIVING)))),
        "attribute": beside(module(padding_mode=GIVING)),
        "nonpersistent": beside(module(_non_persistent_buffers_set=listed(GIVING))),
        "without": beside(made(LINEAR, state=named({"training": boolean(True)}))),
    },
    "StateAttribute",
)
hidden(
    "X131",
    "a module whose state cannot be closed",
    {
        dotted.rpartition(".")[2]: beside(made(dotted, state=named({"_flat_weights_names": listed()})))
        for dotted in (
            "torch.nn.modules.rnn.LSTM",
            "torch.nn.modules.transformer.TransformerEncoderLayer",
            "torch.nn.parallel.data_parallel.DataParallel",
            "torch.nn.utils.weight_norm.WeightNorm",
            "torch.nn.modules.module._WrappedHook",
            "collections.ChainMap",
            "collections.UserDict",
        )
    },
    "DisallowedGlobal",
)
hidden(
    "X132",
    "a persistent id whose result is dropped",
    {
        key: beside(persistent(*items) + POP + NONE)
        for key, items in {
            "key": (text("storage"), name("torch.FloatStorage"), INNER, text("cpu"), integer(6)),
            "class": (text("storage"), made("argparse.Namespace"), text("0"), text("cpu"), integer(6)),
            "device": (text("storage"), name("torch.FloatStorage"), text("0"), GIVING, integer(6)),
            "size": (text("storage"), name("torch.FloatStorage"), text("0"), text("cpu"), many(GIVING)),
            "tag": (GIVING, name("torch.FloatStorage"), text("0"), text("cpu"), integer(6)),
        }.items()
    },
    "PersistentId",
    refused={"key": "StorageKey", "size": "PickleType", "": "PersistentId"},
)
hidden(
    "X133",
    "a value behind the result of a known call",
    {
        "list": beside(call("torch.Size", call("builtins.list", listed(GIVING)))),
        "deque": beside(call("builtins.set", call("collections.deque", listed(INNER)))),
        "dict": beside(call("collections.OrderedDict", call("builtins.dict", mapped((text("a"), GIVING))))),
        "ordered": beside(call("builtins.dict", ordered((text("keys"), GIVING)))),
    },
    "DisallowedCall",
)
hidden(
    "X134",
    "keys that are compared by their class, with a state that is set later",
    {
        "twins": beside(
            made("uuid.UUID")
            + put(3)
            + POP
            + mapped((get(3), NONE), (made("uuid.UUID", state=named({"int": integer(1)})), NONE))
            + POP
            + get(3)
            + named({"int": integer(1)})
            + BUILD
        ),
        "index_twice": beside(
            made(INDEX, state=named({"fqn": text("a"), "offset": NONE, "index": NONE}))
            + put(3)
            + mapped((get(3), NONE))
            + POP
            + named({"fqn": GIVING})
            + BUILD
        ),
        "index": beside(
            mapped((made(INDEX, state=named({"fqn": GIVING, "offset": NONE, "index": NONE})), NONE))
        ),
        "module": beside(mapped((module(), NONE))),
        "deep": beside(mapped((many(integer(1), many(GIVING)), NONE))),
        "of_tensors": beside(mapped((tensor(), NONE), (tensor(), NONE))),
        "set": beside(b"\x8f(" + GIVING + b"\x90"),
        "set_call": beside(call("builtins.set", listed(GIVING))),
        "items": beside(ordered((GIVING, NONE))),
    },
)
hidden(
    "X135",
    "an argument that the callee ignores when it makes a tensor, but looks at",
    {
        "hooks": beside(call("torch._utils._rebuild_parameter", tensor(), boolean(True), GIVING)),
        "filled": beside(
            call("torch._utils._rebuild_parameter", tensor(), boolean(True), ordered((integer(0), GIVING)))
        ),
        "state": beside(
            call(
                "torch._utils._rebuild_parameter_with_state",
                tensor(),
                boolean(True),
                ordered(),
                named({"grad": GIVING}),
            )
        ),
        "class": beside(
            call(
                "torch._tensor._rebuild_from_type_v2",
                name("torch._utils._rebuild_tensor_v2"),
                GIVING,
                many(storage(), integer(0), ints(6), ints(1), boolean(False), ordered()),
                named({}),
            )
        ),
        "arguments": beside(
            call(
                "torch._tensor._rebuild_from_type_v2",
                name("torch._utils._rebuild_tensor_v2"),
                name("torch.Tensor"),
                many(storage(), integer(0), many(GIVING), ints(1), boolean(False), ordered()),
                named({}),
            )
        ),
    },
    "DisallowedCall",
    refused={"state": "StateUnsupported", "arguments": "PickleType"},
)
hidden(
    "X136",
    "a storage that is loaded from bytes which hold something else",
    {
        "object": beside(
            call(
                "torch._utils._rebuild_tensor_v2",
                call("torch.storage._load_from_bytes", binary(b"\x80\x02}.")),
                integer(0),
                ints(6),
                ints(1),
                boolean(False),
                ordered(),
            )
        ),
    },
    "DisallowedCall",
    refused={"object": "PersistentId"},
)
hidden(
    "X137",
    "the dtype of an array in a text that NumPy parses",
    {
        "dtype": beside(call("numpy.dtype", text("i4,(2)f8"))),
        "reconstruct": beside(
            call("numpy._core.multiarray._reconstruct", name("numpy.ndarray"), ints(0), latin1(b"i4,O"))
        ),
    },
    "DisallowedCall",
)
hidden(
    "X138",
    "a state of a known class that its `__setstate__` looks at",
    {
        "is_safe": beside(made("uuid.UUID", state=named({"int": integer(1), "is_safe": GIVING}))),
        "properties": beside(
            made(
                "torch.distributed.checkpoint.metadata.TensorProperties",
                state=many(NONE, NONE, NONE, GIVING, NONE),
            )
        ),
        "alias": beside(
            call("torch.jit._pickle.build_intlist", listed(integer(1))) + named({"a": integer(1)}) + BUILD
        ),
        "alias_items": beside(call("torch.jit._pickle.build_intlist", listed()) + GIVING + b"a"),
    },
)
