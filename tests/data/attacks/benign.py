"""Two hundred honest checkpoints, as people save them: none may be refused, and none would execute.

Each is a name and a function that writes a file; torch, NumPy and safetensors do the writing.
"""

import argparse
import collections
import datetime
import enum
import pathlib
import pickle
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import nn

DTYPES = (
    "float32", "float16", "bfloat16", "float64", "int8", "uint8", "int16", "int32", "int64", "bool", "complex64",
    "float8_e4m3fn", "float8_e5m2", "uint16",
)  # fmt: skip


class Stage(enum.Enum):
    """An enum of a training script."""

    WARM = 1
    MAIN = "main"


class Config:
    """A class of a training script."""

    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)


class Block(nn.Module):
    """A module of a training script."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.proj = nn.LayerNorm(width), nn.Linear(width, width)
        self.register_buffer("mask", torch.ones(width, dtype=torch.bool), persistent=False)


def state_dict(dtype: str = "float32", layers: int = 3) -> dict[str, torch.Tensor]:
    made = {}
    for layer in range(layers):
        for part in ("q_proj", "k_proj", "mlp.up"):
            made[f"model.layers.{layer}.{part}.weight"] = torch.zeros(8, 4).to(getattr(torch, dtype))
    return made


def networks() -> dict[str, nn.Module]:
    return {
        "linear": nn.Linear(4, 3), "conv": nn.Conv2d(3, 8, 3), "batchnorm": nn.BatchNorm2d(8), "lstm": nn.LSTM(4, 4, 2),
        "embedding": nn.Embedding(10, 4), "transformer": nn.TransformerEncoderLayer(8, 2, 16), "gru": nn.GRU(4, 4),
        "sequential": nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Dropout(), nn.Linear(4, 2)),
        "attention": nn.MultiheadAttention(8, 2), "block": Block(8), "list": nn.ModuleList([nn.Linear(2, 2) for _ in range(4)]),
        "weight_norm": nn.utils.parametrizations.weight_norm(nn.Linear(3, 3)),
    }  # fmt: skip


def optimizers(model: nn.Module) -> dict[str, torch.optim.Optimizer]:
    parameters = list(model.parameters())
    return {
        "sgd": torch.optim.SGD(parameters, lr=0.1, momentum=0.9), "adam": torch.optim.Adam(parameters), "adamw": torch.optim.AdamW(parameters),
        "rmsprop": torch.optim.RMSprop(parameters), "adagrad": torch.optim.Adagrad(parameters), "nadam": torch.optim.NAdam(parameters),
        "lbfgs": torch.optim.LBFGS(parameters),
    }  # fmt: skip


def stepped(name: str) -> dict[str, Any]:
    """An optimizer's state after a step."""
    model = nn.Linear(4, 3)
    optimizer = optimizers(model)[name]

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(torch.ones(2, 4)).sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 1}


def adam_of(parameters: int) -> dict[str, Any]:
    """An Adam state of many parameters, without the parameters."""
    value = torch.zeros(2)
    state = {
        number: {"step": torch.tensor(1.0), "exp_avg": value.clone(), "exp_avg_sq": value.clone()}
        for number in range(parameters)
    }
    group = {"lr": 0.001, "betas": (0.9, 0.999), "eps": 1e-8, "params": list(range(parameters))}
    return {"optimizer": {"state": state, "param_groups": [group]}}


def lightning(**more: Any) -> dict[str, Any]:
    """A checkpoint in the form of Lightning's."""
    return {
        "epoch": 3, "global_step": 1200, "pytorch-lightning_version": "2.4.0", "state_dict": state_dict(),
        "loops": {"fit_loop": {"state_dict": {}, "epoch_progress": {"total": {"ready": 4, "completed": 3}}}},
        "callbacks": {"ModelCheckpoint{'monitor': 'val'}": {"best_model_score": torch.tensor(0.5), "best_model_path": "a/b.ckpt"}},
        "optimizer_states": [stepped("adam")["optimizer"]], "lr_schedulers": [{"base_lrs": [0.1], "last_epoch": 3}],
        "hparams_name": "kwargs", "hyper_parameters": {"lr": 0.1, "layers": [1, 2]}, **more,
    }  # fmt: skip


def records() -> list[Any]:
    """Arrays of records, packed, aligned, and with a record inside, as decision trees of scikit-learn have."""
    packed = [("left", "<i8"), ("threshold", "<f8"), ("name", "U2"), ("code", "S3")]
    aligned = np.dtype([("a", "i1"), ("b", "f8")], align=True)
    spread = np.dtype({"names": ["b", "a"], "formats": ["f4", "i2"], "offsets": [8, 0], "itemsize": 16})
    return [np.zeros(2, one) for one in (packed, aligned, spread, [("x", aligned), ("y", "u1")])]


def objects() -> dict[str, Any]:
    """Values other than tensors in checkpoints."""
    return {
        "namespace": argparse.Namespace(lr=0.1, data=pathlib.PurePosixPath("/data"), device="cuda"),
        "simple_namespace": types.SimpleNamespace(a=1), "path": pathlib.PurePosixPath("a/b"), "datetime": datetime.datetime(2024, 1, 2),
        "timedelta": datetime.timedelta(hours=1), "enum": [Stage.WARM, Stage.MAIN], "config": Config(lr=1, sub=Config(a=[1])),
        "numpy_scalars": {"loss": np.float32(0.5), "step": np.int64(3), "flag": np.bool_(True)}, "numpy_array": np.arange(6.0),
        "numpy_fortran": np.asfortranarray(np.ones((2, 3))), "numpy_names": np.array(["a", "b"]), "numpy_records": records(), "numpy_rng": np.random.RandomState(0).get_state(),
        "numpy_dtype": np.dtype("float32"), "torch_rng": torch.get_rng_state(), "ordered": collections.OrderedDict(a=1),
        "default_dict": collections.defaultdict(list, a=[1]), "counter": collections.Counter("aab"), "deque": collections.deque([1, 2], 5),
        "sets": [{1, 2}, frozenset({3})], "bytes": [b"xyz", bytearray(b"abc")], "complex": 1 + 2j, "slice": slice(1, 2), "range": range(3),
        "size": torch.Size([1, 2]), "dtype": torch.bfloat16, "device": torch.device("cuda", 1), "big_int": 1 << 100, "none": None,
        "vocabulary": {f"token{number}": number for number in range(2000)}, "history": [{"loss": number / 7} for number in range(500)],
        "int_keys": {0: torch.zeros(2), (1, "a"): torch.zeros(1)}, "nested": {"a": [({"b": torch.ones(1)},)]}, "parameter": nn.Parameter(torch.ones(2)),
        "empty": {}, "empty_tensor": torch.empty(0, 3), "scalar": torch.tensor(1.5), "bare_tensor": torch.ones(3), "text": "a note " * 100,
    }  # fmt: skip


def tensors() -> dict[str, Any]:
    """Tensors of every kind."""
    base = torch.arange(24.0).reshape(4, 6)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that CSR is in beta and quantization is deprecated
        csr, quantized = torch.eye(3).to_sparse_csr(), torch.quantize_per_tensor(base, 0.1, 0, torch.qint8)
    return {
        "transposed": base.T, "sliced": base[1:3, ::2], "expanded": torch.ones(1).expand(4, 5), "tied": {"a": base, "b": base, "c": base[0]},
        "conjugate": torch.ones(2, dtype=torch.complex64).conj(), "channels_last": torch.ones(1, 3, 4, 4).to(memory_format=torch.channels_last),
        "sparse_coo": torch.eye(3).to_sparse(), "sparse_csr": csr, "gradients": base.clone().requires_grad_(),
        "quantized": quantized,
    }  # fmt: skip


def scripted(path: pathlib.Path) -> None:
    """A TorchScript archive."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that TorchScript is deprecated
        torch.jit.save(torch.jit.script(nn.Sequential(nn.Linear(2, 2), nn.ReLU())), path)


def all_of_them() -> Iterator[tuple[str, str, Callable[[pathlib.Path], None]]]:
    """Every file's name, its extension, and what writes it."""

    def torch_file(obj: Callable[[], Any], **options: Any) -> Callable[[pathlib.Path], None]:
        return lambda path: torch.save(obj(), path, **options)

    legacy = {"_use_new_zipfile_serialization": False}
    for dtype in DTYPES:
        yield f"state_dict-{dtype}", ".bin", torch_file(lambda dtype=dtype: state_dict(dtype))
        if dtype != "complex64":
            yield (
                f"safetensors-{dtype}",
                ".safetensors",
                lambda path, dtype=dtype: safetensors.torch.save_file(state_dict(dtype), path),
            )
        if dtype != "uint16":
            yield f"legacy-{dtype}", ".pt", torch_file(lambda dtype=dtype: state_dict(dtype), **legacy)
    for name, module in networks().items():
        yield f"module_state-{name}", ".pth", torch_file(module.state_dict)
        if name == "weight_norm":
            continue  # torch refuses to pickle a parametrized module
        yield f"module-{name}", ".pt", torch_file(lambda module=module: module)
        yield (
            f"module_legacy-{name}",
            ".pt",
            torch_file(lambda module=module: {"model": module, "epoch": 1}, **legacy),
        )
    for name in optimizers(nn.Linear(1, 1)):
        yield f"training-{name}", ".ckpt", torch_file(lambda name=name: stepped(name))
        yield f"training_legacy-{name}", ".ckpt", torch_file(lambda name=name: stepped(name), **legacy)
    yield "adam_of_15000_parameters", ".pt", torch_file(lambda: adam_of(15_000))
    for name, more in {
        "plain": {},
        "hparams": {"hyper_parameters": argparse.Namespace(lr=1)},
        "config": {"hparams": Config(a=1)},
    }.items():
        yield f"lightning-{name}", ".ckpt", torch_file(lambda more=more: lightning(**more))
        yield f"lightning_legacy-{name}", ".ckpt", torch_file(lambda more=more: lightning(**more), **legacy)
    for name, obj in objects().items():
        yield f"object-{name}", ".pt", torch_file(lambda obj=obj: {"x": obj, "w": torch.ones(2)})
        yield f"object_protocol4-{name}", ".pt", torch_file(lambda obj=obj: {"x": obj}, pickle_protocol=4)
    for name, obj in tensors().items():
        yield f"tensor-{name}", ".pt", torch_file(lambda obj=obj: obj)
        yield f"tensor_legacy-{name}", ".pt", torch_file(lambda obj=obj: obj, **legacy)
    for protocol in (3, 4, 5):
        yield f"state_dict_protocol-{protocol}", ".bin", torch_file(state_dict, pickle_protocol=protocol)
    for protocol in range(6):
        yield (
            f"pickle-{protocol}",
            ".pkl",
            lambda path, p=protocol: path.write_bytes(pickle.dumps({"w": np.ones(3), "n": 1}, p)),
        )
    yield "torchscript", ".pt", scripted
