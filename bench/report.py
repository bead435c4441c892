"""Reports of benchmarks: Markdown files whose sections are measured and replaced separately.

A section begins with the commit, date and machine that it was measured with, and ends with a checksum of its text, which
script/figures.py --check compares: figures are written by programs only.
"""
import os
import re
import zlib

from machine import cpu_class, origin

SEAL = re.compile(r"\n*<!-- crc32 ([0-9a-f]{8}) -->\s*$")


def sealed(text):
    """Returns the text of a section with its checksum."""
    text = SEAL.sub("", text).strip("\n")
    return f"{text}\n\n<!-- crc32 {zlib.crc32(text.encode()):08x} -->"


def sections_of(text):
    """Returns the sections of a report, name -> text."""
    parts = (part.partition("\n") for part in text.split("\n## ")[1:])
    return {name: body.strip("\n") for name, _, body in parts}


class Report:
    """The file `path` with a title and a note. Sections that it has already are kept until `put` replaces them. With
    `by_class`, each class of CPUs has sections of its own, side by side."""

    def __init__(self, path, title, note, by_class=True):
        self.path, self.head, self.sections = path, ["# " + title, "", note], {}
        self.suffix = ": " + cpu_class() if by_class else ""
        if os.path.exists(path):
            with open(path) as f:
                self.sections = sections_of(f.read())

    def put(self, name, lines):
        """Replaces this class's section `name` by `lines`, and writes the file. A new one follows those of its name."""
        full = name + self.suffix
        if full not in self.sections:
            before = list(self.sections.items())
            near = [i for i, (other, _) in enumerate(before) if other == name or other.startswith(name + ": ")]
            before.insert(near[-1] + 1 if near else len(before), (full, ""))
            self.sections = dict(before)
        self.sections[full] = sealed("\n".join([origin(), "", *lines]))
        text = "\n".join(self.head) + "\n" + "".join(f"\n## {section}\n\n{body}\n" for section, body in self.sections.items())
        with open(self.path + ".new", "w") as f:
            f.write(text)
        os.replace(self.path + ".new", self.path)


def row_of(cells):
    return "| " + " | ".join(str(cell).replace("|", "/") for cell in cells) + " |"


class Section:
    """Lines of one section. The report is written after every row, so that what was measured is kept."""

    def __init__(self, report, name):
        self.report, self.name, self.lines = report, name, []

    def add(self, *lines):
        self.lines += lines

    def table(self, *columns):
        self.add("| " + " | ".join(columns) + " |", "| " + " | ".join("---" for _ in columns) + " |")

    def row(self, *cells):
        self.add(row_of(cells))
        print(self.lines[-1], flush=True)
        self.write()

    def write(self):
        self.report.put(self.name, self.lines)
