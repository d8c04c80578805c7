"""Holds the package to its layers: imports go down only, and no file is part of a cycle.

It reads the sources and checks every import statement: at the top, in functions, and those for type checkers only. Importing a
module also runs the `__init__` of its packages, which is not a statement, so these files contain little and never import upward.
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
LAYERS: dict[str, tuple[str, ...]] = {
    "__main__": ("_cli",),
    # Entry points of other programs.
    "_plugins": ("vllm", "sglang"),
    "vllm": ("torch", "_frameworks", "_common"),
    "sglang": ("torch", "_frameworks", "_common"),
    "diffusers": ("transformers", "torch", "_frameworks", "_checkpoint", "_common"),
    "lightning": ("torch", "_frameworks", "_remote", "_common"),
    "peft": ("torch", "_frameworks", "_checkpoint", "_common"),
    "transformers": ("torch", "_frameworks", "_common", "_checkpoint"),
    "torch": (
        "_safe_open",
        "_remote",
        "_save",
        "_checkpoint",
        "_tensor",
        "_frameworks",
        "_cuda",
        "_html",
        "_common",
    ),
    "jax": ("_checkpoint", "_tensor", "_frameworks", "_common"),
    "remote": ("_remote", "_common"),
    # It prints what the public functions return.
    "_cli": ("rustload", "_describe", "_diff", "_scan", "_remote", "_common"),
    # `rustload/__init__.py`: the public names.
    "rustload": (
        "_safe_open",
        "_view",
        "_diff",
        "_save",
        "_scan",
        "_checkpoint",
        "_tensor",
        "_frameworks",
        "_cuda",
        "_common",
    ),
    "_view": ("_describe", "_scan", "_remote", "_checkpoint", "_common"),
    "_diff": ("_describe", "_html", "_remote", "_checkpoint", "_tensor", "_common"),
    # What a checkpoint holds, for `rustload info`.
    "_describe": ("_scan", "_checkpoint", "_tensor", "_common"),
    "_save": ("_checkpoint", "_tensor", "_frameworks", "_html", "_remote", "_common"),
    "_safe_open": ("_remote", "_checkpoint", "_tensor", "_frameworks", "_common"),
    "_checkpoint": ("_tensor", "_frameworks", "_cuda", "_html", "_remote", "_common"),
    "_tensor": ("_frameworks", "_cuda", "_html", "_common"),
    # Converts a tensor or buffer of the extension into a framework's tensor, without handles.
    "_frameworks": ("_cuda", "_common"),
    # Independent of the frameworks.
    "_cuda": ("_common",),
    "_scan": ("_html", "_remote", "_common"),
    # What notebooks show: of numbers and names, without handles.
    "_html": ("_common",),
    # Sources of bytes in stores.
    "_remote": ("_common",),
    "_common": (),
    "errors": (),
}


class Import(NamedTuple):
    """A module that a file imports, with the line of the statement."""

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


def violations(files: dict[str, str]) -> list[str]:
    """Imports of a layer that is not below."""
    messages = []
    for file, line, module in imports(files):
        here, there = layer(module_of(file)), layer(module)
        if here not in LAYERS:
            messages.append(
                f"{file}:{line}: {here} is not a layer: add it to LAYERS in tests/python/test_layers.py"
            )
        elif there not in (here, *BASE, *LAYERS[here]):
            messages.append(
                f"{file}:{line}: {here} imports {module}; allowed: {', '.join(LAYERS[here]) or 'nothing'}"
            )
    return messages


def cycles(files: dict[str, str]) -> list[str]:
    """Imports that lead back to their own file."""
    arrows: dict[str, list[Import]] = {}
    for found in imports(files):
        arrows.setdefault(module_of(found.file), []).append(found)
    messages = []
    for start, found in arrows.items():
        for imported in found:
            seen, todo = set(), [imported.module]
            while todo:
                module = todo.pop()
                if module not in seen:
                    seen.add(module)
                    todo += [further.module for further in arrows.get(module, ())]
            if start in seen:
                messages.append(
                    f"{imported.file}:{imported.line}: the import of {imported.module} leads back to {start}"
                )
    return messages


def test_imports_go_down_only():
    assert not violations(sources()), "\n".join(violations(sources()))


def test_no_file_is_part_of_a_cycle():
    assert not cycles(sources()), "\n".join(cycles(sources()))


def test_the_layers_have_no_cycle_and_are_those_of_the_package():
    order = list(LAYERS)
    for upper, lower in itertools.chain.from_iterable(
        ((above, it) for it in below) for above, below in LAYERS.items()
    ):
        assert order.index(lower) > order.index(upper), f"{upper} -> {lower} goes up"
    assert set(LAYERS) == {layer(module_of(file)) for file in sources()}


def test_the_init_of_a_private_folder_has_a_docstring_and_no_definitions():
    for file, text in sources().items():
        if Path(file).name == "__init__.py" and file.startswith("_") and "/" in file:
            first, *rest = ast.parse(text).body
            assert isinstance(first, ast.Expr), f"{file}: no docstring"
            assert all(isinstance(node, ast.ImportFrom | ast.Assign) for node in rest), (
                f"{file}: defines something"
            )


def test_each_kind_of_violation_is_reported_with_file_and_line():
    files = {
        "errors.py": "",
        "_common/limits.py": "def f():\n    from rustload._tensor import handle\n",
        "_cuda/gpu.py": "if TYPE_CHECKING:\n    import rustload._frameworks.torch\n",
        "_tensor/handle.py": "from . import joined\nfrom rustload import errors\n",
        "_tensor/joined.py": "from rustload._tensor.handle import LazyTensor\n",
        "_more/one.py": "import rustload.errors\n",
    }
    allowed = {"_cuda": "_common", "_common": "nothing"}
    assert violations(files) == [
        f"_common/limits.py:2: _common imports rustload._tensor.handle; allowed: {allowed['_common']}",
        f"_cuda/gpu.py:2: _cuda imports rustload._frameworks.torch; allowed: {allowed['_cuda']}",
        "_more/one.py:1: _more is not a layer: add it to LAYERS in tests/python/test_layers.py",
    ]
    assert cycles(files) == [
        "_tensor/handle.py:1: the import of rustload._tensor.joined leads back to rustload._tensor.handle",
        "_tensor/joined.py:1: the import of rustload._tensor.handle leads back to rustload._tensor.joined",
    ]
