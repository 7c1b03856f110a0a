"""Showing that something long goes on: a line for each step, and on a terminal a line that counts the seconds."""

from __future__ import annotations

import sys
import time
from typing import TextIO

_CLEAR = "\r\x1b[K"


class Progress:
    """Tells steps and, on a terminal, how long they have taken. Other processes may print to the same terminal."""

    def __init__(self, stream: TextIO = sys.stderr) -> None:
        self._stream = stream
        self._terminal = stream.isatty()
        self._began = time.monotonic()
        self._step = ""

    def step(self, text: str) -> None:
        """A new step has begun: one line. The same text again is the same step."""
        if text != self._step:
            self.watch(text)
            self._write(f"{self._clear}{self._line()}\n")

    def watch(self, text: str) -> None:
        """A new step has begun that somebody else tells."""
        self._step = text

    def tick(self) -> None:
        """Redraw the step with the time since the start, on a terminal; nothing elsewhere."""
        if self._terminal and self._step:
            # The cursor goes back to the first column, so that what others print replaces this line.
            self._write(f"{_CLEAR}{self._line()}\r")

    def end(self) -> None:
        """Take the redrawn line away."""
        self._write(self._clear)

    @property
    def _clear(self) -> str:
        return _CLEAR if self._terminal else ""

    def _line(self) -> str:
        return f"[{time.monotonic() - self._began:5.1f} s] {self._step}"

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
