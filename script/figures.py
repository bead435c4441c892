#!/usr/bin/env python3
"""Makes the figures of the documentation, or checks that those in the tree are what their commands print.

    script/figures.py --lehr build/lehr            writes those that are computed: plans, pictures of shapes
    script/figures.py --lehr build/lehr --check    compares them, and the checksums of measured figures (the test `figures`)
    script/figures.py --seal FILE...               after a measurement: writes the checksums of blocks and pictures anew

Computed figures are those of every machine, but for the workspace of matmuls, which depends on the CPU: numbers may differ
by 2 %. A measured figure carries the commit, date and machine that it is from:

- a section of bench/results*.md, written by a script of bench/, which ends with its checksum;
- a block of a page, between `<!-- measured COMMIT, DATE, MACHINE: COMMAND -->` and `<!-- end of measured, crc32 ... -->`;
- a picture of docs/picture, by its row in docs/picture/README.md.

A rate (tok/s, GFLOP/s, GB/s, % of the peak) on a page outside of such a block is an error, unless it is no figure of
Lehr's: see NOT_MEASURED. Standard library only.
"""
import argparse
import json
import re
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "bench"))
from report import sealed, sections_of

PICTURES = ROOT / "docs/picture"
QWEN3 = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 1024, "num_hidden_layers": 28,
         "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 3072, "vocab_size": 151936,
         "tie_word_embeddings": True, "max_position_embeddings": 40960, "rms_norm_eps": 1e-6, "rope_theta": 1000000,
         "hidden_act": "silu"}
# KV heads and width of each layer of the child in docs/descriptors.md; 0: none.
CHILD = [(8, 3072), (8, 3072), (8, 2560), (4, 3072), (8, 2048), (4, 2560), (4, 1536), (2, 2048), (4, 1536), (0, 2048), (4, 0),
         (2, 1536), (4, 1024), (0, 2048), (4, 1024), (0, 1536), (2, 0), (4, 1024), (0, 1536), (0, 1024), (2, 1536), (0, 2048),
         (4, 0), (0, 2048), (2, 2560), (4, 2560), (8, 3072), (8, 3072)]
MEASURED = re.compile(r"<!-- measured ([^,\n]+), (\d{4}-\d\d-\d\d), ([^:\n]+): ([^\n]+) -->\n"
                      r"((?:(?!<!-- measured ).)*?)\n *<!-- end of measured, crc32 ([0-9a-f]{8}) -->", re.DOTALL)
RATE = re.compile(r"\d[\d.,]* ?[KMGT]? ?(tok/s|tokens/s|FLOP/s|[GMT]B/s|% of (the )?(measured )?peak\b)")
# Pages whose rates are goals, data sheets or made up.
NOT_MEASURED = {"docs/gpu.md", "docs/plan.md"}


def crc(data):
    return f"{zlib.crc32(data if isinstance(data, bytes) else data.encode()):08x}"


def computed(lehr, work):
    """Returns the computed figures, path -> bytes, as their commands print them now; and the tables of shapes."""
    tables = {}

    def run(*arguments):
        done = subprocess.run([lehr, *map(str, arguments)], capture_output=True, cwd=ROOT)
        if done.returncode != 0:
            sys.exit(f"figures: lehr {' '.join(map(str, arguments))}: {done.stderr.decode()[-1000:]}")
        return done.stdout

    def picture(name, config):
        folder = work / name
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config))
        tables[name] = run("inspect", folder, "--picture", work / "picture.svg")
        return (work / "picture.svg").read_bytes()

    found = {}
    for plan, drawing in (("llama3_405b", "memory"), ("llama3_405b_128k", None), ("qwen3_235b", "timeline")):
        found[PICTURES / f"plan_{plan}.txt"] = run("plan", f"recipe/plan_{plan}.toml", "--output", work / plan)
        if drawing == "timeline":  # of an eighth of the step, so that the picture stays small
            run("plan", f"recipe/plan_{plan}.toml", "--output", work / plan, "--training.global_batch_size=512")
        kinds = {"memory": ("svg", "html"), "timeline": ("svg",), None: ()}  # one page to click through is enough
        for kind in kinds[drawing]:
            found[PICTURES / f"plan_{plan}_{drawing}.{kind}"] = (work / plan / f"{drawing}.{kind}").read_bytes()
    no_op = {"no_op": True}
    blocks = [{"attention": {"num_key_value_heads": heads} if heads else no_op, "ffn": {"intermediate_size": width} if width else no_op}
              for heads, width in CHILD]
    found[PICTURES / "blocks_teacher.svg"] = picture("Qwen3-0.6B", QWEN3)
    found[PICTURES / "blocks_child.svg"] = picture("Qwen3-0.6B-child", QWEN3 | {"block_configs": blocks})
    return found, tables


# Computed too, by a test that compares it: pipeline_test TimelinePlot.DrawsThePictureOfTheDocumentation.
BY_TESTS = {PICTURES / "pipeline_schedules.svg"}


def picture_rows():
    """Returns the measured pictures: path -> checksum, of docs/picture/README.md."""
    rows = re.findall(r"^\| `([^`]+)` \| `[^`]+` \| [0-9a-z]+, \d{4}-\d\d-\d\d, [^|]+ \| ([0-9a-f]{8}) \|$",
                      (PICTURES / "README.md").read_text(), re.MULTILINE)
    return {PICTURES / name: checksum for name, checksum in rows}


NUMBER = re.compile(rb"-?[0-9]+[.]?[0-9]*")


def same_but_for_workspace(a, b):
    """Whether two computed figures differ by nothing but spaces and numbers that are within 2 %, or 0.02 for small ones."""
    def numbers(text):
        return [float(x) for x in NUMBER.findall(text)]

    def words(text):
        return NUMBER.sub(b"#", text).split()

    return words(a) == words(b) and all(abs(x - y) <= 0.02 * max(abs(x), abs(y), 1) for x, y in zip(numbers(a), numbers(b)))


def wrong_pictures(made):
    """Returns what is wrong with docs/picture. `made`: the computed figures."""
    measured = picture_rows()
    for path in sorted(PICTURES.glob("*")):
        name = path.relative_to(ROOT)
        if path in made:
            if not same_but_for_workspace(path.read_bytes(), made[path]):
                yield f"{name} is not what its command prints now: script/figures.py writes it"
        elif path in measured:
            if crc(path.read_bytes()) != measured[path]:
                yield f"{name} is not what was measured; measure it again, and seal it in docs/picture/README.md"
        elif path not in BY_TESTS and path.name != "README.md":
            yield f"{name} is neither computed nor in docs/picture/README.md with what it was measured by"
    for path in sorted(set(made) | set(measured)):
        if not path.exists():
            yield f"{path.relative_to(ROOT)} is missing"


def wrong_blocks(name, text):
    """Returns what is wrong with the measured blocks of a page, and with rates outside of them."""
    outside = text
    for block in MEASURED.finditer(text):
        if crc(block[5]) != block[6]:
            yield f"{name}: the block measured by `{block[4]}` was edited since; measure it again, and seal it"
        outside = outside.replace(block[0], "\n" * block[0].count("\n"))
    if "<!-- measured" in outside or "<!-- end of measured" in outside:
        yield f"{name}: a measured block says commit, date, machine and command, and ends with a checksum"
    if name in NOT_MEASURED:
        return
    for number, line in enumerate(outside.split("\n"), 1):
        if rate := RATE.search(line):
            yield f"{name}:{number}: \"{rate[0]}\" does not say where it is from: put it into a measured block"


def wrong_console(page, command, printed):
    """Returns what is wrong with the output of `command` on a page, where "..." stands for lines that are left out."""
    block = (ROOT / page).read_text().partition(f"$ {command}\n")[2].partition("```")[0]
    lines = [line for line in block.splitlines() if line and line != "..."]
    left = iter(printed.decode().splitlines())
    missing = [line for line in lines if line not in left]  # in this order
    if missing or not lines:
        yield f"{page}: `{command}` does not print \"{missing[0] if missing else ''}\" now"


def wrong_sections(name, text):
    """Returns what is wrong with the sections of a report of bench/."""
    for section, body in sections_of(text).items():
        if sealed(body) != body:
            yield f"{name}: section \"{section}\" is not what a script of bench/ wrote"
        if not re.match(r"Commit [0-9a-z]+( and local changes)?, \d{4}-\d\d-\d\d, ", body):
            yield f"{name}: section \"{section}\" does not begin with commit, date and machine"


def pages():
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def check(made, tables):
    wrong = list(wrong_pictures(made))
    wrong += wrong_console("docs/descriptors.md", "lehr inspect Qwen3-0.6B --picture teacher.svg", tables["Qwen3-0.6B"])
    for path in pages():
        wrong += wrong_blocks(str(path.relative_to(ROOT)), path.read_text())
    for path in sorted((ROOT / "bench").glob("results*.md")):
        if "Written by bench/" in path.read_text():  # gpu-check writes others
            wrong += wrong_sections(str(path.relative_to(ROOT)), path.read_text())
    return wrong


def seal(path):
    """Writes the checksums of a page's measured blocks, or of docs/picture/README.md's pictures."""
    def of_block(block):
        return f"{block[0][:-len(block[6]) - 4]}{crc(block[5])} -->"

    def of_picture(row):
        picture = PICTURES / row[2]
        return f"{row[1]}{crc(picture.read_bytes())} |" if picture.exists() else row[0]

    text = MEASURED.sub(of_block, path.read_text())
    if path.parent == PICTURES:
        text = re.sub(r"^(\| `([^`]+)` \|.*\| )[0-9a-f]{8} \|$", of_picture, text, flags=re.MULTILINE)
    path.write_text(text)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--lehr", default=ROOT / "build/lehr", type=Path)
    p.add_argument("--check", action="store_true")
    p.add_argument("--seal", nargs="+", type=Path, default=[])
    a = p.parse_args()
    for path in a.seal:
        seal(path.resolve())
    if a.seal:
        return
    with tempfile.TemporaryDirectory() as work:
        made, tables = computed(a.lehr.resolve(), Path(work))
    if a.check:
        wrong = check(made, tables)
        print("\n".join(wrong) or f"{len(made)} computed figures are current; measured ones are sealed")
        sys.exit(1 if wrong else 0)
    for path, content in made.items():
        path.write_bytes(content)
        print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
