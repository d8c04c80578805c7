"""Validates documents against JSON schemas, without a network."""

import functools
import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from rustload._cli.schema import schema_of

ROOT = Path(__file__).resolve().parents[2]


def errors(validator: Any, document: Any) -> list[str]:
    """What is not valid, with the place of each."""
    return [f"{error.json_path}: {error.message[:300]}" for error in validator.iter_errors(document)]


def kind(value: Any) -> Any:
    """What a schema can tell apart of a value: type, sign, emptiness, and words, as enumerations have them."""
    if isinstance(value, str):
        return value if re.fullmatch(r"[A-Za-z -]{1,30}", value) else bool(value)
    if isinstance(value, dict | list):
        return type(value), bool(value)
    return type(value), value is not None and (value > 0) - (value < 0)


def shapes(document: Any, path: str = "$") -> set[Any]:
    """The kinds of each object's values, and of each list's items, with its path."""
    if isinstance(document, dict):
        found = {(path, *((key, kind(value)) for key, value in document.items()))}
        return found.union(*(shapes(value, f"{path}.{key}") for key, value in document.items()))
    if isinstance(document, list):
        return {(path, kind(one)) for one in document}.union(*(shapes(one, f"{path}[]") for one in document))
    return set()


def thinned(document: Any) -> Any:
    """The document without the items of its lists that have no shape which those before them lack."""
    if isinstance(document, dict):
        return {key: thinned(value) for key, value in document.items()}
    if not isinstance(document, list):
        return document
    kept, before = [], set()
    for one in document:
        if not before.issuperset(found := shapes(one)):
            before |= found
            kept.append(thinned(one))
    return kept


@functools.cache
def seen(_validator: Any) -> set[Any]:
    """The shapes that were valid."""
    return set()


def new_errors(validator: Any, document: Any) -> list[str]:
    """As `errors`, which takes long, for one of thousands of documents: nothing if all of its shapes were valid in others."""
    found = shapes(document)
    if found <= seen(id(validator)):
        return []
    if not (wrong := errors(validator, thinned(document))):
        seen(id(validator)).update(found)
    return wrong


@functools.cache
def sarif_validator() -> Any:
    """The validator of the SARIF schema; skips the test if `jsonschema` is not installed."""
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads((ROOT / "tests/data/schemas/sarif-2.1.0.json").read_text(encoding="utf-8"))
    jsonschema.Draft4Validator.check_schema(schema)
    return jsonschema.Draft4Validator(schema)


def texts(document: Any, path: str = "$") -> list[tuple[str, str]]:
    """Every string of a document, keys too, with its place."""
    if isinstance(document, str):
        return [(path, document)]
    if isinstance(document, dict):
        keys = [(f"{path} key", key) for key in document]
        return keys + [found for key, one in document.items() for found in texts(one, f"{path}.{key}")]
    if isinstance(document, list):
        return [found for at, one in enumerate(document) for found in texts(one, f"{path}[{at}]")]
    return []


def check_sarif(log: dict[str, Any], *, schema: bool = True, rules_too: bool = True) -> None:
    """What every log has to be: valid, without empty strings, and within GitHub's rules and limits.

    Args:
        log: The log.
        schema: Whether to validate it, which takes longest.
        rules_too: Whether to validate the rules, too, which are the same in every log.
    """
    assert log["$schema"] == "https://json.schemastore.org/sarif-2.1.0.json"
    (run,) = log["runs"]
    driver = run["tool"]["driver"]
    rules = driver["rules"]
    if schema:
        driver = {**driver, "rules": rules if rules_too else []}
        validated = {**log, "runs": [{**run, "tool": {"driver": driver}}]}
        assert (errors if rules_too else new_errors)(sarif_validator(), validated) == []
    assert not [place for place, text in texts(run["results"] if not rules_too else log) if not text]
    assert len({rule["id"] for rule in rules}) == len(rules)
    assert len(run["results"]) <= 25_000
    fingerprints = [result["partialFingerprints"]["primaryLocationLineHash"] for result in run["results"]]
    assert len(set(fingerprints)) == len(fingerprints)
    for result in run["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["level"] == rules[result["ruleIndex"]]["defaultConfiguration"]["level"]
        location = result["locations"][0]["physicalLocation"]
        assert location["region"].keys() >= {"startLine", "startColumn", "endLine", "endColumn"}
        assert re.fullmatch(r"[0-9a-f]{16}:1", result["partialFingerprints"]["primaryLocationLineHash"])
        uri = urlsplit(location["artifactLocation"]["uri"])
        assert uri.scheme in ("", "file", "urn", "https", "http", "memory")
        assert re.fullmatch(r"[\w.~%/:@\[\]-]+", location["artifactLocation"]["uri"], re.ASCII)
        for flow in result.get("codeFlows", ()):
            assert 0 < len(flow["threadFlows"][0]["locations"]) <= 100
    for notice in run["invocations"][0]["toolExecutionNotifications"]:
        assert driver["notifications"][notice["descriptor"]["index"]]["id"] == notice["descriptor"]["id"]


@functools.cache
def validator_of(name: str) -> Any:
    """The validator of rustload's schema of a command; skips the test if `jsonschema` is not installed."""
    jsonschema = pytest.importorskip("jsonschema")
    schema = schema_of(name)
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)
