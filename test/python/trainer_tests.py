"""Tests of lehr.Trainer."""
import json
import os
import signal
import subprocess
import sys
import threading
import time

import torch
from torch.nn.functional import cross_entropy

import lehr
from lehr._config import overrides_of
from support import VOCAB, WithFolder, tiny_run


def metrics_of(folder, name):
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [line[name] for line in map(json.loads, lines) if name in line]


class Trainers(WithFolder):
    def test_has_the_bits_of_the_program(self):
        (self.folder / "run.toml").write_text("")
        arguments = [f"--{key}={value}" for key, value in overrides_of(tiny_run(self.folder / "program")).items()]
        subprocess.run([os.environ["LEHR_BUILT"], "train", self.folder / "run.toml", "--quiet", *arguments], check=True)
        steps = list(lehr.Trainer(tiny_run(self.folder / "module")))
        self.assertEqual([step.step for step in steps], [1, 2, 3, 4, 5])
        for name in ("loss", "grad_norm", "lr"):
            expected = metrics_of(self.folder / "program", name)
            self.assertEqual([step.metrics[name] for step in steps], expected, name)
            self.assertEqual(metrics_of(self.folder / "module", name), expected, name)
        self.assertEqual(*((self.folder / run / "checkpoints/step-5/model.safetensors").read_bytes()
                           for run in ("program", "module")))

    def test_hooks_run_in_order_and_see_gradients(self):
        trainer = lehr.Trainer(tiny_run(self.folder), {"training.max_norm": 0.01, "checkpoint.enable": False})
        calls = []
        trainer.on_step_begin(lambda step: calls.append(("begin", step)))
        trainer.on_step_end(lambda step: calls.append(("end", step.step, step.loss)))

        @trainer.on_gradients_ready
        def norm(step):
            squares = sum(parameter.grad.square().sum() for parameter in trainer.model.parameters())
            calls.append(("norm", step, squares.sqrt().item()))

        first = next(iter(trainer))
        self.assertEqual([call[:2] for call in calls], [("begin", 1), ("norm", 1), ("end", 1)])
        self.assertEqual(calls[2][2], first.loss)
        self.assertAlmostEqual(calls[1][2], first.grad_norm, delta=1e-5 * first.grad_norm)

    def test_gradients_changed_by_a_hook_are_those_of_the_update(self):
        trainer = lehr.Trainer(tiny_run(self.folder), {
            "optimizer.name": "sgd", "optimizer.weight_decay": 0.0, "checkpoint.enable": False})
        trainer.on_gradients_ready(lambda step: [p.grad.zero_() for p in trainer.model.parameters()])
        before = [parameter.detach().clone() for parameter in trainer.model.parameters()]
        trainer.step()
        for old, new in zip(before, trainer.model.parameters()):
            self.assertTrue(torch.equal(old, new))

    def test_a_python_loss_trains_like_the_same_loss_in_cpp(self):
        def loss(output, batch):
            return cross_entropy(output.logits.flatten(0, 1), batch["labels"].flatten(), reduction="sum")

        changes = {"training.dtype": "float64", "checkpoint.enable": False}
        expected = list(lehr.Trainer(tiny_run(self.folder / "cpp"), changes))
        found = list(lehr.Trainer(tiny_run(self.folder / "python"), changes, loss=loss))
        for a, b in zip(expected, found, strict=True):
            self.assertAlmostEqual(a.loss, b.loss, delta=1e-10)
            self.assertAlmostEqual(a.grad_norm, b.grad_norm, delta=1e-10)

    def test_a_python_loss_recomputes_no_more_than_the_same_loss_in_cpp(self):
        def said(loss):
            code = ("import lehr, sys\nsys.path.insert(0, sys.argv[2])\nfrom support import tiny_run\n"
                    "changes = {'training.steps': 2, 'checkpoint.enable': False}\n"
                    f"lehr.Trainer(tiny_run(sys.argv[1]), changes, loss={loss}, quiet=False).run()\n")
            printed = subprocess.run([sys.executable, "-c", code, self.folder, os.path.dirname(__file__)], check=True,
                                     capture_output=True, text=True).stderr
            return [line.split("recompute")[1].split(",")[0] for line in printed.splitlines() if " recompute " in line]

        expected = said(None)
        self.assertEqual(len(expected), 1)
        self.assertEqual(said("lambda output, batch: output.nll.sum()"), expected)

    def test_a_loss_that_is_not_a_scalar_is_refused(self):
        trainer = lehr.Trainer(tiny_run(self.folder), loss=lambda output, batch: output.nll)
        with self.assertRaisesRegex(lehr.Error, "^loss: expected a scalar"):
            trainer.step()

    def test_python_data_are_a_function_of_the_step(self):
        asked = []

        def data(step):
            asked.append(step)
            return torch.randint(0, VOCAB, (4, 32), generator=torch.Generator().manual_seed(step))

        whole = list(lehr.Trainer(tiny_run(self.folder / "whole"), data=data))
        self.assertEqual(asked, [0, 1, 2, 3, 4])
        with lehr.Trainer(tiny_run(self.folder / "parts"), data=data) as trainer:
            trainer.step(), trainer.step()
            trainer.save()
        asked.clear()
        resumed = list(lehr.Trainer(tiny_run(self.folder / "parts"), data=data))
        self.assertEqual(asked, [2, 3, 4])
        self.assertEqual([step.loss for step in resumed], [step.loss for step in whole[2:]])

    def test_labels_of_python_data_are_the_next_ids(self):
        ids = torch.randint(0, VOCAB, (4, 32), generator=torch.Generator().manual_seed(1))
        trainer = lehr.Trainer(tiny_run(self.folder), {"training.dtype": "float64"}, data=lambda step: ids)
        with torch.no_grad():
            expected = trainer.model(ids[:, :-1].contiguous(), targets=ids[:, 1:].contiguous()).loss.item()
        self.assertAlmostEqual(trainer.step().loss, expected, delta=1e-10)

    def test_data_of_a_wrong_shape_are_refused(self):
        trainer = lehr.Trainer(tiny_run(self.folder), data=lambda step: torch.zeros(4, 8, dtype=torch.int64))
        expected = r"^data: input_ids: expected int64 of shape \(4, 32\).*found Long of 4, 8"
        with self.assertRaisesRegex(lehr.Error, expected):
            trainer.step()

    def test_raises_what_a_function_raised(self):
        trainer = lehr.Trainer(tiny_run(self.folder))
        trainer.on_step_begin(lambda step: {}["missing"])
        with self.assertRaisesRegex(KeyError, "missing"):
            trainer.step()

    def test_errors_name_the_place_in_the_file(self):
        file = self.folder / "run.toml"
        file.write_text("[training]\nseq_length = 3\n")
        with self.assertRaisesRegex(lehr.Error, f"{file}:2:1: training.seq_length: unknown key; did you mean"):
            lehr.Trainer(file)

    def test_the_gil_is_free_during_a_step(self):
        trainer = lehr.Trainer(tiny_run(self.folder), {
            "training.seq_len": 256, "training.global_batch_size": 64, "checkpoint.enable": False})
        ticks, done = [], threading.Event()

        def tick():
            while not done.is_set():
                ticks.append(time.monotonic())
                time.sleep(0.001)

        thread = threading.Thread(target=tick)
        thread.start()
        start = time.monotonic()
        trainer.step()
        end = time.monotonic()
        done.set()
        thread.join()
        inside = sum(start < at < end for at in ticks)
        self.assertGreater(inside, 3, f"in {end - start:.3f} s")

    def test_ctrl_c_saves_and_raises(self):
        code = ("import lehr, signal, sys\nsys.path.insert(0, sys.argv[2])\nfrom support import tiny_run\n"
                "changes = {'training.steps': 100000, 'checkpoint.interval': 100000}\n"
                "trainer = lehr.Trainer(tiny_run(sys.argv[1]), changes)\n"
                "trainer.on_step_end(lambda step: print(step.step, flush=True))\n"
                "try:\n    trainer.run()\nexcept KeyboardInterrupt:\n    print('interrupted', trainer.completed_steps)\n")
        child = subprocess.Popen([sys.executable, "-c", code, self.folder / "out", os.path.dirname(__file__)],
                                 stdout=subprocess.PIPE, text=True)
        child.stdout.readline()  # it trains
        child.send_signal(signal.SIGINT)
        output = child.communicate(timeout=60)[0]
        self.assertEqual(child.returncode, 0)
        step = int(output.split("interrupted ")[1])
        self.assertTrue((self.folder / f"out/checkpoints/step-{step}/model.safetensors").exists(), step)

    def test_ctrl_c_in_a_hook_is_raised_after_the_step(self):
        trainer = lehr.Trainer(tiny_run(self.folder))
        trainer.on_gradients_ready(lambda step: os.kill(os.getpid(), signal.SIGINT))
        with self.assertRaises(KeyboardInterrupt):
            trainer.step()
        self.assertEqual(trainer.completed_steps, 1)
        self.assertIs(signal.getsignal(signal.SIGINT), signal.default_int_handler)

    def test_a_closed_run_frees_its_folder(self):
        with lehr.Trainer(tiny_run(self.folder)) as trainer:
            with self.assertRaises(lehr.Error):
                lehr.Trainer(tiny_run(self.folder))  # one run at a time
        with self.assertRaisesRegex(lehr.Error, "is closed"):
            trainer.step()
        finished = lehr.Trainer(tiny_run(self.folder))
        self.assertEqual(finished.run().step, 5)
        self.assertIsNone(lehr.Trainer(tiny_run(self.folder)).run())  # no step is left, and the folder is free
