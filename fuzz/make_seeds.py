"""Writes the seeds of the fuzz targets, `fuzz/seeds/TARGET/*`: small files of every format, from the real writers.

Run it again when support for a new kind of file is added:

    python fuzz/make_seeds.py
"""

from __future__ import annotations

import argparse
import collections
import datetime
import io
import json
import pathlib
import pickle
import struct
import sys
import tarfile
import tempfile
import types
import zipfile
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed.checkpoint as dcp

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests" / "data"))

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests" / "python"))

import tar_files
from attacks import e_exported, parts
from attacks.distributed import Folder
from quantized_files import CASES
from safetensors.torch import save

if TYPE_CHECKING:
    from collections.abc import Callable

SEEDS = pathlib.Path(__file__).parent / "seeds"


def objects() -> dict[str, Any]:
    """Small objects that together cover all the ways in which torch serializes a tensor."""
    torch.manual_seed(0)
    base = torch.arange(6.0)
    linear = torch.nn.Linear(2, 2)
    optimizer = torch.optim.Adam(linear.parameters())
    linear(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    cycle: list[Any] = [1]
    cycle.append(cycle)
    return {
        "state_dict": linear.state_dict(),
        "tied": {"a": base, "b": base[1:4], "t": base.view(2, 3).t(), "e": base[:1].expand(3)},
        "dtypes": {
            str(dtype).removeprefix("torch."): torch.ones(2, dtype=dtype)
            for dtype in [
                torch.bfloat16,
                torch.int64,
                torch.bool,
                torch.complex64,
                torch.uint16,
                torch.float8_e4m3fn,
            ]
        },
        "signs": {"conj": torch.ones(2, dtype=torch.complex64).conj(), "empty": torch.empty(0, 3)},
        "quantized": {
            "tensor": torch.quantize_per_tensor(base, 0.5, 1, torch.qint8),
            "channel": torch.quantize_per_channel(
                base.view(2, 3), torch.tensor([0.1, 0.2]), torch.tensor([0, 1]), 0, torch.qint8
            ),
        },
        "sparse": {"coo": torch.eye(3).to_sparse(), "csr": torch.eye(3).to_sparse_csr()},
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "module": linear,
        "training": {
            "model": linear.state_dict(),
            "optimizer": optimizer.state_dict(),
            "rng": torch.get_rng_state()[:16].clone(),
            "numpy": np.random.RandomState(0).get_state(),
            "epoch": 3,
            "args": types.SimpleNamespace(lr=0.1, path=pathlib.PurePosixPath("x")),
            "when": datetime.date(2026, 1, 1),
            "counts": collections.Counter("aab"),
            "lazy": collections.defaultdict(list, a=[1]),
        },
        "keys": {1: torch.ones(1), (1, "a"): torch.ones(1), None: {2.5: torch.zeros(1)}},
        "cycle": cycle,
        "numpy": {
            "f": np.asfortranarray(np.ones((2, 3), "f4")),
            "s": np.float64(1.5),
            "o": np.array([1, "x"], object),
        },
    }


def saved(obj: Any, *, legacy: bool = False, protocol: int = 2) -> bytes:
    """The bytes that torch.save writes."""
    out = io.BytesIO()
    torch.save(obj, out, _use_new_zipfile_serialization=not legacy, pickle_protocol=protocol)
    return out.getvalue()


def paddle() -> bytes:
    """A pickle in the form of Paddle: tensors as calls of `tuple`, and of `eval`."""

    class Call:
        def __init__(self, function: Callable[..., object], *args: object) -> None:
            self.parts = (function, args)

        def __reduce__(self) -> Any:
            return self.parts

    array = np.arange(6, dtype="f4").reshape(2, 3)
    return pickle.dumps(
        {"w": Call(tuple, ("linear_0.w_0", array)), "b": Call(eval, "data", {"data": array})}, 4
    )


def pickle_of(archive: bytes) -> bytes:
    """The pickle inside an archive."""
    with zipfile.ZipFile(io.BytesIO(archive)) as opened:
        return next(opened.read(name) for name in opened.namelist() if name.endswith("/data.pkl"))


def rezipped(archive: bytes, compression: int) -> bytes:
    """The same members, written by Python's zipfile."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(archive)) as old, zipfile.ZipFile(out, "w", compression) as new:
        for info in old.infolist():
            new.writestr(zipfile.ZipInfo(info.filename), old.read(info), compression)
    return out.getvalue()


def npy(array: np.ndarray, version: tuple[int, int] = (1, 0)) -> bytes:
    """A `.npy` file of this version of the format."""
    file = io.BytesIO()
    np.lib.format.write_array(file, array, version)
    return file.getvalue()


def safetensors(
    tensors: dict[str, tuple[str, list[int], bytes]], metadata: dict[str, str] | None = None
) -> bytes:
    """A safetensors file, assembled by hand."""
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": metadata}
    data = b""
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def seeds() -> dict[str, dict[str, bytes]]:
    """The seeds of each target, by file name."""
    found: dict[str, dict[str, bytes]] = {
        name: {} for name in ("pickle", "zip", "legacy", "safetensors", "npy", "open")
    }
    for name, obj in objects().items():
        archive = saved(obj)
        found["pickle"][f"{name}.torch"] = pickle_of(archive)
        found["open"][f"{name}.zip"] = archive
        stream = saved(obj, legacy=True)
        found["legacy"][name] = stream
        found["open"][f"{name}.legacy"] = stream
    plain = {
        "a": [1, -2, 1 << 70, 0.5, True, None],
        "b": ("é", b"x", bytearray(b"y")),
        "c": {1, 2},
        "d": frozenset([3]),
        "e": 1j,
    }
    for protocol in range(6):
        found["pickle"][f"plain.{protocol}"] = pickle.dumps(plain, protocol)
    for protocol in (3, 4, 5):
        found["pickle"][f"training.{protocol}"] = pickle_of(saved(objects()["training"], protocol=protocol))
    found["open"]["paddle.pickle"] = paddle()
    found["open"]["numpy.pickle"] = pickle.dumps(objects()["numpy"], 4)
    state = saved(objects()["state_dict"])
    found["zip"] = {
        "torch": state,
        "stored": rezipped(state, zipfile.ZIP_STORED),
        "deflated": rezipped(state, zipfile.ZIP_DEFLATED),
        "tied": saved(objects()["tied"]),
    }
    found["open"]["deflated.zip"] = found["zip"]["deflated"]
    found["partitions"] = partitions()
    ones = struct.pack("<4f", 1, 2, 3, 4)
    found["safetensors"] = {
        "two": safetensors({"a": ("F32", [2, 2], ones), "b": ("I64", [1], bytes(8))}, {"format": "pt"}),
        "empty": safetensors({}),
        "edges": safetensors(
            {"": ("U8", [0, 5], b""), "s": ("F64", [], bytes(8)), "é": ("BOOL", [3], b"\0\1\1")}
        ),
        "small": safetensors(
            {"a": ("F4", [4], b"ab"), "b": ("F8_E4M3", [2], b"ab"), "c": ("BF16", [1], b"ab")}
        ),
    }
    found["open"]["two.safetensors"] = found["safetensors"]["two"]
    found["npy"] = {
        "float": npy(np.arange(6, dtype="<f4").reshape(2, 3)),
        "fortran": npy(np.asfortranarray(np.arange(6, dtype=">i2").reshape(2, 3))),
        "scalar": npy(np.array(1.5), (2, 0)),
        "empty": npy(np.zeros((0, 3), bool), (3, 0)),
        "record": npy(np.zeros(1, [("é", "<i4"), ("b", "O")]), (3, 0)),
        "objects": npy(np.array([1, "x"], object)),
        "text": npy(np.array(["a"])),
    }
    arrays = {"w": np.arange(6.0), "c": np.ones((2, 2), ">c8"), "o": np.array([None])}
    for name, write in {"stored.npz": np.savez, "deflated.npz": np.savez_compressed}.items():
        file = io.BytesIO()
        write(file, **arrays)
        found["open"][name] = found["zip"][name] = file.getvalue()
    found["open"]["fortran.npy"] = found["npy"]["fortran"]
    found["exported"] = exported()
    found["graph"] = graphs()
    found["yaml"] = configurations()
    found["open"]["program.pt2"] = found["zip"]["program"] = program()
    found["distributed"] = distributed()
    found["tar"] = tars()
    found["quantized"] = quantized()
    found["open"]["nemo.tar"] = found["tar"]["nemo"]
    found["open"]["torch.tar"] = found["tar"]["torch"]
    found["scan"] = scanned(state)
    return found


def exported() -> dict[str, bytes]:
    """Configurations of exported programs."""
    meta = e_exported.meta
    tensors = {
        "plain": {"w": e_exported.payload(), "b": e_exported.payload("weight_1", meta(0, 3))},
        "views": {
            "w": e_exported.payload("weight_0", meta(4, 3)),
            "t": e_exported.payload("weight_0", meta(3, 2, strides=[{"as_int": 1}, {"as_int": 3}])),
            "s": e_exported.payload("weight_0", meta(storage_offset={"as_int": 5}), is_param=False),
        },
        "others": {
            "fake": e_exported.payload("weight_1", meta(2, 2)),
            "object": e_exported.payload("weight_2", None, use_pickle=True),
            "c": e_exported.payload("weight_0", meta(2, dtype=10, device={"type": "cuda", "index": 0})),
        },
    }
    return {name: e_exported.config(payloads) for name, payloads in tensors.items()}


def graphs() -> dict[str, bytes]:
    """Graphs of exported programs: torch's own, and one with a text that torch evaluates."""

    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor, scale: float = 0.5) -> dict[str, torch.Tensor]:
            return {"y": torch.nn.functional.interpolate(x.mean(1)[None], scale_factor=2.0) * scale}

    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "model.pt2"
        sizes = {"x": {0: torch.export.Dim("n", min=2)}, "scale": None}
        torch.export.save(
            torch.export.export(Model(), (torch.ones(3, 4, 5),), {"scale": 0.5}, dynamic_shapes=sizes), path
        )
        with zipfile.ZipFile(path) as opened:
            name = next(name for name in opened.namelist() if name.endswith("models/model.json"))
            written = json.loads(opened.read(name))
    # Stack traces have this machine's paths.
    for node in written["graph_module"]["graph"]["nodes"]:
        node["metadata"] = {}
    says = e_exported.says("Max(Integer(2), Symbol('s0', positive=True))")
    return {
        "torch": json.dumps(written).encode(),
        "says": json.dumps(says).encode(),
        "empty": json.dumps(e_exported.GRAPH).encode(),
    }


def configurations() -> dict[str, bytes]:
    """YAML as NeMo writes it, and in other styles."""
    return {
        "block": b"sample_rate: 16000\nlabels:\n- a\n- 'b'\nmodel:\n  dim: 4\n  hidden: ${model.dim}\n",
        "flow": b'{a: [1, 2.5, null], "b": {c: true}, ? d : e}\n',
        "texts": b"a: |\n  one\n  two\nb: >-\n  three\nc: &x 1\nd: *x\n---\n- !!str 1\n",
        "target": b"model:\n  _target_: nemo.Model\n  lr: ${oc.env:LR}\n",
        "tag": b"%TAG !p! tag:yaml.org,2002:python/\n---\na: !p!name:os.system ''\n",
    }


def program() -> bytes:
    """An exported program."""
    graph = e_exported.says("Max(Integer(2), Symbol('s0', positive=True))")
    more = {"w": e_exported.payload(), "x": e_exported.payload("weight_1", use_pickle=True)}
    return e_exported.export(more, graph=graph, weight_1=saved(torch.ones(2))).bytes()


def together(*files: bytes) -> bytes:
    """The input of the target `distributed`: each file with its length."""
    return b"".join(struct.pack("<I", len(file)) + file for file in files)


def distributed() -> dict[str, bytes]:
    """Distributed checkpoints, and the files of single processes."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        dcp.save({"w": torch.ones(2, 3), "n": {"step": 3}}, checkpoint_id=folder, no_dist=True)
        there = pathlib.Path(folder)
        found["torch"] = together((there / ".metadata").read_bytes(), (there / "__0_0.distcp").read_bytes())
        written = Folder().write(there / "chunks")
        found["chunks"] = together(*(file.read_bytes() for file in sorted(written.iterdir())))
    part = parts.local((1, 3))
    ranks = [parts.rank_file({"w": parts.dtensor(part, rank=rank)}, parts.row(rank)) for rank in range(2)]
    found["dtensor"] = together(*ranks)
    mesh = parts.mesh_24((2,), (0,))
    found["alone"] = together(
        parts.rank_file({"w": parts.dtensor(part, mesh=mesh)}, {**parts.row(0), "9": bytes(8)})
    )
    cut = [parts.sharded(part, (rank, 0), (1, 3)) for rank in range(2)]
    found["sharded"] = together(*(parts.rank_file({"w": one}, parts.row(at)) for at, one in enumerate(cut)))
    found["safetensors"] = together(parts.hf_part([0, 0]), parts.hf_part([1, 0]))
    row = {"w": ("F32", [1, 3], bytes(12))}
    stated = {
        "global_shape": [2, 3],
        "dtype": "torch.float32",
        "mesh_spec": {"mesh_shape": (2,), "mesh_data": (0, 1)},
        "placements": [{"type": "Shard", "dim": 0}],
    }
    group = {"sharding_metadata": {"type": "DTensorShardingMetadata", "data": stated}, "ranks": (0, 1)}
    form = {"type": "SafetensorsSerialization"}
    layouts = {rank: {"file_path": f"__{rank}_0.distcp", "serialization_format": form} for rank in range(2)}
    item = {"nested_path_to_metadata": {'["w"]': [group]}, "rank_to_layout_info": layouts}
    metadata = pickle.dumps({"metadata": {"model": item}, "world_size": 2, "version": "2.0"}, protocol=4)
    found["torch_checkpointing"] = together(metadata, safetensors(row), safetensors(row))
    boxes = {"global_offsets": [[0, 0]], "local_offsets": [[1, 0]], "local_sizes": [[2, 3]]}
    group["sharding_metadata"] = {"type": "default_tensor_v1", "data": stated | boxes}
    by_rank = {str(rank): {"model": layout} for rank, layout in layouts.items()}
    first = {
        "metadata": {'["model","w"]': [group | {"ranks": (0,)}]},
        "world_size": 2,
        "rank_to_layout_info_mappings": by_rank,
    }
    whole = safetensors({"w": ("F32", [4, 3], bytes(48))})
    found["torch_checkpointing_1"] = together(pickle.dumps(first, protocol=4), whole)
    scaled = {"w": ("F8_E4M3", [2, 3], b"abcdef"), "w_scale_inv": ("F32", [1, 1], struct.pack("<f", 0.5))}
    found["scales"] = together(safetensors(scaled))
    return found


def scanned(state: bytes) -> dict[str, bytes]:
    """Inputs that a scan must distinguish: calls by every opcode, nested pickles, polyglots. Nothing in them is ever executed."""
    call = b"cposix\nsystem\n(S'x'\ntR"
    array, tarred = io.BytesIO(), io.BytesIO()
    np.save(array, np.array([1, "x"], object), allow_pickle=True)
    with tarfile.open(fileobj=tarred, mode="w") as tar:
        info = tarfile.TarInfo("pickle")
        info.size = len(call) + 1
        tar.addfile(info, io.BytesIO(call + b"."))
    inner = call + b"."
    return {
        "reduce": b"\x80\x02" + inner,
        "inst": b"(S'x'\niposix\nsystem\n.",
        "obj": b"(cposix\nsystem\nS'x'\no.",
        "stack_global": b"\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c\x01x\x85R.",
        "build": b"csomelib\nNet\n)\x81}S'a'\nK\x01sb.",
        "computed": b"\x80\x04\x8c\x02osclib\nf\n)R\x93)R.",
        "loader": b"\x80\x03cpickle\nloads\nC" + bytes([len(inner)]) + inner + b"\x85R.",
        "frame": b"\x80\x04\x95\x01" + bytes(7) + inner,
        "two": pickle.dumps({"a": 1}, 2) + inner,
        "zip": state,
        "pickle_and_zip": pickle.dumps({"a": 1}, 2) + state,
        "prefixed_zip": b"#!/bin/sh\n" + state,
        "nested": rezipped(state, zipfile.ZIP_DEFLATED) + b"\0" * 8,
        "legacy": saved({"w": torch.ones(2)}, legacy=True),
        "array.npy": array.getvalue(),
        "tar": tarred.getvalue()[:2048],
        "torch.tar": tars()["torch"],
    }


QUANTIZED = (
    "pack 4 group g_idx asymmetric",
    "pack 3 new group",
    "pack 8 channel",
    "nvfp4 of ModelOpt []",
    "mxfp4 i8",
    "gpt-oss",
    "mlx nvfp4",
    "nvfp4 of compressed-tensors [1]",
    "gptq symmetric",
    "gptq 8 bits symmetric",
    "awq",
    "nf4",
    "nf4 nested odd f32",
    "fp4 odd f32",
    "bnb int8 odd",
    "fp8 experts by channel",
)


def quantized() -> dict[str, bytes]:
    """A small checkpoint of each kind of quantized weight that needs no configuration."""
    cases = {name: CASES[name]() for name in QUANTIZED}
    return {name.replace(" ", "_"): save(case.tensors, case.metadata) for name, case in cases.items()}


def partitions() -> dict[str, bytes]:
    """Partitions of DeepSpeed: of each kind, two ranks and two parameters of 2 and 5 elements."""
    found = {
        "unstated": (0, (4, 3), (0, 0), (2, 0, 5, 0)),
        "stated": (1, (4, 3), (0, 1), (2, 0, 5, 0)),
        "stored": (5, (4, 4), (0, 1), (2, 0, 5, 0)),
        "aligned": (1, (6, 3), (0, 3), (2, 2, 5, 0)),
        "sharded": (2, (4, 4), (0, 0), (2, 0, 5, 0)),
        "huge": (2, (0xFFFF, 4), (0, 0), (2, 0, 5, 0)),
    }
    return {
        name: bytes([kind, 2, 2]) + struct.pack("<8H", *lens, *paddings, *parameters)
        for name, (kind, lens, paddings, parameters) in found.items()
    }


def tars() -> dict[str, bytes]:
    """Archives of torch 0.1 and of NeMo, without most of the zeros at their ends."""
    base = torch.arange(12.0)
    state = {"w": torch.ones(2, 3), "b": torch.ones(3, dtype=torch.bfloat16)}
    old = collections.OrderedDict(a=base, tied=base, t=base.view(3, 4).t(), part=base[4:8], n=3)
    weights = saved(state)
    with tempfile.TemporaryDirectory() as folder:
        spread = tar_files.nemo_distributed(pathlib.Path(folder) / "weights", {"w": torch.ones(2, 3)})
    found = {
        "torch": tar_files.torch01(old),
        "nemo": tar_files.nemo({"model_weights.ckpt": weights}),
        "ranks": tar_files.nemo({f"mp_rank_0{rank}/model_weights.ckpt": weights for rank in range(2)}),
        "gnu": tar_files.nemo({f"{'folder/' * 20}model_weights.ckpt": weights}, format=tarfile.GNU_FORMAT),
        "dcp": spread,
    }
    return {
        name: data.rstrip(b"\0").ljust(-(-len(data.rstrip(b"\0")) // 512) * 512 + 1024, b"\0")
        for name, data in found.items()
    }


def main() -> None:
    """Writes all seeds."""
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    for target, files in seeds().items():
        folder = SEEDS / target
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (folder / name).write_bytes(content)
        print(f"{target}: {len(files)} seeds, {sum(map(len, files.values()))} bytes")


if __name__ == "__main__":
    main()
