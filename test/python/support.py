"""Shared code of the tests: tiny runs in temporary folders, and decoders written out in PyTorch."""
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

import torch
from torch.nn.functional import embedding, linear, silu

import lehr

ROOT = Path(__file__).resolve().parents[2]
FAMILIES = ("qwen3", "llama3", "qwen2")
VOCAB = 257


def tiny_run(folder, **changes):
    """A run of five steps of a tiny Qwen3 on bytes, as a dict."""
    return {
        "job": {"dump_folder": str(folder)},
        "model": {"name": "qwen3", "flavor": "debugmodel", "args": {
            "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
            "head_dim": 8, "intermediate_size": 48, "vocab_size": VOCAB}},
        "tokenizer": {"path": "byte"},
        "data": {"datasets": [{"path": str(ROOT / "recipe/data/tinyshakespeare.txt")}]},
        "training": {"seq_len": 32, "local_batch_size": 2, "global_batch_size": 4, "steps": 5},
        "lr_scheduler": {"warmup_steps": 2},
        "metrics": {"enable_tensorboard": False, "measure_peak": False},
    } | changes


def random_model(folder, family):
    """A folder with a random model of this family in float64, and its model."""
    with lehr.Trainer(tiny_run(folder), {"model.name": family, "training.dtype": "float64",
                                         "checkpoint.enable": False}) as trainer:
        torch.manual_seed(0)
        with torch.no_grad():
            for name, parameter in trainer.model.named_parameters():
                parameter.normal_(0, 0.2).add_(1 if "norm" in name else 0)
        path = Path(folder) / "model"
        trainer.model.save(path, torch.float64)
    return path


class WithFolder(unittest.TestCase):
    """A test with a temporary folder, self.folder."""

    def setUp(self):
        place = tempfile.TemporaryDirectory(prefix="lehr-python-")
        self.addCleanup(place.cleanup)
        self.folder = Path(place.name)

    def interrupted(self, code, folder):
        """Runs this code, in which sys.argv[1] is the folder and tiny_run is known, until it prints a line. Then sends
        Ctrl-C. Returns the exit code, the rest of the output, and the seconds until the end."""
        code = "import lehr, sys\nsys.path.insert(0, sys.argv[2])\nfrom support import tiny_run\n" + code
        child = subprocess.Popen([sys.executable, "-c", code, folder, os.path.dirname(__file__)],
                                 stdout=subprocess.PIPE, text=True)
        child.stdout.readline()
        child.send_signal(signal.SIGINT)
        began = time.monotonic()
        output = child.communicate(timeout=60)[0]
        return child.returncode, output, time.monotonic() - began


def _frequencies(config):
    dims = torch.arange(0, config["head_dim"], 2, dtype=torch.float64)
    frequencies = config["rope_theta"] ** (-dims / config["head_dim"])
    scaling = config.get("rope_scaling")
    if not scaling:
        return frequencies
    # Llama 3: long wavelengths are stretched, short ones are kept, and those between are interpolated.
    wavelengths = 2 * math.pi / frequencies
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    length = scaling["original_max_position_embeddings"]
    smooth = ((length / wavelengths - low) / (high - low)).clamp(0, 1)
    return (1 - smooth) * frequencies / scaling["factor"] + smooth * frequencies


def plain_logits(weights, config, ids):
    """The logits (B, T, V) of Qwen2, Qwen3 and Llama 3, written out. `weights` has Lehr's names."""
    tokens = ids.shape[1]
    angles = torch.arange(tokens, dtype=torch.float64)[:, None] * _frequencies(config)
    cos, sin = (torch.cat([part, part], -1)[:, None] for part in (angles.cos(), angles.sin()))  # (T, 1, D)
    distance = torch.arange(tokens)[:, None] - torch.arange(tokens)  # (T, S)

    def norm(x, name):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + config["rms_norm_eps"]) * weights[name + ".weight"]

    def project(x, name):
        return linear(x, weights[name + ".weight"], weights.get(name + ".bias"))

    def heads(x, name, norm_name=None):
        x = project(x, name).unflatten(-1, (-1, config["head_dim"]))  # (B, T, heads, D)
        return norm(x, norm_name) if norm_name and norm_name + ".weight" in weights else x

    def rotate(x):
        first, second = x.chunk(2, -1)
        return x * cos + torch.cat([-second, first], -1) * sin

    table = weights["model.embed_tokens.token_embedding.default.weight"]
    x = embedding(ids, table)
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        h = norm(x, at + "input_layernorm")
        q = rotate(heads(h, at + "self_attn.q_proj", at + "self_attn.q_norm"))
        k = rotate(heads(h, at + "self_attn.k_proj", at + "self_attn.k_norm"))
        v = heads(h, at + "self_attn.v_proj")
        k, v = (part.repeat_interleave(q.shape[2] // k.shape[2], 2) for part in (k, v))
        slides = config.get("layer_types", [])[layer:layer + 1] == ["sliding_attention"]
        hidden = (distance < 0) | (distance >= (config["sliding_window"] if slides else tokens))
        scores = torch.einsum("bthd,bshd->bhts", q, k) / math.sqrt(config["head_dim"])
        scores = scores.masked_fill(hidden, -math.inf)
        mixed = torch.einsum("bhts,bshd->bthd", scores.softmax(-1), v).flatten(2)
        x = x + project(mixed, at + "self_attn.o_proj")
        h = norm(x, at + "post_attention_layernorm")
        x = x + project(silu(project(h, at + "mlp.gate_proj")) * project(h, at + "mlp.up_proj"), at + "mlp.down_proj")
    return linear(norm(x, "model.norm"), weights.get("lm_head.lm_head.default.weight", table))
