"""What the inputs are made from: the attack table's files, benign files, and the seeds of the other fuzz targets."""

from __future__ import annotations

import gzip
import importlib.util
import io
import pathlib
import pickle
import tarfile
import tempfile
import warnings
import zlib

from fuzz.oracle import ROOT

SEED_MAX_BYTES = 16 << 10


def attack_files() -> dict[str, bytes]:
    """The small inputs of the attack table."""
    from attacks import CASES

    made = {}
    for case in CASES:
        is_large = case.id.startswith("R") or case.metadata or case.tensors or case.label in LARGE
        if case.build is None or case.placed or is_large:
            continue
        data = case.build() if callable(case.build) else case.build  # type: ignore[call-arg]
        if len(data) <= SEED_MAX_BYTES:
            made[f"attack {case.label}"] = data
    return made


LARGE = {"N19-real", "S04-whole", "S13-million_dims", "Z41"}
"""Cases that take long to write."""


def fuzz_seeds() -> dict[str, bytes]:
    """The seeds of the other targets."""
    files = (path for path in (ROOT / "fuzz" / "seeds").rglob("*") if path.is_file())
    small = ((path, path.read_bytes()) for path in sorted(files) if path.stat().st_size <= SEED_MAX_BYTES)
    return {f"seed {path.relative_to(ROOT / 'fuzz' / 'seeds')}": data for path, data in small}


def benign_files() -> dict[str, bytes]:
    """The small benign checkpoints, as torch, NumPy and safetensors write them."""
    from attacks import benign

    made = {}
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, suffix, write in benign.all_of_them():
            if "15000" in name:
                continue
            path = pathlib.Path(folder, f"{name}{suffix}")
            write(path)
            if path.stat().st_size <= SEED_MAX_BYTES:
                made[f"benign {name}"] = path.read_bytes()
    return made


def other_files() -> dict[str, bytes]:
    """Files of formats of which the seeds above have few: tar, compressed, joblib."""
    import numpy as np

    plain = pickle.dumps({"a": [1, 2.5, "x", b"y"], "b": (None, {3})}, 4)
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name in ("a.pkl", "b.txt"):
            info = tarfile.TarInfo(name)
            info.size = len(plain)
            archive.addfile(info, io.BytesIO(plain))
    made = {
        "plain": plain,
        "tar": out.getvalue(),
        "gzip": gzip.compress(plain, mtime=0),
        "zlib": zlib.compress(plain),
    }
    made["two pickles"] = plain + pickle.dumps([1], 2)
    made["npy of objects"] = _npy(np.array([1, "x"], object))
    return made | (joblib_files() if importlib.util.find_spec("joblib") else {})


def joblib_files() -> dict[str, bytes]:
    """Files of joblib: arrays of all kinds, and its compressors."""
    import joblib
    import numpy as np

    plain = {"w": np.arange(6.0), "n": 1}
    kinds = {
        "objects": np.array([None, 1], object),
        "fortran": np.asfortranarray(np.ones((2, 3))), "scalar": np.float32(1), "none": np.array(1), "empty": np.zeros((0, 2)),
        "fields": np.zeros(2, [("a", "<f4"), ("b", "O")]), "text": np.array(["a", "b"]), "dates": np.zeros(2, "M8[s]"),
        "matrix": np.matrix([[1.0]]), "records": np.zeros(2, [("a", "<f4")]).view(np.recarray),
        "masked": np.ma.masked_array([1, 2], [True, False]), "many": [np.arange(3), "x", (np.arange(2, dtype=">i2"), {1})],
    }  # fmt: skip
    ways = {"joblib": (plain, 0)} | {f"joblib {name}": (value, 0) for name, value in kinds.items()}
    ways |= {f"joblib {how}": (plain, (how, 3)) for how in ("zlib", "gzip", "bz2", "lzma", "xz")}
    made = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, (value, compress) in ways.items():
            path = pathlib.Path(folder, "x.joblib")
            joblib.dump(value, path, compress=compress)
            made[name] = path.read_bytes()
    return made


def _npy(array: object) -> bytes:
    import numpy as np

    out = io.BytesIO()
    np.save(out, array, allow_pickle=True)  # type: ignore[arg-type]
    return out.getvalue()


def all_seeds(*, benign: bool) -> dict[str, bytes]:
    """All seeds, by name; the benign files take some seconds to write."""
    return other_files() | fuzz_seeds() | attack_files() | (benign_files() if benign else {})
