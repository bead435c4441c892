"""The page of all measured figures: each with its commit, machine and command, from the blocks that script/figures.py checks."""
import os
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "script"), str(ROOT / "bench")]
from figures import MEASURED, PICTURES, pages, picture_rows
from github_markdown import LINK
from report import SEAL, sections_of

INTRO = """# Numbers we stand by

Each figure of these pages is computed or measured by a command, and says by which. What is computed is computed again by
every `make test`, and compared. What is measured carries its commit, date and machine, and a checksum: the test `figures` fails
if someone edits it. A rate without an origin is an error, too.
"""


def heading_before(text, at):
    found = re.findall(r"^#+ (.+)$", text[:at], re.MULTILINE)
    return found[-1] if found else ""


def with_links_of(uri, text):
    """Returns a part of the page `uri` with its relative links as they are from the root."""
    folder = Path(uri).parent
    return LINK.sub(lambda m: m[0] if ":" in m[2] else m[1] + os.path.normpath(folder / m[2]) + m[3], text)


def blocks():
    for path in pages():
        text, uri = path.read_text(), path.relative_to(ROOT).as_posix()
        for block in MEASURED.finditer(text):
            yield f"### {heading_before(text, block.start()).replace('`', '')}", ""
            yield f"From [{uri}]({uri}). Commit {block[1]}, {block[2]}, {block[3]}:", ""
            yield "```sh", block[4].replace("; ", "\n"), "```", "", with_links_of(uri, block[5]), ""


def reports():
    yield "| report | section | measured | written by |", "| --- | --- | --- | --- |"
    for path in sorted((ROOT / "bench").glob("results*.md")):
        text, uri = path.read_text(), path.relative_to(ROOT).as_posix()
        writer = re.search(r"Written by (bench/\w+\.py)(?:, part by part \((`[^`]+`)\))?", text)
        for section, body in sections_of(text).items() if writer else []:
            origin = SEAL.sub("", body).split("\n")[0].removeprefix("Commit ").rstrip(".")
            yield (f"| [{uri.removeprefix('bench/')}]({uri}) | {section} | {origin} | {writer[2] or '`' + writer[1] + '`'} |",)
    yield ("",)


def pictures():
    rows = (PICTURES / "README.md").read_text()
    measured = picture_rows()
    for path in sorted(PICTURES.glob("*.svg")):
        command = re.search(rf"^\| `{re.escape(path.name)}` \| `([^`]+)`", rows, re.MULTILINE)
        how = f"`{command[1]}`" if path in measured and command else "computed, by `script/figures.py` or its test"
        yield (f"| [{path.name}]({path.relative_to(ROOT).as_posix()}) | {how} |",)


def page():
    lines = [INTRO, "## On these pages", "", *(line for lines in blocks() for line in lines),
             "## Benchmarks", "", *(line for lines in reports() for line in lines),
             "## Pictures", "", "| picture | command |", "| --- | --- |", *(line for lines in pictures() for line in lines), ""]
    return "\n".join(lines)


if __name__ == "__main__":
    print(page())
