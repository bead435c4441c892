"""Trains a model of Qwen3-0.6B's shape with Hugging Face transformers on one device, with the work of the check's first
size, and prints one JSON line. If --rows sequences do not fit, it trains with fewer. float32 weights, bfloat16
arithmetic by autocast, fused AdamW, clipping at 1."""
import argparse
import json
import resource
import statistics
import time

import torch
from transformers import AutoModelForCausalLM, Qwen3Config

p = argparse.ArgumentParser(description=__doc__)
p.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
p.add_argument("--mode", choices=["eager", "compile"], default="compile")
p.add_argument("--rows", type=int, default=8)
p.add_argument("--steps", type=int, default=8)
a = p.parse_args()
on_gpu = a.device == "cuda"
shape = dict(hidden_size=1024, num_hidden_layers=28, num_attention_heads=16, num_key_value_heads=8, head_dim=128,
             intermediate_size=3072, vocab_size=151936) if on_gpu else \
    dict(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
         intermediate_size=128, vocab_size=593)
seq_len = 4096 if on_gpu else 64
torch.manual_seed(1)
with torch.device(a.device):
    model = AutoModelForCausalLM.from_config(Qwen3Config(
        **shape, tie_word_embeddings=True, max_position_embeddings=40960, use_cache=False), attn_implementation="sdpa")
model.train()
run = torch.compile(model, dynamic=False) if a.mode == "compile" else model
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)


def step(rows):
    """One step of training; returns the loss and the seconds."""
    x = torch.randint(shape["vocab_size"], (rows, seq_len + 1), device=a.device)
    if on_gpu:
        torch.cuda.synchronize()
    begin = time.perf_counter()
    with torch.autocast(a.device, dtype=torch.bfloat16):
        logits = run(input_ids=x[:, :-1], use_cache=False).logits
    loss = torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), x[:, 1:].flatten())
    del logits
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.item(), time.perf_counter() - begin


def train(rows):
    results = [step(rows) for _ in range(a.steps)]
    seconds = [seconds for _, seconds in results]
    median = statistics.median(seconds[a.steps // 2:])
    peak = torch.cuda.max_memory_allocated() if on_gpu else 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return dict(peer=f"transformers {a.mode}", rows=rows, tokens_per_second=rows * seq_len / median, peak_bytes=peak,
                first_step=seconds[0], loss=results[-1][0])


rows, result = a.rows, None
while result is None:
    try:
        result = train(rows)
    except torch.OutOfMemoryError:
        if rows == 1:
            raise
    if result is None:  # with fewer rows, outside of the handler, whose exception holds tensors
        rows -= 1
        optimizer.zero_grad(set_to_none=True)
        if on_gpu:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
print(json.dumps(result))
