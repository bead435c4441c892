#!/usr/bin/env python3
"""Tests that Hugging Face's transformers loads models that Lehr wrote, and that both compute the same.

Usage: export_loads_in_transformers.py LEHR
Needs torch, transformers and safetensors: in this Python, in the one that LEHR_INTEROP_PYTHON names, or in .bench (what
`make bench` sets up). Without them it says so and exits with 77, which ctest shows as skipped.
"""
import json, os, subprocess, sys, tempfile
from pathlib import Path

from other_python import run_there_or_skip

root = Path(__file__).resolve().parents[2]

try:
    import torch
    from safetensors.torch import save_file
    from transformers import (AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText,
                              AutoModelForSequenceClassification, AutoModelForTokenClassification, AutoTokenizer,
                              GenerationConfig)
except ImportError as missing:
    run_there_or_skip(missing, "torch, transformers and safetensors")

lehr = os.path.abspath(sys.argv[1])
work = Path(tempfile.mkdtemp(prefix="lehr-interop-"))
tokenizer_folder = root / "test/data/tokenizer/qwen3"

RUN = """
[model]
name = "{name}"
flavor = "{flavor}"
[model.args]
hidden_size = 24
intermediate_size = 40
num_hidden_layers = {layers}
num_attention_heads = 4
num_key_value_heads = {kv_heads}
head_dim = {head_dim}
vocab_size = {vocab}
max_position_embeddings = 256
tie_word_embeddings = {tied}
[tokenizer]
path = "{tokenizer}"
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
dtype = "{dtype}"
[lr_scheduler]
warmup_steps = 1
[checkpoint]
interval = 4
max_shard_size_mb = {shard}
[metrics]
measure_peak = false
enable_tensorboard = false
"""


def train(case, **changes):
    values = dict(name="qwen3", flavor="debugmodel", vocab=257, tied="false", tokenizer="byte", data="tinyshakespeare.txt", validation="",
                  kind="", task="causal_lm", dtype="float32", shard=5000, kv_heads=2, head_dim=10,
                  layers=3)
    values.update(changes)
    (work / f"{case}.toml").write_text(RUN.format(**values))
    subprocess.run([lehr, "train", work / f"{case}.toml", "--quiet", f"--job.dump_folder={work / case}"], check=True,
                   cwd=root)
    return work / case / "checkpoints/step-4"


def same(case, folder, classifier=False, atol="1e-5"):
    """transformers computes from the exported folder; `lehr verify` compares its own values with those."""
    kind = AutoModelForSequenceClassification if classifier else AutoModelForCausalLM
    model, report = kind.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager",
                                         output_loading_info=True)
    problems = {k: v for k, v in report.items() if v}
    assert not problems, f"{case}: transformers does not take the weights as they are: {problems}"
    torch.manual_seed(1)
    ids = torch.randint(1, 250, (2, 21))
    expected = {"input_ids": ids}
    with torch.no_grad():
        if classifier:
            expected["attention_mask"] = torch.ones_like(ids)
            expected["logits"] = model(ids, attention_mask=expected["attention_mask"]).logits
        else:
            result = model(ids, labels=ids, output_hidden_states=True)
            expected |= {"labels": ids, "logits": result.logits, "loss": result.loss}
            expected |= {f"hidden.{i}": h for i, h in enumerate(result.hidden_states[:-1])}
    save_file({k: v.clone().contiguous() for k, v in expected.items()}, folder / "oracle.safetensors")
    done = subprocess.run([lehr, "verify", "--model", folder, "--atol", atol], capture_output=True, text=True)
    assert done.returncode == 0, f"{case}:\n{done.stdout}{done.stderr}"
    print(f"{case}: {done.stdout.strip().splitlines()[-1]} (allowed {atol})")


same("Qwen3", train("qwen3"))
same("Qwen3 with tied embeddings in shards", train("tied", tied="true", shard=1))
same("Llama 3", train("llama", name="llama3"))
for name in ("qwen2", "mistral", "smollm3", "olmo2", "olmo3", "gemma3"):
    same(name, train(name, name=name, tied="true" if name == "gemma3" else "false"))
same("Gemma 4", train("gemma4", name="gemma4", tied="true", layers=4))
# Each sub-block adds a normed output, so that hidden states have elements of up to 8.5, which float32 rounds more coarsely.
same("Gemma 4 with experts", train("gemma4_moe", name="gemma4", flavor="debugmodel_moe", tied="true", layers=4), atol="3e-5")
same("Gemma 4 with inputs of layers",
     train("gemma4_small", name="gemma4", flavor="debugmodel_small", tied="true", layers=4), atol="3e-5")
same("Mixtral", train("mixtral", name="mixtral"))
same("GLM-4.5", train("glm4_moe", name="glm4_moe", head_dim=12))
same("MiniMax M2", train("minimax_m2", name="minimax_m2", head_dim=12))
same("Qwen3-Next", train("qwen3_next", name="qwen3_next", head_dim=16, layers=4))
same("Qwen3.5", train("qwen3_5", name="qwen3_5", head_dim=16, layers=4))
same("Qwen3.5 with experts", train("qwen3_5_moe", name="qwen3_5_moe", head_dim=16, layers=4))
same("Nemotron-H", train("nemotron_h", name="nemotron_h", head_dim=16, layers=4))
same("Nemotron-H with experts",
     train("nemotron_h_moe", name="nemotron_h", flavor="debugmodel_moe", head_dim=16, layers=4))
same("DeepSeek-V3", train("deepseek_v3", name="deepseek_v3", kv_heads=4, head_dim=16))
mixture = train("moe", name="qwen3_moe")
same("Qwen3 MoE", mixture)
fused = work / "fused"
subprocess.run([lehr, "convert", "--model", mixture, "--output", fused, "--expert-layout", "fused"], check=True,
               stdout=subprocess.DEVNULL)
same("Qwen3 MoE with fused experts", fused)
subblocks = work / "subblocks"
subprocess.run([lehr, "convert", "--model", mixture, "--output", subblocks, "--subblocks"], check=True,
               stdout=subprocess.DEVNULL)
same("Qwen3 MoE, a file for each sub-block", subblocks)
same("Qwen3 in bfloat16", train("bf16", dtype="bfloat16"))
same("Qwen3 classifier",
     train("cls", task="classification", data="who_speaks.txt", kind='kind = "classification"',
           validation='validation_path = "recipe/data/who_speaks_validation.txt"'), classifier=True)

TOKENS = dict(task="token_classification", data="names.jsonl", kind='kind = "token_classification"',
              validation='validation_path = "recipe/data/names_validation.jsonl"')


def same_tokens(case, folder):
    """The same for a classifier of tokens, with padding and words without a label."""
    model, report = AutoModelForTokenClassification.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    problems = {k: v for k, v in report.items() if v}
    assert not problems, f"{case}: transformers does not take the weights as they are: {problems}"
    torch.manual_seed(1)
    ids = torch.randint(1, 250, (2, 21))
    mask, labels = torch.ones_like(ids), torch.randint(model.config.num_labels, ids.shape)
    mask[1, 13:], labels[1, 13:], labels[:, ::3] = 0, -100, -100
    result = model.eval()(ids, attention_mask=mask, labels=labels)
    result.loss.backward()
    expected = {"input_ids": ids, "attention_mask": mask, "labels": labels, "logits": result.logits,
                "loss": result.loss}
    save_file({k: v.detach().clone().contiguous() for k, v in expected.items()}, folder / "oracle.safetensors")
    save_file({k: p.grad for k, p in model.named_parameters()}, folder / "grads.safetensors")
    done = subprocess.run([lehr, "verify", "--model", folder, "--atol", "1e-5"], capture_output=True, text=True)
    assert done.returncode == 0, f"{case}:\n{done.stdout}{done.stderr}"
    print(f"{case}: {done.stdout.strip().splitlines()[-1]} (allowed 1e-5)")
    return model


for name in ("qwen3", "llama3"):
    folder = train(f"{name}_tokens", name=name, **TOKENS)
    model = same_tokens(f"{name}, a classifier of tokens", folder)
    # The other way round: a random model of transformers, which writes its own config.json.
    own = AutoConfig.from_pretrained(folder)
    own.id2label = {0: "O", 1: "B-PER", 2: "I-PER"}
    own.save_pretrained(work / f"{name}_of_transformers")
    random = type(model)(own)
    torch.nn.init.normal_(random.score.bias)
    random.save_pretrained(work / f"{name}_of_transformers")
    same_tokens(f"{type(model).__name__} of transformers", work / f"{name}_of_transformers")

# A model of texts and images, as Qwen3.5 and Gemma 3 are published: Lehr computes what transformers computes from texts.
vision = {"depth": 1, "hidden_size": 8, "intermediate_size": 8, "num_heads": 2, "out_hidden_size": 24, "patch_size": 2,
          "num_position_embeddings": 4}
siglip = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 8,
          "patch_size": 4, "model_type": "siglip_vision_model"}
for name in ("qwen3_5", "qwen3_5_moe", "gemma3"):
    text = AutoConfig.from_pretrained(work / name / "checkpoints/step-4")
    text.architectures = None
    torch.manual_seed(1)
    whole = AutoModelForImageTextToText.from_config(
        AutoConfig.for_model(name, text_config=text.to_dict(), vision_config=siglip if name == "gemma3" else vision)).float().eval()
    whole.save_pretrained(work / f"{name}_whole")
    ids = torch.randint(1, 250, (2, 21))
    with torch.no_grad():
        expected = {"input_ids": ids, "logits": whole(ids).logits}
    save_file(expected, work / f"{name}_whole" / "oracle.safetensors")
    done = subprocess.run([lehr, "verify", "--model", work / f"{name}_whole", "--atol", "1e-5"], capture_output=True,
                          text=True)
    assert done.returncode == 0, f"{name}:\n{done.stdout}{done.stderr}"
    print(f"{name} of texts and images: {done.stdout.strip().splitlines()[-1]} (allowed 1e-5)")

folder = train("bpe", tokenizer=tokenizer_folder, vocab=151936, shard=5)
same("Qwen3 with Qwen3's tokenizer, in shards", folder)
text = "To be, or not to be: that is the question.\n¿Qué? 你好 🙂 x=3.14"
theirs = AutoTokenizer.from_pretrained(folder).encode(text, add_special_tokens=False)
ours = subprocess.run([lehr, "tokenize", "--tokenizer", folder, "--jsonl"], input=json.dumps({"text": text}) + "\n",
                      capture_output=True, text=True, check=True)
assert json.loads(ours.stdout)["ids"] == theirs, "the exported tokenizer gives other ids"
eos = GenerationConfig.from_pretrained(folder).eos_token_id
print(f"tokenizer: {len(theirs)} equal ids; generation config: end of text is {eos}")
