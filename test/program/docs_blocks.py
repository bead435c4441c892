#!/usr/bin/env python3
"""Checks the code blocks of the pages: shell names commands, options, keys and files that exist; TOML is accepted by the program;
JSON and Python parse. Code copied from files is compared by structure_test, printed tables by script/figures.py, and Python of
docs/python.md is run by test/python. Whatever remains is listed below with its reason.

Usage: docs_blocks.py LEHR (standard library only)
"""
import ast
import json
import re
import shlex
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "site"))
from github_markdown import FENCE

# Programs of others, of which nothing is checked but what follows.
OTHERS = {"gdb", "git", "pip", "tar", "python3", "setarch", "ctest", "torchrun"}
# Blocks in C++ or CMake that name no file, by page and first line.
NOT_COMPILED = {
    ("docs/adding_a_command.md", "struct Options {"): "fields of an imagined command; docs/adding_a_command.md names a real one",
    ("docs/adding_a_schedule.md", "struct InverseSquareRoot {"): "a reader's own schedule; test/pretrained/replacements_test.cpp has one",
    ("docs/adding_an_optimizer.md", "std::unique_ptr<optim::Optimizer> build_mine("): "a reader's own optimizer; as above",
    ("docs/launching.md", "const auto transport = mesh::connect_ranks({.timeout = std::chrono::minutes(10)});  "
     "// one rank without a launcher"): "an outline of a program of one's own; example/02_train_from_code.cpp is compiled",
    ("docs/releasing.md", "project(lehr VERSION 0.1.0 LANGUAGES CXX)"): "compared with CMakeLists.txt here",
}
LEHR = str(Path(sys.argv[1]).resolve())
wrong = []
counts = {}


def pages():
    folders = [ROOT, ROOT / "docs", *(ROOT / "example").glob("*/")]
    return sorted(page for folder in folders for page in folder.glob("*.md") if page.name != "CHANGELOG.md")


def blocks(page):
    """Yields (line number, language, file that the fence names, code)."""
    fence = None
    for number, line in enumerate(page.read_text().split("\n"), 1):
        match = FENCE.match(line)
        if fence is None and match:
            fence, start, code = match, number, []
        elif fence is not None and match and match[2] == fence[2] and not match[3]:
            margin = len(fence[1])
            yield start, fence[3], fence[4], "\n".join(line[margin:] for line in code)
            fence = None
        elif fence is not None:
            code.append(line)


@cache
def help_of(command):
    return subprocess.run([LEHR, *command.split(), "--help"], capture_output=True, text=True, check=True, cwd=ROOT).stdout


@cache
def text_of(path):
    return (ROOT / path).read_text()


@cache
def commands():
    return set(re.findall(r'\{"([a-z]+)",', text_of("lehr/app/main.cpp")))


def check_files(words):
    for word in words:
        if re.match(r"(recipe|bench|script|test|docs)/", word) and not (ROOT / word).exists():
            yield f"there is no file {word}"


def wrong_lehr(words):
    """Returns what is wrong with a command of the program. `words` begins after its name."""
    if not words or words[0].startswith("--"):
        return
    command, arguments = words[0], words[1:]
    if command not in commands():
        yield f"there is no command lehr {command}"
        return
    if "--" in arguments:  # launch
        rest = arguments[arguments.index("--") + 1:]
        arguments = arguments[:arguments.index("--")]
        if not rest[0].startswith("./"):  # any program
            yield from wrong_lehr(rest)
    known = help_of(command)
    for word in arguments:
        option = re.match(r"--([\w.-]+)", word)
        if option and "." in option[1]:
            section, _, key = re.sub(r"\.\d+(?=\.)", "", option[1]).rpartition(".")
            if f"[{section}]" in known:  # generate takes a section of train's keys
                known += help_of("train")
            if not re.search(rf"\b{re.escape(key)}\b", known) or not re.search(rf"\b{re.escape(section.split('.')[-1])}\b", known):
                yield f"lehr {command} knows no key {option[1]}"
        elif option and option[1] != "help" and not re.search(rf"(?<![\w-])--{re.escape(option[1])}\b", known):
            yield f"lehr {command} knows no option --{option[1]}"


def wrong_make(words):
    arguments = {name: value for name, _, value in (word.partition("=") for word in words if "=" in word)}
    makefile = text_of("Makefile")
    for target in (word for word in words if "=" not in word):
        rule = re.search(rf"^{re.escape(target)}:.*\n((?:\t.*\n)*)", makefile, re.MULTILINE)
        if not rule:
            yield f"make has no target {target}"
            continue
        scripts = [ROOT / name for name in re.findall(r"(?:bench|script|test)/[\w/.]+", rule[1])]
        texts = "".join(file.read_text() for script in scripts if script.exists()
                        for file in (script.rglob("*.py") if script.is_dir() else [script]))
        for option in re.findall(r"--[a-z][\w-]*", arguments.get("ARGS", "")):
            if not option.startswith(("--benchmark_", "--training")) and option not in texts:
                yield f"make {target}: no script of it has the option {option}"


def wrong_line(line):
    words = shlex.split(line, comments=True)
    while words and re.match(r"\w+=", words[0]):
        words.pop(0)
    if not words:
        return
    yield from check_files(words)
    name, rest = words[0], [word for word in words[1:] if word != ">"]
    if name in ("lehr", "build/lehr"):
        yield from wrong_lehr(rest)
    elif name == "make":
        yield from wrong_make(rest)
    elif name == "cmake":
        for preset in rest[1:2] if rest[0] == "--preset" else []:
            if f'"name": "{preset}"' not in text_of("CMakePresets.json"):
                yield f"there is no preset {preset}"
    elif name == "ninja" or name.startswith("build/"):
        target = rest[-1] if name == "ninja" else Path(name).name
        if target != "lehr" and not re.search(rf"lehr_test\({target.removesuffix('_test')}\b", text_of("test/CMakeLists.txt")):
            yield f"there is no target {target}"
    elif name not in OTHERS and not (ROOT / name).exists():
        yield f"{name} is neither in the tree nor listed"


def wrong_shell(code):
    code = re.sub(r"<<'EOF'\n(.*?)\nEOF", lambda heredoc: compile(heredoc[1], "heredoc", "exec") and "", code, flags=re.DOTALL)
    for line in code.replace("\\\n", " ").split("\n"):
        for part in line.split(" && "):
            yield from wrong_line(part)


def wrong_toml(code):
    """The sections of a block replace those of the quickstart."""
    sections = re.findall(r"^\[+([\w.]+)\]+", code, re.MULTILINE)
    base = re.split(r"^(?=\[)", text_of("recipe/quickstart.toml"), flags=re.MULTILINE)
    kept = [part for part in base if not re.match(rf"\[+({'|'.join(map(re.escape, sections))})[\].]", part)]
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder, "run.toml")
        config.write_text("".join(kept) + "\n" + code + "\n")
        done = subprocess.run([LEHR, "train", config, "--print-config", f"--job.dump_folder={folder}"], capture_output=True, text=True, cwd=ROOT)
    if done.returncode or not sections:
        yield f"lehr train does not accept it: {done.stderr.strip()}"


def wrong_console(page, code):
    """A command is run if its files are in the tree, and must print the lines, in this order; "..." stands for others."""
    command, _, lines = code.partition("\n")
    words = shlex.split(command.removeprefix("$ "))
    yield from wrong_lehr(words[1:])
    if not (ROOT / words[-1]).exists():
        if f'"{page}", "{command.removeprefix("$ ")}"' not in text_of("script/figures.py"):
            yield f"nothing compares the output of {command}"
        return
    done = subprocess.run([LEHR, *words[1:]], capture_output=True, text=True, cwd=ROOT)
    printed = iter([" ".join(line.split()) for line in done.stdout.splitlines()])  # columns are as wide as their longest row
    yield from (f"{command} does not print \"{line}\"" for line in lines.splitlines()
                if line and not line.startswith("...") and " ".join(line.split()) not in printed)


def wrong_notebook(path):
    """Notebooks are stored without outputs, and their code parses."""
    for cell in json.loads(path.read_text())["cells"]:
        if cell["cell_type"] == "code":
            if cell["outputs"] or cell["execution_count"] is not None:
                yield "has outputs; clear them before a commit"
            ast.parse("".join(cell["source"]))


def wrong_block(page, language, file, code):
    if file:
        return
    if language == "sh":
        yield from wrong_shell(code)
    elif language == "toml":
        yield from wrong_toml(code)
    elif language == "json":
        json.loads(code)
    elif language == "python":
        ast.parse(code)
    elif language in ("cpp", "cmake"):
        if (page, code.split("\n")[0].strip()) not in NOT_COMPILED:
            yield "names no file whose text it shows; let its fence name one, or list it in test/program/docs_blocks.py with the reason"
        if language == "cmake" and code.strip() not in text_of("CMakeLists.txt"):
            yield "CMakeLists.txt does not have it (any more)"
    elif language == "console":
        yield from wrong_console(page, code)
    elif language:
        yield f"nothing checks a block in {language}"


def self_test():
    """Bad blocks are seen."""
    for language, code in (("sh", "lehr trian run.toml"), ("sh", "lehr train run.toml --training.stepz=1"), ("sh", "make trian"),
                           ("sh", "build/lehr plan recipe/none.toml"), ("sh", "lehr plan run.toml --machin h100"), ("sh", "frobnicate"),
                           ("sh", "lehr launch -n 2 -- trane x.toml"), ("sh", "make bench ARGS='--partz x'"), ("sh", "cmake --preset nope"),
                           ("toml", "[optimizer]\nlearning_rate = 1"), ("cpp", "int x;"), ("ruby", "x"), ("cmake", "project(x)"),
                           ("console", "$ lehr inspect test/data/reference/qwen3moe_sparse_step2\nnothing of the kind")):
        if not list(wrong_block("docs/page.md", language, None, code)):
            wrong.append(f"self-test: not seen: {code}")


for page in pages():
    name = page.relative_to(ROOT).as_posix()
    for number, language, file, code in blocks(page):
        counts[language] = counts.get(language, 0) + 1
        try:
            wrong += [f"{name}:{number}: {problem}" for problem in wrong_block(name, language, file, code)]
        except (ValueError, SyntaxError) as problem:
            wrong.append(f"{name}:{number}: {problem}")
for path in sorted((ROOT / "example/notebook").glob("*.ipynb")):
    counts["notebook"] = counts.get("notebook", 0) + 1
    wrong += [f"{path.relative_to(ROOT)}: {problem}" for problem in wrong_notebook(path)]
self_test()
print("\n".join(wrong) or "blocks: " + ", ".join(f"{count} {language or 'without a language'}" for language, count in sorted(counts.items())))
sys.exit(1 if wrong else 0)
