"""Keeps the record of a failed start-up until the server has ended, then removes the run directory.

A respawned worker has to find the failure, so nobody may remove it earlier; afterwards no worker is left to do it.
"""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

from app.cluster.identity import Server
from app.cluster.rundir import RunDir

POLL_S = 0.2


def main() -> None:
    """`python -m app.cluster.undertaker RUN_DIR SERVER_PID SERVER_TICKS`; ends with the server."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    path, pid, ticks = sys.argv[1:4]
    run_dir = RunDir(Path(path), Server(int(pid), int(ticks)))
    while run_dir.server.alive and run_dir.path.exists():
        time.sleep(POLL_S)
    if run_dir.is_owned():
        run_dir.remove()


if __name__ == "__main__":
    main()
