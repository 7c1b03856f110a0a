"""Notice the death of a process at once: the kernel makes a pidfd readable when its process ends."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable


class PidWatch:
    """Calls `on_death` once, in the running loop, when process `pid` has ended; `close` gives the watch up."""

    def __init__(self, pid: int, on_death: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_death = on_death
        self._fd: int | None = None
        self._dead_already: asyncio.Handle | None = None
        try:
            self._fd = os.pidfd_open(pid)
        except ProcessLookupError:
            self._dead_already = self._loop.call_soon(on_death)
        else:
            self._loop.add_reader(self._fd, self._died)

    def _died(self) -> None:
        self.close()
        self._on_death()

    def close(self) -> None:
        if self._dead_already is not None:
            self._dead_already.cancel()
        if self._fd is not None:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = None
