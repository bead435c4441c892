"""Trains a dense Qwen3 in JAX on the work of bench/train_step.cpp and prints one JSON line.

The whole step, with optax's AdamW, is one jitted function that reuses the memory of weights and moments. Layers are
stacked and scanned, as MaxText does, so that one layer is compiled. Mixtures of experts are left out. Needs:

    .bench/bin/pip install jax optax safetensors
"""
import json
import os
import sys

import jax
import jax.numpy as jnp
import optax
from safetensors.numpy import load_file

from peer_work import arguments, run_steps

PARTS = ("input_layernorm", "post_attention_layernorm", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
         "self_attn.o_proj", "self_attn.q_norm", "self_attn.k_norm", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")


def load(folder, dtype):
    """Returns the config, and the weights of a folder of transformers: each part of the layers as one array."""
    with open(os.path.join(folder, "config.json")) as f:
        config = json.load(f)
    if config["model_type"] != "qwen3":
        sys.exit(f"peer_jax.py: no model_type {config['model_type']}; it has dense Qwen3 only")
    stored = load_file(os.path.join(folder, "model.safetensors"))

    def stacked(part):
        names = [f"model.layers.{i}.{part}.weight" for i in range(config["num_hidden_layers"])]
        return jnp.stack([jnp.asarray(stored[name], dtype) for name in names])

    weights = {"embed": jnp.asarray(stored["model.embed_tokens.weight"], dtype), "norm": jnp.asarray(stored["model.norm.weight"], dtype),
               "layers": {part: stacked(part) for part in PARTS}}
    if not config["tie_word_embeddings"]:
        weights["head"] = jnp.asarray(stored["lm_head.weight"], dtype)
    return config, weights


def rms_norm(x, weight, eps):
    wide = x.astype(jnp.float32)
    return weight * (wide * jax.lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + eps)).astype(x.dtype)


def rotary(x, cos, sin):
    half = x.shape[-1] // 2
    turned = jnp.concatenate([-x[..., half:], x[..., :half]], -1)
    return x * cos + turned * sin


def angles(config, seq, dtype):
    """Returns cosines and sines (seq, 1, width) of the rotary embedding."""
    width = config["head_dim"]
    theta = (config.get("rope_parameters") or config)["rope_theta"]
    frequencies = theta ** (-jnp.arange(0, width, 2, dtype=jnp.float32) / width)
    turns = jnp.outer(jnp.arange(seq, dtype=jnp.float32), frequencies)
    turns = jnp.concatenate([turns, turns], -1)[:, None, :]
    return jnp.cos(turns).astype(dtype), jnp.sin(turns).astype(dtype)


def hidden_states(config, weights, ids):
    eps, width = config["rms_norm_eps"], config["head_dim"]
    cos, sin = angles(config, ids.shape[1], weights["embed"].dtype)

    def layer(h, w):
        x = rms_norm(h, w["input_layernorm"], eps)
        q, k, v = ((x @ w[f"self_attn.{name}_proj"].T).reshape(*x.shape[:2], -1, width) for name in "qkv")
        q = rotary(rms_norm(q, w["self_attn.q_norm"], eps), cos, sin)
        k = rotary(rms_norm(k, w["self_attn.k_norm"], eps), cos, sin)
        attended = jax.nn.dot_product_attention(q, k, v, is_causal=True)
        h = h + attended.reshape(*x.shape[:2], -1) @ w["self_attn.o_proj"].T
        x = rms_norm(h, w["post_attention_layernorm"], eps)
        gate, up = x @ w["mlp.gate_proj"].T, x @ w["mlp.up_proj"].T
        return h + (jax.nn.silu(gate) * up) @ w["mlp.down_proj"].T, None

    h, _ = jax.lax.scan(layer, weights["embed"][ids], weights["layers"])
    return rms_norm(h, weights["norm"], eps)


def loss_of(config, weights, x, y):
    logits = hidden_states(config, weights, x) @ weights.get("head", weights["embed"]).T
    return optax.softmax_cross_entropy_with_integer_labels(logits.astype(jnp.float32), y).mean()


def main():
    a = arguments(__doc__, ["fp32", "bf16"], ["jit"]).parse_args()
    # XLA has a thread for each core that the process may use, and no option for their number.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:a.threads])
    config, weights = load(a.model, jnp.bfloat16 if a.dtype == "bf16" else jnp.float32)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0),
                            optax.adamw(3e-4, b1=0.9, b2=0.95, eps=1e-8, weight_decay=0.1))

    @jax.jit
    def start(weights):
        return optimizer.init(weights)

    def step(weights, state, x, y):
        loss, gradients = jax.value_and_grad(lambda w: loss_of(config, w, x, y))(weights)
        norm = optax.global_norm(gradients)
        updates, state = optimizer.update(gradients, state, weights)
        return optax.apply_updates(weights, updates), state, loss, norm

    step = jax.jit(step, donate_argnums=(0, 1))
    state = start(weights)

    def step_of(x, y):
        nonlocal weights, state
        weights, state, loss, norm = step(weights, state, jnp.asarray(x, jnp.int32), jnp.asarray(y, jnp.int32))
        jax.block_until_ready(weights)
        return float(loss), float(norm)

    run_steps(a, "jax", config["vocab_size"], step_of)


if __name__ == "__main__":
    main()
