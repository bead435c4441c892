#!/usr/bin/env python3
"""Tests the soak's own judgement: draws, trends, what is left behind, and its tables (standard library only)."""
import random, sys, tempfile, unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import long_run
import lost_rank
import soak
from disturbed_run import flip_a_bit
from soak_draws import AXES, KINDS, MOST_RANKS, SEQUENCES, Episode
from soak_faults import files_of
from trend import theil_sen


class Draws(unittest.TestCase):
    def test_a_seed_and_a_number_give_one_episode(self):
        for number in range(1, 200):
            one, again = Episode(7, number), Episode(7, number)
            self.assertEqual((str(one), one.faults, one.interval), (str(again), again.faults, again.interval))
        self.assertNotEqual([Episode(7, n).faults for n in range(9)], [Episode(8, n).faults for n in range(9)])

    def test_meshes_fit_the_model_and_the_batch(self):
        episodes = [Episode(1, number) for number in range(500)]
        for one in episodes:
            mesh = one.mesh
            self.assertLessEqual(mesh.ranks, MOST_RANKS)
            self.assertLessEqual(max(mesh.degree("tp"), mesh.degree("pp"), mesh.ep), 4)
            self.assertEqual(mesh.degree("dp_shard") * mesh.degree("cp") * mesh.degree("tp") % mesh.ep, 0)
            rows = mesh.degree("dp_replicate") * mesh.degree("dp_shard")
            self.assertGreaterEqual(SEQUENCES // rows, 2 if mesh.degree("pp") > 1 else 1)
            self.assertNotEqual(one.other_mesh().ranks, mesh.ranks)
        self.assertEqual({kind for one in episodes for kind in one.faults}, set(KINDS))
        for axis in AXES:
            self.assertTrue(any(one.mesh.degree(axis) > 1 for one in episodes), axis)
        self.assertTrue({1, 2, 4, 8} <= {one.mesh.ranks for one in episodes})


class Trend(unittest.TestCase):
    def series(self, slope, outliers=0.0):
        rng = random.Random(3)
        return [(x, 5000 + slope * x + rng.gauss(0, 50) + (10_000 if rng.random() < outliers else 0)) for x in range(2000)]

    def test_a_slope_is_found_and_peaks_do_not_matter(self):
        for outliers in (0, 0.1):
            slope, low, high = theil_sen(self.series(0.5, outliers))
            self.assertTrue(low < slope < high and abs(slope - 0.5) < 0.02, (slope, low, high))

    def test_noise_has_no_slope(self):
        _, low, high = theil_sen(self.series(0))
        self.assertTrue(low < 0 < high, (low, high))
        self.assertEqual(theil_sen([(x, 7) for x in range(50)]), (0, 0, 0))

    def test_what_is_level(self):
        self.assertTrue(long_run.is_level(0.1, -0.1, 0.3, 100_000))
        self.assertTrue(long_run.is_level(0.1, 0.05, 0.15, 10_000))  # a KiB in all
        self.assertFalse(long_run.is_level(0.8, 0.7, 0.9, 10_000))
        grows = [(step, 100_000 + step, 10, 4) for step in range(0, 3000, 10)]
        self.assertFalse(long_run.figures_of(grows)["level"])
        self.assertEqual(long_run.figures_of([(s, 9, 10 + s // 1500, 4) for s in range(0, 3000, 10)])["descriptors"], [10, 11])

    def test_a_long_run_that_grows_or_ends_is_a_problem(self):
        fine = {"level": True, "kib_per_1000_steps": 0, "descriptors": [9, 9], "threads": [4, 4]}
        self.assertEqual(soak.problems_of({"processes": {"rank 0": fine}}, 143, True, ""), [])
        self.assertEqual(len(soak.problems_of({"processes": {"rank 0": fine}}, 1, False, "lost")), 1)
        for change in ({"level": False}, {"descriptors": [9, 10]}, {"threads": [4, 5]}):
            self.assertEqual(len(soak.problems_of({"processes": {"rank 0": {**fine, **change}}}, 143, True, "")), 1)


class Leftovers(unittest.TestCase):
    def test_files_besides_those_that_are_promised_count(self):
        with tempfile.TemporaryDirectory() as folder:
            for name in ("checkpoints/step-4.damaged/a", "flight_record/rank_0.txt", "metrics.jsonl", ".metrics.jsonl.x1"):
                path = Path(folder, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text("1")
            self.assertEqual(files_of(folder, {"step-4.damaged"}), {"checkpoints", "metrics.jsonl", ".metrics.jsonl.x1"})
            self.assertIn("checkpoints/step-4.damaged", files_of(folder, ()))

    def test_one_bit_is_flipped(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "file")
            path.write_bytes(bytes(100))
            byte = flip_a_bit(path, random.Random(1), first=50)
            self.assertGreaterEqual(byte, 50)
            self.assertEqual(bin(int.from_bytes(path.read_bytes(), "big")).count("1"), 1)


class Figures(unittest.TestCase):
    RUNS = [{"episode": 1, "faults": [("kill", 2.0), ("kill", 4.0)], "useful": 6, "wall": 10, "problems": []},
            {"episode": 2, "faults": [("kill", 1.0), ("flip", 5.0)], "useful": 1, "wall": 10, "problems": ["bits"]}]

    def test_a_summary_counts_faults_and_goodput(self):
        summary = soak.summary_of(self.RUNS)
        self.assertEqual((summary["faults"], summary["failed"], summary["goodput"]), (4, [2], 0.35))
        self.assertEqual((summary["kinds"]["kill"]["goodput"], summary["kinds"]["kill"]["recovery_max"]), (0.6, 4.0))
        self.assertIn("| SIGKILL at a random instant | 3 | not in episodes 2 | 2.0 s | 4.0 s | 60 % |", soak.table_of(summary))
        self.assertIn("| disk full | 0 | all | - | - | - |", soak.table_of(summary))

    def test_the_stages_of_a_lost_rank_follow_each_other(self):
        lines = [(1.5, "lehr launch: starting all ranks again, restart 2 of 2"), (3.0, "03:35:01 training.device: cpu"),
                 (5.0, "03:35:03 resuming from checkpoints/step-3"), (9.0, "03:35:07 step 4/100  loss 7.0")]
        self.assertEqual(list(lost_rank.stages_of(lines, 1.0).values()), [0.5, 1.5, 2.0, 4.0])
        self.assertIn("| median | 0.5 s | 1.5 s | 2.0 s | 4.0 s | 8.0 s |", lost_rank.table_of([lost_rank.stages_of(lines, 1.0)]))


if __name__ == "__main__":
    unittest.main()
