"""A request that several stages work on, each fed with the tensors of the one before: thinker, talker, vocoder."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Sequence
from itertools import pairwise

from app.cluster import messages as m
from app.pipeline.edge import Part, TensorEdge
from app.protocol.errors import ApiError
from app.telemetry.requests import EndReason, reason_of

Batch = tuple[int, list[m.AnyEvent]]
"""Which of the stages, and what came of it."""


class TensorChain:
    """The events of all stages as they come, but for the tensors, which go to the next stage: an async iterator of
    batches, each of one stage, the last one of every stage with its Done.

    Stages do not wait for each other's readers: text of the first one comes however far the last one is. Where one
    fails or nothing moves on an edge in time, the others are aborted, and iteration raises ApiError after what had come
    until then. `parts` are requests that have not been started, in order. Always call `aclose`, once the events have
    been used: what the stages hold for each other is released then at the latest.
    """

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = parts
        self._edges = [TensorEdge(producer, consumer) for producer, consumer in pairwise(parts)]
        self._pending: dict[int, asyncio.Task[list[m.AnyEvent]]] = {}
        self._open = set(range(len(parts)))
        self._ready: deque[Batch] = deque()
        self._failure: ApiError | None = None
        self._clock = asyncio.get_running_loop().time
        self._waited_until = 0.0

    async def start(self) -> None:
        """Return when all stages have accepted; what any of them refuses is raised before anything is made."""
        try:
            for part in reversed(self._parts):
                await _start(part)
        except BaseException as error:
            await self.aclose(reason_of(error))
            raise
        self._waited_until = self._clock()
        for edge in self._edges:
            edge.move()

    @property
    def last(self) -> int:
        """Which of the stages feeds no other."""
        return len(self._parts) - 1

    @property
    def cut_short(self) -> bool:
        """The last stage is done, and the one before it is not."""
        return self.last not in self._open and self.last - 1 in self._open

    def __aiter__(self) -> TensorChain:
        return self

    async def __anext__(self) -> Batch:
        while not self._ready:
            if self._failure is not None:
                raise self._failure
            if not self._open:
                raise StopAsyncIteration
            await self._wait()
            try:
                self._take_all()
            except ApiError as error:
                await self.fail(error)
        return self._ready.popleft()

    async def fail(self, error: ApiError) -> None:
        """Abort all stages; iteration raises the error after what has come."""
        self._failure = error
        await self._abort(reason_of(error))

    async def _wait(self) -> None:
        for position in self._open - self._pending.keys():
            self._pending[position] = asyncio.create_task(self._parts[position].stream.__anext__())
        for edge in self._edges:
            edge.pause(self._clock() - self._waited_until)
        for before, behind in pairwise(self._edges):
            behind.wait_for(before)
        due = min((edge.due for edge in self._edges), default=math.inf)
        patience = None if due == math.inf else max(0.0, due - self._clock())
        await asyncio.wait(self._pending.values(), timeout=patience, return_when=asyncio.FIRST_COMPLETED)
        self._waited_until = self._clock()

    def _take_all(self) -> None:
        """
        Raises:
            ApiError: of the first stage that failed, or the first edge on which nothing moved in time.
        """
        for position in sorted(position for position, task in self._pending.items() if task.done()):
            self._take(position, self._pending.pop(position).result())
        for edge in self._edges:
            if error := edge.overdue():
                raise error

    def _take(self, position: int, batch: list[m.AnyEvent]) -> None:
        before = self._edges[position - 1] if position else None
        behind = self._edges[position] if position < len(self._edges) else None
        events = []
        for event in batch:
            if behind is not None and isinstance(event, m.Tensors):
                behind.pass_on(event)
            else:
                events.append(event)
        if before is not None:
            before.move()
        if isinstance(batch[-1], m.Done):
            self._open.discard(position)
            if before is not None:
                before.close()
            if behind is not None:
                behind.end()
        if events:
            self._ready.append((position, events))

    async def aclose(self, reason: EndReason = "client_disconnect") -> None:
        """Abort what still runs, for `reason`, and release what the stages hold; may be called again."""
        await self._abort(reason)
        for part in self._parts:
            await part.stream.aclose(reason)

    async def _abort(self, reason: EndReason) -> None:
        for part in self._parts:
            part.stream.abort(reason)
        waits = list(self._pending.values())
        self._pending.clear()
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)


async def _start(part: Part) -> None:
    try:
        await part.stream.start()
    except ApiError as error:
        raise part.told(error) from None
