"""The checkpoints of what `convert` is given, and the names of the files that it makes of theirs.

A folder may have several: the variants of one (`model.fp16.safetensors`), and those in the subfolders of a pipeline of diffusers
or sentence-transformers.
"""

from __future__ import annotations

import os
import re
from typing import Any, NamedTuple

from rustload._common.files import is_file_object
from rustload._common.hub import hub_snapshot
from rustload._common.paths import file_bytes, path_list
from rustload._remote.resolve import remote_source
from rustload.errors import _make

__all__ = ["Checkpoints", "Source", "file_name_for", "find_checkpoints", "index_name", "shard_name"]

_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".safetensors", ".sft", ".npz", ".npy")
_STEMS = r"(?P<stem>pytorch_model|diffusion_pytorch_model|adapter_model|model)"
_NUMBER = r"-(?P<number>\d{5})-of-(?P<count>\d{5})"
_VARIANT = r"(?:\.(?P<{}>[^.\-]+))?"
_FILE = re.compile(
    f"{_STEMS}{_VARIANT.format('before')}(?:{_NUMBER})?{_VARIANT.format('after')}"
    r"\.(?P<extension>bin|safetensors)"
)
_INDEX = re.compile(
    f"{_STEMS}{_VARIANT.format('before')}"
    rf"\.(?P<extension>bin|safetensors)\.index{_VARIANT.format('after')}\.json"
)
_PIPELINES = ("model_index.json", "modules.json")
"""Files that say that the subfolders are parts of the model: diffusers' and sentence-transformers'."""
_DISTRIBUTED = ".metadata"
"""The file that makes a folder a distributed checkpoint of torch."""


class Source(NamedTuple):
    """A checkpoint.

    Attributes:
        folder: Its folder in the source and in the target, with a `/` at the end: `""` or `"unet/"`.
        path: What `rustload.open` takes.
        stem: The name of the file that is made of it, without shard number and extension: `"model"`, `"model.fp16"`; None for
            that of its first file.
    """

    folder: str
    path: Any
    stem: str | None


class Checkpoints(NamedTuple):
    """What `convert` is given.

    Attributes:
        folder: The folder of the checkpoints; None if they are in memory.
        found: The checkpoints.
        is_file: Whether it is one file, which becomes one file.
    """

    folder: str | None
    found: list[Source]
    is_file: bool = False


def find_checkpoints(given: Any) -> Checkpoints:
    """Finds the checkpoints in what the user gave.

    Raises:
        FileNotFoundError: A path does not exist.
        FormatError: Shards are missing.
        TypeError: It is nothing that `rustload.open` takes.
    """
    given = remote_source(given)
    if file_bytes(given) is not None or is_file_object(given):
        return Checkpoints(None, [Source("", given, "model")], is_file=True)
    paths = [hub_snapshot(path) for path in path_list(given)]
    first = paths[0] if paths else ""
    folder = os.path.dirname(first)  # noqa: PTH120 - pathlib is slow to import
    if len(paths) != 1:
        return Checkpoints(folder, [Source("", paths, None)])
    if not os.path.isdir(first):  # noqa: PTH112
        index = _INDEX.fullmatch(os.path.basename(first))  # noqa: PTH119
        is_file = not (first.endswith(".json") and ".index." in first)
        return Checkpoints(folder, [Source("", first, _stem(index) if index else None)], is_file=is_file)
    return Checkpoints(first, _in_folder(first))


def _in_folder(root: str) -> list[Source]:
    names = _files(root)
    found = _known(root, "", names)
    if not any(name in names for name in _PIPELINES):
        if found:
            return found
        if any(os.path.splitext(name)[1] in _SUFFIXES for name in names):  # noqa: PTH122 - pathlib is slow to import
            # Files of other names: `rustload.open` chooses, or says why not.
            return [Source("", root, None)]
        if os.path.exists(os.path.join(root, _DISTRIBUTED)):  # noqa: PTH110, PTH118
            return [Source("", root, "model")]
    with os.scandir(root) as entries:
        folders = sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))
    for name in folders:
        path = os.path.join(root, name)  # noqa: PTH118
        found += _known(path, f"{name}/", _files(path))
    return found or [Source("", root, None)]


def _files(folder: str) -> list[str]:
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries if entry.is_file() and not entry.name.startswith("."))


def _known(folder: str, prefix: str, names: list[str]) -> list[Source]:
    """The checkpoints with names of transformers, diffusers and PEFT; safetensors files are preferred to pickles."""
    groups: dict[str, dict[str, list[str]]] = {}
    for name in names:
        if matched := _FILE.fullmatch(name) or _INDEX.fullmatch(name):
            groups.setdefault(_stem(matched), {}).setdefault(matched["extension"], []).append(name)
    found = []
    for stem, by_extension in groups.items():
        group = by_extension.get("safetensors") or by_extension["bin"]
        paths = [os.path.join(folder, name) for name in _chosen(folder, group)]  # noqa: PTH118
        found.append(Source(prefix, paths[0] if len(paths) == 1 else paths, stem))
    return found


def _chosen(folder: str, group: list[str]) -> list[str]:
    """Of the files of one checkpoint: its index, else the file without a number, else all shards.

    Raises:
        FormatError: Shards are missing.
    """
    index = [name for name in group if name.endswith(".json")]
    matched = {name: found for name in group if (found := _FILE.fullmatch(name))}
    single = [name for name, found in matched.items() if found["number"] is None]
    if index or single:
        return (index or single)[:1]
    counts = {int(found["count"]) for found in matched.values()}
    numbers = {int(found["number"]) for found in matched.values()}
    if len(counts) > 1 or numbers != set(range(1, max(counts) + 1)):
        text = f"{folder} has {len(numbers)} of the {max(counts)} shards that the names imply: {', '.join(sorted(matched)[:4])}"
        raise _make("Format", "ShardMissing", text)
    return sorted(matched)


def _stem(matched: re.Match[str]) -> str:
    """`model.fp16` for any file of the variant `fp16` of `pytorch_model`."""
    stem = "model" if matched["stem"] == "pytorch_model" else matched["stem"]
    variant = matched["before"] or matched["after"]
    return f"{stem}.{variant}" if variant else stem


def file_name_for(path: str) -> str:
    """The name of the safetensors file that is made of a file: `model.safetensors` for `pytorch_model.bin`."""
    name = os.path.basename(path).lstrip(".") or "model"  # noqa: PTH119
    stem, suffix = os.path.splitext(name)  # noqa: PTH122
    if suffix.lower() not in _SUFFIXES:
        stem = name
    if stem.startswith("pytorch_model"):
        stem = stem.removeprefix("pytorch_")
    return f"{stem}.safetensors"


def shard_name(stem: str, number: int, count: int) -> str:
    """The name of shard `number` of `count`, counted from 1; of a single file without a number."""
    return f"{stem}.safetensors" if count == 1 else f"{stem}-{number:05}-of-{count:05}.safetensors"


def index_name(stem: str) -> str:
    """The name of an index as transformers and diffusers have it: `model.safetensors.index.fp16.json` for `model.fp16`."""
    if matched := _FILE.fullmatch(f"{stem}.safetensors"):
        variant = matched["before"] or matched["after"]
        if variant:
            return f"{matched['stem']}.safetensors.index.{variant}.json"
    return f"{stem}.safetensors.index.json"
