from __future__ import annotations

import dataclasses
import enum
from typing import Any


class LoadFormat(str, enum.Enum):
    AUTO = "auto"
    PT = "pt"
    SAFETENSORS = "safetensors"
    DUMMY = "dummy"


@dataclasses.dataclass
class LoadConfig:
    load_format: Any = LoadFormat.AUTO
    model_loader_extra_config: Any = dataclasses.field(default_factory=dict)
    draft_model_idx: int | None = None

    def __post_init__(self):
        if isinstance(self.load_format, str):
            self.load_format = LoadFormat(self.load_format)
