"""Tests lehr eval, generate, verify and score with a process, or a thread, per rank: they print what one device prints.

Usage: commands_on_ranks.py LEHR
"""

import json
import os
import subprocess
import sys
import tempfile

from expectations import TINY, exit_with_failures, expect

lehr = sys.argv[1]

SETTINGS = ["--model.name=qwen3_moe", "--model.args.moe_intermediate_size=16", "--model.args.num_experts=4",
            "--model.args.num_experts_per_tok=2", "--model.args.initializer_range=0.2", "--data.validation_fraction=0.002",
            "--training.local_batch_size=4", "--training.steps=2", "--training.dtype=float64", "--lr_scheduler.warmup_steps=1",
            "--validation.local_batch_size=4"]


def degrees(**wanted):
    return [f"--parallelism.{name}_degree={count}" for name, count in wanted.items()]


def run(*command, env=None):
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env={**os.environ, **(env or {})})


with tempfile.TemporaryDirectory() as work:
    trained = run(lehr, "train", TINY, "--quiet", f"--job.dump_folder={work}/out", *SETTINGS)
    expect("a model is trained", trained.returncode == 0, trained.stderr)
    model = f"{work}/out/checkpoints/step-2"
    evaluate = ["eval", TINY, "--model", model, *SETTINGS]
    generate = ["generate", "--model", model, "--prompt", "JULIET: O", "--max-new-tokens", "20", "--dtype", "float64", "--seed", "4"]
    alone = json.loads(run(lehr, *evaluate).stdout)
    text = run(lehr, *generate)
    expect("one device generates", text.returncode == 0 and len(text.stdout) > 15, text.stderr)

    def check_eval(name, done):
        try:
            found = json.loads(done.stdout)  # exactly one object, of rank 0
        except json.JSONDecodeError:
            found = {}
        ok = done.returncode == 0 and found.get("items") == alone["items"] and abs(found["loss"] / alone["loss"] - 1) < 1e-12
        expect(f"eval {name}", ok, f"{done.stdout}\n{done.stderr}\nexpected {alone}")

    def check_text(name, done):
        expect(f"generate {name}", done.returncode == 0 and done.stdout == text.stdout, f"{done.stdout}\n{done.stderr}")

    meshes = {
        "two shards": (2, degrees()),
        "tensor parallel": (2, degrees(tensor_parallel=2)),
        "two stages": (2, degrees(pipeline_parallel=2)),
        "experts, shards and tensors": (4, degrees(data_parallel_shard=2, tensor_parallel=2, expert_parallel=4)),
    }
    for name, (ranks, options) in meshes.items():
        launch = [lehr, "launch", "-n", str(ranks)]
        check_eval(f"on {name}", run(*launch, "--", *evaluate, *options))
        check_text(f"on {name}", run(*launch, "--", *generate, *options))
        check_eval(f"on threads, {name}", run(*launch, "--threads", "--", *evaluate, *options))
        check_text(f"on threads, {name}", run(*launch, "--threads", "--", *generate, *options))
    check_eval("on parts of sequences", run(lehr, "launch", "-n", "2", "--", *evaluate, *degrees(context_parallel=2)))
    check_eval("on one device of a run that was sharded", run(lehr, *evaluate, *degrees(tensor_parallel=4)))
    check_eval("on one device of a run that was sharded and offloaded",
               run(lehr, *evaluate, *degrees(tensor_parallel=4), "--parallelism.fsdp_cpu_offload=true"))

    # Started by hand with srun's variables: each process prints for itself.
    port = str(23000 + os.getpid() % 9000)
    processes = [
        subprocess.Popen([lehr, *evaluate, *degrees(tensor_parallel=2)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                         env={**os.environ, "SLURM_PROCID": str(r), "SLURM_NTASKS": "2", "SLURM_LOCALID": str(r),
                              "SLURM_STEP_ID": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port})
        for r in range(2)]
    outputs = [process.communicate(timeout=300) for process in processes]
    check_eval("under srun", subprocess.CompletedProcess([], processes[0].returncode, *outputs[0]))
    expect("other ranks print nothing", processes[1].returncode == 0 and outputs[1][0] == "", outputs[1])

    # A reference of its own: on a mesh, the same tensors as on one device are compared, and rank 0 alone prints them.
    verify = ["verify", "--model", "test/data/reference/llama_rope_llama3", "--dtype", "float64"]
    compared = [line for line in run(lehr, *verify).stdout.splitlines() if line.startswith(("logits", "hidden", "gen_tokens"))]
    expect("one device verifies", len(compared) == 8, str(compared))
    for threads in ([], ["--threads"]):
        done = run(lehr, "launch", "-n", "2", *threads, "--", *verify, *degrees(tensor_parallel=2))
        names = [line.split()[0] for line in done.stdout.splitlines()]
        ok = done.returncode == 0 and all(names.count(line.split()[0]) == 1 for line in compared) and "train_losses:" in names
        expect(f"verify on tensor-parallel ranks {threads}", ok, f"{done.returncode}\n{done.stdout}{done.stderr}")
    done = run(lehr, "launch", "-n", "2", "--", *verify, "--atol", "0")
    expect("a difference on a mesh is exit code 3", done.returncode == 3 and "OVER" in done.stdout, f"{done.returncode}\n{done.stderr}")

    score = ["score", TINY, "--model", model, "--max-rows", "8", *SETTINGS]
    # With one thread, as each rank: MKL's float64 matmuls round by the number of threads on CPUs with AVX2 alone.
    alone_scores = run(lehr, *score, "--output", f"{work}/scores", env={"OMP_NUM_THREADS": "1"})
    expect("one device scores", alone_scores.returncode == 0, alone_scores.stderr)
    for ranks, threads in ((2, []), (4, ["--threads"])):
        output = f"{work}/scores-{ranks}"
        done = run(lehr, "launch", "-n", str(ranks), *threads, "--", *score, "--output", output)
        same = done.returncode == 0 and all(
            open(f"{work}/scores/{file}", "rb").read() == open(f"{output}/{file}", "rb").read() for file in ("scores.json", "scores.safetensors"))
        expect(f"score on {ranks} shards {threads}", same, f"{done.returncode}\n{done.stdout}{done.stderr}")

    for name, command, words in (
            ("generation on parts of sequences", [*generate, *degrees(context_parallel=2)],
             "parallelism.context_parallel_degree: generation and verification need whole sequences"),
            ("generation by replicas", [*generate, *degrees(data_parallel_replicate=2)],
             "parallelism.data_parallel_replicate_degree: replicas would all do the same work"),
            ("scores of parts of layers", [*score, "--output", f"{work}/none", *degrees(tensor_parallel=2)],
             "parallelism.tensor_parallel_degree: lehr score needs whole layers"),
            ("more ranks than started", [*evaluate, *degrees(tensor_parallel=4)], "lehr launch -n 4"),
            ("an unknown key", [*generate, "--parallelism.tensor_degree=2"], "parallelism.tensor_degree"),
            ("another command's key", [*generate, "--training.steps=2"], "training"),
            ("a folder without a model", ["generate", "--model", work, "--prompt", "a"], "config.json")):
        done = run(lehr, "launch", "-n", "2", "--", *command)
        expect(f"{name} is refused by name", done.returncode == 2 and done.stderr.count(words) >= 1 and done.stdout == "",
               f"{done.returncode}\n{done.stdout}{done.stderr}")
    done = run(lehr, "launch", "-n", "2", "--", "convert", "--model", model, "--output", f"{work}/copy")
    expect("a command without a mesh is refused by name", done.returncode == 2 and "'convert' runs on one rank" in done.stderr, done.stderr)

exit_with_failures()
