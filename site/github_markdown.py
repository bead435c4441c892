"""Markdown as GitHub reads it, made into what Python-Markdown reads alike: nested lists, fences that name a file, links."""
import re

LINK = re.compile(r"(!?\[[^\]]*\]\()([^)#\s]+)((?:#[^)]*)?\))")
FENCE = re.compile(r"^( *)(`{3,})(\w*)(?: +(\S+))?\s*$")
ITEM = re.compile(r"^( *)([-*]|\d+\.)( +)(?=\S)")


def prose(text):
    """Yields (line, whether it is outside of code blocks)."""
    fence = None
    for line in text.split("\n"):
        match = FENCE.match(line)
        if fence is None and match:
            fence = match[2]
            yield line, False
        elif fence is not None:
            if match and match[2] == fence and not match[3]:
                fence = None
            yield line, False
        else:
            yield line, True


def links_of(text):
    """Returns the targets of the relative links of a page, without those in code."""
    lines = (re.sub(r"`[^`]*`", "", line) for line, outside in prose(text) if outside)
    return [match[2] for line in lines for match in LINK.finditer(line) if not re.match(r"[a-z]+:", match[2])]


def reindented(lines):
    """Python-Markdown wants four spaces per level of a list, where GitHub takes those of the text of the item above; and an empty
    line before a list."""
    levels = []  # columns of the text of the open items
    before = ""
    for line, outside in lines:
        indent = len(line) - len(line.lstrip(" "))
        if line.strip() and (outside or FENCE.match(line)):
            while levels and indent < levels[-1]:
                levels.pop()
        item = outside and ITEM.match(line)
        if line.strip() and levels:
            line = " " * 4 * len(levels) + line[min(indent, levels[-1]):]
        if item:
            if before.strip() and not levels and not ITEM.match(before):
                yield "", True
            levels.append(item.end())
        yield line, outside
        before = line


def for_mkdocs(text, link):
    """`link` maps the target of a relative link."""
    result = []
    for line, outside in reindented(prose(text)):
        if outside:
            line = LINK.sub(lambda m: m[0] if re.match(r"[a-z]+:", m[2]) else m[1] + link(m[2]) + m[3], line)
        elif (match := FENCE.match(line)) and match[4]:
            line = f'{match[1]}{match[2]}{match[3]} title="{match[4]}"'
        result.append(line)
    return "\n".join(result)
