"""Writes transformers_blocks.txt: parts of Hugging Face transformers on made-up weights, in float64.

A line is a case, a quantity and its numbers: all of the output, and of each gradient g the sum of g[i] sin(1.1 i). The
weights are 0.5 sin(0.7 i + k) for the k-th parameter by name, the input is cos(0.3 i), the loss sum(output[i] sin(0.9 i)).
The load-balancing loss is that of two sequences of five tokens with padding, and of router logits 2 sin(0.8 i + k) of
layer k; its gradients are written out.
Run with transformers 5.23.0: python transformers_blocks.py > transformers_blocks.txt
"""

import torch
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Attention, DeepseekV3Config
from transformers.models.gemma2.modeling_gemma2 import Gemma2Attention, Gemma2Config
from transformers.models.glm.modeling_glm import GlmAttention, GlmConfig
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssAttention, GptOssConfig
from transformers.models.qwen3_moe.modeling_qwen3_moe import load_balancing_loss_func
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextAttention, Qwen3NextConfig

TOKENS, HIDDEN = 7, 8
COMMON = dict(hidden_size=HIDDEN, num_attention_heads=4, num_key_value_heads=2, head_dim=8, attn_implementation="eager")
LATENT = dict(
    hidden_size=HIDDEN, num_attention_heads=4, num_key_value_heads=4, kv_lora_rank=5, qk_nope_head_dim=6,
    qk_rope_head_dim=4, v_head_dim=7, attention_bias=True, attn_implementation="eager", rope_interleave=True,
)
YARN = dict(
    rope_type="yarn", rope_theta=100.0, factor=4.0, mscale=1.0, mscale_all_dim=1.0, beta_fast=32, beta_slow=1,
    original_max_position_embeddings=64,
)
PLAIN = dict(rope_type="default", rope_theta=100.0)
FULL, SLIDING = ["full_attention"], ["sliding_attention"]

# name: (module, rotated elements, window)
CASES = {
    "glm": (lambda: GlmAttention(GlmConfig(**COMMON, attention_bias=True, partial_rotary_factor=0.5), 0), 4, None),
    "gpt_oss": (
        lambda: GptOssAttention(GptOssConfig(**COMMON, sliding_window=3, layer_types=SLIDING, num_hidden_layers=1), 0),
        8, 3,
    ),
    "gemma2": (
        lambda: Gemma2Attention(Gemma2Config(
            **COMMON, sliding_window=4, layer_types=SLIDING, num_hidden_layers=1, query_pre_attn_scalar=5,
            attn_logit_softcapping=1.5), 0),
        8, 4,
    ),
    "qwen3_next": (
        lambda: Qwen3NextAttention(Qwen3NextConfig(
            **COMMON, layer_types=FULL, num_hidden_layers=1, rms_norm_eps=1e-6), 0),
        2, None,
    ),
    "deepseek_v3": (
        lambda: DeepseekV3Attention(DeepseekV3Config(**LATENT, q_lora_rank=9, rope_parameters=YARN), 0), 4, None),
    "deepseek_v3_without_q_lora": (
        lambda: DeepseekV3Attention(DeepseekV3Config(**LATENT, q_lora_rank=None, rope_parameters=PLAIN), 0), 4, None),
}


def wave(count, step, phase=0.0):
    return (torch.arange(count, dtype=torch.double) * step + phase).sin()


def show(case, quantity, values):
    print(case, quantity, *(f"{v:.17g}" for v in values))


def show_load_balancing():
    experts, mask = 5, torch.tensor([[1, 1, 1, 1, 0], [0, 0, 1, 1, 1]])
    logits = [(2 * wave(mask.numel() * experts, 0.8, k).view(-1, experts)).requires_grad_() for k in range(3)]
    loss = load_balancing_loss_func(tuple(logits), experts, 2, mask)
    loss.backward()
    show("load_balancing", "loss", [loss.item()])
    for k, of_layer in enumerate(logits):
        show("load_balancing", f"logits.{k}", of_layer.grad.flatten().tolist())


def main():
    # These modules compute some parts in float32 whatever their dtype; this makes them float64, too.
    torch.float32 = torch.float64
    torch.Tensor.float = torch.Tensor.double
    for case, (make, rotated, window) in CASES.items():
        module = make().double().eval()
        parameters = sorted(module.named_parameters())
        with torch.no_grad():
            for k, (_, value) in enumerate(parameters):
                value.copy_(0.5 * wave(value.numel(), 0.7, k).view_as(value))
        x = wave(TOKENS * HIDDEN, 0.3, torch.pi / 2).view(1, TOKENS, HIDDEN).requires_grad_()
        frequencies = 100.0 ** (-torch.arange(0, rotated, 2, dtype=torch.double) / rotated)
        angles = torch.arange(TOKENS, dtype=torch.double)[:, None] * frequencies
        angles = (angles if case == "gpt_oss" else torch.cat([angles, angles], -1))[None]
        distance = torch.arange(TOKENS)[:, None] - torch.arange(TOKENS)
        hidden = (distance < 0) | (distance >= (window or TOKENS))
        mask = torch.zeros(1, 1, TOKENS, TOKENS, dtype=torch.double).masked_fill(hidden, -torch.inf)
        y = module(x, position_embeddings=(angles.cos(), angles.sin()), attention_mask=mask)[0]
        (y.flatten() * wave(y.numel(), 0.9)).sum().backward()
        show(case, "output", y.flatten().tolist())
        for name, value in [("input", x), *parameters]:
            show(case, name, [(value.grad.flatten() * wave(value.numel(), 1.1)).sum().item()])
    show_load_balancing()


if __name__ == "__main__":
    main()
