"""Writes the files of the comparison: attacks and benign checkpoints of the tests, other formats, and large checkpoints."""

from __future__ import annotations

import json
import pickle
import struct
import sys
import tarfile
import warnings
import zipfile
from pathlib import Path

import joblib
import numpy as np
import safetensors.torch
import torch

sys.path.append(str(Path(__file__).resolve().parents[2] / "tests" / "data"))

from attacks import CASES, benign
from attacks.registry import Shown


def attacks(folder: Path, every: int = 1) -> None:
    """One file of each case of the attack table, but for those of several files and for bombs."""
    for case in CASES[::every]:
        if not isinstance(case.load, Shown) and not case.placed and case.id[0] != "R":
            case.make(folder)


def honest(folder: Path, every: int = 1) -> None:
    """The benign checkpoints of the tests, and files of joblib, NumPy and tar."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, suffix, write in list(benign.all_of_them())[::every]:
            write(folder / f"{name}{suffix}")
    mean = np.zeros(3)
    arrays = {"mean": mean, "count": np.int64(4)}
    joblib.dump(arrays, folder / "arrays.joblib")
    joblib.dump(arrays, folder / "compressed.joblib", compress=3)
    np.savez(folder / "arrays.npz", mean=mean, count=np.int64(4))
    np.save(folder / "array.npy", mean)
    np.save(folder / "objects.npy", np.array([{"a": 1}, None], dtype=object), allow_pickle=True)
    (folder / "plain.pkl").write_bytes(pickle.dumps({"lr": 0.1, "names": ["a"], "mean": mean}))
    safetensors.torch.save_file({"w": torch.ones(4)}, folder / "one.safetensors")
    torch.save({"w": torch.ones(4)}, folder / "inside.bin")
    with tarfile.open(folder / "archive.nemo", "w") as archive:
        archive.add(folder / "inside.bin", "model_weights.ckpt")


def others(folder: Path) -> None:
    """Files of formats that run code or templates and that are not pickles."""
    layer = {
        "class_name": "Lambda",
        "config": {"function": {"class_name": "__lambda__", "config": {"code": "4wEA"}}},
    }
    config = {"class_name": "Sequential", "config": {"layers": [layer]}}
    with zipfile.ZipFile(folder / "lambda.keras", "w") as archive:
        archive.writestr("config.json", json.dumps(config))
        archive.writestr("metadata.json", json.dumps({"keras_version": "3.0.0"}))
    template = b"{{ ''.__class__.__mro__[1].__subclasses__() }}"
    key = b"tokenizer.chat_template"
    entry = struct.pack("<Q", len(key)) + key + struct.pack("<IQ", 8, len(template)) + template
    (folder / "template.gguf").write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + entry)


def large(folder: Path) -> dict[str, Path]:
    """20,000 small tensors, and 1 GiB in 64 tensors: each as `.bin` and as safetensors."""
    many = {f"model.layers.{n // 10}.part{n % 10}.weight": torch.zeros(8, 8) for n in range(20_000)}
    big = {f"layer{n}.weight": torch.zeros(1 << 22) for n in range(64)}
    found: dict[str, Path] = {}
    for name, state in (("many", many), ("big", big)):
        torch.save(state, folder / f"{name}.bin")
        safetensors.torch.save_file(state, folder / f"{name}.safetensors")
        found |= {
            f"{name}.bin": folder / f"{name}.bin",
            f"{name}.safetensors": folder / f"{name}.safetensors",
        }
    return found
