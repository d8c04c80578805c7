from __future__ import annotations

import enum
import functools
import pkgutil
from collections import defaultdict


class HookType(enum.Enum):
    AROUND = "around"


class HookRegistry:
    _hooks = defaultdict(list)
    _patched = set()

    @classmethod
    def register(cls, target, hook, hook_type, *, source=None):
        assert hook_type is HookType.AROUND
        cls._hooks[target].append(hook)

    @classmethod
    def apply_hooks(cls):
        for target, hooks in cls._hooks.items():
            where, name = target.rsplit(".", 1)
            for hook in hooks if target not in cls._patched else ():
                module = pkgutil.resolve_name(where)
                setattr(module, name, functools.partial(hook, getattr(module, name)))
            cls._patched.add(target)
