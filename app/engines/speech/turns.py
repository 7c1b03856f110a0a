"""The engine's threads, and who is next on them: of the requests that wait, the one with the least left to hear."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count


class Turns:
    """Turns for sentences on threads, the earliest due first.

    What is due moves on with the sound that a request has got, and for those that arrive with the clock: who has heard
    nothing yet goes before who is far ahead, and nobody waits for ever.
    """

    def __init__(self, threads: int, initializer: Callable[[], None] | None = None) -> None:
        """`initializer` runs in each new thread."""
        self._threads = ThreadPoolExecutor(threads, "speech", initializer)
        self._free = threads
        self._line: list[tuple[float, int, asyncio.Future[None]]] = []
        self._arrivals = count()

    async def take(self, due: float, work: Callable[[], None]) -> None:
        """Wait for a turn and do the work on a thread. A thread finishes what it does also if nobody waits for it."""
        await self._begin(due)
        try:
            await asyncio.get_running_loop().run_in_executor(self._threads, work)
        finally:
            self._pass_on()

    async def _begin(self, due: float) -> None:
        if self._free > 0:
            self._free -= 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._line, (due, next(self._arrivals), turn))
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # it came in the moment of the cancellation
                self._pass_on()
            raise

    def _pass_on(self) -> None:
        while self._line:
            turn = heapq.heappop(self._line)[2]
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1

    def close(self) -> None:
        """End the threads; waits for what they do."""
        self._threads.shutdown(cancel_futures=True)
