"""Writes docs/pictures/treemap.svg, the picture in README: the treemap of a checkpoint with the names and shapes of an 8B model.

`python docs/make_treemap.py` needs no weights: the checkpoint is a header, and a hole in the file where data would be.
"""

from __future__ import annotations

import contextlib
import json
import math
import struct
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import rustload

if TYPE_CHECKING:
    from collections.abc import Iterator

PICTURE = Path(__file__).parent / "pictures" / "treemap.svg"
WIDTH, INNER, KEYS, VOCABULARY, LAYERS = 4096, 14336, 1024, 128256, 32


def shapes() -> dict[str, list[int]]:
    """The names and shapes of the tensors."""
    found = {"model.embed_tokens.weight": [VOCABULARY, WIDTH]}
    for layer in range(LAYERS):
        at = f"model.layers.{layer}"
        found |= {
            f"{at}.self_attn.q_proj.weight": [WIDTH, WIDTH],
            f"{at}.self_attn.k_proj.weight": [KEYS, WIDTH],
            f"{at}.self_attn.v_proj.weight": [KEYS, WIDTH],
            f"{at}.self_attn.o_proj.weight": [WIDTH, WIDTH],
            f"{at}.mlp.gate_proj.weight": [INNER, WIDTH],
            f"{at}.mlp.up_proj.weight": [INNER, WIDTH],
            f"{at}.mlp.down_proj.weight": [WIDTH, INNER],
            f"{at}.input_layernorm.weight": [WIDTH],
            f"{at}.post_attention_layernorm.weight": [WIDTH],
        }
    return found | {"model.norm.weight": [WIDTH], "lm_head.weight": [VOCABULARY, WIDTH]}


@contextlib.contextmanager
def model() -> Iterator[Path]:
    """The checkpoint, as long as the block runs."""
    header, offset = {}, 0
    for name, shape in shapes().items():
        nbytes = 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, offset + nbytes]}
        offset += nbytes
    text = json.dumps(header).encode()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "llama-8b.safetensors"
        with path.open("wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            file.truncate(8 + len(text) + offset)
        yield path


def picture() -> str:
    """The picture, as `rustload view --svg` writes it."""
    with model() as path:
        return rustload.view(path, path.with_name("map.svg"), svg=True).read_text("utf-8")


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
    print(PICTURE)
