#!/usr/bin/env python3
"""Writes the references of token classifiers: tiny random models, and what transformers computes with them.

    python script/make_token_references.py test/data/reference [CASE ...]     (needs torch, transformers, safetensors)

Every case has scores, loss and gradients of a batch of words, some of which are padding or have no label.
"""
import json, sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForTokenClassification

SMALL = {"vocab_size": 31, "hidden_size": 12, "intermediate_size": 14, "num_hidden_layers": 2, "head_dim": 4,
         "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64, "rms_norm_eps": 1e-6,
         "hidden_act": "silu", "tie_word_embeddings": False, "pad_token_id": 0, "torch_dtype": "float32",
         "id2label": {str(i): f"LABEL_{i}" for i in range(3)}, "label2id": {f"LABEL_{i}": i for i in range(3)}}
CASES = {
    "qwen3_tokcls": {"model_type": "qwen3", "architectures": ["Qwen3ForTokenClassification"], "rope_theta": 10000.0},
    "llama_tokcls": {"model_type": "llama", "architectures": ["LlamaForTokenClassification"], "rope_theta": 500.0},
    # A head without bias; the dropout of the file is that of training.
    "llama_tokcls_no_bias": {"model_type": "llama", "architectures": ["LlamaForTokenClassification"],
                             "rope_theta": 100.0, "token_classification_bias": False, "classifier_dropout": 0.25},
}


def write(folder, case):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(SMALL | case, indent=2) + "\n")
    torch.manual_seed(sum(folder.name.encode()))
    model = AutoModelForTokenClassification.from_config(AutoConfig.from_pretrained(folder),
                                                        attn_implementation="eager").eval()
    for name, parameter in model.named_parameters():
        parameter.data = (1 if name.endswith("norm.weight") else 0) + 0.2 * torch.randn(parameter.shape)
    save_file({k: v.clone() for k, v in model.state_dict().items()}, folder / "model.safetensors",
              metadata={"format": "pt"})
    ids = torch.randint(1, SMALL["vocab_size"], (3, 11))
    mask = torch.ones_like(ids)
    mask[1, 7:] = mask[2, 4:] = 0
    labels = torch.randint(3, ids.shape)
    labels[:, 2] = labels[mask == 0] = -100
    result = model(ids, attention_mask=mask, labels=labels, output_hidden_states=True)
    result.loss.backward()
    expected = {"input_ids": ids, "attention_mask": mask, "labels": labels, "logits": result.logits,
                "loss": result.loss, "hidden.final_norm": result.hidden_states[-1]}
    expected |= {f"hidden.{i}": hidden for i, hidden in enumerate(result.hidden_states[:-1])}
    save_file({k: v.detach().clone().contiguous() for k, v in expected.items()}, folder / "oracle.safetensors")
    save_file({k: p.grad for k, p in model.named_parameters()}, folder / "grads.safetensors")


for name in sys.argv[2:] or CASES:
    write(Path(sys.argv[1]) / name, CASES[name])
