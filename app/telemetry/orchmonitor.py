"""What the orchestrator of an API worker does, second by second, as lines of JSON: --enable-orch-monitor."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from app.pipeline.orchestrator import Orchestrator

logger = logging.getLogger("app.server")

WINDOW_S = 1.0


class ReplicaWindow(msgspec.Struct):
    """One replica at the end of a window. `in_flight`: this worker's requests; `queue`: all that wait there."""

    stage_id: int
    replica_id: int
    in_flight: int
    queue: int


class Window(msgspec.Struct):
    """What happened until `time` (Unix seconds), since the window before.

    `busy`: share of a core that the process used. `lag_s`: how late the event loop came to write this.
    """

    time: float
    seconds: float
    busy: float
    lag_s: float
    replicas: list[ReplicaWindow]


def monitor_path() -> Path:
    """One file for each API worker, in the working directory."""
    return Path(f"omni-orchestrator-{os.getpid()}.jsonl").absolute()


async def keep_monitoring(orchestrator: Callable[[], Orchestrator], path: Path) -> None:
    """Append a window to the file every second, until cancelled, or until the file cannot be written."""
    clock = asyncio.get_running_loop().time
    begin, used = clock(), time.process_time()
    while True:
        await asyncio.sleep(WINDOW_S)
        end, now_used = clock(), time.process_time()
        seconds = end - begin
        window = Window(
            time=time.time(),
            seconds=seconds,
            busy=(now_used - used) / seconds,
            lag_s=max(0.0, seconds - WINDOW_S),
            replicas=_replicas(orchestrator()),
        )
        begin, used = end, now_used
        try:
            await asyncio.to_thread(_append, path, msgspec.json.encode(window) + b"\n")
        except OSError as error:
            logger.warning("--enable-orch-monitor: %s cannot be written (%s); it ends here", path, error.strerror)
            return


def _replicas(orchestrator: Orchestrator) -> list[ReplicaWindow]:
    return [
        ReplicaWindow(info.stage_id, info.replica_id, in_flight, info.load.waiting)
        for info, in_flight in orchestrator.in_flight()
    ]


def _append(path: Path, line: bytes) -> None:
    with path.open("ab") as file:
        file.write(line)
