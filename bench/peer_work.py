"""The work of bench/train_step.cpp for peers written in Python: the same tokens, steps, optimizer and measurement."""
import argparse
import json
import os
import time

import numpy as np

from machine import peak_rss_mb


def arguments(description, dtypes, modes=("eager", "compile")):
    p = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", help="folder to start from, as peer_transformers.py --save-init makes it")
    p.add_argument("--mode", choices=modes, default=modes[0])
    p.add_argument("--dtype", choices=dtypes, default="fp32")
    p.add_argument("--seq", type=int, default=1024)
    p.add_argument("--batch", type=int, default=1)
    p.add_argument("--steps", type=int, default=5)
    p.add_argument("--warmup", type=int, default=2)
    p.add_argument("--threads", type=int, default=os.cpu_count())
    p.add_argument("--seed", type=int, default=1234)
    return p


def splitmix_tokens(count, vocab_size, seed):
    with np.errstate(over="ignore"):
        z = np.arange(count, dtype=np.uint64) + np.uint64(seed) * np.uint64(1 << 32)
        z = z + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    return (z % np.uint64(vocab_size)).astype(np.int64)


def run_steps(a, peer, vocab_size, step_of, **more):
    """Runs `step_of(x, y)`, which trains on (batch, seq) arrays and returns the loss and the gradient norm as numbers, and
    prints one JSON line, with `more` in it."""
    count = 64 * a.batch * a.seq + a.seq + 2
    tokens = splitmix_tokens(count, vocab_size, a.seed)
    span = count - a.seq - 1
    losses, norms, times = [], [], []
    for step in range(a.warmup + a.steps):
        first = [((step * a.batch + row) * a.seq) % span for row in range(a.batch)]
        x = np.stack([tokens[f:f + a.seq] for f in first])
        y = np.stack([tokens[f + 1:f + a.seq + 1] for f in first])
        begin = time.perf_counter()
        loss, norm = step_of(x, y)
        times.append((time.perf_counter() - begin) * 1000)
        losses.append(loss)
        norms.append(norm)
    timed = times[a.warmup:]
    print(json.dumps(dict(
        peer=f"{peer} {a.mode}", dtype=a.dtype, seq=a.seq, batch=a.batch, step_ms=timed,
        tokens_per_s=a.seq * a.batch / sorted(timed)[len(timed) // 2] * 1000,
        peak_rss_mb=peak_rss_mb(), losses=losses, grad_norms=norms) | more))


def train(a, peer, model, vocab_size, loss_of, **more):
    """Trains a torch model by AdamW on `loss_of(x, y)`, x and y (batch, seq)."""
    import torch  # not needed by peers without torch

    params = list(model.parameters())
    optimizer = torch.optim.AdamW(params, lr=3e-4, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, fused=True)

    def step_of(x, y):
        loss = loss_of(torch.from_numpy(x), torch.from_numpy(y))
        loss.backward()
        norm = float(torch.nn.utils.clip_grad_norm_(params, 1.0))
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item(), norm

    run_steps(a, peer, vocab_size, step_of, **more)
