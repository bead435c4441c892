"""The runs that faults.py disturbs, and what must hold after each fault: a diagnosis, nothing left behind, and the same bits."""
import random, re, shutil, tempfile, time
from pathlib import Path

from disturbed_run import Run
from expectations import expect

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


class Harness:
    """The runs of one seed, with one process or RANKS, and the rows of the table."""

    def __init__(self, lehr, seed):
        self.lehr, self.rng = lehr.resolve(), random.Random(seed)
        self.work = Path(tempfile.mkdtemp(prefix="lehr-faults-"))
        shutil.copy("recipe/data/tinyshakespeare.txt", self.work / "data.txt")
        self.rows, self.undisturbed = [], {}

    def new_run(self, name, ranks, data=None):
        """Returns a run in a folder of its own."""
        config = self.work / f"{name}.toml"
        config.write_text(CONFIG.replace("DATA", str(data or self.work / "data.txt")))
        return Run(self.lehr, self.work / name, config, ranks, MESH if ranks == RANKS else [], rng=self.rng)

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
