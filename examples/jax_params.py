"""A `.bin` file as parameters for JAX, with no torch in the process that reads it: `python -m examples.jax_params FILE`."""

from __future__ import annotations

import sys
from typing import Any

import jax
import jax.numpy as jnp

import rustload.jax


def forward(params: dict[str, Any], x: jax.Array) -> jax.Array:
    """Three of the matrices, one after the other, as Flax would have them: inputs by outputs."""
    for name in ("q", "k", "v"):
        x = jnp.tanh(x @ params[name]["weight"])
    return x


def main(path: str) -> jax.Array:
    """Reads, casts and transposes in one pass; the pytree goes through jit as it is."""
    params = rustload.jax.load(path, dtype="bfloat16", transpose={"*.weight": True})
    print(jax.tree.map(lambda leaf: f"{leaf.dtype}{list(leaf.shape)}", params))
    made: jax.Array = jax.jit(forward)(params, jnp.ones((1, 8), jnp.bfloat16))
    return made


if __name__ == "__main__":
    main(sys.argv[1])
