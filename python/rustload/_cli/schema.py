"""`rustload schema`: prints the JSON schema of what a command prints with `--json`, made from the types of the documents."""

from __future__ import annotations

import importlib
import re
import types
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    NotRequired,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from rustload._cli.command import COMMANDS
from rustload._cli.report import Header
from rustload._common.terminal import print_json

if TYPE_CHECKING:
    import argparse

# The margin is that of the class, which Python removes from version 3.13 on.
_ATTRIBUTE = re.compile(r"^( {4}(?: {4})?)(\w+): (.+(?:\n\1 {4}.+)*)", re.MULTILINE)
_SCALARS = {str: "string", bool: "boolean", float: "number", type(None): "null"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describes the command, and adds its arguments."""
    parser.description = (
        "Prints the JSON schema (draft 2020-12) of what a command of this version prints\nwith --json."
    )
    names = [*_documents()]
    parser.add_argument("name", metavar="COMMAND", choices=names, help=", ".join(names))


def run(args: argparse.Namespace) -> int:
    """Prints a schema and returns the exit code."""
    print_json(schema_of(args.name))
    return 0


def _documents() -> dict[str, type]:
    """The types of the documents: `Document` in the module of each command with `--json`."""
    modules = {name: importlib.import_module(f"rustload._cli.{name}") for name in COMMANDS}
    return {name: module.Document for name, module in modules.items() if hasattr(module, "Document")}


def schema_of(name: str) -> dict[str, Any]:
    """The JSON schema of a command's document."""
    types = _Types()
    document = _documents()[name]
    schema = types.object(Header, document) | {"description": _description(document)}
    optional = [key for key in schema["properties"] if key not in schema["required"]]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:rustload:schema:{name}:{schema['properties']['schema']['const']}",
        "title": f"rustload {name} --json",
        **schema,
        # A document has one of its optional keys: a report or an error.
        **({"oneOf": [{"required": [key]} for key in optional]} if optional else {}),
        "$defs": types.definitions,
    }


class _Types:
    """Makes schemas of types, and collects those of classes as definitions."""

    def __init__(self) -> None:
        self.definitions: dict[str, Any] = {}

    def object(self, *classes: type) -> dict[str, Any]:
        """The schema of an object with the fields of all classes, of which a later one counts; described as the first."""
        properties: dict[str, Any] = {}
        optional = set()
        fields = {key: field for cls in classes for key, field in _fields(cls).items()}
        for key, (hint, text) in fields.items():
            is_optional = get_origin(hint) is NotRequired
            if is_optional:
                optional.add(key)
            value = get_args(hint)[0] if is_optional else hint
            properties[key] = {**self.schema(value), "description": text}
        return {
            "description": _description(classes[0]),
            "type": "object",
            "properties": properties,
            "required": [key for key in properties if key not in optional],
            "additionalProperties": False,
        }

    def schema(self, hint: Any) -> dict[str, Any]:
        """The schema of a value of this type."""
        origin, args = get_origin(hint), get_args(hint)
        if origin is Annotated:
            base, more = args
            if isinstance(more, type):
                return self._definition(base, more)
            merged = {**self.schema(base), **more}
            return {key: value for key, value in merged.items() if value is not None}
        if origin is Literal:
            return {"const": args[0]} if len(args) == 1 else {"enum": [*args]}
        if origin in (Union, types.UnionType):
            return _union([self.schema(arg) for arg in args])
        if origin is dict:
            return {"type": "object", "additionalProperties": self.schema(args[1])}
        if origin in (list, tuple):
            fixed = (
                {} if origin is list or args[-1] is ... else {"minItems": len(args), "maxItems": len(args)}
            )
            return {"type": "array", "items": self.schema(args[0]), **fixed}
        if hint is int:
            return {"type": "integer", "minimum": 0}
        return {"type": _SCALARS[hint]} if hint in _SCALARS else self._definition(hint)

    def _definition(self, *classes: type) -> dict[str, Any]:
        name = classes[0].__name__
        if name not in self.definitions:
            self.definitions[name] = {}
            self.definitions[name] = self.object(*classes)
        return {"$ref": f"#/$defs/{name}"}


def _union(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """The schema of what fits one of several."""
    if any("enum" in part for part in parts):
        return {"enum": [value for part in parts for value in part.get("enum", [None])]}
    names = [part.get("type") for part in parts]
    if not all(name in ("integer", *_SCALARS.values()) for name in names):
        return {"oneOf": parts}
    if "number" in names:
        return {"type": [name for name in names if name != "integer"]}
    merged = {key: value for part in parts for key, value in part.items()}
    return {**merged, "type": names}


def _fields(cls: type) -> dict[str, tuple[Any, str]]:
    """Type and description of each field; of a class with properties, those."""
    properties = {key: one for key, one in vars(cls).items() if isinstance(one, property)}
    if properties and not hasattr(cls, "_fields"):
        return {
            key: (get_type_hints(one.fget, include_extras=True)["return"], _description(one))
            for key, one in properties.items()
        }
    texts = {key: text for _, key, text in _ATTRIBUTE.findall(cls.__doc__ or "")}
    hints = get_type_hints(cls, include_extras=True)
    return {key: (hint, _as_json(texts.get(key, ""))) for key, hint in hints.items()}


def _description(documented: Any) -> str:
    """The first paragraph of a docstring."""
    return _as_json((documented.__doc__ or "").partition("\n\n")[0])


def _as_json(text: str) -> str:
    """A text of Python's documentation in the words of JSON, in one line."""
    return re.sub(r"\bNone\b", "null", " ".join(text.split()))
