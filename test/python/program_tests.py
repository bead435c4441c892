"""Tests of the program in the wheel, and of functions that run it."""
import io
import os
import subprocess
import sys
from pathlib import Path

import lehr
from support import WithFolder, random_model, tiny_run

INSTALLED = Path(os.environ["LEHR_INSTALLED"])


def run(*arguments, **options):
    return subprocess.run(arguments, capture_output=True, text=True, **options)


class Program(WithFolder):
    def test_starts_as_a_script_and_as_a_module(self):
        for command in ([sys.executable, INSTALLED / "bin/lehr"], [sys.executable, "-m", "lehr"]):
            done = run(*command, "--version")
            self.assertEqual((done.returncode, done.stdout), (0, f"lehr {lehr.__version__}\n"), done.stderr)

    def test_keeps_exit_codes_and_messages(self):
        done = run(sys.executable, INSTALLED / "bin/lehr", "trian")
        self.assertEqual(done.returncode, 2)
        self.assertIn("did you mean 'train'?", done.stderr)

    def test_another_torch_is_refused_in_one_line(self):
        folder = self.folder / "torch"
        folder.mkdir()
        (folder / "__init__.py").write_text("")
        (folder / "version.py").write_text("__version__ = '2.12.1+cpu'\n")
        environment = {**os.environ, "PYTHONPATH": f"{self.folder}{os.pathsep}{INSTALLED}"}
        expected = (f"lehr {lehr.__version__} needs torch 2.11.0, found 2.12.1+cpu; "
                    "install it: pip install torch==2.11.0\n")
        done = run(sys.executable, INSTALLED / "bin/lehr", "--version", env=environment)
        self.assertEqual((done.returncode, done.stderr), (1, expected))
        done = run(sys.executable, "-c", "import lehr", env=environment)
        self.assertEqual(done.stderr.splitlines()[-1], f"ImportError: {expected.strip()}")

    def test_contains_neither_libtorch_nor_openmp(self):
        names = [path.name for path in INSTALLED.rglob("*.so*")]
        self.assertIn("liblehr_module.so", names)
        self.assertFalse([name for name in names if name.startswith(("libtorch", "libc10", "libgomp", "libcud"))])
        for file, folders in (("bin/lehr", b"$ORIGIN/../lib:$ORIGIN/../../torch/lib\0"),
                              ("lib/liblehr_module.so", b"$ORIGIN:$ORIGIN/../../torch/lib\0")):
            self.assertTrue(folders in (INSTALLED / "lehr" / file).read_bytes(), file)  # and no folder of the build


class Modules(WithFolder):
    def test_cuda_kernels_are_sought_in_the_package(self):
        problem = lehr.cuda_problem()
        if (INSTALLED / "lehr/liblehr_cuda.so").exists():
            self.assertNotIn("is not beside the program", problem)
        else:
            self.assertIn(str(INSTALLED / "lehr"), problem)


class Commands(WithFolder):
    def test_plan_is_a_dict(self):
        plan = lehr.plan(tiny_run(self.folder), devices=1)
        self.assertTrue(plan["fits"])
        self.assertGreater(plan["step_seconds"], 0)

    def test_keys_of_a_machine_may_be_true_or_false(self):
        plan = lehr.plan(tiny_run(self.folder), devices=1, **{"machine.node_direct_links": True})
        self.assertTrue(plan["fits"])

    def test_a_plan_is_kept_in_its_output_folder(self):
        lehr.plan(tiny_run(self.folder), devices=1, output=self.folder / "plan")
        self.assertTrue((self.folder / "plan/timeline.html").exists())

    def test_a_search_without_a_mesh_that_fits_returns_no_older_plan(self):
        config, output = tiny_run(self.folder), self.folder / "plan"
        lehr.plan(config, devices=1, output=output)
        with self.assertRaisesRegex(lehr.Error, "lehr plan: made no plan; it printed:\n.+"):
            lehr.plan(config, devices=1, search=True, output=output,
                      **{"machine.memory_gb": 0.0001, "machine.reserved_gb": 0})

    def test_a_failing_command_raises_the_text_of_the_program(self):
        with self.assertRaisesRegex(lehr.Error, "^command line: --training.seq_length: unknown key; did you mean"):
            lehr.plan(tiny_run(self.folder), {"training.seq_length": 3})

    def test_scores_and_evaluations_are_dicts(self):
        config = tiny_run(self.folder / "run")
        config["data"]["validation_fraction"] = 0.001
        lehr.Trainer(config).run()
        self.assertGreater(lehr.evaluate(config)["perplexity"], 1)
        scores = lehr.score(config, self.folder / "scores", kinds="kv_heads", max_rows=2)
        self.assertIn("kv_heads", str(scores))
        self.assertEqual(lehr.score(config, self.folder / "again", kinds=["kv_heads"], max_rows=2), scores)

    def test_progress_is_shown_or_passed_to_a_function(self):
        config, seen = tiny_run(self.folder / "run"), []
        config["data"]["validation_fraction"] = 0.001
        lehr.Trainer(config).run()
        lehr.score(config, self.folder / "scores", kinds="kv_heads", max_rows=40, progress=seen.append)
        self.assertTrue([text for text in seen if text.startswith("score, batches: ") and text.endswith(" left")], seen)
        self.assertFalse([text for text in seen if "\x1b" in text or "\r" in text])
        error, sys.stderr = sys.stderr, io.StringIO()
        try:
            lehr.score(config, self.folder / "scores", kinds="kv_heads", max_rows=40)
            self.assertEqual(sys.stderr.getvalue(), "", "neither a terminal nor a notebook")
            lehr.score(config, self.folder / "scores", kinds="kv_heads", max_rows=40, progress=True)
            self.assertIn("\rscore, batches: ", sys.stderr.getvalue())
        finally:
            sys.stderr = error
        with self.assertRaisesRegex(ValueError, "no more"):
            lehr.score(config, self.folder / "scores", kinds="kv_heads", progress=self._refuse)
        with self.assertRaisesRegex(lehr.Error, "^lehr score: --held-out: "):
            lehr.score({**config, "data": {**config["data"], "validation_fraction": 0}}, self.folder / "scores",
                       held_out=True, progress=seen.append)

    def _refuse(self, text):
        raise ValueError("no more")

    def test_ctrl_c_raises_and_stops_the_program(self):
        config = tiny_run(self.folder / "run")
        lehr.Trainer(config).run()
        code = ("said = []\n"
                "def show(text):\n    said.append(text)\n    print('batch', flush=True)\n"
                "try:\n    lehr.score(tiny_run(sys.argv[1]), sys.argv[1] + '/scores', max_rows=100000, progress=show)\n"
                "except KeyboardInterrupt:\n    print('interrupted', said[-1])\n")
        _, output, seconds = self.interrupted(code, self.folder / "run")
        self.assertLess(seconds, 20)
        self.assertRegex(output, r"interrupted lehr score: stopped by Ctrl-C after \d+ of \d+ batches; ")

    def test_verify_compares_with_a_reference(self):
        folder = random_model(self.folder, "qwen3")
        with self.assertRaisesRegex(lehr.Error, "oracle.safetensors"):
            lehr.verify(folder)
        with self.assertRaisesRegex(TypeError, "dtype: expected torch.float32.*found 'float64'"):
            lehr.verify(folder, dtype="float64")
