"""Faults of a cluster, injected into real runs: each is diagnosed, nothing hangs or is left behind, and the run that goes on
has the bits of one that was never disturbed.

Usage: faults.py LEHR [--seed N] [--only WORD] [--kills N] [--table FILE]      (standard library only)

Runs have one device, or four ranks as processes (dp_shard 2 x tp 2). The instants and the victims follow from the seed.
docs/reliability.md describes the faults; --table writes its table.
"""
import argparse, os, random, re, shutil, signal, sys, tempfile, time
from pathlib import Path

from disturbed_run import Run, file_limit, flip_a_bit, wait_until
from expectations import expect, failures

CONFIG = """
[model]
name = "qwen3"
flavor = "debugmodel"
[model.args]
hidden_size = 32
intermediate_size = 64
num_hidden_layers = 2
num_attention_heads = 4
num_key_value_heads = 2
head_dim = 8
vocab_size = 257
[tokenizer]
path = "byte"
[[data.datasets]]
path = "DATA"
[training]
seq_len = 64
local_batch_size = 2
global_batch_size = 8
steps = 60
dtype = "float64"
[lr_scheduler]
warmup_steps = 2
[checkpoint]
interval = 1
keep_latest_k = 3
[comm]
init_timeout_seconds = 60
train_timeout_seconds = 5
[metrics]
measure_peak = false
enable_tensorboard = false
"""
STEPS, RANKS = 60, 4
MESH = ["--parallelism.data_parallel_shard_degree=2", "--parallelism.tensor_parallel_degree=2"]
DIAGNOSED_IN = 10  # seconds, beside the time limit of a collective and that of starting a process on a busy machine

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("lehr", type=Path)
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--only", default="")
parser.add_argument("--kills", type=int, default=3, help="SIGKILLs of each kind; default 3")
parser.add_argument("--table", type=Path)
options = parser.parse_args()
if options.kills < 1:
    parser.error("--kills: expected at least 1")
lehr, rng = options.lehr.resolve(), random.Random(options.seed)
work = Path(tempfile.mkdtemp(prefix="lehr-faults-"))
rows = []


def new_run(name, ranks, data=None):
    """Returns a run in a folder of its own, with one process or four."""
    config = work / f"{name}.toml"
    config.write_text(CONFIG.replace("DATA", str(data or work / "data.txt")))
    return Run(lehr, work / name, config, ranks, MESH if ranks == RANKS else [], rng=rng)


undisturbed = {}


def whole(ranks):
    """Returns an undisturbed run on that many ranks."""
    if ranks not in undisturbed:
        undisturbed[ranks] = new_run(f"undisturbed_{ranks}", ranks)
        begin = time.monotonic()
        code, error = undisturbed[ranks].finish()
        undisturbed[ranks].seconds = time.monotonic() - begin
        assert code == 0, error
    return undisturbed[ranks]


def goes_on(name, run, fault, diagnosed):
    """Starts the run again after a fault: it has the bits of an undisturbed run, and leaves nothing behind."""
    done = run.steps()
    begin = time.monotonic()
    run.start()
    run.wait_for(done + 1)
    run.recovered = recovered = time.monotonic() - begin
    error = run.end()
    good = run.code == 0 and run.bits(STEPS) == whole(run.ranks).bits(STEPS)
    expect(f"{name}: the run goes on with the bits of an undisturbed one", good, f"exit code {run.code}\n{error}")
    expect(f"{name}: nothing is left behind", not run.leftovers(), run.leftovers())
    rows.append((fault, f"{diagnosed:.1f} s" if diagnosed is not None else "at the next start", f"{recovered:.1f} s"))


def ends(name, run, code, *patterns, within=DIAGNOSED_IN, begin=None):
    """Waits for the end of a run that was hit; returns the seconds until then."""
    begin = begin or time.monotonic()
    error = run.end()
    took = time.monotonic() - begin
    missing = [pattern for pattern in patterns if not re.search(pattern, error)]
    expect(f"{name}: it ends in {took:.1f} s with exit code {run.code} and says why",
           run.code in code and not missing and took <= within + whole(run.ranks).seconds, f"not found: {missing}\n{error}")
    return took


# --- the faults ------------------------------------------------------------------------------------------------------
INSTANTS = {
    "random": "at random instants",
    "write": "while a checkpoint is written",
    "rename": "just after a checkpoint is published, while old ones are deleted",
}


def killed(ranks, instant):
    """Kills five times per run, with a checkpoint in each step, and compares the bits of what continues."""
    longest = in_a_save = 0
    for begin in range(0, options.kills, 5):
        run = new_run(f"killed_{instant}_{ranks}_{begin}", ranks)
        for number in range(begin, min(begin + 5, options.kills)):
            run.start()
            run.wait_for(min(run.steps() + rng.randrange(1, 8), STEPS - 10))
            victim = rng.randrange(ranks)
            run.pid(victim)
            if instant != "random":
                run.wait_for_a_save(instant)
            run.hit(victim, signal.SIGKILL)
            if ranks > 1:
                longest = max(longest, ends(f"kill {number}", run, [137], rf"rank {victim} was killed by signal 9 \(SIGKILL\)"))
            else:
                run.end()
            in_a_save += run.has_half_written()
        goes_on(f"kills {instant}, {ranks} ranks", run, "", longest)
        rows.pop()
    what = f"{options.kills} SIGKILLs {INSTANTS[instant]}, {ranks} {'ranks' if ranks > 1 else 'rank'} ({in_a_save} left a half-written checkpoint)"
    rows.append((what, f"{longest:.1f} s" if ranks > 1 else "-", f"{run.recovered:.1f} s"))


def stopped_by_a_signal(number):
    name = signal.Signals(number).name
    run = new_run(f"stopped_{number}", RANKS).start()
    run.wait_for(rng.randrange(2, 20))
    run.hit(rng.randrange(RANKS), number)
    took = ends(name, run, [128 + number, 128 + signal.SIGTERM])  # the others are told by the first one to stop
    expect(f"{name}: the last step is saved", run.newest().name == f"step-{max(run.losses())}", run.newest())
    goes_on(name, run, f"{name} to one rank: all save and stop", took)


def asleep():
    run = new_run("asleep", RANKS).start("--checkpoint.interval=20")
    run.wait_for(23)
    victim = rng.randrange(RANKS)
    begin = time.monotonic()
    run.hit(victim, signal.SIGSTOP)
    took = ends("SIGSTOP", run, [1, 137], rf"rank {victim}\b", r"was not finished within 5 s", within=DIAGNOSED_IN + 10, begin=begin)
    goes_on("SIGSTOP", run, "a rank sleeps (SIGSTOP; time limit of collectives: 5 s)", took)


def asleep_in_a_save():
    """Stops a rank while the others wait for its part of a checkpoint, or for it in the collective after that."""
    run = new_run("asleep_in_a_save", RANKS).start("--checkpoint.async_mode=disabled")
    run.wait_for(20)
    victim = rng.randrange(RANKS)
    run.pid(victim)
    run.wait_for_a_save()
    begin = time.monotonic()
    run.hit(victim, signal.SIGSTOP)
    took = ends("SIGSTOP in a save", run, [1, 137], rf"rank {victim}\b.* is silent", within=DIAGNOSED_IN + 10, begin=begin)
    goes_on("SIGSTOP in a save", run, "a rank sleeps while a checkpoint is saved", took)


def crashed(number):
    name = signal.Signals(number).name
    run = new_run(f"crashed_{number}", RANKS).start()
    run.wait_for(3)
    victim = rng.randrange(RANKS)
    run.hit(victim, number)
    took = ends(name, run, [128 + number, 1], rf"rank {victim} was killed by signal {number} \({name}\)")
    goes_on(name, run, f"a rank crashes ({name})", took)


def launcher_killed():
    run = new_run("launcher", RANKS).start()
    run.wait_for(4)
    run.process.kill()
    begin = time.monotonic()
    run.end()
    gone = wait_until(lambda: not run.processes(), DIAGNOSED_IN)
    took = time.monotonic() - begin
    expect(f"launcher killed: its ranks end in {took:.1f} s", gone, run.processes())
    goes_on("launcher killed", run, "the launcher, which hosts the store, is killed", took)


def restarted_by_itself():
    run = new_run("by_itself", RANKS).start(launch=("--restarts", 3))
    for step in (8, 25):
        run.wait_for(step)
        run.hit(rng.randrange(RANKS), signal.SIGKILL)
        time.sleep(1)
    error = run.end()
    good = run.code == 0 and run.bits(STEPS) == whole(RANKS).bits(STEPS) and error.count("starting all ranks again") == 2
    expect("two kills with --restarts: no person is needed, and the bits are the same", good, f"{run.code}\n{error}")


def restarted_from_a_local_checkpoint():
    """Checkpoints are 30 steps apart and local ones 1: a killed rank costs the step that it was in, and one that was not copied."""
    folder = work / "in_memory"
    folder.mkdir()
    local = ("--checkpoint.interval=30", "--checkpoint.local_interval=1", f"--checkpoint.local_folder={folder}")
    run = new_run("local", RANKS).start(*local, launch=("--restarts", 3), loud=True)
    kills = []
    for step in (8, 25, 45):
        run.wait_for(step)
        kills.append(run.steps())
        run.hit(rng.randrange(RANKS), signal.SIGKILL)
        time.sleep(1)
    log = run.process.communicate(timeout=300)[0]
    resumed = [int(step) for step in re.findall(r"resuming from .*/step-(\d+): ", log)]
    good = run.process.returncode == 0 and run.bits(STEPS) == whole(RANKS).bits(STEPS)
    near = len(resumed) == len(kills) and all(done - 1 <= step for step, done in zip(resumed, kills))
    expect(f"three kills after steps {kills} with local checkpoints: the run resumes from steps {resumed}, with the same bits",
           good and near, log)
    expect("local checkpoints are removed at the end", not list(folder.iterdir()), list(folder.iterdir()))
    expect("local checkpoints: nothing is left behind", not run.leftovers(), run.leftovers())


def goes_on_with_fewer_ranks():
    """A rank that is killed twice is left out: dp_shard 2 x tp 2 becomes tp 2, and the losses are those of one device."""
    expected, seconds = whole(1).losses(), []
    for number in range(3):
        run = new_run(f"fewer_{number}", RANKS).start(launch=("--restarts", 3, "--min-ranks", 2))
        victim = rng.randrange(RANKS)
        for step in (8, 20):
            run.wait_for(step)
            first = run.pid(0)
            begin = time.monotonic()
            run.hit(victim, signal.SIGKILL)
            while os.path.exists(f"/proc/{first}"):
                time.sleep(0.01)
            done = run.steps()
            while run.is_running() and run.steps() <= done:
                time.sleep(0.01)
            took = time.monotonic() - begin
        seconds.append(took)
        error = run.end()
        worst = max(abs(loss / expected[step] - 1) for step, loss in run.losses().items())
        good = run.code == 0 and len(run.losses()) == STEPS and worst < 1e-10
        says = f"rank {victim} failed twice and is left out; the run continues with 2 ranks" in error
        expect(f"rank {victim} is killed twice: 2 ranks go on, with the losses of one device (off by {worst:.1e})", good and says,
               f"{run.code}\n{error}")
        expect("fewer ranks: nothing is left behind", not run.leftovers(), run.leftovers())
    rows.append(("a rank is killed twice: fewer ranks go on", "-", " / ".join(f"{one:.1f} s" for one in seconds)))


def disk_full():
    run = new_run("disk_full", 1)
    run.finish("--training.steps=10", "--lr_scheduler.decay_ratio=0.0")
    shutil.rmtree(run.folder)
    _, error = run.finish(wrap=file_limit(100))  # checkpoints are larger, the log is not
    expect("disk full: the run says which checkpoint was not saved", "was not saved" in error, error)
    expect("disk full: nothing half-written is published", not list(run.folder.glob("checkpoints/*")), list(run.folder.glob("checkpoints/*")))
    goes_on("disk full", run, "the disk is full: the run goes on without checkpoints, and says so", 0)


def damaged(name, damage, stem):
    run = new_run(name, RANKS).start()
    run.wait_for(10)
    run.hit(0, signal.SIGTERM)
    run.end()
    newest = run.newest()
    damage(newest / stem)
    begin = time.monotonic()
    run.start()
    run.wait_for(max(run.losses()))
    took = time.monotonic() - begin
    error = run.end()
    good = run.code == 0 and newest.name in error and stem in error and "aside" in error
    expect(f"{name}: the damaged checkpoint is set aside by name, and the one before is used", good, f"{run.code}\n{error}")
    expect(f"{name}: the same bits", run.code == 0 and run.bits(STEPS) == whole(RANKS).bits(STEPS))
    rows.append((f"{stem}: {name.replace('_', ' ')}", "at the next start", f"{took:.1f} s"))


def truncated(path):
    os.truncate(path, path.stat().st_size // 2)


def flipped(path):
    flip_a_bit(path, rng, first=path.stat().st_size // 2)


def other_data():
    data = work / "other_data.txt"
    shutil.copy(work / "data.txt", data)
    for name, change in [("grown", lambda text: text + "and one line more\n"), ("shrunk", lambda text: text[: len(text) // 2]),
                         ("edited", lambda text: "X" + text[1:])]:
        run = new_run(f"data_{name}", 1, data)
        shutil.copy(work / "data.txt", data)
        run.start()
        run.wait_for(5)
        run.hit(0, signal.SIGTERM)
        run.end()
        data.write_text(change(data.read_text()))
        code, error = run.finish()
        expect(f"data {name}: the run is not resumed on other data", code == 2 and "read different data" in error, f"{code}\n{error}")
        shutil.copy(work / "data.txt", data)
        goes_on(f"data {name}", run, f"the data file was {name} between two runs", None)


def other_meshes():
    expected = whole(RANKS).losses()
    run = new_run("meshes", RANKS).start()
    run.wait_for(10)
    run.hit(1, signal.SIGTERM)
    run.end()
    for ranks, mesh in [(2, ["--parallelism.tensor_parallel_degree=2"]), (1, [])]:
        run.ranks, run.arguments = ranks, mesh
        run.start()
        run.wait_for(run.steps() + 10)
        if ranks > 1:
            run.hit(0, signal.SIGTERM)
        error = run.end()
    worst = max(abs(loss / expected[step] - 1) for step, loss in run.losses().items())
    expect(f"4, then 2, then 1 rank: the losses are those of one mesh (off by {worst:.1e})",
           run.code == 0 and len(run.losses()) == STEPS and worst < 1e-10, error)
    rows.append(("the run goes on with other numbers of ranks", "-", "losses equal in float64"))


FAULTS = {
    **{f"kill-{instant}-{ranks}": lambda ranks=ranks, instant=instant: killed(ranks, instant) for instant in INSTANTS for ranks in (1, RANKS)},
    "sigterm": lambda: stopped_by_a_signal(signal.SIGTERM),
    "sigint": lambda: stopped_by_a_signal(signal.SIGINT),
    "sleep": asleep,
    "save-sleep": asleep_in_a_save,
    "segfault": lambda: crashed(signal.SIGSEGV),
    "abort": lambda: crashed(signal.SIGABRT),
    "launcher": launcher_killed,
    "restarts": restarted_by_itself,
    "local": restarted_from_a_local_checkpoint,
    "fewer": goes_on_with_fewer_ranks,
    "disk": disk_full,
    "truncated": lambda: damaged("truncated", truncated, "model.safetensors"),
    "flipped": lambda: damaged("a_flipped_bit", flipped, "optimizer.safetensors"),
    "data": other_data,
    "meshes": other_meshes,
}


def table():
    lines = ["| fault | diagnosed after | next step after the restart |", "| --- | --- | --- |"]
    return "\n".join(lines + [f"| {' | '.join(row)} |" for row in rows]) + "\n"


shutil.copy("recipe/data/tinyshakespeare.txt", work / "data.txt")
try:
    for word, inject in FAULTS.items():
        if options.only in word:
            inject()
finally:
    shutil.rmtree(work)
print(table())
if options.table:
    options.table.write_text(table())
print(f"{len(rows)} faults, seed {options.seed}, {len(failures)} failures")
sys.exit(1 if failures else 0)
