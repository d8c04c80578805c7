from __future__ import annotations

import dataclasses
import re
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from sglang.srt.configs.load_config import LoadFormat


class BaseModelLoader(ABC):
    def __init__(self, load_config):
        self.load_config = load_config

    @abstractmethod
    def download_model(self, model_config): ...

    @abstractmethod
    def load_model(self, *, model_config, device_config): ...


class DummyModelLoader(BaseModelLoader):
    def download_model(self, model_config):
        pass

    def load_model(self, *, model_config, device_config):
        raise NotImplementedError


class DefaultModelLoader(BaseModelLoader):
    @dataclasses.dataclass
    class Source:
        model_or_path: str
        revision: str | None
        prefix: str = ""
        fall_back_to_pt: bool = True
        allow_patterns_overrides: list[str] | None = None
        model_config: Any = None

    @dataclasses.dataclass(frozen=True)
    class ResolvedSource:
        source: Any
        hf_folder: str
        weight_files: tuple[str, ...]
        use_safetensors: bool

    counter_before_loading_weights = 0.0

    def __init__(self, load_config):
        super().__init__(load_config)
        unknown = set(load_config.model_loader_extra_config) - {"enable_multithread_load", "num_threads"}
        if unknown:
            raise ValueError(f"Unexpected extra config keys for load format: {unknown}")

    def _prepare_weights(self, model_name_or_path, revision, fall_back_to_pt, allow_patterns_overrides=None):
        if self.load_config.load_format != LoadFormat.AUTO:
            raise ValueError(f"Unknown load_format: {self.load_config.load_format}")
        patterns = ["*.safetensors", "*.bin", *(["*.pt"] if fall_back_to_pt else [])]
        for pattern in allow_patterns_overrides or patterns:
            files = [str(file) for file in Path(model_name_or_path).glob(pattern)]
            if files:
                return model_name_or_path, files, pattern.endswith(".safetensors")
        raise RuntimeError(f"Cannot find any model weights with `{model_name_or_path}`")

    def _get_weights_iterator(self, source, *, resolved_source=None, **_startup):
        raise NotImplementedError

    @classmethod
    def _filter_mtp_weights(cls, weights_iterator, prefix, draft_model_idx):
        for name, tensor in weights_iterator:
            found = re.match(r"model\.mtp\.layers\.(\d+)\.", name)
            if found and int(found[1]) != draft_model_idx:
                continue
            yield prefix + (name.replace(found[0], "model.mtp.layers.0.") if found else name), tensor

    def _get_all_weights(self, model_config, model):
        source = self.Source(model_config.model_path, model_config.revision, model_config=model_config)
        yield from self._get_weights_iterator(source)
        for source in getattr(model, "secondary_weights", ()):
            yield from self._get_weights_iterator(source)

    def download_model(self, model_config):
        self._prepare_weights(model_config.model_path, model_config.revision, True)

    def load_model(self, *, model_config, device_config):
        raise NotImplementedError


def get_model_loader(load_config, model_config=None):
    if load_config.load_format == LoadFormat.DUMMY:
        return DummyModelLoader(load_config)
    if isinstance(load_config.load_format, type):
        return load_config.load_format(load_config)
    return DefaultModelLoader(load_config)
