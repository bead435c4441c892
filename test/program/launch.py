"""Ranks as processes that succeed, fail, hang, are killed or stopped: a launch always ends soon, with one message.

Usage: launch.py LEHR MESH_RANKS
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time

from expectations import exit_with_failures, expect

lehr, mesh_ranks = sys.argv[1:3]
all_meshes = "LEHR_ALL_MESHES" in os.environ  # else a part of the combinations
SECONDS = 12  # A failure must end the launch within this time, and that of five launches that succeed.
LAUNCHER_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
clean = {k: v for k, v in os.environ.items()
         if k not in LAUNCHER_VARIABLES and not k.startswith(("SLURM_", "OMPI_", "PMI_", "TORCHELASTIC_"))}


def run(*args, env=None, limit=60):
    start = time.monotonic()
    done = subprocess.run([str(a) for a in args], capture_output=True, text=True, timeout=limit, env=env or clean)
    return done, time.monotonic() - start


def case(name, command, code, *patterns, once=None, seconds=None):
    """Expects the exit code, each pattern in standard error, and `once` in it exactly once."""
    done, took = run(*command)
    problems = []
    if done.returncode != code:
        problems.append(f"expected exit code {code}, found {done.returncode}")
    problems += [f"not found: {p}" for p in patterns if not re.search(p, done.stderr)]
    if once and done.stderr.count(once) != 1:
        problems.append(f"found {done.stderr.count(once)} times: {once}")
    if took > (seconds or SECONDS):
        problems.append(f"took {took:.1f} s")
    expect(f"{name} ({took:.1f} s)", not problems, "\n".join(problems + [done.stdout, done.stderr]))
    return done


def launch(n, *args):
    return [lehr, "launch", "-n", n, *args]


def ranks(n, *args):
    return launch(n, "--", mesh_ranks, *args)


def alive(text):
    """Returns the processes whose command line contains this text."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file, open(f"/proc/{pid}/stat") as stat:
                if text.encode() in file.read() and stat.read().rsplit(")", 1)[1].split()[0] != "Z":
                    found.append(int(pid))
        except OSError:
            pass
    return found


def children_of(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(p) for p in file.read().split()]


# --- ranks that succeed ----------------------------------------------------------------------------------------------
SECONDS += 5 * run(*ranks(4, "run"))[1]  # a busy machine is slow to start processes
done = case("four ranks add", ranks(4, "run"), 0)
expect("rank 0's output is shown as it is, and no other", done.stdout == "rank 0 at step 20\nrank 0 of 4: sum 10\n",
       done.stdout)
expect("nothing on standard error", done.stderr == "", done.stderr)
done = case("every rank's output behind its rank", launch(3, "--output", "all", "--", mesh_ranks, "run"), 0)
expect("all lines are there", sorted(done.stdout.splitlines()) == sorted(
    f"[rank {r}] {line}" for r in range(3) for line in (f"rank {r} at step 20", f"rank {r} of 3: sum 6")), done.stdout)
case("one rank", ranks(1, "run"), 0)
done, _ = run(mesh_ranks, "run")
expect("no launcher: one rank", done.stdout.endswith("rank 0 of 1: sum 1\n"), done.stdout + done.stderr)

# --- ranks that fail -------------------------------------------------------------------------------------------------
case("a rank throws", ranks(3, "throw", 2), 1, r"^rank 2: step 20: the disk is full\n",
     r"lehr launch: rank 2 ended with exit code 1\n$", once="the disk is full")
case("rank 0 throws", ranks(2, "throw", 0), 1, "^rank 0: step 20", once="the disk is full")
case("a rank's input is wrong", ranks(2, "usage", 1), 2, r"rank 1: run\.toml:3:1", once="run.toml:3:1")
for victim in (0, 2):
    case(f"rank {victim} is killed", ranks(3, "kill", victim), 137,
         rf"^lehr launch: rank {victim} was killed by signal 9 \(SIGKILL\)\n$", once="killed")
case("a rank exits on its own", ranks(2, "exit", 1), 7, "out of ideas", "rank 1 ended with exit code 7",
     once="out of ideas")
case("a rank hangs", ranks(3, "hang", 1), 1,
     r"all_reduce number 21 on axis dp_shard \(ranks 0, 1, 2\) was not finished within 2 s: rank 1 \(dp_shard 1\) did "
     r"not enter the collective; it is computing; its last collective was all_reduce_max number 40|all_reduce number 41",
     once="did not enter")
case("a rank leaves early", ranks(3, "leave", 1), 1,
     r"rank 1 \(dp_shard 1\) did not enter the collective; it has ended without an error", once="did not enter")
case("a program of another kind fails", launch(3, "--", "/bin/sh", "-c", "test $RANK != 1 || { echo no; exit 5; } >&2"),
     5, "end of the output of rank 1:\nno\n", "rank 1 ended with exit code 5", once="no\n")
case("ranks that ignore SIGTERM are killed",
     launch(2, "--", "/bin/sh", "-c", "trap '' TERM; test $RANK = 0 || exit 3; while :; do sleep 0.1; done"), 3,
     "rank 1 ended with exit code 3")

case("what a rank starts in turn keeps its own standard error",
     launch(2, "--", "/bin/sh", "-c", f"test $RANK = 1 || exit 0; env -u RANK -u WORLD_SIZE -u LOCAL_RANK {lehr} inspect nowhere; exit 4"), 4,
     "end of the output of rank 1:\n.*nowhere", once="nowhere")

# --- restarts --------------------------------------------------------------------------------------------------------
def again(n, *args):
    return [lehr, "launch", "-n", 3, "--restarts", n, "--", *args]


with tempfile.TemporaryDirectory() as folder:
    once = f"{folder}/once"
    fails_once = f"test $RANK = 1 || exit 0; test -e {once} && exit 0; touch {once}; kill -9 $$"
    case("a rank that is killed once is started again with all others", again(2, "/bin/sh", "-c", fails_once), 0,
         r"^lehr launch: rank 1 was killed by signal 9 \(SIGKILL\)\nlehr launch: starting all ranks again, restart 1 of 2\n$")
    count = f"{folder}/count"
    counted = f"test $RANK = 0 && echo x >> {count}; test $RANK != 2 || exit "
    case("restarts end, with the exit code of the last start", again(2, "/bin/sh", "-c", counted + "7"), 7, "restart 2 of 2")
    expect("there were three starts", len(open(count).readlines()) == 3, open(count).read())
    for code, what in ((2, "wrong input"), (4, "a bug")):
        done = case(f"{what} is no reason to start again", again(2, "/bin/sh", "-c", counted + str(code)), code)
        expect("no restart", "restart" not in done.stderr, done.stderr)
child = subprocess.Popen([str(a) for a in again(3, mesh_ranks, "work")], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                         text=True, env=clean)
assert "step 20" in child.stdout.readline()
child.send_signal(signal.SIGTERM)
out, err = child.communicate(timeout=SECONDS)
expect("nor is a stop by a signal", child.returncode == 143 and err == "", f"{child.returncode}\n{err}")
child = subprocess.Popen([str(a) for a in again(1, mesh_ranks, "work")], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                         text=True, env=clean)
assert "step 20" in child.stdout.readline()
os.kill(children_of(child.pid)[1], signal.SIGKILL)
assert "step 20" in child.stdout.readline()
child.send_signal(signal.SIGTERM)
out, err = child.communicate(timeout=SECONDS)
expect("ranks that were started again get signals like the first ones",
       child.returncode == 143 and "rank 0 saved" in out and "restart 1 of 1" in err, f"{child.returncode}\n{out}{err}")
case("threads cannot be started again", [lehr, "launch", "-n", 2, "--restarts", 1, "--threads", "--", "train", "x.toml"], 2,
     "leave --restarts and --min-ranks out")

# --- fewer ranks -----------------------------------------------------------------------------------------------------
def fewer(n, least, *args, restarts=3):
    return [lehr, "launch", "-n", n, "--restarts", restarts, "--min-ranks", least, "--", *args]


done = case("a rank that is killed twice is left out", fewer(4, 2, mesh_ranks, "kill", 3), 0,
            "restart 1 of 3", "rank 3 failed twice and is left out; the run continues with 3 ranks",
            once="is left out")
expect("the others go on", "rank 0 of 3: sum 6" in done.stdout, done.stdout)
case("not below --min-ranks", fewer(3, 3, mesh_ranks, "kill", 1), 137,
     "rank 1 failed twice and is left out; 2 ranks are left, fewer than --min-ranks 3", once="restart 1 of 3")
with tempfile.TemporaryDirectory() as folder:
    # The rank of the broken GPU is killed, whatever its number: only a start without this GPU succeeds.
    broken = f'set -- $(echo ${{CUDA_VISIBLE_DEVICES:-a,b,c,d}} | tr , " "); shift $RANK; echo $1 >> {folder}/$WORLD_SIZE; test $1 != b || kill -9 $$'
    case("the GPU of the rank that is left out is not used", fewer(4, 2, "/bin/sh", "-c", "CUDA_VISIBLE_DEVICES=$CUDA_VISIBLE_DEVICES;" + broken),
         0, "rank 1 failed twice")
    unset = sorted(open(f"{folder}/3").read().split())
    expect("without a list the GPUs are numbers", unset == ["0", "2", "3"], str(unset))
    os.remove(f"{folder}/3")
    command = ["env", "CUDA_VISIBLE_DEVICES=a,b,c,d", *fewer(4, 2, "/bin/sh", "-c", broken)]
    case("nor where the GPUs have names", command, 0, "rank 1 failed twice")
    named = sorted(open(f"{folder}/3").read().split())
    expect("the others keep theirs", named == ["a", "c", "d"], str(named))
    counted = f"test $RANK = 0 && echo x >> {folder}/starts; test $RANK != $(cat {folder}/starts | wc -l) || exit 9"
    case("two ranks that fail once each are kept", fewer(3, 1, "/bin/sh", "-c", "test $RANK = 0 || sleep 0.3; " + counted, restarts=2),
         0, "restart 2 of 2", once="restart 1 of 2")
for least, words in ((5, "at most the 4 ranks of -n, found 5"),):
    case("more than all ranks", fewer(4, least, mesh_ranks, "run"), 2, words)
case("without a restart", launch(4, "--min-ranks", 2, "--", mesh_ranks, "run"), 2, "add --restarts N")

# --- signals ---------------------------------------------------------------------------------------------------------
def started(*args, marker="step 20"):
    """Returns a launch whose rank 0 has reached step 20."""
    child = subprocess.Popen([str(a) for a in ranks(*args)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                             env=clean)
    line = child.stdout.readline()
    assert marker in line, line + child.stderr.read()
    return child


signal.signal(signal.SIGHUP, signal.SIG_DFL)  # whatever it is here, for the launches
for number, name in ((signal.SIGTERM, "SIGTERM"), (signal.SIGINT, "SIGINT"), (signal.SIGHUP, "SIGHUP")):
    child = started(3, "work")
    child.send_signal(number)
    out, err = child.communicate(timeout=SECONDS)
    expect(f"{name} goes on to all ranks, which save", child.returncode == 128 + number and "rank 0 saved" in out,
           f"{child.returncode}\n{out}{err}")
    expect(f"{name} is no failure", err == "", err)
signal.signal(signal.SIGHUP, signal.SIG_IGN)
child = started(3, "work")
signal.signal(signal.SIGHUP, signal.SIG_DFL)
for pid in (child.pid, *children_of(child.pid)):
    os.kill(pid, signal.SIGHUP)
time.sleep(0.5)
child.send_signal(signal.SIGTERM)
out, err = child.communicate(timeout=SECONDS)
expect("SIGHUP stays ignored under nohup", child.returncode == 143 and "rank 0 saved" in out and err == "",
       f"{child.returncode}\n{out}{err}")
child = started(3, "work")
child.send_signal(signal.SIGUSR1)
lines = [child.stderr.readline() for _ in range(3)]
expect("SIGUSR1 makes the launcher print what each rank does", all(
    re.match(rf"lehr launch: rank {rank} (waits in|is computing; its last collective was) .* on axis dp_shard", line)
    for rank, line in enumerate(lines)), "".join(lines))
child.send_signal(signal.SIGTERM)
out, err = child.communicate(timeout=SECONDS)
expect("and they go on", child.returncode == 143 and "rank 0 saved" in out and err == "", f"{child.returncode}\n{out}{err}")
child = started(3, "work")
os.kill(children_of(child.pid)[2], signal.SIGTERM)
out, err = child.communicate(timeout=SECONDS)
expect("SIGTERM to one rank stops all together", child.returncode == 143 and "rank 0 saved" in out and err == "",
       f"{child.returncode}\n{out}{err}")
for victim in (0, 2):
    child = started(3, "early")
    start = time.monotonic()
    os.kill(children_of(child.pid)[victim], signal.SIGTERM)
    out, err = child.communicate(timeout=SECONDS)
    words = "stopped by SIGTERM before its first step, with nothing to save"
    expect(f"SIGTERM to rank {victim} before the first step ends all ({time.monotonic() - start:.1f} s)",
           child.returncode == 143 and err ==
           f"rank {victim}: {words}\nlehr launch: rank {victim} ended with exit code 143\n", f"{child.returncode}\n{err}")
child = started(3, "early")
child.send_signal(signal.SIGTERM)
out, err = child.communicate(timeout=SECONDS)
expect("SIGTERM to all before the first step is no failure", child.returncode == 143 and err == "", err)
times = []
for victim in range(4) if all_meshes else (0, 3):
    child = started(4, "work")
    start = time.monotonic()
    os.kill(children_of(child.pid)[victim], signal.SIGKILL)
    out, err = child.communicate(timeout=SECONDS)
    times.append(time.monotonic() - start)
    expect(f"kill -9 of rank {victim} from outside", child.returncode == 137
           and err == f"lehr launch: rank {victim} was killed by signal 9 (SIGKILL)\n", f"{child.returncode}\n{out}{err}")
print(f"      a killed rank ended the whole after {', '.join(f'{t:.1f}' for t in times)} s")
expect("within the time", max(times) < SECONDS)

child = started(2, "work", "4242")
orphans = children_of(child.pid)
child.kill()
child.wait()
deadline = time.monotonic() + 5
while time.monotonic() < deadline and any(os.path.exists(f"/proc/{p}") and p in alive("4242") for p in orphans):
    time.sleep(0.1)
expect("the ranks die with their launcher", not alive("4242"), str(alive("4242")))

# A script does not pass SIGTERM on and ends at once, while the program that it runs still saves.
with tempfile.TemporaryDirectory() as folder:
    script = os.path.join(folder, "train.sh")
    with open(script, "w") as file:
        file.write(f"#!/bin/sh\n{mesh_ranks} work\necho done\n")
    os.chmod(script, 0o755)
    child = subprocess.Popen([lehr, "launch", "-n", "2", "--", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                             env=clean)
    assert "step 20" in child.stdout.readline()
    child.send_signal(signal.SIGTERM)
    out, err = child.communicate(timeout=SECONDS)
    expect("the launcher waits for programs that scripts run", child.returncode == 143 and "rank 0 saved" in out and err == "",
           f"{child.returncode}\n{out}{err}")
    with open(script, "w") as file:
        file.write("#!/bin/sh\nsleep 4321 &\nsleep 100\n")  # a helper in the background ignores SIGINT
    child = subprocess.Popen([lehr, "launch", "-n", "2", "--", script], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                             env=clean)
    while len(alive("sleep\0" "4321")) < 2:
        time.sleep(0.05)
    child.send_signal(signal.SIGINT)
    expect("and not for helpers in the background", child.wait(timeout=SECONDS) == 130, str(child.returncode))
    for helper in alive("sleep\0" "4321"):
        os.kill(helper, signal.SIGKILL)
    plain = os.path.join(folder, "plain")
    with open(plain, "w") as file:
        file.write("true\n")
    os.chmod(plain, 0o755)
    case("a script without an interpreter", launch(2, "--", plain), 2, "plain: cannot be executed: Exec format error; a script begins")
ignoring = "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
case("a parent that ignores SIGCHLD", [sys.executable, "-c", ignoring, *map(str, ranks(2, "run"))], 0)
child = subprocess.Popen([str(a) for a in launch(2, "--output", "all", "--", mesh_ranks, "work")], stdout=subprocess.PIPE,
                         stderr=subprocess.PIPE, text=True, env=clean)
while "step 20" not in child.stdout.readline():
    pass
child.stdout.close()  # as Ctrl-C ends `tee`
child.send_signal(signal.SIGINT)
err = child.stderr.read()
expect("ranks save if the reader of their output has gone", child.wait(timeout=SECONDS) == 130 and err == "", f"{child.returncode}\n{err}")

# --- invalid use -----------------------------------------------------------------------------------------------------
case("no command", launch(2), 2, "expected a command after '--'")
case("a command without --", launch(2, "train"), 2, "after '--'")
case("no number of ranks", [lehr, "launch", "--", "train"], 2, "--ranks")
case("no ranks at all", launch(0, "--", mesh_ranks), 2, "ranks")
case("no such program", launch(2, "--", "./nothing"), 2, r"\./nothing")
case("a command of one rank", launch(2, "--", "tokenize"), 2, "'tokenize' runs on one rank")
broken = dict(clean, RANK="1", WORLD_SIZE="2")
done, _ = run(mesh_ranks, "run", env=broken)
expect("half of a launcher's variables", done.returncode == 2 and "LOCAL_RANK is missing" in done.stderr, done.stderr)

# --- without lehr launch, where rank 0 keeps the store ---------------------------------------------------------------
def by_hand(n, port, *args):
    """Starts ranks like srun."""
    children = []
    for rank in range(n):
        env = dict(clean, SLURM_PROCID=str(rank), SLURM_NTASKS=str(n), SLURM_LOCALID=str(rank), SLURM_STEP_ID="0",
                   SLURM_JOB_ID=str(port), SLURM_JOB_NODELIST="localhost", LEHR_MASTER_PORT=str(port))
        children.append(subprocess.Popen([mesh_ranks, *map(str, args)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                         text=True, env=env))
    start = time.monotonic()
    ended = [(*child.communicate(timeout=60), child.returncode) for child in children]
    return ended, time.monotonic() - start


port = 21000 + os.getpid() % 9000
ended, _ = by_hand(3, port, "run")
expect("srun's variables", all(code == 0 and f"rank {r} of 3: sum 6" in out for r, (out, _, code) in enumerate(ended)),
       str(ended))
# Here no launcher ends the other ranks. The limit is far below the timeout of collectives, one minute: nothing may wait
# for that.
ALONE_SECONDS = 40
for culprit in (0, 2):
    ended, took = by_hand(3, port + 1 + culprit, "throw", culprit)
    good = all(code == 1 for _, _, code in ended) and all(
        err == ("" if r == culprit else f"rank {culprit} (dp_shard {culprit}) failed: ") + "step 20: the disk is full\n"
        for r, (_, err, _) in enumerate(ended))
    expect(f"under srun the others say what rank {culprit} failed of ({took:.1f} s)", good and took < ALONE_SECONDS, str(ended))
for culprit in (0, 2):
    ended, took = by_hand(3, port + 5 + culprit, "kill", culprit)
    texts = [err for r, (_, err, _) in enumerate(ended) if r != culprit]
    words = "has ended" if culprit == 0 else f"rank {culprit} (dp_shard {culprit}) is silent: dead or hung"
    expect(f"under srun the others say that rank {culprit} is gone ({took:.1f} s)",
           all(words in t and t.count("\n") == 1 for t in texts) and took < ALONE_SECONDS, str(ended))

# --- data of the ranks -----------------------------------------------------------------------------------------------
with tempfile.TemporaryDirectory(prefix="lehr-launch-") as work:
    for rank, text in enumerate(("abc" * 500, "abd" * 500)):
        os.mkdir(os.path.join(work, str(rank)))
        with open(os.path.join(work, str(rank), "data.txt"), "w") as file:
            file.write(text)
    program = os.path.abspath(lehr)
    settings = ("--model.name=qwen3 --model.flavor=debugmodel --tokenizer.path=byte --data.datasets.0.path=data.txt "
                "--parallelism.data_parallel_shard_degree=2 --training.device=cpu --training.seq_len=64 "
                "--training.local_batch_size=1 --training.global_batch_size=2 --training.steps=2 "
                "--lr_scheduler.warmup_steps=1 --job.dump_folder=out")
    with open(os.path.join(work, "run.toml"), "w") as file:
        file.write('[[data.datasets]]\npath = "data.txt"\n')
    case("ranks with other files of the same name", launch(2, "--", "sh", "-c",
         f"cd {work}/$RANK && exec {program} train ../run.toml {settings}"), 2,
         r"\[data\]: the files or the tokenizer differ between ranks: rank 1 has '.*' where rank 0 has '", seconds=60)

# --- commands that work in one process -------------------------------------------------------------------------------
in_one_process = ("plan", "merge", "inspect", "convert", "prune", "tokenize", "metrics", "launch")
for number, (launcher, variables) in enumerate((
        ("torchrun", {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}),
        ("mpirun", {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}),
        ("srun", {"SLURM_PROCID": "2", "SLURM_NTASKS": "4", "SLURM_LOCALID": "2", "SLURM_STEP_ID": "0"}))):
    for command in in_one_process if all_meshes else in_one_process[number::3]:
        done, _ = run(lehr, command, env=dict(clean, **variables))
        names = list(variables)[:3]
        expect(f"{command} under {launcher}", done.returncode == 2 and
               f"lehr {command}: runs in one process, but {launcher} started {variables[names[1]]} processes" in done.stderr
               and f"env -u {names[0]} -u {names[1]} -u {names[2]} lehr {command}" in done.stderr, done.stderr)
done, _ = run(lehr, "inspect", "--help", env=dict(clean, RANK="1", WORLD_SIZE="4"))
expect("help is given anywhere", done.returncode == 0 and "lehr inspect" in done.stdout, done.stderr)
done, _ = run(lehr, "inspect", "nowhere", env=dict(clean, SLURM_PROCID="0", SLURM_NTASKS="4", ENVIRONMENT="BATCH"))
expect("a job's script is one process", "nowhere" in done.stderr and "launcher" not in done.stderr, done.stderr)

# --- torchrun --------------------------------------------------------------------------------------------------------
python = os.path.join(".venv", "bin", "python")
if os.path.exists(python):
    torchrun = [python, "-m", "torch.distributed.run", "--nproc-per-node", 3, "--no-python"]
    done, _ = run(*torchrun, mesh_ranks, "run", limit=120)
    expect("torchrun", done.returncode == 0 and all(f"rank {r} of 3: sum 6" in done.stdout for r in range(3)),
           done.stdout + done.stderr)
    done, took = run(*torchrun, "--max-restarts", 1, mesh_ranks, "throw", 1, limit=120)
    expect(f"torchrun's second attempt does not meet the first one's keys ({took:.1f} s)",
           done.returncode == 1 and done.stderr.count("rank 1 (dp_shard 1) failed: step 20") in (2, 3, 4),
           done.stdout + done.stderr)
else:
    print("      no torchrun in .venv: skipped")

exit_with_failures()
