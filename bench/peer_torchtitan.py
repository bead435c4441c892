"""Trains torchtitan's Qwen3 or DeepSeek-V3 (without experts) on the work of bench/train_step.cpp and prints one JSON line.

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
import torchtitan.models.deepseek_v3 as deepseek_v3  # noqa: E402
import torchtitan.models.qwen3 as qwen3
from torchtitan.components.loss import CrossEntropyLoss
from torchtitan.models.common import ComplexRoPE, CosSinRoPE, Embedding, Linear
from torchtitan.models.deepseek_v3.state_dict_adapter import DeepSeekV3StateDictAdapter
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


def qwen3_config(c, seq, theta):
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
    tied = c["tie_word_embeddings"]
    return qwen3.Qwen3Model.Config(
        vocab_size=c["vocab_size"], dim=c["hidden_size"], norm=qwen3._qwen3_norm(c["hidden_size"]),
        enable_weight_tying=tied, layers=layers,
        tok_embeddings=Embedding.Config(
            num_embeddings=c["vocab_size"], embedding_dim=c["hidden_size"],
            param_init=qwen3._EMBEDDING_SKIP_INIT if tied else qwen3._EMBEDDING_INIT),
        lm_head=Linear.Config(in_features=c["hidden_size"], out_features=c["vocab_size"],
                              param_init=qwen3._LINEAR_INIT)), bool(experts)


def deepseek_v3_config(c, seq, theta):
    assert c["first_k_dense_replace"] == c["num_hidden_layers"], "layers with experts are not compared"
    dim = c["hidden_size"]
    layers = deepseek_v3._build_dsv3_layers(
        n_layers=c["num_hidden_layers"], n_dense_layers=c["num_hidden_layers"], dim=dim, n_heads=c["num_attention_heads"],
        mscale=1.0, dense_hidden_dim=c["intermediate_size"], moe_hidden_dim=1, num_experts=1, num_shared_experts=1,
        router_top_k=1, router_score_func="sigmoid", attn_backend="varlen", moe_comm_backend="standard",
        non_blocking_capacity_factor=None, rope=ComplexRoPE.Config(dim=c["qk_rope_head_dim"], max_seq_len=seq, theta=theta),
        **{key: c[key] for key in ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")})
    return deepseek_v3.DeepSeekV3Model.Config(
        vocab_size=c["vocab_size"], dim=dim, layers=layers,
        norm=deepseek_v3.RMSNorm.Config(normalized_shape=dim, eps=c["rms_norm_eps"], param_init=deepseek_v3._NORM_INIT),
        tok_embeddings=Embedding.Config(
            num_embeddings=c["vocab_size"], embedding_dim=dim, param_init=deepseek_v3._EMBEDDING_INIT),
        lm_head=Linear.Config(in_features=dim, out_features=c["vocab_size"],
                              param_init=deepseek_v3._output_linear_init(dim))), False


def build(folder, seq, dtype_name):
    dtype = torch.bfloat16 if dtype_name == "bf16" else torch.float32
    with open(os.path.join(folder, "config.json")) as f:
        c = json.load(f)
    theta = (c.get("rope_parameters") or c)["rope_theta"]
    latent = c["model_type"] == "deepseek_v3"
    config, experts = (deepseek_v3_config if latent else qwen3_config)(c, seq, theta)
    for layer in config.layers:
        layer.attention.inner_attention = Attention.Config()
    torch.set_default_dtype(dtype)
    with torch.device("meta"):
        model = config.build()
    torch.set_default_dtype(torch.float32)
    model.to_empty(device="cpu")
    with torch.no_grad():
        model.init_states(buffer_device=torch.device("cpu"))
    weights = {k: v.to(dtype) for k, v in load_file(os.path.join(folder, "model.safetensors")).items()}
    adapter = DeepSeekV3StateDictAdapter if latent else qwen3.Qwen3StateDictAdapter
    loaded = model.load_state_dict(adapter(config, None).from_hf(weights), strict=False)
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
