"""Tests of lehr.load, models and tokenizers."""
import copy
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

    def test_one_row_of_positions_is_that_of_all_sequences(self):
        model = lehr.load(random_model(self.folder, "qwen3"))
        ids = ids_of()
        positions = torch.arange(ids.shape[1])
        torch.testing.assert_close(model(ids, position_ids=positions[None]).logits,
                                   model(ids, position_ids=positions.repeat(ids.shape[0], 1)).logits)

    def test_inputs_that_would_be_misread_are_refused(self):
        model = lehr.load(random_model(self.folder, "qwen3"))
        ids = ids_of()
        for given, expected in [
            ({"input_ids": [[1, 2]]}, "input_ids: expected a tensor .*found list"),
            ({"input_ids": ids.int()}, r"input_ids: expected \(B, T\) int64 .*found Int of \(2, 12\)"),
            ({"input_ids": ids[:, :0]}, "input_ids: .*at least one token, found Long"),
            ({"input_ids": ids.to("meta")}, "input_ids: expected a dense tensor on cpu or cuda.*found a dense one on meta"),
            ({"input_ids": ids.to_sparse()}, "input_ids: expected a dense tensor"),
            ({"input_ids": ids, "position_ids": ids.float()}, r"position_ids: expected \(2, 12\) int64.*found Float"),
            ({"input_ids": ids, "document_ids": ids[:, :3]}, r"document_ids: expected \(2, 12\) int64.*found Long of \(2, 3\)"),
            ({"input_ids": ids, "document_ids": ids.float()}, "document_ids: .*found Float"),
            ({"input_ids": ids, "attention_mask": torch.ones(2, 1, 12, 12)}, r"attention_mask: expected \(2, 12\)"),
            ({"input_ids": ids, "targets": ids.to("meta")}, "targets: expected a dense tensor on cpu"),
        ]:
            with self.subTest(expected), self.assertRaisesRegex((lehr.Error, TypeError), expected):
                model(**given)
        with torch.autocast("cpu", torch.bfloat16), self.assertRaisesRegex(lehr.Error, "torch.autocast.*dtype=torch.bfloat16"):
            model(ids)

    def test_wrong_arguments_are_named(self):
        path = random_model(self.folder, "qwen3")
        for arguments, expected in [({"dtype": "float32"}, "dtype: expected torch.float32.*found 'float32'"),
                                    ({"dtype": torch.int32}, "dtype: .*found torch.int32"),
                                    ({"dtype": torch.float8_e4m3fn}, "dtype: .*found torch.float8_e4m3fn"),
                                    ({"device": "mps"}, "device: expected 'cpu', 'cuda' or 'auto', found 'mps'")]:
            with self.subTest(expected), self.assertRaisesRegex((TypeError, ValueError), expected):
                lehr.load(path, **arguments)
        model = lehr.load(path, device=torch.device("cpu"))
        for arguments, expected in [({"max_new_tokens": 0}, "^max_new_tokens: expected more than 0, found 0"),
                                    ({"max_new_tokens": 1.5}, "^max_new_tokens: expected an integer, found float"),
                                    ({"temperature": -1}, "^temperature: expected at least 0, found -1"),
                                    ({"temperature": float("inf")}, "^temperature: "),
                                    ({"top_k": -1}, "^top_k: "), ({"top_p": 0}, "^top_p: "), ({"seed": -1}, "^seed: "),
                                    ({"seed": 2**64}, "^seed: expected an integer of 64 bits"),
                                    ({"stop_ids": 3}, "^stop_ids: expected a list of ids, found int"),
                                    ({"on_token": 3}, "^on_token: expected a function")]:
            with self.subTest(expected), self.assertRaisesRegex((lehr.Error, TypeError, ValueError), expected):
                model.generate([5], **arguments)
        with self.assertRaisesRegex(TypeError, "^prompt: expected a text, or ids, found NoneType"):
            model.generate(None)
        with self.assertRaisesRegex(TypeError, "dtype: .*found torch.int8"):
            model.save(self.folder / "eight", torch.int8)
        with self.assertRaisesRegex(TypeError, "cannot be copied or pickled; save"):
            copy.deepcopy(model)
        tokenizer = lehr.Tokenizer("byte")
        with self.assertRaisesRegex(TypeError, "text: expected a str, found int"):
            tokenizer.encode(3)
        with self.assertRaisesRegex(ValueError, "text: has a lone surrogate"):
            tokenizer.encode("a\udcff")
        with self.assertRaisesRegex(lehr.Error, "decode: expected ids .*found -1"):
            tokenizer.decode([-1])

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
        with self.assertRaisesRegex(lehr.Error, f"^{self.folder}/none: no such folder"):
            lehr.load(self.folder / "none")
        model = lehr.load(random_model(self.folder, "qwen3"))
        with self.assertRaisesRegex(lehr.Error, r"^input_ids: expected \(B, T\) int64 .*, found Long of \(2\)$"):
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
