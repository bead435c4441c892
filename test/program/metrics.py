#!/usr/bin/env python3
"""Tests lehr metrics: on runs that are done, that train meanwhile, that are killed and resume, and on odd files.

Usage: metrics.py LEHR      (standard library only)
"""
import fcntl, json, os, pty, re, select, shutil, signal, struct, subprocess, sys, tempfile, termios, time
from pathlib import Path

from expectations import TINY, exit_with_failures, expect

lehr = os.path.abspath(sys.argv[1])
work = Path(tempfile.mkdtemp(prefix="lehr-metrics-"))
environment = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "TERM")}
SETTINGS = ["--training.seq_len=32", "--training.global_batch_size=2", "--validation.enable=true", "--validation.freq=10",
            "--validation.steps=1", "--checkpoint.interval=20", '--checkpoint.allow_changes=["steps"]']


def run(*arguments, **options):
    return subprocess.run([lehr, "metrics", *map(str, arguments)], capture_output=True, text=True, timeout=60,
                          env=environment, **options)


def train(name, steps):
    """Starts a run, whose folder is `name`."""
    return subprocess.Popen([lehr, "train", TINY, "--quiet", f"--job.dump_folder={work / name}", f"--training.steps={steps}",
                             *SETTINGS], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def follow(*arguments):
    """Returns a follower and the file of its states, once it has told the first one: it takes a while to start."""
    states = work / "states.txt"
    with open(states, "w") as file:
        process = subprocess.Popen([lehr, "metrics", "--follow", *map(str, arguments)], stdout=subprocess.PIPE,
                                   stderr=file, text=True, env=environment)
    wait_for(lambda: states.read_text().endswith("\n") or process.poll() is not None)
    return process, states


def ended(follower):
    """Returns the rows and states of a follower that ends by itself."""
    process, states = follower
    rows, _ = process.communicate(timeout=60)
    return rows, states.read_text()


def steps_of(text):
    """The steps of a table's rows, without those of validations."""
    return [int(step) for step in re.findall(r"^ *(\d+) +\d+\.\d{4} .*\d", text, re.MULTILINE)]


def wait_for(condition):
    limit = time.monotonic() + 60
    while not condition() and time.monotonic() < limit:
        time.sleep(0.02)
    return condition()


def logged(name):
    try:
        return [json.loads(line)["step"] for line in (work / name / "metrics.jsonl").read_text().splitlines(True)
                if line.endswith("\n")]
    except FileNotFoundError:
        return []


# --- a run that is done, followed from before its begin ---------------------------------------------------------------
follower = follow(work / "done", "--last=3")
train("done", 30).wait(120)
rows, states = ended(follower)
expect("a follower waits for a run to start", states.startswith(f"{work}/done: has no metrics.jsonl yet; waiting"), states)
expect("shows each step once", steps_of(rows) == list(range(1, 31)), rows + states)
expect("with the validations", [row.split()[0] for row in rows.splitlines() if re.match(r" *\d+ +\d+\.\d{4}$", row)]
       == ["10", "20", "30"], rows)
expect("and ends with the run", follower[0].returncode == 0 and states.rstrip().endswith("complete, step 30 of 30"), states)

before = {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in (work / "done").rglob("*")}
done = run(work / "done")
lines = done.stdout.splitlines()
expect("a run that is done is shown", done.returncode == 0 and lines[0] == f"{work}/done: complete, step 30 of 30",
       done.stdout + done.stderr)
expect("with a plot of its loss", "⠒⠒ loss " in lines[2] and "o validation_loss" in lines[2] and "┤" in done.stdout, done.stdout)
expect("and its last steps", steps_of(done.stdout) == list(range(21, 31)), done.stdout)
header = next(line for line in lines if "grad_norm" in line)
expect("in columns", header.split() == ["step", "loss", "validation_loss", "grad_norm", "lr", "tokens_per_second", "left"], header)
expect("validations are beside their step", len(lines[-1].split()) == 8 and lines[-1].split()[0] == "30"
       and lines[-1].split()[-1] == "0s", lines[-1])
expect("a pipe gets no escape codes, and lines of at most 80 columns",
       "\x1b" not in done.stdout and max(map(len, lines)) <= 80, done.stdout)
expect("the folder is only read",
       before == {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in (work / "done").rglob("*")})
done = run(work / "done", "--ascii", "--keys", "grad_norm,step_labels", "--last", 2)
expect("other metrics are drawn, in ASCII", "* grad_norm" in done.stdout and "* step_labels" in done.stdout
       and done.stdout.removeprefix(str(work)).isascii(), done.stdout)
expect("and are columns", steps_of(done.stdout) == [29, 30] and "step_labels" in done.stdout.splitlines()[-3], done.stdout)
done = run(work / "done", "--no-plot", "--last=0")
expect("plot and table can be left out", done.stdout == f"{work}/done: complete, step 30 of 30\n", done.stdout)

# --- a run that is killed, and resumes ---------------------------------------------------------------------------------
process = train("killed", 100_000)
wait_for(lambda: len(logged("killed")) > 30)
running = run(work / "killed", "--no-plot")
expect("a run is shown while it trains", re.match(rf"{work}/killed: running, step \d+ of 100000, \S+ left\n", running.stdout),
       running.stdout)
follower = follow(work / "killed", "--last=1")
time.sleep(1)  # some steps
process.kill()
process.wait()
rows, states = ended(follower)
last = max(logged("killed"))
followed = steps_of(rows)
expect("a follower ends when the run is killed", follower[0].returncode == 0
       and states.rstrip().endswith(f"killed: stopped after step {last} of 100000"), states)
expect("having shown every step since its start", followed == list(range(followed[0], last + 1)) and len(followed) > 1,
       rows[-2000:])
with open(work / "killed/metrics.jsonl", "a") as file:
    file.write('{"step":123456,"lo')
stopped = run(work / "killed", "--last=1")
expect("half a line is no step", f"stopped after step {last} of 100000\n" in stopped.stdout
       and steps_of(stopped.stdout) == [last], stopped.stdout)

follower = follow(work / "killed", "--last=1")
expect("the run resumes", train("killed", last + 40).wait(120) == 0)
rows, states = ended(follower)
expect("a follower waits for a killed run to resume", "; waiting for it to resume" in states.splitlines()[0], states)
expect("and goes on with its new steps", steps_of(rows)[0] == last and steps_of(rows)[-1] == last + 40
       and set(range(last, last + 41)) <= set(steps_of(rows)) and min(steps_of(rows)) > 20, rows[-2000:] + states)
expect("to its end", states.rstrip().endswith(f"complete, step {last + 40} of {last + 40}"), states)

process = train("interrupted", 100_000)
wait_for(lambda: logged("interrupted"))
follower, _ = follow(work / "interrupted")
follower.send_signal(signal.SIGINT)
follower.wait(20)
expect("Ctrl-C ends a follower, and not the run", follower.returncode == -signal.SIGINT and process.poll() is None)
process.kill()
process.wait()

# --- several runs ------------------------------------------------------------------------------------------------------
both = run(work / "done", work / "killed/")
expect("several runs are drawn in one plot", f"* {work}/done loss" in both.stdout and f"+ {work}/killed loss" in both.stdout,
       both.stdout)
table = both.stdout.rstrip().splitlines()[-3:]
expect("and have a row each", [row.split()[0] for row in table] == ["run", f"{work}/done", f"{work}/killed"]
       and table[1].split()[1] == "30", "\n".join(table))

# --- a terminal --------------------------------------------------------------------------------------------------------


def on_terminal(*arguments, rows=24, columns=80, **variables):
    """Returns what the command writes to a terminal, and its exit code."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    process = subprocess.Popen([lehr, "metrics", *map(str, arguments)], stdin=theirs, stdout=theirs, stderr=theirs,
                               env={**environment, "TERM": "xterm", **variables})
    os.close(theirs)
    output = b""
    while select.select([ours], [], [], 60)[0]:
        try:
            output += os.read(ours, 65536)
        except OSError:  # closed
            break
    os.close(ours)
    return output.decode().replace("\r\n", "\n"), process.wait(20)


process = train("on_terminal", 400)
wait_for(lambda: logged("on_terminal"))
shown, code = on_terminal("--follow", work / "on_terminal")
process.wait(60)
frames = shown.split("\x1b[?7l")[1:]
expect("a terminal shows frames in place of each other", code == 0 and len(frames) > 1
       and all(re.search(rf"\x1b\[{frame.count(chr(10))}A\r$", frame) for frame in frames[:-1]), shown[-2000:])
expect("which fit it", all(frame.count("\n") <= 23 for frame in frames), frames[-1])
expect("the last one is complete", "complete, step 400 of 400" in frames[-1] and "\x1b[36m" in frames[-1], frames[-1])
shown, code = on_terminal(work / "done", rows=30, columns=120)
expect("a plot is as wide as the terminal", max(len(re.sub(r"\x1b\[\d+m", "", line)) for line in shown.splitlines()) == 120, shown)
expect("NO_COLOR is respected", "\x1b" not in on_terminal(work / "done", NO_COLOR="1")[0])
expect("TERM=dumb gets lines", "\x1b" not in on_terminal(work / "done", "--follow", TERM="dumb")[0])

# --- odd files and wrong use -------------------------------------------------------------------------------------------


def folder_with(name, text):
    (work / name).mkdir()
    (work / name / "metrics.jsonl").write_text(text)
    return work / name


odd = folder_with("odd", 'notes\n{"step":1,"loss":2.5,"x\\u001b[2J":1}\n\0\0\0\n[]\n{"step":2,"loss":null,"lr":0.1}\n')
done = run(odd)
expect("odd lines are counted, and values that are not finite", done.returncode == 0 and done.stdout.startswith(
    f"{odd}: step 2; loss was not finite at 1 step; 3 lines of metrics.jsonl are no metrics\n"), done.stdout + done.stderr)
expect("and shown as nan", done.stdout.splitlines()[-1].split() == ["2", "nan", "1.00e-01"], done.stdout)
expect("a name cannot control the terminal", "\x1b" not in run(odd, "--keys=los").stderr)


def wrong(name, arguments, *expected):
    done = run(*arguments)
    expect(f"wrong use: {name}", done.returncode == 2 and done.stdout == "" and all(part in done.stderr for part in expected),
           f"exit code {done.returncode}: {done.stdout}{done.stderr}")


wrong("no run", [], "expected the folder of a run (job.dump_folder)")
wrong("no folder", [work / "donn"], "there is no such folder, did you mean", "/done'?", "--follow")
(work / "empty").mkdir()
wrong("no metrics", [work / "empty"], "holds no metrics.jsonl; name the folder of a run (job.dump_folder), or wait")
wrong("no step", [folder_with("no_step", "")], "has no step yet", "--follow")
wrong("no line of metrics", [folder_with("text", "hello\n")], "none of its lines is a JSON object with an integer \"step\"")
wrong("a file", [TINY], "expected the folder of a run, found a file")
wrong("an unknown metric", [work / "done", "--keys=grad_nrom"], "--keys: 'grad_nrom' is not a metric of", "did you mean 'grad_norm'?",
      "found grad_norm, loss, ")
wrong("an unknown metric of a run that is followed", [work / "done", "--keys=grad_nrom", "--follow"], "did you mean 'grad_norm'?")
wrong("no metric", [work / "done", "--keys="], "--keys: expected names of metrics")
wrong("a run twice", [work / "done", f"{work}/done/"], "is given twice")
wrong("an option of another command", [work / "done", "--training.steps=3"], "'--training.steps' is not an option")
(work / "pipe").mkdir()
os.mkfifo(work / "pipe/metrics.jsonl")
wrong("a pipe, which would block", [work / "pipe"], "expected a file, found a pipe")

# --- a long run --------------------------------------------------------------------------------------------------------


def peak_kib(folder):
    # The address sanitizer would keep freed lines for a while.
    options = os.environ.get("ASAN_OPTIONS", "") + ":quarantine_size_mb=0:thread_local_quarantine_size_kb=0"
    process = subprocess.Popen([lehr, "metrics", folder, "--keys", "loss,lr"], stdout=subprocess.DEVNULL,
                               env={**os.environ, "ASAN_OPTIONS": options.lstrip(":")})
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return usage.ru_maxrss if process.returncode == 0 else None


line = '{{"step":{},"loss":2.345678901234567,"grad_norm":0.5,"lr":0.0003,"step_seconds":0.25}}\n'
short = peak_kib(folder_with("short", "".join(line.format(step) for step in range(1, 101))))
began = time.monotonic()
long = peak_kib(folder_with("long", "".join(line.format(step) for step in range(1, 300_001))))
expect("300,000 steps take the memory of 100", short and long and long < short + 8192, f"{short} KiB and {long} KiB")
print(f"      in {time.monotonic() - began:.1f} s")

shutil.rmtree(work)
exit_with_failures()
