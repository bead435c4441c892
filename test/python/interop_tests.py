"""Tests against transformers: a folder that Lehr wrote, and gradients of both."""
import torch
from transformers import AutoModelForCausalLM

import lehr
from support import FAMILIES, VOCAB, WithFolder, random_model


class Transformers(WithFolder):
    def test_logits_and_gradients_are_equal(self):
        for family in FAMILIES:
            with self.subTest(family=family):
                path = random_model(self.folder / family, family)
                theirs = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float64, attn_implementation="eager")
                model = lehr.load(path, dtype=torch.float64)
                ids = torch.randint(0, VOCAB, (2, 12), generator=torch.Generator().manual_seed(1))
                expected = theirs(ids, labels=ids)
                expected.loss.backward()
                targets = torch.cat([ids[:, 1:], torch.full((2, 1), -100)], 1)
                output = model(ids, targets=targets)
                output.loss.backward()
                # Their norms and rotary tables compute in float32.
                torch.testing.assert_close(output.logits, expected.logits, rtol=1e-4, atol=1e-4)
                gradients = {name: parameter.grad for name, parameter in theirs.named_parameters()}
                for name, parameter in model.named_parameters():
                    name = name.replace("token_embedding.default.", "").replace("lm_head.lm_head.default", "lm_head")
                    torch.testing.assert_close(parameter.grad, gradients[name], rtol=1e-4, atol=1e-4, msg=name)
