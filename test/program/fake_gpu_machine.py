#!/usr/bin/env python3
"""Simulates the programs that the check on a GPU starts, with their output on a machine with a GPU: gpu_check.py links it
under their names. This tests the branches of the check that need a GPU on machines without one.

Trains nothing: the log and the files of a run are functions of its config. LEHR_FAKE_BROKEN names a simulated fault.
"""
import json
import os
import re
import sys
import time
from pathlib import Path

PEAK_BYTES, FLOPS_PER_TOKEN = 20e9, 5e9
broken = os.environ.get("LEHR_FAKE_BROKEN", "")


def value(text, key, default=None):
    found = re.findall(rf'^{key} = "?([^"\n#]*)', text, re.MULTILINE)
    return found[-1].strip() if found else default


# Layers, and heads of queries and keys of 128 elements, which attention of whole rows keeps rotated.
HEADS = {"0.6B": (28, 24), "1.7B": (28, 24), "4B": (36, 40), "8B": (36, 40), "30B-A3B": (8, 36)}


def kept_by_attention(text, tokens):
    published = "whole_rows.tokens" in text and "num_attention_heads" not in text
    layers, heads = HEADS[value(text, "flavor")] if published else (0, 0)
    return layers * tokens * heads * 128 * 2


def train(arguments):
    text = Path(arguments[0]).read_text()
    options = dict(a[2:].split("=", 1) for a in arguments[1:] if "=" in a)
    folder = Path(options.get("job.dump_folder", value(text, "dump_folder")))
    folder.mkdir(parents=True, exist_ok=True)
    device = options.get("training.device", value(text, "device", "auto"))
    steps, rows, length = (int(value(text, key)) for key in ("steps", "local_batch_size", "seq_len"))
    saves = options.get("checkpoint.enable", "") != "false" and re.search(r"\[checkpoint\]\nenable = true", text)
    interval = int(value(text, "interval", 1))
    if device == "cuda":
        print("info  device     NVIDIA H200, 140 GiB\ninfo  kernels    Lehr's (liblehr_cuda.so)\ninfo  attention  flash attention")
    log = folder / "metrics.jsonl"
    done = max([int(p.name[5:]) for p in (folder / "checkpoints").glob("step-*")], default=0) if saves else 0
    kept = log.read_text().splitlines(keepends=True)[:done] if done else []
    log.write_text("".join(kept))
    float8 = "[float8]" in text
    for step in range(done + 1, steps + 1):
        share = 0.9 if float8 and broken != "float8" else 0.6  # an MFU of 60 %
        seconds = rows * length * FLOPS_PER_TOKEN / (989e12 * share)
        seconds += 6 if step == 1 and broken == "slow_start" else 0
        loss = 5 - 0.1 * step + (1e-4 if device == "cuda" else 0)
        line = {"step": step, "loss": loss, "grad_norm": 1.0, "lr": 1e-3, "num_tokens": step * rows * length,
                "step_seconds": seconds}
        # The means of the last steps, of which a slow one doubled the time. Packed documents have fewer FLOPs.
        line["tokens_per_second"] = rows * length / seconds / 2
        if value(text, "measure_peak", "true") == "true":
            line["mfu"] = share / 2 * (5 / 6 if "packed.tokens" in text else 1)
        if device == "cuda":
            line["device_peak_bytes"] = PEAK_BYTES * (1.1 if broken == "memory" else 1.01) + rows * length * 1e4
            line["device_peak_bytes"] += kept_by_attention(text, rows * length)
        with log.open("a") as file:
            file.write(json.dumps(line) + "\n")
        if saves and step % interval == 0:
            time.sleep(0.05)  # leaves time to be killed
            target = folder / f"checkpoints/step-{step}"
            target.mkdir(parents=True)
            for part in ("model.safetensors", "optimizer.safetensors", "trainer.json"):
                (target / part).write_text(f"{step} {done}" if broken == "resume" else f"{step}")
    (folder / "config.toml").write_text(text)
    if "classification" in text:
        log.open("a").write(json.dumps({"step": steps, "validation_loss": 0.1, "validation_accuracy": 0.95}) + "\n")
    if "operator_table = true" in text:
        profile = folder / "profile" / "iteration_6"
        profile.mkdir(parents=True, exist_ok=True)
        (profile / "rank0_trace.json").write_text("{}")
        (folder / "profile/operators.txt").write_text("kind\n")
        (folder / "profile/operators.json").write_text(json.dumps({
            "kinds": [{"kind": "matmul", "seconds": 0.1, "share_of_limit": 0.8},
                      {"kind": "loss", "seconds": 0.004, "share_of_limit": 0.9}],
            "products": [{"m": 4096, "k": 1024, "n": 151936, "seconds": 0.05}]}))


def plan(arguments):
    folder = Path(arguments[arguments.index("--output") + 1])
    folder.mkdir(parents=True)
    rows, length = (int(value(Path(arguments[0]).read_text(), key)) for key in ("local_batch_size", "seq_len"))
    (folder / "plan.json").write_text(json.dumps({
        "peak_bytes": PEAK_BYTES + rows * length * 1e4, "causal_flops_per_token": FLOPS_PER_TOKEN}))


def test_program(arguments):
    for argument in arguments:
        if argument.startswith("--gtest_output=xml:"):
            inside = {"skips": '<skipped message="x.cpp&#10;LibTorch finds no GPU"/>', "fails": '<failure message="wrong"/>'}
            Path(argument.split(":", 1)[1]).write_text(
                f'<testsuites><testsuite><testcase classname="Suite" name="OnTheGpu">{inside.get(broken, "")}</testcase>'
                "</testsuite></testsuites>")
    print("[  PASSED  ] 1 test.")
    return 1 if broken == "fails" else 0


def main():
    name, arguments = Path(sys.argv[0]).name, sys.argv[1:]
    if name == "nvidia-smi":
        print("NVIDIA H200, 143771, 580.159.03, 9.0")
    elif name == "compute-sanitizer":
        print("========= ERROR SUMMARY: 0 errors")
    elif name.endswith("_test"):
        return test_program(arguments)
    elif arguments[0] == "train":
        train(arguments[1:])
    elif arguments[0] == "plan":
        plan(arguments[1:])
    elif arguments[0] == "verify":
        print("12 tensors compared, 0 over their tolerance")
    elif arguments[0] == "generate":
        print("[1, 2, 3]")
    elif arguments[0] == "eval":
        print(json.dumps({"loss": 1.5}))
    return 0


sys.exit(main())
