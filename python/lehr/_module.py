"""Loads the C++ module as torch.classes.lehr, and turns its errors into lehr.Error."""
from __future__ import annotations

import ctypes
import operator
import signal
import threading
from pathlib import Path
from typing import Any, Callable

from ._program import torch_problem

_problem = torch_problem()
if _problem:
    raise ImportError(_problem)

import torch  # noqa: E402

torch.classes.load_library(str(Path(__file__).resolve().parent / "lib" / "liblehr_module.so"))
core = torch.classes.lehr
operators = torch.ops.lehr


class Error(RuntimeError):
    """An error of Lehr. Its text is that of the program: what was wrong, where, and what to do."""


def cuda_problem() -> str:
    """The reason why Lehr's CUDA kernels cannot be opened, so that ATen's are used; empty if they can."""
    return operators.cuda_problem()


def expect(name: str, value: Any, kind: Any, described: str) -> Any:
    """Returns `value`, or raises a TypeError that names the argument."""
    if isinstance(value, kind):
        return value
    raise TypeError(f"{name}: expected {described}, found {type(value).__name__}")


def expect_function(name: str, value: Any, described: str) -> Any:
    """Returns `value`, or raises a TypeError that names the argument."""
    if callable(value):
        return value
    raise TypeError(f"{name}: expected {described}, found {type(value).__name__}")


def expect_integer(name: str, value: Any) -> int:
    """Returns `value` as an int of 64 bits; numpy's integers are taken, too."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name}: expected an integer, found {type(value).__name__}") from None
    if not -2**63 <= number < 2**63:
        raise ValueError(f"{name}: expected an integer of 64 bits, found {number}")
    return number


def expect_dtype(dtype: Any) -> torch.dtype:
    """Returns `dtype`, or raises a TypeError if weights cannot have it."""
    if dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
        return dtype
    raise TypeError("dtype: expected torch.float32, torch.bfloat16, torch.float16 or torch.float64, found "
                    + (str(dtype) if isinstance(dtype, torch.dtype) else repr(dtype)))


def expect_device(device: Any) -> str:
    """Returns the name of a device of Lehr: "cpu", "cuda" or "auto"."""
    name = str(device)
    if name not in ("cpu", "cuda", "cuda:0", "auto"):
        raise ValueError(f"device: expected 'cpu', 'cuda' or 'auto', found {name!r}; CUDA_VISIBLE_DEVICES chooses a GPU")
    return name.removesuffix(":0")


def call(function: Callable[..., Any], *args: Any) -> Any:
    """Calls a function of the module. The GIL is released during the call."""
    try:
        return function(*args)
    except RuntimeError as error:
        raise Error(str(error)) from None


class Callbacks:
    """Python functions that the module calls, what they raise, and Ctrl-C during a call.

    Python would raise KeyboardInterrupt at the first line of such a function, where nothing can catch it. So during a
    call the signal is only remembered, and raised at its end; a second Ctrl-C is raised immediately.
    """

    _TYPE = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)

    def __init__(self) -> None:
        self._kept: list[Any] = []  # ctypes does not keep them alive
        self._raised: BaseException | None = None
        self._interrupted = False

    def address(self, function: Callable[[int], Any] | None, ends_at_interrupt: bool = False) -> int:
        """Returns the address of a C function that calls `function`; 0 for None. With `ends_at_interrupt`, Ctrl-C ends
        the call of the module there."""
        if function is None:
            return 0

        def guarded(argument: int) -> int:
            try:
                function(argument)
                return int(ends_at_interrupt and self._interrupted)
            except BaseException as error:  # C++ ends the call, and call() raises it again
                self._raised = error
                return 1

        callback = self._TYPE(guarded)
        self._kept.append(callback)
        return ctypes.cast(callback, ctypes.c_void_p).value or 0

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Calls a function of the module that may call these functions, and raises what they raised."""
        handler = signal.getsignal(signal.SIGINT)
        if handler is not signal.default_int_handler or threading.current_thread() is not threading.main_thread():
            return self._call(function, args)
        self._interrupted = False

        def remember(number: int, frame: Any) -> None:
            if self._interrupted:
                handler(number, frame)
            self._interrupted = True

        result = None
        signal.signal(signal.SIGINT, remember)
        try:
            result = self._call(function, args)
        except Error:
            if not self._interrupted:  # else the error says no more than that a function ended the call
                raise
        finally:
            signal.signal(signal.SIGINT, handler)
        if self._interrupted:
            raise KeyboardInterrupt
        return result

    def _call(self, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        try:
            return function(*args)
        except RuntimeError as error:
            raised, self._raised = self._raised, None
            if raised is not None:
                raise raised
            raise Error(str(error)) from None
