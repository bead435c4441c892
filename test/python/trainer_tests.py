"""Tests of lehr.Trainer."""
import json
import math
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from fractions import Fraction

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

    def test_gradients_changed_by_a_hook_are_clipped(self):
        trainer = lehr.Trainer(tiny_run(self.folder), {
            "optimizer.name": "sgd", "optimizer.lr": 1.0, "optimizer.weight_decay": 0.0, "training.max_norm": 0.5,
            "checkpoint.enable": False})
        trainer.on_gradients_ready(lambda step: [p.grad.fill_(1.0) for p in trainer.model.parameters()])
        before = [parameter.detach().clone() for parameter in trainer.model.parameters()]
        step = trainer.step()
        count = sum(parameter.numel() for parameter in before)
        self.assertAlmostEqual(step.grad_norm, math.sqrt(count), delta=1e-5 * math.sqrt(count))
        moved = math.sqrt(sum((new - old).square().sum().item()
                              for old, new in zip(before, trainer.model.parameters())))
        self.assertAlmostEqual(moved, 0.5 * step.lr, delta=1e-4 * step.lr)

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

    def test_a_python_loss_keeps_multi_token_prediction(self):
        changes = {"training.mtp_loss_coef": 0.3, "training.steps": 1, "lr_scheduler.warmup_steps": 0,
                   "training.dtype": "float64", "checkpoint.enable": False}
        model = {"name": "deepseek_v3", "flavor": "debugmodel", "args": {"num_hidden_layers": 2}}
        expected = list(lehr.Trainer(tiny_run(self.folder / "cpp", model=model), changes))
        found = list(lehr.Trainer(tiny_run(self.folder / "python", model=model), changes,
                                  loss=lambda output, batch: output.nll.sum()))
        self.assertAlmostEqual(found[0].grad_norm, expected[0].grad_norm, delta=1e-10)

    def test_a_loss_beside_a_teacher_is_refused(self):
        with self.assertRaisesRegex(lehr.Error, "distillation.teacher: .*`loss` would not be called"):
            lehr.Trainer(tiny_run(self.folder), {"distillation.teacher": str(self.folder)}, loss=lambda o, b: o.nll.sum())

    def test_a_loss_that_is_not_a_scalar_is_refused(self):
        for loss, expected in [(lambda output, batch: output.nll, "^loss: expected a scalar"),
                               (lambda output, batch: 3.0, "^loss: expected a scalar tensor, .*found float"),
                               (lambda output, batch: None, "^loss: expected a scalar tensor, .*found NoneType")]:
            with lehr.Trainer(tiny_run(self.folder), loss=loss) as trainer:
                with self.assertRaisesRegex((lehr.Error, TypeError), expected):
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

    def test_labels_and_positions_of_python_data_stay_inside_documents(self):
        ids = torch.randint(0, VOCAB, (4, 32), generator=torch.Generator().manual_seed(1))
        documents = torch.tensor([0] * 10 + [1] * 15 + [-1] * 7).expand(4, 32).contiguous()
        labels = torch.cat([ids[:, 1:], torch.full((4, 1), -100)], dim=1)
        labels[:, [9, *range(24, 32)]] = -100
        positions = torch.tensor([*range(10), *range(15), *[0] * 7]).expand(4, 32).contiguous()
        seen = {}

        def loss(output, batch):
            seen.update(batch)
            return output.nll.sum()

        changes = {"training.dtype": "float64", "training.local_batch_size": 4, "checkpoint.enable": False}
        given = {"input_ids": ids, "document_ids": documents}
        found = lehr.Trainer(tiny_run(self.folder / "a"), changes, data=lambda step: given, loss=loss).step().loss
        self.assertTrue(torch.equal(seen["labels"], labels))
        self.assertTrue(torch.equal(seen["position_ids"], positions))
        whole = given | {"labels": labels, "position_ids": positions}
        self.assertEqual(lehr.Trainer(tiny_run(self.folder / "b"), changes, data=lambda step: whole).step().loss, found)

    def test_data_that_are_no_batch_are_refused(self):
        ids = torch.zeros(4, 32, dtype=torch.int64)
        for given, expected in [
            ([[1, 2]], "data: expected input_ids .*, found list"),
            ({"input_ids": [[1, 2]]}, "data: input_ids: expected a tensor .*, found list"),
            ({"labels": ids}, "data: expected input_ids .*, found none"),
            (ids[0], "data: expected input_ids .*, found 1 dimensions"),
            ({"input_ids": ids, "attention_mask": ids}, "data: returned 'attention_mask', which is unknown"),
        ]:
            with self.subTest(expected):
                trainer = lehr.Trainer(tiny_run(self.folder / "out"), {"checkpoint.enable": False}, data=lambda step: given)
                with trainer, self.assertRaisesRegex((TypeError, ValueError, lehr.Error), expected):
                    trainer.step()

    def test_arguments_that_are_no_functions_are_refused_at_once(self):
        with self.assertRaisesRegex(TypeError, "loss: expected a function .*, found str"):
            lehr.Trainer(tiny_run(self.folder), loss="cross_entropy")
        with self.assertRaisesRegex(TypeError, "data: expected a function of the step, found generator"):
            lehr.Trainer(tiny_run(self.folder), data=(step for step in range(3)))
        trainer = lehr.Trainer(tiny_run(self.folder))
        with self.assertRaisesRegex(TypeError, "on_step_end: expected a function, found int"):
            trainer.on_step_end(3)
        with self.assertRaisesRegex(TypeError, "checkpoints hold its state"):
            pickle.dumps(trainer)

    def test_values_of_a_config_are_checked_with_their_key(self):
        with self.assertRaisesRegex(TypeError, "optimizer.lr: .*found NoneType; leave out"):
            lehr.Trainer(tiny_run(self.folder), {"optimizer": {"lr": None}})
        with self.assertRaisesRegex(TypeError, "overrides: expected a dict .*found list"):
            lehr.Trainer(tiny_run(self.folder), [("optimizer.lr", 1)])

        class Half(float):  # prints, as numpy's float64 does, no number of TOML
            __repr__ = __str__ = lambda self: f"half({float(self)})"

        self.assertEqual(overrides_of({"a": {"b": Half(0.5)}, "c": Fraction(1, 4)}), {"a.b": "0.5", "c": "0.25"})

    def test_after_an_exception_a_run_can_only_be_closed(self):
        broken = set()

        def data(step):
            if step in broken:
                broken.clear()
                raise ConnectionError("once")
            return torch.randint(0, VOCAB, (4, 32), generator=torch.Generator().manual_seed(step))

        expected = [step.loss for step in lehr.Trainer(tiny_run(self.folder / "whole"), data=data)]
        broken.add(1)
        trainer = lehr.Trainer(tiny_run(self.folder / "failed"), {"checkpoint.interval": 1}, data=data)
        trainer.step()
        with self.assertRaises(ConnectionError):
            trainer.step()
        for call in (trainer.step, trainer.save):
            with self.assertRaisesRegex(lehr.Error, "ended with an exception after step 1; close"):
                call()
        trainer.close()
        resumed = lehr.Trainer(tiny_run(self.folder / "failed"), {"checkpoint.interval": 1}, data=data)
        self.assertEqual([step.loss for step in resumed], expected[1:])

    def test_a_hook_cannot_change_the_run_under_its_step(self):
        for name in ("step", "save", "close"):
            with self.subTest(name), lehr.Trainer(tiny_run(self.folder)) as trainer:
                trainer.on_step_begin(lambda step: getattr(trainer, name)())
                with self.assertRaisesRegex(lehr.Error, rf"{name}\(\) was called while the run was busy"):
                    trainer.step()

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
        code = ("changes = {'training.steps': 100000, 'checkpoint.interval': 100000}\n"
                "trainer = lehr.Trainer(tiny_run(sys.argv[1]), changes)\n"
                "trainer.on_step_end(lambda step: print(step.step, flush=True))\n"
                "try:\n    trainer.run()\nexcept KeyboardInterrupt:\n    print('interrupted', trainer.completed_steps)\n")
        exit_code, output, _ = self.interrupted(code, self.folder / "out")
        self.assertEqual(exit_code, 0)
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
            with self.assertRaisesRegex(lehr.Error, r"another run of this process uses .*close\(\)"):
                lehr.Trainer(tiny_run(self.folder))
            model = trainer.model
        with self.assertRaisesRegex(lehr.Error, "is closed"):
            trainer.step()
        self.assertEqual(len(model.tokenizer.encode(model.generate("a", 2, stop_ids=[]))) > 0, True)
        del model
        finished = lehr.Trainer(tiny_run(self.folder))
        self.assertEqual(finished.run().step, 5)
        self.assertIsNone(lehr.Trainer(tiny_run(self.folder)).run())  # no step is left, and the folder is free
