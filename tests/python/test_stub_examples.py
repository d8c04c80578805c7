"""Runs the examples in the docstrings of the extension, which live in its stub where pytest does not look."""

import ast
import doctest
from pathlib import Path

import pytest

STUB = Path(__file__).resolve().parents[2] / "python" / "rustload" / "_rustload.pyi"
DOCUMENTED = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef, ast.Module)


def examples():
    for node in ast.walk(ast.parse(STUB.read_text(encoding="utf-8"))):
        text = ast.get_docstring(node) if isinstance(node, DOCUMENTED) else None
        if text and ">>>" in text:
            name = f"{getattr(node, 'name', 'module')}-line-{node.body[0].lineno}"
            yield pytest.param(name, text, node.body[0].lineno, id=name)


@pytest.mark.examples
@pytest.mark.parametrize(("name", "text", "line"), [*examples()])
def test_every_example_of_the_stub_passes(name, text, line):
    test = doctest.DocTestParser().get_doctest(text, {}, name, str(STUB), line)
    output = []
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    failed, _ = doctest.DocTestRunner(optionflags=flags).run(test, out=output.append)
    assert not failed, "".join(output)
