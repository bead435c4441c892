"""Seconds that transformers' from_pretrained takes for a folder of weights; prints one JSON line.

--cold true drops the files from the system's memory first.
"""
import argparse
import json
import os
import time

from transformers import AutoModelForCausalLM
import torch


def drop(folder):
    for name in os.listdir(folder):
        descriptor = os.open(os.path.join(folder, name), os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", required=True)
    p.add_argument("--cold", choices=["true", "false"], default="false")
    a = p.parse_args()
    if a.cold == "true":
        drop(a.model)
    begin = time.perf_counter()
    model = AutoModelForCausalLM.from_pretrained(a.model, dtype=torch.float32)
    for value in model.parameters():  # some are only mapped so far
        value.data.view(-1)[::1024].sum()
    print(json.dumps(dict(seconds=time.perf_counter() - begin)))


if __name__ == "__main__":
    main()
