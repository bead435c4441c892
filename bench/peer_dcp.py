"""One rank of torch.distributed.checkpoint on the state of bench/checkpoint_ranks.cpp; rank 0 prints one JSON line.

    python -m torch.distributed.run --nproc-per-node 2 bench/peer_dcp.py --model DIR --folder CHECKPOINTS
"""
import argparse
import json
import os
import shutil
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from peer_fsdp2 import peaks_mb, sharded_model


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", required=True, help="folder to start from, as peer_transformers.py --save-init makes it")
    p.add_argument("--folder", required=True, help="folder to write checkpoints to")
    p.add_argument("--runs", type=int, default=3)
    a = p.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = sharded_model(a.model, "fp32")
    params = list(model.parameters())
    optimizer = torch.optim.AdamW(params, lr=3e-4, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, fused=True)

    def states():
        weights, moments = get_state_dict(model, optimizer)
        return {"model": weights, "optimizer": moments}

    def seconds_of(work):
        dist.barrier()
        begin = time.perf_counter()
        work()
        dist.barrier()
        return time.perf_counter() - begin

    get_state_dict(model, optimizer)  # allocates AdamW's moments
    saves, loads, cold_loads, size = [], [], [], 0
    for i in range(a.runs):
        folder = os.path.join(a.folder, f"step-{i}")

        def load():
            state = states()
            dcp.load(state, checkpoint_id=folder)
            set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])

        def forget():  # drops the files from the page cache, after they were written to the disk
            if rank == 0:
                os.sync()
                for name in os.listdir(folder):
                    with open(os.path.join(folder, name), "rb") as file:
                        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                try:  # fadvise may leave some pages; this leaves none, but needs root
                    with open("/proc/sys/vm/drop_caches", "w") as switch:
                        switch.write("1")
                except OSError:
                    pass

        saves.append(seconds_of(lambda: dcp.save(states(), checkpoint_id=folder)))
        expected = params[0].to_local().sum().item()
        with torch.no_grad():
            params[0].to_local().zero_()
        loads.append(seconds_of(load))
        forget()
        cold_loads.append(seconds_of(load))
        assert params[0].to_local().sum().item() == expected, "the load did not bring the weights back"
        size = sum(os.path.getsize(os.path.join(folder, name)) for name in os.listdir(folder))
        dist.barrier()
        if rank == 0:
            shutil.rmtree(folder)
    peaks = peaks_mb()
    if rank == 0:
        print(json.dumps(dict(
            peer="DCP", ranks=dist.get_world_size(), mb=size / 1e6, save_s=saves, load_s=loads, cold_load_s=cold_loads,
            peak_rss_mb_of_ranks=peaks)), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
