"""The API of the Python module, read from the docstrings of python/lehr without importing it."""
import ast
import inspect
import re
from pathlib import Path

WIDTH = 80  # of code on a page
PACKAGE = Path(__file__).resolve().parents[1] / "python/lehr"


def definitions():
    """Returns name -> definition of what `lehr/__init__.py` exports: models, training, commands, the rest."""
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    found = {}
    order = ["model", "trainer", "commands", "_track", "_module"]
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom) and node.level == 1 and node.module != "_version"]
    for node in sorted(imports, key=lambda node: order.index(node.module)):
        module = ast.parse((PACKAGE / f"{node.module}.py").read_text())
        by_name = {one.name: one for one in module.body if isinstance(one, (ast.ClassDef, ast.FunctionDef))}
        found |= {alias.name: by_name[alias.name] for alias in node.names if alias.name in by_name}
    return found


def argument(one, default):
    text = f"{one.arg}: {ast.unparse(one.annotation)}" if one.annotation else one.arg
    return text if default is None else f"{text} = {ast.unparse(default)}"


def signature(node, owner=""):
    arguments = ast.unparse(node.args)
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    decorators = {one.id for one in node.decorator_list if isinstance(one, ast.Name)}
    name = f"{owner}.{node.name}" if owner else f"lehr.{node.name}"
    if "property" in decorators:
        return f"{name}{returns}"
    if owner:
        arguments = re.sub(r"^(self|cls)(, )?", "", arguments)
        name = name.removesuffix(".__init__")
    text = f"{name}({arguments}){returns}"
    if len(text) <= WIDTH:
        return text
    plain, named = node.args.args, node.args.kwonlyargs
    own = {"self", "cls"} if owner else set()
    defaults = [None] * (len(plain) - len(node.args.defaults)) + node.args.defaults
    lines = [argument(one, default) for one, default in zip(plain, defaults) if one.arg not in own]
    lines += ["*"] if named else []
    lines += [argument(one, default) for one, default in zip(named, node.args.kw_defaults)]
    lines += [f"**{argument(node.args.kwarg, None)}"] if node.args.kwarg else []
    return "\n".join([f"{name}(", *(f"    {line}," for line in lines), f"){returns}"])


def text_of(node):
    """Returns the docstring as Markdown: indented and `>>>` parts are code, a line "Name:" is a heading of its lines."""
    # cleandoc() takes the indentation of an example that is all that follows the first line; its place in the source tells it.
    text = re.sub(rf"^ {{{node.body[0].col_offset}}}", "", ast.get_docstring(node, clean=False) or "", flags=re.MULTILINE).strip()
    blocks, code = [], []

    def flush():
        if code:
            while code and not code[-1].strip():
                code.pop()
            blocks.append("```python\n" + inspect.cleandoc("\n".join(["", *code])) + "\n```")
            code.clear()

    for line in text.split("\n"):
        if line.startswith(("    ", ">>>", "...")) or (code and not line.strip()):
            code.append(line)
        else:
            flush()
            blocks.append(re.sub(r"([*_\[\]<])(?=[^`]*(?:`[^`]*`[^`]*)*$)", r"\\\1", line))
    flush()
    return re.sub(r"\n(```python)", r"\n\n\1", "\n".join(blocks))


def entry(name, node):
    lines = [f"## {name}", ""]
    if isinstance(node, ast.FunctionDef):
        return [*lines, "```python", signature(node), "```", "", text_of(node), ""]
    methods = {one.name: one for one in node.body if isinstance(one, ast.FunctionDef)}
    if "__init__" in methods and methods["__init__"].args.args[1:]:
        lines += ["```python", signature(methods["__init__"], f"lehr.{name}"), "```", ""]
    lines += [text_of(node), ""]
    for method, one in methods.items():
        if ast.get_docstring(one) and (not method.startswith("_") or method == "__call__"):
            lines += [f"### {name}.{method}", "", "```python", signature(one, name.lower()), "```", "", text_of(one), ""]
    return lines


def page():
    lines = ["# Python API", "", "[How to use it](../docs/python.md). Shapes: B sequences, T tokens, H hidden size, V vocabulary.", ""]
    for name, node in definitions().items():
        lines += entry(name, node)
    return "\n".join(lines)


if __name__ == "__main__":
    print(page())
