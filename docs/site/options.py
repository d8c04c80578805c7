"""An extension of griffe: shows the keywords of a group of `_common.options` in the place of `**options`, as `help()` does."""

from __future__ import annotations

import textwrap
from typing import Any

import griffe

OPTIONS = "rustload._common.options"


class Options(griffe.Extension):
    """Changes the signatures and docstrings of functions that take a group."""

    def on_package(self, *, pkg: griffe.Module, loader: Any, **kwargs: object) -> None:  # noqa: ARG002 - griffe passes more
        """Changes those of a package, which is complete now."""
        found = loader.modules_collection
        table = found[f"{OPTIONS}._DEFAULTS"].value
        defaults = {
            str(key).strip("'\""): str(value) for key, value in zip(table.keys, table.values, strict=True)
        }
        for function in functions(pkg):
            annotation = getattr(function.parameters["options"], "annotation", None)
            group = found[annotation.slice.canonical_path]
            del function.parameters["options"]
            for owner in (*ancestors(group, found), group):
                for name, attribute in owner.members.items():
                    default = defaults.get(name, "None")
                    kind = griffe.ParameterKind.keyword_only
                    function.parameters.add(
                        griffe.Parameter(name, annotation=attribute.annotation, kind=kind, default=default)
                    )
            if function.docstring:
                texts = [
                    one.docstring.value.partition("Args:\n")[2] for one in (*ancestors(group, found), group)
                ]
                before, _, rest = function.docstring.value.partition("    **options:")
                own = "".join(
                    textwrap.indent(textwrap.dedent(text).strip("\n") + "\n", "    ")
                    for text in texts
                    if text
                )
                function.docstring.value = before + own + rest.partition("\n")[2]


def functions(inside: Any) -> list[griffe.Function]:
    """The functions and methods that take a group."""
    own = [one for one in inside.functions.values() if not one.is_alias and "options" in one.parameters]
    taking = [one for one in own if "Unpack[" in str(one.parameters["options"].annotation)]
    below = [*inside.modules.values(), *inside.classes.values()]
    return taking + [found for one in below if not one.is_alias for found in functions(one)]


def ancestors(group: Any, found: Any) -> list[griffe.Class]:
    """The groups that a group is made of, in the order of their keywords."""
    bases = [found[base.canonical_path] for base in group.bases if base.canonical_path.endswith("Options")]
    return [one for base in bases for one in (*ancestors(base, found), base)]
