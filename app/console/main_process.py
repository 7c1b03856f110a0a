"""Granian's main process as `omni-app serve` runs it: a second stop signal ends its workers at once."""

from __future__ import annotations

import multiprocessing
import threading
from typing import Any

from granian.server.mp import MPServer

KILL_S = 2.0
"""How long workers have after the second signal to tell their clients; a stopped or stuck one is killed then."""


class MainProcess(MPServer):
    """Granian by itself passes the first signal on and waits, up to its kill timeout, whatever comes after."""

    wrks: list[Any]
    interrupt_signal: bool
    _hurried = False

    def signal_handler_interrupt(self, *args: Any, **kwargs: Any) -> None:
        """Called for SIGTERM and SIGINT; also in a worker that has just been forked and not replaced its handlers."""
        if self.interrupt_signal and not self._hurried and multiprocessing.parent_process() is None:
            self._hurried = True
            for worker in self.wrks:
                worker.terminate()
            killer = threading.Timer(KILL_S, self._kill_workers)
            killer.daemon = True
            killer.start()
        super().signal_handler_interrupt(*args, **kwargs)  # type: ignore[no-untyped-call]

    def _kill_workers(self) -> None:
        for worker in tuple(self.wrks):
            worker.kill()
