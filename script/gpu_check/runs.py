"""The training runs of the check: their configs as TOML, their metrics, and token files. Standard library only."""
import json
import random
import statistics
import struct
from array import array


def toml(config):
    """Returns a nested dictionary as TOML."""
    def value(v):
        if isinstance(v, bool):
            return "true" if v else "false"
        if isinstance(v, list):
            return "[" + ", ".join(value(x) for x in v) + "]"
        return json.dumps(v) if isinstance(v, str) else repr(v)

    lines = []

    def table(name, entries):
        plain = {k: v for k, v in entries.items() if not isinstance(v, dict) and not is_tables(v)}
        if plain or not entries:
            lines.append(f"[{name}]")
            lines.extend(f"{k} = {value(v)}" for k, v in plain.items())
        for k, v in entries.items():
            if isinstance(v, dict):
                table(f"{name}.{k}", v)
            elif is_tables(v):
                for entry in v:
                    lines.append(f"[[{name}.{k}]]")
                    lines.extend(f"{key} = {value(x)}" for key, x in entry.items())

    for section, entries in config.items():
        table(section, entries)
    return "\n".join(lines) + "\n"


def is_tables(v):
    return isinstance(v, list) and v and isinstance(v[0], dict)


MASK = (1 << 64) - 1
HASH_START, HASH_FACTOR = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9


def mixed(hash_, values):
    """The checksum of lehr/data/token_file.cpp."""
    for v in values:
        hash_ = ((((hash_ << 23) | (hash_ >> 41)) & MASK) ^ v) * HASH_FACTOR & MASK
    return hash_


def write_tokens(path, vocab_size, documents):
    """A token file (docs/data.md) of lists of ids."""
    wide = vocab_size > 65536
    ids, ends, hash_ = array("i" if wide else "H"), [0], HASH_START
    for document in documents:
        ids.extend(document)
        ends.append(len(ids))
        hash_ = mixed(mixed(hash_, document), [ends[-1]])
    header = struct.pack("<8sIIqqqqQQ", b"LEHRTOKS", 1, 4 if wide else 2, len(ids), len(ends) - 1, vocab_size, max(ids),
                         0, hash_) + bytes(8 * 23)
    header += struct.pack("<Q", mixed(HASH_START, struct.unpack(f"<{len(header) // 8}Q", header)))
    with open(path, "wb") as file:
        file.write(header)
        file.write(ids.tobytes())
        file.write(bytes(-(len(header) + len(ids) * ids.itemsize) % 8))
        file.write(array("Q", ends).tobytes())


def documents_like_text(count, vocab_size, mean_length, seed=1):
    """`count` ids with the frequencies of words (Zipf's law), in documents of about `mean_length`, from short to long.

    So that some rows of an embedding's gradient get many summands, and a router gets some tokens much more than others.
    """
    draw = random.Random(seed)
    left = count
    while left > 0:
        length = min(left, max(2, int(draw.expovariate(1 / mean_length))))
        # Ranks have the density 1/x: exp of a uniform number.
        yield [int(vocab_size ** draw.random()) - 1 for _ in range(length)]
        left -= length


class Metrics:
    """The metrics.jsonl of a run."""

    def __init__(self, folder):
        with open(folder / "metrics.jsonl") as file:
            lines = [json.loads(line) for line in file if line.endswith("\n")]
        self.steps = [line for line in lines if "loss" in line]
        self.validations = [line for line in lines if "validation_loss" in line]
        if not self.steps:
            raise RuntimeError(f"{folder}/metrics.jsonl has no step")

    def of(self, key):
        return [line[key] for line in self.steps]

    def learned(self):
        """Returns all metrics except times and memory, which differ between runs."""
        return [{k: line[k] for k in ("step", "loss", "grad_norm", "lr", "num_tokens")} for line in self.steps]

    def tokens_per_second(self):
        """Returns tokens per second of the median step of the last half; the first steps choose algorithms and fill pools."""
        half = self.steps[len(self.steps) // 2:]
        tokens = self.steps[-1]["num_tokens"] - self.steps[-2]["num_tokens"]
        return tokens / statistics.median(line["step_seconds"] for line in half)

    def mfu(self):
        """Returns the run's MFU in percent at the speed of that step, or 0. The run counts the FLOPs of its documents."""
        last = self.steps[-1]  # both are means of the last 20 steps, perhaps with the first one
        return 100 * last.get("mfu", 0) * self.tokens_per_second() / last["tokens_per_second"]

    def peak_bytes(self, device):
        return self.steps[-1].get("device_peak_bytes") if device == "cuda" else None


def base(name, folder, device, steps):
    """Returns the settings of all runs: by default without checkpoints, validation and measurements of the machine."""
    return {
        "job": {"description": name, "dump_folder": str(folder)},
        "training": {"device": device, "steps": steps},
        "checkpoint": {"enable": False},
        "metrics": {"measure_peak": False, "enable_tensorboard": False},
        "validation": {"enable": False},
    }


def merged(first, second):
    result = dict(first)
    for key, value in second.items():
        result[key] = merged(result[key], value) if isinstance(value, dict) and isinstance(result.get(key), dict) else value
    return result


def small_run(name, folder, device, steps, moe=False, **changes):
    """Returns the config of a Qwen3 like the quickstart's on the repository's text; `changes` by section."""
    args = {"hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 4, "num_attention_heads": 4,
            "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 257, "max_position_embeddings": 512,
            "rope_theta": 10000.0, "initializer_range": 0.04}
    if moe:
        args |= {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 192}
    return merged(merged(base(name, folder, device, steps), {
        "model": {"name": "qwen3_moe" if moe else "qwen3", "flavor": "debugmodel", "args": args},
        "tokenizer": {"path": "byte"},
        "data": {"validation_fraction": 0.1, "datasets": [{"path": "recipe/data/tinyshakespeare.txt"}]},
        "training": {"seq_len": 256, "local_batch_size": 8, "dtype": "float32"},
        "optimizer": {"lr": 1e-3, "beta2": 0.98},
        "lr_scheduler": {"warmup_steps": min(5, steps)},
    }), changes)


def large_run(name, folder, device, steps, model, tokens_file, seq_len, rows, **changes):
    """Returns the config of a published size on synthetic tokens, in bfloat16. Its runs log their MFU."""
    return merged(merged(base(name, folder, device, steps), {
        "metrics": {"measure_peak": True},
        "model": model,
        "tokenizer": {"path": "byte"},
        "data": {"datasets": [{"path": str(tokens_file), "kind": "tokens"}]},
        "training": {"seq_len": seq_len, "local_batch_size": rows, "mixed_precision_param": "bfloat16"},
        "optimizer": {"lr": 1e-5},
        "lr_scheduler": {"warmup_steps": 2},
    }), changes)
