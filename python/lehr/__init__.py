"""Lehr trains large language models; this package contains the program `lehr` and this module.

    import lehr

    model = lehr.load("outputs/quickstart/checkpoints/step-1400")
    print(model.generate("JULIET:", max_new_tokens=50))

    for step in lehr.Trainer("recipe/quickstart.toml", {"optimizer.lr": 3e-4}):
        print(step.step, step.loss)

docs/python.md describes all of it. Shapes: B sequences, T tokens, H hidden size, V vocabulary.
"""
from ._module import Error, cuda_problem
from ._track import track
from ._version import version as __version__
from .commands import evaluate, inspect, plan, score, search, verify
from .model import Model, Output, Tokenizer, load, tokenize
from .trainer import Step, Trainer

__all__ = ["Error", "Model", "Output", "Step", "Tokenizer", "Trainer", "cuda_problem", "evaluate", "inspect", "load",
           "plan", "score", "search", "tokenize", "track", "verify"]
