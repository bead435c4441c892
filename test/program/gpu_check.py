#!/usr/bin/env python3
"""Tests the check on a GPU (script/gpu_check) without running its steps: the program parses every config that it writes and
reads its token files, and invalid use is reported.

Usage: gpu_check.py LEHR BUILD_FOLDER      (standard library only)
"""
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

root = Path(__file__).resolve().parents[2]
lehr, build = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
sys.dont_write_bytecode = True
sys.path.insert(0, str(root / "script/gpu_check"))
import correctness
import machine
import pack
import report
import runner
import runs

work = Path(tempfile.mkdtemp(prefix="lehr-gpu-check-"))


def holds(what, condition):
    assert condition, what
    print(f"holds: {what}")


def check(*arguments, code=0):
    done = subprocess.run([sys.executable, str(root / "script/gpu_check"), *map(str, arguments)], capture_output=True,
                          text=True, timeout=600, cwd=root)
    assert done.returncode == code, f"{arguments}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


told = check("--list", "--build", build, "--out", work / "list")
holds("the program parses all configs", "parses all of their configs" in told and "kill and resume" in told)
holds("a step that is not there is named", "there is no step nothing" in check(
    "--rehearse", "--only", "nothing", "--build", build, "--out", work / "none", code=2))

known = [json.loads((folder / "config.json").read_text())["model_type"] for folder in correctness.reference_models(root)]
shutil.copytree(root / "test/data/reference/qwen3_tied_v4config", work / "unknown")
(work / "unknown/config.json").write_text('{"model_type": "no_such_model", "architectures": ["NoSuchForCausalLM"]}')
unknown = subprocess.run([lehr, "verify", "--model", work / "unknown"], capture_output=True, text=True).stderr
families = re.search(r"known: (.*)", unknown)[1].split(", ")
holds(f"the program has the families of the references that are verified: {known}", known and set(known) <= set(families))

# Token files of both widths, each with two training steps.
for vocabulary in (300, 70000):
    runs.write_tokens(work / "t.tokens", vocabulary, runs.documents_like_text(3000, vocabulary, 40))
    config = runs.large_run("tokens", work / f"run{vocabulary}", "cpu", 2, {
        "name": "qwen3", "flavor": "debugmodel", "args": {
            "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
            "num_key_value_heads": 1, "head_dim": 16, "vocab_size": vocabulary}}, work / "t.tokens", 64, 2)
    (work / "run.toml").write_text(runs.toml(config))
    subprocess.run([lehr, "train", work / "run.toml", "--quiet"], check=True, cwd=root, timeout=300)
    steps = runs.Metrics(work / f"run{vocabulary}")
    holds(f"a token file of {vocabulary} ids is one", len(steps.of("loss")) == 2 and steps.tokens_per_second() > 0)

# Verdicts: an exception becomes one line, and later items still run.
steps = runner.Runner(work / "steps", {"PATH": "/usr/bin:/bin"}, root, total=60)


def wrong(run):
    run.run("false", ["false"])


def slow(run):
    run.run("sleep", ["sleep", "30"], limit=0.5)


def not_here(run):
    raise runner.NotRun("there is none")


def mistaken(run):
    run.judge("an item", 1 > 2, "1", ">= 2")
    raise KeyError("typo")


steps.perform([runner.Step(one.__name__, 20, one)
               for one in (wrong, slow, not_here, mistaken)])
found = [(v.step, v.status) for v in steps.verdicts]
holds("each step has its verdict", found == [("wrong", "FAILED"), ("slow", "FAILED"), ("not_here", "not run"),
                                             ("mistaken", "FAILED"), ("mistaken", "FAILED")])
holds("with its reason", "exit code 1" in steps.verdicts[0].text and "did not end within" in steps.verdicts[1].text)
rehearsal = runner.Runner(work / "rehearsal", {}, root, total=60, judges=False)
rehearsal.judge("a goal", False, "1", ">= 2")
holds("a rehearsal judges no goals", rehearsal.verdicts[0].status == "passed")
spent = runner.Runner(work / "spent", {}, root, total=0)
spent.perform([runner.Step("late", 20, wrong)])
holds("no step begins when the time is spent", spent.verdicts[0].status == "not run")


class Spender(runner.Runner):
    """A runner whose steps all take their whole time."""
    spent = 0

    def left(self):
        return self.total - self.spent


spec = importlib.util.spec_from_file_location("check", root / "script/gpu_check/__main__.py")
program = importlib.util.module_from_spec(spec)
spec.loader.exec_module(program)
for total, steps_of in ((program.GPU_SECONDS, program.steps_of), (program.REHEARSAL_SECONDS,
                                                                  lambda check: program.rehearsal(program.steps_of(check)))):
    all_steps, given = steps_of(None), []
    spender = Spender(work / "spender", {}, root, total=total)
    for number, one in enumerate(all_steps, 1):
        given.append(spender.limit_of(one, all_steps[number:]))
        spender.spent += given[-1]
    holds(f"every step has its least time, if all take as long as they may: {total} s",
          all(limit >= one.least for limit, one in zip(given, all_steps)) and spender.left() >= 0)
holds("the verdict counts", report.closing(steps.verdicts).endswith("0 passed, 4 failed, 1 not run"))
for name, peak, goals in (("NVIDIA H200", 989e12, True), ("NVIDIA H100 PCIe", 756e12, False), ("NVIDIA GH200 480GB", 0, False)):
    gpu = machine.Gpu(name)
    holds(f"the peak of {name}", gpu.peak == peak and gpu.has_goals == goals)
# A test that uses a GPU must match the check's filter of names, in a program that the check starts.
wanting = re.compile(r"why_no_gpu\(|KernelsTest|there is no NVIDIA driver")
folders = {file.parent.name for file in (root / "test").rglob("*_test.cpp") if wanting.search(file.read_text())}
bodies = [body for file in (root / "test").rglob("*_test.cpp") for body in re.split(r"^TEST", file.read_text(), flags=re.M)[1:]]
nameless = [body.split(")")[0] for body in bodies if "why_no_gpu(" in body and "Gpu" not in body.split(")")[0]
            and not body.startswith("(CudaModule,")]
holds(f"tests that want a GPU have Gpu in their names {nameless or ''}", not nameless)
holds("tests that want a GPU are in programs that the check runs",
      {f"{folder}_test" for folder in folders} == set(correctness.GPU_PROGRAMS))
holds("which are those that the Makefile builds",
      f"GPU_TESTS := {' '.join(correctness.GPU_PROGRAMS)}\n" in (root / "Makefile").read_text())
sheets = re.findall(r'\{"([^"]+)", ([0-9.]+),', (root / "lehr/train/gpu_card.cpp").read_text())
holds("peaks are those of lehr/train/gpu_card.cpp", len(sheets) >= 10 and all(
    machine.Gpu("NVIDIA " + name.strip()).peak == 1e12 * float(tera) for name, tera in sheets))

# The whole check on a simulated machine with a GPU, where fake_gpu_machine.py replaces every program.
fakes, path = work / "machine", work / "machine/path"
(fakes / "build/bin").mkdir(parents=True)
path.mkdir()
for program in ("build/lehr", "build/liblehr_cuda.so", "build/liblehr_nccl.so", "build/bin/ops_test", "build/bin/mesh_test",
                "build/bin/optim_test", "path/nvidia-smi", "path/compute-sanitizer"):
    (fakes / program).symlink_to(root / "test/program/fake_gpu_machine.py")
torch = fakes / "torch"
(torch / "lib").mkdir(parents=True)
(torch / "lib/libtorch_cpu.so").touch()
(torch / "version.py").write_text("__version__ = '2.11.0+cu130'\n")
clone = fakes / "clone"  # results of a simulated card do not belong in the tree
for name in ("script/gpu_check", "recipe"):
    shutil.copytree(root / name, clone / name)
# Some reference models: two processes verify each, and to start those of all takes a slow machine too long.
for folder in (root / "test/data/reference").glob("qwen*"):
    shutil.copytree(folder, clone / "test/data/reference" / folder.name)


def on_gpu(name, *arguments, wrong="", code=0):
    """Runs the check there, and returns the statuses by item."""
    out = work / name
    # -S: without site packages, so that no peer is installed.
    done = subprocess.run([sys.executable, "-S", clone / "script/gpu_check", "--build", fakes / "build", "--torch", torch, "--out", out,
                           *arguments], capture_output=True, text=True, timeout=600,
                          env={**os.environ, "PATH": f"{path}:{os.environ['PATH']}", "LEHR_FAKE_BROKEN": wrong})
    assert done.returncode == code, f"{name}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
    verdicts = json.loads((out / "verdicts.json").read_text())
    errors = out / "logs/script_errors.log"
    assert not errors.exists(), errors.read_text()
    return {f"{v['step']}: {v['item']}": v["status"] for v in verdicts}, (out / "results_h200.md").read_text(), done.stdout


# At an MFU of 60 %, 0.6B, 1.7B and MoE reach their goals; 4B (61 %) and 8B (62 %) do not.
status, results, told = on_gpu("healthy", code=2)
failed = sorted(item for item, verdict in status.items() if verdict == "FAILED")
holds("each goal is judged by itself", failed == ["sizes: Qwen3-4B, whole rows", "sizes: Qwen3-8B, whole rows"])
holds("figures are beside their goals", "| Qwen3-0.6B | whole rows | none | 118,680 | 60.0 | >= 48 |" in results)
holds("MFU of packed documents is the run's own", "| Qwen3-0.6B | packed | none | 118,680 | 50.0 | >= 48 |" in results)
holds("nothing else is amiss on a healthy machine", {item for item, verdict in status.items() if verdict == "not run"}
      <= {"peer: peer", "kill and resume: the kill came in time"})
float8 = (work / "healthy/configs/Qwen3_8B_float8_rowwise.toml").read_text()
holds("float8 is judged at all layers of 8B", "num_hidden_layers" not in float8 and 'flavor = "8B"' in float8
      and status["modes: float8 rowwise over bfloat16"] == "passed")
holds("the first step of a real size is judged", status["sizes: Qwen3-8B, packed: first step"] == "passed")
holds("what to send back is there", (work / "healthy/gpu_check.tar.gz").stat().st_size > 1000 and "to send back" in told)
for wrong, step, item in (
        ("skips", "GPU tests", "GPU tests: ops_test: no test skips"), ("fails", "GPU tests", "GPU tests: ops_test Suite.OnTheGpu"),
        ("resume", "kill and resume", "kill and resume: model.safetensors of step 12")):
    status, _, _ = on_gpu(wrong, "--only", step, wrong=wrong, code=3)
    holds(f"a machine where that is wrong is found: {wrong}", status[item] == "FAILED")
status, _, _ = on_gpu("memory", "--only", "sizes", wrong="memory", code=12)
holds("so is a prediction of memory that is off", status["sizes: Qwen3-0.6B, packed: peak memory"] == "FAILED")
status, _, _ = on_gpu("slow_start", "--only", "sizes", wrong="slow_start", code=12)
holds("so is a slow first step", status["sizes: Qwen3-0.6B, packed: first step"] == "FAILED")
status, _, _ = on_gpu("float8", "--only", "modes", wrong="float8", code=1)
holds("so is slow float8", status["modes: float8 rowwise over bfloat16"] == "FAILED")

# The pack of this build, unpacked elsewhere: it needs nothing but Python and torch. An archive that is too large is refused.
limit, pack.LIMIT_MB = pack.LIMIT_MB, 0
for name in pack.FOLDERS:
    (fakes / "tree" / name).mkdir(parents=True)  # as little as there can be, since packing takes seconds
try:
    pack.make_pack(fakes / "tree", fakes / "build", torch, work / "large")
    holds("a pack that is too large is refused", False)
except RuntimeError as problem:
    holds("a pack that is too large is refused", "may have at most 0 MB" in str(problem))
pack.LIMIT_MB = limit
cache = (build / "CMakeCache.txt").read_text() if (build / "CMakeCache.txt").exists() else ""
if "-fsanitize=" in cache:
    print("left out: a pack of programs with sanitizers is too large")
else:
    torch = machine.find_torch(None, root, build)
    told = check("--pack", work / "packed/gpu_pack", "--build", build, "--torch", torch)
    archive = work / "packed/gpu_pack.tar.xz"
    holds(f"the pack is small: {told.splitlines()[0]}", archive.stat().st_size < limit * 1e6)
    unpacked = work / "unpacked/gpu_pack"
    shutil.unpack_archive(archive, unpacked.parent)
    shutil.rmtree(work / "packed")
    done = subprocess.run([sys.executable, unpacked / "script/gpu_check", "--list", "--torch", torch], capture_output=True,
                          text=True, timeout=600, cwd=work, env={"PATH": os.environ["PATH"]})
    holds(f"the unpacked program parses all configs {done.stderr}",
          done.returncode == 0 and "parses all of their configs" in done.stdout)
    path_of = {**os.environ, "LD_LIBRARY_PATH": machine.library_path(unpacked, torch)}
    programs = [p for p in (unpacked / "build").rglob("*") if p.is_file()]
    holds("the pack has the program and the tests of the check", {"lehr", *(
        name for name in correctness.GPU_PROGRAMS if (build / "bin" / name).exists())} <= {p.name for p in programs})
    for one in programs:
        told = subprocess.run(["ldd", one], capture_output=True, text=True, env=path_of).stdout
        foreign = [line.strip() for line in told.splitlines() if "=>" in line and not pack.SYSTEM.match(line.strip())
                   and not line.strip().startswith(("libstdc++", "libgcc_s"))
                   and not any(str(folder.resolve()) in line or str(folder) in line for folder in (unpacked, torch.parent))]
        holds(f"the libraries of {one.name} are the pack's, torch's or the C library {foreign or ''}", not foreign)

shutil.rmtree(work)
