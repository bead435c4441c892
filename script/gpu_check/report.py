"""The report: bench/results_<card>.md, and the closing lines."""
import datetime
import re
import tarfile

from runner import FAILED, NOT_RUN, PASSED


def slug(name):
    return re.sub(r"[^a-z0-9]+", "_", name.lower().replace("nvidia", "")).strip("_")


def gigabytes(value):
    return f"{value / 1e9:.2f}" if value else ""


def markdown(check, verdicts):
    card = check.gpu.name if check.gpu else "the CPU (a rehearsal)"
    lines = [f"# Lehr on {card}", "",
             f"Written by `make gpu-check` (docs/gpu.md) on {datetime.date.today()}, of commit {check.commit}.", "",
             f"{check.host}; torch {check.torch_version}."]
    for key in ("device", "kernels", "attention"):
        if check.facts.get(key):
            lines.append(f"{key.capitalize()}: {check.facts[key]}.")
    if check.rows:
        lines += ["", "## Training", "",
                  "Sequences of 4096 tokens, AdamW, one GPU; activations are recomputed (selective activation checkpointing, "
                  "op 2) only where they would not fit. MFU is relative to the data sheet's peak without sparsity, and counts "
                  "the FLOPs of causal attention within documents, of which packed ones need fewer.", "",
                  "| model | rows | recompute | tokens/s | MFU % | goal | peak GB | lehr plan GB | first step s | |",
                  "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"]
        for row in check.rows:
            share = f"{row['mfu']:.1f}" if row["mfu"] else ""
            lines.append(f"| {row['size']} | {row['rows']} | {row['recompute']} | {row['tokens_per_second']:,.0f} | {share} | >= {row['goal']} | "
                         f"{gigabytes(row['peak_bytes'])} | {gigabytes(row['plan_bytes'])} | {row['first_step']:.2f} | "
                         f"{row['about']} |")
    if check.modes:
        lines += ["", "## Modes", "", "| model | mode | tokens/s | peak GB |", "| --- | --- | --- | --- |"]
        lines += [f"| {row['size']} | {row['mode']} | {row['tokens_per_second']:,.0f} | {gigabytes(row['peak_bytes'])} |"
                  for row in check.modes]
    if check.peers:
        lines += ["", "## Peers, at Qwen3-0.6B", "", "| | rows | tokens/s | peak GB | first step s |", "| --- | --- | --- | --- | --- |"]
        lines += [f"| {row['peer']} | {row['rows']} | {row['tokens_per_second']:,.0f} | {gigabytes(row['peak_bytes'])} | "
                  f"{row['first_step']:.1f} |" for row in check.peers]
    for name, table in check.tables.items():
        lines += ["", f"## Profile of a step of {name}", "", "```", table.rstrip(), "```"]
    lines += ["", "## Verdict", "", "| step | item | verdict | found | goal |", "| --- | --- | --- | --- | --- |"]
    cell = lambda text: text.replace("|", "\\|").replace("\n", " ")
    lines += [f"| {v.step} | {cell(v.item)} | {v.status} | {cell(v.text)} | {cell(v.goal)} |" for v in verdicts]
    return "\n".join(lines) + "\n"


def closing(verdicts):
    text = ["", "---- verdict ----"]
    text += [v.line() for v in verdicts]
    counts = [sum(v.status == status for v in verdicts) for status in (PASSED, FAILED, NOT_RUN)]
    text.append(f"{counts[0]} passed, {counts[1]} failed, {counts[2]} not run")
    return "\n".join(text)


LARGEST_MB = 40


def archive(check):
    """Logs, configs, metrics, tables and traces as one file, to send back."""
    file = check.out / "gpu_check.tar.gz"
    with tarfile.open(file, "w:gz") as tar:
        for path in sorted(check.out.rglob("*")):
            relative = path.relative_to(check.out)
            if path == file or not path.is_file() or path.stat().st_size > LARGEST_MB * 1e6:
                continue
            if "checkpoints" in relative.parts or relative.parts[0] in ("data", "inductor"):
                continue
            tar.add(path, arcname=f"gpu_check/{relative}")
    return file
