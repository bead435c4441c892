#!/usr/bin/env python3
"""Tests the scripts of bench/ by contenders that are made up (standard library only)."""
import argparse
import contextlib
import io
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import unittest
from unittest import mock
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
sys.modules["peer_transformers"] = type(sys)("peer_transformers")  # needs torch
sys.modules["peer_transformers"].PRESETS = {"tiny": {}, "small": {}}
import agree
import compare
import contenders
import fsdp
import machine
import neighbours
import pruning
import published
import quota
import report
import tokenizer_vs_python


class Published(unittest.TestCase):
    def test_a_plan_is_read_from_its_report(self):
        text = ("model      llama 8B: 8 G parameters, 1 stages; 48 GFLOPs per token (61 G with full instead of causal attention)\n"
                "step       250.00 ms, 1 M tokens/s\nmemory     fits: 12.50 of 76.00 GB\n\nBreakdown of the step time\n"
                "                time   share\n  matmuls  200.00 ms  80.0 %\n  waiting for tp  50.00 ms  20.0 %\n\nPeak\n")
        self.assertEqual(published.parsed(text), {"step": 0.25, "memory": 12.5, "flops": [48e9, 61e9],
                                                  "shares": {"matmuls": 80.0, "waiting for tp": 20.0}})

    def test_one_half_calibrates_the_other(self):
        # Twice too fast on one machine, with one run that is off by half more: no factor makes it disappear.
        runs = [{"machine": "a", "error": 1.0} for _ in range(6)] + [{"machine": "a", "error": 2.0}]
        errors = sorted(e for half in published.hold_out(runs) for e in half)
        self.assertEqual(errors, [0, 0, 0, 0, 0, 0, 0.5])

    def test_a_summary_counts_both_signs(self):
        self.assertEqual(published.summary([-0.3, 0.1, 0.05]), "3 runs: median error 10.0 %, 2 of 3 (67 %) within 20 %")

    def test_figures_in_flops_become_tokens(self):
        data = {"models": {"g": {"gpt": [1, 10, 1, 0]}}}
        run = {"tflops": 1.0, "counts": "gpt, full attention", "seq": 60, "model": "g"}
        self.assertEqual(published.published_tokens(run, {"flops": (1, 2)}, data), 1e12 / (72 * 100 * 2))
        self.assertEqual(published.published_tokens(run | {"counts": "causal attention"}, {"flops": (1e3, 2e3)}, data), 1e9)


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


class Reports(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = Path(folder.name) / "results.md"

    def put(self, name, *lines, suffix=": this CPU"):
        made = report.Report(str(self.path), "Title", "Note.")
        made.suffix = suffix
        made.put(name, lines)

    def test_classes_of_cpus_stand_side_by_side(self):
        self.put("Training", "1", suffix=": A")
        self.put("Memory", "2", suffix=": A")
        self.put("Training", "3", suffix=": B")
        self.put("Training", "4", suffix=": A")
        sections = report.sections_of(self.path.read_text())
        self.assertEqual(list(sections), ["Training: A", "Training: B", "Memory: A"])
        self.assertIn("\n\n4\n", sections["Training: A"])

    def test_a_section_says_where_its_figures_are_from(self):
        self.put("Training", "1")
        head = report.sections_of(self.path.read_text())["Training: this CPU"].split("\n")[0]
        self.assertRegex(head, r"^Commit [0-9a-z]+( and local changes)?, \d{4}-\d\d-\d\d, .+, \d+ cores\.$")

    def test_a_hand_edited_figure_breaks_the_seal(self):
        self.put("Training", "| 100 |")
        section = report.sections_of(self.path.read_text())["Training: this CPU"]
        self.assertEqual(report.sealed(section), section)
        self.assertNotEqual(report.sealed(section.replace("100", "101")), section.replace("100", "101"))

    def test_rows_are_kept_when_the_bench_dies_later(self):
        self.put("Training", "old")
        made = report.Report(str(self.path), "Title", "Note.")
        made.suffix = ": this CPU"
        section = report.Section(made, "Training")
        section.table("contender", "tokens/s")
        self.assertIn("old", self.path.read_text(), "nothing is measured yet")
        section.row("lehr", 5)
        self.assertIn("| lehr | 5 |", self.path.read_text())


def result(losses=(9.0, 8.0), norms=(3.0, 2.0), speed=100.0, **more):
    return {"losses": list(losses), "grad_norms": list(norms), "tokens_per_s": speed, "peak_rss_mb": 50.0} | more


class Agree(unittest.TestCase):
    def wrong(self, theirs, dtype="fp32", ours=result()):
        return agree.compare([ours], [theirs], dtype)[1]

    def test_equal_work_passes(self):
        self.assertEqual(self.wrong(result(losses=(9.00005, 8.0), norms=(3.002, 2.0))), "")
        self.assertEqual(self.wrong(result(losses=(9.005, 8.0), norms=(3.05, 2.0)), "bf16"), "")

    def test_other_losses_and_norms_of_any_step_are_seen(self):
        self.assertIn("losses differ by 2.0e-04", self.wrong(result(losses=(9.0, 8.0002))))
        self.assertIn("gradient norms differ", self.wrong(result(norms=(3.0, 2.01))))
        self.assertIn("losses differ", self.wrong(result(losses=(9.0, 8.02)), "bf16"))
        self.assertIn("gradient norms differ", self.wrong(result(norms=(3.0, 2.2)), "amp"))

    def test_what_cannot_be_compared_does_not_agree(self):
        self.assertIn("differ", self.wrong(result(losses=(9.0, math.nan))))
        self.assertIn("differ", self.wrong(result(norms=(math.nan, 2.0))))
        self.assertIn("differ", self.wrong(result(losses=(9.0,))))

    def test_a_contender_that_computes_in_bfloat16_has_its_tolerance(self):
        self.assertEqual(self.wrong(result(losses=(9.005, 8.0), computes="bf16")), "")

    def test_a_later_round_counts(self):
        self.assertIn("differ", agree.compare([result(), result()], [result(), result(losses=(9.1, 8.0))], "fp32")[1])


def says(found):
    return [sys.executable, "-c", f"print({json.dumps(json.dumps(found))})"]


DIES = [sys.executable, "-c", "raise RuntimeError('no kernel | for this')"]
KILLED = [sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"]
OURS = result(speed=200.0, flops_per_token=10, peak_flops=4000.0)


class Compare(unittest.TestCase):
    """bench/compare.py, whose contenders are programs that print or die."""

    def run_training(self, commands, rounds=2):
        made = argparse.Namespace(peers=[name for name in commands if name != "lehr"], absent=[],
                                  commands=lambda *arguments, **options: commands)
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()), \
                contextlib.redirect_stderr(io.StringIO()), mock.patch.object(compare, "save_init", lambda *_: None), \
                mock.patch.object(compare, "too_large", lambda *_: None):
            path = os.path.join(folder, "results.md")
            a = argparse.Namespace(rounds=rounds, steps=1, presets=["tiny"], dtypes=["fp32"])
            wrong = compare.training(report.Section(report.Report(path, "Title", "Note."), "Training steps"), made, a)
            return Path(path).read_text(), wrong

    def test_a_dead_contender_is_a_row_and_the_others_are_kept(self):
        text, wrong = self.run_training({"lehr": says(OURS), "dead": DIES, "killed": KILLED, "peer": says(result())})
        self.assertIn("| dead | did not run: exit code 1: RuntimeError: no kernel / for this |", text)
        self.assertIn("| killed | did not run: killed by SIGKILL, as when memory runs out |", text)
        self.assertRegex(text, r"\| peer \| 100 .*\| 2\.00 .*\| 25\.0 % \| 50 \|")
        self.assertEqual(wrong, [])

    def test_peers_are_kept_when_lehr_dies(self):
        text, wrong = self.run_training({"lehr": DIES, "peer": says(result())})
        self.assertIn("| lehr | did not run", text)
        self.assertRegex(text, r"\| peer \| 100 ")
        self.assertEqual(wrong, [])

    def test_other_work_is_an_error_and_all_rows_are_kept(self):
        text, wrong = self.run_training({"lehr": says(OURS), "other": says(result(losses=(9.0, 7.0))), "peer": says(result())})
        self.assertEqual(wrong, ["tiny fp32 other: losses differ by 1.0e+00, more than 1e-04"])
        self.assertRegex(text, r"\| other \| 100 .*too much \|")
        self.assertRegex(text, r"\| peer \| 100 ")

    def test_a_share_above_the_peak_is_an_error(self):
        text, wrong = self.run_training({"lehr": says(OURS | {"peak_flops": 1900.0})})
        self.assertIn("| 105.3 % |", text)
        self.assertIn("105.3 % of the peak", wrong[0])

    def test_a_contender_that_hangs_is_ended(self):
        found = contenders.run([sys.executable, "-c", "import time; time.sleep(60)"], timeout=0.5)
        self.assertEqual(str(found), "did not run: took more than 0.5 s")

    def test_options_name_what_can_run(self):
        for script, option in ((fsdp, "--dtypes=bf16"), (fsdp, "--presets=moe"), (compare, "--dtypes=amp"), (compare, "--peers=x")):
            errors = io.StringIO()
            with mock.patch.object(sys, "argv", ["bench", option]), contextlib.redirect_stderr(errors), \
                    self.assertRaises(SystemExit) as end:
                script.main()
            self.assertEqual(end.exception.code, 2)
            self.assertIn("choose from", errors.getvalue())


class Ranks(unittest.TestCase):
    """bench/fsdp.py, whose two contenders are programs that print or die."""

    def run_training(self, lehr, peer):
        class Made(fsdp.Rounds):
            def __init__(self):
                self.others = []

            def lehr(self, program, arguments, ranks=2):
                return self.measure(lehr)

            def peer(self, script, arguments):
                return self.measure(peer)

        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()), \
                contextlib.redirect_stderr(io.StringIO()):
            path = os.path.join(folder, "results.md")
            a = argparse.Namespace(rounds=2, steps=1, presets=["tiny"], dtypes=["fp32", "amp"])
            wrong = fsdp.training(report.Section(report.Report(path, "Title", "Note."), "Training"), Made(), a, folder)
            return Path(path).read_text(), wrong

    def test_the_results_of_one_are_kept_when_the_other_dies(self):
        text, wrong = self.run_training(says(OURS), DIES)
        self.assertRegex(text, r"\| tiny \| fp32 \| 200 \| did not run: exit code 1: RuntimeError")
        self.assertRegex(text, r"\| tiny \| amp \| 200 \|")
        self.assertEqual(wrong, [])

    def test_other_work_is_an_error_after_all_rows(self):
        text, wrong = self.run_training(says(OURS), says(result(norms=(3.0, 2.01))))
        self.assertEqual(wrong, ["tiny fp32: gradient norms differ by 5.0e-03, more than 1e-03"])
        self.assertRegex(text, r"\| tiny \| amp \| 200 \| 100 \| 2\.00 .*50\.0 % \| 25\.0 %")


class Neighbours(unittest.TestCase):
    def results(self, quiet, loaded, losses=(9.0, 8.0)):
        def one(ms, losses=(9.0, 8.0)):
            return result(losses, seq=10, batch=1, step_ms=ms, dtype="fp32")

        return {"quiet": {"lehr": one(quiet)}, "beside 2 busy": {"lehr": one(loaded, losses)}}

    def test_a_slow_step_counts(self):
        rows, wrong = neighbours.rows_of("tiny", [self.results([10, 10, 10], [10, 10, 100])])
        row = next(row for row in rows if row[3] == "beside 2 busy")
        self.assertEqual(row[4:6], ["250 (250 to 250)", "0.25 (0.25 to 0.25)"])
        fair = os.cpu_count() / (os.cpu_count() + 2)
        self.assertEqual(row[6:], [f"{fair:.2f}", f"{0.25 / fair:.2f}"])
        self.assertEqual(wrong, [])

    def test_load_does_not_change_the_bits(self):
        _, wrong = neighbours.rows_of("tiny", [self.results([10], [10], losses=(9.0, 8.0000001))])
        self.assertEqual(wrong, ["tiny lehr, beside 2 busy: other bits than on a quiet machine"])

    def test_busy_processes_are_there_and_end(self):
        with neighbours.busy(2) as each:
            self.assertEqual([process.poll() for process in each], [None, None])
        self.assertNotIn(None, [process.returncode for process in each])

    def test_a_quota_slows_a_program_down_or_says_why_it_cannot(self):
        spin = "import time\nbegin = time.time()\nwhile time.process_time() < 0.4: pass\nprint(time.time() - begin)"
        with quota.quota(0.25) as prefix:
            if isinstance(prefix, contenders.DidNotRun):
                self.assertIn("control group", str(prefix))
                return
            done = subprocess.run([*prefix, sys.executable, "-c", spin], capture_output=True, text=True, check=True)
        # 0.4 s of CPU time take 1.6 s, less what one period of 0.1 s may grant at once.
        self.assertGreater(float(done.stdout), 1.0)


class Pruning(unittest.TestCase):
    def test_what_further_training_gives_any_model_is_not_recovered(self):
        self.assertEqual(pruning.recovered(1.7, 1.6, control=1.5), "50 %")
        self.assertEqual(pruning.recovered(1.7, 1.5, control=1.5), "100 %")
        self.assertEqual(pruning.recovered(1.7, 1.6, control=1.7), "nothing was lost")


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
