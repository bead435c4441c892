#!/usr/bin/env python3
"""Runs lehr search on a model of a few seconds: all stages, kills, another budget, and wrong input.

Usage: search.py LEHR      (standard library only)
"""
import hashlib, json, os, random, shutil, subprocess, sys, tempfile, time
from pathlib import Path

lehr = os.path.abspath(sys.argv[1])
work = Path(tempfile.mkdtemp(prefix="lehr-search-"))
KILLS = int(os.environ.get("LEHR_KILLS", "6"))
TEACHER = ["--model.args.hidden_size=32", "--model.args.intermediate_size=64", "--model.args.num_hidden_layers=3",
           "--model.args.num_attention_heads=4", "--model.args.num_key_value_heads=2", "--model.args.head_dim=16",
           "--training.seq_len=64", "--training.steps=60", "--lr_scheduler.warmup_steps=5", "--validation.freq=60",
           "--validation.steps=3", "--checkpoint.interval=60", "--data.validation_fraction=0.02"]
SEARCH = ["--local_distillation.steps=12", "--score.max_rows=8", "--score.importance_rows=8", "--solve.candidates=3",
          "--distillation.steps=40", "--distillation.lr=5e-4", "--workload.rounds=1"]


def call(*arguments):
    return subprocess.run([lehr, *map(str, arguments)], capture_output=True, text=True, timeout=600)


def run(*arguments, code=0):
    done = call(*arguments)
    assert done.returncode == code, f"{arguments}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def holds(what, condition):
    assert condition, what
    print(f"holds: {what}", flush=True)


def search_in(folder):
    return ["search", "recipe/search_quickstart.toml", f"--search.config={config}", f"--search.output={folder}", *SEARCH]


def digest(folder):
    """The bits of the child before and after its distillation."""
    newest = max((folder / "distil/checkpoints").iterdir(), key=lambda path: int(path.name.split("-")[1]))
    return [hashlib.sha256((path / "model.safetensors").read_bytes()).hexdigest() for path in (folder / "child", newest)]


run("train", "recipe/quickstart.toml", f"--job.dump_folder={work / 'teacher'}", *TEACHER, "--quiet")
config = work / "teacher/config.toml"

# --- all stages --------------------------------------------------------------------------------------------------------
dry = run(*search_in(work / "search"), "--dry-run")
holds("--dry-run tells the work of each stage",
      all(f"\n{stage} " in f"\n{dry}" for stage in ("sort", "library", "score", "solve", "distil")) and "MiB" in dry)
holds("and does none of it", not (work / "search").exists())

output = run(*search_in(work / "search"))
report = (work / "search/report.md").read_text()
results = json.loads((work / "search/search.json").read_text())
best = results["candidates"][0]
holds("the child keeps the budget",
      best["costs"]["parameters"] <= 0.6 * results["teacher_costs"]["parameters"])
inspected = run("inspect", work / "search/child", "--num-sequences=1")
holds("and is an ordinary model", "FLOPs" in inspected)
evaluated = [json.loads(call("eval", config, "--model", work / "search" / name).stdout)["loss"] for name in ("child",)]
holds("that lehr eval reads", evaluated[0] > 0)
holds("candidates are sorted by what was measured",
      [c["measured"]["kl"] for c in results["candidates"]] == sorted(c["measured"]["kl"] for c in results["candidates"]))
holds("distillation brings the child nearer to its teacher", results["distilled"]["kl"] < best["measured"]["kl"])
holds("the report has the pictures that it shows",
      all(f"({name})" in report and "<svg" in (work / "search" / name).read_text()
          for name in ("pareto.svg", "scores.svg", "teacher.svg", "child.svg")))
wanted = digest(work / "search")

# --- again -------------------------------------------------------------------------------------------------------------
output = run(*search_in(work / "search"))
holds("a finished search is not repeated", "trained before" in output and " 0 layer forwards" in output)
holds("and gives the same child", digest(work / "search") == wanted)
shutil.copytree(work / "search", work / "tighter")
output = run(*search_in(work / "tighter"), "--budget.parameters=45 %")
tighter = json.loads((work / "tighter/search.json").read_text())["candidates"][0]
holds("another budget needs no new library", "trained before" in output)
holds("and has another child", tighter["costs"]["parameters"] <= 0.45 * results["teacher_costs"]["parameters"])

# --- kills -------------------------------------------------------------------------------------------------------------
draws = random.Random(os.environ.get("LEHR_TEST_SEED", "1"))
began = time.time()
run(*search_in(work / "whole"))
whole = time.time() - began
holds("a second search has the same bits", digest(work / "whole") == wanted)
for kill in range(KILLS):
    process = subprocess.Popen([lehr, *map(str, search_in(work / "killed"))], stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL)
    time.sleep(draws.uniform(0.05, 0.9) * whole)
    process.kill()
    process.wait()
run(*search_in(work / "killed"))
holds(f"a search that was killed {KILLS} times has the same bits", digest(work / "killed") == wanted)

# --- wrong input -------------------------------------------------------------------------------------------------------
for arguments, message in {
    ("--budget.parameters=1 %",): "budget: no combination of variants keeps it. parameters: at most ",
    ("--budget.parameters=much",): "budget.parameters: expected a share of the teacher's",
    ("--space.kv_heads=[3]",): "space.kv_heads: 3",
    ("--stage=cook",): "expected one of \"sort\"",
    (f"--search.config={work / 'none.toml'}",): "none.toml",
    (f"--search.teacher={work / 'none'}",): "none",
    ("--space.sizes=false", "--space.attention_no_op=false", "--space.ffn_no_op=false"): "there is nothing to choose",
    ("--budget.paramaters=3",): "did you mean",
}.items():
    done = call(*search_in(work / "wrong"), *arguments)
    text = done.stdout + done.stderr
    holds(f"{' '.join(arguments)} is refused", done.returncode == 2 and message in text or print(text, done.returncode))
shutil.rmtree(work)
