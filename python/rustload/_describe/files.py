"""`all_files`: the files on disk that a checkpoint consists of."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rustload._checkpoint.checkpoint import Checkpoint


def all_files(checkpoint: Checkpoint) -> list[str]:
    """`Checkpoint.files`, and the files on disk that the metadata of a distributed checkpoint names.

    Raises:
        OSError: One of the latter cannot be read.
    """
    files = checkpoint.files
    if checkpoint.format != "torch-dcp":
        return files
    known = {os.path.realpath(file) for file in files}
    return files + [
        path for path, *_ in checkpoint._core.file_stamps() if os.path.realpath(path) not in known
    ]
