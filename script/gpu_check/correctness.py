"""Steps that check the numbers: tests, references, CPU against GPU, kill and resume."""
import json
import shutil
import signal
import time
import xml.etree.ElementTree as xml
from concurrent.futures import ThreadPoolExecutor

import runs
from runner import FAILED, NOT_RUN, PASSED, Failed, NotRun, end

# GoogleTest filter of the tests that use a GPU; new tests must have one of these names (docs/gpu.md).
GPU_TESTS = "*Gpu*:CudaModule.*"
GPU_PROGRAMS = ["mesh_test", "ops_test", "optim_test"]  # programs with such tests; the Makefile builds these
KERNEL_TESTS = {"cuda": "*OnTheGpu*", "cpu": "*OnTheHost*"}


def train(check, name, config, limit=None):
    """Writes the config, trains, and returns the metrics of the run."""
    file = check.out / "configs" / f"{name}.toml"
    file.parent.mkdir(exist_ok=True)
    file.write_text(runs.toml(config))
    if check.only_parse:
        check.runner.run(f"parse_{name}", [check.lehr, "train", file, "--print-config"])
        return None
    folder = check.out / "runs" / name
    shutil.rmtree(folder, ignore_errors=True)
    check.runner.run(name, [check.lehr, "train", file], limit)
    return runs.Metrics(folder)


def folder_of(check, name):
    return check.out / "runs" / name


def small(check, name, label, steps, moe=False, device=None, **changes):
    """The config of a small run; in a rehearsal sequences are short."""
    cut = {"training": {"seq_len": 64, "local_batch_size": 4}} if check.device == "cpu" else {}
    return runs.small_run(name, folder_of(check, label), device or check.device, steps, moe, **runs.merged(cut, changes))


def one_step(check, runner):
    """The first minute: a process that starts, finds the device, and runs one step."""
    begin = time.monotonic()
    train(check, "one_step", small(check, "one step", "one_step", 1))
    seconds = time.monotonic() - begin
    told = runner.log_of("one_step")
    if check.device == "cuda":
        for word in ("device", "kernels", "attention"):
            lines = [line.split(f"{word:<11}", 1)[1] for line in told.splitlines() if f"{word:<11}" in line]
            runner.note(f"the log names the {word}", PASSED if lines else FAILED, lines[0] if lines else "no such line")
            check.facts[word] = lines[0] if lines else ""
        runner.judge("Lehr's CUDA kernels run", "liblehr_cuda.so)" in check.facts.get("kernels", ""),
                     check.facts.get("kernels", ""), "Lehr's, not plain ATen")
    runner.judge("a process of one step", seconds < 5, f"{seconds:.1f} s", "< 5 s")


def gpu_tests(check, runner):
    """Every test with a GPU part. On a GPU none may skip."""
    for binary in (check.build / "bin" / name for name in GPU_PROGRAMS):
        def one(binary=binary):
            if not binary.exists():
                raise NotRun("it is not built (make gpu-check builds it, make gpu-pack packs it)")
            report = check.out / "tests" / f"{binary.name}.xml"
            report.parent.mkdir(exist_ok=True)
            code_text = ""
            try:
                # A test that hangs leaves their share of the time to the other programs.
                left = (runner.step_ends - time.monotonic()) / (len(GPU_PROGRAMS) - GPU_PROGRAMS.index(binary.name))
                runner.run(binary.name, [binary, f"--gtest_filter={GPU_TESTS}", f"--gtest_output=xml:{report}"], left)
            except Failed as problem:
                code_text = str(problem)
            cases = list(xml.parse(report).getroot().iter("testcase")) if report.exists() else []
            bad = [c for c in cases if c.find("failure") is not None]
            skipped = [c for c in cases if c.find("skipped") is not None]
            name = lambda c: f"{c.get('classname')}.{c.get('name')}"
            for case in bad[:5]:
                runner.note(f"{binary.name} {name(case)}", FAILED, case.find("failure").get("message", "").strip()[:300])
            if code_text and not bad:
                runner.note(binary.name, FAILED, code_text)
            if skipped and check.device == "cuda":
                reason = skipped[0].find("skipped").get("message", "").strip().splitlines()[-1:]
                runner.note(f"{binary.name}: no test skips", FAILED, f"{len(skipped)} skipped, such as {name(skipped[0])}: {reason}")
            good = len(cases) - len(bad) - len(skipped)
            if not cases and not code_text:
                runner.note(binary.name, FAILED, "it has no test with a GPU part")
            elif not bad and not code_text and (not skipped or check.device == "cpu"):
                runner.note(binary.name, PASSED, f"{good} tests, {len(skipped)} skipped")
        runner.guarded(binary.name, one)


def sanitizer(tool):
    def step(check, runner):
        program = shutil.which("compute-sanitizer") or shutil.which("/usr/local/cuda/bin/compute-sanitizer")
        binaries = [p for p in (check.build / "bin" / name for name in ("ops_test", "optim_test")) if p.exists()]
        if not binaries:
            raise NotRun("there is no ops_test (build everything, or make gpu-pack)")
        if check.device == "cuda" and not program:
            raise NotRun("compute-sanitizer is not on this machine")
        for binary in binaries:
            def one(binary=binary):
                tests = f"--gtest_filter={KERNEL_TESTS[check.device]}"
                name = f"{tool}_{binary.name}"
                if check.device == "cpu":  # the same tests, whose kernels run as loops on the host
                    runner.run(name, [binary, tests])
                    raise NotRun("a rehearsal has no CUDA kernels to check; the tests themselves pass")
                try:
                    told = runner.run(name, [program, "--tool", tool, "--error-exitcode", "9", "--print-limit", "20", binary,
                                             tests])
                except Failed as problem:
                    if "did not end" in str(problem) and "=========     at" not in runner.log_of(name):
                        raise NotRun(f"{problem}; no error was found until then")
                    raise
                summary = [line for line in told.splitlines() if "SUMMARY" in line]
                runner.note(f"{tool} of {binary.name}", PASSED, summary[-1].strip("= ") if summary else "no errors")
            runner.guarded(f"{tool} of {binary.name}", one)
    return step


def reference_models(root):
    folders = (root / "test/data/reference").iterdir()
    return sorted(folder for folder in folders if folder.is_dir())


def verify(check, runner):
    """Compares the repository's reference models with `transformers` (docs/verify.md).

    The models are tiny, and most of the time is the start of a process, so several run at once.
    """
    def run_verify(folder, dtype):
        return runner.run(f"verify_{folder.name}_{dtype}", [
            check.lehr, "verify", "--model", folder, "--device", check.device, "--dtype", dtype], 60, codes=(0, 3))

    pool = ThreadPoolExecutor(max_workers=2 * check.beside_threads)
    outputs = {(folder, dtype): pool.submit(run_verify, folder, dtype)
               for folder in reference_models(check.root) for dtype in ("float32", "float64")}
    for folder in reference_models(check.root):
        for dtype in ("float32", "float64"):
            def one(folder=folder, dtype=dtype):
                told = outputs[folder, dtype].result()
                over = [line.split()[0] for line in told.splitlines() if line.rstrip().endswith("OVER")]
                summary = [line for line in told.splitlines() if "tensors compared" in line]
                good = bool(summary) and not over
                runner.note(f"{folder.name} in {dtype}", PASSED if good else FAILED,
                            (summary or ["no summary"])[0] + (f": {', '.join(over[:4])}" if over else ""))
            runner.guarded(f"{folder.name} in {dtype}", one)
    pool.shutdown()


# Three layers with gated DeltaNet and one with attention, as in recipe/gated_delta_net.toml.
GATED_DELTA_NET = {"name": "qwen3_next", "args": {
    "mlp_only_layers": [0, 1, 2, 3], "linear_num_key_heads": 2, "linear_key_head_dim": 32, "linear_num_value_heads": 4,
    "linear_value_head_dim": 32}}

# Mamba-2 in two of four layers, with the heads and the state of recipe/mamba2.toml.
MAMBA2 = {"name": "nemotron_h", "args": {
    "hybrid_override_pattern": "MM*-", "mamba_num_heads": 4, "mamba_head_dim": 64, "n_groups": 2, "ssm_state_size": 32}}

# Name, MoE, sections, largest relative difference of the losses from the CPU's, and its reason.
COMPARED = [
    ("float32", False, {}, 1e-3, "another order of sums, 20 steps of an optimizer that divides by small numbers"),
    ("bfloat16", False, {"training": {"mixed_precision_param": "bfloat16"}}, 2e-2, "an error of 2^-9 per matmul"),
    ("deterministic", False, {"debug": {"deterministic": True}}, 1e-3, "as float32"),
    ("moe", True, {}, 1e-2, "near ties route a token to another expert"),
    ("gated_delta_net", False, {"model": GATED_DELTA_NET}, 1e-3, "as float32"),
    ("mamba2", False, {"model": MAMBA2}, 1e-3, "as float32"),
]


def start_references(check):
    """Starts the CPU's runs of cpu_beside_gpu, while the GPU runs other steps."""
    for name, moe, sections, _, _ in COMPARED:
        folder = folder_of(check, f"cpu_{name}")
        shutil.rmtree(folder, ignore_errors=True)
        file = check.out / "configs" / f"cpu_{name}.toml"
        file.parent.mkdir(exist_ok=True)
        file.write_text(runs.toml(small(check, name, f"cpu_{name}", check.compared_steps, moe, "cpu", **sections)))
        check.references[name] = check.runner.run_beside(f"cpu_{name}", [check.lehr, "train", file],
                                                         env={"OMP_NUM_THREADS": str(check.beside_threads)})


def cpu_beside_gpu(check, runner):
    """Compares the losses of the same run on both devices, step by step."""
    for name, moe, sections, tolerance, why in COMPARED:
        def one(name=name, moe=moe, sections=sections, tolerance=tolerance, why=why):
            label = f"gpu_{name}"
            ours = train(check, label, small(check, name, label, check.compared_steps, moe, **sections))
            runner.wait_for(check.references[name])
            theirs = runs.Metrics(folder_of(check, f"cpu_{name}"))
            gaps = [abs(a - b) / abs(b) for a, b in zip(ours.of("loss"), theirs.of("loss"))]
            worst = max(range(len(gaps)), key=gaps.__getitem__)
            if len(gaps) != check.compared_steps:
                raise Failed(f"{len(gaps)} steps of {check.compared_steps}")
            runner.note(f"{name}: losses of {len(gaps)} steps", PASSED if gaps[worst] <= tolerance else FAILED,
                        f"relative difference at most {gaps[worst]:.1e}, in step {worst + 1}; first step {gaps[0]:.1e}",
                        f"<= {tolerance:.0e}: {why}")
            if name == "deterministic":
                again = train(check, label + "_again", small(check, name, label + "_again", check.compared_steps, moe,
                                                             **sections))
                runner.note("deterministic: a second run", PASSED if ours.learned() == again.learned() else FAILED,
                            "the same bits" if ours.learned() == again.learned() else "other losses", "the same bits")
        runner.guarded(name, one)


def graphs_and_late_results(check, runner):
    """Checks that the time at which the host reads or launches work does not change the bits."""
    steps = 8
    fixed = {"debug": {"deterministic": True}}
    plain = train(check, "late_results", small(check, "deferred read-back", "late_results", steps, **fixed))

    def same(name, label, config):
        def one():
            other = train(check, label, config)
            equal = other.learned() == plain.learned()
            gap = max(abs(a - b) for a, b in zip(other.of("loss"), plain.of("loss")))
            runner.note(name, PASSED if equal else FAILED, "the same bits" if equal else f"losses differ by up to {gap:.1e}",
                        "the same bits")
        runner.guarded(name, one)

    # This policy needs the results of each step before the next one.
    same("immediate read-back", "results_at_once", small(check, "results at once", "results_at_once", steps,
                                                     training={"non_finite": "skip"}, **fixed))
    if check.device == "cpu":
        raise NotRun("graphs: the CPU of a rehearsal records none")
    same("CUDA graphs", "cuda_graphs", small(check, "graphs", "cuda_graphs", steps, training={"cuda_graphs": True}, **fixed))


def kill_and_resume(check, runner):
    """Checks that a run that is killed and resumed writes the same bytes as an uninterrupted one."""
    steps, interval = 12, 2
    sections = {"checkpoint": {"enable": True, "interval": interval, "keep_latest_k": 2}, "debug": {"deterministic": True}}

    def config(name):
        return small(check, "kill and resume", name, steps, **sections)

    whole = train(check, "never_killed", config("never_killed"))
    name = "killed"
    folder = folder_of(check, name)
    shutil.rmtree(folder, ignore_errors=True)
    file = check.out / "configs" / f"{name}.toml"
    file.write_text(runs.toml(config(name)))
    process = runner.start("killed_once", [check.lehr, "train", file])
    while process.poll() is None and time.monotonic() < runner.step_ends:
        checkpoints = sorted((folder / "checkpoints").glob("step-*")) if (folder / "checkpoints").exists() else []
        if len(checkpoints) >= 1 and (folder / "metrics.jsonl").read_text().count("\n") >= interval + 1:
            break
        time.sleep(0.001)
    was_alive = process.poll() is None
    end(process)
    runner.run("killed_resumed", [check.lehr, "train", file])
    resumed = runs.Metrics(folder)
    last = f"checkpoints/step-{steps}"
    for part in ("model.safetensors", "optimizer.safetensors", "trainer.json"):
        same = (folder / last / part).read_bytes() == (folder_of(check, "never_killed") / last / part).read_bytes()
        runner.note(f"{part} of step {steps}", PASSED if same else FAILED, "the same bytes" if same else "other bytes")
    runner.note("logged losses", PASSED if resumed.learned() == whole.learned() else FAILED)
    code = -signal.SIGKILL
    runner.note("the kill came in time", PASSED if was_alive and process.returncode == code else NOT_RUN,
                "" if was_alive else "the run had already ended")


def one_rank_of_nccl(check, runner):
    """Tests a communicator of one rank, which NCCL can create on a single GPU."""
    def launch():
        train(check, "one_rank", small(check, "one rank", "one_rank", 2))
        runner.run("launched", [check.lehr, "launch", "-n", "1", "--", "train", check.out / "configs/one_rank.toml",
                                f"--job.dump_folder={folder_of(check, 'launched')}"])
        runner.note("lehr launch of one rank", PASSED)
    runner.guarded("lehr launch of one rank", launch)
    binary = check.build / "bin" / "mesh_test"
    if not binary.exists():
        raise NotRun("there is no mesh_test (make gpu-check builds it, make gpu-pack takes it along)")
    told = runner.run("nccl_one_rank", [binary, "--gtest_filter=NcclModule.*"], env={"NCCL_DEBUG": "WARN"})
    if "[  SKIPPED ]" in told or "[  PASSED  ]" not in told:
        raise NotRun("the test skipped: " + next((line.strip() for line in told.splitlines() if "there is" in line), "see its log"))
    runner.note("a group of one rank communicates", PASSED)


def use_the_model(check, runner):
    """Runs generate, eval and a classifier."""
    model = folder_of(check, "never_killed") / "checkpoints/step-12"

    def generate():
        texts = {}
        for device in ("cpu", check.device):
            texts[device] = runner.run(f"generate_{device}", [
                check.lehr, "generate", "--model", model, "--prompt", "ROMEO:", "--max-new-tokens", "40", "--temperature",
                "0", "--ids", "--dtype", "float64", "--device", device]).strip().splitlines()[-1]
        runner.note("generate: greedy text in float64", PASSED if texts["cpu"] == texts[check.device] else FAILED,
                    f"{len(json.loads(texts['cpu']))} ids", "equal to the CPU's")
    runner.guarded("generate", generate)

    def evaluate():
        config = folder_of(check, "never_killed") / "config.toml"
        losses = {}
        for device in ("cpu", check.device):
            told = runner.run(f"eval_{device}", [check.lehr, "eval", config, f"--training.device={device}",
                                                 "--validation.steps=4", "--model", model])
            losses[device] = json.loads(told[told.index("{"):])["loss"]
        gap = abs(losses["cpu"] - losses[check.device]) / losses["cpu"]
        runner.note("eval: loss of held-out text", PASSED if gap <= 1e-4 else FAILED, f"relative difference {gap:.1e}",
                    "<= 1e-04: another order of float32 sums")
    runner.guarded("eval", evaluate)

    def classify():
        folder = folder_of(check, "classify")
        shutil.rmtree(folder, ignore_errors=True)
        runner.run("classify", [check.lehr, "train", "recipe/classify_text.toml", f"--job.dump_folder={folder}",
                                f"--training.device={check.device}", "--checkpoint.enable=false",
                                "--metrics.measure_peak=false", "--metrics.enable_tensorboard=false"])
        accuracy = runs.Metrics(folder).validations[-1]["validation_accuracy"]
        runner.note("classify: accuracy on held-out lines", PASSED if accuracy >= 0.8 else FAILED, f"{accuracy:.3f}",
                    ">= 0.8, which the recipe reaches on a CPU")
    runner.guarded("classify", classify)
