#!/usr/bin/env python3
"""Writes a reference folder for `lehr verify --model FOLDER` from any causal language model of transformers.

    python make_reference.py Qwen/Qwen3-0.6B reference/        (needs torch, transformers, safetensors)
    build/lehr verify --model reference/
"""
import sys

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

source, folder = sys.argv[1:]
model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32, attn_implementation="eager").eval()
model.save_pretrained(folder)  # config.json and model.safetensors: what lehr loads

torch.manual_seed(0)
ids = torch.randint(model.config.vocab_size, (2, 32))  # (B, T)
result = model(ids, labels=ids, output_hidden_states=True)
result.loss.backward()

expected = {"input_ids": ids, "labels": ids, "logits": result.logits, "loss": result.loss}
for i, hidden in enumerate(result.hidden_states[:-1]):
    expected[f"hidden.{i}"] = hidden  # the input of layer i
expected["gen_prompt.0"] = ids[0, :8]
expected["gen_tokens.0"] = model.generate(ids[:1, :8], max_new_tokens=16, do_sample=False, eos_token_id=None)[0, 8:]

save_file({k: v.detach().clone().contiguous() for k, v in expected.items()}, f"{folder}/oracle.safetensors")
grads = {k: p.grad.contiguous() for k, p in model.named_parameters() if p.grad is not None}
save_file(grads, f"{folder}/grads.safetensors")
