#!/usr/bin/env python3
"""Adapters that Lehr trains, Hugging Face's PEFT loads, and both compute the same; and the other way round.

Usage: adapters_load_in_peft.py LEHR
Needs torch, transformers, safetensors and peft: in this Python, in the one that LEHR_INTEROP_PYTHON names, or in .bench
(what `make bench` sets up). Without them it says so and exits with 77, which ctest shows as skipped.
"""
import json, os, shutil, subprocess, sys, tempfile
from pathlib import Path

from other_python import run_there_or_skip

root = Path(__file__).resolve().parents[2]

try:
    import torch
    from peft import LoraConfig, PeftModel, get_peft_model
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, logging
except ImportError as missing:
    run_there_or_skip(missing, "torch, transformers, safetensors and peft")

logging.set_verbosity_error()  # a base has no classification head, and warns about it every time
lehr = os.path.abspath(sys.argv[1])
work = Path(tempfile.mkdtemp(prefix="lehr-interop-"))

RUN = """
[model]
name = "{name}"
flavor = "debugmodel"
[model.args]
hidden_size = 24
intermediate_size = 40
num_hidden_layers = 3
num_attention_heads = 4
num_key_value_heads = 2
head_dim = 10
vocab_size = 257
max_position_embeddings = 256
tie_word_embeddings = {tied}
[tokenizer]
path = "byte"
[data]
{validation}
[[data.datasets]]
path = "recipe/data/{data}"
{kind}
[training]
task = "{task}"
seq_len = 48
local_batch_size = 4
steps = 4
[optimizer]
lr = 0.02
[lr_scheduler]
warmup_steps = 1
[checkpoint]
interval = 4
{base}
[metrics]
measure_peak = false
enable_tensorboard = false
[peft]
{peft}
"""
CLASSIFIER = dict(task="classification", data="who_speaks.txt", kind='kind = "classification"',
                  validation='validation_path = "recipe/data/who_speaks_validation.txt"')


def train(case, **changes):
    values = dict(name="qwen3", tied="false", data="tinyshakespeare.txt", validation="", kind="", task="causal_lm",
                  base="", peft="")
    values.update(changes)
    (work / f"{case}.toml").write_text(RUN.format(**values))
    subprocess.run([lehr, "train", work / f"{case}.toml", "--quiet", f"--job.dump_folder={work / case}"], check=True,
                   cwd=root)
    return work / case / "checkpoints/step-4"


def reference(file, model, classifier=False):
    """Writes the results of `model` for `lehr verify`."""
    torch.manual_seed(1)
    ids = torch.randint(1, 250, (2, 21))
    expected = {"input_ids": ids}
    with torch.no_grad():
        if classifier:
            expected["attention_mask"] = torch.ones_like(ids)
            expected["logits"] = model(input_ids=ids, attention_mask=expected["attention_mask"]).logits
        else:
            result = model(input_ids=ids, labels=ids)
            expected |= {"labels": ids, "logits": result.logits, "loss": result.loss}
    save_file({k: v.clone().contiguous() for k, v in expected.items()}, file)
    return expected["logits"]


def verify(case, folder, file, atol="1e-5"):
    done = subprocess.run([lehr, "verify", "--model", folder, "--reference", file, "--atol", atol],
                          capture_output=True, text=True)
    assert done.returncode == 0, f"{case}:\n{done.stdout}{done.stderr}"
    print(f"{case}: {done.stdout.strip().splitlines()[-1]} (allowed {atol})")


def load(folder, classifier=False, **options):
    kind = AutoModelForSequenceClassification if classifier else AutoModelForCausalLM
    if classifier:
        options |= {"num_labels": 2, "pad_token_id": 256}
    return kind.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager", **options)


def same(case, base, adapter, classifier=False):
    """Compares the adapter, and the merged model, in both programs."""
    without = reference(work / "without.safetensors", load(base, classifier), classifier)
    model = PeftModel.from_pretrained(load(base, classifier), adapter).eval()
    missing = [k for k, v in model.named_parameters() if "lora_B" in k and not v.any()]
    assert not missing, f"{case}: PEFT left these at zero: {missing}"
    logits = reference(work / "adapter.safetensors", model, classifier)
    assert (logits - without).abs().max() > 1e-3, f"{case}: the adapter changes nothing"
    verify(case, adapter, work / "adapter.safetensors")

    merged = work / "merged"
    shutil.rmtree(merged, ignore_errors=True)
    subprocess.run([lehr, "merge", "--adapter", adapter, "--output", merged, "--model", base], check=True,
                   capture_output=True)
    theirs = reference(work / "merged.safetensors", model.merge_and_unload(), classifier)
    ours = reference(work / "ours.safetensors", load(merged, classifier), classifier)
    assert torch.allclose(ours, theirs, atol=1e-5), f"{case}: merged, {(ours - theirs).abs().max()} apart"
    verify(f"{case}, merged", merged, work / "merged.safetensors")


def finish(folder, name="qwen3"):
    """Sets the path of the base, as if PEFT had loaded it from its folder."""
    file = folder / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"base_model_name_or_path": str(base[name])}))
    return folder


base = {name: train(f"base_{name}_{tied}", name=name, tied=tied)
        for name, tied in (("qwen3", "false"), ("llama3", "true"), ("qwen3_moe", "false"),
                         ("nemotron_h", "false"))}
qwen3 = f'initial_load_path = "{base["qwen3"]}"'
llama3 = f'initial_load_path = "{base["llama3"]}"'
LORA = 'method = "lora"\nr = 4\n'
tuned = train("tuned", base=qwen3, peft=LORA + "alpha = 6\ndropout = 0.1\nfull_tune_pattern = 'model\\.norm'")
same("Qwen3, all projections and the last norm", base["qwen3"], tuned)
same("Qwen3, some layers, rsLoRA", base["qwen3"],
     train("some", base=qwen3, peft=LORA + "use_rslora = true\ntarget_pattern = '.*\\.[12]\\..*(q|down)_proj'"))
same("Llama 3 with tied embeddings, tuned", base["llama3"],
     train("tied", name="llama3", tied="true", base=llama3, peft=LORA + "full_tune_pattern = 'model\\.embed_tokens'"))
same("Qwen3 classifier", base["qwen3"], train("classifier", base=qwen3, peft=LORA, **CLASSIFIER), classifier=True)
same("Qwen3 MoE, experts and all", base["qwen3_moe"],
     train("moe", name="qwen3_moe", base=f'initial_load_path = "{base["qwen3_moe"]}"', peft=LORA))
# PEFT refuses adapters of Mamba-2's out_proj, which transformers' kernel does not call.
same("Nemotron-H, tuned", base["nemotron_h"],
     train("nemotron_h", name="nemotron_h", base=f'initial_load_path = "{base["nemotron_h"]}"',
           peft=LORA + "target_pattern = '.*\\.(in|q|k|v|o|up|down)_proj'\nfull_tune_pattern = 'model\\.norm'"))

# transformers finds the base from the adapter's config.
direct = reference(work / "direct.safetensors", load(tuned).eval())
verify("Qwen3 through AutoModel", tuned, work / "direct.safetensors")

# An adapter written by PEFT: another LoRA rank in one layer, and nonzero weights.
torch.manual_seed(2)
config = LoraConfig(r=3, lora_alpha=5, target_modules=["q_proj", "up_proj"], rank_pattern={"layers.1.mlp.up_proj": 2},
                    alpha_pattern={"layers.2.self_attn.q_proj": 1}, modules_to_save=["norm"], task_type="CAUSAL_LM")
model = get_peft_model(load(base["qwen3"]), config)
for name, parameter in model.named_parameters():
    if "lora_B" in name or "norm.modules_to_save" in name:
        parameter.data.normal_()
model.save_pretrained(work / "theirs")
same("PEFT's own adapter", base["qwen3"], finish(work / "theirs"))

config = LoraConfig(r=3, target_modules=["in_proj", "q_proj", "down_proj"], task_type="CAUSAL_LM")
model = get_peft_model(load(base["nemotron_h"]), config)
for name, parameter in model.named_parameters():
    if "lora_B" in name:
        parameter.data.normal_()
model.save_pretrained(work / "their_nemotron_h")
same("PEFT's own adapter of Nemotron-H", base["nemotron_h"], finish(work / "their_nemotron_h", "nemotron_h"))

config = LoraConfig(r=2, target_modules=["o_proj"], task_type="SEQ_CLS")
model = get_peft_model(load(base["qwen3"], classifier=True), config)
for name, parameter in model.named_parameters():
    if "lora_B" in name:
        parameter.data.normal_()
model.save_pretrained(work / "their_classifier")
same("PEFT's own classifier", base["qwen3"], finish(work / "their_classifier"), classifier=True)

config = LoraConfig(r=4, lora_alpha=16, target_modules=["v_proj"], task_type="CAUSAL_LM")
get_peft_model(load(base["qwen3"]), config).save_pretrained(work / "start")
started = train("started", base=qwen3, peft=LORA + f"target_pattern = '.*v_proj'\ninit_from = \"{work / 'start'}\"")
same("trained on from PEFT's adapter", base["qwen3"], started)
shutil.rmtree(work)
