"""A Llama from PyTorch's files, run in JAX without torch: `python -m examples.jax_params FOLDER [TOKEN ...]`.

The folder has Hugging Face's layout: `config.json` next to a `.bin`, shards or safetensors, of any size that fits. Names become a
nested pytree, torch's matrices (outputs by inputs) are transposed and cast while they are read, and the model goes through `jit`.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

import rustload.jax


def load(folder: str | Path, dtype: str = "float32") -> dict[str, Any]:
    """The weights as a pytree: `params["layers"][3]["self_attn"]["q_proj"]["weight"]`."""
    params = rustload.jax.load(folder, strip="model.", dtype=dtype, transpose={"*_proj.weight": True})
    layers = params["layers"]
    params["layers"] = [layers[str(number)] for number in range(len(layers))]
    return params


def rms_norm(x: jax.Array, weight: jax.Array, eps: float) -> jax.Array:
    """Root mean square normalization."""
    x32 = x.astype(jnp.float32)
    return weight * (x32 * jax.lax.rsqrt((x32 * x32).mean(-1, keepdims=True) + eps)).astype(x.dtype)


def rotated(x: jax.Array, theta: float) -> jax.Array:
    """Rotary position embedding (RoPE) of (heads, tokens, width)."""
    half = x.shape[-1] // 2
    angles = jnp.arange(x.shape[1])[:, None] * theta ** (-jnp.arange(half) / half)
    cos, sin = jnp.cos(angles).astype(x.dtype), jnp.sin(angles).astype(x.dtype)
    one, two = x[..., :half], x[..., half:]
    return jnp.concatenate([one * cos - two * sin, two * cos + one * sin], axis=-1)


def attention(p: dict[str, Any], x: jax.Array, heads: int, groups: int, theta: float) -> jax.Array:
    """Causal grouped-query attention: `heads` query heads, `groups` key and value heads."""
    tokens = x.shape[0]
    q, k, v = (
        (x @ p[f"{name}_proj"]["weight"]).reshape(tokens, count, -1).swapaxes(0, 1)
        for name, count in (("q", heads), ("k", groups), ("v", groups))
    )
    q, k = rotated(q, theta), rotated(k, theta)
    k, v = (jnp.repeat(part, heads // groups, axis=0) for part in (k, v))
    scores = q @ k.swapaxes(1, 2) / q.shape[-1] ** 0.5
    causal = jnp.tril(jnp.ones((tokens, tokens), bool))
    weights = jax.nn.softmax(jnp.where(causal, scores.astype(jnp.float32), -jnp.inf)).astype(x.dtype)
    return (weights @ v).swapaxes(0, 1).reshape(tokens, -1) @ p["o_proj"]["weight"]


@partial(jax.jit, static_argnames=("heads", "groups", "theta", "eps"))
def logits(
    params: dict[str, Any], tokens: jax.Array, *, heads: int, groups: int, theta: float, eps: float
) -> jax.Array:
    """The model's logits for each token: (tokens, vocabulary)."""
    embed = params["embed_tokens"]["weight"]
    x = embed[tokens]
    for p in params["layers"]:
        x += attention(p["self_attn"], rms_norm(x, p["input_layernorm"]["weight"], eps), heads, groups, theta)
        y, mlp = rms_norm(x, p["post_attention_layernorm"]["weight"], eps), p["mlp"]
        gated = jax.nn.silu(y @ mlp["gate_proj"]["weight"]) * (y @ mlp["up_proj"]["weight"])
        x += gated @ mlp["down_proj"]["weight"]
    head = params.get("lm_head", {"weight": embed})["weight"]  # tied if the file has none
    return rms_norm(x, params["norm"]["weight"], eps) @ head.T


def settings(folder: str | Path) -> dict[str, Any]:
    """The values of `config.json` that `logits` needs."""
    config = json.loads((Path(folder) / "config.json").read_text())
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if config["model_type"] != "llama" or rope.get("rope_type", "default") != "default":
        raise SystemExit("this example supports only Llama models without RoPE scaling")
    heads = config["num_attention_heads"]
    return {
        "heads": heads,
        "groups": config.get("num_key_value_heads") or heads,
        "theta": rope.get("rope_theta") or config.get("rope_theta", 10000.0),
        "eps": config["rms_norm_eps"],
    }


def main(folder: str, *tokens: str) -> jax.Array:
    """Reads the folder, prints the tree, and prints the next token."""
    params = load(folder)
    print(jax.tree.map(lambda leaf: f"{leaf.dtype}{list(leaf.shape)}", params["layers"][0]))
    given = jnp.array([int(token) for token in tokens] or [1, 2, 3])
    found = logits(params, given, **settings(folder))
    print(f"after {given.tolist()} comes {int(found[-1].argmax())}")
    return found


if __name__ == "__main__":
    main(*sys.argv[1:])
