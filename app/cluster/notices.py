"""What a replica process tells its parent of its start: through a pipe, for a parent that has no other way to know."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

WELCOMED, UP = "welcomed", "up"
"""The master has accepted it, which listens at an address; its engine has started."""


class Notices:
    """The parent's end. The events are those of the process that was started last."""

    def __init__(self) -> None:
        self.welcomed = asyncio.Event()
        self.up = asyncio.Event()
        self.address = ""
        self._descriptor = -1
        self._line = b""

    @contextmanager
    def opened(self) -> Iterator[int]:
        """For the time in which a process is started: the descriptor that it inherits."""
        self.close()
        self.welcomed.clear()
        self.up.clear()
        self.address, self._line = "", b""
        self._descriptor, theirs = os.pipe()
        os.set_blocking(self._descriptor, False)
        asyncio.get_running_loop().add_reader(self._descriptor, self._read)
        try:
            yield theirs
        finally:
            os.close(theirs)

    def close(self) -> None:
        """Listen no longer."""
        if self._descriptor >= 0:
            asyncio.get_running_loop().remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1

    def _read(self) -> None:
        try:
            said = os.read(self._descriptor, 4096)
        except BlockingIOError:
            return
        if not said:
            self.close()
            return
        *lines, self._line = (self._line + said).split(b"\n")
        for line in lines:
            step, _, address = line.decode().partition(" ")
            if step == WELCOMED:
                self.address = address
                self.welcomed.set()
            elif step == UP:
                self.up.set()


def tell(descriptor: int, step: str, address: str = "") -> None:
    """The replica's end; a parent that does not listen is none of its business."""
    if descriptor >= 0:
        with suppress(OSError):
            os.write(descriptor, f"{step} {address}\n".encode())


def keep(descriptor: int) -> None:
    """The processes of the engine do not inherit it."""
    if descriptor >= 0:
        os.set_inheritable(descriptor, False)
