"""Runs the program with its progress shown: on a terminal, in a notebook, or passed to a function."""
from __future__ import annotations

import codecs
import fcntl
import os
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import tty
from typing import Callable, Union

from . import _program

Progress = Union[bool, None, Callable[[str], object]]
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


def _writer() -> Callable[[str, bool], None]:
    """Shows lines on sys.stderr, and the status line in place; an empty one removes it."""
    width = 0

    def write(text: str, is_status: bool) -> None:
        nonlocal width
        end = "\r" if not text else "" if is_status else "\n"
        sys.stderr.write("\r" + text.ljust(width) + end)
        sys.stderr.flush()
        width = len(text) if is_status else 0

    return write


def _shown(progress: Progress) -> Callable[[str, bool], None] | None:
    if callable(progress):
        return lambda text, is_status: text and progress(text)
    if progress is None:
        in_notebook = type(sys.stderr).__module__.startswith("ipykernel")
        progress = in_notebook or (hasattr(sys.stderr, "isatty") and sys.stderr.isatty())
    return _writer() if progress else None


class _Lines:
    """Splits the output of the program on a terminal into lines, which end with a line feed, and states of the status
    line, which end with a carriage return."""

    def __init__(self, show: Callable[[str, bool], None] | None) -> None:
        self._show = show
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""
        self.lines: list[str] = []

    def add(self, data: bytes) -> None:
        *whole, self._rest = re.split(r"(?<=[\r\n])", self._rest + self._decoder.decode(data))
        for part in whole:
            self._emit(part[:-1], is_status=part.endswith("\r"))

    def settle(self) -> None:
        """Shows a status line that nothing follows yet."""
        text, self._rest = self._rest, ""
        self._emit(text, is_status=True)

    def finish(self) -> None:
        text, self._rest = self._rest, ""
        self._emit(text, is_status=False)
        if self._show:
            self._show("", True)

    def _emit(self, text: str, is_status: bool) -> None:
        text = _COLOUR.sub("", text)
        if not text:
            return
        if not is_status:
            self.lines.append(text)
        if self._show:
            self._show(text, is_status)


def _terminal() -> tuple[int, int]:
    """Returns the two ends of a terminal as wide as that of this process, which passes bytes on unchanged."""
    ours, theirs = os.openpty()
    tty.setraw(theirs)
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, shutil.get_terminal_size((100, 24)).columns, 0, 0))
    return ours, theirs


def _read(end: int) -> bytes:
    try:
        return os.read(end, 65536)
    except OSError:  # how Linux reports that the program has closed its end of a terminal
        return b""


def _follow(process: subprocess.Popen[bytes], end: int, lines: _Lines) -> None:
    while data := _read(end):
        lines.add(data)
        if not select.select([end], [], [], 0.05)[0]:
            lines.settle()
    lines.finish()
    process.wait()


def run(arguments: list[str], progress: Progress = None) -> tuple[int, str, str]:
    """Runs the program. Returns its exit code, its standard output, and the lines of its standard error.

    progress: True shows the lines and the status line on sys.stderr, False does not, None does on a terminal and in a
    notebook; a function is called with each as text. Ctrl-C is passed on, and KeyboardInterrupt is raised once the
    program has stopped; a second Ctrl-C kills it.
    """
    show = _shown(progress)
    ours, theirs = _terminal() if show else os.pipe()
    with tempfile.TemporaryFile() as output:
        environment = _program.environment() | {"LEHR_CALLED_FROM_PYTHON": "1"}
        process = subprocess.Popen([_program.program(), *arguments], env=environment,
                                   stdin=subprocess.DEVNULL, stdout=output, stderr=theirs)
        os.close(theirs)
        lines = _Lines(show)
        try:
            _follow(process, ours, lines)
        except KeyboardInterrupt:
            try:
                process.send_signal(signal.SIGINT)
                _follow(process, ours, lines)
            finally:
                process.kill()
                process.wait()
            raise
        except BaseException:  # of the function
            process.kill()
            process.wait()
            raise
        finally:
            os.close(ours)
        output.seek(0)
        return process.returncode, output.read().decode(errors="replace"), "\n".join(lines.lines)
