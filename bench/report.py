"""The reports of benchmarks: Markdown files of sections, of which each is measured and put in its place on its own."""
import os


class Report:
    """`path` with `title` at its top and `note` below; what the file holds already stays until `put` replaces it."""

    def __init__(self, path, title, note):
        self.path, self.head, self.sections = path, ["# " + title, "", note], {}
        if os.path.exists(path):
            with open(path) as f:
                for part in f.read().split("\n## ")[1:]:
                    name, _, text = part.partition("\n")
                    self.sections[name] = text.strip("\n").split("\n")

    def put(self, name, lines):
        """The section `name` is `lines` from now on, on the disk too."""
        self.sections[name] = lines
        text = list(self.head)
        for section, content in self.sections.items():
            text += ["", "## " + section, ""] + content
        with open(self.path, "w") as f:
            f.write("\n".join(text) + "\n")
