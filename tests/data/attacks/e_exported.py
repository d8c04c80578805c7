"""E: exported programs whose configurations lie, or that hide a call in what `torch.export.load` unpickles or evaluates."""

import json
from collections.abc import Callable
from typing import Any

from attacks.a_files import holds
from attacks.pickles import NONE, SIX, SYSTEM, integer, named, pickle, tensor
from attacks.registry import Fails, Opens, Outcome, Refused, family
from attacks.zips import Zip, member, torch_zip

RUNS = ("posix.system",)
GRAPH: dict[str, Any] = {"graph_module": {"graph": {"nodes": []}}, "guards_code": [], "range_constraints": {}}


def meta(*sizes: Any, **fields: Any) -> dict[str, Any]:
    """A `TensorMeta` of float32 in C order; `fields` replace its fields."""
    strides, step = [], 1
    for size in reversed(sizes):
        strides.append(step)
        step *= size if isinstance(size, int) else 1
    return {
        "dtype": 7,
        "sizes": [number(size) for size in sizes],
        "requires_grad": False,
        "device": {"type": "cpu", "index": None},
        "strides": [number(stride) for stride in reversed(strides)],
        "storage_offset": number(0),
        "layout": 7,
    } | fields


def number(value: Any) -> dict[str, Any]:
    """A `SymInt`."""
    return value if isinstance(value, dict) else {"as_int": value}


def payload(path_name: str = "weight_0", tensor_meta: Any = ..., **fields: Any) -> dict[str, Any]:
    """A `PayloadMeta`, of six floats in two rows unless `tensor_meta` says otherwise."""
    found = meta(2, 3) if tensor_meta is ... else tensor_meta
    return {"path_name": path_name, "is_param": True, "use_pickle": False, "tensor_meta": found} | fields


def config(payloads: dict[str, Any]) -> bytes:
    return json.dumps({"config": payloads}).encode()


def export(
    weights: dict[str, Any] | bytes | None = None,
    constants: dict[str, Any] | bytes | None = None,
    *,
    graph: dict[str, Any] | bytes | None = None,
    inputs: bytes | None = None,
    **members: bytes,
) -> Zip:
    """An exported program, as `torch.export.save` of torch 2.13 writes it; `members` are further weights and constants."""
    weights = {"w": payload()} if weights is None else weights
    graph = GRAPH if graph is None else graph
    stored = {"weight_0": SIX} | members
    parts = [
        member(f"data/{'weights' if name.startswith('weight') else 'constants'}/{name}", data)
        for name, data in stored.items()
    ]
    parts += [
        member(
            "data/weights/model_weights_config.json",
            weights if isinstance(weights, bytes) else config(weights),
        ),
        member(
            "data/constants/model_constants_config.json",
            constants if isinstance(constants, bytes) else config(constants or {}),
        ),
        member("models/model.json", graph if isinstance(graph, bytes) else json.dumps(graph).encode()),
        member(
            "data/sample_inputs/model.pt", torch_zip(pickle(integer(1)), {}) if inputs is None else inputs
        ),
        member("archive_format", b"pt2"),
        member("archive_version", b"0"),
        member(".data/version", b"6\n"),
        member("byteorder", b"little"),
    ]
    return Zip().with_(members=parts)


def add(ident: str, what: str, builds: dict[str, Any], load: Any, *finds: str, **more: Any) -> None:
    """Adds archives; a `Zip` is written when it is needed."""
    made = {name: (one.bytes if isinstance(one, Zip) else one) for name, one in builds.items()}
    family(ident, what, made, load, *finds, suffix=".pt2", **more)


def of(tensor_meta: dict[str, Any], **fields: Any) -> Zip:
    """A program with this tensor on the member of six floats."""
    return export({"w": payload("weight_0", tensor_meta, **fields)})


def raw(text: str) -> Zip:
    """A program whose weights have this configuration; `%` is the one of `w`."""
    return export(text.replace("%", json.dumps(payload())).encode())


malformed, bounds, shape = Refused("ExportConfig"), Refused("TensorBounds"), Refused("TensorShape")
conflict, missing = Refused("StorageConflict"), Refused("RecordMissing")
opens = holds("w", format="torch-export")

add("E01", "a key of a configuration twice", {
    "name": raw('{"config": {"w": %, "w": %}}'), "config": raw('{"config": {"w": %}, "config": {}}'),
    "field": raw('{"config": {"w": {"path_name": "weight_1", ' + json.dumps(payload())[1:] + "}}"),
    "size": raw('{"config": {"w": %}}'.replace("%", json.dumps(payload()).replace('"as_int": 2', '"as_int": 1, "as_int": 2'))),
    "escaped": raw('{"config": {"w": %, "\\u0077": %}}'),
    **{key: raw('{"config": {"w": %}}'.replace("%", json.dumps(payload()).replace(f'"{key}":', f'"{key}": {value}, "{key}":'))) for key, value in {
        "dtype": "6", "layout": "7", "type": '"cpu"', "path_name": '"weight_0"',
    }.items()},
}, malformed)  # fmt: skip
add("E02", "a path name that leaves its folder", {
    key: export({"w": payload(name)}) for key, name in {
        "up": "../weights/weight_0", "absolute": "/etc/passwd", "dots": "..", "inside": "a/weight_0", "backslash": "..\\weight_0",
        "null": "weight_0\0", "empty": "", "hidden": ".data", "here": ".",
    }.items()
}, malformed)  # fmt: skip
add("E03", "a member that is missing", {
    "weight": export({"w": payload("weight_9")}), "constant": export(constants={"c": payload("tensor_9")}),
    "case": export({"w": payload("Weight_0")}), "object": export(constants={"c": payload("custom_obj_0", None)}),
    "config": export().drop("data/weights/model_weights_config.json"),
    "constants": export().drop("data/constants/model_constants_config.json"), "version": export().drop(".data/version"),
}, missing)  # fmt: skip
add("E03", "", {"program": export().drop("models/model.json")}, Refused("UnknownFormat"), verdict="unknown")
add("E04", "a tensor that reaches outside its member", {
    "sizes": of(meta(3, 3)), "strides": of(meta(2, 3, strides=[number(4), number(1)])), "offset": of(meta(2, 3, storage_offset=number(1))),
    "huge": of(meta(1 << 40)), "negative_stride": of(meta(2, 3, strides=[number(-3), number(1)])),
    "negative_offset": of(meta(1, storage_offset=number(-1))), "far": of(meta(1, storage_offset=number(2**63 - 1))),
    "stride": of(meta(2, strides=[number(2**63 - 1)])),
}, bounds)  # fmt: skip
add("E04", "", {
    "negative": of(meta(-2, 3)), "overflow": of(meta(1 << 40, 1 << 40)), "rank": of(meta(2, 3, strides=[number(1)])),
}, shape)  # fmt: skip
add("E04", "", {"odd": export(weight_0=SIX + b"x")}, Refused("StorageBounds"))
add("E05", "a number that is not an integer of 64 bits", {
    key: raw('{"config": {"w": %}}'.replace("%", json.dumps(payload()).replace('"as_int": 2', f'"as_int": {value}'))) for key, value in {
        "nan": "NaN", "infinity": "Infinity", "float": "2.0", "exponent": "2e0", "text": '"2"', "bool": "true", "null": "null", "list": "[2]",
        "large": "18446744073709551616", "digits": "9" * 5000, "hex": "0x2", "2_63": "9223372036854775808", "dict": "{}", "underscore": "1_0",
    }.items()
}, malformed)  # fmt: skip
add("E05", "", {
    "bare": of(meta(2, 3, sizes=[2, 3])), "no_int": of(meta(2, 3, sizes=[{}, {}])), "as_float": of(meta(2, 3, sizes=[{"as_float": 2.0}] * 2)),
    "flag": of(meta(2, 3, requires_grad=1)),
}, malformed)  # fmt: skip
add("E06", "a size that is an expression", {
    "size": of(meta({"as_expr": {"expr_str": "s0", "hint": {"as_int": 2}}}, 3)),
    "offset": of(meta(2, 3, storage_offset={"as_expr": {"expr_str": "s0"}})),
}, Refused("ExportSymbolic"))  # fmt: skip
add("E06", "", {
    "call": of(meta({"as_expr": {"expr_str": "__import__('posix').system('true')", "hint": None}}, 3)),
}, Refused("ExportSymbolic"))  # fmt: skip
add("E07", "a dtype or layout that rustload does not know", {
    "dtype": of(meta(2, 3, dtype=14)), "zero": of(meta(2, 3, dtype=0)), "large": of(meta(2, 3, dtype=2**63)), "sparse": of(meta(2, 3, layout=1)),
    "mkldnn": of(meta(2, 3, layout=6)), "no_layout": of(meta(2, 3, layout=0)),
}, Refused("TensorMetadata"))  # fmt: skip
add("E07", "", {"name": of(meta(2, 3, dtype="float32")), "negative": of(meta(2, 3, dtype=-1))}, malformed)
add("E08", "nested or long JSON", {
    "deep": raw('{"config": {"w": %}, "x": ' + "[" * 200_000 + "]" * 200_000 + "}"),
    "deep_field": raw('{"config": {"w": ' + json.dumps(payload())[:-1] + ', "x": ' + '{"a":' * 5000 + "1" + "}" * 5000 + "}}}"),
    "deep_config": raw('{"config":' * 5000 + "{}" + "}" * 5000),
}, malformed)  # fmt: skip
add("E08", "", {"rank": of(meta(*[1] * 65)), "ranks": of(meta(*[1] * 100_000))}, Refused("Limit", "rank"))
add("E08", "", {"unknown": raw('{"config": {"w": %}, "x": [' + "[[1, null]]," * 100_000 + "0]}")}, opens)


def many() -> bytes:
    one = json.dumps(payload())
    return b'{"config": {' + ", ".join(f'"w{at}": {one}' for at in range(20_000)).encode() + b"}}"


add("E09", "very many names of one storage", {"": lambda: export(many()).bytes()},
    Opens("opens", lambda ckpt: None if len(ckpt) == 20_000 else 1 / 0), tensors=20_000)  # fmt: skip


def packed(data: bytes) -> bytes:
    """A program whose configuration is deflated."""
    return export().spoil("data/weights/model_weights_config.json", data=data, method=8).bytes()


add("E10", "a configuration that inflates to far more than its size", {
    "spaces": lambda: packed(b'{"config": {}}' + b" " * (64 << 20)),
}, Refused("InflateRatio", "inflate_ratio"), metadata=64 << 20)  # fmt: skip
add("E10", "", {"deflated": lambda: packed(config({"w": payload()}))}, opens)
add("E11", "another version or format of the archive", {
    "version": export().spoil("archive_version", data=b"1"), "text": export().spoil("archive_version", data=b"0\n"),
    "empty": export().spoil("archive_version", data=b""), "long": export().spoil("archive_version", data=b"0" * 1000),
    "format": export().spoil("archive_format", data=b"pt3"), "newline": export().spoil("archive_format", data=b"pt2\n"),
}, Refused("ExportVersion"))  # fmt: skip
add("E11", "", {"zip": export().spoil(".data/version", data=b"99\n")}, Refused("ZipVersion"))
add("E11", "", {"absent": export().drop("archive_version")}, opens)
add("E12", "a byteorder that is none", {
    "middle": export().spoil("byteorder", data=b"middle"), "case": export().spoil("byteorder", data=b"Little"),
}, Refused("ByteOrder"))  # fmt: skip


def swapped(ckpt) -> None:
    import struct

    assert ckpt["w"].materialize(framework="dlpack").tobytes() == struct.pack("<6f", *range(6))


add("E12", "", {
    "big": export(weight_0=b"".join(SIX[at : at + 4][::-1] for at in range(0, 24, 4))).spoil("byteorder", data=b"big"),
}, Opens("opens, swapped", swapped))  # fmt: skip
add("E13", "a member that is described in two ways", {
    "dtype": export({"a": payload(), "b": payload("weight_0", meta(2, 3, dtype=4))}),
    "device": export({"a": payload(), "b": payload("weight_0", meta(2, 3, device={"type": "cuda", "index": 0}))}),
    "pickled": export({"a": payload(), "b": payload(use_pickle=True)}),
    "pickled_twice": export({"a": payload("weight_1", use_pickle=True), "b": payload("weight_1", use_pickle=True)}, weight_1=torch_zip(pickle(tensor()), {"0": SIX})),
    "meta": of(meta(2, 3, device={"type": "meta", "index": None})),
}, conflict)  # fmt: skip


def twice(**members: bytes) -> Zip:
    """A program with another one, `other`."""
    found = export()
    for name, data in {
        "data/weights/other_weights_config.json": config({"w": payload()}),
        "data/constants/other_constants_config.json": config({}),
        "models/other.json": json.dumps(GRAPH).encode(),
        **members,
    }.items():
        found.add(name, data)
    return found


def both(*names: str) -> Opens:
    return holds(*names, format="torch-export")


add("E14", "configurations that disagree", {
    "constant": export(constants={"w": payload("tensor_0")}, tensor_0=SIX),
}, malformed)  # fmt: skip
add("E14", "", {
    "pickle": export().add("data/weights/model.pt", torch_zip(pickle(named({"w": tensor()})), {"0": SIX})),
    "constants": export().add("data/constants/model.pt", b""),
    "torch_zip": export().add("data.pkl", pickle(named({"w": tensor()}))),
    "unnamed": export().add("models/.json", b"{}"), "no_json": export().add("models/other.pt", b"{}"),
    "kind": export(constants={"c": payload("weight_0")}, weight_1=SIX).add("data/constants/weight_0", SIX),
}, malformed)  # fmt: skip
add("E14", "", {"two": twice()}, both("model.w", "other.w"))
add("E14", "", {"same_name": twice(**{
    "data/weights/other_weights_config.json": config({}), "data/weights/model.a_weights_config.json": config({"b": payload()}),
    "data/constants/model.a_constants_config.json": config({}), "models/model.a.json": b"{}",
    "data/weights/weight_1": SIX,
}).spoil("data/weights/model_weights_config.json", data=config({"a.b": payload()})).drop("data/weights/other_weights_config.json")},
    missing)  # fmt: skip
add("E14", "", {"outside": export().add_path(b"elsewhere/x")}, Refused("ZipName"))
add("E14", "", {"case": export().rename("archive_version", "Archive_Version")}, Refused("ZipCase"))
add("E14", "", {
    "null": export({"w": payload("weight_0", None)}), "list": raw("[]"), "no_config": raw("{}"), "cut": raw('{"config": {"w": '),
    "utf16": export('{"config": {}}'.encode("utf-16")), "nul": export(b""), "after": raw('{"config": {"w": %}} {}'),
}, malformed)  # fmt: skip


def lists(*classes: tuple[str, list[str]], names: tuple[str, ...] = ("w",)) -> Callable[[Any], None]:
    def check(ckpt) -> None:
        assert list(ckpt) == list(names)
        assert [(found.class_name, found.at) for found in ckpt.opaque] == list(classes)

    return check


evil = torch_zip(pickle(SYSTEM), {})
add("E15", "a call in a pickled tensor", {
    "weight": export({"w": payload(), "x": payload("weight_1", use_pickle=True)}, weight_1=evil),
    "constant": export(constants={"x": payload("tensor_0", use_pickle=True)}, tensor_0=evil),
}, Opens("kept as data", lists(("posix.system", ["x"]))), "DisallowedGlobal", verdict="would execute", runs=RUNS)  # fmt: skip
add("E15", "", {"strict": export({"x": payload(use_pickle=True)}, weight_0=evil)}, Refused("DisallowedGlobal"),
    options={"unknown": "error"}, runs=RUNS)  # fmt: skip
add("E15", "", {
    "no_zip": export({"x": payload(use_pickle=True)}, weight_0=pickle(SYSTEM)), "raw": export({"x": payload(use_pickle=True)}),
    "empty": export({"x": payload(use_pickle=True)}, weight_0=b""),
}, {"no_zip": Refused("ZipAmbiguous"), "raw": Refused("ZipAmbiguous"), "empty": malformed}, "")  # fmt: skip
add("E16", "a call in the sample inputs", {"zip": export(inputs=evil), "legacy": export(inputs=pickle(SYSTEM))}, opens,
    "DisallowedGlobal", verdict="would execute", runs=RUNS)  # fmt: skip
add("E17", "a call in a custom object", {
    "opaque": export(constants={"x": payload("opaque_obj_0", None, use_pickle=True)}, opaque_obj_0=pickle(SYSTEM)),
}, Opens("listed", lists(("builtins.object", ["x"]))), "DisallowedGlobal", verdict="would execute", runs=RUNS)  # fmt: skip
add("E17", "", {
    "custom": export(constants={"x": payload("custom_obj_0", None, use_pickle=True)}, custom_obj_0=evil),
}, Opens("listed", lists(("torch.ScriptObject", ["x"]))), "DisallowedGlobal", verdict="would execute", runs=RUNS)  # fmt: skip
add("E17", "", {
    "strict": export(constants={"x": payload("opaque_obj_0", None, use_pickle=True)}, opaque_obj_0=pickle(NONE)),
}, Refused("DisallowedGlobal"), "", options={"unknown": "error"})  # fmt: skip


def old(state: bytes, constants: bytes = b"", **members: bytes) -> Zip:
    """A program as torch 2.1 to 2.7 wrote it: without a root folder, all of it pickled."""
    found = Zip().with_(members=[])
    for name, data in {
        "serialized_exported_program.json": json.dumps(GRAPH).encode(),
        "serialized_state_dict.pt": state,
        "serialized_constants.pt": constants,
        "serialized_example_inputs.pt": torch_zip(pickle(NONE), {}),
        "version": b"8.2",
        **members,
    }.items():
        found.add_path(name.encode(), data)
    return found


def pickled(state: bytes, constants: bytes = b"") -> Zip:
    """A program of torch 2.8, with archives of `torch.save` in place of configurations."""
    found = (
        export()
        .drop("data/weights/model_weights_config.json")
        .drop("data/constants/model_constants_config.json")
        .drop("data/weights/weight_0")
    )
    return found.add("data/weights/model.pt", state).add("data/constants/model.pt", constants)


good = torch_zip(pickle(named({"w": tensor()})), {"0": SIX})
hidden = torch_zip(pickle(named({"w": tensor(), "x": SYSTEM})), {"0": SIX})
add("E18", "a call in the pickled weights of an older archive", {
    "weights": pickled(hidden), "old": old(hidden),
}, Opens("kept as data", lists(("posix.system", ["x"]))), "DisallowedGlobal", verdict="would execute", runs=RUNS)  # fmt: skip
add("E18", "", {"old_inputs": old(good, serialized_example_inputs=b"")
    .with_(members=[*old(good).members[:3], *old(good).members[4:]]).add_path(b"serialized_example_inputs.pt", evil)},
    opens, "DisallowedGlobal", verdict="would execute", runs=RUNS)  # fmt: skip
add("E18", "", {"no_dict": pickled(good, torch_zip(pickle(SYSTEM), {}))}, malformed, "DisallowedGlobal",
    verdict="would execute", runs=RUNS)  # fmt: skip
add("E18", "", {
    "fine": pickled(good), "old_fine": old(good), "old_json": old(good).with_(members=[m for m in old(good).members if m.name != b"serialized_state_dict.pt"])
    .add_path(b"serialized_state_dict.json", good),
}, opens, verdict="inert")  # fmt: skip
add("E18", "", {
    "both": old(good, **{"serialized_state_dict.json": good}), "missing": old(good).with_(members=old(good).members[:1] + old(good).members[2:]),
    "version": old(good, version=b"new"), "no_version": old(good).with_(members=old(good).members[:-1]),
}, {"both": malformed, "missing": missing, "version": Refused("ExportVersion"), "no_version": missing})  # fmt: skip


def says(text: str) -> dict[str, Any]:
    """A graph with this size."""
    return in_graph(sym_int_values={"s0": {"as_expr": {"expr_str": text, "hint": {"as_int": 2}}}})


def in_graph(**fields: Any) -> dict[str, Any]:
    """A program whose graph has these fields."""
    return {**GRAPH, "graph_module": {"graph": {"nodes": [], **fields}}}


add("E19", "code in an expression of the graph, which torch evaluates", {
    "call": export(graph=says("__import__('posix').system('true')")), "builtin": export(graph=says("exec('x')")),
    "attribute": export(graph=says("Symbol('s0').func")), "called": export(graph=says("(eval)('1')")),
    "escaped": export(graph=json.dumps(says("__import__('posix').abort()")).replace("expr_str", "expr\\u005fstr").encode()),
    "twice": export(graph=b'{"expr_str": "eval(s0)", "expr_str": "s0"}'),
    "deflated": export(graph=says("eval(s0)")).spoil("models/model.json", method=8),
    "guard": export(graph={**GRAPH, "guards_code": ["L['x'].size()[0] == 2", "__import__('posix').system('true')"]}),
    "old": old(good).with_(members=old(good).members[1:]).add_path(b"serialized_exported_program.json", json.dumps(says("eval(s0)")).encode()),
}, opens, "CodeInArchive", verdict="would execute")  # fmt: skip
add("E19", "", {
    "function": export(graph=says("Lambda(s0)")), "guard_function": export(graph={**GRAPH, "guards_code": ["f(L['x'])"]}),
}, opens, "CodeInArchive", verdict="unknown")  # fmt: skip
add("E19", "", {
    "plain": export(graph=says("Max(Integer(2), FloorDiv(Symbol('s0', positive=True, integer=True), Integer(3)))")),
}, opens, verdict="inert")  # fmt: skip
add("E19", "", {"bytes": export(graph=b'{"expr_str": "\xff"}')}, opens, verdict="unknown")
add("E20", "native code", {
    "compiled": export().add("data/aotinductor/model/model.so", b"\x7fELF" + bytes(60)),
    "source": export().add("data/aotinductor/model/model.wrapper.cpp", b"int main() {}"),
}, opens, "CodeInArchive", verdict="would execute")  # fmt: skip
add(
    "E20",
    "",
    {"library": export().add("extra/helper.so", b"\x7fELF" + bytes(60))},
    opens,
    "CodeInArchive",
    verdict="unknown",
)
add("E20", "", {"alone": export().drop("models/model.json").add("data/aotinductor/model/model.so", b"\x7fELF")}, Refused("UnknownFormat"),
    "CodeInArchive", verdict="would execute")  # fmt: skip


def touch(ckpt) -> None:
    ckpt["w"].materialize(framework="dlpack")


add("E21", "a tensor without bytes", {
    "fake": export(weight_0=b""), "meta": export({"w": payload("weight_0", meta(2, 3, device={"type": "meta", "index": None}))}, weight_0=b""),
}, Fails("MetaTensor", touch, "reading"), "")  # fmt: skip
add("E21", "", {"empty": export({"w": payload("weight_0", meta(0, 3))}, weight_0=b"")}, opens)
add("E22", "a wrong checksum", {
    "config": export().spoil("data/weights/model_weights_config.json", local={"crc": 1}, central={"crc": 1}),
    "weight": export().spoil("data/weights/weight_0", local={"crc": 1}, central={"crc": 1}),
}, Refused("ZipCrc"), "", options={"verify": True})  # fmt: skip
add("E23", "very many nested archives of deflated pickles", {
    "": lambda: nested_bombs(40, 15 << 20),
}, Refused("Limit", "pickle_bytes"), "", options={"limits": {"pickle_bytes": 64 << 20}}, metadata=64 << 20)  # fmt: skip


def nested_bombs(count: int, size: int) -> bytes:
    """A program with tensors whose pickles inflate to much more than they have in the file."""
    one = Zip(pickle(NONE, b"N0" * (size // 2)), {}).spoil("data.pkl", method=8).bytes()
    names = [f"weight_{at}" for at in range(1, count + 1)]
    weights = {"w": payload()} | {name: payload(name, use_pickle=True) for name in names}
    return export(weights, **dict.fromkeys(names, one)).bytes()


def spec(kind: str | None, context: Any, *children: Any) -> dict[str, Any]:
    """A node of a pytree."""
    return {"type": kind, "context": context, "children_spec": list(children)}


LEAF = spec(None, None)


def structure(root: Any, protocol: Any = 1) -> Zip:
    """A program whose inputs have this structure."""
    call = {
        "fqn": "",
        "signature": {
            "inputs": [],
            "outputs": [],
            "in_spec": json.dumps([protocol, root]),
            "out_spec": json.dumps([1, LEAF]),
        },
    }
    return export(graph={**GRAPH, "graph_module": {"graph": {"nodes": []}, "module_call_graph": [call]}})


def factory(module: str, name: str, **more: Any) -> dict[str, Any]:
    return spec("collections.defaultdict", {
        "default_factory_module": module, "default_factory_name": name, "dict_context": ["a"], **more}, LEAF)  # fmt: skip


ENUM = json.dumps([{"__enum__": True, "fqn": "antigravity:x", "name": "a"}])
add("E24", "a pytree that names what torch imports", {
    "factory": structure(factory("antigravity", "x")), "inside": structure(spec("builtins.tuple", "null", LEAF, factory("posix", "system"))),
    "enum": structure(spec("builtins.dict", ENUM, LEAF)), "enum_of_a_tuple": structure(spec("builtins.tuple", ENUM)),
    "escaped": structure(spec("builtins.dict", ENUM.replace("__enum__", "\\u005f_enum__"), LEAF)),
    "old": old(good).with_(members=old(good).members[1:]).add_path(b"serialized_exported_program.json", json.dumps({"in_spec": json.dumps([1, factory("antigravity", "x")])}).encode()),
}, opens, "CodeInArchive", verdict="would execute")  # fmt: skip
add("E24", "", {
    "type": structure(spec("mine.Type", "null")), "namedtuple": structure(spec("collections.namedtuple", "mine.Point", LEAF)),
    "key": structure(spec("builtins.dict", json.dumps(["x=open('x')"]), LEAF)), "protocol": structure(LEAF, 2),
    "context": structure(spec("builtins.tuple", "[]")), "more": structure({**LEAF, "more": 1}), "factory_more": structure(factory("builtins", "list", more=1)),
}, opens, "CodeInArchive", verdict="unknown")  # fmt: skip
add("E24", "", {
    "fine": structure(spec("builtins.tuple", "null", LEAF, spec("builtins.dict", '["a b", 1]', LEAF, LEAF), factory("builtins", "list"))),
}, opens, verdict="inert")  # fmt: skip


def node(**fields: Any) -> Zip:
    """A program with one node."""
    return export(
        graph=in_graph(
            nodes=[
                {"target": "torch.ops.aten.relu.default", "inputs": [], "outputs": [], "metadata": {}}
                | fields
            ]
        )
    )


INJECTED = "x=__import__('posix').system('true')"
add("E25", "a name that torch writes into the source of a function", {
    "input": export(graph=in_graph(inputs=[{"as_tensor": {"name": INJECTED}}])), "node": node(name=INJECTED),
    "output": node(outputs=[{"as_tensor": {"name": "x;y"}}]), "attribute": node(outputs=[{"as_tensor": {"name": "torch.load"}}]),
    "symbol": node(outputs=[{"as_sym_int": {"as_name": "a b"}}]), "argument": export(graph={**GRAPH, "graph_module": {"module_call_graph": [{
        "fqn": "", "signature": {"inputs": [], "outputs": [], "in_spec": json.dumps([1, LEAF]), "out_spec": json.dumps([1, LEAF]),
        "forward_arg_names": [INJECTED]}}]}}),
    "parameter": export(graph={**GRAPH, "graph_module": {"signature": {"input_specs": [{"parameter": {"arg": {"name": "w"}, "parameter_name": "w.__class__"}}]}}}),
}, opens, "", verdict="unknown")  # fmt: skip
add("E26", "a graph with more or other things than its schema has", {
    "key": export(graph={**GRAPH, "more": 1}), "argument": export(graph=in_graph(inputs=[{"as_more": 1}])), "two": export(graph=in_graph(inputs=[{"as_none": True, "as_int": 1}])),
    "type": export(graph=in_graph(inputs=[{"as_tensor": {"name": ["x"]}}])), "metadata": node(metadata={"more": "x"}), "number": export(graph=in_graph(inputs=[{"as_int": 1.5}])),
    "path": node(inputs=[{"name": "a", "arg": {"as_string": "/etc/passwd"}}]), "twice": export(graph=b'{"guards_code": [], "guards_code": []}'),
    "list": export(graph=b"[]"), "damaged": export(graph=b"{"), "deep": export(graph=b'{"graph_module":' * 1000 + b"1" + b"}" * 1000),
    "config": raw('{"config": {"w": %}, "more": 1}'), "extra": export().add("extra/a.json", b"{}"), "text": export().add("extra/a", b"x"),
}, opens, "", verdict="unknown")  # fmt: skip
add("E27", "an operator that does more than compute", {
    "os": node(target="torch.os.system"), "file": node(target="torch.ops.aten.from_file"), "load": node(target="torch.load"),
    "operand": node(inputs=[{"name": "a", "arg": {"as_operator": "torch.hub.load"}}]),
}, opens, "CodeInArchive", verdict="would execute")  # fmt: skip
add("E27", "", {
    "library": node(target="torch.ops.load_library"), "mine": node(target="torch.ops.mine.run.default"), "attribute": node(target="torch.ops.aten.relu.default.__class__"),
    "getter": node(target="_operator.attrgetter"), "extension": node(target="#mine:run"),
}, opens, "CodeInArchive", verdict="unknown")  # fmt: skip
add("E27", "", {"fine": node()}, opens, verdict="inert")

assert isinstance(opens, Outcome)
