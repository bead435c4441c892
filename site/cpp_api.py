"""The API of lehr/, read from its headers: a page per folder with public types and functions and their `///` comments.

    site/cpp_api.py lehr/nn/linear.h      prints what it reads, to look at

It reads the style of this tree (.clang-format, one declaration after its comment), not all of C++.
"""
import re
import sys
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HIDDEN = {"detail", "internal", "testing"}
TOKEN = re.compile(r'R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'|//[^\n]*|^\s*#(?:[^\n]*\\\n)*[^\n]*|\n|[{}();]|[^{}();"\'/\n#]+|.',
                   re.DOTALL | re.MULTILINE)


class Symbol:
    """A declaration: its comment, its lines, and the public members of a class."""

    def __init__(self, doc, code, name, kind):
        self.doc, self.code, self.name, self.kind, self.members = doc, code, name, kind, []


def dedented(code):
    """Returns code without its margin and without comments that are for readers of the source."""
    code = re.sub(r"\n *(?<![/:])//(?!/)[^\n]*| *(?<![/:])//(?!/)[^\n]*", "", code)
    lines = code.strip("\n").rstrip().split("\n")
    margin = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
    return "\n".join(line[margin:] for line in lines)


def name_of(code):
    """Returns (name, kind) of a declaration without its body: kind is type, function, value or alias."""
    flat = re.sub(r"\s+", " ", re.sub(r"//[^\n]*|\[\[.*?\]\]|alignas\([^)]*\)", "", code)).strip()
    flat = re.sub(r"^template <.*?> (?=(class|struct|using|inline|\w[\w:<>, &*]* \w+\())", "", flat)
    if match := re.match(r"(?:enum class|enum|class|struct|union) (?:\w+ )?([A-Za-z_]\w*)", flat):
        return match[1], "type"
    if match := re.match(r"using ([A-Za-z_]\w*) =", flat):
        return match[1], "alias"
    if match := re.search(r"(operator ?[^\s(]+|operator\(\)|~?[A-Za-z_]\w*) ?\(", re.sub(r"(?<!operator)\(\*", "", flat)):
        if "=" not in flat[:match.start()]:
            return match[1], "function"
    match = re.match(r".*?([A-Za-z_]\w*)(?:\[[^]]*\])* ?(?:=|\{|;|$)", flat)
    return (match[1] if match else flat), "value"


class Reader:
    """Reads one header."""

    def __init__(self, text):
        self.tokens = [match[0] for match in TOKEN.finditer(text)]
        self.at = 0

    def skip_braces(self):
        """Reads to the end of the braces that were just opened, and returns what was in them."""
        depth, inner = 1, ""
        while depth and self.at < len(self.tokens):
            token = self.tokens[self.at]
            self.at += 1
            depth += (token == "{") - (token == "}")
            inner += token if depth else ""
        return inner

    def trailing(self):
        """Reads the rest of the line after a declaration: its `///<` comment."""
        rest = ""
        while self.at < len(self.tokens) and (self.tokens[self.at].isspace() and self.tokens[self.at] != "\n"
                                              or self.tokens[self.at].startswith("//")):
            rest += self.tokens[self.at]
            self.at += 1
        return rest.rstrip()

    def scope(self, owner=None, shown=True):
        """Reads declarations up to the closing brace of this scope, and returns the public ones."""
        found, doc, code, depth = [], [], "", 0

        def add(symbol):
            if shown:
                found.append(symbol)

        while self.at < len(self.tokens):
            token = self.tokens[self.at]
            self.at += 1
            if token.startswith("///<") and not code.strip() and found:  # goes on from the line above
                found[-1].code += "\n" + " " * (found[-1].code.split("\n")[-1].find("///<")) + token
            elif token.startswith("//") and not code.strip():
                doc = [*doc, token[3:]] if token.startswith("///") else []
                code = ""
            elif token == "\n" and not code.strip():
                # An empty line ends a comment that belongs to no declaration.
                doc, code = ([] if self.at > 1 and self.tokens[self.at - 2] == "\n" else doc), ""
            elif token.lstrip().startswith("#") and not code.strip():
                code = ""
            elif token == "}" and depth == 0:
                break
            elif token in "()":
                depth += 1 if token == "(" else -1
                code += token
            elif token == "{" and depth == 0:
                head = code.strip()
                if head.startswith(("namespace", "extern")):
                    names = re.findall(r"\w+", head.removeprefix("namespace"))
                    found += self.scope(shown=bool(names) and not HIDDEN & set(names))
                elif re.match(r"(template <.*> )?(class|struct|union)\b", head, re.DOTALL) and "(" not in head.partition(":")[0]:
                    symbol = Symbol(doc, dedented(code), *name_of(code))
                    symbol.members = self.scope(symbol.name, not head.startswith("class"))
                    add(symbol)
                    self.to_semicolon()
                elif head.startswith("enum"):
                    inner = self.skip_braces()
                    self.to_semicolon()
                    add(Symbol(doc, dedented(f"{code}{{{inner}}};"), *name_of(code)))
                elif "=" in re.sub(r"operator\S+|\(.*?\)|<.*?>", "", head) or not self.is_function(head):
                    code += "{" + self.skip_braces() + "}"
                    continue
                else:
                    self.skip_braces()
                    add(Symbol(doc, dedented(re.sub(r"\)\s*:\s(?!:).*", ")", code, flags=re.DOTALL)).rstrip() + ";", *name_of(code)))
                doc, code = [], ""
            elif token == ";" and depth == 0:
                rest = self.trailing()
                if not re.match(r"\s*(class|struct|enum class) \w+$|\s*(friend|using (namespace )?[\w:]+$|static_assert|extern template)", code):
                    add(Symbol(doc, dedented(code + ";" + rest), *name_of(code)))
                doc, code = [], ""
            else:
                code += token
                if owner and (label := re.match(r"\s*(public|private|protected):\s*$", code)):
                    shown, code, doc = label[1] == "public", "", []
        return found

    def is_function(self, head):
        return re.search(r"\)\s*(const|noexcept|override|final|&|->[^;]*|:\s.*)*\s*$", head, re.DOTALL) is not None

    def to_semicolon(self):
        while self.at < len(self.tokens) and self.tokens[self.at] != ";":
            self.at += 1
        self.at += 1


def prose(doc):
    """Returns a comment as Markdown: its lists and `code` stay, all else is text."""
    lines = [line.removeprefix(" ") for line in doc]
    text = "\n".join(lines)
    parts = re.split(r"(`[^`]*`)", text)
    escaped = [part if part.startswith("`") else re.sub(r"([*_\[\]<])", lambda m: {"<": "&lt;"}.get(m[1], "\\" + m[1]), part) for part in parts]
    return "".join(escaped)


def listing(symbol):
    """Returns the code of a plain struct with its members and their comments."""
    members = "\n".join("\n".join([*("///" + line for line in one.doc), one.code]) for one in symbol.members)
    indented = "".join(f"  {line}\n" if line else "\n" for line in members.split("\n"))
    return f"{symbol.code} {{\n{indented}}};"


def entry(symbol):
    plain = all(member.kind != "type" and not (member.kind == "function" and member.doc) for member in symbol.members)
    if symbol.kind == "type" and "{" not in symbol.code:
        code = listing(symbol) if symbol.members and plain else symbol.code + ";"
    else:
        code = symbol.code
    lines = [f"### {symbol.name}", "", "```cpp", code, "```", "", prose(symbol.doc), ""]
    block = []  # members without a comment of their own above them share a block
    for one in symbol.members if not plain else []:
        code = listing(one) if one.kind == "type" and "{" not in one.code else one.code
        if one.doc and block:
            lines += ["```cpp", *block, "```", ""]
            block = []
        block.append(code)
        if one.doc:
            lines += ["```cpp", *block, "```", "", prose(one.doc), ""]
            block = []
    return "\n".join([*lines, *(["```cpp", *block, "```", ""] if block else [])])


@cache
def headers():
    return tuple(sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "lehr").rglob("*.h")))


def folders():
    return sorted({header.split("/")[1] for header in headers()})


def read(header):
    """Returns the purpose of a header and its documented public symbols."""
    text = (ROOT / header).read_text()
    first = re.match(r"((?://[^\n]*\n)*)", text)[1]
    purpose = " ".join(line.removeprefix("//").strip() for line in first.splitlines())
    return purpose, [symbol for symbol in Reader(text).scope()
                     if symbol.doc or "///<" in symbol.code or any(one.doc or "///<" in one.code for one in symbol.members)]


def pages():
    """Returns folder -> Markdown."""
    found = {folder: [f"# lehr/{folder}/", ""] for folder in folders()}
    for folder, lines in found.items():
        if (ROOT / f"docs/{folder}.md").exists():
            lines += [f"[What this folder is](../../docs/{folder}.md).", ""]
        for header in (header for header in headers() if header.split("/")[1] == folder):
            purpose, symbols = read(header)
            if symbols:
                lines += [f"## {header.removeprefix('lehr/')}", "", f"{prose([purpose])} [Source](../../source/{header}.md)", "",
                          *map(entry, symbols)]
    return {folder: "\n".join(lines) for folder, lines in found.items()}


if __name__ == "__main__":
    for name in sys.argv[1:]:
        print(*map(entry, read(name)[1]), sep="\n")
