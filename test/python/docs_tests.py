"""Runs the Python of docs/python.md and the README, with the quickstart made small."""
import contextlib
import io
import os
import re
import shutil

import lehr
from support import ROOT, WithFolder

SMALLER = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
           "head_dim": 16, "steps": 4, "seq_len": 64, "warmup_steps": 1, "interval": 4, "freq": 4, "max_new_tokens": 4,
           "validation_fraction": 0.01, "log_freq": 1}


class Pages(WithFolder):
    def setUp(self):
        super().setUp()
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(self.folder)
        (self.folder / "recipe").mkdir()
        (self.folder / "recipe/data").symlink_to(ROOT / "recipe/data")
        text = (ROOT / "recipe/quickstart.toml").read_text()
        for key, value in SMALLER.items():
            text, count = re.subn(rf"^{key} = \S+", f"{key} = {value}", text, flags=re.MULTILINE)
            self.assertEqual(count, 1, key)
        (self.folder / "recipe/quickstart.toml").write_text(text)
        lehr.Trainer("recipe/quickstart.toml", {"job.dump_folder": "trained"}).run()

    def run_page(self, page):
        names, blocks = {}, re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
        for block in blocks:
            shutil.rmtree("outputs", ignore_errors=True)  # a run of another block would be resumed, at its end
            if "step-1400" in block:
                shutil.copytree("trained/checkpoints/step-4", "outputs/quickstart/checkpoints/step-1400")
            printed = io.StringIO()
            with self.subTest(page=page, block=block.split("\n")[0]), contextlib.redirect_stdout(printed):
                exec(compile(block, page, "exec"), names)  # later blocks use the names of earlier ones
            if "for step in" in block:
                self.assertEqual(len(re.findall(r"^\d+ \d", printed.getvalue(), re.MULTILINE)), 4, printed.getvalue())
        return names, len(blocks)

    def test_the_readme(self):
        self.assertEqual(self.run_page("README.md")[1], 1)

    def test_docs_python(self):
        names, count = self.run_page("docs/python.md")
        self.assertGreaterEqual(count, 4)
        self.assertIsNotNone(names["output"].loss)
        self.assertTrue((self.folder / "my_model/config.json").exists())
