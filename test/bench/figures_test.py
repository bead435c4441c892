#!/usr/bin/env python3
"""Tests that script/figures.py sees what was edited by hand (standard library only)."""
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "script"))
import figures

BLOCK = "<!-- measured abc123, 2026-11-24, a machine: make bench -->\n{}\n<!-- end of measured, crc32 {} -->\n"


class Blocks(unittest.TestCase):
    def wrong(self, text, name="docs/page.md"):
        return list(figures.wrong_blocks(name, text))

    def test_a_sealed_block_passes(self):
        self.assertEqual(self.wrong("Text.\n" + BLOCK.format("12 tok/s", figures.crc("12 tok/s"))), [])

    def test_an_edited_figure_does_not(self):
        self.assertIn("was edited since", self.wrong(BLOCK.format("13 tok/s", figures.crc("12 tok/s")))[0])

    def test_a_block_without_date_does_not(self):
        block = BLOCK.format("12 tok/s", figures.crc("12 tok/s")).replace("2026-11-24, ", "")
        self.assertIn("says commit, date, machine and command", self.wrong(block)[0])

    def test_a_rate_outside_of_blocks_is_seen(self):
        for rate in ("21.4 K tok/s", "95 % of the peak", "1.5 TFLOP/s", "120 GB/s"):
            self.assertIn(f'docs/page.md:2: "{rate}"', self.wrong(f"Text.\nIt reaches {rate} here.")[0])
        self.assertEqual(self.wrong("95 % of the pages, and GB/s"), [])

    def test_seal_writes_the_checksum(self):
        with tempfile.TemporaryDirectory() as folder:
            page = Path(folder, "page.md")
            page.write_text("A\n" + BLOCK.format("12 tok/s", "00000000") + "B\n")
            figures.seal(page)
            self.assertEqual(page.read_text(), "A\n" + BLOCK.format("12 tok/s", figures.crc("12 tok/s")) + "B\n")


class Reports(unittest.TestCase):
    def test_an_edited_section_is_seen(self):
        body = figures.sealed("Commit abc, 2026-11-24, a machine, 2 cores.\n\n| lehr | 100 |")
        self.assertEqual(list(figures.wrong_sections("r", f"# T\n\n## S\n\n{body}\n")), [])
        self.assertEqual(len(list(figures.wrong_sections("r", f"# T\n\n## S\n\n{body}\n".replace("100", "120")))), 1)

    def test_a_section_says_where_it_is_from(self):
        body = figures.sealed("Two cores.\n\n| lehr | 100 |")
        self.assertIn("does not begin with commit", list(figures.wrong_sections("r", f"# T\n\n## S\n\n{body}\n"))[0])


class Pictures(unittest.TestCase):
    def test_other_bytes_and_unknown_files_are_seen(self):
        with tempfile.TemporaryDirectory() as folder:
            folder = Path(folder)
            for name in ("computed.svg", "measured.svg", "unknown.svg"):
                (folder / name).write_text(name)
            row = "| `measured.svg` | `make train` | abc, 2026-11-24, a machine | {} |\n"
            with mock.patch.multiple(figures, PICTURES=folder, ROOT=folder):
                (folder / "README.md").write_text(row.format(figures.crc("measured.svg")))
                wrong = list(figures.wrong_pictures({folder / "computed.svg": b"computed.svg"}))
                self.assertEqual([text.split()[0] for text in wrong], ["unknown.svg"])
                (folder / "README.md").write_text(row.format("00000000"))
                wrong = list(figures.wrong_pictures({folder / "computed.svg": b"other"}))
                self.assertEqual([text.split()[0] for text in wrong], ["computed.svg", "measured.svg", "unknown.svg"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
