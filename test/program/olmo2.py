#!/usr/bin/env python3
"""Every command of a program with a family of its own, which example/olmo2 builds against an installed Lehr.

Usage: olmo2.py PROGRAM      (standard library only; in the root of the repository)
"""
import json, os, shutil, subprocess, sys, tempfile
from pathlib import Path

program = os.path.abspath(sys.argv[1])
work = Path(tempfile.mkdtemp(prefix="lehr-olmo2-"))
example = Path("example/olmo2").resolve()
reference = Path("test/data/reference/olmo2").resolve()


def run(*arguments, code=0, **options):
    done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, timeout=240, cwd=example,
                          **options)
    assert done.returncode == code, f"{arguments}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


def holds(what, condition):
    assert condition, what
    print(f"holds: {what}", flush=True)


def losses(folder):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if "loss" in line]


def same(one, other):
    return len(one) == len(other) > 0 and all(abs(a - b) <= 1e-10 * abs(b) for a, b in zip(one, other))


# --- transformers ----------------------------------------------------------------------------------------------------
rows = [line.split() for line in run("verify", "--model", reference).splitlines()]
error = {row[0]: float(row[1]) for row in rows if len(row) == 5 and row[0] != "tensor"}
holds(f"logits are transformers' to 1e-5 in float32 ({error['logits']})", error["logits"] <= 1e-5)
holds("and so is every gradient", len(error) > 40 and max(v for k, v in error.items() if k.startswith("grad:")) < 6e-6)

# --- train, on one device and on meshes ------------------------------------------------------------------------------
out = work / "run"
run("train", "recipe.toml", f"--job.dump_folder={out}", "--quiet")
holds("the loss falls", losses(out)[-1] < losses(out)[0] - 1)
exact = ["recipe.toml", "--quiet", "--training.dtype=float64", "--training.global_batch_size=4",
         "--training.local_batch_size=1", "--training.steps=6", "--validation.enable=false"]
run("train", *exact, f"--job.dump_folder={work / 'one'}")
for name, ranks, degrees in [("fsdp 2 x tp 2", 4, ["data_parallel_shard_degree=2", "tensor_parallel_degree=2"]),
                             ("pp 2", 2, ["pipeline_parallel_degree=2"])]:
    folder = work / name.replace(" ", "_")
    run("launch", "-n", ranks, "--", "train", *exact, f"--job.dump_folder={folder}",
        *[f"--parallelism.{degree}" for degree in degrees])
    holds(f"{name} trains to the losses of one device in float64", same(losses(folder), losses(work / "one")))

# --- the others ------------------------------------------------------------------------------------------------------
model = out / "checkpoints/step-30"
holds("config.json is Hugging Face's", json.loads((model / "config.json").read_text())["model_type"] == "olmo2")
holds("plan fits", "fits:" in run("plan", "recipe.toml", "--machine", "cpu"))
before = json.loads(run("eval", out / "config.toml"))["loss"]
holds("eval has a loss", 0 < before < 6)
holds("generate continues a text", run("generate", "--model", model, "--prompt", "The ", "--max-new-tokens", "8"))
shown = run("inspect", model)
holds("inspect shows the layers", "4 layers of width 64" in shown and "2 KV heads" in shown)
run("score", out / "config.toml", "--output", work / "scores")
facts = json.loads((work / "scores/scores.json").read_text())
holds("score scores every kind", set(facts["formulas"]) == {"ffn_channels", "kv_heads", "attention", "ffn"})
child = work / "child"
run("prune", "--model", model, "--scores", work / "scores", "--ffn-width", "80", "--kv-heads", "1", "--drop-attention",
    "1", "--subblocks", "--output", child)
# After 30 steps, a smaller model is not always worse.
smaller = json.loads(run("eval", out / "config.toml", "--model", child))["loss"]
holds("prune makes a smaller model that runs",
      0 < smaller < 6 and smaller != before and "1 KV head" in run("inspect", child)
      and (child / "subblocks_safetensors/block_0_ffn.safetensors").exists())
swap = work / "swap.json"
swap.write_text(json.dumps([{"layer": 1, "attention": {"no_op": True}},
                            {"layer": 2, "ffn": {"model": str(child), "layer": 3}}]))
run("convert", "--model", model, "--output", work / "mixed", "--replace", swap)
holds("convert replaces sub-blocks", "none" in run("inspect", work / "mixed"))
run("train", "recipe.toml", f"--job.dump_folder={work / 'adapters'}", "--quiet", "--peft.method=lora",
    "--training.steps=6", f"--checkpoint.initial_load_path={model}", "--checkpoint.interval=6")
run("merge", "--adapter", work / "adapters/checkpoints/step-6", "--output", work / "merged")
holds("adapters merge", (work / "merged/model.safetensors").exists())
run("tokenize", "--tokenizer", "byte", "README.md", "--output", work / "text.tokens")
holds("tokenize writes tokens", (work / "text.tokens").stat().st_size > 1000)
holds("other families are not this program's", "olmo2" in subprocess.run(
    [program, "train", "recipe.toml", "--model.name=llama3"], capture_output=True, text=True, cwd=example).stderr)

shutil.rmtree(work)
