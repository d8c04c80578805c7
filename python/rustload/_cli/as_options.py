"""Messages of the Python functions, in the words of the command line."""

from __future__ import annotations

import re
import shlex

__all__ = ["as_options", "select_as_option"]

_FLAGS = re.compile(r"\b(overwrite|allow_lossy|dequantize|copy_others|verify|resume)=True")
_RENAME = re.compile(r"\brename=\{('[^']*'|\"[^\"]*\"): None\}")
_DTYPE = re.compile(r"\bdtype=\{('[^']*'|\"[^\"]*\"): '(\w+)'\}")
_SELECTED = re.compile(r"\bselect=\[([^\]]*)\]")
_VALUES = re.compile(
    r"\b(select|key|strip|rename|dtype|transpose|ties|keep|discard|fingerprint|max_shard_size|metadata|objects|copy_others|name)="
)


def as_options(text: str) -> str:
    """A message about arguments of a function, with the options of a command in their place."""
    text = _SELECTED.sub(lambda found: f"--select {found[1]}", select_as_option(text))
    text = _RENAME.sub(lambda found: f"--rename {shlex.quote(found[1][1:-1] + '=')}", text)
    text = _DTYPE.sub(lambda found: f"--dtype {shlex.quote(f'{found[1][1:-1]}={found[2]}')}", text)
    text = _FLAGS.sub(lambda found: _option(found[1]), text)
    text = _VALUES.sub(lambda found: _option(found[1]) + " ", text)
    text = re.sub(r"\bdst=", "DST", text)
    text = re.sub(r"\bsrc=", "SRC", text)
    return re.sub(r" +", " ", text).replace(" ,", ",").strip()


def select_as_option(text: str, option: str = "--select") -> str:
    """A message about names that a checkpoint lacks, with the option that selects tensors in place of `select`.

    Args:
        text: The message, or a note.
        option: The option of the command.
    """
    text = text.replace("List the names: list(ckpt).", "rustload info lists the names")
    return re.sub(r"^the selection names\b", f"{option} names", text)


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")
