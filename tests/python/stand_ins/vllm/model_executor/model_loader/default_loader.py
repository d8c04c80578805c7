from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from vllm.model_executor.model_loader.base_loader import BaseModelLoader


class DefaultModelLoader(BaseModelLoader):
    @dataclasses.dataclass
    class Source:
        model_or_path: str
        revision: str | None
        subfolder: str | None = None
        prefix: str = ""
        fall_back_to_pt: bool = True
        allow_patterns_overrides: list[str] | None = None
        is_unused_weight: Any = None

    counter_before_loading_weights = 0.0

    def __init__(self, load_config):
        super().__init__(load_config)
        self.local_expert_ids = None
        unknown = set(load_config.model_loader_extra_config) - {
            "enable_multithread_load",
            "num_threads",
            "enable_weights_track",
        }
        if unknown:
            raise ValueError(f"Unexpected extra config keys: {unknown}")

    def _prepare_weights(
        self, model_name_or_path, subfolder, revision, fall_back_to_pt, allow_patterns_overrides
    ):
        if self.load_config.load_format != "auto":
            raise ValueError(f"Unknown load_format: {self.load_config.load_format}")
        folder = Path(model_name_or_path, subfolder or "")
        patterns = ["*.safetensors", "*.bin", *(["*.pt"] if fall_back_to_pt else [])]
        for pattern in allow_patterns_overrides or patterns:
            files = [str(file) for file in folder.glob(pattern) if file.name != "training_args.bin"]
            if files:
                return str(folder), files, pattern.endswith(".safetensors"), "model.safetensors.index.json"
        raise RuntimeError(f"Cannot find any model weights with `{model_name_or_path}`")

    def _get_weights_iterator(self, source):
        raise NotImplementedError

    def get_all_weights(self, model_config, model):
        yield from self._get_weights_iterator(
            self.Source(
                model_config.model,
                model_config.revision,
                fall_back_to_pt=getattr(model, "fall_back_to_pt_during_load", True),
                allow_patterns_overrides=getattr(model, "allow_patterns_overrides", None),
                is_unused_weight=getattr(model, "is_unused_checkpoint_weight", None),
            )
        )
        for source in getattr(model, "secondary_weights", ()):
            yield from self._get_weights_iterator(source)

    def download_model(self, model_config):
        self._prepare_weights(model_config.model, None, model_config.revision, True, None)

    def load_weights(self, model, model_config):
        model.load_weights(self.get_all_weights(model_config, model))
