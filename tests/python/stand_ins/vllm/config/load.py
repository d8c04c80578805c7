from __future__ import annotations

import dataclasses
from typing import Any


@dataclasses.dataclass
class LoadConfig:
    load_format: str = "auto"
    download_dir: str | None = None
    safetensors_load_strategy: str | None = None
    model_loader_extra_config: Any = dataclasses.field(default_factory=dict)
    device: str | None = None
    use_tqdm_on_load: bool = True
    pt_load_map_location: str | dict[str, str] = "cpu"
