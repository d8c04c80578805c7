"""The checkpoints of what `convert` is given, and the names of the files that it makes of theirs.

A folder may have several: the variants of one (`model.fp16.safetensors`), and those in the subfolders of a pipeline of diffusers
or sentence-transformers.
"""

from __future__ import annotations

import os
import re
from typing import Any, NamedTuple

from rustload._common.files import head_of
from rustload._common.hub import hub_snapshot
from rustload._common.paths import file_bytes, is_file_object, path_list
from rustload._remote.folder import ObjectFolder
from rustload._remote.ranges import ObjectRanges
from rustload._remote.resolve import remote_source
from rustload._remote.urls import is_url
from rustload.errors import FormatError, _error

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
_MAIN = {"safetensors": "model", "bin": "pytorch_model"}
"""The stem that `rustload.open` looks for first, of the two that are one name here."""
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
        home: The folder that it is in; None for one that is in memory or an open file.
    """

    folder: str
    path: Any
    stem: str | None
    home: LocalFolder | ObjectFolder | None


class Checkpoints(NamedTuple):
    """What `convert` is given.

    Attributes:
        folder: The folder of the checkpoints on disk; None if they are in memory or in a store.
        found: The checkpoints.
        is_file: Whether it is one file, which becomes one file.
        store: The folder of the checkpoints in a store.
        is_cache: Whether they were given as URLs and are in the Hub's cache on disk, into which nothing is written.
    """

    folder: str | None
    found: list[Source]
    is_file: bool = False
    store: ObjectFolder | None = None
    is_cache: bool = False


def find_checkpoints(given: Any) -> Checkpoints:
    """Finds the checkpoints in what the user gave.

    Raises:
        FileNotFoundError: A path does not exist.
        FormatError: Shards are missing.
        TypeError: It is nothing that `rustload.open` takes.
    """
    is_cache = any(map(is_url, given if isinstance(given, (list, tuple)) else (given,)))
    given = remote_source(given)
    if isinstance(given, ObjectFolder):
        if not given.chosen:
            return Checkpoints(None, _in_folder(given), store=given)
        index = _INDEX.fullmatch(given.chosen[0])
        return Checkpoints(None, [Source("", given, _stem(index) if index else None, given)], store=given)
    if isinstance(given, ObjectRanges):
        return Checkpoints(None, [Source("", given, None, given.home)], is_file=True)
    if file_bytes(given) is not None or is_file_object(given):
        return Checkpoints(None, [Source("", given, "model", None)], is_file=True)
    paths = [hub_snapshot(path) for path in path_list(given)]
    first = paths[0] if paths else ""
    folder = os.path.dirname(first)
    if len(paths) != 1:
        return Checkpoints(folder, [Source("", paths, None, LocalFolder(folder))], is_cache=is_cache)
    if not os.path.isdir(first):
        index = _INDEX.fullmatch(os.path.basename(first))
        is_file = not (first.endswith(".json") and ".index." in first)
        source = Source("", first, _stem(index) if index else None, LocalFolder(folder))
        return Checkpoints(folder, [source], is_file=is_file, is_cache=is_cache)
    return Checkpoints(first, _in_folder(LocalFolder(first)), is_cache=is_cache)


class LocalFolder:
    """A folder on disk, with what `ObjectFolder` has for one in a store."""

    def __init__(self, path: str) -> None:
        """The folder at a path."""
        self.name = path

    def names(self) -> list[str]:
        """The names of its files."""
        with os.scandir(self.name) as entries:
            return [entry.name for entry in entries if entry.is_file()]

    def folders(self) -> list[str]:
        """The names of its folders."""
        with os.scandir(self.name) as entries:
            return [entry.name for entry in entries if entry.is_dir()]

    def open(self, name: str) -> str:
        """The path of a file in it."""
        return os.path.join(self.name, name)

    def subfolder(self, name: str) -> LocalFolder:
        """A folder in it."""
        return LocalFolder(os.path.join(self.name, name))


def read_small(home: LocalFolder | ObjectFolder | None, name: str, size_max: int) -> bytes | None:
    """The start of a file in the folder of a checkpoint, up to `size_max` bytes; None if it cannot be read."""
    if home is None:
        return None
    try:
        # Of an unlisted folder, which may be a bucket, only this file is asked for.
        if isinstance(home, ObjectFolder) and home.is_listed and home.sizes([name]) == [None]:
            return None
        return head_of(home.open(name), size_max)
    except (OSError, FormatError):
        return None


def _in_folder(root: LocalFolder | ObjectFolder) -> list[Source]:
    whole = root.name if isinstance(root, LocalFolder) else root
    every = root.names()
    names = _visible(every)
    found = _known(root, "", names)
    if not any(name in names for name in _PIPELINES):
        if found:
            return found
        if any(os.path.splitext(name)[1] in _SUFFIXES for name in names):
            # Files of other names: `rustload.open` chooses, or says why not.
            return [Source("", whole, None, root)]
        if _DISTRIBUTED in every:
            return [Source("", whole, "model", root)]
    for name in _visible(root.folders()):
        folder = root.subfolder(name)
        found += _known(folder, f"{name}/", _visible(folder.names()))
    return found or [Source("", whole, None, root)]


def _visible(names: list[str]) -> list[str]:
    return sorted(name for name in names if not name.startswith("."))


def _known(folder: LocalFolder | ObjectFolder, prefix: str, names: list[str]) -> list[Source]:
    """The checkpoints with names of transformers, diffusers and PEFT; safetensors files are preferred to pickles."""
    groups: dict[str, dict[tuple[str, str], list[str]]] = {}
    for name in names:
        if matched := _FILE.fullmatch(name) or _INDEX.fullmatch(name):
            kind = matched["extension"], matched["stem"]
            groups.setdefault(_stem(matched), {}).setdefault(kind, []).append(name)
    found = []
    for stem, by_kind in groups.items():
        best = min(by_kind, key=lambda kind: (kind[0] == "bin", kind[1] != _MAIN[kind[0]]))
        chosen = _chosen(folder.name, by_kind[best])
        path: Any
        if isinstance(folder, LocalFolder):
            paths = [folder.open(name) for name in chosen]
            path = paths[0] if len(paths) == 1 else paths
        else:
            path = folder.choose(chosen)
        found.append(Source(prefix, path, stem, folder))
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
        raise _error("ShardMissing", text)
    return sorted(matched)


def _stem(matched: re.Match[str]) -> str:
    """`model.fp16` for any file of the variant `fp16` of `pytorch_model`."""
    stem = "model" if matched["stem"] == "pytorch_model" else matched["stem"]
    variant = matched["before"] or matched["after"]
    return f"{stem}.{variant}" if variant else stem


def file_name_for(path: str) -> str:
    """The name of the safetensors file that is made of a file: `model.safetensors` for `pytorch_model.bin`."""
    name = os.path.basename(path).lstrip(".") or "model"
    stem, suffix = os.path.splitext(name)
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
