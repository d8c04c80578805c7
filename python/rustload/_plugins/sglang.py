"""SGLang's entry point (group `sglang.srt.plugins`): with `RUSTLOAD_SGLANG=1`, its default loader reads through rustload.

SGLang calls `register` in each of its processes. Its command line has a closed list of load formats, so the choice is made by a
hook of its registry, and only if the environment asks for it.
"""

from __future__ import annotations

import os
from typing import Any

_TARGET = "sglang.srt.model_loader.loader.get_model_loader"

_is_registered = False


def register() -> None:
    """Registers the hook, once per process, if `RUSTLOAD_SGLANG` is set and not 0; otherwise does nothing."""
    global _is_registered
    if _is_registered or os.environ.get("RUSTLOAD_SGLANG", "0") in ("", "0"):
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(_TARGET, _choose, HookType.AROUND)
    _is_registered = True


def _choose(original: Any, *args: Any, **kwargs: Any) -> Any:
    # When a model is loaded, and SGLang's loaders are imported anyway.
    from rustload.sglang import choose_loader

    return choose_loader(original, *args, **kwargs)
