"""The arguments `dst=` and `objects=` of `convert`: where files are written."""

from __future__ import annotations

import contextlib
import errno
import os
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from rustload._remote.urls import local_path
from rustload._save.job import check_name, refuse_pickle_name
from rustload._save.sources import file_name_for
from rustload.errors import _error

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rustload._save.part import Part
    from rustload._save.sources import Checkpoints

_SHARD = re.compile(r"(.+)-\d+-of-(\d+\..+)")


class Target(NamedTuple):
    """What is written.

    Attributes:
        path: The file or folder.
        is_file: Whether it is one file.
        joins: Whether it is the folder of the source, whose files are kept.
    """

    path: str
    is_file: bool
    joins: bool

    @classmethod
    def of(cls, given: Checkpoints, dst: Any, name: str | None, max_shard_size: Any) -> Target:
        """The target of a source.

        Raises:
            ValueError: The target is not one for this source, or for the other arguments.
        """
        if dst is None:
            if given.folder is None or given.is_cache:
                raise _error("Value", "is needed for a URL, an object or several files", argument="dst")
            if not given.is_file:
                target = cls(given.folder or ".", is_file=False, joins=True)
            else:
                beside = os.path.join(given.folder, file_name_for(given.found[0].path))
                target = cls(beside, is_file=True, joins=False)
        else:
            where = local_path(dst)
            is_folder = os.path.isdir(where)
            if not is_folder:
                refuse_pickle_name(where)
            is_file = where.endswith(".safetensors") and not is_folder
            target = cls(where, is_file=is_file, joins=is_folder and _is_same(where, given.folder))
        several = len(given.found) > 1
        if target.is_file and several:
            folders = ", ".join(f"{source.folder}{source.stem}" for source in given.found[:4])
            text = f"the folder has {len(given.found)} checkpoints ({folders}), which are not written to one file"
            raise _error(
                "Value", text, "give a folder as the target, or one of the checkpoints as the source"
            )
        if target.is_file and (max_shard_size is not None or name is not None):
            argument = "name" if max_shard_size is None else "max_shard_size"
            note = f"give a folder as the target, such as {target.path.removesuffix('.safetensors')!r}"
            raise _error("Value", "is for the files of a folder", note, argument=argument)
        if name is not None:
            check_name(name)
            if several:
                text = f"would give one name to the {len(given.found)} checkpoints of the folder"
                raise _error("Value", text, "convert them one by one", argument="name")
        return target

    def check_source(self, given: Checkpoints, parts: list[Part]) -> None:
        """Checks that the folder of the source will not open as the target alone, which has less than the source.

        Raises:
            ValueError: The source is the whole folder, as a distributed checkpoint is, or some of its shards.
        """
        folder = given.folder
        within = (os.path.dirname(self.path) if self.is_file else self.path) or "."
        if folder is None or not os.path.isdir(within) or not _is_same(within, folder):
            return
        has_more = _has_other_shards(within, given)
        if has_more or any(part.is_whole_folder for part in parts):
            text = (
                f"is to be outside of {folder or '.'!r}: "
                "the safetensors files would be opened in place of the checkpoint, or never"
            )
            name = os.path.basename(os.path.abspath(folder)) + "-safetensors"
            note = f"give another folder, such as {name!r}"
            if has_more:
                note += ", or the folder as the source, to convert all shards"
            raise _error("Value", text, note, argument="dst")

    @contextlib.contextmanager
    def saying_what_stays(self, *, resume: bool) -> Iterator[None]:
        """Notes, after Ctrl-C, where a resumed call finds what was written, and how to remove it."""
        try:
            yield
        except KeyboardInterrupt as error:
            folder, name = os.path.split(os.path.realpath(self.path))
            kept = os.path.join(folder, f".{name}.resume")
            if resume and os.path.exists(kept):
                error.add_note(
                    f"{kept} keeps what was written: the same call goes on, and rustload doctor --clean {folder} removes it"
                )
            raise

    def check_copies(self, given: Checkpoints) -> None:
        """Checks that the other files of the source can be copied.

        Raises:
            ValueError: Source or target is not a folder.
        """
        if self.is_file or given.is_file or (given.folder is None and given.store is None):
            text = "copies the files beside a checkpoint from folder to folder"
            note = "give the folder as the source, and another as the target"
            raise _error("Value", text, note, argument="copy_others")


def _is_same(path: str, folder: str | None) -> bool:
    return folder is not None and os.path.samefile(path, folder or ".")


def _has_other_shards(folder: str, given: Checkpoints) -> bool:
    """Whether a folder has shards of the sets that are given, as a file or a list, which are not given themselves."""
    paths = given.found[0].path
    paths = [paths] if given.is_file else paths if isinstance(paths, list) else []
    matched = [found for path in paths if (found := _SHARD.fullmatch(os.path.basename(path)))]
    sets, opened = {found.groups() for found in matched}, {os.path.realpath(path) for path in paths}
    return any(
        (found := _SHARD.fullmatch(name)) is not None
        and found.groups() in sets
        and os.path.realpath(os.path.join(folder, name)) not in opened
        for name in (os.listdir(folder) if sets else ())
    )


def check_objects_path(given: Any, target: Target, *, overwrite: bool) -> None:
    """Checks that the file of `objects=` can be written, before the work is done.

    Raises:
        FileExistsError: It exists, and is not to be replaced.
        FileNotFoundError: It is in a folder that does not exist.
        ValueError: It is a URL, or has the name of a file of tensors.
    """
    path = local_path(given)
    if os.path.realpath(path).endswith(".safetensors"):
        text = f"is a file of JSON, and {path!r} is the name of one of tensors"
        raise _error("Value", text, argument="objects")
    folder = os.path.dirname(os.path.abspath(path))
    if os.path.lexists(path) and not overwrite:
        raise _error("TargetExists", "", errno=errno.EEXIST, path=path)
    is_target = not target.is_file and folder == os.path.abspath(target.path)
    if not (is_target or os.path.isdir(folder)):
        raise _error("Io", "", errno=errno.ENOENT, path=path)
