"""One rank of PyTorch's FSDP2 over Gloo, on the work of bench/train_step.cpp; rank 0 prints one JSON line.

    python -m torch.distributed.run --nproc-per-node 2 bench/peer_fsdp2.py --model DIR --batch 2

The model is that of transformers; each layer and the root are sharded, as torchtitan does. --batch is of one rank.
"""
import json
import time

import torch
import torch.distributed as dist
from safetensors import safe_open
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from transformers import Qwen3Config, Qwen3ForCausalLM

from machine import peak_rss_mb
from peer_work import arguments, splitmix_tokens


def sharded_model(folder, dtype):
    """Returns the model with this rank's shards of the weights in `folder`. No rank ever holds whole weights."""
    rank, world = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("fsdp",))
    config = Qwen3Config.from_pretrained(folder, attn_implementation="sdpa")
    with torch.device("meta"):
        model = Qwen3ForCausalLM(config)
    model.to(torch.float32).train()
    policy = MixedPrecisionPolicy()
    if dtype == "amp":
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    model.to_empty(device="cpu")
    model.lm_head.weight = model.model.embed_tokens.weight
    model.model.rotary_emb = type(model.model.rotary_emb)(config)  # its frequencies are not stored
    with safe_open(f"{folder}/model.safetensors", "pt") as file, torch.no_grad():
        for name, parameter in model.named_parameters():
            part = file.get_slice(name)
            rows = part.get_shape()[0]
            size = -(-rows // world)
            local = parameter.to_local()
            local.copy_(part[min(rank * size, rows):min((rank + 1) * size, rows)])
    return model


def peaks_mb():
    """Returns the peak resident memory of every rank."""
    found = [None] * dist.get_world_size()
    dist.all_gather_object(found, peak_rss_mb())
    return found


def main():
    a = arguments(__doc__, ["fp32", "amp"], ["eager"]).parse_args()
    torch.set_num_threads(a.threads)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    model = sharded_model(a.model, a.dtype)
    before = peaks_mb()
    params = list(model.parameters())
    optimizer = torch.optim.AdamW(params, lr=3e-4, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, fused=True)
    rows = a.batch * world
    count = 64 * rows * a.seq + a.seq + 2
    tokens = torch.from_numpy(splitmix_tokens(count, model.config.vocab_size, a.seed))
    span = count - a.seq - 1
    losses, norms, times = [], [], []
    for step in range(a.warmup + a.steps):
        first = [((step * rows + rank * a.batch + row) * a.seq) % span for row in range(a.batch)]
        x = torch.stack([tokens[f:f + a.seq] for f in first])
        y = torch.stack([tokens[f + 1:f + a.seq + 1] for f in first])
        begin = time.perf_counter()
        logits = model(input_ids=x, use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), y.flatten())
        del logits
        loss.backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(params, 1.0, foreach=True).full_tensor()))
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        losses.append(mean.item() / world)
        times.append((time.perf_counter() - begin) * 1000)
    peaks = peaks_mb()
    timed = times[a.warmup:]
    if rank == 0:
        print(json.dumps(dict(
            peer="FSDP2", dtype=a.dtype, seq=a.seq, batch=rows, ranks=world, step_ms=timed,
            tokens_per_s=a.seq * rows / sorted(timed)[len(timed) // 2] * 1000, peak_rss_mb=sum(peaks),
            peak_rss_mb_of_ranks=peaks, rss_mb_before_steps=before, losses=losses, grad_norms=norms)), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
