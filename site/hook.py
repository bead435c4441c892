"""What mkdocs does not do by itself: the site has the layout of the tree, so that the links of its Markdown files hold in both.

Pages are docs/, the Markdown files that it links to, a page with the text of each source file that is linked to, the API from
headers and docstrings, and the figures with their commands. Markdown is as GitHub reads it.
"""
import json
import re
import sys
from pathlib import Path

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "site"))
import cpp_api
import glossary
import link_titles
import numbers_page
import python_api
from github_markdown import for_mkdocs, links_of

# Files with pages or addresses of their own; any other has a page with its text.
OWN_PAGES = {".md", ".ipynb", ".svg", ".html", ".png"}
LANGUAGES = {".h": "cpp", ".cpp": "cpp", ".inl": "cpp", ".cu": "cpp", ".py": "python", ".sh": "sh", ".toml": "toml", ".json": "json",
             ".txt": "text"}


def on_config(config):
    """Fills the empty entry "C++ API" of the navigation."""
    api = next(entry for section in config.nav for entry in next(iter(section.values())) if isinstance(entry, dict) and "C++ API" in entry)
    api["C++ API"] = [{folder: f"api/cpp/{folder}.md"} for folder in cpp_api.folders()]
    return config


def markdown_files():
    folders = [ROOT, ROOT / "docs", ROOT / "docs/search_quickstart", ROOT / "docs/picture", ROOT / "bench", ROOT / "example/notebook"]
    return sorted(path for folder in folders for path in folder.glob("*.md"))


def source_uri(path):
    return f"source/{path}.md" if (ROOT / path).is_file() else f"source/{path}/index.md"


def source_page(path):
    """Returns the page of a source file, or of a folder with links to its files."""
    full = ROOT / path
    if full.is_dir():
        files = sorted(one for one in full.iterdir() if one.is_file() and not one.name.startswith("."))
        return f"# {path}\n\n" + "".join(f"- [{one.name}]({one.name}.md)\n" for one in files)
    text = full.read_text(errors="replace")
    fence = "`" * max(3, 1 + max(map(len, re.findall(r"`{3,}", text)), default=0))
    return f"# {path}\n\n{fence}{LANGUAGES.get(full.suffix, 'text')}\n{text}{fence}\n"


def notebook_page(path):
    """Returns the Markdown of a notebook: how to run it, its text, and its code without outputs."""
    cells = json.loads(path.read_text())["cells"]
    texts = ("".join(cell["source"]) for cell in cells)
    page = [text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```" for cell, text in zip(cells, texts)]
    run_it = f'<a href="{path.name}" download>The notebook as a file</a>; [how to run it](README.md)'
    return "\n\n".join([page[0], run_it, *page[1:], ""])


def linked_sources(pages):
    """Returns the files and folders of the tree, other than pages and pictures, that pages link to."""
    found = set()
    for uri, text in pages.items():
        for target in links_of(text):
            path = (ROOT / uri).parent.joinpath(target).resolve()
            if not path.exists() or not path.is_relative_to(ROOT) or path.suffix in OWN_PAGES:
                continue
            found.add(path.relative_to(ROOT).as_posix())
            if path.is_dir():
                found |= {one.relative_to(ROOT).as_posix() for one in path.iterdir() if one.is_file() and not one.name.startswith(".")}
    return found


def on_files(files, config):
    written = {path.relative_to(ROOT).as_posix(): path.read_text() for path in markdown_files()}
    made = {f"api/cpp/{folder}.md": text for folder, text in cpp_api.pages().items()}
    made |= {"api/python.md": python_api.page(), "numbers.md": numbers_page.page()}
    all_files = Files([file for file in files if not file.src_uri.endswith((".md", ".svg", ".html", ".txt"))])
    notebooks = sorted((ROOT / "example/notebook").glob("*.ipynb"))
    made |= {path.relative_to(ROOT).with_suffix(".md").as_posix(): notebook_page(path) for path in notebooks}
    sources = linked_sources(written | made) | set(cpp_api.headers())
    for uri, text in (written | made | {source_uri(path): source_page(path) for path in sorted(sources)}).items():
        path = ROOT / uri
        all_files.append(File.generated(config, uri, abs_src_path=str(path)) if uri in written
                         else File.generated(config, uri, content=text))
    for path in [*(ROOT / "docs").rglob("*.svg"), *(ROOT / "docs").rglob("*.html"), ROOT / "site/style.css", ROOT / "site/iframe-worker.js", *notebooks]:
        all_files.append(File.generated(config, path.relative_to(ROOT).as_posix(), abs_src_path=str(path)))
    return all_files


def on_page_markdown(markdown, page, config, files):
    uri = page.file.src_uri
    if uri.startswith("source/"):
        page.meta |= {"search": {"exclude": True}, "hide": ["toc"]}
        return markdown
    if uri == "README.md":
        page.meta |= {"hide": ["navigation", "toc"]}
        hero, _, rest = (ROOT / "site/hero.md").read_text(), *markdown.partition("This is printed at the end")[1:]
        if not rest:
            raise ValueError("README.md: no longer has the sentence that site/hero.md replaces, with all before it")
        markdown = hero + rest.partition("\n")[2]
    titled = link_titles.with_titles(
        markdown, (ROOT / uri).parent, lambda path: files.get_file_from_path(path.relative_to(ROOT).as_posix()).page.title)
    return for_mkdocs(titled, lambda target: in_site(uri, target))


def in_site(uri, target):
    """Returns the target of a link of the page `uri`: a source file has a page of its own."""
    path = (ROOT / uri).parent.joinpath(target).resolve()
    if not path.exists() or not path.is_relative_to(ROOT) or path.suffix in OWN_PAGES:
        return target.removesuffix(".ipynb") + ".md" if path.suffix == ".ipynb" and (ROOT / uri).suffix == ".md" else target
    return "../" * uri.count("/") + source_uri(path.relative_to(ROOT).as_posix())


def on_page_content(html, page, config, files):
    quiet = page.file.src_uri.startswith(("source/", "docs/glossary", "api/", "CHANGELOG", "numbers"))
    return html if quiet else glossary.with_hover_texts(html)
