"""`rustload.vllm.RustloadModelLoader`: vLLM reads a model's weights through rustload, with `--load-format rustload`.

A subclass of vLLM's `DefaultModelLoader`. vLLM finds and downloads the files, creates the model and places the weights; rustload
reads them. The entry point in `rustload._plugins.vllm` registers the class. Importing this module imports vLLM's loaders.
"""

from __future__ import annotations

import inspect
import time
from typing import TYPE_CHECKING, Any

try:
    from vllm.model_executor.model_loader.default_loader import DefaultModelLoader
except ImportError:
    from rustload._frameworks.adapters import import_framework

    import_framework("vllm")  # raises with advice
    raise

from rustload.errors import _error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import torch

__all__ = ["RustloadModelLoader"]

_OPTIONS_OF_VLLM = frozenset(("enable_weights_track",))
"""Keys of `model_loader_extra_config` that vLLM's own loader handles."""


class RustloadModelLoader(DefaultModelLoader):  # type: ignore[misc]  # vLLM has no types here
    """Loads weights from `.bin`, `.pt`, legacy and safetensors files without running a pickle, within a bounded memory window.

    Options in `model_loader_extra_config`: those of `rustload.torch._weights.WeightOptions`, and vLLM's `enable_weights_track`.
    """

    def __init__(self, load_config: Any) -> None:
        """Checks the options; reads nothing.

        Args:
            load_config: vLLM's `LoadConfig`.

        Raises:
            ValueError: `model_loader_extra_config` has an unknown key, or an invalid value.
        """
        from rustload.torch._weights import WeightOptions  # not when vLLM starts with another load format

        given = load_config.model_loader_extra_config
        if not isinstance(given, dict):
            raise _error("Value", f"model_loader_extra_config is a dict, not {type(given).__name__}")
        of_vllm = {name: value for name, value in given.items() if name in _OPTIONS_OF_VLLM}
        ours = {name: value for name, value in given.items() if name not in _OPTIONS_OF_VLLM}
        self._options = WeightOptions.checked(ours, "model_loader_extra_config")
        # vLLM's own loader finds the files of this format: safetensors first, then .bin, then .pt.
        super().__init__(_replaced(load_config, load_format="auto", model_loader_extra_config=of_vllm))

    def _get_weights_iterator(self, source: Any) -> Iterator[tuple[str, torch.Tensor]]:
        """The weights of a source: vLLM's own loader calls this for a model's primary and secondary weights.

        Raises:
            ValueError: The weights are torchao's, whose safetensors files hold parts of tensor subclasses.
        """
        from rustload.torch._weights import is_first_rank, weights

        if getattr(self.load_config, "safetensors_load_strategy", None) == "torchao":
            raise _error("Value", "torchao weights need vLLM's own loader: use --load-format auto")
        files = sorted(self._prepare_weights(**self._where(source))[1])
        if not getattr(self, "counter_before_loading_weights", 0.0):
            self.counter_before_loading_weights = time.perf_counter()
        return weights(
            files,
            self._options,
            prefix=source.prefix,
            is_wanted=self._is_wanted(source),
            progress=bool(self.load_config.use_tqdm_on_load) and is_first_rank(),
        )

    def _where(self, source: Any) -> dict[str, Any]:
        """The arguments of `_prepare_weights`, which are fields of the source. Which ones they are depends on vLLM's version."""
        parameters = inspect.signature(DefaultModelLoader._prepare_weights).parameters
        fields = {name: getattr(source, name) for name in parameters if hasattr(source, name)}
        return {"model_name_or_path": source.model_or_path, **fields}

    def _is_wanted(self, source: Any) -> Callable[[str], bool]:
        """Whether this rank uses a tensor: vLLM says so for the experts of other ranks, and for what a model has no use for."""
        is_unused = getattr(source, "is_unused_weight", None)
        experts = getattr(self, "local_expert_ids", None)
        if experts is None:
            return lambda name: is_unused is None or not is_unused(name)
        from vllm.model_executor.model_loader.ep_weight_filter import should_skip_weight

        return lambda name: (
            (is_unused is None or not is_unused(name)) and not should_skip_weight(name, experts)
        )


def _replaced(config: Any, **changes: Any) -> Any:
    """A copy of a `LoadConfig` with other values, made by its class, so that it is checked."""
    accepted = inspect.signature(type(config)).parameters
    fields = {name: value for name, value in vars(config).items() if name in accepted}
    return type(config)(**{**fields, **changes})
