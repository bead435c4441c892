"""The faults of a soak, injected into one run after the other, and the checks that each run must pass in the end."""
import os, shutil, signal, time

from disturbed_run import Run, file_limit, flip_a_bit, wait_until
from expectations import TINY
from soak_draws import STEPS

DIAGNOSED_IN = 90   # seconds, on a busy machine, with a time limit of 10 s for collectives
STEP_IN = 120       # seconds from a start to its next step
LARGEST_FILE = 48   # KiB, to simulate a full disk: the log is smaller, checkpoints are larger
STOPPED = (128 + signal.SIGTERM, 128 + signal.SIGINT)


class Disturbed:
    """One run of a soak: its processes, and what has happened to it."""

    def __init__(self, lehr, work, episode):
        self.episode, self.rng, self.work = episode, episode.rng, work
        self.temporary = work / "tmp"
        self.temporary.mkdir(parents=True)
        self.run = Run(lehr, work / "run", TINY, threads=episode.threads,
                       environment={"TMPDIR": str(self.temporary)}, rng=self.rng)
        self.exact = True       # the mesh is still that of the undisturbed run
        self.damaged = set()    # checkpoints that were set aside
        self.dead_launchers = 0
        self.problems, self.recoveries, self.skipped = [], [], []
        self.use(episode.mesh)

    def use(self, mesh):
        self.run.ranks = mesh.ranks
        self.run.arguments = self.episode.settings() + mesh.arguments()

    @property
    def is_launched(self):
        return self.run.ranks > 1 and not self.run.threads

    def expect(self, condition, text):
        if not condition:
            self.problems.append(text)
        return condition

    def start(self, restarts=100, **how):
        self.run.start(launch=("--restarts", restarts) if self.is_launched and restarts else (), **how)

    def last_step(self):
        return max(self.run.losses(), default=0)

    def run_some_steps(self):
        """Waits for some more steps; returns false if the run has ended before."""
        step = self.last_step() + self.rng.randrange(2, 8)
        wait_until(lambda: self.last_step() >= step or not self.run.is_running(), STEP_IN)
        time.sleep(self.rng.uniform(0, 0.05))
        return self.run.is_running() and self.last_step() < STEPS

    def train(self):
        """Runs to the end, with all faults; returns the wall time."""
        begin = time.monotonic()
        self.start()
        for kind in self.episode.faults:
            if not self.run_some_steps():
                self.skipped.append(kind)
                continue
            fault = time.monotonic()
            before = self.last_step()
            inject = getattr(self, kind.replace("-", "_"))
            if inject():
                further = wait_until(lambda: self.last_step() > before or not self.run.is_running(), STEP_IN)
                self.expect(further, f"{kind}: no step within {STEP_IN} s")
                self.recoveries.append((kind, time.monotonic() - fault))
            else:
                self.skipped.append(kind)
        error = self.run.end(seconds=300)
        seconds = time.monotonic() - begin
        self.expect(self.run.code == 0, f"exit code {self.run.code}: {error}")
        return seconds

    # --- the faults: each returns false if there was nothing to disturb -----------------------------------------------
    def end_by(self, number):
        """Sends a signal to a random rank; returns standard error of the run, which ends."""
        self.run.hit(self.rng.randrange(self.run.ranks), number)
        error = self.run.end(seconds=DIAGNOSED_IN)
        self.expect(self.run.code is not None, f"signal {number}: the run hangs")
        return error

    def lose(self, victim, number, problem):
        """Sends a signal to a rank; the launcher must then end all ranks, and start them again."""
        first = self.run.pid(0)
        if not self.run.hit(victim, number):
            return False
        gone = wait_until(lambda: not os.path.exists(f"/proc/{first}"), DIAGNOSED_IN)
        return self.expect(gone, problem)

    def kill(self):
        if not self.is_launched:
            self.end_by(signal.SIGKILL)
            self.start()
            return True
        return self.lose(self.rng.randrange(self.run.ranks), signal.SIGKILL, "SIGKILL of a rank: the others go on, or hang")

    def kill_save(self):
        self.run.pid(0)  # the search for it takes longer than a save
        self.run.wait_for_a_save()
        return self.kill()

    def stop(self):
        victim = self.rng.randrange(self.run.ranks)
        if self.is_launched:
            return self.lose(victim, signal.SIGSTOP, "SIGSTOP of a rank: the others hang")
        if not self.run.hit(victim, signal.SIGSTOP):
            return False
        time.sleep(self.rng.uniform(0.2, 3))
        self.run.hit(victim, signal.SIGCONT)
        return True

    def term(self):
        error = self.end_by(signal.SIGTERM)
        if self.run.code == 0:  # it was in its last step
            return False
        self.expect(self.run.code in STOPPED, f"SIGTERM: exit code {self.run.code}: {error}")
        newest = self.run.newest().name
        self.expect(newest == f"step-{self.last_step()}", f"SIGTERM: the newest checkpoint is {newest}, after step {self.last_step()}")
        self.start()
        return True

    def disk(self):
        self.end_by(signal.SIGTERM)
        if self.run.code == 0:
            return False
        kept = {path.name for path in self.run.folder.glob("checkpoints/step-*")}
        self.start(restarts=0, wrap=file_limit(LARGEST_FILE))
        self.run_some_steps()
        error = self.end_by(signal.SIGTERM)
        self.expect("was not saved" in error, f"disk full: no message, exit code {self.run.code}: {error}")
        now = {path.name for path in self.run.folder.glob("checkpoints/step-*")}
        self.expect(kept == now, f"disk full: checkpoints {sorted(kept)} became {sorted(now)}")
        self.start()
        return True

    def flip(self):
        self.end_by(self.rng.choice([signal.SIGTERM, signal.SIGKILL]) if not self.is_launched else signal.SIGTERM)
        if self.run.code == 0:
            return False
        whole = self.run.checkpoints()
        if len(whole) < 2:  # of the only checkpoint damage is an error
            self.start()
            return False
        newest = whole[-1]
        file = newest / self.rng.choice(["model.safetensors", "optimizer.safetensors", "trainer.json", "integrity.json"])
        flip_a_bit(file, self.rng)
        self.start()
        aside = newest.with_name(f"{newest.name}.damaged")
        wait_until(lambda: aside.exists() or not self.run.is_running(), STEP_IN)
        if self.expect(aside.exists(), f"{file.name}: a flipped bit in {newest.name} was not found"):
            self.damaged.add(aside.name)
        return True

    def ranks(self):
        self.end_by(signal.SIGTERM)
        if self.run.code == 0:
            return False
        self.use(self.episode.other_mesh())
        self.exact = False
        self.start()
        return True

    def launcher(self):
        if not self.is_launched:  # since the fault "ranks"
            return False
        self.run.process.kill()
        self.run.end()
        self.dead_launchers += 1
        gone = wait_until(lambda: not self.run.processes(), DIAGNOSED_IN)
        self.expect(gone, "SIGKILL of the launcher: its ranks go on, or hang")
        self.start()
        return True

    # --- the checks -----------------------------------------------------------------------------------------------------
    def check(self, whole):
        """Compares with the undisturbed run `whole` of the same mesh: bits, or losses on another one, and what is left."""
        if self.run.code != 0:
            return
        losses, expected = self.run.losses(), whole.losses()
        if self.exact:
            self.expect(self.run.bits(STEPS) == whole.bits(STEPS), "the weights or moments are not those of the undisturbed run")
            self.expect(losses == expected, "the logged losses are not those of the undisturbed run")
        else:
            worst = max((abs(losses.get(step, 0) / loss - 1) for step, loss in expected.items()), default=1)
            self.expect(worst < 1e-9 and len(losses) == STEPS, f"on another mesh the losses differ by {worst:.1e}")
        self.expect(not self.run.processes(), f"processes are left: {self.run.processes()}")
        mine, others = files_of(self.run.folder, self.damaged), files_of(whole.folder, ())
        self.expect(mine == others, f"files: left behind {sorted(mine - others)}, missing {sorted(others - mine)}")
        left = os.listdir(self.temporary)
        self.expect(len(left) <= self.dead_launchers, f"temporary files of {self.dead_launchers} killed launchers: {left}")

    def remove(self):
        shutil.rmtree(self.work)


def files_of(folder, damaged):
    """Returns the names of all files of a run except what the documentation promises to leave: the records of failures, and
    checkpoints that were set aside because of damage."""
    found = set()
    for root, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name != "flight_record" and name not in damaged]
        found |= {os.path.relpath(os.path.join(root, name), folder) for name in files + folders}
    return found
