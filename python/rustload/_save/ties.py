"""Names of one and the same tensor: which of them are written."""

from __future__ import annotations

import json
import re
import sys
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from rustload import _rustload
from rustload._common.patterns import matches, patterns_of
from rustload._common.request import Request
from rustload._save.sources import read_small
from rustload.errors import _check_one_of, _error

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rustload._remote.folder import ObjectFolder
    from rustload._save.arrays import Values
    from rustload._save.sources import LocalFolder

Ties: TypeAlias = Literal["auto", "copy", "drop", "error"]

_CONFIG_MAX_BYTES = 10 << 20
# Names of the embedding and of the output head in the models of transformers; the parameter is the last part.
_EMBEDDING = re.compile(r"(?:^|\.)(?:\w*embed\w*|wte|shared)(?:\.\w+)*\.weight")
_HEAD = re.compile(r"(?:^|\.)(?:lm_head|embed_out|output_projection|predictions\.decoder)\.(?:\w+\.)?weight")


class TieRule(NamedTuple):
    """What is done with names of one and the same tensor: the arguments `ties=`, `keep=` and `discard=`.

    Attributes:
        ties: Whether each is written, one of them, or none.
        keep: The names that are preferred.
        discard: The names that are left out where another one is written.
    """

    ties: Ties
    keep: list[str]
    discard: list[str]

    @classmethod
    def checked(cls, ties: Any, keep: str | Iterable[str], discard: str | Iterable[str]) -> TieRule:
        """The rule of the arguments as the user gave them.

        Raises:
            TypeError: `keep` or `discard` is neither a str nor an iterable of them.
            ValueError: `ties` is none of the possible values, or does not go with the others.
        """
        _check_one_of("ties", ties, ("auto", "copy", "drop", "error"))
        lists = [patterns_of(keep, "keep"), patterns_of(discard, "discard")]
        if any(lists) and ties in ("copy", "error"):
            text = f"is {ties!r}, and only 'drop' goes with names to keep or to discard"
            raise _error("Value", text, argument="ties")
        if any(lists):
            ties = "drop"
        return cls(ties, *lists)


def says_tied(folder: LocalFolder | ObjectFolder | None) -> bool:
    """Whether the `config.json` of a folder says that the output head is the embedding."""
    content = read_small(folder, "config.json", _CONFIG_MAX_BYTES)
    try:
        config = None if content is None else json.loads(content)
    except (ValueError, RecursionError):
        return False
    parts = [config, config.get("text_config")] if isinstance(config, dict) else []
    return any(isinstance(part, dict) and part.get("tie_word_embeddings") is True for part in parts)


def dropped_names(
    items: dict[str, Any], values: dict[str, Values], rule: TieRule, *, head_is_tied: bool = False
) -> dict[str, str]:
    """The names that are left out, each with the name that is written for it.

    Args:
        items: The tensors as the user gave them.
        values: The same, as the extension writes them.
        rule: What is done with names of the same tensor.
        head_is_tied: Whether the model's configuration says so; it matters for "auto" only.

    Raises:
        ValueError: Names are tied, and the rule refuses that.
    """
    if rule.ties == "copy" or (rule.ties == "auto" and not head_is_tied):
        return {}
    groups: dict[Any, list[str]] = {}
    aliases = _lazy_aliases(values)
    for name, value in items.items():
        groups.setdefault(aliases[name] if name in aliases else _identity(value), []).append(name)
    tied = [names for names in groups.values() if len(names) > 1]
    if rule.ties == "error" and tied:
        listed = "; ".join(" = ".join(map(repr, names[:4])) for names in tied[:4])
        more = f" and {len(tied) - 4} more" if len(tied) > 4 else ""
        raise _error("TiedTensors", f"these names have one tensor: {listed}{more}")
    dropped: dict[str, str] = {}
    for names in tied:
        if rule.ties == "auto":
            embeddings = [name for name in names if _EMBEDDING.search(name) and not _HEAD.search(name)]
            gone = [name for name in names if _HEAD.search(name)] if embeddings else []
            kept = embeddings[0] if embeddings else names[0]
        else:
            kept = _preferred(names, rule)
            gone = [name for name in names if name != kept]
        dropped |= dict.fromkeys(gone, kept)
    return dropped


def _preferred(names: list[str], rule: TieRule) -> str:
    """The first name that is to be kept, else the first that is not to be discarded, else the first."""

    def matching(patterns: list[str]) -> list[str]:
        return [name for name in names if any(matches(name, pattern) for pattern in patterns)]

    discarded = matching(rule.discard)
    others = [name for name in names if name not in discarded]
    return (matching(rule.keep) or others or names)[0]


def _lazy_aliases(values: dict[str, Values]) -> dict[str, str]:
    """For each lazy tensor of a checkpoint, the first name of the same tensor."""
    names = [name for name, value in values.items() if isinstance(value, _rustload.Tensor)]
    cores = [values[name] for name in names]
    _, ties = _rustload.order([(core, Request()) for core in cores], by_file=False)  # type: ignore[misc]
    return {name: names[ties[index][0]] if index in ties else name for index, name in enumerate(names)}


def _identity(value: Any) -> Any:
    """Equal for arrays that are one and the same: the same elements of the same memory, of the same dtype."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor) and value.layout == torch.strided:
        if value.numel() == 0 or value.device.type == "meta":
            return id(value)
        place = (str(value.device), value.data_ptr(), tuple(value.shape), value.stride())
        return (*place, value.dtype, value.is_conj(), value.is_neg())
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.ndarray) and value.size:
        return ("numpy", value.ctypes.data, value.shape, value.strides, value.dtype.str)
    return id(value)
