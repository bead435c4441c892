"""A long run that nobody disturbs, beside those of a soak: its memory, file descriptors and threads must not grow."""
import os, signal, statistics, threading, time
from pathlib import Path

from disturbed_run import Run, names
from expectations import TINY
from soak_draws import arguments_of
from trend import block_medians, theil_sen

RANKS = 2
SECONDS = 1.0        # between two samples
WARM_UP = 0.2        # of the samples, before the trend
PAGE = os.sysconf("SC_PAGE_SIZE") // 1024  # KiB
SETTINGS = {"model.name": "qwen3_moe", "model.args.num_experts": 4, "model.args.num_experts_per_tok": 2,
            "model.args.moe_intermediate_size": 8, "training.steps": 100000000, "training.global_batch_size": 2,
            "training.dtype": "float32", "parallelism.data_parallel_shard_degree": 2, "checkpoint.interval": 50,
            "validation.freq": 100, "metrics.enable_tensorboard": "true", "comm.train_timeout_seconds": 300}


class LongRun:
    """Two ranks as processes of lehr launch, with checkpoints, validation and all metrics; sampled by a thread."""

    def __init__(self, lehr, folder):
        self.run = Run(lehr, folder, TINY, RANKS, arguments_of({**SETTINGS, "metrics.prometheus": f"{folder}/metrics.prom"}))
        self.samples = {}  # by the name of the process: (step, KiB, descriptors, threads)
        self.done = threading.Event()
        self.sampler = threading.Thread(target=self.sample_until_done, daemon=True)

    def start(self):
        self.began = time.monotonic()
        self.run.folder.mkdir(parents=True)
        self.run.start()
        self.sampler.start()

    def sample_until_done(self):
        while not self.done.wait(SECONDS) and self.run.is_running():
            step = last_step(self.run.folder / "metrics.jsonl")
            if step == 0:
                continue
            for name, pid in [("launcher", self.run.process.pid)] + [(f"rank {r}", self.run.pid(r)) for r in range(RANKS)]:
                if sample := sample_of(pid):
                    self.samples.setdefault(name, []).append((step, *sample))

    def finish(self):
        """Stops the run; returns its exit code and standard error."""
        self.seconds = time.monotonic() - self.began
        self.alive = self.run.is_running()
        self.done.set()
        self.sampler.join()
        self.run.process.send_signal(signal.SIGTERM)
        error = self.run.end(seconds=120)
        return self.run.code, error

    def summary(self):
        """Returns steps, checkpoints, and for each process the trend of its memory and the range of its other figures."""
        lines = self.run.metrics()
        return {"seconds": round(self.seconds), "steps": max((line["step"] for line in lines), default=0),
                "validations": sum("validation_loss" in line for line in lines),
                "step_seconds": statistics.median([line["step_seconds"] for line in lines if "step_seconds" in line] or [0]),
                "processes": {name: figures_of(samples) for name, samples in self.samples.items()}}


def figures_of(samples):
    """Returns the figures of one process from its samples (step, KiB, descriptors, threads), without the warm-up."""
    settled = samples[int(len(samples) * WARM_UP):]
    slope, low, high = theil_sen([(step, kib) for step, kib, _, _ in settled]) if len({s[0] for s in settled}) > 1 else (0, 0, 0)
    steps = settled[-1][0] - settled[0][0]
    return {"kib_per_1000_steps": 1000 * slope, "low": 1000 * low, "high": 1000 * high, "steps": steps,
            "rss_kib": [settled[0][1], settled[-1][1]], "peak_kib": max(kib for _, kib, _, _ in samples),
            "descriptors": spread_of(settled, 2), "threads": spread_of(settled, 3),
            "curve": block_medians([(step, kib) for step, kib, _, _ in samples]),
            "level": is_level(1000 * slope, 1000 * low, 1000 * high, steps)}


def spread_of(samples, column):
    """Returns the medians of the first and the last tenth: peaks are due to saves."""
    tenth = max(1, len(samples) // 10)
    return [statistics.median(one[column] for one in part) for part in (samples[:tenth], samples[-tenth:])]


def is_level(slope, low, high, steps):
    """Returns whether a slope, in KiB per 1000 steps, is 0 within the noise: its interval has 0, or what it would add over
    all `steps` is less than a page."""
    return low <= 0 <= high or abs(slope) * steps / 1000 < PAGE


def sample_of(pid):
    """Returns resident KiB, open file descriptors and threads of a process; None if it has ended. Pages of files do not count:
    the kernel keeps those of the program's libraries, and drops them, as it likes."""
    try:
        status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line)
        kib = sum(int(status[key].split()[0]) for key in ("RssAnon", "RssShmem"))
        return kib, len(names(f"/proc/{pid}/fd")), int(status["Threads"])
    except (OSError, KeyError):
        return None


def last_step(path):
    """Returns the step of the last whole line of a metrics.jsonl, whatever its length; 0 without one."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.path.getsize(path) - 4096))
            lines = file.read().split(b"\n")[:-1]
        return int(lines[-1].split(b'"step":')[1].split(b",")[0]) if lines else 0
    except (OSError, IndexError, ValueError):
        return 0
