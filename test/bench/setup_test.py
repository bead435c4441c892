#!/usr/bin/env python3
"""Tests when Apache Arrow is installed (script/setup.sh, with pip replaced; the Makefile) and built (LehrArrow.cmake)."""
import os, shutil, subprocess, tempfile, unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


class Setup(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.root = Path(holder.name)
        (self.root / "script").mkdir()
        for name in ("setup.sh", "requirements.txt", "requirements_arrow.txt"):
            shutil.copy(ROOT / "script" / name, self.root / "script")
        packages = self.root / ".venv/lib/python3.11/site-packages"
        (packages / "torch/lib").mkdir(parents=True)
        (packages / "torch/lib/libtorch_cpu.so").touch()
        (packages / "pyarrow").mkdir()
        self.program(".venv/bin/python", f'[ "$1" = -c ] || echo "$@" >>"{self.root}/calls"')
        # All packages of the system are installed, cmake and ninja are new.
        self.program("bin/dpkg-query", 'shift 2; printf "%s installed\\n" "$@"')
        for name in ("cmake", "ninja"):
            self.program(f"bin/{name}", "echo 99.0")

    def program(self, name, body):
        file = self.root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"#!/usr/bin/env bash\n{body}\n")
        file.chmod(0o755)

    def installs(self, *arguments):
        """Returns what setup asks pip for."""
        (self.root / "calls").unlink(missing_ok=True)
        environment = {**os.environ, "PATH": f"{self.root}/bin:{os.environ['PATH']}"}
        done = subprocess.run(["script/setup.sh", *arguments], cwd=self.root, env=environment, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        return (self.root / "calls").read_text() if (self.root / "calls").exists() else ""

    def test_a_pyarrow_of_the_user_is_left_alone(self):
        self.assertIn("-r script/requirements.txt", self.installs())
        self.assertEqual(self.installs(), "", "nothing is new")
        with open(self.root / "script/requirements.txt", "a") as file:
            file.write("# newer\n")
        self.assertNotIn("arrow", self.installs())

    def test_a_pyarrow_of_setup_keeps_to_its_version(self):
        self.assertIn("-r script/requirements_arrow.txt", self.installs("arrow"))
        self.assertEqual(self.installs(), "", "nothing is new")
        with open(self.root / "script/requirements_arrow.txt", "a") as file:
            file.write("# newer\n")
        self.assertIn("-r script/requirements_arrow.txt", self.installs())

    def test_arrow_of_make_may_be_no(self):
        for value, wanted in (("", False), ("0", False), ("OFF", False), ("1", True), ("ON", True)):
            shown = subprocess.run(["make", "-n", "setup", f"ARROW={value}"], cwd=ROOT, capture_output=True, text=True)
            self.assertEqual(" arrow" in shown.stdout, wanted, (value, shown))

    def test_a_module_of_an_earlier_configuration_is_removed(self):
        modules = [self.root / name for name in ("liblehr_arrow.so", "wheel/liblehr_arrow.so")]
        for options in (["-DLEHR_ARROW=OFF"],
                        ["-DLEHR_ARROW=AUTO", f"-DLEHR_ARROW_DIR={self.root}/none", "-DCMAKE_DISABLE_FIND_PACKAGE_Arrow=ON",
                         "-DCMAKE_DISABLE_FIND_PACKAGE_Parquet=ON"]):
            for module in modules:
                module.parent.mkdir(exist_ok=True)
                module.touch()
            done = subprocess.run(
                ["cmake", f"-DPROJECT_BINARY_DIR={self.root}", *options, "-P", ROOT / "cmake/LehrArrow.cmake"],
                capture_output=True, text=True)
            self.assertIn("Apache Arrow: not built", done.stdout, done)
            self.assertEqual([module.exists() for module in modules], [False, False], options)


unittest.main()
