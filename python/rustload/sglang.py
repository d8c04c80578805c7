"""`rustload.sglang.RustloadModelLoader`: SGLang reads a model's weights through rustload.

A subclass of SGLang's `DefaultModelLoader`, which takes a class as `load_format`. On the command line, `RUSTLOAD_SGLANG=1` in the
environment makes the entry point in `rustload._plugins.sglang` choose it. Importing this module imports SGLang's loaders.
"""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING, Any

try:
    from sglang.srt.configs.load_config import LoadFormat
    from sglang.srt.model_loader.loader import DefaultModelLoader
except ImportError:
    from rustload._frameworks.adapters import import_framework

    import_framework("sglang")  # raises with advice
    raise

from rustload.errors import _error
from rustload.torch._weights import WeightOptions, is_first_rank, weights

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import torch

__all__ = ["RustloadModelLoader", "choose_loader"]

_OPTIONS = "rustload"
"""The key of `model_loader_extra_config` with the options."""


class RustloadModelLoader(DefaultModelLoader):  # type: ignore[misc]  # SGLang may not be installed
    """Loads weights from `.bin`, `.pt`, legacy and safetensors files without running a pickle, within a bounded memory window.

    The options, those of `rustload.torch._weights.WeightOptions`, are a dict in `model_loader_extra_config["rustload"]`.
    """

    def __init__(self, load_config: Any) -> None:
        """Checks the options; reads nothing.

        Args:
            load_config: SGLang's `LoadConfig`.

        Raises:
            ValueError: `model_loader_extra_config` has an unknown key, or an invalid value.
        """
        others = dict(load_config.model_loader_extra_config or {})
        given = others.pop(_OPTIONS, {})
        where = f"model_loader_extra_config[{_OPTIONS!r}]"
        if not isinstance(given, dict):
            raise _error("Value", f"{where} is a dict, not {type(given).__name__}")
        if others:
            unknown = ", ".join(repr(name) for name in others)
            raise _error("Value", f"model_loader_extra_config has unknown keys: {unknown}")
        self._options = WeightOptions.checked(given, where)
        # SGLang's own loader finds the files of this format: safetensors first, then .bin, then .pt.
        super().__init__(
            dataclasses.replace(load_config, load_format=LoadFormat.AUTO, model_loader_extra_config={})
        )

    def _get_weights_iterator(
        self, source: Any, *, resolved_source: Any = None, **_startup: Any
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """The weights of a source: SGLang's own loader calls this for a model's primary and secondary weights."""
        files = self._files(source) if resolved_source is None else list(resolved_source.weight_files)
        draft = getattr(self.load_config, "draft_model_idx", None)
        prefix = source.prefix if draft is None else ""
        found = weights(sorted(files), self._options, prefix=prefix, progress=is_first_rank())
        if draft is not None:
            # One layer of a multi-token predictor, under the name that its model has for it.
            return self._filter_mtp_weights(found, source.prefix, draft)  # type: ignore[no-any-return]
        if not getattr(self, "counter_before_loading_weights", 0.0):
            self.counter_before_loading_weights = time.perf_counter()
        return found

    def _files(self, source: Any) -> list[str]:
        folder, files, is_safetensors = self._prepare_weights(
            source.model_or_path, source.revision, source.fall_back_to_pt, source.allow_patterns_overrides
        )
        model_config = getattr(source, "model_config", None)
        if is_safetensors and model_config is not None:
            from sglang.srt.model_loader.weight_utils import maybe_add_mtp_safetensors

            index = "model.safetensors.index.json"
            files = maybe_add_mtp_safetensors(files, folder, index, model_config.hf_config)
        return list(files)


def choose_loader(original: Callable[..., Any], load_config: Any, model_config: Any = None) -> Any:
    """Chooses the loader in place of SGLang's `get_model_loader`: rustload's where SGLang's choice is its default loader.

    Args:
        original: SGLang's function, or that of another plug-in.
        load_config: SGLang's `LoadConfig`.
        model_config: SGLang's `ModelConfig`.

    Raises:
        ValueError: The options of rustload are invalid.
    """
    extra = dict(load_config.model_loader_extra_config or {})
    extra.pop(_OPTIONS, None)
    loader = original(dataclasses.replace(load_config, model_loader_extra_config=extra), model_config)
    is_default = type(loader) is DefaultModelLoader and load_config.load_format == LoadFormat.AUTO
    return RustloadModelLoader(load_config) if is_default else loader
