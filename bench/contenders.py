"""Programs that are measured side by side: how they are started, and what is reported about one that dies."""
import argparse
import importlib.util
import json
import os
import signal
import statistics
import subprocess
import sys

from machine import available_mb

HERE = os.path.dirname(os.path.abspath(__file__))
PEERS = ("transformers eager", "transformers compile", "torchtitan eager", "torchtitan compile", "jax jit")
# Tokens per sequence and sequences of a step.
SHAPES = {"tiny": (512, 4), "small": (1024, 1), "moe": (1024, 2), "qwen3-0.6b": (1024, 1)}
# The same for attention that Qwen3 does not have, and the peers that run it. torchtitan's windows need FlexAttention,
# whose backward does not run on CPUs.
ATTENTION_SHAPES = {"mla": (1024, 1), "window": (4096, 1)}
ATTENTION_PEERS = {"mla": PEERS[:4], "window": PEERS[:2]}
# The n of selective_ac_option = "op n": matmul outputs of every n-th layer are recomputed in backward. 0: none, which
# activation_checkpoint.mode = "auto", the default of a run, chooses where memory suffices.
LEHR = 0
OTHERS = {'lehr, "op 2"': 2, 'lehr, "op"': 1}
HOUR = 3600


class DidNotRun:
    """The result of a program that died or that was not started. It is false."""

    def __init__(self, reason):
        self.reason = reason

    def __bool__(self):
        return False

    def __str__(self):
        return f"did not run: {self.reason}"


def reason_of(returncode, stderr):
    """Returns why a program died, in one short line."""
    if returncode < 0:
        name = signal.Signals(-returncode).name
        return f"killed by {name}" + (", as when memory runs out" if name == "SIGKILL" else "")
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    # A launcher's report of its ranks follows the rank's own message.
    messages = [line for line in lines if "Error" in line and "ChildFailedError" not in line]
    return f"exit code {returncode}: {(messages or lines or ['it printed no result'])[-1]}"[:160]


def run(command, timeout=HOUR, **environment):
    """Runs a program in a process group of its own. Returns what it printed as JSON on its last such line, or a
    DidNotRun. It stays in this session: the kernel shares cores between sessions, not between processes, if it groups them
    (sched_autogroup)."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               env=os.environ | environment, preexec_fn=os.setpgrp)
    try:
        stdout, stderr = process.communicate(timeout=timeout)
    except BaseException as error:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        if not isinstance(error, subprocess.TimeoutExpired):
            raise
        return DidNotRun(f"took more than {timeout} s")
    lines = [line for line in stdout.splitlines() if line.startswith("{")]
    if process.returncode != 0 or not lines:
        print("failed:", " ".join(command), stderr[-2000:], file=sys.stderr)
        return DidNotRun(reason_of(process.returncode, stderr))
    return json.loads(lines[-1])


def why_not(results):
    """Returns the first reason why one of `results` is missing."""
    return next(str(result) for result in results if isinstance(result, DidNotRun))


def spread(values, digits=2):
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def some_of(*allowed):
    """An argparse type: names of `allowed`, separated by commas."""
    def parse(text):
        unknown = [name for name in text.split(",") if name not in allowed]
        if unknown:
            raise argparse.ArgumentTypeError(f"there is no {', '.join(unknown)}; choose from: {', '.join(allowed)}")
        return text.split(",")

    return parse


class Contenders:
    """Lehr and the installed peers, with their commands."""

    def __init__(self, lehr, peers):
        self.lehr = os.path.abspath(lehr)
        self.bin = os.path.dirname(self.lehr)
        self.peers = [name for name in peers if importlib.util.find_spec(name.split()[0])]
        self.absent = sorted({name.split()[0] for name in peers} - {name.split()[0] for name in self.peers})
        for name in self.absent:
            print(f"{name} is not installed and is left out; bench/peer_{name}.py tells how to install it")

    def commands(self, folder, dtype, seq, batch, steps, warmup, others=False, peak=False, threads=None, peers=PEERS):
        work = ["--model", folder, "--dtype", dtype, "--seq", str(seq), "--batch", str(batch),
                "--steps", str(steps), "--warmup", str(warmup), "--threads", str(threads or os.cpu_count())]
        found = {"lehr": [self.lehr] + work + [f"--recompute_matmuls={LEHR}"] + ["--measure_peak"] * peak}
        if others:
            found |= {name: [self.lehr] + work + [f"--recompute_matmuls={n}"] for name, n in OTHERS.items()}
        for name in [name for name in self.peers if name in peers]:
            script, mode = name.split()
            found[name] = [sys.executable, os.path.join(HERE, f"peer_{script}.py")] + work + ["--mode", mode]
        return found


def save_init(preset, folder):
    """Writes the weights that every contender starts from. Returns a DidNotRun if that failed, else None."""
    done = subprocess.run([sys.executable, os.path.join(HERE, "peer_transformers.py"), "--preset", preset, "--save-init", folder],
                          capture_output=True, text=True)
    return DidNotRun("no initial weights, " + reason_of(done.returncode, done.stderr)) if done.returncode else None


def too_large(folder, dtype, tokens):
    """Returns a DidNotRun if peers would not fit the memory that is free: weights, gradients and two moments, and four
    copies of the logits in float32. The kernel would end other programs too."""
    with open(os.path.join(folder, "config.json")) as f:
        vocab_size = json.load(f)["vocab_size"]
    weights = os.path.getsize(os.path.join(folder, "model.safetensors")) / (2 if dtype == "bf16" else 1)
    needed = (4 * weights + 16 * tokens * vocab_size) / 1e6
    if needed > available_mb():
        return DidNotRun(f"needs some {needed:.0f} MB, of which {available_mb():.0f} are free")
    return None
