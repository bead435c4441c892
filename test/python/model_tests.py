"""Tests of lehr.load, models and tokenizers."""
import os

import torch
from torch.nn.functional import cross_entropy

import lehr
from support import FAMILIES, VOCAB, WithFolder, plain_logits, random_model


def ids_of(rows=2, tokens=12):
    return torch.randint(0, VOCAB, (rows, tokens), generator=torch.Generator().manual_seed(1))


def copies_of(model):
    return {name: parameter.detach().clone().requires_grad_() for name, parameter in model.named_parameters()}


class Models(WithFolder):
    def test_logits_and_gradients_equal_the_written_out_model(self):
        for family in FAMILIES:
            with self.subTest(family=family):
                model = lehr.load(random_model(self.folder / family, family), dtype=torch.float64)
                ids, targets = ids_of()[:, :-1].contiguous(), ids_of()[:, 1:].contiguous()
                targets[0, :3] = -100
                output = model(ids, targets=targets)
                output.loss.backward()
                copies = copies_of(model)
                expected = plain_logits(copies, model.config, ids)
                loss = cross_entropy(expected.flatten(0, 1), targets.flatten())
                loss.backward()
                torch.testing.assert_close(output.logits, expected, rtol=1e-10, atol=1e-10)
                torch.testing.assert_close(output.loss, loss, rtol=1e-12, atol=1e-12)
                for name, parameter in model.named_parameters():
                    torch.testing.assert_close(parameter.grad, copies[name].grad, rtol=1e-8, atol=1e-10, msg=name)

    def test_gradients_flow_through_logits(self):
        model = lehr.load(random_model(self.folder, "qwen3"), dtype=torch.float64)
        model(ids_of()).logits.square().sum().backward()
        copies = copies_of(model)
        plain_logits(copies, model.config, ids_of()).square().sum().backward()
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(parameter.grad, copies[name].grad, rtol=1e-8, atol=1e-8, msg=name)

    def test_parameters_changed_in_python_are_those_of_cpp(self):
        model = lehr.load(random_model(self.folder, "llama3"), dtype=torch.float64)
        before = model(ids_of()).logits
        with torch.no_grad():
            dict(model.named_parameters())["lm_head.lm_head.default.weight"].mul_(2)
        torch.testing.assert_close(model(ids_of()).logits, 2 * before)
        model.save(self.folder / "doubled", torch.float64)
        torch.testing.assert_close(lehr.load(self.folder / "doubled", dtype=torch.float64)(ids_of()).logits, 2 * before)

    def test_an_optimizer_of_torch_trains_it(self):
        model = lehr.load(random_model(self.folder, "qwen2"))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        losses = []
        for _ in range(5):
            loss = model(ids_of()[:, :-1].contiguous(), targets=ids_of()[:, 1:].contiguous()).loss
            model.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        self.assertLess(losses[-1], losses[0] - 0.5)

    def test_padding_and_documents_hide_tokens(self):
        model = lehr.load(random_model(self.folder, "qwen3"), dtype=torch.float64)
        ids = ids_of(1, 8)
        second = ids[:, 4:].contiguous()
        alone = model(second).logits
        positions = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3]])
        packed = model(ids, position_ids=positions, document_ids=torch.tensor([[0] * 4 + [1] * 4]))
        torch.testing.assert_close(packed.logits[:, 4:], alone)
        padded = model(ids, position_ids=positions, attention_mask=torch.tensor([[0] * 4 + [1] * 4]))
        torch.testing.assert_close(padded.logits[:, 4:], alone)

    def test_generation_is_greedy_at_temperature_zero(self):
        model = lehr.load(random_model(self.folder, "qwen3"), dtype=torch.float64)
        ids, seen = [5, 6, 7], []
        new = model.generate(ids, 4, temperature=0, stop_ids=[], on_token=seen.append)
        self.assertEqual(new, seen)
        for token in new:
            self.assertEqual(model(torch.tensor([ids])).logits[0, -1].argmax().item(), token)
            ids = ids + [token]
        self.assertIsInstance(model.generate("text", 3), str)
        with self.assertRaises(ZeroDivisionError):
            model.generate([1], 4, on_token=lambda token: 1 / 0)

    def test_train_mode_is_kept_by_generation(self):
        model = lehr.load(random_model(self.folder, "qwen3")).train()
        model.generate([1], 2)
        self.assertTrue(model.training)
        self.assertFalse(model.eval().training)

    def test_errors_have_the_text_of_the_program(self):
        with self.assertRaisesRegex(lehr.Error, f"^{self.folder}/none: cannot be opened: No such file"):
            lehr.load(self.folder / "none")
        model = lehr.load(random_model(self.folder, "qwen3"))
        with self.assertRaisesRegex(lehr.Error, r"^input_ids: expected \(B, T\) int64, found 1 dimensions of Long$"):
            model(torch.tensor([1, 2]))
        with self.assertRaisesRegex(lehr.Error, "exists already; name a new folder$"):
            model.save(self.folder)

    def test_tokenizers_convert_there_and_back(self):
        self.assertEqual(lehr.tokenize("Hi", "byte"), [72, 105])
        tokenizer = lehr.Tokenizer("byte")
        self.assertEqual(tokenizer.decode(tokenizer.encode("Grüße, 世界")), "Grüße, 世界")
        self.assertEqual(tokenizer.vocab_size, 257)

    def test_inspection_needs_no_weights_in_memory(self):
        report = lehr.inspect(random_model(self.folder, "qwen3"))
        self.assertEqual(report["model_type"], "qwen3")
        stored = sum(torch.Size(tensor["shape"]).numel() for tensor in report["tensors"])
        self.assertEqual(report["num_parameters"], stored)


class Process(WithFolder):
    def test_has_one_openmp_runtime_and_no_second_libtorch(self):
        with open("/proc/self/maps") as maps:
            files = {os.path.realpath(line.split()[-1]) for line in maps if ".so" in line}
        for name in ("libgomp", "libtorch_cpu", "libc10."):
            found = [file for file in files if os.path.basename(file).startswith(name)]
            self.assertEqual(len(found), 1, found)
            self.assertTrue(found[0].startswith(os.path.dirname(torch.__file__)), found)
