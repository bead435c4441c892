"""Starts the ranks of a run as if they were on machines of two ranks, each with a folder of its own for local checkpoints.

Usage: machines.py FOLDER RANKS COMMAND...      (standard library only)

The folder of machine M is FOLDER/machine-M. Ends when all ranks have ended, with an exit code of one that failed.
"""
import os, socket, subprocess, sys

folder, ranks, command = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
processes = []
for rank in range(ranks):
    local = f"{folder}/machine-{rank // 2}"
    os.makedirs(local, exist_ok=True)
    environment = {"RANK": rank, "WORLD_SIZE": ranks, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": ranks,
                   "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    processes.append(subprocess.Popen([*command, f"--checkpoint.local_folder={local}"],
                                      env={**os.environ, **{key: str(value) for key, value in environment.items()}}))
codes = [process.wait() for process in processes]
sys.exit(next((abs(code) for code in codes if code), 0))
