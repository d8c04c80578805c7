"""What a scan does not call inert because of a grammar: the real readers do what it says."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from attacks import CASES
from support import repacked

import rustload

LOAD = "import sys, torch; torch.export.load(sys.argv[1]).module()"
JOBLIB = "import sys, joblib; joblib.load(sys.argv[1])"
MODULE = "canary_of_rustload"


def runs_code(code: str, path: Path, folder: Path) -> bool:
    """Whether a program creates the canary; a module that does so when it is imported is there."""
    (folder / f"{MODULE}.py").write_text("import os; open(os.environ['RUSTLOAD_CANARY'] + '/null', 'w')")
    environment = os.environ | {"RUSTLOAD_CANARY": str(folder), "PYTHONPATH": str(folder)}
    subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, str(path)],
        env=environment,
        capture_output=True,
        check=False,
    )
    return (folder / "null").exists()


def exported(folder: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """An exported program with a change in its graph."""
    honest, changed = folder / "honest.pt2", folder / "changed.pt2"
    torch.export.save(torch.export.export(torch.nn.Linear(2, 2), (torch.ones(1, 2),)), honest)
    assert rustload.scan(honest).verdict == "inert"

    def other(name: str, data: bytes) -> bytes:
        if "models/" not in name:
            return data
        graph = json.loads(data)
        change(graph["graph_module"])
        return json.dumps(graph).encode()

    changed.write_bytes(repacked(honest, other))
    return changed


def signature(module: dict[str, Any]) -> dict[str, Any]:
    return module["module_call_graph"][0]["signature"]


def factory(module: dict[str, Any]) -> None:
    context = {"default_factory_module": MODULE, "default_factory_name": "x", "dict_context": []}
    signature(module)["in_spec"] = json.dumps(
        [1, {"type": "collections.defaultdict", "context": context, "children_spec": []}]
    )


def enumeration(module: dict[str, Any]) -> None:
    context = json.dumps([{"__enum__": True, "fqn": f"{MODULE}:x", "name": "a"}])
    signature(module)["out_spec"] = json.dumps(
        [1, {"type": "builtins.dict", "context": context, "children_spec": []}]
    )


def injected(module: dict[str, Any]) -> None:
    """The last input of the function whose source torch writes has a default."""
    text = json.dumps(module)
    for place in ('"as_tensor": {"name": "input"}', '"input": {"dtype"'):
        assert place in text
        text = text.replace(place, place.replace('"input"', json.dumps(f"input=__import__('{MODULE}')")))
    module.update(json.loads(text))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("change", "verdict"), [(factory, "would execute"), (enumeration, "would execute"), (injected, "unknown")]
)
def test_torch_runs_what_is_outside_the_schema_of_a_graph(change, verdict, tmp_path):
    path = exported(tmp_path, change)
    assert rustload.scan(path).verdict == verdict
    assert runs_code(LOAD, path, tmp_path)


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.id in ("X206", "X207")], ids=lambda case: case.label
)
def test_joblib_reads_arrays_where_a_wrapper_is_made_in_another_way(case, tmp_path):
    path = case.input(tmp_path)
    if runs_code(JOBLIB, path, tmp_path):
        assert rustload.scan(path).verdict != "inert"
    else:
        assert case.label not in ("X206-reconstructor", "X206-with_arguments", "X207-flags")
