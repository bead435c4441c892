"""The runs that faults.py disturbs, and what must hold after each fault: a diagnosis, nothing left behind, and the same bits."""
import random, re, shutil, tempfile, time
from pathlib import Path

from disturbed_run import Run
from expectations import TINY, expect

SETTINGS = ["--data.validation_fraction=0", "--training.steps=60", "--training.dtype=float64", "--checkpoint.interval=1",
            "--checkpoint.keep_latest_k=3", "--comm.init_timeout_seconds=60", "--comm.train_timeout_seconds=5"]
STEPS, RANKS = 60, 4
MESH = ["--parallelism.data_parallel_shard_degree=2", "--parallelism.tensor_parallel_degree=2"]
DIAGNOSED_IN = 10  # seconds, beside the time limit of a collective and that of starting a process on a busy machine


class Harness:
    """The runs of one seed, with one process or RANKS, and the rows of the table."""

    def __init__(self, lehr, seed):
        self.lehr, self.rng = lehr.resolve(), random.Random(seed)
        self.work = Path(tempfile.mkdtemp(prefix="lehr-faults-"))
        shutil.copy("recipe/data/tinyshakespeare.txt", self.work / "data.txt")
        self.rows, self.undisturbed = [], {}

    def new_run(self, name, ranks, data=None):
        """Returns a run in a folder of its own."""
        settings = [*SETTINGS, f'--data.datasets=[{{path="{data or self.work / "data.txt"}"}}]']
        return Run(self.lehr, self.work / name, TINY, ranks, settings + (MESH if ranks == RANKS else []), rng=self.rng)

    def whole(self, ranks):
        """Returns an undisturbed run on that many ranks."""
        if ranks not in self.undisturbed:
            run = self.undisturbed[ranks] = self.new_run(f"undisturbed_{ranks}", ranks)
            begin = time.monotonic()
            code, error = run.finish()
            run.seconds = time.monotonic() - begin
            assert code == 0, error
        return self.undisturbed[ranks]

    def has_same_bits(self, run):
        return run.code == 0 and run.bits(STEPS) == self.whole(run.ranks).bits(STEPS)

    def goes_on(self, name, run, fault, diagnosed):
        """Starts the run again after a fault: it has the bits of an undisturbed run, and leaves nothing behind."""
        done = run.steps()
        begin = time.monotonic()
        run.start()
        run.wait_for(done + 1)
        run.recovered = recovered = time.monotonic() - begin
        error = run.end()
        expect(f"{name}: the run goes on with the bits of an undisturbed one", self.has_same_bits(run), f"exit code {run.code}\n{error}")
        expect(f"{name}: nothing is left behind", not run.leftovers(), run.leftovers())
        self.rows.append((fault, f"{diagnosed:.1f} s" if diagnosed is not None else "at the next start", f"{recovered:.1f} s"))

    def ends(self, name, run, code, *patterns, within=DIAGNOSED_IN, begin=None):
        """Waits for the end of a run that was hit; returns the seconds until then."""
        begin = begin or time.monotonic()
        error = run.end()
        took = time.monotonic() - begin
        missing = [pattern for pattern in patterns if not re.search(pattern, error)]
        expect(f"{name}: it ends in {took:.1f} s with exit code {run.code} and says why",
               run.code in code and not missing and took <= within + self.whole(run.ranks).seconds, f"not found: {missing}\n{error}")
        return took
