"""Prunes the quickstart models by scores and at random, and reports the losses after pruning and after further training.

    bench/pruning.py --lehr build/lehr --out bench/results_pruning.md     some minutes on two cores

Trains both models first unless their folders exist (outputs/quickstart, outputs/quickstart_moe). Each pruned model is
evaluated on the held-out text, before and after 200 steps on the training text. Random pruning is the mean of two seeds.
The unpruned model is trained by the same 200 steps: it is the control that "recovered" refers to.
"""
import argparse
import os
import statistics
import tempfile

from lehr_program import Lehr, newest_checkpoint
from report import Report, Section

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


def train_further(lehr, recipe, model, run):
    """Returns the loss of `model` after 200 more steps, whose files go to the folder `run`."""
    with open(f"{run}.toml", "w") as f:
        f.write(TRAIN.format(out=run, model=model))
    lehr("train", f"{run}.toml", "--quiet")
    return lehr.loss(recipe, newest_checkpoint(run))


def measure(lehr, recipe, teacher, work, case, scores):
    _, option, size, _ = case

    def child(name, *arguments):
        folder = f"{work}/{name}"
        lehr("prune", "--model", teacher, option, size, "--output", folder, *arguments)
        return lehr.loss(recipe, folder), train_further(lehr, recipe, folder, f"{work}/{name}_run")

    name = f"{option.strip('-')}_{size}"
    by_score = child(f"{name}_score", "--scores", scores)
    at_random = [child(f"{name}_random_{seed}", "--by", "random", "--seed", seed) for seed in range(2)]
    return by_score, at_random


def recovered(pruned, trained, control):
    """Returns the share of what pruning lost that training won back. `control`: the loss of the unpruned model after the
    same training, so that what the training gives any model does not count."""
    return f"{100 * (pruned - trained) / (pruned - control):.0f} %" if pruned > control else "nothing was lost"


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--lehr", default="build/lehr")
    p.add_argument("--threads", type=int, default=os.cpu_count())
    p.add_argument("--models", default=",".join(CASES), help="default: %(default)s")
    p.add_argument("--cases", type=int, help="measure only that many cuts of each model")
    p.add_argument("--out", default="bench/results_pruning.md")
    a = p.parse_args()
    lehr = Lehr(a.lehr, a.threads)
    # Losses hardly depend on the CPU, so one section is enough.
    section = Section(Report(a.out, "Pruning the quickstart models", "Written by bench/pruning.py.", by_class=False), "Losses")
    section.add("Loss on the held-out text, in nats per byte. After pruning by score (`lehr score`, 64 sequences of the training text) "
                "and at random (mean of two seeds, and both); then after 200 more steps. The unpruned model gets the same 200 steps. "
                "Recovered: the share of the loss between pruned by score and the unpruned model, trained too, that training won back.", "")
    section.table("model", "pruning", "unpruned", "unpruned, trained too", "by score", "at random", "by score, trained",
                  "at random, trained", "recovered")
    for model in a.models.split(","):
        recipe = f"recipe/{model}.toml"
        if not os.path.exists(f"outputs/{model}/checkpoints"):
            lehr("train", recipe, "--quiet")
        teacher = newest_checkpoint(f"outputs/{model}")
        before = lehr.loss(recipe, teacher)
        with tempfile.TemporaryDirectory() as work:
            control = train_further(lehr, recipe, teacher, f"{work}/unpruned_run")
            scores = f"{work}/scores"
            lehr("score", recipe, "--model", teacher, "--output", scores, "--max-rows", 64)
            for case in CASES[model][:a.cases]:
                by_score, at_random = measure(lehr, recipe, teacher, work, case, scores)
                mean = [statistics.mean(run[i] for run in at_random) for i in (0, 1)]
                low, high = min(run[0] for run in at_random), max(run[0] for run in at_random)
                section.row(model, case[0], f"{before:.3f}", f"{control:.3f}", f"{by_score[0]:.3f}",
                            f"{mean[0]:.3f} ({low:.3f}, {high:.3f})", f"{by_score[1]:.3f}", f"{mean[1]:.3f}", recovered(*by_score, control))


if __name__ == "__main__":
    main()
