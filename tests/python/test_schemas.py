"""The JSON schemas of `--json`: strict, described, and right about what the commands print for many files."""

import json
import warnings
from pathlib import Path
from typing import Any

import make_kinds
import numpy as np
import pytest
import safetensors.torch
import torch
from schemas import ROOT, errors, validator_of
from torch.distributed.tensor import Replicate
from torch_checkpointing_folders import Placed, write

import rustload
from rustload._cli import main
from rustload._cli.command import COMMANDS

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")


def printed(capsys: pytest.CaptureFixture[str], command: str, *arguments: object) -> tuple[int, Any]:
    """The exit code and the document, which has been validated; its numbers are those of JSON."""
    code = main([command, *map(str, arguments), "--json"])
    text = capsys.readouterr().out
    document = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert errors(validator_of(command), document) == []
    assert document["rustload"] == rustload.__version__
    return code, document


@pytest.mark.parametrize(
    "name", [name for name in COMMANDS if name not in ("view", "manifest", "verify", "schema", "completion")]
)
def test_a_schema_is_printed_strict_and_describes_every_key(name, capsys):
    assert main(["schema", name]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert schema["$id"] == f"urn:rustload:schema:{name}:{schema['properties']['schema']['const']}"
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    todo = [schema]
    while todo:
        part = todo.pop()
        if isinstance(part, dict):
            if part.get("type") == "object":
                assert "additionalProperties" in part, part
                properties = part.get("properties", {})
                assert set(part.get("required", ())) <= set(properties), part
                assert all(
                    len(one["description"]) > 3 and "None" not in one["description"]
                    for one in properties.values()
                )
            todo += part.values()
        elif isinstance(part, list):
            todo += part


def test_an_unknown_schema_is_wrong_usage(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["schema", "view"])
    assert caught.value.code == 2
    assert "invalid choice" in capsys.readouterr().err


def test_a_document_of_another_version_or_with_another_key_is_not_valid(tmp_path, capsys):
    torch.save({"w": torch.ones(2)}, tmp_path / "m.pt")
    _, document = printed(capsys, "scan", tmp_path / "m.pt")
    (file,) = document["files"]
    for wrong in (
        {**document, "schema": 2},
        {**document, "more": 1},
        {**document, "files": [{**file, "verdict": "fine"}]},
        {**document, "files": [{key: file[key] for key in file if key != "coverage"}]},
    ):
        assert errors(validator_of("scan"), wrong)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Checkpoints of all kinds of objects and all formats, and files that are none."""
    folder = tmp_path_factory.mktemp("kinds")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, make in make_kinds.KINDS.items():
            torch.save(make(), folder / f"{name}.pt")
        torch.save(
            make_kinds.KINDS["values"](), folder / "values-legacy.pt", _use_new_zipfile_serialization=False
        )
    safetensors.torch.save_file({"a": torch.ones(2, 3)}, folder / "m.safetensors", metadata={"format": "pt"})
    np.save(folder / "a.npy", np.ones((2, 3), np.float16))
    np.savez(folder / "a.npz", x=np.arange(3), y=np.float64(1))
    module = torch.export.export(torch.nn.Linear(2, 3), (torch.ones(1, 2),))
    torch.export.save(module, folder / "program.pt2")
    import torch.distributed.checkpoint as dcp

    dcp.save({"model": {"w": torch.ones(4)}, "step": 3}, checkpoint_id=folder / "dcp", no_dist=True)
    items = {"model": {"w": Placed(torch.ones(4), (1,), (Replicate(),))}}
    write(folder / "items", items, 1)
    (folder / "README.md").write_text("no checkpoint")
    (folder / "cut.pt").write_bytes((folder / "tensor.pt").read_bytes()[:-40])
    (folder / "evil.pkl").write_bytes(b"cposix\nsystem\n(S'x'\ntR.")
    return [
        *sorted(folder.iterdir()),
        *sorted((ROOT / "tests/data/containers").iterdir()),
        folder / "absent.pt",
    ]


def test_info(files, capsys):
    code, document = printed(capsys, "info", *files)
    assert code == 3
    assert [one["path"] for one in document["checkpoints"]] == list(map(str, files))
    formats = {one["format"] for one in document["checkpoints"] if "format" in one}
    assert formats == {
        "torch-zip", "torch-legacy", "torch-dcp", "torch-checkpointing", "torch-export", "pickle", "safetensors", "npy", "npz",
    }  # fmt: skip
    failed = [Path(one["path"]).name for one in document["checkpoints"] if "error" in one]
    assert {"README.md", "absent.pt", "cut.pt"} <= set(failed)
    assert len(failed) < 10
    code, document = printed(capsys, "info", files[0].parent / "state_dict.pt", "--filter", "*")
    assert code == 0
    assert document["checkpoints"][0]["filter"] == "*"


def test_scan(files, capsys, tmp_path):
    code, document = printed(capsys, "scan", *files, "--allow", "make_kinds.*")
    assert code == 1
    assert {one["status"] for one in document["files"]} == {"scanned", "skipped", "unreadable"}
    _, document = printed(capsys, "scan", *files)
    (tmp_path / "known.json").write_text(json.dumps(document))
    code, again = printed(capsys, "scan", *files, "--baseline", tmp_path / "known.json")
    assert code == 3, "all is known, and one file is absent"
    assert again["policy"]["baseline"] == str(tmp_path / "known.json")
    as_python = json.loads(rustload.scan([str(file) for file in files if file.exists()]).to_json())
    assert errors(validator_of("scan"), as_python) == []
    assert errors(validator_of("scan"), json.loads(rustload.scan(b"cos\nsystem\n.").to_json())) == []


def test_scan_prints_the_same_document_each_time(files, capsys):
    folder = files[0].parent
    assert main(["scan", str(folder), "--json"]) == main(["scan", str(folder), "--json"])
    text = capsys.readouterr().out
    first, second = text[: len(text) // 2], text[len(text) // 2 :]
    assert first == second


def test_stats(files, capsys, tmp_path):
    values = {
        "finite": torch.randn(100),
        "odd": torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, 1e-40, 3e38]),
        "none": torch.empty(0),
        "huge": torch.full((4,), 1.7e308, dtype=torch.float64),
        "complex": torch.tensor([1 + 2j]),
        "int": torch.arange(5),
        "bool": torch.tensor([True, False]),
        "bf16": torch.ones(3, dtype=torch.bfloat16),
    }
    torch.save(values, tmp_path / "m.pt")
    for more in ([], ["--bins", "7"], ["--sample", "3"]):
        code, document = printed(capsys, "stats", tmp_path / "m.pt", tmp_path / "absent", *more)
        assert code == 3
        assert [one["name"] for one in document["checkpoints"][0]["tensors"]] == list(values)
    code, document = printed(capsys, "stats", tmp_path / "m.pt", "--fail-on", "nan,inf,zero")
    assert code == 1
    assert document["checkpoints"][0]["tensors"][1]["faults"] == ["nan", "inf"]
    dtypes = ["every_real_dtype.pt", "fp8_dtypes.pt", "complex_dtypes.pt", "bits_dtypes.pt"]
    printed(capsys, "stats", *(files[0].parent / name for name in dtypes))


def test_show(files, capsys, tmp_path):
    values = {
        "a": torch.tensor([1.0, float("nan"), float("inf")]),
        "b": torch.tensor([True]),
        "n": {"lr": 0.1},
    }
    torch.save(values | {"c": torch.ones(2, 3, dtype=torch.complex64)}, tmp_path / "m.pt")
    code, document = printed(capsys, "show", tmp_path / "m.pt", "a[1:]", "b", "c[0]", "n.lr", "absent")
    assert code == 3
    assert [one["values"] for one in document["tensors"]] == [[None, None], [True], [1.0, 0.0] * 3]
    assert document["objects"] == [{"name": "n.lr", "text": "0.1"}]
    assert [one["code"] for one in document["errors"]] == ["NotFound"]
    dtypes = ["every_real_dtype.pt", "fp8_dtypes.pt", "complex_dtypes.pt", "bits_dtypes.pt"]
    for name in dtypes:
        assert printed(capsys, "show", files[0].parent / name, "*")[0] == 0
    assert printed(capsys, "show", tmp_path / "absent.pt", "a")[0] == 3


def test_diff(capsys, tmp_path):
    infinite = torch.tensor([float("inf"), 1.0, float("nan")], dtype=torch.float64)
    a = {
        "same": torch.ones(2),
        "a": torch.ones(1),
        "dtype": torch.ones(2),
        "x": infinite,
        "zero": torch.zeros(2),
    }
    b = {
        "same": torch.ones(2),
        "b": torch.ones(1),
        "dtype": torch.ones(3).half(),
        "x": -infinite,
        "zero": torch.ones(2),
    }
    torch.save(a, tmp_path / "a.pt")
    torch.save(b, tmp_path / "b.pt")
    code, document = printed(capsys, "diff", tmp_path / "a.pt", tmp_path / "b.pt", "--data")
    assert code == 1
    by_name = {one["name"]: one for one in document["report"]["changed"]}
    assert by_name["x"]["max_absolute"] is None, "it is infinite"
    assert by_name["zero"]["max_absolute"] == 1.0
    assert printed(capsys, "diff", tmp_path / "a.pt", tmp_path / "a.pt")[0] == 0
    assert printed(capsys, "diff", tmp_path / "a.pt", tmp_path / "absent.pt")[0] == 3


def test_convert(capsys, tmp_path):
    weight = torch.ones(4, 4)
    torch.save({"a": weight, "b": weight, "row": weight[1], "step": 3}, tmp_path / "m.pt")
    code, document = printed(
        capsys, "convert", tmp_path / "m.pt", tmp_path / "out.safetensors", "--ties", "drop"
    )
    assert code == 0
    assert document["report"]["dropped"] == {"b": "a"}
    code, document = printed(capsys, "convert", tmp_path / "m.pt", tmp_path / "out.safetensors")
    assert (code, document["error"]["code"]) == (3, "TargetExists")


def test_doctor(files, capsys):
    folder = files[0].parent
    paths = [folder / "tensor.pt", folder / "dcp", folder / "absent.pt"]
    assert printed(capsys, "doctor", *paths)[0] == 3
    assert printed(capsys, "doctor", folder / "tensor.pt", "--no-measure")[0] == 0


def test_doctor_on_a_publication(files, capsys, tmp_path):
    folder = tmp_path / ".m.safetensors.part"
    folder.mkdir()
    (folder / "token").write_text("0123456789abcdef")
    (folder / "publish").touch()
    (tmp_path / "m.safetensors").write_bytes((files[0].parent / "m.safetensors").read_bytes())
    code, document = printed(capsys, "doctor", tmp_path / "m.safetensors")
    assert (code, [one["kind"] for one in document["left"]]) == (0, ["publication"])


@pytest.mark.parametrize("command", ["info", "stats", "scan", "doctor", "diff", "convert"])
@pytest.mark.parametrize("host", ["memory", "ftp"])
def test_secrets_of_urls_are_in_no_document(command, host, capsys, tmp_path, monkeypatch):
    fsspec = pytest.importorskip("fsspec")
    safetensors.torch.save_file({"a": torch.ones(2)}, tmp_path / "m.safetensors")
    fsspec.filesystem("memory").pipe("/schemas/m.safetensors", (tmp_path / "m.safetensors").read_bytes())
    monkeypatch.chdir(tmp_path)
    url = f"{host}://user:hunter2@schemas/m.safetensors?token=hunter2#hunter2"
    more = {"diff": [url], "convert": ["out.safetensors"]}.get(command, [])
    main([command, url, *more, "--json"])
    text = capsys.readouterr()
    assert errors(validator_of(command), json.loads(text.out)) == []
    assert "hunter2" not in text.out + text.err
