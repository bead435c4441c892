#!/usr/bin/env python3
"""Tests the scripts of bench/ by contenders that are made up (standard library only)."""
import os
import re
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
import machine
import tokenizer_vs_python


class Machine(unittest.TestCase):
    def test_peak_memory_is_what_the_kernel_counts(self):
        kept = b"x" * (64 << 20)
        peak = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
        # Two readings within a millisecond; a wrong unit is 2.4 % off.
        self.assertAlmostEqual(machine.peak_rss_mb() / (int(peak[1]) * 1024 / 1e6), 1, delta=0.01)
        self.assertEqual(len(kept), 64 << 20)

    def test_a_cpu_class_is_family_model_and_instruction_set(self):
        info = {"vendor_id": "AuthenticAMD", "cpu family": "25", "model": "17", "flags": "avx2 avx512f avx512_bf16"}
        self.assertEqual(machine.cpu_class(info), "AMD family 25 model 17, AVX-512 with BF16")
        self.assertEqual(machine.cpu_class(info | {"flags": "sse2 avx2"}), "AMD family 25 model 17, AVX2")
        self.assertEqual(machine.cpu_class(info | {"vendor_id": "GenuineIntel", "flags": "avx512f amx_bf16"}),
                         "Intel family 25 model 17, AMX")


class Tokenizer(unittest.TestCase):
    def test_the_peer_is_its_fastest_form(self):
        class Package:
            encode = encode_batch = encode_batch_fast = lambda self, text, add_special_tokens: text

        self.assertEqual(list(tokenizer_vs_python.forms_of(Package())), ["encode", "encode_batch", "encode_batch_fast"])
        rates = {"encode": [5, 9, 5], "encode_batch": [4, 4, 4], "encode_batch_fast": [8, 7, 6]}
        self.assertEqual(tokenizer_vs_python.fastest(rates), "encode_batch_fast")


if __name__ == "__main__":
    os.chdir(ROOT)
    unittest.main(verbosity=2)
