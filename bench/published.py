#!/usr/bin/env python3
"""Plans published training runs, and compares the plans with what was published, into bench/results_published.md.

    bench/published.py --lehr build/lehr              all runs of bench/published/runs.toml
    bench/published.py --lehr build/lehr --only 37,51 some of them, on the screen only
    bench/published.py --lehr build/lehr --check      the few runs of bench/published/bounds.toml (the test `published`)

Each run is planned twice: with the peer's design (bench/published/peers, which Lehr does not run), and with Lehr's own. So
the distance of a published figure from Lehr's plan has two parts: the other design, and the error of the plan. Machines are
calibrated by figures of single kernels and GPUs (bench/published/machines), never by the run. Standard library only.
"""
import argparse
import re
import statistics
import subprocess
import sys
import tempfile
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "bench/published"
AXES = {"dp": "data_parallel_shard_degree", "rep": "data_parallel_replicate_degree", "tp": "tensor_parallel_degree",
        "cp": "context_parallel_degree", "pp": "pipeline_parallel_degree", "ep": "expert_parallel_degree"}
RECOMPUTE = {"none": ("none", "op 2"), "op2": ("selective", "op 2"), "op": ("selective", "op"), "layer2": ("selective", "2"), "full": ("full", "op 2")}
SECONDS = {"ms": 1e-3, "s": 1}
# Mechanisms of a plan that the report takes away one by one: keys of peers/*.toml that are left out, and figures of a machine.
MECHANISMS = {
    "recomputation that stops at the last saved activation": (["stops_recompute"], []),
    "direct links between the devices of a node": ([], ["node_direct_links=false"]),
    "logits that are gathered, with the embedding whole": (["gathered_logits", "whole_embedding"], []),
    "overhead of MoE layers": ([], ["expert_layer_overhead_us=0"]),
    "float8 all-gathers of tensor parallelism": (["tensor_parallel_gather_bytes"], []),
    "merging of a context-parallel rank's pieces, and keys repeated for all heads": (["context_merge_bytes", "context_parallel_bytes"], []),
    "replicas that reduce in bfloat16": (["replicate_bytes"], []),
    "no overlap of parameters and gradients (Megatron of 2022)": (["sharding_overlap"], []),
}


def load(name):
    with open(DATA / name, "rb") as f:
        return tomllib.load(f)


def model_of(entry):
    """Returns family, flavor and arguments of a model. A GPT's layers without a gate become gated ones of as many weights."""
    if "gpt" not in entry:
        return entry["family"], entry["flavor"], entry.get("args", {})
    layers, width, heads, vocabulary = entry["gpt"]
    return "llama3", "8B", {"num_hidden_layers": layers, "hidden_size": width, "num_attention_heads": heads,
                            "num_key_value_heads": heads, "head_dim": width // heads, "vocab_size": vocabulary,
                            "intermediate_size": round(8 * width / 3 / 64) * 64}


def degrees(mesh):
    """Returns "dp8 pp4 v2" as {"dp": 8, "pp": 4, "v": 2}."""
    return {name: int(number) for name, number in re.findall(r"([a-z]+)(\d+)", mesh)}


def layers_of(entry):
    known = {"8B": 32, "70B": 80, "405B": 126, "235B-A22B": 94, "30B-A3B": 48, "671B": 61, "32B": 64}
    args = model_of(entry)[2]
    return args.get("num_hidden_layers", known.get(entry.get("flavor"), 0))


def config_of(run, data):
    """Returns a run's config, section -> key -> value."""
    source = data["sources"][run["source"]]
    family, flavor, args = model_of(data["models"][run["model"]])
    mesh = degrees(run["mesh"])
    states = run.get("states", source["states"])
    training = {"seq_len": run["seq"], "local_batch_size": run["mbs"], "global_batch_size": run["gbs"] // run.get("once", 1),
                "dtype": "bfloat16" if states == "bfloat16" else "float32", "mixed_precision_param": "bfloat16",
                "mixed_precision_reduce": source.get("reduce_dtype", "float32")}
    once = run.get("reduce", source["reduce"]) == "once"
    gather = run.get("gather", "never" if states == "zero1" else "default")
    parallelism = {key: mesh.get(axis, 1) for axis, key in AXES.items()}
    parallelism |= {"fsdp_reduce_each_microbatch": not once, "fsdp_reshard_after_forward": gather}
    if mesh.get("pp", 1) > 1:
        stages, layers = mesh["pp"] * mesh.get("v", 1), layers_of(data["models"][run["model"]])
        less = 1 if layers % stages and (layers + 2) % stages == 0 else 0
        parallelism |= {"pipeline_parallel_microbatch_size": run["mbs"],
                        "pipeline_parallel_schedule": run.get("schedule", "Interleaved1F1B" if "v" in mesh else "1F1B"),
                        "pipeline_parallel_stages_per_rank": mesh.get("v", 1),
                        "pipeline_parallel_first_stage_less_layers": less,
                        "pipeline_parallel_last_stage_less_layers": less}
    if run["seq"] > 40960:
        args = args | {"max_position_embeddings": run["seq"]}
    mode, option = RECOMPUTE[run["ac"]]
    return {"job": {"description": f"{run['source']} {run['id']}"}, "model": {"name": family, "flavor": flavor},
            "model.args": args, "tokenizer": {"path": "byte"}, "training": training, "parallelism": parallelism,
            "activation_checkpoint": {"mode": mode, "selective_ac_option": option}, "optimizer": {"name": "adamw"}}


def toml_of(config):
    def value(v):
        return str(v).lower() if isinstance(v, bool) else f'"{v}"' if isinstance(v, str) else str(v)
    text = "[[data.datasets]]\npath = \"none\"\n"
    return "".join(f"[{section}]\n" + "".join(f"{k} = {value(v)}\n" for k, v in keys.items())
                   for section, keys in config.items() if keys) + text


def device_of(machine):
    """The device of a machine's kernels: the first word of its file's name; an H800 has those of an H100."""
    name = machine.split("_")[0]
    return {"h800": "h100", "a800": "a100", "gb200": "b200"}.get(name, name)


def parsed(text):
    """Returns the figures of a plan's report."""
    number, unit = re.search(r"^step +([\d.]+) (m?s),", text, re.MULTILINE).groups()
    table = text.partition("Breakdown of the step time")[2].partition("\n\n")[0]
    shares = {name.strip(): float(share) for name, share in re.findall(r"^  (\S.*?)  +[\d.]+ m?s +([\d.]+) %$", table, re.MULTILINE)}
    return {"step": float(number) * SECONDS[unit], "memory": float(re.search(r"^memory .*?: ([\d.]+) of", text, re.MULTILINE)[1]),
            "shares": shares, "flops": figure(re.search(r"([\d.]+ [KMGTP]?)FLOPs per token \(([\d.]+ ?[KMGTP]?) with", text).groups())}


def figure(texts):
    """Returns FLOPs per token with causal and with full attention."""
    units = {"": 1, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
    return [float(t.split()[0]) * units[t.split()[1] if len(t.split()) > 1 else ""] for t in texts]


def plan(lehr, run, data, work, own=False, without=((), ())):
    """Returns a plan's figures, or {"refused": message}. `without`: an entry of MECHANISMS."""
    dropped, figures = without
    file = Path(work) / f"{run['id']}{own}{abs(hash(str(without)))}.toml"
    file.write_text(toml_of(config_of(run, data)))
    machine = run["machine"]
    command = [lehr, "plan", file, "--no-schedules", "--machine", DATA / f"machines/{machine}.toml"]
    kernel = data["kernels"][data["sources"][run["source"]]["attention"]][device_of(machine)]
    command.append(f"--machine.achieved_attention_fraction={kernel}")
    command += [f"--machine.{figure}" for figure in figures]
    if not own:
        for name in run.get("peer", []):
            command += [f"--peer.{key}={str(value).lower()}" for key, value in load(f"peers/{name}.toml").items()
                        if key not in dropped]
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, cwd=ROOT)
    if done.returncode not in (0, 3):
        return {"refused": done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "no message"}
    found = parsed(done.stdout)
    found["tok"] = run["gbs"] // run.get("once", 1) * run["seq"] / found["step"] / run["gpus"]
    return found


def published_tokens(run, found, data):
    """Returns published tokens per second and GPU; of TFLOP/s by the FLOPs per token of the way that the source counts."""
    if "tok" in run:
        return run["tok"]
    causal, full = found["flops"]
    if run["counts"] == "as run 97":  # 276 TFLOP/s are 1,862 tokens/s at 4,096 tokens; half the pairs of a longer sequence
        per_token = 276e12 / 1862 + 6 * 94 * 64 * 128 * (run["seq"] - 4096)
    elif run["counts"] == "gpt, full attention":
        layers, width, _, vocabulary = data["models"][run["model"]]["gpt"]
        per_token = 72 * layers * width**2 * (1 + run["seq"] / (6 * width) + vocabulary / (12 * width * layers))
    else:
        per_token = causal if run["counts"] == "causal attention" else full
    return run["tflops"] * 1e12 / per_token


def compare(lehr, only=None, both=True):
    """Plans all runs that can be expressed, two at a time. `both`: as Lehr runs them, too."""
    data = load("runs.toml") | {"kernels": load("kernels.toml")}
    runs = [{"id": int(key)} | run for key, run in data["runs"].items() if not only or int(key) in only]
    wanted = [run for run in runs if "left_out" not in run]
    with tempfile.TemporaryDirectory() as work, ThreadPoolExecutor(2) as pool:
        peers = pool.map(lambda run: plan(lehr, run, data, work), wanted)
        owns = pool.map(lambda run: plan(lehr, run, data, work, own=True) if both and run.get("peer") else None, wanted)
        for run, run["peers"], run["own"] in zip(wanted, peers, owns):
            run["own"] = run["own"] or run["peers"]
            if "refused" not in run["peers"]:
                run["published"] = published_tokens(run, run["peers"], data)
                run["error"] = run["peers"]["tok"] / run["published"] - 1
                if "gib" in run:
                    run["memory_error"] = run["peers"]["memory"] * 1e9 / 2**30 / run["gib"] - 1
    return data, runs


def percent(x):
    return f"{100 * x:+.0f} %"


def summary(errors):
    sizes = sorted(abs(e) for e in errors)
    if not sizes:
        return "none"
    within = sum(e <= 0.2 for e in sizes)
    return f"{len(sizes)} runs: median error {100 * statistics.median(sizes):.1f} %, {within} of {len(sizes)} " \
           f"({100 * within / len(sizes):.0f} %) within 20 %"


def hold_out(judged):
    """Calibrates one factor for each machine on half of the runs, and returns the errors of the other half; and vice versa."""
    halves = judged[::2], judged[1::2]
    errors = []
    for fitted, tested in (halves, halves[::-1]):
        ratios = {}
        for run in fitted:
            ratios.setdefault(run["machine"], []).append(1 + run["error"])
        factor = {machine: statistics.median(found) for machine, found in ratios.items()}
        errors.append([(1 + run["error"]) / factor.get(run["machine"], 1) - 1 for run in tested])
    return errors


def has_experts(run, data):
    return model_of(data["models"][run["model"]])[0] in ("qwen3_moe", "deepseek_v3", "mixtral")


def uses(run, mechanism, data):
    """Returns whether a run's plan may depend on a mechanism."""
    dropped, figures = mechanism
    if any("expert" in figure for figure in figures) and not has_experts(run, data):
        return False
    keys = {key for name in run.get("peer", []) for key in load(f"peers/{name}.toml")}
    machine = load(f"machines/{run['machine']}.toml")
    return bool(keys & set(dropped)) or any(figure.partition("=")[0] in machine for figure in figures)


def ablations(lehr, data, judged):
    """Returns a table of the errors of the runs that each mechanism concerns, with and without it, by half of the list."""
    lines = ["", "Each mechanism taken away alone: the median size of the error of the runs that it concerns, with it and without, "
             "for either half of the list. A mechanism that only fitted noise would help one half and not the other.", "",
             "| mechanism | runs | first half, with | without | second half, with | without |", "| --- | --- | --- | --- | --- | --- |"]

    def median(errors):
        return f"{100 * statistics.median(abs(e) for e in errors):.1f} %" if errors else "-"

    with tempfile.TemporaryDirectory() as work, ThreadPoolExecutor(2) as pool:
        for title, mechanism in MECHANISMS.items():
            halves = [[run for run in half if uses(run, mechanism, data)] for half in (judged[::2], judged[1::2])]
            cells, changed = [], 0
            for half in halves:
                found = list(pool.map(lambda run: plan(lehr, run, data, work, without=mechanism), half))
                both = [(run["error"], one["tok"] / run["published"] - 1) for run, one in zip(half, found)
                        if "tok" in one and abs(one["tok"] / run["peers"]["tok"] - 1) > 1e-3]
                changed += len(both)
                cells += [median([error for error, _ in both]), median([error for _, error in both])]
            lines.append(f"| {title} | {changed} | " + " | ".join(cells) + " |")
    return lines


def memory_summaries(planned, sources):
    """Returns the errors of memory by what the source's figure counts; a plan counts tensors, as "allocated" does."""
    titles = {"allocated": "Memory, figures of allocated tensors, which a plan counts",
              "reserved": "Memory, figures of what the allocator has reserved, with its fragmentation",
              "GB, rest and peak": "Memory, figures of which the source does not say what they count"}
    for kind, title in titles.items():
        found = [r["memory_error"] for r in planned if "memory_error" in r and sources[r["source"]].get("memory") == kind]
        close = sum(abs(error) <= 0.1 for error in found)
        yield f"- {title}: {summary(found)}, {close} within 10 %."


def row_of(run, sources):
    found = run["peers"]
    shares = ", ".join(f"{name} {share:.0f}" for name, share in list(found["shares"].items())[:3])
    memory = f"{run['gib']} | {found['memory'] * 1e9 / 2**30:.1f} | {percent(run['memory_error'])}" if "gib" in run else " | | "
    own = f"{run['own']['tok']:,.0f}" if "tok" in run["own"] else "-"
    return (f"| {run['id']} | {run['source']} | {run['model']}, {run['gpus']} x {run['machine']}, {run['mesh']} | "
            f"{run['published']:,.0f} | {found['tok']:,.0f} | {percent(run['error'])} | {own} | {memory} | {shares} |")


def designs(planned, sources):
    """Returns a table of how much of the distance to published figures is the peer's design, by source."""
    lines = ["", "Of the distance between a published figure and Lehr's plan for the same mesh, the peer's design is one part, and the "
             "plan's error the other (medians):", "", "| source | runs | Lehr's design against the peer's | planned against published |",
             "| --- | --- | --- | --- |"]
    for source in sources:
        found = [run for run in planned if run["source"] == source and "tok" in run["own"]]
        if found:
            design = statistics.median(run["own"]["tok"] / run["peers"]["tok"] - 1 for run in found)
            lines.append(f"| {source} | {len(found)} | {percent(design)} | {percent(statistics.median(r['error'] for r in found))} |")
    return lines


def report(data, runs, taken_away=()):
    """Returns the lines of the report. `taken_away`: a table of ablations()."""
    planned = [r for r in runs if "error" in r]
    judged = [r for r in planned if not r.get("calibrates")]
    told = [r for r in judged if "assumed" not in r]
    lines = [f"- Without the runs that calibrate: {summary([r['error'] for r in judged])}.",
             f"- Of these, runs whose source states all that a plan needs: {summary([r['error'] for r in told])}."]
    for name, errors in zip(("second", "first"), hold_out(judged)):
        lines.append(f"- One factor for each machine, fitted to the other half, on the {name} half: {summary(errors)}.")
    lines.append(f"- Memory: {summary([r['memory_error'] for r in planned if 'memory_error' in r])}.")
    lines += memory_summaries(planned, data["sources"])
    lines += designs(planned, data["sources"])
    lines += taken_away
    lines += ["", "| run | source | what | published tok/s/GPU | planned | error | planned as Lehr runs it | published GiB | planned | error "
              "| largest parts, % |", "| " + " | ".join(["---"] * 11) + " |"]
    lines += [row_of(run, data["sources"]) for run in planned]
    reasons = data.get("reasons", {})
    lines += ["", "Runs that are off by more than 20 %, by the class of the reason:", "", "| run | error | reason |", "| --- | --- | --- |"]
    for run in judged:
        if abs(run["error"]) > 0.2:
            why = reasons.get(str(run["id"]), "not explained")
            assumed = f" (the source does not tell: {run['assumed']})" if "assumed" in run else ""
            lines.append(f"| {run['id']} | {percent(run['error'])} | {why}{assumed} |")
    lines += ["", "Left out:", ""]
    lines += [f"- {run['id']}: {run['left_out']}" for run in runs if "left_out" in run]
    lines += [f"- {run['id']}: refused: {run['peers']['refused']}" for run in runs if "refused" in run.get("peers", {})]
    lines += ["", "Sources: " + "; ".join(f"{key}: {one['title']}" for key, one in data["sources"].items()) + "."]
    return lines


def check(lehr):
    """Returns which runs of bounds.toml are out of their bounds, and which meshes have a wrong number of ranks."""
    bounds = load("bounds.toml")["error"]
    data, runs = compare(lehr, {int(key) for key in bounds}, both=False)
    everything = [{"id": int(key)} | run for key, run in data["runs"].items() if "left_out" not in run]
    for run in everything:
        tomllib.loads(toml_of(config_of(run, data)))
        world = 1
        for axis, degree in degrees(run["mesh"]).items():
            world *= degree if axis not in ("v", "ep") else 1
        if world != run["gpus"]:
            yield f"run {run['id']}: mesh {run['mesh']} has {world} ranks, not {run['gpus']}"
    for run in runs:
        low, high = bounds[str(run["id"])]
        error = run.get("error")
        if error is None or not low <= error <= high:
            yield f"run {run['id']}: error {error}, not from {low} to {high}: {run['peers'].get('refused', '')}"


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--lehr", default=ROOT / "build/lehr", type=Path)
    p.add_argument("--only", default="", help="ids, separated by commas")
    p.add_argument("--check", action="store_true")
    a = p.parse_args()
    lehr = a.lehr.resolve()
    if a.check:
        wrong = list(check(lehr))
        print("\n".join(wrong) or "published runs are within their bounds")
        sys.exit(1 if wrong else 0)
    data, runs = compare(lehr, {int(x) for x in a.only.split(",") if x})
    judged = [run for run in runs if "error" in run and not run.get("calibrates")]
    lines = report(data, runs, [] if a.only else ablations(lehr, data, judged))
    print("\n".join(lines))
    if not a.only:
        from report import Report
        note = "Written by bench/published.py. docs/plan.md says how to read it."
        Report(str(ROOT / "bench/results_published.md"), "Plans of published runs", note, by_class=False).put("Plans and runs", lines)


if __name__ == "__main__":
    main()
