"""Writes src/scan/detectors/exported/schema.txt: what the reader of torch.export takes from a graph, by torch's own dataclasses.

Run with the newest torch: `python tests/data/make_export_schema.py`. `test_pt2.py` compares the table with the installed torch.
"""

import dataclasses
import enum
import types
import typing
from pathlib import Path

from torch._export.serde import schema
from torch._export.serde.union import _Union

TARGET = Path(__file__).parents[2] / "src/scan/detectors/exported/schema.txt"
HEAD = """\
# What torch._export.serde reads of a graph, by its dataclasses. Written by tests/data/make_export_schema.py.
# A record has some of its fields, a union exactly one. Texts: name (of a variable), path (of an attribute), word (an
# argument), text (any), and texts that the reader evaluates. [T] is a list, {T} an object whose keys are names or sums
# of them, T? may be null.
"""
TEXTS = {
    ("SymExpr", "expr_str"): "expression",
    ("ExportedProgram", "guards_code"): "[guard]",
    ("ExportedProgram", "torch_version"): "text",
    ("ModuleCallSignature", "in_spec"): "pytree",
    ("ModuleCallSignature", "out_spec"): "pytree",
    ("Node", "target"): "operator",
    ("Node", "metadata"): "metadata",
    ("GraphModule", "metadata"): "metadata",
    ("Argument", "as_operator"): "operator",
    ("Argument", "as_string"): "word",
    ("Argument", "as_strings"): "[word]",
    ("ConstantValue", "as_string"): "word",
    ("InputToParameterSpec", "parameter_name"): "path",
    ("InputToBufferSpec", "buffer_name"): "path",
    ("InputToTensorConstantSpec", "tensor_constant_name"): "path",
    ("BufferMutationSpec", "buffer_name"): "path",
    ("ParameterMutationSpec", "parameter_name"): "path",
    ("GradientToParameterSpec", "parameter_name"): "path",
    ("ModuleCallEntry", "fqn"): "path",
}
"""The fields whose texts are not names of variables. torch writes names into the source of a function."""


def written(hint: object, used: list[type]) -> str:
    """A type as the table has it; adds dataclasses in it to `used`."""
    if isinstance(hint, (str, typing.ForwardRef)):
        hint = getattr(schema, hint if isinstance(hint, str) else hint.__forward_arg__)
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        [inner] = [arg for arg in args if arg is not type(None)]
        return written(inner, used) + "?"
    if origin is list:
        return f"[{written(args[0], used)}]"
    if origin is dict:
        return f"{{{written(args[1], used)}}}"
    if hint in (bool, int, float):
        return hint.__name__
    if hint is str:
        return "name"
    if issubclass(hint, enum.IntEnum):
        return "int"
    used.append(hint)
    return hint.__name__


def lines() -> list[str]:
    out, done, pending = [], set(), [schema.ExportedProgram]
    while pending:
        cls = pending.pop(0)
        if cls in done:
            continue
        done.add(cls)
        used: list[type] = []
        hints = typing.get_type_hints(cls, vars(schema))
        fields = [
            f"{field.name}:{TEXTS.get((cls.__name__, field.name)) or written(hints[field.name], used)}"
            for field in dataclasses.fields(cls)
        ]
        kind = "union" if issubclass(cls, _Union) else "record"
        out.append(" ".join([kind, cls.__name__, *fields]))
        pending += used
    return out


def text() -> str:
    return HEAD + "\n".join(lines()) + "\n"


if __name__ == "__main__":
    TARGET.write_text(text())
