"""Steps that measure speed and memory: published model sizes, compared with `lehr plan`, the goals and a peer."""
import importlib.util
import json
import shutil
import sys
import sysconfig
from dataclasses import dataclass, field
from pathlib import Path

import runs
from correctness import folder_of, train
from runner import FAILED, PASSED, Failed, NotRun

SEQ_LEN = 4096
VOCABULARY = 151936  # that of Qwen3's published sizes
MEAN_DOCUMENT = 600  # tokens per document in packed rows
FIRST_STEP_SECONDS, FLOAT8_GOAL = 5, 1.35


@dataclass
class Size:
    label: str
    name: str
    flavor: str
    rows: int  # sequences per step on 80 GB; more on larger cards
    steps: int
    goal: float = 0  # MFU in percent, counting the FLOPs of causal attention
    args: dict = field(default_factory=dict)
    dtype: str = "float32"  # dtype of weights and moments; computation is in bfloat16
    recompute: bool = False  # activation checkpointing as by default; without it if all activations fit
    about: str = ""
    layers: int = 0
    heads: int = 0  # of queries and keys, of 128 elements

    def model(self, check):
        if check.device == "cpu":
            cut = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
                   "num_key_value_heads": 2, "head_dim": 16, "vocab_size": VOCABULARY // 256}
            if self.name == "qwen3_moe":
                cut |= {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
            return {"name": self.name, "flavor": self.flavor, "args": cut}
        return {"name": self.name, "flavor": self.flavor, "args": self.args} if self.args else {
            "name": self.name, "flavor": self.flavor}


SIZES = [
    Size("Qwen3-0.6B", "qwen3", "0.6B", 16, 12, 48, layers=28, heads=24),
    Size("Qwen3-1.7B", "qwen3", "1.7B", 8, 12, 57, layers=28, heads=24),
    Size("Qwen3-8B", "qwen3", "8B", 2, 8, 62, dtype="bfloat16", recompute=True,
         about="weights and moments in bfloat16, to fit", layers=36, heads=40),
    Size("30B-A3B, 8 layers", "qwen3_moe", "30B-A3B", 8, 8, 35, {"num_hidden_layers": 8}, "bfloat16",
         about="8 of 48 layers, random weights, ids of Zipf's law", layers=8, heads=36),
    Size("Qwen3-4B", "qwen3", "4B", 4, 8, 61, dtype="bfloat16", about="weights and moments in bfloat16, to fit",
         layers=36, heads=40),
]
WHOLE_8B = next(size for size in SIZES if size.label == "Qwen3-8B")
CUT_8B = Size("8B, 8 layers", "qwen3", "8B", 2, 10, 0, {"num_hidden_layers": 8}, recompute=True)
ROOM_BYTES = 84e9  # of a card of 80 GB, for which the numbers of rows are


def write_data(check):
    """Writes token files: rows of several documents, and rows of one document each."""
    folder = check.out / "data"
    folder.mkdir(exist_ok=True)
    vocabulary = VOCABULARY if check.device == "cuda" else VOCABULARY // 256
    count = 12 * 8 * SEQ_LEN if check.device == "cuda" else 40_000
    check.tokens = {"packed": folder / "packed.tokens", "whole rows": folder / "whole_rows.tokens"}
    length = MEAN_DOCUMENT if check.device == "cuda" else 20
    runs.write_tokens(check.tokens["packed"], vocabulary, runs.documents_like_text(count, vocabulary, length))
    runs.write_tokens(check.tokens["whole rows"], vocabulary,
                      [[i for d in runs.documents_like_text(count, vocabulary, length, seed=2) for i in d]])


def rows_of_card(check, size):
    return max(1, int(size.rows * check.gpu.memory_bytes / ROOM_BYTES)) if check.gpu else size.rows


def config_of(check, size, rows_of, label, steps=None, rows=None, **changes):
    seq_len = SEQ_LEN if check.device == "cuda" else 64
    rows = rows or rows_of_card(check, size)
    config = runs.large_run(f"{size.label}, {rows_of}", folder_of(check, label), check.device,
                            steps or (size.steps if check.device == "cuda" else 4), size.model(check),
                            check.tokens[rows_of], seq_len, rows, **changes)
    config["training"]["dtype"] = size.dtype
    # Not the default "auto": `lehr plan` would choose for another amount of memory than the run.
    config.setdefault("activation_checkpoint", {"mode": "selective" if size.recompute else "none"})
    if size.dtype == "bfloat16":
        del config["training"]["mixed_precision_param"]
    return config


def label_of(size, suffix):
    return "".join(c if c.isalnum() else "_" for c in f"{size.label}_{suffix}")


def start_plans(check):
    """Starts `lehr plan` for each size, in parallel to the steps on the GPU."""
    for size in [*SIZES, CUT_8B]:
        label = label_of(size, "plan")
        file = check.out / "configs" / f"{label}.toml"
        file.parent.mkdir(exist_ok=True)
        file.write_text(runs.toml(config_of(check, size, "whole rows", label)))
        folder = check.out / "plans" / label
        command = [check.lehr, "plan", file, "--no-schedules", "--memory-gb", "100000", "--output", folder, "--machine",
                   check.gpu.plan_machine if check.gpu else "cpu"]
        check.plans[size.label] = (check.runner.run_beside(label, command, env={
            "OMP_NUM_THREADS": str(check.beside_threads)}), folder / "plan.json")


def plan_of(check, size):
    future, file = check.plans[size.label]
    check.runner.wait_for(future)
    return json.loads(file.read_text())


def kept_by_attention(size, rows):
    """The bytes of rotated queries and keys that ATen's attention of whole rows keeps, and a plan leaves out."""
    return size.layers * rows * SEQ_LEN * size.heads * 128 * 2


def remember_attention(check, label):
    """For the report: the attention of bfloat16 runs."""
    lines = [line for line in check.runner.log_of(label).splitlines() if "attention  " in line]
    if lines:
        check.facts["attention"] = lines[0].split("attention  ", 1)[1]


def sizes(check, runner):
    """Tokens per second, MFU and memory of each size, with and without packed documents."""
    for size in SIZES:
        plan = runner.guarded(f"lehr plan of {size.label}", lambda size=size: plan_of(check, size))
        for rows_of in ("whole rows", "packed"):
            def one(size=size, rows_of=rows_of, plan=plan):
                label = label_of(size, rows_of.split()[0])
                ran = train(check, label, config_of(check, size, rows_of, label), 90)
                speed, first = ran.tokens_per_second(), ran.steps[0]["step_seconds"]
                remember_attention(check, label)
                share = ran.mfu()
                peak = ran.peak_bytes(check.device)
                check.rows.append({
                    "size": size.label, "rows": rows_of, "tokens_per_second": speed, "mfu": share, "peak_bytes": peak,
                    "plan_bytes": plan["peak_bytes"] if plan else None, "goal": size.goal,
                    "about": size.about, "recompute": "op 2" if size.recompute else "none",
                    "first_step": first})
                text = f"{speed:,.0f} tokens/s" + (f", MFU {share:.1f} %" if share else "")
                goal = f"MFU >= {size.goal} %" if rows_of == "whole rows" or size.name == "qwen3_moe" else ""
                if goal and check.gpu and check.gpu.has_goals:
                    runner.judge(f"{size.label}, {rows_of}", share >= size.goal, text, goal)
                else:
                    runner.note(f"{size.label}, {rows_of}", PASSED, text, goal)
                runner.judge(f"{size.label}, {rows_of}: first step", first < FIRST_STEP_SECONDS, f"{first:.2f} s",
                             f"< {FIRST_STEP_SECONDS} s")
                if peak and plan:
                    kept = kept_by_attention(size, rows_of_card(check, size)) if rows_of == "whole rows" else 0
                    error = peak / (plan["peak_bytes"] + kept) - 1
                    more = f" and {kept / 1e9:.2f} of queries and keys" if kept else ""
                    runner.judge(f"{size.label}, {rows_of}: peak memory", abs(error) <= 0.03,
                                 f"{peak / 1e9:.2f} GB, lehr plan predicted {plan['peak_bytes'] / 1e9:.2f}{more} "
                                 f"({100 * error:+.1f} %)", "within 3 %")
            runner.guarded(f"{size.label}, {rows_of}", one)


def traces(check, runner):
    """The table of --profile and a Chrome trace of one step, for three sizes."""
    for size in (SIZES[0], SIZES[3], CUT_8B):
        def one(size=size):
            label = label_of(size, "profile")
            folder = folder_of(check, label)
            profiling = {"operator_table": True, "operator_table_warmup": 2, "operator_table_steps": 2,
                         "operator_table_measure_seconds": 0.2, "enable_profiling": True, "profile_freq": 6,
                         "profiler_warmup": 1}
            train(check, label, config_of(check, size, "packed", label, steps=6, profiling=profiling), 60)
            table = json.loads((folder / "profile/operators.json").read_text())
            kinds = sorted(table["kinds"], key=lambda kind: -kind["seconds"])[:4]
            text = ", ".join(f"{kind['kind']} {1e3 * kind['seconds']:.1f} ms ({100 * kind['share_of_limit']:.0f} % of limit)"
                             for kind in kinds)
            check.tables[size.label] = (folder / "profile/operators.txt").read_text()
            found = list((folder / "profile").rglob("rank0_trace.json*"))
            runner.note(f"{size.label}: table of operators", PASSED, text)
            runner.note(f"{size.label}: trace", PASSED if found else FAILED,
                        f"{found[0].stat().st_size / 1e6:.1f} MB" if found else "no file")
        runner.guarded(size.label, one)


def modes(check, runner):
    """Speed and memory of float8 beside bfloat16 at all 36 layers of 8B, and of activation checkpointing at 8 of them.

    A cut model would not do for float8: the head, which stays in bfloat16, is 8 % of the matmuls at 36 layers, but 29 %
    at 8, so that float8 layers of the required speed would miss the goal.
    """
    def speed_of(name, size=CUT_8B, steps=None, **changes):
        def one():
            label = label_of(size, name)
            ran = train(check, label, config_of(check, size, "whole rows", label, steps, **changes), 45)
            peak = ran.peak_bytes(check.device)
            check.modes.append({"size": size.label, "mode": name, "tokens_per_second": ran.tokens_per_second(),
                                "peak_bytes": peak})
            runner.note(f"{size.label}: {name}", PASSED,
                        f"{ran.tokens_per_second():,.0f} tokens/s" + (f", {peak / 1e9:.2f} GB" if peak else ""))
            return ran.tokens_per_second()
        return runner.guarded(f"{size.label}: {name}", one)

    steps = 6 if check.device == "cuda" else None
    measured = next((row for row in check.rows if row["size"] == WHOLE_8B.label and row["rows"] == "whole rows"), None)
    bfloat16 = measured["tokens_per_second"] if measured else speed_of("bfloat16", WHOLE_8B, steps)
    for recipe in ("rowwise", "rowwise_with_gw_hp"):
        float8 = speed_of(f"float8 {recipe}", WHOLE_8B, steps, float8={"enable": True, "recipe": recipe})
        if float8 and bfloat16:
            judged = recipe == "rowwise" and check.gpu and check.gpu.has_goals
            runner.judge(f"float8 {recipe} over bfloat16", float8 >= FLOAT8_GOAL * bfloat16 or not judged,
                         f"{float8 / bfloat16:.2f} times",
                         f">= {FLOAT8_GOAL} times at {WHOLE_8B.label}" if recipe == "rowwise" else "")
    speed_of("op 2, the default")
    for name, section in (("none", {"mode": "none"}), ("op", {"mode": "selective", "selective_ac_option": "op"}),
                          ("full", {"mode": "full"})):
        speed_of(f"activation checkpointing {name}", activation_checkpoint=section)


def head(check, runner):
    """The head of a large vocabulary in a model of one narrow layer: its memory, and its time relative to its matmuls."""
    tokens = 32768 if check.device == "cuda" else 1024
    tiny = {"num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 64,
            "intermediate_size": 64}
    size = Size("head", "qwen3", "0.6B", 1, 8, args=tiny)
    seq_len = SEQ_LEN if check.device == "cuda" else 64
    peaks = {}
    profiling = {"operator_table": True, "operator_table_warmup": 2, "operator_table_steps": 3,
                 "operator_table_measure_seconds": 0.2}
    for rows in (1, tokens // seq_len):
        label = f"head_{rows}_rows"
        ran = train(check, label, config_of(check, size, "whole rows", label, steps=6, rows=rows, profiling=profiling), 45)
        peaks[rows] = ran.peak_bytes(check.device)
    table = json.loads((folder_of(check, label) / "profile/operators.json").read_text())
    vocabulary = VOCABULARY if check.device == "cuda" else VOCABULARY // 256
    products = sum(p["seconds"] for p in table["products"] if vocabulary in (p["m"], p["k"], p["n"]))
    loss = sum(k["seconds"] for k in table["kinds"] if k["kind"] == "loss")
    ratio = (products + loss) / products
    judged = bool(check.gpu and check.gpu.has_goals)
    runner.judge(f"head of {vocabulary} ids at {tokens} tokens: time", ratio <= 1.15 or not judged,
                 f"{1e3 * (products + loss):.1f} ms, {ratio:.2f} times its matmuls", "<= 1.15 times")
    if not all(peaks.values()):
        raise NotRun("memory is measured on a GPU only")
    more = peaks[tokens // seq_len] - peaks[1]
    runner.judge(f"head of {vocabulary} ids at {tokens} tokens: memory", more <= 1e9,
                 f"{more / 1e9:.2f} GB more than at {seq_len}, including one narrow layer", "<= 1 GB")


def peer(check, runner):
    """The same work in transformers with torch.compile."""
    if importlib.util.find_spec("transformers") is None:
        raise NotRun("transformers cannot be imported by this Python")
    size = SIZES[0]
    mine = next((row for row in check.rows if row["size"] == size.label and row["rows"] == "whole rows"), None)
    script = check.root / "script/gpu_check/peer.py"
    best = None
    rows = rows_of_card(check, size) if check.device == "cuda" else 1
    for mode in ("eager", "compile"):  # compilation takes long, so it starts with the rows that fit without it
        def one(mode=mode):
            if mode == "compile" and not (Path(sysconfig.get_path("include")) / "Python.h").exists():
                raise NotRun("torch.compile needs Python.h, which this Python lacks: install python3-dev")
            told = runner.run(f"peer_{mode}", [sys.executable, script, "--device", check.device, "--mode", mode, "--rows", rows],
                              90 if check.device == "cuda" else 160,  # torch.compile on a shared CPU
                              env={"TORCHINDUCTOR_CACHE_DIR": str(check.out / "inductor"), "HF_HUB_OFFLINE": "1",
                                   "LD_LIBRARY_PATH": ""})
            result = json.loads(told.strip().splitlines()[-1])
            check.peers.append(result)
            runner.note(f"transformers {mode}", PASSED, f"{result['tokens_per_second']:,.0f} tokens/s, "
                        f"{result['peak_bytes'] / 1e9:.2f} GB with {result['rows']} rows")
            return result
        result = runner.guarded(f"transformers {mode}", one)
        rows = result["rows"] if result else rows
        best = result if mode == "compile" else best
    if best and mine:
        ratio = mine["tokens_per_second"] / best["tokens_per_second"]
        runner.judge(f"{size.label} over transformers compiled", ratio >= 1.15 or check.device == "cpu", f"{ratio:.2f} times",
                     ">= 1.15 times")
    shutil.rmtree(check.out / "inductor", ignore_errors=True)
    if not mine:
        raise Failed(f"there is no figure of {size.label} to compare with")
