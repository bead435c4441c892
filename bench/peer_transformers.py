"""Trains Qwen3 by Hugging Face transformers on the work of bench/train_step.cpp and prints one JSON line.

--save-init FOLDER writes the initial weights that every contender starts from, and stops.
"""
import argparse
import json
import os
import resource
import time

import numpy as np
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

PRESETS = {
    "tiny": dict(hidden_size=256, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=4, head_dim=64,
                 intermediate_size=768, vocab_size=8192),
    "small": dict(hidden_size=1024, num_hidden_layers=8, num_attention_heads=16, num_key_value_heads=8, head_dim=128,
                  intermediate_size=3072, vocab_size=32768),
}


def splitmix_tokens(count, vocab_size, seed):
    with np.errstate(over="ignore"):
        z = np.arange(count, dtype=np.uint64) + np.uint64(seed) * np.uint64(1 << 32)
        z = z + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    return torch.from_numpy((z % np.uint64(vocab_size)).astype(np.int64))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--preset", choices=list(PRESETS), default="small")
    p.add_argument("--model", help="folder to start from, as --save-init makes it")
    p.add_argument("--save-init")
    p.add_argument("--mode", choices=["eager", "compile"], default="eager")
    p.add_argument("--dtype", choices=["fp32", "bf16", "amp"], default="fp32")
    p.add_argument("--seq", type=int, default=1024)
    p.add_argument("--batch", type=int, default=1)
    p.add_argument("--steps", type=int, default=5)
    p.add_argument("--warmup", type=int, default=2)
    p.add_argument("--threads", type=int, default=os.cpu_count())
    p.add_argument("--seed", type=int, default=1234)
    a = p.parse_args()
    torch.set_num_threads(a.threads)
    torch.manual_seed(1)
    if a.save_init:
        config = Qwen3Config(
            **PRESETS[a.preset], tie_word_embeddings=True, max_position_embeddings=4096, rms_norm_eps=1e-6,
            initializer_range=0.02, use_cache=False, attention_dropout=0.0,
            rope_parameters={"rope_type": "default", "rope_theta": 1e6})
        Qwen3ForCausalLM(config).save_pretrained(a.save_init, max_shard_size="10GB")
        return
    dtype = torch.bfloat16 if a.dtype == "bf16" else torch.float32
    model = Qwen3ForCausalLM.from_pretrained(a.model, dtype=dtype, attn_implementation="sdpa")
    model.train()
    run = torch.compile(model) if a.mode == "compile" else model
    params = list(model.parameters())
    optimizer = torch.optim.AdamW(params, lr=3e-4, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, fused=True)
    count = 64 * a.batch * a.seq + a.seq + 2
    tokens = splitmix_tokens(count, model.config.vocab_size, a.seed)
    span = count - a.seq - 1
    losses, norms, times = [], [], []
    for step in range(a.warmup + a.steps):
        first = [((step * a.batch + row) * a.seq) % span for row in range(a.batch)]
        x = torch.stack([tokens[f:f + a.seq] for f in first])
        y = torch.stack([tokens[f + 1:f + a.seq + 1] for f in first])
        begin = time.perf_counter()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=a.dtype == "amp"):
            logits = run(input_ids=x, use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), y.flatten())
        loss.backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(params, 1.0)))
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
        times.append((time.perf_counter() - begin) * 1000)
    timed = times[a.warmup:]
    print(json.dumps(dict(
        peer="transformers " + a.mode, dtype=a.dtype, seq=a.seq, batch=a.batch, step_ms=timed,
        tokens_per_s=a.seq * a.batch / sorted(timed)[len(timed) // 2] * 1000,
        peak_rss_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000, losses=losses, grad_norms=norms)))


if __name__ == "__main__":
    main()
