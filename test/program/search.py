#!/usr/bin/env python3
"""Runs lehr search on a model of a few seconds: all stages, kills, another budget, and wrong input.

Usage: search.py LEHR      (standard library only)
"""
import hashlib, json, os, random, shutil, signal, subprocess, sys, tempfile, time
from pathlib import Path

lehr = os.path.abspath(sys.argv[1])
work = Path(tempfile.mkdtemp(prefix="lehr-search-"))
KILLS = int(os.environ.get("LEHR_KILLS", "6" if "LEHR_ALL_MESHES" in os.environ else "3"))
TEACHER = ["--model.args.hidden_size=32", "--model.args.intermediate_size=64", "--model.args.num_hidden_layers=3",
           "--model.args.num_attention_heads=4", "--model.args.num_key_value_heads=2", "--model.args.head_dim=16",
           "--training.seq_len=64", "--training.steps=60", "--lr_scheduler.warmup_steps=5", "--validation.freq=60",
           "--validation.steps=3", "--checkpoint.interval=60", "--data.validation_fraction=0.02"]
SEARCH = ["--local_distillation.steps=12", "--local_distillation.save_steps=4", "--score.max_rows=8",
          "--score.importance_rows=8", "--solve.candidates=3", "--distillation.steps=40", "--distillation.lr=5e-4",
          "--workload.rounds=1"]


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


def only(folder, pattern):
    found = list(folder.glob(pattern))
    assert len(found) == 1, f"{folder}: expected one {pattern}, found {found}"
    return found[0]


def digest(folder):
    """The bits of the child before and after its distillation."""
    newest = max(only(folder, "distil-*").glob("checkpoints/step-*"), key=lambda path: int(path.name.split("-")[1]))
    return [hashlib.sha256((path / "model.safetensors").read_bytes()).hexdigest()
            for path in (only(folder, "child-*"), newest)]


run("train", "recipe/quickstart.toml", f"--job.dump_folder={work / 'teacher'}", *TEACHER, "--quiet")
config = work / "teacher/config.toml"

# --- all stages --------------------------------------------------------------------------------------------------------
dry = run(*search_in(work / "search"), "--dry-run")
holds("--dry-run shows the work of each stage",
      all(f"\n{stage} " in f"\n{dry}" for stage in ("sort", "library", "score", "solve", "distil")) and "MiB" in dry)
holds("and does none of it", not (work / "search").exists())

output = run(*search_in(work / "search"))
report = (work / "search/report.md").read_text()
results = json.loads((work / "search/search.json").read_text())
best = results["candidates"][0]
holds("the child keeps the budget",
      best["costs"]["parameters"] <= 0.6 * results["teacher_costs"]["parameters"])
child = only(work / "search", "child-*")
holds("and is an ordinary model", "FLOPs" in run("inspect", child, "--num-sequences=1"))
evaluated = json.loads(call("eval", config, "--model", child, "--validation.steps=1",
                            "--validation.local_batch_size=8").stdout)
holds("whose loss lehr eval measures alike", abs(evaluated["loss"] - best["measured"]["loss"]) < 1e-5)
holds("candidates are sorted by what was measured",
      [c["measured"]["kl"] for c in results["candidates"]] == sorted(c["measured"]["kl"] for c in results["candidates"]))
holds("distillation brings the child nearer to its teacher", results["distilled"]["kl"] < best["measured"]["kl"])
holds("the report has the pictures that it shows",
      all(f"({name})" in report and "<svg" in (work / "search" / name).read_text()
          for name in ("pareto.svg", "pareto.html", "scores.svg", "teacher.svg", "child.svg")))
wanted = digest(work / "search")

# --- again -------------------------------------------------------------------------------------------------------------
output = run(*search_in(work / "search"))
holds("a finished search is not repeated", "trained before" in output and " 0 layer forwards" in output)
holds("and gives the same child", digest(work / "search") == wanted)
output = run(*search_in(work / "search"), "--budget.parameters=45 %")
tighter = json.loads((work / "search/search.json").read_text())["candidates"][0]
holds("another budget needs no new library", "trained before" in output)
holds("and has another child", tighter["costs"]["parameters"] <= 0.45 * results["teacher_costs"]["parameters"])
holds("beside the first one", len(list((work / "search").glob("child-*"))) == 2)

run(*search_in(work / "search"), "--search.puzzletron_files=true")
run("convert", "--model", max((work / "teacher/checkpoints").glob("step-*")), "--output", work / "converted",
    "--replace", f"{only(work / 'search', 'puzzletron-*')}/solutions.json#0")
holds("the child can be made of puzzletron's files, too",
      hashlib.sha256((work / "converted/model.safetensors").read_bytes()).hexdigest() == wanted[0])

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

# --- Ctrl-C ----------------------------------------------------------------------------------------------------------
def stop(folder, signal_number, reached, *launcher):
    """Sends the signal to a search once it has reached a stage. Returns its exit code and what it said."""
    process = subprocess.Popen([lehr, *map(str, launcher), *map(str, search_in(folder))], stdout=subprocess.DEVNULL,
                               stderr=subprocess.PIPE, text=True)
    while process.poll() is None and not reached():
        time.sleep(0.001)
    process.send_signal(signal_number)
    said = process.communicate()[1]
    return process.returncode, said


for number, stage, kept, pattern in [
    (signal.SIGINT, "library", "which continues with the variants that were saved after every 4 steps",
     "library/unfinished-*/*.safetensors"),
    (signal.SIGTERM, "score", "which keeps the measurements that it has made", "scores.jsonl"),
    (signal.SIGINT, "distil", "which continues from its checkpoint", "distil-*/metrics.jsonl"),
]:
    folder = work / "interrupted"
    code, said = stop(folder, number, lambda: list(folder.glob(pattern)))
    name = "Ctrl-C" if number == signal.SIGINT else "SIGTERM"
    line = said.splitlines()[-1]
    holds(f"{name} in {stage} is told in one line, with what is kept",
          code == 128 + number and line.startswith(f"lehr search: stopped by {name} in the stage {stage}, {kept}; "))
    holds("and the command that resumes it",
          line.endswith("resume it with: lehr " + " ".join(map(str, search_in(folder)))))
holds("the child in distillation was saved", list((work / "interrupted").glob("distil-*/checkpoints/step-*")))
run(*search_in(work / "interrupted"))
holds("a search that was interrupted has the same bits", digest(work / "interrupted") == wanted)

# --- ranks -------------------------------------------------------------------------------------------------------------
def measurements(folder):
    """Returns what was measured -> the sums, of each rank."""
    files = [file.read_text().splitlines() for file in sorted(folder.glob("scores*.jsonl"))]
    return [{one["key"]: one for one in map(json.loads, lines)} for lines in files]


run("launch", "-n", 2, "--", *search_in(work / "ranks"))
holds("two ranks find the same child, bit for bit", digest(work / "ranks") == wanted)
of_ranks = measurements(work / "ranks")
holds("each measures about half, and none twice", len(of_ranks) == 2 and not of_ranks[0].keys() & of_ranks[1].keys()
      and abs(len(of_ranks[0]) - len(of_ranks[1])) < 0.2 * len(of_ranks[0]))
both, (alone,) = of_ranks[0] | of_ranks[1], measurements(work / "whole")
# Ranks have fewer threads, which add float64 numbers in another order.
holds("and all together what one process measures", both.keys() == alone.keys() and all(
    abs(both[key][sums] - alone[key][sums]) <= 1e-13 * abs(alone[key][sums])
    for key in alone for sums in alone[key] if sums != "key"))
output = run(*search_in(work / "ranks"))
holds("one process goes on with their folder", "trained before" in output and " 0 layer forwards" in output)

# The ranks that wait for the main one do not end before it has saved.
folder = work / "interrupted-ranks"
code, said = stop(folder, signal.SIGINT, lambda: list(folder.glob("distil-*/metrics.jsonl")), "launch", "-n", 2, "--")
holds("Ctrl-C in distil ends all ranks without a failure", code == 130 and said.splitlines()[-1].startswith(
    "lehr search: stopped by Ctrl-C in the stage distil, which continues from its checkpoint; ") or print(code, said))
holds("after the child in distillation was saved", list(folder.glob("distil-*/checkpoints/step-*")))
run(*search_in(folder))
holds("and it continues with the same bits", digest(folder) == wanted)


def stop_in_library(folder, *launcher):
    """Kills a search once it has saved all variants in training, so that it continues at a later step than the first."""
    variants = len(list((work / "killed/library").glob("*.safetensors")))
    assert variants
    process = subprocess.Popen([lehr, *map(str, launcher), *map(str, search_in(folder))], stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL, start_new_session=True)
    while process.poll() is None and len(list(folder.glob("library/unfinished-*/*.safetensors"))) < variants:
        time.sleep(0.001)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert list(folder.glob("library/unfinished-*")), "too late to kill it"


for launcher in ([], ["launch", "-n", 2, "--"]):
    folder = work / f"stopped{len(launcher)}"
    stop_in_library(folder, *launcher)
    output = run(*search_in(folder))
    holds("a search continues inside its library", "continues with the variants that were saved" in output)
    holds("with the same bits", digest(folder) == wanted)
    holds("and leaves no saves", not list(folder.glob("library/unfinished-*")))

# --- other settings ----------------------------------------------------------------------------------------------------
# Stopped while they replace the library, and the first ones again.
process = subprocess.Popen([lehr, *map(str, search_in(work / "killed")), "--local_distillation.lr=0.1"],
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
library = work / "killed/library"
before = {path: path.stat().st_mtime_ns for path in library.iterdir()}
while process.poll() is None and all(path.stat().st_mtime_ns == before[path] for path in before):
    time.sleep(0.001)
process.kill()
process.wait()
run(*search_in(work / "killed"))
kept = [path for path in (work / "killed").glob("child-*")
        if hashlib.sha256((path / "model.safetensors").read_bytes()).hexdigest() == wanted[0]]
holds("a library that was half replaced is not used", kept and "trained before" not in run(
    *search_in(work / "killed"), "--local_distillation.lr=0.1", "--stage=library"))

# --- wrong input -------------------------------------------------------------------------------------------------------
for arguments, message in {
    ("--budget.parameters=1 %",): "budget: no combination of variants meets it. parameters: at most ",
    ("--budget.parameters=200 %",): "budget: the teacher meets it already",
    ("--budget.parameters=60 % to 50 %",): "budget.parameters: expected the smaller value first",
    ("--budget.parameters=1 %", "--dry-run"): "budget: no combination of variants meets it.",
    ("--budget.parameters=much",): "budget.parameters: expected a share of the teacher's",
    ("--space.kv_heads=[3]",): "space.kv_heads: 3",
    ("--space.experts_per_token=[1]",): "space.experts_per_token: 1 is smaller than that of no layer",
    ("--stage=cook",): "expected one of \"sort\"",
    (f"--search.config={work / 'none.toml'}",): "none.toml",
    (f"--search.teacher={work / 'none'}",): "none",
    ("--space.sizes=false", "--space.attention_no_op=false", "--space.ffn_no_op=false"): "there is nothing to choose",
    ("--space.sizes=false", "--space.ffn_widths=[16]"): "space.ffn_widths: has no effect with space.sizes = false",
    ("--budget.paramaters=3",): "did you mean",
}.items():
    done = call(*search_in(work / "wrong"), *arguments)
    text = done.stdout + done.stderr
    holds("nothing was trained before that", " library  " not in text)
    holds(f"{' '.join(arguments)} is refused", done.returncode == 2 and message in text or print(text, done.returncode))
shutil.rmtree(work)
