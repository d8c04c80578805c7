"""Holds the package to its layers: imports go down only, and no file is part of a cycle.

It reads the sources and counts every import statement: at the top, in functions, and those for type checkers alone. The import of
a package's own `__init__` that comes with each of its modules is no statement, so those say little: they must not import upward.
"""

from __future__ import annotations

import ast
import itertools
from pathlib import Path
from typing import NamedTuple

PACKAGE = Path(__file__).parents[2] / "python" / "rustload"

BASE = ("_rustload", "errors")
"""What every layer may import: the extension, and the exceptions."""

# From the top, each layer and the layers below it that it may import. Its own files and BASE are always allowed.
PLAN: dict[str, tuple[str, ...]] = {
    "__main__": ("_cli",),
    "transformers": ("torch", "_frameworks", "_common", "_checkpoint"),
    "torch": ("_safe_open", "_checkpoint", "_tensor", "_frameworks", "_cuda", "_common"),
    "jax": ("_checkpoint", "_tensor", "_frameworks", "_common"),
    # It shows what users see, by what users call.
    "_cli": ("rustload", "_scan", "_common"),
    # `rustload/__init__.py`: the public names.
    "rustload": ("_safe_open", "_scan", "_checkpoint", "_tensor", "_frameworks", "_cuda", "_common"),
    "_safe_open": ("_checkpoint", "_tensor", "_frameworks", "_common"),
    "_checkpoint": ("_tensor", "_frameworks", "_cuda", "_common"),
    "_tensor": ("_frameworks", "_cuda", "_common"),
    # A core's tensor or buffer in, a framework's tensor out: it knows no handle.
    "_frameworks": ("_cuda", "_common"),
    # It knows no framework.
    "_cuda": ("_common",),
    "_scan": ("_common",),
    "_common": (),
    "errors": (),
}


class Import(NamedTuple):
    """A module that a file imports, with the place of the statement."""

    file: str
    line: int
    module: str


def layer(module: str) -> str:
    """The layer of a module: the part behind `rustload.`, or the package itself."""
    return module.split(".")[1] if "." in module else module


def module_of(file: str) -> str:
    parts = ("rustload", *Path(file).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def sources() -> dict[str, str]:
    return {str(path.relative_to(PACKAGE)): path.read_text() for path in sorted(PACKAGE.rglob("*.py"))}


def imports(files: dict[str, str]) -> list[Import]:
    """Every import of rustload's own modules; of `from a import b`, b where that is a module, and else a."""
    modules = {module_of(file) for file in files} | {"rustload._rustload"}
    found = []
    for file, text in files.items():
        own = module_of(file)
        for node in ast.walk(ast.parse(text, file)):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                base = node.module or ""
                if node.level:
                    outer = own.split(".")[: None if file.endswith("__init__.py") else -1]
                    outer = outer[: len(outer) - node.level + 1]
                    base = ".".join((*outer, *filter(None, (node.module,))))
                inner = [f"{base}.{alias.name}" for alias in node.names]
                names = [name if name in modules else base for name in inner]
            else:
                continue
            ours = [name for name in dict.fromkeys(names) if name.split(".")[0] == "rustload"]
            found += [Import(file, node.lineno, name) for name in ours]
    return found


def faults(files: dict[str, str]) -> list[str]:
    """Imports that do not go down."""
    told = []
    for file, line, module in imports(files):
        here, there = layer(module_of(file)), layer(module)
        if here not in PLAN:
            told.append(f"{file}:{line}: {here} is no layer: add it to PLAN in tests/python/test_layers.py")
        elif there not in (here, *BASE, *PLAN[here]):
            told.append(
                f"{file}:{line}: {here} imports {module}; allowed: {', '.join(PLAN[here]) or 'nothing'}"
            )
    return told


def cycles(files: dict[str, str]) -> list[str]:
    """Imports that lead back to the file that they are in."""
    arrows: dict[str, list[Import]] = {}
    for found in imports(files):
        arrows.setdefault(module_of(found.file), []).append(found)
    told = []
    for start, found in arrows.items():
        for one in found:
            seen, todo = set(), [one.module]
            while todo:
                module = todo.pop()
                if module not in seen:
                    seen.add(module)
                    todo += [further.module for further in arrows.get(module, ())]
            if start in seen:
                told.append(f"{one.file}:{one.line}: the import of {one.module} leads back to {start}")
    return told


def test_imports_go_down_only() -> None:
    assert not faults(sources()), "\n".join(faults(sources()))


def test_no_file_is_part_of_a_cycle() -> None:
    assert not cycles(sources()), "\n".join(cycles(sources()))


def test_the_plan_has_no_cycle_and_names_what_is_there() -> None:
    order = list(PLAN)
    for upper, lower in itertools.chain.from_iterable(
        ((one, it) for it in below) for one, below in PLAN.items()
    ):
        assert order.index(lower) > order.index(upper), f"{upper} -> {lower} goes up"
    assert set(PLAN) == {layer(module_of(file)) for file in sources()}


def test_an_init_of_a_private_folder_says_what_lives_there_and_defines_nothing() -> None:
    for file, text in sources().items():
        if Path(file).name == "__init__.py" and file.startswith("_") and "/" in file:
            first, *rest = ast.parse(text).body
            assert isinstance(first, ast.Expr), f"{file}: no docstring"
            assert all(isinstance(node, ast.ImportFrom | ast.Assign) for node in rest), (
                f"{file}: defines something"
            )


def test_each_kind_of_fault_is_told_with_its_place() -> None:
    files = {
        "errors.py": "",
        "_common/limits.py": "def f():\n    from rustload._tensor import handle\n",
        "_cuda/gpu.py": "if TYPE_CHECKING:\n    import rustload._frameworks.torch\n",
        "_tensor/handle.py": "from . import joined\nfrom rustload import errors\n",
        "_tensor/joined.py": "from rustload._tensor.handle import LazyTensor\n",
        "_more/one.py": "import rustload.errors\n",
    }
    allowed = {"_cuda": "_common", "_common": "nothing"}
    assert faults(files) == [
        f"_common/limits.py:2: _common imports rustload._tensor.handle; allowed: {allowed['_common']}",
        f"_cuda/gpu.py:2: _cuda imports rustload._frameworks.torch; allowed: {allowed['_cuda']}",
        "_more/one.py:1: _more is no layer: add it to PLAN in tests/python/test_layers.py",
    ]
    assert cycles(files) == [
        "_tensor/handle.py:1: the import of rustload._tensor.joined leads back to rustload._tensor.handle",
        "_tensor/joined.py:1: the import of rustload._tensor.handle leads back to rustload._tensor.joined",
    ]
