"""Trains a model by Hugging Face transformers on the work of bench/train_step.cpp and prints one JSON line.

--save-init FOLDER writes the initial weights that every contender starts from, and stops.
"""
import torch
from transformers import AutoModelForCausalLM, DeepseekV3Config, MistralConfig, Qwen3Config, Qwen3MoeConfig

from peer_work import arguments, train

PRESETS = {
    "tiny": dict(hidden_size=256, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=4, head_dim=64,
                 intermediate_size=768, vocab_size=8192),
    "small": dict(hidden_size=1024, num_hidden_layers=8, num_attention_heads=16, num_key_value_heads=8, head_dim=128,
                  intermediate_size=3072, vocab_size=32768),
    # 2 GB in float32; used by the loading benchmark only.
    "loading": dict(hidden_size=1024, num_hidden_layers=30, num_attention_heads=16, num_key_value_heads=8, head_dim=128,
                    intermediate_size=3072, vocab_size=32768),
    "moe": dict(hidden_size=512, num_hidden_layers=6, num_attention_heads=8, num_key_value_heads=4, head_dim=64,
                intermediate_size=1536, vocab_size=32768, tie_word_embeddings=False, num_experts=32,
                num_experts_per_tok=4, moe_intermediate_size=256, norm_topk_prob=True, decoder_sparse_step=1,
                mlp_only_layers=[], output_router_logits=False),
    "qwen3-0.6b": dict(hidden_size=1024, num_hidden_layers=28, num_attention_heads=16, num_key_value_heads=8, head_dim=128,
                       intermediate_size=3072, vocab_size=151936),
    # Multi-head latent attention, as in DeepSeek-V3, without experts.
    "mla": dict(hidden_size=1024, num_hidden_layers=8, num_attention_heads=16, num_key_value_heads=16, q_lora_rank=512,
                kv_lora_rank=256, qk_nope_head_dim=64, qk_rope_head_dim=32, v_head_dim=64, intermediate_size=3072,
                first_k_dense_replace=8, vocab_size=32768, tie_word_embeddings=False, rms_norm_eps=1e-5),
    # A query sees its token and the 511 before it. Mistral 7B has such a window of 4,096.
    "window": dict(hidden_size=512, num_hidden_layers=6, num_attention_heads=8, num_key_value_heads=4, head_dim=64,
                   intermediate_size=1536, vocab_size=8192, sliding_window=512),
}
CONFIGS = {"moe": Qwen3MoeConfig, "mla": DeepseekV3Config, "window": MistralConfig}


def save_init(preset, folder):
    torch.manual_seed(1)
    config = CONFIGS.get(preset, Qwen3Config)(**{
        **dict(tie_word_embeddings=True, max_position_embeddings=4096, rms_norm_eps=1e-6, initializer_range=0.02,
               use_cache=False, attention_dropout=0.0, rope_parameters={"rope_type": "default", "rope_theta": 1e6}),
        **PRESETS[preset]})
    AutoModelForCausalLM.from_config(config).save_pretrained(folder, max_shard_size="10GB")


def main():
    p = arguments(__doc__, ["fp32", "bf16", "amp"])
    p.add_argument("--preset", choices=list(PRESETS), default="small")
    p.add_argument("--save-init")
    a = p.parse_args()
    torch.set_num_threads(a.threads)
    if a.save_init:
        save_init(a.preset, a.save_init)
        return
    dtype = torch.bfloat16 if a.dtype == "bf16" else torch.float32
    model = AutoModelForCausalLM.from_pretrained(a.model, dtype=dtype, attn_implementation="sdpa")
    model.train()
    run = torch.compile(model) if a.mode == "compile" else model

    def loss_of(x, y):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=a.dtype == "amp"):
            logits = run(input_ids=x, use_cache=False).logits
        return torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), y.flatten())

    train(a, "transformers", model, model.config.vocab_size, loss_of)


if __name__ == "__main__":
    main()
