"""Showing that something long goes on: a line for each step, and on a terminal a line that counts the seconds."""

from __future__ import annotations

import sys
import time
from typing import TextIO

_CLEAR = "\r\x1b[K"


class Progress:
    """Prints steps as they come. `tick()` is for terminals: it redraws the current step with its age."""

    def __init__(self, stream: TextIO = sys.stderr) -> None:
        self._stream = stream
        self._terminal = stream.isatty()
        self._began = time.monotonic()
        self._step = ""
        self._step_began = self._began

    def step(self, text: str) -> None:
        """A new step has begun. The same text again is the same step."""
        if text == self._step:
            return
        self._write(f"{self._clear}[{self._age(self._began)}] {text}\n")
        self._step, self._step_began = text, time.monotonic()

    def tick(self) -> None:
        """Redraw on a terminal; nothing elsewhere."""
        if self._terminal and self._step:
            self._write(f"{self._clear}... {self._age(self._step_began)}")

    def end(self) -> None:
        """Take the redrawn line away."""
        self._write(self._clear)

    @property
    def _clear(self) -> str:
        return _CLEAR if self._terminal else ""

    @staticmethod
    def _age(since: float) -> str:
        return f"{time.monotonic() - since:5.1f} s"

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
