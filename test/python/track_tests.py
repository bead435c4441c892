"""Tests of lehr.track, with stand-ins for the packages of the trackers (docs/metric.md names the real ones tried)."""
import fcntl
import json
import math
import os
import subprocess
import sys
import threading
import time
import types
from pathlib import Path
from unittest import mock

import lehr
from support import WithFolder, tiny_run

CONFIG = "[training]\nsteps = 4\n[[data.datasets]]\npath = \"a.txt\"\n"


class FakeWandb(types.SimpleNamespace):
    """Records what W&B would get."""

    def __init__(self):
        super().__init__(inits=[], rows=[], ends=[], configs=[])

    def init(self, **given):
        self.inits.append(given)
        return types.SimpleNamespace(id=given["id"] or "new", log=self.log, finish=lambda exit_code: self.ends.append(exit_code),
                                     config=types.SimpleNamespace(update=lambda config, **_: self.configs.append(config)))

    def log(self, values, step):
        self.rows.append((step, values))


class FakeMLflow(types.SimpleNamespace):
    """Records what MLflow would get."""

    def __init__(self):
        super().__init__(rows=[], params={}, states=[])
        self.entities = types.SimpleNamespace(Metric=lambda key, value, _, step: (step, key, value), Param=lambda key, value: (key, value))
        self.MlflowClient = lambda: self

    def get_experiment_by_name(self, name):
        return None

    def create_experiment(self, name):
        return name

    def create_run(self, experiment, run_name):
        self.states.append((experiment, run_name))
        return types.SimpleNamespace(info=types.SimpleNamespace(run_id="of_mlflow"))

    def log_batch(self, run, metrics=(), params=()):
        assert run == "of_mlflow" and len(metrics) <= 1000 and len(params) <= 100
        self.rows += metrics
        self.params |= dict(params)

    def update_run(self, run, status):
        self.states.append((run, status))

    def set_terminated(self, run, status):
        self.states.append((run, status))


class Tracks(WithFolder):
    def setUp(self):
        super().setUp()
        self.run = self.folder / "run"
        self.run.mkdir()
        (self.run / "config.toml").write_text(CONFIG)
        self.wandb, self.mlflow = FakeWandb(), FakeMLflow()
        patch = mock.patch.dict(sys.modules, wandb=self.wandb, mlflow=self.mlflow)
        patch.start()
        self.addCleanup(patch.stop)

    def append(self, *lines):
        with open(self.run / "metrics.jsonl", "a") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)

    def steps(self, first, last):
        return [{"step": step, "loss": 1.0 / step} for step in range(first, last + 1)]

    def locked(self):
        """Holds the lock of the run, as the run does."""
        file = os.open(self.run / ".lock", os.O_RDWR | os.O_CREAT)
        self.addCleanup(os.close, file)
        fcntl.flock(file, fcntl.LOCK_EX)
        return file

    def test_a_step_is_logged_once_with_its_validation(self):
        self.append(*self.steps(1, 2), {"step": 2, "validation_loss": 0.6}, {"step": 3, "loss": None, "lr": 0.1})
        self.assertEqual(lehr.track(self.run, to="wandb", project="mine"), 3)
        self.assertEqual(self.wandb.rows[:2], [(1, {"loss": 1.0}), (2, {"loss": 0.5, "validation_loss": 0.6})])
        step, values = self.wandb.rows[2]
        self.assertTrue(step == 3 and math.isnan(values["loss"]) and values["lr"] == 0.1, values)
        self.assertEqual(self.wandb.configs, [{"training": {"steps": 4}, "data": {"datasets": [{"path": "a.txt"}]}}])
        self.assertEqual(self.wandb.inits, [{"project": "mine", "name": "run", "id": None, "resume": None}])
        self.assertEqual(self.wandb.ends, [1], "a run that was stopped")

    def test_a_later_call_continues_the_same_run(self):
        self.append(*self.steps(1, 2))
        lehr.track(self.run, to="wandb")
        self.assertEqual(lehr.track(self.run, to="wandb"), 2)
        self.assertEqual(len(self.wandb.inits), 1, "nothing is new, so nothing is opened")
        self.append(*self.steps(3, 4))
        self.assertEqual(lehr.track(self.run, to="wandb"), 4)
        self.assertEqual([step for step, _ in self.wandb.rows], [1, 2, 3, 4])
        self.assertEqual((self.wandb.inits[1]["id"], self.wandb.inits[1]["resume"]), ("new", "allow"))
        self.assertEqual(self.wandb.ends, [1, 0])
        self.assertEqual(json.loads((self.run / "tracked_wandb.json").read_text()), {"run": "new", "step": 4})

    def test_trackers_do_not_share_what_they_have(self):
        self.append(*self.steps(1, 4))
        lehr.track(self.run, to="wandb")
        self.assertEqual(lehr.track(self.run, to="mlflow", project="mine"), 4)
        self.assertEqual([step for step, _, _ in self.mlflow.rows], [1, 2, 3, 4])
        self.assertEqual(self.mlflow.params, {"training.steps": "4", "data.datasets.0.path": "a.txt"})
        self.assertEqual(self.mlflow.states, [("mine", "run"), ("of_mlflow", "FINISHED")])
        self.assertEqual({path.name for path in self.run.glob("tracked*")}, {"tracked_wandb.json", "tracked_mlflow.json"})

    def test_requests_stay_below_mlflows_limits(self):
        (self.run / "config.toml").write_text("".join(f"key{i} = {i}\n" for i in range(250)))
        self.append(*({"step": step, **{f"m{i}": 1 for i in range(30)}} for step in range(1, 121)))
        lehr.track(self.run, to="mlflow")
        self.assertEqual((len(self.mlflow.params), len(self.mlflow.rows)), (250, 120 * 30))
        self.assertEqual(self.mlflow.states[-1], ("of_mlflow", "KILLED"), "the number of steps is unknown")

    def test_the_last_step_of_a_running_run_waits_for_its_validation(self):
        self.append(*self.steps(1, 2))
        lock = self.locked()
        self.assertEqual(lehr.track(self.run, to="mlflow"), 1)
        self.assertEqual(self.mlflow.states, [("Default", "run")], "it is not over")
        self.append({"step": 2, "validation_loss": 0.6})
        fcntl.flock(lock, fcntl.LOCK_UN)
        self.assertEqual(lehr.track(self.run, to="mlflow"), 2)
        self.assertEqual(self.mlflow.rows, [(1, "loss", 1.0), (2, "loss", 0.5), (2, "validation_loss", 0.6)])
        self.assertEqual(self.mlflow.states[1:], [("of_mlflow", "RUNNING"), ("of_mlflow", "KILLED")])

    def test_half_a_line_and_odd_lines_are_left(self):
        self.append(*self.steps(1, 2), ["a list"], {"loss": 1}, {"step": "3"})
        with open(self.run / "metrics.jsonl", "a") as file:
            file.write("notes\n{\"step\": 3, \"lo")
        self.assertEqual(lehr.track(self.run, to="wandb"), 2)
        with open(self.run / "metrics.jsonl", "a") as file:
            file.write("ss\": 0.5}\n")
        self.assertEqual(lehr.track(self.run, to="wandb"), 3)

    def test_a_resumed_run_repeats_no_step(self):
        lock = self.locked()
        self.append(*self.steps(1, 3))
        result = []
        thread = threading.Thread(daemon=True, target=lambda: result.append(lehr.track(self.run, to="wandb", follow=True, interval=0.02)))
        thread.start()
        while not self.wandb.rows:
            time.sleep(0.01)
        beside = self.run / "beside"  # the run was killed, and resumes from step 2
        beside.write_text("".join(json.dumps(line) + "\n" for line in self.steps(1, 2)))
        beside.replace(self.run / "metrics.jsonl")
        self.append(*self.steps(3, 4))
        fcntl.flock(lock, fcntl.LOCK_UN)
        thread.join(20)
        self.assertEqual(result, [4])
        self.assertEqual([step for step, _ in self.wandb.rows], [1, 2, 3, 4])
        self.assertEqual(self.wandb.ends, [0])

    def test_following_ends_when_the_run_is_killed(self):
        lock = self.locked()
        self.append(*self.steps(1, 2))
        thread = threading.Thread(daemon=True, target=lehr.track, args=(self.run, "wandb"), kwargs={"follow": True, "interval": 0.02})
        thread.start()
        while not self.wandb.rows:
            time.sleep(0.01)
        fcntl.flock(lock, fcntl.LOCK_UN)
        thread.join(20)
        self.assertEqual(([step for step, _ in self.wandb.rows], self.wandb.ends), ([1, 2], [1]))

    def test_a_run_is_followed_from_before_its_begin_to_its_end(self):
        folder = self.folder / "trained"
        result = []
        thread = threading.Thread(daemon=True, target=lambda: result.append(lehr.track(folder, to="wandb", follow=True, interval=0.02)))
        thread.start()
        logged = []
        trainer = lehr.Trainer(tiny_run(folder))
        trainer.on_step_end(lambda step: logged.append((step.step, step.metrics)))  # the other way, without lehr.track
        trainer.run()
        thread.join(60)
        self.assertEqual(result, [5])
        self.assertEqual([(step, values["loss"]) for step, values in self.wandb.rows],
                         [(step, metrics["loss"]) for step, metrics in logged])
        self.assertEqual(self.wandb.configs[0]["training"]["steps"], 5)
        self.assertEqual(self.wandb.ends, [0])

    def test_wrong_use_says_what_to_do(self):
        with self.assertRaisesRegex(ValueError, "expected \"wandb\" or \"mlflow\", found 'tensorboard'"):
            lehr.track(self.run, to="tensorboard")
        with self.assertRaisesRegex(FileNotFoundError, "holds no metrics.jsonl; expected the folder of a run"):
            lehr.track(self.folder, to="wandb")
        self.append(*self.steps(1, 1))
        with mock.patch.dict(sys.modules, wandb=None), self.assertRaisesRegex(ModuleNotFoundError, "pip install wandb"):
            lehr.track(self.run, to="wandb")


class OnTheCommandLine(WithFolder):
    def test_the_module_is_a_program_and_the_function_stays_one(self):
        (self.folder / "wandb.py").write_text(
            "from types import SimpleNamespace as Fake\n"
            "def init(**_):\n"
            "    return Fake(id='x', log=lambda values, step: print('logged', step, values['loss']),\n"
            "                finish=lambda exit_code: None, config=Fake(update=lambda *_, **__: None))\n")
        (self.folder / "metrics.jsonl").write_text('{"step": 1, "loss": 2.5}\n')
        environment = {**os.environ, "PYTHONPATH": f"{self.folder}{os.pathsep}{os.environ['PYTHONPATH']}"}

        def run(*arguments):
            return subprocess.run([sys.executable, *map(str, arguments)], capture_output=True, text=True, env=environment)

        done = run("-m", "lehr.track", self.folder, "--to", "wandb")
        self.assertEqual(done.stdout, f"logged 1 2.5\n{self.folder}: logged up to step 1 to wandb\n", done.stderr)
        self.assertEqual(done.stderr, "")
        done = run("-m", "lehr.track", Path("nowhere"), "--to", "wandb")
        self.assertEqual((done.returncode, done.stderr),
                         (1, "lehr.track: nowhere: holds no metrics.jsonl; expected the folder of a run (job.dump_folder)\n"))
        done = run("-c", "import lehr.track; import lehr; print(lehr.track.__name__)")
        self.assertEqual(done.stdout, "track\n", done.stderr)
