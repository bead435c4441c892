"""Faults of a cluster, injected into real runs: each is diagnosed, nothing hangs or is left behind, and the run that goes on
has the bits of one that was never disturbed.

Usage: faults.py LEHR [--seed N] [--only WORD] [--kills N] [--table FILE]      (standard library only)

Runs have one device, or four ranks as processes (dp_shard 2 x tp 2). The instants and the victims follow from the seed.
docs/reliability.md describes the faults; --table writes its table.
"""
import argparse, os, re, shutil, signal, socket, subprocess, sys, tempfile, time
from pathlib import Path

import links, machine_faults
from disturbed_run import flip_a_bit, wait_until
from expectations import expect, failures
from fault_harness import DIAGNOSED_IN, RANKS, STEPS, Harness

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("lehr", type=Path)
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--only", default="")
parser.add_argument("--kills", type=int, default=3, help="SIGKILLs of each kind; default 3")
parser.add_argument("--table", type=Path)
options = parser.parse_args()
if options.kills < 1:
    parser.error("--kills: expected at least 1")
harness = Harness(options.lehr, options.seed)
rng, work, rows = harness.rng, harness.work, harness.rows
new_run, whole, goes_on, ends, has_same_bits = harness.new_run, harness.whole, harness.goes_on, harness.ends, harness.has_same_bits


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
    goes_on("SIGSTOP", run, "a rank is suspended (SIGSTOP; time limit of collectives: 5 s)", took)


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
    goes_on("SIGSTOP in a save", run, "a rank is suspended while a checkpoint is saved", took)


def asleep_while_it_opens_data():
    """Stops rank 0 while it tokenizes, and the others wait for it without a collective."""
    text = work / "long.txt"
    text.write_bytes((work / "data.txt").read_bytes() * 60)
    run = new_run("asleep_while_it_opens_data", RANKS, data=text).start()
    wait_until(lambda: run.pid(0) and any(work.rglob("*.partial-*")), 60)
    begin = time.monotonic()
    run.hit(0, signal.SIGSTOP)
    took = ends("SIGSTOP while data are opened", run, [1, 137], r"waiting for rank 0 .*: rank 0\b.* is silent", within=DIAGNOSED_IN + 10,
                begin=begin)
    expect("SIGSTOP while data are opened: nothing is left behind", not run.leftovers(), run.leftovers())
    text.unlink()
    rows.append(("rank 0 is suspended while it tokenizes", f"{took:.1f} s", "-"))


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


def two_ranks(run):
    """Returns two ranks that share an axis of the mesh, and the sockets of the first that are connected to the second; None if
    the system does not allow this, and then the run has ended."""
    first = rng.randrange(RANKS)
    second = first ^ rng.choice([1, 2])  # dp_shard 2 x tp 2
    try:
        return first, second, links.links(run.pid(first), run.pid(second))
    except OSError as error:
        print(f"skip  connections: {error}")
        run.hit(0, signal.SIGTERM)
        run.end()
        return first, second, None


def link_broken(name, disturb, within, *patterns):
    run = new_run(name.replace(" ", "_"), RANKS).start()
    run.wait_for(rng.randrange(4, 20))
    first, second, found = two_ranks(run)
    if found is None:
        return
    expect(f"{name}: ranks {first} and {second} are connected", found)
    begin = time.monotonic()
    for link in found:
        disturb(link)
    either = rf"rank ({first}|{second})\b"
    took = ends(name, run, [1, 137], either, *patterns, within=within, begin=begin)
    goes_on(name, run, f"a connection of two ranks: {name}", took)


def link_slow():
    run = new_run("slow_link", RANKS).start()
    run.wait_for(rng.randrange(4, 20))
    _, _, found = two_ranks(run)
    if found is None:
        return
    before = run.steps()
    for link in found:
        links.slow_down(link, 60_000)
    run.wait_for(before + 2)
    for link in found:
        links.slow_down(link, 0)
    error = run.end()
    slowest, usual = (max(line["step_seconds"] for line in one.metrics() if "step_seconds" in line) for one in (run, whole(RANKS)))
    expect(f"a slow connection of two ranks: a step takes up to {slowest:.1f} s instead of {usual:.1f}, and the bits are the same",
           slowest > usual and has_same_bits(run), f"{run.code}\n{error}")
    rows.append((f"a connection of two ranks: 60 KB/s (longest step {slowest:.1f} s)", "-", "the same bits"))


def restarted_by_itself():
    run = new_run("by_itself", RANKS).start(launch=("--restarts", 3))
    for step in (8, 25):
        run.wait_for(step)
        run.hit(rng.randrange(RANKS), signal.SIGKILL)
        time.sleep(1)
    error = run.end()
    good = has_same_bits(run) and error.count("starting all ranks again") == 2
    expect("two kills with --restarts: no person is needed, and the bits are the same", good, f"{run.code}\n{error}")


def restarted_from_a_local_checkpoint():
    """Checkpoints are 30 steps apart and local ones 1: a killed rank costs the step that it was in, and at most the one before."""
    folder = Path(tempfile.mkdtemp(prefix="lehr-faults-", dir="/dev/shm"))
    local = ("--checkpoint.interval=30", "--checkpoint.local_interval=1", f"--checkpoint.local_folder={folder}")
    run = new_run("local", RANKS).start(*local, launch=("--restarts", 3), loud=True)
    kills = []
    for step in (5, 15, 25):
        run.wait_for(step)
        kills.append(run.steps())
        run.hit(rng.randrange(RANKS), signal.SIGKILL)
        time.sleep(1)
    log = run.end()
    resumed = [int(step) for step in re.findall(r"resuming from .*/step-(\d+): ", log)]
    good = has_same_bits(run)
    near = len(resumed) == len(kills) and all(done - 1 <= step for step, done in zip(resumed, kills))
    expect(f"three kills after steps {kills} with local checkpoints: the run resumes from steps {resumed}, with the same bits",
           good and near, log)
    expect("local checkpoints are removed at the end", not list(folder.iterdir()), list(folder.iterdir()))
    shutil.rmtree(folder)
    expect("local checkpoints: nothing is left behind", not run.leftovers(), run.leftovers())


def machine_lost():
    """As on two machines of two ranks, with local checkpoints: one is lost with its memory, also within a save, and an empty one
    takes its place."""
    folder = Path(tempfile.mkdtemp(prefix="lehr-faults-", dir="/dev/shm"))
    run = new_run("machine", RANKS)
    run.environment = {"OMP_NUM_THREADS": "1"}
    local = ("--checkpoint.interval=30", "--checkpoint.local_interval=1")
    by = (sys.executable, Path(__file__).with_name("machines.py"), folder, RANKS)
    kills, log = [], ""
    for machine, step, in_a_save in ((0, 5, False), (1, 15, True), (0, 25, True)):
        run.start(*local, by=by, loud=True)
        run.wait_for(step)
        while in_a_save and run.is_running() and not list(folder.glob("machine-*/lehr-*/.step-*.saving")):
            pass
        kills.append(run.steps())
        for rank in (2 * machine, 2 * machine + 1):
            run.hit(rank, signal.SIGKILL)
        log += run.end()
        shutil.rmtree(folder / f"machine-{machine}")
    log += run.start(*local, by=by, loud=True).end()
    resumed = [int(step) for step in re.findall(r"resuming from .*/step-(\d+): ", log)]
    near = len(resumed) == len(kills) and all(done - 1 <= step for step, done in zip(resumed, kills))
    expect(f"three losses of a machine after steps {kills}: the run resumes from steps {resumed}, with the same bits",
           has_same_bits(run) and near, log)
    left = list(folder.glob("machine-*/*"))
    expect("a lost machine: local checkpoints are removed at the end", not left, left)
    shutil.rmtree(folder)
    expect("a lost machine: nothing is left behind", not run.leftovers(), run.leftovers())


def restarted_by_torchrun():
    """As in recipe/cluster: torchrun starts all ranks again after one was killed, and ends them after a save when it is stopped."""
    torchrun = Path(sys.executable).with_name("torchrun")
    if not torchrun.exists():
        print(f"skip  torchrun: there is none beside {sys.executable}")
        return
    run = new_run("torchrun", RANKS)
    run.environment = {"OMP_NUM_THREADS": str(max(1, len(os.sched_getaffinity(0)) // RANKS))}  # as lehr launch sets it
    command = (torchrun, f"--nproc-per-node={RANKS}", "--max-restarts=3", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0",
               "--no-python")
    run.start(by=command)
    run.wait_for(8)
    run.hit(rng.randrange(RANKS), signal.SIGKILL)
    run.wait_for(25)
    run.process.send_signal(signal.SIGTERM)
    error = run.end()
    saved = run.newest().name == f"step-{max(run.losses())}"
    expect("torchrun: after a kill all ranks start again; after SIGTERM the last step is saved", run.code != 0 and saved, f"{run.code}\n{error}")
    run.start(by=command)
    error = run.end()
    expect("torchrun: the run goes on with the bits of an undisturbed one", has_same_bits(run), f"{run.code}\n{error}")
    expect("torchrun: nothing is left behind", not run.leftovers(), run.leftovers())
    rows.append(("torchrun --max-restarts: a rank is killed, then torchrun is stopped", "-", "the same bits"))


def restarted_by_two_agents():
    """As on two machines, with one torchrun each: the one whose rank was killed counts a restart, and the other one does not."""
    torchrun = Path(sys.executable).with_name("torchrun")
    if not torchrun.exists():
        print(f"skip  torchrun: there is none beside {sys.executable}")
        return
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    run = new_run("two_agents", 2)
    run.arguments.append("--parallelism.data_parallel_shard_degree=2")
    run.environment = {"OMP_NUM_THREADS": "1"}
    command = (torchrun, "--nnodes=2", "--nproc-per-node=1", "--max-restarts=3", "--rdzv-id=1", "--rdzv-backend=c10d",
               f"--rdzv-endpoint=localhost:{port}", "--no-python")
    other = subprocess.Popen(run.command(by=command), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                             env={**os.environ, **run.environment})
    run.start(by=command)
    seconds = []
    for step in (8, 20, 32):
        run.wait_for(step)
        begin = time.monotonic()
        for rank in (0, 1):
            run.hit(rank, signal.SIGKILL)  # the one of the two that this torchrun has started
        done, run.pids = run.steps(), {}
        run.wait_for(done + 2)
        seconds.append(time.monotonic() - begin)
    error = run.end()
    other.wait(60)
    worst = max(abs(loss / whole(1).losses()[step] - 1) for step, loss in run.losses().items())
    expect(f"two torchruns: after each of three kills both ranks start again, with the losses of one device (off by {worst:.1e})",
           run.code == 0 and other.returncode == 0 and len(run.losses()) == STEPS and worst < 1e-10, f"{run.code}\n{error}")
    expect("two torchruns: nothing is left behind", not run.leftovers(), run.leftovers())
    rows.append(("two torchruns, a rank of one is killed three times", "-", " / ".join(f"{one:.1f} s" for one in seconds)))


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
    expect(f"{name}: the same bits", has_same_bits(run))
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
    for ranks, axis in [(2, "data_parallel_shard"), (1, "tensor_parallel")]:
        run.ranks, run.arguments = ranks, [*run.arguments, f"--parallelism.{axis}_degree=1"]
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
    "data-sleep": asleep_while_it_opens_data,
    "segfault": lambda: crashed(signal.SIGSEGV),
    "abort": lambda: crashed(signal.SIGABRT),
    "launcher": launcher_killed,
    "link-reset": lambda: link_broken("reset", links.reset, DIAGNOSED_IN),
    "link-half-open": lambda: link_broken("half-open", links.leave_half_open, DIAGNOSED_IN + 10, r"was not finished within 5 s"),
    "link-slow": link_slow,
    "memory": lambda: machine_faults.too_little_memory(harness),
    "cgroup": lambda: machine_faults.killed_for_memory(harness),
    "clock": lambda: machine_faults.clock_jumps(harness),
    "removed": lambda: machine_faults.folder_removed(harness),
    "restarts": restarted_by_itself,
    "local": restarted_from_a_local_checkpoint,
    "machine": machine_lost,
    "torchrun": restarted_by_torchrun,
    "torchruns": restarted_by_two_agents,
    "fewer": goes_on_with_fewer_ranks,
    "disk": lambda: machine_faults.disk_full(harness),
    "truncated": lambda: damaged("truncated", truncated, "model.safetensors"),
    "flipped": lambda: damaged("a_flipped_bit", flipped, "optimizer.safetensors"),
    "data": other_data,
    "meshes": other_meshes,
}


def table():
    lines = ["| fault | diagnosed after | next step after the restart |", "| --- | --- | --- |"]
    return "\n".join(lines + [f"| {' | '.join(row)} |" for row in rows]) + "\n"


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
