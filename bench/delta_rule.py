"""Times the gated delta rule, forward and backward, beside the PyTorch code of Hugging Face transformers.

    cmake --preset release -DLEHR_BENCH=ON && ninja -C build ops_bench
    python bench/delta_rule.py build/bin/ops_bench [--tokens 1024 4096] [--rounds 5]        (needs torch, transformers)

Both compute the heads of Qwen3-Next in float32 on all cores. They take turns, so that a busy machine slows both down, and
the table has medians over the rounds.
"""
import argparse
import inspect
import json
import statistics
import subprocess
import time

import torch
from transformers.models.qwen3_next.modeling_qwen3_next import torch_chunk_gated_delta_rule

peer = inspect.unwrap(torch_chunk_gated_delta_rule)


def time_peer(tokens):
    """Seconds of one forward and backward."""
    query, key = (torch.randn(1, tokens, 16, 128, requires_grad=True) for _ in range(2))
    value = torch.randn(1, tokens, 32, 128, requires_grad=True)
    decay = (-torch.rand(1, tokens, 32)).requires_grad_()
    beta = torch.rand(1, tokens, 32, requires_grad=True)
    begin = time.perf_counter()
    output, _ = peer(query, key, value, g=decay, beta=beta, use_qk_l2norm_in_kernel=True)
    torch.autograd.grad(output, [query, key, value, decay, beta], torch.ones_like(output))
    return time.perf_counter() - begin


def time_lehr(binary, tokens):
    done = subprocess.run(
        [binary, f"--benchmark_filter=gated_delta_rule B1 S{tokens} .*fp32", "--benchmark_format=json"],
        capture_output=True, text=True, check=True)
    return json.loads(done.stdout)["benchmarks"][0]["real_time"] / 1e3


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("binary")
    p.add_argument("--tokens", type=int, nargs="+", default=[1024, 4096])
    p.add_argument("--rounds", type=int, default=5)
    a = p.parse_args()
    print("tokens  lehr  transformers (seconds)  ratio")
    for tokens in a.tokens:
        time_peer(64)
        rounds = [(time_lehr(a.binary, tokens), time_peer(tokens)) for _ in range(a.rounds)]
        own, other = (statistics.median(times) for times in zip(*rounds))
        print(f"{tokens:6}  {own:.3f}  {other:.3f}  {other / own:.1f}", flush=True)


if __name__ == "__main__":
    main()
