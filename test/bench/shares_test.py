#!/usr/bin/env python3
"""Tests that the shares of script/test_all.sh run every test of C++ code under a sanitizer."""
import re, unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Tests whose processes are not built with a sanitizer (Python with the module, projects of their own), which run no C++
# code of their own, or which a part of a share runs in the release build.
WITHOUT = {"docs_blocks", "gpu_check", "interop", "interop_configs", "interop_peft", "interop_python",
           "mutated_configs", "notebooks", "python_package"}


class Shares(unittest.TestCase):
    def setUp(self):
        cmake = (ROOT / "test/CMakeLists.txt").read_text()
        self.tests = set(re.findall(r"^ *lehr_(?:test|program_test|python_test)\((\w+)", cmake, re.M))
        script = (ROOT / "script/test_all.sh").read_text()
        block = re.search(r"^shares=\((.*?)^\)", script, re.M | re.S)[1]
        self.shares = [line.split() for line in re.findall(r"'(.*)'", block)]

    def of(self, preset):
        return {suite for share in self.shares if share[0] == preset for suite in share[1].split("|")}

    def test_every_test_runs_under_the_address_sanitizer(self):
        self.assertGreater(len(self.tests), 25)
        self.assertEqual(self.tests - WITHOUT - self.of("asan"), set(), "add them to a share of script/test_all.sh")
        self.assertEqual(WITHOUT - self.tests, set(), "these no longer exist")

    def test_suites_of_the_shares_exist(self):
        self.assertEqual((self.of("asan") | self.of("tsan")) - self.tests, set())


if __name__ == "__main__":
    unittest.main()
