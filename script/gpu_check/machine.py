"""The machine: its GPU, the folder of LibTorch, environment variables, and the network."""
import csv
import fcntl
import glob
import importlib.util
import os
import platform
import shutil
import socket
import struct
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

TORCH_VERSION = "2.11.0"

# Peak of bfloat16 matmuls without sparsity in TFLOP/s, as in lehr/train/gpu_card.cpp. The first name that matches counts.
PEAKS = [("A100", 312), ("H100 PCIe", 756), ("H100 NVL", 835), ("H100", 989), ("H200 NVL", 835), (" H200", 989),
         (" B200", 2250)]
# The names of `lehr plan --machine`.
PLAN_MACHINES = [("A100", "a100"), ("H100", "h100"), (" H200", "h200")]


@dataclass
class Gpu:
    name: str = ""
    memory_bytes: float = 0
    driver: str = ""
    capability: str = ""

    @property
    def peak(self):
        return next((1e12 * tera for part, tera in PEAKS if part in self.name), 0)

    @property
    def plan_machine(self):
        return next((name for part, name in PLAN_MACHINES if part in self.name), "h100")

    @property
    def has_goals(self):
        """True for the cards for which the goals were set."""
        return any(part in self.name for part in ("H100 80GB HBM3", " H200")) and "NVL" not in self.name


def find_gpu():
    """Returns the first GPU of nvidia-smi, or None."""
    program = shutil.which("nvidia-smi")
    if not program:
        return None
    asked = subprocess.run([program, "--query-gpu=name,memory.total,driver_version,compute_cap", "--format=csv,noheader,nounits"],
                           capture_output=True, text=True, timeout=60)
    rows = list(csv.reader(asked.stdout.splitlines(), skipinitialspace=True)) if asked.returncode == 0 else []
    if not rows or len(rows[0]) < 4:
        return None
    name, memory, driver, capability = rows[0][:4]
    return Gpu(name, float(memory) * 2**20, driver, capability)


def find_torch(given, root, build):
    """Returns the folder of the torch package: the given one, the one that the program was built with, this Python's, or
    .venv's; None if there is none."""
    candidates = [given] if given else []
    if not given:
        cache = build / "CMakeCache.txt"
        lines = cache.read_text().splitlines() if cache.exists() else []
        candidates += [line.split("=", 1)[1] for line in lines if line.startswith("LEHR_TORCH_DIR:") and not line.endswith("=")]
        spec = importlib.util.find_spec("torch")
        candidates += list(spec.submodule_search_locations) if spec and spec.submodule_search_locations else []
        candidates += glob.glob(str(root / ".venv/lib/python3*/site-packages/torch"))
    for candidate in candidates:
        folder = Path(candidate)
        folder = folder if (folder / "lib").exists() else folder / "torch"
        if (folder / "lib/libtorch_cpu.so").exists():
            return folder
    return None


def torch_version(folder):
    for line in (folder / "version.py").read_text().splitlines():
        if line.startswith("__version__"):
            return line.split("'")[1]
    return "?"


def library_path(root, torch):
    """Returns the LD_LIBRARY_PATH with which a program that was built elsewhere finds its libraries."""
    nvidia = sorted(glob.glob(str(torch.parent / "nvidia/*/lib")))
    own = [str(root / "lib")] if (root / "lib").exists() else []
    return ":".join([str(torch / "lib"), *nvidia, *own])


def environment(root, torch):
    env = {k: v for k, v in os.environ.items() if not k.startswith(("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_"))}
    if (root / "PACKED").exists():
        env["LD_LIBRARY_PATH"] = library_path(root, torch)
    env["OMP_WAIT_POLICY"] = "PASSIVE"
    return env


def host():
    cores = len(os.sched_getaffinity(0))
    return f"{platform.system()} {platform.release()}, {cores} cores, Python {platform.python_version()}"


def without_network(arguments):
    """Starts this script again in a network namespace with loopback only. Returns the exit code, or None if the system
    does not allow that."""
    for options in (["-n"], ["-r", "-n"]):
        if shutil.which("unshare") and subprocess.run(["unshare", *options, "true"], capture_output=True).returncode == 0:
            script = str(Path(__file__).resolve().parent)
            return subprocess.run(["unshare", *options, sys.executable, script, *arguments, "--loopback-up"]).returncode
    return None


def bring_loopback_up():
    """Enables loopback in a new network namespace; ranks on one machine connect through it."""
    up, set_flags = 0x1, 0x8914
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, set_flags, struct.pack("16sh14x", b"lo", up))
