"""The object tree, names and paths: everything that a pickle holds is data, equal to what was saved."""

import argparse
import collections
import copy
import datetime
import enum
import fractions
import gc
import io
import json
import math
import pathlib
import pickle
import sys
import time

import numpy as np
import pytest
import torch
from attacks import pickles as asm
from attacks.zips import around
from quiet import within
from support import Reduced, assert_same_bits, pickled, saved, torch_zip

import rustload
import rustload.torch


class Custom:
    """A class that no reader knows."""

    def __init__(self, **state):
        self.__dict__.update(state)


class Colour(enum.Enum):
    RED = 1


def objects(obj, **options):
    return rustload.open(saved(obj, **options), framework="torch").objects


PLAIN = [
    None, True, False, 0, 1, -1, 255, 256, -(2**31), 2**31, 2**63, -(2**63), 2**64, 2**200, -(2**200), 0.0, -0.0, 1.5,
    math.inf, -math.inf, 1e-320, "", "text", "ünï\U0001f600", "a\0b", "\ud800", b"", b"bytes\0\xff", bytearray(b"xyz"),
    1 + 2j, complex(0, -math.inf), [], [1, [2, [3]]], (), (1,), (1, 2, 3), (1, (2, (3,))), {}, {"a": {"b": [1, (2,)]}},
    {1: "int", None: "none", 2.5: "float", b"k": "bytes", (1, "t"): "tuple", False: "false"}, set(), {1, 2, 3},
    frozenset(), frozenset({"a"}), collections.OrderedDict([("z", 1), ("a", 2)]), collections.deque([1, 2], maxlen=5),
    collections.Counter("hello"), "x" * 100_000, list(range(3000)), {"k" * 300: "v" * 300},
]  # fmt: skip


@pytest.mark.parametrize("value", PLAIN, ids=lambda value: repr(value)[:30])
@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_plain_values_equal_what_was_saved(value, protocol):
    found = rustload.open(torch_zip(pickle.dumps({"v": value}, protocol))).objects["v"]
    assert found == value
    assert type(found) is type(value)
    assert repr(found) == repr(value)


@pytest.mark.parametrize("value", PLAIN, ids=lambda value: repr(value)[:30])
def test_a_bare_value_is_the_tree(value):
    ckpt = rustload.open(torch_zip(pickled(value)))
    assert ckpt.objects == value
    assert len(ckpt) == 0


def test_nan_stays_nan():
    assert math.isnan(objects({"x": math.nan})["x"])


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_a_list_made_by_a_call_is_a_list(protocol):
    made = Reduced(list, ((1, 2, 3),))
    found = rustload.open(saved({"x": made}, pickle_protocol=protocol)).objects["x"]
    assert (type(found), found) == (list, [1, 2, 3])


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_a_default_dict_keeps_its_items(protocol):
    value = collections.defaultdict(list, a=[1])
    found = rustload.open(torch_zip(pickle.dumps(value, protocol))).objects
    assert isinstance(found, collections.defaultdict)
    assert dict(found) == {"a": [1]}


def test_an_ordered_dict_keeps_its_metadata():
    state = torch.nn.Linear(2, 3).state_dict()
    found = objects(state)
    assert type(found) is collections.OrderedDict
    assert found._metadata == state._metadata
    assert list(found) == ["weight", "bias"]


def test_a_tensor_in_the_tree_is_its_handle():
    tree = objects({"m": [torch.arange(3), {"w": torch.nn.Parameter(torch.ones(2))}], "n": 5})
    assert tree["n"] == 5
    assert isinstance(tree["m"][0], rustload.LazyTensor)
    assert tree["m"][0].materialize().tolist() == [0, 1, 2]
    assert tree["m"][1]["w"].is_parameter
    assert tree["m"][1]["w"].name == "m.1.w"


def test_a_tensor_at_two_paths_is_one_handle_with_two_names():
    value = torch.ones(2)
    ckpt = rustload.open(saved({"a": value, "b": [value]}), framework="torch")
    assert list(ckpt) == ["a", "b.0"]
    assert ckpt.objects["a"] is ckpt.objects["b"][0]


def test_shared_and_recursive_containers_keep_their_identity():
    shared = [1]
    loop: list = [shared, shared]
    loop.append(loop)
    ring: dict = {"x": shared}
    ring["self"] = ring
    pair: list = []
    pair.append((pair,))
    found = rustload.open(torch_zip(pickled({"loop": loop, "ring": ring, "pair": pair}))).objects
    assert found["loop"][0] is found["loop"][1] is found["ring"]["x"]
    assert found["loop"][2] is found["loop"]
    assert found["ring"]["self"] is found["ring"]
    assert found["pair"][0][0] is found["pair"]


def test_tensors_inside_a_cycle_have_one_name_each():
    loop: dict = {"t": torch.ones(1)}
    loop["again"] = loop
    assert list(rustload.open(saved(loop))) == ["t"]


def test_objects_is_built_once(simple):
    ckpt = rustload.open(simple)
    assert ckpt.objects is ckpt.objects


def test_the_tree_of_safetensors_is_a_dict_of_its_tensors(save):
    tree = rustload.open(save({"a.b": torch.ones(1), "c": torch.ones(2)}, "m.safetensors")).objects
    assert type(tree) is dict
    assert {name: lazy.shape for name, lazy in tree.items()} == {"a.b": (1,), "c": (2,)}


def test_trees_of_several_pickles_are_merged_where_they_are_dicts(tmp_path):
    inner = [collections.OrderedDict(a=torch.ones(1)), collections.OrderedDict(b=torch.zeros(1))]
    for name, state in zip("ab", inner, strict=True):
        state._metadata = {name: {"version": 2}}
    one, two, three = (tmp_path / name for name in ("one.bin", "two.bin", "three.bin"))
    torch.save({"state": inner[0], "n": 1, "late": None}, one)
    torch.save({"state": inner[1], "n": 2, "late": [torch.ones(2)], "m": {}}, two)
    torch.save([torch.ones(1)], three)
    ckpt = rustload.open([one, two])
    for tree in (ckpt.objects, rustload.torch.load([one, two])):
        assert (list(tree), tree["n"], len(tree["late"])) == (["state", "n", "late", "m"], 1, 1)
        assert {name: tree["state"][name].item() for name in tree["state"]} == {"a": 1, "b": 0}
        assert tree["state"]._metadata == {"a": {"version": 2}, "b": {"version": 2}}
    assert {name: ckpt.objects[name] for name in ("state", "late")} == {
        "state": {"a": ckpt["state.a"], "b": ckpt["state.b"]},
        "late": [ckpt["late.0"]],
    }
    rustload.save(ckpt, tmp_path / "m.safetensors", keep_nesting=True)
    assert list(rustload.open(tmp_path / "m.safetensors").objects["state"]) == ["a", "b"]
    for files in ([one, three], [three, one]):
        assert list(rustload.open(files).objects) == [file.name for file in files]
        assert list(rustload.torch.load(files)) == [file.name for file in files]


def test_trees_of_files_with_one_name_are_under_their_paths(tmp_path):
    paths = [tmp_path / "a" / "opt.pt", tmp_path / "b" / "opt.pt"]
    for path, value in zip(paths, ([torch.ones(1)], {"w": torch.ones(1)}), strict=True):
        path.parent.mkdir()
        torch.save(value, path)
    for tree in (rustload.open(paths).objects, rustload.torch.load(paths)):
        assert list(tree) == [str(path) for path in paths]


@pytest.mark.parametrize("first", [1, 2])
def test_a_tensor_in_several_files_is_that_of_the_index(first, tmp_path):
    files = {number: f"pytorch_model-0000{number}-of-00002.bin" for number in (1, 2)}
    for number, file in files.items():
        tensors = {"a": torch.full((1,), number), "s": torch.full((2,), number).to_sparse()}
        torch.save({"deep": tensors, f"own{number}": torch.full((1,), number)}, tmp_path / file)
    names = {"deep.a": first, "deep.s.indices": first, "deep.s.values": first, "own1": 1, "own2": 2}
    index = {"metadata": {}, "weight_map": {name: files[number] for name, number in names.items()}}
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    ckpt = rustload.open(tmp_path)
    assert int(ckpt["deep.a"].item()) == first
    assert ckpt.objects["deep"]["a"] == ckpt["deep.a"]
    for tree in (ckpt.objects, rustload.torch.load(tmp_path)):
        assert list(tree) == ["deep", "own1", "own2"]
        found = tree["deep"]["s"]
        found = found.torch() if isinstance(found, rustload.Sparse) else found
        assert (tree["deep"]["a"].item(), found.to_dense()[0].item()) == (first, first)


def test_values_beside_safetensors_files_are_kept(save, tmp_path):
    paths = [save({"a": torch.ones(1)}, "m.safetensors"), save({"b": {"w": torch.ones(1)}, "n": 5}, "n.pt")]
    for files in (paths, paths[::-1]):
        tree = rustload.open(files).objects
        assert (tree["n"], tree["b"]["w"].name, tree["a"].name) == (5, "b.w", "a")
        report = rustload.save(rustload.open(files), tmp_path / "out.safetensors", overwrite=True)
        assert report.skipped_at == ("n",)


def test_small_torch_values_are_data():
    tree = objects({"size": torch.Size([2, 3]), "dtype": torch.float16, "device": torch.device("cuda:1")})
    assert tuple(tree["size"]) == (2, 3)
    assert "float16" in repr(tree["dtype"])
    assert "device" in repr(tree["device"])


# Classes that are kept as data.


def test_a_namespace_is_opaque_with_its_state():
    ckpt = rustload.open(
        saved({"w": torch.ones(2), "args": argparse.Namespace(lr=0.1, layers=[1, 2])}), framework="torch"
    )
    assert list(ckpt) == ["w"]
    args = ckpt.objects["args"]
    assert isinstance(args, rustload.Opaque)
    assert args.class_name == "argparse.Namespace"
    assert args.state == {"lr": 0.1, "layers": [1, 2]}
    assert ckpt.opaque == [("argparse.Namespace", 1, ["args"])]
    assert "argparse.Namespace" in ckpt.globals


class Settings(dict):
    """A mapping that no reader knows."""


def stand_ins():
    """One of each kind of stand-in, with texts that its error must have."""
    tree = objects(
        {
            "args": argparse.Namespace(lr=0.1),
            "settings": Settings(lr=0.1),
            "colour": Colour.RED,
            "label": Custom,
            "default": collections.defaultdict(list, a=[1]),
        }
    )
    return [
        (tree["args"], "'argparse.Namespace'", ".state"),
        (tree["settings"], ".Settings'", ".items"),
        (tree["colour"], ".Colour'", ".args"),
        (tree["label"], ".Custom'", "its name"),
        (tree["default"], "builtins.list", "collections.defaultdict("),
    ]


def test_the_error_for_pickling_a_stand_in_says_what_to_save():
    for value, name, advice in stand_ins():
        for dump in (pickle.dumps, lambda value: torch.save({"x": [value]}, io.BytesIO())):
            with pytest.raises(TypeError, match="cannot be pickled") as caught:
                dump(value)
            assert name in str(caught.value)
            assert advice in caught.value.__notes__[0]


def test_stand_ins_can_be_copied():
    for value, _, _ in stand_ins():
        for copied in (copy.copy(value), copy.deepcopy(value)):
            assert type(copied) is type(value)
            assert repr(copied) == repr(value)
            for name in ("state", "items", "args", "factory"):
                if isinstance(value, rustload.Opaque) or name == "factory":
                    assert getattr(copied, name, None) == getattr(value, name, None)


def test_a_deep_copy_shares_nothing_and_keeps_identities():
    args = objects({"args": argparse.Namespace(layers=[1, 2])})["args"]
    args.appended.append(args)
    shallow, deep = copy.copy(args), copy.deepcopy({"a": args, "b": args})
    assert shallow.state is args.state
    assert deep["a"] is deep["b"] is deep["a"].appended[0]
    assert deep["a"].state == args.state
    assert deep["a"].state["layers"] is not args.state["layers"]
    found = objects({"d": collections.defaultdict(list, a=[1])})["d"]
    for copied in (found.copy(), copy.copy(found), copy.deepcopy(found)):
        assert (type(copied), copied, copied.factory) == (rustload.DefaultDict, found, found.factory)
    assert copy.deepcopy(found)["a"] is not found["a"]


@pytest.mark.parametrize(
    ("value", "use", "advice"),
    [
        (argparse.Namespace(lr=1), lambda o: o.lr, ".state['lr']"),
        (argparse.Namespace(lr=1), lambda o: o["lr"], ".state['lr']"),
        (argparse.Namespace(lr=1), lambda o: o.other, "see .state"),
        (argparse.Namespace(lr=1), lambda o: o.__dict__, "see .state"),
        (Settings(lr=1), lambda o: o["lr"], "dict(value.items)['lr']"),
        (Settings(lr=1), lambda o: o.lr, "dict(value.items)['lr']"),
        (Settings(lr=1), lambda o: "lr" in o, "dict(value.items)['lr']"),
        (Settings(lr=1), lambda o: o.get("lr"), "see .items"),
        (Settings(lr=1), lambda o: dict(**o), "see .items"),
        (Settings(lr=1), dict, "see .items"),
        (Settings(lr=1), list, "see .items"),
        (Colour.RED, lambda o: o.value, "see .args"),
        (pathlib.PurePosixPath("a/b"), lambda o: o.name, "see .args"),
    ],
)
def test_the_error_for_a_member_of_the_class_says_where_its_data_is(value, use, advice):
    found = objects({"x": value})["x"]
    with pytest.raises((AttributeError, TypeError)) as caught:
        use(found)
    assert found.class_name in caught.value.__notes__[0]
    assert caught.value.__notes__[0].endswith(advice) or f": {advice} is" in caught.value.__notes__[0]


def test_a_stand_in_is_no_mapping_and_cannot_be_iterated():
    found = objects({"x": Settings(lr=1)})["x"]
    assert not isinstance(found, (collections.abc.Mapping, collections.abc.Iterable))
    assert not hasattr(found, "lr")


def test_a_tensor_inside_an_unknown_object_has_a_name_and_its_values():
    ckpt = rustload.open(saved({"m": Custom(w=torch.arange(3), n=1), "x": torch.ones(1)}), framework="torch")
    assert len(ckpt) == 2
    inside = next(name for name in ckpt if name != "x")
    assert inside.startswith("m.")
    assert inside.endswith("w")
    assert ckpt[inside].materialize().tolist() == [0, 1, 2]
    assert ckpt.objects["m"].state["w"].name == inside


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize("value", [
    Custom(a=1), Colour.RED, pathlib.PurePosixPath("a/b"), datetime.datetime(2024, 1, 2), fractions.Fraction(1, 3),
    np.dtype("float16"), np.array(["text"]), Custom, len, math.sqrt,
], ids=lambda value: type(value).__name__)  # fmt: skip
def test_what_weights_only_refuses_opens_as_a_stand_in(value, protocol):
    ckpt = rustload.open(torch_zip(pickle.dumps({"v": value, "n": 1}, protocol)))
    assert ckpt.objects["n"] == 1
    assert isinstance(ckpt.objects["v"], (rustload.Opaque, rustload.Global))
    assert ckpt.globals
    assert repr(ckpt.objects)


def test_a_class_is_a_global_that_is_not_imported():
    data = torch_zip(b"\x80\x02}q\x00X\x01\x00\x00\x00cq\x01cno_such_module.deep\nThing\nq\x02s.")
    found = rustload.open(data).objects["c"]
    assert found == rustload.Global("no_such_module.deep", "Thing")
    assert hash(found) == hash(rustload.Global("no_such_module.deep", "Thing"))
    assert repr(found) == "<global no_such_module.deep.Thing>"
    assert "no_such_module" not in sys.modules


def test_a_whole_module_opens_with_its_parameters():
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    ckpt = rustload.open(saved(model), framework="torch")
    state = model.state_dict()
    assert list(ckpt) == list(state)
    by_shape = sorted((lazy.shape, lazy.dtype) for lazy in ckpt.values())
    assert by_shape == sorted((tuple(t.shape), str(t.dtype).removeprefix("torch.")) for t in state.values())
    assert {found.class_name for found in ckpt.opaque} >= {"torch.nn.modules.linear.Linear"}


def test_unknown_error_refuses_an_unknown_class():
    data = saved({"w": torch.ones(1), "args": argparse.Namespace(lr=1)})
    with pytest.raises(rustload.DisallowedError) as caught:
        rustload.open(data, unknown="error")
    error = caught.value
    assert (error.module, error.name) == ("argparse", "Namespace")
    assert error.code == "DisallowedGlobal"
    assert isinstance(error, pickle.UnpicklingError)
    assert "malicious" not in str(error)
    assert any("unknown='keep'" in note for note in error.__notes__)


def test_unknown_error_accepts_what_torch_writes():
    state = {
        "w": torch.ones(1), "p": torch.nn.Parameter(torch.ones(2)),
        "o": torch.optim.Adam([torch.nn.Parameter(torch.ones(1))]).state_dict(),
        "s": torch.nn.Linear(2, 2).state_dict(), "u": torch.ones(2, dtype=torch.uint16), "set": {1}, "size": torch.Size([1]),
    }  # fmt: skip
    assert len(rustload.open(saved(state), unknown="error")) == 5


def test_a_value_that_the_tree_has_lost_is_counted_and_has_no_path():
    data = around(asm.named({"x": asm.made("mine.Kept")}) + asm.call("mine.lost") + b"0")
    assert rustload.open(data).opaque == [("mine.Kept", 1, ["x"]), ("mine.lost", 1, [])]


def test_opaque_counts_values_of_the_whole_file():
    many = {f"n{number}": argparse.Namespace(i=number) for number in range(40)}
    found = rustload.open(saved(many)).opaque
    assert found[0].class_name == "argparse.Namespace"
    assert found[0].count == 40
    assert 1 <= len(found[0].at) <= 40
    assert set(found[0].at) <= set(many)


# Names and paths.


@pytest.mark.parametrize(("tree", "names"), [
    ({"a": {"b": 0}}, ["a.b"]),
    ({"a": [0, 0]}, ["a.0", "a.1"]),
    ({"a": (0, {"b": 0})}, ["a.0", "a.1.b"]),
    ({0: {"exp_avg": 0}}, ["0.exp_avg"]),
    ({None: 0, True: 0, 1.5: 0}, ["None", "True", "1.5"]),
    ({("p", 1): 0, (1,): 0, (): 0, b"raw\xff": 0, -3: 0}, ['("p", 1)', "(1,)", "()", 'b"raw\\xff"', "-3"]),
    ({torch.float32: 0}, ["torch.float32"]),
    ([0, 0], ["0", "1"]),
    (0, ["tensor"]),
    ({"": 0}, [""]),
    ({"ünï \U0001f600": 0}, ["ünï \U0001f600"]),
    ({"model.0.weight": 0, "model": {"1": {"weight": 0}}}, ["model.0.weight", "model.1.weight"]),
])  # fmt: skip
def test_a_name_joins_the_path_with_dots(tree, names):
    def fill(value):
        if isinstance(value, dict):
            return {key: fill(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return type(value)(fill(item) for item in value)
        return torch.zeros(1)

    assert list(rustload.open(saved(fill(tree)))) == names


def numbered(count):
    return [torch.full((1,), float(number)) for number in range(count)]


def test_colliding_names_have_quoted_keys():
    first, second, third = numbered(3)
    ckpt = rustload.open(saved({"a": {"x.y": first}, "a.x": {"y": second}, "free": third}), framework="torch")
    assert list(ckpt) == ['a["x.y"]', '["a.x"].y', "free"]
    assert [lazy.path for lazy in ckpt.values()] == [("a", "x.y"), ("a.x", "y"), ("free",)]
    assert [lazy.materialize().item() for lazy in ckpt.values()] == [0, 1, 2]


def test_an_int_key_and_a_text_key_have_different_names():
    first, second = numbered(2)
    ckpt = rustload.open(saved({1: first, "1": second}), framework="torch")
    assert list(ckpt) == ["[1]", '["1"]']
    assert [lazy.path for lazy in ckpt.values()] == [(1,), ("1",)]
    assert [type(lazy.path[0]) for lazy in ckpt.values()] == [int, str]


def test_names_are_unique_whatever_keys_collide():
    values = numbered(6)
    tree = {
        "a": {"b": values[0]}, "a.b": values[1], 'a["b"]': values[2], "x": [values[3]], "x.0": values[4], "x[0]": values[5],
    }  # fmt: skip
    ckpt = rustload.open(saved(tree), framework="torch")
    assert len(set(ckpt)) == len(ckpt) == 6
    assert sorted(ckpt[name].materialize().item() for name in ckpt) == [0, 1, 2, 3, 4, 5]


W = asm.tensor()
REACHABLE = {
    "dict_state.w": asm.made("mine.A", state=asm.named({"w": W})),
    "slots.w": asm.made("mine.B", state=asm.NONE + asm.named({"w": W}) + b"\x86"),
    "both.a both.b": asm.made("mine.B", state=asm.named({"a": W}) + asm.named({"b": W}) + b"\x86"),
    "called.args.1": asm.call("mine.make", asm.integer(1), W),
    "items.k items.l": asm.made("mine.D") + asm.text("k") + W + b"s(" + asm.text("l") + W + b"u",
    "appended.0 appended.1": asm.made("mine.L") + W + b"a(" + W + b"e",
    "list_state.args.0.0": asm.made("mine.E", state=asm.listed(W)),
    "inst.args.0": b"(" + W + b"imine\nF\n",
    "old.w": asm.call("copyreg._reconstructor", asm.name("mine.Old"), asm.name("builtins.object"), asm.NONE)
    + asm.named({"w": W}) + b"b",
    "set_twice.w": asm.made("mine.A", state=asm.mapped((asm.text("w"), W), (asm.text("w"), W))),
    "ordered.w ordered.extra": asm.ordered((asm.text("w"), W)) + asm.named({"extra": W}) + b"b",
    "default.a": asm.call("collections.defaultdict", asm.name("builtins.list")) + asm.text("a") + W + b"s",
    "from_pairs.b": asm.call("collections.OrderedDict", asm.listed(asm.listed(asm.text("b"), W))),
    "deque.0": asm.call("collections.deque", b"]", asm.NONE) + W + b"a",
}  # fmt: skip


def test_tensors_in_objects_of_all_kinds_have_names():
    for names, value in REACHABLE.items():
        key = names.partition(".")[0].partition("[")[0]
        assert list(rustload.open(around(asm.named({key: value})))) == names.split(), key


def test_names_that_collide_even_with_brackets_get_an_unused_number():
    """A state key and an item of one object have the same name; the third name is one with a number."""
    value = (
        asm.made("mine.Dict", state=asm.named({"w": W}))
        + b"("
        + asm.text("w")
        + W
        + asm.text("w#2")
        + W
        + b"u"
    )
    found = list(rustload.open(around(value)))
    assert len(set(found)) == 3
    assert {"w", "w#2"} < set(found)


def test_a_path_leads_through_the_tree_to_the_handle():
    ckpt = rustload.open(saved({"a": [{"b": torch.ones(1)}, (torch.ones(2), {5: torch.ones(3)})]}))
    for lazy in ckpt.values():
        found = ckpt.objects
        for step in lazy.path:
            found = found[step]
        assert found.name == lazy.name


def test_a_path_in_safetensors_is_the_name(save):
    assert rustload.open(save({"a.b": torch.ones(1)}, "m.safetensors"))["a.b"].path == ("a.b",)


def test_a_bare_tensor_is_called_tensor():
    value = torch.arange(4)
    ckpt = rustload.open(saved(value), framework="torch")
    assert list(ckpt) == ["tensor"]
    assert ckpt["tensor"].path == ()
    assert_same_bits(ckpt["tensor"].materialize(), value)
    assert isinstance(ckpt.objects, rustload.LazyTensor)


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
@pytest.mark.parametrize("typed", [True, False])
def test_a_bare_storage_is_a_vector(typed):
    value = torch.arange(4, dtype=torch.int16)
    storage = value.storage() if typed else value.untyped_storage()
    ckpt = rustload.open(saved({"s": storage}), framework="torch")
    assert list(ckpt) == ["s"]
    found = ckpt["s"].materialize()
    assert found.numel() in (4, 8)
    assert_same_bits(found.view(torch.int16), value)
    assert_same_bits(
        rustload.open(saved(storage), framework="torch")["tensor"].materialize().view(torch.int16), value
    )


def test_the_error_for_a_missing_name_suggests_similar_names():
    ckpt = rustload.open(saved({"encoder.weight": torch.ones(1), "decoder.bias": torch.ones(1)}))
    with pytest.raises(rustload.TensorNotFoundError) as caught:
        ckpt["encoder.weigth"]
    assert isinstance(caught.value, KeyError)
    assert caught.value.code == "NotFound"
    assert "encoder.weigth" in str(caught.value)
    assert any("encoder.weight" in note for note in caught.value.__notes__)


def test_optimizer_state_has_names():
    parameter = torch.nn.Parameter(torch.ones(3))
    adam = torch.optim.Adam([parameter])
    parameter.sum().backward()
    adam.step()
    ckpt = rustload.open(saved({"opt": adam.state_dict(), "step": 5}))
    assert list(ckpt) == ["opt.state.0.step", "opt.state.0.exp_avg", "opt.state.0.exp_avg_sq"]
    assert ckpt.objects["opt"]["param_groups"][0]["lr"] == 0.001


def test_a_subclass_of_tensor_keeps_its_values():
    value = torch.nn.Buffer(torch.ones(2)) if hasattr(torch.nn, "Buffer") else torch.ones(2)
    ckpt = rustload.open(saved({"b": value}), framework="torch")
    assert_same_bits(ckpt["b"].materialize(), torch.ones(2))


def test_a_parameter_with_attributes_keeps_its_values():
    value = torch.nn.Parameter(torch.ones(2))
    value.tag = "mine"
    lazy = rustload.open(saved({"p": value}), framework="torch")["p"]
    assert lazy.is_parameter
    assert_same_bits(lazy.materialize(), torch.ones(2))


def test_a_sparse_tensor_does_not_hide_the_others():
    """The other tensors of the file are read."""
    state = {"sparse": torch.eye(3).to_sparse(), "w": torch.ones(2)}
    ckpt = rustload.open(saved(state), framework="torch")
    assert_same_bits(ckpt["w"].materialize(), torch.ones(2))


# Bombs: small files that expand (ATTACKS.md, R01 to R14). The tree is built or an error is raised, within bounded time.

MILLION = 1_000_000
MAX_SECONDS = 2.0  # of processor time


def kind_of_tree(data: bytes, **limits: int) -> object:
    """The type of the tree, or the limit or code of the error; building and dropping the tree take bounded time."""
    ckpt = rustload.open(torch_zip(data), limits=rustload.Limits(**limits))
    start = time.process_time()
    try:
        found = ckpt.objects
    except rustload.LimitError as error:
        found = error.name
    except rustload.FormatError as error:
        found = error.code
    kind = found if isinstance(found, str) else type(found)
    del found, ckpt
    gc.collect()
    assert within(time.process_time() - start, MAX_SECONDS)
    return kind


def short(text: str) -> bytes:
    return b"X" + len(text).to_bytes(4, "little") + text.encode()


@pytest.mark.parametrize("name", [
    b"builtins\nset", b"builtins\nfrozenset", b"collections\ndeque", b"collections\nOrderedDict", b"collections\nCounter",
    b"torch\nSize",
])  # fmt: skip
@pytest.mark.parametrize("item", [b"K\x01", b"K\x01N\x86"], ids=["number", "pair"])
def test_r10_shared_arguments_count_for_every_call(name, item):
    shared = b"](" + item * 100_000 + b"eq\x000"
    calls = b"c" + name + b"\nq\x010](" + b"h\x01h\x00\x85R" * 100_000 + b"e."
    assert kind_of_tree(b"\x80\x02" + shared + calls, export_nodes=4 * MILLION) in (list, "export_nodes")


def test_r03_shared_long_names_count_for_every_value():
    module = b"\x80\x04" + short("m" * 4000) + b"q\x000"
    names = b"".join(b"h\x00" + short(f"N{number}") + b"\x93" for number in range(200_000))
    assert kind_of_tree(module + b"](" + names + b"e.") is list
    values = b"h\x00" + short("N") + b"\x93q\x010](" + b"h\x01)R" * 200_000 + b"e."
    assert kind_of_tree(module + values) is list
    assert kind_of_tree(module + values, export_nodes=MILLION) == "export_nodes"


def test_a_shared_text_counts_for_every_call_that_decodes_it():
    shared = short("x" * MILLION) + b"q\x000" + short("latin1") + b"q\x010c_codecs\nencode\nq\x020"
    calls = b"](" + b"h\x02h\x00h\x01\x86R" * 10_000 + b"e."
    assert kind_of_tree(b"\x80\x02" + shared + calls, export_nodes=MILLION) == "export_nodes"


@pytest.mark.parametrize(("data", "found"), [
    (b"N" + b"\x85" * MILLION, "depth"), (b"]" + b"]" * MILLION + b"a" * MILLION, "depth"), (b"N" + b"\x85" * 500, tuple),
    (b"]" * 500 + b"a" * 499, list), (b"}" + b"N}" * 500 + b"s" * 500, dict), (b"cmine\nA\n)\x81" * 600 + b"b" * 599, "depth"),
])  # fmt: skip
def test_r07_r08_r14_depth_is_limited_and_deep_values_are_dropped_without_recursion(data, found):
    assert kind_of_tree(b"\x80\x02" + data + b".") == found


def test_a_path_has_keys_of_every_kind():
    keys = ["text", 5, -(2**40), 2**70, None, 2.5, True, b"bytes", (1, ("t", None)), "\ud800", ""]
    ckpt = rustload.open(saved({"a": [{key: torch.ones(1)} for key in keys]}))
    assert [lazy.path for lazy in ckpt.values()] == [("a", at, key) for at, key in enumerate(keys)]
    assert [type(lazy.path[2]) for lazy in ckpt.values()] == [type(key) for key in keys]


def nested_stand_ins(levels: int) -> bytes:
    """Values of an unknown class, each with the previous one in a list in its arguments, and in its state."""
    level = b"q\x010" + b"h\x00(]h\x01at\x81" + b"}X\1\0\0\0ah\x01\x85sb"
    return b"\x80\x02cm\nC\nq\x000N" + level * levels + b"."


@pytest.mark.parametrize("levels", [1, 2000])
def test_stand_ins_of_any_depth_can_be_copied(levels):
    found = rustload.open(nested_stand_ins(levels), limits=rustload.Limits(depth=100_000)).objects
    made = copy.deepcopy(found)
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(found)
    for _ in range(levels):
        assert isinstance(made, rustload.Opaque)
        assert made is not found
        [[inner]] = made.args
        assert made.state["a"] == (inner,)
        made, [[found]] = inner, found.args
    assert made is found is None


def test_a_deep_copy_keeps_sharing_cycles_and_other_objects():
    class Own:
        def __init__(self) -> None:
            self.inside: object = None

    value, own, default = rustload.Opaque("m.C"), Own(), rustload.DefaultDict()
    shared = [
        "shared",
        collections.OrderedDict(a=1),
        collections.deque([1], maxlen=3),
        {4},
        frozenset([(5,)]),
    ]
    shared[1]._metadata = {"version": [2]}
    own.inside = value
    default["me"] = value
    default.factory = rustload.Global("builtins", "list")
    value.args = (shared, (value,), own, default, "plain", (1, (2,)))
    value.state = {("key", 1): shared, "tuple": value.args}
    value.items = [(shared, value)]
    made = copy.deepcopy(value)
    copied, (me,), other, mapping, plain, numbers = made.args
    assert me is made is other.inside is mapping["me"]
    assert other is not own
    assert copied == shared
    assert all(one is not two for one, two in zip(copied[1:4], shared[1:4], strict=True))
    assert copied[4] is shared[4]
    assert copied[1]._metadata == {"version": [2]}
    assert copied[1]._metadata["version"] is not shared[1]._metadata["version"]
    assert copied[2].maxlen == 3
    assert mapping.factory == default.factory
    assert plain == "plain"
    assert numbers is value.args[5]
    assert made.state["tuple"] is made.args
    assert made.state["key", 1] is copied
    assert made.items == [(copied, made)]
