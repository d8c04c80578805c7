"""The table of globals (`src/index/pickled/globals.txt`) as the oracle reads it.

What a scan proves is the alphabet of the programs that try to refute it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from fuzz.oracle import ROOT

__all__ = ["KINDS", "ROWS", "TYPES", "Node", "Row"]

_TOKEN = re.compile(r"\s*(set\(|dict\(|'[^']*'|<\w+>|[\w.]+\??:|\*:|[\w.]+|[][(){}?|,*:])")


@dataclass(frozen=True)
class Node:
    """A schema: `tag` is a word of the table, `list`, `tuple`, `set`, `dict`, `record`, `kind`, `literal`, `named` or `union`.

    Attributes:
        tag: What it is.
        parts: The schemas in it; of a record, its fields' schemas.
        text: The kind, literal or name; of a list or tuple, `"*"` if it has any length.
        names: The names of a record's fields; those that may be missing end with a question mark.
    """

    tag: str
    parts: tuple[Node, ...] = ()
    text: str = ""
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Row:
    """A name of the table.

    Attributes:
        module: Its module.
        name: Its name.
        flags: The letters of its flags.
        kind: What a call gives.
        how: How it is made.
        calls: The forms of calls: whether NEWOBJ makes it, and its arguments.
        state: The schema of a state.
    """

    module: str
    name: str
    flags: str
    kind: str
    how: str
    calls: tuple[tuple[bool, Node], ...]
    state: Node | None

    @property
    def dotted(self) -> str:
        """Module and name."""
        return f"{self.module}.{self.name}"


class _Parser:
    def __init__(self, text: str) -> None:
        self.tokens: list[str] = _TOKEN.findall(text)

    def eat(self, token: str) -> bool:
        found = bool(self.tokens) and self.tokens[0] == token
        if found:
            del self.tokens[0]
        return found

    def union(self) -> Node:
        parts = [self.term()]
        while self.eat("|"):
            parts.append(self.term())
        return parts[0] if len(parts) == 1 else Node("union", tuple(parts))

    def term(self) -> Node:
        token = self.tokens.pop(0)
        match token:
            case "?":
                return Node("union", (Node("none"), self.term()))
            case "[" | "(":
                return self.items("list" if token == "[" else "tuple", "]" if token == "[" else ")")
            case "{":
                return self.braces()
            case "set(":
                return Node("set", (self.union(), *self.end(")")))
            case "dict(":
                key = self.union()
                self.eat(",")
                return Node("dict", (key, self.union(), *self.end(")")))
        if token[0] in "'<":
            return Node("literal" if token[0] == "'" else "kind", text=token[1:-1])
        if token in TYPES:
            return TYPES[token]
        return Node("named", text=token) if "." in token else Node(token)

    def end(self, token: str) -> tuple[()]:
        assert self.eat(token), (token, self.tokens)
        return ()

    def items(self, tag: str, end: str) -> Node:
        parts = []
        while not self.eat(end):
            parts.append(self.union())
            if self.eat("*"):
                self.end(end)
                return Node(tag, tuple(parts), "*")
            self.eat(",")
        return Node(tag, tuple(parts))

    def braces(self) -> Node:
        if not self.tokens[0].startswith((".", "*")):
            key = self.union() if not self.tokens[0].endswith(":") else Node(self.tokens.pop(0)[:-1])
            self.eat(":")
            return Node("dict", (key, self.union(), *self.end("}")))
        names, parts = [], []
        while not self.eat("}"):
            names.append(self.tokens.pop(0)[:-1].lstrip("."))
            parts.append(self.union())
            self.eat(",")
        return Node("record", tuple(parts), names=tuple(names))


def _schema(text: str) -> Node:
    parser = _Parser(text)
    node = parser.union()
    assert not parser.tokens, (text, parser.tokens)
    return node


TYPES: dict[str, Node] = {}
"""The names that the table defines."""


def _rows() -> list[Row]:
    rows = []
    for line in (ROOT / "src" / "index" / "pickled" / "globals.txt").read_text().splitlines():
        if line.startswith("type "):
            name, _, text = line.removeprefix("type ").partition("=")
            TYPES[name.strip()] = _schema(text)
        elif line and line[0] not in "# ":
            flags, meaning, module, names, calls, state = re.split(" {2,}", line)
            kind, _, how = meaning.partition(":")
            forms = [] if calls == "-" else calls.split(" / ")
            made = tuple((form.startswith("new"), _schema(form.removeprefix("new"))) for form in forms)
            built = None if state == "-" else _schema(state)
            rows += [Row(module, name, flags, kind, how, made, built) for name in names.split()]
    return rows


ROWS = _rows()
"""Every name of the table."""


def _kinds() -> dict[str, list[Row]]:
    kinds: dict[str, Any] = {}
    for row in ROWS:
        kinds.setdefault(row.kind, []).append(row)
    return kinds


KINDS: dict[str, list[Row]] = _kinds()
"""The names by kind."""
