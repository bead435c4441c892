"""Training runs: lehr.Trainer."""
from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any, Callable, Iterator, Mapping

from ._config import overrides_of
from ._module import Callbacks, call, core, expect, expect_function
from .model import Model, Output, Tokenizer

import torch

Batch = Mapping[str, torch.Tensor]


def _batch_of(given: torch.Tensor | Batch) -> dict[str, torch.Tensor]:
    """Returns the batch of a data function, with default labels and positions that stay inside documents."""
    batch = {"input_ids": given} if isinstance(given, torch.Tensor) else dict(expect(
        "data", given, Mapping, "input_ids (B, T), or a dict with it"))
    for name, tensor in batch.items():
        expect(f"data: {name}", tensor, torch.Tensor, "a tensor (B, T)")
    ids = batch.get("input_ids")
    if ids is None or ids.dim() != 2:
        raise ValueError("data: expected input_ids (B, T), found "
                         + ("none" if ids is None else f"{ids.dim()} dimensions"))
    documents = batch.get("document_ids", torch.zeros_like(ids))
    if documents.shape != ids.shape:
        return batch  # C++ refuses it
    continues = (documents[:, 1:] == documents[:, :-1]) & (documents[:, 1:] >= 0)  # [b, t]: t + 1 is in t's document
    if "labels" not in batch:
        last = torch.full_like(ids[:, :1], -100)
        batch["labels"] = torch.cat([ids[:, 1:].masked_fill(~continues, -100), last], dim=1)
    if "position_ids" not in batch:
        places = torch.arange(ids.shape[1], device=ids.device).expand(ids.shape)
        begins = places[:, 1:].masked_fill(continues, 0).cummax(dim=1).values
        batch["position_ids"] = places - torch.cat([torch.zeros_like(places[:, :1]), begins], dim=1)
    return batch


@dataclass(frozen=True)
class Step:
    """A finished step: its number from 1 on, its loss, and all metrics of metrics.jsonl by name."""

    step: int
    loss: float
    metrics: dict[str, float] = field(repr=False)

    @property
    def grad_norm(self) -> float:
        """The norm of all gradients before clipping."""
        return self.metrics["grad_norm"]

    @property
    def lr(self) -> float:
        """The learning rate of the step."""
        return self.metrics["lr"]

    @property
    def validation_loss(self) -> float | None:
        """The validation loss after this step; None if none was due."""
        return self.metrics.get("validation_loss")


class Trainer:
    """A run of `lehr train` on one device, step by step: same config, same files, same bits.

    config: a TOML file, or a dict with its content. overrides: further keys, such as {"optimizer.lr": 3e-4}; nested
    dicts are allowed. With quiet=False the log goes to standard error.

    loss(output, batch): a Python loss. output is a lehr.Output, batch has the tensors of a micro-batch ("input_ids",
    "labels", (B, T) int64, -100 ignored). Returns the *sum* over the valid labels, a scalar with a graph; Lehr divides
    by their number in the whole step, over all micro-batches.

    data(step): Python training data, a function of the step from 0 on. Returns input_ids, (B, T) int64, or a dict with
    "input_ids" and optionally "labels" (default: the next id of the document), "position_ids" (default: from 0 in each
    document) and "document_ids" (-1 for padding; default: one document per sequence); B is the global batch size and T
    is training.seq_len. A run that resumes from step-N calls data(N) first.

        trainer = lehr.Trainer("run.toml", {"optimizer.lr": 3e-4})
        for step in trainer:
            print(step.step, step.loss)
    """

    def __init__(self, config: str | os.PathLike[str] | Mapping[str, Any],
                 overrides: Mapping[str, Any] | None = None, *, quiet: bool = True,
                 loss: Callable[[Output, Batch], torch.Tensor] | None = None,
                 data: Callable[[int], torch.Tensor | Batch] | None = None) -> None:
        file, content = ("", config) if isinstance(config, Mapping) else (os.fspath(config), {})
        keys = overrides_of(content) | overrides_of(overrides or {})
        if loss is not None:
            expect_function("loss", loss, "a function of the output and the batch")
        if data is not None:
            expect_function("data", data, "a function of the step")
            keys["data.datasets"] = '[{path = "a Python function"}]'  # the key is required; nothing is opened
        self._callbacks = Callbacks()
        self._exchange = core.Exchange()
        self._handlers: dict[str, list[Callable[[Any], Any]]] = {}
        self._finished = False
        self._model: Model | None = None
        self._core = self._callbacks.call(
            core.Trainer, file, list(keys), list(keys.values()), bool(quiet), self._exchange,
            self._callbacks.address(self._calls_of_loss(loss) if loss else None),
            self._callbacks.address(self._calls_of_data(data) if data else None),
            self._callbacks.address(lambda _: None, ends_at_interrupt=True))
        self._callbacks.call(self._core.begin)

    def step(self) -> Step | None:
        """Trains one step, with the validation and the save that are due after it. None if the run has ended."""
        if not self._callbacks.call(self._core.step):
            if not self._finished:
                self._finished = True
                self._callbacks.call(self._core.finish)
            return None
        return self._last_step()

    def __iter__(self) -> Iterator[Step]:
        """Trains the steps that are left."""
        while (step := self.step()) is not None:
            yield step

    def run(self) -> Step | None:
        """Trains to the end and returns the last step. Ctrl-C saves a checkpoint, if enabled, and is raised."""
        last = None
        try:
            for last in self:
                pass
        except KeyboardInterrupt:
            try:
                self.save()
            except RuntimeError:
                pass  # no checkpoints, or a disk problem: the interrupt is the news
            raise
        return last

    def save(self) -> None:
        """Saves a checkpoint now and waits until it is on disk."""
        call(self._core.save)

    def close(self) -> None:
        """Ends the run without training further, and frees its memory and the lock on its folder."""
        call(self._core.close)
        self._model = None

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def model(self) -> Model:
        """The model that trains. Call refresh() after its parameters were changed between two steps."""
        if self._model is None:
            tokenizer = Tokenizer._of(call(self._core.tokenizer))  # as the model, it outlives close()
            self._model = Model(call(self._core.model), lambda: tokenizer)
        return self._model

    def refresh(self) -> None:
        """Makes the next step use parameters that were changed from Python, under mixed precision too."""
        call(self._core.refresh)

    @property
    def config(self) -> str:
        """The resolved config as TOML."""
        return call(self._core.config)

    @property
    def completed_steps(self) -> int:
        """Steps done, including those before the run was resumed."""
        return self._core.completed_steps()

    def __reduce__(self) -> Any:
        raise TypeError("a lehr.Trainer cannot be copied or pickled; its checkpoints hold its state")

    def on_step_begin(self, hook: Callable[[int], Any]) -> Callable[[int], Any]:
        """Calls hook(step), counted from 1, before each step; usable as a decorator. An exception ends the run: then
        only close() is allowed."""
        return self._on("step_begin", hook)

    def on_gradients_ready(self, hook: Callable[[int], Any]) -> Callable[[int], Any]:
        """Calls hook(step) when gradients are complete: read or change parameter.grad in place. Their norm (Step.grad_norm)
        and clipping follow, with the changed gradients.

            @trainer.on_gradients_ready
            def look(step):
                for name, parameter in trainer.model.named_parameters():
                    print(name, parameter.grad.norm())
        """
        return self._on("gradients_ready", hook)

    def on_step_end(self, hook: Callable[[Step], Any]) -> Callable[[Step], Any]:
        """Calls hook(Step) after each step; usable as a decorator."""
        return self._on("step_end", hook)

    def _on(self, event: str, hook: Callable[[Any], Any]) -> Callable[[Any], Any]:
        expect_function(f"on_{event}", hook, "a function")
        if event not in self._handlers:
            handlers = self._handlers[event] = []

            def dispatch(step: int) -> None:
                for handler in handlers:
                    handler(self._last_step() if event == "step_end" else step)

            call(self._core.on, event, self._callbacks.address(dispatch))
        self._handlers[event].append(hook)
        return hook

    def _last_step(self) -> Step:
        metrics = dict(call(self._core.metrics))
        return Step(self._core.completed_steps(), metrics.get("loss", float("nan")), metrics)

    def _calls_of_loss(self, loss: Callable[[Output, Batch], torch.Tensor]) -> Callable[[int], None]:
        def call_loss(_: int) -> None:
            tensors = self._exchange.take()
            batch = {name[len("batch."):]: tensor for name, tensor in tensors.items() if name.startswith("batch.")}
            output = Output(dict(tensors), lambda hidden: self.model._core.logits(hidden), batch.get("labels"))
            result = expect("loss", loss(output, batch), torch.Tensor, "a scalar tensor, the sum over the valid items")
            self._exchange.put({"loss": result})

        return call_loss

    def _calls_of_data(self, data: Callable[[int], torch.Tensor | Batch]) -> Callable[[int], None]:
        def call_data(step: int) -> None:
            given = data(step)
            self._exchange.put(_batch_of(given))

        return call_data
