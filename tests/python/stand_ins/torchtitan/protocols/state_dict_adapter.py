from __future__ import annotations

from abc import ABC, abstractmethod

from torch.distributed.checkpoint import HuggingFaceStorageReader


class StateDictAdapter(ABC):
    def __init__(self, model_config, hf_assets_path):
        self.model_config = model_config
        self.hf_assets_path = hf_assets_path

    @abstractmethod
    def to_hf(self, state_dict): ...

    @abstractmethod
    def from_hf(self, hf_state_dict): ...

    def get_hf_storage_reader(self, path, from_quantized=False):
        return HuggingFaceStorageReader(path)
