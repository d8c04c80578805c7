"""C: calls that an unpickler would make. Each must be kept as data, and listed by a scan in program order."""

import base64
import struct
from collections.abc import Callable

from attacks.a_files import holds
from attacks.pickles import (
    CANARY,
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
    persistent,
    pickle,
    proto,
    put,
    tensor,
    text,
)
from attacks.registry import Kept, Named, Opens, Outcome, Refused, family
from attacks.streams import legacy, pt2
from attacks.zips import Zip, around, torch_zip

RUNS = ("posix.system",)
system = Kept("posix.system")
ARGS = many(text(CANARY))


def beside(body: bytes, protocol: int = 2) -> Callable[[], bytes]:
    """An archive with the tensor `w` before the body."""
    return lambda: around(named({"w": tensor(), "x": body}), protocol=protocol)


def calls(
    ident: str,
    what: str,
    load: Outcome,
    runs: tuple[str, ...] = RUNS,
    *finds: str,
    protocol: int = 2,
    **parts: bytes,
) -> None:
    family(ident, what, {key: beside(body, protocol) for key, body in parts.items()}, load, *finds, runs=runs)


calls("C01", "REDUCE of `posix.system`", system, reduce=SYSTEM)
calls("C02", "INST", system, inst=b"(" + text(CANARY) + b"iposix\nsystem\n")
calls(
    "C03",
    "OBJ, its result popped",
    system,
    obj=b"(" + name("posix.system") + text(CANARY) + b"o" + POP + NONE,
)
calls(
    "C04",
    "NEWOBJ",
    Kept("io.FileIO"),
    ("io.FileIO",),
    newobj=name("io.FileIO") + many(text("/dev/null"), text("w")) + b"\x81",
)
calls("C05", "NEWOBJ_EX", Kept("io.FileIO"), ("io.FileIO",), protocol=4,
      newobj_ex=name("io.FileIO") + many(text("/dev/null")) + named({"mode": text("w")}) + b"\x92")  # fmt: skip
calls("C06", "BUILD, which runs `__setstate__`", Kept("mine.Thing"), ("mine.Thing",),
      build=made("mine.Thing", state=named({"path": text(CANARY)})),
      slots=made("mine.Thing", state=many(NONE, named({"__class__": name("posix.system")}))))  # fmt: skip
calls(
    "C07",
    "a call whose result is discarded",
    system,
    pop=SYSTEM + POP + NONE,
    pop_mark=b"(" + SYSTEM + b"1" + NONE,
)
family("C08", "a call in a truncated pickle", {
    "no_stop": lambda: torch_zip(proto(2) + SYSTEM), "cut_text": lambda: torch_zip(proto(2) + SYSTEM + b"X\xff\0\0\0a"),
}, {"no_stop": Refused("PickleStack"), "cut_text": Refused("Truncated")}, runs=RUNS)  # fmt: skip
family(
    "C09",
    "a call before a byte that is not an opcode",
    lambda: torch_zip(proto(2) + SYSTEM + b"\xff."),
    Refused("PickleOpcode"),
    runs=RUNS,
)
family("C10", "arguments that are not a tuple", {
    "list": beside(name("posix.system") + listed(text(CANARY)) + REDUCE), "none": beside(name("posix.system") + NONE + REDUCE),
    "newobj": beside(name("m.n") + b"]\x81"), "keywords": beside(name("m.n") + b")]\x92"), "newobj_ex": beside(name("m.n") + b"]}\x92"),
}, Refused("PickleType"))  # fmt: skip
calls(
    "C11",
    "a callable from the memo",
    system,
    memo=name("posix.system") + put(7) + POP + get(7) + ARGS + REDUCE,
)
GETATTR = call("builtins.getattr", call("builtins.__import__", text("os")), text("system"))
calls(
    "C12",
    "the result of a call is called",
    Kept("builtins.getattr"),
    ("builtins.__import__", "builtins.getattr"),
    getattr=GETATTR + ARGS + REDUCE,
)
calls(
    "C12",
    "",
    Kept("operator.attrgetter"),
    ("operator.attrgetter",),
    attrgetter=call("operator.attrgetter", text("system")) + many(name("posix.x")) + REDUCE,
)
calls("C12", "", Kept("operator.methodcaller"), ("operator.methodcaller",),
      methodcaller=call("operator.methodcaller", text("system"), text(CANARY)) + many(name("posix.x")) + REDUCE)  # fmt: skip
calls("C12", "", Kept("functools.partial"), ("functools.partial",),
      partial=call("functools.partial", name("posix.system"), text(CANARY)) + b")" + REDUCE)  # fmt: skip
calls("C12", "", Kept("torch.Size", "DisallowedCall"), (), size=call("torch.Size", ints(1)) + b")" + REDUCE)
calls("C13", "`pkgutil.resolve_name`", Kept("pkgutil.resolve_name"), ("pkgutil.resolve_name",),
      resolve=call("pkgutil.resolve_name", text("os:system")) + ARGS + REDUCE)  # fmt: skip
for spelled, meant in {
    "nt.system": "nt.system", "os.system": "os.system", "__builtin__.eval": "builtins.eval",
    "commands.getoutput": "subprocess.getoutput", "__builtin__.apply": "builtins.apply",
}.items():  # fmt: skip
    runs = (meant,) if meant != "builtins.apply" else ()
    calls(
        "C14",
        "another spelling of the same function",
        Kept(meant),
        runs,
        **{spelled.strip("_"): call(spelled, text("0"))},
    )
INNER = torch_zip(pickle(SYSTEM))
NESTED = {
    "torch.load": latin1(INNER), "torch.storage._load_from_bytes": latin1(INNER), "numpy.load": latin1(b"\x93NUMPY"),
    "joblib.load": latin1(pickle(SYSTEM)), "pickle.loads": latin1(pickle(SYSTEM)),
}  # fmt: skip
for loader, given in NESTED.items():
    runs = () if loader == "numpy.load" else RUNS
    # A storage is pickled as this call with a legacy stream; the function is known, these arguments are not.
    strict = "DisallowedCall" if loader == "torch.storage._load_from_bytes" else "DisallowedGlobal"
    calls(
        "C15",
        "a call of a loader with bytes",
        Kept(loader, strict),
        runs,
        "NestedLoad",
        **{loader: call(loader, given)},
    )
calls(
    "C15",
    "",
    Kept("torch.storage._load_from_bytes", "DisallowedCall"),
    RUNS,
    "NestedLoad",
    protocol=3,
    binbytes=call("torch.storage._load_from_bytes", binary(INNER)),
)
calls("C16", "`_rebuild_from_type_v2` of a function that rebuilds nothing", Kept("builtins.eval"), ("builtins.eval",), "Import",
      eval=call("torch._tensor._rebuild_from_type_v2", name("builtins.eval"), name("torch.Tensor"), many(text("0")), NONE))  # fmt: skip
calls("C16", "", system, RUNS, "Import",
      system=call("torch._tensor._rebuild_from_type_v2", name("posix.system"), name("torch.Tensor"), ARGS, NONE))  # fmt: skip
FROM_TYPE = "torch._tensor._rebuild_from_type_v2"
calls(
    "C16",
    "",
    Kept(FROM_TYPE, "DisallowedCall"),
    (),
    itself=call(FROM_TYPE, name(FROM_TYPE), name("torch.Tensor"), many(text("1"), tensor()), NONE),
)
calls(
    "C17",
    "code objects, and cloudpickle's functions",
    Kept("types.CodeType"),
    ("types.CodeType",),
    code=call("types.CodeType", integer(0)),
)
calls("C17", "", Kept("cloudpickle.cloudpickle._make_function"), ("cloudpickle.cloudpickle._make_function",),
      cloudpickle=call("cloudpickle.cloudpickle._make_function", call("types.CodeType", integer(0)), named({})))  # fmt: skip
family("C18", "a call in a small pickle of a legacy stream", {
    "sys_info": lambda: legacy(system=pickle(SYSTEM)),
}, system, runs=RUNS)  # fmt: skip
family("C18", "", {
    "magic": lambda: legacy(magic=pickle(SYSTEM)), "keys": lambda: legacy(keys=pickle(SYSTEM)), "version": lambda: legacy(version=pickle(SYSTEM)),
}, {"magic": Refused("DisallowedCall"), "keys": Refused("LegacyKeys"), "version": Refused("LegacyVersion")}, runs=RUNS)  # fmt: skip


def script(constants: bytes) -> Zip:
    return Zip().add("constants.pkl", constants).add("code/__torch__.py", b"class Net(Module): pass")


family("C19", "a call in a pickle of a TorchScript archive", {
    "constants": lambda: script(pickle(SYSTEM)).bytes(),
    "debug": lambda: script(pickle(b")")).add("code/__torch__.py.debug_pkl", pickle(SYSTEM)).bytes(),
}, holds("w"), "CodeInArchive", runs=RUNS)  # fmt: skip
family(
    "C20",
    "a call in the sample inputs of a .pt2",
    lambda: pt2(torch_zip(pickle(SYSTEM))),
    Opens("opens without them", list),
    runs=RUNS,
    suffix=".pt2",
)


def npy(fortran: bool = False) -> bytes:
    header = f"{{'descr': '|O', 'fortran_order': {fortran}, 'shape': (1,), }}".encode()
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(header)) + header + pickle(listed(SYSTEM), protocol=3)


family(
    "C21",
    "a call in an object array of NumPy",
    {"npy": npy},
    Refused("NpyObjects"),
    runs=RUNS,
    suffix=".npy",
)
OBJECTS = many(integer(1), ints(1), numpy_dtype("O8", order="|"), boolean(False), listed(SYSTEM))
calls(
    "C21",
    "",
    system,
    in_pickle=call("numpy._core.multiarray._reconstruct", name("numpy.ndarray"), ints(0), latin1(b"b"))
    + OBJECTS
    + b"b",
)
family("C22", "a string that contains a pickle in base64 or hexadecimal", {
    "base64": beside(text(base64.b64encode(pickle(SYSTEM)).decode())), "hex": beside(text(pickle(SYSTEM).hex())),
}, Opens("kept as a string"), "EncodedText")  # fmt: skip
family(
    "C23",
    "a name that is never called",
    {"antigravity": beside(name("antigravity.fly"))},
    Named("antigravity.fly"),
)
family("C23", "", {"system": beside(name("posix.system"))}, Named("posix.system"))
family("C24", "a storage class of another module", {
    key: (lambda kind=kind: around(tensor(on=persistent(text("storage"), name(kind), text("0"), text("cpu"), integer(6))), storages={"0": bytes(24)}))
    for key, kind in {"module": "evil.FloatStorage", "name": "evil.MyStorage", "torch": "torch.MyStorage", "sparse": "torch.sparse.FloatStorage"}.items()
}, Refused("PersistentId"))  # fmt: skip
HUGE = integer(1 << 36)
for dotted, given in {
    "torch.FloatTensor": HUGE, "torch.cuda.HalfTensor": HUGE, "torch.Tensor": HUGE, "torch.storage.UntypedStorage": HUGE,
    "torch.FloatStorage": HUGE, "builtins.bytearray": HUGE,
}.items():  # fmt: skip
    calls(
        "C25",
        "an allowed class or function called to allocate memory",
        Kept(dotted, "DisallowedCall"),
        (),
        **{dotted: call(dotted, given)},
    )
for codec in ("idna", "zlib"):
    calls(
        "C26",
        "`_codecs.encode` with another codec",
        Kept("_codecs.encode", "DisallowedCall"),
        (),
        **{codec: call("_codecs.encode", text("x"), text(codec))},
    )
for dotted in ("collections.Counter", "builtins.set"):
    calls(
        "C27",
        "a container constructed from a string",
        Kept(dotted, "DisallowedCall"),
        (),
        **{dotted: call(dotted, text("a" * 100_000))},
    )
for key, junk in {"junk": text("cpu; rm"), "dict": b"}", "long": text("c" * 300)}.items():
    calls(
        "C28",
        "`torch.device` with wrong arguments",
        Kept("torch.device", "DisallowedCall"),
        (),
        **{key: call("torch.device", junk)},
    )
family("C28", "", {"honest": beside(listed(
    call("torch.device", text("cuda:1")), call("torch.device", text("cuda"), integer(0)), call("builtins.slice", integer(0), integer(3), NONE),
    call("builtins.bytearray", text("x"), text("latin1")), call("_codecs.encode", text("\u00ff"), text("latin1")),
    call("collections.Counter", b"}"), name("torch.qint8"), name("torch.per_channel_symmetric"),
))}, Opens("opens, also strictly"), options={"unknown": "error"})  # fmt: skip


def unshadowed(ckpt) -> None:
    tree = ckpt.objects["x"]
    assert type(tree).__name__ == "OrderedDict"
    assert list(tree.items()) == [("a", 1)]


family("C29", "BUILD of an OrderedDict with the names of its methods", {
    "items": beside(ordered((text("a"), integer(1))) + mapped((text("items"), name("builtins.print"))) + b"b"),
    "class": beside(ordered((text("a"), integer(1))) + mapped((text("__class__"), NONE)) + b"b"),
}, Opens("opens; its methods are not replaced", unshadowed))  # fmt: skip
for dotted in ("picklescan.scanner.scan_bytes", "rustload.open"):
    calls("C30", "a name of a scanner, or of rustload", Kept(dotted), (), **{dotted: call(dotted, text("x"))})
ARRAY = call("numpy._core.multiarray._reconstruct", name("numpy.ndarray"), ints(0), binary(b"b"))
calls("C31", "a tensor of Paddle that is a call of `eval`", Kept("builtins.eval"), ("builtins.eval",), protocol=3,
      lod_tensor=call("builtins.eval", text("data"), named({"data": ARRAY})))  # fmt: skip
calls("C31", "a tensor of Paddle with a wrong array or name", Kept("builtins.tuple", "DisallowedCall"), (), protocol=3,
      text=call("builtins.tuple", text("a" * 100_000)), number=call("builtins.tuple", integer(3)),
      two=call("builtins.tuple", many(text("w"), ARRAY), many(text("w"), ARRAY)))  # fmt: skip
calls(
    "C31",
    "",
    system,
    protocol=3,
    array=call("builtins.tuple", many(text("w"), SYSTEM)),
    name=call("builtins.tuple", many(SYSTEM, ARRAY)),
)
