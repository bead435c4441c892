"""Trains torchtitan's Qwen3 on the work of bench/train_step.cpp and prints one JSON line.

torchtitan's trainer needs GPUs, so its model, loss and state-dict adapter are used directly, and
scaled_dot_product_attention is plugged in: its own attention backends cannot run backward on a CPU. --mode compile compiles
each block, as its trainer does. Its experts compute in bfloat16 under every dtype. Needs torchtitan 0.3.0 and what it imports:

    .bench/bin/pip install --no-deps torchtitan==0.3.0
    .bench/bin/pip install spmd_types==0.2.3 einops tyro torchdata grain torch_checkpointing datasets tensorboard pillow tomli
"""
import json
import os
from dataclasses import dataclass

import torch
import torch.distributed.fsdp
from safetensors.torch import load_file

from peer_work import arguments, train

# torchtitan 0.3.0 needs a newer torch than 2.11; the missing functions are not used on one device.
if not hasattr(torch.distributed.fsdp, "DataParallelMeshDims"):
    torch.distributed.fsdp.DataParallelMeshDims = type("DataParallelMeshDims", (), {})
import torchtitan.models.qwen3 as qwen3  # noqa: E402
from torchtitan.components.loss import CrossEntropyLoss
from torchtitan.models.common import CosSinRoPE, Embedding, Linear
from torchtitan.protocols.module import Module


class Attention(Module):
    """torch's scaled_dot_product_attention, for (B, T, heads, width) in and out."""

    @dataclass(kw_only=True, slots=True)
    class Config(Module.Config):
        pass

    def __init__(self, config):
        super().__init__()

    def forward(self, q, k, v, *, scale=None, enable_gqa=False, **others):
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        return torch.nn.functional.scaled_dot_product_attention(
            q, k, v, is_causal=True, scale=scale, enable_gqa=enable_gqa).transpose(1, 2)


def build(folder, seq, dtype_name):
    dtype = torch.bfloat16 if dtype_name == "bf16" else torch.float32
    with open(os.path.join(folder, "config.json")) as f:
        c = json.load(f)
    theta = (c.get("rope_parameters") or c)["rope_theta"]
    shape = dict(
        n_layers=c["num_hidden_layers"], dim=c["hidden_size"], n_heads=c["num_attention_heads"],
        n_kv_heads=c["num_key_value_heads"], head_dim=c["head_dim"], attn_backend="varlen",
        rope=CosSinRoPE.Config(dim=c["head_dim"], max_seq_len=seq, theta=theta))
    experts = c.get("num_experts") or c.get("num_local_experts")
    if experts:
        layers = qwen3._build_qwen3_moe_layers(
            **shape, moe_hidden_dim=c["moe_intermediate_size"], num_experts=experts,
            top_k=c["num_experts_per_tok"], moe_comm_backend="standard")
    else:
        layers = qwen3._build_qwen3_layers(**shape, hidden_dim=c["intermediate_size"])
    for layer in layers:
        layer.attention.inner_attention = Attention.Config()
    tied = c["tie_word_embeddings"]
    config = qwen3.Qwen3Model.Config(
        vocab_size=c["vocab_size"], dim=c["hidden_size"], norm=qwen3._qwen3_norm(c["hidden_size"]),
        enable_weight_tying=tied, layers=layers,
        tok_embeddings=Embedding.Config(
            num_embeddings=c["vocab_size"], embedding_dim=c["hidden_size"],
            param_init=qwen3._EMBEDDING_SKIP_INIT if tied else qwen3._EMBEDDING_INIT),
        lm_head=Linear.Config(in_features=c["hidden_size"], out_features=c["vocab_size"],
                              param_init=qwen3._LINEAR_INIT))
    torch.set_default_dtype(dtype)
    with torch.device("meta"):
        model = config.build()
    torch.set_default_dtype(torch.float32)
    model.to_empty(device="cpu")
    with torch.no_grad():
        model.init_states(buffer_device=torch.device("cpu"))
    weights = {k: v.to(dtype) for k, v in load_file(os.path.join(folder, "model.safetensors")).items()}
    loaded = model.load_state_dict(qwen3.Qwen3StateDictAdapter(config, None).from_hf(weights), strict=False)
    missing = [name for name in loaded.missing_keys if "expert_bias" not in name and "rope" not in name]
    assert not missing and not loaded.unexpected_keys, (missing, loaded.unexpected_keys)
    return model.train(), c["vocab_size"], "bf16" if experts else dtype_name


def main():
    a = arguments(__doc__, ["fp32", "bf16"]).parse_args()
    torch.set_num_threads(a.threads)
    model, vocab_size, computes = build(a.model, a.seq, a.dtype)
    cross_entropy = CrossEntropyLoss.Config().build(compile_config=None)
    if a.mode == "compile":
        torch._dynamo.config.capture_scalar_outputs = True  # the number of tokens per expert is a scalar
        for layer in model.layers.values():
            layer.compile(backend="inductor", fullgraph=True)
        cross_entropy.fn = torch.compile(cross_entropy.fn, backend="inductor")
    positions = torch.arange(a.seq).repeat(a.batch, 1)

    def loss_of(x, y):
        return cross_entropy(model(x, positions), y, torch.tensor(float(y.numel())))[0]

    train(a, "torchtitan", model, vocab_size, loss_of, computes=computes)


if __name__ == "__main__":
    main()
