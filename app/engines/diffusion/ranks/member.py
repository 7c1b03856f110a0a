"""The program of every rank but the first: it does what rank 0 does, and tells nobody but rank 0.

`python -m app.engines.diffusion.ranks.member`; the first line of its standard input is a RankSpec as JSON.
"""

from __future__ import annotations

import logging
import os
import pickle
import signal
import sys
from multiprocessing.connection import Connection
from typing import Any

import msgspec

from app.cluster.messages import Adapter
from app.cluster.process import signal_on_parent_death
from app.engines import noise
from app.engines.diffusion.batching import Outcome, Row
from app.engines.diffusion.call import Call
from app.engines.diffusion.failures import AbandonedError
from app.engines.diffusion.opening import Opened, open_pipeline
from app.engines.diffusion.options import read_options
from app.engines.diffusion.pixels import Pixels
from app.engines.diffusion.ranks.group import RankSpec
from app.protocol.sleep import SleepOrder
from app.telemetry.logging import configure_logging

logger = logging.getLogger("app.diffusion")


class _Nobody:
    """Listens to the rows of a rank that is not asked."""

    def started(self, row: Row) -> None:
        """Nobody asks."""

    def stepped(self, row: Row, step: int, steps: int) -> None:
        """Nobody asks."""

    def previewed(self, row: Row, number: int, picture: Pixels) -> None:
        """Rank 0 has made the same one."""

    def filmed(self, row: Row, frames: list[Pixels]) -> None:
        """Rank 0 has decoded the same."""

    def finished(self, row: Row, outcome: Outcome) -> None:
        """Rank 0 has made the same."""


class Member:
    """What rank 0 may ask for; each method does what rank 0 does at that moment."""

    def __init__(self, opened: Opened) -> None:
        self._opened = opened

    def draw(self, calls: list[tuple[Call, int]]) -> None:
        """One pipeline call for rows of these calls and indices."""
        self._opened.runner.draw_along([Row(call, index, _Nobody()) for call, index in calls])

    def load(self, adapter: Adapter, replace: bool) -> None:
        self._opened.adapters.load(adapter, replace)

    def unload(self, name: str) -> None:
        self._opened.adapters.unload(name)

    def sleep(self, order: SleepOrder) -> None:
        assert self._opened.sleeper is not None
        self._opened.sleeper.sleep(order)

    def wake_up(self) -> None:
        assert self._opened.sleeper is not None
        self._opened.sleeper.wake_up()

    def sync(self, wanted: list[Adapter]) -> None:
        self._opened.adapters.sync(wanted)


def _serve(member: Member, commands: Connection[Any, Any]) -> None:
    """Obey until rank 0 closes the pipe."""
    while True:
        try:
            method, arguments = pickle.loads(commands.recv_bytes())  # between two of our processes
        except EOFError:
            return
        failure = ""
        try:
            getattr(member, method)(*arguments)
        except AbandonedError:
            pass
        except Exception as error:  # noqa: BLE001 - rank 0, which knows whether it failed as well, decides
            failure = f"{type(error).__name__}: {error}"
        commands.send(failure)


def main() -> None:
    spec = msgspec.json.decode(sys.stdin.buffer.readline(), type=RankSpec)
    signal_on_parent_death(signal.SIGKILL)
    if os.getppid() != spec.parent_pid:
        os._exit(1)
    configure_logging(spec.log)
    noise.silence()
    commands: Connection[Any, Any] = Connection(spec.command)
    try:
        opened = open_pipeline(spec.stage, read_options(spec.stage), spec.rank, spec.meeting)
        commands.send("")
    except Exception:
        logger.exception("rank %d could not load the model", spec.rank)
        os._exit(1)
    _serve(Member(opened), commands)
    os._exit(0)  # torch.distributed would wait for ranks that have left


if __name__ == "__main__":
    main()
