#!/usr/bin/env python3
"""Tests that script/composition.py sees pairs without runs, and runs that are no evidence (standard library only)."""
import json
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "script"))
import composition

RULES = {
    "features": [
        {"name": "tp", "group": "Mesh", "head": "TP", "key": "p.tp", "is": "tensor parallelism"},
        {"name": "ep", "group": "Mesh", "head": "EP", "key": "p.ep", "is": "expert parallelism", "needs": ["moe"]},
        {"name": "moe", "group": "Model", "head": "MoE", "key": "m.name", "is": "experts", "one_of": "kinds"},
        {"name": "dense", "group": "Model", "head": "dense", "key": "m.name", "is": "none", "one_of": "kinds"},
        {"name": "dropout", "group": "Model", "head": "drop", "key": "m.dropout", "is": "masks", "never_with": ["tp"]}],
    "reasons": [
        {"message": "dropout: never", "features": ["dropout", "moe"], "always": True, "kind": "principle", "key": "m.dropout",
         "why": "Rows are sorted."},
        {"message": "sizes", "features": ["tp|ep"], "kind": "principle", "key": "p.tp", "why": "Sizes."}]}


def rules(changed=RULES):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "rules.json")
        path.write_text(json.dumps(changed))
        return composition.Rules(path)


def run(number, *features, **more):
    return {"seed": 7, "number": number, "family": "mixtral", "mesh": "pp1_dpr1_dps1_cp1_tp2_ep1", "then": "", "features": features,
            "result": "equal", "largest": "1.0e-15", "where": "loss 1"} | more


REFUSED = {"result": "refused", "error": "m.dropout: never with experts, dropout: never"}
RUNS = [run(1, "tp", "ep", "moe"), run(2, "tp", "dense"), run(3, "dense", "dropout"), run(4, "ep", "moe", "dropout", **REFUSED)]


class Composition(unittest.TestCase):
    def page(self, runs, random=(), of=None):
        return composition.written(of or rules(), list(runs), list(random), "abc123")

    def test_a_page_of_all_pairs_passes_its_check(self):
        page, problems = self.page(RUNS)
        self.assertEqual(problems, [])
        self.assertEqual(composition.check(rules(), page), [])
        self.assertIn("| `ep` | T1 |", page)
        self.assertIn("| `dropout` | – | R1 |", page)  # with tp by definition, with ep because it needs moe
        self.assertIn("commit abc123 and seed 7", page)

    def test_a_pair_without_a_run_is_named(self):
        self.assertEqual(self.page(RUNS[1:])[1][0], "ep with tp: no run with both equalled one device")
        self.assertIn("dropout with moe: no run was refused for R1", self.page(RUNS[:3])[1])

    def test_random_runs_count_too(self):
        page, problems = self.page(RUNS[1:], RUNS[:1])
        self.assertEqual(problems, [])
        self.assertIn("Of 1 random runs", page)

    def test_a_refusal_for_a_size_is_no_evidence(self):
        sizes = [run(1, "tp", "ep", "moe", result="refused", error="p.tp: sizes")]
        self.assertIn("ep with tp: no run with both equalled one device", self.page(RUNS[1:], sizes)[1])

    def test_a_run_that_differs_stops_the_page(self):
        page, problems = self.page([*RUNS, run(5, "tp", result="different", largest="1.0e-03")])
        self.assertIsNone(page)
        self.assertEqual(problems, ["draw 5 of seed 7 differs from one device: loss 1 by 1.0e-03"])

    def test_an_unlisted_refusal_stops_the_page(self):
        problems = self.page([*RUNS, run(5, "tp", result="refused", error="out of luck")])[1]
        self.assertIn("for a reason that is not listed: out of luck", problems[0])

    def test_an_equal_run_that_should_be_refused_is_named(self):
        problems = self.page([*RUNS, run(5, "moe", "dropout")])[1]
        self.assertIn("dropout with moe: a run was equal, but the rules say R1", problems)

    def test_a_new_feature_fails_until_runs_cover_it(self):
        new = RULES | {"features": [*RULES["features"], {"name": "cp", "group": "Mesh", "head": "CP", "key": "p.cp", "is": "x"}]}
        problems = composition.check(rules(new), self.page(RUNS)[0])
        self.assertIn("cp with tp: expected runs that equalled one device, found nothing", problems)

    def test_a_feature_that_is_gone_fails(self):
        old = RULES | {"features": RULES["features"][:-1], "reasons": RULES["reasons"][1:]}
        problems = composition.check(rules(old), self.page(RUNS)[0])
        self.assertIn("the page has the feature dropout, which the rules no longer have", problems)

    def test_a_cell_edited_by_hand_fails(self):
        page = self.page(RUNS)[0]
        self.assertEqual(composition.check(rules(), page.replace("| `ep` | T1 |", "| `ep` | T0 |")),
                         ["ep with tp: expected runs that equalled one device, found T0"])
        self.assertIn("dropout with tp: expected – by the rules, found R1",
                      composition.check(rules(), page.replace("| `dropout` | – | R1 |", "| `dropout` | R1 | R1 |")))


if __name__ == "__main__":
    unittest.main()
