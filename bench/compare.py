"""Runs Lehr and its peers alternately on the same work, and writes bench/results.md section by section.

    make bench                                    builds the benchmarks, then runs this script
    .bench/bin/python bench/compare.py --parts training --presets tiny,small,moe --dtypes fp32,bf16 --rounds 5

training   training steps of every preset: tokens per second and peak memory
attention  the same with latent attention (mla) and with a sliding window (window), and the peers that run these on CPUs
memory     preset small with longer sequences: peak memory, with the peers at --memory-seq, and Lehr alone up to 16384
           tokens
start      wall time of a process that runs one step of preset tiny
loading    2 GB of weights loaded as tensors and into a model, from the disk and from the page cache, with safetensors
           and from_pretrained

All contenders start from the same weights and train on the same tokens. Their losses and gradient norms are compared
(bench/agree.py): the script ends with an error, after all is measured, if they differ. A contender that dies is a row
"did not run"; the report is written after every row. Contenders alternate within a round, so that load on the machine
affects all alike; ratios are computed per round. Each class of CPUs has sections of its own.
"""
import argparse
import os
import statistics
import sys
import tempfile
import time

from agree import compare as same_work
from contenders import (
    ATTENTION_PEERS, ATTENTION_SHAPES, HERE, OTHERS, PEERS, SHAPES, Contenders, run, save_init, some_of, spread, too_large,
    why_not)
from machine import cpu_class
from report import Report, Section

SLOW = 1.25
DEFAULT = ("Where memory suffices, Lehr keeps all matmul outputs for backward (activation_checkpoint.mode = \"auto\", the default), as "
           "the peers do; \"op 2\": it recomputes those of every second layer, \"op\": of every layer.")


def training(section, contenders, a):
    """Returns what is wrong with the work of contenders."""
    return steps_of(section, contenders, a, {preset: SHAPES[preset] for preset in a.presets})


def attention(section, contenders, a):
    section.add("mla: DeepSeek-V3 without experts, queries and keys of rank 512 and 256, heads of 64 + 32. window: "
                "Mistral, sequences of 4,096 tokens and a window of 512.", "")
    return steps_of(section, contenders, a, ATTENTION_SHAPES)


def steps_of(section, contenders, a, shapes):
    section.add(f"{a.rounds} alternating rounds of {a.steps} timed steps after 2 warm-up steps; the median step of a round counts. "
                f"Contenders that are {SLOW} times slower than the fastest peer in the first round run in no other round."
                + "".join(f" Without {name}, which was not installed." for name in contenders.absent)
                + " torchtitan's experts compute in bfloat16 under fp32 too. Share of the peak: FLOPs of the model over those that the "
                "registers execute (docs/figures.md), measured by Lehr in each round. Differences are the largest to Lehr in any step: "
                "of losses in nats, and of gradient norms as a share. " + DEFAULT, "")
    section.table("CPU", "preset", "dtype", "contender", "tokens/s: median (min to max)", "Lehr's ratio to it", "share of the peak",
                  "peak memory MB", "losses, norms differ by")
    wrong = []
    for preset, shape in shapes.items():
        with tempfile.TemporaryDirectory() as folder:
            failed = save_init(preset, folder)
            for dtype in a.dtypes:
                missing = failed or too_large(folder, dtype, shape[0] * shape[1])
                if missing:
                    section.row(cpu_class(), preset, dtype, "all", missing, "", "", "", "")
                else:
                    wrong += training_rows(section, contenders, a, preset, shape, dtype, folder)
    return wrong


def training_rows(section, contenders, a, preset, shape, dtype, folder):
    others = preset in ("small", "qwen3-0.6b", "mla")
    commands = contenders.commands(
        folder, dtype, *shape, a.steps, 2, others=others, peak=True, peers=ATTENTION_PEERS.get(preset, PEERS))
    rounds = [{name: run(command) for name, command in commands.items()}]
    fastest = max([r["tokens_per_s"] for name, r in rounds[0].items() if name in contenders.peers and r], default=0)
    near = [name for name, r in rounds[0].items() if name == "lehr" or r and SLOW * r["tokens_per_s"] > fastest]
    rounds += [{name: run(commands[name]) for name in near} for _ in range(a.rounds - 1)]
    return [complaint for name in commands if (complaint := training_row(section, preset, dtype, name, rounds))]


def training_row(section, preset, dtype, name, rounds):
    """Adds the row of one contender. Returns what is wrong with its work."""
    place = (cpu_class(), preset, dtype, name)
    theirs = [r[name] for r in rounds if r.get(name)]
    if not theirs:
        section.row(*place, why_not([r[name] for r in rounds if name in r]), "", "", "", "")
        return ""
    both = [(r["lehr"], r[name]) for r in rounds if r["lehr"] and r.get(name)]
    ratios = [x["tokens_per_s"] / y["tokens_per_s"] for x, y in both]
    shares = [y["tokens_per_s"] * x["flops_per_token"] / x["peak_flops"] for x, y in both]
    differ, wrong = same_work(*zip(*both), dtype) if both else ("", "")
    section.row(*place, spread([r["tokens_per_s"] for r in theirs], 0), spread(ratios) if both else "",
                f"{100 * statistics.median(shares):.1f} %" if both else "", f"{max(r['peak_rss_mb'] for r in theirs):.0f}", differ)
    if shares and max(shares) > 1:
        wrong = wrong or f"{100 * max(shares):.1f} % of the peak, which is wrong or was measured beside other work"
    return f"{preset} {dtype} {name}: {wrong}" if wrong else ""


def memory(section, contenders, a):
    section.add("Preset small in float32, one sequence, two steps; the process's peak resident memory. " + DEFAULT, "")
    section.table("tokens per sequence", "contender", "peak memory MB", "times its parameters, gradients and moments",
                  "Lehr's ratio to it", "with \"op 2\"", "with \"op\"")

    def row(seq, name, result, *last):
        peak = (f"{result['peak_rss_mb']:.0f}", f"{result['peak_rss_mb'] / state:.2f}") if result else (result, "")
        section.row(seq, name, *peak, *last)

    with tempfile.TemporaryDirectory() as folder:
        if failed := save_init("small", folder):
            section.row("all", "all", failed, "", "", "", "")
            return
        state = 4 * os.path.getsize(os.path.join(folder, "model.safetensors")) / 1e6
        results = {name: run(command)
                   for name, command in contenders.commands(folder, "fp32", a.memory_seq, 1, 1, 1, others=True).items()}
        for name, result in results.items():
            row(a.memory_seq, name, result, *(
                f"{results[ours]['peak_rss_mb'] / result['peak_rss_mb']:.2f}" if results[ours] and result else ""
                for ours in ("lehr", *OTHERS)))
        section.add("", "Lehr alone:", "")
        section.table("tokens per sequence", "contender", "peak memory MB", "times its parameters, gradients and moments",
                      "more KB per token")
        for name in ("lehr", *OTHERS):
            before = None
            for seq in (512, 1024, 2048, 4096, 8192, 16384):
                result = run(contenders.commands(folder, "fp32", seq, 1, 1, 1, others=True)[name])
                each = (result["peak_rss_mb"] - before[1]) / (seq - before[0]) * 1000 if before and result else None
                row(seq, name, result, f"{each:.0f}" if each else "")
                before = (seq, result["peak_rss_mb"]) if result else None


def start(section, contenders, a):
    section.add(f"Preset tiny in float32; {a.rounds} alternating rounds after one that fills the page cache. Contenders that compile run "
                "first without compiled code, and then a second time with the code that the first run cached on the disk.", "")
    section.table("contender", "seconds: median (min to max)", "times Lehr's: median (min to max)")
    seq, batch = SHAPES["tiny"]

    def seconds(command, **environment):
        begin = time.perf_counter()
        result = run(command, **environment)
        return time.perf_counter() - begin if result else result

    def one_round(commands):
        found = {}
        for name, command in commands.items():
            if "compile" not in name and "jit" not in name:
                found[name] = seconds(command)
                continue
            with tempfile.TemporaryDirectory() as compiled:
                for label in (name, name + ", compiled before"):
                    found[label] = seconds(command, TORCHINDUCTOR_CACHE_DIR=compiled, JAX_COMPILATION_CACHE_DIR=compiled)
        return found

    with tempfile.TemporaryDirectory() as folder:
        if failed := save_init("tiny", folder):
            section.row("all", failed, "")
            return
        commands = contenders.commands(folder, "fp32", seq, batch, 1, 0)
        one_round({name: command for name, command in commands.items() if "compile" not in name and "jit" not in name})
        rounds = [one_round(commands) for _ in range(a.rounds)]
        for name in rounds[0]:
            theirs = [r[name] for r in rounds if r[name]]
            ratios = [r[name] / r["lehr"] for r in rounds if r["lehr"] and r[name]]
            section.row(name, spread(theirs) if theirs else why_not([r[name] for r in rounds]), spread(ratios, 1) if ratios else "")


def loading(section, contenders, a):
    section.add(f"30 layers of preset small, 2 GB; {a.rounds} rounds in rotating order, one process per measurement; cached: after an "
                "untimed touch. Seconds, and their ratio to touching every page of the mapped file, median (min to max). Tensors that "
                "view the file are mapped too, and each of their pages is touched. A model's parameters need memory of their own, whose "
                "allocation takes time, so they are compared separately.", "")
    section.table("file is", "operation", "seconds", "times the touch")
    with tempfile.TemporaryDirectory(dir=a.disk) as folder:
        if failed := save_init("loading", folder):
            section.row("all", "all", failed, "")
            return
        os.sync()
        for place in ("cached", "cold"):
            work = [f"--model={folder}", f"--cold={'true' if place == 'cold' else 'false'}"]
            lehr = [os.path.join(contenders.bin, "load_model_bench")] + work + ["--what"]
            peer = [sys.executable, os.path.join(HERE, "peer_loading.py")] + work + ["--what"]
            touch = {"map and touch every page": lehr + ["touch"]}
            views = {"Lehr: all tensors, viewing the file": lehr + ["view"], "safetensors: safe_open, get_tensor": peer + ["view"]}
            copies = {"read into one buffer": lehr + ["read"], "Lehr: a model's parameters": lehr + ["load"],
                      "transformers: from_pretrained": peer + ["load"]}
            for group in (touch | views, touch | copies):
                loading_rows(section, place, group, a.rounds)


def loading_rows(section, place, group, count):
    names = list(group)
    rounds = []
    for first in range(count):
        rounds.append({})
        for name in names[first % len(names):] + names[:first % len(names)]:
            if place == "cached":
                run(group[names[0]])
            rounds[-1][name] = run(group[name])
    for name in names:
        seconds = [r[name]["seconds"] for r in rounds if r[name]]
        shares = [r[name]["seconds"] / r[names[0]]["seconds"] for r in rounds if r[names[0]] and r[name]]
        section.row(place, name, spread(seconds, 3) if seconds else why_not([r[name] for r in rounds]), spread(shares) if shares else "")


PARTS = {"training": ("Training steps", training), "attention": ("Latent attention and windows", attention),
         "memory": ("Memory and sequence length", memory), "start": ("A process of one step", start),
         "loading": ("Loading weights", loading)}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--lehr", default=os.path.join(HERE, "..", "build", "bin", "train_step_bench"))
    p.add_argument("--parts", type=some_of(*PARTS), default=list(PARTS),
                   help="parts to measure, of " + ",".join(PARTS) + "; other sections of the report are kept")
    p.add_argument("--presets", type=some_of(*SHAPES), default=list(SHAPES))
    p.add_argument("--dtypes", type=some_of("fp32", "bf16"), default=["fp32", "bf16"])
    p.add_argument("--peers", type=some_of(*PEERS), default=list(PEERS))
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--steps", type=int, default=3)
    p.add_argument("--memory-seq", type=int, default=2048)
    p.add_argument("--disk", help="folder on the disk to load from; default: the folder for temporary files")
    p.add_argument("--out", default=os.path.join(HERE, "results.md"))
    a = p.parse_args()
    contenders = Contenders(a.lehr, a.peers)
    report = Report(a.out, "Lehr and its peers, side by side", "Written by bench/compare.py, part by part (`make bench`).")
    wrong = []
    for part in a.parts:
        title, measure = PARTS[part]
        wrong += measure(Section(report, title), contenders, a) or []
    if wrong:
        sys.exit("not the same work, or a wrong figure:\n  " + "\n  ".join(wrong))


if __name__ == "__main__":
    main()
