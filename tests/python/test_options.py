"""Groups of keywords: a function that takes one shows each of its keywords, describes it once, and refuses all others."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any, Unpack

import pytest

import rustload
import rustload.torch
import rustload.torch.distributed
from rustload import _rustload
from rustload._common.options import Group, filled, part, takes


def public_functions() -> Iterator[tuple[str, Callable[..., Any]]]:
    """The public functions and methods that take a group, by name."""
    modules = [rustload, rustload.torch, rustload.torch.distributed]
    for module in modules + [pytest.importorskip(f"rustload.{name}") for name in ("jax", "peft")]:
        for name in module.__all__:
            value = getattr(module, name)
            methods = inspect.getmembers(value, inspect.isfunction) if inspect.isclass(value) else []
            for label, one in [(name, value), *((f"{name}.{method}", it) for method, it in methods)]:
                if hasattr(one, "defaults"):
                    yield f"{module.__name__}.{label}", one


FUNCTIONS = dict(public_functions())
every_function = pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)


def test_the_functions_that_share_keywords_take_groups():
    names = {name.removeprefix("rustload.") for name in FUNCTIONS}
    shared = {
        "Checkpoint.materialize",
        "Checkpoint.stats",
        "Checkpoint.stream",
        "Selection.stream",
        "LazyTensor.stats",
    }
    functions = {
        "open",
        "save",
        "convert",
        "diff",
        "torch.load_into",
        "torch.state_dict",
        "torch.save_model",
        "jax.load",
    }
    assert shared | functions <= names


@every_function
def test_the_signature_shows_every_keyword(function):
    parameters = inspect.signature(function).parameters
    assert "options" not in parameters
    own = function.__annotations__.keys() - {"options", "return"}
    group = function.__annotations__["options"].removeprefix("Unpack[").removesuffix("]")
    types = function.__globals__[group]._types
    assert set(parameters) - {"self"} == own | set(types)
    for name, kind in types.items():
        shown = parameters[name]
        assert (shown.kind, shown.annotation) == (shown.KEYWORD_ONLY, kind)
        assert shown.default == function.defaults[name]  # type: ignore[attr-defined]  # set by `takes`


@every_function
def test_the_docstring_describes_every_argument_once(function):
    text = inspect.getdoc(function) or ""
    described = re.search(r"^Args:\n((?: .*\n|\n(?= {8}))+)", text + "\n", re.MULTILINE)
    assert described is not None
    names = re.findall(r"^ {4}(\w+): \S", described[1], re.MULTILINE)
    assert sorted(names) == sorted(set(inspect.signature(function).parameters) - {"self"})


@every_function
def test_an_unknown_keyword_is_a_type_error_that_names_it_and_the_function(function):
    required = [
        object() if name != "self" else rustload.open(b"\x80\x04}.")
        for name, one in inspect.signature(function).parameters.items()
        if one.default is one.empty
    ]
    with pytest.raises(TypeError) as caught:
        function(*required, threds=2)
    assert str(caught.value) == f"{function.__qualname__}() got an unexpected keyword argument 'threds'"


def test_the_note_has_similar_keywords():
    with pytest.raises(TypeError) as caught:
        rustload.open("nothing.pt", limit=None)  # type: ignore[call-arg]
    assert caught.value.__notes__ == ["did you mean: limits"]


def test_the_defaults_are_those_of_the_extension():
    defaults: dict[str, Any] = rustload.open.defaults  # type: ignore[attr-defined]
    given = _rustload.open(b"\x80\x04}.", _rustload.OpenOptions(**defaults))
    assert given.names() == []
    request = _rustload.Request()
    read = rustload.LazyTensor.materialize.defaults  # type: ignore[attr-defined]
    for name in ("copy", "allow_lossy", "dequantize"):
        assert getattr(request, name) == read[name]


class Inner(Group, total=False):
    """Some keywords.

    Args:
        verify: Whether
            to verify.
    """

    verify: bool


class Outer(Inner, total=False):
    """More.

    Args:
        memory: How much.
    """

    memory: int | str


class Taker:
    @takes(Outer)
    def take(self, first: int, second: int = 2, *, third: int = 3, **options: Unpack[Outer]) -> Any:
        """Takes.

        Args:
            first: One.
            second: Two.
            third: Three.
            **options: The rest.

        Returns:
            All.
        """
        how = filled(Taker.take, options)
        return first, second, third, how, part(Inner, how)


def test_a_decorated_function_gets_what_was_given_and_the_defaults():
    how = {"verify": True, "memory": "256MiB"}
    assert Taker().take(1, verify=True) == (1, 2, 3, how, {"verify": True})
    assert str(inspect.signature(Taker().take)) == (
        "(first: 'int', second: 'int' = 2, *, third: 'int' = 3, verify: 'bool' = False, "
        "memory: 'int | str' = '256MiB') -> 'Any'"
    )
    assert inspect.getsource(Taker.take).lstrip().startswith("@takes(Outer)")


def test_the_descriptions_of_a_group_replace_that_of_the_options():
    assert inspect.getdoc(Taker.take) == (
        "Takes.\n\nArgs:\n    first: One.\n    second: Two.\n    third: Three.\n    verify: Whether\n        to verify.\n"
        "    memory: How much.\n\nReturns:\n    All."
    )
