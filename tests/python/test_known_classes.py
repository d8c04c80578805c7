"""The table of known classes (`src/scan/known_classes.txt`) against the classes that are installed.

A child process pickles an object of every row, forbids execution by an audit hook, and unpickles it. A scan must call these
pickles inert.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import rustload

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "src" / "scan" / "known_classes.txt"
ROWS = [
    [column.strip() for column in line.split("  ") if column.strip()]
    for line in TABLE.read_text().splitlines()
    if line and not line.startswith("#")
]
NAMES = {(module, name): (form, state) for form, state, module, names in ROWS for name in names.split(" ")}

CHILD = """
import argparse, array, collections, copyreg, datetime, decimal, enum, fractions, importlib, io, ipaddress, json, pathlib, pickle
import sys, types, uuid, warnings
warnings.simplefilter("ignore")
names = json.load(sys.stdin)
import numpy, torch
from joblib.numpy_pickle import NumpyArrayWrapper
from torch import nn

zone = datetime.timezone(datetime.timedelta(hours=1), "east")
norm = torch.nn.utils.spectral_norm(nn.Linear(2, 2))
SPECIAL = {
    "argparse.Namespace": argparse.Namespace(a=1, b=[2]), "types.SimpleNamespace": types.SimpleNamespace(a=1),
    "collections.ChainMap": collections.ChainMap({"a": 1}), "uuid.UUID": uuid.uuid1(), "uuid.SafeUUID": uuid.SafeUUID.safe,
    "datetime.date": datetime.date(2024, 1, 2), "datetime.time": datetime.time(1, 2, tzinfo=zone),
    "datetime.datetime": datetime.datetime(2024, 1, 2, tzinfo=zone), "datetime.timedelta": datetime.timedelta(1, 2, 3),
    "datetime.timezone": zone, "decimal.Decimal": decimal.Decimal("-1.5E+7"), "fractions.Fraction": fractions.Fraction(-1, 3),
    "ipaddress.IPv4Network": ipaddress.ip_network("1.2.3.0/24"), "ipaddress.IPv6Address": ipaddress.ip_address("::1%eth0"),
    "ipaddress.IPv6Network": ipaddress.ip_network("1::/64"), "ipaddress.IPv6Interface": ipaddress.ip_interface("::1/64"),
    "ipaddress.IPv4Interface": ipaddress.ip_interface("1.2.3.4/24"), "array._array_reconstructor": array.array("d", [1.5, 2.0]),
    "torch.nn.modules.adaptive.AdaptiveLogSoftmaxWithLoss": nn.AdaptiveLogSoftmaxWithLoss(4, 8, [2, 4]),
    "torch.nn.modules.transformer.Transformer": nn.Transformer(4, 2, 1, 1, 8),
    "torch.nn.modules.transformer.TransformerEncoder": nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8), 1),
    "torch.nn.modules.transformer.TransformerDecoder": nn.TransformerDecoder(nn.TransformerDecoderLayer(4, 2, 8), 1),
    "torch.nn.modules.transformer.TransformerEncoderLayer": nn.TransformerEncoderLayer(4, 2, 8, activation="gelu"),
    "torch.nn.modules.container.ParameterDict": nn.ParameterDict({"a": nn.Parameter(torch.ones(2))}),
    "torch.nn.modules.container.ModuleDict": nn.ModuleDict({"a": nn.Linear(2, 2)}),
    "torch.nn.modules.pooling.FractionalMaxPool2d": nn.FractionalMaxPool2d(3, output_size=(2, 2)),
    "torch.nn.modules.pooling.FractionalMaxPool3d": nn.FractionalMaxPool3d(3, output_size=(2, 2, 2)),
    "torch.nn.modules.flatten.Unflatten": nn.Unflatten(1, (2, 2)),
    "torch.nn.parallel.data_parallel.DataParallel": nn.DataParallel(nn.Linear(2, 2)),
    "torch.nn.utils.weight_norm.WeightNorm": torch.nn.utils.weight_norm(nn.Linear(2, 2)),
    "torch.nn.utils.spectral_norm.SpectralNorm": norm,
    "torch.nn.utils.spectral_norm.SpectralNormStateDictHook": norm, "torch.nn.modules.module._WrappedHook": norm,
    "torch.nn.utils.spectral_norm.SpectralNormLoadStateDictPreHook": norm,
    "torch.torch_version.TorchVersion": torch.__version__,
    "joblib.numpy_pickle.NumpyArrayWrapper": NumpyArrayWrapper(numpy.ndarray, (2,), "C", numpy.dtype("f4")),
}
ARGUMENTS = [(), (2,), (2, 2), (2, 2, 2), ("a/b",), ("1.2.3.4",)]


def sample(module, name, form):
    dotted = f"{module}.{name}"
    if dotted in SPECIAL:
        return SPECIAL[dotted]
    try:
        cls = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError):
        return None
    if form in ("name", "identity", "rebuild"):
        return cls
    if form == "member":
        return list(cls)
    if name in ("TrainingArguments", "Seq2SeqTrainingArguments"):
        return cls(output_dir=sys.argv[1], report_to="none", use_cpu=True)
    if module == "accelerate.state":
        made = cls.__new__(cls)
        vars(made).update({"_cpu": True, "device": torch.device("cpu")})
        return made
    for given in ARGUMENTS:
        try:
            return cls(*given)
        except NotImplementedError:
            return None  # a path of another system
        except Exception:
            continue
    raise AssertionError(dotted)


made = []
for module, name, form in names:
    obj = sample(module, name, form)
    if obj is None:
        continue
    for protocol in (0, 2, 4, 5):
        data = pickle.dumps(obj, protocol)
        pickle.loads(data)  # imports what it imports now
        made.append((module, name, protocol, data, callable(obj)))

FORBIDDEN = (
    "exec", "compile", "open", "import", "socket.", "subprocess.", "os.", "ctypes.", "shutil.", "tempfile.", "marshal.", "code.",
)
events, watching = [], False


def hook(event, args):
    if watching and event.startswith(FORBIDDEN):
        events.append(event)


sys.addaudithook(hook)
out = []
for module, name, protocol, data, is_callable in made:
    events.clear()
    watching = True
    pickle.loads(data)
    watching = False
    out.append([module, name, protocol, data.hex(), is_callable, list(events)])
json.dump(out, sys.stdout)
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> list[list]:
    names = [(module, name, form) for (module, name), (form, _) in NAMES.items()]
    run = subprocess.run(
        [sys.executable, "-c", CHILD, str(tmp_path_factory.mktemp("out"))],
        input=json.dumps(names), capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def test_unpickling_an_object_of_each_row_executes_nothing(built: list[list]) -> None:
    assert [(module, name, events) for module, name, _, _, _, events in built if events] == []


def test_a_scan_calls_each_of_them_inert(built: list[list]) -> None:
    wrong = []
    for module, name, protocol, data, _, _ in built:
        # Before protocol 3, an array is a call with a list of numbers.
        if module == "array" and protocol < 3:
            continue
        # Behind its wrapper, joblib's reader expects an array; test_scan.py has whole files.
        if module == "joblib.numpy_pickle":
            continue
        report = rustload.scan(bytes.fromhex(data))
        if report.verdict != "inert":
            wrong.append(
                (
                    module,
                    name,
                    protocol,
                    [found[3] for found in report.findings if found.verdict != "inert"][:3],
                )
            )
    assert wrong == []


def test_the_table_says_which_objects_can_be_called(built: list[list]) -> None:
    for module, name, _, _, is_callable, _ in built:
        form, state = NAMES[module, name]
        if form not in ("name", "identity", "rebuild", "buffer", "member"):
            assert is_callable == (state.startswith("callable") or state == "rnn"), f"{module}.{name}"


def test_most_rows_are_installed_here(built: list[list]) -> None:
    assert len({(module, name) for module, name, *_ in built}) >= 0.9 * len(NAMES)
