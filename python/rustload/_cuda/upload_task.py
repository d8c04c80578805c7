"""`UploadTask`: one result to make on a GPU."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rustload import _rustload
    from rustload._common.request import Request


@dataclasses.dataclass(slots=True)
class UploadTask:
    """One result to make.

    Attributes:
        core: What is read.
        request: How; `copy` is ignored.
        result: The existing destination if there is one; the result once the task is done.
        nbytes: Bytes of the result.
        owner: The tensor that owns the result's memory: a slab, or the result itself.
        is_direct: Whether the result is new and the core makes it straight in its place: `_rustload.direct_upload_bytes`.
    """

    core: _rustload.Tensor | _rustload.Joined
    request: Request
    result: Any = None
    nbytes: int = 0
    owner: Any = None
    is_direct: bool = False
