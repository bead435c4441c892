"""The lines of a benchmark about the machine and the tree that it ran on."""
import datetime
import os
import platform
import resource
import subprocess

HERE = os.path.dirname(os.path.abspath(__file__))
# The flags of /proc/cpuinfo that decide which kernels run, strongest first.
INSTRUCTION_SETS = (("amx_bf16", "AMX"), ("avx512_bf16", "AVX-512 with BF16"), ("avx512f", "AVX-512"), ("avx2", "AVX2"))


def peak_rss_mb():
    """Returns the peak resident memory of this process in MB (10^6 bytes); ru_maxrss is in KiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


def cpuinfo(path="/proc/cpuinfo"):
    """Returns the entries of the first CPU."""
    found = {}
    with open(path) as f:
        for line in f:
            key, _, value = line.partition(":")
            if not key.strip():
                break
            found[key.strip()] = value.strip()
    return found


def cpu_class(info=None):
    """Returns vendor, family, model and instruction set: CPUs of one class run the same kernels at the same rate per
    cycle. "AMD family 25 model 17, AVX-512 with BF16"."""
    info = cpuinfo() if info is None else info
    vendor = {"AuthenticAMD": "AMD", "GenuineIntel": "Intel"}.get(info.get("vendor_id", ""), info.get("vendor_id"))
    flags = set(info.get("flags", "").split())
    kernels = next((name for flag, name in INSTRUCTION_SETS if flag in flags), "no AVX2")
    if not vendor:
        return platform.machine()
    return f"{vendor} family {info.get('cpu family')} model {info.get('model')}, {kernels}"


def available_mb():
    """Returns the memory that is free for programs, in MB."""
    with open("/proc/meminfo") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("MemAvailable")) * 1024 / 1e6


def commit():
    """Returns the commit of the tree, with "and local changes" if there are any."""
    def git(*arguments):
        try:
            return subprocess.run(["git", "-C", HERE, *arguments], capture_output=True, text=True).stdout.strip()
        except OSError:
            return ""

    name = git("rev-parse", "--short=9", "HEAD") or "unknown"
    changed = git("status", "--porcelain", "--untracked-files=no", "--", ":/", ":!/bench/*.md")
    return name + (" and local changes" if changed else "")


def origin():
    """Returns what a measured figure carries: commit, date, and the class of the machine."""
    return f"Commit {commit()}, {datetime.date.today().isoformat()}, {cpu_class()}, {os.cpu_count()} cores."
