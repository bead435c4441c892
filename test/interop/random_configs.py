#!/usr/bin/env python3
"""Tests random valid config.json files of all families: `lehr verify` in float64 computes what transformers computes from
the same folder (logits, loss, every gradient, packed documents, greedy tokens), or refuses a key by its name.

Usage: random_configs.py LEHR [CASES]      (40 cases)
LEHR_TEST_SEED seeds the cases; LEHR_ONLY=N runs case N alone, prints its config and keeps its folder. Case N is of family
N modulo their number.
Needs torch, transformers and safetensors, and finds them as export_loads_in_transformers.py does; exits with 77 without.
"""
import itertools, json, os, random, re, shutil, subprocess, sys, tempfile, warnings
from collections import Counter
from pathlib import Path

from other_python import run_there_or_skip

root = Path(__file__).resolve().parents[2]
sys.path.append(str(root / "script"))

try:
    import torch
    import transformers
    from safetensors.torch import save_file
    from transformers import (AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification,
                              AutoModelForTokenClassification)
except ImportError as missing:
    run_there_or_skip(missing, "torch, transformers and safetensors")

import config_draws
from make_family_references import float32_is_float64, published, randomize, with_backbone

# Keys that may be refused; a refusal of another one fails.
REFUSED = {"attention_bias", "mlp_bias", "hidden_act", "hidden_activation", "use_sliding_window", "partial_rotary_factor",
           "attention_dropout", "final_logit_softcapping", "attn_logit_softcapping", "use_bias", "mlp_hidden_act",
           "tie_word_embeddings", "rope_theta", "sliding_window", "type", "truncate"}
lehr = os.path.abspath(sys.argv[1])
cases = int(sys.argv[2]) if len(sys.argv) > 2 else 40
seed = int(os.environ.get("LEHR_TEST_SEED", "1"))
only = os.environ.get("LEHR_ONLY")
work = Path(tempfile.mkdtemp(prefix="lehr-random-configs-"))


def kind_of(config):
    return re.sub(".*For", "", config["architectures"][0])


def build(folder, weights=None):
    """The model of the folder's config.json, in the default dtype."""
    config = AutoConfig.from_pretrained(folder)
    auto = {"CausalLM": AutoModelForCausalLM, "SequenceClassification": AutoModelForSequenceClassification,
            "TokenClassification": AutoModelForTokenClassification}[kind_of(config.to_dict())]
    model = auto.from_config(config, attn_implementation="eager", experts_implementation="eager").eval()
    if weights is None:
        randomize(model)
    else:
        model.load_state_dict(weights)
    return model


def store(rng, folder, model, config):
    """Writes the weights with published names, or those of transformers' modules, or the folder as transformers does.
    Returns a function that names gradients alike."""
    family, way = config["model_type"], rng.choice(["published", "fused", "transformers"])
    if way == "transformers":
        model.save_pretrained(folder)
    backbone = with_backbone if family == "nemotron_h" else dict
    named = backbone if way == "fused" or family == "gpt_oss" else lambda tensors: published(tensors, family)
    if way != "transformers":
        tensors = {name: value for name, value in model.state_dict().items()
                   if not (name == "lm_head.weight" and model.config.tie_word_embeddings)}
        save_file({name: value.clone() for name, value in named(tensors).items()}, folder / "model.safetensors",
                  metadata={"format": "pt"})
    return named


def grows(config):
    """True if rotary positions depend on the length, for which transformers keeps a state."""
    return any("dynamic" in str(config.get(key)) for key in ("rope_scaling", "rope_parameters"))


def language_model_outputs(rng, model, config, inputs):
    ids, labels = inputs["input_ids"], inputs["labels"]
    found = {"logits": model(ids).logits}
    found["loss"] = torch.nn.functional.cross_entropy(found["logits"][:, :-1].flatten(0, 1), labels[:, 1:].flatten())
    found["loss"].backward()
    if grows(config):
        return found
    documents = [rng.randrange(1, 20) for _ in range(3)]
    packed = inputs["packed_input_ids"] = torch.randint(1, config["vocab_size"], (1, sum(documents)))
    inputs["packed_position_ids"] = torch.cat([torch.arange(n) for n in documents])[None]
    inputs["packed_doc_ids"] = torch.repeat_interleave(torch.arange(3), torch.tensor(documents))[None]
    found["packed_logits"] = torch.cat([model(part).logits for part in packed.split(documents, dim=1)], 1)
    # transformers cannot generate without a layer of attention, and its cache of one token keeps all.
    if set(getattr(model.config, "layer_types", [])) == {"linear_attention"} or config.get("sliding_window") == 1:
        return found
    with torch.no_grad():
        inputs["gen_prompt.0"] = ids[0, :rng.randrange(1, 12)]
        whole = model.generate(inputs["gen_prompt.0"][None], max_new_tokens=6, do_sample=False, eos_token_id=None,
                               pad_token_id=0, use_cache=config["model_type"] != "nemotron_h")  # which ignores time_step_min
    inputs["gen_tokens.0"] = whole[0, len(inputs["gen_prompt.0"]):]
    return found


def classifier_outputs(rng, model, config, inputs):
    """Scores of padded sequences."""
    ids, count, pad = inputs["input_ids"], model.config.num_labels, config["pad_token_id"] or 0
    ids[ids == pad] = pad + 1  # transformers gives the embedding of padding no gradient
    mask = inputs["attention_mask"] = torch.ones_like(ids)
    for row in range(1, len(ids)):
        mask[row, rng.randrange(1, ids.shape[1]):] = 0
    ids[mask == 0] = pad
    of_tokens = kind_of(config) == "TokenClassification"
    inputs["labels"] = torch.randint(count, ids.shape if of_tokens else ids.shape[:1])
    if of_tokens:
        inputs["labels"][mask == 0] = -100
    found = {"logits": model(ids, attention_mask=mask).logits}
    found["loss"] = torch.nn.functional.cross_entropy(found["logits"].reshape(-1, count), inputs["labels"].flatten())
    found["loss"].backward()
    return found


def write_reference(rng, folder, config):
    """Builds a random model of transformers, and writes what it computes in float64. Returns the inputs."""
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    torch.manual_seed(rng.randrange(2**31))
    model = build(folder)
    weights = {name: value.double() for name, value in model.state_dict().items()}
    with float32_is_float64():
        exact = build(folder, weights).double()
    exact.config.use_cache = False  # which needs a layer of attention
    named = store(rng, folder, model, config)
    # Most sequences are longer than windows and than the lengths that RoPE scaling depends on.
    rows, tokens = rng.randrange(1, 4), rng.randrange(2, 150 if rng.random() < 0.1 else 40)
    if kind_of(config) == "SequenceClassification" and config["pad_token_id"] is None:
        rows = 1  # transformers takes the last token
    inputs = {"input_ids": torch.randint(1, config["vocab_size"], (rows, tokens))}
    inputs["labels"] = inputs["input_ids"].clone()
    inputs["labels"][0, tokens // 2] = -100 if tokens > 3 else inputs["labels"][0, tokens // 2]
    with float32_is_float64():
        outputs = language_model_outputs if kind_of(config) == "CausalLM" else classifier_outputs
        found = outputs(rng, exact, config, inputs)
    grads = {name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
             for name, parameter in exact.named_parameters()}
    stored = inputs | {name: value.float() for name, value in found.items()} | {
        name + "_f64": value for name, value in found.items()}
    save_file({k: v.detach().clone().contiguous() for k, v in stored.items()}, folder / "oracle.safetensors")
    named_grads = {name: value.detach().clone().contiguous() for name, value in named(grads).items()}
    save_file({name: value.float() for name, value in named_grads.items()} |
              {name + "_f64": value for name, value in named_grads.items()}, folder / "grads.safetensors")
    return inputs


def run(*arguments):
    return subprocess.run([lehr, *map(str, arguments)], capture_output=True, text=True,
                          env={**os.environ, "OMP_NUM_THREADS": "1"})


def problem(done):
    """Returns what is wrong with the result of verify, and the refused key; both are empty if the results are equal."""
    if done.returncode == 0:
        return "", ""
    if done.returncode != 2:
        over = [line for line in done.stdout.splitlines() if line.endswith("OVER")]
        return f"exit code {done.returncode}: {done.stderr.strip()[-600:]}\n      " + "\n      ".join(over[:4]), ""
    found = re.search(r"config\.json: (?:'(\w+)' is missing|([\w.]+))", done.stderr)
    key = (found.group(1) or found.group(2).split(".")[-1]) if found else ""
    return ("", key) if key in REFUSED else (f"refused: {done.stderr.strip()[-600:]}", "")


def generation_problem(config, inputs):
    """The same for `lehr generate`, which stops at the end of the text."""
    prompt, wanted = inputs["gen_prompt.0"].tolist(), inputs["gen_tokens.0"].tolist()
    if len(prompt) + len(wanted) > config["max_position_embeddings"]:
        return ""
    ends = [config["eos_token_id"]] if isinstance(config["eos_token_id"], int) else config["eos_token_id"] or []
    wanted = list(itertools.takewhile(lambda token: token not in ends, wanted))
    done = run("generate", "--model", inputs["folder"], "--tokens", prompt, "--max-new-tokens",
               len(inputs["gen_tokens.0"]), "--temperature", 0, "--dtype", "float64")
    if done.returncode == 0 and json.loads(done.stdout) == wanted:
        return ""
    return f"generate: expected {wanted}, found {done.stdout.strip()} {done.stderr.strip()[-300:]}"


def check(case, rng, folder, config):
    """Returns what is wrong with a case, and the refused key."""
    inputs = write_reference(rng, folder, config) | {"folder": folder}
    wrong, key = problem(run("verify", "--model", folder, "--dtype", "float64"))
    if wrong or key:
        return wrong, key
    if case % 4 == 0:  # with other kernels
        wrong, key = problem(run("verify", "--model", folder, "--atol", 1e-3, "--rtol", 1e-3))
        return wrong and "float32: " + wrong, key
    return generation_problem(config, inputs) if case % 4 == 1 and "gen_tokens.0" in inputs else "", ""


def main():
    torch.set_num_threads(1)  # tensors are tiny
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity(transformers.logging.CRITICAL)
    transformers.logging.disable_progress_bar()
    families = list(config_draws.FAMILIES)
    results, refused, failures = Counter(), Counter(), []
    for case in range(cases) if only is None else [int(only)]:
        rng = random.Random(seed * 1_000_003 + case)
        config = config_draws.draw(rng, families[case % len(families)])
        family, folder = config["model_type"], work / str(case)
        folder.mkdir()
        if only is not None:
            print(json.dumps(config, indent=2))
        try:
            wrong, key = check(case, rng, folder, config)
        except Exception as error:  # of transformers, whose classes check little and fail anywhere
            rare = any(keys.items() <= config.items() for keys in config_draws.MAY_FAIL)
            wrong = "" if rare else f"transformers: {type(error).__name__}: {str(error)[:600]}"
            key = "a failure of transformers" if rare else ""
        refused[f"{family}: {key}"] += key != ""
        results[family, "fails" if wrong else "refused" if key else "equal"] += 1
        if wrong:
            failures.append(case)
            print(f"FAILS case {case} ({family}): {wrong}\n      LEHR_TEST_SEED={seed} LEHR_ONLY={case} repeats it",
                  flush=True)
        elif only is None:
            shutil.rmtree(folder)
    for family in families:
        print(f"{family}: " + ", ".join(f"{results[family, kind]} {kind}" for kind in ("equal", "refused", "fails")))
    print("refused: " + ", ".join(f"{what} ({count})" for what, count in sorted(refused.items()) if count))
    print(f"{len(failures)} of {sum(results.values())} cases fail (transformers {transformers.__version__}, "
          f"LEHR_TEST_SEED={seed})" + (f"; {work} has their folders" if failures or only else ""))
    if not failures and only is None:
        shutil.rmtree(work)
    sys.exit(1 if failures else 0)


main()
