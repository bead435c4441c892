"""The closed form of a rank's peak memory under FSDP (docs/parallelism.md), beside what real runs take that keep all
activations.

A part of bench/fsdp.py: make bench-fsdp ARGS="--parts memory". The base (the process, its libraries, connections and small
tensors) is measured, by a model of almost nothing; the rest is computed.
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
# Model, ranks, type, tokens of a row, rows of a rank.
RUNS = [("tiny", 2, "fp32", 512, 4), ("tiny", 4, "fp32", 512, 4), ("deep", 2, "fp32", 512, 1), ("deep", 4, "fp32", 512, 1),
        ("deep", 2, "amp", 512, 2), ("untied", 2, "fp32", 512, 1), ("untied", 4, "fp32", 512, 1), ("untied", 2, "amp", 512, 1),
        ("small", 2, "fp32", 128, 1), ("small", 2, "fp32", 1024, 1), ("small", 4, "fp32", 128, 1)]
SPARE = 64 << 20  # half of it that of keep_tensor_memory() in lehr/base/tensor_memory.cpp; see docs/parallelism.md


def closed_form(model, ranks, dtype, tokens):
    """Bytes of tensors at the worst moment of a step with one microbatch, by part; AdamW on float32 weights."""
    c = 4 if dtype == "fp32" else 2
    d, layers, f, v = (model[k] for k in ("hidden_size", "num_hidden_layers", "intermediate_size", "vocab_size"))
    q, k = (model[heads] * model["head_dim"] for heads in ("num_attention_heads", "num_key_value_heads"))
    tied = model.get("tie_word_embeddings", True)
    n_layer, n_head = d * (2 * q + 2 * k) + 3 * d * f, v * d
    layer, head = c * n_layer, c * n_head  # W of a unit
    parameters = layers * n_layer + n_head * (1 if tied else 2)
    saved = c * tokens * (2 * d + 2 * q + 2 * k + 2 * f)  # of a layer, for backward
    logits = c * v * min(tokens, max(512, (16 << 20) // (c * v)))
    two_units = (2 + 1 / ranks) * layer  # one whole, one on its way, and what this rank sends

    def reduction(n):  # the buffer, as much again in the backend, the rank's part
        return (2 + 1 / ranks) * 4 * n

    whole = 2 * head if tied else 0  # the tied head's weight and its gradient stay to the end of backward
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
    """The largest of the ranks', with the bytes of large tensors among it."""
    found = rounds.lehr("train_step", ["--model", os.path.join(folder, name), "--dtype", dtype, "--seq", str(seq), "--batch",
                                       str(batch), "--steps", "2", "--warmup", "1", "--threads", "1",
                                       "--remake_products=0"], ranks)
    return max(found["peak_rss_mb_of_ranks"]), max(found["large_tensors_mb_of_ranks"])


def section(rounds, folder):
    """Lines of the report."""
    save_models(folder, MODELS)
    base = {n: peak_mb(rounds, folder, "nothing", n, "fp32", 16, 1)[0] for n in sorted({run[1] for run in RUNS})}
    lines = ["MB of a rank: the largest of all ranks, three steps with AdamW, all activations kept. The closed "
             "form is that of docs/parallelism.md, with "
             "a base (process, libraries, connections) that is measured by a model of almost nothing: " +
             ", ".join(f"{mb:.0f} MB for {n} ranks" for n, mb in base.items()) + ".", "",
             "| preset | ranks | dtype | tokens of a rank | state | at the worst moment | which is | closed form | resident peak | "
             "differs by |", "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"]
    for name, ranks, dtype, seq, batch in RUNS:
        state, worst, moment = closed_form(MODELS[name], ranks, dtype, seq * batch)
        expected = base[ranks] + (state + worst + SPARE) / 1e6
        measured, large = peak_mb(rounds, folder, name, ranks, dtype, seq, batch)
        lines.append(f"| {name} | {ranks} | {dtype} | {seq * batch} | {state / 1e6:.0f} | {worst / 1e6:.0f} | {moment} | "
                     f"{expected:.0f} | {measured:.0f} | {100 * (measured / expected - 1):+.1f} % |")
        print(lines[-1], f"large tensors {large:.0f}, computed {(state + worst) / 1e6:.0f}", flush=True)
    return lines
