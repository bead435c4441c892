"""Times loading a folder of weights, and prints one JSON line.

--what load: transformers' from_pretrained; view: safetensors' safe_open and get_tensor, touching every page.
--cold true drops the files from the page cache first.
"""
import argparse
import json
import os
import time

from safetensors import safe_open
from transformers import AutoModelForCausalLM
import torch


def drop(folder):
    for name in os.listdir(folder):
        descriptor = os.open(os.path.join(folder, name), os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def touch(tensors):
    for tensor in tensors:
        tensor.detach().view(-1)[::1024].sum()


def load(folder):
    touch(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).parameters())  # some are mapped but not read yet


def view(folder):
    with safe_open(os.path.join(folder, "model.safetensors"), "pt") as file:
        touch([file.get_tensor(name) for name in file.keys()])


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", required=True)
    p.add_argument("--what", choices=["load", "view"], default="load")
    p.add_argument("--cold", choices=["true", "false"], default="false")
    a = p.parse_args()
    if a.cold == "true":
        drop(a.model)
    begin = time.perf_counter()
    {"load": load, "view": view}[a.what](a.model)
    print(json.dumps(dict(seconds=time.perf_counter() - begin)))


if __name__ == "__main__":
    main()
