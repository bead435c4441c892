#!/usr/bin/env python3
"""Tests invalid input, one case per line: the program must exit with 2 and report the problem, its place and the remedy.

Usage: wrong_input.py LEHR FORKED_COMMANDS      (standard library only)
A case runs in a process forked from forked_commands, which has loaded the libraries; LEHR makes what the cases need.
"""
import json, os, re, shutil, struct, subprocess, sys, tempfile
from pathlib import Path

lehr, forked = map(os.path.abspath, sys.argv[1:3])
work = Path(tempfile.mkdtemp(prefix="lehr-wrong-input-"))

RUN = """
[model]
name = "qwen3"
flavor = "debugmodel"
[model.args]
hidden_size = 16
intermediate_size = 24
num_hidden_layers = 2
num_attention_heads = 2
num_key_value_heads = 1
head_dim = 8
vocab_size = 257
max_position_embeddings = 128
[tokenizer]
path = "byte"
[data]
validation_fraction = 0.001
[[data.datasets]]
path = "recipe/data/tinyshakespeare.txt"
[training]
seq_len = 32
local_batch_size = 2
global_batch_size = 2
steps = 2
[lr_scheduler]
warmup_steps = 1
[checkpoint]
interval = 2
[metrics]
measure_peak = false
enable_tensorboard = false
"""


def run(*arguments):
    return subprocess.run([lehr, *map(str, arguments)], capture_output=True, text=True, timeout=60)


def good_model():
    """Returns a folder with a model that was trained for two steps."""
    (work / "run.toml").write_text(RUN)
    done = run("train", work / "run.toml", "--quiet", f"--job.dump_folder={work}/out")
    assert done.returncode == 0, done.stderr
    return work / "out/checkpoints/step-2"


failures, cases = [], 0
# A command may map a terabyte, which limits nothing, and take a minute.
runner = subprocess.Popen([forked, "1000000", "60"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def run_forked(*arguments):
    """Returns the exit code and the errors."""
    runner.stdin.write("\t".join(map(str, arguments)) + "\n")
    runner.stdin.flush()
    result = json.loads(runner.stdout.readline())
    return result["code"], result["errors"]


def wrong(name, arguments, *expected, of=run_forked):
    """`expected`: patterns that the message must contain."""
    global cases
    cases += 1
    code, message = of(*arguments)
    missing = [p for p in expected if not re.search(p, message)]
    if code != 2 or missing:
        failures.append(name)
        print(f"FAILS {name}: exit code {code}, not found: {missing}\n      {message.strip()[-600:]}")
    elif os.environ.get("LEHR_SHOW"):
        print(f"{name}:\n      {message.strip()}")


def config(name, old, new, *expected, also=()):
    """Runs with one piece of the config replaced."""
    assert old in RUN, old
    path = work / f"{name.replace(' ', '_')}.toml"
    path.write_text(RUN.replace(old, new, 1))
    line = RUN[: RUN.index(old)].count("\n") + 1
    where = rf"{re.escape(path.name)}:({'|'.join(str(line + i) for i in range(3))}):\d+" if new else ""
    wrong(name, ["train", path, f"--job.dump_folder={work}/none", *also], where, *expected)


def model_copy(name):
    folder = work / name
    shutil.copytree(model, folder)
    return folder


def tensors(path):
    """Returns the header and the data of a safetensors file."""
    raw = path.read_bytes()
    (size,) = struct.unpack("<Q", raw[:8])
    return json.loads(raw[8 : 8 + size]), raw[8 + size :]


def write_tensors(path, header, data):
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def spoiled(name, spoil, *expected):
    """Reads a model folder, whose safetensors header `spoil(header, data)` has changed, by `inspect` and `eval`."""
    folder = model_copy(name.replace(" ", "_"))
    file = folder / "model.safetensors"
    header, data = tensors(file)
    changed = spoil(header, data)
    if isinstance(changed, bytes):
        file.write_bytes(changed)
    else:
        write_tensors(file, *(changed or (header, data)))
    for command in (["inspect", folder], ["generate", "--model", folder, "--prompt", "a"]):
        wrong(f"{name} ({command[0]})", command, r"model\.safetensors", *expected)


def spoiled_config(name, change, *expected):
    folder = model_copy(name.replace(" ", "_"))
    file = folder / "config.json"
    values = json.loads(file.read_text())
    values.update(change)
    file.write_text(json.dumps({k: v for k, v in values.items() if v is not None}))
    wrong(name, ["generate", "--model", folder, "--prompt", "a"], r"config\.json", *expected)


model = good_model()
weight = "model.layers.0.mlp.down_proj.weight"

# --- the config ------------------------------------------------------------------------------------------------------
config("unknown key", "seq_len = 32", "seq_length = 32", "training.seq_length", "seq_len")
config("unknown table", "[training]", "[trainign]", "trainign", "training")
config("wrong type", "seq_len = 32", 'seq_len = "long"', "training.seq_len", "integer")
config("out of range", "steps = 2\n", "steps = -2\n", "training.steps", "-2")
config("value not among the choices", 'name = "qwen3"', 'name = "qwen4"', "qwen4", "qwen3")
config("unknown flavor", 'flavor = "debugmodel"', 'flavor = "0.7B"', r"0\.7B", r"0\.6B")
config("broken TOML", "seq_len = 32", "seq_len = = 32")
config("missing data file", 'path = "recipe/data/tinyshakespeare.txt"', 'path = "recipe/data/tiny.txt"', r"tiny\.txt")
config("missing tokenizer folder", 'path = "byte"', 'path = "no/such/folder"', "no/such/folder")
config("heads do not divide", "num_attention_heads = 2", "num_attention_heads = 3", "num_key_value_heads|head",
       also=["--model.args.num_key_value_heads=2"])
config("odd head width", "head_dim = 8", "head_dim = 7", "head_dim", "7")
config("more tokens than positions", "seq_len = 32", "seq_len = 4096", "seq_len", "4096", "128")
config("vocabulary smaller than the tokenizer's", "vocab_size = 257", "vocab_size = 200", "vocab_size", "200", "257")
config("batches do not divide", "global_batch_size = 2", "global_batch_size = 3", "global_batch_size", "3")
config("more tokens than can be counted", "local_batch_size = 2\nglobal_batch_size = 2", "local_batch_size = 9223372036854775807",
       r"training\.local_batch_size: 9223372036854775807 sequences of 32 tokens", "accumulate gradients")
config("more sequences than can be counted", "global_batch_size = 2", "global_batch_size = 9223372036854775806",
       r"training\.global_batch_size: expected -1 or .* up to 2147483647")
config("no step of validation", "[lr_scheduler]", "[validation]\nsteps = 0\n[lr_scheduler]",
       r"validation\.steps: expected -1 or a positive number, found 0")
config("warm-up longer than the run", "warmup_steps = 1", "warmup_steps = 50", "warmup_steps", "50")
config("matmuls of every zeroth layer", "[training]", '[activation_checkpoint]\nmode = "selective"\n'
       'selective_ac_option = "op 0"\n[training]', "selective_ac_option", '"op n"', '"op 0"')
config("an option that mode auto would ignore", "[training]", '[activation_checkpoint]\nselective_ac_option = "op"\n[training]',
       "selective_ac_option", '"auto"', '"selective"')
config("parallelism on one device", "[training]", "[parallelism]\ndata_parallel_shard_degree = 2\n[training]",
       "parallelism")


def run_with_workspace(*arguments):
    done = subprocess.run([lehr, *map(str, arguments)], capture_output=True, text=True, timeout=60,
                          env={**os.environ, "CUBLAS_WORKSPACE_CONFIG": ":0:0"})
    return done.returncode, done.stderr


wrong("workspace of cuBLAS", ["train", work / "run.toml", "--debug.deterministic=true"], "CUBLAS_WORKSPACE_CONFIG is ':0:0'",
      ":4096:8", of=run_with_workspace)
wrong("missing config file", ["train", "no/such.toml"], r"no/such\.toml")
wrong("unknown key on the command line", ["train", work / "run.toml", "--training.step=3"], "training.step", "steps")
wrong("wrong type on the command line", ["train", work / "run.toml", "--training.steps=many"], "training.steps", "many")
wrong("no config file", ["train"], "config file")
wrong("a profile and none", ["train", work / "run.toml", "--profile", "--profiling.operator_table=false"],
      "--profile", r"profiling\.operator_table=false", "contradicts")
wrong("a profile of a run that is too short", ["train", work / "run.toml", "--profile"],
      r"profiling\.operator_table_steps", "training.steps")
wrong("a number in another form on the command line", ["train", work / "run.toml", "--training.steps=1e2"],
      r"--training\.steps: expected an integer, .*write 100")
wrong("an option with one dash", ["train", work / "run.toml", "-steps", "5"], r"-steps: .*two dashes; did you mean --training\.steps")
wrong("a key without its section", ["train", work / "run.toml", "--steps=5"], r"--steps: unknown option; did you mean --training\.steps")
wrong("one problem of a list", ["train", work / "run.toml", "--data.datasets=x"], r"\A[^\n]*expected a list of tables[^\n]*\n?\Z")
wrong("unknown command", ["trian"], "trian", "train")
wrong("unknown option", ["generate", "--modle", "x"], "modle", "model")
wrong("missing option", ["generate", "--prompt", "x"], "--model")

both = work / "several.toml"
both.write_text(RUN.replace("seq_len = 32", "seq_length = 32").replace("steps = 2\n", "steps = 0\n"))
wrong("all problems at once", ["train", both], "seq_length", "training.steps")

blocked = work / "a_file"
blocked.write_text("")
wrong("results cannot be written", ["train", work / "run.toml", f"--job.dump_folder={blocked}/x"], "a_file")

# --- converting ------------------------------------------------------------------------------------------------------
wrong("convert into a folder that is there", ["convert", "--model", model, "--output", work], str(work), "already")
wrong("convert into no folder", ["convert", "--model", model, "--output", work / "no/such"], "no such folder")
wrong("convert what is no model", ["convert", "--model", work / "none", "--output", work / "new"], "none")
wrong("unknown layout", ["convert", "--model", model, "--output", work / "new", "--expert-layout", "stacked"],
      "stacked", "per_expert", "fused")
wrong("convert to an unknown type", ["convert", "--model", model, "--output", work / "new", "--dtype", "int4"], "int4")
for option in (["--picture", work / "x.svg"], ["--dtype", "float32"], ["--num-sequences", "2"], ["--seq-len", "64"]):
    wrong(f"{option[0]} of one file", ["inspect", model / "model.safetensors", *option], option[0], r"config\.json")
wrong("a picture without a name", ["inspect", model, "--picture", ""], r"--picture: expected the name", '""')
wrong("a picture that is a folder", ["inspect", model, "--picture", work], r"--picture: expected the name", str(work))
wrong("a picture in no folder", ["inspect", model, "--picture", work / "no/x.svg"], "--picture", "no such folder")
twice = work / "twice.json"
twice.write_text('[{"layer": 0, "ffn": {"no_op": true}, "ffn": {"no_op": true}}]')
wrong("a key that stands twice", ["convert", "--model", model, "--replace", twice, "--output", work / "new"],
      r"twice\.json: \[0\]\.ffn: duplicate key")
wrong("the map of one file", ["inspect", "--map", model / "model.safetensors"], r"config\.json")
lacking = model_copy("lacking")
header, data = tensors(lacking / "model.safetensors")
header["model.layers.0.mlp.dwon_proj.weight"] = header.pop(weight)
write_tensors(lacking / "model.safetensors", header, data)
for command in (["inspect", "--map", lacking], ["convert", "--model", lacking, "--output", work / "new"]):
    wrong(f"a tensor under another name ({command[0]})", command, "lacks", weight.replace(".", r"\."))

# --- resuming --------------------------------------------------------------------------------------------------------
wrong("resume with another shape",
      ["train", work / "run.toml", f"--job.dump_folder={work}/out", "--model.args.hidden_size=32"],
      "step-2", "hidden_size|shape|\\[")
wrong("load a step that is not there",
      ["train", work / "run.toml", f"--job.dump_folder={work}/out", "--checkpoint.load_step=7"], "7", "2")
wrong("initial weights of another shape",
      ["train", work / "run.toml", f"--job.dump_folder={work}/other", "--model.args.hidden_size=32",
       f"--checkpoint.initial_load_path={model}"], "step-2", r"expected|hidden_size")
lora = ["train", work / "run.toml", f"--job.dump_folder={work}/other", "--peft.method=lora"]
wrong("initial weights that are not there", [*lora, f"--checkpoint.initial_load_path={work}/nowhere"],
      r"command line: --checkpoint\.initial_load_path: .*nowhere: no such")
wrong("a pattern of the end of a name", [*lora, f"--checkpoint.initial_load_path={model}", "--peft.target_pattern=q_proj"],
      r'peft\.target_pattern: "q_proj" matches .* no linear layer \("\.\*q_proj" does\)')
wrong("a group of frozen parameters", [*lora, f"--checkpoint.initial_load_path={model}", "--optimizer.param_groups.0.pattern=norm"],
      r"optimizer\.param_groups\.0\.pattern: .*no parameter that is trained; the first one is .*lora\.A", "remove the group")

# --- data ------------------------------------------------------------------------------------------------------------
ids = work / "wide.tokens"
text = work / "text.txt"
text.write_text("to be or not to be\n" * 200)
made = run("tokenize", "--tokenizer", "byte", text, "--output", ids)
assert made.returncode == 0, made.stderr
narrow = work / "narrow.toml"
narrow.write_text(RUN.replace("recipe/data/tinyshakespeare.txt", str(ids)))
raw = bytearray(ids.read_bytes())
wrong("token file cut short", ["train", (lambda p: (ids.with_name("cut.tokens").write_bytes(raw[: len(raw) // 2]),
      p.write_text(narrow.read_text().replace("wide.tokens", "cut.tokens")), p)[2])(work / "cut.toml"),
      f"--job.dump_folder={work}/none"], r"cut\.tokens")
(work / "short.txt").write_text("to be\n")
wrong("too little text to hold out a part", ["train", work / "run.toml", f"--job.dump_folder={work}/none",
      f"--data.datasets.0.path={work}/short.txt"], r"run\.toml:\d+:\d+: data\.validation_fraction: .*short\.txt holds \d tokens")
lines = work / "lines.jsonl"
lines.write_text('{"text": "fine"}\n{"text": 3}\n')
jsonl = work / "jsonl.toml"
jsonl.write_text(RUN.replace("recipe/data/tinyshakespeare.txt", str(lines)))
chats = work / "chats.jsonl"
chats.write_text('{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}\n{"messages": []}\n')
chat = work / "chat.toml"
chat.write_text(RUN.replace('path = "recipe/data/tinyshakespeare.txt"', f'path = "{chats}"\nkind = "chat"')
                .replace('path = "byte"', 'path = "recipe/data/chat_tokenizer"').replace("vocab_size = 257", "vocab_size = 1024"))
wrong("conversations for a language model", ["train", chat, f"--job.dump_folder={work}/none"], r"chat\.toml:\d+", "sft")
wrong("empty conversation", ["train", chat, f"--job.dump_folder={work}/none", "--training.task=sft"],
      r"chats\.jsonl:2: messages")
wrong("no chat template", ["train", chat, f"--job.dump_folder={work}/none", "--training.task=sft", "--tokenizer.path=byte"],
      r"tokenizer\.path", "chat_template")
wrong("no chat template to generate with", ["generate", "--model", model, "--prompt", "a", "--chat"], "chat template")
wrong("JSONL line without text", ["train", jsonl, f"--job.dump_folder={work}/none"], r"lines\.jsonl:2")

# --- safetensors -----------------------------------------------------------------------------------------------------
spoiled("truncated file", lambda h, d: (h, d[: len(d) // 2]), r"bytes|truncat|cut")
spoiled("header length beyond the file", lambda h, d: struct.pack("<Q", 1 << 40) + b"{}", "header")
spoiled("header is not JSON", lambda h, d: struct.pack("<Q", 8) + b"{\"a\": 1," + d, "header|JSON")
spoiled("empty file", lambda h, d: b"", "")


def overlap(h, d):
    names = sorted((n for n in h if n != "__metadata__"), key=lambda n: h[n]["data_offsets"])
    same = [(a, b) for a in names for b in names if a < b and h[a]["shape"] == h[b]["shape"]]
    h[same[0][1]]["data_offsets"] = h[same[0][0]]["data_offsets"]


spoiled("overlapping offsets", overlap, "overlap|offset")
spoiled("offsets outside of the file", lambda h, d: h[weight].update(data_offsets=[len(d), len(d) + 1536]),
        re.escape(weight), "bytes|offset|outside")
spoiled("unknown dtype", lambda h, d: h[weight].update(dtype="F33"), re.escape(weight), "F33")
spoiled("dtype that does not fit its bytes", lambda h, d: h[weight].update(dtype="F64"), re.escape(weight), "bytes")
spoiled("negative shape", lambda h, d: h[weight].update(shape=[-1, 24]), re.escape(weight), "-1|shape")

missing = model_copy("missing_tensor")
header, data = tensors(missing / "model.safetensors")
header["model.layers.0.mlp.another.weight"] = header.pop(weight)
write_tensors(missing / "model.safetensors", header, data)
wrong("missing tensor", ["generate", "--model", missing, "--prompt", "a"], re.escape(weight))

shaped = model_copy("tensor_of_another_shape")
header, data = tensors(shaped / "model.safetensors")
header[weight]["shape"] = list(reversed(header[weight]["shape"]))
write_tensors(shaped / "model.safetensors", header, data)
wrong("tensor of another shape", ["generate", "--model", shaped, "--prompt", "a"], re.escape(weight), "16", "24")

for name, target in (("index that leaves the folder", "../model.safetensors"),
                     ("index with an absolute path", str(model / "model.safetensors")),
                     ("index that names a missing file", "model-00007-of-00009.safetensors")):
    folder = model_copy(name.replace(" ", "_"))
    header, _ = tensors(folder / "model.safetensors")
    (folder / "model.safetensors").rename(folder / "model-00001-of-00001.safetensors")
    files = {n: "model-00001-of-00001.safetensors" for n in header if n != "__metadata__"}
    files[weight] = target
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}))
    wrong(name, ["generate", "--model", folder, "--prompt", "a"], r"index\.json", re.escape(os.path.basename(target)))

# --- config.json -----------------------------------------------------------------------------------------------------
spoiled_config("unknown model type", {"model_type": "mamba"}, "mamba", "qwen3")
spoiled_config("shape without hidden_size", {"hidden_size": None}, "hidden_size")
spoiled_config("text for a number", {"hidden_size": "wide"}, "hidden_size")
spoiled_config("heads that do not divide in config.json", {"num_attention_heads": 3, "num_key_value_heads": 2},
               "num_attention_heads|num_key_value_heads")
spoiled_config("unknown RoPE scaling", {"rope_parameters": None, "rope_scaling": {"rope_type": "bent", "factor": 2}},
               "bent")
spoiled_config("unknown activation", {"hidden_act": "gelu"}, "hidden_act", "gelu")
wrong("no such model folder", ["generate", "--model", work / "nowhere", "--prompt", "a"], "nowhere")
wrong("folder without config.json", ["generate", "--model", work, "--prompt", "a"], r"config\.json")
wrong("the folder of a run", ["generate", "--model", work / "out", "--prompt", "a"], r"config\.json", r"checkpoints/step-2\?")
wrong("the folder of a run to inspect", ["inspect", work / "out"], r"found neither; did you mean .*checkpoints/step-2\?")
wrong("the folder of a run to start from", ["train", work / "run.toml", f"--job.dump_folder={work}/other",
      f"--checkpoint.initial_load_path={work}/out"], r"--checkpoint\.initial_load_path: .*checkpoints/step-2\?")
for command in (["generate", "--prompt", "a", "--model"], ["inspect"]):
    wrong(f"a config in place of its folder ({command[0]})", [*command, model / "config.json"], r"config\.json: .*name .*folder")

# --- other commands --------------------------------------------------------------------------------------------------
wrong("more tokens than positions in generate",
      ["generate", "--model", model, "--prompt", "a" * 120, "--max-new-tokens", "100"], "128|position")
wrong("ids outside of the vocabulary", ["generate", "--model", model, "--tokens", "[1, 9999]", "--max-new-tokens", "2"], "9999", "256")
wrong("negative temperature", ["generate", "--model", model, "--prompt", "a", "--temperature", "-1"], "temperature")
wrong("no reference to verify with", ["verify", "--model", model], r"oracle\.safetensors: no such file; .*--reference")
wrong("merge a file as adapters", ["merge", "--adapter", model / "model.safetensors", "--output", work / "merged"],
      "--adapter: ", r"model\.safetensors holds no adapter \(adapter_config\.json\)")
wrong("evaluate a folder", ["eval", model], f"found the folder {model};", f"lehr eval CONFIG.toml --model {model}")
wrong("nothing to tokenize", ["tokenize", "--tokenizer", "byte", work / "no.txt", "--output", work / "o.tokens"],
      r"no\.txt")
wrong("tokenizer that is not one", ["tokenize", "--tokenizer", model / "config.json", text, "--output",
      work / "o.tokens"], r"config\.json")

runner.stdin.close()
runner.wait()
shutil.rmtree(work)
print(f"{cases - len(failures)} of {cases} wrong inputs are refused with exit code 2 and a message that says where")
sys.exit(1 if failures else 0)
