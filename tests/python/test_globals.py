"""The table of globals (`src/index/pickled/globals.txt`) against the classes and functions that are installed.

One child process calls every row with operands that record what is done to them. Another pickles an object of every row, forbids
execution by an audit hook, and unpickles it: a scan must call these pickles inert.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import rustload

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from fuzz.oracle import table  # noqa: E402

OBJECTS = [
    row
    for row in table.ROWS
    if row.calls and row.kind not in ("alias", "record", "numpy_dtype", "numpy_scalar", "ndarray", "variable")
    and not row.module.startswith(("torch._", "builtins", "_codecs", "torch.s", "torch.cuda"))
    and row.module not in ("torch", "torch.tensor", "torch.autograd.variable")
]  # fmt: skip
"""The rows whose calls make objects that pickle writes by themselves."""

CHILD = """
import argparse, array, collections, copyreg, datetime, decimal, enum, fractions, importlib, io, ipaddress, json, pathlib, pickle
import sys, types, uuid, warnings
warnings.simplefilter("ignore")
names = json.load(sys.stdin)
import numpy, torch
from joblib.numpy_pickle import NumpyArrayWrapper
from torch import nn
from torch.distributed.checkpoint.metadata import MetadataIndex

zone = datetime.timezone(datetime.timedelta(hours=1), "east")
SPECIAL = {
    "argparse.Namespace": argparse.Namespace(a=1, b=[2]), "types.SimpleNamespace": types.SimpleNamespace(a=1),
    "uuid.UUID": uuid.uuid1(), "uuid.SafeUUID": uuid.SafeUUID.safe,
    "datetime.date": datetime.date(2024, 1, 2), "datetime.time": datetime.time(1, 2, tzinfo=zone),
    "datetime.datetime": datetime.datetime(2024, 1, 2, tzinfo=zone), "datetime.timedelta": datetime.timedelta(1, 2, 3),
    "datetime.timezone": zone, "decimal.Decimal": decimal.Decimal("-1.5E+7"), "fractions.Fraction": fractions.Fraction(-1, 3),
    "ipaddress.IPv4Network": ipaddress.ip_network("1.2.3.0/24"), "ipaddress.IPv6Address": ipaddress.ip_address("::1%eth0"),
    "ipaddress.IPv6Network": ipaddress.ip_network("1::/64"), "ipaddress.IPv6Interface": ipaddress.ip_interface("::1/64"),
    "ipaddress.IPv4Interface": ipaddress.ip_interface("1.2.3.4/24"), "array._array_reconstructor": array.array("d", [1.5, 2.0]),
    "torch.nn.modules.adaptive.AdaptiveLogSoftmaxWithLoss": nn.AdaptiveLogSoftmaxWithLoss(4, 8, [2, 4]),
    "torch.nn.modules.container.ParameterDict": nn.ParameterDict({"a": nn.Parameter(torch.ones(2))}),
    "torch.nn.modules.container.ModuleDict": nn.ModuleDict({"a": nn.Linear(2, 2)}),
    "torch.nn.modules.pooling.FractionalMaxPool2d": nn.FractionalMaxPool2d(3, output_size=(2, 2)),
    "torch.nn.modules.pooling.FractionalMaxPool3d": nn.FractionalMaxPool3d(3, output_size=(2, 2, 2)),
    "torch.nn.modules.flatten.Unflatten": nn.Unflatten(1, (2, 2)),
    "torch.torch_version.TorchVersion": torch.__version__,
    "torch.distributed.checkpoint.metadata.MetadataIndex": MetadataIndex("a", torch.Size([1]), 0),
    "joblib.numpy_pickle.NumpyArrayWrapper": NumpyArrayWrapper(numpy.ndarray, (2,), "C", numpy.dtype("f4")),
}
ARGUMENTS = [(), (2,), (2, 2), (2, 2, 2), ("a/b",), ("1.2.3.4",)]


def sample(module, name, kind):
    dotted = f"{module}.{name}"
    if dotted in SPECIAL:
        return SPECIAL[dotted]
    try:
        cls = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError):
        return None
    if kind == "member":
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
for module, name, kind in names:
    obj = sample(module, name, kind)
    if obj is None:
        continue
    for protocol in (2, 4, 5):
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


def child(*arguments: str, **options: object) -> object:
    """The JSON that a child process prints."""
    paths = os.pathsep.join(map(str, (ROOT, ROOT / "tests" / "python", ROOT / "tests" / "data")))
    run = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=False, timeout=300,
        env=os.environ | {"PYTHONPATH": paths}, **options,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> list[list]:
    names = [(row.module, row.name, row.kind) for row in OBJECTS]
    return child("-c", CHILD, str(tmp_path_factory.mktemp("out")), input=json.dumps(names))


def test_no_row_looks_at_what_its_schema_says_is_only_stored():
    found = child("-m", "globals_child", "12")
    # Either it ended, or a sample has values that the callee refuses: an error, and nothing before it.
    assert [(name, end) for name, end in found["runs"] if end != ["ok"] and (end[0] or len(end) > 2)] == []
    done = {name for name, end in found["runs"] if end == ["ok"]}
    # The others need arguments that fit together: a class and its storage, a value and its enumeration.
    wanted = [row for row in table.ROWS if row.calls and row.kind != "member" and row.how != "class"]
    assert {row.dotted for row in wanted if row.kind in ("module", "fields", "uuid", "index")} <= done
    assert len(done & {row.dotted for row in wanted}) >= 0.85 * len(wanted)
    assert len(found["rows"]) >= 0.9 * sum(bool(row.calls) for row in table.ROWS)


def test_unpickling_an_object_of_each_row_executes_nothing(built):
    assert [(module, name, events) for module, name, _, _, _, events in built if events] == []


def test_a_scan_calls_each_of_them_inert(built):
    wrong = []
    for module, name, protocol, data, _, _ in built:
        # Before protocol 3, an array is a call with a list of numbers.
        if module == "array" and protocol < 3:
            continue
        # Behind its wrapper, joblib's reader expects an array; test_scan.py has whole files.
        if module == "joblib.numpy_pickle":
            continue
        # CPython 3.11.2 looks members of enumerations up by `getattr`, which no scan calls inert (X54).
        if sys.version_info < (3, 11, 4) and b"getattr" in bytes.fromhex(data):
            continue
        report = rustload.scan(bytes.fromhex(data))
        if report.verdict != "inert":
            reasons = [found[3] for found in report.findings if found.verdict != "inert"][:3]
            wrong.append((module, name, protocol, reasons))
    assert wrong == []


def test_the_table_says_which_objects_can_be_called(built):
    flags = {(row.module, row.name): row.flags for row in OBJECTS}
    for module, name, _, _, is_callable, _ in built:
        if module != "array":
            assert is_callable == ("c" in flags[module, name]), f"{module}.{name}"


def test_most_rows_are_installed_here(built):
    assert len({(module, name) for module, name, *_ in built}) >= 0.9 * len(OBJECTS)
