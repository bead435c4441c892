#!/usr/bin/env python3
"""Tests what script/release.py refuses and writes, without building anything (standard library only)."""
import datetime
import sys
import tempfile
import unittest
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "script"))
import release

CMAKE = "cmake_minimum_required(VERSION 3.20)\nproject(lehr VERSION 0.1.0 LANGUAGES CXX)\n"
CHANGES = "# Changelog\n\n## [0.2.0] - unreleased\n\n### Added\n\n- A thing.\n\n## [0.1.0] - 2026-01-31\n\n- Old.\n"
TODAY = datetime.date(2026, 12, 1)


class Release(unittest.TestCase):
    def test_sets_version_and_date(self):
        cmake, changes = release.released(CMAKE, CHANGES, "0.2.0", TODAY)
        self.assertIn("project(lehr VERSION 0.2.0 LANGUAGES CXX)", cmake)
        self.assertIn("cmake_minimum_required(VERSION 3.20)", cmake)
        self.assertIn("## [0.2.0] - 2026-12-01\n", changes)
        self.assertEqual(release.section_of(changes, "0.2.0")[1], "### Added\n\n- A thing.\n")

    def test_refuses_what_is_no_next_version(self):
        for version in ("0.0.9", "1.0", "v0.2.0"):
            with self.assertRaisesRegex(SystemExit, "expected a version X.Y.Z from 0.1.0 on"):
                release.released(CMAKE, CHANGES, version, TODAY)
        with self.assertRaisesRegex(SystemExit, "says that 0.1.0 was released"):
            release.released(CMAKE, CHANGES, "0.1.0", TODAY)
        with self.assertRaisesRegex(SystemExit, "has no heading"):
            release.released(CMAKE, CHANGES, "0.3.0", TODAY)
        with self.assertRaisesRegex(SystemExit, "names no change"):
            release.released(CMAKE, CHANGES.replace("- A thing.\n", ""), "0.2.0", TODAY)

    def test_the_tree_can_be_released(self):
        cmake, changes = (Path(ROOT, name).read_text() for name in ("CMakeLists.txt", "CHANGELOG.md"))
        version = release.VERSION.search(cmake)[2]
        self.assertIn(f"## [{version}] - 2026-12-01", release.released(cmake, changes, version, TODAY)[1])

    def test_the_sbom_names_what_is_needed_and_packed(self):
        with tempfile.TemporaryDirectory() as folder:
            wheel = Path(folder, "lehr-0.2.0.whl")
            with zipfile.ZipFile(wheel, "w") as archive:
                archive.writestr("lehr-0.2.0.dist-info/METADATA", "Name: lehr\nRequires-Dist: torch==2.11.0\n\nText")
                archive.writestr("lehr/lib/libfmt.so.9", b"fmt")
                archive.writestr("lehr/lib/liblehr_module.so", b"own")
            found = release.sbom("0.2.0", wheel)
        self.assertEqual(found["metadata"]["component"]["version"], "0.2.0")
        by_name = {one["name"]: one for one in found["components"]}
        self.assertEqual(by_name["torch"]["purl"], "pkg:pypi/torch@2.11.0")
        self.assertEqual(len(by_name["libfmt.so.9"]["hashes"][0]["content"]), 64)
        self.assertNotIn("liblehr_module.so", by_name)


unittest.main()
