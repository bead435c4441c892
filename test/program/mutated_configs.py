#!/usr/bin/env python3
"""Tests model folders whose config.json was changed at random: inspect, verify and generate must accept the folder (exit
code 0; 3 from verify, whose reference then belongs to another model) or refuse it with exit code 2 and a message that
names config.json and a key, or the line of a syntax error. They may take neither much memory nor much time.

Usage: mutated_configs.py LEHR FORKED_COMMANDS [CASES]      (200 cases; standard library only)

LEHR_TEST_SEED seeds the cases, and LEHR_ONLY=N runs case N alone and prints its config.json and what the program says.
"""
import copy, json, os, random, re, shutil, subprocess, sys, tempfile
from pathlib import Path

lehr, runner = (os.path.abspath(path) for path in sys.argv[1:3])
cases = int(sys.argv[3]) if len(sys.argv) > 3 else 200
seed = int(os.environ.get("LEHR_TEST_SEED", "1"))
only = os.environ.get("LEHR_ONLY")
reference = Path("test/data/reference")
work = Path(tempfile.mkdtemp(prefix="lehr-mutated-configs-"))
MEGABYTES, SECONDS = 1000, 60

NUMBERS = [0, 1, -1, 2, 3, 5, 7, 16, 0.5, 1.5, -0.5, 1e-320, 1e308, 255, 4096, 10001, 65537, 2**20, 2**31 - 1, 2**31, 2**32,
           2**53 + 1, 2**62, 2**63 - 1, 2**63, 2**64, -(2**63), -(2**63) - 1, 10**30, float("nan"), float("inf")]
VALUES = [None, True, False, "", "16", "silu", "x" * 300, "\u00e4\u0000", [], {}, [1], [[]], [None], {"a": 1}, {"1": 2}]
# Keys that mean something, and that most configs lack.
ADDED = {
    "num_experts_per_tok": [2, 0, 10**9], "num_experts": [4, 0, 2**40], "num_local_experts": [4, 3],
    "moe_intermediate_size": [8, 2**40], "mlp_only_layers": [[0], [7], ["a"], [2**62]], "decoder_sparse_step": [2, 0, 2**62],
    "norm_topk_prob": [True, 1], "expert_bias": [True], "router_aux_loss_coef": [-1, "x"],
    "sliding_window": [4, 0, None, 2**62], "max_window_layers": [0, -1, 2**62], "layer_types": [
        [], ["full_attention"] * 3, ["sliding_attention"] * 3, ["x"] * 3, [1, 2, 3], "full_attention"],
    "no_rope_layers": [[], [1, 0, 1], ["a", "b", "c"], [2**62] * 3], "no_rope_layer_interval": [0, 2, 2**62],
    "sliding_window_pattern": [0, 2, 2**62], "query_pre_attn_scalar": [0, -1, 1e-320, 1e308],
    "attn_logit_softcapping": [0, 30], "final_logit_softcapping": [30], "hidden_activation": ["gelu"],
    "rope_parameters": [{"rope_type": "default", "rope_theta": 5}, {"full_attention": {}, "sliding_attention": None},
                        {"full_attention": {"rope_theta": -1}}, {"sliding_attention": {"rope_theta": 0}}, {"x": 1}],
    "rope_local_base_freq": [0, -1, "x"], "use_sliding_window": [True], "attention_bias": [True], "attention_dropout": [0.5],
    "partial_rotary_factor": [0.5], "classifier_dropout": [2, -1, 0.5], "num_labels": [0, 3, 2**40],
    "token_classification_bias": [True, False, 3],
    "id2label": [None, {}, [], {"0": "a", "1": "b"}], "head_dim": [8, 7, 0, None], "hidden_act": ["gelu"],
    "architectures": [None, [], ["X"], ["QwenModel"], ["XForSequenceClassification"], ["XForTokenClassification"],
                      "XForCausalLM"],
    "rope_scaling": [
        {"rope_type": kind, **more}
        for kind in ("default", "linear", "dynamic", "yarn", "llama3", "bent", 3)
        for more in ({}, {"factor": 2}, {"factor": 0}, {"factor": -1, "original_max_position_embeddings": 0},
                     {"factor": 4, "low_freq_factor": 4, "high_freq_factor": 4, "original_max_position_embeddings": 8},
                     {"factor": 4, "beta_fast": 0, "beta_slow": 3}, {"factor": 2, "attention_factor": -1})
    ] + [{"full_attention": {"rope_type": "default"}}],
    "rope_theta": [0, -5, 1, "big"], "model_type": ["qwen3", "qwen3_moe", "llama", "olmo2", "qwen2", "mistral",
                                                   "smollm3", "olmo3", "gemma3_text", "gemma4_text", "mixtral", "gpt_oss", "deepseek_v3",
                                                   "glm4_moe", "minimax_m2", "kimi_k2", "qwen3_next", "qwen3_5_text",
                                                   "qwen3_5_moe_text", "nemotron_h", "nemotron-nas", "mamba", 3],
    "block_configs": [[], [{}], [{"attention": {"no_op": True}, "ffn": {"no_op": True}}] * 2],
    "per_layer_config": [{"0": {"skip": ["mlp"]}}, {"9": {}}, {"0": {"skip": ["x"]}}, {"1": {"num_key_value_heads": 0}}],
    "eos_token_id": [[], [1, 2], ["a"], -1, 2**62], "pad_token_id": [-1, 10**9], "tie_word_embeddings": [True, False],
    "max_position_embeddings": [1, 4], "num_hidden_layers": [1, 3, 9999], "initializer_range": [-1], "rms_norm_eps": [0, -1],
}


def folders():
    """The folders to change, by name, with the commands that read them."""
    made = {}
    for name in ("llama_rope_llama3", "olmo2", "gemma3_tables", "olmo3_yarn", "qwen2_window", "smollm3_layers",
                 "deepseek_v3_yarn", "glm4_moe_norms", "qwen3_next_interval", "qwen3_5_types", "qwen3_5_moe_experts",
                 "nemotron_h_groups", "mixtral_window", "minimax_m2_published", "kimi_k2", "gemma4_experts",
                 "gemma4_per_layer", "gemma4_small",
                 "qwen3_seqcls", "qwen3_tokcls", "qwen3_tied_v4config", "qwen3moe_sparse_step2"):
        made[name] = work / name
        shutil.copytree(reference / name, made[name])
    swap = work / "swap.json"
    swap.write_text('[{"layer": 1, "attention": {"no_op": true}}]')
    made["heterogeneous"] = work / "heterogeneous"
    subprocess.run([lehr, "convert", "--model", reference / "llama_rope_llama3", "--replace", swap, "--output",
                    made["heterogeneous"]], check=True, stdout=subprocess.DEVNULL)
    shutil.copy(reference / "llama_rope_llama3/oracle.safetensors", made["heterogeneous"])
    made["nemotron_nas"] = work / "nemotron_nas"
    made["nemotron_nas"].mkdir()
    (made["nemotron_nas"] / "config.json").write_text(json.dumps({
        "model_type": "nemotron-nas", "architectures": ["DeciLMForCausalLM"], "vocab_size": 29, "hidden_size": 192,
        "intermediate_size": None, "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": None,
        "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "block_configs": [
            {"attention": {"n_heads_in_group": 4}, "ffn": {"ffn_mult": 2.0}},
            {"attention": {"no_op": True, "n_heads_in_group": None}, "ffn": {"ffn_mult": 4.0}}]}))
    return made


def places(value, path=()):
    """The paths of all values below `value`."""
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield (*path, key)
        yield from places(inner, (*path, key))


def at(value, path):
    for key in path:
        value = value[key]
    return value


def misspelled(rng, name):
    spot = rng.randrange(len(name) + 1)
    return rng.choice([name[:spot] + name[spot + 1:], name[:spot] + "_" + name[spot:], name.upper(), "", name + " "])


def nested(rng, value):
    for _ in range(rng.choice([1, 2, 10, 200, 300])):
        value = [value] if rng.random() < 0.5 else {"a": value}
    return value


def changed(rng, config):
    """Changes one thing in the tree."""
    path = rng.choice(list(places(config)) or [()])
    if not path:
        return rng.choice(VALUES)
    parent, key = at(config, path[:-1]), path[-1]
    old = parent[key]
    kind = rng.choice(["number", "number", "number", "value", "drop", "drop", "rename", "nest", "swap", "add", "add"])
    if kind == "number":
        near = [old * 2, old + 1, -old, old / 3] if isinstance(old, (int, float)) and abs(old) < 2**62 else []
        parent[key] = rng.choice(NUMBERS + 3 * near)
    elif kind == "value":
        parent[key] = rng.choice(VALUES)
    elif kind == "drop":
        del parent[key]
    elif kind == "rename" and isinstance(parent, dict):
        parent[misspelled(rng, key)] = parent.pop(key)
    elif kind == "nest":
        parent[key] = nested(rng, old)
    elif kind == "swap" and isinstance(parent, dict):
        other = rng.choice(list(parent))
        parent[key], parent[other] = parent[other], parent[key]
    elif kind == "add":
        name = rng.choice(list(ADDED))
        config[name] = rng.choice(ADDED[name])
    return config


def spoiled(rng, text):
    """Changes the text."""
    kind = rng.choice(["cut", "byte", "twice", "remove", "deep", "digits", "insert"])
    spot = rng.randrange(len(text))
    if kind == "cut":
        return text[:spot]
    if kind == "byte":
        return text[:spot] + bytes([rng.randrange(256)]) + text[spot + 1:]
    if kind == "twice":
        keys = re.findall(rb'"(\w+)":', text) or [b"a"]
        return text.replace(b"{", b'{"%s": %s, ' % (rng.choice(keys), rng.choice([b"1", b"null", b"{}"])), 1)
    if kind == "remove":
        return text[:spot] + text[spot + rng.randrange(1, 20):]
    if kind == "deep":
        return rng.choice([b"[", b'{"a":', b'{"hidden_size":[']) * rng.choice([3, 300, 100_000])
    if kind == "digits":
        return re.sub(rb": \d+", b": " + rng.choice([b"1e999", b"9" * 400, b"-1e400", b"0x10", b"016"]), text, count=1)
    return text[:spot] + rng.choice([b"\xff", b"\x00", b"//", b",", b"{", b'"', b"\xef\xbb\xbf", b"1" * 2000]) + text[spot:]


def mutated(rng, config):
    config = copy.deepcopy(config)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        config = changed(rng, config) if isinstance(config, dict) else config
    text = json.dumps(config).encode()
    return spoiled(rng, text) if rng.random() < 0.15 else text


def keys_of(value):
    return {str(part) for path in places(value) for part in path}


def problem(command, result, keys):
    """What is wrong with a command's result; empty if nothing is."""
    code, errors = result["code"], result["errors"]
    if code == 0 or (code == 3 and command == "verify"):
        return ""
    if code != 2:
        return f"exit code {code}"
    if "config.json" not in errors:
        return "the message does not name config.json"
    if re.search(r"config\.json:\d+:\d+: invalid JSON|config\.json: expected a table|config\.json: '\w+' is missing", errors):
        return ""
    return "" if any(key and key in errors for key in keys) else "the message names no key"


def commands_of(name, folder):
    made = [["inspect", folder]]
    if name != "nemotron_nas":
        made.append(["verify", "--model", folder])
    if name not in ("nemotron_nas", "qwen3_seqcls", "qwen3_tokcls"):
        made.append(["generate", "--model", folder, "--tokens", "[1, 2, 3]", "--max-new-tokens", "2"])
    return made


def main():
    made = folders()
    originals = {name: json.loads((folder / "config.json").read_text()) for name, folder in made.items()}
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    child = subprocess.Popen([runner, str(MEGABYTES), str(SECONDS)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                             text=True, env=environment)
    failures, codes = [], {}
    for case in range(cases) if only is None else [int(only)]:
        rng = random.Random(seed * 1_000_003 + case)
        name = list(made)[case % len(made)]
        text = mutated(rng, originals[name])
        (made[name] / "config.json").write_bytes(text)
        keys = keys_of(originals[name]) | {key.decode() for key in re.findall(rb'"(\w+)"', text)} | set(ADDED)
        for command in commands_of(name, made[name]):
            child.stdin.write("\t".join(map(str, command)) + "\n")
            child.stdin.flush()
            result = json.loads(child.stdout.readline())
            codes[result["code"]] = codes.get(result["code"], 0) + 1
            found = problem(command[0], result, keys)
            if found:
                failures.append(case)
                print(f"FAILS case {case} ({name}, {command[0]}): {found}\n      {result['errors'].strip()[-600:]}\n"
                      f"      {text[:1500]!r}\n      LEHR_TEST_SEED={seed} LEHR_ONLY={case} repeats it", flush=True)
            elif only is not None:
                print(f"{text!r}\n{command[0]}: exit code {result['code']}\n{result['errors']}")
    child.stdin.close()
    child.wait()
    shutil.rmtree(work)
    told = ", ".join(f"{count} with {code}" for code, count in sorted(codes.items()))
    print(f"{len(failures)} of {sum(codes.values())} commands on {cases} mutated configs failed (exit codes: {told}; "
          f"LEHR_TEST_SEED={seed})")
    sys.exit(1 if failures else 0)


main()
