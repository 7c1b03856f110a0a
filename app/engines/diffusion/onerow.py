"""What the engine's threads tell of a request that is one row, handed over to the event loop."""

from __future__ import annotations

import asyncio

from app.cluster.messages import Progress
from app.engines.diffusion.batching import Outcome, Row
from app.engines.diffusion.call import Call
from app.engines.diffusion.pixels import Pixels

News = Progress | list[Pixels] | Outcome
"""A step, some frames of a video as they are decoded, what became of the row."""


class OneRow:
    """The listener of its row. Whoever delivers the answer takes `news`, the last of which is an outcome."""

    def __init__(self, call: Call, *, progress: bool) -> None:
        """`progress`: somebody wants to know of steps."""
        self.rows = [Row(call, 0, self)]
        self.running = False
        self.news: asyncio.Queue[News] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        self._progress = progress

    def abandon(self) -> None:
        """Nobody wants it any more."""
        for row in self.rows:
            row.cancelled = True

    # ------------------------------------------------------------------------------------------------ engine's threads

    def started(self, row: Row) -> None:
        self.running = True

    def stepped(self, row: Row, step: int, steps: int) -> None:
        if self._progress:  # otherwise the event loop is not woken: it would take turns with the pipeline
            self._tell(Progress(step, steps))

    def previewed(self, row: Row, number: int, picture: Pixels) -> None:
        """Nothing but pictures is shown before it is finished."""

    def filmed(self, row: Row, frames: list[Pixels]) -> None:
        self._tell(frames)

    def finished(self, row: Row, outcome: Outcome) -> None:
        self._tell(outcome)

    def _tell(self, news: News) -> None:
        self._loop.call_soon_threadsafe(self.news.put_nowait, news)
