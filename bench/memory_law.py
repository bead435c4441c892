"""Closed form of a rank's peak memory under FSDP (docs/fully_sharded.md), compared with runs that save all activations.

A part of bench/fsdp.py: make bench-fsdp ARGS="--parts memory". The base (process, libraries, connections and small
tensors) is measured with a tiny model; the rest is computed.
"""
import os

import peer_transformers

MODELS = {
    "nothing": dict(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2, head_dim=16,
                    intermediate_size=32, vocab_size=64),
    "tiny": peer_transformers.PRESETS["tiny"],
    "small": peer_transformers.PRESETS["small"],
    "deep": dict(hidden_size=512, num_hidden_layers=16, num_attention_heads=8, num_key_value_heads=4, head_dim=64,
                 intermediate_size=1536, vocab_size=8192),
    "untied": dict(hidden_size=768, num_hidden_layers=4, num_attention_heads=12, num_key_value_heads=6, head_dim=64,
                   intermediate_size=2048, vocab_size=24576, tie_word_embeddings=False),
}
# Model, ranks, dtype, tokens per sequence, sequences per rank.
RUNS = [("tiny", 2, "fp32", 512, 4), ("tiny", 4, "fp32", 512, 4), ("deep", 2, "fp32", 512, 1), ("deep", 4, "fp32", 512, 1),
        ("deep", 2, "amp", 512, 2), ("untied", 2, "fp32", 512, 1), ("untied", 4, "fp32", 512, 1), ("untied", 2, "amp", 512, 1),
        ("small", 2, "fp32", 128, 1), ("small", 2, "fp32", 1024, 1), ("small", 4, "fp32", 128, 1)]
SPARE = 64 << 20  # half of it is the reserve of keep_tensor_memory(), lehr/memory/caching_allocator.cpp; see docs/fully_sharded.md


def closed_form(model, ranks, dtype, tokens):
    """Returns the bytes of training state, the peak of the other tensors in a step with one micro-batch, and the moment
    of the peak. AdamW on float32 weights."""
    c = 4 if dtype == "fp32" else 2
    d, layers, f, v = (model[k] for k in ("hidden_size", "num_hidden_layers", "intermediate_size", "vocab_size"))
    q, k = (model[heads] * model["head_dim"] for heads in ("num_attention_heads", "num_key_value_heads"))
    tied = model.get("tie_word_embeddings", True)
    n_layer, n_head = d * (2 * q + 2 * k) + 3 * d * f, v * d
    layer, head = c * n_layer, c * n_head  # bytes of the unsharded weights of a unit
    parameters = layers * n_layer + n_head * (1 if tied else 2)
    saved = c * tokens * (2 * d + 2 * q + 2 * k + 2 * f)  # activations of a layer
    logits = c * v * min(tokens, max(512, (16 << 20) // (c * v)))
    two_units = (2 + 1 / ranks) * layer  # an unsharded unit, a prefetched one, and this rank's send buffer

    def reduction(n):  # the buffer of a reduce-scatter, its copy in the backend, and this rank's shard
        return (2 + 1 / ranks) * 4 * n

    whole = 2 * head if tied else 0  # a tied head's weight and gradient are needed until the end of backward
    moments = {
        "head": layers * saved + 2 * head + 2 * logits,
        "the head's sum": 0 if tied else layers * saved + head + reduction(n_head) + two_units,
        "first layer of backward": (layers - 1) * saved + whole + two_units + layer + reduction(n_layer),
        "last layer of backward": 4 * n_layer * layers / ranks + whole + two_units + layer + reduction(n_layer),
        "end": 4 * n_layer * layers / ranks + head + reduction(n_head) + (0 if tied else 4 * n_head / ranks),
    }
    moment = max(moments, key=moments.get)
    return 12 * parameters / ranks, moments[moment], moment


def save_models(folder, names):
    peer_transformers.PRESETS.update(MODELS)
    for name in names:
        if not os.path.exists(os.path.join(folder, name)):
            peer_transformers.save_init(name, os.path.join(folder, name))


def peak_mb(rounds, folder, name, ranks, dtype, seq, batch):
    """Returns the largest peak of all ranks in MB, and the part of it that large tensors take; or why it did not run."""
    found = rounds.lehr("train_step", ["--model", os.path.join(folder, name), "--dtype", dtype, "--seq", str(seq), "--batch",
                                       str(batch), "--steps", "2", "--warmup", "1", "--threads", "1",
                                       "--recompute_matmuls=0"], ranks)
    return found and (max(found["peak_rss_mb_of_ranks"]), max(found["large_tensors_mb_of_ranks"]))


def measure(section, rounds, folder):
    """Adds a row for each of RUNS."""
    save_models(folder, MODELS)
    base = {n: peak_mb(rounds, folder, "nothing", n, "fp32", 16, 1) for n in sorted({run[1] for run in RUNS})}
    section.add("MB per rank, the maximum over all ranks, in three steps with AdamW, with all activations saved, one thread per rank. The "
                "closed form is that of docs/fully_sharded.md, with a base (process, libraries, connections) that is measured with a "
                "tiny model: " + ", ".join(f"{found[0]:.0f} MB for {n} ranks" if found else f"{n} ranks {found}"
                                           for n, found in base.items()) + ".", "")
    section.table("preset", "ranks", "dtype", "tokens per rank", "state", "at the peak", "which is", "closed form", "resident peak",
                  "differs by")
    for name, ranks, dtype, seq, batch in RUNS:
        state, worst, moment = closed_form(MODELS[name], ranks, dtype, seq * batch)
        place = (name, ranks, dtype, seq * batch, f"{state / 1e6:.0f}", f"{worst / 1e6:.0f}", moment)
        found = peak_mb(rounds, folder, name, ranks, dtype, seq, batch)
        if not (found and base[ranks]):
            section.row(*place, "", found or base[ranks], "")
            continue
        expected = base[ranks][0] + (state + worst + SPARE) / 1e6
        section.row(*place, f"{expected:.0f}", f"{found[0]:.0f}", f"{100 * (found[0] / expected - 1):+.1f} %")
        print(f"large tensors {found[1]:.0f}, computed {(state + worst) / 1e6:.0f}", flush=True)
