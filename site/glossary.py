"""Hover texts: the first occurrence of each term of docs/glossary.md on a page gets its meaning."""
import html
import re
from functools import cache
from pathlib import Path

PAGE = Path(__file__).resolve().parents[1] / "docs/glossary.md"
# Where a hover text would disturb, or change what is copied.
QUIET = {"a", "abbr", "code", "pre", "h1", "h2", "h3", "h4", "th", "script", "style", "summary"}


@cache
def meanings():
    """Returns term -> meaning, in lower case but for abbreviations; from the tables of the glossary."""
    found = {}
    for row in re.findall(r"^\| ([^|]+) \| ([^|]+) \|", PAGE.read_text(), re.MULTILINE):
        terms, meaning = row
        if terms == "term" or set(terms) <= {"-"}:
            continue
        meaning = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", meaning).replace("`", "").replace("*", "")
        for term in re.split(r"[,;] *", terms.replace("`", "")):
            short = re.search(r"\(([^)]+)\)", term)
            for name in (term.partition(" (")[0], short and short[1]):
                if name:
                    found[name if name.isupper() else name.lower()] = meaning
    return found


@cache
def pattern():
    terms = sorted(meanings(), key=len, reverse=True)
    return re.compile(r"(?<![\w`/.-])(" + "|".join(map(re.escape, terms)) + r")(e?s)?(?![\w/-])", re.IGNORECASE)


def with_hover_texts(page):
    """Returns the HTML of a page with <abbr> around first occurrences."""
    seen, open_tags, result = set(), [], []

    def marked(match):
        word = match[1] if match[1] in meanings() else match[1].lower()
        if word not in meanings() or word in seen:
            return match[0]
        seen.add(word)
        return f'<abbr title="{html.escape(meanings()[word])}">{match[0]}</abbr>'

    for piece in re.split(r"(<[^>]*>)", page):
        tag = re.match(r"<(/?)(\w+)", piece)
        if tag and tag[2] in QUIET:
            open_tags.pop() if tag[1] and open_tags else open_tags.append(tag[2])
        elif not piece.startswith("<") and not open_tags:
            piece = pattern().sub(marked, piece)
        result.append(piece)
    return "".join(result)
