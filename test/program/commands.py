#!/usr/bin/env python3
"""Tests the commands of the program, as their help describes them, on a run of a few seconds.

Usage: commands.py LEHR      (standard library only)
"""
import gzip, json, os, random, shutil, signal, struct, subprocess, sys, tempfile, time
from pathlib import Path

lehr = os.path.abspath(sys.argv[1])
work = Path(tempfile.mkdtemp(prefix="lehr-commands-"))
SMALL = ["--model.args.hidden_size=32", "--model.args.intermediate_size=64", "--model.args.num_hidden_layers=2",
         "--model.args.num_attention_heads=2", "--model.args.num_key_value_heads=1", "--model.args.head_dim=16",
         "--training.seq_len=64", "--training.steps=12", "--lr_scheduler.warmup_steps=2", "--validation.freq=6",
         "--validation.steps=3", "--sample.max_new_tokens=20", "--checkpoint.interval=6",
         "--data.validation_fraction=0.02"]


def run(*arguments, code=0, **options):
    done = subprocess.run([lehr, *map(str, arguments)], capture_output=True, text=True, timeout=120, **options)
    assert done.returncode == code, f"{arguments}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


def holds(what, condition):
    assert condition, what
    print(f"holds: {what}")


# --- help ------------------------------------------------------------------------------------------------------------
commands = ["train", "plan", "eval", "score", "generate", "verify", "merge", "inspect", "convert", "prune", "search",
            "tokenize", "metrics", "launch"]
overview = run("--help")
holds("--help names every command", all(f"  {command} " in overview for command in commands))
for command in commands:
    text = run(command, "--help")
    holds(f"{command} --help explains itself", f"lehr {command}" in text and "--" in text)
holds("the config's help has every section",
      all(f"[{s}]" in run("train", "--help") for s in ("job", "model", "training", "optimizer", "peft", "checkpoint")))
run(code=2)

# --- train -----------------------------------------------------------------------------------------------------------
out = work / "run"
run("train", "recipe/quickstart.toml", f"--job.dump_folder={out}", *SMALL, "--profiling.enable_profiling=true",
    "--profiling.profile_freq=6")
lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
steps = [line for line in lines if "loss" in line]
holds("metrics.jsonl has every step", [line["step"] for line in steps] == list(range(1, 13)))
holds("with loss, gradient norm, learning rate, tokens and speed",
      {"loss", "grad_norm", "lr", "num_tokens", "tokens_per_second"} <= set(steps[-1]))
validation = [line for line in lines if "validation_loss" in line]
holds("the loss on held-out data is logged", [line["step"] for line in validation] == [6, 12])
holds("the loss on held-out data falls", validation[-1]["validation_loss"] < validation[0]["validation_loss"])
events = list((out / "tensorboard").glob("events.out.tfevents.*"))
holds("TensorBoard has its events", len(events) == 1 and events[0].stat().st_size > 500)
holds("there is a picture of the loss", "<svg" in (out / "loss.svg").read_text())
traces = list((out / "profile").rglob("*.json*"))
opened = [gzip.open(t, "rt") if t.suffix == ".gz" else open(t) for t in traces]
holds("traces are Chrome's", traces and all(json.load(file)["traceEvents"] for file in opened))
holds("checkpoints are there", sorted(p.name for p in (out / "checkpoints").iterdir()) == ["step-12", "step-6"])

def on_cpu(name, code=0):
    """Trains with LEHR_CPU set, and returns all that the program wrote."""
    done = subprocess.run([lehr, "train", "recipe/quickstart.toml", f"--job.dump_folder={work / 'cpu' / name}", *SMALL,
                           "--training.dtype=bfloat16"],
                          capture_output=True, text=True, timeout=120, env={**os.environ, "LEHR_CPU": name})
    assert done.returncode == code, f"LEHR_CPU={name}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


holds("LEHR_CPU limits the kernels, and a run says so",
      "kernels for plain x86-64 (LEHR_CPU), " in on_cpu("generic"))
holds("LEHR_CPU must be known", "LEHR_CPU: expected one of generic, " in on_cpu("avx3", code=2))

again = work / "again"
text = (out / "config.toml").read_text().replace(str(out), str(again))
(work / "resolved.toml").write_text(text)
run("train", work / "resolved.toml", "--quiet", "--profile")
bits = [(folder / "checkpoints/step-12/model.safetensors").read_bytes() for folder in (out, again)]
holds("the saved config gives the same weights, bit for bit, also under --profile", bits[0] == bits[1])
table = json.loads((again / "profile/operators.json").read_text())
holds("--profile keeps a table of operators, for people and for programs",
      (table["first_step"], table["steps"]) == (3, 3) and "matmul" in (again / "profile/operators.txt").read_text())
holds("for that start alone", "operator_table = false" in (again / "config.toml").read_text())
run("train", work / "resolved.toml", "--quiet")
holds("a run that is done stays as it is", (again / "metrics.jsonl").read_text().count("\n") == len(lines))

# --- plan ------------------------------------------------------------------------------------------------------------
plan = work / "plan"
quick = ["plan", "recipe/quickstart.toml", "--machine", "cpu"]
shown = run(*quick, "--output", plan)
holds("plan shows time, memory and the bottleneck",
      all(word in shown for word in ("tokens/s", "MFU", "fits:", "bottleneck", "activations")))
planned = json.loads((plan / "plan.json").read_text())
holds("plan.json has the numbers", planned["fits"] and planned["devices"] == 1 and planned["step_seconds"] > 0)
holds("plan's files are there", {p.name for p in plan.iterdir()}
      == {"report.txt", "plan.json", "memory.svg", "timeline.svg", "timeline.html", "memory.html"})
holds("a device that is too small is exit code 3", "DOES NOT FIT" in run(*quick, "--memory-gb", "0.301", code=3))
run("plan", "recipe/quickstart.toml", "--machine", "h10", code=2)
run(*quick, "--search", code=2)
for arguments, expected in [
    (["--devices", "3", "--parallelism.data_parallel_shard_degree=2"], "the degrees take 2 devices, found --devices 3"),
    (["--devices", "3", "--parallelism.tensor_parallel_degree=2"], "does not divide the 3 of --devices"),
    (["--machine.memmory=3"], "--machine: memmory: unknown key"),
    (["--machine.memory_gb=0"], "--machine: memory_gb: expected more than 0"),
    (["--output", "README.md"], "--output: README.md is not a writable folder"),
    (["--search", "--devices", "2", "--training.global_batch_size=8", "--peer.pointwise_bytes=2"], "--peer: a search"),
]:
    done = subprocess.run([lehr, *quick, *arguments], capture_output=True, text=True, timeout=120)
    holds(f"a plan with {' '.join(arguments)} is refused by name",
          (done.returncode, done.stdout, expected in done.stderr) == (2, "", True))
run(*quick, "--parallelism.tensor_parallel_degree=2", code=2)
run("plan", "recipe/plan_llama3_405b.toml", "--no-schedules", "--output", plan, "--model.args.num_hidden_layers=64",
    "--parallelism.pipeline_parallel_first_stage_less_layers=0", "--parallelism.pipeline_parallel_last_stage_less_layers=0")
piped = json.loads((plan / "plan.json").read_text())
holds("16,384 devices are planned in a moment", piped["devices"] == 16384 and len(piped["ranks"]) == 16)
found = run(*quick, "--search", "--devices", "4", "--training.global_batch_size=8")
holds("a search gives keys to train with", "[parallelism]" in found and "dp_" in found)
refused = work / "refused"
for change in ("--machine.rank_deviation=0.1", "--peer.pointwise_bytes=2", "--optimizer.name=muon"):
    holds(f"an emulation with {change} is refused before its plan is shown or written",
          run(*quick, "--emulate", "--output", refused, change, code=2) == "" and not refused.exists())
for arguments, expected in [
    (["--calibrate", "--emulate"], "lehr plan --calibrate: --emulate has no effect"),
    (["--calibrate", "--output", refused], "--output has no effect, because a calibration prints a machine"),
    (["recipe/quickstart.toml", "--calibrate", "--search", "--devices", "4"], "--search has no effect"),
    (["--calibrate", "--memory-gb=3"], "lehr plan CONFIG.toml --machine machine.toml --memory-gb ..."),
    (["--calibrate", "--peer.pointwise_bytes=2"], "--peer.* keys have no effect"),
    (["--calibrate", "--training.seq_len=64"], "--training.seq_len belongs to the config of a run; name the config"),
]:
    done = subprocess.run([lehr, "plan", *map(str, arguments)], capture_output=True, text=True, timeout=120)
    holds(f"plan {' '.join(map(str, arguments))} is refused by name",
          (done.returncode, done.stdout, expected in done.stderr) == (2, "", True) and not refused.exists())
machine = work / "machine.toml"
machine.write_text(run("plan", "--calibrate"))
holds("a calibrated machine is one", "MFU" in run("plan", "recipe/quickstart.toml", "--machine", machine))

# --- the others ------------------------------------------------------------------------------------------------------
model = out / "checkpoints/step-12"
report = json.loads(run("eval", out / "config.toml"))
holds("eval gives the logged loss", report["loss"] == validation[-1]["validation_loss"])
holds("eval takes an older checkpoint",
      json.loads(run("eval", out / "config.toml", "--model", out / "checkpoints/step-6"))["loss"]
      == validation[0]["validation_loss"])
both = ["--data.datasets.0.path=recipe/data/c4_sample.jsonl", "--data.validation_fraction=0",
        "--data.validation_path=recipe/data/c4_sample.jsonl", "--validation.steps=-1"]
holds("eval --train-data reads the training data once and in order, as if it were held out",
      json.loads(run("eval", out / "config.toml", *both, "--train-data"))
      == json.loads(run("eval", out / "config.toml", *both)))
holds("and no held-out data", json.loads(run("eval", out / "config.toml", "--train-data"))["loss"] != report["loss"])

# A folder from somebody else: what is in it is reported or ignored, and never run.
hostile = work / "hostile"
shutil.copytree(model, hostile)
settings = json.loads((hostile / "config.json").read_text())
settings["auto_map"] = {"AutoModelForCausalLM": "modeling_evil.Evil"}
settings["_attn_implementation"] = "evil/kernel"
(hostile / "config.json").write_text(json.dumps(settings))
(hostile / "modeling_evil.py").write_text(f"open({str(work / 'ran')!r}, 'w')\n")
(hostile / "pytorch_model.bin").write_bytes(b"\x80\x02cposix\nsystem\n.")
(hostile / "notes.txt").symlink_to("/etc/hostname")
told = run("inspect", hostile, "--untrusted", code=3)
holds("inspect --untrusted names what a folder would do elsewhere",
      all(f"danger  {what}" in told for what in ("config.json: auto_map", "config.json: _attn_implementation",
                                                 "modeling_evil.py", "notes.txt: a link out", "pytorch_model.bin: a pickle")))
holds("and a checkpoint of its own has nothing", " 0 dangers, 0 notes" in run("inspect", model, "--untrusted"))
holds("inspect names the keys that it ignores", "config.json: auto_map" in run("inspect", hostile, "--no-tensors"))
run("generate", "--model", hostile, "--prompt", "a", "--max-new-tokens", "2")
holds("nothing of it runs", not (work / "ran").exists())
(hostile / "model.safetensors").unlink()
run("generate", "--model", hostile, "--prompt", "a", code=2)
secret = "hf_" + "s3cret" * 4
quiet = work / "quiet"
done = subprocess.run([lehr, "train", "recipe/quickstart.toml", f"--job.dump_folder={quiet}", *SMALL, "--training.steps=2",
                       "--lr_scheduler.warmup_steps=1"],
                      capture_output=True, text=True, timeout=120, env={**os.environ, "HF_TOKEN": secret, "API_KEY": secret})
written = b"".join(path.read_bytes() for path in quiet.rglob("*") if path.is_file())
holds("no variable of the environment is logged or saved",
      done.returncode == 0 and secret not in done.stdout + done.stderr and secret.encode() not in written)

measure = ["score", out / "config.toml", "--max-rows", "24"]
process = subprocess.Popen([lehr, "score", str(out / "config.toml"), "--max-rows=100000", f"--output={work}/stopped"],
                           stderr=subprocess.PIPE, text=True)
blocked = 0
while not blocked & 1 << signal.SIGINT - 1:  # until it receives signals
    blocked = int(Path(f"/proc/{process.pid}/status").read_text().split("SigBlk:")[1].split()[0], 16)
    time.sleep(0.01)
process.send_signal(signal.SIGINT)
said = process.communicate()[1]
holds("Ctrl-C ends score in one line", process.returncode == 130 and said.splitlines()[-1].startswith(
    "lehr score: stopped by Ctrl-C ") and said.endswith("/stopped is unchanged\n"))
holds("and leaves no scores", not (work / "stopped").exists())
told = run(*measure, "--output", work / "measured")
facts = json.loads((work / "measured/scores.json").read_text())
holds("score says what it did", set(facts["formulas"]) == {"ffn_channels", "kv_heads", "attention", "ffn"}
      and all(formula in told for formula in facts["formulas"].values())
      and facts["model"] == "step-12" and 0 < facts["num_tokens"] <= 24 * 64 and facts["num_batches"] == 3)
listed = run("inspect", work / "measured/scores.safetensors")
holds("for each layer", all(f"layers.{layer}.{kind}" in listed for layer in (0, 1) for kind in facts["formulas"]))
run(*measure, "--output", work / "measured_again")
holds("the same data gives the same scores, bit for bit", (work / "measured/scores.safetensors").read_bytes()
      == (work / "measured_again/scores.safetensors").read_bytes())
run(*measure, "--output", work / "measured_again", "--held-out", "--kinds", "kv_heads,ffn_channels", "--ffn-method", "l2")
listed = run("inspect", work / "measured_again/scores.safetensors")
holds("and only the kinds that are asked for, replacing what was there",
      "kv_heads" in listed and "ffn_channels" in listed and "attention" not in listed)
run(*measure, "--output", work / "unmeasured", "--kinds", "kv_heads,expert", code=2)
run(*measure, "--output", work / "unmeasured", "--kinds", "experts", code=2)
run(*measure, "--output", work / "unmeasured", "--kinds", "", code=2)
run(*measure, "--output", out / "config.toml", code=2)
holds("kinds of parts that the model lacks are refused", not (work / "unmeasured").exists())
run("prune", "--model", out / "checkpoints/step-12", "--scores", work / "measured", "--ffn-width", "32",
    "--drop-attention", "1", "--output", work / "by_measure")
holds("prune takes them", 0 < json.loads(run("eval", out / "config.toml", "--model", work / "by_measure"))["loss"] < 20)

write = ["generate", "--model", model, "--prompt", "ROMEO:", "--max-new-tokens", "30"]
holds("the same seed writes the same text", run(*write, "--seed", "3") == run(*write, "--seed", "3"))
holds("another seed another one", run(*write, "--seed", "3") != run(*write, "--seed", "4"))
ids = json.loads(run(*write, "--ids", "--temperature", "0"))
more = json.loads(run("generate", "--model", model, "--tokens", json.dumps(list(b"ROMEO:")), "--max-new-tokens", "30",
                      "--temperature", "0"))
holds("ids go in and out, and greedy text needs no seed", len(ids) == 30 and ids == more)
holds("text begins with its prompt", run(*write).startswith("ROMEO:"))
holds("a prompt that is refused is not printed", run(*write[:-1], "1000000000", code=2) == "")

shown = run("inspect", model)
holds("inspect shows shape, size and tensors", "model.layers.0.self_attn.q_proj.weight" in shown and "qwen3" in shown)

picture = work / "blocks.svg"
shown = run("inspect", model, "--picture", picture, "--seq-len", "64")
holds("and the costs of layers, drawn too", "KV head" in shown and "KV cache" in shown and "<svg" in picture.read_text())
(work / "shape").mkdir()
shutil.copy(model / "config.json", work / "shape")
holds("for which config.json is enough", "no weights" in run("inspect", work / "shape"))
run("inspect", model / "model.safetensors", "--picture", picture, code=2)
holds("a workload of any size is counted, and the tensors are listed",
      all(word in run("inspect", model, "--seq-len", "100000000", "--num-sequences", "100000000")
          for word in ("KV cache", "model.layers.0.self_attn.q_proj.weight")))

mixture = "test/data/reference/qwen3moe_sparse_step2"
shown = run("inspect", "--map", mixture)
holds("inspect --map shows what becomes of experts",
      "stack 0" in shown and "model.layers.1.mlp.grouped_experts.up_proj.weight" in shown and "8 x 12 x 24" in shown)
fused, back = work / "fused", work / "back"
run("convert", "--model", mixture, "--output", fused, "--expert-layout", "fused", "--max-shard-size-mb", "1")
holds("inspect --map shows the other layout", "split 1 [12, 12]" in run("inspect", "--map", fused))
holds("a fused folder is the same model",
      run("generate", "--model", fused, "--tokens", "[1, 2]", "--temperature", "0", "--max-new-tokens", "8")
      == run("generate", "--model", mixture, "--tokens", "[1, 2]", "--temperature", "0", "--max-new-tokens", "8"))
run("convert", "--model", fused, "--output", back, "--expert-layout", "per_expert")
holds("and there and back gives the same bytes",
      (back / "model.safetensors").read_bytes() == Path(mixture, "model.safetensors").read_bytes())
blocks, whole = work / "blocks", work / "whole"
run("convert", "--model", fused, "--output", blocks, "--subblocks", "--expert-layout", "per_expert")
holds("a folder of sub-blocks is the same model", (blocks / "subblocks_safetensors/block_1_ffn.safetensors").exists()
      and run("generate", "--model", blocks, "--tokens", "[1, 2]", "--temperature", "0", "--max-new-tokens", "8")
      == run("generate", "--model", mixture, "--tokens", "[1, 2]", "--temperature", "0", "--max-new-tokens", "8"))
run("convert", "--model", blocks, "--output", whole)
holds("and together again they are the same bytes",
      (whole / "model.safetensors").read_bytes() == Path(mixture, "model.safetensors").read_bytes())
run("convert", "--model", blocks, "--output", work / "new", "--subblocks", "--max-shard-size-mb", "1", code=2)
target, hidden = work / "killed", work / ".killed.converting"
convert = [lehr, "convert", "--model", mixture, "--output", target, "--subblocks"]


def writes_until(seconds):
    """Starts a conversion, kills it this long after its hidden folder appeared, and returns how long it has written."""
    process = subprocess.Popen(convert, stdout=subprocess.DEVNULL)
    while process.poll() is None and not hidden.exists():
        time.sleep(0.0002)
    began = time.monotonic()
    while process.poll() is None and time.monotonic() - began < seconds:
        time.sleep(0.0002)
    process.kill()
    process.wait()
    return time.monotonic() - began


writing = writes_until(60)  # runs to its end
holds("a conversion ends", target.exists() and not hidden.exists())
killed, attempts = 0, 0
while killed < 5 and attempts < 100:
    attempts += 1
    shutil.rmtree(target, ignore_errors=True)
    shutil.rmtree(hidden, ignore_errors=True)  # else the next conversion would appear to have created it
    wait = random.random() * writing
    writes_until(wait)
    if target.exists():
        writing = max(wait, 0.7 * writing)  # this run completed: the first one may have been delayed
        same = [(target / "subblocks_safetensors" / file.name).read_bytes() == file.read_bytes()
                for file in (blocks / "subblocks_safetensors").iterdir()]
        assert all(same) and (target / "config.json").exists(), f"half of a folder at attempt {attempts}"
    elif hidden.exists():
        killed += 1
shutil.rmtree(target, ignore_errors=True)
holds(f"a conversion that is killed leaves no half of a folder ({killed} of {attempts} killed in the middle)", killed > 0)
hidden.mkdir(exist_ok=True)
run("convert", "--model", mixture, "--output", target, "--subblocks")
holds("and the next one succeeds, whatever it left", not hidden.exists() and target.exists())
(work / "swap.json").write_text('[{"layer": 0, "attention": {"no_op": true}, "ffn": {"model": "blocks", "layer": 1}}]')
run("convert", "--model", mixture, "--replace", work / "swap.json", "--output", work / "child")
holds("sub-blocks of several models are a model",
      "none" in run("inspect", work / "child")
      and len(json.loads(run("generate", "--model", work / "child", "--tokens", "[1, 2]", "--ids", "--temperature", "0",
                             "--max-new-tokens", "8"))) == 8)

# --- prune -----------------------------------------------------------------------------------------------------------
shape = json.loads((model / "config.json").read_text())
scores = work / "scores"
scores.mkdir()
(scores / "scores.json").write_text("{}")
values = {f"layers.{n}.ffn_channels": [(n + 1) * (c % 16) for c in range(shape["intermediate_size"])] for n in range(2)}
header, payload = {}, b""
for name, numbers in values.items():
    packed = struct.pack(f"<{len(numbers)}d", *numbers)
    header[name] = {"dtype": "F64", "shape": [len(numbers)], "data_offsets": [len(payload), len(payload) + len(packed)]}
    payload += packed
encoded = json.dumps(header).encode()
encoded += b" " * (-len(encoded) % 8)
(scores / "scores.safetensors").write_bytes(struct.pack("<Q", len(encoded)) + encoded + payload)
pruned = work / "pruned"
shown = run("prune", "--model", model, "--scores", scores, "--ffn-width", "16", "--output", pruned)
holds("prune tells what became smaller", "FFN channels" in shown and "128 -> 32" in shown and "parameters" in shown)
record = json.loads((pruned / "pruning.json").read_text())
holds("prune keeps the highest scores and writes them down",
      record["layers"][1] == {"layer": 1, "ffn_channels": [c for c in range(64) if c % 16 >= 12]})
child = json.loads((pruned / "config.json").read_text())
holds("a child whose layers are alike has an ordinary config.json",
      child["intermediate_size"] == 16 and "block_configs" not in child)
holds("a child generates", run("generate", "--model", pruned, "--prompt", "a", "--max-new-tokens", "2") is not None)
run("prune", "--model", model, "--like", pruned / "pruning.json", "--output", work / "pruned_again")
holds("and is reproduced from its record",
      all((work / "pruned_again" / name).read_bytes() == (pruned / name).read_bytes()
          for name in ("model.safetensors", "config.json", "pruning.json", "tokenizer.json")
          if (pruned / name).exists()))
run("prune", "--model", model, "--by", "random", "--seed", "3", "--ffn-width", "64", "--output", work / "same")
holds("pruning to equal size changes no byte",
      all((work / "same" / name).read_bytes() == (model / name).read_bytes()
          for name in ("model.safetensors", "config.json")))
run("prune", "--model", mixture, "--by", "first", "--experts", "4", "--kv-heads", "1", "--drop-ffn-layers", "0,2-2",
    "--layers", "1-3", "--subblocks", "--output", work / "fewer_experts")
holds("experts and halves of layers go",
      all(word in run("inspect", work / "fewer_experts") for word in ("2 of 4 x 12", "1 KV head", "none")))
unwritten = work / "unwritten"
for wrong, message in [
        (["--ffn-width", "16"], "scores are needed; set --scores, or choose --by random or first"),
        (["--scores", scores, "--drop-attention", "1"], "has no attention at all; lehr score makes them"),
        (["--scores", model, "--ffn-width", "1"], "expected a folder of scores, found no scores.json"),
        (["--scores", scores, "--by", "random", "--ffn-width", "16"], "none of the other options uses scores"),
        ([], "nothing to do; set a size"),
        (["--ffn-width", "16", "--seed", "3"], "--seed: needs --by random"),
        (["--like", pruned / "pruning.json", "--ffn-width", "16"], "--like: already lists all parts to keep"),
        (["--drop-ffn-layers", "1-x"], 'expected layers as 3,5,10-12, found "1-x"'),
        (["--drop-ffn-layers", ""], 'expected layers as 3,5,10-12, found ""'),
        (["--ffn-width", "16", "--by", "first", "--layers", "0,"], 'expected layers as 3,5,10-12, found "0,"'),
        (["--drop-ffn-layers", "1", "--by", "random", "--seed", "3"], "--by: nothing is chosen by it"),
        (["--drop-ffn-layers", "3-1"], "3-1: expected the lower number first"),
        (["--ffn-with", "16"], "--ffn-with: unknown option; did you mean --ffn-width?")]:
    done = subprocess.run([lehr, "prune", "--model", model, "--output", unwritten, *map(str, wrong)],
                          capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and message in done.stderr and not unwritten.exists(), (wrong, done.stderr)
holds("wrong use of prune is refused before anything is written", True)
run("prune", "--model", model, "--by", "first", "--ffn-width", "1", "--output", pruned, code=2)

half = work / "half"
run("convert", "--model", model, "--output", half, "--dtype", "bfloat16")
holds("another type in half the size, and the tokenizer is there",
      (half / "model.safetensors").stat().st_size < 0.6 * (model / "model.safetensors").stat().st_size
      and run("generate", "--model", half, "--prompt", "a", "--max-new-tokens", "2") is not None)

lines_in = [{"text": "To be, or not to be"}, {"text": "¿Qué? 🙂"}]
encoded = run("tokenize", "--tokenizer", "test/data/tokenizer/qwen3", "--jsonl",
              input="".join(json.dumps(line) + "\n" for line in lines_in))
decoded = run("tokenize", "--tokenizer", "test/data/tokenizer/qwen3", "--jsonl", "--decode", input=encoded)
holds("text to ids and back is the same text", [json.loads(line) for line in decoded.splitlines()] == lines_in)
odd = run("tokenize", "--tokenizer", "byte", "--jsonl", "--append-eos",
          input='{"text": "a"}\r\n\r\n{"text": "\\ud83d"}\r\n')
holds("lines may be blank and hold half a surrogate pair, and get an end if asked for",
      [json.loads(line)["ids"] for line in odd.splitlines()] == [[97, 256], [0xEF, 0xBF, 0xBD, 256]])
tokens = work / "shakespeare.tokens"
run("tokenize", "--tokenizer", "byte", "recipe/data/tinyshakespeare.txt", "--output", tokens)
run("train", "recipe/quickstart.toml", f"--job.dump_folder={work / 'tokens'}", *SMALL,
    f"--data.datasets.0.path={tokens}", "--quiet")
bits = [(folder / "checkpoints/step-12/model.safetensors").read_bytes() for folder in (out, work / "tokens")]
holds("a token file trains like the text that it was made from, bit for bit", bits[0] == bits[1])

short = work / "short.txt"
short.write_text("To be, or not to be; that is the question, whether it is nobler. " * 80)
done = subprocess.run([lehr, "train", "recipe/quickstart.toml", f"--job.dump_folder={work / 'short'}", *SMALL,
                       f"--data.datasets.0.path={short}", "--data.repeat=false", "--data.validation_fraction=0",
                       "--validation.enable=false"], capture_output=True, text=True, timeout=120)
holds("one pass over the data tells which sequences are left out",
      done.returncode == 0 and "the data is used up after 10 of the 12 steps" in done.stderr
      and "the run ends there, without the last 2 of 82 sequences, which do not fill a step" in done.stderr)

chat = work / "chat"
run("train", "recipe/sft_instruct.toml", f"--job.dump_folder={chat}", "--quiet",
    *[o for o in SMALL if "validation_fraction" not in o])
ask = ["generate", "--model", chat / "checkpoints/step-12", "--max-new-tokens", "8", "--temperature", "0"]
raw = run(*ask, "--prompt", "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
holds("generate --chat answers by the template that the run saved",
      raw.endswith("assistant\n" + run(*ask, "--prompt", "Hi", "--chat")))
packed = shutil.copytree(chat / "checkpoints/step-12", work / "packed")
(packed / "tokenizer.json.gz").write_bytes(gzip.compress((packed / "tokenizer.json").read_bytes()))
(packed / "tokenizer.json").unlink()
ask[2] = packed
holds("a model's tokenizer.json.gz is its tokenizer", raw.endswith("assistant\n" + run(*ask, "--prompt", "Hi", "--chat")))
own = shutil.copytree(chat / "checkpoints/step-12", work / "own_template")
template = (own / "chat_template.jinja").read_text()
(own / "chat_template.jinja").write_text(template.replace("<|im_start|>", "<|im_end|>"))
(work / "of_folder.toml").write_text(f"""
model = {{name = "qwen3", hf_assets_path = "{chat / 'checkpoints/step-12'}"}}
training = {{task = "sft", seq_len = 64}}
[data]
validation_path = "recipe/data/instructions_validation.json"
datasets = [{{path = "recipe/data/instructions.json", kind = "chat", prompt_key = "instruction", answer_key = "output"}}]
""")
measured = [json.loads(run("eval", work / "of_folder.toml", "--model", folder, *more))["loss"] for folder, *more in
            [(own,), (own, f"--tokenizer.path={own}"), (chat / "checkpoints/step-12",)]]
holds("eval renders conversations by the template of the model that it evaluates",
      measured[0] == measured[1] != measured[2])
endless = work / "endless_tokenizer"
endless.mkdir()
shutil.copy("recipe/data/chat_tokenizer/tokenizer.json", endless)
bare = work / "bare_tokenizer"
bare.mkdir()
shutil.copy("recipe/data/chat_tokenizer/tokenizer.json", bare)
(bare / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_start|>"}))
(work / "eos.jinja").write_text("{{ raise_exception('eos ' ~ eos_token) }}")
three = work / "three.txt"
three.write_text("0 a\n1 b\n2 c\n")
labels = [f"--data.datasets.0.path={three}", f"--data.validation_path={three}"]
run("train", "recipe/classify_text.toml", f"--job.dump_folder={work / 'three'}", "--quiet", "--training.num_labels=3",
    *labels, "--training.local_batch_size=2", *[o for o in SMALL if "validation_fraction" not in o and "sample" not in o])
classify = ["eval", "recipe/classify_text.toml", "--model", work / "three/checkpoints/step-12"]
holds("eval takes the number of labels from the model", json.loads(run(*classify, *labels))["items"] == 3)
four = work / "four.txt"
four.write_text("0 a\n3 d\n")
adapters = work / "adapters/checkpoints/step-12"
run("train", "recipe/quickstart.toml", f"--job.dump_folder={work / 'adapters'}", *SMALL, "--quiet",
    "--peft.method=lora", f"--checkpoint.initial_load_path={model}", "--optimizer.param_groups=[]")
holds("adapters are a small part of a model", {p.name for p in adapters.iterdir()} >= {"adapter_config.json",
      "adapter_model.safetensors", "optimizer.safetensors"} and not (adapters / "model.safetensors").exists())
apart = json.loads(run("eval", out / "config.toml", "--model", adapters))["loss"]
run("score", out / "config.toml", "--model", adapters, "--output", work / "unmeasured", code=2)
done = subprocess.run([lehr, "merge", "--adapter", str(adapters), "--output", str(work / "merged")],
                      capture_output=True, text=True, timeout=120)
holds("merge with the base of the training does not warn", done.returncode == 0 and "has other weights" not in done.stderr)
done = subprocess.run([lehr, "merge", "--adapter", str(adapters), "--model", str(out / "checkpoints/step-6"),
                       "--output", str(work / "other_base")], capture_output=True, text=True, timeout=120)
holds("merge names a base other than that of the training",
      done.returncode == 0 and "step-6: has other weights" in done.stderr)
done = subprocess.run([lehr, "merge", "--adapter", str(work / "adapters"), "--output", str(work / "no_base")],
                      capture_output=True, text=True, timeout=120)
holds("and the adapter that was meant", done.returncode == 2 and f"the newest checkpoint in it, {adapters}" in done.stderr)
done = subprocess.run([lehr, "eval", str(out / "config.toml"), "--model", str(chat / "checkpoints/step-12")],
                      capture_output=True, text=True, timeout=120)
holds("eval names a tokenizer other than the model's",
      done.returncode == 0 and "tokenizer.path: byte gives other ids than the tokenizer of the model" in done.stderr)
together = json.loads(run("eval", out / "config.toml", "--model", work / "merged"))["loss"]
holds("merged, they give the same loss to rounding", abs(together - apart) < 1e-5)
holds("inspect shows adapters", "q_proj.lora_A.weight" in run("inspect", adapters))

for full in (["inspect", model], ["train", "recipe/quickstart.toml", "--print-config"]):
    with open("/dev/full", "w") as target:
        done = subprocess.run([lehr, *map(str, full)], stdout=target, stderr=subprocess.PIPE, text=True, timeout=120)
    holds(f"{full[0]} fails if its output cannot be written", done.returncode == 1 and "standard output: not all" in done.stderr)
os.mkfifo(work / "pipe")
for arguments, message in {
    ("inspect", model, "--picture", work / "pipe"): "pipe: is a folder, a device or a pipe, not a file",
    ("inspect", model, "--no-tensors=true"): "--no-tensors: takes no value",
    ("tokenize", "--tokenizer", "byte", "--jsonl", "--output", work / "x.tokens"): "--output: with --jsonl the result goes to",
    ("tokenize", "--tokenizer", "byte", "--jsonl", "--skip-special"): "--skip-special needs --decode",
    ("tokenize", "--tokenizer", "byte", "--jsonl", "--threads", "2"): "--threads are for files; leave them out with --jsonl",
    ("tokenize", "--tokenizer", endless, "--jsonl", "--append-eos"): "endless_tokenizer names no eos_token",
    ("generate", "--model", "Qwen/Qwen3-0.6B", "--prompt", "a"): "hf download OWNER/NAME --local-dir Qwen/Qwen3-0.6B",
    (*ask, "--prompt", "a", "--chat", "--tokenizer", bare, "--chat-template", work / "eos.jinja"): "eos <|im_start|>",
    (*classify, f"--data.datasets.0.path={four}", f"--data.validation_path={four}", "--training.num_labels=4"):
        "training.num_labels: expected at least 4, the number of labels in the data, found 3, that of the model",
}.items():
    done = subprocess.run([lehr, *map(str, arguments)], capture_output=True, text=True, timeout=120)
    holds(message, done.returncode == 2 and message in done.stderr)
process = subprocess.Popen([lehr, "train", "recipe/quickstart.toml", f"--job.dump_folder={work / 'unread'}", *SMALL,
                            "--training.steps=100000", "--metrics.log_freq=1"], stderr=subprocess.PIPE, text=True)
for line in process.stderr:
    if "/100000 " in line:  # a step
        break
process.stderr.close()  # as Ctrl-C ends `tee`
process.send_signal(signal.SIGINT)
holds("a run whose log nobody reads any more saves and stops",
      process.wait(timeout=60) == 130 and list((work / "unread/checkpoints").glob("step-*")))

reference = "test/data/reference/qwen3_tied_v4config"
holds("verify holds on its reference", "0 over their tolerance" in run("verify", "--model", reference))
holds("and exits with 3 when it does not", "OVER" in run("verify", "--model", reference, "--atol", "1e-12", code=3))
computed = work / "computed.safetensors"
run("verify", "--model", reference, "--output", computed)
listed = run("inspect", computed)
holds("verify writes what it computed", all(name in listed for name in ("logits", "loss", "hidden.0", "packed_logits")))

shutil.rmtree(work)
