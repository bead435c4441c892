"""Models and tokenizers: lehr.load, lehr.Model, lehr.tokenize."""
from __future__ import annotations

import json
import os
import re
from typing import Any, Callable, Iterable, Iterator, Sequence

from ._module import (Callbacks, call, core, expect, expect_device, expect_dtype, expect_function,
                      expect_integer)

import torch


class Tokenizer:
    """A tokenizer: a folder with tokenizer.json, the file itself, or "byte".

        tokenizer = lehr.Tokenizer("byte")
        tokenizer.decode(tokenizer.encode("Hello"))   # "Hello"
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._core = call(core.Tokenizer, os.fspath(path))

    @classmethod
    def _of(cls, handle: Any) -> Tokenizer:
        tokenizer = cls.__new__(cls)
        tokenizer._core = handle
        return tokenizer

    def encode(self, text: str) -> list[int]:
        """The ids of `text`, without special_tokens."""
        if re.search("[\ud800-\udfff]", expect("text", text, str, "a str")):
            raise ValueError("text: has a lone surrogate, which has no bytes; read the file with errors=\"replace\"")
        return call(self._core.encode, text)

    def decode(self, ids: Sequence[int], skip_special: bool = False) -> str:
        """The text of `ids`; with `skip_special`, without special tokens."""
        return call(self._core.decode, [expect_integer("ids", id) for id in ids], bool(skip_special))

    def _decode_after(self, before: list[int], ids: list[int]) -> str:
        """What `ids` add to the text of `before`: some tokenizers leave out a space at the start of a text."""
        return call(self._core.decode_after, before, ids, True)

    @property
    def special_tokens(self) -> tuple[list[int], list[int]]:
        """The ids that belong before and after a text outside of a chat template, such as a BOS."""
        return self._core.special_tokens()

    @property
    def vocab_size(self) -> int:
        """The largest id plus one."""
        return self._core.vocab_size()


def tokenize(text: str, tokenizer: str | os.PathLike[str]) -> list[int]:
    """The ids of `text`.

        lehr.tokenize("Hi", "byte")   # [72, 105]
    """
    return Tokenizer(tokenizer).encode(text)


class Output:
    """The results of a model; those that do not apply are None. All are part of the autograd graph.

    hidden_states (B, T, H), after the final norm; nll (B, T), the negative log-likelihood of each target, 0 where there
    is none; scores (N, labels) of a classifier; embeddings (N, E).
    """

    def __init__(self, tensors: dict[str, torch.Tensor], logits: Callable[[torch.Tensor], torch.Tensor],
                 targets: torch.Tensor | None) -> None:
        self.hidden_states = tensors.get("hidden_states")
        self.nll = tensors.get("nll")
        self.scores = tensors.get("scores")
        self.embeddings = tensors.get("embeddings")
        self._logits_of, self._logits, self._targets = logits, None, targets

    @property
    def logits(self) -> torch.Tensor:
        """(B, T, V). Computed at the first access: training without them never holds B * T * V numbers."""
        if self._logits is None:
            self._logits = call(self._logits_of, self.hidden_states)
        return self._logits

    @property
    def loss(self) -> torch.Tensor | None:
        """The mean of nll over the targets that are not -100, a scalar; None without targets."""
        if self.nll is None or self._targets is None:
            return None
        return self.nll.sum() / (self._targets != -100).sum()


class Model:
    """A model of Lehr; lehr.load opens one. Its parameters are the tensors that C++ computes with.

        model = lehr.load(folder)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        loss = model(ids[:, :-1], targets=ids[:, 1:]).loss
        loss.backward()
        optimizer.step()
    """

    def __init__(self, handle: Any, tokenizer: Callable[[], Tokenizer] | None = None) -> None:
        self._core, self._find_tokenizer = handle, tokenizer

    def forward(self, input_ids: torch.Tensor, *, targets: torch.Tensor | None = None,
                position_ids: torch.Tensor | None = None, attention_mask: torch.Tensor | None = None,
                document_ids: torch.Tensor | None = None, pooling_mask: torch.Tensor | None = None) -> Output:
        """Runs the model on `input_ids` (B, T) int64. Attention is causal.

        targets (B, T) int64: the id to predict at each position, so already shifted (unlike transformers' `labels`);
        -100 is ignored. position_ids (B, T): default 0..T-1. attention_mask (B, T): 0 hides padding. document_ids
        (B, T): attention does not cross documents. pooling_mask (B, T): the tokens that a classifier uses.

            model(torch.tensor([[1, 2, 3]])).logits.shape   # (1, 3, V)
        """
        given = {"input_ids": input_ids, "targets": targets, "position_ids": position_ids,
                 "attention_mask": attention_mask, "document_ids": document_ids, "pooling_mask": pooling_mask}
        for name, tensor in given.items():
            if tensor is not None or name == "input_ids":
                expect(name, tensor, torch.Tensor, "a tensor (B, T)")
        tensors = call(self._core.forward, *given.values())
        return Output(tensors, self._core.logits, targets)

    __call__ = forward

    def generate(self, prompt: str | Sequence[int], max_new_tokens: int = 128, *, temperature: float = 1.0,
                 top_k: int = 0, top_p: float = 1.0, seed: int = 0, stop_ids: Sequence[int] | None = None,
                 on_token: Callable[[int], Any] | None = None) -> str | list[int]:
        """Continues `prompt`: a text gives the new text, ids give the new ids. Temperature 0 is greedy.

        Ends before `stop_ids`; default: the model's end of text. `on_token` receives each id. Ctrl-C ends it.

            model.generate([1, 2, 3], max_new_tokens=8, temperature=0)   # [5, 9, ...]
        """
        if isinstance(prompt, str):
            ids = self.tokenizer.special_tokens[0] + self.tokenizer.encode(prompt)
        else:
            ids = [expect_integer("prompt", id) for id in expect("prompt", prompt, Iterable, "a text, or ids")]
        if stop_ids is not None:
            stop_ids = [expect_integer("stop_ids", id) for id in expect("stop_ids", stop_ids, Iterable, "a list of ids")]
        if on_token is not None:
            expect_function("on_token", on_token, "a function of an id")
        callbacks = Callbacks()
        address = callbacks.address(on_token or (lambda id: None), ends_at_interrupt=True)
        new = callbacks.call(self._core.generate, ids, expect_integer("max_new_tokens", max_new_tokens),
                             float(temperature), expect_integer("top_k", top_k), float(top_p),
                             expect_integer("seed", seed), stop_ids, address)
        return self.tokenizer._decode_after(ids, new) if isinstance(prompt, str) else new

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the model's folder."""
        if self._find_tokenizer is None:
            raise ValueError("this model has no tokenizer; pass ids")
        return self._find_tokenizer()

    def named_parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Names and parameters, each a leaf tensor that shares its memory with C++: change it under torch.no_grad().

            with torch.no_grad():
                dict(model.named_parameters())["model.norm.weight"].fill_(1)
        """
        return iter(call(self._core.named_parameters))

    def parameters(self) -> Iterator[torch.Tensor]:
        """The parameters, for torch.optim."""
        return (parameter for _, parameter in self.named_parameters())

    def zero_grad(self) -> None:
        """Removes all gradients."""
        for parameter in self.parameters():
            parameter.grad = None

    def train(self, mode: bool = True) -> Model:
        """Sets train mode (dropout), or with False eval mode. Models are loaded in eval mode."""
        call(self._core.train, mode)
        return self

    def eval(self) -> Model:
        """Sets eval mode."""
        return self.train(False)

    @property
    def training(self) -> bool:
        """True in train mode."""
        return self._core.is_training()

    @property
    def config(self) -> dict[str, Any]:
        """The content of its config.json."""
        return json.loads(call(self._core.config))

    def save(self, folder: str | os.PathLike[str], dtype: torch.dtype = torch.float32) -> None:
        """Writes a new Hugging Face folder: weights in `dtype`, config.json, and the tokenizer's files.

            model.save("my_model", dtype=torch.bfloat16)
        """
        call(self._core.save, os.fspath(folder), expect_dtype(dtype))

    def __reduce__(self) -> Any:
        raise TypeError("a lehr.Model cannot be copied or pickled; save() it, and lehr.load() it where it is needed")


def load(folder: str | os.PathLike[str], *, device: str = "cpu", dtype: torch.dtype = torch.float32,
         tokenizer: str | os.PathLike[str] | None = None) -> Model:
    """Opens a model folder of Lehr or Hugging Face, or a folder of adapters, in eval mode.

    device: "cpu", "cuda" or "auto". dtype: of parameters and computation. tokenizer: default, that of the folder.

        model = lehr.load("outputs/quickstart/checkpoints/step-1400")
    """
    folder = os.fspath(folder)

    def find_tokenizer() -> Tokenizer:
        if tokenizer is not None:
            return Tokenizer(tokenizer)
        has_file = os.path.exists(os.path.join(folder, "tokenizer.json"))
        # As in lehr generate: a model with 257 ids and no tokenizer was trained on bytes.
        return Tokenizer("byte" if not has_file and model.config.get("vocab_size") == 257 else folder)

    model = Model(call(core.Model, folder, expect_device(device), expect_dtype(dtype)), find_tokenizer)
    return model
