"""Reports of benchmarks: Markdown files whose sections are measured and replaced separately."""
import os


class Report:
    """The file `path` with a title and a note. Sections that it has already are kept until `put` replaces them."""

    def __init__(self, path, title, note):
        self.path, self.head, self.sections = path, ["# " + title, "", note], {}
        if os.path.exists(path):
            with open(path) as f:
                for part in f.read().split("\n## ")[1:]:
                    name, _, text = part.partition("\n")
                    self.sections[name] = text.strip("\n").split("\n")

    def put(self, name, lines):
        """Replaces the section `name` by `lines`, and writes the file."""
        self.sections[name] = lines
        text = list(self.head)
        for section, content in self.sections.items():
            text += ["", "## " + section, ""] + content
        with open(self.path, "w") as f:
            f.write("\n".join(text) + "\n")
