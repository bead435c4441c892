"""Links whose text is the name of a page, [docs/train.md](docs/train.md), show its title on the site: "Train a model"."""
import json
import re
from pathlib import Path

from github_markdown import LINK, prose


def section_title(lines, anchor):
    """Returns the heading of `anchor`, or nothing."""
    for before, line in zip(["", *lines], lines):
        heading = re.match(r"##+ (.*)", line)
        name = heading and re.sub(r"[`*]", "", heading[1])
        if name and (f'<a name="{anchor}">' in before or re.sub(r"[^\w -]", "", name.lower()).replace(" ", "-") == anchor):
            return name


def title_of(path, anchor, title_in_navigation):
    """Returns the title of a page up to a comma or colon, and the section's: "Train a model: Float8". A title that begins with the
    name of a folder is replaced by the navigation's."""
    text = "".join(json.loads(path.read_text())["cells"][0]["source"]) if path.suffix == ".ipynb" else path.read_text()
    lines = [line for line, outside in prose(text) if outside]
    title = re.split(r"[:,] ", next(line for line in lines if line.startswith("# "))[2:])[0]
    return ": ".join(filter(None, [title_in_navigation(path) if title[0].islower() else title, anchor and section_title(lines, anchor)]))


def with_titles(markdown, folder, title_in_navigation):
    """Returns the text of a page of `folder`. `title_in_navigation` maps the path of a page."""
    def titled(match):
        name, path = match[1].lstrip("![").partition("](")[0], folder.joinpath(match[2]).resolve()
        if not name.endswith((".md", ".ipynb")) or Path(name).name != path.name or not path.exists():
            return match[0]
        return f"[{title_of(path, match[3][1:-1], title_in_navigation)}]({match[2]}{match[3]}"

    return "\n".join(LINK.sub(titled, line) if outside else line for line, outside in prose(markdown))
