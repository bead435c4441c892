"""Starts programs with a quota of CPU time, as a container has one."""
import os
import shutil
import subprocess
import tempfile
import time
from contextlib import contextmanager

from contenders import DidNotRun

PERIOD_US = 100_000
JOIN = ["sh", "-c", 'echo $$ >"$0" && exec "$@"']  # joins the group whose list of processes is $0


def controllers(root="/sys/fs/cgroup", own="/proc/self/cgroup"):
    """Returns the folders where this process may find a group with a quota: (folder, file, text of `cores` cores)."""
    paths = {}
    with open(own) as f:
        for line in f:
            _, names, path = line.strip().split(":", 2)
            paths |= {name: path.lstrip("/") for name in names.split(",")}
    found = [(os.path.join(root, paths.get("", "")), "cpu.max", lambda cores: f"{int(cores * PERIOD_US)} {PERIOD_US}")]
    if "cpu" in paths:
        found += [(os.path.join(root, folder, paths["cpu"]), "cpu.cfs_quota_us", lambda cores: str(int(cores * PERIOD_US)))
                  for folder in ("cpu", "cpu,cpuacct")]
    return found


def works(prefix):
    return subprocess.run([*prefix, "true"], capture_output=True).returncode == 0


@contextmanager
def quota(cores):
    """Gives the beginning of a command line that grants the rest `cores` cores, or a DidNotRun: by a control group, by
    systemd, or by cpulimit."""
    group, prefix = None, None
    for parent, file, text in controllers():
        group, prefix = group_with_quota(parent, file, text(cores))
        if prefix:
            break
    percent = f"{100 * cores:.0f}"
    for other in (["systemd-run", "--scope", "--quiet", "-p", f"CPUQuota={percent}%"],
                  ["systemd-run", "--user", "--scope", "--quiet", "-p", f"CPUQuota={percent}%"],
                  ["cpulimit", "-i", "-l", percent, "--"]):
        if not prefix and shutil.which(other[0]) and works(other):
            prefix = other
    try:
        yield prefix or DidNotRun("a quota needs a control group that this user may write, systemd-run or cpulimit")
    finally:
        if group:
            remove(group)


def group_with_quota(parent, file, text):
    """Makes a control group. Returns its folder and what joins it, or None twice."""
    try:
        group = tempfile.mkdtemp(prefix="lehr_quota_", dir=parent)
    except OSError:
        return None, None
    try:
        with open(os.path.join(group, file), "r+") as f:
            f.write(text)
        prefix = [*JOIN, os.path.join(group, "cgroup.procs")]
        if works(prefix):
            return group, prefix
    except OSError:
        pass
    remove(group)
    return None, None


def remove(group):
    for _ in range(50):  # the group is busy (EBUSY) until the kernel has released its last process
        try:
            os.rmdir(group)
            return
        except OSError:
            time.sleep(0.1)
