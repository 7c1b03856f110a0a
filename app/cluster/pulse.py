"""Whether a master that holds its lock also runs: a stopped one (SIGSTOP, a stuck disk) helps nobody, never ends."""

from __future__ import annotations

import os
import signal
from contextlib import suppress

from app.cluster.rundir import RunDir


class Pulse:
    """Watches the state file, which a running master touches every second.

    It counts looks, not seconds: a watcher that was itself stopped or frozen meanwhile has seen nothing wrong.
    """

    def __init__(self, run_dir: RunDir, limit_s: float) -> None:
        self.limit_s = limit_s
        self._run_dir = run_dir
        self._last: tuple[int, float] | None = None
        self._still_s = 0.0

    def lost(self, period_s: float) -> bool:
        """Look once, `period_s` seconds after the last look; True after `limit_s` seconds of looks without a change."""
        now = self._run_dir.read_state().pid, self._run_dir.state_touched()
        self._still_s = self._still_s + period_s if now == self._last else 0.0
        self._last = now
        return self._still_s > self.limit_s

    def end(self) -> int:
        """Kill the master that was lost, and with it its replicas; its pid. Another one may have its place by now."""
        assert self._last is not None, "it has been looked at"
        pid = self._last[0]
        self._still_s = 0.0
        if self._run_dir.master_alive() and self._run_dir.read_state().pid == pid:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return pid
