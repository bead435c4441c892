"""Prunes the quickstart models by scores and at random, and reports the losses after pruning and after further training.

    bench/pruning.py --lehr build/lehr --out bench/results_pruning.md     some minutes on two cores

Trains both models first unless their folders exist (outputs/quickstart, outputs/quickstart_moe). Each pruned model is
evaluated on the held-out text, before and after 200 steps on the training text. Random pruning is the mean of two seeds.
"""
import argparse
import json
import os
import statistics
import subprocess
import tempfile

TRAIN = """
[job]
dump_folder = "{out}"
[model]
hf_assets_path = "{model}"
[tokenizer]
path = "byte"
[data]
validation_fraction = 0.1
[[data.datasets]]
path = "recipe/data/tinyshakespeare.txt"
[training]
seq_len = 256
local_batch_size = 8
steps = 200
[optimizer]
lr = 1e-3
beta2 = 0.98
weight_decay = 0.1
[lr_scheduler]
warmup_steps = 20
decay_type = "cosine"
min_lr_factor = 0.05
[checkpoint]
initial_load_path = "{model}"
interval = 200
[validation]
enable = false
[metrics]
enable_tensorboard = false
"""
CASES = {
    "quickstart": [
        ("FFN channels 384 to 96", "--ffn-width", 96, "ffn_channels"),
        ("KV heads 2 to 1", "--kv-heads", 1, "kv_heads"),
        ("attention blocks 4 to 3", "--drop-attention", 1, "attention"),
        ("feed-forward blocks 4 to 3", "--drop-ffn", 1, "ffn"),
    ],
    "quickstart_moe": [
        ("experts 8 to 6", "--experts", 6, "experts"),
        ("experts 8 to 4", "--experts", 4, "experts"),
        ("channels of experts 192 to 96", "--expert-width", 96, "expert_channels"),
    ],
}


class Lehr:
    def __init__(self, path, threads):
        self.path = path
        self.threads = threads

    def __call__(self, *arguments):
        done = subprocess.run([self.path, *map(str, arguments)], capture_output=True, text=True,
                              env={**os.environ, "OMP_NUM_THREADS": str(self.threads)})
        if done.returncode != 0:
            raise SystemExit(f"lehr {' '.join(map(str, arguments))}\n{done.stderr[-2000:]}")
        return done.stdout

    def loss(self, recipe, model):
        return json.loads(self("eval", recipe, "--model", model))["loss"]


def newest_checkpoint(folder):
    steps = [int(name.split("-")[1]) for name in os.listdir(f"{folder}/checkpoints") if name.startswith("step-")]
    return f"{folder}/checkpoints/step-{max(steps)}"


def measure(lehr, recipe, teacher, work, case, scores):
    _, option, size, _ = case

    def child(name, *arguments):
        folder = f"{work}/{name}"
        lehr("prune", "--model", teacher, option, size, "--output", folder, *arguments)
        before = lehr.loss(recipe, folder)
        config = f"{work}/{name}.toml"
        with open(config, "w") as f:
            f.write(TRAIN.format(out=f"{work}/{name}_run", model=folder))
        lehr("train", config, "--quiet")
        return before, lehr.loss(recipe, newest_checkpoint(f"{work}/{name}_run"))

    name = f"{option.strip('-')}_{size}"
    by_score = child(f"{name}_score", "--scores", scores)
    at_random = [child(f"{name}_random_{seed}", "--by", "random", "--seed", seed) for seed in range(2)]
    return by_score, at_random


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--lehr", default="build/lehr")
    p.add_argument("--threads", type=int, default=os.cpu_count())
    p.add_argument("--out", default="bench/results_pruning.md")
    a = p.parse_args()
    lehr = Lehr(a.lehr, a.threads)
    report = ["# Pruning the quickstart models", "",
              "Loss on the held-out text, in nats per byte. After pruning by score (`lehr score`, 64 sequences of the training text) "
              "and at random (mean of two seeds, and both); then after 200 more steps. Written by bench/pruning.py.", "",
              "| model | pruning | loss before | by score | at random | by score, trained | at random, trained | recovered |",
              "| --- | --- | --- | --- | --- | --- | --- | --- |"]
    for model, cases in CASES.items():
        recipe = f"recipe/{model}.toml"
        if not os.path.exists(f"outputs/{model}/checkpoints"):
            lehr("train", recipe, "--quiet")
        teacher = newest_checkpoint(f"outputs/{model}")
        before = lehr.loss(recipe, teacher)
        with tempfile.TemporaryDirectory() as work:
            scores = f"{work}/scores"
            lehr("score", recipe, "--model", teacher, "--output", scores, "--max-rows", 64)
            for case in cases:
                by_score, at_random = measure(lehr, recipe, teacher, work, case, scores)
                mean = [statistics.mean(run[i] for run in at_random) for i in (0, 1)]
                low, high = min(run[0] for run in at_random), max(run[0] for run in at_random)
                won = (by_score[0] - by_score[1]) / (by_score[0] - before) if by_score[0] > before else 1
                report.append(f"| {model} | {case[0]} | {before:.3f} | {by_score[0]:.3f} | {mean[0]:.3f} ({low:.3f}, "
                              f"{high:.3f}) | {by_score[1]:.3f} | {mean[1]:.3f} | {100 * won:.0f} % |")
                print(report[-1], flush=True)
    with open(a.out, "w") as f:
        f.write("\n".join(report) + "\n")


if __name__ == "__main__":
    main()
