"""The file of `objects=`: written before the tensors' target takes its place, so that a full disk changes neither."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, Self

from rustload import _rustload
from rustload._common.paths import refuse_input
from rustload.errors import _error

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from rustload._save.options import SaveOptions
    from rustload._save.target import Target


class ObjectsFile:
    """A file of JSON beside the tensors.

    Attributes:
        in_target: The name and the text of a file in the folder that is written, which appears with it.
    """

    def __init__(
        self,
        path: Any,
        tree: Any,
        target: Target,
        inputs: Iterable[str],
        options: SaveOptions,
        *,
        outputs: Collection[str | None] = (),
    ) -> None:
        """Writes the JSON, without its name, unless it is a file of the folder that is the tensors' target.

        `tree` is that of `Objects.json`, of one checkpoint, or of several by their names. The files of the source, `inputs`, and
        those that the same call writes into the target, `outputs`, are not replaced.

        Raises:
            OSError: The file cannot be written.
            ValueError: It is a symbolic link to nothing, or a file of the source or of the target.
        """
        self._path, self._target = os.fsdecode(path), target.path
        refuse_input(self._path, inputs)
        root = os.path.realpath(target.path)
        if os.path.relpath(os.path.realpath(self._path), root) in outputs:
            text = f"would replace {self._path!r}, which the same call writes"
            raise _error("Value", text, "name another file", argument="objects")
        self._text = text = json.dumps(tree, indent=1) + "\n"
        self._options = {"overwrite": bool(options["overwrite"]), "sync": bool(options["fsync"])}
        folder, name = os.path.split(os.path.abspath(self._path))
        is_inside = not target.is_file and os.path.realpath(folder) == root
        self.in_target = [(name, text)] if is_inside and not target.joins else []
        # A folder whose files are kept may be exchanged for another one meanwhile.
        self._prepared = None if is_inside else _rustload.PreparedText(self._path, text, **self._options)

    def finish(self, files: dict[str, int]) -> None:
        """Gives the file its name, once the tensors have theirs. Leaves it out of the files of the target.

        Raises:
            OSError: The file cannot get its name, or cannot be written. The error says that the target is complete.
        """
        for name, _ in self.in_target:
            del files[name]
        if self.in_target:
            return
        try:
            (self._prepared or _rustload.PreparedText(self._path, self._text, **self._options)).commit()
        except (OSError, ValueError) as error:
            error.add_note(
                f"The tensors in {self._target!r} are complete; only the file of objects is missing."
            )
            raise

    def __enter__(self) -> Self:
        """Returns the file itself."""
        return self

    def __exit__(self, *_error: object) -> None:
        """Removes the file if it has not got its name."""
        if self._prepared is not None:
            self._prepared.discard()
