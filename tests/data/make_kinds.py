"""Every kind of object that is saved with torch: for each a function, in `KINDS`, that returns a new one.

The tests save them in every container and pickle protocol and compare with what `torch.load(weights_only=False)` gives. Run it to
write the files into a folder, and to count the kinds:
    python tests/data/make_kinds.py FOLDER
"""

import argparse
import collections
import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import io
import pathlib
import random
import sys
import types
import uuid
import warnings
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

KINDS = {}


def kind(function):
    KINDS[function.__name__] = function
    return function


def ramp(*shape, dtype=torch.float32):
    count = int(torch.Size(shape).numel())
    return torch.arange(1, count + 1).to(dtype).reshape(shape)


def raw(name, count):
    """A tensor of a dtype that torch has only as bits."""
    dtype = getattr(torch, name)
    return torch.arange(count * dtype.itemsize, dtype=torch.uint8).view(dtype)


# Classes of this file


class Plain:
    def __init__(self, **given):
        self.__dict__.update(given)

    def method(self):
        return self.__dict__


class Slotted:
    __slots__ = ("a", "b")


class Stateful:
    """Has a state that is not a dict."""

    def __init__(self, tensor):
        self.tensor = tensor

    def __getstate__(self):
        return [self.tensor, "state"]

    def __setstate__(self, state):
        self.tensor = state[0]


class Reduced:
    """Is reduced to a call of a function."""

    def __init__(self, tensor, name):
        self.tensor, self.name = tensor, name

    def __reduce__(self):
        return Reduced, (self.tensor, self.name)


class NewArgs:
    """Needs keyword arguments to be created (NEWOBJ_EX from protocol 4 on)."""

    def __new__(cls, *, tensor):
        made = super().__new__(cls)
        made.tensor = tensor
        return made

    def __getnewargs_ex__(self):
        return (), {"tensor": self.tensor}

    def __getstate__(self):
        return None


class Items(dict):
    pass


class Rows(list):
    pass


class Keys(set):
    pass


class Ordered(collections.OrderedDict):
    pass


class Defaults(collections.defaultdict):
    pass


class Color(enum.Enum):
    RED = 1
    BLUE = "b"


class Level(enum.IntEnum):
    LOW = 1


class Flags(enum.Flag):
    A = 1
    B = 2


class Point(NamedTuple):
    x: torch.Tensor
    label: str


@dataclasses.dataclass
class Config:
    size: int
    weights: dict
    frozen: tuple = ()


@dataclasses.dataclass(slots=True)
class Slim:
    size: int
    weight: torch.Tensor


class Subclass(torch.Tensor):
    pass


class WithState(torch.Tensor):
    """A subclass with `__setstate__`."""

    def __setstate__(self, state):
        self.told = state


class Wrapper(torch.Tensor):
    """A subclass without a storage: its tensors are attributes."""

    @staticmethod
    def __new__(cls, inner):
        made = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        if function == torch.ops.aten.detach.default:
            return cls(args[0].inner)
        raise NotImplementedError(str(function))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(5, 3)
        self.norm = nn.BatchNorm1d(3)
        self.blocks = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3, bias=False)])
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("scratch", torch.zeros(2), persistent=False)
        self.register_buffer("steps", torch.tensor(3))
        self.note = {"why": "a test", "extra": torch.ones(1)}


def function(*args):
    return args


def call(function, *args, state=None):
    """An object that pickles as a call."""
    made = Call()
    made.made = (function, args) if state is None else (function, args, state)
    return made


class Call:
    def __reduce__(self):
        return self.made


# Tensors


@kind
def tensor():
    return ramp(2, 3)


@kind
def scalar_tensor():
    return torch.tensor(2.5)


@kind
def empty_tensors():
    return [torch.empty(0), torch.empty(0, 3), torch.empty(2, 0, 5, dtype=torch.int8)]


@kind
def every_real_dtype():
    names = ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"]
    return {name: ramp(5, dtype=getattr(torch, name)) for name in names}


@kind
def unsigned_dtypes():
    return {name: ramp(5, dtype=getattr(torch, name)) for name in ("uint16", "uint32", "uint64")}


@kind
def fp8_dtypes():
    names = ["float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"]
    return {name: ramp(5).to(getattr(torch, name)) for name in names}


@kind
def complex_dtypes():
    made = torch.complex(ramp(4), -ramp(4))
    return {str(dtype): made.to(dtype) for dtype in (torch.complex32, torch.complex64, torch.complex128)}


@kind
def bits_dtypes():
    return [raw(name, 4) for name in ("bits8", "bits16", "bits1x8", "bits2x4", "bits4x2")]


@kind
def fp4():
    return raw("float4_e2m1fn_x2", 6).reshape(2, 3)


@kind
def fp8_and_bytes_on_one_storage():
    made = ramp(8).to(torch.float8_e4m3fn)
    return [made, made.view(torch.uint8)]


@kind
def strided_views():
    base = ramp(4, 6)
    return {"base": base, "t": base.T, "row": base[2], "column": base[:, 3], "odd": base[1::2, ::3]}


@kind
def views_without_their_base():
    return [ramp(100)[90:95], ramp(4, 5).T, ramp(3).expand(4, 3), ramp(6).as_strided((3, 2), (1, 2), 1)]


@kind
def channels_last():
    return ramp(1, 2, 3, 4).contiguous(memory_format=torch.channels_last)


@kind
def tied():
    w = ramp(3, 3)
    return {"a": w, "b": w, "c": [w], "view": w[1:]}


@kind
def lazy_signs():
    c = torch.complex(ramp(3), ramp(3))
    return {"conj": c.conj(), "neg": torch._neg_view(ramp(3)), "both": [c, c.conj()[1:]]}


@kind
def requires_grad():
    return [ramp(2).requires_grad_(), ramp(2)]


@kind
def high_rank():
    return torch.ones((1,) * 25).expand((1,) * 24 + (2,))


@kind
def parameter():
    return nn.Parameter(ramp(2, 2))


@kind
def frozen_parameter():
    return nn.Parameter(ramp(2), requires_grad=False)


@kind
def parameter_with_attributes():
    made = nn.Parameter(ramp(2))
    made.mask, made.note = torch.zeros(2), "x"
    return made


@kind
def buffer():
    return nn.Buffer(ramp(2))


@kind
def tensor_with_attributes():
    made = ramp(2)
    made.mask, made.nested = torch.zeros(2), {"deep": [torch.ones(1)]}
    return made


@kind
def subclass():
    made = ramp(2, 3).as_subclass(Subclass)
    made.level = 3
    return {"one": made, "plain": ramp(2).as_subclass(Subclass)}


@kind
def subclass_with_setstate():
    made = ramp(2).as_subclass(WithState)
    made.held = torch.zeros(3)
    return made


@kind
def subclass_by_the_old_function():
    args = (ramp(2)._typed_storage(), 0, (2,), (1,))
    return call(torch._tensor._rebuild_from_type, torch._utils._rebuild_tensor, Subclass, args, {"level": 3})


@kind
def wrapper_subclass():
    return {"w": Wrapper(ramp(2, 3))}


@kind
def meta_tensors():
    return [torch.empty(2, 3, device="meta"), torch.empty(4, 5, device="meta", dtype=torch.int8).T]


@kind
def nested_tensor():
    return torch.nested.nested_tensor([ramp(2), ramp(3)])


@kind
def jagged_tensor():
    return torch.nested.nested_tensor([ramp(2), ramp(3)], layout=torch.jagged)


@kind
def sparse_coo():
    return {"w": torch.eye(3).to_sparse(), "raw": torch.sparse_coo_tensor([[0, 0]], ramp(2), (4,))}


@kind
def sparse_hybrid():
    return torch.eye(3).unsqueeze(-1).expand(3, 3, 2).to_sparse(2)


@kind
def sparse_csr():
    return torch.eye(3).to_sparse_csr()


@kind
def sparse_csc():
    return torch.eye(3).to_sparse_csc()


@kind
def sparse_bsr():
    return torch.eye(4).to_sparse_bsr((2, 2))


@kind
def sparse_bsc():
    return torch.eye(4).to_sparse_bsc((2, 2))


@kind
def quantized_per_tensor():
    return [
        torch.quantize_per_tensor(ramp(2, 3), 0.1, 3, dtype)
        for dtype in (torch.qint8, torch.quint8, torch.qint32)
    ]


@kind
def quantized_per_channel():
    return torch.quantize_per_channel(
        ramp(2, 3), torch.tensor([0.1, 0.2]), torch.tensor([0, 1]), 0, torch.qint8
    )


@kind
def quantized_with_float_zero_points():
    return torch.quantize_per_channel(
        ramp(2, 3), torch.tensor([0.1, 0.2]), torch.tensor([0.5, 1]), 0, torch.quint8
    )


@kind
def quantized_in_nibbles():
    return torch.quantize_per_channel(ramp(3, 5), torch.full((3,), 2.0), torch.zeros(3), 0, torch.quint4x2)


@kind
def storages():
    w = ramp(4)
    return {"typed": w.storage(), "untyped": ramp(2).untyped_storage(), "tensor": w}


@kind
def device_tensors():
    w = ramp(3)
    utils = torch._utils
    return [
        call(utils._rebuild_device_tensor_from_numpy, ramp(2).numpy(), torch.float32, "cpu", False),
        call(utils._rebuild_device_tensor_from_cpu_tensor, w, torch.float32, "cpu", True),
        call(utils._rebuild_xla_tensor, ramp(4).numpy(), torch.float32, "cpu", False),
    ]


@kind
def tensors_of_torch_0_1():
    w = ramp(2, 3)
    return call(torch._utils._rebuild_tensor, w._typed_storage(), 1, (2, 2), (3, 1))


@kind
def old_parameter():
    return call(nn.Parameter, state=(ramp(2), None, collections.OrderedDict(), True, False))


@kind
def old_variable():
    return call(torch.autograd.Variable, ramp(2), state=(True, None, collections.OrderedDict()))


# Containers and values


@kind
def state_dict():
    return Net().state_dict()


@kind
def nested_containers():
    return {"a": [ramp(1), (ramp(2), {"b": ramp(3)})], "c": {"d": {"e": [[ramp(4)]]}}}


@kind
def odd_keys():
    return {
        0: ramp(1),
        (1, "a"): ramp(2),
        None: ramp(3),
        1.5: ramp(4),
        b"k": ramp(5),
        True: ramp(6),
        "a.b": ramp(7),
    }


@kind
def values():
    return {
        "numbers": [0, -1, 2**31, 2**63, -(2**70), 0.5, float("inf"), 1 + 2j, True, None],
        "texts": ["", "ascii", "ü", "🍰" * 100, b"", b"\x00\xff", bytearray(b"ab")],
        "sets": [set(), {1, 2}, frozenset({"a"})],
        "others": [range(3), slice(1, None), Ellipsis, NotImplemented],
        "w": ramp(1),
    }


@kind
def collections_of_all_kinds():
    return {
        "ordered": collections.OrderedDict(a=ramp(1)),
        "counter": collections.Counter("aab"),
        "deque": collections.deque([ramp(2), 1], 5),
        "default": collections.defaultdict(list, a=[ramp(3)]),
        "default of a lambda's kin": collections.defaultdict(functools.partial(int, "3"), a=ramp(4)),
        "without": collections.defaultdict(None, a=ramp(5)),
        "proxy": collections.ChainMap({"a": ramp(6)}),
    }


@kind
def container_subclasses():
    items, rows, keys, ordered = Items(a=ramp(1)), Rows([ramp(2)]), Keys([1]), Ordered(a=ramp(3))
    items.note, rows.extra = "x", ramp(4)
    defaults = Defaults(list, a=ramp(5))
    return [items, rows, keys, ordered, defaults]


@kind
def named_tuples():
    return [Point(ramp(2), "a"), torch.return_types.max((ramp(2), ramp(1))), torch.Size((2, 3))]


@kind
def cycles():
    made = {"w": ramp(2), "list": []}
    made["self"] = made
    made["list"].append(made["list"])
    holder = Plain(w=ramp(3))
    holder.me, holder.all = holder, [holder]
    made["holder"] = holder
    return made


@kind
def shared_containers():
    one = [ramp(2)]
    return {"a": one, "b": one, "c": (one, one)}


@kind
def namespace():
    return argparse.Namespace(lr=0.1, w=ramp(2), nested=argparse.Namespace(b=ramp(1)))


@kind
def simple_namespace():
    return types.SimpleNamespace(w=ramp(2), n=1)


@kind
def paths():
    return {"p": pathlib.PurePosixPath("/a/b"), "w": pathlib.PureWindowsPath("c:/d"), "t": ramp(1)}


@kind
def times():
    zone = datetime.timezone(datetime.timedelta(hours=2))
    return [
        datetime.datetime(2020, 1, 2, 3, 4, 5, 6, zone),
        datetime.date(2020, 1, 2),
        datetime.time(1, 2),
        datetime.timedelta(1, 2, 3),
        ramp(1),
    ]


@kind
def enums():
    return {"c": Color.RED, "b": Color.BLUE, "l": Level.LOW, "f": Flags.A | Flags.B, Color.RED: ramp(1)}


@kind
def numbers_of_the_library():
    return [decimal.Decimal("1.5"), fractions.Fraction(1, 3), uuid.UUID(int=5), ramp(1)]


@kind
def plain_object():
    return Plain(w=ramp(2), nested=[Plain(b=ramp(1))])


@kind
def slotted_object():
    made = Slotted()
    made.a, made.b = ramp(2), 3
    return made


@kind
def object_with_a_state():
    return Stateful(ramp(2))


@kind
def object_made_by_a_call():
    return Reduced(ramp(2), "x")


@kind
def object_made_with_keywords():
    return NewArgs(tensor=ramp(2))


@kind
def dataclass_objects():
    return [Config(3, {"w": ramp(2)}, (ramp(1),)), Slim(1, ramp(3))]


@kind
def functions_and_classes():
    return [function, Plain, functools.partial(function, ramp(2), key=ramp(1)), len, torch.relu, nn.Linear]


@kind
def bound_method():
    return Plain(w=ramp(2)).method


@kind
def torch_values():
    return [
        torch.float32, torch.qint8, torch.device("cpu"), torch.device("cuda:1"), torch.strided, torch.sparse_coo,
        torch.per_tensor_affine, torch.finfo, torch.Tensor, ramp(1),
    ]  # fmt: skip


@kind
def exceptions():
    error = ValueError("no", ramp(2))
    error.__dict__["extra"] = ramp(1)
    return error


# NumPy


@kind
def numpy_arrays():
    names = ["b1", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "c8", "c16"]
    return {name: np.arange(1, 7).astype(name).reshape(2, 3) for name in names}


@kind
def numpy_layouts():
    base = np.arange(12.0).reshape(3, 4)
    return [np.asfortranarray(base), base.T, base[::2, 1:], np.array(5.0), np.empty((0, 3)), base, base]


@kind
def numpy_big_endian():
    return [np.arange(3, dtype=">i4"), np.arange(3, dtype=">f8"), np.arange(3, dtype=">c8")]


@kind
def numpy_scalars():
    return [
        np.float32(1.5),
        np.int64(3),
        np.bool_(True),
        np.complex64(1j),
        np.float64(2.5),
        np.uint8(7),
        ramp(1),
    ]


@kind
def numpy_others():
    return {
        "objects": np.array([ramp(2), None, "x"], dtype=object),
        "records": np.zeros(2, dtype=[("a", "f4")]),
        "texts": np.array(["a", "bc"]),
        "times": np.array(["2020-01-01"], dtype="datetime64[D]"),
        "dtype": np.dtype("f4"),
        "masked": np.ma.masked_array([1.0, 2.0], [True, False]),
        "w": np.ones(2),
    }


@kind
def random_states():
    return {
        "torch": torch.get_rng_state(),
        "numpy": np.random.RandomState(0).get_state(),
        "python": random.Random(0).getstate(),
    }


@kind
def generators():
    return {
        "torch": torch.Generator().manual_seed(1),
        "numpy": np.random.default_rng(0),
        "old": np.random.RandomState(0),
    }


# Modules and training


@kind
def module():
    return Net()


@kind
def sequential():
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.LSTM(2, 3))


@kind
def module_with_weight_norm():
    return nn.utils.parametrizations.weight_norm(nn.Linear(2, 3)).state_dict()


@kind
def packed_sequence():
    return nn.utils.rnn.pack_sequence([ramp(3), ramp(2)])


@kind
def uninitialized_parameter():
    return {"u": nn.UninitializedParameter(), "w": ramp(1)}


def trained(make):
    net = nn.Linear(3, 2)
    optimizer = make(net.parameters())
    net(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    return net, optimizer


@kind
def adam_state():
    return trained(torch.optim.Adam)[1].state_dict()


@kind
def optimizer_object():
    return trained(functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9))[1]


@kind
def lightning_checkpoint():
    net, optimizer = trained(torch.optim.AdamW)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    return {
        "epoch": 3,
        "global_step": 100,
        "pytorch-lightning_version": "2.0.0",
        "state_dict": collections.OrderedDict((f"model.{name}", w) for name, w in net.state_dict().items()),
        "loops": {"fit_loop": {"state_dict": {}, "epoch_progress": {"current": {"ready": 1}}}},
        "callbacks": {"ModelCheckpoint{'monitor': 'loss'}": {"best_model_score": torch.tensor(0.5)}},
        "optimizer_states": [optimizer.state_dict()],
        "lr_schedulers": [schedule.state_dict()],
        "hyper_parameters": argparse.Namespace(
            lr=1e-3, path=pathlib.PurePosixPath("a"), metric=np.float64(0.5)
        ),
        "hparams_name": "kwargs",
    }


@kind
def grad_scaler():
    return {
        "scaler": torch.amp.GradScaler("cpu").state_dict(),
        "ema": {"shadow": ramp(2)},
        "best": np.float32(0.1),
    }


def make(name):
    """A new object of a kind, with the same random numbers each time."""
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings of beta, deprecated and prototype features
        return KINDS[name]()


def saved(name, *, zip_format=True, protocol=2):
    """The bytes that `torch.save` writes for a kind."""
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it cannot find the source of some modules
        torch.save(make(name), file, pickle_protocol=protocol, _use_new_zipfile_serialization=zip_format)
    return file.getvalue()


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name in KINDS:
        (folder / f"{name}.pt").write_bytes(saved(name))
        (folder / f"{name}.legacy.pt").write_bytes(saved(name, zip_format=False))
    print(f"{len(KINDS)} kinds in {folder}")


if __name__ == "__main__":
    main()
