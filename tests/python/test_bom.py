"""`rustload info --cyclonedx`: valid, deterministic, and nothing but what the files say."""

import functools
import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from schemas import errors
from support import Reduced, cli, write_shards
from torch.distributed import checkpoint as dcp

import rustload
from rustload._cli import main

pytestmark = [
    pytest.mark.usefixtures("folder"),
    pytest.mark.filterwarnings(
        "ignore::FutureWarning", "ignore::DeprecationWarning", "ignore:.*torch.distributed"
    ),
]

EVIL = b"\x80\x02}X\x01\x00\x00\x00acposix\nsystem\nX\x01\x00\x00\x00x\x85Rs."


@functools.cache
def validator() -> Any:
    """The validator of CycloneDX's own schema, which its package brings along, with formats."""
    jsonschema = pytest.importorskip("jsonschema")
    package = pytest.importorskip("cyclonedx.schema")
    from referencing import Registry, Resource

    folder = Path(package.__file__).parent / "_res"

    def load(name: str) -> Any:
        return json.loads((folder / f"{name}.SNAPSHOT.schema.json").read_text(encoding="utf-8"))

    others = [("spdx.schema.json", load("spdx")), ("jsf-0.82.schema.json", load("jsf-0.82"))]
    base = "http://cyclonedx.org/schema/"
    registry = Registry().with_resources((base + name, Resource.from_contents(one)) for name, one in others)
    formats = jsonschema.Draft7Validator.FORMAT_CHECKER
    return jsonschema.Draft7Validator(load("bom-1.6"), registry=registry, format_checker=formats)


def bom(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 0) -> dict[str, Any]:
    assert main(["info", *map(str, arguments), "--cyclonedx"]) == code
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert errors(validator(), document) == []
    return document


def facts(component: dict[str, Any]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for one in component["properties"]:
        found.setdefault(one["name"], []).append(one["value"])
    return found


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a folder of two shards, and single files."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
    parts = [{name: torch.ones(4, 8, dtype=torch.bfloat16)} for name in ("a", "b")]
    write_shards(tmp_path / "llama", parts, metadata={"format": "pt"})
    shared = torch.ones(3)
    torch.save({"w": shared, "tied": shared, "i": torch.ones(2, dtype=torch.int64)}, tmp_path / "model.pt")
    return tmp_path


def test_a_model_has_its_files_dtypes_and_parameters(folder, capsys):
    (model,) = bom(capsys, "llama")["components"]
    assert (model["type"], model["name"]) == ("machine-learning-model", "llama")
    assert facts(model) == {
        "rustload:format": ["safetensors"],
        "rustload:tensors": ["2"],
        "rustload:parameters": ["64"],
        "rustload:nbytes": ["128"],
        "rustload:dtype": ["bfloat16"],
        "rustload:dtype:bfloat16:tensors": ["2"],
        "rustload:dtype:bfloat16:nbytes": ["128"],
        "rustload:scan:verdict": ["inert"],
        "rustload:scan:complete": ["true"],
    }
    files = model["components"]
    names = sorted(path.name for path in (folder / "llama").glob("*.safetensors"))
    assert [file["name"] for file in files if file["name"].endswith("safetensors")] == names
    for file in files:
        assert file["type"] == "file"
        assert "hashes" not in file
        size = (folder / "llama" / file["name"]).stat().st_size
        assert facts(file) == {"rustload:size": [str(size)]}


def test_a_pickle_has_the_names_of_its_classes_and_its_verdict(capsys):
    good, evil = Path("model.pt"), Path("evil.pkl")
    evil.write_bytes(EVIL)
    first, second = bom(capsys, good, evil)["components"]
    found = facts(first)
    assert found["rustload:parameters"] == ["5"], "names of one tensor count once"
    assert "torch._utils._rebuild_tensor_v2" in found["rustload:global"]
    assert "modelCard" not in first
    assert facts(second)["rustload:scan:verdict"] == ["would execute"]
    assert "posix.system" in facts(second)["rustload:global"]


def test_the_files_of_a_distributed_checkpoint_are_listed_hashed_and_scanned(capsys):
    dcp.save(
        {"w": torch.ones(3), "value": Reduced(os.system, ("echo hello",))},
        checkpoint_id="saved",
        no_dist=True,
    )
    for path in ("saved", "saved/.metadata", Path("saved").absolute()):
        (model,) = bom(capsys, path, "--hashes")["components"]
        assert {file["name"]: file["hashes"][0]["content"] for file in model["components"]} == {
            file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in Path("saved").iterdir()
        }
        assert facts(model)["rustload:scan:verdict"] == [rustload.scan("saved").verdict] == ["would execute"]


def test_the_model_card_has_only_what_the_metadata_says(capsys):
    metadata = {
        "format": "pt",
        "modelspec.architecture": "stable-diffusion-v1",
        "modelspec.author": "A. Author",
        "modelspec.license": "CreativeML Open RAIL-M",
        "modelspec.description": "a model",
        "odd \x1b[31m name": "\u202evalue",
    }
    safetensors.torch.save_file({"a": torch.ones(2)}, "m.safetensors", metadata=metadata)
    (model,) = bom(capsys, "m.safetensors")["components"]
    card = model["modelCard"]
    assert card["modelParameters"] == {"modelArchitecture": "stable-diffusion-v1"}
    assert {one["name"]: one["value"] for one in card["properties"]} == {
        f"metadata:{key}": value for key, value in metadata.items()
    }
    assert card.keys() == {"modelParameters", "properties"}
    assert model["authors"] == [{"name": "A. Author"}]
    assert model["licenses"] == [{"license": {"name": "CreativeML Open RAIL-M"}}]
    assert model["description"] == "a model"


def test_hashes_are_given_if_asked_for(folder, capsys):
    (model,) = bom(capsys, "llama", "--hashes")["components"]
    for file in model["components"]:
        content = (folder / "llama" / file["name"]).read_bytes()
        assert file["hashes"] == [{"alg": "SHA-256", "content": hashlib.sha256(content).hexdigest()}]


def test_two_runs_at_two_places_are_byte_equal(folder, tmp_path_factory):
    other = tmp_path_factory.mktemp("elsewhere") / "deep"
    shutil.copytree(folder, other)
    first, second, third = (
        cli("info", "llama", "model.pt", "--cyclonedx", cwd=place).stdout for place in (folder, folder, other)
    )
    assert first == second == third
    assert first
    assert str(folder) not in first
    assert "timestamp" not in first


def test_the_serial_number_is_that_of_the_content(capsys):
    one, same, other = bom(capsys, "llama"), bom(capsys, "./llama/"), bom(capsys, "model.pt")
    assert one == same
    assert one["serialNumber"] != other["serialNumber"]


def test_the_time_is_that_of_source_date_epoch(capsys, monkeypatch):
    without = bom(capsys, "llama")
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    document = bom(capsys, "llama")
    assert document["metadata"]["timestamp"] == "2023-11-14T22:13:20Z"
    assert document["serialNumber"] == without["serialNumber"]
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "yesterday")
    assert bom(capsys, "llama") == without


def test_a_snapshot_in_the_hub_cache_has_the_name_of_the_repository(folder, capsys):
    revision = "0123456789abcdef0123456789abcdef01234567"
    snapshot = folder / "models--some-org--a.model" / "snapshots" / revision
    snapshot.parent.mkdir(parents=True)
    shutil.copytree(folder / "llama", snapshot)
    (model,) = bom(capsys, snapshot)["components"]
    assert (model["name"], model["version"]) == ("some-org/a.model", revision)
    assert model["purl"] == f"pkg:huggingface/some-org/a.model@{revision}"


def test_a_file_that_cannot_be_read_is_an_error_beside_the_document(capsys):
    document = bom(capsys, "absent.pt", "model.pt", code=3)
    assert [model["name"] for model in document["components"]] == ["model.pt"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--hashes"], "--hashes needs --cyclonedx"),
        (["--cyclonedx", "--json"], "not allowed with"),
        (["--cyclonedx", "--filter", "*"], "takes no --filter"),
    ],
)
def test_wrong_usage(capsys, arguments, message):
    with pytest.raises(SystemExit) as caught:
        main(["info", "model.pt", *arguments])
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


def test_secrets_of_urls_are_not_in_the_document(capsys):
    fsspec = pytest.importorskip("fsspec")
    content = Path("llama/model-00001-of-00002.safetensors").read_bytes()
    fsspec.filesystem("memory").pipe("/bom/model.safetensors", content)
    (model,) = bom(capsys, "memory://bom/model.safetensors")["components"]
    assert model["name"] == "model.safetensors"
    assert [file["name"] for file in model["components"]] == ["model.safetensors"]
    assert facts(model)["rustload:scan:verdict"] == ["inert"]
    for more, code in (([], 3), (["--hashes"], 3)):
        url = "memory://user:hunter2@bom/model.safetensors?token=hunter2#hunter2"
        assert main(["info", url, "--cyclonedx", *more]) == code
        printed = capsys.readouterr()
        assert errors(validator(), json.loads(printed.out)) == []
        assert "hunter2" not in printed.out + printed.err
